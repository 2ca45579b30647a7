"""Trials of attacks: how many there are, how each is repeated by its id, and what it gets."""

from __future__ import annotations

import random
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from support.world import Trial, World

TRIAL_LIMIT = 600  # seconds after which a trial counts as hanging


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make trials of each attack, in the budget of `--attack-trials`, and those whose ids are on the command line."""
    if "trial" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("attack")
    assert marker is not None, "an attack must be marked as one"
    count = min(metafunc.config.getoption("--attack-trials"), marker.kwargs.get("most", float("inf")))
    seed = metafunc.config.getoption("--attack-seed")
    trials = {(seed, number): None for number in range(count)}
    for word in metafunc.config.args:
        if found := re.search(rf"::{metafunc.function.__name__}\[.*seed(\d+)-trial(\d+)", word):
            trials[int(found[1]), int(found[2])] = None
    metafunc.parametrize("trial", trials, indirect=True, ids=[f"seed{seed}-trial{number}" for seed, number in trials])


@pytest.fixture(autouse=True, scope="module")
def _read_here() -> None:
    """Read images in worker processes, which some of them crash."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def trial(request: pytest.FixtureRequest, world: World) -> Iterator[Trial]:
    """A trial in a new folder. Its random choices depend on the seed, the attack and the number alone."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"The trial did not end within {TRIAL_LIMIT} s.")

    seed, number = request.param
    usual = signal.signal(signal.SIGALRM, hang)
    signal.alarm(TRIAL_LIMIT)
    try:
        with tempfile.TemporaryDirectory(dir=world.folder) as name:
            attack = request.node.nodeid.partition("[")[0]
            yield Trial(number, random.Random(f"{seed} {attack} {number}"), Path(name), world)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)
