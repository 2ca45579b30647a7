"""Large arrays in files without a name."""

from pathlib import Path

import numpy as np
import pytest

from sortal.system import scratch as module
from sortal.system.scratch import scratch


def test_a_large_array_is_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 1000)
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
    monkeypatch.setattr(module, "LARGE", 1000)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    assert scratch((1000, 3), tmp_path).shape == (1000, 3)
    (tmp_path / "file").touch()
    assert scratch((1000, 3), tmp_path / "file").shape == (1000, 3)
