"""The contract of an export format: the request it gets, and the description it gives of itself."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from sortal.runs.naming import folder_names, shared_names
from sortal.runs.run import MOVED, REJECTED, Run
from sortal.system.files import write_atomically
from sortal.system.progress import Runtime
from sortal.system.regular_files import open_regular

T = TypeVar("T")
How: TypeAlias = Literal["hardlink", "symlink", "copy"]


class Row(NamedTuple):
    """An image and its category; the fields are the columns of a table."""

    file_name: str  # as the user wrote it, or relative to the folder of the images
    image_folder: str  # the end of its path, which tells the folders of a run apart
    path: str  # absolute; empty if the image was given as pixels
    category: str
    category_id: int
    status: str
    confidence: float | None
    reviewed: str
    label: str | None  # that the user gave; of an image that was moved, where to; None if it was rejected
    truth: str | None
    sorted_as: str  # the category again, by which an edited one is told when the table is read
    content: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to export and where to write it."""

    run: Run
    rows: tuple[Row, ...]
    out: Path  # the file to write, or an existing empty folder
    how: How
    absolute_paths: bool
    runtime: Runtime

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that say where an image is: in which of several folders, and its path if that is wanted."""
        several = len(self.run.facts.images) > 1
        return (*["image_folder"] * several, *["path"] * self.absolute_paths)


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
    ids, reviewed = a.category_id.tolist(), a.reviewed.tolist()
    called = [names[each] for each in ids]
    confidence = [round(each, 6) if isfinite(each) else None for each in a.confidence.tolist()]
    labels = [
        None if label is None or state == REJECTED else name if state == MOVED else label
        for label, state, name in zip(a.labels, reviewed, called, strict=True)
    ]
    folders, at = folder_names(run.facts.images), a.folders.tolist()
    where = shared_names(run), [folders[each] for each in at], paths_of(run)
    columns = *where, called, ids, a.status.tolist(), confidence, reviewed, labels, a.truth
    return tuple(Row(*row) for row in zip(*columns, called, a.contents, strict=True))


def paths_of(run: Run) -> list[str]:
    """Return the absolute path of each image, as `Run.paths` does, but empty for images given as pixels."""
    a = run.assignments
    paths = (run.facts.images[at].path_of(file) for file, at in zip(a.files, a.folders.tolist(), strict=True))
    return [path and os.path.abspath(path) for path in paths]


def visit(request: Request, use: Callable[[Row], T | None]) -> tuple[list[tuple[Row, T]], list[str]]:
    """Call `use` on each image; return its results, and the names of the images for which it returned None."""
    done: list[tuple[Row, T]] = []
    missing: list[str] = []
    for number, row in enumerate(request.rows, start=1):
        result = use(row)
        if result is None:
            missing.append(row.file_name)
        else:
            done.append((row, result))
        request.runtime.progress("Exporting", number, len(request.rows))
    return done, missing


def has_content(path: str) -> bool:
    """Tell whether a path is a readable file that is not empty."""
    with suppress(OSError), open_regular(path) as file:
        return bool(file.read(1))
    return False


def utf8(text: str) -> str:
    """Escape the bytes of a file or class name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_json(path: Path, content: Any) -> None:
    """Write JSON in ASCII, whose escapes preserve even file names that are not UTF-8."""
    write_atomically(path, json.dumps(content).encode())
