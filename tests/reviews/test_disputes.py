"""Disputes: what contradicts another decision is asked about, until someone settles it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.decisions import RUN, some, states

from sortal.errors import InputError
from sortal.reviews.actions import (
    Action,
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
    Undo,
)
from sortal.reviews.disputes import may_settle, questions_of
from sortal.reviews.history import Review
from sortal.reviews.joining import REFIT_AGAIN
from sortal.reviews.journal import decide
from sortal.reviews.people import signed
from sortal.reviews.questions import Guide


def decided(review: Review, by: str, action: Action, *, settles: bool = False) -> list[Action]:
    """Decide as one of several people; return what is disputed."""
    lines = signed(review, action, by, settles=settles)
    for line in lines:
        assert line.by == by
        review.follow(line)
    return [line.action for line in lines if line.disputed]


def disputed(review: Review) -> list[tuple[tuple[int, ...], tuple[str, ...], str]]:
    """Return what is asked about disputes: the categories, who says so, and the name that is wanted."""
    return [(each.categories, each.by, each.name) for each in questions_of(review, Guide(RUN))]


def test_the_answer_to_a_dispute_settles_it_and_undoing_the_answer_asks_again() -> None:
    (image,) = some(RUN, 4, 1)
    review = Review(RUN)
    decided(review, "ada", Move(images=(image,), category=0))
    decided(review, "bob", Bin(images=(image,)))
    assert disputed(review) == [((0, -1), ("ada", "bob"), "")]
    assert not decided(review, "cleo", Bin(images=(image,)), settles=True)
    assert (states(review, [image]), disputed(review)) == (["binned"], [])
    decided(review, "cleo", Undo())
    assert disputed(review) == [((0, -1), ("ada", "bob"), "")]
    decided(review, "cleo", Redo())
    assert not disputed(review)
    assert decided(review, "ada", PutBack(images=(image,))), "the bin is a decision, too"
    assert decided(review, "ada", Create(images=(image,), category=6, name="fern"))
    assert disputed(review) == [((-1, -2), ("cleo", "ada"), "fern")]


def test_names_and_merges_are_asked_about_until_someone_settles_them() -> None:
    review = Review(RUN)
    decided(review, "ada", Rename(category=4, name="fern"))
    moss = Rename(category=4, name="moss")
    assert decided(review, "bob", moss) == [moss]
    name, union = ((4,), ("ada", "bob"), "moss"), ((0, 5), ("ada", "bob"), "")
    assert disputed(review) == [name]
    decided(review, "ada", Keep(categories=(5, 0)))
    assert decided(review, "bob", Merge(categories=(5, 0)))
    assert disputed(review) == [name, union], "a known category comes first"
    assert [each.kind for each in questions_of(review, Guide(RUN))] == ["name", "union"]
    assert [may_settle(review, moss, who, alone=alone) for who in ("bob", "cleo") for alone in (False, True)] == [
        False,
        True,
        True,
        True,
    ]
    assert not may_settle(review, Rename(category=5, name="elm"), "cleo", alone=True), "nobody disputes that"
    assert decided(review, "cleo", moss), "without an answer it is another dispute"
    decided(review, "cleo", Rename(category=4, name="fern"), settles=True)
    assert review.words[-1] == "Kept the name 'fern'"
    assert disputed(review) == [union]
    decided(review, "cleo", Undo())
    assert disputed(review) == [((4,), ("ada", "cleo"), "moss"), union]
    assert not decided(review, "dan", moss, settles=True)
    assert not decided(review, "cleo", Keep(categories=(0, 5)), settles=True)
    assert (disputed(review), review.categories[4].name) == ([], "moss")
    decided(review, "cleo", Undo())
    assert not decided(review, "cleo", Merge(categories=(0, 5)), settles=True)
    assert (disputed(review), 5 in review.categories) == ([], False)


def test_nobody_settles_a_dispute_of_their_own_though_others_disputed_later() -> None:
    (image,) = some(RUN, 4, 1)
    review = Review(RUN)
    decided(review, "ada", Move(images=(image,), category=0))
    decided(review, "ada", Rename(category=4, name="fern"))
    bin_it, moss = Bin(images=(image,)), Rename(category=4, name="moss")
    for who in ("bob", "cleo"):
        assert decided(review, who, bin_it)
        assert decided(review, who, moss)
    for action in (bin_it, moss):
        assert [may_settle(review, action, who, alone=False) for who in ("bob", "cleo", "dan")] == [False, False, True]


def test_what_is_impossible_is_no_dispute() -> None:
    (image,) = some(RUN, 4, 1)
    review = Review(RUN)
    decided(review, "ada", Move(images=(image,), category=0))
    decided(review, "ada", Rename(category=4, name="fern"))
    decided(review, "ada", Keep(categories=(5, 0)))
    impossible: list[Action] = [
        Move(images=(image,), category=99),
        *(Create(images=(image,), category=6, name=name) for name in ("", "x" * 201)),
        *(Rename(category=4, name=name) for name in ("", "x" * 201, "a\nb")),
        Merge(categories=(5, 0, 99)),
    ]
    for action in impossible:
        with pytest.raises(InputError):
            signed(review, action, "bob")
    with pytest.raises(InputError, match="A name must have 1 to 200"):
        review.follow(replace(decide(Rename(category=4, name="x" * 10**6), "bob"), disputed="Ada named it."))
    assert len(review.words) == 3


def test_keeping_the_name_of_a_known_category_adds_no_former_name() -> None:
    review = Review(RUN)
    own = review.categories[0]
    decided(review, "ada", Rename(category=0, name=own.name))
    assert (review.categories[0].name, review.categories[0].former) == (own.name, own.former)


def test_a_refit_that_was_not_taken_over_asks_about_no_image() -> None:
    (image,) = some(RUN, 4, 1)
    review = Review(RUN)
    decided(review, "ada", Move(images=(image,), category=0))
    refit = Refit(images=(image,), to=(1,), names=(), categories=(1,), stability=(1.0,))
    review.follow(replace(decide(refit, "bob"), disputed=REFIT_AGAIN))
    assert not disputed(review)


@pytest.mark.parametrize(
    ("wish", "asked"),
    [
        (Create(images=some(RUN, 4, 1), category=6, name="fern"), ((0, -2), ("ada", "bob"), "fern")),
        (Reject(images=some(RUN, 4, 1), category=0), ((0,), ("ada", "bob"), "")),
    ],
    ids=["create", "reject"],
)
def test_a_dispute_names_what_is_wanted(wish: Action, asked: object) -> None:
    review = Review(RUN)
    decided(review, "ada", Move(images=some(RUN, 4, 1), category=0))
    assert decided(review, "bob", wish) == [wish]
    assert disputed(review) == [asked]
