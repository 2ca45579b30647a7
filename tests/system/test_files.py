"""Atomic writes of one file, and of several that are replaced together: a kill leaves all of them or none."""

import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sortal.errors import InputError, NoSpaceError
from sortal.system import files
from sortal.system.files import COMMIT_FILE, finish, is_pending, replace_all, write_atomically
from sortal.system.open_folder import NEXT


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*") if path.is_file()}


def pending(folder: Path, **commit: object) -> Path:
    start = folder / NEXT
    start.mkdir(parents=True)
    (start / COMMIT_FILE).write_text(json.dumps(commit))
    return start


def refuse(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_file_is_synced_before_it_is_renamed_and_its_folder_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    rename = os.replace

    def fsync(number: int) -> None:
        found = os.fstat(number)
        calls.append(("sync", "folder" if stat.S_ISDIR(found.st_mode) else f"{found.st_size} bytes"))

    def replace(old: str, new: str, **folders: int) -> None:
        calls.append(("rename", new))
        rename(old, new, **folders)

    (tmp_path / "a").write_bytes(b"older")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "replace", replace)
        write_atomically(tmp_path / "a", b"new")
    assert calls == [("sync", "3 bytes"), ("rename", "a"), ("sync", "folder")]
    assert contents(tmp_path) == {"a": b"new"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(NoSpaceError) as caught:
        write_atomically(tmp_path / "a", b"new")
    assert str(caught.value) == (
        f"Cannot write {str(tmp_path / 'a')!r} (3 bytes): no space left on device. Free some space, then run the same "
        "command to resume; or choose another folder."
    )
    assert contents(tmp_path) == {"a": b"old"}


def test_files_are_written_linked_or_else_copied_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, source = tmp_path / "run", tmp_path / "source"
    source.write_bytes(b"linked")
    replace_all(run, {"a": b"1", "b": b"2"}, [])
    replace_all(run, {"a": b"3", "c": source}, ["b", "never there"])
    assert contents(run) == {"a": b"3", "c": b"linked"}
    assert not (run / NEXT).exists()
    assert (run / "c").samefile(source)
    monkeypatch.setattr(os, "link", refuse)
    replace_all(run, {"c": source}, [])
    assert contents(run) == {"a": b"3", "c": b"linked"}
    assert not (run / "c").samefile(source)


class Killed(BaseException):
    """Stands for a SIGKILL."""


def changes_of(do: Callable[[], object], fatal: float = float("inf")) -> int:
    """Run something until the file change number `fatal`, and count the changes."""
    count = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*values: Any, **named: Any) -> object:
            nonlocal count
            if count >= fatal:
                raise Killed
            count += 1
            return real(*values, **named)

        return call

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        for name in ("replace", "link", "unlink", "rmdir", "mkdir", "fsync"):
            patch.setattr(os, name, counted(getattr(os, name)))
        do()
    return count


@pytest.mark.parametrize("before", [{"a": b"1", "b": b"2", "gone": b"3"}, {}])
def test_a_kill_at_any_moment_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, bytes]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    place, source = tmp_path / "place", tmp_path / "source"
    source.write_bytes(b"4")
    after, other = {"a": b"5", "b": b"4", "more": b"6"}, {"a": b"7", "last": b"8"}

    def killed_at(fatal: float = float("inf")) -> int:
        shutil.rmtree(place, ignore_errors=True)
        if before:
            replace_all(place, before, [])
        return changes_of(lambda: replace_all(place, {**after, "b": source}, ["gone"]), fatal)

    def replaced_again() -> None:
        replace_all(place, other, ["b", "gone", "more"])

    changes, outcomes = killed_at(), []
    assert contents(place) == after
    for first in range(changes):
        killed_at(first)
        for second in range(1, 4):  # killed while finishing
            changes_of(lambda: finish(place), second)
        finish(place)
        assert contents(place) in (before, after), first
        assert not is_pending(place)
        outcomes.append(contents(place) == after)
        for second in range(first % 7, changes, 7):
            killed_at(first)  # which may leave a commit that is not that of the next
            changes_of(replaced_again, second)
            finish(place)
            assert contents(place) in (before, after, other), (first, second)
            replaced_again()
            assert contents(place) == other, "nothing of the killed call remains"
    assert outcomes == sorted(outcomes)  # the old files up to some change, then the new ones
    assert set(outcomes) == {False, True}


@pytest.mark.parametrize("name", ["b", COMMIT_FILE])
def test_a_full_disk_is_reported_and_the_old_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(InputError, match=r"cannot be written: (Not a directory|File exists)"):
        replace_all(tmp_path / "a", {"b": b"1"}, [])
    full = lambda path, content: refuse() if path.name == name else write_atomically(path, content)  # noqa: E731
    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(NoSpaceError, match=re.escape(f"Cannot write {str(tmp_path)!r}: no space left on device. ")):
        replace_all(tmp_path, {"a": b"new", "b": b"new"}, [])
    assert contents(tmp_path) == {"a": b"old"}
    assert not (tmp_path / NEXT).exists()


def test_committed_files_are_put_into_place_and_uncommitted_ones_left_alone(tmp_path: Path) -> None:
    start = pending(tmp_path, files=["a"], gone=["b"])
    (start / "a").write_bytes(b"new")
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"gone")
    assert is_pending(tmp_path)
    finish(tmp_path)
    assert contents(tmp_path) == {"a": b"new"}
    (tmp_path / NEXT).mkdir()
    (tmp_path / NEXT / "a").write_bytes(b"uncommitted")
    finish(tmp_path)
    assert not is_pending(tmp_path)
    assert (tmp_path / NEXT / "a").exists()  # another process may be writing it
    replace_all(tmp_path, {"c": b"1"}, [])
    assert contents(tmp_path) == {"a": b"new", "c": b"1"}


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a/b", "", ".", "..", 7, "a\0b", "\ud800"])
def test_a_commit_cannot_name_files_outside_its_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    for kind in ("files", "gone"):
        run = tmp_path / kind
        pending(run, **{"files": [], "gone": [], kind: [name]})
        with pytest.raises(InputError, match="was not written by Sortal"):
            finish(run)
    assert (tmp_path / "outside").read_bytes() == b"mine"


@pytest.mark.parametrize("commit", ["[]", "{}", "nonsense", '{"files": 3, "gone": []}'])
def test_an_invalid_commit_changes_nothing(tmp_path: Path, commit: str) -> None:
    start = pending(tmp_path)
    (start / COMMIT_FILE).write_text(commit)
    (tmp_path / "a").write_bytes(b"old")
    finish(tmp_path)
    assert contents(tmp_path) == {"a": b"old"}
    replace_all(tmp_path, {"a": b"new"}, [])
    assert contents(tmp_path) == {"a": b"new"}
