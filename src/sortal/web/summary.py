"""What a report says, taken from the run: plain records, to be filled into the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.categories import members
from sortal.report.words import number, plural, readable, seconds, setting
from sortal.run import KNOWN, LABELLED, NEW, STATUSES, UNSURE, Candidate, Run

Rows = list[int]  # of the assignments

QUARANTINED = 500  # of the files that could not be read, as many are listed
GROUPS, MEMBERS = 60, 10  # candidates shown, and images of each


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures at the top."""

    images: int
    statuses: dict[str, int]  # how many images of each; they sum to `images`
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
    """A category, and the images that show what it is like."""

    id: int
    name: str
    kind: str
    size: int
    labelled: int
    unsure: int
    cohesion: float | None
    confidence: float | None  # mean over the images without a label; None where there are none
    nearest_known: int | None
    typical: Rows  # smallest distance to the centre first
    doubtful: Rows  # lowest confidence first; without a label, and not among the typical


@dataclass(frozen=True, kw_only=True)
class Group:
    """A candidate: images that were added and may be a category of their own."""

    id: int
    size: int
    nearest: str
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An image that was left out."""

    file: str
    reason: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A table of names and values."""

    title: str
    rows: list[tuple[str, str]]


def summary(run: Run) -> Summary:
    interval = run.k.get("interval")
    known = sum(category.kind == KNOWN for category in run.categories)
    return Summary(
        images=len(run.assignments),
        statuses=run.counts(),
        categories=len(run.categories),
        known_categories=known,
        new_categories=len(run.categories) - known,
        k=int(run.k.get("k", len(run.categories))),
        interval=(int(interval[0]), int(interval[1])) if interval else None,
        estimated=bool(run.k.get("estimated", False)),
        unreadable=len(run.quarantine),
        folders=tuple(readable(each["folder"]) for each in run.about.get("images", []) if each["folder"] is not None),
        finished=_date(str(run.about.get("finished", ""))),
    )


def cards(run: Run, *, typical: int, doubtful: int) -> list[Card]:
    """A card for each category, by id, with at most so many images of each sort."""
    a = run.assignments
    unlabelled = a.status != LABELLED
    near = members(a, len(run.categories))
    doubts = _per_category(np.flatnonzero(unlabelled), a.category, a.confidence, len(run.categories))
    made = []
    for category in run.categories:
        first = near[category.id][:typical].tolist()
        rows = doubts[category.id]
        rest = rows[: doubtful + typical]  # enough, when the typical are taken out
        made.append(
            Card(
                id=category.id,
                name=readable(category.name),
                kind=category.kind,
                size=category.size,
                labelled=category.labelled,
                unsure=category.unsure,
                cohesion=category.cohesion,
                confidence=float(a.confidence[rows].mean()) if len(rows) else None,
                nearest_known=category.nearest_known,
                typical=first,
                doubtful=[row for row in rest.tolist() if row not in set(first)][:doubtful],
            )
        )
    return made


def _per_category(
    rows: NDArray[np.int64], category: NDArray[np.int64], key: NDArray[np.float64], k: int
) -> list[NDArray[np.int64]]:
    """The rows of each category, smallest key first, equal ones in their order."""
    ordered = rows[np.lexsort((key[rows], category[rows]))]
    return np.split(ordered, np.searchsorted(category[ordered], np.arange(1, k)))[:k]


def wrong(run: Run) -> NDArray[np.bool_]:
    """(n,) Which images without a label are known to be elsewhere: of another known class, or of one that is not new.

    Whether an image of a new class is in the right one of the new categories only a matching says; it is not marked.
    """
    a, names = run.assignments, run.names
    known = np.array([category.kind == KNOWN for category in run.categories], dtype=bool)
    classes = {category.name for category in run.categories if category.kind == KNOWN}
    return np.array(
        [
            truth is not None
            and status != LABELLED
            and (truth != names[category] if known[category] else truth in classes)
            for truth, status, category in zip(a.truth, a.status.tolist(), a.category.tolist(), strict=True)
        ],
        dtype=bool,
    )


def groups(run: Run) -> list[Group]:
    """The first of the candidates."""
    wanted, a = run.candidates[:GROUPS], run.assignments
    places = zip(a.folders.tolist(), a.files, strict=True) if wanted else ()
    rows = {place: row for row, place in enumerate(places)}
    return [_group(each, rows, run.names) for each in wanted]


