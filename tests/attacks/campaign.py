"""A campaign of attacks: many trials of each, in several processes, within a budget of time, and their table."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from attacks.attack import Attack, World, perform
from attacks.catalogue import ATTACKS

USUAL = 1.0  # seconds that a trial counts for while it runs
PLACE = "SORTAL_ATTACKS"  # the environment variable that names the folder of a campaign


@dataclass
class Row:
    """A row of the table: what was tried of one attack."""

    attack: str
    trials: int = 0
    tried: int = 0  # single attempts; a trial makes one or many
    failed: int = 0  # trials
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The end of a trial: the number of attempts, or why it failed."""

    tried: int
    seconds: float
    problem: str = ""


Once: TypeAlias = Callable[[str, int, int], Outcome]  # (attack, number, seed)


@cache
def _world() -> World:
    return World(Path(tempfile.mkdtemp(dir=os.environ[PLACE])))


def try_once(attack_id: str, number: int, seed: int) -> Outcome:
    """Carry out one trial, in a process of the pool."""
    (attack,) = (each for each in ATTACKS if each.id == attack_id)
    start = monotonic()
    try:
        tried = perform(attack, number, seed, _world())
    except Exception:
        return Outcome(1, monotonic() - start, traceback.format_exc())
    return Outcome(tried, monotonic() - start)


def processes(jobs: int) -> Executor:
    """Return what makes trials in processes of their own."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


def campaign(
    attacks: Sequence[Attack],
    seed: int,
    seconds: float,
    jobs: int,
    *,
    once: Once = try_once,
    pool: Callable[[int], Executor] = processes,
) -> Iterator[tuple[str, int, Outcome]]:
    """Yield the trials of a campaign as they end: attack, number, outcome.

    Each attack gets its least number of trials first, then the one that took the least time so far is next.
    """
    started, spent = Counter[str](), defaultdict[str, float](float)
    end = monotonic() + seconds

    def following() -> Attack | None:
        if short := [each for each in attacks if started[each.id] < each.least]:
            return min(short, key=lambda each: started[each.id] / each.least)
        return min(attacks, key=lambda each: spent[each.id]) if monotonic() < end else None

    running: dict[Future[Outcome], tuple[Attack, int, float]] = {}
    with ExitStack() as stack:
        executor = stack.enter_context(pool(jobs))
        while True:
            while len(running) < jobs and (attack := following()) is not None:
                future = executor.submit(once, attack.id, started[attack.id], seed)
                running[future] = attack, started[attack.id], monotonic()
                started[attack.id] += 1
                spent[attack.id] += USUAL
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                attack, number, start = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    outcome = Outcome(1, monotonic() - start, "A process that made trials died.\n")
                    executor = stack.enter_context(pool(jobs))
                spent[attack.id] += outcome.seconds - USUAL
                yield attack.id, number, outcome


def table(rows: Sequence[Row]) -> str:
    """Return the table of attacks as Markdown."""
    total = Row("all")
    for row in rows:
        total.trials, total.tried = total.trials + row.trials, total.tried + row.tried
        total.failed, total.seconds = total.failed + row.failed, total.seconds + row.seconds
    lines = ["| attack | trials | attempts | failed | seconds |", "|---|--:|--:|--:|--:|"]
    for row in (*rows, total):
        lines.append(f"| {row.attack} | {row.trials:,} | {row.tried:,} | {row.failed:,} | {row.seconds:,.0f} |")
    return "\n".join(lines)
