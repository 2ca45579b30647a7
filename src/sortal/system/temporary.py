"""Temporary files and folders, each locked by the process that owns it, and the sweep of those that no process owns.

A process that is killed leaves its temporaries behind, but the system releases its locks. So what can be locked has no
owner: whichever process, container or host it was made by, as far as their file system shares locks.
"""

import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sortal.system.open_folder import OpenFolder, open_folder, open_within
from sortal.system.own_files import DEEPEST

NAME = re.compile(r"\.sortal-[0-9a-f]{16}\.tmp")
NEW, OLD = ".new", ".old"  # the folders that belong to a temporary file, by their suffix


@contextmanager
def temporary_file(folder: Path) -> Iterator[BinaryIO]:
    """Create and lock a file to be renamed; it is deleted if the enclosed code fails."""
    file = _create(folder)
    try:
        with file:
            yield file
    except BaseException:
        if not os.path.lexists(Path(file.name).with_suffix(OLD)):
            Path(file.name).unlink(missing_ok=True)
        raise


def move_file(file: BinaryIO, target: Path) -> None:
    """Rename a temporary file, as the last use of it."""
    if sys.platform == "win32":  # which does not rename open files
        file.close()
    os.replace(Path(file.name), target)


@contextmanager
def temporary_folder(parent: Path, target: str = "") -> Iterator[Path]:
    """Create a folder that may be renamed; what is left of it at the end is deleted.

    What is moved aside to make room for a `target` in `parent`, to `aside(folder)`, is brought back by a sweep if the
    process is killed before something else is there.
    """
    with temporary_file(parent) as mark:
        new = Path(mark.name).with_suffix(NEW)
        try:
            mark.write(os.fsencode(target))
            mark.flush()
            new.mkdir()
            yield new
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if sys.platform == "win32":
                mark.close()
            if not os.path.lexists(aside(new)):  # else the next sweep brings it back, or deletes it
                Path(mark.name).unlink(missing_ok=True)


def aside(folder: Path) -> Path:
    """Return where to put what stands in the place of a temporary folder."""
    return folder.with_suffix(OLD)


def is_temporary(name: str) -> bool:
    """Tell whether a file or folder has the name of a temporary one."""
    stem, suffix = os.path.splitext(name)
    return suffix in (".tmp", NEW, OLD) and NAME.fullmatch(f"{stem}.tmp") is not None


def sweep(folder: Path) -> None:
    """Delete the temporary files and folders in a folder that no process owns."""
    with suppress(OSError), open_folder(folder) as here:
        _sweep(here)


def sweep_below(folder: Path) -> None:
    """Sweep a folder of Sortal's own and all folders below it, unless it is a link."""
    with suppress(OSError), open_folder(folder.parent) as outer, open_within(outer, folder.name) as here:
        _sweep_tree(here)


def _sweep_tree(here: OpenFolder, depth: int = 0) -> None:
    _sweep(here)
    for name in here.names() if depth < DEEPEST else ():
        with suppress(OSError):
            if here.kind(name) == stat.S_IFDIR:
                with open_within(here, name) as inner:
                    _sweep_tree(inner, depth + 1)


def _sweep(here: OpenFolder) -> None:
    for name in filter(NAME.fullmatch, here.names()):
        with suppress(OSError, RecursionError):  # the latter from folders that nobody makes so deep but to do harm
            _sweep_one(here, name)


def _sweep_one(here: OpenFolder, name: str) -> None:
    """Delete a temporary file without an owner, and its folders."""
    if here.kind(name) != stat.S_IFREG:
        return
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(here.at(name), flags, dir_fd=here.descriptor), "rb+") as mark:
        if not stat.S_ISREG(os.fstat(mark.fileno()).st_mode) or not _lock(mark):
            return
        _sweep_replaced(here, Path(name), os.fsdecode(mark.read(1024)))
        if sys.platform == "win32":
            mark.close()
        here.remove(name)


def _sweep_replaced(here: OpenFolder, mark: Path, target: str) -> None:
    """Delete what belongs to a temporary file; undo a replacement that a kill broke off. Leave links alone."""
    new, old = mark.with_suffix(NEW).name, mark.with_suffix(OLD).name
    ours = (stat.S_IFDIR, stat.S_IFREG)
    is_name = target == os.path.basename(target) and target and "\0" not in target
    if is_name and here.kind(old) in ours and not here.kind(target):
        here.move(old, target)
    for each in (new, old):
        if here.kind(each) in ours:
            here.remove(each)


def _create(folder: Path) -> BinaryIO:
    while True:
        path = folder / f".sortal-{secrets.token_hex(8)}.tmp"
        file = path.open("xb")
        if _lock(file, otherwise=True) and path.exists():
            return file
        file.close()  # a sweep came in between


def _lock(file: BinaryIO, *, otherwise: bool = False) -> bool:
    """Lock a file until it is closed; return whether it worked, or `otherwise` where the file system has no locks."""
    if sys.platform == "win32":  # which does not delete open files
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return otherwise
    return True
