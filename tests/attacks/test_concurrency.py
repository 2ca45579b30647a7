"""Several processes on one run: pairs of commands, readers while a run is replaced, readers of the review app."""

from __future__ import annotations

import csv
import json
import os
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from support import fork_server, tiny_folder
from support.limits import end_reviews
from support.reviews import Client, saved_run, serving, session_of
from support.sample_run import sample_run
from support.world import ON_CPU, OPTIONS, Done, Trial, World, run_command

from sortal.exchange.export import export
from sortal.reviews import journal
from sortal.reviews.actions import Rename
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import DECISIONS, Run
from sortal.system.files import lock_folder

pytestmark = pytest.mark.thorough

# What Sortal says to the one of two commands that it refuses
REFUSALS = (
    "Another process is using {run!r}. Wait until it is done, or choose another folder.",
    "The run in {run!r} was changed by another process meanwhile. Repeat the command to sort ",
    "something else has been written there meanwhile, and stays",
)
NAMES = ("discover", "predict", "import", "report", "review", "export", "decisions", "figures")
PAIRS = [(one, other) for one in NAMES[:5] for other in NAMES] + [(name, name) for name in NAMES[5:]]
Words = list[str]


def commands(world: World, folder: Path, run: Path) -> dict[str, Words]:
    """Return a command line of each kind on a run; all of them can be repeated."""
    more, table = folder / "more", folder / "table.csv"
    if not more.exists():
        tiny_folder.write(more, {f"{at}.png": f"{name} {200 + at}" for at, name in enumerate(tiny_folder.CLASSES)})
        rows = tiny_folder.rows_of(world.run / "assignments.csv")
        rows[-1]["category"] = rows[0]["category"]
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows[-1:])
    lines: dict[str, Sequence[str | Path]] = {
        "discover": ["discover", world.images, "--out", run, *OPTIONS, "--seed", "1"],
        "predict": ["predict", run, more, "--update", *ON_CPU],
        "import": ["import", run, table, "--by", "ann"],
        "report": ["report", run, *ON_CPU],
        "review": ["review", run, "--no-browser", "--workers", "1"],
        "export": ["export", run, "--format", "csv", "--out", folder / f"{run.name}.csv", "--force"],
        "decisions": ["decisions", run, "--json"],
        "figures": ["figures", run, "--which", "tsne", *ON_CPU],
    }
    return {name: [str(word) for word in words] for name, words in lines.items()}


# In a child


def prepare() -> None:
    """End a review as soon as it starts, and replace the slow map by a trivial one."""
    end_reviews()
    patch("sortal.clustering.tsne.place", lambda x, *_, **__: x[:, :2].astype("float64")).start()


def fork(words: Words, files: Words) -> int:
    """Run a command in a child of this child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = run_command(words, files, "/", {}, True, [prepare.__module__, "prepare"])
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def together(commands: list[Words], files: list[Words]) -> None:
    """Run commands at the same time."""
    pids = [fork(words, each) for words, each in zip(commands, files, strict=True)]
    fork_server.say("codes", [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])


def interposed(first: Words, second: Words, files: list[Words], run: str) -> None:
    """Run the first command, and all of the second one just before the first gets the lock of the run."""
    from filelock import FileLock

    acquire, codes = FileLock.acquire, list[int]()

    def late(self: Any, *values: Any, **named: Any) -> Any:
        if not codes and os.path.dirname(self.lock_file) == run:
            codes.append(0)  # the other command gets locks, too
            codes[0] = os.waitstatus_to_exitcode(os.waitpid(fork(second, files[1]), 0)[1])
        return acquire(self, *values, **named)

    with patch.object(FileLock, "acquire", late):
        code = run_command(first, files[0], "/", {}, True, [prepare.__module__, "prepare"])
    fork_server.say("codes", [code, *codes])


# Outside


def run_both(trial: Trial, function: Any, *given: Any) -> list[Done]:
    files = [[str(trial.folder / f"{at}.{stream}") for stream in ("out", "err")] for at in range(2)]
    for each in files:
        for file in each:
            Path(file).unlink(missing_ok=True)
    values = (*given[:2], files, *given[2:]) if function is interposed else (*given, files)
    (codes,) = fork_server.shared().run(function, *values, codes=range(256)).each("codes")
    texts = [[Path(file).read_text() if Path(file).exists() else "" for file in each] for each in files]
    return [Done(code, *text) for code, text in zip(codes, texts, strict=False)]


def state(run: Path) -> tuple[Any, ...]:
    """Return what a run says, without the times and keys of its decisions."""
    found = load_run(run)
    lines = (run / "decisions.jsonl").read_text().splitlines()[1:] if (run / "decisions.jsonl").exists() else []
    decided = [{k: v for k, v in json.loads(line).items() if k not in ("key", "at")} for line in lines]
    a = found.assignments
    return (a.files, a.labels, a.category_id.tolist(), a.status.tolist(), found.names, str(decided))


def serial(trial: Trial, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the state after commands one after the other."""
    run = trial.world.copy_run(trial.folder / f"serial-{'-'.join(names)}")
    for name in names:
        words = commands(trial.world, trial.folder, run)[name]
        trial.world.sortal(*words, before=prepare).check(0)
    return state(run)


