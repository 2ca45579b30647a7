"""Candidates: only groups planted far from the centres are found."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.sample_run import sample_run

from sortal.runs import categories
from sortal.runs.categories import BEYOND, CANDIDATE_SPREAD, find_candidates, ids_of
from sortal.runs.confidence import Confidence, place
from sortal.runs.run import Candidate, Category

Points = Sequence[tuple[float, float]]
CENTRES = np.array([[10, 0], [0, 10]], dtype=np.float32)
# Usual distances of 1 on average, so that images up to CANDIDATE_SPREAD apart are near.
CONFIDENCE = Confidence(
    temperature=1.0, held_out=0, unsure_below=0.5, usual=np.array([0.8, 1.2]), deviation=np.array([0.2, 0.1])
)
CATEGORIES = tuple(Category(id=number, name=str(number), kind="new") for number in (7, 3))
THREE = [(-10.0, 0.0), (-10.0, 0.5), (-10.0, -0.4)]
FIVE = [(0.0, -10.0), (0.3, -10.0), (-0.3, -10.0), (0.0, -10.3), (0.0, -9.7)]


def found(
    points: Points, folders: Sequence[int] | None = None, status: Sequence[str] | None = None
) -> tuple[Candidate, ...]:
    x = np.array(points, dtype=np.float32).reshape(-1, 2)
    n, placed = len(x), place(x, CENTRES, CONFIDENCE.temperature)
    a = replace(
        sample_run(images=n, file="{}.jpg".format).assignments,
        folders=np.array([1] * n if folders is None else folders, dtype=np.int64),
        category_id=ids_of(CATEGORIES, placed.row),
        status=np.array(status or ["unsure"] * n, dtype=np.str_),
        distance=placed.distance,
    )
    return find_candidates(a, CATEGORIES, x, CENTRES, CONFIDENCE)


def files(*rows: int) -> tuple[str, ...]:
    return tuple(f"{row}.jpg" for row in rows)


def test_planted_groups_are_found_largest_first_with_their_typical_images_first() -> None:
    assert found([*THREE, *FIVE]) == (
        Candidate(id=1, files=files(3, 4, 5, 6, 7), folders=(1,) * 5, nearest_id=7),
        # The mean of these is (−10, 0.033), slightly closer to (0, 10).
        Candidate(id=2, files=files(0, 2, 1), folders=(1,) * 3, nearest_id=3),
    )


def test_groups_of_equal_size_are_ordered_by_their_first_image() -> None:
    mixed = [point for pair in zip(THREE, FIVE[:3], strict=True) for point in pair]
    assert [sorted(each.files) for each in found(mixed)] == [["0.jpg", "2.jpg", "4.jpg"], ["1.jpg", "3.jpg", "5.jpg"]]
    assert [sorted(each.files) for each in found(mixed[1:])] == [["0.jpg", "2.jpg", "4.jpg"]]


@pytest.mark.parametrize("points", [[], THREE[:2], [*THREE[:2], *FIVE[:2]], [(-10, 0), (-10, 5), (-10, 10), (-10, -5)]])
def test_too_few_or_scattered_images_are_not_a_candidate(points: Points) -> None:
    assert found(points) == ()


def test_only_added_images_that_are_unsure_count() -> None:
    for status in ("known", "new", "labelled"):
        assert found(THREE, status=["unsure", status, "unsure"]) == ()
    assert found([*THREE, *FIVE], folders=[0, 1, 2, *[0] * 5]) == ()
    (only,) = found([*THREE, *THREE], folders=[1, 2, 0, 0, 0, 3])
    assert sorted(only.files) == ["0.jpg", "1.jpg", "5.jpg"]


@pytest.mark.parametrize(("beyond", "count"), [(BEYOND - 0.05, 0), (BEYOND + 0.05, 1)])
def test_unsure_images_near_a_centre_are_not_candidates(beyond: float, count: int) -> None:
    """The categories have usual distances of 0.8 and 1.2, with deviations of 0.2 and 0.1."""
    first, second = 0.8 + 0.2 * beyond, 1.2 + 0.1 * beyond
    assert len(found([(10 + first, 0)] * 3)) == count
    assert len(found([(0, 10 + second)] * 3)) == count


@pytest.mark.parametrize(("apart", "count"), [(CANDIDATE_SPREAD - 0.01, 1), (CANDIDATE_SPREAD + 0.01, 0)])
def test_images_are_grouped_up_to_a_multiple_of_the_usual_distance(apart: float, count: int) -> None:
    height = apart * np.sqrt(3) / 2
    equilateral = [(-10.0, -apart / 2), (-10.0, apart / 2), (-10.0 - height, 0.0)]
    assert len(found(equilateral)) == count


def test_if_there_are_too_many_images_the_farthest_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 is closest to a centre."""
    points = [(-3.0, 0.0), (-3.1, 0.0), (-3.2, 0.0), (-3.3, 0.0), *THREE]
    expected: dict[int, list[tuple[int, ...]]] = {
        7: [(0, 1, 2, 3), (4, 5, 6)],
        6: [(1, 2, 3), (4, 5, 6)],
        5: [(4, 5, 6)],
        2: [],
    }
    for most, groups in expected.items():
        monkeypatch.setattr(categories, "MOST_CANDIDATE_IMAGES", most)
        assert [tuple(sorted(each.files)) for each in found(points)] == [files(*rows) for rows in groups]
