"""Commands as attacks repeat them: those that write, with what they must end with, and those on a run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter

from sortal.reviews import actions, journal
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS
from support import tiny_folder
from support.operations import KILL, count_in, disturb
from support.world import ON_CPU, OPTIONS, Words, World


@dataclass(frozen=True)
class Command:
    """A command in a folder of its own. `prepare` makes what it needs there."""

    name: str
    words: tuple[str, ...]  # relative to the folder
    prepare: Callable[[World, Path], None]
    codes: tuple[int, ...] = (0,)  # when it is repeated: 2 where it refuses to replace what it has written
    changing: tuple[str, ...] = ()  # files that differ from one time to the next


def _nothing(world: World, place: Path) -> None:
    (place / "images").symlink_to(world.images)


def _empty(world: World, place: Path) -> None:
    """Need nothing."""


def _run(world: World, place: Path) -> None:
    world.copy_run(place / "run")


def _more(world: World, place: Path) -> None:
    _run(world, place)
    tiny_folder.write(
        place / "more", {f"{name} {n}.png": f"{name} {300 + n}" for name in ("ash", "oak") for n in range(4)}
    )


def _earlier(world: World, place: Path) -> None:
    """A run, and the export that is to be replaced."""
    _run(world, place)
    (place / "out").mkdir()
    (place / "out" / "earlier.txt").write_text("earlier")
    (place / "out" / ".sortal-export.json").write_text('{"format": "folders"}')


def _decided(world: World, place: Path) -> None:
    """A run, and the decisions of somebody else about it."""
    _run(world, place)
    run = load_run(place / "run", raw=True)
    changes = [actions.Rename(category=run.categories[at].id, name=f"name {at}") for at in (3, 4)]
    journal.append(place / DECISIONS, run.facts, [journal.decide(each, "ann") for each in changes])


def _annotated(world: World, place: Path) -> None:
    """A run, and a table of its images that somebody edited."""
    _run(world, place)
    rows = tiny_folder.rows_of(place / "run" / "assignments.csv")[-6:]
    annotation = {"result": [{"type": "choices", "value": {"choices": ["ash"]}}], "completed_by": 3}
    tasks = [{"data": {"file_name": row["file_name"]}, "annotations": [annotation]} for row in rows]
    (place / "tasks.json").write_text(json.dumps(tasks))


def _digits(world: World, place: Path) -> None:
    for name in ("ash", "beech", "cedar", "elm"):
        for n in range(8):
            tiny_folder.save(place / "data" / name / f"{n}.png", tiny_folder.picture(name, n))


def _recorded(world: World, place: Path) -> None:
    """The records of a benchmark, whose tables are to be written."""
    _digits(world, place)
    world.sortal(*split(BENCHMARK, *ONE_SEED), cwd=place).check(0)


def split(words: str, *more: str) -> tuple[str, ...]:
    return (*words.split(), *more)


BENCHMARK = "benchmark folder --root data --method gcd uno --backbone convnet --weights random --out out --epochs 1"
ONE_SEED = ("--seeds", "0", *ON_CPU)
TIMES = ("run.json", "log.jsonl")  # files with the time, and how long it took
COMMANDS = (
    Command("discover", ("discover", "images", "--out", "run", *OPTIONS), _nothing, changing=TIMES),
    Command("export folders", split("export run --format folders --out out --how copy --force"), _earlier),
    Command("decisions", ("decisions", "merge", "run", DECISIONS), _decided),
    Command("update", split("predict run more --update", *ON_CPU), _more, changing=TIMES),
    Command("import", split("import run tasks.json --by ann"), _annotated),
    Command("export csv", split("export run --format csv --out out.csv --force"), _run),
    Command("export labelstudio", split("export run --format labelstudio --out out --force"), _run, codes=(0, 2)),
    Command("export parquet", split("export run --format parquet --out out.parquet --force"), _run),
    Command("export coco", split("export run --format coco --out out.json --force"), _run),
    Command("export imagefolder", split("export run --format imagefolder --out out --how copy --force"), _earlier),
    Command("export fiftyone", split("export run --format fiftyone --out out --how copy --force"), _earlier),
    Command("table", split("predict run more --csv table.csv --force", *ON_CPU), _more),
    Command("report", ("report", "run"), _run),
    Command("figures", split("figures run --which tsne", *ON_CPU), _run),
    Command("sample", split("sample digits digits"), _empty, codes=(0, 2)),
    Command("benchmark", split(BENCHMARK, *ONE_SEED), _digits, changing=TIMES),
    Command("benchmark table", split("benchmark table out --out tables --force"), _recorded),
)


def contents(command: Command, place: Path) -> dict[str, bytes]:
    """Return the files that a command must end with, whatever happened before: all but caches and times."""
    return {
        name: _without_chance(Path(name).name, content).replace(bytes(place), b"PLACE")
        for name, content in tiny_folder.contents(place, but=("images", "data")).items()
        if not {*Path(name).parts} & {"cache", ".lock", *command.changing}
    }


FIGURES = ("name", "seed", "k", "transductive", "inductive")  # of a benchmark's record: not the time


def _without_chance(name: str, content: bytes) -> bytes:
    """Leave out what differs from one time to the next."""
    if name == DECISIONS:
        lines = [json.loads(line) for line in content.splitlines()]
        return json.dumps([{**line, "key": "", "at": ""} for line in lines]).encode()
    if name == "benchmark.json":
        record = json.loads(content)
        return json.dumps([record[each] for each in FIGURES]).encode()
    return content


# Files whose names differ from one time to the next, in a cache: blocks of features, and TensorBoard's files.
VARYING = re.compile(r"(features/[0-9a-f]{16}/)[0-9a-f]{16}(\.safetensors)|(tensorboard/).*")


def layout(place: Path) -> set[str]:
    """Return the names of all files and folders, with those that vary made the same."""
    found = (path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_symlink())
    return {VARYING.sub(r"\1\2\3", name) for name in found}


@dataclass(frozen=True)
class Undisturbed:
    """What a command ends with if nothing happens, and how it gets there."""

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
    """Load what a command left that was broken off, if it is a run; repeat it, and compare what it ends with."""
    if (place / "run" / "run.json").exists():
        load_run(place / "run")
    expected = undisturbed(command, world)
    world.sortal(*command.words, cwd=place).check(*command.codes)
    found = contents(command, place)
    changed = [name for name in {*found, *expected.contents} if found.get(name) != expected.contents.get(name)]
    assert not changed, f"{command.name} ends with other {sorted(changed)}"
    assert not layout(place) - expected.layout, f"{command.name} leaves {sorted(layout(place) - expected.layout)}"


def on_run(world: World, run: Path, out: Path, *, images: Path | None = None) -> dict[str, Words]:
    """Return a command of every kind that reads or changes a run; `images` are those it predicts, by default new ones.

    What a command writes is in the folder `out`, but for changes of the run.
    """
    images = world.more if images is None else images
    return {
        "report": ("report", run, *ON_CPU),
        "export csv": ("export", run, "--format", "csv", "--out", out / "table.csv"),
        "export folders": ("export", run, "--format", "folders", "--out", out / "folders", "--how", "copy"),
        "export coco": ("export", run, "--format", "coco", "--out", out / "coco.json"),
        "export labelstudio": ("export", run, "--format", "labelstudio", "--out", out / "tasks"),
        "predict": ("predict", run, images, *ON_CPU, "--csv", out / "predicted.csv"),
        "update": ("predict", run, images, *ON_CPU, "--update"),
        "figures": ("figures", run, "--out", out / "figures", *ON_CPU),
        "decisions": ("decisions", run),
        "import": ("import", run, world.table),
        "discover": ("discover", run, "--yes", *ON_CPU),
        "review": ("review", run, "--no-browser", "--workers", "1"),
    }
