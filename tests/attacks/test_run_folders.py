"""Hostile run folders: every file damaged in every way, then every command that reads a run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from support import damage
from support.commands import on_run
from support.complete_run import annotation_files, benchmark_record, complete_run, stage
from support.damage import Damage, Scene, files_of
from support.limits import check_within_limits, limit_all
from support.world import ON_CPU, Trial, Words, World

STRIDE = 7  # of the files that trials damage, so that few trials reach all parts of the folder
AGAIN = "discover again"
Base: TypeAlias = Callable[[World], Path]  # gives the run that is damaged


def commands(world: World, run: Path, out: Path) -> dict[str, Words]:
    """Return the commands that a damaged run is given to."""
    return {**on_run(world, run, out), AGAIN: ("discover", world.images, "--out", run, "--yes", *ON_CPU)}


def contents(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Return what is in a folder: the kinds of all entries, and the contents of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        found[path.relative_to(folder).as_posix()] = state.st_mode, path.read_bytes() if path.is_file() else None
    return found


def simple_run(world: World) -> Path:
    return world.run


def damage_one(trial: Trial, damages: Mapping[str, Damage], *, folders: bool = False, run: Base = simple_run) -> None:
    """Damage one file, or folder, of a run, and then run some commands on copies of it."""
    kind, place = trial.case([*damages]), trial.folder / "as damaged"
    shutil.copytree(run(trial.world), place)
    withstand(trial, run, trial.random.choice(_targets(place, folders)), kind, damages[kind])


@pytest.mark.thorough
@pytest.mark.attack
def test_wrecks(trial: Trial) -> None:
    damage_one(trial, damage.WRECKS)


@pytest.mark.thorough
@pytest.mark.attack
def test_values(trial: Trial) -> None:
    damage_one(trial, damage.BENDS)


@pytest.mark.attack(most=100)
def test_code(trial: Trial) -> None:
    damage_one(trial, damage.CODE)


@pytest.mark.attack(most=100)
def test_claims(trial: Trial) -> None:
    damage_one(trial, damage.CLAIMS)


@pytest.mark.attack(most=100)
def test_no_files(trial: Trial) -> None:
    damage_one(trial, damage.NO_FILES)


@pytest.mark.thorough
@pytest.mark.attack(most=100)
def test_no_folders(trial: Trial) -> None:
    damage_one(trial, damage.NO_FOLDERS, folders=True, run=complete_run)


@pytest.mark.attack
def test_every_file(trial: Trial) -> None:
    """Damage the files of a run that has all kinds of them in turn, also those of a change that a kill broke off."""
    place = trial.folder / "as damaged"
    shutil.copytree(complete_run(trial.world), place)
    state = trial.random.choice(("whole", "uncommitted", "committed"))
    if state != "whole":
        stage(place, committed=state == "committed")
    targets = _targets(place, False)
    kind = trial.random.choice([*damage.ALL])
    path = targets[trial.number * STRIDE % len(targets)]
    withstand(trial, complete_run, path, f"{kind} ({state})", damage.ALL[kind])


def withstand(trial: Trial, run: Base, path: Path, kind: str, change: Damage) -> None:
    """Change a file of the copy of a run, and let two commands read it."""
    place = trial.folder / "as damaged"
    here = damage.scene(trial.random, place, trial.folder)
    change(place / path, here)
    suitable = [*commands(trial.world, place, place)]
    if run is complete_run:
        suitable.remove(AGAIN)  # which is of other images
    for number, command in enumerate(trial.random.sample(suitable, 2)):
        _withstand(trial, here, path, command, trial.folder / str(number), f"{command}, {path} as {kind}")


def _targets(run: Path, folders: bool) -> list[Path]:
    """List the files of a run, or its folders, by relative path."""
    found = [path for path in run.rglob("*") if path.is_dir()] if folders else files_of(run)
    return sorted(path.relative_to(run) for path in found)


def _withstand(trial: Trial, here: Scene, path: Path, command: str, place: Path, what: str) -> None:
    run, out = place / "run", place / "out"
    out.mkdir(parents=True)
    _copy(here.root, run)
    outside, images = contents(here.outside), _stamps(trial.world.images)
    done = trial.world.sortal(*commands(trial.world, run, out)[command], before=limit_all)
    check_within_limits(trial.world, here, done, [path.name, *here.swapped], what)
    assert contents(here.outside) == outside, f"{what}: {done}\nSomething outside was written."
    assert _stamps(trial.world.images) == images, f"{what}: {done}\nImages were changed."
    for text in (done.out, done.err, *_texts(place)):
        assert damage.SECRET not in text, f"{what}: {done}\nA file outside was read."
    assert {each.name for each in place.iterdir()} == {"run", "out"}, what


def _texts(folder: Path) -> list[str]:
    return [each.read_text(errors="replace") for each in files_of(folder) if each.stat().st_size < 2**26]


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with its links and pipes as they are, and sparse files as sparse ones."""
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))]


