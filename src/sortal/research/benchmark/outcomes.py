"""Outcomes: what each method made of each collection, from records of benchmarks and from JSON lines."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from sortal.errors import InputError, listing
from sortal.research.benchmark import records
from sortal.research.benchmark.aggregate import lines, shortened
from sortal.research.benchmark.comparison import BOUND_TITLES, K_WORDS, bound_records
from sortal.research.benchmark.records import Record
from sortal.system.gathering import gathered
from sortal.system.json_records import read_record
from sortal.system.regular_files import read_regular
from sortal.system.text import plural

JSON_LINES = (".jsonl", ".ndjson")
A_LINE = "must hold a JSON object per line, as benchmarks/wild.py writes them"
ESTIMATED = K_WORDS["auto"]


class SharedTask(NamedTuple):
    """One task that every method should have been given."""

    dataset: str
    condition: str  # how the labels come; for records the network
    split: str  # which classes are old; empty for a published split
    seed: int

    def __str__(self) -> str:
        return ", ".join([*filter(None, self[:3]), f"seed {self.seed}"])


@dataclass(frozen=True, kw_only=True)
class _MethodFigures:
    """What a run of a method came to: its accuracies, None where undefined, or the error that ended it."""

    method: str
    version: str = ""  # of the program, or of the settings
    all: float | None = None
    old: float | None = None
    new: float | None = None
    mean: float | None = None  # over classes
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class MethodOutcome(_MethodFigures):
    """A run of a method on a task."""

    task: SharedTask
    k_words: str = ""  # how it got k
    k_error: float | None = None  # |k - true| / true


@dataclass(frozen=True, kw_only=True)
class _Line(_MethodFigures):
    """What is read of a JSON line."""

    set: str
    condition: str
    split: str
    seed: int
    asked: str = ""
    k: int | None = None
    true: int | None = None
    interval: tuple[int, int] | None = None  # None where k was given


def read_outcomes(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[MethodOutcome], list[str]]:
    """Read records and files of JSON lines, and return their outcomes with notes on runs that were made twice."""
    results = [*map(Path, paths)]
    found, notes = list[MethodOutcome](), list[str]()
    for path in dict.fromkeys(each for each in results if each.suffix in JSON_LINES):
        found += _from_lines(path)
    others = [each for each in results if each.suffix not in JSON_LINES]
    if others or not results:
        runs = sorted(records.find(others), key=lambda record: json.dumps(record.to_json(), sort_keys=True))
        bounds = bound_records(runs, lambda record, which: f"{record.dataset}/{which}", "true")
        outcomes, notes = _from_records([*runs, *bounds])
        found += outcomes
    runs_made = Counter((each.method, each.task, each.k_words, each.version) for each in found)
    again = Counter(method for (method, *_), times in runs_made.items() if times > 1)
    repeated = [f"{name}: {plural(n, 'run')} made more than once; the last one counts." for name, n in again.items()]
    return found, [*notes, *repeated]


def _from_lines(path: Path) -> list[MethodOutcome]:
    try:
        text = read_regular(path).decode()
    except OSError as error:
        raise InputError(f"The results {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        raise InputError(f"The results {str(path)!r} {A_LINE}, got other bytes.") from None
    known = {field.name for field in fields(_Line)}
    read: list[_Line] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            some = {name: value for name, value in content.items() if name in known} if isinstance(content, dict) else 0
            read.append(_checked(read_record(_Line, some, "it")))
        except (ValueError, RecursionError) as error:
            raise InputError(f"The results {str(path)!r} {A_LINE}; in line {number}, {error}.") from None
    if not read:
        raise InputError(f"The results {str(path)!r} {A_LINE}, got none.")
    estimating = {(each.method, each.asked, each.version) for each in read if each.interval is not None}
    return [
        MethodOutcome(
            task=SharedTask(each.set, each.condition, each.split, each.seed),
            k_words=ESTIMATED if (each.method, each.asked, each.version) in estimating else _given(each.asked),
            k_error=None if each.k is None or not each.true else abs(each.k - each.true) / each.true,
            **{field.name: getattr(each, field.name) for field in fields(_MethodFigures)},
        )
        for each in read
    ]


def _given(asked: str) -> str:
    """Return the words for how k was given; methods that need it got the true one where others estimated it."""
    return K_WORDS["true"] if asked in ("", "auto") else K_WORDS.get(asked, f"k = {asked}")


def _checked(line: _Line) -> _Line:
    for name in ("all", "old", "new", "mean"):
        share = getattr(line, name)
        if share is not None and not 0 <= share <= 1:  # NaN, too
            raise ValueError(f"{name} must be from 0 to 1, got {share}")
    return line


def _from_records(found: Iterable[Record]) -> tuple[list[MethodOutcome], list[str]]:
    """Return outcomes and notes; runs of a method with other settings are another version of it."""

    def way(record: Record) -> tuple[str, str, str]:
        asked = str(record.k.asked)
        return _method(record), K_WORDS.get(asked, f"k = {asked}"), f"{record.backbone}, {shortened(record.weights)}"

    outcomes, notes = list[MethodOutcome](), list[str]()
    for (method, k_words, condition), some in groupby(sorted(found, key=way), way):
        rows, about = lines(method, gathered((record.dataset, record) for record in some))
        notes += about
        for label, groups in rows.items():
            outcomes += [
                MethodOutcome(
                    task=SharedTask(record.dataset, condition, "", record.seed),
                    method=method.partition(" ")[0],
                    k_words=k_words,
                    version=" ".join(filter(None, (*record.settings, label.removeprefix(method).strip(" ()")))),
                    **vars(record.transductive.accuracy),
                    mean=record.transductive.class_mean,
                    k_error=record.k.error,
                    seconds=60 * record.minutes if record.timings else None,
                )
                for group in groups.values()
                for record in group
            ]
    return outcomes, notes


def _method(record: Record) -> str:
    """Return the last part of a run's name; rows of the ablation keep the table, and that of table 4 is k-means."""
    first, *_, last = record.name.split("/")
    return {"table4": record.method, "table5": f"table5-{last}"}.get(first, last)


