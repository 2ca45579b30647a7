"""Records: what came of one benchmark run, one JSON file each."""

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sortal.errors import InputError, listing, quoted
from sortal.segments import write_atomically

NAME = "benchmark.json"
FORMAT = "sortal benchmark 1"
TEXTS = ("key", "name", "dataset", "method", "clustering", "backbone", "weights", "machine", "command", "finished")
SHARES = ("all", "old", "new")  # of an accuracy
SINGLE = ("nmi", "ari", "known_accuracy")
NO_RUN = "A benchmark run is what sortal benchmark wrote: a folder with benchmark.json, or that file"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of a preset, or of what is none.

    Scores are {"images", "accuracy", "legacy", "nmi", "ari", "known_accuracy"}: two times {"all", "old", "new"} and
    single numbers, all fractions, and None where they are not defined.
    """

    key: str  # of all that decides the result
    name: str  # of the preset; of what is none dataset/row
    version: int | None  # None: no preset, or a changed one
    dataset: str
    method: str
    clustering: str
    backbone: str
    weights: str  # where they came from
    seed: int
    k: dict[str, Any]  # "asked" ("true", "auto" or a number), "k", "true", "error", "interval", "curve"
    transductive: dict[str, Any]  # scores on the unlabelled images
    inductive: dict[str, Any] | None  # on the test split
    recipe: dict[str, Any]  # as Preset.settings(), and the seed
    training: dict[str, Any] | None
    timings: dict[str, float]  # seconds of each stage
    machine: str
    versions: dict[str, Any]
    command: str
    finished: str  # ISO 8601

    def __post_init__(self) -> None:
        for name, rule, value in _broken(self):
            raise InputError(f"{name} of a benchmark run must be {rule}, got {quoted(value, 100)}.")

    @property
    def minutes(self) -> float:
        return math.fsum(self.timings.values()) / 60

    @property
    def moment(self) -> datetime:
        """When it finished; a time without a zone is taken for UTC."""
        moment = datetime.fromisoformat(self.finished)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def to_json(self) -> dict[str, Any]:
        """What is no number, in anything that is kept beside, is nothing."""
        content: dict[str, Any] = _finite({"format": FORMAT, **asdict(self)})
        return content


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save(record: Record, folder: str | os.PathLike[str]) -> Path:
    """Write a record into the folder of its run."""
    path = Path(folder) / NAME
    content = json.dumps(record.to_json(), indent=2, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{content}\n".encode())
    except OSError as error:
        raise InputError(
            f"The benchmark run {str(path)!r} cannot be written: {error.strerror or error}. "
            "Choose another folder, or make room."
        ) from error
    return path


def load(path: str | os.PathLike[str]) -> Record:
    """The record of a run folder, or in a file."""
    place = Path(path)
    file = place / NAME if place.is_dir() else place
    if not file.exists():
        what = f"holds no {NAME}" if place.is_dir() else "is not there"
        raise InputError(f"{NO_RUN}, got {str(place)!r}, which {what}.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise InputError(f"The benchmark run {str(file)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise _damaged(file, str(error)) from None
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f"{NO_RUN}, got {str(file)!r}, which is something else.")
    if (found := content.pop("format")) != FORMAT:
        raise InputError(
            f"The benchmark run {str(file)!r} must have the format {FORMAT!r}, got {quoted(found, 100)}. "
            "Use the version of Sortal that wrote it, or run it again."
        )
    names = {field.name for field in fields(Record)}
    if names != content.keys():
        wrong = sorted(names ^ content.keys())
        raise _damaged(file, f"what must be there is not, or what must not be there is: {listing(wrong)}")
    try:
        return Record(**content)
    except InputError as error:
        raise _damaged(file, str(error)) from None


def find(paths: Iterable[str | os.PathLike[str]]) -> tuple[Record, ...]:
    """The records in files, run folders, and folders with run folders anywhere below; each file counts once."""
    found: dict[Path, Record] = {}
    given = [Path(path) for path in paths]
    if not given:
        raise InputError(f"{NO_RUN}, or a folder with some, got none. Name at least one.")
    for path in given:
        files = [*_below(path)] if path.is_dir() else [path]
        if not files:
            raise InputError(f"{NO_RUN}; there is none in {str(path)!r} or below. Run sortal benchmark first.")
        for file in files:
            own = file.resolve()
            if own not in found:
                found[own] = load(file)
    return tuple(found.values())


def _below(folder: Path) -> Iterator[Path]:
    """In the order of names. What lies in a run folder is its own."""

    def refuse(error: OSError) -> None:
        raise InputError(f"The folder {error.filename!r} cannot be read: {error.strerror}.") from error

    for place, folders, files in os.walk(folder, onerror=refuse):
        if NAME in files:
            folders.clear()
            yield Path(place) / NAME
        folders.sort()


def _damaged(file: Path, how: str) -> InputError:
    return InputError(f"The benchmark run {str(file)!r} is damaged: {how.rstrip('.')}. Run it again.")


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


# What a record must be

Broken = tuple[str, str, Any]  # name, rule, value


def _broken(record: Record) -> Iterator[Broken]:
    for name in TEXTS:
        if not isinstance(value := getattr(record, name), str):
            yield name, "text", value
    if record.version is not None and not _is_whole(record.version):
        yield "version", "a whole number or nothing", record.version
    if not _is_whole(record.seed):
        yield "seed", "a whole number", record.seed
    for name in ("k", "transductive", "recipe", "timings", "versions"):
        if not isinstance(value := getattr(record, name), dict):
            yield name, "a table", value
    yield from _broken_k(record.k)
    yield from _broken_scores("transductive", record.transductive)
    if record.inductive is not None:
        yield from _broken_scores("inductive", record.inductive)
    for stage, seconds in record.timings.items():
        if not _is_number(seconds):
            yield f"timings.{stage}", "a number of seconds", seconds
    try:
        datetime.fromisoformat(record.finished)
    except ValueError:
        yield "finished", "a time in ISO 8601", record.finished


def _broken_k(k: Mapping[str, Any]) -> Iterator[Broken]:
    asked = k.get("asked")
    if asked not in ("true", "auto") and not _is_whole(asked):
        yield "k.asked", "'true', 'auto' or a whole number", asked
    for name in ("k", "true"):
        if not _is_whole(k.get(name)):
            yield f"k.{name}", "a whole number", k.get(name)
    if not _is_number(k.get("error")):
        yield "k.error", "a number", k.get("error")


def _broken_scores(name: str, scores: Any) -> Iterator[Broken]:
    if not isinstance(scores, dict):
        yield name, "a table", scores
        return
    if not _is_whole(scores.get("images")):
        yield f"{name}.images", "a whole number", scores.get("images")
    for part in ("accuracy", "legacy"):
        three = scores.get(part)
        if not isinstance(three, dict) or not all(each in three and _is_share(three[each]) for each in SHARES):
            yield f"{name}.{part}", f"a table of {', '.join(SHARES)}", three
    for part in SINGLE:
        if part not in scores or not _is_share(scores[part]):
            yield f"{name}.{part}", "a number or nothing", scores.get(part)


def _is_share(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
