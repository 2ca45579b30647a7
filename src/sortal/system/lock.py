"""A lock on a folder, in which one process at a time may work."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sortal.errors import InputError

NAME = ".lock"


@contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Create and lock the folder of a run; raise InputError if another process holds its lock.

    The operating system releases the lock of a process that is killed. Without a folder, do nothing.
    """
    if folder is None:
        yield
        return
    from filelock import FileLock, Timeout

    lock = FileLock(folder / NAME)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(
            f"Another process is at work in {str(folder)!r}. Wait for it, or choose another folder."
        ) from None
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be written: {error.strerror}. Choose another.") from error
    try:
        yield
    finally:
        lock.release()
