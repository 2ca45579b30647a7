"""Plain files: whatever else stands under a name, or claims more than memory, is refused before it is opened."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sortal.errors import InputError, quoted
from sortal.system.text import byte_sizes

# Bytes that a file may have which is read as a whole; the largest that Sortal writes are far smaller.
LARGEST = {".json": 2**30, ".jsonl": 2**33, ".csv": 2**33, ".tsv": 2**33}
MAPPED = (".npy", ".safetensors", ".bin", ".bf16", ".html")  # further extensions of files that Sortal writes
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def problem_of(path: Path, *, links: bool = True) -> str:
    """Say why a path is not a plain file of a size that can be read; empty if it is one, or does not exist.

    Unless `links` are allowed, a link to a plain file is not one.
    """
    try:
        found = path.stat() if links else path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a name that no file can have
        return ""
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if stat.S_ISLNK(found.st_mode):
        return f"is a link to {quoted(os.readlink(path))}"
    if not stat.S_ISREG(found.st_mode):
        return f"is {next((name for holds, name in KINDS if holds(found.st_mode)), 'not a file')}"
    most = LARGEST.get(path.suffix.lower())
    if most is not None and found.st_size > most:
        size, limit = byte_sizes(found.st_size, most)
        return f"has {size}, and a file of this kind has at most {limit}"
    return ""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; what is nested too deeply is a ValueError, like everything else that is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> Any:
    """Read a JSON file; raises an OSError if it cannot be opened, and a ValueError for whatever is not JSON."""
    if problem := problem_of(path):
        raise ValueError(f"it {problem}")
    return parse_json(path.read_text(encoding="utf-8"))


def check_own(path: Path) -> None:
    """Raise InputError unless a file of a folder that Sortal writes is a plain file of its own, if it exists."""
    if problem := problem_of(path, links=False):
        raise _refused(path, problem)


def check_tree(folder: Path) -> None:
    """Raise InputError unless a folder that only Sortal writes into contains plain files and folders of its own alone.

    Names without a dot are those of folders.
    """
    for path in _walk(folder):
        problem = problem_of(path, links=False)
        is_folder = problem == "is a folder"
        if is_folder and path.suffix in (*LARGEST, *MAPPED):
            raise _refused(path, problem)
        if not is_folder and (problem or "." not in path.name):
            raise _refused(path, problem or "is a file in the place of a folder")


def _walk(path: Path) -> Iterator[Path]:
    """Yield a path and everything below it, without following links."""
    if not os.path.lexists(path):
        return
    yield path
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            for name in sorted(os.listdir(path)):
                yield from _walk(path / name)
    except FileNotFoundError:  # another process has just deleted it
        return
    except OSError as error:
        raise InputError(f"The folder {str(path)!r} cannot be read: {error.strerror or error}.") from error


def _refused(path: Path, problem: str) -> InputError:
    return InputError(
        f"{str(path)!r} {problem}, but Sortal keeps only plain files and folders of its own there. "
        "Delete it, or put a copy of what it should be in its place."
    )
