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
    Create,
    Keep,
    Merge,
    Move,
    Reject,
    Rename,
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
