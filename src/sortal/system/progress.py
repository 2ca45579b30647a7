"""Where work runs, and how it reports."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from time import monotonic
from typing import Any, TypeAlias

from sortal.config import AUTO
from sortal.system.text import duration, plain, shorten

OnEpoch: TypeAlias = Callable[[int, Any, Mapping[str, float]], None]  # (epoch, images, figures); see `Runtime`
Progress: TypeAlias = Callable[[str, int, int], None]  # (task, done, total); a total of 0 is unknown

ROUND = "round"  # of a method that trains in several: its number among the figures of an epoch, from 1
WATCHED_BY_PROGRAM = "SORTAL_WATCHED"  # in the environment of a command whose progress a program reads
LINE_EVERY = 30.0  # seconds between two lines where there is no terminal
REDRAW_EVERY = 0.2  # seconds between two states of a line in a notebook
LONGEST_MESSAGE = 4000  # characters of a message
BAR_WIDTH, LINE_WIDTH = 20, 79  # characters of a bar, and of a line in a notebook


def ignore(what: str, done: int, total: int) -> None:
    """Report no progress, whatever the task, `what`, and how much is `done` of `total`."""


log = logging.getLogger("sortal").info


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The device to compute on, the processes that read images, and where progress and notes go.

    `device` is "auto", "cpu", "cuda", "cuda:N" or "mps"; `workers` is the number of processes that read images, by
    default one per core. `progress` is called with a task, how much of it is done and its total, 0 if unknown; `note`
    with a sentence. By default, the functions that are public show both. `on_epoch` is called after every epoch of
    training, with its number, the images it learned from, of which `images.features()` are features, and figures.

    >>> Runtime(device="cuda:1", workers=4, note=print)  # doctest: +SKIP
    """

    device: str = AUTO
    workers: int | None = None
    progress: Progress = ignore
    note: Callable[[str], None] = log
    on_epoch: OnEpoch | None = None

    def prefixed(self, prefix: str) -> "Runtime":
        """Return a runtime that puts a `prefix` before the name of each task."""
        return replace(self, progress=lambda what, done, total: self.progress(f"{prefix}{what}", done, total))


def say(text: str) -> None:
    """Print a message to standard error, on one line, whatever text it quotes: escaped, and shortened if need be."""
    if sys.stderr is not None:  # it may be closed
        _write(f"{shorten(plain(text), LONGEST_MESSAGE)}\n")


def _write(text: str) -> None:
    with suppress(OSError):  # nobody reads it any more, which is no reason to give up the work
        sys.stderr.write(text)
        sys.stderr.flush()


def is_first() -> bool:
    """Tell whether this is the first of the processes that torchrun started, or the only process."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


@contextmanager
def shown(runtime: Runtime, first: str = "Starting", *, wanted: bool = True) -> Iterator[Runtime]:
    """Yield a runtime that shows progress and notes on standard error, unless they already go elsewhere.

    A terminal gets a bar with the time left, a notebook one line that is redrawn, a program that watches JSON lines,
    and anything else a line every half minute. Of several processes, only the first shows progress. With `wanted`
    false, nothing is shown.
    """
    if not wanted:
        yield runtime
        return
    if runtime.note == log:
        runtime = replace(runtime, note=_Notes())
    if runtime.progress is not ignore or sys.stderr is None or not is_first():
        yield runtime
        return
    show = _bar if sys.stderr.isatty() else _line if _in_notebook() else _lines
    if WATCHED_BY_PROGRAM in os.environ:
        show = _records
    with show(first) as progress:
        yield replace(runtime, progress=progress)


@dataclass(eq=False)
class _Notes:
    """Print notes, but not the same one twice in a row."""

    last: str = ""

    def __call__(self, text: str) -> None:
        if text != self.last:
            say(f"sortal: {text}")
        self.last = text


@dataclass(eq=False)
class _Task:
    """What is being done, and how far it is."""

    what: str
    done: int = 0
    total: int = 0
    first: int = 0  # how much was done when it began
    since: float = field(default_factory=monotonic)

    def report(self, what: str, done: int, total: int) -> None:
        """Take in a report, which may be the first one of another task."""
        if what != self.what:
            self.what, self.first, self.since = what, done, monotonic()
        self.done, self.total = done, total

    def left(self) -> float | None:
        """Return the seconds that are left, if that can be told."""
        steps = self.done - self.first
        return (self.total - self.done) * (monotonic() - self.since) / steps if self.total and steps > 0 else None

    def __str__(self) -> str:
        if not self.total:
            return f"{self.what}, for {duration(monotonic() - self.since)}"
        left = self.left()
        return f"{self.what}: {self.done:,} of {self.total:,}" + (f", {duration(left)} left" if left else "")


@contextmanager
def _bar(first: str) -> Iterator[Progress]:
    """Draw a bar in a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)

        def show(what: str, done: int, total: int) -> None:
            if what != bar.tasks[0].description:
                bar.reset(task, description=what)
            bar.update(task, completed=done, total=total or None)

        yield show


@contextmanager
def _line(first: str) -> Iterator[Progress]:
    """Redraw one line, which notebooks show without any extension."""
    task, drawn = _Task(first), 0.0

    def show(what: str, done: int, total: int) -> None:
        nonlocal drawn
        task.report(what, done, total)
        if monotonic() - drawn >= REDRAW_EVERY:
            drawn = monotonic()
            full = "█" * (BAR_WIDTH * done // total if total else 0)
            text = f"{full:░<{BAR_WIDTH}} {task}"[:LINE_WIDTH]
            _write(f"\r{text:<{LINE_WIDTH}}")

    try:
        yield show
    finally:
        _write(f"\r{'':<{LINE_WIDTH}}\r")


@contextmanager
def _lines(first: str) -> Iterator[Progress]:
    """Print a line from time to time, also while nothing is reported."""
    task, ended = _Task(first), Event()

    def work() -> None:
        while not ended.wait(LINE_EVERY):
            say(f"sortal: {task}")

    Thread(target=work, name="progress", daemon=True).start()
    try:
        yield task.report
    finally:
        ended.set()


@contextmanager
def _records(first: str) -> Iterator[Progress]:
    """Write JSON lines, for a program that watches: the task, how much of it is done, and the seconds left."""
    task, written = _Task(""), 0.0

    def show(what: str, done: int, total: int) -> None:
        nonlocal written
        is_new = what != task.what
        task.report(what, done, total)
        if is_new or monotonic() - written >= REDRAW_EVERY:
            written = monotonic()
            _write(json.dumps({"task": what, "done": done, "total": total, "left": task.left()}) + "\n")

    show(first, 0, 0)
    yield show


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
