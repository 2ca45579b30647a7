"""Exports of a run in every format: those of its images, and those of the model that sorted them."""

import os
from typing import Any

from sortal.exchange import export as formats
from sortal.exchange import hub_folder
from sortal.exchange.export import EXPORT_FORMATS, ExportResult
from sortal.exchange.format import ExportFormat, How, LeftOut, Request
from sortal.runs.run import Run
from sortal.system.progress import Runtime


def _onnx(request: Request) -> LeftOut:
    from sortal.discovery import onnx_graph  # loads torch

    return onnx_graph.write(request)


MODEL_FORMATS = {
    "onnx": ExportFormat(write=_onnx, extension=".onnx"),
    "hub": ExportFormat(write=hub_folder.write),
}


def export(
    run: Run | str | os.PathLike[str],
    format: str,
    out: str | os.PathLike[str] | None = None,
    *,
    how: How = "hardlink",
    force: bool = False,
    absolute_paths: bool = False,
    runtime: Runtime = Runtime(),
) -> ExportResult:
    """Write a run in the format of another tool. Images are never moved or changed.

    `run`: the run, or its folder.
    `format`: of its images, "csv", "parquet", "embeddings", "folders", "imagefolder", "coco", "fiftyone",
        "labelstudio", "camtrap-dp" or "ecotaxa"; of the model that sorts new ones, "onnx" or "hub".
    `out`: the new file or folder, by default RUN.csv, RUN.parquet, RUN.onnx or RUN-FORMAT in the current folder.
    `how`: "hardlink", "symlink" or "copy", how images get into formats that hold them.
    `force`: replace a file, or a folder that an earlier export wrote.
    `absolute_paths`: say where the images are on this computer; by default, names are relative to their folder.
    `runtime`: where progress goes.

    >>> sortal.export("photos-run", "folders", "sorted-photos")  # doctest: +SKIP
    """
    every = {**EXPORT_FORMATS, **MODEL_FORMATS}
    wishes: Any = {"how": how, "force": force, "absolute_paths": absolute_paths}
    return formats.export(run, format, out, formats=every, **wishes, runtime=runtime)
