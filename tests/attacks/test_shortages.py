"""A lack of folders, open files, space and memory, and folders that cannot be written to."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import limits, tiny_folder
from support.commands import on_run
from support.operations import EVENTS, watch
from support.world import ON_CPU, OPTIONS, Trial, Words

from sortal.reviews.loading import load_run

pytestmark = pytest.mark.thorough

# How a process falls short, and by how much
SHORTAGES: tuple[tuple[Callable[..., None], tuple[int, ...]], ...] = (
    (limits.leave_current_folder, ()),
    (limits.limit_open_files, (12, 16, 20, 32, 64)),
    (limits.limit_file_size, (0, 100, 5000, 10**5)),
    (limits.limit_memory, (0, 2**20, 2**24, 2**26)),
)


def commands(trial: Trial, run: Path) -> dict[str, Words]:
    """Return commands that leave the tables of a run as they are, and one that sorts again."""
    lines = on_run(trial.world, run, trial.folder / "out", images=trial.world.images)
    del lines["review"]
    return {**lines, "discover": ("discover", trial.world.images, "--out", run, *OPTIONS, "--seed", "1")}


@pytest.mark.attack
def test_shortages(trial: Trial) -> None:
    """Run a command short of something: whatever becomes of it, the run is whole and can be used."""
    limit, values = trial.case(SHORTAGES)
    run, out = trial.world.copy_run(trial.folder / "run"), trial.folder / "out"
    every = commands(trial, run)
    name = [*every][trial.number // len(SHORTAGES) % len(every)]
    given = [trial.random.choice(values)] if values else []
    out.mkdir()
    done = trial.world.sortal(*every[name], cwd=trial.folder, before=limit, given=given)
    aborted = done.code < 0 or "bad alloc" in done.err.lower()  # by a library that lacks memory
    if limit is not limits.limit_memory or not aborted:
        done.check(0, 1, 2)
    load_run(run)
    shutil.rmtree(out)  # else it is not replaced
    out.mkdir()
    trial.world.sortal(*every[name], cwd=trial.folder).check(0)
    expected = trial.world.run
    if name == "discover":
        expected = trial.folder / "fresh"
        trial.world.sortal(*commands(trial, expected)[name]).check(0)
    assert tiny_folder.tables(run) == tiny_folder.tables(expected)


# Folders that cannot be written to


def deny(folder: str, code: int) -> None:
    """In a child: let nothing below a folder be written, by a mount where that is allowed, else by an audit hook."""
    if code == errno.EROFS and _mount_read_only(folder):
        return

    access = os.access

    def is_below(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return os.path.commonpath([folder, os.path.abspath(os.fsdecode(path))]) == folder

    def audit(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and not (values[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        for path in values[: PATHS[event]] if event in PATHS else ():
            if is_below(path) and not (event == "os.mkdir" and os.path.exists(path)):
                raise OSError(code, os.strerror(code), os.fsdecode(path))

    def may(path: Any, mode: int, **named: Any) -> bool:
        return not (mode & os.W_OK and is_below(path)) and access(path, mode, **named)

    os.access = may
    watch(audit)


PATHS = {"open": 1, **EVENTS, "os.utime": 1, "os.chmod": 1}
NEW_MOUNTS, READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 0x20000, 0x1, 0x20, 0x1000, 0x4000, 0x40000


def _mount_read_only(folder: str) -> bool:
    """Mount a folder on itself, read-only, for this process alone; tell whether the system allows it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    system, place = ctypes.CDLL(None, use_errno=True), os.fsencode(folder)
    return bool(
        system.unshare(NEW_MOUNTS) == 0
        and system.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None) == 0
        and system.mount(place, place, None, BIND, None) == 0
        and system.mount(place, place, None, BIND | REMOUNT | READ_ONLY, None) == 0
    )


def deny_and_end(folder: str, code: int) -> None:
    """In a child: deny, and let a review end as soon as it has begun."""
    limits.end_reviews()
    deny(folder, code)


@pytest.mark.attack(most=52)
def test_read_only_folders(trial: Trial) -> None:
    """A run or a cache that cannot be written to: commands that only read do their work, others say why they cannot."""
    run, more = trial.world.copy_run(trial.folder / "run"), trial.folder / "more"
    denied = (run, run / "cache")[trial.number % 2]
    code = (errno.EROFS, errno.EACCES)[trial.number // 2 % 2]
    tiny_folder.write(more, {f"{at}.png": f"oak {at}" for at in range(3)})
    reading: tuple[Words, ...] = (
        ("export", run, "--format", "csv", "--out", trial.folder / "table.csv"),
        ("decisions", run),
        ("figures", run, "--out", trial.folder / "figures", "--which", "tsne,k-curve", *ON_CPU),
        ("predict", run, more, "--dry-run", *ON_CPU),
        ("export", run, "--format", "folders", "--out", trial.folder / "sorted"),
    )
    writing = (
        ("predict", run, more, *ON_CPU),
        ("review", run, "--no-browser", "--workers", "1"),
        ("report", run, *ON_CPU),
        ("predict", run, more, "--update", *ON_CPU),
        ("figures", run, *ON_CPU),
        ("import", run, run / "assignments.csv"),
        ("discover", trial.world.images, "--out", run, *OPTIONS),
        ("discover", trial.world.images, "--out", run, *OPTIONS, "--seed", "3"),
    )
    every = reading + writing
    words = every[trial.number // 4 % len(every)]
    before = tiny_folder.contents(run, but=() if denied == run else (".lock",))
    done = trial.world.sortal(*words, before=deny_and_end, given=[str(denied), code])
    done.check(0, *(() if words in reading else (2,)))
    if done.code == 2:
        assert "sortal: error: " in done.err, done
        assert os.strerror(code) in done.err, done
    after = tiny_folder.contents(run, but=() if denied == run else (".lock",))
    held = [name for name in {**before, **after} if denied == run or name.startswith("cache/")]
    assert {name: before.get(name) for name in held} == {name: after.get(name) for name in held}, "nothing is written"
    load_run(run)
