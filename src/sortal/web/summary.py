"""The contents of a report as plain records, for the page template and its scripts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.runs.categories import members, rows_of
from sortal.runs.run import KNOWN, LABELLED, NEW, STATUSES, UNSURE, Candidate, Category, Run
from sortal.system.text import duration, plural, readable, setting

Rows = list[int]  # of the assignments

GROUPS, MEMBERS = 60, 10  # candidates shown, and images of each


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The numbers at the top."""

    images: int
    statuses: dict[str, int]  # images of each, which add up to `images`
    categories: int
    known_categories: int
    new_categories: int
    k: int
    interval: tuple[int, int] | None
    estimated: bool
    unreadable: int
    folders: tuple[str, ...]
    finished: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """A category and the images that represent it."""

    category: Category
    confidence: float | None  # mean over its unlabelled images; None if it has none
    typical: Rows  # nearest to the centre first
    doubtful: Rows  # unlabelled and not typical, least confident first


@dataclass(frozen=True, kw_only=True)
class Group:
    """A candidate category: images added later that are far from every category."""

    id: int
    size: int
    nearest: str
    rows: Rows


def summary(run: Run) -> Summary:
    known = sum(category.kind == KNOWN for category in run.categories)
    return Summary(
        images=len(run.assignments),
        statuses=run.counts(),
        categories=len(run.categories),
        known_categories=known,
        new_categories=len(run.categories) - known,
        k=run.k.k,
        interval=run.k.interval,
        estimated=run.k.estimated,
        unreadable=len(run.quarantine),
        folders=tuple(readable(each.folder) for each in run.facts.images if each.folder is not None),
        finished=_date(run.facts.finished),
    )


def cards(run: Run, *, typical: int, doubtful: int) -> list[Card]:
    """Return a card per category, with at most this many typical and doubtful images."""
    a = run.assignments
    near = members(a.category, a.distance, run.categories)
    doubts = members(a.category, a.confidence, run.categories, np.flatnonzero(a.status != LABELLED))
    made = []
    for category, nearest, rows in zip(run.categories, near, doubts, strict=True):
        first = nearest[:typical].tolist()
        rest = rows[: doubtful + typical]  # enough without the typical ones
        made.append(
            Card(
                category=category,
                confidence=float(a.confidence[rows].mean()) if len(rows) else None,
                typical=first,
                doubtful=[row for row in rest.tolist() if row not in set(first)][:doubtful],
            )
        )
    return made


def wrong(run: Run) -> NDArray[np.bool_]:
    """Return a mask, (n,), of the unlabelled images that are known to be in the wrong category.

    An image of a new class is never marked in a new category, as only a matching tells which of these is its own.
    """
    a = run.assignments
    known = {category.id: category.name for category in run.categories if category.kind == KNOWN}
    classes = {*known.values()}
    return np.array(
        [
            truth is not None
            and status != LABELLED
            and (truth != known[category] if category in known else truth in classes)
            for truth, status, category in zip(a.truth, a.status.tolist(), a.category.tolist(), strict=True)
        ],
        dtype=bool,
    )


def groups(run: Run) -> list[Group]:
    """Return the first candidates."""
    wanted, a = run.candidates[:GROUPS], run.assignments
    places = zip(a.folders.tolist(), a.files, strict=True) if wanted else ()
    rows = {place: row for row, place in enumerate(places)}
    return [_group(each, rows, run.names) for each in wanted]


def _group(candidate: Candidate, rows: dict[tuple[int, str], int], names: Mapping[int, str]) -> Group:
    places = list(zip(candidate.folders, candidate.files, strict=True))[:MEMBERS]
    return Group(
        id=candidate.id,
        size=len(candidate.files),
        nearest=readable(names[candidate.nearest]),
        rows=[rows[place] for place in places if place in rows],
    )


