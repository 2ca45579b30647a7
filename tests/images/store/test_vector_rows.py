"""Vectors: unit length, neighbours and contents, by hand."""

import numpy as np
import pytest

from sortal.images.store import vector_rows as module
from sortal.images.store.vector_rows import Vectors, digests_of, unit_rows

ANGLES = np.radians([0, 10, 25, 180, 170])
X = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32)


def test_rows_get_unit_length_unless_they_are_zero() -> None:
    found = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found, np.array([[0.6, 0.8], [0.0, 0.0]]), rtol=1e-6)


def test_neighbours_are_the_nearest_others() -> None:
    found = Vectors(X).neighbours
    assert found[:, 0].tolist() == [1, 0, 1, 4, 3]
    assert found[0].tolist() == [1, 2, 4, 3]
    picked = Vectors(X).select(np.array([True, False, True, True, False]))
    assert picked.neighbours[0].tolist() == [1, 2]


def test_among_many_vectors_neighbours_are_some_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ANCHORS", 3)
    found = Vectors(X).neighbours
    assert {*found.ravel().tolist()} == {0, 2, 4}
    assert all(row not in others for row, others in enumerate(found.tolist()))


def test_a_single_vector_has_no_neighbours() -> None:
    assert Vectors(X[:1]).neighbours.shape == (1, 0)


def test_contents_differ_where_a_number_does() -> None:
    same, other, again = digests_of(np.array([[1, 2], [1, 2.0000002], [1, 2]], dtype=np.float32)).tolist()
    assert same == again != other


def test_the_largest_and_smallest_numbers_have_a_direction() -> None:
    x = np.array([[3e38, 0.0], [0.0, -1e20], [1e-30, 0.0]], dtype=np.float32)
    assert np.array_equal(unit_rows(x), np.array([[1, 0], [0, -1], [1, 0]], dtype=np.float32))
