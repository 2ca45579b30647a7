"""The guide of a review asks about what is likely, in the order of what it is worth, and never twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.planted import contents, cut, planted, planted_run
from support.sample_run import doubted

from sortal.discovery.reviewing.advice import Advice
from sortal.images.columns import Columns
from sortal.reviews.actions import (
    Accept,
    AcceptCategory,
    Audit,
    Create,
    Grow,
    Keep,
    Leave,
    Merge,
    Move,
    Reject,
    Rename,
    Undo,
)
from sortal.reviews.history import Review
from sortal.reviews.questions import LAST, MERGE_LIKELY, SCREEN, SPLIT_LIKELY, Guide, Question
from sortal.runs.run import Candidate, Run

Ints = NDArray[np.int64]
NO_STORE: Any = None  # no pictures are looked at


def guided(run: Run) -> tuple[Guide, Review]:
    return Guide(run, Advice(run=run, store=NO_STORE, device="cpu")), Review(run)


def asked(guide: Guide, review: Review, kind: str | None = None, sure: Any = None) -> list[Question]:
    found = guide.questions(review, review.confidence() if sure is None else sure)
    assert [each.worth for each in found] == sorted((each.worth for each in found), reverse=True)
    return [each for each in found if kind in (None, each.kind)]


def accept_unseen(review: Review, rows: Ints, category: int) -> None:
    review.take(Grow(category=category, seen=(), unseen=contents(review.base, rows), wrong=()))


@pytest.fixture(scope="module")
def confused() -> tuple[Run, Ints]:
    """A run with its true classes: categories 0 and 4 are halves of class 0, and 1 is both class 1 and class 4."""
    x, of = planted([60] * 5)
    rows = np.flatnonzero(of == 0)
    category = np.where(of == 4, 1, of)
    category[rows[cut(x, rows, 2) == 1]] = 4
    return planted_run(x, category), of


# Labels


def test_labels_to_check_are_asked_about_until_a_person_decides() -> None:
    x, of = planted([60] * 3)
    run = planted_run(x, of, known=2)
    rows = np.flatnonzero((run.assignments.status == "labelled") & (of == 0))[:4]
    guide, review = guided(doubted(run, rows.tolist(), suggested=1))
    (question,) = asked(guide, review, "label")
    assert question.rows[0] == tuple(rows.tolist()), "the most doubtful first"
    assert (question.images, question.categories) == (4, (0, 1))
    for each, beside in enumerate(question.rows[1:]):
        assert len(beside) == 8
        assert (of[[*beside]] == each).all()
        assert (run.assignments.status[[*beside]] == "labelled").all()
        assert not {*beside} & {*rows.tolist()}, "not what is doubtful itself"
    review.take(Accept(images=contents(run, rows[:1])))
    review.take(Move(images=contents(run, rows[1:2]), category=1))
    review.take(Reject(images=contents(run, rows[2:3]), category=0))
    assert asked(guide, review, "label")[0].rows[0] == (int(rows[3]),)
    review.take(Undo())
    review.take(Undo())
    assert asked(guide, review, "label")[0].images == 3
    guide.lost = (np.arange(len(run.assignments)) == rows[1]).astype(np.int8)
    assert asked(guide, review, "label")[0].images == 2, "not about files that are gone"
    review.take(Merge(categories=(0, 1)))
    assert not asked(guide, review, "label"), "they are one class"


def test_images_that_a_person_removed_raise_no_question_where_they_went() -> None:
    x, of = planted([60, 60, 20])
    guide, review = guided(planted_run(x, np.where(of == 2, 0, of)))
    review.take(Reject(images=contents(review.base, np.flatnonzero(of == 2)), category=0))
    assert {*review.category[of == 2].tolist()} == {1}, "the only other one"
    assert not asked(guide, review, "split"), "it is mixed because of them"
    guide, review = guided(planted_run(x, np.where(of == 2, 1, of)))
    review.take(Reject(images=contents(review.base, np.flatnonzero(of == 0)[:45]), category=0))
    assert not asked(guide, review, "merge"), "it looks like the one that they come from"


def test_a_candidate_is_asked_about_beside_the_most_similar_category_until_little_of_it_is_left() -> None:
    x, of = planted([60, 60, 60])
    run = planted_run(x, np.where(of == 2, 0, of))
    later = np.flatnonzero(of == 2)
    files = tuple(run.assignments.files[row] for row in later.tolist())
    run = replace(run, candidates=(Candidate(id=1, files=files, folders=(0,) * 60, nearest_id=0),))
    guide, review = guided(run)
    (question,) = asked(guide, review, "candidate")
    ranked, beside = question.rows
    page = ranked[:SCREEN]
    assert (question.images, len(ranked), {*ranked}) == (60, 60, {*later.tolist()})
    assert question.categories in ((0,), (1,))
    assert not {*beside} & {*later.tolist()}, "beside what it is not"
    made = Create(images=contents(run, np.array(page)), category=review.next_id, name="later")
    review.take(made)
    (question,) = asked(guide, review, "candidate")
    assert (question.images, question.categories) == (60 - SCREEN, (made.category,)), "the rest is like the new class"
    review.take(Leave(images=contents(run, np.array(question.rows[0][:10]))))
    (left,) = asked(guide, review, "candidate")
    assert {*left.rows[0]} == {*question.rows[0][10:]}, "what was left is asked about no more"
    review.take(Undo())
    assert asked(guide, review, "candidate") == [question]
    review.take(Move(images=contents(run, np.array(question.rows[0][2:])), category=made.category))
    assert asked(guide, review, "candidate") == []


# Merges and splits


@pytest.mark.parametrize("head", [False, True])
def test_halves_of_a_class_are_to_be_merged_unless_they_are_kept_apart(confused: tuple[Run, Ints], head: bool) -> None:
    run, of = confused
    if head:
        run = replace(run, head=np.concatenate([9 * run.centres, np.zeros((5, 1))], axis=1).astype(np.float32))
    guide, review = guided(run)
    (question,) = asked(guide, review, "merge")
    assert {*question.categories} == {0, 4}
    assert question.likely is not None
    assert question.likely > MERGE_LIKELY
    assert question.images == 60
    for category, rows in zip(question.categories, question.rows, strict=True):
        assert set(review.category[[*rows]]) == {category}
        assert set(of[[*rows]]) == {0}
        assert len(rows) == 8
    review.take(Keep(categories=question.categories))
    assert not asked(guide, review, "merge")
    for named in (0, 4):
        review = Review(run)
        review.take(Rename(category=named, name="fern"))
        assert asked(guide, review, "merge")[0].categories[0] == named, "which keeps its name"
    review = Review(run)
    review.take(Merge(categories=question.categories))
    assert not asked(guide, review, "merge")


def test_a_category_of_two_classes_is_to_be_split_unless_it_is_kept_whole(confused: tuple[Run, Ints]) -> None:
    run, of = confused
    guide, review = guided(run)
    (question,) = asked(guide, review, "split")
    assert (question.categories, question.images) == ((1,), 120)
    assert question.likely is not None
    assert question.likely > SPLIT_LIKELY
    assert {*(tuple(np.unique(of[[*rows]])) for rows in question.rows)} == {(1,), (4,)}
    assert {row for part in guide.parts(review, 1, 2) for row in part.tolist()} == {*review.members(1).tolist()}
    assert not asked(Guide(run), review, "split"), "without advice"
    review.take(Keep(categories=(1,)))
    assert not asked(guide, review, "split")


def test_a_mixed_category_is_to_be_split_before_it_is_confirmed(confused: tuple[Run, Ints]) -> None:
    guide, review = guided(confused[0])
    assert [each.kind for each in asked(guide, review) if each.categories == (1,)] == ["split", "grow"]
    review.take(Keep(categories=(1,)))
    assert [each.kind for each in asked(guide, review) if each.categories == (1,)] == ["grow"]


def test_categories_that_images_were_moved_between_are_not_to_be_merged(confused: tuple[Run, Ints]) -> None:
    run, _ = confused
    guide, review = guided(run)
    one = contents(run, review.members(4)[:1])
    review.take(Move(images=one, category=0))
    assert not asked(guide, review, "merge")
    review.take(Undo())
    review.take(Create(images=one, category=5, name="fern"))
    assert {*asked(guide, review, "merge")[0].categories} == {0, 4}, "the image went elsewhere"
    review.take(Merge(categories=(0, 5)))
    assert not asked(guide, review, "merge"), "that category is now part of the other"
    review = Review(run)
    review.take(Reject(images=one, category=4))
    assert {*review.category[review.rows_of(one)].tolist()} == {0}
    assert asked(guide, review, "merge"), "it was sorted there, by nobody"
    review.take(Accept(images=one))
    assert not asked(guide, review, "merge")


def test_named_categories_that_are_nearly_settled_are_not_to_be_merged(confused: tuple[Run, Ints]) -> None:
    run, _ = confused
    guide, review = guided(run)
    for each, name in ((0, "fern"), (4, "moss")):
        review.take(Rename(category=each, name=name))
        assert asked(guide, review, "merge"), "open images may show that they are one class"
        rows = review.members(each)
        review.take(Accept(images=contents(run, rows[: len(rows) - 1])))
    assert not asked(guide, review, "merge")


def test_categories_that_were_kept_apart_are_so_in_the_reviewed_run(confused: tuple[Run, Ints]) -> None:
    run, _ = confused
    guide, review = guided(run)
    (question,) = asked(guide, review, "merge")
    review.take(Keep(categories=question.categories))
    again = review.run()
    assert [each.kept_apart for each in again.categories] == [(4,), (), (), (), (0,)]
    assert not asked(*guided(again), "merge")
    review.take(Merge(categories=(0, 4)))
    assert not any(each.kept_apart for each in review.run().categories)


def test_images_shown_beside_others_are_of_different_moments(confused: tuple[Run, Ints]) -> None:
    run, _ = confused
    guide, review = guided(run)
    first, second, *rest = guide.typical(review, 1, 10)
    group = run.assignments.group.copy()
    group[second] = group[first]
    burst = replace(run, assignments=replace(run.assignments, group=group))
    assert guided(burst)[0].typical(Review(burst), 1, 9) == [first, *rest]
    (question,) = asked(*guided(burst), "split")
    for rows in question.rows:
        assert len({*group[[*rows]].tolist()}) == 8


def test_what_was_confirmed_stays_in_the_first_part(confused: tuple[Run, Ints]) -> None:
    run, of = confused
    guide, review = guided(run)
    fourth = np.flatnonzero(of == 4)
    review.take(Accept(images=contents(run, fourth[:3])))
    accept_unseen(review, np.flatnonzero(of == 1)[:3], 1)
    first, second = guide.parts(review, 1, 2)
    assert {*first.tolist()} == {*fourth.tolist()}
    assert len(second) == 60, "what was accepted unseen may be wrong"


def test_known_classes_are_never_merged_and_a_known_one_comes_first() -> None:
    x, of = planted([60, 60, 60])
    rows, category = np.flatnonzero(of == 0), of.copy()
    category[rows[cut(x, rows, 2) == 1]] = 3
    guide, review = guided(planted_run(x, category, known=1))
    assert [each.categories for each in asked(guide, review, "merge")] == [(0, 3)]
    guide, review = guided(planted_run(x, category, known=4))
    assert not asked(guide, review, "merge")


def test_most_merges_are_found_by_few_questions() -> None:
    x, of = planted([60] * 8, d=10, noise=1.2)
    category, classes = np.zeros(len(of), dtype=np.int64), list[int]()
    for each in range(8):
        rows, parts = np.flatnonzero(of == each), 2 + each % 2
        category[rows] = len(classes) + cut(x, rows, parts)
        classes += [each] * parts
    guide, review = guided(planted_run(x, category))
    merges, found, questions = len(classes) - 8, 0, 0
    while questions < 2 * merges and (waiting := guide.likely(review, review.confidence(), among=99)[0]):
        first, second = waiting[0].categories
        same = classes[first] == classes[second]
        review.take(Merge(categories=(first, second)) if same else Keep(categories=(first, second)))
        found, questions = found + same, questions + 1
    assert found >= 0.8 * merges


# Growing and pages


def test_what_settles_most_images_per_second_comes_first() -> None:
    category = np.repeat([0, 1, 2, 3], [40, 30, 10, 40])
    guide, review = guided(planted_run(planted([120])[0], category))
    for each in (1, 2):
        review.take(Rename(category=each, name=f"name {each}"))
    sure = np.array([1, 0.9, 1, 0.5])[category]
    # To look at 20 images takes 4 s, to answer 1.7 times 2.771 s, and to type a name 3.87 s.
    expected = [(1, 27 / 6.771), (0, 40 / 10.641), (2, 10 / 4.771), (3, 20 / 10.641)]
    found = asked(guide, review, "grow", sure)
    assert [(each.categories[0], each.images) for each in found] == [(1, 30), (0, 40), (2, 10), (3, 40)]
    assert [each.worth for each in found] == pytest.approx([worth for _, worth in expected])


def test_what_was_left_open_comes_on_pages_the_surest_first() -> None:
    category = np.repeat([0, 1], [60, 20])
    guide, review = guided(planted_run(planted([80])[0], category))
    sure = np.concatenate([np.linspace(1, 0.21, 60), np.linspace(0.4, 0.21, 20)])
    accept_unseen(review, np.arange(20), 0)
    review.take(Grow(category=1, seen=(), unseen=(), wrong=()))
    assert not asked(guide, review, "grow", sure)
    found = [(each.categories, each.rows) for each in asked(guide, review, "page", sure)]
    assert found == [((0,), (tuple(range(20, 36)),)), ((1,), (tuple(range(60, 76)),))]
    review.take(Reject(images=contents(review.base, np.arange(50, 60)), category=0))
    assert not asked(guide, review, "grow", sure), "a few that came to the other"
    review.take(Reject(images=contents(review.base, np.arange(40, 50)), category=0))
    assert [(each.categories, each.images) for each in asked(guide, review, "grow", sure)] == [((1,), 40)]


def test_single_images_are_a_random_sample_of_what_was_left_open() -> None:
    run = planted_run(planted([100])[0], np.zeros(100, dtype=np.int64))
    guide, review, drawn, sure = Guide(run), Review(run), list[int](), np.linspace(0, 1, 100)
    assert not asked(guide, review, "image", sure), "it is yet to be grown"
    review.take(Grow(category=0, seen=(), unseen=(), wrong=()))
    for left in range(100, 0, -20):
        (question,) = again = asked(guide, review, "image", sure)
        assert asked(Guide(run), review, "image", sure) == again, "the same whenever it is asked for"
        assert question.images == left
        drawn += question.rows[0]
        review.take(Accept(images=contents(run, np.array(question.rows[0]))))
    assert sorted(drawn) == [*range(100)], "each of them once"
    assert abs(np.corrcoef(sure[drawn], np.arange(100))[0, 1]) < 0.5  # 5 standard deviations


def test_images_that_fit_nowhere_come_on_a_page_the_farthest_first_until_they_are_settled() -> None:
    run = planted_run(*planted([40, 40]))
    apart = np.zeros(80)
    apart[[5, 9, 30]] = [3.0, 7.0, 4.0]
    run = replace(
        run,
        assignments=replace(run.assignments, apart=apart),
        confidence=replace(run.confidence, other_above=3.5),
    )
    guide, review = guided(run)
    (question,) = asked(guide, review, "other")
    assert (question.rows, question.images) == (((9, 30),), 2)
    review.take(Accept(images=contents(run, np.array([9]))))
    (question,) = asked(guide, review, "other")
    assert question.rows == ((30,),)
    review.take(Move(images=contents(run, np.array([30])), category=1 - int(run.assignments.category_id[30])))
    assert asked(guide, review, "other") == []
    lost = np.zeros(80, dtype=np.int8)
    lost[9] = 1
    (question,) = asked(Guide(run, lost=lost), Review(run), "other")
    assert question.rows == ((30,),), "nobody is asked about a file that is gone"


def test_nothing_is_asked_about_what_is_settled_or_empty(confused: tuple[Run, Ints]) -> None:
    run, _ = confused
    guide, review = guided(run)
    review.take(AcceptCategory(category=1))
    review.take(Move(images=contents(run, review.members(2)), category=3))
    assert {each for question in asked(guide, review) for each in question.categories} == {0, 3, 4}
    for each in (0, 3):
        review.take(AcceptCategory(category=each))
    assert [(each.kind, {*each.categories}) for each in asked(guide, review)] == [("merge", {0, 4}), ("grow", {4})]
    review.take(AcceptCategory(category=4))
    assert asked(guide, review) == []


def test_a_single_category_can_be_reviewed() -> None:
    guide, review = guided(planted_run(planted([40])[0], np.zeros(40, dtype=np.int64)))
    assert [each.kind for each in asked(guide, review)] == ["grow"]


# Audits


def test_an_audit_is_a_sample_of_what_was_accepted_unseen() -> None:
    x, of = planted([100] * 3)
    run = planted_run(x, of)
    guide, review = guided(run)
    assert guide.sample(review) == []
    first, second = review.members(0), review.members(1)
    review.take(Accept(images=contents(run, first[80:])))
    accept_unseen(review, first[:60], 0)
    accept_unseen(review, second[:30], 1)
    drawn = guide.sample(review)
    assert drawn == guide.sample(review) == Guide(run).sample(review), "the same whenever it is asked for"
    assert len({*drawn}) == len(drawn)
    assert review.unseen[drawn].all()
    assert np.bincount(review.category[drawn]).tolist() == [6, 4]
    assert sorted(drawn[:6]) != sorted(first[:6].tolist()), "not the surest"
    (question,) = asked(guide, review, "audit")
    assert (question.rows, question.categories, question.worth) == ((tuple(drawn),), (0, 1), LAST), "nearly at the end"
    accept_unseen(review, first[60:80], 0)
    more = guide.sample(review)
    assert np.bincount(review.category[more]).tolist() == [8, 4]
    assert {*drawn[:6]} - {*more}, "drawn anew, among all"
    assert drawn[6:] == more[8:], "of the other category nothing has changed"
    review.take(Audit(right=contents(run, np.array(more)), wrong=()))
    assert guide.sample(review) == []
    assert not asked(guide, review, "audit")


def test_a_full_screen_is_audited_at_once_and_no_more_than_that() -> None:
    category = np.repeat(np.arange(12), 30)
    guide, review = guided(planted_run(planted([360])[0], category))
    for each in range(9):
        accept_unseen(review, review.members(each), each)
    assert asked(guide, review)[0].kind != "audit"
    for each in range(9, 12):
        accept_unseen(review, review.members(each), each)
    question = asked(guide, review)[0]
    assert (question.kind, question.worth) == ("audit", np.inf)
    assert len(question.rows[0]) == SCREEN == 40
    assert question.categories == tuple(range(10)), "whole samples"


def test_a_large_category_is_audited_alone() -> None:
    category = np.repeat([0, 1], [500, 30])
    guide, review = guided(planted_run(planted([530])[0], category))
    accept_unseen(review, review.members(1), 1)
    accept_unseen(review, review.members(0), 0)
    assert np.bincount(review.category[guide.sample(review)]).tolist() == [50]


def test_a_category_that_fails_its_audit_is_shown_page_by_page() -> None:
    x, of = planted([60] * 2)
    run = planted_run(x, of)
    guide, review = guided(run)
    accept_unseen(review, review.members(0), 0)
    drawn = np.array(guide.sample(review))
    review.take(Audit(right=contents(run, drawn[2:]), wrong=contents(run, drawn[:2])))
    assert guide.sample(review) == []
    assert {each.categories for each in asked(guide, review, "page")} == {(0,)}
    assert {each.categories for each in asked(guide, review, "grow")} == {(1,)}


def test_a_copy_of_a_labelled_image_can_be_audited() -> None:
    run = planted_run(*planted([30] * 2), known=1)
    a, names = run.assignments, [*run.assignments.contents]
    labelled = np.flatnonzero(a.status == "labelled")
    rows = np.setdiff1d(np.flatnonzero(a.category_id == 0), labelled)
    for one, other in zip(labelled.tolist(), rows.tolist(), strict=False):
        names[one] = names[other]
    run = replace(run, assignments=replace(a, contents=tuple(names)))
    guide, review = guided(run)
    accept_unseen(review, rows, 0)
    if drawn := guide.sample(review):
        review.take(Audit(right=contents(run, np.array(drawn)), wrong=()))
        assert not guide.sample(review)


def test_an_audit_shows_one_image_of_a_specimen_but_any_of_a_site() -> None:
    run = planted_run(*planted([100] * 2))
    columns = Columns.infer(["group"], [["one", "other"] * 100])
    run = replace(run, assignments=replace(run.assignments, columns=columns))
    drawn = []
    for hold in (None, "one", "several"):
        guide, review = guided(replace(run, facts=replace(run.facts, groups_hold=hold)))
        accept_unseen(review, review.members(0), 0)
        drawn.append(len(guide.sample(review)))
    assert drawn == [2, 2, 10]
