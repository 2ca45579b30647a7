"""Tiny training runs: their images and methods, in this process or in one that is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sortal.config import Contrast, Training
from sortal.images.image_set import ImageSet, image_set
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import frozen, health, token_cache
from sortal.learning import train as training
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.methods import Contrastive
from sortal.learning.token_cache import Budget
from sortal.learning.train import TrainingResult
from sortal.runs.run import LOG
from sortal.system.progress import Progress
from support.fork_server import count_operations, say
from support.runtimes import CPU
from support.stores import small_store

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


def train(*values: Any, **options: Any) -> TrainingResult:
    """Train on noise, whose features do collapse, without going back."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LEAST_SPREAD", "LEAST_RANK"):
            patch.setattr(health, name, 0.0)
        return training.train(*values, **options)


# Whole runs

LEARNING, TOKENS = "Training", "Computing tokens"
SPEEDS = ("seconds", "images_per_second")


@dataclass(frozen=True)
class Job:
    """A run to be done, here or in another process."""

    folder: str
    kind: str  # live, file or memory: where its views come from
    epochs: int = 3
    every: float = 0.0
    batch_size: int = 4


def perform(job: Job, on_progress: Progress = lambda *_: None) -> TrainingResult:
    live = job.kind == "live"
    return train(
        a_convnet() if live else a_transformer(),
        *a_set(SMALL if live else LARGE),
        settings(epochs=job.epochs, views=None if live else 3, batch_size=job.batch_size),
        folder=job.folder,
        runtime=replace(CPU, progress=on_progress),
        budget=IN_A_FILE if job.kind == "file" else Budget(memory=10**9),
        checkpoint_every=job.every,
    )


def perform_in_child(job: dict[str, Any], fatal: int | None = None, waits: bool = False) -> None:
    """Do a job and say how it goes: ("at", stage, done), ("result", TrainingResult) and ("operations", count on files).

    It dies before the file operation of number `fatal`; one that `waits` to be killed does so after its last step.
    """
    # Every piece is marked, so that a kill finds tokens half done.
    token_cache.TOKENS_AT_ONCE, frozen.COMMIT_SECONDS = 32, -1.0
    operations = count_operations(["replace", "fsync", "unlink"], fatal)

    def on_progress(what: str, done: int, total: int) -> None:
        say("at", what, done)
        if waits and what == LEARNING and done == total:
            signal.pause()

    trained = perform(Job(**job), on_progress)
    say("result", asdict(trained))
    say("operations", operations())


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """A record less what no two runs have in common."""
    return {name: value for name, value in record.items() if name not in SPEEDS}


def left(folder: Path) -> list[Any]:
    """What a run leaves for people: its model and its log, but nothing half written, and no tokens."""
    assert not [*folder.glob("*.tmp"), *folder.glob("tokens*")]
    log = [timeless(json.loads(line)) for line in (folder / LOG).read_text().splitlines()]
    return [(folder / "model.safetensors").read_bytes(), (folder / "model.json").read_bytes(), log]
