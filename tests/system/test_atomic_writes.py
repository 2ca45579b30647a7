"""write_atomically: a file has its content before its name, and a crash leaves the old one."""

import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from sortal.system.files import write_atomically


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """List syncs and renames in order, with the size of the file by then."""
    calls: list[tuple[str, str]] = []
    rename = os.replace

    def fsync(number: int) -> None:
        found = os.fstat(number)
        calls.append(("sync", "folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes"))

    def replace(old: Path, new: Path) -> None:
        calls.append(("rename", new.name))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return calls


@pytest.mark.parametrize("opens_folders", [True, False])
def test_a_file_has_its_content_before_its_name_and_the_folder_knows_it_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str, str]], opens_folders: bool
) -> None:
    opened = Mock(wraps=os.open) if opens_folders else Mock(side_effect=PermissionError)
    closed = Mock(wraps=os.close)
    (tmp_path / "mark").write_bytes(b"older")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        patch.setattr(os, "close", closed)
        write_atomically(tmp_path / "mark", b"new")
    assert calls == [("sync", "3 bytes"), ("rename", "mark"), ("sync", "folder")][: 3 if opens_folders else 2]
    assert closed.call_count == opens_folders
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mark": b"new"}


def test_a_write_that_is_cut_short_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mark").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            write_atomically(tmp_path / "mark", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mark": b"old"}
