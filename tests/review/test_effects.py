"""Decisions: each does what it says, all can be undone byte for byte, and the reviewed run is consistent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray
from support.sample_run import sample_run

from sortal.errors import InputError, NoSpaceError
from sortal.review import actions, joining, journal
from sortal.review.actions import (
    Accept,
    AcceptCategory,
    Action,
    Audit,
    Create,
    Grow,
    Keep,
    Merge,
    Move,
    Redo,
    Refit,
    Reject,
    Rename,
    Split,
    Undo,
)
from sortal.review.audit import NO_TALLY, Tally
from sortal.review.effects import Review, apply
from sortal.review.loading import load_run, save_run
from sortal.runs import storage
from sortal.runs.building import build_run
from sortal.runs.confidence import spread
from sortal.runs.evaluation import evaluate
from sortal.runs.run import DECISIONS, REVIEWED, Run


def a_run(*, head: bool = False, images: int = 72) -> Run:
    """Build a run as discovery does, with known categories 0 to 3 and new ones 4 and 5."""
    run = sample_run(images=images)
    scores = np.concatenate([5 * run.centres, np.zeros((6, 1))], axis=1).astype(np.float32) if head else None
    return build_run(
        folder=run.folder,
        facts=run.facts,
        assignments=run.assignments,
        categories=run.categories,
        k=run.k,
        confidence=replace(run.confidence, stability=np.linspace(0.5, 1, 6), exponent=np.linspace(2, 1, 6)),
        features=run.features,
        centres=run.centres,
        head=scores,
        quarantine=(),
    )


RUN = a_run()


def some(run: Run, category: int, count: int) -> tuple[str, ...]:
    """Return the contents of the first unlabelled images of a category."""
    rows = np.flatnonzero((run.assignments.category_id == category) & (run.assignments.status != "labelled"))
    return contents(run, rows[:count])


def contents(run: Run, rows: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(run.assignments.contents[row] for row in rows.tolist())


def grow(category: int, **images: tuple[str, ...]) -> Grow:
    return Grow(category=category, **{"seen": (), "unseen": (), "wrong": (), **images})


def refit(images: tuple[str, ...], to: Sequence[int], *names: str, stability: float = 1.0) -> Refit:
    """Return a refit that found the categories of the images, all of them equally stable."""
    found = tuple(sorted({*to}))
    return Refit(images=images, to=tuple(to), names=names, categories=found, stability=(stability,) * len(found))


def mask(run: Run, images: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([content in images for content in run.assignments.contents], dtype=bool)


def assert_consistent(run: Run) -> None:
    """Check that every figure of a category follows from the images with its id."""
    a = run.assignments
    assert sum(each.size for each in run.categories) == len(a)
    kinds = {each.id: each.kind for each in run.categories}
    for row, each in enumerate(run.categories):
        own = a.category_id == each.id
        assert each.size == own.sum()
        assert (each.labelled, each.unsure) == ((a.status[own] == "labelled").sum(), (a.status[own] == "unsure").sum())
        assert {*a.status[own]} <= {"labelled", "unsure", each.kind}
        np.testing.assert_allclose(
            a.distance[own], np.linalg.norm(run.features[own] - run.centres[row], axis=1), atol=1e-5
        )
        assert {*each.typical} <= {file for file, is_own in zip(a.files, own, strict=True) if is_own}
        assert each.nearest_known_id is None or (
            kinds[each.nearest_known_id] == "known" and each.nearest_known_id != each.id
        )
    assert {*a.next_category_id.tolist()} <= {*kinds}
    assert (a.confidence[a.seen] == 1).all()
    assert (a.confidence <= 1).all()
    assert "unsure" not in a.status[a.settled]
    assert run.metrics == evaluate(a, run.categories)


def files_of(run: Run) -> dict[str, bytes]:
    """Return everything that would be saved of a run."""
    return {**storage._contents(run), "facts": repr(run.facts).encode(), "rejected": repr(run.rejected).encode()}


def test_a_merge_keeps_the_first_id_and_gets_the_mean_of_its_images_as_centre() -> None:
    run = a_run(head=True)
    merged = apply(run, [Merge(categories=(4, 5))])
    assert_consistent(merged)
    assert [(c.id, c.name, c.kind) for c in merged.categories] == [(c.id, c.name, c.kind) for c in run.categories[:5]]
    assert (merged.categories[4].size, merged.categories[4].weight) == (24, 24)
    own = np.minimum(run.assignments.category_id, 4)
    np.testing.assert_allclose(merged.centres[4], run.features[own == 4].mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(merged.centres[:4], run.centres[:4])
    usual, deviation = spread(merged.assignments.distance, own, 5)
    np.testing.assert_allclose(merged.confidence.usual, [*run.confidence.usual[:4], usual[4]])
    np.testing.assert_allclose(merged.confidence.deviation, [*run.confidence.deviation[:4], deviation[4]])
    assert merged.confidence.stability is not None
    assert merged.confidence.exponent is not None
    np.testing.assert_allclose(merged.confidence.stability, [0.5, 0.6, 0.7, 0.8, 1])
    np.testing.assert_allclose(merged.confidence.exponent, [2, 1.8, 1.6, 1.4, 1])
    assert (merged.assignments.reviewed == "no").all(), "nobody has looked at the images"
    assert len(run.categories) == 6, "the original run is unchanged"


def test_known_classes_merge_into_one_and_a_new_category_joins_a_known_one() -> None:
    merged = apply(RUN, [Merge(categories=(2, 0, 5))])
    assert_consistent(merged)
    assert [c.id for c in merged.categories] == [1, 2, 3, 4]
    assert {"class 0"}.isdisjoint({*merged.assignments.labels, *merged.assignments.truth})
    assert merged.categories[1].former == ("class 0",)
    assert merged.facts.hashes.images != RUN.facts.hashes.images


@pytest.mark.parametrize("head", [False, True])
def test_a_split_gets_an_unused_id_and_centres_from_its_images(head: bool) -> None:
    run = a_run(head=head)
    merged = apply(run, [Merge(categories=(4, 5))])
    images = some(merged, 4, 9)
    apart = apply(run, [Merge(categories=(4, 5)), Split(images=images, category=6, name="fern")])
    assert_consistent(apart)
    assert [c.id for c in apart.categories] == [0, 1, 2, 3, 4, 6], "5 is never reused"
    assert apart.facts.next_id == 7
    assert apart.names[6] == "fern"
    own = apart.assignments.category_id
    assert (own[mask(run, images)] == 6).all()
    assert (apart.assignments.reviewed == "no").all()
    for row, category in ((4, 4), (5, 6)):
        np.testing.assert_allclose(apart.centres[row], run.features[own == category].mean(axis=0), atol=1e-6)
        assert apart.categories[row].weight == (own == category).sum()
    if apart.head is None or run.head is None:
        return
    # The nearer of the two centres has the higher score; other scores are unchanged.
    scores = run.features @ apart.head[:, :-1].T + apart.head[:, -1]
    first, second = (np.linalg.norm(run.features - apart.centres[row], axis=1) for row in (4, 5))
    np.testing.assert_array_equal(scores[:, 4] > scores[:, 5], first < second)
    np.testing.assert_allclose(scores[:, :4], run.features @ run.head[:4, :-1].T, atol=1e-4)


def test_images_are_moved_accepted_and_made_into_a_category() -> None:
    a, b, c = some(RUN, 4, 3), some(RUN, 5, 4), some(RUN, 0, 2)
    found = apply(
        RUN,
        [
            Move(images=a, category=1),
            Accept(images=(*a[:1], *b[:2])),
            Create(images=(*b[2:], *c), category=6, name="moss"),
        ],
    )
    assert_consistent(found)
    states, own = found.assignments.reviewed, found.assignments.category_id
    assert set(states[mask(RUN, a)]) == {"moved"}, "an accepted move stays a move"
    assert set(own[mask(RUN, a)]) == {1}
    assert set(states[mask(RUN, b[:2])]) == {"confirmed"}
    assert set(own[mask(RUN, (*b[2:], *c))]) == {6}
    assert (found.categories[-1].kind, found.categories[-1].size) == ("new", 4)
    assert (states != "no").sum() == 9
    everything = apply(RUN, [AcceptCategory(category=2)])
    np.testing.assert_array_equal(everything.assignments.reviewed == "confirmed", RUN.assignments.category_id == 2)


def test_rejected_images_go_to_the_nearest_category_they_were_not_rejected_from() -> None:
    images, x = some(RUN, 4, 2), RUN.features[mask(RUN, some(RUN, 4, 2))]
    distance = np.linalg.norm(x[:, None] - RUN.centres[None], axis=2)
    distance[:, 4] = np.inf
    review = Review(RUN)
    review.take(Reject(images=images, category=4))
    assert review.category[mask(RUN, images)].tolist() == distance.argmin(axis=1).tolist()
    again = apply(RUN, [Reject(images=images, category=4)])
    assert_consistent(again)
    assert set(again.assignments.reviewed[mask(RUN, images)]) == {"rejected"}
    assert again.rejected == {(content, 4) for content in images}
    # From one category to the next, until none is left.
    content, seen = images[:1], [4]
    while len(seen) < 6:
        seen.append(int(review.category[mask(RUN, content)][0]))
        if len(seen) < 6:
            review.take(Reject(images=content, category=seen[-1]))
    assert sorted(seen) == [*range(6)]
    with pytest.raises(InputError, match="No category is left"):
        review.take(Reject(images=content, category=seen[-1]))
    review.take(Move(images=content, category=4))
    assert (content[0], 4) not in review.rejected, "whoever puts it back means it"
    review.take(Merge(categories=(seen[1], 5) if seen[1] != 5 else (0, 5)))
    assert all(category != 5 for _, category in review.rejected) or seen[1] == 5


def test_merging_with_the_category_an_image_was_rejected_from_settles_that() -> None:
    (content,) = some(RUN, 4, 1)
    review = Review(RUN)
    review.take(Reject(images=(content,), category=4))
    now = int(review.category[mask(RUN, (content,))][0])
    other = next(each for each in range(4) if each != now)
    review.take(Merge(categories=(other, 5) if now != 5 else (other, 3)))
    assert (content, 4) in review.rejected
    review.take(Merge(categories=(now, 4)))
    assert not review.rejected


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Merge(categories=(4, 1)), "A known category must come first"),
        (Merge(categories=(3,)), "two or more"),
        (Merge(categories=(3, 3)), "two or more"),
        (Merge(categories=()), "two or more"),
        (Merge(categories=(3, 99)), "no category with the id 99"),
        (Rename(category=4, name="new 2"), "Merge them instead"),
        (Rename(category=4, name=" "), "1 to 200 printable characters"),
        (Rename(category=4, name="a\nb"), "1 to 200 printable characters"),
        (Rename(category=4, name="x" * 201), "1 to 200 printable characters, got 'x{40}'…"),
        (Move(images=(), category=1), "one or more, each once"),
        (Move(images=("0" * 32, "0" * 32), category=1), "one or more, each once"),
        (Move(images=("nothing",), category=1), "the content 'nothing' is not"),
        (Accept(images=("nothing",)), "the content 'nothing' is not"),
        (Reject(images=some(RUN, 4, 1), category=5), "1 image to reject is not in 'new 2'"),
        (Create(images=some(RUN, 4, 1), category=5, name="fern"), "must have the next id, 6, got 5"),
        (Create(images=some(RUN, 4, 1), category=6, name="class 0"), "Merge them instead"),
        (Split(images=(*some(RUN, 4, 1), *some(RUN, 5, 1)), category=6, name="fern"), "the images are in several"),
        (grow(4, seen=some(RUN, 4, 1), wrong=some(RUN, 4, 1)), "one or more, each once"),
        (grow(4, unseen=("nothing",)), "the content 'nothing' is not"),
        (grow(99, seen=some(RUN, 4, 1)), "no category with the id 99"),
        (Audit(right=some(RUN, 4, 1), wrong=()), "Only images that were accepted unseen"),
        (Audit(right=(), wrong=()), "one or more, each once"),
        (Keep(categories=()), "One or two different categories can be kept, got \\[\\]"),
        (Keep(categories=(4, 4)), "One or two different categories"),
        (Keep(categories=(3, 4, 5)), "One or two different categories"),
        (Keep(categories=(4, 99)), "no category with the id 99"),
        (refit(some(RUN, 4, 2), (5,)), "must give every image a category"),
        (replace(refit(some(RUN, 4, 1), (5,)), stability=()), "every category a stability"),
        (replace(refit(some(RUN, 4, 1), (5,)), stability=(1.01,)), "from 0 to 1"),
        (replace(refit(some(RUN, 4, 1), (5,)), stability=(float("nan"),)), "from 0 to 1"),
        (replace(refit(some(RUN, 4, 1), (6,), "fern"), categories=(), stability=()), "new categories a stability"),
        (refit(some(RUN, 4, 1), (7,), "fern"), "must have the next id, 6, got 7"),
        (refit(some(RUN, 4, 1), (6,)), "categories that exist or are new"),
        (refit(some(RUN, 4, 1), (6,), "class 0"), "Merge them instead"),
        (refit(some(RUN, 4, 1), (6,), "fern", "moss"), "new categories a stability"),
        (
            Refit(images=some(RUN, 4, 1), to=(5,), names=("fern",), categories=(6,), stability=(1.0,)),
            "A new category must get images, but 'fern' does not",
        ),
        (refit((RUN.assignments.contents[0],), (5,)), "must leave alone what people have decided"),
        (Undo(), "nothing to undo"),
        (Redo(), "nothing to redo"),
    ],
)
def test_impossible_decisions_are_refused_and_change_nothing(action: Action, message: str) -> None:
    review = Review(RUN)
    with pytest.raises(InputError, match=message):
        review.take(action)
    assert review.run() is RUN
    assert not review.done


def test_a_renamed_known_class_keeps_its_images_and_figures() -> None:
    renamed = apply(RUN, [Rename(category=1, name="fern"), Rename(category=4, name="moss")])
    assert_consistent(renamed)
    assert renamed.metrics is not None
    assert RUN.metrics is not None
    assert renamed.metrics.accuracy == RUN.metrics.accuracy
    assert renamed.metrics.known_accuracy == RUN.metrics.known_accuracy
    assert renamed.assignments.labels.count("fern") == RUN.assignments.labels.count("class 1")
    assert "moss" not in renamed.assignments.truth, "the name of a new category is not the truth"
    np.testing.assert_array_equal(renamed.assignments.confidence, RUN.assignments.confidence)
    assert [each.former for each in renamed.categories] == [(), ("class 1",), (), (), (), ()]


def test_ids_of_undone_categories_are_not_used_again() -> None:
    review, images = Review(RUN), some(RUN, 4, 2)
    review.take(Create(images=images, category=6, name="fern"))
    review.take(Undo())
    assert review.next_id == 7
    with pytest.raises(InputError, match="the next id, 7"):
        review.take(Create(images=images, category=6, name="moss"))
    review.take(Redo())
    assert review.categories[6].name == "fern"


def test_copies_of_an_image_are_decided_together() -> None:
    a = RUN.assignments
    twins = replace(RUN, assignments=replace(a, contents=(*a.contents[:-1], a.contents[4])))
    found = apply(twins, [Move(images=(a.contents[4],), category=1)])
    assert found.assignments.category_id[[4, -1]].tolist() == [1, 1]
    own = int(a.category_id[4])
    apart = apply(twins, [Reject(images=(a.contents[4],), category=own)])  # the copy is in another category
    assert int(apart.assignments.category_id[4]) != own
    assert apart.assignments.category_id[-1] == a.category_id[-1]


def states(review: Review, images: Sequence[str]) -> list[str]:
    return [REVIEWED[review.reviewed[index_of(each)]] for each in images]


def places(review: Review, images: Sequence[str]) -> list[int]:
    return [int(review.category[index_of(each)]) for each in images]


def test_a_category_grows_by_what_was_seen_and_unseen_and_loses_what_is_wrong() -> None:
    a, b, labelled = some(RUN, 4, 12), some(RUN, 5, 5), RUN.assignments.contents[0]
    review = Review(RUN)
    review.take(Accept(images=b[4:]))
    review.take(Move(images=a[11:], category=4))
    review.take(Reject(images=b[1:2], category=5))
    review.take(
        grow(
            4,
            seen=(*a[:2], a[11], b[0]),
            unseen=(*a[2:5], b[1], b[4], labelled),
            wrong=(*a[5:7], b[2]),
        )
    )
    assert states(review, (*a[:2], a[11], b[0])) == ["confirmed", "confirmed", "moved", "moved"]
    assert states(review, (*a[2:5], b[1])) == ["accepted unseen"] * 4
    assert set(places(review, (*a[:5], a[11], *b[:2]))) == {4}
    assert (states(review, (b[4],)), places(review, (b[4],))) == (["confirmed"], [5]), "a person has decided on it"
    assert (states(review, (labelled,)), places(review, (labelled,))) == (["no"], [0])
    assert states(review, a[5:7]) == ["rejected"] * 2
    assert 4 not in places(review, a[5:7])
    assert (states(review, (b[2],)), places(review, (b[2],))) == (["no"], [5]), "it was not in this category"
    assert review.rejected == {(b[1], 5), *((each, 4) for each in (*a[5:7], b[2]))}
    assert review.categories[4].grown == 4, "a[7] to a[10] are open"
    review.take(grow(4, unseen=(b[2],)))
    assert (b[2], 4) not in review.rejected, "whoever puts it back means it"
    found = review.run()
    assert_consistent(found)
    assert found.to_pandas().reviewed.value_counts()["accepted unseen"] == 5


def test_what_was_accepted_unseen_is_as_sure_as_it_was_and_never_unsure() -> None:
    unseen = contents(RUN, np.flatnonzero(RUN.assignments.status == "unsure"))
    own = {content: int(RUN.assignments.category_id[index_of(content)]) for content in unseen}
    found = apply(RUN, [grow(each, unseen=tuple(c for c in unseen if own[c] == each)) for each in {*own.values()}])
    assert len(unseen) > 5
    np.testing.assert_array_equal(found.assignments.confidence, RUN.assignments.confidence)
    assert "unsure" not in found.assignments.status
    assert_consistent(found)


def test_a_category_that_fails_an_audit_is_open_again_and_no_other() -> None:
    a, b = some(RUN, 4, 12), some(RUN, 5, 12)
    review = Review(RUN)
    review.take(grow(4, seen=a[:1], unseen=a[1:11]))
    review.take(grow(5, unseen=b))
    assert review.precision().images == 22
    review.take(Audit(right=(*a[1:3], *b[:4]), wrong=a[3:5]))
    assert states(review, a) == [*["confirmed"] * 3, *["rejected"] * 2, *["no"] * 7]
    assert 4 not in places(review, a[3:5])
    assert set(places(review, (*a[:3], *a[5:]))) == {4}
    assert states(review, b) == [*["confirmed"] * 4, *["accepted unseen"] * 8]
    assert review.rejected == {(each, 4) for each in a[3:5]}
    assert [(c.failed, c.tally) for c in (review.categories[4], review.categories[5])] == [
        ((Tally(images=10, sampled=4, right=2),), NO_TALLY),
        ((), Tally(images=12, sampled=4, right=4)),
    ]
    assert (review.precision().images, review.precision().sampled) == (12, 4)
    review.take(Audit(right=b[4:8], wrong=b[8:9]))
    assert review.categories[5].tally == Tally(images=12, sampled=9, right=8), "a later sample adds to the first"
    assert states(review, b[9:]) == ["accepted unseen"] * 3
    assert_consistent(review.run())
    review.take(grow(5, unseen=a[5:6]))
    assert review.categories[5].tally == NO_TALLY, "the sample is not one of the images that came later"
    review.take(grow(4, unseen=a[6:]))
    review.take(Audit(right=a[6:], wrong=()))
    assert len(review.categories[4].failed) == 1, "it failed once"
    assert review.categories[4].tally.right == 6
    for _ in range(6):
        review.take(Undo())
    assert states(review, (*a, *b)) == [*["confirmed"], *["accepted unseen"] * 10, *["no"] * 13]
    assert not any(each.failed or each.tally.sampled for each in review.categories.values())


def test_merged_categories_take_over_what_they_are_to_be_kept_apart_from() -> None:
    review = Review(RUN)
    for pair in ((3, 4), (5, 0), (4, 5), (2, 1)):
        review.take(Keep(categories=pair))
    review.take(Keep(categories=(3,)))
    assert {each.id: {*each.apart} for each in review.categories.values()} == {
        0: {5}, 1: {2}, 2: {1}, 3: {4}, 4: {3, 5}, 5: {0, 4},
    }  # fmt: skip
    assert [each.whole for each in review.categories.values()] == [False, False, False, True, False, False]
    review.take(Merge(categories=(4, 5)))
    expected = {0: {4}, 1: {2}, 2: {1}, 3: {4}, 4: {0, 3}}
    assert {each.id: {*each.apart} for each in review.categories.values()} == expected
    review.take(Split(images=some(RUN, 3, 2), category=6, name="fern"))
    assert not review.categories[3].whole, "whoever splits it does not mean that any longer"
    assert review.categories[3].apart == {4, 6}, "nor are the parts to be merged again"
    for _ in range(7):
        review.take(Undo())
    assert not any(each.apart or each.whole for each in review.categories.values())


def test_a_merged_category_is_audited_if_all_of_it_was() -> None:
    a, b = some(RUN, 4, 12), some(RUN, 5, 12)
    review = Review(RUN)
    review.take(grow(4, unseen=a[:8]))
    review.take(grow(5, unseen=b[:9]))
    review.take(Audit(right=a[:5], wrong=()))
    review.take(Merge(categories=(4, 5)))
    assert (review.categories[4].tally, review.categories[4].grown) == (NO_TALLY, 4 + 3)
    review.take(Undo())
    review.take(Audit(right=b[:4], wrong=()))
    review.take(Merge(categories=(4, 5)))
    assert review.categories[4].tally == Tally(images=17, sampled=9, right=9)
    assert review.categories[4].whole, "whoever merges does not mean to split"
    review.take(Undo())
    review.take(Merge(categories=(3, 5)))
    assert review.categories[3].tally == Tally(images=9, sampled=4, right=4), "none of 3 was accepted unseen"
    assert review.categories[3].grown is None, "it was not grown"


def test_a_refit_moves_images_and_says_nothing_about_them() -> None:
    a, b = some(RUN, 4, 4), some(RUN, 5, 3)
    review = Review(RUN)
    review.take(grow(4))
    review.take(Reject(images=b[:1], category=5))
    found = Refit(
        images=(*a, *b),
        to=(5, 6, 6, 7, 6, 3, 7),
        names=("fern", "moss"),
        categories=(3, 4, 6, 7),
        stability=(0.25, 0.5, 0.75, 0.0),
    )
    review.take(found)
    assert places(review, (*a, *b)) == [*found.to]
    assert states(review, (*a, *b)) == [*["no"] * 4, "rejected", *["no"] * 2]
    made = {each: (review.categories[each].name, review.categories[each].kind) for each in (6, 7)}
    assert made == {6: ("fern", "new"), 7: ("moss", "new")}
    assert (review.categories[4].grown, review.next_id) == (None, 8)
    run = review.run()
    assert_consistent(run)
    assert run.confidence.stability is not None
    assert run.confidence.exponent is not None
    # In order of the categories, 0 to 7; 5 was not found again, and is as it was.
    np.testing.assert_allclose(run.confidence.stability, [0.5, 0.6, 0.7, 0.25, 0.5, 1, 0.75, 0])
    np.testing.assert_allclose(run.confidence.exponent, [2, 1.8, 1.6, 1, 1, 1, 1, 1])


def test_a_refit_that_is_made_again_gets_the_same_ids() -> None:
    review, images = Review(RUN), some(RUN, 4, 3)
    review.take(refit(images, (6, 7, 7), "fern", "moss"))
    review.take(Rename(category=7, name="lichen"))
    for _ in range(2):
        review.take(Undo())
    assert (review.next_id, {*review.categories}) == (8, {*range(6)})
    with pytest.raises(InputError, match="the next id, 8, got 6"):
        review.take(refit(images, (6, 7, 7), "fern", "moss"))
    for _ in range(2):
        review.take(Redo())
    assert places(review, images) == [6, 7, 7]
    assert [review.categories[each].name for each in (6, 7)] == ["fern", "lichen"]
    review.take(refit(images[:1], (8,), "moss"))
    assert review.categories[8].name == "moss"


@pytest.mark.parametrize("state", ["confirmed", "moved", "accepted unseen"])
def test_a_refit_leaves_alone_what_people_have_decided(state: str) -> None:
    images, review = some(RUN, 4, 1), Review(RUN)
    decision: dict[str, Action] = {
        "confirmed": Accept(images=images),
        "moved": Move(images=images, category=3),
        "accepted unseen": grow(4, unseen=images),
    }
    review.take(decision[state])
    assert states(review, images) == [state]
    with pytest.raises(InputError, match="leave alone what people have decided"):
        review.take(refit(images, (5,)))
    assert len(review.done) == 1


def test_actions_are_read_back_from_json() -> None:
    for action in (
        Rename(category=1, name="é"),
        Merge(categories=(1, 2)),
        Accept(images=("a",)),
        Grow(category=1, seen=("a",), unseen=(), wrong=("b", "c")),
        Audit(right=(), wrong=("a",)),
        Keep(categories=(1,)),
        Refit(images=("a", "b"), to=(1, 6), names=("é",), categories=(1, 6), stability=(0.123456, 1.0)),
        Undo(),
    ):
        assert actions.from_json(json.loads(json.dumps(actions.to_json(action)))) == action
    for value, message in (
        ({"do": "dance"}, "do must be one of rename, merge"),
        ({}, "do must be one of"),
        ({"do": "move", "images": ["a"]}, "move has no key 'category'"),
        ({"do": "rename", "category": "1", "name": "x"}, "rename.category must be int"),
        ({"do": "undo", "more": 1}, "unknown key 'more'"),
        ({"do": "grow", "category": 1, "seen": ["a"], "wrong": []}, "grow has no key 'unseen'"),
        ({"do": "keep", "categories": [1, "2"]}, "keep.categories.* must be int"),
    ):
        with pytest.raises(ValueError, match=message):
            actions.from_json(value)


def test_actions_are_said_in_words() -> None:
    names = {1: "oak", 2: "ash"}
    for action, words in (
        (Rename(category=1, name="fern"), "Renamed 'oak' to 'fern'"),
        (Merge(categories=(1, 2)), "Merged 'ash' into 'oak'"),
        (Move(images=("a", "b"), category=2), "Moved 2 images to 'ash'"),
        (Reject(images=("a",), category=1), "Rejected 1 image from 'oak'"),
        (Accept(images=("a",)), "Confirmed 1 image"),
        (AcceptCategory(category=3), "Confirmed all of 'category 3'"),
        (Split(images=("a",), category=3, name="x"), "Split 1 image off as 'x'"),
        (Create(images=("a",), category=3, name="x"), "Put 1 image into the new category 'x'"),
        (Grow(category=1, seen=("a",), unseen=(), wrong=("b",)), "Confirmed 1 image of 'oak'"),
        (Grow(category=1, seen=(), unseen=("a", "b"), wrong=()), "Confirmed 0 images of 'oak' and accepted 2 unseen"),
        (Audit(right=("a", "b"), wrong=("c",)), "Audited 3 images accepted unseen: 1 wrong"),
        (Keep(categories=(1,)), "Kept 'oak' whole"),
        (Keep(categories=(1, 2)), "Kept 'oak' and 'ash' apart"),
        (
            Refit(images=("a",), to=(1,), names=(), categories=(1,), stability=(1.0,)),
            "Refitted the categories, which moved 1 image",
        ),
    ):
        assert actions.describe(action, names) == words


class Reviewing(RuleBasedStateMachine):
    """Any decisions in any order: the state is always valid, and undoing all of them gives the run back."""

    def __init__(self) -> None:
        super().__init__()
        self.review, self.taken = Review(RUN), list[Action]()
        self.past, self.future = list[Any](), list[Any]()  # states that undoing and redoing lead to

    def state(self) -> Any:
        """Return all of it, tallies and what is kept included, but for ids that are not to be used again."""
        review = self.review
        return review.category.tolist(), review.reviewed.tolist(), {**review.categories}, review.rejected

    def attempt(self, action: Action) -> None:
        before = self.state()
        assert actions.from_json(json.loads(json.dumps(actions.to_json(action)))) == action
        try:
            self.review.take(action)
        except InputError:
            assert self.state() == before
            return
        self.taken.append(action)
        if isinstance(action, Undo):
            assert self.state() == self.past.pop()
            self.future.append(before)
            return
        if isinstance(action, Redo):
            assert self.state() == self.future.pop()
        else:
            self.future.clear()
        self.past.append(before)

    def images(self, rows: list[int]) -> tuple[str, ...]:
        return tuple(RUN.assignments.contents[row] for row in rows)

    ROWS = st.lists(st.integers(0, 71), min_size=1, max_size=12, unique=True)
    IDS = st.integers(0, 12)
    NAMES = st.sampled_from(["fern", "moss", "class 0", "new 1", "lichen", ""])

    @rule(category=IDS, name=NAMES)
    def rename(self, category: int, name: str) -> None:
        self.attempt(Rename(category=category, name=name))

    @rule(categories=st.lists(IDS, min_size=2, max_size=3, unique=True))
    def merge(self, categories: list[int]) -> None:
        self.attempt(Merge(categories=tuple(categories)))

    @rule(rows=ROWS, category=IDS)
    def move(self, rows: list[int], category: int) -> None:
        self.attempt(Move(images=self.images(rows), category=category))

    @rule(rows=ROWS)
    def accept(self, rows: list[int]) -> None:
        self.attempt(Accept(images=self.images(rows)))

    @rule(category=IDS)
    def accept_category(self, category: int) -> None:
        self.attempt(AcceptCategory(category=category))

    @rule(data=st.data(), category=IDS)
    def reject(self, data: Any, category: int) -> None:
        rows = self.review.members(category).tolist()
        if rows:
            chosen = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=5, unique=True))
            self.attempt(Reject(images=self.images(chosen), category=category))

    @rule(rows=ROWS, name=NAMES)
    def create(self, rows: list[int], name: str) -> None:
        self.attempt(Create(images=self.images(rows), category=self.review.next_id, name=name))

    @rule(data=st.data(), category=IDS, name=NAMES)
    def split(self, data: Any, category: int, name: str) -> None:
        rows = self.review.members(category).tolist()
        if rows:
            chosen = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True))
            self.attempt(Split(images=self.images(chosen), category=self.review.next_id, name=name))

    @rule(rows=ROWS, category=IDS, ends=st.tuples(st.integers(0, 12), st.integers(0, 12)))
    def grow(self, rows: list[int], category: int, ends: tuple[int, int]) -> None:
        low, high = sorted(ends)
        parts = (self.images(each) for each in (rows[:low], rows[low:high], rows[high:]))
        self.attempt(Grow(category=category, **dict(zip(("unseen", "seen", "wrong"), parts, strict=True))))

    @rule(data=st.data(), category=IDS, wrong=st.integers(0, 3))
    def grow_and_audit(self, data: Any, category: int, wrong: int) -> None:
        """Accept a category unseen, where there is one, and audit some of all that were."""
        self.attempt(grow(category, unseen=self.images(self.review.members(category).tolist())))
        if rows := np.flatnonzero(self.review.unseen).tolist():
            chosen = self.images(data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=8, unique=True)))
            self.attempt(Audit(right=chosen[wrong:], wrong=chosen[:wrong]))

    @rule(categories=st.lists(IDS, min_size=1, max_size=2))
    def keep(self, categories: list[int]) -> None:
        self.attempt(Keep(categories=tuple(categories)))

    @rule(data=st.data(), rows=ROWS, name=NAMES, share=st.floats(0, 1))
    def refit(self, data: Any, rows: list[int], name: str, share: float) -> None:
        new, images = self.review.next_id, self.images([row for row in rows if not self.review.settled[row]])
        to = [data.draw(st.sampled_from([*self.review.categories, new])) for _ in images]
        if not {*zip(images, to, strict=True)} & self.review.rejected:  # which would be refused
            self.attempt(refit(images, to, *([name] if new in to else []), stability=share))

    @rule()
    def undo(self) -> None:
        self.attempt(Undo())

    @rule()
    def redo(self) -> None:
        self.attempt(Redo())

    @invariant()
    def every_image_is_in_one_category_that_exists(self) -> None:
        assert {*self.review.category.tolist()} <= {*self.review.categories}
        assert len(self.review.category) == 72
        assert ((self.review.reviewed >= 0) & (self.review.reviewed < len(REVIEWED))).all()
        names = [each.name for each in self.review.categories.values()]
        assert len({*names}) == len(names)
        assert max(self.review.categories) < self.review.next_id
        for content, category in self.review.rejected:
            row = RUN.assignments.contents.index(content)
            assert self.review.category[row] != category

    @invariant()
    def what_is_known_of_categories_is_valid(self) -> None:
        for each in self.review.categories.values():
            assert each.id not in each.apart
            assert all(each.id in self.review.categories[other].apart for other in each.apart)
            assert 0 <= each.tally.right <= each.tally.sampled
        assert not self.review.unseen[RUN.assignments.status == "labelled"].any()

    def teardown(self) -> None:
        for end in {len(self.taken), len(self.taken) // 2}:  # any prefix of the journal is a valid state
            assert_consistent(apply(RUN, self.taken[:end]))
        reviewed = self.review.run()
        unseen = reviewed.assignments.reviewed == "accepted unseen"
        np.testing.assert_array_equal(unseen, self.review.unseen)
        np.testing.assert_array_equal(  # as sure as if they were open
            reviewed.assignments.confidence[unseen], self.review.confidence()[unseen]
        )
        last = self.state()
        assert files_of(apply(RUN, self.taken)) == files_of(reviewed)
        count = len(self.review.done)
        for _ in range(count):
            self.review.take(Undo())
        assert files_of(self.review.run()) == files_of(RUN)
        assert self.state()[2] == Review(RUN).categories
        for _ in range(count):
            self.review.take(Redo())
        assert files_of(self.review.run()) == files_of(reviewed)
        assert self.state() == last


TestReviewing = Reviewing.TestCase
TestReviewing.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


# The journal


@pytest.fixture
def saved(tmp_path: Path) -> Run:
    run = replace(a_run(), folder=tmp_path / "run")
    save_run(run)
    return load_run(run.folder)


def note(run: Run, *actions: Action, by: str = "ada") -> list[journal.Decision]:
    lines = [journal.decide(action, by) for action in actions]
    journal.append(run.folder / DECISIONS, run.facts, lines)
    return lines


def test_a_loaded_run_is_the_reviewed_one_unless_the_raw_one_is_asked_for(saved: Run) -> None:
    images = some(saved, 4, 3)
    lines = note(saved, Move(images=images, category=1), Rename(category=5, name="fern"))
    found = load_run(saved.folder)
    assert files_of(found) == files_of(apply(saved, [each.action for each in lines]))
    assert found.decisions == 2
    assert files_of(load_run(saved.folder, raw=True)) == files_of(saved)
    note(saved, Undo(), Undo())
    assert files_of(load_run(saved.folder)) == files_of(saved)
    assert found.to_pandas().reviewed.value_counts().to_dict() == {"no": 69, "moved": 3}


def test_saving_a_reviewed_run_puts_its_journal_aside(saved: Run) -> None:
    note(saved, Rename(category=5, name="fern"))
    found = load_run(saved.folder)
    note(saved, Reject(images=some(saved, 4, 1), category=4))
    with pytest.raises(InputError, match="has 2 decisions, of which this state takes 1 into account"):
        save_run(found)
    found = load_run(saved.folder)
    save_run(found)
    assert not (saved.folder / DECISIONS).exists()
    assert (saved.folder / "decisions-1.jsonl").read_text().count("\n") == 3
    again = load_run(saved.folder)
    assert files_of(again) == files_of(found)
    assert again.rejected
    note(again, Rename(category=5, name="moss"))
    save_run(load_run(saved.folder))
    assert (saved.folder / "decisions-2.jsonl").exists()
    assert load_run(saved.folder).names[5] == "moss"


def test_an_emptied_category_is_gone_and_its_id_is_not_used_again(saved: Run) -> None:
    everything = contents(saved, np.flatnonzero(saved.assignments.category_id == 5))
    note(saved, Create(images=everything[:2], category=6, name="fern"), Merge(categories=(4, 6)))
    note(saved, Move(images=everything, category=1))
    found = load_run(saved.folder)
    assert 5 not in found.names
    assert_consistent(found)
    save_run(found)
    assert load_run(saved.folder).facts.next_id == 7


def test_anybody_may_decide(saved: Run) -> None:
    note(saved, Rename(category=5, name="fern"), by="\udcff ada\n")
    (line,) = journal.read(saved.folder / DECISIONS, saved.facts)
    assert line.by == "\udcff ada\n"


def test_a_torn_last_line_is_dropped_and_then_replaced(saved: Run) -> None:
    note(saved, Rename(category=5, name="fern"), Rename(category=4, name="moss"))
    path = saved.folder / DECISIONS
    whole = path.read_bytes()
    for cut in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
        path.write_bytes(whole[:cut])
        names = load_run(saved.folder).names
        assert (names[5] == "fern") == (whole[:cut].count(b"\n") >= 2)
        assert names[4] != "moss"
    note(saved, Rename(category=4, name="lichen"))
    assert load_run(saved.folder).names == {**saved.names, 5: "fern", 4: "lichen"}


def test_a_journal_that_somebody_else_has_changed_refuses_decisions(saved: Run) -> None:
    path, line = saved.folder / DECISIONS, journal.decide(Undo())
    after = journal.append(path, saved.facts, [line], after=0)
    assert after == journal.length(path) == path.stat().st_size
    for content in (None, b"", path.read_bytes() * 2):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(InputError, match="must not be changed during a review"):
            journal.append(path, saved.facts, [line], after=after)
        assert (path.read_bytes() if path.exists() else None) == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [lines[0].replace(b"sortal decisions 1", b"something")], "begins with 'sortal decisions 1'"),
        (lambda lines: [lines[0].replace(b'"run": "', b'"run": "f')], "are about another run"),
        (lambda lines: [lines[0], b"{]\n", lines[1]], "Line 2 of .* is damaged"),
        (lambda lines: [lines[0], b"3\n"], "Line 2 of .* is damaged: it is not an object"),
        (lambda lines: [lines[0], lines[1].replace(b"rename", b"dance")], "Line 2 .*do must be one of"),
        (lambda lines: [lines[0], lines[1].replace(b'"by": "ada"', b'"by": 3')], "Line 2 .*by must be text, got '3'"),
    ],
)
def test_damaged_journals_are_refused(saved: Run, change: Any, message: str) -> None:
    note(saved, Rename(category=5, name="fern"))
    path = saved.folder / DECISIONS
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(InputError, match=message):
        load_run(saved.folder)
    assert load_run(saved.folder, raw=True).names == saved.names


def test_a_decision_that_cannot_be_written_leaves_the_journal_as_it_was(
    saved: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(saved, Rename(category=5, name="fern"))
    before = (saved.folder / DECISIONS).read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(NoSpaceError, match="No space left on device"):
        note(saved, Rename(category=4, name="moss"))
    assert (saved.folder / DECISIONS).read_bytes() == before


# Two people


def two(mine: Sequence[Action], theirs: Sequence[Action]) -> tuple[Review, list[journal.Decision]]:
    """Join two journals; return the state and the lines that were added."""
    ours = [journal.decide(each, "ada") for each in mine]
    other = [journal.decide(each, "bob") for each in theirs]
    lines = joining.join(RUN, ours, other)
    assert not joining.join(RUN, [*ours, *lines], other), "a second time nothing is added"
    assert {each.key.partition(".")[0] for each in lines} <= {each.key for each in other}
    assert all(each.by == "bob" for each in lines)
    return journal.reviewed(RUN, [*ours, *lines]), lines


def test_decisions_about_different_things_are_joined() -> None:
    a, b = some(RUN, 4, 3), some(RUN, 5, 3)
    found, lines = two(
        [Move(images=a, category=1), Create(images=b[:1], category=6, name="fern")],
        [
            Accept(images=b[1:]),
            Create(images=some(RUN, 0, 2), category=6, name="moss"),
            Rename(category=6, name="lichen"),
            AcceptCategory(category=6),
            AcceptCategory(category=3),
        ],
    )
    assert not any(each.disputed for each in lines)
    assert {each.name for each in found.categories.values()} >= {"fern", "lichen"}
    assert found.categories[7].name == "lichen", "both had given the id 6"
    assert set(found.category[mask(RUN, some(RUN, 0, 2))]) == {7}
    states = np.array(REVIEWED)[found.reviewed]
    assert set(states[mask(RUN, b[1:])]) == {"confirmed"}
    assert set(states[RUN.assignments.category_id == 3]) == {"confirmed"}


def test_contradictions_are_disputed_and_none_is_lost() -> None:
    a = some(RUN, 4, 4)
    found, lines = two(
        [Move(images=a[:2], category=1), Rename(category=5, name="fern"), AcceptCategory(category=2)],
        [
            Move(images=a, category=0),
            Rename(category=5, name="moss"),
            Reject(images=some(RUN, 2, 1), category=2),
            Rename(category=4, name="fern"),
        ],
    )
    assert found.category[mask(RUN, a)].tolist() == [1, 1, 0, 0]
    assert found.categories[5].name == "fern"
    assert set(found.category[mask(RUN, some(RUN, 2, 1))]) == {2}
    disputed = [(type(each.action), each.disputed) for each in lines if each.disputed]
    assert [kind for kind, _ in disputed] == [Move, Rename, Reject, Rename]
    assert [reason for _, reason in disputed][:2] == [
        "Here these images were put elsewhere.",
        "Here it was renamed to 'fern'.",
    ]
    moved = [each.action for each in lines if isinstance(each.action, Move)]
    assert sorted(content for each in moved for content in each.images) == sorted(a)


def test_new_categories_of_two_people_are_kept_apart_also_when_they_are_joined_twice() -> None:
    a, b, c = some(RUN, 4, 2), some(RUN, 5, 2), some(RUN, 0, 2)
    mine = [journal.decide(Create(images=a, category=6, name="fern"), "ada")]
    theirs = [
        journal.decide(Create(images=b[:1], category=6, name="moss"), "bob"),
        journal.decide(Create(images=b[1:], category=7, name="fern"), "bob"),
    ]
    mine += joining.join(RUN, mine, theirs)
    theirs.append(journal.decide(Move(images=c, category=6), "bob"))
    mine += joining.join(RUN, mine, theirs)
    found = journal.reviewed(RUN, mine)
    names = [found.categories[int(each)].name for each in found.category[[*map(index_of, (*a, *b, *c))]]]
    assert names == ["fern", "fern", "moss", "fern", "moss", "moss"]


def index_of(content: str) -> int:
    return RUN.assignments.contents.index(content)


def test_a_disputed_category_does_not_exist_here() -> None:
    a, b = some(RUN, 4, 2), some(RUN, 5, 2)
    found, lines = two(
        [Move(images=a, category=1)],
        [
            Create(images=a, category=6, name="moss"),
            Create(images=b[:1], category=7, name="fern"),
            Move(images=b[1:], category=6),
        ],
    )
    assert [bool(each.disputed) for each in lines] == [True, False, True]
    assert set(found.category[mask(RUN, b[1:])]) == {5}


def test_they_may_change_their_mind() -> None:
    found, lines = two(
        [Accept(images=some(RUN, 5, 1))],
        [
            AcceptCategory(category=4),
            Reject(images=some(RUN, 4, 2), category=4),
            Move(images=some(RUN, 4, 1), category=1),
        ],
    )
    assert not any(each.disputed for each in lines)
    assert (found.category[mask(RUN, some(RUN, 4, 2))] != 4).all()


def test_categories_of_one_name_are_one_and_merged_ones_are_followed() -> None:
    a, b = some(RUN, 4, 3), some(RUN, 5, 3)
    found, lines = two(
        [Create(images=a, category=6, name="fern"), Merge(categories=(4, 5))],
        [Create(images=b, category=6, name="fern"), Accept(images=some(RUN, 5, 6)[3:]), Merge(categories=(3, 5))],
    )
    assert not any(each.disputed for each in lines)
    assert set(found.category[mask(RUN, (*a, *b))]) == {6}
    assert {*found.categories} == {0, 1, 2, 3, 6}, "4 and 5 were merged here, and 5 into 3 there"


def test_what_they_undid_is_not_joined() -> None:
    common = [journal.decide(Rename(category=5, name="fern"), "ada")]
    theirs = [*common, journal.decide(Undo(), "bob"), journal.decide(Rename(category=4, name="moss"), "bob")]
    theirs += [journal.decide(Rename(category=3, name="oak"), "bob"), journal.decide(Undo(), "bob")]
    lines = joining.join(RUN, common, theirs)
    found = journal.reviewed(RUN, [*common, *lines])
    assert [found.categories[each].name for each in (3, 4, 5)] == ["class 3", "moss", "fern"]
    assert [each.disputed for each in lines if each.disputed] == ["They undid a decision that still stands here."]


def test_what_they_have_grown_is_joined_but_for_what_was_put_elsewhere_here() -> None:
    a, b = some(RUN, 4, 10), some(RUN, 5, 6)
    found, lines = two(
        [Move(images=(a[0], a[5]), category=1), Accept(images=(a[8], a[6])), Merge(categories=(4, 5))],
        [grow(4, seen=a[:5], unseen=a[5:8], wrong=a[8:]), grow(5, seen=b[:2], unseen=b[2:])],
    )
    assert [bool(each.disputed) for each in lines] == [False, True, False]
    assert lines[1].action == grow(4, seen=a[:1], unseen=a[5:6], wrong=a[8:9])
    assert lines[1].disputed == "Here these images were put elsewhere."
    assert places(found, (*a[:9], *b)) == [1, 4, 4, 4, 4, 1, 4, 4, 4, *[4] * 6], "5 was merged into 4 here"
    assert 4 not in places(found, a[9:])
    assert states(found, a) == [
        "moved", *["confirmed"] * 4, "moved", "confirmed", "accepted unseen", "confirmed", "rejected",
    ]  # fmt: skip
    assert states(found, b) == [*["confirmed"] * 2, *["accepted unseen"] * 4]


def test_what_they_keep_is_kept_here_unless_it_is_one_by_now() -> None:
    found, lines = two(
        [Merge(categories=(3, 4))],
        [Keep(categories=(4, 5)), Keep(categories=(3, 4)), Keep(categories=(5,)), Keep(categories=(4,))],
    )
    assert [each.action for each in lines] == [Keep(categories=(3, 5)), Keep(categories=(5,)), Keep(categories=(3,))]
    assert not any(each.disputed for each in lines)
    assert [{*found.categories[each].apart} for each in (3, 5)] == [{5}, {3}]
    assert [each.id for each in found.categories.values() if each.whole] == [3, 5]


def test_what_they_audited_is_what_they_have_seen() -> None:
    a, b = some(RUN, 4, 12), some(RUN, 5, 6)
    found, lines = two(
        [Accept(images=a[1:2]), grow(5, unseen=b)],
        [grow(4, unseen=a), grow(5, unseen=b), Audit(right=(*a[2:6], *b[:2]), wrong=a[:2])],
    )
    assert [type(each.action) for each in lines if each.disputed] == [Reject]
    assert states(found, a) == ["rejected", *["confirmed"] * 5, *["accepted unseen"] * 6]
    assert places(found, a[1:]) == [4] * 11
    assert states(found, b) == [*["confirmed"] * 2, *["accepted unseen"] * 4]
    assert found.categories[4].tally == found.categories[5].tally == NO_TALLY, "the rest is still to be audited here"


def test_their_refit_is_disputed_and_what_they_made_of_it_is_not_ours() -> None:
    a, b = some(RUN, 4, 4), some(RUN, 5, 4)
    found, lines = two(
        [Create(images=some(RUN, 0, 1), category=6, name="fern")],
        [refit(a, (6, 6, 6, 5), "new 3"), Accept(images=a[3:]), Move(images=b[:2], category=6), Accept(images=a[:1])],
    )
    assert lines[0].disputed == "A refit depends on all decisions before it. Refit again here."
    assert [bool(each.disputed) for each in lines] == [True, False, True, True]
    assert places(found, (*a, *b[:2])) == [4, 4, 4, 5, 5, 5], "their 6 is not our fern"


def test_a_refit_of_ours_contradicts_nobody() -> None:
    a = some(RUN, 4, 4)
    found, lines = two([refit(a, (5, 5, 5, 5))], [Accept(images=a[:2]), grow(4, unseen=a[2:])])
    assert not any(each.disputed for each in lines)
    assert places(found, a) == [4] * 4