def check_pair(trial: Trial, names: tuple[str, str], done: Sequence[Done], run: Path, orders: Any) -> None:
    """Require that each command succeeded or was refused because of the other, and the run of a serial order."""
    carried_out = []
    for name, each in zip(names, done, strict=False):
        each.check(0, 2)
        assert each.code == 0 or any(text.format(run=str(run)) in each.err for text in REFUSALS), each
        carried_out += [name] if each.code == 0 else []
    assert carried_out, "one of two is carried out"
    possible = [[name for name in order if name in carried_out] for order in orders]
    found = state(run)
    assert any(found == serial(trial, order) for order in {tuple(each): each for each in possible}.values()), possible
    assert not [path.name for path in run.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.attack(most=2 * len(PAIRS))
def test_pairs(trial: Trial) -> None:
    """Two commands at the same time: each ends well or is refused, and the run is that of a serial order."""
    names: tuple[str, str] = trial.case(PAIRS[::-1])
    run = trial.world.copy_run(trial.folder / "run")
    lines = commands(trial.world, trial.folder, run)
    done = run_both(trial, together, [lines[name] for name in names])
    check_pair(trial, names, done, run, (names, names[::-1]))
    check_written(trial, run, {name for name, each in zip(names, done, strict=True) if each.code == 0})


def check_written(trial: Trial, run: Path, names: set[str]) -> None:
    """Require that what commands wrote outside the state of a run is whole, and nothing else is left."""
    if "export" in names:
        rows = tiny_folder.rows_of(trial.folder / f"{run.name}.csv")
        counts = (len(tiny_folder.rows_of(trial.world.run / "assignments.csv")), len(load_run(run).assignments.files))
        assert len(rows) in counts, "the table is of one state"
    if "figures" in names:
        drawn = {path.name: path.read_bytes() for path in (run / "figures").iterdir()}
        assert drawn.keys() == {"tsne.png", "tsne.svg"}, sorted(drawn)
        assert drawn["tsne.png"].endswith(b"IEND\xaeB`\x82")
        assert drawn["tsne.svg"].rstrip().endswith(b"</svg>")


@pytest.mark.attack(most=len(PAIRS))
def test_between(trial: Trial) -> None:
    """If a command changes the run after another one has read it, and before that one locks it, the change is kept."""
    names: tuple[str, str] = trial.case([pair for pair in PAIRS if pair[0] in NAMES[:5]])  # those that lock it
    run = trial.world.copy_run(trial.folder / "run")
    lines = commands(trial.world, trial.folder, run)
    done = run_both(trial, interposed, lines[names[0]], lines[names[1]], str(run))
    assert len(done) == 2, "the first command locks the run"
    check_pair(trial, names, done, run, (names[::-1],))


def export_bytes(run: Run, out: Path) -> bytes:
    """Export a run as a table, and return it."""
    export(run, "csv", out, force=True)
    return out.read_bytes()


@pytest.mark.attack(most=20)
def test_replacing(trial: Trial) -> None:
    """Readers and exports see a run that is replaced again and again as before or after, and never a mixture."""
    place, tries = trial.folder / "run", 30
    states = [replace(sample_run(images=72 + 6 * at, seed=at, categories=6 + at), folder=place) for at in range(2)]
    tables = [export_bytes(each, trial.folder / f"{at}.csv") for at, each in enumerate(states)]
    save_run(states[0])
    ended, seen, problems = threading.Event(), set[int](), list[BaseException]()

    def read() -> None:
        try:
            while not ended.is_set():
                found = load_run(place)
                (which,) = (at for at, each in enumerate(states) if each.assignments.files == found.assignments.files)
                assert found.names == states[which].names
                assert (found.features == states[which].features).all()
                assert (found.centres == states[which].centres).all()
                seen.add(which)
        except BaseException as error:
            problems.append(error)

    def write() -> None:
        try:
            while not ended.is_set():
                assert export_bytes(load_run(place), trial.folder / "table.csv") in tables, "the table is of one state"
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=each) for each in (read, read, write)]
    for reader in readers:
        reader.start()
    with tiny_folder.quickly():
        for number in range(tries):
            with lock_folder(place, waiting=lambda: None):  # readers complete interrupted changes under the lock
                save_run(states[(number + 1) % 2])
    ended.set()
    for reader in readers:
        reader.join()
    if problems:
        raise problems[0]


