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
from sample_run import sample_run

from sortal.errors import InputError
from sortal.runs import actions, journal, storage
from sortal.runs.actions import Accept, AcceptCategory, Action, Create, Merge, Move, Redo, Reject, Rename, Split, Undo
from sortal.runs.building import build_run
from sortal.runs.confidence import spread
from sortal.runs.decisions import Review, apply
from sortal.runs.evaluation import evaluate
from sortal.runs.run import DECISIONS, REVIEWED, Run
from sortal.runs.storage import load_run


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
    rows = np.flatnonzero((run.assignments.category == category) & (run.assignments.status != "labelled"))
    return contents(run, rows[:count])


def contents(run: Run, rows: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(run.assignments.contents[row] for row in rows.tolist())


def mask(run: Run, images: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([content in images for content in run.assignments.contents], dtype=bool)


def assert_consistent(run: Run) -> None:
    """Check that every figure of a category follows from the images with its id."""
    a = run.assignments
    assert sum(each.size for each in run.categories) == len(a)
    kinds = {each.id: each.kind for each in run.categories}
    for row, each in enumerate(run.categories):
        own = a.category == each.id
        assert each.size == own.sum()
        assert (each.labelled, each.unsure) == ((a.status[own] == "labelled").sum(), (a.status[own] == "unsure").sum())
        assert {*a.status[own]} <= {"labelled", "unsure", each.kind}
        np.testing.assert_allclose(
            a.distance[own], np.linalg.norm(run.features[own] - run.centres[row], axis=1), atol=1e-5
        )
        assert {*each.typical} <= {file for file, is_own in zip(a.files, own, strict=True) if is_own}
        assert each.nearest_known is None or (kinds[each.nearest_known] == "known" and each.nearest_known != each.id)
    assert {*a.next_category.tolist()} <= {*kinds}
    assert (a.confidence[a.settled] == 1).all()
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
    own = np.minimum(run.assignments.category, 4)
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
    own = apart.assignments.category
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
    states, own = found.assignments.reviewed, found.assignments.category
    assert set(states[mask(RUN, a)]) == {"moved"}, "an accepted move stays a move"
    assert set(own[mask(RUN, a)]) == {1}
    assert set(states[mask(RUN, b[:2])]) == {"confirmed"}
    assert set(own[mask(RUN, (*b[2:], *c))]) == {6}
    assert (found.categories[-1].kind, found.categories[-1].size) == ("new", 4)
    assert (states != "no").sum() == 9
    everything = apply(RUN, [AcceptCategory(category=2)])
    np.testing.assert_array_equal(everything.assignments.reviewed == "confirmed", RUN.assignments.category == 2)


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
    assert found.assignments.category[[4, -1]].tolist() == [1, 1]
    own = int(a.category[4])
    apart = apply(twins, [Reject(images=(a.contents[4],), category=own)])  # the copy is in another category
    assert int(apart.assignments.category[4]) != own
    assert apart.assignments.category[-1] == a.category[-1]


def test_actions_are_read_back_from_json() -> None:
    for action in (Rename(category=1, name="é"), Merge(categories=(1, 2)), Accept(images=("a",)), Undo()):
        assert actions.from_json(json.loads(json.dumps(actions.to_json(action)))) == action
    for value, message in (
        ({"do": "dance"}, "do must be one of rename, merge"),
        ({}, "do must be one of"),
        ({"do": "move", "images": ["a"]}, "move has no key 'category'"),
        ({"do": "rename", "category": "1", "name": "x"}, "rename.category must be int"),
        ({"do": "undo", "more": 1}, "unknown key 'more'"),
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
    ):
        assert actions.describe(action, names) == words


class Reviewing(RuleBasedStateMachine):
    """Any decisions in any order: the state is always valid, and undoing all of them gives the run back."""

    def __init__(self) -> None:
        super().__init__()
        self.review, self.taken = Review(RUN), list[Action]()

    def attempt(self, action: Action) -> None:
        before = self.review.category.copy(), self.review.reviewed.copy(), self.review.categories, self.review.rejected
        try:
            self.review.take(action)
        except InputError:
            np.testing.assert_array_equal(self.review.category, before[0])
            np.testing.assert_array_equal(self.review.reviewed, before[1])
            assert (self.review.categories, self.review.rejected) == before[2:]
        else:
            self.taken.append(action)

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

    def teardown(self) -> None:
        for end in {len(self.taken), len(self.taken) // 2}:  # any prefix of the journal is a valid state
            assert_consistent(apply(RUN, self.taken[:end]))
        reviewed = self.review.run()
        assert files_of(apply(RUN, self.taken)) == files_of(reviewed)
        count = len(self.review.done)
        for _ in range(count):
            self.review.take(Undo())
        assert files_of(self.review.run()) == files_of(RUN)
        for _ in range(count):
            self.review.take(Redo())
        assert files_of(self.review.run()) == files_of(reviewed)


TestReviewing = Reviewing.TestCase
TestReviewing.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


# The journal


@pytest.fixture
def saved(tmp_path: Path) -> Run:
    run = replace(a_run(), folder=tmp_path / "run")
    run.save()
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
        found.save()
    found = load_run(saved.folder)
    found.save()
    assert not (saved.folder / DECISIONS).exists()
    assert (saved.folder / "decisions-1.jsonl").read_text().count("\n") == 3
    again = load_run(saved.folder)
    assert files_of(again) == files_of(found)
    assert again.rejected
    note(again, Rename(category=5, name="moss"))
    load_run(saved.folder).save()
    assert (saved.folder / "decisions-2.jsonl").exists()
    assert load_run(saved.folder).names[5] == "moss"


def test_an_emptied_category_is_gone_and_its_id_is_not_used_again(saved: Run) -> None:
    everything = contents(saved, np.flatnonzero(saved.assignments.category == 5))
    note(saved, Create(images=everything[:2], category=6, name="fern"), Merge(categories=(4, 6)))
    note(saved, Move(images=everything, category=1))
    found = load_run(saved.folder)
    assert 5 not in found.names
    assert_consistent(found)
    found.save()
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
    with pytest.raises(InputError, match="No space left on device"):
        note(saved, Rename(category=4, name="moss"))
    assert (saved.folder / DECISIONS).read_bytes() == before


# Two people


def two(mine: Sequence[Action], theirs: Sequence[Action]) -> tuple[Review, list[journal.Decision]]:
    """Join two journals; return the state and the lines that were added."""
    ours = [journal.decide(each, "ada") for each in mine]
    other = [journal.decide(each, "bob") for each in theirs]
    lines = journal.join(RUN, ours, other)
    assert not journal.join(RUN, [*ours, *lines], other), "a second time nothing is added"
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
    assert set(states[RUN.assignments.category == 3]) == {"confirmed"}


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
    mine += journal.join(RUN, mine, theirs)
    theirs.append(journal.decide(Move(images=c, category=6), "bob"))
    mine += journal.join(RUN, mine, theirs)
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
    lines = journal.join(RUN, common, theirs)
    found = journal.reviewed(RUN, [*common, *lines])
    assert [found.categories[each].name for each in (3, 4, 5)] == ["class 3", "moss", "fern"]
    assert [each.disputed for each in lines if each.disputed] == ["They undid a decision that still stands here."]
