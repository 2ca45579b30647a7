"""The decisions of two people about the same run, joined: nothing is lost, and contradictions are left for people."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.review.actions import (
    Accept,
    AcceptCategory,
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
from sortal.review.effects import Review
from sortal.review.journal import Decision, append, in_words, read, reviewed
from sortal.review.loading import locked_run
from sortal.runs.run import DECISIONS, OPEN, REVIEWED, Run

ELSEWHERE = "Here these images were put elsewhere."  # why a decision about images is disputed
CONFIRMED = "Here these images were confirmed."


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
        reviewed(run, theirs, other)  # refuses what does not follow from this run
        lines = join(run, mine, theirs)
        if lines:
            append(folder / DECISIONS, run.facts, lines)
    return lines, in_words(run, [*mine, *lines])[len(mine) :]


def join(run: Run, mine: Sequence[Decision], theirs: Sequence[Decision]) -> list[Decision]:
    """Return the lines that bring another person's journal about the same run, as it was sorted, into mine.

    Nothing is lost: what contradicts a decision of mine is disputed, which leaves the state as it is, for people to
    settle. Their new categories get ids of their own, and one with the name of one of mine is the same category.
    """
    ours, context = reviewed(run, mine), Review(run)
    decided = np.zeros(len(ours.reviewed), dtype=bool)  # of which I have said something
    for before in ours.done:
        if not isinstance(before.change, Merge | Split | Refit):
            decided[before.rows] = True
    decided &= ours.reviewed != REVIEWED.index(OPEN)  # an audit may have opened some again
    have = {each.key.partition(".")[0] for each in mine}
    taken, taken_back = surviving(theirs)
    standing = {id(each) for each in taken}
    ids: dict[int, int] = {}
    lines: list[Decision] = []
    for each in theirs:
        if each.disputed:
            continue
        if id(each) not in standing:
            context.take(each.action)  # what was undone has used up ids
            continue
        assert not isinstance(each.action, Undo | Redo)
        key, there = each.key.partition(".")[0], {*context.categories}
        if key in have:
            if isinstance(each.action, Split | Create):  # the id that it got here
                for line in mine:
                    if line.key == key and isinstance(line.action, Split | Create | Move):
                        ids[each.action.category] = line.action.category
            context.take(each.action)
            ids |= dict.fromkeys({*context.categories} - there - {*ids}, -1)  # they do not exist here
            continue
        made = _rebased(each.action, context, ours, decided, ids)
        context.take(each.action)
        for number, (change, reason) in enumerate(made):
            line = replace(each, key=each.key if number == 0 else f"{each.key}.{number}", action=change)
            if not reason:
                try:
                    ours.take(change)
                    if isinstance(each.action, Split | Create) and isinstance(change, Split | Create | Move):
                        ids[each.action.category] = change.category
                except InputError as error:
                    reason = str(error)
            lines.append(replace(line, disputed=reason))
        ids |= dict.fromkeys({*context.categories} - there - {*ids}, -1)
    for each in surviving(mine)[0]:
        if (undo := taken_back.get(each.key)) and undo.key not in have:
            lines.append(replace(undo, disputed="They undid a decision that still stands here."))
    return lines


def surviving(lines: Iterable[Decision]) -> tuple[list[Decision], dict[str, Decision]]:
    """Return the decisions that no later line has undone, and the line that undid each of the others, by its key."""
    done: list[Decision] = []
    undone: list[Decision] = []
    by: dict[str, Decision] = {}
    for each in lines:
        if each.disputed:
            continue
        if isinstance(each.action, Undo):
            undone.append(done.pop())
            by[undone[-1].key] = each
        elif isinstance(each.action, Redo):
            done.append(undone.pop())
            by.pop(done[-1].key, None)  # keys that were made up may be the same
        else:
            done.append(each)
            undone.clear()
    return done, by


def _rebased(
    change: Change, theirs: Review, ours: Review, decided: NDArray[np.bool_], ids: dict[int, int]
) -> list[tuple[Change, str]]:
    """Return what their change, made in their state, is in ours: changes, each with a reason if it is disputed.

    `decided` (n,) are the images of which I have said something; `ids` are ours of categories that they have created.
    """

    def here(category: int) -> int:
        category = ids.get(category, category)
        for before in ours.done:  # where it was merged into
            if isinstance(before.change, Merge) and category in before.change.categories[1:]:
                category = before.change.categories[0]
        return category

    if isinstance(change, Rename):
        own, was = here(change.category), theirs.categories[change.category].name
        now = ours.categories[own].name if own in ours.categories else was
        if now == change.name:
            return []
        renamed = replace(change, category=own)
        return [(renamed, "" if now == was else f"Here it was renamed to {now!r}.")]
    if isinstance(change, Merge):
        into = tuple(dict.fromkeys(map(here, change.categories)))
        return [(Merge(categories=into), "")] if len(into) > 1 else []
    if isinstance(change, Keep):
        same = tuple(dict.fromkeys(map(here, change.categories)))
        if len(same) < len(change.categories):
            return []  # they are one here
        missing = {*same} - {*ours.categories}
        return [(Keep(categories=same), "A category does not exist here." if missing else "")]
    if isinstance(change, Refit):
        return [(change, "A refit depends on all decisions before it. Refit again here.")]
    if isinstance(change, Grow):
        return _grown(change, ours, decided, here(change.category))
    if isinstance(change, Audit):
        if ours.unseen[ours.rows_of((*change.right, *change.wrong))].all():
            return [(change, "")]
        # Here some were not accepted unseen, so it is no sample, but what it says of images holds.
        found = _images(Accept(images=change.right), theirs, ours, decided, here) if change.right else []
        for content in change.wrong:
            away = Reject(images=(content,), category=int(theirs.category[theirs.rows_of([content])[0]]))
            found += _images(away, theirs, ours, decided, here)
        return found
    if isinstance(change, AcceptCategory):
        rows = theirs.members(change.category)
        contents = tuple(dict.fromkeys(theirs.base.assignments.contents[row] for row in rows.tolist()))
        change = Accept(images=contents)
        if not contents:
            return []
    if isinstance(change, Split | Create):
        named = [each.id for each in ours.categories.values() if each.name == change.name]
        if named:
            return _images(Move(images=change.images, category=named[0]), theirs, ours, decided, lambda own: named[0])
        following = ours.next_id
        return _images(replace(change, category=following), theirs, ours, decided, lambda own: following)
    return _images(change, theirs, ours, decided, here)


def _grown(change: Grow, ours: Review, decided: NDArray[np.bool_], own: int) -> list[tuple[Change, str]]:
    """Separate the images of a grown category on which we agree from those that we have put elsewhere."""

    def against(content: str, *, wrong: bool) -> bool:
        row = int(ours.rows_of([content])[0])
        return bool(decided[row]) and (int(ours.category[row]) == own) == wrong

    parts: dict[bool, dict[str, tuple[str, ...]]] = {}
    for disputed in (False, True):
        parts[disputed] = {
            name: tuple(each for each in getattr(change, name) if against(each, wrong=name == "wrong") == disputed)
            for name in ("seen", "unseen", "wrong")
        }
    return [
        (Grow(category=own, **part), ELSEWHERE if disputed else "")
        for disputed, part in parts.items()
        if any(part.values())
    ]


def _images(
    change: Any, theirs: Review, ours: Review, decided: NDArray[np.bool_], here: Callable[[int], int]
) -> list[tuple[Change, str]]:
    """Separate the images on which we agree, or have no opinion, from those that we have put elsewhere."""
    where: dict[tuple[bool, bool, int], list[str]] = {}
    for content in change.images:
        row = theirs.rows_of([content])[0]
        target = here(int(theirs.category[row])) if isinstance(change, Accept) else here(change.category)
        is_here = int(ours.category[row]) == target
        against = bool(decided[row]) and (is_here if isinstance(change, Reject) else not is_here)
        if isinstance(change, Reject) and not is_here and not against:
            continue  # it has left that category
        moves = isinstance(change, Accept) and not is_here
        where.setdefault((against, moves, target), []).append(content)
    found: list[tuple[Change, str]] = []
    for (against, moves, target), contents in where.items():
        part: Change = replace(change, images=tuple(contents))
        if moves:
            part = Move(images=tuple(contents), category=target)
        elif isinstance(part, Move | Reject):
            part = replace(part, category=target)
        why = CONFIRMED if isinstance(change, Reject) else ELSEWHERE
        found.append((part, why if against else ""))
    return found
