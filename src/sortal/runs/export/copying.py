"""Links to or copies of a run's images in an export. The originals are never moved or changed."""

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sortal.errors import InputError, Remedy
from sortal.runs.export.format import How, Request, Row

T = TypeVar("T")

KINDS = {"hardlink": "hard links", "symlink": "symbolic links"}


def has_content(path: str) -> bool:
    """Tell whether a path is a readable file that is not empty."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block
            return False
        with open(path, "rb") as file:
            return bool(file.read(1))
    except (OSError, ValueError):  # ValueError: an impossible name
        return False


def visit(request: Request, use: Callable[[Row], T | None]) -> tuple[list[tuple[Row, T]], list[str]]:
    """Call `use` on each image; return its results, and the names of the images for which it returned None."""
    done: list[tuple[Row, T]] = []
    missing: list[str] = []
    for number, row in enumerate(request.rows, start=1):
        result = use(row)
        if result is None:
            missing.append(row.file)
        else:
            done.append((row, result))
        request.runtime.progress("Exporting", number, len(request.rows))
    return done, missing


def place(request: Request, name: Callable[[Row], str], folder: str = "") -> tuple[list[tuple[Row, str]], list[str]]:
    """Put each image into a folder of the export, at the path that `name` gives; also return the missing files."""
    below = request.out / folder
    below.mkdir(exist_ok=True)

    def put(row: Row) -> str | None:
        if not has_content(row.path):
            return None
        path = name(row)
        target = below / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return path if _put(row.path, target, request.how) else None

    return visit(request, put)


def _put(source: str, target: Path, how: How) -> bool:
    """Link or copy a file; return False if it disappeared."""
    try:
        if how == "hardlink":
            os.link(os.path.realpath(source), target)  # a hard link to a relative link would be broken
        elif how == "symlink":
            os.symlink(source, target)
        else:
            shutil.copyfile(source, target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EIO):  # deleted since, or on a failing disk
            target.unlink(missing_ok=True)
            return False
        if how == "copy":
            raise
        raise InputError(
            f"Cannot export the images as {KINDS[how]}: {error.strerror or error}, for {source!r}.",
            Remedy("copy them instead", how="copy"),
        ) from error
    return True
