"""The fast part of the attacks, and the campaign that carries out all of them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from time import sleep

import pytest

from attacks import attack as harness
from attacks.attack import Attack, HangError, Trial, World, perform
from attacks.campaign import Outcome, Row, campaign, table
from attacks.catalogue import ATTACKS


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("attack", [each for each in ATTACKS if each.quick], ids=lambda attack: attack.id)
def test_sortal_withstands(attack: Attack, world: World) -> None:
    for number in range(attack.quick):
        perform(attack, number, 0, world)


def nothing(trial: Trial) -> None:
    """Attack nothing."""


def test_names_are_unique() -> None:
    assert max(Counter(each.id for each in ATTACKS).values()) == 1


def test_a_trial_repeats_the_same_choices_in_a_folder_of_its_own(tmp_path: Path) -> None:
    drawn: list[tuple[float, bool]] = []

    def draw(trial: Trial) -> int:
        drawn.append((trial.random.random(), any(trial.folder.iterdir())))
        (trial.folder / "litter").touch()
        return 7

    attack = Attack("a", "draw", draw)
    assert [perform(attack, number, 0, World(tmp_path)) for number in (0, 1, 0)] == [7, 7, 7]
    assert drawn[0] == drawn[2] != drawn[1]
    assert not any(litter for _, litter in drawn)
    assert not [*tmp_path.iterdir()]
    assert perform(Attack("a", "nothing", nothing), 0, 0, World(tmp_path)) == 1


def test_a_trial_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "TRIAL_LIMIT", 1)
    with pytest.raises(HangError, match="within 1 s"):
        perform(Attack("a", "sleep", lambda trial: sleep(600)), 0, 0, World(tmp_path))


def test_a_campaign_makes_the_least_trials_and_counts_failures_and_deaths() -> None:
    attacks = [Attack("a", "many", nothing, least=5), Attack("a", "few", nothing, least=2)]

    def once(name: str, number: int, seed: int) -> Outcome:
        if (name, number) == ("a/many", 3):
            raise BrokenProcessPool
        return Outcome(10, 0.0, f"seed {seed}" if name == "a/few" else "")

    found = [*campaign(attacks, 4, 0, 2, once=once, pool=ThreadPoolExecutor)]
    assert sorted((name, number) for name, number, _ in found) == [
        *(("a/few", number) for number in range(2)),
        *(("a/many", number) for number in range(5)),
    ]
    problems = {(name, number): outcome.problem for name, number, outcome in found if outcome.problem}
    assert problems == {
        ("a/few", 0): "seed 4",
        ("a/few", 1): "seed 4",
        ("a/many", 3): "A process that made trials died.\n",
    }


def test_a_campaign_gives_attacks_the_same_time() -> None:
    attacks, trials = [Attack("a", name, nothing) for name in ("long", "short")], Counter[str]()
    for name, _, _ in campaign(
        attacks, 0, 600, 1, once=lambda name, *_: Outcome(1, 9.0 if name == "a/long" else 3.0), pool=ThreadPoolExecutor
    ):
        trials[name] += 1
        if trials.total() == 40:
            break
    assert trials == {"a/long": 10, "a/short": 30}


def test_the_table_has_a_row_per_attack_and_the_sums() -> None:
    rows = [Row("a/b", 3, 300, 1, 2.6), Row("a/c", 2, 2, 0, 0.1)]
    assert table(rows).splitlines()[2:] == [
        "| a/b | 3 | 300 | 1 | 3 |",
        "| a/c | 2 | 2 | 0 | 0 |",
        "| all | 5 | 302 | 1 | 3 |",
    ]
