"""The contract of an export format: the request it gets, and the description it gives of itself."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from sortal.exchange.naming import folder_names, shared_names, shared_text
from sortal.images.columns import GROUP_COLUMN, NEAR_DUPLICATES, is_missing
from sortal.images.exported import NO_CATEGORY, ExportedRow
from sortal.images.originals import ChangedError, Originals, indexes_below
from sortal.images.review_states import ReviewState, words_of
from sortal.runs.run import Run
from sortal.system.files import write_atomically
from sortal.system.progress import Runtime

T = TypeVar("T")
How: TypeAlias = Literal["hardlink", "symlink", "copy"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to export and where to write it."""

    run: Run
    rows: tuple[ExportedRow, ...]
    originals: Originals  # the files, row by row
    out: Path  # the file to write, or an existing empty folder
    how: How
    absolute_paths: bool
    runtime: Runtime

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that say where an image belongs: in which of several folders and groups, its path if wanted."""
        several = len(self.run.facts.images) > 1
        return (*["image_folder"] * several, *["path"] * self.absolute_paths, *self.attributes)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The columns that not every run has, and every format: its groups, and that confidence is not calibrated."""
        grouped = any(row.group for row in self.rows)
        return (*[GROUP_COLUMN] * grouped, *["calibrated"] * (not self.run.confidence.calibrated))


class LeftOut(NamedTuple):
    """The names of images that could not be exported."""

    missing: tuple[str, ...] = ()  # no longer there, or unreadable
    changed: tuple[str, ...] = ()  # with another content than the one that was sorted


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """One export format. `write` returns the images it could not export."""

    write: Callable[[Request], LeftOut]
    extension: str = ""  # of its one file; empty if it is a folder
    needs_files: bool = False  # whether it reads the images
    holds_images: bool = False


def rows_of(run: Run, *, absolute_paths: bool = False) -> tuple[ExportedRow, ...]:
    """Return one row per image, in the order of the run."""
    a, names = run.assignments, run.names
    ids, reviewed = a.category_id.tolist(), words_of(a.reviewed)
    refuted = np.isin(a.reviewed, (ReviewState.REJECTED, ReviewState.BINNED)).tolist()
    moved = (a.reviewed == ReviewState.MOVED).tolist()
    called = [names.get(each, "") for each in ids]
    confidence = [round(each, 6) if isfinite(each) else None for each in a.confidence.tolist()]
    labels = [
        "" if label is None or wrong else name if elsewhere else label
        for label, wrong, elsewhere, name in zip(a.labels, refuted, moved, called, strict=True)
    ]
    folders, at = folder_names(run.facts.images), a.folders.tolist()
    where = shared_names(run), [folders[each] for each in at], paths_of(run)
    truth = [each or "" for each in a.truth]
    columns = *where, called, ids, a.status.tolist(), confidence, reviewed, labels, truth
    groups, own = group_names(run, absolute_paths), _own_cells(run, absolute_paths)
    sorted_as = [names.get(each, NO_CATEGORY) for each in ids]
    calibrated = ["" if run.confidence.calibrated else "no"] * len(ids)
    last = sorted_as, a.contents, groups, calibrated, own
    return tuple(ExportedRow(*row) for row in zip(*columns, *last, strict=True))


def _own_cells(run: Run, absolute_paths: bool) -> list[dict[str, str | Decimal | None]]:
    """Return the cells of the user's columns by name, without the places of the images on this computer."""
    own = [each for each in run.assignments.columns.each if each.name != GROUP_COLUMN]

    def shared(cell: str | Decimal | None) -> str | Decimal | None:
        if absolute_paths or not isinstance(cell, str) or not ("/" in cell or "\\" in cell):
            return cell
        return shared_text(cell, run.facts)

    names = [each.name for each in own]
    if not own:
        return [{}] * len(run.assignments)
    cells = zip(*(map(shared, each.typed()) for each in own), strict=True)
    return [dict(zip(names, row, strict=True)) for row in cells]


def group_names(run: Run, absolute_paths: bool = False) -> list[str]:
    """Return the group of each image: the given one, or a number that near-duplicates share; empty without either.

    The names of groups do not say where the images are on this computer, unless `absolute_paths` are wanted.
    """
    a = run.assignments
    given = a.columns.get(GROUP_COLUMN)
    cells = ["" if given is None or is_missing(cell) else cell for cell in (given.cells if given else [""] * len(a))]
    sizes = np.bincount(a.group)
    found = {group: cell for group, cell in zip(a.group.tolist(), cells, strict=True) if cell}
    for group in np.flatnonzero(sizes > 1).tolist():
        found.setdefault(group, f"{NEAR_DUPLICATES} {group + 1}")
    names = [own or found.get(group, "") for own, group in zip(cells, a.group.tolist(), strict=True)]
    if absolute_paths:
        return names
    shared = {name: shared_text(name, run.facts) for name in {*names}}
    return [shared[name] for name in names]


def paths_of(run: Run) -> list[str]:
    """Return the absolute path of each image, as `Run.paths` does, but empty for images given as pixels."""
    a = run.assignments
    paths = (run.facts.images[at].path_of(file) for file, at in zip(a.files, a.folders.tolist(), strict=True))
    return [path and os.path.abspath(path) for path in paths]


def originals_of(run: Run) -> Originals:
    """Return the files of a run; its cache knows when they were read."""
    compared = run.facts.features is None
    return Originals(paths_of(run), run.assignments.contents, indexes_below(run.cache), compared=compared)


def visit(request: Request, use: Callable[[int], T | None]) -> tuple[list[tuple[ExportedRow, T]], LeftOut]:
    """Call `use` on the number of each row; return its results, and the images for which there are none.

    It returns None for a file that cannot be read, and raises ChangedError for one that has changed.
    """
    done: list[tuple[ExportedRow, T]] = []
    missing, changed = list[str](), list[str]()
    for number, row in enumerate(request.rows):
        try:
            result = use(number)
        except ChangedError:
            changed.append(row.file_name)
        else:
            if result is None:
                missing.append(row.file_name)
            else:
                done.append((row, result))
        request.runtime.progress("Exporting", number + 1, len(request.rows))
    return done, LeftOut(tuple(missing), tuple(changed))


def is_there(request: Request, number: int) -> bool:
    """Tell whether the file of a row can be read; raise ChangedError if it has changed."""
    try:
        request.originals.open(number).close()
    except (OSError, ValueError):  # the latter for a name that no file can have
        return False
    return True


def write_json(path: Path, content: Any) -> None:
    """Write JSON in ASCII, whose escapes preserve even file names that are not UTF-8."""
    write_atomically(path, json.dumps(content).encode())
