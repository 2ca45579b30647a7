"""Folders that this process has locked: a lock stays with its folder, while a path may come to lead to another one."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from sortal.errors import InputError
from sortal.system.open_folder import open_folder

Identity: TypeAlias = tuple[int, int]  # device and inode of a folder
HELD: dict[str, Identity] = {}  # by absolute path


class ReplacedError(InputError):
    """A folder in use has been moved, or another one was put in its place."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(
            f"The folder {str(folder)!r} must stay in its place while it is in use, but it has been moved away, or "
            "another one was put there. Nothing has been written to that one. Put it back, and try again."
        )


def identity_of(folder: str | Path | int) -> Identity:
    """Return what tells a folder, by path or descriptor, from every other one, whatever their names."""
    found = os.stat(folder)
    return found.st_dev, found.st_ino


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Remember which folder a path leads to, for `check_held` while the enclosed code runs."""
    place = os.path.abspath(folder)
    HELD[place] = identity_of(place)
    try:
        yield
    finally:
        del HELD[place]


def check_held(path: str | Path) -> None:
    """Raise ReplacedError if a path is or lies in a folder that is held, but no longer leads there."""
    place = os.path.abspath(path)
    for folder, identity in [*HELD.items()]:
        if place == folder or place.startswith(os.path.join(folder, "")):
            check_folder(folder, identity)


def check_folder(folder: str | Path, identity: Identity) -> None:
    """Raise ReplacedError unless a path leads to the folder that it led to before."""
    try:
        same = identity_of(folder) == identity
    except OSError:
        same = False
    if not same:
        raise ReplacedError(folder)


def open_held(path: Path, flags: int, folder: Identity | None = None) -> int:
    """Open a file, not a link, and return its descriptor; its folder must be the one that is held, and `folder` if any.

    The folder is opened first and checked then, so that nothing can take its place in between.
    """
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    wanted = {*filter(None, (HELD.get(os.path.abspath(path.parent)), folder))}
    with open_folder(path.parent) as here:
        if wanted - {identity_of(path.parent if here.descriptor is None else here.descriptor)}:
            raise ReplacedError(path.parent)
        opened = os.open(here.at(path.name), flags, 0o666, dir_fd=here.descriptor)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(None, "it is not a file")
    return opened
