"""The destination of an export, which appears complete or not at all, and what no output may overwrite or mix with."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sortal.errors import InputError, Remedy
from sortal.exchange.format import ExportFormat, paths_of, write_json
from sortal.images.exported import EXPORT_MARKER, ExportedRow
from sortal.runs.run import Run
from sortal.system.files import same_file, writing
from sortal.system.publishing import holding, publishing
from sortal.system.temporary import sweep

OTHER_PLACE = Remedy("choose another", out=...)


@contextmanager
def open_output(
    out: Path, run: Run, rows: Sequence[ExportedRow], name: str, format_: ExportFormat, *, force: bool
) -> Iterator[Path]:
    """Yield the file to write, or a folder to fill, which is moved to `out` at the end. `out` must be a real path.

    It replaces what is there now if `force` is set and it may be replaced, and nothing that appears there later.
    """
    sweep(out.parent)  # before the check, as it may bring back an earlier export
    try:
        with holding(out) as there, writing(out):
            replaces = _check(out, run, rows, name, format_, force)
            out.parent.mkdir(parents=True, exist_ok=True)
            with publishing(out, there if replaces else None) as made:
                if format_.extension:
                    yield made
                    return
                made.mkdir()
                yield made
                write_json(made / EXPORT_MARKER, {"format": name})
    except OSError as error:
        raise InputError(
            f"Cannot write the export {str(out)!r}: {error.strerror or error}. Choose another place."
        ) from error


def _check(out: Path, run: Run, rows: Sequence[ExportedRow], name: str, format_: ExportFormat, force: bool) -> bool:
    """Refuse a destination where an export would do harm; return whether something there is to be replaced."""
    if format_.holds_images and (folder := image_folder_around(out, run)):
        raise InputError(
            f"The export must be outside the run and its images, got {str(out)!r}, which is or lies in their folder "
            f"{folder!r}: the next run would read it as more images. Choose another place."
        )
    if is_within(out.parent, run.folder):
        raise InputError(f"The export must be outside the run, got {str(out)!r}. Choose another place.")
    if not out.exists():
        return False
    if format_.extension:
        _check_file(out, rows, name, force)
        return True
    return _check_folder(out, run, rows, name, force)


def _check_folder(out: Path, run: Run, rows: Sequence[ExportedRow], name: str, force: bool) -> bool:
    """Refuse a folder that is not an export; return whether it is one, and not empty."""
    place = repr(str(out))
    if not out.is_dir():
        raise InputError(f"The format {name} is a folder, got {place}, which is a file. Choose another place.")
    for folder in (str(run.folder), *sorted({os.path.dirname(row.path) for row in rows if row.path})):
        if is_within(Path(folder), out):
            raise InputError(
                f"The export must be outside the run and its images, got {place}, which is or contains their "
                f"folder {folder!r}. Choose another place."
            )
    if not os.listdir(out):
        return False
    if not force:
        replace = Remedy("replace an earlier export", force=True)
        raise InputError(f"The folder {place} must be new or empty.", OTHER_PLACE, replace)
    if not (out / EXPORT_MARKER).is_file():
        raise InputError(f"The folder {place} was not written by an export, so it is not replaced.", OTHER_PLACE)
    return True


def _check_file(out: Path, rows: Sequence[ExportedRow], name: str, force: bool) -> None:
    place = repr(str(out))
    if out.is_dir():
        raise InputError(f"The format {name} is one file, got {place}, which is a folder. Choose a file in it.")
    if not force:
        raise InputError(f"The file {place} already exists.", OTHER_PLACE, Remedy("replace it", force=True))
    if any(same_file(out, Path(row.path)) for row in rows if row.path):
        raise InputError(f"The file {place} is one of the run's images, which are never replaced. Choose another.")


def image_folder_around(place: Path, run: Run) -> str | None:
    """Return the folder of images that a path is or lies in, where the next run would read output as images."""
    folders: dict[int, set[str]] = {}  # by source; not its own folder, which for a list of files is the working one
    for path, source in zip(paths_of(run), run.assignments.folders.tolist(), strict=True):
        if path:
            folders.setdefault(source, set()).add(os.path.dirname(path))
    for each in folders.values():
        with suppress(ValueError):  # on several drives of Windows
            common = os.path.commonpath(each)
            if common != Path(common).anchor and is_within(place, Path(common)):
                return common
    return None


def is_within(inner: Path, outer: Path) -> bool:
    """Tell whether a path is or lies in a folder, also where links or letter case make their names differ."""
    inner, outer = Path(os.path.realpath(inner)), Path(os.path.realpath(outer))
    return inner.is_relative_to(outer) or any(same_file(outer, each) for each in (inner, *inner.parents))
