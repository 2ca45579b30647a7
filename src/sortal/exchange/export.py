"""Exports of a run: tables, folders, and the formats of other tools."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sortal.errors import InputError
from sortal.exchange import camtrap, coco, ecotaxa, image_formats, labelstudio, output, table
from sortal.exchange.format import ExportFormat, How, Request, originals_of, rows_of
from sortal.reviews.loading import load_run
from sortal.runs.reference import check_has_images
from sortal.runs.run import Run
from sortal.system.progress import Runtime
from sortal.system.regular_files import special

EXPORT_FORMATS: dict[str, ExportFormat] = {
    "csv": ExportFormat(write=table.csv, extension=".csv"),
    "parquet": ExportFormat(write=table.parquet, extension=".parquet"),
    "embeddings": ExportFormat(write=table.embeddings, extension=".parquet"),
    "folders": ExportFormat(write=image_formats.by_category, needs_files=True, holds_images=True),
    "imagefolder": ExportFormat(write=image_formats.imagefolder, needs_files=True, holds_images=True),
    "coco": ExportFormat(write=coco.write, extension=".json", needs_files=True),
    "fiftyone": ExportFormat(write=image_formats.fiftyone, needs_files=True, holds_images=True),
    "labelstudio": ExportFormat(write=labelstudio.write, needs_files=True),
    "camtrap-dp": ExportFormat(write=camtrap.write, needs_files=True, holds_images=True),
    "ecotaxa": ExportFormat(write=ecotaxa.write, extension=".zip", needs_files=True),
}
# Formats whose readers take a confidence for a probability, and what is said of a run without one.
WITHOUT_PROBABILITY = ("camtrap-dp", "ecotaxa")
NO_PROBABILITY = (
    "Confidence is not calibrated in this run, as too few labelled images could be held out: it ranks images, but is "
    "no probability."
)
PROBABILITY_LEFT_OUT = f"{NO_PROBABILITY} So the export leaves it empty."


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What an export wrote; `images`, the missing and the changed files add up to the images of the run."""

    format: str
    out: Path
    images: int
    missing: tuple[str, ...]  # files of the run that no longer exist or cannot be read
    changed: tuple[str, ...] = ()  # files that have another content than the one that was sorted


def export(
    run: Run | str | os.PathLike[str],
    format: str,
    out: str | os.PathLike[str] | None = None,
    *,
    how: How = "hardlink",
    force: bool = False,
    absolute_paths: bool = False,
    formats: Mapping[str, ExportFormat] = EXPORT_FORMATS,
    runtime: Runtime = Runtime(),
) -> ExportResult:
    """Write a run in one of the `formats`; discovery/exporting.py describes the rest."""
    if format not in formats:
        raise InputError(f"format must be one of {', '.join(formats)}, got {format!r}.")
    if how not in get_args(How):
        raise InputError(f"how must be one of {', '.join(get_args(How))}, got {how!r}.")
    run = run if isinstance(run, Run) else load_run(run)
    if format in EXPORT_FORMATS:  # of images
        check_has_images(run.folder)
    chosen = formats[format]
    if out is None:
        kind = "" if chosen.extension == f".{format}" else f"-{format}"
        out = f"{run.folder.resolve().name}{kind}{chosen.extension}"
    if chosen.needs_files:
        run.paths()  # raises if the images have no files
    if kind := special(out):  # before links are resolved, as the end of standard input is no path
        raise InputError(f"Cannot write the export {os.fspath(out)!r}: it is {kind}. Choose another place.")
    rows = rows_of(run, absolute_paths=absolute_paths)
    with output.open_output(Path(os.path.realpath(out)), run, rows, format, chosen, force=force) as place:
        request = Request(
            run=run,
            rows=rows,
            originals=originals_of(run),
            out=place,
            how=how,
            absolute_paths=absolute_paths,
            runtime=runtime,
        )
        left = chosen.write(request)
    if not run.confidence.calibrated:
        runtime.note(PROBABILITY_LEFT_OUT if format in WITHOUT_PROBABILITY else NO_PROBABILITY)
    images = len(rows) - len(left.missing) - len(left.changed)
    return ExportResult(format=format, out=Path(out), images=images, missing=left.missing, changed=left.changed)
