"""Output that appears in its place as a whole, and replaces only what a person has agreed to replace.

Making output may take hours, and another program may write to the same place meanwhile. So output is moved in a way
that fails if something is there by then. What may be replaced is recognised by its inode, moved aside, and deleted once
the new output is in place.
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
    """Something that nobody has agreed to replace is in the place of output."""

    def __init__(self, place: Path, more: str = "") -> None:
        super().__init__(errno.EEXIST, f"something else has been written there meanwhile, and stays{more}", str(place))


@contextmanager
def holding(place: Path) -> Iterator[os.stat_result | None]:
    """Yield what is in a place now, None if nothing is. It is kept open, so that nothing else can get its inode."""
    found = descriptor = None
    with suppress(OSError, ValueError):  # no such place, or not readable, which it need not be
        found = os.lstat(place)
        if sys.platform != "win32" and stat.S_IFMT(found.st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield found if descriptor is None else os.fstat(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def publishing(target: Path, agreed: os.stat_result | None = None) -> Iterator[Path]:
    """Yield the path of a file or folder to make; at the end, it is moved to `target`, in an existing folder.

    It replaces what was `agreed`; a folder replaces an empty one, too. Anything else stays, and is an OccupiedError.
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
