"""A review in progress: the state that pages see, and decisions that are on disk before they count."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.columns import ImageColumn
from sortal.images.originals import FILE_STATES, Originals
from sortal.images.review_states import STATE_WORDS, words_of
from sortal.images.store.pixel_store import PixelStore
from sortal.reviews import filtering, growing, journal
from sortal.reviews.actions import Action, Refit
from sortal.reviews.advising import Advisor
from sortal.reviews.disputes import may_settle, questions_of
from sortal.reviews.effects import moves_of
from sortal.reviews.growing import Ranking
from sortal.reviews.history import Decision, Review, lower
from sortal.reviews.people import Asked, independent, signed
from sortal.reviews.questions import Guide
from sortal.reviews.requests import action_of
from sortal.reviews.searching import alike
from sortal.reviews.state import NO_ROWS, ReviewedCategory
from sortal.reviews.viewable import only_viewable
from sortal.runs import projection
from sortal.runs.categories import is_generated, nearest_first, one_of_each, rows_by
from sortal.runs.confidence import Floats, Ints
from sortal.runs.projection import Placer
from sortal.runs.run import DECISIONS, KNOWN, LABELLED, NEW, NOWHERE, CategoryKind, Run, sizes_of
from sortal.system.open_folder import check_folder, identity_of
from sortal.system.text import readable

CARD_IMAGES = 8  # images on a card, and beside an image
MOST_NAMES_COMPARED = 40  # categories that a name is compared for
MOST_NEAR = 4  # categories of each kind that are most similar to an image
MOST_FOUND = 300  # images of a search that are described, unless more are asked for


class StaleError(Exception):
    """A decision by someone who does not know the latest ones."""

    def __init__(self, missed: list[str]) -> None:
        super().__init__("Others have decided meanwhile.")
        self.missed = missed  # in words


@dataclass(eq=False)
class Session:
    """One run under review by any number of pages. All methods may be called from several threads."""

    run: Run  # as sorted
    store: PixelStore  # a row for each image of the run, with the content that was sorted
    originals: Originals  # the files, row by row
    place: Placer
    lines: list[Decision] = field(default_factory=list)
    advisor: Advisor | None = None
    people: tuple[str, ...] = ()  # who review it together; without names, one person does

    def __post_init__(self) -> None:
        self._lock, self._drawing, self._advising, self._asking = (threading.Lock() for _ in range(4))
        self._folder = identity_of(self.run.folder)
        self._guide = Guide(self.run, self.advisor, self.originals.state)
        group = self.run.assignments.group
        self._stack = np.where(np.bincount(group)[group] > 1, group, -1)  # (n,) the group of each, −1 if alone
        self._proposal: tuple[int, Refit] | None = None  # and the version that it is about
        self._places: tuple[Ints, Ints] | None = None
        self._asked = Asked()
        self._rankings: dict[int, Ranking] = {}
        self._kept: dict[str, tuple[tuple[int, bytes], dict[str, Any]]] = {}  # with the version and states of files
        self._review = journal.replay(self.run, self.lines)
        self._length = journal.length(self.run.folder / DECISIONS)
        self._confidence: tuple[tuple[Any, ...], Floats] | None = None  # and what it depends on

    @property
    def version(self) -> int:
        """The number of decisions so far."""
        return len(self.lines)

    def decide(self, version: int, request: Mapping[str, Any], by: str = "") -> dict[str, Any]:
        """Carry out a decision by someone who knows the decisions up to `version`; images are given by their rows."""
        with self._lock:
            found, review = dict(request), self._review
            if version != self.version and not by:
                raise StaleError(review.words[max(0, version) :])
            settles = found.pop("settles", False) is True
            if found.get("do") == "refit":
                if self._proposal is None or self._proposal[0] != self.version:
                    raise ValueError("the proposal is out of date; ask for another")
                action: Action = self._proposal[1]
            else:
                action = action_of(found, review, self._guide, self._ranking)
            if version != self.version and not independent(review, version, action):
                raise StaleError(review.words[max(0, version) :])
            action = only_viewable(action, review, self.originals)
            settles = settles and may_settle(review, action, by, alone=self._asked.alone(by))
            lines = signed(review, action, by, settles=settles) if by else [journal.decide(action)]
            try:
                for line in lines:
                    review.follow(line)
                path, after = self.run.folder / DECISIONS, self._length
                self._length = journal.append(path, self.run.facts, lines, after=after, folder=self._folder)
            except BaseException:
                self._review = journal.replay(self.run, self.lines)
                raise
            self.lines += lines
            return {"version": self.version, "words": ". ".join(review.words[-len(lines) :]).rstrip(".")}

    def asked(self, by: str, asked: str, page: str) -> dict[str, Any]:
        """Note what one of several people is asked on a page; return what the others are, and the version."""
        with self._lock:
            return {"version": self.version, **({"taken": self._asked.taken(by, asked, page)} if self.people else {})}

    def check(self) -> None:
        """Raise InputError if the folder of the run has been replaced."""
        check_folder(self.run.folder, self._folder)

    def look(self, row: int) -> str:
        """Look at the file of an image now; say what happened to it, or nothing if its content is unchanged."""
        return self.originals.look(row)

    # What pages show

    def overview(self, by: str = "") -> dict[str, Any]:
        """Describe all categories, the progress and what to do next, for one of the people."""
        with self._lock:
            review = self._review
            own = {
                name: lower(steps[-1].words) if steps and by in ("", review.makers[steps[-1].number]) else None
                for name, steps in (("undo", review.done), ("redo", review.undone))
            }
            if by and (wishes := review.wishes(by)):
                own["undo"] = lower(review.words[wishes[-1][0]])
            return {**self._current("overview", self.version, self._describe), **own, "person": by}

    def _describe(self) -> dict[str, Any]:
        review, members = self._review, rows_by(self._review.category)
        categories, centres = [*review.categories.values()], review.centres([*review.categories])
        cards, settled, other, sure = [], review.settled, review.other, self._sure()
        for own, centre, near in zip(categories, centres, self._nearest("known", centres), strict=True):
            card = self._card(own, members.get(own.id, NO_ROWS), centre, settled, other, sure)
            cards.append({**card, "near": near[:1] if own.kind == NEW else []})
        words = words_of(review.reviewed)
        return {
            "version": self.version,
            "run": readable(self.run.folder.resolve().name),
            "images": len(self.run.assignments),
            "columns": filtering.described(self.run.assignments.columns),
            "settled": int(settled.sum()),
            "binned": int(review.binned.sum()),
            "categories": cards,
            "states": {word: words.count(word) for word in STATE_WORDS},
            "done": review.done[-1].key if review.done else None,
            "undone": review.undone[-1].key if review.undone else None,
            "free_name": review.free_name(),
            "unseen": self._precision(),
            "unsure_below": self.run.confidence.unsure_below,
            "calibrated": self.run.confidence.calibrated,
            "lost": self._lost(),
        }

    def _current(self, name: str, version: int, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what was made last time if neither decisions nor files have changed since, else make it again."""
        now = version, self.originals.state.tobytes()
        if name not in self._kept or self._kept[name][0] != now:
            self._kept[name] = now, make()
        return self._kept[name][1]

    def _lost(self) -> dict[str, Any]:
        """Say how many files are gone or have changed, and name some."""
        rows = np.flatnonzero(self.originals.state)[:CARD_IMAGES].tolist()
        counts = {state: int((self.originals.state == at).sum()) for at, state in enumerate(FILE_STATES) if at}
        return {**counts, "files": [self._file(row) for row in rows]}

    def words(self) -> dict[str, Any]:
        """Return the names that the person has given, and whether images can be found by what is seen."""
        advisor = self.advisor
        return {"words": [] if advisor is None else list(advisor.words), "sees": advisor is not None and advisor.sees}

    def queue(self, by: str = "") -> dict[str, Any]:
        """Return what to ask next; questions that settle the most images per second come first.

        Whoever contradicts another is asked about it only if nobody else is there.
        """
        with self._asking:  # one at a time, while others may look and decide
            with self._lock:
                version, review, sure = self.version, self._review.copy(), self._sure()

            def ask() -> dict[str, Any]:
                asked = [*self._guide.questions(review, sure), *questions_of(review, self._guide)]
                asked.sort(key=lambda each: -each.worth)
                return {"version": version, "items": [{**asdict(q), "worth": min(q.worth, 1e9)} for q in asked]}

            found = self._current("queue", version, ask)
        with self._lock:
            alone = self._asked.alone(by)
        return {**found, "items": [each for each in found["items"] if alone or by not in each["by"][1:]]}

    def grow(self, number: int, answers: str) -> dict[str, Any] | None:
        """Return the next page of a category that is being grown, and what the answers so far would accept."""
        with self._lock:
            if number not in self._review.categories:
                return None
            ranking = self._ranking(number)
            found = growing.search(ranking.pages, ranking.first, answers)
            seen, unseen, _ = growing.outcome(ranking, answers, [])
            page = found.page if len(ranking.rows) else None
            return {
                "version": self.version,
                "typical": [] if answers or page is None else ranking.typical.tolist(),
                "page": [] if page is None else ranking.page(page).tolist(),
                "number": page,
                "pages": ranking.pages,
                "open": len(ranking.rows),
                "seen": len(seen),
                "unseen": len(unseen),
                "skipped": len(growing.outcome(ranking, answers + growing.ALL_RIGHT, [])[1]) - len(unseen),
            }

    def _ranking(self, number: int) -> Ranking:
        """Rank the open images of a category.

        While several people decide, the ranking stays until those images change, or nobody could answer in time.
        """
        fresh, kept = self._guide.ranking(self._review, self._sure(), number), self._rankings.get(number)
        if not self.people or kept is None or {*kept.rows.tolist()} != {*fresh.rows.tolist()}:
            self._rankings[number] = kept = fresh
        return kept

    def parts(self, number: int, count: int) -> dict[str, Any] | None:
        """Propose how to split a category into `count` parts."""
        with self._lock:
            if number not in self._review.categories:
                return None
            found = self._guide.parts(self._review, number, count)
            return {"version": self.version, "parts": [part.tolist() for part in found]}

    def refit(self) -> dict[str, Any]:
        """Propose to cluster again with the decisions as constraints, and say what would move."""
        if self.advisor is None:
            raise InputError("This review cannot cluster again.")
        with self._advising:  # one at a time, while others may decide
            with self._lock:
                version, review = self.version, journal.replay(self.run, self.lines)
            proposal = self.advisor.refit(review)
            with self._lock:
                self._proposal = version, proposal
        new = [each for each in proposal.categories if each not in review.categories]
        return {
            "version": version,
            "k": [len({*review.category.tolist()} - {NOWHERE}), len(proposal.categories)],
            "moves": moves_of(review, proposal, CARD_IMAGES),
            "new": [{"id": each, "name": name} for each, name in zip(new, proposal.names, strict=True)],
        }

    def names(self, number: int) -> dict[str, Any] | None:
        """Suggest names for a category, for a person to choose from."""
        with self._lock:
            if number not in self._review.categories:
                return None
            is_new = self._review.categories[number].kind == NEW
            near = self._nearest("known", self._review.centres([number]))[0] if is_new else []
            if self.advisor is None or not self.advisor.words or not len(self._review.members(number)):
                return {"near": near, "names": []}
            others = [*self._review.categories][:MOST_NAMES_COMPARED]
            typical = {each: self._guide.typical(self._review, each, CARD_IMAGES) for each in (number, *others)}
        rows = {each: np.array(rows, dtype=np.int64) for each, rows in typical.items() if rows}
        with self._advising:
            return {"near": near, "names": self.advisor.names(rows[number], [*rows.values()])}

    def _nearest(self, kind: CategoryKind, points: Floats) -> list[list[int]]:
        """Return the categories of a kind whose centres are nearest to each of the points (m, d), the nearest first."""
        filled = {*self._review.category.tolist()}
        ids = [each.id for each in self._review.categories.values() if each.kind == kind and each.id in filled]
        centres = self._review.centres(ids)
        squared = (centres**2).sum(axis=1) - 2 * points @ centres.T
        return [[ids[at] for at in row] for row in np.argsort(squared, axis=1, kind="stable")[:, :MOST_NEAR].tolist()]

    def category(self, number: int, order: str, column: ImageColumn | None, fits: str) -> dict[str, Any] | None:
        """List the images of a category or the bin, by "doubt" or the most typical first; None if there is no such.

        With a column, only those whose cell fits; the orders "up" and "down" are by it.
        """
        with self._lock:
            if number not in {*self._review.categories, NOWHERE}:
                return None
            rows = self._review.members(number)
            if column is not None:
                rows = rows[filtering.matching(column, fits)[rows]]
            if column is not None and order in ("up", "down"):
                rows = filtering.in_order(column, rows, down=order == "down")
            elif order == "doubt" or number == NOWHERE:
                doubt = self._sure()[rows] + 2 * self._review.settled[rows]  # what a person has settled comes last
                rows = rows[np.argsort(doubt, kind="stable")]
            else:
                rows = nearest_first(self.run.features, rows, self._review.centres([number])[0])
            cells = {} if column is None else {"cell": [readable(column.cells[row]) for row in rows.tolist()]}
            return {"version": self.version, "id": number, **self._rows(rows), **cells}

    def images(self, rows: Ints) -> dict[str, Any]:
        """Describe images."""
        a = self.run.assignments
        labels = {"doubt": a.doubt[rows].round(3).tolist(), "suggested": a.suggested_id[rows].tolist()}
        with self._lock:
            files = [self._file(row) for row in rows.tolist()]
            said = {**labels, **filtering.told(a, rows), "file": files, "removed": self._review.removed_from(rows)}
            return {"version": self.version, **self._rows(rows), **said}

    def near(self, row: int) -> dict[str, Any]:
        """Return the categories and the images that are most similar to an image, the most similar first."""
        nearest = alike(self.run.features, row)[:CARD_IMAGES]
        with self._lock:
            point = np.asarray(self.run.features[[row]], dtype=np.float64)
            found = {KNOWN: self._nearest("known", point)[0], NEW: self._nearest("new", point)[0]}
            return {"version": self.version, **found, **self._rows(nearest)}

    def found(self, search: Callable[[Review], tuple[Ints, dict[str, Any]]], most: int) -> dict[str, Any]:
        """Describe the first of the images that a search finds, at most so many, and what else it says."""
        with self._lock:
            review = self._review.copy()
        rows, said = search(review)  # while others may look and decide
        with self._lock:
            page = {**self._rows(rows[: max(most, MOST_FOUND)]), "total": len(rows), "limit": MOST_FOUND}
            return {"version": self.version, **page, **said}

    def map(self) -> dict[str, Any]:
        """Return where images are on the map, a sample of them if there are many, and their state."""
        with self._drawing:  # once, while others may decide
            if self._places is None:
                a, seed = self.run.assignments, self.run.facts.settings.seed
                rows = np.sort(projection.sample(a.category_id, a.distance, projection.MAP_POINTS, seed=seed))
                x, folder = self.run.features[rows], self.run.cache / "map"
                at = projection.coordinates(x, self.place, seed=seed, folder=folder)
                self._places = rows, at
            rows, at = self._places
        with self._lock:
            inside = ~self._review.binned[rows]
            x, y = at[inside].T.tolist()
            return {"version": self.version, **self._rows(rows[inside]), "x": x, "y": y}

    def _rows(self, rows: Ints) -> dict[str, Any]:
        a, review = self.run.assignments, self._review
        return {
            "rows": rows.tolist(),
            "category": review.category[rows].tolist(),
            "confidence": np.round(self._sure()[rows], 3).tolist(),
            "reviewed": review.reviewed[rows].tolist(),
            "labelled": ((a.status == LABELLED) & ~review.binned)[rows].astype(int).tolist(),
            "other": review.other[rows].astype(int).tolist(),
            "lost": self.originals.state[rows].tolist(),
            "group": self._stack[rows].tolist(),
            "folder": filtering.folders_around(a, rows),
        }

    def _file(self, row: int) -> str:
        return readable(self.run.assignments.files[row])

    def _card(
        self,
        own: ReviewedCategory,
        rows: Ints,
        centre: Floats,
        settled: NDArray[np.bool_],
        other: NDArray[np.bool_],
        sure: Floats,
    ) -> dict[str, Any]:
        """Describe a category with these rows; `settled`, `other` and `sure` (n,) are of all images."""
        there = rows[self.originals.state[rows] == 0]
        nearest = one_of_each(nearest_first(self.run.features, there, centre), self.run.assignments.group)[:CARD_IMAGES]
        return {
            "id": own.id,
            "name": readable(own.name),
            "kind": own.kind,
            "unnamed": own.kind == NEW and is_generated(own.name),
            "size": len(rows),
            "labelled": int((self.run.assignments.status[rows] == LABELLED).sum()),
            "settled": int(settled[rows].sum()),
            "unsure": int((sure[rows[~settled[rows] & ~other[rows]]] < self.run.confidence.unsure_below).sum()),
            "other": int(other[rows].sum()),
            "typical": nearest.tolist(),
            "lost": len(rows) - len(there),
        }

    def _precision(self) -> dict[str, Any]:
        """What is known of the images that were accepted unseen, overall and by category."""
        review = self._review
        each = {number: asdict(review.precision([number])) for number in sizes_of(review.category[review.unseen])}
        return {"overall": asdict(review.precision()), "categories": each}

    def _sure(self) -> Floats:
        """The confidence (n,) of all images now; it is computed again only after images have moved."""
        review = self._review
        categories = ((each.id, each.by_hand, each.stability) for each in review.categories.values())
        now = (*categories, review.category.tobytes())
        if self._confidence is None or self._confidence[0] != now:
            self._confidence = now, review.confidence()
        return np.where(review.settled & ~review.unseen, 1.0, self._confidence[1])
