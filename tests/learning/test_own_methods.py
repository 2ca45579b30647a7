"""What a method may decide besides its losses: views, colours, sampler, optimiser, teacher, work between epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from support import tiny_run
from support.runtimes import CPU
from support.stores import small_store
from support.thorough import thorough_but
from support.tiny_run import LARGE, SMALL, a_set, named, same, settings, weights
from torch import Tensor, nn

from sortal.config import Training
from sortal.errors import InputError
from sortal.learning.averages import MovingAverage, Tail
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Batch, ImageTable
from sortal.learning.methods import Method
from sortal.learning.optimiser import Optimiser, TorchOptimiser
from sortal.learning.step import TrainingStep
from sortal.learning.token_cache import Budget

ROOM = Budget(memory=10**9)


class Everything(Method):
    """Three views, in other colours, of images drawn by a memory; a teacher; AdamW; and a record of what it saw."""

    views = 3
    memory: Tensor
    seen: Tensor

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.head = nn.Linear(backbone.spec.width, 4, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.linspace(-1, 1, 4 * backbone.spec.width).view(4, -1))
        self.student = nn.Sequential(Tail(backbone), self.head)
        self.teacher = MovingAverage(self.student)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.labels_given: list[int] = []
        self.epochs: list[int] = []
        self.batches: list[Batch] = []

    def prepare(self, labels: Tensor) -> None:
        self.labels_given = labels.tolist()
        self.register_buffer("memory", torch.zeros(len(labels), self.backbone.spec.width))

    def start_epoch(self, epoch: int, images: ImageTable) -> None:
        self.epochs.append(epoch)
        self.memory.copy_(images.features())

    def sample(
        self, images: NDArray[np.int64], labels: NDArray[np.int64], *, steps: int, batch_size: int, **of: Any
    ) -> NDArray[np.int64]:
        order = np.argsort(self.memory[images, 0].numpy(), kind="stable")
        return np.resize(np.roll(order, of["epoch"] + of["seed"]), (steps, batch_size))

    def augment(self, images: Tensor, draws: Tensor) -> Tensor:
        return (images * (0.5 + draws[:, :3, None, None])).clamp(0, 1)

    def optimiser(self, parameters: Mapping[str, Tensor], training: Training) -> Optimiser:
        groups: list[dict[str, Any]] = [
            {"params": [value for name, value in parameters.items() if name.startswith("backbone.")]},
            {"params": [value for name, value in parameters.items() if not name.startswith("backbone.")], "lr": 0.002},
        ]
        return TorchOptimiser(parameters, torch.optim.AdamW(groups, lr=training.lr), training)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.student(inputs), self.teacher(inputs)], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        student, teacher = batch.outputs.split(4, dim=1)
        kept = self.memory[batch.images].mean() * student.mean()
        return {"teacher": nnf.mse_loss(student.roll(len(student) // 3, 0), teacher.detach() + 1), "memory": kept}

    def after_step(self, batch: Batch) -> None:
        self.teacher.follow(0.9)
        self.seen += len(batch.images)
        self.batches.append(batch)


def everything(kind: str) -> Everything:
    of_images = {"live": ("convnet", SMALL), "cached": ("test_vit", LARGE)}[kind]
    name, size = of_images
    return Everything(load_backbone(name, weights="random", image_size=size))


def fit(method: Method, kind: str, folder: Path | None = None, **changes: Any) -> None:
    config = settings(epochs=3, lr=0.001, views=None if kind == "live" else 4, **changes)
    data = a_set(SMALL if kind == "live" else LARGE)
    tiny_run.train(method, *data, config, folder=folder, runtime=CPU, budget=ROOM, checkpoint_every=0.0)


@pytest.mark.parametrize("kind", thorough_but(["live"], ["live", "cached"]))
def test_all_of_it_is_used_and_resumes_to_the_same_weights_from_any_step(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = everything(kind)
    start = weights(whole)
    fit(whole, kind, tmp_path / "whole")
    assert whole.epochs == [0, 1, 2]
    assert sorted(set(whole.labels_given)) == [-1, 0, 1]
    assert (len(whole.labels_given), whole.seen.item()) == (18, 3 * 4 * 4 * 3), "epochs, steps, images, views"
    for batch in whole.batches:
        first, second, third = batch.images.chunk(3)
        assert first.tolist() == second.tolist() == third.tolist()
        assert batch.labels.tolist() == [whole.labels_given[number] for number in batch.images.tolist()]
    done = weights(whole)
    changed = {name for name, value in start.items() if not torch.equal(value, done[name])}
    averages = {name for name in changed if name.startswith("teacher.")}
    assert averages
    assert averages == {name for name in start if name.startswith("teacher.")}
    step = TrainingStep.__call__
    for stop in (2, 4, 7):  # within the first epoch, at its end, within the second
        taken: list[int] = []

        def stopping(self: TrainingStep, *values: Any, stop: int = stop, taken: list[int] = taken) -> Tensor:
            if len(taken) == stop:
                raise KeyboardInterrupt
            taken.append(1)
            return step(self, *values)

        folder = tmp_path / f"killed {stop}"
        with monkeypatch.context() as patch:
            patch.setattr(TrainingStep, "__call__", stopping)
            with pytest.raises(KeyboardInterrupt):
                fit(everything(kind), kind, folder)
        resumed = everything(kind)
        fit(resumed, kind, folder)
        assert resumed.epochs == [epoch for epoch in (0, 1, 2) if epoch * 4 >= stop], "not within an epoch"
        assert same(weights(resumed), done)


def test_views_of_an_image_differ_and_their_colours_depend_on_the_seed() -> None:
    class Pixels(Everything):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.cat([super().forward(inputs), inputs.flatten(1).detach()], dim=1)

        def losses(self, batch: Batch) -> dict[str, Tensor]:
            return {"nothing": batch.outputs[:, :4].square().mean()}

    def seen(**changes: Any) -> list[Tensor]:
        method = Pixels(load_backbone("convnet", weights="random", image_size=SMALL))
        fit(method, "live", **changes)
        return [batch.outputs[:, 8:] for batch in method.batches]

    first, again, other = seen(), seen(), seen(seed=1)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))
    for batch in first:
        one, two, three = batch.chunk(3)
        assert not (one == two).all(1).any()
        assert not (one == three).all(1).any()


def test_colours_that_do_nothing_change_nothing() -> None:
    """Tokens of views that were changed by other code are not taken for these."""

    class Same(Everything):
        def augment(self, images: Tensor, draws: Tensor) -> Tensor:
            assert draws.shape == (len(images), 16)
            assert ((draws >= 0) & (draws < 1)).all()
            assert draws.unique().numel() > 8 * len(images), "numbers of a view differ, and so do those of views"
            return images

    class Without(Everything):
        augment = Method.augment

    found = []
    for kind in (Same, Without):
        method = kind(load_backbone("convnet", weights="random", image_size=SMALL))
        fit(method, "live")
        found.append(weights(method))
    for name, value in found[0].items():  # pixels are divided by 255 and multiplied again
        torch.testing.assert_close(value, found[1][name], rtol=1e-3, atol=1e-4, msg=name)


def test_copies_share_a_number_and_a_label() -> None:
    store = small_store(8, SMALL)
    twins = replace(store, digests=store.digests[[0, 1, 2, 3, 4, 5, 0, 1]])
    images = named(["a", None, None, None, "b", None, None, None])
    method = Everything(load_backbone("convnet", weights="random", image_size=SMALL))
    tiny_run.train(method, images, twins, settings(epochs=1), runtime=CPU, budget=ROOM)
    assert sorted(method.labels_given) == [-1, -1, -1, -1, 0, 1]


def test_a_sample_that_is_none_is_refused() -> None:
    class Wrong(Everything):
        positions: Any = None

        def sample(self, *_: Any, **__: Any) -> NDArray[np.int64]:
            found: NDArray[np.int64] = self.positions
            return found

    for positions in (np.zeros(4, int), np.full((4, 4), 18), np.full((4, 4), -1), np.zeros((4, 4))):
        method = Wrong(load_backbone("convnet", weights="random", image_size=SMALL))
        method.positions = positions
        with pytest.raises(InputError, match=r"^A method's sample must be whole numbers from 0 to 17 of shape"):
            fit(method, "live")
