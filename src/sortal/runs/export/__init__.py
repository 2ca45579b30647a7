"""Give a run to other tools: tables, folders, and the formats in which they read images and classes."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sortal.errors import InputError
from sortal.export import coco, fiftyone, folders, imagefolder, labelstudio, output, tables
from sortal.export.job import Format, How, Job, rows_of
from sortal.run import Run
from sortal.workers import Progress

FORMATS: dict[str, Format] = {
    "csv": Format(write=tables.csv, folder=False, needs="names"),
    "parquet": Format(write=tables.parquet, folder=False, needs="names"),
    "folders": Format(write=folders.write, folder=True, needs="files", holds_images=True),
    "imagefolder": Format(write=imagefolder.write, folder=True, needs="files", holds_images=True),
    "coco": Format(write=coco.write, folder=False, needs="files"),
    "fiftyone": Format(write=fiftyone.write, folder=True, needs="files", holds_images=True),
    "labelstudio": Format(write=labelstudio.write, folder=True, needs="files"),
}

ENDINGS = {"csv": ".csv", "parquet": ".parquet", "coco": ".json"}  # of formats that are one file

__all__ = ["FORMATS", "Exported", "export"]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. Images and missing ones together are those of the run."""

    format: str
    out: Path
    images: int
    missing: tuple[str, ...]  # files of the run that are not there any more, or cannot be read


def export(
    run: Run,
    format: str,
    out: str | os.PathLike[str] | None = None,
    *,
    how: How = "hardlink",
    force: bool = False,
    on_progress: Progress = lambda *_: None,
) -> Exported:
    """Write a run in one of `FORMATS` to a file or folder that is not there yet.

    Without `out` it is named after the run and the format, in the current folder.
    `how` says what becomes of images in formats that hold them; the originals are never moved or changed. `force`
    replaces a file, or a folder that an earlier export wrote.
    """
    if format not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {format!r}.")
    if how not in get_args(How):
        raise InputError(f"how must be one of {', '.join(get_args(How))}, got {how!r}.")
    if out is None:
        out = f"{run.folder.resolve().name}-{format}{ENDINGS.get(format, '')}"
    chosen, place = FORMATS[format], Path(os.path.realpath(out))
    if chosen.needs == "files":
        run.paths()  # which tells where there are none
    rows = rows_of(run)
    with output.written(place, run, rows, format, chosen, force=force) as at:
        missing = chosen.write(Job(run=run, rows=rows, out=at, how=how, on_progress=on_progress))
    return Exported(format=format, out=Path(out), images=len(rows) - len(missing), missing=tuple(missing))
