"""The files of a run's folder: the one place where records become tables, JSON and arrays, and are read back."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import filterfalse
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

import numpy as np

from sortal.errors import InputError, Remedy, quoted
from sortal.images.columns import Columns, ImageColumn
from sortal.images.decoding import Quarantined
from sortal.images.review_states import STATE_WORDS, states_of
from sortal.runs import arrays
from sortal.runs.arrays import FEATURES
from sortal.runs.confidence import Confidence, Ints
from sortal.runs.facts import KChoice, Metrics, RunFacts
from sortal.runs.run import LAST_ID, STATUSES, Assignments, Candidate, Category, Run, columns_of
from sortal.system import cache
from sortal.system import csv_tables as tables
from sortal.system import files as disk
from sortal.system.json_records import read_record
from sortal.system.open_folder import own_folder
from sortal.system.regular_files import parse_json, read_json, read_regular

Whole = TypeVar("Whole")
RUN_FORMAT = "sortal run 2"
RUN, K_CHOICE, METRICS, CONFIDENCE = "run.json", "k.json", "metrics.json", "confidence.json"
ASSIGNMENTS, CATEGORIES = "assignments.csv", "categories.csv"
QUARANTINE, CANDIDATES, REJECTED = "quarantine.csv", "candidates.csv", "rejected.csv"
CENTRES, HEAD, USER_COLUMNS = "centres.npy", "head.npy", "columns.json"
OPTIONAL = {METRICS, CANDIDATES, HEAD, REJECTED, USER_COLUMNS}  # removed where a run has none
CONTENT_DIGEST = re.compile("[0-9a-f]{32}")  # the digest of a content
WAIT = 10.0  # seconds that a reader waits for a writer to finish
# Columns of CATEGORIES: fields of a category, images of its centre, and the centre's row in CENTRES.
VALUES, TEXTS, NUMBERS = (
    ("typical", "former", "made", "kept_apart"),
    ("name", "kind"),
    ("size", "labelled", "unsure", "other", "cohesion", "nearest_known_id"),
)
# Columns that earlier versions did not write, with what every cell is then.
LATER_COLUMNS = {"other": "0", "apart": "0", "made": "false", "kept_apart": "[]"}
WEIGHT, CENTRE = "centre_images", "centre"
CANDIDATE = ("candidate", "file_name", "folder", "nearest", "nearest_id")  # columns of CANDIDATES, a row per file


def write_run(run: Run, files: Mapping[str, bytes | Path | None]) -> None:
    """Write a run and further files into its folder, as one change; files that stay the same are left alone."""
    wanted: dict[str, bytes | Path | None] = {**dict.fromkeys(OPTIONAL), **_contents(run), **files}
    gone = [name for name, content in wanted.items() if content is None]
    changed = {
        name: content
        for name, content in wanted.items()
        if content is not None and (isinstance(content, Path) or not _holds(run.folder / name, content))
    }
    segments, stale = _changed_features(run)
    # Readers tell one state of a run from the next by RUN, so it is always replaced.
    facts = _json({"format": RUN_FORMAT, **asdict(run.facts)})
    disk.replace_all(run.folder, {**changed, **segments, RUN: facts}, [*gone, *stale])


def _changed_features(run: Run) -> tuple[dict[str, disk.FileContent], list[str]]:
    """Return the feature files to write and those to remove; features are recognised by their digest in RUN."""
    saved, names = peek(run.folder), arrays.segments(run.folder)
    if saved is not None and names:
        if saved.hashes.features == run.facts.hashes.features:
            return {}, []
        with suppress(OSError, ValueError):
            n = sum(len(arrays.read_array(run.folder / name)) for name in names)
            # Rows that were added get a file of their own: a run of a million images is not rewritten for a few more.
            if 0 < n < len(run.features) and cache.hashed(run.features[:n]) == saved.hashes.features:
                return {arrays.segment(len(names)): arrays.npy_parts(run.features[n:])}, []
    return {FEATURES: arrays.npy_parts(run.features)}, names[1:]


def _contents(run: Run) -> dict[str, bytes]:
    """Return the contents of a run's files by name, without its facts and features."""
    names, bad, records = run.names, run.quarantine, tables.record_columns
    categories: list[tuple[str, tables.Column]] = [
        *records(run.categories, ("id", *TEXTS, *NUMBERS)),
        *((name, [json.dumps(getattr(each, name)) for each in run.categories]) for name in VALUES),
        (CENTRE, range(len(run.categories))),
        (WEIGHT, [each.weight for each in run.categories]),
    ]
    contents = {
        ASSIGNMENTS: tables.table(columns_of(run.assignments, names)),
        CATEGORIES: tables.table(categories),
        QUARANTINE: tables.table([("file_name", [each.file for each in bad]), *records(bad, ("reason", "detail"))]),
        K_CHOICE: _json(asdict(run.k)),
        CONFIDENCE: _json(asdict(run.confidence)),
        CENTRES: b"".join(arrays.npy_parts(run.centres)),
    }
    if run.metrics is not None:
        contents[METRICS] = _json(asdict(run.metrics))
    if run.head is not None:
        contents[HEAD] = b"".join(arrays.npy_parts(run.head))
    if run.rejected:
        pairs = sorted(run.rejected)
        columns: list[tuple[str, tables.Column]] = [("content", [content for content, _ in pairs])]
        contents[REJECTED] = tables.table([*columns, ("category_id", [category for _, category in pairs])])
    if own := run.assignments.columns.each:
        saved = [{"name": each.name, "kind": each.kind, "cells": each.cells} for each in own]
        contents[USER_COLUMNS] = json.dumps(saved).encode()
    if run.candidates:
        rows = [
            (each.id, file, folder, names[each.nearest_id], each.nearest_id)
            for each in run.candidates
            for file, folder in zip(each.files, each.folders, strict=True)
        ]
        contents[CANDIDATES] = tables.table([*zip(CANDIDATE, zip(*rows, strict=True), strict=True)])
    return contents


