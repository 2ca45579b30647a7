"""Arrays that are mapped from files: large ones are in files without a name, and a file that is cut is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sortal.errors import InputError
from sortal.system import mapped_arrays
from sortal.system.mapped_arrays import check_whole, is_whole, scratch


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


def test_a_large_array_is_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_arrays, "LARGE_ARRAY", 1000)
    for rows, folder, mapped in ((1000, tmp_path / "new", True), (10, tmp_path, False), (1000, None, False)):
        x = scratch((rows, 3), folder)
        assert x.shape == (rows, 3)
        assert x.dtype == np.float32
        assert not x.any()
        x += 1
        assert x.sum() == 3 * rows
        assert isinstance(x.base, np.memmap) == mapped
    assert [*(tmp_path / "new").iterdir()] == []


def test_without_room_on_the_disk_it_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_arrays, "LARGE_ARRAY", 1000)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    assert scratch((1000, 3), tmp_path).shape == (1000, 3)
    (tmp_path / "file").touch()
    assert scratch((1000, 3), tmp_path / "file").shape == (1000, 3)