def explain_confidence(run: Run) -> list[str]:
    """Explain confidence in sentences."""
    confidence, unsure = run.confidence, run.counts()[UNSURE]
    text = []
    if confidence.calibrated:
        count = plural(confidence.held_out, "labelled image")
        text.append(
            f"Confidence was calibrated on {count} held out for this purpose: about 80% of the images with a "
            "confidence of 80% should be in the right category. For new categories, this is an extrapolation."
        )
    else:
        text.append(
            "Confidence could not be calibrated because there were too few labelled images to hold some out. "
            "It ranks images from sure to doubtful, but 80% does not mean that four out of five are right."
        )
    text.append(
        f"Unlabelled images with a confidence below {100 * confidence.unsure_below:g}% are called unsure: "
        f"{plural(unsure, 'image')}. Each still counts towards its most likely category."
    )
    return text


def facts(run: Run) -> dict[str, list[tuple[str, str]]]:
    """Return tables of the settings, versions and timings of the run."""
    facts, training, confidence = run.facts, run.facts.training, run.confidence
    tables = {
        "Settings": vars(facts.settings),
        "Backbone": {**vars(facts.backbone), "weights": facts.weights},
        "Training": vars(training) | {"seconds": None, "time": duration(training.seconds)} if training else {},
        "Confidence": {
            name: getattr(confidence, name) for name in ("calibrated", "held_out", "unsure_below", "temperature")
        },
        "Time": {stage: duration(value) for stage, value in facts.timings.items()},
        "Versions": {**facts.versions, "device": facts.device, "machine": facts.machine},
        "Hashes": vars(facts.hashes),
    }
    rows = {title: _rows(values) for title, values in tables.items()}
    rows["Updates"] = [
        (_date(each.finished), f"{plural(each.images, 'image')} of {readable(each.folder)}") for each in facts.updates
    ]
    rows["Edits"] = [(str(number), readable(edit)) for number, edit in enumerate(facts.edits, start=1)]
    return {title: each for title, each in rows.items() if each}


def _rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (readable(name).replace("_", " "), readable(setting(value)))
        for name, value in values.items()
        if value is not None and value != {} and value != []
    ]


def _date(iso: str) -> str:
    """Return 2025-03-01T12:30:59+00:00 as 2025-03-01 12:30."""
    return readable(iso)[:16].replace("T", " ")


def images(run: Run, rows: Rows) -> dict[str, list[Any]]:
    """Return the columns of these rows for the page's scripts."""
    a, marked = run.assignments, wrong(run)
    at = {status: code for code, status in enumerate(STATUSES)}
    return {
        "file": [readable(a.files[row]) for row in rows],
        "category": rows_of(run.categories, a.category[rows]).tolist(),
        "next": rows_of(run.categories, a.next_category[rows]).tolist(),
        "status": [at[status] for status in a.status[rows].tolist()],
        "confidence": [_rounded(value) for value in a.confidence[rows].tolist()],
        "truth": [None if truth is None else readable(truth) for truth in (a.truth[row] for row in rows)],
        "wrong": np.flatnonzero(marked[rows]).tolist(),
    }


def categories(made: Sequence[Card], place: dict[int, int]) -> list[dict[str, Any]]:
    """Return the cards for the page's scripts; `place` maps a row to its index among the images of the page."""
    at = {card.category.id: number for number, card in enumerate(made)}
    return [
        {
            "name": readable(category.name),
            "new": category.kind == NEW,
            "size": category.size,
            "labelled": category.labelled,
            "unsure": category.unsure,
            "cohesion": _rounded(category.cohesion),
            "confidence": _rounded(card.confidence),
            "nearest": None if category.nearest_known is None else at[category.nearest_known],
            "typical": [place[row] for row in card.typical],
            "doubtful": [place[row] for row in card.doubtful],
        }
        for card, category in ((card, card.category) for card in made)
    ]


def _rounded(value: float | None) -> float | None:
    """Round a number for JSON, which has no NaN."""
    return None if value is None or not math.isfinite(value) else round(float(value), 3)