# Links that lead out of a run


def plant(run: Path, outside: Path, kind: str) -> str:
    """Plant a link to a folder outside where Sortal writes, sweeps or looks up; return its name."""
    mark = run / ".sortal-0123456789abcdef.tmp"
    old, cache = mark.with_suffix(".old"), run / "cache"
    if kind in ("replaced", "made", "inside"):
        mark.write_text("cache")
    if kind in ("replaced", "inside", "cache"):
        cache.rename(old if kind == "inside" else run / "former")
    if kind == "named":
        (run.parent / "cache").mkdir()
        (run.parent / "cache" / "photos").symlink_to(outside)
        about = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**about, "cache": str(run.parent / "cache" / "photos")}))
        return "cache"
    if kind == "inside":
        shutil.rmtree(old / "pixels")
    link = {"replaced": old, "made": mark.with_suffix(".new"), "inside": old / "pixels", "cache": cache}[kind]
    link.symlink_to(outside)
    return link.name


@pytest.mark.attack(most=100)
def test_links(trial: Trial) -> None:
    """Let a run lead to a folder outside, by leftovers of a killed process, by its cache, or by what it names."""
    kind = trial.case(("replaced", "made", "inside", "cache", "named"))
    place = trial.world.copy_run(trial.folder / "as damaged" / "run")
    here = damage.scene(trial.random, place.parent, trial.folder)
    for name in ("thesis.txt.1.tmp", ".sortal-fedcba9876543210.tmp", "pixels/notes.2.tmp"):
        (here.outside / name).parent.mkdir(exist_ok=True)
        (here.outside / name).write_text("mine")
    name, before = plant(place, here.outside, kind), contents(here.outside)
    for number, command in enumerate(trial.random.sample([*commands(trial.world, place, place)], 3)):
        around, out = trial.folder / str(number), trial.folder / f"{number} out"
        out.mkdir()
        _copy(place.parent, around)
        done = trial.world.sortal(*commands(trial.world, around / "run", out)[command], before=limit_all)
        check_within_limits(trial.world, here, done, [name], f"{command}, {kind}")
        assert contents(here.outside) == before, f"{command}, {kind}: {done}\nSomething outside was written or deleted."


# Files that people name in a command


@pytest.mark.attack
def test_given_files(trial: Trial) -> None:
    """Damage a file that another program wrote, then import it, merge it, or make tables of it."""
    sources = {**annotation_files(trial.world), "benchmark": benchmark_record(trial.world)}
    name, kind = trial.case([*sources]), trial.random.choice([*damage.GIVEN])
    place = trial.folder / "as damaged"
    shutil.copytree(sources[name].parent, place)
    path, run = place / sources[name].name, trial.folder / "run"
    here = damage.scene(trial.random, place, trial.folder)
    damage.GIVEN[kind](path, here)
    words: dict[str, Words] = {
        "decisions": ("decisions", "merge", run, path),
        "benchmark": ("benchmark", "table", trial.random.choice((path, place)), "--out", trial.folder / "tables"),
    }
    _copy(complete_run(trial.world), run)
    before = contents(run)
    done = trial.world.sortal(*words.get(name, ("import", run, path)), before=limit_all)
    check_within_limits(trial.world, here, done, [path.name, place.name, *here.swapped], f"{name} as {kind}")
    after = contents(run)
    changed = {name for name in {**before, **after} if before.get(name) != after.get(name)} - {".lock"}
    assert changed <= ({"decisions.jsonl"} if done.code != 2 else set()), f"{name} as {kind}: {done}"
    trial.world.sortal("decisions", run).check(0)
