"""The files of a run's folder: the one place where records become tables, JSON and arrays, and are read back."""

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import count, filterfalse, takewhile
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, Remedy, quoted
from sortal.images.decoding import Quarantined
from sortal.runs.confidence import Confidence
from sortal.runs.facts import KChoice, Metrics, RunFacts
from sortal.runs.run import OPEN, REVIEWED, STATUSES, Assignments, Candidate, Category, Run, columns_of
from sortal.system import cache
from sortal.system import csv_tables as tables
from sortal.system import files as disk
from sortal.system.json_records import read_record
from sortal.system.open_folder import own_folder
from sortal.system.regular_files import open_regular, parse_json, read_json, read_regular

T = TypeVar("T")
FORMAT, FORMAT_1 = "sortal run 2", "sortal run 1"
RUN, K, METRICS, CONFIDENCE = "run.json", "k.json", "metrics.json", "confidence.json"
ASSIGNMENTS, CATEGORIES = "assignments.csv", "categories.csv"
QUARANTINE, CANDIDATES, REJECTED = "quarantine.csv", "candidates.csv", "rejected.csv"
FEATURES, CENTRES, HEAD = "features.npy", "centres.npy", "head.npy"
OPTIONAL = {METRICS, CANDIDATES, HEAD, REJECTED}  # removed where a run has none
FORMER = ("strangers", "surest")  # keys of CONFIDENCE that are no longer used
FORMER_FACTS = ("edits", "cache")  # and of RUN: nothing in a run names a place for Sortal to write to
DAMAGES = (
    OSError,
    EOFError,
    ValueError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    MemoryError,
    csv.Error,
)
HEXADECIMAL = re.compile("[0-9a-f]{32}")  # the digest of a content
HEADERS = Lock()  # Python 3.11 may fail where two threads parse headers of arrays at the same time
WAIT = 10.0  # seconds that a reader waits for a writer to finish
# Columns of CATEGORIES: fields of a category, images of its centre, and the centre's row in CENTRES.
LISTS, TEXTS, NUMBERS = (
    ("typical", "former"),
    ("name", "kind"),
    ("size", "labelled", "unsure", "cohesion", "nearest_known_id"),
)
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
    facts = _json({"format": FORMAT, **asdict(run.facts)})
    disk.replace_all(run.folder, {**changed, **segments, RUN: facts}, [*gone, *stale])


def _changed_features(run: Run) -> tuple[dict[str, disk.Content], list[str]]:
    """Return the feature files to write and those to remove; features are recognised by their digest in RUN."""
    saved, names = peek(run.folder), _segments(run.folder)
    if saved is not None and names:
        if saved.hashes.features == run.facts.hashes.features:
            return {}, []
        with suppress(OSError, ValueError):
            n = sum(len(_read_array(run.folder / name)) for name in names)
            # Rows that were added get a file of their own: a run of a million images is not rewritten for a few more.
            if 0 < n < len(run.features) and cache.hashed(run.features[:n]) == saved.hashes.features:
                return {_segment(len(names)): _npy_parts(run.features[n:])}, []
    return {FEATURES: _npy_parts(run.features)}, names[1:]


def _segment(at: int) -> str:
    return FEATURES if at == 0 else f"features-{at + 1}.npy"


def _segments(place: Path) -> list[str]:
    """List the feature files of a run: the rows of the first, then of those that were added."""
    return list(takewhile(lambda name: (place / name).exists(), map(_segment, count())))


