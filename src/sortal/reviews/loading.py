"""Runs loaded from their folders, with the decisions of people, and saved again."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sortal.errors import InputError
from sortal.reviews import journal
from sortal.runs import storage
from sortal.runs.run import DECISIONS, Run
from sortal.system import files as disk
from sortal.system.text import plural


def load_run(folder: str | os.PathLike[str], *, raw: bool = False) -> Run:
    """Load the run that `discover` saved in `folder`, and wait if a process is writing it.

    Decisions of people who reviewed it are taken into account; `raw` loads it as it was saved.

    >>> run = sortal.load_run("photos-run")  # doctest: +SKIP
    >>> run.metrics.accuracy.new  # doctest: +SKIP
    0.874
    """
    place = Path(folder)
    return storage.read_whole(place, lambda: _load(place, raw=raw))


def _load(place: Path, *, raw: bool) -> Run:
    run = storage.read_run(place)
    lines = () if raw else journal.read(place / DECISIONS, run.facts)
    return replace(journal.replay(run, lines).run(), decisions=len(lines)) if lines else run


@contextmanager
def locked_run(folder: str | os.PathLike[str], *, raw: bool = False) -> Iterator[Run]:
    """Lock the folder of a run while the enclosed code runs, and load it; a folder without a run is not locked."""
    place = Path(folder)
    storage.check_run(place)
    with disk.lock_folder(place):
        yield load_run(place, raw=raw)


def save_run(run: Run, files: Mapping[str, bytes | Path | None] | None = None) -> None:
    """Write a run into its folder, with further `files` by name; None removes a file.

    Only what differs from the saved run is written, and a reader never sees half of a change. Decisions that the run
    takes into account are part of it from now on, so their journal is put aside under another name.
    """
    disk.finish(run.folder)  # so that a change that a kill broke off does not undo what is compared now
    storage.write_run(run, {**(files or {}), **_put_aside(run)})


def _put_aside(run: Run) -> dict[str, bytes | Path | None]:
    """Return the change of files that puts the journal aside; refuse it if the run misses some of its decisions."""
    path, saved = run.folder / DECISIONS, storage.peek(run.folder)
    lines = journal.read(path, saved) if saved is not None else ()
    if len(lines) != run.decisions:
        raise InputError(
            f"The run in {str(run.folder)!r} has {plural(len(lines), 'decision')}, of which this state takes "
            f"{run.decisions:,} into account. Load it again before you save it."
        )
    if not lines:
        return {}
    return {DECISIONS: None, journal.archive_name(run.folder): journal.archived(storage.read_run(run.folder), lines)}
