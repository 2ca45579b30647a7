"""Output that appears at its place as a whole, and replaces nothing but what a person has agreed to replace.

Making output may take hours, in which another program may write to the same place. So nothing is decided by whether
something was there before: output is moved in a way that fails if something is there now, and what may be replaced is
recognised by its inode, moved aside, and deleted when the new is in place.
"""

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sortal.system.files import sync_folder
from sortal.system.open_folder import OpenFolder, open_folder
from sortal.system.temporary import aside, temporary_folder


class OccupiedError(FileExistsError):
    """Something is at a place that nobody has agreed to replace."""

    def __init__(self, place: Path, more: str = "") -> None:
        super().__init__(errno.EEXIST, f"something else has been written there meanwhile, and stays{more}", str(place))


@contextmanager
def holding(place: Path) -> Iterator[os.stat_result | None]:
    """Yield what is at a place now, None if nothing is; as long as it is held, nothing else can have its inode."""
    found = _state(place)
    descriptor = None if found is None else _opened(place, found)
    try:
        yield found if descriptor is None else os.fstat(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _state(place: Path) -> os.stat_result | None:
    with suppress(OSError, ValueError):  # no such place
        return os.lstat(place)
    return None


def _opened(place: Path, found: os.stat_result) -> int | None:
    if sys.platform == "win32" or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return None
    with suppress(OSError):  # not readable, which it need not be
        return os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return None


@contextmanager
def publishing(target: Path, agreed: os.stat_result | None = None) -> Iterator[Path]:
    """Yield the path of a file or folder to make; at the end, it is moved to `target`, in an existing folder.

    What is there must be an empty folder, for another one, or what was `agreed` to be replaced; else raise
    OccupiedError, and leave it as it is.
    """
    with open_folder(target.parent) as here, temporary_folder(target.parent, target.name) as place:
        yield place / target.name
        old, name = aside(place).name, target.name
        if agreed is not None:
            _move_aside(here, name, old, agreed)
        try:
            here.move(f"{place.name}/{name}", name)
        except FileExistsError:
            _put_back(here, old, name)
            raise OccupiedError(target) from None
        except BaseException:
            _put_back(here, old, name)
            raise
        with suppress(OSError):  # the next sweep deletes it
            here.remove(old)
    sync_folder(target.parent)


def _move_aside(here: OpenFolder, name: str, old: str, agreed: os.stat_result) -> None:
    if not here.kind(name):  # deleted meanwhile
        return
    here.rename(name, old)
    found = here.state(old)
    if found is not None and not os.path.samestat(found, agreed):
        _put_back(here, old, name)
        raise OccupiedError(here.path / name)


def _put_back(here: OpenFolder, old: str, name: str) -> None:
    """Undo moving something aside; if its place has been taken, keep it under another name."""
    if not here.kind(old):
        return
    try:
        here.move(old, name)
    except FileExistsError:
        kept = f"{name}.before-{secrets.token_hex(4)}"
        here.rename(old, kept)
        raise OccupiedError(here.path / name, f"; what was there before is now {str(here.path / kept)!r}") from None
