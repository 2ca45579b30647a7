"""The map: a sample of the images, and coordinates that are cached."""

import errno
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from support.sample_run import place

from sortal.errors import NoSpaceError
from sortal.runs import projection
from sortal.system import cache


def test_a_sample_has_every_category_and_its_most_typical_image() -> None:
    category = np.repeat([0, 1, 2], [500, 300, 1])
    distance = np.linspace(1, 0, 801)
    rows = projection.sample(category, distance, 50, seed=0)
    assert len(set(rows.tolist())) == 50
    assert rows[:3].tolist() == [499, 799, 800]
    assert (projection.sample(category, distance, 50, seed=1) != rows).any()
    assert sorted(projection.sample(category, distance, 5000, seed=0).tolist()) == [*range(801)]


def test_coordinates_fill_the_span_and_are_cached_under_another_name_than_before(tmp_path: Path) -> None:
    places = np.array([[-1.0, 3.0], [0.0, 3.0], [4.0, 3.0]])
    seen: list[int] = []

    def placed(x: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
        seen.append(seed)
        return places[: len(x)]

    x = np.eye(3, dtype=np.float32)
    old = tmp_path / f"{cache.key('map', cache.hashed(x), 7)}.json"  # by another method
    cache.save(old, [[0, 0]] * 3)
    for _ in range(2):
        found = projection.coordinates(x, placed, seed=7, folder=tmp_path)
        assert found.tolist() == [[0, 5000], [2000, 5000], [9999, 5000]]
    assert seen == [7]
    assert projection.coordinates(x[:0], placed, seed=7, folder=tmp_path).shape == (0, 2)


def test_a_cache_that_cannot_be_written_to_does_not_keep_the_map_from_being_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for problem in (OSError(errno.EACCES, "", "place"), NoSpaceError("no space left")):
        monkeypatch.setattr(cache, "save", Mock(side_effect=problem))
        found = projection.coordinates(np.eye(3, dtype=np.float32), place, seed=7, folder=tmp_path)
        assert found.shape == (3, 2)
