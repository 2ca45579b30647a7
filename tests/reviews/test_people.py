"""Several people: what contradicts a decision of another changes nothing, and becomes a question."""

from __future__ import annotations

import pytest
from support.decisions import RUN, places, some, states

from sortal.errors import InputError
from sortal.reviews.actions import (
    Accept,
    AcceptCategory,
    Action,
    Create,
    Grow,
    Keep,
    Merge,
    Move,
    Redo,
    Reject,
    Rename,
    Split,
    Undo,
    Withdraw,
)
from sortal.reviews.history import Review
from sortal.reviews.people import AWAY_AFTER, Asked, check_people, independent, signed


def decided(review: Review, by: str, action: Action, *, settles: bool = False) -> list[Action]:
    """Decide as one of several people; return what is disputed."""
    lines = signed(review, action, by, settles=settles)
    for line in lines:
        assert line.by == by
        review.follow(line)
    return [line.action for line in lines if line.disputed]


def test_what_another_person_decided_is_disputed_and_the_rest_is_carried_out() -> None:
    a = some(RUN, 4, 3)
    review = Review(RUN)
    assert not decided(review, "ada", Move(images=a[:1], category=0))
    assert decided(review, "bob", Move(images=a, category=1)) == [Move(images=a[:1], category=1)]
    assert places(review, a) == [0, 1, 1]
    assert [*review.disputes()] == [a[0]]
    assert not decided(review, "bob", Accept(images=a[:1])), "who confirms agrees"
    assert not review.disputes(), "and settles it"
    assert not decided(review, "bob", Move(images=a[:1], category=1)), "by now it is his own decision"


def test_a_new_category_gets_the_images_that_nobody_disputes() -> None:
    a = some(RUN, 4, 2)
    review = Review(RUN)
    decided(review, "ada", Move(images=a[:1], category=0))
    assert decided(review, "bob", Create(images=a, category=6, name="fern")) == [Move(images=a[:1], category=6)]
    assert places(review, a) == [0, 6]


def test_an_image_that_another_confirmed_is_not_taken_away_by_a_page() -> None:
    a, b = some(RUN, 4, 4), some(RUN, 5, 2)
    review = Review(RUN)
    decided(review, "bob", Accept(images=(a[0], b[0])))
    page = Grow(category=4, seen=(a[1], b[0]), unseen=(), wrong=a[:1])
    assert decided(review, "ada", page) == [Move(images=b[:1], category=4), Reject(images=a[:1], category=4)]
    assert (places(review, (*a[:2], b[0])), states(review, a[:2])) == ([4, 4, 5], ["confirmed"] * 2)
    assert decided(review, "ada", Grow(category=4, seen=(), unseen=(), wrong=a[:1])), "and nothing is left to carry out"
    assert len(review.done) == 2
    assert not decided(review, "ada", Grow(category=5, seen=(), unseen=(), wrong=a[:1])), "it is not there"


def test_names_and_pairs_that_another_decided_on_are_disputed() -> None:
    review = Review(RUN)
    named, merged = Rename(category=4, name="moss"), Merge(categories=(3, 4))
    decided(review, "ada", Rename(category=4, name="fern"))
    assert decided(review, "bob", named) == [named]
    assert review.words[-1].endswith("ada named it 'fern'.")
    assert not decided(review, "bob", Rename(category=5, name="elm")), "which nobody has named"
    assert not decided(review, "ada", named)
    decided(review, "ada", Create(images=some(RUN, 4, 1), category=6, name="new 9"))
    assert not decided(review, "bob", Rename(category=6, name="ivy")), "which was no name"
    decided(review, "ada", Keep(categories=(5, 3)))
    assert not decided(review, "bob", Merge(categories=(4, 5)))
    assert decided(review, "bob", merged) == [merged], "what was merged is still kept apart"
    assert review.words[-1].endswith("ada keeps them apart.")
    assert not decided(review, "ada", merged)
    decided(review, "ada", Split(images=some(RUN, 2, 1), category=7, name="oak"))
    assert decided(review, "bob", Merge(categories=(2, 7))) == [Merge(categories=(2, 7))]


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


