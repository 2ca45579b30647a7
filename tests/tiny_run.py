"""Tiny training runs: their images and methods, and a process that forks others, to be killed, in no time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stores import small_store

from sortal import tokens
from sortal.backbone import load_backbone
from sortal.config import Contrast, Training
from sortal.images import ImageSet, image_set
from sortal.methods import Contrastive
from sortal.network import Backbone
from sortal.store import PixelStore
from sortal.tokens import Budget
from sortal.train import Trained, train

SMALL, LARGE = 8, 32  # pixels: the views of the convnet and of the transformer
IN_A_FILE = Budget(memory=0, disk=10**9)


def named(labels: Sequence[str | None], held_out: Collection[int] = ()) -> ImageSet:
    """Images with these labels; the rows of `held_out` are for validation."""
    files = [f"{i}.png" for i in range(len(labels))]
    return image_set(files, paths=files, labels=labels, validation=np.isin(np.arange(len(labels)), [*held_out]))


def reordered(images: ImageSet, order: Sequence[int]) -> ImageSet:
    names = (*images.classes, None)
    held_out = [at for at, row in enumerate(order) if images.validation[row]]
    return named([names[images.labels[row]] for row in order], held_out)


def a_convnet(*, seed: int = 0) -> Contrastive:
    return _with_a_head(load_backbone("convnet", weights="random", image_size=SMALL, seed=seed), seed)


def a_transformer(*, seed: int = 0) -> Contrastive:
    return _with_a_head(load_backbone("test_vit", weights="random", image_size=LARGE, seed=seed), seed)


def _with_a_head(backbone: Backbone, seed: int) -> Contrastive:
    """The head's outputs are of about the size of its inputs: steps are small, so that rounding stays small."""
    method = Contrastive(backbone, Contrast(hidden=16, bottleneck=8), seed=seed)
    with torch.no_grad():
        for layer in method.head.mlp:
            if isinstance(layer, torch.nn.Linear):
                layer.weight.mul_(50 / layer.in_features**0.5)  # from a deviation of 0.02
    return method


def settings(**changes: Any) -> Training:
    return Training(**{"epochs": 2, "batch_size": 4, "views": None, "precision": "float32", **changes})


LABELS = (["a", "b", None, None] * 6)[:22]
HELD_OUT = (0, 1, 4, 5)


def a_set(side: int = SMALL) -> tuple[ImageSet, PixelStore]:
    """18 images to learn from, 8 of them labelled, and 4 for validation: 4 steps of 4 in an epoch."""
    return named(LABELS, HELD_OUT), small_store(len(LABELS), side)


def weights(method: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in method.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of weights are equal, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# Runs in other processes


@dataclass(frozen=True)
class Job:
    """A run to be done in another process, and whether it kills itself there."""

    folder: str
    kind: str  # live, file or memory: where its views come from
    epochs: int = 4
    every: float = 0.0
    fatal: int | None = None  # the number of the file operation it dies before
    batch_size: int = 4
    sync: bool = True  # whether it waits for the disk, which takes longer than all the rest


@dataclass
class Ended:
    """How a process ended."""

    code: int  # below 0: the signal that killed it
    said: list[tuple[str, int, int]] = field(default_factory=list)  # what it told of its progress
    result: dict[str, Any] | None = None
    operations: int = 0  # on files

    def reached(self, stage: str) -> int:
        return max((done for what, done, _ in self.said if what == stage), default=0)


def perform(job: Job, on_progress: Callable[[str, int, int], None] = lambda *_: None) -> Trained:
    """The run of a job, here."""
    live = job.kind == "live"
    images, store = a_set(SMALL if live else LARGE)
    return train(
        a_convnet() if live else a_transformer(),
        images,
        store,
        settings(epochs=job.epochs, views=None if live else 3, batch_size=job.batch_size),
        folder=job.folder,
        device="cpu",
        budget=IN_A_FILE if job.kind == "file" else Budget(memory=10**9),
        checkpoint_every=job.every,
        on_progress=on_progress,
    )


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # whole or not at all


def _count_operations(fatal: int | None) -> Callable[[], int]:
    """Count what is done to files, and die before one of these operations."""
    count = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*values, **named)

        return call

    for name in ("replace", "fsync", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    return lambda: count


def _child(job: Job) -> None:
    tokens.PIECE, tokens.COMMIT = 4, 0.0  # so that a kill finds tokens half done
    if not job.sync:
        os.fsync = lambda fd: None
    operations = _count_operations(job.fatal)
    trained = perform(job, lambda what, done, total: say("at", what.replace(" ", "_"), done, total))
    say("result", json.dumps(asdict(trained)))
    say("operations", operations())


def _serve() -> None:
    """Fork a process for each job that is asked for on standard input; all has been imported already.

    Nothing is computed here: torch's threads do not survive a fork.
    """
    import timm  # noqa: F401
    from torch.utils import tensorboard  # noqa: F401

    say("ready")
    for line in iter(sys.stdin.readline, ""):
        job = Job(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            signal.alarm(120)  # nobody waits for ever
            code = 1
            with contextlib.suppress(Exception):
                try:
                    say("pid", os.getpid())
                    _child(job)
                    code = 0
                except BaseException:
                    traceback.print_exc()
            os._exit(code)
        # The number is nobody else's before the process was waited for, so until then it can be killed.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        say("ended")
        sys.stdin.readline()
        say("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Server:
    """A process that forks others which train."""

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
        assert self._words() == ["ready"], self.errors.read_text()

    def run(self, job: Job, *, kill: tuple[str, int] | None = None, after: float = 0.0) -> Ended:
        """Do a job, or kill it `after` seconds from when that much of a stage is done; `kill` is (stage, how much)."""
        self._send(json.dumps(asdict(job)))
        _, pid = self._words()
        ended = Ended(0)
        while (words := self._words()) != ["ended"]:
            if words[0] == "at":
                what, done, total = words[1].replace("_", " "), int(words[2]), int(words[3])
                ended.said.append((what, done, total))
                if kill is not None and (done >= kill[1] if what == kill[0] else what == "Learning"):
                    time.sleep(after)
                    os.kill(int(pid), signal.SIGKILL)
                    kill = None
            elif words[0] == "result":
                ended.result = json.loads(" ".join(words[1:]))
            elif words[0] == "operations":
                ended.operations = int(words[1])
        self._send("reap")
        ended.code = int(self._words()[1])
        assert ended.code in (0, -signal.SIGKILL), self.errors.read_text()
        return ended

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _words(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        return line.split()


if __name__ == "__main__":
    _serve()
