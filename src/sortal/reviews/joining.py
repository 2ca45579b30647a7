"""The decisions of two people about the same run, joined by their outcome; contradictions are left for people."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sortal.errors import InputError
from sortal.images.review_states import SEEN, SETTLED, ReviewState
from sortal.reviews import actions
from sortal.reviews.actions import Change, Contents, Create, Merge, Move, Split
from sortal.reviews.history import Decision, Review, Step, origin_of
from sortal.reviews.journal import append, read, replay
from sortal.reviews.loading import locked_run
from sortal.runs.confidence import Ints
from sortal.runs.run import DECISIONS, NOWHERE, Run

PUT_ELSEWHERE = "Here these images were put elsewhere."  # why a decision is disputed
WERE_CONFIRMED = "Here these images were confirmed."
REFIT_AGAIN = "A refit depends on all decisions before it. Refit again here."
NOT_HERE = "A category does not exist here."
KEPT_APART = "Here they are kept apart."
STILL_STANDS = "They undid a decision that still stands here."


def merge(folder: Path, other: Path) -> tuple[list[Decision], list[str]]:
    """Join another person's journal about the same run into that of a run folder; return the added lines.

    They are also returned in words.
    """
    if not other.is_file():
        raise InputError(f"The other decisions must be a file, got {str(other)!r}, which is not.")
    with locked_run(folder, raw=True) as run:
        mine, theirs = read(folder / DECISIONS, run.facts), read(other, run.facts)
        if not theirs:
            raise InputError(f"There are no decisions in {str(other)!r}.")
        lines = join(run, mine, theirs, other)
        if lines:
            append(folder / DECISIONS, run.facts, lines)
    return lines, replay(run, [*mine, *lines]).words[len(mine) :]


def join(run: Run, mine: Sequence[Decision], theirs: Sequence[Decision], other: Path | None = None) -> list[Decision]:
    """Return the lines that bring another person's journal about the same run, as it was sorted, into mine.

    What they have settled in the end is settled here, image by image, if I have not decided on it. Names, merges and
    categories to be kept follow. What contradicts a decision of mine that they do not know of becomes a disputed line,
    which changes nothing. InputError names the line of the file `other` that cannot be carried out.
    """
    joining = _Joining(replay(run, mine), replay(run, theirs, other), {line.key: line for line in theirs})
    joining.take_over({origin_of(line.key) for line in mine})
    return joining.lines


class _Joining:
    """Two reviews of one run: `ours`, which takes over what is in `theirs`, and the lines that do so."""

    def __init__(self, ours: Review, theirs: Review, their_lines: Mapping[str, Decision]) -> None:
        self.ours, self.theirs, self.their_lines, self.lines = ours, theirs, their_lines, list[Decision]()
        known = {origin_of(step.key) for step in theirs.done}
        unknown = [step for step in ours.done if origin_of(step.key) not in known]  # to them
        self.opinion = _last_steps(ours, unknown) >= 0  # (n,) images that I have decided on
        self.renamed = {step.change.category for step in unknown if isinstance(step.change, actions.Rename)}
        self.named = dict(_names_given(ours.done))

    def take_over(self, have: Collection[str]) -> None:
        """Take over what they decided, but for the decisions with these keys, and note what they undid."""
        last = _last_steps(self.theirs, self.theirs.done)
        for number, step in enumerate(self.theirs.done):
            if origin_of(step.key) not in have:
                self._take_over(step, np.flatnonzero(last == number))
        for step in self.ours.done:
            undo = self.theirs.undone_by.get(step.key)
            if undo is not None and undo not in have:
                self.lines.append(replace(self.their_lines[undo], disputed=STILL_STANDS))

    def _take_over(self, step: Step, rows: Ints) -> None:
        """Take over a step of theirs; `rows` are the images that no later step decides on."""
        match step.change:
            case actions.Rename(category=category, name=name):
                self._rename(step, category, name)
            case Merge(categories=ids):
                into = self._all_here(ids)
                if len(into) > 1:
                    self._add(step, Merge(categories=into), KEPT_APART if self.ours.kept_apart(into) else "")
            case actions.Keep(categories=ids):
                if len(kept := self._all_here(ids)) == len(ids):
                    self._add(step, actions.Keep(categories=kept))
            case actions.Leave():
                self._add(step, step.change)
            case Split(images=images, category=category) if category in self.theirs.categories:
                rows = self.ours.rows_of(images)
                self._place(step, category, rows[~self.opinion[rows]], new=Split)
                self._place(step, category, rows[self.opinion[rows]], PUT_ELSEWHERE)
            case actions.Refit():
                self._add(step, step.change, REFIT_AGAIN)
            case actions.PutBack(images=images):
                again = self.ours.rows_of(images)
                again = again[(self.ours.binned & ~self.theirs.binned & ~self.opinion)[again]]
                if back := self._contents(again):
                    self._add(step, actions.PutBack(images=back))
            case _:
                for category in dict.fromkeys(self.theirs.category[rows].tolist()):
                    here = rows[self.theirs.category[rows] == category]
                    (self._bin(step, here) if category == NOWHERE else self._settle(step, category, here))
                self._reject(step, rows[self.theirs.reviewed[rows] == ReviewState.REJECTED])

    def _rename(self, step: Step, category: int, name: str) -> None:
        """Rename a category, unless a later step renames it again; one that is not here is created with its name."""
        own = self._here(category)
        if own is None or category not in self.theirs.categories or self.theirs.categories[category].name != name:
            return
        if (now := self.ours.categories[own].name) != name:
            reason = f"Here it was renamed to {now!r}." if own in self.renamed else ""
            self._add(step, actions.Rename(category=own, name=name), reason)

    def _settle(self, step: Step, category: int, rows: Ints) -> None:
        """Settle images in a category as they have; dispute those that I have put elsewhere."""
        ours, states = self.ours, self.theirs.reviewed[rows]
        against = self.opinion[rows] & (ours.category[rows] != self._here(category))
        seen, unseen = rows[np.isin(states, SEEN) & ~against], rows[(states == ReviewState.UNSEEN) & ~against]
        is_here = ours.category[seen] == self._here(category)
        self._place(step, category, seen[~is_here])
        if confirmed := self._contents(seen[is_here & ~np.isin(ours.reviewed[seen], SEEN)]):
            self._add(step, actions.Accept(images=confirmed))
        own, grown = self._here(category), unseen[~ours.settled[unseen]]
        if own is None:
            self._place(step, category, grown, NOT_HERE)
        elif len(grown):
            self._add(step, actions.Grow(category=own, seen=(), unseen=self._contents(grown), wrong=()))
        self._place(step, category, rows[against & np.isin(states, SETTLED)], PUT_ELSEWHERE)

    def _bin(self, step: Step, rows: Ints) -> None:
        """Put images into the bin; dispute those that I have put into a category."""
        rows = rows[~self.ours.binned[rows]]
        for against, reason in ((False, ""), (True, PUT_ELSEWHERE)):
            if images := self._contents(rows[self.opinion[rows] == against]):
                self._add(step, actions.Bin(images=images), reason)

    def _place(
        self, step: Step, category: int, rows: Ints, reason: str = "", *, new: type[Create | Split] = Create
    ) -> None:
        """Put images into a category of theirs, which is created if it is not here."""
        if not len(rows):
            return
        own, images = self._here(category), self._contents(rows)
        if own is None:
            name = self.theirs.categories[category].name
            self._add(step, new(images=images, category=self.ours.next_id, name=name), reason)
        else:
            self._add(step, Move(images=images, category=own), reason)

    def _reject(self, step: Step, rows: Ints) -> None:
        """Reject images from the categories that they rejected them from; dispute those that I have settled."""
        ours = self.ours
        barred = {
            (content, self._here(category)) for content, category in self.theirs.rejected - self.ours.base.rejected
        }
        settled = self.opinion & np.isin(ours.reviewed, SETTLED)
        while len(rows):
            category = int(ours.category[rows[0]])
            here = (ours.category[rows] == category) & (settled[rows] == settled[rows[0]])
            part, rows = rows[here], rows[~here]
            wrong = [content for content in self._contents(part) if (content, category) in barred]
            if wrong:
                reason = WERE_CONFIRMED if settled[part[0]] else ""
                if self._add(step, actions.Reject(images=tuple(wrong), category=category), reason):
                    rows = np.concatenate([rows, part])  # where they are now may be wrong as well

    def _here(self, category: int) -> int | None:
        """Return the id here of a category of theirs, or of the one it was merged into; None if there is none.

        A category that they created is recognised by its name, or by an earlier name of it.
        """
        own: int | None = category
        if category >= self.ours.base.facts.next_id:
            others = {each.name for each in self.theirs.categories.values() if each.id != category}
            names = [name for name, each in _names_given(self.theirs.done) if each == category and name not in others]
            own = next((self.named[name] for name in reversed(names) if name in self.named), None)
        for step in self.ours.done:
            if isinstance(step.change, Merge) and own in step.change.categories[1:]:
                own = step.change.categories[0]
        return own if own in self.ours.categories else None

    def _all_here(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(own for own in map(self._here, ids) if own is not None))

    def _contents(self, rows: Ints) -> Contents:
        return tuple(dict.fromkeys(self.ours.contents_of(rows.tolist())))

    def _add(self, step: Step, change: Change, reason: str = "") -> bool:
        """Add a line, disputed for the given reason or if it is impossible here; tell whether it was carried out."""
        number = sum(origin_of(line.key) == origin_of(step.key) for line in self.lines)
        line = replace(self.their_lines[step.key], key=f"{step.key}.{number}" if number else step.key, action=change)
        if not reason:
            try:
                self.ours.take(change, line.key)
                self.named |= dict(_names_given(self.ours.done[-1:]))
            except InputError as error:
                reason = str(error)
        self.lines.append(replace(line, disputed=reason))
        return not reason


def _names_given(steps: Sequence[Step]) -> list[tuple[str, int]]:
    """Return the names that people gave, and the categories that got them, the oldest first."""
    found: list[tuple[str, int]] = []
    for step in steps:
        match step.change:
            case Create() | Split() | actions.Rename() as naming:
                found.append((naming.name, naming.category))
            case actions.Refit() as refit:
                found += zip(refit.names, sorted({*refit.categories} - {*step.former.categories}), strict=True)
    return found


def _last_steps(review: Review, steps: Sequence[Step]) -> Ints:
    """Return the number (n,) of the last of these steps that decided on each image; −1 without one."""
    last = np.full(len(review.category), -1)
    for number, step in enumerate(steps):
        if not isinstance(step.change, Merge | Split | actions.Refit):
            last[step.former.rows] = number
    return np.where(review.reviewed == ReviewState.OPEN, -1, last)  # an audit may have opened some again
