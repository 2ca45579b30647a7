"""The contract of an export format: the request it gets, and the description it gives of itself."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sortal.runs.image_folders import paths_of
from sortal.runs.run import Run
from sortal.system.files import write_atomically
from sortal.system.progress import Runtime

How: TypeAlias = Literal["hardlink", "symlink", "copy"]
ASSIGNED = ("category", "category_name", "status", "confidence")  # columns that every table has


@dataclass(frozen=True)
class Row:
    """An image and its category."""

    file: str  # its name as the user wrote it
    path: str  # absolute; empty if the image was given as pixels
    category: int
    name: str  # of the category
    status: str
    confidence: float | None
    label: str | None
    truth: str | None

    @property
    def assigned(self) -> dict[str, Any]:
        return dict(zip(ASSIGNED, (self.category, self.name, self.status, self.confidence), strict=True))


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to export and where to write it."""

    run: Run
    rows: tuple[Row, ...]
    out: Path  # the file to write, or an existing empty folder
    how: How
    runtime: Runtime


@dataclass(frozen=True, kw_only=True)
class Format:
    """One export format. `write` returns the names of the images it could not export."""

    write: Callable[[Request], Sequence[str]]
    extension: str = ""  # of its one file; empty if it is a folder
    needs_files: bool = False  # whether it reads the images
    holds_images: bool = False


def rows_of(run: Run) -> tuple[Row, ...]:
    """Return one row per image, in the order of the run."""
    a, names = run.assignments, run.names
    category = a.category.tolist()
    confidence = [round(each, 6) if isfinite(each) else None for each in a.confidence.tolist()]
    columns = a.files, paths_of(run), category, [names[each] for each in category], a.status.tolist(), confidence
    return tuple(Row(*row) for row in zip(*columns, a.labels, a.truth, strict=True))


def utf8(text: str) -> str:
    """Escape the bytes of a file or class name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_json(path: Path, content: Any) -> None:
    """Write JSON in ASCII, whose escapes preserve even file names that are not UTF-8."""
    write_atomically(path, json.dumps(content).encode())
