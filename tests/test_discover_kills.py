"""A run that is killed or interrupted, at any moment, ends by the same call as one that was not."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_folder as tiny

from sortal import checkpoint, cli, run, sorting
from sortal.config import TRAININGS
from sortal.prediction import predict
from sortal.train import train
from sortal.whole import NEXT, is_pending

KILLS = 20
SETTINGS: dict[str, Any] = {"epochs": 5, "k": "auto"}
CLASSIFIED = ("head.npy", "initial.safetensors", "centres.npy", "model.safetensors")
WRITTEN = ("assignments.csv", "categories.csv", "quarantine.csv", "k.json", "confidence.json", "features.npy")


@dataclass(frozen=True)
class Task:
    """What is done in another process, and when it kills itself there."""

    images: str
    out: str
    update: bool = False  # predict --update, else discover
    k: int | None = None
    method: str = "gcd"
    small: bool = False  # whether batches are small, of one epoch, with a checkpoint after each
    at: int = 0  # the number of the sign of progress at which it dies
    of: str = ""  # of those signs that have this in them
    after: float = 0.0  # seconds later
    fatal: int = 0  # the number of the file operation it dies before
    saving: bool = False  # only operations of the last stage count


@dataclass
class Ended:
    """How a process ended."""

    code: int = 0  # below 0: the signal that killed it
    said: tuple[str, ...] = ()  # what it told of its progress
    operations: int = 0  # on files


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _count_operations(task: Task) -> Callable[[], int]:
    """Count what is done to files and folders, and die before one of these operations."""
    count = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            nonlocal count
            if not task.saving or NEXT in os.fsdecode(values[0]) or "dir_fd" in named:
                count += 1
                if count == task.fatal:
                    _die()
            return operation(*values, **named)

        return call

    for name in ("replace", "link", "unlink", "mkdir", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    return lambda: count


def _child(task: Task, say: Callable[..., None]) -> None:
    told = 0

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal told
        told += task.of in what
        say("at", what)
        if told == task.at and task.of in what:
            if not task.after:
                _die()
            threading.Timer(task.after, _die).start()

    with tiny.quickly():
        operations = _count_operations(task)
        if task.update:
            predict(task.out, task.images, update=True, device="cpu", workers=1, on_progress=on_progress)
        else:
            changes = {**SETTINGS, "method": task.method, **({} if task.k is None else {"k": task.k})}
            if task.small:
                setattr(sorting, "train", partial(train, checkpoint_every=0.0))  # noqa: B010
                TRAININGS[task.method] = replace(TRAININGS[task.method], batch_size=4)
                changes["epochs"] = 1
            tiny.sort(task.images, Path(task.out), on_progress=on_progress, **changes)
    say("operations", operations())


def _serve() -> None:
    """Fork a process for each task that is asked for on standard input; all has been imported already.

    Nothing is computed here: torch's threads do not survive a fork.
    """
    import lightning_fabric  # noqa: F401
    import scipy.cluster.hierarchy  # noqa: F401
    import sklearn.cluster  # noqa: F401

    def say(*words: object) -> None:
        os.write(out, (json.dumps(words) + "\n").encode())

    out = os.dup(1)
    os.dup2(2, 1)
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            signal.alarm(120)  # nobody waits for ever
            code = 1
            with contextlib.suppress(Exception):
                try:
                    _child(Task(**json.loads(line)), say)
                    code = 0
                except BaseException:
                    traceback.print_exc()
            os._exit(code)
        say("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Server:
    """A process that forks others which sort."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self._words() == ["ready"]

    def run(self, task: Task) -> Ended:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(task)) + "\n")
        self.process.stdin.flush()
        ended, said = Ended(), []
        while (words := self._words())[0] != "code":
            if words[0] == "at":
                said.append(words[1])
            else:
                ended.operations = words[1]
        ended.code, ended.said = words[1], tuple(said)
        assert ended.code in (0, -signal.SIGKILL), self.errors.read_text()
        return ended

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def _words(self) -> list[Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        words: list[Any] = json.loads(line)
        return words


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@dataclass(frozen=True)
class Whole:
    """Images, and a run of them that nothing happened to."""

    images: Path
    out: Path
    ended: Ended


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    truth = tiny.write(folder / "images")
    tiny.break_some(folder / "images", [*truth][:1])
    ended = server.run(Task(str(folder / "images"), str(folder / "run")))
    assert ended.code == 0
    return Whole(folder / "images", folder / "run", ended)


def result(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in (*WRITTEN, "model.safetensors")}


def stage_of(what: str) -> int:
    """The number of a stage, from "[3/7] Learning"."""
    return int(what[1])


def assert_tidy(folder: Path) -> None:
    """Nothing half done is left, neither in the run nor where training was."""
    assert not is_pending(folder)
    assert not list(folder.glob("*.tmp"))


# Kills of discover


def test_a_run_killed_at_twenty_moments_ends_as_one_that_was_not(server: Server, whole: Whole, tmp_path: Path) -> None:
    """Seven runs, each killed first in a stage of its own, and then twice in what is left."""
    wanted, n = result(whole.out), len(whole.ended.said)
    generator = random.Random(0)
    moments = [0.0, 0.003, 0.03]
    ends: list[Ended] = []
    for stage in range(1, 8):
        folder = tmp_path / str(stage)
        task = Task(str(whole.images), str(folder))
        there = [at for at, what in enumerate(whole.ended.said, 1) if stage_of(what) == stage]
        ends.append(server.run(replace(task, at=generator.choice(there), after=generator.choice(moments))))
        for _ in range(2):
            ends.append(server.run(replace(task, at=generator.randint(1, 9), after=generator.choice(moments))))
        assert server.run(task).code == 0
        assert result(folder) == wanted, [ended.said[-1:] for ended in ends[-3:]]
        assert_tidy(folder)
        assert run.load(folder).about["hashes"] == run.load(whole.out).about["hashes"]
        shutil.rmtree(folder)
    killed = [ended for ended in ends if ended.code == -signal.SIGKILL]
    assert len(killed) >= KILLS - 3  # a moment after one of its last signs a run may be done
    reached = {stage_of(ended.said[-1]) for ended in killed}
    assert reached >= {1, 2, 3}
    assert len(reached) >= 5
    assert n > 50


def test_a_killed_run_goes_on_where_it_was(server: Server, whole: Whole, tmp_path: Path) -> None:
    """What was done before the stage in which it was killed is not done again."""
    features = next(at for at, what in enumerate(whole.ended.said, 1) if stage_of(what) == 4)
    task = Task(str(whole.images), str(tmp_path / "run"))
    assert server.run(replace(task, at=features)).code == -signal.SIGKILL
    again = server.run(task)
    told = [what for what in again.said if stage_of(what) < 4]
    assert sum("Learning" in what for what in told) == 1  # that it has come to that stage, but not one step
    assert sum("images" in what.lower() for what in told) == 1
    assert result(tmp_path / "run") == result(whole.out)


def test_a_classifier_killed_while_it_is_trained_goes_on_and_ends_as_one_that_was_not(
    server: Server, whole: Whole, tmp_path: Path
) -> None:
    """Where batches have fewer images than there are categories, UNO remembers recent ones: these are kept as well.

    k, which is found before, is not looked for again.
    """
    task = Task(str(whole.images), str(tmp_path / "whole"), method="uno", small=True)
    unharmed = server.run(task)
    assert unharmed.code == 0
    wanted = {name: (tmp_path / "whole" / name).read_bytes() for name in (*WRITTEN, *CLASSIFIED)}
    assert steps_in(unharmed) == 119 // 4
    folder = tmp_path / "killed"
    mine = replace(task, out=str(folder), of="Learning")
    ends = [server.run(replace(mine, at=at)) for at in (1, 8, 8)]  # before any step, then in the 7th, and in the 13th
    assert [ended.code for ended in ends] == [-signal.SIGKILL] * 3
    tried = [any("scores" in what for what in ended.said) for ended in ends]  # any k
    assert tried == [True, False, False]
    last = server.run(mine)
    assert last.code == 0
    assert steps_in(last) == steps_in(unharmed) - 12
    assert {name: (folder / name).read_bytes() for name in (*WRITTEN, *CLASSIFIED)} == wanted
    assert_tidy(folder)


def steps_in(ended: Ended) -> int:
    """Signs of learning, the first of which is that it has come to that stage."""
    return sum("Learning" in what for what in ended.said) - 1


def test_a_run_killed_while_it_is_saved_is_the_old_or_the_new_one(server: Server, whole: Whole, tmp_path: Path) -> None:
    """Before any operation on files: of a run of another k over one that is there, with nothing left to compute."""
    shutil.copytree(whole.out, tmp_path / "start")
    old = server.run(Task(str(whole.images), str(tmp_path / "start"), k=8))
    assert old.code == 0
    task = Task(str(whole.images), "", saving=True)
    before, after = result(tmp_path / "start"), result(whole.out)
    assert before["assignments.csv"] != after["assignments.csv"]

    shutil.copytree(tmp_path / "start", tmp_path / "count")
    n = server.run(replace(task, out=str(tmp_path / "count"))).operations
    assert n > 3 * len(WRITTEN)
    outcomes: list[bool] = []
    for fatal in sorted({*range(1, n + 1, 4), n - 1, n}):
        folder = tmp_path / str(fatal)
        shutil.copytree(tmp_path / "start", folder)
        assert server.run(replace(task, out=str(folder), fatal=fatal)).code == -signal.SIGKILL
        found = run.load(folder)
        assert result(folder) in (before, after), fatal
        outcomes.append(result(folder) == after)
        assert len(found.categories) == (found.k["k"] if outcomes[-1] else 8)
        assert_tidy(folder)
        shutil.rmtree(folder)
    assert outcomes == sorted(outcomes)  # the old one up to some operation, the new one from there on
    assert set(outcomes) == {True, False}

    shutil.copytree(tmp_path / "start", tmp_path / "again")
    assert server.run(replace(task, out=str(tmp_path / "again"), fatal=n // 2)).code == -signal.SIGKILL
    assert server.run(replace(task, out=str(tmp_path / "again"))).code == 0
    assert result(tmp_path / "again") == after


def test_a_first_run_killed_while_it_is_saved_is_none_or_whole(server: Server, whole: Whole, tmp_path: Path) -> None:
    shutil.copytree(whole.out / "cache", tmp_path / "start/cache")
    task = Task(str(whole.images), "", saving=True)
    shutil.copytree(tmp_path / "start", tmp_path / "count")
    n = server.run(replace(task, out=str(tmp_path / "count"))).operations
    outcomes: list[bool] = []
    for fatal in range(2, n + 1, n // 6):
        folder = tmp_path / str(fatal)
        shutil.copytree(tmp_path / "start", folder)
        assert server.run(replace(task, out=str(folder), fatal=fatal)).code == -signal.SIGKILL
        outcomes.append(run.peek(folder) is not None)
        if outcomes[-1]:
            assert result(folder) == result(whole.out)
        assert server.run(replace(task, out=str(folder))).code == 0
        assert result(folder) == result(whole.out)
        assert_tidy(folder)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {True, False}


# Kills of an update


def test_an_update_killed_before_any_operation_on_files_leaves_the_old_or_the_new_run(
    server: Server, whole: Whole, tmp_path: Path
) -> None:
    more = tmp_path / "more"
    tiny.write(more, {f"{name} {n}.png": f"{name} {300 + n}" for name in tiny.CLASSES for n in range(3)})
    tiny.write(more, {f"oak {n}.png": f"oak {n}" for n in range(8)})
    start = tmp_path / "start"
    shutil.copytree(whole.out, start)
    assert server.run(Task(str(more), str(start), update=True)).code == 0
    after = {**result(start), "candidates.csv": (start / "candidates.csv").read_bytes()}
    for name in (*WRITTEN, "run.json", "centres.npy"):  # what was there before, with all that the cache has now
        shutil.copy(whole.out / name, start / name)
    (start / "candidates.csv").unlink()
    before = result(whole.out)

    task = Task(str(more), "", update=True, saving=True)
    shutil.copytree(start, tmp_path / "count")
    n = server.run(replace(task, out=str(tmp_path / "count"))).operations
    outcomes: list[bool] = []
    for fatal in range(1, n + 1, 3):
        folder = tmp_path / str(fatal)
        shutil.copytree(start, folder)
        assert server.run(replace(task, out=str(folder), fatal=fatal)).code == -signal.SIGKILL
        found = run.load(folder)
        outcomes.append(len(found.about["updates"]) == 1)
        if outcomes[-1]:
            assert {**result(folder), "candidates.csv": (folder / "candidates.csv").read_bytes()} == after
        else:
            assert result(folder) == before
            assert found.candidates == ()
        assert_tidy(folder)
        shutil.rmtree(folder)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {True, False}


# Signals

OPTIONS = "--backbone convnet --k 6 --n-init 3 --held-out 0.5 --device cpu --workers 1 --epochs 6"
INTERRUPTED = """\
import os, runpy, sys
from sortal.step import Step

number, steps, step = int(sys.argv.pop(1)), [], Step.__call__

def counted(self, *values):
    steps.append(1)
    if len(steps) == 3:
        os.kill(os.getpid(), number)
    return step(self, *values)

Step.__call__ = counted
runpy.run_module("sortal", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def told(whole: Whole) -> dict[str, bytes]:
    """What the command comes to without a signal."""
    out = whole.out.with_name("told")
    with tiny.quickly():
        assert cli.main(words(whole.images, out)) == 3
    return result(out)


def words(images: Path, out: Path) -> list[str]:
    return ["discover", str(images), "--out", str(out), *OPTIONS.split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_keeps_what_it_learned_and_goes_on(
    whole: Whole, told: dict[str, bytes], tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes in the third of six steps, after which there is a checkpoint."""
    out = tmp_path / "run"
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(int(number)), *words(whole.images, out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("sortal: interrupted; what was done is kept")
    assert "Traceback" not in ended.stderr
    (learned,) = (out / "cache/learn").iterdir()
    assert (learned / checkpoint.NAME).exists()
    assert run.peek(out) is None
    with tiny.quickly():
        assert cli.main(words(whole.images, out)) == 3
    assert "Going on in epoch 3" in capsys.readouterr().err
    assert result(out) == told


if __name__ == "__main__":
    _serve()
