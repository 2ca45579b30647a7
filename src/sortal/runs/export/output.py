"""Where an export goes: nothing that is not its own is replaced, and it is there whole or not at all."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from sortal.errors import InputError
from sortal.export.job import Format, Row
from sortal.run import Run
from sortal.segments import write_atomically

MARKER = ".sortal-export.json"  # says of a folder that it may be replaced; hidden, so that no reader minds it


@contextmanager
def written(out: Path, run: Run, rows: Sequence[Row], name: str, format_: Format, *, force: bool) -> Iterator[Path]:
    """Where to write: the file itself, in one go, or a folder beside `out`, which takes its place at the end.

    `out` has no links in it.
    """
    temporary = out.with_name(f".sortal-export-{uuid4().hex[:12]}")
    try:
        _check(out, run, rows, name, format_, force)
        out.parent.mkdir(parents=True, exist_ok=True)
        if not format_.folder:
            yield out
            return
        temporary.mkdir()
        yield temporary
        write_atomically(temporary / MARKER, json.dumps({"format": name}).encode())
        _take_the_place(temporary, out)
    except OSError as error:
        raise InputError(
            f"The export {str(out)!r} cannot be written: {error.strerror or error}. Name another place, or make room."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _take_the_place(new: Path, out: Path) -> None:
    old = new.with_name(f"{new.name}-old")
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(new, out)
    except BaseException:
        if old.exists():
            os.rename(old, out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check(out: Path, run: Run, rows: Sequence[Row], name: str, format_: Format, force: bool) -> None:
    """Refuse a place where an export would do harm."""
    if format_.holds_images:
        for number in sorted(set(run.assignments.folders.tolist())):
            of_folder = zip(rows, run.assignments.folders.tolist(), strict=True)
            _check_not_among_images(out, {os.path.dirname(row.path) for row, at in of_folder if at == number})
    if not format_.folder and _same(out.parent, run.folder):
        raise InputError(f"The export must lie outside the run, got {str(out)!r}. Name another file.")
    if out.exists():
        if format_.folder:
            _check_folder(out, run, rows, name, force)
        else:
            _check_file(out, rows, name, force)


def _check_not_among_images(out: Path, folders: set[str]) -> None:
    """By where the images are, not by the folder of the run, which is the current one where they were a list."""
    try:
        folder = os.path.commonpath(folders)
    except ValueError:  # on several drives of Windows
        return
    if folder != Path(folder).anchor and _within(out, Path(folder)):
        raise InputError(
            f"The export must lie outside the run and its images, got {str(out)!r}, which is or lies in their folder "
            f"{folder!r}: the next run would take it for further images. Name another."
        )


def _check_folder(out: Path, run: Run, rows: Sequence[Row], name: str, force: bool) -> None:
    if not out.is_dir():
        raise InputError(f"The format {name} is a folder, got {str(out)!r}, which is a file. Name another.")
    for folder in (str(run.folder), *sorted({os.path.dirname(row.path) for row in rows if row.path})):
        if _within(Path(folder), out):
            raise InputError(
                f"The export must lie outside the run and its images, got {str(out)!r}, which is or holds their folder "
                f"{folder!r}. Name another."
            )
    if not os.listdir(out):
        return
    if not force:
        raise InputError(
            f"The folder {str(out)!r} must be new or empty. Name another, or have an earlier export replaced (--force)."
        )
    if not (out / MARKER).is_file():
        raise InputError(
            f"The folder {str(out)!r} was not written by sortal export, so --force does not replace it. Name another."
        )


def _check_file(out: Path, rows: Sequence[Row], name: str, force: bool) -> None:
    if out.is_dir():
        raise InputError(f"The format {name} is one file, got {str(out)!r}, which is a folder. Name a file in it.")
    if not force:
        raise InputError(f"The file {str(out)!r} is there already. Name another, or have it replaced (--force).")
    if any(_same(out, Path(row.path)) for row in rows if row.path):
        raise InputError(f"The file {str(out)!r} belongs to the run's images and is not replaced. Name another.")


def _within(inner: Path, outer: Path) -> bool:
    """Whether one is the other or lies in it, by what the file system says: case and links make names differ."""
    inner = Path(os.path.realpath(inner))
    return any(_same(outer, each) for each in (inner, *inner.parents))


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False
