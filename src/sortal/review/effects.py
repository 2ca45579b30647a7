"""Decisions of people about a run, and the reviewed run that follows from them.

Images are named by their content and categories by their ids, so that decisions hold whatever files are called. The
reviewed run is a pure function of the run as it was sorted and of the decisions; undoing is a decision, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from sortal.errors import InputError
from sortal.review.actions import (
    Accept,
    AcceptCategory,
    Action,
    Audit,
    Change,
    Create,
    Grow,
    Keep,
    Merge,
    Move,
    Redo,
    Refit,
    Reject,
    Rename,
    Split,
    Undo,
)
from sortal.review.audit import NO_TALLY, Tally
from sortal.review.state import Rejections, ReviewedCategory, State
from sortal.runs.confidence import Floats, Ints
from sortal.runs.run import CONFIRMED, KNOWN, MOVED, OPEN, REJECTED, REVIEWED, UNSEEN, Run
from sortal.system.text import plural

LONGEST = 200  # characters of a name


def apply(run: Run, actions: Iterable[Action]) -> Run:
    """Return the run as it is after these actions; the given one stays what it is."""
    review = Review(run)
    for action in actions:
        review.take(action)
    return review.run()


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
class Review(State):
    """A run under review, and what can be undone.

    A change is checked completely before anything is changed, so an InputError leaves everything as it was.
    """

    done: list[_Before] = field(default_factory=list)
    undone: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rows: dict[str, list[int]] = {}  # of each content, which several files may have
        for row, content in enumerate(self.base.assignments.contents):
            self._rows.setdefault(content, []).append(row)

    def run(self) -> Run:
        """Return the reviewed run; the given one if nothing was changed."""
        return super().run() if self.done else self.base

    def confidence(self) -> Floats:
        """Return the confidence (n,) that the reviewed run would have if nobody had settled any image."""
        return super().confidence() if self.done else self.base.assignments.confidence

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
            first = self._first_new(action) if isinstance(action, Refit) else getattr(action, "category", None)
            if isinstance(action, Split | Create | Refit) and first != self.next_id:
                raise InputError(f"A new category must have the next id, {self.next_id}, got {first}.")
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
        if isinstance(change, Keep):
            return none, none, none, self._kept(change), rejected
        if isinstance(change, Grow):
            return self._grown(change)
        if isinstance(change, Audit):
            return self._audited(change)
        if isinstance(change, Refit):
            return self._refitted(change)
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
                own = categories[parent]
                categories[parent] = replace(
                    own, by_hand=True, whole=False, grown=None, stability=None, tally=NO_TALLY, apart=own.apart | {to}
                )
            categories[to] = self._new(to, change.name, parent)
            if isinstance(change, Split):
                categories[to] = replace(categories[to], apart=frozenset({parent}))
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
        categories = {number: _renumbered(each, gone, first.id) for number, each in categories.items()}
        categories[first.id] = self._joined(first, others)
        # Whoever merges the category of an image with one that it was rejected from means that it belongs there.
        into = {first.id, *gone}
        rejected = frozenset(
            (content, first.id if own in gone else own)
            for content, own in self.rejected
            if own not in into or not into & {*self.category[self._rows.get(content, [])].tolist()}
        )
        return rows, np.full(len(rows), first.id), self.reviewed[rows], categories, rejected

    def _joined(self, first: ReviewedCategory, others: Sequence[ReviewedCategory]) -> ReviewedCategory:
        """Return the category that others are merged into."""
        every = (first, *others)
        names = [name for each in others if each.kind == KNOWN for name in (*each.former, each.name)]
        audited = all(each.tally.sampled or not self.unseen[self.members(each.id)].any() for each in every)
        tallies = [(each.tally.images, each.tally.sampled, each.tally.right) for each in every]
        images, sampled, right = (sum(column) for column in zip(*tallies, strict=True))
        left = [each.grown for each in every if each.grown is not None]
        return replace(
            first,
            by_hand=True,
            former=(*first.former, *names),
            apart=frozenset().union(*(each.apart for each in every)) - {each.id for each in every},
            tally=Tally(images=images, sampled=sampled, right=right) if audited else NO_TALLY,
            grown=sum(left) if len(left) == len(every) else None,
            failed=tuple(tally for each in every for tally in each.failed),
            whole=True,
            stability=None,
        )

    def _rejected(self, change: Reject, rows: Ints) -> _Outcome:
        own = self._category(change.category)
        rows = rows[self.category[rows] == own.id]  # not copies that are elsewhere
        if away := len({*change.images} - {*self._contents(rows)}):
            raise InputError(f"{plural(away, 'image')} to reject {'is' if away == 1 else 'are'} not in {own.name!r}.")
        rejected = self.rejected | {(content, own.id) for content in change.images}
        state = np.full(len(rows), REVIEWED.index(REJECTED))
        return rows, self._elsewhere(rows, rejected), state, self.categories, rejected

    def _elsewhere(self, rows: Ints, rejected: Rejections) -> Ints:
        """Return the most similar category of each row that it is not rejected from."""
        if not len(rows):
            return rows
        ids = [each for each in self.categories if len(self.members(each))]  # nothing is like an empty one
        centres = self.centres(ids)
        x = np.asarray(self.base.features[rows], dtype=np.float64)
        squared = (centres**2).sum(axis=1) - 2 * x @ centres.T
        barred = [[(content, each) in rejected for each in ids] for content in self._contents(rows)]
        squared[np.array(barred, dtype=bool).reshape(squared.shape)] = np.inf
        if not np.isfinite(squared).any(axis=1).all():
            raise InputError("No category is left for an image that was rejected. Make a new one for it.")
        to: Ints = np.array(ids, dtype=np.int64)[squared.argmin(axis=1)]
        return to

    def _grown(self, change: Grow) -> _Outcome:
        own = self._category(change.category)
        self._rows_or_none((*change.seen, *change.unseen, *change.wrong))  # each once; none at all may be sure
        seen, unseen, wrong = (self._rows_or_none(each) for each in (change.seen, change.unseen, change.wrong))
        unseen = unseen[~self.settled[unseen]]  # what was decided before stays so
        here = wrong[self.category[wrong] == own.id]
        rejected = self.rejected - {(content, own.id) for content in (*change.seen, *change.unseen)}
        rejected |= {(content, own.id) for content in change.wrong}
        rows = np.concatenate([seen, unseen, here])
        to = np.concatenate([np.full(len(seen) + len(unseen), own.id), self._elsewhere(here, rejected)])
        moved = np.where(self.category[seen] == own.id, REVIEWED.index(CONFIRMED), REVIEWED.index(MOVED))
        moved = np.where(self.reviewed[seen] == REVIEWED.index(MOVED), REVIEWED.index(MOVED), moved)
        states = [(UNSEEN, len(unseen)), (REJECTED, len(here))]
        state = np.concatenate([moved, *(np.full(count, REVIEWED.index(each)) for each, count in states)])
        left = np.setdiff1d(self.members(own.id), rows)
        grown = replace(own, grown=int((~self.settled[left]).sum()), tally=NO_TALLY if len(unseen) else own.tally)
        return rows, to, state, {**self.categories, own.id: grown}, rejected

    def _audited(self, change: Audit) -> _Outcome:
        self.rows_of((*change.right, *change.wrong))
        right, wrong = (self._rows_or_none(each) for each in (change.right, change.wrong))
        right, wrong = right[self.unseen[right]], wrong[self.unseen[wrong]]  # not copies that are decided otherwise
        rows = np.concatenate([right, wrong])
        if {*change.right, *change.wrong} - {*self._contents(rows)}:
            raise InputError("Only images that were accepted unseen can be audited.")
        rejected = self.rejected | {(self._contents([row])[0], int(self.category[row])) for row in wrong.tolist()}
        categories, reopened = dict(self.categories), []
        for each in np.unique(self.category[rows]).tolist():
            own, unseen = categories[each], self.members(each)[self.unseen[self.members(each)]]
            good, bad = (len({*self._contents(part[self.category[part] == each])}) for part in (right, wrong))
            images = own.tally.images or len({*self._contents(unseen)})
            tally = Tally(images=images, sampled=own.tally.sampled + good + bad, right=own.tally.right + good)
            categories[each] = replace(own, tally=tally)
            if tally.failed():
                left = np.setdiff1d(unseen, rows)
                reopened.append(left)
                open_ = int((~self.settled[self.members(each)]).sum()) + len(left)
                categories[each] = replace(own, tally=NO_TALLY, failed=(*own.failed, tally), grown=open_)
        opened = np.concatenate(reopened) if reopened else np.zeros(0, dtype=np.int64)
        states = [(CONFIRMED, len(right)), (REJECTED, len(wrong)), (OPEN, len(opened))]
        to = np.concatenate([self.category[right], self._elsewhere(wrong, rejected), self.category[opened]])
        state = np.concatenate([np.full(count, REVIEWED.index(each)) for each, count in states])
        return np.concatenate([rows, opened]), to, state, categories, rejected

    def _kept(self, change: Keep) -> Mapping[int, ReviewedCategory]:
        own = [self._category(each) for each in change.categories]
        if len({*change.categories}) < len(own) or len(own) not in (1, 2):
            raise InputError(f"One or two different categories can be kept, got {list(change.categories)}.")
        if len(own) == 1:
            return {**self.categories, own[0].id: replace(own[0], whole=True)}
        first, second = own
        kept = {
            first.id: replace(first, apart=first.apart | {second.id}),
            second.id: replace(second, apart=second.apart | {first.id}),
        }
        return {**self.categories, **kept}

    def _refitted(self, change: Refit) -> _Outcome:
        if len(change.to) != len(change.images) or len(change.categories) != len(change.stability):
            raise InputError("A refit must give every image a category, and every category a stability.")
        if not all(0 <= each <= 1 for each in change.stability):
            raise InputError("The stability of a category must be from 0 to 1.")
        new = range(self._first_new(change), self._first_new(change) + len(change.names))
        if not {*new} <= {*change.categories}:
            raise InputError("A refit must give its new categories a stability.")
        if {*change.to, *change.categories} - {*self.categories, *new}:
            raise InputError("A refit must put images into categories that exist or are new.")
        target = dict(zip(change.images, change.to, strict=True))
        rows = self._rows_or_none(change.images)
        rows = rows[~self.settled[rows]]  # not copies that are decided
        to = np.array([target[content] for content in self._contents(rows)], dtype=np.int64)
        if {*change.images} - {*self._contents(rows)} or {*target.items()} & self.rejected:
            raise InputError("A refit must leave alone what people have decided.")
        categories = dict(self.categories)
        for number, name in zip(new, change.names, strict=True):
            self._check_name(name, number)
            from_ = self.category[rows[to == number]]
            if not len(from_):
                raise InputError(f"A new category must get images, but {name!r} does not.")
            categories[number] = self._new(number, name, int(np.bincount(from_).argmax()), by_hand=False)
        for each, share in zip(change.categories, change.stability, strict=True):
            categories[each] = replace(categories[each], stability=share, grown=None)
        return rows, to, self.reviewed[rows], categories, self.rejected

    def _first_new(self, change: Refit) -> int:
        """Return the id of the first new category: the next one, or, if it is made again, the one it had."""
        return min((each for each in change.categories if each not in self.categories), default=self.next_id)

    def _new(self, number: int, name: str, parent: int, *, by_hand: bool = True) -> ReviewedCategory:
        """Return a new category whose images are mostly those of another."""
        origin = self.categories[parent].origin
        origin = parent if origin is None else origin
        return ReviewedCategory(id=number, name=name, kind="new", by_hand=by_hand, origin=origin)

    def _rows_or_none(self, contents: Sequence[str]) -> Ints:
        return self.rows_of(contents) if contents else np.zeros(0, dtype=np.int64)

    def _contents(self, rows: Iterable[int]) -> list[str]:
        return [self.base.assignments.contents[row] for row in np.asarray(rows).tolist()]

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


def _renumbered(category: ReviewedCategory, gone: set[int], into: int) -> ReviewedCategory:
    """Return a category that is kept apart from what others were merged into."""
    if not category.apart & gone:
        return category
    return replace(category, apart=(category.apart - gone) | {into})
