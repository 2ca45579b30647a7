"""Means over seeds: which runs share a mean, and notes on how the others differ."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any, TypeAlias

from sortal.config import AUTO
from sortal.research.benchmark.presets import DATASET_TITLES, PRESETS
from sortal.research.benchmark.records import Record
from sortal.research.benchmark.typesetting import NO_FIGURE, Figure

Group: TypeAlias = Sequence[Record]  # runs that differ only in the seed, by seed


def figure(
    values: Sequence[float | None], published: float | None = None, *, digits: int = 1, spread: bool = True
) -> Figure:
    """Return the mean of values, ignoring those that are None (undefined)."""
    defined = [value for value in values if value is not None]
    mean = fmean(defined) if defined else None
    sd = stdev(defined) if spread and len(defined) > 1 else None
    return Figure(mean=mean, sd=sd, n=len(defined), runs=len(values), published=published, digits=digits)


def share(group: Group, score: str, published: float | None = None, *, part: str = "transductive") -> Figure:
    """Return a score in %, such as accuracy.old."""
    splits = [getattr(record, part) for record in group]
    values = [None if split is None else attrgetter(score)(split) for split in splits]
    return figure([None if value is None else 100 * value for value in values], published)


def number_of_classes(group: Group, published: int | None = None) -> Figure:
    """Return k, without a spread where it was given."""
    found = [record.k.k for record in group]
    spread = bool(group) and group[0].k.asked == AUTO
    return figure(found, published, digits=1 if len(set(found)) > 1 else 0, spread=spread)


def lines(label: str, by_column: Mapping[str, Sequence[Record]]) -> tuple[dict[str, dict[str, Group]], list[str]]:
    """Split a row into rows of runs that differ only in the seed, and return them with notes.

    Columns are data sets. The runs of a row have the same version and weights on all of them.
    """
    ways: dict[tuple[int, str, int], dict[str, list[Record]]] = {}
    for column, records in by_column.items():
        count: Counter[tuple[int, str]] = Counter()
        for _, group in groupby(sorted(records, key=_way_text), _way_text):
            alike = [*group]
            head = alike[0].version or 0, alike[0].weights
            count[head] += 1
            ways.setdefault((*head, count[head]), {})[column] = alike
    found = [ways[way] for way in sorted(ways)] or [{}]
    labels = [label] if len(found) == 1 else [f"{label} ({number})" for number in range(1, len(found) + 1)]
    rows: dict[str, dict[str, Group]] = {own: {} for own in labels}
    notes = []
    for column in by_column:
        there = {own: groups[column] for own, groups in zip(labels, found, strict=True) if column in groups}
        if differing := _differing([_way(records[0]) for records in there.values()]):
            listed = "; ".join(f"{name} ({', '.join(values)})" for name, values in differing.items())
            notes.append(f"{', '.join(there)}{_on(column)} differ in {listed}.")
        for own, records in there.items():
            newest = {record.seed: record for record in sorted(records, key=attrgetter("moment"))}
            rows[own][column] = [newest[seed] for seed in sorted(newest)]
            notes += _run_notes(f"{own}{_on(column)}", records, rows[own][column])
    return rows, notes


def _way_text(record: Record) -> str:
    return json.dumps(_way(record), sort_keys=True)


def _way(record: Record) -> dict[str, Any]:
    """Return everything that must be the same in one mean."""
    named = {name: getattr(record, name) for name in ("version", "weights", "backbone", "method", "clustering")}
    counts = {"k": record.k.asked, "classes": record.k.true, "images": record.transductive.images}
    return {**named, **counts, **flat(record.recipe)}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted names, without the seed."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    found.pop("training.seed", None)
    return found


def _differing(ways: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names whose values are not all the same, with those values."""
    names = dict.fromkeys(name for way in ways for name in way)
    values = {name: [shortened(str(way.get(name, NO_FIGURE))) for way in ways] for name in names}
    return {name: each for name, each in values.items() if len(set(each)) > 1}


def _run_notes(where: str, records: Sequence[Record], group: Group) -> list[str]:
    """Describe the runs of one mean: repeated seeds, and differences outside the settings."""
    runs = sorted(Counter(record.seed for record in records).items())
    notes = [f"{where}: seed {seed} was run {n} times; the newest run counts." for seed, n in runs if n > 1]
    context = [{"device": record.device, "machine": record.machine, **flat(record.versions)} for record in group]
    tested = [{"test images": record.inductive.images} for record in group if record.inductive is not None]
    differing = {**_differing(context), **_differing(tested)}
    listed = "; ".join(f"{name} ({', '.join(sorted(set(values)))})" for name, values in differing.items())
    return [*notes, f"{where}: the runs differ in {listed}."] if listed else notes


def _on(column: str) -> str:
    dataset = DATASET_TITLES[PRESETS[column].dataset] if column in PRESETS else column
    return f" on {dataset}" if dataset else ""


def shortened(text: str) -> str:
    """Abbreviate digests."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)
