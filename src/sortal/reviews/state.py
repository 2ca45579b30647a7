"""A run under review: the category and the state of every image, and the reviewed run that follows."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.review_states import SETTLED, ReviewState
from sortal.reviews.audit import NO_TALLY, Tally, UnseenPrecision, precision
from sortal.reviews.rejections import Rejections
from sortal.runs.building import assess, build_run, hash_images
from sortal.runs.categories import free_names, one_of_each, positions
from sortal.runs.confidence import UNCALIBRATED, Confidence, Features, Floats, Ints, place, spread
from sortal.runs.run import LABELLED, NOWHERE, Assignments, Category, CategoryKind, Run, sizes_of
from sortal.system.gathering import gathered

NO_ROWS: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class ReviewedCategory:
    """A category under review, as far as decisions can change it."""

    id: int
    name: str
    kind: CategoryKind
    former: tuple[str, ...] = ()  # other names of its class
    by_hand: bool = False  # whether it was created, merged or split
    origin: int | None = None  # id of the category it was split off; None for one of the run
    whole: bool = False  # whether a person has said that it is not to be split
    apart: frozenset[int] = frozenset()  # ids of categories that it is not to be merged with
    tally: Tally = NO_TALLY  # of its images that were accepted unseen
    failed: tuple[Tally, ...] = ()  # of audits that it has failed
    grown: int | None = None  # images that were left open when it was last grown
    stability: float | None = None  # share of it that stays together, if it was refitted
    made: bool = False  # whether a person made it what it is before the run was sorted, or has named it since

    @property
    def is_made(self) -> bool:
        """Whether a person has named, merged, split or kept it, now or in an earlier review."""
        return self.made or self.by_hand or self.whole or bool(self.apart)


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Category and state of some rows, and all categories and rejections."""

    rows: Ints  # (m,)
    category: Ints  # (m,) ids
    reviewed: Ints  # (m,) states
    categories: Mapping[int, ReviewedCategory]
    rejected: Rejections


