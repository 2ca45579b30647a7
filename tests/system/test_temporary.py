"""Temporary files and folders: deleted by their owner, or by a sweep once no process owns them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fork_server import KILLED, ForkServer, die

from sortal.system.files import CACHE, NEXT, lock_folder
from sortal.system.temporary import is_temporary, sweep, sweep_below, temporary_file, temporary_folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def own_and_die(folder: str, kind: str) -> None:
    """In a child: die with a temporary file or folder, or while a folder is replaced."""
    place, real = Path(folder), os.rename

    def rename(source: Path, target: Path) -> None:
        if source.suffix == ".new":
            die()
        real(source, target)

    if kind == "file":
        with temporary_file(place) as file:
            file.write(b"half")
            file.flush()
            die()
    setattr(os, "rename", rename)  # noqa: B010
    with temporary_folder(place, place / "out" if kind == "replaced" else None) as made:
        (made / "new").touch()
        if kind == "folder":
            die()


@pytest.mark.parametrize("kind", ["file", "folder", "replaced"])
def test_what_a_killed_process_left_is_swept_and_a_folder_that_it_was_replacing_is_back(
    fork_server: ForkServer, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    fork_server.run(own_and_die, str(tmp_path), kind, codes=[KILLED])
    left = {path.partition("/")[0] for path in names(tmp_path)} - {"out"}
    assert len(left) == {"file": 1, "folder": 2, "replaced": 3}[kind]
    assert all(map(is_temporary, left))
    assert (tmp_path / "out").exists() == (kind != "replaced")
    sweep(tmp_path)
    assert names(tmp_path) == ["out", "out/old"]


def test_what_a_process_owns_is_not_swept(tmp_path: Path) -> None:
    with temporary_file(tmp_path) as file, temporary_folder(tmp_path) as folder:
        (folder / "a").touch()
        before = names(tmp_path)
        sweep(tmp_path)
        sweep_below(tmp_path)
        assert names(tmp_path) == before
        os.replace(file.name, tmp_path / "moved")
    assert names(tmp_path) == ["moved"]


def test_names_that_only_look_like_temporary_ones_are_left_alone(tmp_path: Path) -> None:
    for name in ("a.tmp", "a.12.tmp", ".sortal-12.tmp", ".sortal-0123456789abcdef.tmp.txt", ".sortal-export.json"):
        (tmp_path / name).touch()
        assert not is_temporary(name)
    (tmp_path / ".sortal-0123456789abcdef.new").mkdir()  # without the file that belongs to it
    os.symlink("a.tmp", tmp_path / ".sortal-0123456789abcdee.tmp")
    os.mkfifo(tmp_path / ".sortal-0123456789abcdec.tmp")
    before = names(tmp_path)
    sweep(tmp_path)
    assert names(tmp_path) == before


def test_a_mark_cannot_name_a_folder_elsewhere(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / ".sortal-0123456789abcdef.old").mkdir(parents=True)
    (place / ".sortal-0123456789abcdef.tmp").write_text("../elsewhere")
    sweep(place)
    assert names(tmp_path) == ["place"]


def test_whoever_locks_a_folder_sweeps_it_and_its_cache_but_not_what_users_put_there(tmp_path: Path) -> None:
    mine = ".sortal-0123456789abcdef.tmp"
    for name in (mine, f"{CACHE}/{mine}", f"{CACHE}/a/b/{mine}", f"{CACHE}/a/x.json.77.tmp", f"{NEXT}/{mine}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    for name in ("x.json.77.tmp", "theirs.tmp"):
        (tmp_path / name).touch()
    with lock_folder(tmp_path):
        pass
    assert names(tmp_path) == [".lock", CACHE, f"{CACHE}/a", f"{CACHE}/a/b", "theirs.tmp", "x.json.77.tmp"]


def test_a_folder_that_cannot_be_put_into_place_or_back_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    real = os.rename

    def refuse(source: Path, target: Path) -> None:
        if target == out:
            raise PermissionError("denied")
        real(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(PermissionError), temporary_folder(tmp_path, out):
        pass
    monkeypatch.undo()
    assert not out.exists()
    sweep(tmp_path)
    assert names(tmp_path) == ["out", "out/old"]
