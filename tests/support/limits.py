"""Limits for a child in which a command runs, and what must hold of a command that ran within them."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from unittest.mock import patch

from support.damage import Scene
from support.world import Done, World

ROOM = 3 * 2**30  # bytes of address space that a command may take beyond what it starts with
MEMORY = 2**30  # bytes of memory that a command may take beyond that of one that reads a run and does nothing else
SECONDS = 60  # after which a command counts as hanging


# In a child


def end_reviews() -> None:
    """Let a review end as soon as it would listen."""
    patch("sortal.web.app.server.Server.run", lambda *_, **__: None).start()


def limit_memory(extra: int = ROOM) -> None:
    """Limit the address space to a little more than there is."""
    now = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, now + extra))


def limit_all() -> None:
    """Limit the address space, end a command that hangs, and a review as soon as it would listen."""
    limit_memory()
    signal.alarm(SECONDS)
    end_reviews()


def limit_file_size(size: int) -> None:
    """Let no file grow beyond a size, as on a full disk; this holds for the processes that the child starts, too."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def limit_open_files(count: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def leave_current_folder() -> None:
    """Remove the folder that the child is in."""
    os.makedirs("gone")
    os.chdir("gone")
    os.rmdir("../gone")


# Afterwards


def check_within_limits(world: World, here: Scene, done: Done, names: Sequence[str], what: str) -> None:
    """Fail unless a command that read something damaged did its work, or refused it by naming a file, within limits."""
    shown = f"{what}: {done}"
    assert done.code in (0, 2, 3), shown
    assert "Traceback" not in done.err, shown
    assert done.code != 2 or any(name in done.err for name in names), f"{shown}\nThe message does not name {names}."
    assert not here.marker.exists(), f"{shown}\nCode was executed."
    check_peak(world, done, what)


def check_peak(world: World, done: Done, what: str) -> None:
    """Fail if a command took much more memory than one that reads an undamaged run, and does nothing else."""
    assert done.peak <= usual_peak(world) + MEMORY, f"{what} took {done.peak / 2**20:,.0f} MiB of memory."


@cache
def usual_peak(world: World) -> int:
    return world.sortal("decisions", world.run, before=limit_all).check(0).peak
