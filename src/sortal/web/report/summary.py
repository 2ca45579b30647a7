"""The contents of a report as plain records, for the page template and its scripts."""

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sortal.exchange.format import group_names
from sortal.exchange.naming import folder_names, last_part, shared_names, shared_text
from sortal.images.columns import GROUP_COLUMN
from sortal.images.review_states import ReviewState, words_of
from sortal.runs.categories import candidate_rows, members, one_of_each, rows_of, typicality
from sortal.runs.facts import Confused
from sortal.runs.run import KNOWN, LABELLED, NEW, OTHER, STATUSES, Category, Run
from sortal.system.text import duration, plural, readable, setting

MOST_CANDIDATES, MEMBERS_SHOWN = 60, 10  # candidates, and images of each
LARGEST_MATRIX = 30  # classes of a readable confusion matrix; with more, only the largest confusions are listed
MOST_CONFUSIONS = 40
LONGEST_PATH = 1000  # characters
MOST_COLUMNS, LONGEST_SHOWN_CELL = 40, 300  # columns of the user's table, and characters of a cell
MOST_APART = 8  # images that fit nowhere, of those shown first
# How notes begin that tell how a run was made, and those that tell what to expect of it rather than what to do.
OF_THE_MACHINE = re.compile(
    r"Counted |Without a GPU, |Learned on |Labelled by a review|In the bin by a review|[\d,]+ views "
)
TO_KNOW = re.compile(r"No image is labelled|[\d,]+ images? (is|are) near-duplicate")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A category and the images that represent it."""

    category: Category
    confidence: float | None  # mean over its unlabelled images; None if it has none
    moments: int  # images, if those of the same moment count once
    typical: list[int]  # the most typical first, one of each moment
    doubtful: list[int]  # unlabelled and not typical, least confident first, one of each moment

    @property
    def sure(self) -> tuple[int, int, float]:
        """Sort key: how many images are sure, how many there are, and the mean confidence."""
        own = self.category
        return own.size - own.unsure - own.other, own.size, self.confidence or 0.0


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The notes of a run: those for a person, what needs one first, and those about how it was made."""

    person: list[str]
    machine: list[str]

    @classmethod
    def of(cls, notes: Sequence[str]) -> Self:
        person = [each for each in notes if not OF_THE_MACHINE.match(each)]
        person.sort(key=lambda each: TO_KNOW.match(each) is not None)
        return cls(person=person, machine=[each for each in notes if OF_THE_MACHINE.match(each)])


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """The categories of the images of known classes."""

    known: dict[str, int]  # the category of each class, by id
    totals: dict[str, int]  # images of each true class
    rows: dict[str, list[int]]  # images of a class in each known category, and in all new ones; empty for many classes
    mistakes: list[Confused]  # largest first
    more: int  # mistakes not listed


def cards(run: Run, *, typical: int, doubtful: int) -> list[Card]:
    """Return a card per category, with at most this many typical and doubtful images."""
    a = run.assignments
    near = members(a.category_id, typicality(a), run.categories)
    doubts = members(a.category_id, a.confidence, run.categories, np.flatnonzero(a.status != LABELLED))
    made = []
    for category, nearest, rows in zip(run.categories, near, doubts, strict=True):
        single = one_of_each(nearest, a.group)
        first = single[:typical].tolist()
        rest = [row for row in one_of_each(rows, a.group)[: doubtful + typical].tolist() if row not in first]
        sure = float(a.confidence[rows].mean()) if len(rows) else None
        card = Card(category=category, confidence=sure, moments=len(single), typical=first, doubtful=rest[:doubtful])
        made.append(card)
    return made


def farthest(run: Run) -> list[int]:
    """Return images that fit nowhere, those farthest from all others first, one of each moment."""
    rows = np.flatnonzero((run.assignments.status == OTHER) & ~run.assignments.binned)
    ordered = rows[np.argsort(-run.assignments.apart[rows], kind="stable")]
    return one_of_each(ordered, run.assignments.group)[:MOST_APART].tolist()


def wrong(run: Run) -> NDArray[np.bool_]:
    """Return a mask (n,) of the unlabelled images that are known to be in the wrong category."""
    a = run.assignments
    known = {category.id: category.name for category in run.categories if category.kind == KNOWN}
    classes = {*known.values()}
    # Images of new classes are not marked in new categories: only a matching can tell which of them is the right one.
    pairs = zip(a.truth, (known.get(category) for category in a.category_id.tolist()), strict=True)
    astray = [truth is not None and truth != name and (name is not None or truth in classes) for truth, name in pairs]
    return np.array(astray, dtype=bool) & (a.status != LABELLED)


