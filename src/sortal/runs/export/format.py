"""What a format is given to write, and what it says of itself."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sortal.run import Run
from sortal.workers import Progress

How: TypeAlias = Literal["hardlink", "symlink", "copy"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """An image and where it went."""

    file: str  # its name as the user wrote it
    path: str  # where it opens, absolute; empty where it was given as pixels
    category: int
    name: str  # of the category
    status: str
    confidence: float | None
    label: str | None
    truth: str | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """An export to be written."""

    run: Run
    rows: tuple[Row, ...]
    out: Path  # the file, or the folder, which is there and empty
    how: How
    on_progress: Progress


@dataclass(frozen=True, kw_only=True)
class Format:
    """How to write one format. `write` gives back the names of images that could not be exported."""

    write: Callable[[Job], Sequence[str]]
    folder: bool  # whether it is a folder of files, or one file
    needs: Literal["names", "files"]  # whether the images must be there
    holds_images: bool = False


def rows_of(run: Run) -> tuple[Row, ...]:
    """One row an image, in the order of the run."""
    a = run.assignments
    sources, names = run.about["images"], run.names
    return tuple(
        Row(
            file=file,
            path=_path(sources[at], file),
            category=category,
            name=names[category],
            status=status,
            confidence=round(confidence, 6) if isfinite(confidence) else None,
            label=label,
            truth=truth,
        )
        for file, at, category, status, confidence, label, truth in zip(
            a.files,
            a.folders.tolist(),
            a.category.tolist(),
            a.status.tolist(),
            a.confidence.tolist(),
            a.labels,
            a.truth,
            strict=True,
        )
    )


def _path(source: Mapping[str, Any], file: str) -> str:
    """As in `Run.paths`, also where only some of the images have one."""
    if source["folder"] is None:
        return ""
    return os.path.abspath(source["paths"].get(file) or os.path.join(source["folder"], file))
