"""Folders that only Sortal writes into: a link could lead it elsewhere, and reading a pipe or a device need not end."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sortal.errors import InputError, quoted
from sortal.system.regular_files import LARGEST, kind_of, oversize

MAPPED = (".npy", ".safetensors", ".bin", ".bf16", ".html")  # further extensions of files that Sortal writes
A_FOLDER = "is a folder"  # what is wrong with it as a file
DEEPEST = 16  # folders within one another; Sortal makes far fewer


def check_own(path: Path) -> None:
    """Raise InputError unless a file of a folder that Sortal writes is a regular file of its own, if it exists."""
    if problem := _problem_of(path):
        raise _refused(path, problem)


def own_folder(path: Path) -> Path:
    """Return the path of a folder that only Sortal writes into; raise InputError if it is a link, or no folder."""
    if (problem := _problem_of(path)) not in ("", A_FOLDER) or (not problem and os.path.lexists(path)):
        raise _refused(path, problem or "is a file in the place of a folder")
    return path


def check_tree(folder: Path) -> None:
    """Raise InputError unless a folder that only Sortal writes into contains files and folders of its own alone.

    Names without a dot are those of folders.
    """
    for path in _walk(folder):
        problem = _problem_of(path)
        is_folder = problem == A_FOLDER
        if is_folder and path.suffix in (*LARGEST, *MAPPED):
            raise _refused(path, problem)
        if not is_folder and (problem or "." not in path.name):
            raise _refused(path, problem or "is a file in the place of a folder")


def _problem_of(path: Path) -> str:
    """Say why a path is not a regular file of a size that can be read; empty if it is one, or does not exist."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a name that no file can have
        return ""
    except OSError as error:
        if error.errno == errno.ELOOP:  # its folder leads nowhere, which whoever opens that reports
            return ""
        return f"cannot be read: {error.strerror or error}"
    if stat.S_ISLNK(found.st_mode):
        return f"is a link to {quoted(os.readlink(path))}"
    if not stat.S_ISREG(found.st_mode):
        return f"is {kind_of(found.st_mode)}"
    return oversize(path, found.st_size)


def _walk(path: Path, depth: int = 0) -> Iterator[Path]:
    """Yield a path and everything below it, without following links."""
    if depth > DEEPEST:
        raise _refused(path, f"lies {depth} folders deep")
    if not os.path.lexists(path):
        return
    yield path
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            for name in sorted(os.listdir(path)):
                yield from _walk(path / name, depth + 1)
    except FileNotFoundError:  # another process has just deleted it
        return
    except OSError as error:
        raise InputError(f"The folder {str(path)!r} cannot be read: {error.strerror or error}.") from error


def _refused(path: Path, problem: str) -> InputError:
    return InputError(
        f"{str(path)!r} {problem}, but Sortal keeps only regular files and folders of its own there. "
        "Delete it, or put a copy of what it should be in its place."
    )