def _holds(path: Path, content: bytes) -> bool:
    with suppress(OSError):
        return path.stat().st_size == len(content) and read_regular(path) == content
    return False


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, default=np.ndarray.tolist) + "\n").encode()


def read_whole(place: Path, read: Callable[[], Whole]) -> Whole:
    """Return what a function reads from a run's folder; repeat it if another process wrote there meanwhile."""
    patience = monotonic() + WAIT
    while True:
        before = _stamp(place)
        try:
            whole = read()
        except InputError:
            if before == _stamp(place) is not None or monotonic() > patience:
                raise
        else:
            if before == _stamp(place) is not None:
                return whole
            if monotonic() > patience:
                raise InputError(
                    f"The run in {str(place)!r} has been written to by another process for {WAIT:.0f} s. Try again."
                )
        sleep(0.01)


def _stamp(place: Path) -> tuple[int, int] | None:
    """Return what tells one state of a run from the next, or None while a change is being put into place."""
    try:
        if disk.is_pending(place):
            return None
        found = (place / RUN).stat()
    except (OSError, ValueError):
        return 0, 0
    return found.st_ino, found.st_mtime_ns


class _NoRunError(Exception):
    """A folder is not that of a run, for a reason."""


def peek(folder: Path) -> RunFacts | None:
    """Return the facts of a finished run, or None; an interrupted write is completed first."""
    try:
        return _read_facts(folder)
    except _NoRunError:
        return None


def why_damaged(folder: Path) -> str:
    """Say what is wrong with a folder that has the tables of a run; empty if nothing is, or it has none."""
    if not all((folder / name).exists() for name in (RUN, ASSIGNMENTS, CATEGORIES, CENTRES)):
        return ""
    try:
        _read_facts(folder)
    except _NoRunError as error:
        return str(error)
    return ""


def check_run(place: Path) -> dict[str, Any]:
    """Return what RUN holds; raise InputError unless a folder is that of a run."""
    try:
        return _read_about(place)
    except _NoRunError as error:
        raise InputError(
            f"A run must be a folder that sortal discover wrote, got {str(place)!r}, which {error}. "
            "If sortal discover was interrupted, repeat it to resume."
        ) from error


def _read_facts(folder: Path) -> RunFacts:
    about = _read_about(folder)
    try:
        return _facts_of(about)
    except ValueError as error:
        raise _NoRunError(f"has a damaged {RUN}: {error}") from error


def _facts_of(about: Mapping[str, Any]) -> RunFacts:
    return read_record(RunFacts, {key: value for key, value in about.items() if key != "format"}, RUN)