def _contents(run: Run) -> dict[str, bytes]:
    """Return the contents of a run's files by name, without its facts and features."""
    names, bad, records = run.names, run.quarantine, tables.record_columns
    categories: list[tuple[str, tables.Column]] = [
        *records(run.categories, ("id", *TEXTS, *NUMBERS)),
        *((name, [json.dumps(getattr(each, name)) for each in run.categories]) for name in LISTS),
        (CENTRE, range(len(run.categories))),
        (WEIGHT, [each.weight for each in run.categories]),
    ]
    contents = {
        ASSIGNMENTS: tables.table(columns_of(run.assignments, names)),
        CATEGORIES: tables.table(categories),
        QUARANTINE: tables.table([("file_name", [each.file for each in bad]), *records(bad, ("reason", "detail"))]),
        K: _json(asdict(run.k)),
        CONFIDENCE: _json(asdict(run.confidence)),
        CENTRES: _npy(run.centres),
    }
    if run.metrics is not None:
        contents[METRICS] = _json(asdict(run.metrics))
    if run.head is not None:
        contents[HEAD] = _npy(run.head)
    if run.rejected:
        pairs = sorted(run.rejected)
        columns: list[tuple[str, tables.Column]] = [("content", [content for content, _ in pairs])]
        contents[REJECTED] = tables.table([*columns, ("category_id", [category for _, category in pairs])])
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


def _npy(array: NDArray[np.float32]) -> bytes:
    return b"".join(_npy_parts(array))


def _npy_parts(array: NDArray[np.float32]) -> tuple[bytes, memoryview]:
    """Return the two parts of a .npy file, its header and the array, of which no copy is made."""
    header, rows = io.BytesIO(), np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(rows))
    return header.getvalue(), rows.reshape(-1).view(np.uint8).data


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, default=np.ndarray.tolist) + "\n").encode()


def read_whole(place: Path, read: Callable[[], T]) -> T:
    """Return what a function reads from the folder of a run, once no other process has written there meanwhile."""
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


def peek(folder: Path) -> RunFacts | None:
    """Return the facts of a finished run, or None; an interrupted write is completed first."""
    about = _read_about(folder)
    try:
        return None if about is None else _read_facts(about)
    except (ValueError, LookupError, TypeError):
        return None


def _read_about(folder: Path) -> dict[str, Any] | None:
    """Return what RUN holds, or None where it is not that of a run."""
    try:
        if disk.is_pending(folder):
            with suppress(InputError), disk.lock_folder(folder):  # a process that is writing completes it itself
                disk.finish(folder)
        if (folder / RUN).is_file() or (folder / RUN).is_symlink():
            own_folder(folder)
        about = read_json(folder / RUN)
    except InputError:
        raise
    except (OSError, ValueError):
        return None
    if not isinstance(about, dict) or about.get("format") not in (FORMAT, FORMAT_1):
        return None
    return about


def check_run(place: Path) -> dict[str, Any]:
    """Return what RUN holds; raise InputError unless a folder is that of a run."""
    about = _read_about(place)
    if about is None:
        what = _why_no_run(place)
        raise InputError(
            f"A run must be a folder that sortal discover wrote, got {str(place)!r}, which {what}. "
            "If sortal discover was interrupted, repeat it to resume."
        )
    return about


def read_run(place: Path) -> Run:
    """Read the run that was saved in a folder, without decisions that were made since."""
    about = check_run(place)
    with _named(place, RUN):
        facts = _read_facts(about)
    with _named(place, CONFIDENCE):
        confidence = dict(read_json(place / CONFIDENCE))
    with _named(place, CATEGORIES):
        table = tables.read(place / CATEGORIES)
    with _named(place, METRICS):
        metrics = read_json(place / METRICS) if (place / METRICS).exists() else None
        if about["format"] == FORMAT_1:
            _upgrade(about, table, confidence, metrics)
        scores = None if metrics is None else read_record(Metrics, metrics, METRICS)
    with _named(place, CONFIDENCE):
        for former in FORMER:
            confidence.pop(former, None)
        confident = read_record(Confidence, confidence, CONFIDENCE)
    with _named(place, CATEGORIES):
        categories = _read_categories(table)
    with _named(place, ASSIGNMENTS):
        assignments = _read_assignments(tables.read(place / ASSIGNMENTS), len(facts.images))
    with _named(place, K):
        k = read_record(KChoice, read_json(place / K), K)
    with _named(place, FEATURES):
        features = _read_features(place)
    with _named(place, CENTRES):
        centres = _read_finite(place / CENTRES)
    with _named(place, QUARANTINE):
        bad: Mapping[str, list[Any]] = tables.read(place / QUARANTINE)
        quarantine = tuple(map(Quarantined, bad["file_name"], bad["reason"], bad["detail"]))
    with _named(place, CANDIDATES):
        candidates = _read_candidates(place / CANDIDATES, {each.id for each in categories})
    with _named(place, HEAD):
        has_head = facts.recipe.clustering == "head" or (place / HEAD).exists()
        head = _read_finite(place / HEAD) if has_head else None
    with _named(place, REJECTED):
        rejected = _read_rejected(place / REJECTED)
    with _named(place, ""):
        return Run(
            folder=place,
            facts=facts,
            assignments=assignments,
            categories=categories,
            k=k,
            confidence=confident,
            metrics=scores,
            features=features,
            centres=centres,
            quarantine=quarantine,
            candidates=candidates,
            head=head,
            rejected=rejected,
        )


