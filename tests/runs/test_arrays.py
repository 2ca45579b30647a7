"""Arrays of a run: rows in several files are one array, and a header cannot claim more than the file holds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sortal.runs import arrays

X: NDArray[np.float32] = np.arange(12, dtype=np.float32).reshape(4, 3)


def put(path: Path, x: NDArray[np.float32]) -> Path:
    path.write_bytes(b"".join(arrays.npy_parts(x)))
    return path


def test_an_array_is_written_as_numpy_does_and_read_unchanged(tmp_path: Path) -> None:
    path = put(tmp_path / "x.npy", X[:, ::2])  # not contiguous
    np.save(tmp_path / "y.npy", np.ascontiguousarray(X[:, ::2]))
    assert path.read_bytes() == (tmp_path / "y.npy").read_bytes()
    np.testing.assert_array_equal(arrays.read_array(path), X[:, ::2])
    np.testing.assert_array_equal(arrays.read_finite(path), X[:, ::2])


def test_features_are_the_rows_of_all_files_up_to_the_first_that_is_missing(tmp_path: Path) -> None:
    for at in (0, 1, 3):
        put(tmp_path / arrays.segment(at), X[at : at + 1])
    assert arrays.segments(tmp_path) == ["features.npy", "features-2.npy"]
    np.testing.assert_array_equal(arrays.read_features(tmp_path), X[:2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x.npy cannot be read as an array"),
        (b"\x93NUMPY\x01\x00", "x.npy cannot be read as an array"),
        (b"".join(arrays.npy_parts(X)).replace(b"(4, 3)", b"(9, 3)"), "x.npy cannot be read as an array"),
        (b"".join(arrays.npy_parts(X)).replace(b"(4, 3)", b"(4 , )"), "x.npy must be numbers of shape"),
        (b"".join(arrays.npy_parts(X)).replace(b"<f4", b"<i4"), "x.npy must be numbers of shape"),
    ],
)
def test_files_that_are_no_array_of_numbers_are_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        arrays.read_array(tmp_path / "x.npy")


def test_numbers_that_are_not_finite_are_refused_where_they_must_be(tmp_path: Path) -> None:
    path = put(tmp_path / "x.npy", np.array([[1, np.nan]], dtype=np.float32))
    assert np.isnan(arrays.read_array(path)).any()
    with pytest.raises(ValueError, match=r"x\.npy must be finite"):
        arrays.read_finite(path)


def test_a_file_that_claims_more_than_was_written_to_it_is_not_read_into_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "x.npy", 2**30
    header = arrays.npy_parts(np.zeros((1, 2**10), np.float32))[0].replace(b"(1, 1024), }     ", b"(262144, 1024), }")
    path.write_bytes(header)
    os.truncate(path, len(header) + size)
    assert arrays.read_array(path).nbytes == size
    with pytest.raises(ValueError, match="nothing has been written to some of them"):
        arrays.read_finite(path)
