"""SIGKILL at random moments, and before each file operation, of every command that writes.

The same command again must end like one that was never disturbed, and leave nothing behind that is not its own.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from support import fork_server
from support.fork_server import KILLED, say
from support.reviews import saved_run, serving, session_of

from attacks.attack import Attack, Trial, World, case
from attacks.commands import COMMANDS, Command, contents, layout
from attacks.operations import KILL, count_in, die_after, disturb
from sortal.review import journal
from sortal.review.loading import load_run
from sortal.runs.run import DECISIONS

AGAIN = 0.3  # how often a command is killed once more before it may end
REVIEWS = 4  # that are killed in a trial


@dataclass(frozen=True)
class Undisturbed:
    """What a command ends with, and how it gets there."""

    prepared: Path  # the folder before it
    contents: dict[str, bytes]
    layout: set[str]
    operations: int
    seconds: float


@cache
def undisturbed(command: Command, world: World) -> Undisturbed:
    """Carry out a command once for all trials."""
    place = world.folder / f"undisturbed {command.name}"
    prepared, done, noted = place / "prepared", place / "done", place / "noted"
    prepared.mkdir(parents=True)
    command.prepare(world, prepared)
    shutil.copytree(prepared, done, symlinks=True)
    start = perf_counter()
    world.sortal(*command.words, cwd=done, before=disturb, given=[str(done), str(noted), KILL, 0]).check(0)
    seconds = perf_counter() - start
    return Undisturbed(prepared, contents(command, done), layout(done), count_in(noted), seconds)


def check_resumed(command: Command, world: World, place: Path) -> None:
    """Repeat a command that was broken off, and compare what it ends with."""
    expected = undisturbed(command, world)
    world.sortal(*command.words, cwd=place).check(*command.codes)
    found = contents(command, place)
    changed = [name for name in {*found, *expected.contents} if found.get(name) != expected.contents.get(name)]
    assert not changed, f"{command.name} ends with other {sorted(changed)}"
    assert not layout(place) - expected.layout, f"{command.name} leaves {sorted(layout(place) - expected.layout)}"


def check_whole(place: Path) -> None:
    """Load what a killed command left, if it is a run at all."""
    if (place / "run" / "run.json").exists():
        load_run(place / "run")


def _killed(trial: Trial, *, at_operation: bool) -> None:
    command: Command = case(trial, COMMANDS)
    expected = undisturbed(command, trial.world)
    place, draw = trial.folder / "place", trial.random
    shutil.copytree(expected.prepared, place, symlinks=True)
    while True:
        if at_operation:
            given: list[Any] = [str(place), str(trial.folder / "noted"), KILL, draw.randint(1, expected.operations)]
        else:
            given = [draw.uniform(0, expected.seconds)]
        before = disturb if at_operation else die_after
        trial.world.sortal(*command.words, cwd=place, before=before, given=given).check(KILLED, *command.codes)
        check_whole(place)
        if draw.random() > AGAIN:
            break
    check_resumed(command, trial.world, place)


def at_moments(trial: Trial) -> None:
    _killed(trial, at_operation=False)


def at_operations(trial: Trial) -> None:
    _killed(trial, at_operation=True)


def decide_until_killed(folder: str, fatal: int) -> None:
    """In a child: serve a review, decide again and again, and say which decisions were acknowledged."""
    session = session_of(load_run(folder, raw=True))
    with serving(session) as client:
        client.enter()
        disturb(folder, f"{folder}-noted", KILL, fatal)
        while True:
            rows = [(7 * session.version + each) % 72 for each in range(5)]
            answer = client.decide(session.version, do="move", rows=rows, category=session.version % 4)
            assert answer.code == 200, answer.body
            say("acknowledged", answer.json()["version"])


def review(trial: Trial) -> int:
    """Kill the server of a review, also in the middle of a line: what it has acknowledged stays."""
    run, known = saved_run(trial.folder / "run"), 0
    for _ in range(REVIEWS):
        fatal, left = trial.random.choice([0, 2, 3, 4, 5]), trial.random.randrange(1, 4)

        def enough(words: list[Any], least: int = known + left) -> bool:
            return bool(words[0] == "acknowledged" and words[1] >= least)

        server, folder = fork_server.shared(), str(run.folder)
        ended = server.run(decide_until_killed, folder, fatal, kill=enough, codes=[KILLED])
        last = max(ended.each("acknowledged"), default=known)
        known = len(journal.read(run.folder / DECISIONS, run.facts))
        assert known >= last, "an acknowledged decision is on disk"
        assert load_run(run.folder).decisions == known
        assert {path.name for path in trial.folder.iterdir()} <= {"run", "run-noted"}
    return REVIEWS


ATTACKS = (
    Attack("kills", "at moments", at_moments, quick=1, least=100),
    Attack("kills", "at file operations", at_operations, quick=2, least=6 * len(COMMANDS)),
    Attack("kills", "review", review, quick=1, least=25),
)