def why_damaged(folder: Path) -> str:
    """Say what is wrong with the run in a folder that has the tables of one; empty where it has none, or is right."""
    if not all((folder / name).exists() for name in (RUN, ASSIGNMENTS, CATEGORIES, CENTRES)) or peek(folder):
        return ""
    return _why_no_run(folder)


def check_features(run: Run) -> None:
    """Raise InputError unless the features of a run are those that were saved; all of them are read."""
    if cache.hashed(run.features) != run.facts.hashes.features:
        raise InputError(
            f"The run in {str(run.folder)!r} is damaged: {FEATURES} does not match its digest.",
            Remedy("repeat the command that made it", force=True),
        )


def _why_no_run(place: Path) -> str:
    if not place.is_dir():
        return "is not a folder"
    try:
        about = read_json(place / RUN)
        if not isinstance(about, dict) or about.get("format") not in (FORMAT, FORMAT_1):
            return f"has a {RUN} of another format"
        _read_facts(about)
    except FileNotFoundError:
        return "holds none"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"has a damaged {RUN}: {getattr(error, 'strerror', None) or error}"
    return "holds none"


@contextmanager
def _named(place: Path, name: str) -> Iterator[None]:
    """Turn whatever reading a damaged file raises into an InputError that names it."""
    try:
        yield
    except DAMAGES as error:
        text = str(error).rstrip(".") or type(error).__name__
        if isinstance(error, InputError):
            text = error.message.rstrip(".")
        raise InputError(
            f"The run in {str(place)!r} is damaged: {text if name in text else f'{name}: {text}'}.",
            Remedy("repeat the command that made it", force=True),
        ) from error


def _read_facts(about: Mapping[str, Any]) -> RunFacts:
    facts = {key: value for key, value in about.items() if key not in ("format", *FORMER_FACTS)}
    if about["format"] == FORMAT_1:
        facts["next_id"] = len(facts.pop("centre_sizes"))
        del facts["classes"]
    return read_record(RunFacts, facts, RUN)


def _upgrade(about: Mapping[str, Any], categories: dict[str, list[str]], confidence: Any, metrics: Any) -> None:
    """Turn the files of version 0.1, where a category's id was the row of its centre, into today's."""
    categories[CENTRE], categories[WEIGHT] = categories["id"], [*map(str, about["centre_sizes"])]
    confidence["usual"] = confidence.pop("usual_distance")
    del confidence["calibrated"], confidence["known"]
    for each in () if metrics is None else metrics["reliability"]:
        each["low"], each["high"] = each.pop("from"), each.pop("to")


def _read_features(place: Path) -> NDArray[np.float32]:
    """Map the features into memory where they are one file, else join them."""
    parts = [_read_array(place / name) for name in _segments(place) or [FEATURES]]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _read_array(path: Path) -> NDArray[np.float32]:
    """Map an array into memory, which must be the whole file: a header cannot claim more than there is."""
    try:
        open_regular(path).close()  # or opening a pipe would block
        with HEADERS:
            found = np.lib.format.open_memmap(path, mode="r")
    except DAMAGES as error:
        raise ValueError(f"{path.name} cannot be read as an array: {error}") from error
    if found.dtype.kind != "f" or found.ndim != 2:
        raise ValueError(f"{path.name} must be numbers of shape (n, d), got {found.dtype} of shape {found.shape}")
    return found


