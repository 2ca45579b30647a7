"""A damaged cache: sorting again ends with the same result as if nothing were damaged, or says which file is."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest
from support import damage, tiny_folder
from support.damage import files_of
from support.limits import check_within_limits, limit_all
from support.world import ON_CPU, Trial, Words, World

from sortal.system.open_folder import CACHE

pytestmark = pytest.mark.thorough

# Sorting again from all results in the cache, and from those of ever fewer stages
AGAIN: dict[str, tuple[str, ...]] = {"as it was": (), "other clusters": ("--k", "7"), "other training": ("--seed", "1")}
PIXELS = "pixels.bin"  # has no checksums, which would take as long as to decode the images again
FAITHFUL = {kind: change for kind, change in damage.ALL.items() if change is not damage.swap}


@cache
def expected(world: World, how: str) -> tuple[tuple[bytes, bytes], str]:
    """Return the tables of the undamaged run after it was sorted again, and what it predicts."""
    run = world.copy_run(world.folder / f"sorted again, {how}")
    world.sortal(*_words(run, how)).check(0)
    return tiny_folder.tables(run), world.sortal("predict", run, world.more, *ON_CPU, "--json").check(0).out


def _words(run: Path, how: str) -> Words:
    return ("discover", run, *AGAIN[how], "--yes", *ON_CPU)


@pytest.mark.attack(most=100)
def test_cache(trial: Trial) -> None:
    """Damage a file of the cache, and sort again: the tables and the model are the same, or the file is named."""
    how, kind = trial.case([*AGAIN]), trial.random.choice([*FAITHFUL])
    tables, predicted = expected(trial.world, how)
    run = trial.folder / "run"
    shutil.copytree(trial.world.run, run)
    path = trial.random.choice([each for each in files_of(run / CACHE) if each.name != ".lock"])
    here = damage.scene(trial.random, run / CACHE, trial.folder)
    FAITHFUL[kind](path, here)
    done = trial.world.sortal(*_words(run, how), before=limit_all)
    name = f"{path.relative_to(run)} as {kind}, {how}"
    check_within_limits(trial.world, here, done, [path.name], name)
    if done.code == 0 and path.name != PIXELS:
        assert tiny_folder.tables(run) == tables, f"{name}: {done}\nThe result is another one."
        again = trial.world.sortal("predict", run, trial.world.more, *ON_CPU, "--json")
        assert (again.code, again.out) == (0, predicted), f"{name}: the model is another one.\n{again.err}"
