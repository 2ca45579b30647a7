"""A folder that one process at a time may work in."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sortal.errors import InputError

NAME = ".lock"


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """The folder of a run, in which no other process may be at work; a killed one lets go of it."""
    if folder is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / NAME).open("ab")
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be written: {error.strerror}. Choose another.") from error
    with file:
        try:
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"Another process is at work in {str(folder)!r}. Wait for it, or choose another folder."
            ) from None
        yield
