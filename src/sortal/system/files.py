"""Atomic writes: of one file, and of several files replaced together by way of a staging folder; locks on folders."""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from sortal.errors import InputError
from sortal.system.plain_files import read_json

NEXT, COMMIT = ".sortal-next", "commit.json"  # the staging folder, and the file that commits it
LOCK = ".lock"
POLL = 1.0  # seconds between attempts to get a lock


Content: TypeAlias = bytes | tuple[bytes | memoryview, ...]  # of a file, whole or in parts


def write_atomically(path: Path, content: Content) -> None:
    """Write a file so that neither a reader nor a crash ever sees part of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # that of a killed process, or a link that would lead elsewhere
        with temporary.open("xb") as file:
            for part in (content,) if isinstance(content, bytes) else content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names of new files in a folder are on disk."""
    with suppress(OSError):  # some file systems, and Windows, cannot open folders
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def replace_all(folder: Path, files: Mapping[str, Content | Path], gone: Collection[str]) -> None:
    """Write files, given as content or as a file to link, and delete those in `gone`: atomic for users of `finish`."""
    staging = folder / NEXT
    finish(folder)
    try:
        shutil.rmtree(staging, ignore_errors=True)  # an uncommitted one of a killed process
        staging.mkdir(parents=True)
        for name, content in files.items():
            if not isinstance(content, Path):
                write_atomically(staging / name, content)
                continue
            try:  # files to link are never changed in place
                os.link(content, staging / name)
            except OSError:
                shutil.copyfile(content, staging / name)
        commit = json.dumps({"files": sorted(files), "gone": sorted(gone)})
        write_atomically(staging / COMMIT, commit.encode())
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise InputError(
            f"The folder {str(folder)!r} cannot be written: {error.strerror or error}. "
            "Choose another, or free some space."
        ) from error
    finish(folder)


def finish(folder: Path) -> None:
    """Move committed files from the staging folder to their places; reject names that lead out of the folder."""
    staging = folder / NEXT
    try:
        if not is_pending(folder):
            return
        commit = read_json(staging / COMMIT)
        files, gone = list(commit["files"]), list(commit["gone"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if any(not isinstance(n, str) or n != os.path.basename(n) or n in ("", ".", "..") for n in files + gone):
        raise InputError(f"{str(staging)!r} was not written by Sortal: it names files outside its folder. Delete it.")
    name = ""
    try:
        for name in gone:
            (folder / name).unlink(missing_ok=True)
        for name in files:
            if (staging / name).exists():
                os.replace(staging / name, folder / name)
        shutil.rmtree(staging)
    except OSError as error:
        raise InputError(
            f"{str(folder / name)!r} cannot be replaced: {error.strerror or error}. Move it away, and try again."
        ) from error


def is_pending(folder: Path) -> bool:
    """Tell whether committed files are still in the staging folder."""
    commit = folder / NEXT / COMMIT
    return commit.is_file() and not (commit.is_symlink() or commit.parent.is_symlink())


@contextmanager
def lock_folder(folder: Path | None, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Create and lock a folder; if another process holds its lock, call `waiting` every second, or raise InputError.

    The operating system releases the lock of a process that is killed. Without a folder, do nothing.
    """
    if folder is None:
        yield
        return
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK)
    while not lock.is_locked:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=POLL if waiting else 0)
        except Timeout:
            if waiting is None:
                message = f"Another process is using {str(folder)!r}. Wait until it is done, or choose another folder."
                raise InputError(message) from None
            waiting()
        except OSError as error:
            problem = f"The folder {str(folder)!r} cannot be written: {error.strerror}."
            raise InputError(f"{problem} Choose another.") from error
    try:
        yield
    finally:
        lock.release()


def same_file(one: str | Path, other: str | Path) -> bool:
    """Tell whether two paths lead to one file or folder; a path to nothing is like no other."""
    with suppress(OSError, ValueError):
        return os.path.samefile(one, other)
    return False
