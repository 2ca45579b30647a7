"""A damaged cache: sorting again ends with the same result as if nothing were damaged, or says which file is."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from support import tiny_folder

from attacks import damage
from attacks.attack import Attack, Trial, World, case
from attacks.complete_run import ONE, more
from attacks.damage import files_of
from attacks.run_folders import check, limit_memory
from sortal.system.open_folder import CACHE

# Sorting again from all results in the cache, and from those of ever fewer stages
AGAIN: dict[str, tuple[str, ...]] = {"as it was": (), "other clusters": ("--k", "7"), "other training": ("--seed", "1")}
PIXELS = "pixels.bin"  # has no checksums, which would take as long as to decode the images again
FAITHFUL = {kind: change for kind, change in damage.ALL.items() if change is not damage.swap}


def expected(world: World, how: str) -> tuple[tuple[bytes, bytes], str]:
    """Return the tables of the undamaged run after it was sorted again, and what it predicts."""
    run = world.folder / f"sorted again, {how}"
    if not run.exists():
        made = world.copy_run(world.folder / f"sorting again, {how}")
        world.sortal(*_words(made, how)).check(0)
        made.rename(run)
    return tiny_folder.tables(run), world.sortal("predict", run, more(world), *ONE, "--json").check(0).out


def _words(run: Path, how: str) -> Sequence[str | Path]:
    return ("discover", run, *AGAIN[how], "--yes", *ONE)


def cache(trial: Trial) -> None:
    """Damage a file of the cache, and sort again: the tables and the model are the same, or the file is named."""
    how, kind = case(trial, [*AGAIN]), trial.random.choice([*FAITHFUL])
    tables, predicted = expected(trial.world, how)
    run = trial.folder / "run"
    shutil.copytree(trial.world.run, run)
    path = trial.random.choice([each for each in files_of(run / CACHE) if each.name != ".lock"])
    here = damage.scene(trial.random, run / CACHE, trial.folder)
    FAITHFUL[kind](path, here)
    done = trial.world.sortal(*_words(run, how), before=limit_memory)
    name = f"{path.relative_to(run)} as {kind}, {how}"
    shown = f"{name}: exit code {done.code}\n{done.out[-2000:]}\n{done.err[-3000:]}"
    check(trial.world, here, done, [path.name], shown)
    if done.code == 0 and path.name != PIXELS:
        assert tiny_folder.tables(run) == tables, f"{shown}\nThe result is another one."
        again = trial.world.sortal("predict", run, more(trial.world), *ONE, "--json")
        assert (again.code, again.out) == (0, predicted), f"{name}: the model is another one.\n{again.err}"


ATTACKS = (Attack("rebuilding", "cache", cache, quick=0, least=30),)
