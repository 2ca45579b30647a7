"""Runs of commands that are killed or interrupted, at any moment, end by the same command as those that were not.

That a kill before any operation on files does no harm is held by test_resume.py for training, by test_whole.py for
saving; here are a few at random.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import threading
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tiny_folder as tiny
from fork_server import KILLED, Ended, ForkServer, count_operations, die, say
from runtimes import CPU

from sortal.cli import app
from sortal.config import TRAININGS
from sortal.discovery import stages
from sortal.discovery.prediction import predict
from sortal.learning import checkpoint
from sortal.learning.step import TrainingStep
from sortal.learning.train import train
from sortal.runs.storage import load_run, peek
from sortal.system.files import NEXT, is_pending
from sortal.system.progress import Progress

WRITTEN = ("assignments.csv", "categories.csv", "quarantine.csv", "k.json", "confidence.json", "features.npy")
CLASSIFIED = ("head.npy", "initial.safetensors", "centres.npy")
FIVE_EPOCHS = {"epochs": 5, "k": "auto"}


# In a child


def dying(of: str, at: int, after: float) -> Progress:
    """Say each sign of progress, and die some seconds after the one of number `at` that has `of` in it."""
    told = 0

    def on_progress(what: str, *_: int) -> None:
        nonlocal told
        say("at", what)
        told += of in what
        if told == at and of in what:
            threading.Timer(after, die).start() if after else die()

    return on_progress


def sort(images: str, out: str, changes: dict[str, Any], of: str = "", at: int = 0, after: float = 0.0) -> None:
    with tiny.quickly():
        tiny.sort(images, Path(out), runtime=replace(CPU, progress=dying(of, at, after)), **changes)


def classify(images: str, out: str, at: int = 0) -> None:
    """Train UNO in batches that are smaller than the number of categories, with a checkpoint after each."""
    setattr(stages, "train", partial(train, checkpoint_every=0.0))  # noqa: B010
    TRAININGS["uno"] = replace(TRAININGS["uno"], batch_size=4)
    sort(images, out, {"epochs": 1, "k": "auto", "method": "uno"}, "Training", at)


def save(images: str, out: str, update: bool, fatal: int | None = None) -> None:
    """Discover, or predict with an update, and die before an operation on the files of the run that is saved."""
    operations = count_operations(
        ["replace", "link", "unlink", "mkdir", "rmdir"],
        fatal,
        lambda values, named: NEXT in os.fsdecode(values[0]) or "dir_fd" in named,
    )
    with tiny.quickly():
        if update:
            predict(out, images, update=True, runtime=CPU)
        else:
            tiny.sort(images, Path(out), **FIVE_EPOCHS)
    say("operations", operations())


def command(words: list[str], interrupt: bool) -> int:
    """Run the command line, which may get a SIGTERM in the third step of training."""
    steps, step = [], TrainingStep.__call__

    def counted(self: TrainingStep, *values: Any) -> Any:
        steps.append(1)
        if interrupt and len(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *values)

    setattr(TrainingStep, "__call__", counted)  # noqa: B010
    with tiny.quickly(), redirect_stderr(io.StringIO()) as told:
        code = app.main(words)
    say("told", told.getvalue())
    return code


@dataclass(frozen=True)
class Whole:
    images: Path
    out: Path
    said: list[str]


@pytest.fixture(scope="module")
def whole(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    truth = tiny.write(folder / "images")
    tiny.break_some(folder / "images", [*truth][:1])
    ended = fork_server.run(sort, str(folder / "images"), str(folder / "run"), FIVE_EPOCHS, codes=[0])
    return Whole(folder / "images", folder / "run", ended.each("at"))


def result(folder: Path, *more: str) -> dict[str, bytes]:
    """What a run wrote; nothing half done is left beside it."""
    assert not is_pending(folder)
    assert not list(folder.glob("*.tmp"))
    return {name: (folder / name).read_bytes() for name in (*WRITTEN, "model.safetensors", *more)}


def stages_of(ended: Ended) -> list[int]:
    """The number of the stage, from "[3/7] Learning", of each sign of progress."""
    return [int(what[1]) for what in ended.each("at")]


def test_a_run_killed_in_every_stage_ends_as_one_that_was_not(
    fork_server: ForkServer, whole: Whole, tmp_path: Path
) -> None:
    """What was done before the stage in which it was killed is not done again."""
    out, generator = tmp_path / "run", random.Random(0)
    for stage in range(1, 8):
        there = sum(what.startswith(f"[{stage}/") for what in whole.said)
        at, after = generator.randint(1, there), generator.choice([0.0, 0.003, 0.03])
        fork_server.run(sort, str(whole.images), str(out), FIVE_EPOCHS, f"[{stage}/", at, after)
        ended = fork_server.run(sort, str(whole.images), str(out), FIVE_EPOCHS, f"[{stage}/", 1, codes=[KILLED])
        assert stages_of(ended) == list(range(1, stage + 1))  # no more than that it has come to each
    fork_server.run(sort, str(whole.images), str(out), FIVE_EPOCHS, codes=[0])
    assert result(out) == result(whole.out)
    assert load_run(out).facts.hashes == load_run(whole.out).facts.hashes


def test_a_classifier_killed_while_it_is_trained_goes_on_and_ends_as_one_that_was_not(
    fork_server: ForkServer, whole: Whole, tmp_path: Path
) -> None:
    """What UNO remembers of recent batches is kept as well; k, which is found before, is not looked for again."""
    unharmed = fork_server.run(classify, str(whole.images), str(tmp_path / "whole"), codes=[0])
    assert steps_in(unharmed) == 119 // 4
    folder = tmp_path / "killed"
    ends = [fork_server.run(classify, str(whole.images), str(folder), at, codes=[KILLED]) for at in (1, 8)]
    last = fork_server.run(classify, str(whole.images), str(folder), codes=[0])
    assert [any("scores" in what for what in ended.each("at")) for ended in (*ends, last)] == [True, False, False]
    assert steps_in(last) == steps_in(unharmed) - 6
    assert result(folder, *CLASSIFIED) == result(tmp_path / "whole", *CLASSIFIED)


def steps_in(ended: Ended) -> int:
    """Signs of learning, the first of which is that it has come to that stage."""
    return sum("Training" in what for what in ended.each("at")) - 1


@pytest.mark.parametrize("update", [False, True])
def test_a_run_killed_while_it_is_saved_is_the_old_or_the_new_one(
    fork_server: ForkServer, whole: Whole, tmp_path: Path, update: bool
) -> None:
    """Of a run over one of another k, or of an update; all that is computed is in the cache."""
    images, start, new = whole.images, tmp_path / "start", tmp_path / "new"
    shutil.copytree(whole.out, start)
    if update:
        images = tmp_path / "more"
        tiny.write(images, {f"{name} {n}.png": f"{name} {300 + n}" for name in tiny.CLASSES for n in range(3)})
        tiny.write(images, {f"oak {n}.png": f"oak {n}" for n in range(8)})
    else:
        fork_server.run(sort, str(images), str(start), {**FIVE_EPOCHS, "k": 8}, codes=[0])
    shutil.copytree(start, new)
    (operations,) = fork_server.run(save, str(images), str(new), update, codes=[0]).each("operations")
    assert operations > 3 * 5  # more than five files change
    shutil.rmtree(start / "cache")
    shutil.copytree(new / "cache", start / "cache")
    before, after = everything(start), everything(new)
    assert before["assignments.csv"] != after["assignments.csv"]
    assert ("candidates.csv" in after) == update

    outcomes: list[bool] = []
    for fatal in sorted({1, operations, *random.Random(0).sample(range(2, operations), 6)}):
        folder = tmp_path / str(fatal)
        shutil.copytree(start, folder)
        fork_server.run(save, str(images), str(folder), update, fatal, codes=[KILLED])
        load_run(folder)
        assert everything(folder) in (before, after), fatal
        outcomes.append(everything(folder) == after)
    assert outcomes == sorted(outcomes)  # the old one up to some operation, the new one from there on
    assert set(outcomes) == {True, False}


def everything(folder: Path) -> dict[str, bytes]:
    """All files of a run, but for the one that says when it was made."""
    assert not is_pending(folder)
    return tiny.contents(folder, but=("cache", ".lock", "run.json", NEXT))


OPTIONS = "--backbone convnet --k-max 12 --n-init 3 --held-out 0.5 --device cpu --workers 1 --epochs 5"


def test_an_interrupted_command_keeps_what_it_learned_and_goes_on(
    fork_server: ForkServer, whole: Whole, tmp_path: Path
) -> None:
    """The signal comes in the third of five steps, after which there is a checkpoint."""
    out = tmp_path / "run"
    words = ["discover", str(whole.images), "--out", str(out), *OPTIONS.split()]
    (told,) = fork_server.run(command, words, True, codes=[130]).each("told")
    assert told.splitlines()[-1].startswith("sortal: interrupted; run the same command to resume")
    assert "Traceback" not in told
    (learned,) = (out / "cache/learn").iterdir()
    assert (learned / checkpoint.NAME).exists()
    assert peek(out) is None
    (told,) = fork_server.run(command, words, False, codes=[3]).each("told")  # with as many threads
    assert "Resuming in epoch 3" in told
    assert result(out) == result(whole.out)
