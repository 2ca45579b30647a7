"""A run under review: the category and the state of every image, and the reviewed run that follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal.review.audit import NO_TALLY, Precision, Tally, precision
from sortal.runs.building import assess, build_run, hash_images
from sortal.runs.categories import free_names, rows_of
from sortal.runs.confidence import UNCALIBRATED, Confidence, Features, Floats, Ints, place, spread
from sortal.runs.run import CONFIRMED, LABELLED, MOVED, OPEN, REVIEWED, UNSEEN, Assignments, Category, Kind, Run

SETTLED = [REVIEWED.index(each) for each in (CONFIRMED, MOVED, UNSEEN)]


@dataclass(frozen=True, kw_only=True)
class ReviewedCategory:
    """A category under review, as far as decisions can change it."""

    id: int
    name: str
    kind: Kind
    former: tuple[str, ...] = ()  # other names of its class
    by_hand: bool = False  # whether it was created, merged or split
    origin: int | None = None  # id of the category it was split off; None for one of the run
    whole: bool = False  # whether a person has said that it is not to be split
    apart: frozenset[int] = frozenset()  # ids of categories that it is not to be merged with
    tally: Tally = NO_TALLY  # of its images that were accepted unseen
    failed: tuple[Tally, ...] = ()  # of audits that it has failed
    grown: int | None = None  # images that were left open when it was last grown
    stability: float | None = None  # share of it that stays together, if it was refitted


Rejections: TypeAlias = frozenset[tuple[str, int]]  # contents, and categories they do not belong to


@dataclass(eq=False)
class State:
    """The category and the state of every image of a run under review."""

    base: Run
    category: Ints = field(init=False)  # (n,) ids
    reviewed: Ints = field(init=False)  # (n,) numbers of REVIEWED
    categories: Mapping[int, ReviewedCategory] = field(init=False)  # by id; merged ones are gone
    rejected: Rejections = field(init=False)
    next_id: int = field(init=False)  # never used before, not even by a change that was undone

    def __post_init__(self) -> None:
        a = self.base.assignments
        self.category, self.next_id, self.rejected = a.category_id.copy(), self.base.facts.next_id, self.base.rejected
        self.reviewed = np.array([REVIEWED.index(each) for each in a.reviewed.tolist()], dtype=np.int64)
        self.categories = {
            each.id: ReviewedCategory(id=each.id, name=each.name, kind=each.kind, former=each.former)
            for each in self.base.categories
        }

    def members(self, category: int) -> Ints:
        """Return the rows of a category."""
        return np.flatnonzero(self.category == category)

    def free_name(self) -> str:
        """Return a name for another new category."""
        return free_names([name for each in self.categories.values() for name in (each.name, *each.former)], 1)[0]

    def centres(self, ids: Sequence[int]) -> Floats:
        """Return the centres (k, d) of categories: as sorted, or means of their images where these have changed."""
        base, start = self.base.centres, {each.id: row for row, each in enumerate(self.base.categories)}
        changed = {*self.category[self._differ].tolist(), *self.base.assignments.category_id[self._differ].tolist()}
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
        return np.flatnonzero(self.category != self.base.assignments.category_id)

    @property
    def settled(self) -> NDArray[np.bool_]:
        """The mask (n,) of images that are labelled or that a person has decided on."""
        found: NDArray[np.bool_] = np.isin(self.reviewed, SETTLED) | (self.base.assignments.status == LABELLED)
        return found

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """The mask (n,) of images that were accepted unseen."""
        return np.equal(self.reviewed, REVIEWED.index(UNSEEN))

    def precision(self, ids: Sequence[int] | None = None) -> Precision:
        """Estimate how many of the images accepted unseen are right, in all or the given categories."""
        counts = dict(zip(*np.unique(self.category[self.unseen], return_counts=True), strict=True))
        among = [self.categories[each] for each in (self.categories if ids is None else ids)]
        failed = [tally for each in among for tally in each.failed]
        return precision([(int(counts.get(each.id, 0)), each.tally) for each in among], failed)

    def run(self) -> Run:
        """Return the reviewed run; categories that decisions have not changed are as they were sorted."""
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
        parts = self._parts()
        a, x = parts.pop("assignments"), parts.pop("features")
        return assess(replace(a, reviewed=np.full(len(a), OPEN)), x, **parts).confidence

    def _parts(self) -> dict[str, Any]:
        """Return what confidence depends on: images, categories, centres and parameters."""
        base = self.base
        start = {each.id: row for row, each in enumerate(base.categories)}
        touched = {*self.category[self._differ].tolist(), *base.assignments.category_id[self._differ].tolist()}
        found, counts = np.unique(self.category, return_counts=True)
        sizes = dict(zip(found.tolist(), counts.tolist(), strict=True))
        # One that decisions have emptied is gone: nothing shall be predicted to be in it.
        ids = [each for each in self.categories if each in sizes or (each in start and each not in touched)]
        centres = self.centres(ids)
        states = np.array(REVIEWED)[self.reviewed]
        a = replace(base.assignments, category_id=self.category.copy(), reviewed=states)
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

        def kept(values: Floats | None, refitted: Mapping[int, float]) -> Floats | None:
            """Keep the values of categories as sorted; those made by hand, or without their own, have 1."""
            if values is None and not refitted:
                return None
            by_hand = {each for each in ids if self.categories[each].by_hand or each not in start}
            own = {each: 1.0 if values is None or each in by_hand else float(values[start[each]]) for each in ids}
            return np.array([refitted.get(each, own[each]) for each in ids])

        refitted = {each: share for each in ids if (share := self.categories[each].stability) is not None}
        stability = kept(c.stability, refitted)
        exponent = kept(c.exponent, dict.fromkeys(refitted, 1.0)) if c.exponent is not None else None
        return replace(c, usual=usual, deviation=deviation, stability=stability, exponent=exponent)

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
