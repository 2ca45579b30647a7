"""A campaign of attacks: many trials of each, in several processes, within a budget of time, and their table."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

from attacks.attack import Attack, World, perform
from attacks.catalogue import ATTACKS

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


def campaign(attacks: Sequence[Attack], seed: int, seconds: float, jobs: int) -> Iterator[tuple[str, int, Outcome]]:
    """Yield the trials of a campaign as they end: attack, number, outcome."""
    started, spent = dict.fromkeys((each.id for each in attacks), 0), dict.fromkeys((each.id for each in attacks), 0.0)
    end = monotonic() + seconds

    def following() -> Attack | None:
        if short := [each for each in attacks if started[each.id] < each.least]:
            return min(short, key=lambda each: started[each.id] / each.least)
        return min(attacks, key=lambda each: spent[each.id]) if monotonic() < end else None

    running: dict[Future[Outcome], tuple[Attack, int, float]] = {}
    pool = _pool(jobs)
    try:
        while True:
            while len(running) < jobs and (attack := following()) is not None:
                number = started[attack.id]
                started[attack.id] += 1
                spent[attack.id] += 1e-3  # so that the same one is not taken twice at once
                running[pool.submit(try_once, attack.id, number, seed)] = attack, number, monotonic()
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                attack, number, start = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    outcome = Outcome(1, monotonic() - start, "A process that made trials died.\n")
                    pool.shutdown()
                    pool = _pool(jobs)
                spent[attack.id] += outcome.seconds
                yield attack.id, number, outcome
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))


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