def groups(run: Run) -> list[list[int]]:
    """Return the most typical images of the first candidates."""
    return [rows[:MEMBERS_SHOWN].tolist() for rows in candidate_rows(run)[:MOST_CANDIDATES]]


def confusion(counts: Sequence[Confused], categories: Sequence[Category]) -> Confusion | None:
    """Tabulate the categories of the unlabelled images of known classes, if their true classes are known."""
    if not counts:
        return None
    known = {category.name: category.id for category in categories if category.kind == KNOWN}
    totals: Counter[str] = Counter()
    for truth, _, count in counts:
        totals[truth] += count
    rows: dict[str, list[int]] = {}
    if max(len(totals), len(known)) <= LARGEST_MATRIX:
        columns = {category: column for column, category in enumerate(known.values())}
        rows = {truth: [0] * (len(known) + 1) for truth in [*(name for name in known if name in totals), *totals]}
        for truth, category, count in counts:
            rows[truth][columns.get(category, len(known))] += count
    mistakes = [each for each in counts if known.get(each.truth) != each.category_id]
    largest, more = (
        sorted(mistakes, key=lambda each: -each.images)[:MOST_CONFUSIONS],
        max(0, len(mistakes) - MOST_CONFUSIONS),
    )
    return Confusion(known=known, totals=totals, rows=rows, mistakes=largest, more=more)


def facts(run: Run, absolute_paths: bool) -> dict[str, list[tuple[str, str]]]:
    """Return tables of the settings, versions and timings of the run."""
    facts, training, c = run.facts, run.facts.training, run.confidence
    tables = {
        "Settings": vars(facts.settings),
        "Backbone": {**vars(facts.backbone), "weights": facts.weights},
        "Training": vars(training) | {"seconds": None, "time": duration(training.seconds)} if training else {},
        "Confidence": {
            name: getattr(c, name) for name in ("calibrated", "held_out", "unsure_below", "other_above", "temperature")
        },
        "Time": {stage: duration(value) for stage, value in facts.timings.items()},
        "Versions": {**facts.versions, "device": facts.device, "machine": facts.machine},
        "Hashes": vars(facts.hashes),
    }
    rows = {
        title: [
            (readable(name).replace("_", " "), readable(setting(shown_path(value, absolute_paths))))
            for name, value in values.items()
            if value is not None and value != {} and value != []
        ]
        for title, values in tables.items()
    }
    rows["Updates"] = [
        (date(each.finished), f"{plural(each.images, 'image')} of {readable(shown_path(each.folder, absolute_paths))}")
        for each in facts.updates
    ]
    reviewed = Counter(each for each in words_of(run.assignments.reviewed) if each != ReviewState.OPEN.word)
    rows["Reviewed"] = [(state, plural(count, "image")) for state, count in reviewed.items()]
    return {title: each for title, each in rows.items() if each}


def shown_path(value: Any, absolute_paths: bool) -> Any:
    """Return the last part of an absolute path, unless those are wanted in full, and any other value as it is."""
    return last_part(value) if isinstance(value, str) and not absolute_paths else value


def date(iso: str) -> str:
    """Return 2025-03-01T12:30:59+00:00 as 2025-03-01 12:30."""
    return readable(iso)[:16].replace("T", " ")


def images(run: Run, rows: list[int], absolute_paths: bool = False) -> dict[str, Any]:
    """Return the columns of these rows for the page's scripts."""
    a, names = run.assignments, run.assignments.files if absolute_paths else shared_names(run)
    named = group_names(run, absolute_paths)
    return {
        "file": [readable(names[row]) for row in rows],
        "category": rows_of(run.categories, a.category_id[rows]).tolist(),
        "next": rows_of(run.categories, a.next_category_id[rows]).tolist(),
        "status": _statuses(run, rows),
        "confidence": [_rounded(value) for value in a.confidence[rows].tolist()],
        "apart": [_rounded(value) for value in a.apart[rows].tolist()],
        "truth": [None if truth is None else readable(truth) for truth in (a.truth[row] for row in rows)],
        "wrong": np.flatnonzero(wrong(run)[rows]).tolist(),
        "moment": _moments(run, rows),
        "stack": {at: size for at, size in enumerate(np.bincount(a.group)[a.group[rows]].tolist()) if size > 1},
        "group": {at: readable(name) for at, name in enumerate(named[row] for row in rows) if name},
        "suggested": {at: number for at, number in enumerate(_suggested(run, rows)) if number >= 0},
        "source": a.folders[rows].tolist(),
        "url": {at: url for at, row in enumerate(rows) if (url := _irregular(run, row, absolute_paths)) is not None},
    }


