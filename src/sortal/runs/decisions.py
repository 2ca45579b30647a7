"""Decisions of people about a run, and the reviewed run that follows from them.

Images are named by their content and categories by their ids, so that decisions hold whatever files are called. The
reviewed run is a pure function of the run as it was sorted and of the decisions; undoing is a decision, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from sortal.errors import InputError
from sortal.runs.actions import (
    Accept,
    AcceptCategory,
    Action,
    Change,
    Create,
    Merge,
    Move,
    Redo,
    Reject,
    Rename,
    Split,
    Undo,
)
from sortal.runs.building import assess, build_run, hash_images
from sortal.runs.categories import free_names, rows_of
from sortal.runs.confidence import UNCALIBRATED, Confidence, Features, Floats, Ints, place, spread
from sortal.runs.run import CONFIRMED, KNOWN, MOVED, REJECTED, REVIEWED, UNSEEN, Assignments, Category, Kind, Run
from sortal.system.text import plural

LONGEST = 200  # characters of a name


def apply(run: Run, actions: Iterable[Action]) -> Run:
    """Return the run as it is after these actions; the given one stays what it is."""
    review = Review(run)
    for action in actions:
        review.take(action)
    return review.run()


@dataclass(frozen=True, kw_only=True)
class ReviewedCategory:
    """A category under review, as far as decisions can change it."""

    id: int
    name: str
    kind: Kind
    former: tuple[str, ...] = ()  # other names of its class
    by_hand: bool = False  # whether it was created, merged or split
    origin: int | None = None  # id of the category it was split off; None for one of the run


Rejections: TypeAlias = frozenset[tuple[str, int]]  # contents, and categories they do not belong to
_Outcome: TypeAlias = tuple[Ints, Ints, Ints, Mapping[int, ReviewedCategory], Rejections]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Before:
    """What a change has replaced."""

    change: Change
    rows: Ints
    category: Ints
    reviewed: Ints
    categories: Mapping[int, ReviewedCategory]
    rejected: Rejections


@dataclass(eq=False)
class Review:
    """A run under review: the category and the state of every image, and what can be undone.

    A change is checked completely before anything is changed, so an InputError leaves everything as it was.
    """

    base: Run
    category: Ints = field(init=False)  # (n,) ids
    reviewed: Ints = field(init=False)  # (n,) numbers of REVIEWED
    categories: Mapping[int, ReviewedCategory] = field(init=False)  # by id; merged ones are gone
    rejected: Rejections = field(init=False)
    next_id: int = field(init=False)  # never used before, not even by a change that was undone
    done: list[_Before] = field(default_factory=list)
    undone: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        a = self.base.assignments
        self.category, self.next_id, self.rejected = a.category.copy(), self.base.facts.next_id, self.base.rejected
        self.reviewed = np.array([REVIEWED.index(each) for each in a.reviewed.tolist()], dtype=np.int64)
        self.categories = {
            each.id: ReviewedCategory(id=each.id, name=each.name, kind=each.kind, former=each.former)
            for each in self.base.categories
        }
        self._rows: dict[str, list[int]] = {}  # of each content, which several files may have
        for row, content in enumerate(a.contents):
            self._rows.setdefault(content, []).append(row)

    # Actions

    def take(self, action: Action) -> None:
        """Carry out an action."""
        if isinstance(action, Undo):
            if not self.done:
                raise InputError("There is nothing to undo.")
            self._restore(self.done.pop())
        elif isinstance(action, Redo):
            if not self.undone:
                raise InputError("There is nothing to redo.")
            self._change(self.undone[-1])
            self.undone.pop()
        else:
            if isinstance(action, Split | Create) and action.category != self.next_id:
                raise InputError(f"A new category must have the next id, {self.next_id}, got {action.category}.")
            self._change(action)
            self.undone.clear()

    def _restore(self, before: _Before) -> None:
        self.category[before.rows], self.reviewed[before.rows] = before.category, before.reviewed
        self.categories, self.rejected = before.categories, before.rejected
        self.undone.append(before.change)

    def _change(self, change: Change) -> None:
        # What the change makes of the rows, and of all else; everything is checked by now.
        rows, category, reviewed, categories, rejected = self._outcome(change)
        self.done.append(
            _Before(
                change=change,
                rows=rows,
                category=self.category[rows],
                reviewed=self.reviewed[rows],
                categories=self.categories,
                rejected=self.rejected,
            )
        )
        self.category[rows], self.reviewed[rows] = category, reviewed
        self.categories, self.rejected = categories, rejected
        self.next_id = max(self.next_id, *(each + 1 for each in categories))

    def _outcome(self, change: Change) -> _Outcome:
        """Return the rows of a change, their category and state after it, and all categories and rejections."""
        none, categories, rejected = np.zeros(0, dtype=np.int64), dict(self.categories), self.rejected
        if isinstance(change, Rename):
            own = self._category(change.category)
            self._check_name(change.name, own.id)
            former = (*own.former, own.name) if own.kind == KNOWN else own.former
            return none, none, none, {**categories, own.id: replace(own, name=change.name, former=former)}, rejected
        if isinstance(change, Merge):
            return self._merged(change)
        if isinstance(change, AcceptCategory):
            rows = self.members(self._category(change.category).id)
            back = {(self.base.assignments.contents[row], change.category) for row in rows.tolist()}
            return rows, self.category[rows], self._confirmed(rows), categories, rejected - back
        rows = self.rows_of(change.images)
        if isinstance(change, Accept):
            back = {(content, self.category[self._rows[content][0]]) for content in change.images}
            return rows, self.category[rows], self._confirmed(rows), categories, rejected - back
        if isinstance(change, Reject):
            return self._rejected(change, rows)
        state = np.full(len(rows), REVIEWED.index(MOVED))
        if isinstance(change, Move):
            to = self._category(change.category).id
        else:
            to, source = change.category, self.category[rows]
            if isinstance(change, Split):
                if len({*source.tolist()}) > 1:
                    raise InputError("A category can be split off one other category, but the images are in several.")
                state = self.reviewed[rows]
            self._check_name(change.name, to)
            parent = int(np.bincount(source).argmax())
            if isinstance(change, Split):
                categories[parent] = replace(categories[parent], by_hand=True)
            origin = categories[parent].origin if categories[parent].origin is not None else parent
            categories[to] = ReviewedCategory(id=to, name=change.name, kind="new", by_hand=True, origin=origin)
        back = {(content, to) for content in change.images}
        return rows, np.full(len(rows), to), state, categories, rejected - back

    # What the actions need

    def _merged(self, change: Merge) -> _Outcome:
        if len({*change.categories}) < max(len(change.categories), 2):
            raise InputError(f"Merging needs two or more different categories, got {list(change.categories)}.")
        first, *others = map(self._category, change.categories)
        if first.kind != KNOWN and any(each.kind == KNOWN for each in others):
            raise InputError(f"A known category must come first, so that it keeps its name, got {first.name!r}.")
        gone = {each.id for each in others}
        rows = np.flatnonzero(np.isin(self.category, [*gone]))
        categories = {each.id: each for each in self.categories.values() if each.id not in gone}
        joined = [name for each in others if each.kind == KNOWN for name in (*each.former, each.name)]
        categories[first.id] = replace(first, by_hand=True, former=(*first.former, *joined))
        # Whoever merges the category of an image with one that it was rejected from means that it belongs there.
        into = {first.id, *gone}
        rejected = frozenset(
            (content, first.id if own in gone else own)
            for content, own in self.rejected
            if own not in into or not into & {*self.category[self._rows.get(content, [])].tolist()}
        )
        return rows, np.full(len(rows), first.id), self.reviewed[rows], categories, rejected

    def _rejected(self, change: Reject, rows: Ints) -> _Outcome:
        own = self._category(change.category)
        rows = rows[self.category[rows] == own.id]  # not copies that are elsewhere
        contents = [self.base.assignments.contents[row] for row in rows.tolist()]
        if away := len({*change.images} - {*contents}):
            raise InputError(f"{plural(away, 'image')} to reject {'is' if away == 1 else 'are'} not in {own.name!r}.")
        rejected = self.rejected | {(content, own.id) for content in change.images}
        ids = [each for each in self.categories if len(self.members(each))]  # nothing is like an empty one
        centres = self.centres(ids)
        x = np.asarray(self.base.features[rows], dtype=np.float64)
        squared = (centres**2).sum(axis=1) - 2 * x @ centres.T
        barred = np.array([[(content, each) in rejected for each in ids] for content in contents], dtype=bool)
        squared[barred] = np.inf
        if not np.isfinite(squared).any(axis=1).all():
            raise InputError(f"No category is left for an image rejected from {own.name!r}. Make a new one for it.")
        to = np.array(ids, dtype=np.int64)[squared.argmin(axis=1)]
        return rows, to, np.full(len(rows), REVIEWED.index(REJECTED)), self.categories, rejected

    def _confirmed(self, rows: Ints) -> Ints:
        moved = REVIEWED.index(MOVED)
        return np.where(self.reviewed[rows] == moved, moved, REVIEWED.index(CONFIRMED))

    def _category(self, number: int) -> ReviewedCategory:
        if number not in self.categories:
            raise InputError(f"There is no category with the id {number} in this run.")
        return self.categories[number]

    def _check_name(self, name: str, own: int) -> None:
        if not name.strip() or len(name) > LONGEST or not name.isprintable():
            shown = f"{name[:40]!r}{'…' if len(name) > 40 else ''}"
            raise InputError(f"A name must have 1 to {LONGEST} printable characters, got {shown}.")
        if any(each.name == name for each in self.categories.values() if each.id != own):
            raise InputError(f"A name must not be that of another category, got {name!r}. Merge them instead.")

    def rows_of(self, contents: Sequence[str]) -> Ints:
        """Return the rows of all images with these contents."""
        if not contents or len({*contents}) < len(contents):
            raise InputError("Images must be one or more, each once.")
        if missing := [content for content in contents if content not in self._rows]:
            raise InputError(f"Images must be in the run, but the one with the content {missing[0][:40]!r} is not.")
        return np.array([row for content in contents for row in self._rows[content]], dtype=np.int64)

    # The state

    def members(self, category: int) -> Ints:
        """Return the rows of a category."""
        return np.flatnonzero(self.category == category)

    def free_name(self) -> str:
        """Return a name for another new category."""
        return free_names([name for each in self.categories.values() for name in (each.name, *each.former)], 1)[0]

    def centres(self, ids: Sequence[int]) -> Floats:
        """Return the centres (k, d) of categories: as sorted, or means of their images where these have changed."""
        base, start = self.base.centres, {each.id: row for row, each in enumerate(self.base.categories)}
        changed = {*self.category[self._differ].tolist(), *self.base.assignments.category[self._differ].tolist()}
        found = np.zeros((len(ids), base.shape[1]))
        for at, each in enumerate(ids):
            rows = self.members(each) if each in changed or each not in start else None
            if rows is not None and len(rows):
                found[at] = np.asarray(self.base.features[rows], dtype=np.float64).mean(axis=0)
            else:
                origin = self.categories[each].origin
                found[at] = base[start[each if each in start or origin is None else origin]]
        return found

    @property
    def _differ(self) -> Ints:
        """The rows that are in another category than they were sorted into."""
        return np.flatnonzero(self.category != self.base.assignments.category)

    def run(self) -> Run:
        """Return the reviewed run; categories that decisions have not changed are as they were sorted."""
        if not self.done:
            return self.base
        base, parts = self.base, self._parts()
        known = {each.id: each.former for each in base.categories}
        renamed = {
            name: each.name
            for each in self.categories.values()
            for name in each.former
            if name not in known.get(each.id, ())  # those are in the labels already
        }
        a = _relabelled(parts["assignments"], renamed)
        hashes = replace(base.facts.hashes, images=hash_images(a))
        return build_run(
            **{**parts, "assignments": a},
            folder=base.folder,
            facts=replace(base.facts, hashes=hashes, next_id=self.next_id),
            k=base.k,
            quarantine=base.quarantine,
            rejected=self.rejected,
        )

    def confidence(self) -> Floats:
        """Return the confidence (n,) that the reviewed run would have if nobody had settled any image."""
        if not self.done:
            return self.base.assignments.confidence
        parts = self._parts()
        a, x = parts.pop("assignments"), parts.pop("features")
        return assess(replace(a, reviewed=np.full(len(a), UNSEEN)), x, **parts).confidence

    def _parts(self) -> dict[str, Any]:
        """Return what confidence depends on: images, categories, centres and parameters."""
        base = self.base
        start = {each.id: row for row, each in enumerate(base.categories)}
        touched = {*self.category[self._differ].tolist(), *base.assignments.category[self._differ].tolist()}
        found, counts = np.unique(self.category, return_counts=True)
        sizes = dict(zip(found.tolist(), counts.tolist(), strict=True))
        # One that decisions have emptied is gone: nothing shall be predicted to be in it.
        ids = [each for each in self.categories if each in sizes or (each in start and each not in touched)]
        centres = self.centres(ids)
        states = np.array(REVIEWED)[self.reviewed]
        a = replace(base.assignments, category=self.category.copy(), reviewed=states)
        categories = tuple(
            replace(base.categories[start[each.id]], name=each.name, former=each.former)
            if each.id in start and each.id not in touched
            else Category(id=each.id, name=each.name, kind=each.kind, former=each.former, weight=sizes[each.id])
            for each in map(self.categories.__getitem__, ids)
        )
        moved = centres.astype(np.float32)
        return {
            "assignments": a,
            "categories": categories,
            "confidence": self._confidence(ids, moved, touched),
            "features": base.features,
            "centres": moved,
            "head": self._head(ids, centres),
        }

    def _confidence(self, ids: Sequence[int], centres: Features, touched: set[int]) -> Confidence:
        """Return the parameters of confidence; what was made by hand does not depend on clustering, so it is stable."""
        c, start = self.base.confidence, {each.id: row for row, each in enumerate(self.base.categories)}
        own = rows_of([Category(id=each, name="", kind="new") for each in ids], self.category)
        usual, deviation = spread(place(self.base.features, centres, 1.0, row=own).distance, own, len(ids))
        for at, each in enumerate(ids):
            if each in start and each not in touched:
                usual[at], deviation[at] = c.usual[start[each]], c.deviation[start[each]]

        def kept(values: Floats | None) -> Floats | None:
            if values is None:
                return None
            by_hand = [self.categories[each].by_hand for each in ids]
            return np.array([1.0 if hand else values[start[i]] for i, hand in zip(ids, by_hand, strict=True)])

        return replace(c, usual=usual, deviation=deviation, stability=kept(c.stability), exponent=kept(c.exponent))

    def _head(self, ids: Sequence[int], centres: Floats) -> Features | None:
        """Return the rows of the head, tilted towards centres that have moved: the nearer wins, without training.

        |x − old|² − |x − new|² is linear in x. Squared distances become scores by the ratio of their temperatures.
        """
        base = self.base
        if base.head is None:
            return None
        start = {each.id: row for row, each in enumerate(base.categories)}
        squared = float(np.mean(base.assignments.distance**2))
        scale = base.confidence.temperature / max(UNCALIBRATED * squared, 1e-6)
        rows = []
        for each, new in zip(ids, centres, strict=True):
            origin = self.categories[each].origin
            row = start[each if origin is None else origin]
            old = base.centres[row].astype(np.float64)
            rows.append(base.head[row] + scale * np.append(2 * (new - old), old @ old - new @ new))
        return np.array(rows, dtype=np.float32)


def _relabelled(a: Assignments, names: Mapping[str, str]) -> Assignments:
    """Let labels and true classes follow the names of known categories."""
    labels, truth = (tuple(c if c is None else names.get(c, c) for c in column) for column in (a.labels, a.truth))
    return replace(a, labels=labels, truth=truth)