@dataclass(eq=False)
class State:
    """The category and the state of every image of a run under review."""

    base: Run
    category: Ints = field(init=False)  # (n,) ids, NOWHERE in the bin
    reviewed: Ints = field(init=False)  # (n,) the ReviewState of each
    categories: Mapping[int, ReviewedCategory] = field(init=False)  # by id; merged ones are gone
    rejected: Rejections = field(init=False)
    next_id: int = field(init=False)  # never used before, not even by a change that was undone

    def __post_init__(self) -> None:
        a = self.base.assignments
        self.category, self.reviewed = a.category_id.copy(), a.reviewed.copy()
        self.next_id, self.rejected = self.base.facts.next_id, self.base.rejected
        self.categories = {
            each.id: ReviewedCategory(
                id=each.id,
                name=each.name,
                kind=each.kind,
                former=each.former,
                apart=frozenset(each.kept_apart),
                made=each.made,
            )
            for each in self.base.categories
        }
        self._start = {each.id: row for row, each in enumerate(self.base.categories)}  # rows of centres, by id
        # Of each content, which several files may have
        self._rows = gathered((content, row) for row, content in enumerate(a.contents))

    def outcome(
        self,
        rows: Ints = NO_ROWS,
        *,
        category: Ints | int | None = None,
        reviewed: Ints | int | None = None,
        categories: Mapping[int, ReviewedCategory] | None = None,
        rejected: Rejections | None = None,
    ) -> Outcome:
        """Return this state with some of it replaced; category and state of the rows (m,) may be one for all."""
        return Outcome(
            rows=rows,
            category=self.category[rows] if category is None else np.broadcast_to(category, rows.shape),
            reviewed=self.reviewed[rows] if reviewed is None else np.broadcast_to(reviewed, rows.shape),
            categories=self.categories if categories is None else categories,
            rejected=self.rejected if rejected is None else rejected,
        )

    def put(self, outcome: Outcome) -> Outcome:
        """Change the state, and return the outcome that would restore it."""
        former = self.outcome(outcome.rows)
        self.category[outcome.rows], self.reviewed[outcome.rows] = outcome.category, outcome.reviewed
        self.categories, self.rejected = outcome.categories, outcome.rejected
        self.next_id = max(self.next_id, *(each + 1 for each in self.categories))
        return former

    # Images and categories

    def rows_of(self, contents: Sequence[str]) -> Ints:
        """Return the rows of all images with these contents, each given once; raise InputError otherwise."""
        if len({*contents}) < len(contents):
            raise InputError("Every image must be given once.")
        if missing := [content for content in contents if content not in self._rows]:
            raise InputError(f"Images must be in the run, but the one with the content {missing[0][:40]!r} is not.")
        return np.array([row for content in contents for row in self._rows[content]], dtype=np.int64)

    def contents_of(self, rows: Iterable[int]) -> list[str]:
        """Return the content of each row."""
        return [self.base.assignments.contents[row] for row in rows]

    def removed_from(self, rows: Ints) -> list[list[int]]:
        """Return the categories that a person has removed each row from."""
        return [[each for each in self.categories if (own, each) in self.rejected] for own in self.contents_of(rows)]

    def kept_apart(self, ids: Collection[int]) -> bool:
        """Tell whether people have said of any two of these categories that they are different."""
        return any(self.categories[each].apart.intersection(ids) for each in ids if each in self.categories)

    def members(self, category: int) -> Ints:
        """Return the rows of a category."""
        return np.flatnonzero(self.category == category)

    def _single(self, category: int) -> Ints:
        """Return a row of each moment of a category."""
        return one_of_each(self.members(category), self.base.assignments.group)

    @property
    def settled(self) -> NDArray[np.bool_]:
        """The mask (n,) of images that are labelled or that a person has decided on."""
        decided = np.isin(self.reviewed, (*SETTLED, ReviewState.BINNED))
        return decided | (self.base.assignments.status == LABELLED)

    @property
    def binned(self) -> NDArray[np.bool_]:
        """The mask (n,) of images that belong to no category, as a person has said."""
        return np.equal(self.category, NOWHERE)

    @property
    def other(self) -> NDArray[np.bool_]:
        """The mask (n,) of images that fit no category and are not settled."""
        return self.base.confidence.fits_nowhere(self.base.assignments.apart) & ~self.settled

    @property
    def unseen(self) -> NDArray[np.bool_]:
        """The mask (n,) of images that were accepted unseen."""
        return np.equal(self.reviewed, ReviewState.UNSEEN)

    def free_name(self) -> str:
        """Return a name for another new category, which none has had before."""
        return self.free_names(1)[0]

    def free_names(self, count: int) -> list[str]:
        """Return names for other new categories: their numbers go with ids, which are never used again."""
        taken = [name for each in self.categories.values() for name in (each.name, *each.former)]
        return free_names(taken, count, after=self.next_id)

    def centres(self, ids: Sequence[int]) -> Floats:
        """Return the centres (k, d) of categories: as sorted, or means of their moments where these have changed."""
        found, touched = np.zeros((len(ids), self.base.centres.shape[1])), self._touched
        for at, each in enumerate(ids):
            rows = self._single(each) if each in touched or each not in self._start else NO_ROWS
            if len(rows):
                found[at] = np.asarray(self.base.features[rows], dtype=np.float64).mean(axis=0)
            else:
                found[at] = self.base.centres[self._sorted_row(each)]
        return found

    @property
    def _touched(self) -> set[int]:
        """The ids of categories that images have left or entered since they were sorted."""
        before = self.base.assignments.category_id
        rows = self.category != before
        return {*self.category[rows].tolist(), *before[rows].tolist()}

    def _sorted_row(self, category: int) -> int:
        """Return the row of a category in the run as sorted, or of the one it was split off."""
        origin = self.categories[category].origin
        return self._start[category if category in self._start or origin is None else origin]

    def precision(self, ids: Sequence[int] | None = None) -> UnseenPrecision:
        """Estimate how many of the images accepted unseen are right, in all or the given categories."""
        counts = sizes_of(self.category[self.unseen])
        among = [self.categories[each] for each in (self.categories if ids is None else ids)]
        failed = [tally for each in among for tally in each.failed]
        return precision([(counts.get(each.id, 0), each.tally) for each in among], failed)

    # The reviewed run

    def run(self) -> Run:
        """Return the reviewed run; categories that decisions have not changed are as they were sorted."""
        base, ids = self.base, self._ids()
        categories, centres, confidence, head = self._described(ids)
        known = {each.id: each.former for each in base.categories}
        renamed = {
            name: each.name
            for each in self.categories.values()
            for name in each.former
            if name not in known.get(each.id, ())  # those are in the labels already
        }
        a = replace(base.assignments, category_id=self.category.copy(), reviewed=self.reviewed.copy())
        a = _relabelled(a, renamed)
        hashes = replace(base.facts.hashes, images=hash_images(a))
        return build_run(
            folder=base.folder,
            facts=replace(base.facts, hashes=hashes, next_id=self.next_id),
            assignments=a,
            categories=categories,
            k=base.k,
            confidence=confidence,
            features=base.features,
            centres=centres,
            head=head,
            quarantine=base.quarantine,
            rejected=self.rejected,
        )

    def confidence(self) -> Floats:
        """Return the confidence (n,) that the reviewed run would have if nobody had settled any image."""
        categories, centres, confidence, head = self._described(self._ids())
        a = replace(self.base.assignments, category_id=self.category, reviewed=np.zeros_like(self.reviewed))
        return assess(a, self.base.features, categories, centres, confidence, head).confidence

    def _ids(self) -> list[int]:
        """Return the ids of the reviewed run; nothing is to be predicted in a category that decisions have emptied."""
        sizes, touched = sizes_of(self.category), self._touched
        return [each for each in self.categories if each in sizes or (each in self._start and each not in touched)]

    def _described(self, ids: Sequence[int]) -> tuple[tuple[Category, ...], Features, Confidence, Features | None]:
        """Return the categories, their centres, and what turns distances into confidence."""
        start, touched = self._start, self._touched
        apart = {each: tuple(sorted(self.categories[each].apart.intersection(ids))) for each in ids}
        categories = tuple(
            replace(
                self.base.categories[start[each.id]],
                name=each.name,
                former=each.former,
                made=each.is_made,
                kept_apart=apart[each.id],
            )
            if each.id in start and each.id not in touched
            else Category(
                id=each.id,
                name=each.name,
                kind=each.kind,
                former=each.former,
                made=each.is_made,
                kept_apart=apart[each.id],
                weight=len(self._single(each.id)),
            )
            for each in map(self.categories.__getitem__, ids)
        )
        exact = self.centres(ids)
        centres = exact.astype(np.float32)
        return categories, centres, self._confidence(ids, centres, touched), self._head(ids, exact)

    def _confidence(self, ids: Sequence[int], centres: Features, touched: set[int]) -> Confidence:
        """Return the parameters of confidence; a category made by hand counts as stable."""
        c, start, own = self.base.confidence, self._start, positions(self.category, ids)
        inside = np.flatnonzero(own >= 0)
        once = inside[np.unique((self.base.assignments.group * len(ids) + own)[inside], return_index=True)[1]]
        distance = place(self.base.features, centres, 1.0, row=own).distance
        same = [(at, start[each]) for at, each in enumerate(ids) if each in start and each not in touched]

        def spreads(values: Floats, mean: Floats, deviation: Floats) -> tuple[Floats, Floats]:
            """Return those of categories as sorted, and compute those of the others."""
            found = spread(values[once], own[once], len(ids))
            for at, row in same:
                found[0][at], found[1][at] = mean[row], deviation[row]
            return found

        usual, deviation = spreads(distance, c.usual, c.deviation)
        usual_apart, deviation_apart = c.usual_apart, c.deviation_apart
        if usual_apart is not None and deviation_apart is not None:
            usual_apart, deviation_apart = spreads(self.base.assignments.apart, usual_apart, deviation_apart)

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
        return replace(
            c,
            usual=usual,
            deviation=deviation,
            stability=stability,
            exponent=exponent,
            usual_apart=usual_apart,
            deviation_apart=deviation_apart,
        )

    def _head(self, ids: Sequence[int], centres: Floats) -> Features | None:
        """Return the rows of the head, tilted towards centres that have moved: the nearer wins, without training.

        |x − old|² − |x − new|² is linear in x. Squared distances become scores by the ratio of their temperatures.
        """
        base = self.base
        if base.head is None:
            return None
        squared = float(np.mean(base.assignments.distance**2))
        scale = base.confidence.temperature / max(UNCALIBRATED * squared, 1e-6)
        rows = []
        for each, new in zip(ids, centres, strict=True):
            row = self._sorted_row(each)
            old = base.centres[row].astype(np.float64)
            rows.append(base.head[row] + scale * np.append(2 * (new - old), old @ old - new @ new))
        return np.array(rows, dtype=np.float32)


def _relabelled(a: Assignments, names: Mapping[str, str]) -> Assignments:
    """Let labels and true classes follow the names of known categories."""
    labels, truth = (tuple(c if c is None else names.get(c, c) for c in column) for column in (a.labels, a.truth))
    return replace(a, labels=labels, truth=truth)