PATHS = ("/api/overview", "/api/version", "/api/queue", "/api/category/{}", "/api/images?rows=0,5,9", "/api/near/{}")
READERS = 32


@pytest.mark.attack(most=20)
def test_visitors(trial: Trial) -> None:
    """Many readers of the review app while decisions are made: every answer is whole, and of one version."""
    run, decisions = saved_run(trial.folder / "run"), 8
    ended, problems, count = threading.Event(), list[BaseException](), [0] * READERS
    with serving(session_of(run)) as client:
        client.enter()
        sizes: dict[int, list[int]] = {}  # of the categories, by version

        def read(number: int) -> None:
            latest, at = 0, number
            try:
                while not ended.is_set() or not count[number]:
                    found = client.get(PATHS[at % len(PATHS)].format(at % 6))
                    at, count[number] = at + 1, count[number] + 1
                    if "version" in found:
                        assert found["version"] >= latest, "time does not run backwards"
                        latest = found["version"]
                    if "states" in found:
                        each = [card["size"] for card in found["categories"]]
                        assert sum(each) == found["images"] == sum(found["states"].values()) == 72
                        assert sizes.setdefault(latest, each) == each, "one version is one state"
            except BaseException as error:
                problems.append(error)

        readers = [threading.Thread(target=read, args=[number]) for number in range(READERS)]
        for reader in readers:
            reader.start()
        _decide(client, trial, decisions)
        ended.set()
        for reader in readers:
            reader.join()
        if problems:
            raise problems[0]
        assert client.get("/api/version") == {"version": decisions}
    assert load_run(trial.folder / "run").decisions == decisions


def _decide(client: Client, trial: Trial, decisions: int) -> None:
    with tiny_folder.quickly():
        for seen in range(decisions):
            rows = trial.random.sample(range(72), 3)
            answer = client.decide(seen, do="move", rows=rows, category=seen % 6)
            assert answer.code == 200, answer.body
            stale = client.decide(seen, do="confirm", rows=rows)
            assert stale.code == 409, "nobody decides about what they have not seen"


@pytest.mark.attack(most=20)
def test_changing_places(trial: Trial) -> None:
    """Let two runs change places, again and again, while both are reviewed: each decision is in its own run."""
    runs = [saved_run(trial.folder / name, images=images) for name, images in (("a", 72), ("b", 60))]
    ended, acknowledged = threading.Event(), [list[str](), list[str]()]

    def decide(client: Client, number: int) -> None:
        for step in range(40):
            name = f"{number} {step}"
            seen = len(acknowledged[number])
            if client.decide(seen, do="rename", category=4, name=name).code == 200:
                acknowledged[number].append(name)

    def swap() -> None:
        random = Random(trial.random.random())
        while not ended.is_set():
            for source, target in (("a", "c"), ("b", "a"), ("c", "b")):
                os.rename(trial.folder / source, trial.folder / target)
            ended.wait(random.uniform(0, 0.02))

    with serving(session_of(runs[0])) as first, serving(session_of(runs[1])) as second, tiny_folder.quickly():
        swapping = threading.Thread(target=swap)
        deciding = [threading.Thread(target=decide, args=[each.enter(), at]) for at, each in enumerate((first, second))]
        for thread in (swapping, *deciding):
            thread.start()
        for thread in deciding:
            thread.join()
        ended.set()
        swapping.join()
    found = {len(run.assignments): run for name in "ab" for run in [load_run(trial.folder / name, raw=True)]}
    for run, told in zip(runs, acknowledged, strict=True):
        here = found[len(run.assignments)]
        lines = journal.read(here.folder / DECISIONS, here.facts)
        assert [each.action.name for each in lines if isinstance(each.action, Rename)] == told
