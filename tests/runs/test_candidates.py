"""Candidates: groups planted far from the centres are found, and nothing else is."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from sortal.runs import categories
from sortal.runs.categories import BEYOND, CLOSE, find_candidates, ids_of
from sortal.runs.confidence import Confidence, place
from sortal.runs.run import Assignments, Candidate, Category

Points = Sequence[tuple[float, float]]
CENTRES = np.array([[10, 0], [0, 10]], dtype=np.float32)
# Usual distances of 1 on average, so that images up to CLOSE apart are near.
CONFIDENCE = Confidence(
    temperature=1.0, held_out=0, unsure_below=0.5, usual=np.array([0.8, 1.2]), deviation=np.array([0.2, 0.1])
)
CATEGORIES = tuple(Category(id=number, name=str(number), kind="new") for number in (7, 3))
THREE = [(-10.0, 0.0), (-10.0, 0.5), (-10.0, -0.4)]
FIVE = [(0.0, -10.0), (0.3, -10.0), (-0.3, -10.0), (0.0, -10.3), (0.0, -9.7)]


def assigned(
    x: NDArray[np.float32], folders: Sequence[int] | None = None, status: Sequence[str] | None = None
) -> Assignments:
    n, placed = len(x), place(x, CENTRES, CONFIDENCE.temperature)
    return Assignments(
        files=tuple(f"{row}.jpg" for row in range(n)),
        folders=np.ones(n, dtype=np.int64) if folders is None else np.array(folders, dtype=np.int64),
        contents=("",) * n,
        labels=(None,) * n,
        truth=(None,) * n,
        category=ids_of(CATEGORIES, placed.row),
        status=np.array(["unsure"] * n if status is None else status, dtype=np.str_),
        confidence=np.zeros(n),
        distance=placed.distance,
        next_category=ids_of(CATEGORIES, placed.next_row),
        next_distance=placed.next_distance,
    )


def found(
    points: Points, folders: Sequence[int] | None = None, status: Sequence[str] | None = None
) -> tuple[Candidate, ...]:
    x = np.array(points, dtype=np.float32).reshape(-1, 2)
    return find_candidates(assigned(x, folders, status), CATEGORIES, x, CENTRES, CONFIDENCE)


def files(*rows: int) -> tuple[str, ...]:
    return tuple(f"{row}.jpg" for row in rows)


def test_planted_groups_are_found_the_largest_first_and_the_typical_first() -> None:
    assert found([*THREE, *FIVE]) == (
        Candidate(id=1, files=files(3, 4, 5, 6, 7), folders=(1,) * 5, nearest=7),
        Candidate(
            id=2, files=files(0, 2, 1), folders=(1,) * 3, nearest=3
        ),  # their mean is (−10, 0.033): a little nearer to (0, 10)
    )


def test_groups_of_one_size_come_in_the_order_of_their_first_images() -> None:
    mixed = [point for pair in zip(THREE, FIVE[:3], strict=True) for point in pair]
    assert [sorted(each.files) for each in found(mixed)] == [["0.jpg", "2.jpg", "4.jpg"], ["1.jpg", "3.jpg", "5.jpg"]]
    assert [sorted(each.files) for each in found(mixed[1:])] == [["0.jpg", "2.jpg", "4.jpg"]]


@pytest.mark.parametrize("points", [[], THREE[:2], [*THREE[:2], *FIVE[:2]], [(-10, 0), (-10, 5), (-10, 10), (-10, -5)]])
def test_few_or_lonely_images_are_no_candidate(points: Points) -> None:
    assert found(points) == ()


def test_only_unsure_images_that_were_added_count() -> None:
    for status in ("known", "new", "labelled"):
        assert found(THREE, status=["unsure", status, "unsure"]) == ()
    assert found([*THREE, *FIVE], folders=[0, 1, 2, *[0] * 5]) == ()
    (only,) = found([*THREE, *THREE], folders=[1, 2, 0, 0, 0, 3])
    assert sorted(only.files) == ["0.jpg", "1.jpg", "5.jpg"]


@pytest.mark.parametrize(("beyond", "count"), [(BEYOND - 0.05, 0), (BEYOND + 0.05, 1)])
def test_images_near_to_a_centre_are_none_even_if_they_are_unsure(beyond: float, count: int) -> None:
    """Each category has its own usual distance and deviation: 0.8 and 0.2, 1.2 and 0.1."""
    first, second = 0.8 + 0.2 * beyond, 1.2 + 0.1 * beyond
    assert len(found([(10 + first, 0)] * 3)) == count
    assert len(found([(0, 10 + second)] * 3)) == count


@pytest.mark.parametrize(("apart", "count"), [(CLOSE - 0.01, 1), (CLOSE + 0.01, 0)])
def test_images_are_near_each_other_up_to_some_usual_distances(apart: float, count: int) -> None:
    side = apart / 2
    height = apart * np.sqrt(3) / 2
    corners = [(-10.0, -side), (-10.0, side), (-10.0 - height, 0.0)]  # of a triangle with equal sides
    assert len(found(corners)) == count


def test_of_too_many_images_the_farthest_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    nearer = [(-3.0, 0.0), (-3.1, 0.0), (-3.2, 0.0), (-3.3, 0.0)]
    points = [*nearer, *THREE]
    assert [len(each.files) for each in found(points)] == [4, 3]
    monkeypatch.setattr(categories, "MOST", 7)
    assert [len(each.files) for each in found(points)] == [4, 3]
    monkeypatch.setattr(categories, "MOST", 6)
    cut = found(points)
    assert [len(each.files) for each in cut] == [3, 3]
    assert sorted(cut[0].files) == ["1.jpg", "2.jpg", "3.jpg"]  # the first row is the nearest of all to a centre
    monkeypatch.setattr(categories, "MOST", 5)
    assert [sorted(each.files) for each in found(points)] == [["4.jpg", "5.jpg", "6.jpg"]]
    monkeypatch.setattr(categories, "MOST", 2)
    assert found(points) == ()
