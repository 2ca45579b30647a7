"""Clustering again after decisions: they hold, and a few of them repair what clustering got wrong; and other advice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.planted import contents, cut, planted, planted_run, unit

from sortal.discovery.reviewing.refitting import refit
from sortal.errors import InputError
from sortal.reviews.actions import (
    Accept,
    AcceptCategory,
    Action,
    Bin,
    Grow,
    Keep,
    Merge,
    Move,
    Refit,
    Reject,
    Split,
    Undo,
)
from sortal.reviews.history import Review
from sortal.runs.run import Run
from sortal.system.distributed import alone

Ints = NDArray[np.int64]


def reviewed(run: Run, *decisions: Action) -> Review:
    review = Review(run)
    for each in decisions:
        review.take(each)
    return review


def refitted(review: Review) -> Refit:
    """Refit, check what always holds, and carry it out."""
    category, settled, next_id = review.category.copy(), review.settled, review.next_id
    found = refit(review, alone("cpu"))
    assert found == refit(review, alone("cpu"))
    assert all(0 <= each <= 1 for each in found.stability)
    assert len(found.names) == len({*found.categories} - {*review.categories})
    assert {*found.categories} - {*review.categories} == {*range(next_id, next_id + len(found.names))}
    review.take(found)
    np.testing.assert_array_equal(review.category[settled], category[settled])
    assert {*review.category[~review.binned].tolist()} <= {*found.categories}
    return found


def right(review: Review, of: Ints, classes: dict[int, int]) -> float:
    """Return the share of images that are in the category of their class."""
    return float(np.mean(review.category == np.array([classes[each] for each in of.tolist()])))


def confused(known: int) -> tuple[Run, Ints]:
    """Six classes: category 2 is both class 2 and class 3; 3 and 5 are halves of class 5; the others are right."""
    x, of = planted([40] * 6)
    rows = np.flatnonzero(of == 5)
    category = np.where(of == 3, 2, of)
    category[rows[cut(x, rows, 2) == 1]] = 3
    return planted_run(x, category, known=known), of


@pytest.mark.parametrize("known", [0, 2])
def test_a_few_decisions_restore_the_classes(known: int) -> None:
    run, of = confused(known)
    category = run.assignments.category_id
    stray = np.flatnonzero(of == 0)[-1:]
    review = reviewed(
        run,
        Merge(categories=(5, 3)),
        Accept(images=contents(run, np.flatnonzero(category == 4)[:4])),
        Split(images=contents(run, np.flatnonzero(of == 3)[:10]), category=6, name="fern"),
        Accept(images=contents(run, np.flatnonzero(category == 1)[:4])),
        Move(images=contents(run, stray), category=1),
        Reject(images=contents(run, np.flatnonzero(of == 4)[-1:]), category=4),
    )
    before = review.category.copy(), review.categories
    assert right(review, of, {0: 0, 1: 1, 2: 2, 3: 6, 4: 4, 5: 5}) < 0.9
    found = refitted(review)
    assert {*found.categories} == {0, 1, 2, 4, 5, 6}, "categories keep their ids"
    assert right(review, of, {0: 0, 1: 1, 2: 2, 3: 6, 4: 4, 5: 5}) > 0.97
    assert set(review.category[of == 5]) == {5}, "merged ones stay together"
    assert review.category[stray].tolist() == [1], "a person has put it there"
    assert review.category[np.flatnonzero(of == 4)[-1]] != 4, "a person has rejected it from there"
    assert not any(review.category[run.assignments.contents.index(content)] == own for content, own in review.rejected)
    review.take(Undo())
    np.testing.assert_array_equal(review.category, before[0])
    assert review.categories == before[1]


def test_a_category_that_is_found_gets_the_next_id() -> None:
    x, of = planted([40, 40, 60, 30])
    run = planted_run(x, np.where(of == 3, 2, of), known=2)
    review = reviewed(
        run,
        Split(images=contents(run, np.flatnonzero(of == 0)[:5]), category=3, name="fern"),
        Merge(categories=(0, 3)),  # so the id 3 was used
        Accept(images=contents(run, np.flatnonzero(of == 2)[:5])),
    )
    found = refitted(review)
    assert (found.categories, found.names) == ((0, 1, 2, 4), ("new 5",))
    assert right(review, of, {0: 0, 1: 1, 2: 2, 3: 4}) > 0.97
    assert (review.reviewed != 0).sum() == 5, "nothing was said about an image"
    review.take(Undo())
    assert (review.next_id, {*review.categories}) == (5, {0, 1, 2})


def halved(classes: int) -> tuple[Run, Ints]:
    """Return a run of so many classes, two of them known; the last is cut into two categories."""
    x, of = planted([40] * classes)
    rows = np.flatnonzero(of == classes - 1)
    category = of.copy()
    category[rows[cut(x, rows, 2) == 1]] = classes
    return planted_run(x, category, known=2), of


def test_categories_that_are_kept_apart_stay_apart() -> None:
    run, _ = halved(6)
    category, x = run.assignments.category_id, run.features
    assert not {5, 6} <= {*refit(Review(run), alone("cpu")).categories}, "they would be one"
    review = reviewed(run, Keep(categories=(5, 6)))
    refitted(review)
    for each in (5, 6):
        own = category == each
        assert np.mean(review.category[own] == each) > 0.5
        order = np.linalg.norm(x[own] - x[own].mean(axis=0), axis=1).argsort()
        assert set(review.category[np.flatnonzero(own)[order[:8]]]) == {each}, "its typical images"


def test_keeping_two_categories_apart_does_not_cost_another_one() -> None:
    run, of = halved(4)
    review = reviewed(run, Keep(categories=(3, 4)))
    refitted(review)
    assert set(review.category[of == 2]) == {2}


def test_an_image_that_a_person_has_moved_does_not_take_its_former_category_along() -> None:
    x, of = planted([40] * 4)
    run = planted_run(x, of)
    review = reviewed(
        run,
        *(Accept(images=contents(run, np.flatnonzero(of == each)[:4])) for each in (2, 3)),
        Move(images=contents(run, np.flatnonzero(of == 0)[:1]), category=1),
    )
    found = refit(review, alone("cpu"))
    assert len(found.images) <= 2


@pytest.mark.parametrize("first", [0, 2], ids=["known", "new"])
@pytest.mark.parametrize("cosine", [0.7, 0.3])
def test_a_class_of_two_looks_stays_merged(first: int, cosine: float) -> None:
    x, of = planted([40] * 5, noise=0.4)
    centres = np.array([x[of == each].mean(axis=0) for each in range(5)])
    rows = of == 4
    x[rows] += cosine * centres[first] + (np.sqrt(1 - cosine**2) - 1) * centres[4]
    run = planted_run(unit(x), of, known=2)
    review = reviewed(run, Merge(categories=(first, 4)))
    found = refit(review, alone("cpu"))
    away = {content for content, to in zip(found.images, found.to, strict=True) if to != first}
    assert len(away & {*contents(run, review.members(first))}) <= 1
    assert len(found.categories) == 4


def test_rejected_images_go_to_the_nearest_category_they_were_not_rejected_from() -> None:
    x, of = planted([30] * 4, noise=0.3)
    run = planted_run(x, of, known=2)
    (row,) = rows = np.flatnonzero(of == 3)[:1]
    review = reviewed(run, Reject(images=contents(run, rows), category=3))
    review.take(Reject(images=contents(run, rows), category=int(review.category[row])))
    left = [each for each in range(4) if (contents(run, rows)[0], each) not in review.rejected]
    found = refit(review, alone("cpu"))
    to = dict(zip(found.images, found.to, strict=True)).get(contents(run, rows)[0], int(review.category[row]))
    assert to == min(left, key=lambda each: float(np.linalg.norm(x[of == each].mean(axis=0) - x[row])))


def test_what_was_accepted_unseen_stays_and_all_of_it_leaves_nothing_to_do() -> None:
    x, of = planted([30] * 3)
    run = planted_run(x, np.where(np.arange(90) < 10, 0, of), known=0)  # ten images are astray
    unseen = contents(run, np.flatnonzero(run.assignments.category_id == 0))
    review = reviewed(run, Grow(category=0, seen=(), unseen=unseen, wrong=()), AcceptCategory(category=1))
    found = refit(review, alone("cpu"))
    assert not {*found.images} & {*unseen}
    review.take(AcceptCategory(category=2))
    with pytest.raises(InputError, match="nothing to cluster again"):
        refit(review, alone("cpu"))


@pytest.mark.parametrize("known", [0, 1])
def test_one_settled_category_is_enough_and_none_at_all(known: int) -> None:
    x, of = planted([30] * 4)
    category = of.copy()
    category[np.flatnonzero(of == 3)[:3]] = 2
    run = planted_run(x, category, known=known)
    review = reviewed(run)
    refitted(review)
    assert right(review, of, {each: each for each in range(4)}) > 0.97
    review = reviewed(run, AcceptCategory(category=0))
    refitted(review)
    assert right(review, of, {each: each for each in range(4)}) > 0.97


def test_a_copy_of_a_labelled_image_is_no_obstacle() -> None:
    x, of = planted([30] * 4)
    category = of.copy()
    astray = np.flatnonzero(of == 3)[:3]
    category[astray] = 2
    run = planted_run(x, category, known=2)
    a, names = run.assignments, [*run.assignments.contents]
    labelled = np.flatnonzero(a.status == "labelled")[0]
    names[labelled] = names[astray[0]]
    x[labelled] = x[astray[0]]
    run = replace(run, features=x, assignments=replace(a, contents=tuple(names)))
    review = Review(run)
    refitted(review)
    assert review.category[astray[1:]].tolist() == [3, 3]
    assert review.category[labelled] == category[labelled]


def test_images_of_a_moment_count_once_and_stay_together() -> None:
    """Many copies of a few images change nothing."""
    run, of = confused(2)
    n, few = len(of), np.flatnonzero(of == 3)[:4]
    same = np.concatenate([np.arange(n), np.repeat(few, 60)])
    copied = planted_run(run.features[same], run.assignments.category_id[same], known=2)
    copied = replace(copied, assignments=replace(copied.assignments, group=same))
    plain, review = Review(run), Review(copied)
    refitted(plain)
    refitted(review)
    np.testing.assert_array_equal(review.category[same], review.category)
    np.testing.assert_array_equal(review.category[:n], plain.category)


def test_the_bin_takes_no_part() -> None:
    x, of = planted([20] * 3)
    x = np.concatenate([x, -x[:8]])  # junk, unlike all others
    run = planted_run(x, np.concatenate([of, np.zeros(8, dtype=np.int64)]), known=0)
    junk = contents(run, np.arange(60, 68))
    review = reviewed(run, Bin(images=junk))
    found = refitted(review)
    assert {*found.categories} == {0, 1, 2}
    assert not {*junk} & {*found.images}
    assert review.binned.sum() == 8