def named(outcomes: Iterable[MethodOutcome]) -> dict[str, dict[SharedTask, MethodOutcome]]:
    """Return outcomes by method and task; a name tells k and version only where a method has several.

    Of two outcomes of one task, the later counts.
    """
    found: dict[tuple[str, str, str], dict[SharedTask, MethodOutcome]] = {}
    for each in outcomes:
        found.setdefault((each.method, each.k_words, each.version), {})[each.task] = each
    labels = {}
    for way in found:
        same = [other for other in found if other[0] == way[0]]
        several = [way[at] for at in (1, 2) if len({other[at] for other in same}) > 1 and way[at]]
        labels[way] = f"{way[0]} ({', '.join(several)})" if several else way[0]
    return {labels[way]: tasks for way, tasks in found.items()}


def reference_among(by_name: dict[str, dict[SharedTask, MethodOutcome]], name: str | None) -> str:
    """Return the method of a name; of several ways to run it, the one that estimates k.

    Without a name, it is Sortal's own, or else the first one that is not a bound.
    """
    ways = {label: next(iter(tasks.values())) for label, tasks in by_name.items()}
    if name is None:
        methods = [each.method for each in ways.values() if each.method not in BOUND_TITLES]
        name = "sortal" if "sortal" in methods or not methods else methods[0]
    if name in by_name:
        return name
    of_name = [label for label, each in ways.items() if each.method == name]
    estimating = [label for label in of_name if ways[label].k_words == ESTIMATED]
    for choice in (of_name, estimating):
        if len(choice) == 1:
            return choice[0]
    raise InputError(f"The reference must be one of {listing([*by_name], show=20)}, got {name!r}.")