def _read_finite(path: Path) -> NDArray[np.float32]:
    """Read an array of numbers that are all finite."""
    found = np.array(_read_array(path))
    if not np.isfinite(found).all():
        raise ValueError(f"{path.name} must be finite, got NaN or infinity")
    return found


def _read_assignments(table: Mapping[str, Sequence[str]], sources: int) -> Assignments:
    numbers: dict[str, Any] = {
        f"{name}_id": np.array(_ids(table, name), dtype=np.int64) for name in ("category", "next_category")
    }
    for name in ("confidence", "distance", "next_distance"):
        numbers[name] = np.array([float(cell or "nan") for cell in table[name]])
    folders = np.array(table["folder"], dtype=np.int64)
    reviewed = table.get("reviewed", [OPEN] * len(table["file_name"]))
    for column, values, allowed in (
        ("status", {*table["status"]}, {*STATUSES}),
        ("reviewed", {*reviewed}, {*REVIEWED}),
        ("folder", {*folders.tolist()}, {*range(sources)}),
        ("content", {*filterfalse(HEXADECIMAL.fullmatch, table["content"])}, set[str]()),
    ):
        if wrong := [*map(quoted, values - allowed)]:
            raise ValueError(f"the column {column} of {ASSIGNMENTS} has an invalid cell, {min(wrong)}")
    return Assignments(
        files=tuple(table["file_name"]),
        folders=folders,
        contents=tuple(table["content"]),
        labels=tuple(name or None for name in table["label"]),
        truth=tuple(name or None for name in table.get("truth", [""] * len(table["file_name"]))),
        status=np.array(table["status"], dtype=np.str_),
        reviewed=np.array(reviewed, dtype=np.str_),
        **numbers,
    )


def _read_categories(table: Mapping[str, Sequence[str]]) -> tuple[Category, ...]:
    """Return the categories in the order of their centres, whatever the order of the table."""
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    rows.sort(key=lambda row: int(row[CENTRE]))
    if [int(row[CENTRE]) for row in rows] != [*range(len(rows))]:
        raise ValueError(f"the column {CENTRE} of {CATEGORIES} must number the centres")
    categories = []
    for row in rows:
        cells = {**row, "nearest_known_id": _ids(row, "nearest_known")}
        values = {name: parse_json(cells[name] or "null") for name in ("id", *NUMBERS)}
        values |= {name: parse_json(row[name]) for name in LISTS if name in row}
        values |= {name: row[name] for name in TEXTS} | {"weight": int(row[WEIGHT])}
        categories.append(read_record(Category, values, CATEGORIES))
    return tuple(categories)


def _read_candidates(path: Path, ids: Collection[int]) -> tuple[Candidate, ...]:
    if not path.exists():
        return ()
    table = tables.read(path)
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    columns = (*(table[name] for name in CANDIDATE[:3]), _ids(table, "nearest"))
    for number, file, folder, nearest in zip(*columns, strict=True):
        if int(nearest) not in ids:
            raise ValueError(f"{CANDIDATES} names a category that does not exist, {quoted(nearest)}")
        found.setdefault((int(number), int(nearest)), []).append((file, int(folder)))
    return tuple(
        Candidate(id=number, files=tuple(f for f, _ in rows), folders=tuple(at for _, at in rows), nearest_id=nearest)
        for (number, nearest), rows in found.items()
    )


def _read_rejected(path: Path) -> frozenset[tuple[str, int]]:
    if not path.exists():
        return frozenset()
    table = tables.read(path)
    return frozenset(zip(table["content"], map(int, _ids(table, "category")), strict=True))


def _ids(cells: Mapping[str, T], name: str) -> T:
    """Return the ids of categories in a table, or in a row of it; earlier versions wrote them under the bare name."""
    return cells[f"{name}_id"] if f"{name}_id" in cells else cells[name]
