"""A run folder: the only place that knows the names of its files and what is in them."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sortal import cells, whole
from sortal.cells import Column
from sortal.errors import InputError
from sortal.images import ImageSet, image_set
from sortal.lock import alone
from sortal.pixels import Quarantined

if TYPE_CHECKING:
    import pandas

FORMAT = "sortal run 1"
RUN, K, METRICS, CONFIDENCE = "run.json", "k.json", "metrics.json", "confidence.json"
ASSIGNMENTS, CATEGORIES = "assignments.csv", "categories.csv"
QUARANTINE, CANDIDATES = "quarantine.csv", "candidates.csv"
FEATURES, CENTRES = "features.npy", "centres.npy"
MODEL, LOG, REPORT = "model", "log.jsonl", "report.html"  # MODEL.safetensors and MODEL.json
HEAD, INITIAL = "head.npy", "initial.safetensors"  # INITIAL: what was trained of the backbone, as it was before
OPTIONAL = {METRICS, CANDIDATES, LOG, HEAD, INITIAL}  # files that not every run has
CACHE = "cache"  # what stages keep, to be used again
WAIT = 10.0  # seconds that a reader waits for a process that puts files into their places

Kind = Literal["known", "new"]
LABELLED, KNOWN, NEW, UNSURE = STATUSES = ("labelled", "known", "new", "unsure")


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignments:
    """Where every image went, one row each."""

    files: tuple[str, ...]  # names as the user wrote them
    folders: NDArray[np.int64]  # (n,) which of the run's folders each lies in
    contents: tuple[str, ...]  # digests
    labels: tuple[str | None, ...]  # names of classes; None is unlabelled
    truth: tuple[str | None, ...]  # names of classes where known; for evaluation only
    category: NDArray[np.int64]  # (n,) ids; of a labelled image its class, of any other the most likely
    status: NDArray[np.str_]  # (n,) one of STATUSES
    confidence: NDArray[np.float64]  # (n,) that the category is the right one; 1 for labelled images
    distance: NDArray[np.float64]  # (n,) to the centre of the own category
    next_category: NDArray[np.int64]  # (n,) ids: the most likely of the others; −1 where there is no other
    next_distance: NDArray[np.float64]  # (n,) to its centre; NaN where there is no other

    def __len__(self) -> int:
        return len(self.files)

    def select(self, rows: NDArray[np.bool_]) -> Assignments:
        """Those of a mask (n,)."""
        picked = np.flatnonzero(rows)
        columns = {name: _picked(column, picked) for name, column in vars(self).items()}
        return Assignments(**columns)

    def joined(self, other: Assignments) -> Assignments:
        """These rows, then the others."""
        columns: dict[str, Any] = {}
        for name, column in vars(self).items():
            more = getattr(other, name)
            columns[name] = np.concatenate([column, more]) if isinstance(column, np.ndarray) else column + more
        return Assignments(**columns)


def _picked(column: Any, rows: NDArray[np.int64]) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else tuple(column[row] for row in rows.tolist())


@dataclass(frozen=True, kw_only=True)
class Category:
    """A class that has a name, or one that was found."""

    id: int  # row of the centres; kept when images are added
    name: str
    kind: Kind
    size: int  # images, labelled and unsure ones included
    labelled: int
    unsure: int
    cohesion: float | None  # mean cosine similarity of its images to its centre; None without images
    nearest_known: int | None  # id of the known category whose centre is nearest, itself excepted
    typical: tuple[str, ...]  # files nearest to the centre, the nearest first


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Images that were added and are far from every category: perhaps one of their own."""

    id: int
    files: tuple[str, ...]  # the most typical first
    folders: tuple[int, ...]  # which of the run's folders each lies in: two may have a file of the same name
    nearest: int  # id of the category whose centre is nearest


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What a run found, and the folder it is kept in."""

    folder: Path
    about: dict[str, Any]  # run.json: settings, versions, seeds, hashes, timings
    assignments: Assignments
    categories: tuple[Category, ...]  # row j has id j
    k: dict[str, Any]  # k.json: k, whether it was estimated, curve, interval
    confidence: dict[str, Any]  # confidence.json: what turns distances into confidence
    metrics: dict[str, Any] | None  # metrics.json, where the truth is known
    features: NDArray[np.float32]  # (n, d), rows of length 1
    centres: NDArray[np.float32]  # (k, d)
    quarantine: tuple[Quarantined, ...]  # images that could not be read; they are in no other table
    candidates: tuple[Candidate, ...] = ()
    head: NDArray[np.float32] | None = None  # (k, d + 1) weights and biases of a classifier, where one was trained

    def __post_init__(self) -> None:
        sizes = [category.size for category in self.categories]
        if [category.id for category in self.categories] != [*range(len(self.centres))]:
            raise ValueError("every category must have a centre")
        if sum(sizes) != len(self.assignments):
            raise ValueError("the sizes of categories must sum to the images")
        if len(self.assignments) != len(self.features):
            raise ValueError("every image must have features")
        if self.head is not None and self.head.shape != (len(self.centres), self.centres.shape[1] + 1):
            raise ValueError("a classifier must tell all categories by features")

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    @property
    def cache(self) -> Path:
        """Where stages kept what they made; a benchmark's runs share one, as long as it is there."""
        shared = self.about.get("cache")
        return Path(shared) if shared and Path(shared).is_dir() else self.folder / CACHE

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each category, by id."""
        return tuple(category.name for category in self.categories)

    def paths(self) -> list[str]:
        """Where each image opens."""
        sources = self.about["images"]
        if any(source["folder"] is None for source in sources):
            raise InputError("The images of this run were given as an array: there are no files of them.")
        rows = zip(self.assignments.files, self.assignments.folders.tolist(), strict=True)
        return [sources[at]["paths"].get(file) or os.path.join(sources[at]["folder"], file) for file, at in rows]

    def images(self) -> ImageSet:
        """The images as they were read, but for those that could not be."""
        a = self.assignments
        return image_set(a.files, paths=self.paths(), labels=a.labels, truth=a.truth)

    def counts(self) -> dict[str, int]:
        """How many images have each status."""
        return {status: int((self.assignments.status == status).sum()) for status in STATUSES}

    def to_json(self) -> dict[str, Any]:
        """The result in short; the tables are in the folder."""
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "images": len(self.assignments),
            "status": self.counts(),
            "k": self.k,
            "metrics": self.metrics,
            "categories": [asdict(category) for category in self.categories],
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "quarantine": [asdict(bad) for bad in self.quarantine],
            "notes": self.about["notes"],
        }

    def to_pandas(self) -> pandas.DataFrame:
        """One row per image, as in assignments.csv."""
        import pandas

        columns = columns_of(self.assignments, self.names)
        return pandas.DataFrame({name: pandas.Series(list(column), dtype=_dtype(column)) for name, column in columns})

    def __repr__(self) -> str:
        new = sum(category.kind == NEW for category in self.categories)
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts().items())
        return (
            f"<Run: {len(self.assignments):,} images ({counts}) in {len(self.categories):,} categories, "
            f"{new:,} of them new; {str(self.report)!r}>"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(each.name)}</td><td>{each.kind}</td><td>{each.size:,}</td></tr>"
            for each in self.categories
        )
        html = f"<p><i>{escape(repr(self)[1:-1])}</i></p><table>{rows}</table>"
        return html.encode("utf-8", "backslashreplace").decode("utf-8")

    def save(self, files: Mapping[str, bytes | Path], *, keep: Collection[str] = ()) -> None:
        """Write the run and further files, by name, into its folder: all of them or, to a reader, none.

        Optional files of an earlier run that are not written now are removed, unless they are to be kept.
        """
        written = {**self._written(), **files}
        whole.replace_all(self.folder, written, OPTIONAL - written.keys() - set(keep))

    def _written(self) -> dict[str, bytes]:
        written = {
            ASSIGNMENTS: cells.table(columns_of(self.assignments, self.names)),
            CATEGORIES: cells.table(_of_categories(self.categories)),
            QUARANTINE: cells.table(
                [
                    ("file_name", [bad.file for bad in self.quarantine]),
                    *_of_records(self.quarantine, ("reason", "detail")),
                ]
            ),
            K: _json(self.k),
            CONFIDENCE: _json(self.confidence),
            FEATURES: _npy(self.features),
            CENTRES: _npy(self.centres),
            RUN: _json({"format": FORMAT, **self.about}),
        }
        if self.metrics is not None:
            written[METRICS] = _json(self.metrics)
        if self.head is not None:
            written[HEAD] = _npy(self.head)
        if self.candidates:
            written[CANDIDATES] = cells.table(_of_candidates(self.candidates, self.names))
        return written


def load(folder: str | os.PathLike[str]) -> Run:
    """The run in a folder; files that another process is just putting into their places are waited for."""
    place, patience = Path(folder), monotonic() + WAIT
    while True:
        before = _stamp(place)
        try:
            found = _load(place)
        except InputError:
            if before == _stamp(place) is not None or monotonic() > patience:
                raise
        else:
            if before == _stamp(place) is not None:
                return found
            if monotonic() > patience:
                raise InputError(f"The run in {str(place)!r} is being written, and was for {WAIT:.0f} s. Try again.")
        sleep(0.01)


def _stamp(place: Path) -> tuple[int, int] | None:
    """What tells one run in a folder from the next, or nothing while files of both are there."""
    try:
        if whole.is_pending(place):
            return None
        found = (place / RUN).stat()
    except (OSError, ValueError):
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _load(place: Path) -> Run:
    about = peek(place)
    if about is None:
        what = "holds none" if place.is_dir() else "is no folder"
        raise InputError(
            f"A run must be the folder that sortal discover wrote, got {str(place)!r}, which {what}. "
            "If the run was interrupted, give the same command again."
        )
    try:
        del about["format"]
        categories = _read_categories(cells.read(place / CATEGORIES))
        return Run(
            folder=place,
            about=about,
            assignments=_read_assignments(cells.read(place / ASSIGNMENTS)),
            categories=categories,
            k=_read_json(place / K),
            confidence=_read_json(place / CONFIDENCE),
            metrics=_read_json(place / METRICS) if (place / METRICS).exists() else None,
            features=np.load(place / FEATURES, mmap_mode="r", allow_pickle=False),
            centres=np.load(place / CENTRES, allow_pickle=False),
            quarantine=_read_quarantine(cells.read(place / QUARANTINE)),
            candidates=_read_candidates(place / CANDIDATES),
            head=np.load(place / HEAD, allow_pickle=False) if _has_head(about, place) else None,
        )
    except (OSError, EOFError, ValueError, ArithmeticError, LookupError, TypeError, csv.Error) as error:
        raise InputError(
            f"The run in {str(place)!r} is damaged: {str(error).rstrip('.') or type(error).__name__}. "
            "Give the command that made it again, with --force."
        ) from error


def _has_head(about: Mapping[str, Any], place: Path) -> bool:
    """Whether a classifier is to be read, also where its file is gone: without it, categories would be others."""
    return about.get("recipe", {}).get("clustering") == "head" or (place / HEAD).exists()


def peek(folder: Path) -> dict[str, Any] | None:
    """What run.json says, or nothing where there is no finished run. Writing that a kill broke off is ended first."""
    try:
        if whole.is_pending(folder):
            with suppress(InputError), alone(folder):  # where a process is at work, it ends it by itself
                whole.finish(folder)
        about = _read_json(folder / RUN)
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and about.get("format") == FORMAT else None


# Tables: a cell that a spreadsheet would take for a formula gets a ' in front, which reading takes away.


def columns_of(a: Assignments, names: Sequence[str]) -> list[tuple[str, Column]]:
    """The columns of assignments.csv; `names` are those of the categories."""
    columns: list[tuple[str, Column]] = [
        ("file_name", a.files),
        ("label", a.labels),
        ("category", a.category),
        ("category_name", [names[i] for i in a.category.tolist()]),
        ("status", a.status),
        ("confidence", a.confidence),
        ("distance", a.distance),
        ("next_category", a.next_category),
        ("next_distance", a.next_distance),
        ("folder", a.folders),
        ("content", a.contents),
    ]
    if any(truth is not None for truth in a.truth):
        columns.insert(2, ("truth", a.truth))
    return columns


def _of_categories(categories: Sequence[Category]) -> list[tuple[str, Column]]:
    columns = _of_records(categories, ("id", "name", "kind", "size", "labelled", "unsure", "cohesion", "nearest_known"))
    return [*columns, ("typical", [json.dumps(each.typical) for each in categories])]


def _of_candidates(candidates: Sequence[Candidate], names: Sequence[str]) -> list[tuple[str, Column]]:
    """One row a file."""
    rows = [(each, *at) for each in candidates for at in zip(each.files, each.folders, strict=True)]
    return [
        ("candidate", [each.id for each, _, _ in rows]),
        ("file_name", [file for _, file, _ in rows]),
        ("folder", [folder for _, _, folder in rows]),
        ("nearest", [each.nearest for each, _, _ in rows]),
        ("nearest_name", [names[each.nearest] for each, _, _ in rows]),
    ]


def _of_records(records: Iterable[Any], fields: Sequence[str]) -> list[tuple[str, Column]]:
    records = list(records)
    return [(name, [getattr(each, name) for each in records]) for name in fields]


def _read_assignments(table: Mapping[str, Sequence[str]]) -> Assignments:
    n = len(table["file_name"])
    return Assignments(
        files=tuple(table["file_name"]),
        folders=np.array(table["folder"], dtype=np.int64),
        contents=tuple(table["content"]),
        labels=tuple(name or None for name in table["label"]),
        truth=tuple(name or None for name in table.get("truth", [""] * n)),
        category=np.array(table["category"], dtype=np.int64),
        status=np.array(table["status"], dtype=np.str_),
        confidence=_numbers(table["confidence"]),
        distance=_numbers(table["distance"]),
        next_category=np.array(table["next_category"], dtype=np.int64),
        next_distance=_numbers(table["next_distance"]),
    )


def _numbers(cells: Sequence[str]) -> NDArray[np.float64]:
    return np.array([float(cell or "nan") for cell in cells])


def _read_categories(table: Mapping[str, Sequence[str]]) -> tuple[Category, ...]:
    return tuple(
        Category(
            id=int(row["id"]),
            name=row["name"],
            kind="known" if row["kind"] == "known" else "new",
            size=int(row["size"]),
            labelled=int(row["labelled"]),
            unsure=int(row["unsure"]),
            cohesion=float(row["cohesion"]) if row["cohesion"] else None,
            nearest_known=int(row["nearest_known"]) if row["nearest_known"] else None,
            typical=tuple(json.loads(row["typical"])),
        )
        for row in (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    )


def _read_quarantine(table: Mapping[str, Sequence[Any]]) -> tuple[Quarantined, ...]:
    return tuple(map(Quarantined, table["file_name"], table["reason"], table["detail"]))


def _read_candidates(path: Path) -> tuple[Candidate, ...]:
    if not path.exists():
        return ()
    table = cells.read(path)
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for number, nearest, file, folder in zip(
        table["candidate"], table["nearest"], table["file_name"], table["folder"], strict=True
    ):
        found.setdefault((int(number), int(nearest)), []).append((file, int(folder)))
    return tuple(
        Candidate(id=number, files=tuple(f for f, _ in rows), folders=tuple(at for _, at in rows), nearest=nearest)
        for (number, nearest), rows in found.items()
    )


def _dtype(column: Column) -> Any:
    return column.dtype if isinstance(column, np.ndarray) and column.dtype.kind in "if" else object


def _npy(array: NDArray[np.float32]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
