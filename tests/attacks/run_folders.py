"""Hostile run folders: every file damaged in every way, then every command that reads a run."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import tiny_folder

from attacks import damage
from attacks.attack import Attack, Trial, World
from attacks.damage import Damage, Scene, files_of

ROOM = 3 * 2**30  # bytes of address space that a command may take beyond what it starts with
SECONDS = 60  # after which a command counts as hanging

Words: TypeAlias = Callable[[Path, Path, World], Sequence[str | Path]]  # of a run, a folder for output, and images
ONE = ("--device", "cpu", "--workers", "1")
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
    "discover again": lambda run, out, world: ("discover", world.images, "--out", run, "--yes", *ONE),
    "review": lambda run, out, world: ("review", run, "--no-browser"),
}


def more(world: World) -> Path:
    """Return a folder with a few images that are not in the run."""
    folder = world.folder / "more"
    if not folder.exists():
        tiny_folder.write(folder, {f"{name}.png": f"{name} 40" for name in ("ash", "elm", "oak")})
    return folder


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
    from sortal.web.server import Server

    Server.run = lambda self, *, browser=False: None  # type: ignore[method-assign]


def contents(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Return what is in a folder: the kinds of all entries, and the contents of files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        found[path.relative_to(folder).as_posix()] = state.st_mode, path.read_bytes() if path.is_file() else None
    return found


def among(damages: Mapping[str, Damage], *, folders: bool = False) -> Callable[[Trial], int]:
    """Return an attempt that damages one file, or folder, of a run, and then runs some commands on copies of it."""

    def attempt(trial: Trial) -> int:
        name = [*damages][trial.number % len(damages)]
        kind, path, place = name, trial.random.choice(_targets(trial.world.run, folders)), trial.folder / "as damaged"
        shutil.copytree(trial.world.run, place)
        here = damage.scene(trial.random, place, trial.folder)
        damages[kind](place / path, here)
        commands = trial.random.sample([*COMMANDS], 2)
        for number, command in enumerate(commands):
            _withstands(trial, here, path, command, trial.folder / str(number), f"{command}, {path} as {kind}")
        return len(commands)

    return attempt


def _targets(run: Path, folders: bool) -> list[Path]:
    """List the files of a run, or its folders, by relative path."""
    found = [path for path in run.rglob("*") if path.is_dir()] if folders else files_of(run)
    return sorted(path.relative_to(run) for path in found)


def _withstands(trial: Trial, here: Scene, path: Path, command: str, place: Path, case: str) -> None:
    run, out = place / "run", place / "out"
    out.mkdir(parents=True)
    _copy(here.root, run)
    outside, images = contents(here.outside), _stamps(trial.world.images)
    done = trial.world.sortal(*COMMANDS[command](run, out, trial.world), before=limit_memory)
    shown = f"{case}: exit code {done.code}\n{done.out[-2000:]}\n{done.err[-3000:]}"
    assert done.code in (0, 2, 3), shown
    assert "Traceback" not in done.err, shown
    if done.code == 2:
        named = [path.name, *here.swapped]
        assert any(name in done.err for name in named), f"{shown}\nThe message does not name {path}."
    assert not here.marker.exists(), f"{shown}\nCode was executed."
    assert contents(here.outside) == outside, f"{shown}\nSomething outside was written."
    assert _stamps(trial.world.images) == images, f"{shown}\nImages were changed."
    for leak in (done.out, done.err, *_texts(place)):
        assert damage.SECRET not in leak, f"{shown}\nA file outside was read."
    assert {each.name for each in place.iterdir()} == {"run", "out"}, shown


def _texts(folder: Path) -> list[str]:
    return [each.read_text(errors="replace") for each in files_of(folder) if each.stat().st_size < 2**26]


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with its links and pipes as they are, and sparse files as sparse ones."""
    import subprocess

    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))]


ATTACKS = (
    Attack("run_folders", "wrecks", among(damage.WRECKS), quick=1, least=40),
    Attack("run_folders", "values", among(damage.BENDS), quick=1, least=40),
    Attack("run_folders", "code", among(damage.CODE), quick=1, least=40),
    Attack("run_folders", "claims", among(damage.CLAIMS), quick=1, least=40),
    Attack("run_folders", "no files", among(damage.NO_FILES), quick=1, least=40),
)
