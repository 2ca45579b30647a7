"""SIGKILL at random moments, and before each file operation, of every command that writes.

The same command again must end like one that was never disturbed, and leave nothing behind that is not its own.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from support import fork_server
from support.commands import COMMANDS, Command, check_resumed, undisturbed
from support.fork_server import KILLED, say
from support.operations import KILL, die_after, disturb
from support.reviews import saved_run, serving, session_of
from support.world import Trial

from sortal.reviews import journal
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS

pytestmark = pytest.mark.thorough

AGAIN = 0.3  # how often a command is killed once more before it may end
REVIEWS = 4  # that are killed in a trial


def kill(trial: Trial, *, at_operation: bool) -> None:
    """Kill a command once or several times, and repeat it."""
    command: Command = trial.case(COMMANDS)
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
        if draw.random() > AGAIN:
            break
    check_resumed(command, trial.world, place)


@pytest.mark.attack
def test_at_moments(trial: Trial) -> None:
    kill(trial, at_operation=False)


@pytest.mark.attack
def test_at_file_operations(trial: Trial) -> None:
    kill(trial, at_operation=True)


@pytest.mark.attack(most=50)
def test_review(trial: Trial) -> None:
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
