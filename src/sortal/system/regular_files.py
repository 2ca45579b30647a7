"""Regular files, opened without ever waiting: a pipe, socket or device in the place of one is refused."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from sortal.system.open_folder import AT_ONCE, kind_of, open_folder, run_around
from sortal.system.text import byte_sizes

# Most bytes of a file that is read as a whole, by extension; those that Sortal writes are far smaller.
LARGEST_FILES = {".json": 2**30, **dict.fromkeys((".jsonl", ".ndjson", ".csv", ".tsv", ".tab"), 2**33)}
UNKNOWN = 2**24  # bytes to read where the size is 0, as the kernel states of its own files whatever they hold
HOLLOW = 2**24  # bytes above which a file that is read as a whole must not be sparse: holes take no disk space


class RefusedError(OSError):
    """A file is not opened or read."""

    def __init__(self, problem: str) -> None:
        super().__init__(None, problem)

    def __str__(self) -> str:
        return str(self.strerror)


class NotAFileError(RefusedError):
    """A path leads to something that is not a regular file."""

    def __init__(self, mode: int) -> None:
        self.kind = kind_of(mode)
        super().__init__(f"it is {self.kind}, not a file")


class TooLargeError(RefusedError):
    """A file claims more than can be read as a whole."""


def special(path: str | os.PathLike[str]) -> str:
    """Name what a path leads to if it is a pipe, a socket or a device, which output must not replace; else empty."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    return "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else kind_of(mode)


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading; raise NotAFileError for anything else, and OSError as `open` does."""
    return os.fdopen(regular(os.fspath(path), os.O_RDONLY), "rb")


def regular(path: str, flags: int) -> int:
    """Open a regular file, never waiting for the other end of a pipe, as the `opener` of `open`.

    A link among the files of a run is an InputError. Elsewhere, the path is checked before, because opening a device
    may have consequences, and what was opened is checked again, because it may have been exchanged in between.
    """
    folder, name = os.path.split(path)
    if run_around(folder) is not None:
        with open_folder(Path(folder)) as here:
            return here.open(name, flags)
    with suppress(FileNotFoundError):  # it may have to be created
        _check(os.stat(path))
    try:
        descriptor = os.open(path, flags | AT_ONCE, 0o666)
    except BlockingIOError:  # another computer is about to give back a shared file, which is worth waiting for
        descriptor = os.open(path, flags, 0o666)
    try:
        _check(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def openable(path: str | Path) -> Iterator[str]:
    """Yield a name of a regular file for libraries that only take UTF-8, whatever its own name is."""
    with open_regular(path) as file:
        name = str(path)
        yield name if name.encode("utf-8", "replace").decode() == name else f"/dev/fd/{file.fileno()}"


def read_regular(path: str | Path) -> bytes:
    """Read a regular file as far as it reached when it was opened: another process may be appending to it."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(path, file.fileno(), size)
        return file.read(size or UNKNOWN)


def check_size(path: str | Path, descriptor: int, size: int) -> None:
    """Raise TooLargeError unless an open file can be read as a whole: it is neither too large nor sparse."""
    most = LARGEST_FILES.get(Path(path).suffix.lower(), size)
    if size > most:
        has, limit = byte_sizes(size, most)
        raise TooLargeError(f"it has {has}, and a file of this kind has at most {limit}")
    hole = getattr(os, "SEEK_HOLE", None)
    if size <= HOLLOW or hole is None:
        return
    try:
        hollow = os.lseek(descriptor, 0, hole) < size
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:  # from a file system that does not know
        return
    if hollow:
        raise TooLargeError(f"it has {byte_sizes(size)[0]}, but nothing has been written to some of them")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; what is nested too deeply is a ValueError, like everything else that is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: str | Path) -> Any:
    """Read a JSON file; raise OSError if it cannot be read, and ValueError for whatever is not JSON."""
    return parse_json(read_regular(path))


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAFileError(found.st_mode)
