"""Effects: each decision does what it says, and an impossible one changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.decisions import (
    RUN,
    a_run,
    apply,
    assert_consistent,
    grow,
    mask,
    places,
    refit,
    some,
    states,
)

from sortal.errors import InputError
from sortal.images.review_states import ReviewState, words_of
from sortal.reviews.actions import (
    Accept,
    AcceptCategory,
    Action,
    Audit,
    Bin,
    Create,
    Keep,
    Merge,
    Move,
    PutBack,
    Redo,
    Refit,
    Reject,
    Rename,
    Split,
    Undo,
)
from sortal.reviews.audit import NO_TALLY, Tally
from sortal.reviews.history import Review
from sortal.runs.confidence import spread


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
    assert (merged.assignments.reviewed == ReviewState.OPEN).all(), "nobody has looked at the images"
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
    assert (apart.assignments.reviewed == ReviewState.OPEN).all()
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
    states, own = np.array(words_of(found.assignments.reviewed)), found.assignments.category_id
    assert set(states[mask(RUN, a)]) == {"moved"}, "an accepted move stays a move"
    assert set(own[mask(RUN, a)]) == {1}
    assert set(states[mask(RUN, b[:2])]) == {"confirmed"}
    assert set(own[mask(RUN, (*b[2:], *c))]) == {6}
    assert (found.categories[-1].kind, found.categories[-1].size) == ("new", 4)
    assert (states != "no").sum() == 9
    everything = apply(RUN, [AcceptCategory(category=2)])
    np.testing.assert_array_equal(
        everything.assignments.reviewed == ReviewState.CONFIRMED, RUN.assignments.category_id == 2
    )


def test_rejected_images_go_to_the_nearest_category_they_were_not_rejected_from() -> None:
    images, x = some(RUN, 4, 2), RUN.features[mask(RUN, some(RUN, 4, 2))]
    distance = np.linalg.norm(x[:, None] - RUN.centres[None], axis=2)
    distance[:, 4] = np.inf
    review = Review(RUN)
    review.take(Reject(images=images, category=4))
    assert review.category[mask(RUN, images)].tolist() == distance.argmin(axis=1).tolist()
    again = apply(RUN, [Reject(images=images, category=4)])
    assert_consistent(again)
    assert set(again.assignments.reviewed[mask(RUN, images)]) == {ReviewState.REJECTED}
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
        (Move(images=(), category=1), "must name one or more"),
        (Move(images=("0" * 32, "0" * 32), category=1), "must be given once"),
        (Move(images=("nothing",), category=1), "the content 'nothing' is not"),
        (Accept(images=("nothing",)), "the content 'nothing' is not"),
        (Reject(images=some(RUN, 4, 1), category=5), "1 image to reject is not in 'new 2'"),
        (Create(images=some(RUN, 4, 1), category=5, name="fern"), "must have the next id, 6, got 5"),
        (Create(images=some(RUN, 4, 1), category=6, name="class 0"), "Merge them instead"),
        (Split(images=(*some(RUN, 4, 1), *some(RUN, 5, 1)), category=6, name="fern"), "the images are in several"),
        (grow(4, seen=some(RUN, 4, 1), wrong=some(RUN, 4, 1)), "must be given once"),
        (grow(4, unseen=("nothing",)), "the content 'nothing' is not"),
        (grow(99, seen=some(RUN, 4, 1)), "no category with the id 99"),
        (Audit(right=some(RUN, 4, 1), wrong=()), "Only images that were accepted unseen"),
        (Audit(right=(), wrong=()), "must name one or more"),
        (Keep(categories=()), "One or two different categories can be kept, got \\[\\]"),
        (Keep(categories=(4, 4)), "One or two different categories"),
        (Keep(categories=(3, 4, 5)), "One or two different categories"),
        (Keep(categories=(4, 99)), "no category with the id 99"),
        (refit(some(RUN, 4, 2), (5,)), "must give every image a category"),
        (replace(refit(some(RUN, 4, 1), (5,)), stability=()), "every category a stability"),
        (replace(refit(some(RUN, 4, 1), (5,)), stability=(1.01,)), "from 0 to 1"),
        (replace(refit(some(RUN, 4, 1), (5,)), stability=(float("nan"),)), "from 0 to 1"),
        (
            replace(refit(some(RUN, 4, 1), (6,), "fern"), categories=(), stability=()),
            "from 6, and a stability",
        ),
        (refit(some(RUN, 4, 1), (7,), "fern"), "the next ids, from 6"),
        (refit(some(RUN, 4, 1), (6,)), "categories that exist or are new"),
        (refit(some(RUN, 4, 1), (6,), "class 0"), "Merge them instead"),
        (refit(some(RUN, 4, 1), (6,), "fern", "moss"), "from 6, and a stability"),
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


def test_what_nobody_saw_of_a_category_that_is_accepted_is_accepted_unseen() -> None:
    a = some(RUN, 4, 12)
    review = Review(RUN)
    review.take(Accept(images=a[:1]))
    review.take(grow(4, unseen=a[1:4]))
    review.take(Audit(right=a[1:2], wrong=()))
    review.take(AcceptCategory(category=4, unseen=a[:3]))
    assert states(review, a) == ["confirmed"] * 2 + ["accepted unseen"] + ["confirmed"] * 9, (
        "a person saw the first two"
    )
    assert review.categories[4].tally.sampled == 1, "nothing new is unseen"
    review = Review(RUN)
    review.take(grow(4, unseen=a[1:4]))
    review.take(Audit(right=a[1:2], wrong=()))
    review.take(AcceptCategory(category=4, unseen=a[6:]))
    assert states(review, a) == ["confirmed"] * 6 + ["accepted unseen"] * 6
    assert not review.categories[4].tally.sampled, "the audit was of others"


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


@pytest.mark.parametrize("head", [False, True])
def test_the_bin_takes_images_out_of_all_categories_until_they_are_put_back(head: bool) -> None:
    run = a_run(head=head)
    labelled = run.assignments.contents[int(np.flatnonzero(run.assignments.status == "labelled")[0])]
    images = (*some(run, 4, 3), labelled)
    binned = apply(run, [Bin(images=images)])
    assert_consistent(binned)
    a, own = binned.assignments, mask(run, images)
    assert (a.category_id[own] == -1).all()
    assert ({*a.status[own]}, {*words_of(a.reviewed[own])}, {*a.confidence[own]}) == ({"other"}, {"binned"}, {1.0})
    assert binned.categories[4].size == run.categories[4].size - 3
    left = run.features[(run.assignments.category_id == 4) & ~own]
    np.testing.assert_allclose(binned.centres[4], left.mean(axis=0), atol=1e-6)
    review = Review(run)
    review.take(Bin(images=images))
    assert review.settled[own].all(), "nobody is asked about them again"
    assert not review.other[own].any()
    review.take(PutBack(images=images[:2]))
    assert states(review, images) == ["no", "no", "binned", "binned"]
    centres = binned.centres.astype(np.float64)
    near = [int(((run.features[mask(run, [each])] - centres) ** 2).sum(axis=1).argmin()) for each in images[:2]]
    assert places(review, images[:2]) == near
    review.take(Move(images=images[2:3], category=0))
    assert (states(review, images[2:3]), places(review, images[2:3])) == (["moved"], [0])
    review.take(PutBack(images=images[3:]))
    own_class = int(run.assignments.category_id[mask(run, images[3:])][0])
    assert (states(review, images[3:]), places(review, images[3:])) == (["no"], [own_class])
    review.take(Bin(images=images[:1]))
    review.take(Create(images=images[:1], category=6, name="fern"))
    assert_consistent(review.run())
    for _ in range(6):
        review.take(Undo())
    assert review.run() is run
    assert review.category.tolist() == run.assignments.category_id.tolist()


def test_what_cannot_be_done_with_the_bin_changes_nothing() -> None:
    inside, outside = some(RUN, 4, 1), some(RUN, 5, 1)
    for taken, message in (
        (Accept(images=inside), "in no category that could be confirmed"),
        (PutBack(images=outside), "1 image to put back is not in the bin"),
        (Split(images=(*inside, *outside), category=6, name="fern"), "in several, or in none"),
        (Split(images=inside, category=6, name="fern"), "in several, or in none"),
        (Reject(images=inside, category=4), "is not in 'new 1'"),
        (Bin(images=()), "must name one or more"),
        (Bin(images=RUN.assignments.contents), "a run needs one that is in a category"),
    ):
        review = Review(RUN)
        review.take(Bin(images=inside))
        before = review.category.copy()
        with pytest.raises(InputError, match=message):
            review.take(taken)
        assert review.category.tolist() == before.tolist()


def test_growing_a_category_leaves_the_bin_alone_unless_a_person_has_seen_the_image() -> None:
    images = some(RUN, 4, 2)
    review = Review(RUN)
    review.take(Bin(images=images))
    review.take(grow(4, unseen=images[:1], seen=images[1:]))
    assert (states(review, images), places(review, images)) == (["binned", "moved"], [-1, 4])
