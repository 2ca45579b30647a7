"""Several people: what contradicts a decision of another changes nothing, and becomes a question."""

from __future__ import annotations

import numpy as np
import pytest
from support.decisions import RUN, places, some, states

from sortal.errors import InputError
from sortal.reviews.actions import Accept, Action, Bin, Create, Move, PutBack, Redo, Reject, Undo
from sortal.reviews.history import Review
from sortal.reviews.people import AWAY_AFTER, Asked, check_people, signed
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
    asked = Guide(RUN).questions(review, np.ones(len(review.category)))
    return [(each.categories, each.by, each.name) for each in asked if each.kind == "disputed"]


def test_what_another_person_decided_is_disputed_and_the_rest_is_carried_out() -> None:
    a = some(RUN, 4, 3)
    review = Review(RUN)
    assert not decided(review, "ada", Move(images=a[:1], category=0))
    assert decided(review, "bob", Move(images=a, category=1)) == [Move(images=a[:1], category=1)]
    assert places(review, a) == [0, 1, 1]
    assert disputed(review) == [((0, 1), ("ada", "bob"), "")]
    assert not decided(review, "bob", Accept(images=a[:1])), "who confirms agrees"
    assert not disputed(review), "and settles it"
    assert not decided(review, "bob", Move(images=a[:1], category=1)), "by now it is his own decision"


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


@pytest.mark.parametrize(
    ("wish", "asked"),
    [
        (Create(images=some(RUN, 4, 1), category=6, name="fern"), ((0, -1), ("ada", "bob"), "fern")),
        (Reject(images=some(RUN, 4, 1), category=0), ((0,), ("ada", "bob"), "")),
    ],
    ids=["create", "reject"],
)
def test_a_dispute_names_what_is_wanted(wish: Action, asked: object) -> None:
    review = Review(RUN)
    decided(review, "ada", Move(images=some(RUN, 4, 1), category=0))
    assert decided(review, "bob", wish) == [wish]
    assert disputed(review) == [asked]


def test_a_new_category_gets_the_images_that_nobody_disputes() -> None:
    a = some(RUN, 4, 2)
    review = Review(RUN)
    decided(review, "ada", Move(images=a[:1], category=0))
    assert decided(review, "bob", Create(images=a, category=6, name="fern")) == [Move(images=a[:1], category=6)]
    assert places(review, a) == [0, 6]


def test_only_whoever_made_the_last_decision_undoes_and_redoes_it() -> None:
    review = Review(RUN)
    decided(review, "ada", Accept(images=some(RUN, 4, 1)))
    with pytest.raises(InputError, match="The last decision is by ada, so only ada can undo it"):
        decided(review, "bob", Undo())
    decided(review, "ada", Undo())
    with pytest.raises(InputError, match="only ada can redo it"):
        decided(review, "bob", Redo())
    decided(review, "ada", Redo())
    assert states(review, some(RUN, 4, 1)) == ["confirmed"]


def test_people_are_told_what_others_are_asked_until_these_are_away() -> None:
    now = [0.0]
    asked = Asked(clock=lambda: now[0])
    assert asked.taken("ada", "first") == []
    assert asked.taken("bob", "second") == ["first"]
    assert asked.taken("ada", "") == ["second"], "she is asked nothing any more"
    assert asked.taken("bob", "second") == []
    now[0] = AWAY_AFTER
    assert asked.taken("ada", "third") == []


def test_names_of_people_are_different_and_printable() -> None:
    assert check_people(["ada ", "Bob"]) == ("ada", "Bob")
    for names, message in (
        (["ada", "Ada"], "must have different names, got ada, Ada"),
        ([" "], "must have 1 to 60 printable characters"),
        (["a\nb"], "must have 1 to 60 printable characters"),
        (["x" * 61], "must have 1 to 60"),
        ([str(number) for number in range(51)], "At most 50 people"),
    ):
        with pytest.raises(InputError, match=message):
            check_people(names)