def _read_about(folder: Path) -> dict[str, Any]:
    """Return what RUN holds, after completing an interrupted write."""
    try:
        if not folder.is_dir():
            raise _NoRunError("is not a folder")
        if disk.is_pending(folder):
            with suppress(InputError), disk.lock_folder(folder):  # a process that is writing completes it itself
                disk.finish(folder)
        if (folder / RUN).is_file() or (folder / RUN).is_symlink():
            own_folder(folder)
        about = read_json(folder / RUN)
    except FileNotFoundError:
        raise _NoRunError("holds none") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise _NoRunError(f"has a damaged {RUN}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(about, dict) or about.get("format") != RUN_FORMAT:
        raise _NoRunError(f"has a {RUN} of another format")
    return about


def read_run(place: Path) -> Run:
    """Read the run that was saved in a folder, without decisions that were made since."""
    about = check_run(place)

    def part(name: str, read: Callable[[Path], Whole]) -> Whole:
        with _naming(place, name):
            return read(place / name)

    def record(kind: type[Whole]) -> Callable[[Path], Whole]:
        return lambda path: read_record(kind, read_json(path), path.name)

    facts = part(RUN, lambda _: _facts_of(about))
    categories = part(CATEGORIES, _read_categories)
    ids = {each.id for each in categories}
    has = {name for name in OPTIONAL if (place / name).exists()}
    if facts.recipe.clustering == "head":
        has.add(HEAD)
    parts: dict[str, Any] = {
        "assignments": part(ASSIGNMENTS, lambda path: _read_assignments(path, len(facts.images))),
        "k": part(K_CHOICE, record(KChoice)),
        "confidence": part(CONFIDENCE, record(Confidence)),
        "metrics": part(METRICS, record(Metrics)) if METRICS in has else None,
        "features": part(FEATURES, lambda _: arrays.read_features(place)),
        "centres": part(CENTRES, arrays.read_finite),
        "quarantine": part(QUARANTINE, _read_quarantine),
        "candidates": part(CANDIDATES, lambda path: _read_candidates(path, ids)) if CANDIDATES in has else (),
        "head": part(HEAD, arrays.read_finite) if HEAD in has else None,
        "rejected": part(REJECTED, _read_rejected) if REJECTED in has else frozenset(),
    }
    if USER_COLUMNS in has:
        n = len(parts["assignments"])
        own = part(USER_COLUMNS, lambda path: _read_columns(path, n))
        parts["assignments"] = replace(parts["assignments"], columns=own)
    with _naming(place, ""):
        return Run(folder=place, facts=facts, categories=categories, **parts)


def check_features(run: Run) -> None:
    """Raise InputError unless the features of a run match their digest, which takes reading all of them."""
    if cache.hashed(run.features) != run.facts.hashes.features:
        raise InputError(
            f"The run in {str(run.folder)!r} is damaged: {FEATURES} does not match its digest.",
            Remedy("repeat the command that made it", force=True),
        )


@contextmanager
def _naming(place: Path, name: str) -> Iterator[None]:
    """Turn what is wrong with a file into an InputError that names it."""
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        text = error.message if isinstance(error, InputError) else str(error) or type(error).__name__
        text = text.rstrip(".")
        raise InputError(
            f"The run in {str(place)!r} is damaged: {text if name in text else f'{name}: {text}'}.",
            Remedy("repeat the command that made it", force=True),
        ) from error


def _read_table(path: Path, *columns: str) -> dict[str, list[str]]:
    """Read a table that must have these columns, but for those that earlier versions did not write."""
    found = tables.read(path)
    length = len(next(iter(found.values()), []))
    found = {name: [cell] * length for name, cell in LATER_COLUMNS.items() if name in columns} | found
    if missing := [name for name in columns if name not in found]:
        raise ValueError(f"the column {missing[0]} is missing")
    return found


def _integers(cells: Sequence[str]) -> Ints:
    """Return whole numbers (n,) that arrays can hold."""
    numbers = [int(cell) for cell in cells]
    if numbers and not -LAST_ID <= min(numbers) <= max(numbers) <= LAST_ID:
        raise ValueError("a number is too large")
    return np.array(numbers, dtype=np.int64)


def _read_assignments(path: Path, sources: int) -> Assignments:
    numbers = ("confidence", "distance", "next_distance", "apart")
    texts = ("file_name", "label", "status", "reviewed", "content")
    table = _read_table(path, *texts, "folder", "category_id", "next_category_id", *numbers)
    folders, none = _integers(table["folder"]), [""] * len(table["file_name"])
    own = [*map(str, range(len(none)))]  # of runs before there were groups
    doubt = np.array([float(cell) for cell in table.get("doubt", ["0"] * len(none))])  # not in older runs
    suggested = _integers(table.get("suggested_id", ["-1"] * len(none)))
    for column, values, allowed in (
        ("status", {*table["status"]}, {*STATUSES}),
        ("reviewed", {*table["reviewed"]}, {*STATE_WORDS}),
        ("folder", {*folders.tolist()}, {*range(sources)}),
        ("content", {*filterfalse(CONTENT_DIGEST.fullmatch, table["content"])}, set[str]()),
    ):
        if wrong := [*map(quoted, values - allowed)]:
            raise ValueError(f"the column {column} of {ASSIGNMENTS} has an invalid cell, {min(wrong)}")
    if not ((doubt >= 0) & (doubt <= 1)).all():
        raise ValueError(f"the column doubt of {ASSIGNMENTS} must be from 0 to 1")
    measured: dict[str, Any] = {name: np.array([float(cell or "nan") for cell in table[name]]) for name in numbers}
    return Assignments(
        files=tuple(table["file_name"]),
        folders=folders,
        contents=tuple(table["content"]),
        labels=tuple(name or None for name in table["label"]),
        truth=tuple(name or None for name in table.get("truth", none)),  # which is written where any is known
        category_id=_integers(table["category_id"]),
        status=np.array(table["status"], dtype=np.str_),
        next_category_id=_integers(table["next_category_id"]),
        reviewed=states_of(table["reviewed"]),
        group=_integers(table.get("group", own)),
        doubt=doubt,
        suggested_id=suggested,
        **measured,
    )


def _read_categories(path: Path) -> tuple[Category, ...]:
    """Return the categories in the order of their centres, whatever the order of the table."""
    table = _read_table(path, "id", *TEXTS, *NUMBERS, *VALUES, CENTRE, WEIGHT)
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    rows.sort(key=lambda row: int(row[CENTRE]))
    if [int(row[CENTRE]) for row in rows] != [*range(len(rows))]:
        raise ValueError(f"the column {CENTRE} of {CATEGORIES} must number the centres")
    categories = []
    for row in rows:
        values = {name: parse_json(row[name] or "null") for name in ("id", *NUMBERS, *VALUES)}
        values |= {name: row[name] for name in TEXTS} | {"weight": int(row[WEIGHT])}
        categories.append(read_record(Category, values, CATEGORIES))
    return tuple(categories)


def _read_quarantine(path: Path) -> tuple[Quarantined, ...]:
    table: Mapping[str, list[Any]] = _read_table(path, "file_name", "reason", "detail")
    return tuple(map(Quarantined, table["file_name"], table["reason"], table["detail"]))


def _read_candidates(path: Path, ids: Collection[int]) -> tuple[Candidate, ...]:
    table = _read_table(path, *CANDIDATE)
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for number, file, folder, _, nearest in zip(*(table[name] for name in CANDIDATE), strict=True):
        if int(nearest) not in ids:
            raise ValueError(f"{CANDIDATES} names a category that does not exist, {quoted(nearest)}")
        found.setdefault((int(number), int(nearest)), []).append((file, int(folder)))
    return tuple(
        Candidate(id=number, files=tuple(f for f, _ in rows), folders=tuple(at for _, at in rows), nearest_id=nearest)
        for (number, nearest), rows in found.items()
    )


def _read_columns(path: Path, n: int) -> Columns:
    """Read the columns of a user's table, each with n cells."""
    found = []
    for each in read_record(tuple[dict[str, Any], ...], read_json(path), path.name):
        cells = each.pop("cells", None)
        if not isinstance(cells, list) or len(cells) != n or not all(type(cell) is str for cell in cells):
            raise ValueError(f"every column of {USER_COLUMNS} must have {n:,} texts")
        found.append(replace(read_record(ImageColumn, {**each, "cells": []}, path.name), cells=tuple(cells)))
    if len({column.name for column in found}) < len(found):
        raise ValueError(f"the columns of {USER_COLUMNS} must have names of their own")
    return Columns(tuple(found))


def _read_rejected(path: Path) -> frozenset[tuple[str, int]]:
    table = _read_table(path, "content", "category_id")
    return frozenset(zip(table["content"], map(int, table["category_id"]), strict=True))
