"""A file that is mapped into memory and cut is noticed before it is read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sortal.errors import InputError
from sortal.system.mapping import check_whole, is_whole


def test_a_file_that_is_cut_under_an_array_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "array.npy"
    np.save(file, np.arange(5000))
    mapped = np.load(file, mmap_mode="r")
    part = np.asarray(mapped)[100:200].reshape(10, 10)
    assert all(map(is_whole, (mapped, part, np.arange(3))))
    file.unlink()
    assert is_whole(part)  # the array keeps what it was mapped from
    np.save(file, np.arange(5000))
    mapped = np.load(file, mmap_mode="r")
    os.truncate(file, os.path.getsize(file) - 1)
    assert not is_whole(mapped[100:200])
    with pytest.raises(InputError, match="The array must not be changed while it is being read"):
        check_whole(mapped, "The array")
