"""The journal of a run: one decision a line, only ever appended to, and on disk before it counts."""

import getpass
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.runs import actions
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
from sortal.runs.decisions import Review
from sortal.runs.facts import RunFacts
from sortal.runs.run import DECISIONS, Run
from sortal.system.files import lock_folder, sync_folder

FORMAT = "sortal decisions 1"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A line of the journal."""

    key: str  # random, so that it is recognised in any journal
    at: str  # ISO 8601
    by: str
    action: Action
    disputed: str = ""  # why it was not carried out, if it contradicts an earlier one

    def to_json(self) -> dict[str, Any]:
        about = {"key": self.key, "at": self.at, "by": self.by, **actions.to_json(self.action)}
        return {**about, "disputed": self.disputed} if self.disputed else about


def decide(action: Action, by: str | None = None) -> Decision:
    """Make a line of the journal, by default in the name of the current user."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return Decision(key=secrets.token_hex(8), at=at, by=_user() if by is None else by, action=action)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # without a name in this system
        return "unknown"


def run_key(facts: RunFacts) -> str:
    """Return what tells a run from every other one that decisions may be about."""
    about = [facts.hashes.model, facts.hashes.images, facts.hashes.features, facts.finished]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


# The file


def read(path: Path, facts: RunFacts) -> tuple[Decision, ...]:
    """Read a journal about the run of these facts. A last line that a crash has torn is left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # the last part has no end, or is empty
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(f"The decisions in {str(path)!r} cannot be read: {error.strerror}.") from error
    found = [_read_line(path, number, line) for number, line in enumerate(lines, start=1)]
    if not found:
        return ()
    header, *rest = found
    if header.get("format") != FORMAT:
        raise InputError(f"Decisions must be a file that begins with {FORMAT!r}, got {str(path)!r}, which does not.")
    if header.get("run") != run_key(facts):
        raise InputError(f"The decisions in {str(path)!r} are about another run. Move the file away to leave them out.")
    return tuple(_read_decision(path, number, each) for number, each in enumerate(rest, start=2))


def _read_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _damaged(path, number, error) from error
    if not isinstance(found, dict):
        raise _damaged(path, number, ValueError("it is not an object"))
    return found


def _read_decision(path: Path, number: int, line: dict[str, Any]) -> Decision:
    about = {name: line.pop(name, "") for name in ("key", "at", "by", "disputed")}
    try:
        for name, value in about.items():
            if not isinstance(value, str):
                raise ValueError(f"{name} must be text, got {str(value)[:60]!r}")
        return Decision(action=actions.from_json(line), **about)
    except ValueError as error:
        raise _damaged(path, number, error) from error


def _damaged(path: Path, number: int, error: ValueError) -> InputError:
    return InputError(f"Line {number} of {str(path)!r} is damaged: {error}. Correct it, or move the file away.")


def append(path: Path, facts: RunFacts, more: Iterable[Decision]) -> None:
    """Append decisions, which are on disk when this returns; if they cannot be written, the file stays as it was."""
    text = "".join(f"{json.dumps(each.to_json())}\n" for each in more)
    try:
        new = not path.exists()
        with path.open("ab+", buffering=0) as file:
            end = _whole_lines(file)
            if not end:
                text = f"{json.dumps({'format': FORMAT, 'run': run_key(facts)})}\n{text}"
            try:
                file.truncate(end)
                content = memoryview(text.encode("ascii"))
                while content:
                    content = content[file.write(content) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
        if new:
            sync_folder(path.parent)
    except OSError as error:
        raise InputError(
            f"The decision cannot be saved in {str(path)!r}: {error.strerror or error}. Nothing has changed; free some "
            "space or permit writing, and try again."
        ) from error


def _whole_lines(file: Any) -> int:
    """Return the length of a file up to the end of its last whole line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 2**16)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return int(start + at + 1)
        end = start
    return 0


def archive_name(folder: Path) -> str:
    """Return a name for a journal that a new state of its run has taken in."""
    stem, suffix = DECISIONS.split(".")
    number = 1
    while (folder / f"{stem}-{number}.{suffix}").exists():
        number += 1
    return f"{stem}-{number}.{suffix}"


