"""Files that are replaced together: a kill at any moment leaves all of them or none."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sortal.errors import InputError
from sortal.system import files
from sortal.system.files import COMMIT, NEXT, finish, is_pending, replace_all, write_atomically


def names(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*") if path.is_file()}


def pending(folder: Path, **word: object) -> Path:
    start = folder / NEXT
    start.mkdir(parents=True)
    (start / COMMIT).write_text(json.dumps(word))
    return start


def refuse(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_files_are_written_linked_or_else_copied_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, source = tmp_path / "run", tmp_path / "source"
    source.write_bytes(b"linked")
    replace_all(run, {"a": b"1", "b": b"2"}, [])
    replace_all(run, {"a": b"3", "c": source}, ["b", "never there"])
    assert names(run) == {"a": b"3", "c": b"linked"}
    assert not (run / NEXT).exists()
    assert (run / "c").samefile(source)
    monkeypatch.setattr(os, "link", refuse)
    replace_all(run, {"c": source}, [])
    assert names(run) == {"a": b"3", "c": b"linked"}
    assert not (run / "c").samefile(source)


class Killed(BaseException):
    """Nothing is done after it."""


def changes_of(do: Callable[[], object], fatal: float = float("inf")) -> int:
    """Do something up to a change of files of this number, and return how many changes were made."""
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


@pytest.mark.parametrize("was", [{"a": b"1", "b": b"2", "gone": b"3"}, {}])
def test_a_kill_at_any_moment_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: dict[str, bytes]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    place, source = tmp_path / "place", tmp_path / "source"
    source.write_bytes(b"4")
    becomes, other = {"a": b"5", "b": b"4", "more": b"6"}, {"a": b"7", "last": b"8"}

    def begun(fatal: float = float("inf")) -> int:
        shutil.rmtree(place, ignore_errors=True)
        if was:
            replace_all(place, was, [])
        return changes_of(lambda: replace_all(place, {**becomes, "b": source}, ["gone"]), fatal)

    def replaced_again() -> None:
        replace_all(place, other, ["b", "gone", "more"])

    changes, outcomes = begun(), []
    assert names(place) == becomes
    for first in range(changes):
        begun(first)
        for second in range(1, 4):  # a kill of ending what was broken off
            changes_of(lambda: finish(place), second)
        finish(place)
        assert names(place) in (was, becomes), first
        assert not is_pending(place)
        outcomes.append(names(place) == becomes)
        for second in range(first % 7, changes, 7):
            begun(first)  # what this left may be whole: its word is not that of the next
            changes_of(replaced_again, second)
            finish(place)
            assert names(place) in (was, becomes, other), (first, second)
            replaced_again()
            assert names(place) == other, "nothing of what was broken off gets into the next"
    assert outcomes == sorted(outcomes)  # the old files up to a moment, then the new ones
    assert set(outcomes) == {False, True}


@pytest.mark.parametrize("name", ["b", COMMIT])
def test_a_full_disk_is_reported_and_the_old_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(InputError, match=r"cannot be written: (Not a directory|File exists)"):
        replace_all(tmp_path / "a", {"b": b"1"}, [])
    full = lambda path, content: refuse() if path.name == name else write_atomically(path, content)  # noqa: E731
    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(InputError) as caught:
        replace_all(tmp_path, {"a": b"new", "b": b"new"}, [])
    assert str(caught.value) == (
        f"The folder {str(tmp_path)!r} cannot be written: No space left on device. Choose another, or free some space."
    )
    assert names(tmp_path) == {"a": b"old"}
    assert not (tmp_path / NEXT).exists()


def test_what_has_the_word_is_put_into_place_and_what_has_not_is_left_alone(tmp_path: Path) -> None:
    start = pending(tmp_path, files=["a"], gone=["b"])
    (start / "a").write_bytes(b"new")
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"gone")
    assert is_pending(tmp_path)
    finish(tmp_path)
    assert names(tmp_path) == {"a": b"new"}
    (tmp_path / NEXT).mkdir()
    (tmp_path / NEXT / "a").write_bytes(b"broken off")
    finish(tmp_path)
    assert not is_pending(tmp_path)
    assert (tmp_path / NEXT / "a").exists()  # a process may be at work on it
    replace_all(tmp_path, {"c": b"1"}, [])
    assert names(tmp_path) == {"a": b"new", "c": b"1"}


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a/b", "", ".", "..", 7])
def test_no_name_in_a_foreign_folder_leads_out_of_it(tmp_path: Path, name: object) -> None:
    (tmp_path / "outside").write_bytes(b"mine")
    for kind in ("files", "gone"):
        run = tmp_path / kind
        pending(run, **{"files": [], "gone": [], kind: [name]})
        with pytest.raises(InputError, match="was not written by Sortal"):
            finish(run)
    assert (tmp_path / "outside").read_bytes() == b"mine"


@pytest.mark.parametrize("word", ["[]", "{}", "nonsense", '{"files": 3, "gone": []}'])
def test_a_word_that_is_none_changes_nothing(tmp_path: Path, word: str) -> None:
    start = pending(tmp_path)
    (start / COMMIT).write_text(word)
    (tmp_path / "a").write_bytes(b"old")
    finish(tmp_path)
    assert names(tmp_path) == {"a": b"old"}
    replace_all(tmp_path, {"a": b"new"}, [])
    assert names(tmp_path) == {"a": b"new"}
