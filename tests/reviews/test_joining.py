"""Two people: what one has settled is joined with what the other has, and contradictions are disputed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from support.decisions import (
    RUN,
    grow,
    index_of,
    mask,
    places,
    refit,
    some,
    states,
)

from sortal.images.review_states import words_of
from sortal.reviews import joining, journal
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
    Reject,
    Rename,
    Split,
    Undo,
)
from sortal.reviews.audit import NO_TALLY
from sortal.reviews.history import Decision, Review


def two(mine: Sequence[Action], theirs: Sequence[Action]) -> tuple[Review, list[Decision]]:
    """Join two journals; return the state and the lines that were added."""
    ours = [journal.decide(each, "ada") for each in mine]
    other = [journal.decide(each, "bob") for each in theirs]
    lines = joining.join(RUN, ours, other)
    assert not joining.join(RUN, [*ours, *lines], other), "a second time nothing is added"
    assert {each.key.partition(".")[0] for each in lines} <= {each.key for each in other}
    assert all(each.by == "bob" for each in lines)
    return journal.replay(RUN, [*ours, *lines]), lines


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
    states = np.array(words_of(found.reviewed))
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


def test_the_bin_is_joined_and_what_is_in_a_category_here_is_disputed() -> None:
    a, b = some(RUN, 4, 4), some(RUN, 5, 3)
    found, lines = two(
        [Move(images=a[:1], category=0), Bin(images=(*a[1:2], *b[:1]))],
        [Bin(images=a[:3]), Accept(images=b[:1]), Bin(images=b[1:]), PutBack(images=b[2:])],
    )
    assert found.category[mask(RUN, a)].tolist() == [0, -1, -1, 4]
    assert found.category[mask(RUN, b)].tolist() == [-1, -1, 5]
    assert [each.action for each in lines if each.disputed] == [Bin(images=a[:1]), Move(images=b[:1], category=5)]


def test_what_they_put_back_comes_out_of_the_bin_here() -> None:
    images = some(RUN, 4, 2)
    shared = [journal.decide(Bin(images=images), "ada")]
    theirs = [*shared, journal.decide(PutBack(images=images[:1]), "bob")]
    lines = joining.join(RUN, shared, theirs)
    assert journal.replay(RUN, [*shared, *lines]).binned[mask(RUN, images)].tolist() == [False, True]


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
    found = journal.replay(RUN, mine)
    names = [found.categories[int(each)].name for each in found.category[[*map(index_of, (*a, *b, *c))]]]
    assert names == ["fern", "fern", "moss", "fern", "moss", "moss"]


def test_a_disputed_category_is_created_once_something_else_goes_there() -> None:
    a, b = some(RUN, 4, 2), some(RUN, 5, 2)
    found, lines = two(
        [Move(images=a, category=1)],
        [
            Create(images=a, category=6, name="moss"),
            Create(images=b[:1], category=7, name="fern"),
            Move(images=b[1:], category=6),
        ],
    )
    assert [bool(each.disputed) for each in lines] == [True, False, False]
    assert isinstance(lines[0].action, Create)
    assert [found.categories[each].name for each in places(found, (*a, *b))] == [*["class 1"] * 2, "fern", "moss"]


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
    found = journal.replay(RUN, [*common, *lines])
    assert [found.categories[each].name for each in (3, 4, 5)] == ["class 3", "moss", "fern"]
    assert [each.disputed for each in lines if each.disputed] == ["They undid a decision that still stands here."]


def test_what_they_have_grown_is_joined_but_for_what_was_put_elsewhere_here() -> None:
    a, b = some(RUN, 4, 10), some(RUN, 5, 6)
    found, lines = two(
        [Move(images=(a[0], a[5]), category=1), Accept(images=(a[8], a[6])), Merge(categories=(4, 5))],
        [grow(4, seen=a[:5], unseen=a[5:8], wrong=a[8:]), grow(5, seen=b[:2], unseen=b[2:])],
    )
    assert [(each.action, each.disputed) for each in lines] == [
        (Accept(images=a[1:5]), ""),
        (grow(4, unseen=a[7:8]), ""),
        (Move(images=(a[0], a[5]), category=4), "Here these images were put elsewhere."),
        (Reject(images=a[8:9], category=4), "Here these images were confirmed."),
        (Reject(images=a[9:], category=4), ""),
        (Accept(images=b[:2]), ""),
        (grow(4, unseen=b[2:]), ""),
    ]
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
    assert states(found, a) == ["rejected", *["confirmed"] * 5, *["no"] * 6], "their category has failed"
    assert places(found, a[1:]) == [4] * 11
    assert states(found, b) == [*["confirmed"] * 2, *["accepted unseen"] * 4]
    assert found.categories[4].tally == found.categories[5].tally == NO_TALLY, "the rest is still to be audited here"


def test_their_refit_is_disputed_and_what_they_settled_after_it_is_joined() -> None:
    a, b = some(RUN, 4, 4), some(RUN, 5, 4)
    found, lines = two(
        [Create(images=some(RUN, 0, 1), category=6, name="fern")],
        [refit(a, (6, 6, 6, 5), "new 3"), Accept(images=a[3:]), Move(images=b[:2], category=6), Accept(images=a[:1])],
    )
    assert lines[0].disputed == "A refit depends on all decisions before it. Refit again here."
    assert [bool(each.disputed) for each in lines] == [True, False, False, False]
    assert places(found, (*a, *b[:2])) == [7, 4, 4, 5, 7, 7], "their 6 is not our fern, but what they settled holds"


def test_a_refit_of_ours_contradicts_nobody() -> None:
    a = some(RUN, 4, 4)
    found, lines = two([refit(a, (5, 5, 5, 5))], [Accept(images=a[:2]), grow(4, unseen=a[2:])])
    assert not any(each.disputed for each in lines)
    assert places(found, a) == [4] * 4


def noted(by: str, *taken: Action) -> list[Decision]:
    return [journal.decide(each, by) for each in taken]


def test_a_change_of_mind_after_joining_replaces_what_was_joined() -> None:
    a = some(RUN, 4, 3)
    mine, theirs = noted("ada", Accept(images=a[:1])), noted("bob", Move(images=a[1:], category=1))
    mine += joining.join(RUN, mine, theirs)
    theirs += noted("bob", Move(images=a, category=2))
    mine += joining.join(RUN, mine, theirs)
    assert places(journal.replay(RUN, mine), a) == [4, 2, 2]
    assert [each.disputed for each in mine] == ["", "", "", "Here these images were put elsewhere."]


def test_a_name_that_they_give_after_joining_is_taken_over_and_no_category_is_made_twice() -> None:
    a, mine = some(RUN, 4, 4), list[Decision]()
    theirs = noted("bob", Create(images=a[:2], category=6, name="fern"))
    mine += joining.join(RUN, mine, theirs)
    theirs += noted("bob", Rename(category=6, name="moss"), Move(images=a[2:3], category=6))
    mine += joining.join(RUN, mine, theirs)
    mine += noted("ada", Merge(categories=(1, 6)))
    theirs += noted("bob", Move(images=a[3:], category=6))
    mine += joining.join(RUN, mine, theirs)
    found = journal.replay(RUN, mine)
    assert {*found.categories} == {*range(6)}
    assert places(found, a) == [1] * 4, "where moss was merged into here"


def test_who_joins_both_ways_keeps_what_they_decided() -> None:
    a = some(RUN, 4, 2)
    ada, bob = noted("ada", Move(images=a, category=1)), noted("bob", Move(images=a, category=2))
    ada_after, bob_after = [*ada, *joining.join(RUN, ada, bob)], [*bob, *joining.join(RUN, bob, ada)]
    assert places(journal.replay(RUN, ada_after), a) == [1, 1]
    assert places(journal.replay(RUN, bob_after), a) == [2, 2]
    assert not joining.join(RUN, ada_after, bob_after)
    assert not joining.join(RUN, bob_after, ada_after)


def test_an_image_leaves_every_category_that_they_rejected_it_from() -> None:
    (content,), theirs = some(RUN, 4, 1), list[Action]()
    review = Review(RUN)
    for _ in range(3):
        theirs.append(Reject(images=(content,), category=places(review, [content])[0]))
        review.take(theirs[-1])
    found, lines = two([Rename(category=3, name="oak")], theirs)
    assert [type(each.action) for each in lines] == [Reject] * 3
    assert (places(found, [content]), states(found, [content])) == (places(review, [content]), ["rejected"])
    assert found.rejected == review.rejected


def test_what_is_kept_apart_here_is_not_merged_and_a_split_is_one_here() -> None:
    a = some(RUN, 4, 5)
    found, lines = two(
        [Keep(categories=(2, 3)), Move(images=a[:1], category=1)],
        [Merge(categories=(2, 3)), Split(images=a, category=6, name="fern"), Rename(category=6, name="moss")],
    )
    assert [each.disputed for each in lines] == [
        "Here they are kept apart.",
        "",
        "Here these images were put elsewhere.",
    ]
    assert found.categories[6].name == "moss"
    assert places(found, a) == [1, 6, 6, 6, 6]
    assert states(found, a[1:]) == ["no"] * 4, "a split says nothing about an image"
