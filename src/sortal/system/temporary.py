"""Temporary files and folders, each locked by the process that owns it, and the sweep of those that no process owns.

A process that is killed leaves its temporaries behind, but the system releases its locks. So a temporary that can be
locked has no owner, whichever process, container or host made it, as far as their file system shares locks.
"""

import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sortal.errors import InputError
from sortal.system.open_folder import OpenFolder, open_folder

TEMPORARY_NAME = re.compile(r"\.sortal-[0-9a-f]{16}\.tmp")  # names of temporary files
NEW_SUFFIX, OLD_SUFFIX = ".new", ".old"  # the folders that belong to a temporary file, by their suffix
DEEPEST_SWEPT = 16  # folders within one another; Sortal makes far fewer


@contextmanager
def temporary_file(here: OpenFolder) -> Iterator[tuple[str, BinaryIO]]:
    """Create and lock a file to be renamed; yield its name and the file. It is deleted if the enclosed code fails."""
    name, file = _create(here)
    try:
        with file:
            yield name, file
    except BaseException:
        with suppress(OSError):  # two signals may have closed its folder before: the next sweep deletes it
            if not here.kind(_suffixed(name, OLD_SUFFIX)):
                here.remove(name)
        raise


@contextmanager
def temporary_folder(parent: Path, target: str = "") -> Iterator[Path]:
    """Create a folder that may be renamed; what is left of it at the end is deleted.

    Whoever replaces a `target` in `parent` moves the old one to `aside(folder)` first. If the process is killed before
    the new one is in place, a sweep brings the old one back.
    """
    with open_folder(parent) as here, temporary_file(here) as (mark, file):
        new = _suffixed(mark, NEW_SUFFIX)
        try:
            file.write(os.fsencode(target))
            file.flush()
            os.mkdir(here.at(new), dir_fd=here.descriptor)
            yield parent / new
        finally:
            with suppress(OSError):
                here.remove(new)
            if sys.platform == "win32":  # which does not delete open files
                file.close()
            with suppress(OSError):
                if not here.kind(_suffixed(mark, OLD_SUFFIX)):  # else the next sweep brings it back, or deletes it
                    here.remove(mark)


def aside(folder: Path) -> Path:
    """Return where to put what a temporary folder will replace."""
    return folder.with_suffix(OLD_SUFFIX)


def is_temporary(name: str) -> bool:
    """Tell whether a file or folder has the name of a temporary one."""
    stem, suffix = os.path.splitext(name)
    return suffix in (".tmp", NEW_SUFFIX, OLD_SUFFIX) and TEMPORARY_NAME.fullmatch(f"{stem}.tmp") is not None


def sweep(folder: Path) -> None:
    """Delete the temporary files and folders in a folder that no process owns."""
    with suppress(OSError), open_folder(folder) as here:
        _sweep(here)


def sweep_below(folder: Path) -> None:
    """Sweep a folder of Sortal's own and all folders below it; raise InputError if it is a link."""
    with suppress(OSError), open_folder(folder.parent) as outer, closing(outer.inner(folder.name)) as here:
        _sweep_tree(here, DEEPEST_SWEPT)


def _sweep_tree(here: OpenFolder, depth: int) -> None:
    _sweep(here)
    for name in here.names() if depth else ():
        with suppress(OSError, InputError):  # the latter for what is not a folder
            if here.kind(name) == stat.S_IFDIR:
                with closing(here.inner(name)) as inner:
                    _sweep_tree(inner, depth - 1)


def _sweep(here: OpenFolder) -> None:
    for mark in filter(TEMPORARY_NAME.fullmatch, here.names()):
        with suppress(OSError, InputError):
            if here.kind(mark) == stat.S_IFREG:
                _sweep_one(here, mark)


def _sweep_one(here: OpenFolder, mark: str) -> None:
    """Delete a temporary file without an owner, and its folders; undo a replacement that a kill broke off."""
    with os.fdopen(here.open(mark, os.O_RDWR), "rb+") as file:
        if not _lock(file):
            return
        target = os.fsdecode(file.read(1024))
        new, old, ours = _suffixed(mark, NEW_SUFFIX), _suffixed(mark, OLD_SUFFIX), (stat.S_IFDIR, stat.S_IFREG)
        is_name = target == os.path.basename(target) and target and "\0" not in target
        if is_name and here.kind(old) in ours and not here.kind(target):
            here.move(old, target)
        for each in (new, old):
            if here.kind(each) in ours:  # links stay
                here.remove(each)
        if sys.platform == "win32":
            file.close()
        here.remove(mark)


def _create(here: OpenFolder) -> tuple[str, BinaryIO]:
    while True:
        name = f".sortal-{secrets.token_hex(8)}.tmp"
        file = os.fdopen(here.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        if _lock(file, otherwise=True) and here.kind(name):
            return name, file
        file.close()  # a sweep came in between


def _suffixed(mark: str, suffix: str) -> str:
    return mark.removesuffix(".tmp") + suffix


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
