"""Hostile run folders: every file damaged in every way, then every command that reads a run."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from attacks import damage
from attacks.attack import Attack, Done, Trial, World, case
from attacks.complete_run import ONE, annotation_files, benchmark_record, complete_run, more, stage
from attacks.damage import Damage, Scene, files_of

ROOM = 3 * 2**30  # bytes of address space that a command may take beyond what it starts with
MEMORY = 2**30  # bytes of memory that a command may take beyond that of one that reads a run and does nothing else
STRIDE = 7  # of the files that trials damage, so that few trials reach all parts of the folder
SECONDS = 60  # after which a command counts as hanging

Words: TypeAlias = Callable[[Path, Path, World], Sequence[str | Path]]  # of a run, a folder for output, and images
Base: TypeAlias = Callable[[World], Path]  # gives the run that is damaged
AGAIN = "discover again"
COMMANDS: dict[str, Words] = {
    "report": lambda run, out, world: ("report", run),
    "export csv": lambda run, out, world: ("export", run, "--format", "csv", "--out", out / "table.csv"),
    "export folders": lambda run, out, world: (
        "export",
        run,
        "--format",
        "folders",
        "--out",
        out / "f",
        "--how",
        "copy",
    ),
    "export coco": lambda run, out, world: ("export", run, "--format", "coco", "--out", out / "coco.json"),
    "predict": lambda run, out, world: ("predict", run, more(world), *ONE, "--csv", out / "table.csv"),
    "update": lambda run, out, world: ("predict", run, more(world), *ONE, "--update"),
    "figures": lambda run, out, world: ("figures", run, "--out", out / "figures"),
    "decisions": lambda run, out, world: ("decisions", run),
    "import": lambda run, out, world: ("import", run, edited_table(world)),
    "discover": lambda run, out, world: ("discover", run, "--yes", *ONE),
    AGAIN: lambda run, out, world: ("discover", world.images, "--out", run, "--yes", *ONE),
    "review": lambda run, out, world: ("review", run, "--no-browser"),
}


def edited_table(world: World) -> Path:
    """Return an exported table of the run with a few edited categories."""
    path = world.folder / "edited.csv"
    if not path.exists():
        world.sortal("export", world.run, "--format", "csv", "--out", path).check(0)
    return path


def limit_memory() -> None:
    """Limit the address space, end a command that hangs, and let a review end as soon as it would listen."""
    import signal

    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
    signal.alarm(SECONDS)
    from sortal.web.app.server import Server

    Server.run = lambda self, *, browser=False: None  # type: ignore[method-assign]


def contents(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Return what is in a folder: the kinds of all entries, and the contents of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        found[path.relative_to(folder).as_posix()] = state.st_mode, path.read_bytes() if path.is_file() else None
    return found


def simple_run(world: World) -> Path:
    return world.run


def among(
    damages: Mapping[str, Damage],
    *,
    folders: bool = False,
    run: Base = simple_run,
) -> Callable[[Trial], int]:
    """Return an attempt that damages one file, or folder, of a run, and then runs some commands on copies of it."""

    def attempt(trial: Trial) -> int:
        kind, place = case(trial, [*damages]), trial.folder / "as damaged"
        shutil.copytree(run(trial.world), place)
        return _attempt(trial, run, trial.random.choice(_targets(place, folders)), kind, damages[kind])

    return attempt


def every_file(trial: Trial) -> int:
    """Damage the files of a run that has all kinds of them in turn, also those of a change that a kill broke off."""
    place = trial.folder / "as damaged"
    shutil.copytree(complete_run(trial.world), place)
    state = trial.random.choice(("whole", "uncommitted", "committed"))
    if state != "whole":
        stage(place, committed=state == "committed")
    targets = _targets(place, False)
    kind = trial.random.choice([*damage.ALL])
    path = targets[trial.number * STRIDE % len(targets)]
    return _attempt(trial, complete_run, path, f"{kind} ({state})", damage.ALL[kind])


def _attempt(trial: Trial, run: Base, path: Path, kind: str, change: Damage) -> int:
    place = trial.folder / "as damaged"
    here = damage.scene(trial.random, place, trial.folder)
    change(place / path, here)
    suitable = [name for name in COMMANDS if name != AGAIN or run is not complete_run]  # which is of other images
    commands = trial.random.sample(suitable, 2)
    for number, command in enumerate(commands):
        _withstands(trial, here, path, command, trial.folder / str(number), f"{command}, {path} as {kind}")
    return len(commands)


def _targets(run: Path, folders: bool) -> list[Path]:
    """List the files of a run, or its folders, by relative path."""
    found = [path for path in run.rglob("*") if path.is_dir()] if folders else files_of(run)
    return sorted(path.relative_to(run) for path in found)


def _withstands(trial: Trial, here: Scene, path: Path, command: str, place: Path, shown: str) -> None:
    run, out = place / "run", place / "out"
    out.mkdir(parents=True)
    _copy(here.root, run)
    outside, images = contents(here.outside), _stamps(trial.world.images)
    done = trial.world.sortal(*COMMANDS[command](run, out, trial.world), before=limit_memory)
    shown = f"{shown}: exit code {done.code}\n{done.out[-2000:]}\n{done.err[-3000:]}"
    check(trial.world, here, done, [path.name, *here.swapped], shown)
    assert contents(here.outside) == outside, f"{shown}\nSomething outside was written."
    assert _stamps(trial.world.images) == images, f"{shown}\nImages were changed."
    for leak in (done.out, done.err, *_texts(place)):
        assert damage.SECRET not in leak, f"{shown}\nA file outside was read."
    assert {each.name for each in place.iterdir()} == {"run", "out"}, shown


def check(world: World, here: Scene, done: Done, names: Sequence[str], shown: str) -> None:
    """Fail unless a command did what it should, or refused it by naming the file, within limits."""
    assert done.code in (0, 2, 3), shown
    assert "Traceback" not in done.err, shown
    assert done.code != 2 or any(name in done.err for name in names), f"{shown}\nThe message does not name {names}."
    assert not here.marker.exists(), f"{shown}\nCode was executed."
    assert done.peak <= usual_peak(world) + MEMORY, f"{shown}\nIt took {done.peak / 2**20:,.0f} MiB of memory."


def usual_peak(world: World) -> int:
    """Return the bytes of memory that a command takes which reads an undamaged run, and does nothing else."""
    path = world.folder / "usual peak"
    if not path.exists():
        path.write_text(str(world.sortal("decisions", world.run, before=limit_memory).check(0).peak))
    return int(path.read_text())


def _texts(folder: Path) -> list[str]:
    return [each.read_text(errors="replace") for each in files_of(folder) if each.stat().st_size < 2**26]


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with its links and pipes as they are, and sparse files as sparse ones."""
    import subprocess

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