def test_undoing_withdraws_what_was_disputed() -> None:
    a, b = some(RUN, 4, 2), some(RUN, 5, 1)
    review = Review(RUN)
    decided(review, "bob", Accept(images=b))
    decided(review, "ada", Move(images=a[:1], category=0))
    decided(review, "bob", Move(images=a[:1], category=1))
    decided(review, "bob", Undo())
    assert review.words[-1].startswith("Withdrew: disputed: moved 1 image to ")
    assert (len(review.done), review.disputes()) == (2, {}), "and no earlier decision was undone"
    with pytest.raises(InputError, match="only ada can undo it"):
        decided(review, "bob", Undo())
    decided(review, "bob", Create(images=a, category=6, name="fern"))
    assert places(review, a) == [0, 6]
    with pytest.raises(InputError, match="no disputed decision of this person"):
        review.take(Withdraw(wish=review.disputed[-1][1].key), by="ada")
    decided(review, "bob", Undo())
    assert (places(review, a), review.disputes()) == ([0, 4], {}), "all of it is undone"
    decided(review, "ada", Grow(category=4, seen=b, unseen=(), wrong=()))
    decided(review, "bob", Move(images=a[:1], category=1))
    decided(review, "ada", Rename(category=3, name="oak"))
    with pytest.raises(InputError, match="only ada can undo it"):
        decided(review, "bob", Undo())
    assert {*review.disputes()} == {*a[:1], *b}


def test_a_late_decision_holds_if_the_others_were_about_something_else() -> None:
    a, b = some(RUN, 4, 4), some(RUN, 5, 2)
    review = Review(RUN)
    review.take(Accept(images=b[:1]))  # number 0
    review.take(Move(images=a[:1], category=0))
    review.take(Rename(category=3, name="fern"))
    for action, holds in (
        (Accept(images=a[1:]), True),
        (Accept(images=a[:2]), False),
        (Move(images=a[1:], category=0), True),
        (Move(images=a[1:], category=3), False),  # it has another name
        (Create(images=b[1:], category=6, name="moss"), True),
        (Grow(category=4, seen=a[1:2], unseen=a[2:], wrong=()), True),
        (Grow(category=4, seen=a[1:2], unseen=a[:1], wrong=()), False),
        (AcceptCategory(category=4), False),
        (AcceptCategory(category=2), True),
        (Rename(category=5, name="moss"), True),  # whose images were confirmed before
        (Merge(categories=(1, 3)), False),
        (Undo(), False),
    ):
        assert independent(review, 1, action) == holds, action
    review.take(Undo())
    assert not independent(review, 1, Accept(images=a[1:])), "what was undone is not compared"
    assert independent(review, len(review.words), AcceptCategory(category=4))
    assert not independent(review, -1, AcceptCategory(category=2))
    assert not independent(review, 10**9, AcceptCategory(category=2)), "nobody knows what is still to come"


def test_people_are_told_what_others_are_asked_until_these_are_away() -> None:
    now = [0.0]
    asked = Asked(clock=lambda: now[0])
    assert asked.taken("ada", "first") == []
    assert asked.taken("bob", "second") == ["first"]
    assert asked.taken("ada", "") == ["second"], "she is asked nothing any more"
    assert asked.taken("bob", "second") == []
    assert asked.taken("ada", "second") == ["second"], "he was the first"
    assert asked.taken("bob", "second") == [], "so it is not hers"
    assert asked.taken("bob", "", page="another") == []
    assert asked.taken("ada", "third 4,5") == ["second"], "his other window does not free it"
    assert not asked.alone("ada")
    assert asked.taken("bob", "fourth 5") == ["third 4,5"], "about the same category"
    assert asked.taken("ada", "third 4,5") == []
    now[0] = AWAY_AFTER
    assert asked.alone("ada")
    assert asked.taken("ada", "third") == []


def test_names_of_people_are_different_and_printable() -> None:
    assert check_people(["ada ", "Bob"]) == ("ada", "Bob")
    for names, message in (
        (["ada", "Ada"], "must have different names, got ada, Ada"),
        (["Ren\u00e9", "Rene\u0301"], "must have different names"),
        (["ﬁn", "Fin"], "must have different names"),
        ([" "], "must have 1 to 60 printable characters"),
        (["a\nb"], "must have 1 to 60 printable characters"),
        (["x" * 61], "must have 1 to 60"),
        ([str(number) for number in range(51)], "At most 50 people"),
    ):
        with pytest.raises(InputError, match=message):
            check_people(names)
