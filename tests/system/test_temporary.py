"""Temporary files and folders: deleted by their owner, or by a sweep once no process owns them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import KILLED, ForkServer, die

from sortal.errors import InputError
from sortal.system.files import lock_folder
from sortal.system.open_folder import CACHE, NEXT, make_folder, open_folder
from sortal.system.temporary import is_temporary, sweep, sweep_below, temporary_file, temporary_folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def own_and_die(folder: str, kind: str) -> None:
    """In a child: die with a temporary file or folder."""
    if kind == "file":
        with open_folder(Path(folder)) as here, temporary_file(here) as (_, file):
            file.write(b"half")
            file.flush()
            die()
    with temporary_folder(Path(folder)) as made:
        (made / "new").touch()
        die()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_swept(fork_server: ForkServer, tmp_path: Path, kind: str) -> None:
    fork_server.run(own_and_die, str(tmp_path), kind, codes=[KILLED])
    left = {path.partition("/")[0] for path in names(tmp_path)}
    assert len(left) == {"file": 1, "folder": 2}[kind]
    assert all(map(is_temporary, left))
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_what_a_process_owns_is_not_swept(tmp_path: Path) -> None:
    with open_folder(tmp_path) as here, temporary_file(here) as (name, _), temporary_folder(tmp_path) as folder:
        (folder / "a").touch()
        before = names(tmp_path)
        sweep(tmp_path)
        sweep_below(tmp_path)
        assert names(tmp_path) == before
        here.replace(name, "moved")
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


def nested(folder: Path, depth: int) -> None:
    """Make folders within one another, which together have a path that is too long to be used."""
    folder.mkdir(parents=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def test_a_mark_that_names_nothing_or_stands_for_too_much_stops_nobody(tmp_path: Path) -> None:
    plant_leftovers(tmp_path / "name", "a\0b").mkdir()
    deep = plant_leftovers(tmp_path / "deep", "").with_suffix(".new")
    nested(deep, sys.getrecursionlimit())
    nested(tmp_path / "next" / NEXT, sys.getrecursionlimit())
    try:
        for run in (tmp_path / "name", tmp_path / "deep"):
            with lock_folder(run):
                pass
        assert names(tmp_path / "name") == [".lock"]
        with pytest.raises(InputError, match="too many folders within folders"), lock_folder(tmp_path / "next"):
            pass
    finally:
        subprocess.run(["rm", "-rf", deep, tmp_path / "next"], check=True)  # which shutil.rmtree cannot


def test_whoever_locks_a_folder_sweeps_it_and_its_cache_but_not_what_users_put_there(tmp_path: Path) -> None:
    mine = ".sortal-0123456789abcdef.tmp"
    for name in (mine, f"{CACHE}/{mine}", f"{CACHE}/a/b/{mine}", f"{NEXT}/{mine}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    theirs = ("x.json.77.tmp", "theirs.tmp", f"{CACHE}/a/x.json.77.tmp")
    for name in theirs:
        (tmp_path / name).touch()
    with lock_folder(tmp_path):
        pass
    assert names(tmp_path) == sorted([".lock", CACHE, f"{CACHE}/a", f"{CACHE}/a/b", *theirs])


MARK = ".sortal-0123456789abcdef.tmp"


def plant_leftovers(folder: Path, target: str) -> Path:
    """Plant the mark of a replacement that was broken off, and return the place of what was replaced."""
    folder.mkdir(exist_ok=True)
    (folder / MARK).write_text(target)
    return (folder / MARK).with_suffix(".old")


@pytest.mark.parametrize("suffix", [".old", ".new"])
@pytest.mark.parametrize("target", [CACHE, "other", NEXT])
def test_a_link_in_the_place_of_a_temporary_folder_leads_nowhere(tmp_path: Path, target: str, suffix: str) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    for name in ("thesis.txt.1.tmp", ".sortal-fedcba9876543210.tmp", "a/notes.2.tmp"):
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).touch()
    before = names(victim)
    os.symlink(victim, plant_leftovers(run, target).with_suffix(suffix))
    with lock_folder(run):
        assert names(victim) == before
        assert not os.path.lexists(run / target)
    assert not (run / MARK).exists(), "a mark without an owner is swept"


def test_a_cache_that_is_a_link_is_not_swept(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.mkdir()
    run.mkdir()
    (victim / MARK).touch()
    os.symlink(victim, run / CACHE)
    with pytest.raises(InputError, match=r"cache' is a link to "):
        sweep_below(run / CACHE)
    with pytest.raises(InputError, match=r"cache' is a link to "), lock_folder(run):
        pytest.fail("it was locked")
    assert names(victim) == [MARK]


def test_links_in_what_a_sweep_brings_back_are_not_followed(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.mkdir()
    (victim / MARK).touch()
    old = plant_leftovers(run, CACHE)
    old.mkdir()
    os.symlink(victim, old / "pixels")
    with lock_folder(run):
        assert (run / CACHE / "pixels").is_symlink()
        with pytest.raises(InputError, match=r"pixels' is a link to "):
            make_folder(run / CACHE / "pixels" / "more")
    assert names(victim) == [MARK]


def test_a_mark_that_is_replaced_while_it_is_swept_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was opened counts, not what the name led to before."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / MARK).touch()
    real = os.open

    def swapped(path: str, *values: Any, **named: Any) -> int:
        if os.path.basename(path) == MARK:
            (tmp_path / MARK).unlink()
            os.symlink("victim", tmp_path / MARK)
        return real(path, *values, **named)

    monkeypatch.setattr(os, "open", swapped)
    sweep(tmp_path)
    monkeypatch.undo()
    assert names(tmp_path) == [MARK, "victim"]
