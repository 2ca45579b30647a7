"""The journal of a run: one decision a line, only ever appended to, and on disk before it counts."""

import errno
import getpass
import hashlib
import json
import os
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sortal.errors import NO_SPACE, InputError, NoSpaceError
from sortal.reviews import actions
from sortal.reviews.actions import Action
from sortal.reviews.history import Decision, Review
from sortal.runs.facts import RunFacts
from sortal.runs.run import DECISIONS, Run
from sortal.system.files import sync_folder
from sortal.system.open_folder import Identity, open_held
from sortal.system.regular_files import check_size, parse_json, read_regular

JOURNAL_FORMAT = "sortal decisions 1"
FIRST_LINE = 2  # number of the first line with a decision, after the header


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


def replay(run: Run, lines: Iterable[Decision], path: Path | None = None) -> Review:
    """Return the review of a run, as sorted, after all lines of a journal, which anyone may have written.

    InputError names the line that cannot be carried out, and the file: `path`, or that of the run.
    """
    review = Review(run)
    for number, line in enumerate(lines, start=FIRST_LINE):
        try:
            review.follow(line)
        except InputError as error:
            raise _damaged(path or run.folder / DECISIONS, number, error) from error
    return review


# The file


def read(path: Path, facts: RunFacts) -> tuple[Decision, ...]:
    """Read a journal about the run of these facts. A last line that a crash has torn is left out."""
    try:
        lines = read_regular(path).split(b"\n")[:-1]  # the last part has no end, or is empty
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InputError(f"The decisions in {str(path)!r} cannot be read: {error.strerror}.") from error
    found = [_read_line(path, number, line) for number, line in enumerate(lines, start=1)]
    if not found:
        return ()
    header, *rest = found
    if header.get("format") != JOURNAL_FORMAT:
        raise InputError(f"Decisions must begin with {JOURNAL_FORMAT!r}, but {str(path)!r} does not.")
    if header.get("run") != run_key(facts):
        raise _foreign(path)
    return tuple(_read_decision(path, number, each) for number, each in enumerate(rest, start=FIRST_LINE))


def _read_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = parse_json(line)
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


def _damaged(path: Path, number: int, error: ValueError | InputError) -> InputError:
    problem = str(error).rstrip(".")
    return InputError(f"Line {number} of {str(path)!r} is damaged: {problem}. Correct it, or move the file away.")


def _foreign(path: Path) -> InputError:
    return InputError(f"The decisions in {str(path)!r} are about another run. Move the file away to leave them out.")


def append(
    path: Path, facts: RunFacts, more: Iterable[Decision], *, after: int | None = None, folder: Identity | None = None
) -> int:
    """Append decisions, which are on disk when this returns; if they cannot be written, the file stays as it was.

    Returns the length of the file. With `after`, this must have been its length before: nobody else has changed it.
    With `folder`, it must be in that one, and always in the one that is locked, if its path is that of one.
    """
    text = "".join(f"{json.dumps(each.to_json())}\n" for each in more)
    try:
        opened, new = _open(path, folder, after)
        with os.fdopen(opened, "ab+", buffering=0) as file:
            check_size(path, opened, file.seek(0, os.SEEK_END))
            file.seek(0)
            before = file.read()
            end = before.rfind(b"\n") + 1  # what follows the last whole line was torn by a crash
            if after not in (None, end):
                raise _changed(path)
            if not end:
                text = f"{json.dumps({'format': JOURNAL_FORMAT, 'run': run_key(facts)})}\n{text}"
            elif _read_line(path, 1, before[: before.index(b"\n")]).get("run") != run_key(facts):
                raise _foreign(path)
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
        return end + len(text)
    except OSError as error:
        problem = f"The decision cannot be saved in {str(path)!r}: {error.strerror or error}. Nothing has changed;"
        if error.errno in NO_SPACE:
            raise NoSpaceError(f"{problem} free some space, and try again.") from error
        first = "close other programs" if error.errno in (errno.EMFILE, errno.ENFILE) else "permit writing"
        raise InputError(f"{problem} {first}, and try again.") from error


def _open(path: Path, folder: Identity | None, after: int | None) -> tuple[int, bool]:
    """Open a journal to append to it; also return whether it is new."""
    try:
        return open_held(path, os.O_RDWR | os.O_APPEND, folder), False
    except FileNotFoundError:
        if after:
            raise _changed(path) from None
        return open_held(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, folder), True


def _changed(path: Path) -> InputError:
    return InputError(
        f"The decisions in {str(path)!r} must not be changed during a review, but were. The decision is not saved; "
        "start the review again."
    )


def length(path: Path) -> int:
    """Return the length of a journal up to the end of its last whole line; 0 if there is none."""
    try:
        return read_regular(path).rfind(b"\n") + 1
    except OSError:
        return 0


def archive_name(folder: Path) -> str:
    """Return a name for a journal that a new state of its run has taken in."""
    stem, suffix = DECISIONS.split(".")
    number = 1
    while (folder / f"{stem}-{number}.{suffix}").exists():
        number += 1
    return f"{stem}-{number}.{suffix}"
