"""Put the images of a run into an export. The originals are never moved or changed."""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sortal.errors import InputError
from sortal.export.job import How, Job, Row

T = TypeVar("T")

MADE = {"hardlink": "hard links", "symlink": "symbolic links", "copy": "copies"}


def readable(path: str) -> bool:
    """Whether there is a file with something in it that may be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            return False
        with open(path, "rb") as file:
            return bool(file.read(1))
    except (OSError, ValueError):  # ValueError: no file can have that name
        return False


def with_each(job: Job, use: Callable[[Row], T | None]) -> tuple[list[tuple[Row, T]], list[str]]:
    """What `use` makes of each image, and the names of those of which it makes nothing: they are not there."""
    done: list[tuple[Row, T]] = []
    missing: list[str] = []
    for number, row in enumerate(job.rows, start=1):
        made = use(row)
        if made is None:
            missing.append(row.file)
        else:
            done.append((row, made))
        job.on_progress("Exporting", number, len(job.rows))
    return done, missing


def place(job: Job, name: Callable[[Row], str]) -> tuple[list[tuple[Row, str]], list[str]]:
    """Put each image at the path within the export that `name` gives; also the names of those that are not there."""

    def put(row: Row) -> str | None:
        if not readable(row.path):
            return None
        to = name(row)
        target = job.out / to
        target.parent.mkdir(parents=True, exist_ok=True)
        return to if _put(row.path, target, job.how) else None

    return with_each(job, put)


def _put(source: str, target: Path, how: How) -> bool:
    try:
        if how == "hardlink":
            os.link(os.path.realpath(source), target)  # of the file: a link to a relative link would lead nowhere
        elif how == "symlink":
            os.symlink(source, target)
        else:
            shutil.copyfile(source, target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EIO):  # it went away, or its disk fails
            target.unlink(missing_ok=True)
            return False
        if how == "copy":
            raise
        raise InputError(
            f"The images cannot be exported as {MADE[how]}: {error.strerror or error}, for {source!r}. "
            "Have them copied (--how copy)."
        ) from error
    return True
