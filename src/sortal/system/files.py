"""Atomic writes of one file, or of several that are replaced together by way of a staging folder; locks on folders."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from sortal.errors import NO_SPACE, InputError, no_space
from sortal.system.open_folder import (
    CACHE,
    NEXT,
    OpenFolder,
    check_held,
    hold,
    identity_of,
    make_folder,
    open_folder,
    own_folder,
)
from sortal.system.regular_files import read_json
from sortal.system.temporary import sweep, sweep_below, temporary_file
from sortal.system.text import byte_sizes

COMMIT_FILE = "commit.json"  # the file that commits what is in the staging folder, NEXT
LOCK_FILE = ".lock"
LOCK_EVERY = 1.0  # seconds for which a lock is tried
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)  # from file systems that have none


FileContent: TypeAlias = bytes | tuple[bytes | memoryview, ...]  # of a file, whole or in parts


def write_atomically(path: Path, content: FileContent) -> None:
    """Write a file so that neither a reader nor a crash ever sees part of it."""
    parts = (content,) if isinstance(content, bytes) else content
    size = sum(memoryview(part).nbytes for part in parts)
    with writing(path, size), open_folder(path.parent) as here, temporary_file(here) as (name, file):
        here.check(path.name)
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
        if sys.platform == "win32":  # which does not rename open files
            file.close()
        here.replace(name, path.name)
        here.sync()


@contextmanager
def writing(place: str | os.PathLike[str], needed: int = 0) -> Iterator[None]:
    """Raise NoSpaceError if the enclosed code fails to write to a file or folder because the disk is full.

    `needed` is the number of bytes, if known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise no_space(error, repr(os.fspath(place)), byte_sizes(needed)[0] if needed else "") from error


def sync_folder(folder: Path) -> None:
    """Wait until the names of new files in a folder are on disk."""
    with suppress(OSError), open_folder(folder) as here:
        here.sync()


def replace_all(folder: Path, files: Mapping[str, FileContent | Path], gone: Collection[str]) -> None:
    """Write files, given as content or as a file to link, and delete those in `gone`, as one change.

    Once it is committed, it is completed here or, after a kill, by whoever calls `finish`.
    """
    check_held(folder)
    finish(folder)
    try:
        with writing(folder):
            _discard(folder)  # an uncommitted one of a killed process
            _stage(folder / NEXT, files, gone)
    except BaseException as error:
        if not is_pending(folder):
            with suppress(OSError):
                _discard(folder)
        if not isinstance(error, OSError):
            raise
        problem = f"The folder {str(folder)!r} cannot be written: {error.strerror or error}."
        raise InputError(f"{problem} Choose another.") from error
    finish(folder)
    check_held(folder)  # what was staged may be in a folder that has just been moved


def _stage(staging: Path, files: Mapping[str, FileContent | Path], gone: Collection[str]) -> None:
    make_folder(staging)
    for name, content in files.items():
        if not isinstance(content, Path):
            write_atomically(staging / name, content)
            continue
        try:  # files to link are never changed in place
            os.link(content, staging / name)
        except OSError:
            shutil.copyfile(content, staging / name)
    commit = json.dumps({"files": sorted(files), "gone": sorted(gone)})
    write_atomically(staging / COMMIT_FILE, commit.encode())


def _discard(folder: Path) -> None:
    """Delete the staging folder."""
    with suppress(FileNotFoundError), open_folder(folder) as here:
        here.remove(NEXT)


def finish(folder: Path) -> None:
    """Move committed files from the staging folder to their places; reject names that lead out of the folder."""
    staging = folder / NEXT
    try:
        if not is_pending(folder):
            return
        commit = read_json(staging / COMMIT_FILE)
        files, gone = list(commit["files"]), list(commit["gone"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if not all(map(_is_name, files + gone)):
        raise InputError(f"{str(staging)!r} was not written by Sortal: it names files outside its folder. Delete it.")
    name = ""
    try:
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        for name in files:
            if (staging / name).exists():
                os.replace(staging / name, folder / name)
        _discard(folder)
    except OSError as error:
        raise InputError(
            f"{str(folder / name)!r} cannot be replaced: {error.strerror or error}. Move it away, and try again."
        ) from error


def _is_name(name: object) -> bool:
    """Tell whether a file in a folder can have this name."""
    if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
        return False
    with suppress(UnicodeEncodeError):
        return b"\0" not in os.fsencode(name)
    return False


def is_pending(folder: Path) -> bool:
    """Tell whether committed files are still in the staging folder."""
    commit = folder / NEXT / COMMIT_FILE
    return commit.is_file() and not (commit.is_symlink() or commit.parent.is_symlink())


@contextmanager
def lock_folder(folder: Path | None, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Create and lock a folder; if another process holds its lock, call `waiting` every second, or raise InputError.

    The operating system releases the lock of a process that is killed, so folders on file systems without such locks
    are rejected. What a killed process left in the folder and its cache is deleted. While the folder is locked, nothing
    is written to another one that takes its place. Without a folder, do nothing.
    """
    if folder is None:
        yield
        return
    from filelock import FileLock, Timeout

    # A soft lock is a mere file, which would outlive a killed process. Any thread may release the lock.
    lock = FileLock(folder / LOCK_FILE, thread_local=False, fallback_to_soft=False)
    while not lock.is_locked:
        try:
            with open_folder(own_folder(folder), create=True) as here:
                here.check(LOCK_FILE)
                before = here.identity()
            lock.acquire(timeout=LOCK_EVERY)  # also if no one waits: a look at the lock (`is_locked`) is over soon
            if identity_of(folder) != before:
                lock.release()  # the locked folder has just been moved away
        except Timeout:
            if waiting is None:
                raise in_use(folder) from None
            waiting()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise no_space(error, repr(str(folder))) from error
            why = error.strerror or str(error)
            if error.errno in NO_LOCKS:
                raise InputError(
                    f"The folder {str(folder)!r} must be on a file system with file locks, got {why!r}. "
                    "Choose a folder on a local disk."
                ) from error
            raise InputError(f"The folder {str(folder)!r} cannot be written: {why}. Choose another.") from error
    try:
        with hold(folder):
            _sweep(folder)
            yield
    finally:
        lock.release()


def in_use(folder: Path) -> InputError:
    """Return the error about a folder that another process has locked."""
    return InputError(f"Another process is using {str(folder)!r}. Wait until it is done, or choose another folder.")


def is_locked(folder: OpenFolder, name: str) -> bool:
    """Tell whether a process holds the lock of a folder in this one, as far as this system can tell."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        lock = folder.open(os.path.join(name, LOCK_FILE), os.O_RDONLY)
    except (OSError, InputError):  # there is none, or something else
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _sweep(folder: Path) -> None:
    """Delete what killed processes left in a folder that this process has locked."""
    if not is_pending(folder):
        with suppress(OSError):
            _discard(folder)
    sweep(folder)
    sweep_below(folder / CACHE)


def same_file(one: str | Path, other: str | Path) -> bool:
    """Tell whether two paths lead to the same file or folder; paths that lead nowhere do not."""
    with suppress(OSError, ValueError):
        return os.path.samefile(one, other)
    return False
