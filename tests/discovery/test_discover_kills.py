"""Runs that are killed or interrupted at any moment, and resumed by the same command, end like undisturbed ones.

These kills are random; test_resume.py kills training, and test_files.py saving, before every file operation.
"""

from __future__ import annotations

import io
import os
import random
import signal
import threading
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import tiny_folder as tiny
from support.fork_server import KILLED, Ended, ForkServer, die, say
from support.runtimes import CPU

from sortal.cli import app
from sortal.config import METHODS
from sortal.discovery import stages
from sortal.learning import checkpoint
from sortal.learning.step import TrainingStep
from sortal.learning.train import train
from sortal.reviews.loading import load_run
from sortal.runs.storage import peek
from sortal.system.files import is_pending
from sortal.system.progress import Progress

WRITTEN = ("assignments.csv", "categories.csv", "quarantine.csv", "k.json", "confidence.json", "features.npy")
CLASSIFIED = ("head.npy", "initial.safetensors", "centres.npy")
FIVE_EPOCHS = {"epochs": 5, "k": "auto"}


# Run in a child process


def dying(of: str, at: int, after: float) -> Progress:
    """Report progress to the parent, and die `after` seconds after the `at`-th report that contains `of`."""
    reports = 0

    def on_progress(what: str, *_: int) -> None:
        nonlocal reports
        say("at", what)
        reports += of in what
        if reports == at and of in what:
            threading.Timer(after, die).start() if after else die()

    return on_progress


def sort(images: str, out: str, changes: dict[str, Any], of: str = "", at: int = 0, after: float = 0.0) -> None:
    with tiny.quickly():
        tiny.sort(images, Path(out), runtime=replace(CPU, progress=dying(of, at, after)), **changes)


def classify(images: str, out: str, at: int = 0) -> None:
    """Train UNO in batches smaller than the number of categories, with a checkpoint after each."""
    setattr(stages, "train", partial(train, checkpoint_every=0.0))  # noqa: B010
    METHODS["uno"] = replace(METHODS["uno"], training=replace(METHODS["uno"].training, batch_size=4))
    sort(images, out, {"epochs": 1, "k": "auto", "method": "uno"}, "Training", at)


def command(words: list[str], interrupt: bool) -> int:
    """Run the command line, and send SIGTERM in the third training step if asked to."""
    steps, step = [], TrainingStep.__call__

    def counted(self: TrainingStep, *values: Any) -> Any:
        steps.append(1)
        if interrupt and len(steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *values)

    setattr(TrainingStep, "__call__", counted)  # noqa: B010
    with tiny.quickly(), redirect_stderr(io.StringIO()) as stderr:
        code = app.main(words)
    say("stderr", stderr.getvalue())
    return code


@dataclass(frozen=True)
class Undisturbed:
    images: Path
    out: Path
    progress: list[str]


@pytest.fixture(scope="module")
def undisturbed(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    truth = tiny.write(folder / "images", tiny.planted(10, 7))
    tiny.break_some(folder / "images", [*truth][:1])
    ended = fork_server.run(sort, str(folder / "images"), str(folder / "run"), FIVE_EPOCHS, codes=[0])
    return Undisturbed(folder / "images", folder / "run", ended.each("at"))


def result(folder: Path, *more: str) -> dict[str, bytes]:
    """Return the files of a run; no temporary file must be left."""
    assert not is_pending(folder)
    assert not list(folder.glob("*.tmp"))
    return {name: (folder / name).read_bytes() for name in (*WRITTEN, "model.safetensors", *more)}


def stages_of(ended: Ended) -> list[int]:
    """Return the number of the stage, as in "[3/7] Learning", from each progress report."""
    return [int(what[1]) for what in ended.each("at") if what.startswith("[")]


@pytest.mark.thorough
def test_a_run_killed_in_every_stage_ends_like_an_undisturbed_one(
    fork_server: ForkServer, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Stages completed before a kill are not repeated."""
    out, generator = tmp_path / "run", random.Random(0)
    for stage in range(1, 8):
        reports = sum(what.startswith(f"[{stage}/") for what in undisturbed.progress)
        at, after = generator.randint(1, reports), generator.choice([0.0, 0.003, 0.03])
        fork_server.run(sort, str(undisturbed.images), str(out), FIVE_EPOCHS, f"[{stage}/", at, after)
        ended = fork_server.run(sort, str(undisturbed.images), str(out), FIVE_EPOCHS, f"[{stage}/", 1, codes=[KILLED])
        # One report each, as there is nothing to do, but for clustering, which counts what it takes from the cache, and
        # for learning, which checks images and labels first.
        seen = stages_of(ended)
        wanted = [1, 2, 3, 3, 3, 4, 5, 6, 7][: stage + 2 * (stage > 3)]
        assert [each for at, each in enumerate(seen) if each != 6 or each not in seen[:at]] == wanted
    fork_server.run(sort, str(undisturbed.images), str(out), FIVE_EPOCHS, codes=[0])
    assert result(out) == result(undisturbed.out)
    assert load_run(out).facts.hashes == load_run(undisturbed.out).facts.hashes


@pytest.mark.thorough
def test_a_classifier_killed_in_training_resumes_and_ends_like_an_undisturbed_one(
    fork_server: ForkServer, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """UNO's queue of recent batches is restored, and k is not estimated again."""
    expected = fork_server.run(classify, str(undisturbed.images), str(tmp_path / "undisturbed"), codes=[0])
    assert steps_in(expected) == 59 // 4
    folder = tmp_path / "killed"
    ends = [fork_server.run(classify, str(undisturbed.images), str(folder), at, codes=[KILLED]) for at in (1, 8)]
    last = fork_server.run(classify, str(undisturbed.images), str(folder), codes=[0])
    estimates = [sum("Estimating" in what for what in ended.each("at")) > 1 for ended in (*ends, last)]
    assert estimates == [True, False, False]
    assert steps_in(last) == steps_in(expected) - 6
    assert result(folder, *CLASSIFIED) == result(tmp_path / "undisturbed", *CLASSIFIED)


def steps_in(ended: Ended) -> int:
    """Count training steps; the first report only announces the stage."""
    return sum("Training" in what for what in ended.each("at")) - 1


OPTIONS = "--backbone convnet --k-max 12 --n-init 3 --held-out 0.5 --device cpu --workers 1 --epochs 5"


def test_an_interrupted_command_saves_a_checkpoint_and_resumes(
    fork_server: ForkServer, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The signal arrives in the third of five steps, the first of the second round; then a checkpoint is saved."""
    out = tmp_path / "run"
    words = ["discover", str(undisturbed.images), "--out", str(out), *OPTIONS.split()]
    (stderr,) = fork_server.run(command, words, True, codes=[130]).each("stderr")
    assert stderr.splitlines()[-1].startswith("sortal: interrupted; run the same command to resume")
    assert "Traceback" not in stderr
    rounds = [*(out / "cache/learn").iterdir()]
    assert len(rounds) == 2
    assert all((learned / checkpoint.CHECKPOINT).exists() for learned in rounds)
    assert peek(out) is None
    (stderr,) = fork_server.run(command, words, False, codes=[3]).each("stderr")  # with the same number of threads
    assert "Training is already complete." in stderr
    assert "Resuming in epoch 1" in stderr
    assert result(out) == result(undisturbed.out)
