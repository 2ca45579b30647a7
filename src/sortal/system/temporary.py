"""Temporary files and folders, each locked by the process that owns it, and the sweep of those that no process owns.

A process that is killed leaves its temporaries behind, but the system releases its locks. So what can be locked has no
owner: whichever process, container or host it was made by, as far as their file system shares locks.
"""

import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

NAME = re.compile(r"\.sortal-[0-9a-f]{16}\.tmp")
FORMER = re.compile(r".+\.[0-9]+\.tmp")  # as version 0.1 named temporary files
NEW, OLD = ".new", ".old"  # the folders that belong to a temporary file, by their suffix


@contextmanager
def temporary_file(folder: Path) -> Iterator[BinaryIO]:
    """Create and lock a file to be renamed; it is deleted if the enclosed code fails."""
    file = _create(folder)
    try:
        with file:
            yield file
    except BaseException:
        if not Path(file.name).with_suffix(OLD).exists():
            Path(file.name).unlink(missing_ok=True)
        raise


def move_file(file: BinaryIO, target: Path) -> None:
    """Rename a temporary file, as the last use of it."""
    if sys.platform == "win32":  # which does not rename open files
        file.close()
    os.replace(Path(file.name), target)


@contextmanager
def temporary_folder(parent: Path, target: Path | None = None) -> Iterator[Path]:
    """Create a folder that may be renamed; what is left of it at the end is deleted.

    With a `target` beside it, the folder replaces that at the end: a sweep undoes a replacement that was broken off.
    """
    with temporary_file(parent) as mark:
        new, old = (Path(mark.name).with_suffix(suffix) for suffix in (NEW, OLD))
        try:
            if target is not None:
                mark.write(os.fsencode(target.name))
                mark.flush()
            new.mkdir()
            yield new
            if target is not None:
                _replace_folder(target, new, old)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            if sys.platform == "win32":
                mark.close()
            if not old.exists():  # else the next sweep brings it back, or deletes it
                Path(mark.name).unlink(missing_ok=True)


def _replace_folder(target: Path, new: Path, old: Path) -> None:
    if target.exists():
        os.rename(target, old)
    try:
        os.rename(new, target)
    except BaseException:
        if old.exists():
            os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def is_temporary(name: str) -> bool:
    """Tell whether a file or folder has the name of a temporary one."""
    stem, suffix = os.path.splitext(name)
    return suffix in (".tmp", NEW, OLD) and NAME.fullmatch(f"{stem}.tmp") is not None


def sweep(folder: Path) -> None:
    """Delete the temporary files and folders in a folder that no process owns."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name):
                _sweep_one(Path(entry.path))


def sweep_below(folder: Path) -> None:
    """Sweep a folder of Sortal's own, and all folders below it."""
    for place, _, names in os.walk(folder):
        for name in names:
            if NAME.fullmatch(name) or FORMER.fullmatch(name):
                _sweep_one(Path(place) / name)


def _sweep_one(path: Path) -> None:
    """Delete a temporary file without an owner, and its folders."""
    if path.is_symlink() or not path.is_file():
        return
    with suppress(OSError), path.open("rb+") as file:
        if not _lock(file):
            return
        if NAME.fullmatch(path.name):
            _sweep_folders(path, os.fsdecode(file.read(1024)))
        if sys.platform == "win32":
            file.close()
        path.unlink(missing_ok=True)


def _sweep_folders(mark: Path, target: str) -> None:
    """Delete the folders that belong to a temporary file; undo a replacement that a kill broke off."""
    new, old = mark.with_suffix(NEW), mark.with_suffix(OLD)
    if old.is_dir() and target == os.path.basename(target) and not os.path.lexists(mark.parent / target):
        os.rename(old, mark.parent / target)
    for each in (new, old):
        if each.exists():
            shutil.rmtree(each)


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