def links(trial: Trial) -> int:
    """Let a run lead to a folder outside, by leftovers of a killed process, by its cache, or by what it names."""
    kind = case(trial, ("replaced", "made", "inside", "cache", "named"))
    place = trial.world.copy_run(trial.folder / "as damaged" / "run")
    here = damage.scene(trial.random, place.parent, trial.folder)
    for name in ("thesis.txt.1.tmp", ".sortal-fedcba9876543210.tmp", "pixels/notes.2.tmp"):
        (here.outside / name).parent.mkdir(exist_ok=True)
        (here.outside / name).write_text("mine")
    name, before = plant(place, here.outside, kind), contents(here.outside)
    commands = trial.random.sample([*COMMANDS], 3)
    for number, command in enumerate(commands):
        around, out = trial.folder / str(number), trial.folder / f"{number} out"
        out.mkdir()
        _copy(place.parent, around)
        done = trial.world.sortal(*COMMANDS[command](around / "run", out, trial.world), before=limit_memory)
        shown = f"{command}, {kind}: exit code {done.code}\n{done.out[-2000:]}\n{done.err[-3000:]}"
        check(trial.world, here, done, [name], shown)
        assert contents(here.outside) == before, f"{shown}\nSomething outside was written or deleted."
    return len(commands)


# Files that people name in a command


def given_files(trial: Trial) -> None:
    """Damage a file that another program wrote, then import it, merge it, or make tables of it."""
    sources = {**annotation_files(trial.world), "benchmark": benchmark_record(trial.world)}
    name, kind = case(trial, [*sources]), trial.random.choice([*damage.GIVEN])
    place = trial.folder / "as damaged"
    shutil.copytree(sources[name].parent, place)
    path, run = place / sources[name].name, trial.folder / "run"
    here = damage.scene(trial.random, place, trial.folder)
    damage.GIVEN[kind](path, here)
    words: dict[str, Sequence[str | Path]] = {
        "decisions": ("decisions", "merge", run, path),
        "benchmark": ("benchmark", "table", trial.random.choice((path, place)), "--out", trial.folder / "tables"),
    }
    _copy(complete_run(trial.world), run)
    before = contents(run)
    done = trial.world.sortal(*words.get(name, ("import", run, path)), before=limit_memory)
    shown = f"{name} as {kind}: exit code {done.code}\n{done.out[-2000:]}\n{done.err[-3000:]}"
    check(trial.world, here, done, [path.name, place.name, *here.swapped], shown)
    after = {name: content for name, content in contents(run).items() if name != ".lock"}
    before = {name: content for name, content in before.items() if name != ".lock"}
    if done.code == 2:
        assert after == before, f"{shown}\nThe run was changed."
    else:
        assert {name for name in after if after[name] != before.get(name)} <= {"decisions.jsonl"}, shown
    trial.world.sortal("decisions", run).check(0)


ATTACKS = (
    Attack("run_folders", "wrecks", among(damage.WRECKS), quick=1, least=40),
    Attack("run_folders", "values", among(damage.BENDS), quick=1, least=40),
    Attack("run_folders", "code", among(damage.CODE), quick=1, least=40),
    Attack("run_folders", "claims", among(damage.CLAIMS), quick=1, least=40),
    Attack("run_folders", "no files", among(damage.NO_FILES), quick=1, least=40),
    Attack("run_folders", "no folders", among(damage.NO_FOLDERS, folders=True, run=complete_run), quick=0, least=20),
    Attack("run_folders", "every file", every_file, quick=0, least=40),
    Attack("run_folders", "links", links, quick=5, least=40),
    Attack("run_folders", "given files", given_files, quick=0, least=60),
)