def _group(candidate: Candidate, rows: dict[tuple[int, str], int], names: Sequence[str]) -> Group:
    places = list(zip(candidate.folders, candidate.files, strict=True))[:MEMBERS]
    return Group(
        id=candidate.id,
        size=len(candidate.files),
        nearest=readable(names[candidate.nearest]),
        rows=[rows[place] for place in places if place in rows],
    )


def unreadable(run: Run) -> list[Unreadable]:
    return [
        Unreadable(file=readable(each.file), reason=each.reason, detail=readable(each.detail))
        for each in run.quarantine[:QUARANTINED]
    ]


def doubt(run: Run) -> list[str]:
    """How confidence came about, in sentences."""
    about, unsure = run.confidence, int((run.assignments.status == UNSURE).sum())
    said = []
    if about.get("calibrated"):
        count = plural(int(about.get("held_out", 0)), "labelled image")
        said.append(
            f"Confidence was calibrated on {count} that were held out: of the images with a confidence of 80%, "
            "about 80% should be in the right category. For new categories this is an extrapolation."
        )
    else:
        said.append(
            "Confidence could not be calibrated, for there were too few labelled images to hold some out. "
            "It orders images from sure to doubtful; its values are not frequencies."
        )
    if (threshold := about.get("unsure_below")) is not None:
        said.append(
            f"An image without a label whose confidence is below {100 * threshold:g}% is called unsure: "
            f"{plural(unsure, 'image')}. It still counts to the category that is most likely."
        )
    return said


def facts(run: Run) -> list[Facts]:
    """What is needed to repeat the run, and what it took."""
    about = run.about
    training = dict(about.get("training") or {})
    took = {"time": seconds(training.pop("seconds"))} if "seconds" in training else {}
    tables = {
        "Settings": about.get("settings", {}),
        "Backbone": {**about.get("backbone", {}), "weights": about.get("weights")},
        "Training": training | took,
        "Confidence": run.confidence,
        "Time": {stage: seconds(value) for stage, value in about.get("timings", {}).items()},
        "Versions": {**about.get("versions", {}), "device": about.get("device"), "machine": about.get("machine")},
        "Hashes": about.get("hashes", {}),
    }
    rows = {title: _facts(values) for title, values in tables.items()}
    rows["Updates"] = [
        (_date(str(each["finished"])), f"{plural(each['images'], 'image')} of {readable(each['folder'])}")
        for each in about.get("updates", [])
    ]
    return [Facts(title=title, rows=each) for title, each in rows.items() if each]


def _facts(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (readable(name).replace("_", " "), readable(setting(value)))
        for name, value in values.items()
        if value is not None and value != {} and value != []
    ]


def _date(iso: str) -> str:
    """2025-03-01T12:30:59+00:00 as people read it, without the seconds."""
    return readable(iso)[:16].replace("T", " ")


def images(run: Run, rows: Rows) -> dict[str, list[Any]]:
    """What the script of the page knows of the images of these rows, a list for each column."""
    a, marked = run.assignments, wrong(run)
    at = {status: code for code, status in enumerate(STATUSES)}
    return {
        "file": [readable(a.files[row]) for row in rows],
        "category": a.category[rows].tolist(),
        "next": a.next_category[rows].tolist(),
        "status": [at[status] for status in a.status[rows].tolist()],
        "confidence": [number(value) for value in a.confidence[rows].tolist()],
        "truth": [None if truth is None else readable(truth) for truth in (a.truth[row] for row in rows)],
        "wrong": np.flatnonzero(marked[rows]).tolist(),
    }


def categories(made: Sequence[Card], place: dict[int, int]) -> list[dict[str, Any]]:
    """The cards for the script of the page; `place` is where a row is among the images it knows."""
    return [
        {
            "name": card.name,
            "new": card.kind == NEW,
            "size": card.size,
            "labelled": card.labelled,
            "unsure": card.unsure,
            "cohesion": number(card.cohesion),
            "confidence": number(card.confidence),
            "nearest": card.nearest_known,
            "typical": [place[row] for row in card.typical],
            "doubtful": [place[row] for row in card.doubtful],
        }
        for card in made
    ]