@dataclass
class History:
    """The words of what can be undone and of what can be redone, the last of them first to go."""

    done: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)

    def add(self, action: Action, words: str) -> str:
        """Take an action into account that these words describe, and return what to say of it."""
        if isinstance(action, Undo):
            self.undone.append(self.done.pop())
            return f"{words}: {lower(self.undone[-1])}"
        if isinstance(action, Redo):
            self.done.append(self.undone.pop())
            return f"{words}: {lower(self.done[-1])}"
        self.done.append(words)
        self.undone.clear()
        return words


def in_words(run: Run, lines: Iterable[Decision], history: History | None = None) -> list[str]:
    """Say in words what each line did to the run as it was sorted, and take it into the history."""
    review, history, found = Review(run), history or History(), list[str]()
    for each in lines:
        text = actions.describe(each.action, {own.id: own.name for own in review.categories.values()})
        if each.disputed:
            found.append(f"Disputed: {lower(text)}. {each.disputed}")
        else:
            review.take(each.action)
            found.append(history.add(each.action, text))
    return found


def lower(text: str) -> str:
    """Begin a sentence in small letters."""
    return f"{text[:1].lower()}{text[1:]}"


# Two people


def merge(folder: Path, other: Path) -> tuple[list[Decision], list[str]]:
    """Join another person's journal about the same run into that of a run folder; return the added lines.

    They are also returned in words.
    """
    from sortal.runs.storage import load_run

    if not other.is_file():
        raise InputError(f"The other decisions must be a file, got {str(other)!r}, which is not.")
    load_run(folder, raw=True)  # refuses what is not a run before a lock is put there
    with lock_folder(folder):
        run = load_run(folder, raw=True)
        mine, theirs = read(folder / DECISIONS, run.facts), read(other, run.facts)
        if not theirs:
            raise InputError(f"There are no decisions in {str(other)!r}.")
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
        if not isinstance(before.change, Merge | Split):
            decided[before.rows] = True
    have = {each.key.partition(".")[0] for each in mine}
    taken, taken_back = _surviving(theirs)
    ids: dict[int, int] = {}
    lines: list[Decision] = []
    for each in taken:
        assert not isinstance(each.action, Undo | Redo)
        key = each.key.partition(".")[0]
        if key in have:
            if isinstance(each.action, Split | Create):  # the id that it got here
                for line in mine:
                    if line.key == key and isinstance(line.action, Split | Create | Move):
                        ids[each.action.category] = line.action.category
            context.take(each.action)
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
        if isinstance(each.action, Split | Create):
            ids.setdefault(each.action.category, -1)  # it does not exist here
    for each in _surviving(mine)[0]:
        if (undo := taken_back.get(each.key)) and undo.key not in have:
            lines.append(replace(undo, disputed="They undid a decision that still stands here."))
    return lines


def reviewed(run: Run, lines: Iterable[Decision]) -> Review:
    """Return the review of a run after all lines that are not disputed."""
    review = Review(run)
    for each in lines:
        if not each.disputed:
            review.take(each.action)
    return review


def _surviving(lines: Iterable[Decision]) -> tuple[list[Decision], dict[str, Decision]]:
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
            del by[done[-1].key]
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
    if isinstance(change, AcceptCategory):
        rows = theirs.members(change.category)
        contents = tuple(dict.fromkeys(theirs.base.assignments.contents[row] for row in rows.tolist()))
        change = Accept(images=contents)
        if not contents:
            return []
    if isinstance(change, Split | Create):
        same = [each.id for each in ours.categories.values() if each.name == change.name]
        if same:
            return _images(Move(images=change.images, category=same[0]), theirs, ours, decided, lambda own: same[0])
        following = ours.next_id
        return _images(replace(change, category=following), theirs, ours, decided, lambda own: following)
    return _images(change, theirs, ours, decided, here)


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
        why = "confirmed" if isinstance(change, Reject) else "put elsewhere"
        found.append((part, f"Here these images were {why}." if against else ""))
    return found
