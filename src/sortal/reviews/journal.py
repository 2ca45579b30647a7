"""The journal of a run: one decision a line, only ever appended to, and on disk before it counts."""

import errno
import getpass
import hashlib
import itertools
import json
import os
import secrets
from collections.abc import Iterable, Sequence
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
    """Return a key of a run, by which the journal of another run is recognised."""
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
    return tuple(decision for decision, _ in _read_lines(path, run_key(facts)))


def earlier(folder: Path) -> list[tuple[Decision, str]]:
    """Read the decisions that have become part of the run in a folder, the oldest first, with what each did in words.

    Earlier versions did not keep the words, which are empty then.
    """
    return [line for path in archives(folder) for line in _read_lines(path, None)]


def audited(folder: Path) -> frozenset[str]:
    """Return the contents of all images that people judged in random samples, in every review of a run so far."""
    found = set[str]()
    for path in (*archives(folder), folder / DECISIONS):
        done, undone = list[Action](), list[Action]()
        for line, _ in _read_lines(path, None):
            match line.action:
                case action if line.disputed or isinstance(action, actions.Withdraw):
                    pass
                case actions.Undo():
                    undone.append(done.pop())
                case actions.Redo():
                    done.append(undone.pop())
                case action:
                    done.append(action)
                    undone.clear()
        found |= {one for each in done if isinstance(each, actions.Audit) for one in (*each.right, *each.wrong)}
    return frozenset(found)


def _read_lines(path: Path, run: str | None) -> tuple[tuple[Decision, str], ...]:
    """Read the decisions of a journal, about the run with this key if one is given, with words that were kept."""
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
    if run is not None and header.get("run") != run:
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


def _read_decision(path: Path, number: int, line: dict[str, Any]) -> tuple[Decision, str]:
    about = {name: line.pop(name, "") for name in ("key", "at", "by", "disputed", "words")}
    try:
        for name, value in about.items():
            if not isinstance(value, str):
                raise ValueError(f"{name} must be text, got {str(value)[:60]!r}")
        words = about.pop("words")
        return Decision(action=actions.from_json(line), **about), words
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

    Returns the length of the file. `after` is the length that it must have had before, so that nobody else has changed
    it; `folder` is the folder that it must be in.
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


def archived(run: Run, lines: Sequence[Decision]) -> bytes:
    """Return the text of a journal about a run, as sorted, with what each decision did: later runs cannot tell."""
    header = {"format": JOURNAL_FORMAT, "run": run_key(run.facts)}
    words = replay(run, lines).words
    rows = [{**each.to_json(), "words": text} for each, text in zip(lines, words, strict=True)]
    return "".join(f"{json.dumps(each)}\n" for each in (header, *rows)).encode("ascii")


def archive_name(folder: Path) -> str:
    """Return a free name for a journal whose decisions have become part of the run."""
    return _archive(folder, len(archives(folder)) + 1).name


def archives(folder: Path) -> list[Path]:
    """Return the journals whose decisions have become part of the run in a folder, the oldest first."""
    found = (_archive(folder, number) for number in itertools.count(1))
    return [*itertools.takewhile(Path.exists, found)]


def _archive(folder: Path, number: int) -> Path:
    stem, suffix = DECISIONS.split(".")
    return folder / f"{stem}-{number}.{suffix}"
