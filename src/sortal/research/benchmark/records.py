"""Records: the outcome of one benchmark run, stored as one JSON file."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from sortal.errors import InputError, quoted
from sortal.images.decoding import Quarantined
from sortal.runs.facts import SplitScores
from sortal.system.files import write_atomically, writing
from sortal.system.json_records import finite, read_record
from sortal.system.regular_files import read_json

RECORD_FILE = "benchmark.json"
RECORD_FORMAT = "sortal benchmark 2"
BOUNDS_STAGE = "bounds"
SHARES = ("all", "old", "new")  # the fields of Accuracy
A_RUN = "A benchmark run is a folder with a benchmark.json written by sortal benchmark, or that file"
RequestedK = Literal["true", "auto", "own"] | int  # the data set's; estimated by Sortal, or by the method; or this


@dataclass(frozen=True, kw_only=True)
class KRecord:
    """The number of clusters of a run: requested, used and true, and how it was estimated."""

    asked: RequestedK
    k: int
    true: int
    error: float  # |k - true| / true
    interval: tuple[int, int] | None = None  # None where k was given
    curve: tuple[dict[str, Any], ...] = ()  # k, score and each of every k tried


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What any method should be between, on the unlabelled images and the network as it came."""

    floor: SplitScores  # k-means without labels, with the true k
    ceiling: SplitScores  # a linear probe that knows the truth of all other images


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of a preset, or of a method outside the presets."""

    key: str  # digest of everything that decides the result
    name: str  # of the preset, else dataset/row
    version: int | None  # of the preset; None for a modified one and outside the presets
    dataset: str
    method: str
    clustering: str
    backbone: str
    weights: str  # their source
    seed: int
    k: KRecord
    transductive: SplitScores  # on the unlabelled images
    inductive: SplitScores | None  # on the test split
    recipe: dict[str, Any]  # as Preset.settings(), with the seed; any version of Sortal may have written it
    training: dict[str, Any] | None
    timings: dict[str, float]  # seconds of each stage
    device: str  # that held the network when features were computed; `training` has those it was trained on
    machine: str
    versions: dict[str, Any]
    command: str
    finished: str  # ISO 8601
    unreadable: tuple[Quarantined, ...] = ()  # files of both splits that were left out
    bounds: Bounds | None = None  # None in records of earlier versions
    title: str = ""  # of the method; empty in records of earlier versions

    @property
    def minutes(self) -> float:
        """Return how long the method took."""
        return math.fsum(seconds for stage, seconds in self.timings.items() if stage != BOUNDS_STAGE) / 60

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the settings that were changed by hand, as the name has them."""
        return tuple(self.name.rpartition("/")[2].split(" ")[1:])

    @property
    def moment(self) -> datetime:
        """Return when the run finished, in UTC if it does not name a time zone."""
        moment = datetime.fromisoformat(self.finished)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON, with null in place of NaN and infinity."""
        return finite({"format": RECORD_FORMAT, **asdict(self)})


def save(record: Record, folder: Path) -> Path:
    """Write a record to the folder of its run."""
    path = folder / RECORD_FILE
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{json.dumps(record.to_json(), indent=2, allow_nan=False)}\n".encode())
    return path


def load(path: str | os.PathLike[str]) -> Record:
    """Read the record in a run folder or file."""
    place = Path(path)
    file = place / RECORD_FILE if place.is_dir() else place
    if not file.exists():
        problem = f"has no {RECORD_FILE}" if place.is_dir() else "does not exist"
        raise InputError(f"{A_RUN}, got {str(place)!r}, which {problem}.")
    try:
        content = read_json(file)
    except OSError as error:
        raise InputError(f"The benchmark run {str(file)!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise _damaged(file, error) from None
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f"{A_RUN}, got {str(file)!r}, which is some other file.")
    if (found := content.pop("format")) != RECORD_FORMAT:
        raise InputError(
            f"The benchmark run {str(file)!r} must have the format {RECORD_FORMAT!r}, got {quoted(found, 100)}. "
            "Use the version of Sortal that wrote it, or run it again."
        )
    try:
        record = read_record(Record, content, "the record")
        _ = record.moment  # raises ValueError for what is no time
    except (ValueError, OverflowError) as error:
        raise _damaged(file, error) from None
    return record


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(f"The benchmark run {str(file)!r} is damaged: {str(error).rstrip('.')}. Run it again.")


def find(paths: Iterable[str | os.PathLike[str]]) -> tuple[Record, ...]:
    """Read all records in files, in run folders and anywhere below other folders, each file once."""
    files: dict[str, Path] = {}  # by real path
    for path in map(Path, paths):
        below = _below(path) if path.is_dir() else [path]
        if not below:
            raise InputError(f"{A_RUN}; {str(path)!r} contains none. Run sortal benchmark first.")
        for file in below:
            files.setdefault(os.path.realpath(file), file)
    if not files:
        raise InputError(f"{A_RUN}, or a folder of such runs; got no path. Name at least one.")
    return tuple(load(file) for file in files.values())


def _below(folder: Path) -> list[Path]:
    """Return record files by name, without looking into run folders."""
    found = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        if RECORD_FILE in files:
            folders.clear()
            found.append(Path(place) / RECORD_FILE)
    return found
