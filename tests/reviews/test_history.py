"""The history of a review: any decisions can be undone byte for byte and redone, and are said in words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.decisions import (
    RUN,
    apply,
    assert_consistent,
    files_of,
    grow,
    places,
    refit,
    some,
)

from sortal.errors import InputError
from sortal.images.review_states import ReviewState
from sortal.reviews import actions
from sortal.reviews.actions import (
    Accept,
    AcceptCategory,
    Action,
    Audit,
    Bin,
    Create,
    Grow,
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
from sortal.reviews.history import Review, describe
from sortal.reviews.state import ReviewedCategory
from sortal.runs.run import NOWHERE


def test_ids_of_undone_categories_are_not_used_again() -> None:
    review, images = Review(RUN), some(RUN, 4, 2)
    review.take(Create(images=images, category=6, name="fern"))
    review.take(Undo())
    assert review.next_id == 7
    with pytest.raises(InputError, match="the next id, 7"):
        review.take(Create(images=images, category=6, name="moss"))
    review.take(Redo())
    assert review.categories[6].name == "fern"


def test_names_that_are_made_up_are_not_used_again() -> None:
    review, images = Review(RUN), some(RUN, 4, 2)
    used = [each.name for each in RUN.categories]
    for number in (6, 7):
        used.append(review.free_name())
        review.take(Create(images=images, category=number, name=used[-1]))
        review.take(Undo())
    review.take(Create(images=images, category=8, name="new 10"))  # by hand
    assert len({*used, *review.free_names(2), "new 10"}) == len(used) + 3
    assert Review(review.run()).free_name() not in used, "nor once decisions are part of the run"


def test_a_copy_does_not_change() -> None:
    review, images = Review(RUN), some(RUN, 4, 2)
    kept = review.copy()
    review.take(Create(images=images, category=6, name="fern"))
    assert 6 in review.category
    assert (kept.category.tolist(), kept.done, 6 in kept.categories) == (
        RUN.assignments.category_id.tolist(),
        [],
        False,
    )


def test_a_refit_that_is_made_again_gets_the_same_ids() -> None:
    review, images = Review(RUN), some(RUN, 4, 3)
    review.take(refit(images, (6, 7, 7), "fern", "moss"))
    review.take(Rename(category=7, name="lichen"))
    for _ in range(2):
        review.take(Undo())
    assert (review.next_id, {*review.categories}) == (8, {*range(6)})
    with pytest.raises(InputError, match="the next ids, from 8"):
        review.take(refit(images, (6, 7, 7), "fern", "moss"))
    for _ in range(2):
        review.take(Redo())
    assert places(review, images) == [6, 7, 7]
    assert [review.categories[each].name for each in (6, 7)] == ["fern", "lichen"]
    review.take(refit(images[:1], (8,), "moss"))
    assert review.categories[8].name == "moss"


def test_actions_are_said_in_words() -> None:
    names = {each: ReviewedCategory(id=each, name=name, kind="new") for each, name in ((1, "oak"), (2, "ash"))}
    for action, words in (
        (Rename(category=1, name="fern"), "Renamed 'oak' to 'fern'"),
        (Merge(categories=(1, 2)), "Merged 'ash' into 'oak'"),
        (Move(images=("a", "b"), category=2), "Moved 2 images to 'ash'"),
        (Reject(images=("a",), category=1), "Rejected 1 image from 'oak'"),
        (Bin(images=("a", "b")), "Put 2 images into the bin: in no category"),
        (PutBack(images=("a",)), "Took 1 image out of the bin"),
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
        assert describe(action, names) == words


def test_a_decision_says_where_removed_images_went() -> None:
    review = Review(RUN)
    images = some(RUN, 4, 3)
    review.take(Reject(images=images, category=4))
    went = review.category[review.rows_of(images)].tolist()
    for each in {*went}:
        assert f"{went.count(each)} to {review.categories[each].name!r}" in review.words[-1]
    assert review.removed_from(review.rows_of(images)) == [[4]] * 3
    rest = some(RUN, 3, 2)
    review.take(Grow(category=3, seen=rest[:1], unseen=(), wrong=rest[1:]))
    (to,) = review.category[review.rows_of(rest[1:])].tolist()
    assert review.words[-1].endswith(
        f"; removed, to the most similar of the others: 1 to {review.categories[to].name!r}"
    )
    review.take(Accept(images=images))
    assert review.words[-1] == "Confirmed 3 images"
    review.take(Move(images=images, category=4))
    assert review.removed_from(review.rows_of(images)) == [[]] * 3, "it was put back"


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

    @rule(rows=ROWS)
    def bin(self, rows: list[int]) -> None:
        self.attempt(Bin(images=self.images(rows)))

    @rule(rows=ROWS)
    def put_back(self, rows: list[int]) -> None:
        self.attempt(PutBack(images=self.images([row for row in rows if self.review.binned[row]])))

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
        assert {*self.review.category.tolist()} <= {*self.review.categories, NOWHERE}
        assert (self.review.binned == (self.review.reviewed == ReviewState.BINNED)).all()
        assert len(self.review.category) == 72
        assert ((self.review.reviewed >= 0) & (self.review.reviewed < len(ReviewState))).all()
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
        unseen = reviewed.assignments.reviewed == ReviewState.UNSEEN
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
