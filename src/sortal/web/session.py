"""A review in progress: the state that pages see, and decisions that are on disk before they count."""

import threading
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sortal.images.store.pixel_store import PixelStore
from sortal.runs import journal, projection
from sortal.runs.actions import describe, from_json
from sortal.runs.confidence import Floats, Ints
from sortal.runs.journal import Decision, History, lower
from sortal.runs.run import CONFIRMED, DECISIONS, KNOWN, LABELLED, MOVED, NEW, REVIEWED, Run
from sortal.system.text import readable

TYPICAL = 8  # images on a card, and beside an image
NEAR = 4  # categories of each kind that are most similar to an image


class StaleError(Exception):
    """A decision by someone who has not seen the latest ones."""

    def __init__(self, missed: list[str]) -> None:
        super().__init__("Others have decided meanwhile.")
        self.missed = missed  # in words


@dataclass(eq=False)
class Session:
    """One run under review by any number of pages. All methods may be called from several threads."""

    run: Run  # as sorted
    store: PixelStore  # a row for each image of the run
    lines: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock, self._drawing = threading.Lock(), threading.Lock()
        self._places: tuple[Ints, Ints] | None = None
        self._overview: dict[str, Any] = {}
        self._review = journal.reviewed(self.run, self.lines)
        self._history = History()
        self._told = journal.in_words(self.run, self.lines, self._history)
        self._confidence: tuple[list[tuple[int, bool]], Ints, Floats] = ([], np.zeros(0, np.int64), np.zeros(0))

    @property
    def version(self) -> int:
        """The number of decisions so far."""
        return len(self.lines)

    def decide(self, seen: int, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a decision by someone who has seen this many; images are given by their rows."""
        with self._lock:
            if seen != self.version:
                raise StaleError(self._told[max(0, seen) :])
            action = from_json(self._with_contents(request))
            words = describe(action, {each.id: each.name for each in self._review.categories.values()})
            line, before = journal.decide(action), deepcopy(self._history)
            try:
                self._review.take(action)
                words = self._history.add(action, words)
                journal.append(self.run.folder / DECISIONS, self.run.facts, [line])
            except BaseException:
                self._review, self._history = journal.reviewed(self.run, self.lines), before
                raise
            self.lines.append(line)
            self._told.append(words)
            return {"version": self.version, "words": words}

    def _with_contents(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Replace rows by contents, and fill in what the server knows: ids and names of new categories."""
        found = dict(request)
        rows = found.pop("rows", None)
        if rows is not None:
            n = len(self.run.assignments)
            if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < n for row in rows):
                raise ValueError(f"rows must be numbers from 0 to {n - 1}")
            contents = self.run.assignments.contents
            found["images"] = list(dict.fromkeys(contents[row] for row in rows))
        if found.get("do") in ("split", "create"):
            found["category"] = self._review.next_id
            found["name"] = found.get("name") or self._review.free_name()
        return found

    # What pages show

    def overview(self) -> dict[str, Any]:
        """Describe all categories, the progress and what to do next."""
        with self._lock:
            if self._overview.get("version") == self.version:
                return self._overview
            review, a = self._review, self.run.assignments
            sure, settled = self._sure(), self._settled()
            ids = [*review.categories]
            order = np.argsort(review.category, kind="stable")
            ends = np.searchsorted(review.category[order], ids, "right")
            starts = np.searchsorted(review.category[order], ids, "left")
            rows = {each: order[start:end] for each, start, end in zip(ids, starts, ends, strict=True)}
            centres = dict(zip(ids, review.centres(ids), strict=True))
            states = Counter(np.array(REVIEWED)[review.reviewed].tolist())
            categories = [self._card(each, rows[each], centres[each], sure, settled) for each in ids]
            self._overview = {
                "version": self.version,
                "run": readable(self.run.folder.resolve().name),
                "images": len(a),
                "settled": int(settled.sum()),
                "categories": categories,
                "states": {state: states.get(state, 0) for state in REVIEWED},
                "undo": lower(self._history.done[-1]) if self._history.done else None,
                "redo": lower(self._history.undone[-1]) if self._history.undone else None,
                "free_name": review.free_name(),
                "unsure_below": self.run.confidence.unsure_below,
            }
            return self._overview

    def category(self, number: int, order: str) -> dict[str, Any] | None:
        """List the images of a category, all of them, in an order; None if there is no such category."""
        with self._lock:
            if number not in self._review.categories:
                return None
            rows, sure = self._review.members(number), self._sure()
            key = sure[rows] if order == "doubt" else self._distance(self._review.centres([number])[0], rows)
            if order == "doubt":  # what a person has settled comes last
                key = key + 2 * self._settled()[rows]
            return {"version": self.version, "id": number, **self._rows(rows[np.argsort(key, kind="stable")])}

    def images(self, rows: Ints) -> dict[str, Any]:
        """Describe images."""
        with self._lock:
            return {"version": self.version, **self._rows(rows), "file": [self._file(row) for row in rows.tolist()]}

    def near(self, row: int) -> dict[str, Any]:
        """Return the categories and the images that are most similar to an image, the most similar first."""
        x = np.asarray(self.run.features, dtype=np.float32)
        nearest = np.argsort(((x - x[row]) ** 2).sum(axis=1), kind="stable")
        with self._lock:
            ids = [*self._review.categories]
            distance = np.linalg.norm(self._review.centres(ids) - x[row], axis=1)
            order = [ids[at] for at in np.argsort(distance, kind="stable").tolist()]
            kinds = {each.id: each.kind for each in self._review.categories.values()}
            found = {kind: [each for each in order if kinds[each] == kind][:NEAR] for kind in (KNOWN, NEW)}
            return {"version": self.version, **found, **self._rows(nearest[nearest != row][:TYPICAL])}

    def map(self) -> dict[str, Any]:
        """Return where images are on the map, a sample of them if there are many, and their state."""
        with self._drawing:  # once, while others may decide
            if self._places is None:
                a, seed = self.run.assignments, self.run.facts.settings.seed
                rows = np.sort(projection.sample(a.category, a.distance, projection.POINTS, seed=seed))
                at = projection.place_cached(self.run.features[rows], seed=seed, folder=self.run.cache / "map")
                self._places = rows, at
            rows, at = self._places
        with self._lock:
            x, y = at.T.tolist()
            return {"version": self.version, **self._rows(rows), "x": x, "y": y}

    def _rows(self, rows: Ints) -> dict[str, Any]:
        a, review = self.run.assignments, self._review
        return {
            "rows": rows.tolist(),
            "category": review.category[rows].tolist(),
            "confidence": np.round(self._sure()[rows], 3).tolist(),
            "reviewed": review.reviewed[rows].tolist(),
            "labelled": (a.status[rows] == LABELLED).astype(int).tolist(),
        }

    def _file(self, row: int) -> str:
        return readable(self.run.assignments.files[row])

    def _card(self, number: int, rows: Ints, centre: Floats, sure: Floats, settled: Any) -> dict[str, Any]:
        own, a = self._review.categories[number], self.run.assignments
        free = rows[~settled[rows]]
        nearest = np.argsort(self._distance(centre, rows), kind="stable")[:TYPICAL]
        return {
            "id": number,
            "name": own.name,
            "kind": own.kind,
            "size": len(rows),
            "labelled": int((a.status[rows] == LABELLED).sum()),
            "settled": int(settled[rows].sum()),
            "unsure": int((sure[free] < self.run.confidence.unsure_below).sum()),
            "confidence": round(float(sure[free].mean()), 3) if len(free) else None,
            "typical": rows[nearest].tolist(),
        }

    def _settled(self) -> Any:
        """The mask (n,) of images that are labelled or that a person has decided on."""
        decided = np.isin(self._review.reviewed, [REVIEWED.index(CONFIRMED), REVIEWED.index(MOVED)])
        return decided | (self.run.assignments.status == LABELLED)

    def _sure(self) -> Floats:
        """The confidence (n,) of all images now; it is computed again only after images have moved."""
        review = self._review
        now = [(each.id, each.by_hand) for each in review.categories.values()]
        before, category, sure = self._confidence
        if before != now or not np.array_equal(category, review.category):
            sure = review.confidence()
            self._confidence = now, review.category.copy(), sure
        return np.where(self._settled(), 1.0, sure)

    def _distance(self, centre: Floats, rows: Ints) -> Floats:
        found: Floats = np.linalg.norm(np.asarray(self.run.features[rows], dtype=np.float64) - centre, axis=1)
        return found