def columns(run: Run, rows: list[int], absolute_paths: bool = False) -> list[dict[str, Any]]:
    """Return the columns of the user's table for the page's scripts: values, and the number of that of each row."""
    made = []
    for each in run.assignments.columns.each[:MOST_COLUMNS]:
        cells = [each.cells[row] for row in rows]
        if each.name == GROUP_COLUMN or not any(cells):
            continue
        numbers = {cell: number for number, cell in enumerate(dict.fromkeys(cells))}
        shown = [cell if absolute_paths else shared_text(cell, run.facts) for cell in numbers]
        values = [readable(cell, LONGEST_SHOWN_CELL) for cell in shown]
        made.append({"name": readable(each.name), "values": values, "of": [numbers[cell] for cell in cells]})
    return made


def _moments(run: Run, rows: list[int]) -> dict[int, int]:
    """Return for each of these rows that is of the moment of an earlier one where the first of them is."""
    _, first, inverse = np.unique(run.assignments.group[rows], return_index=True, return_inverse=True)
    return {at: where for at, where in enumerate(first[inverse].tolist()) if where < at}


def _suggested(run: Run, rows: list[int]) -> list[int]:
    """Return the category that is suggested for each of these rows, where its label is to be checked, or else −1."""
    a = run.assignments
    to_check = np.isin(rows, a.labels_to_check)
    return np.where(to_check, rows_of(run.categories, a.suggested_id[rows]), -1).tolist()


def sources(run: Run, absolute_paths: bool = False) -> list[dict[str, str | None]]:
    """Return the folders of the images: their names, and their addresses as seen from the report."""
    made: list[dict[str, str | None]] = []
    for each, name in zip(run.facts.images, folder_names(run.facts.images), strict=True):
        url = each.folder and _url(run, each.folder, absolute_paths)
        shown = each.folder if absolute_paths else name
        made.append({"name": each.folder and readable(shown, LONGEST_PATH), "url": url and f"{url}/"})
    return made


def _irregular(run: Run, row: int, absolute_paths: bool) -> str | None:
    """Return the address of an image if it does not follow from the names on the page."""
    file, source = run.assignments.files[row], run.facts.images[run.assignments.folders[row]]
    if source.folder is None or (readable(file) == file and file not in source.paths and not os.path.isabs(file)):
        return None
    path = source.path_of(file)
    return path and _url(run, path, absolute_paths, source.folder)


def _url(run: Run, path: str, absolute_paths: bool, folder: str | None = None) -> str | None:
    """Return the address of a path relative to the report, which may be moved along with the images.

    Return None if it would reveal where the images are on this computer: without `absolute_paths`, if their `folder`,
    by default the path itself, is neither in the folder of the run nor beside it.
    """
    path, home = os.path.abspath(path), os.path.abspath(run.folder)
    around = os.path.dirname(os.path.abspath(folder or path))
    if not absolute_paths and not (
        Path(path).is_relative_to(around) and (around == os.path.dirname(home) or Path(around).is_relative_to(home))
    ):
        return None
    try:
        relative = Path(os.path.relpath(path, home)).as_posix()
    except ValueError:  # on another drive
        return Path(path).as_uri()
    return "./" + quote(os.fsencode(relative))


def points(run: Run, rows: NDArray[np.int64], places: NDArray[np.int64]) -> dict[str, list[int]]:
    """Return the columns of the points of the map for the page's scripts; they are at these places (n, 2)."""
    x, y = places.T.tolist()
    category = rows_of(run.categories, run.assignments.category_id[rows]).tolist()
    return {"x": x, "y": y, "category": category, "status": _statuses(run, rows)}


def _statuses(run: Run, rows: list[int] | NDArray[np.int64]) -> list[int]:
    return [STATUSES.index(status) for status in run.assignments.status[rows].tolist()]


def categories(run: Run, made: Sequence[Card], rows: list[int]) -> list[dict[str, Any]]:
    """Return the cards for the page's scripts, which know images by their index among these rows."""
    place = {row: at for at, row in enumerate(rows)}
    on_page = members(run.assignments.category_id[rows], typicality(run.assignments)[rows], run.categories)
    at = {card.category.id: number for number, card in enumerate(made)}
    return [
        {
            "name": readable(category.name),
            "new": category.kind == NEW,
            "size": category.size,
            "moments": card.moments,
            "labelled": category.labelled,
            "unsure": category.unsure,
            "other": category.other,
            "cohesion": _rounded(category.cohesion),
            "confidence": _rounded(card.confidence),
            "nearest": None if category.nearest_known_id is None else at[category.nearest_known_id],
            "typical": [place[row] for row in card.typical],
            "doubtful": [place[row] for row in card.doubtful],
            "members": own.tolist(),
        }
        for card, category, own in zip(made, run.categories, on_page, strict=True)
    ]


def _rounded(value: float | None) -> float | None:
    """Round a number for JSON, which has no NaN."""
    return None if value is None or not math.isfinite(value) else round(float(value), 3)
