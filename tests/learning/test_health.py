"""Training that diverges or collapses goes back at a lower rate, whatever interrupts it, and says so."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import run_two
from runtimes import CPU
from stores import small_store
from tiny_folder import strict_json
from tiny_run import LABELS, SMALL, left, named, same, settings, timeless, weights
from torch import Tensor, nn

from sortal.errors import SortalError
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.batches import Batch
from sortal.learning.health import IMAGES, Failure, Health, Probe, effective_rank_and_spread, evenly_spaced
from sortal.learning.methods import Method
from sortal.learning.step import schedule
from sortal.learning.train import TrainingResult, train
from sortal.system.distributed import launch
from sortal.system.json_records import read_record


@pytest.mark.parametrize(
    ("rows", "rank", "spread"),
    [
        ([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]], 2, 1),
        (np.concatenate([np.eye(5), -np.eye(5)]), 5, 1),  # k equal directions
        (np.concatenate([np.eye(9)[:2], -np.eye(9)[:2]]), 2, 1),  # fewer rows than columns
        ([[0, 1]] * 3, 0, 0),
        ([[0, 0, 0]] * 3, 0, 0),  # a dead network
        ([[1, 0], [0, 1]], 1, 0.5),  # the mean has a length of √½
        ([[3, 0], [-3, 0], [0, 1], [0, -1]], 100 / 82, 5),  # eigenvalues 9 to 1
    ],
)
def test_effective_rank_and_spread_by_hand(rows: Any, rank: float, spread: float) -> None:
    x = torch.tensor(np.array(rows), dtype=torch.float64)
    assert effective_rank_and_spread(x) == pytest.approx((rank, spread), abs=1e-12)


def test_up_to_256_rows_are_measured() -> None:
    assert evenly_spaced(np.arange(7)).tolist() == list(range(7))
    assert evenly_spaced(np.arange(3 * IMAGES)).tolist() == list(range(0, 3 * IMAGES, 3))


@pytest.mark.parametrize(
    ("figures", "rank", "spread", "expected"),
    [
        ([1.0], 40, 0.5, None),
        ([math.nan], 40, 0.5, "diverged"),
        ([1.0, math.inf], 40, 0.5, "diverged"),
        ([1.0], math.nan, math.nan, "diverged"),
        ([1.0], 40, 0.09, "collapsed"),
        ([1.0], 40, 0.11, None),
        ([1.0], 3.9, 0.49, "collapsed"),
        ([1.0], 4.1, 0.49, None),
        ([1.0], 1.0, 0.6, None),  # two classes far apart
    ],
)
def test_an_epoch_fails_below_its_limits(figures: list[float], rank: float, spread: float, expected: Any) -> None:
    probe = Probe.__new__(Probe)
    now = Health(effective_rank=rank, spread=spread, largest_query=None)
    probe.initial = Health(effective_rank=40, spread=0.5, largest_query=None)
    assert probe.failure(figures, now) == expected
    probe.initial = Health(effective_rank=0, spread=1e-15, largest_query=None)  # as of a single image
    assert probe.failure(figures, now) in (None, "diverged")


# Planted failures


class Scaled(Backbone):
    """Features (1, scale · mean colours): the smaller the scale, the more alike."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1, bias=False), Spec(name="scaled", image_size=8, shorter_side=8, width=4))
        nn.init.ones_(self.net.get_parameter("weight"))
        self.train_last(1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [nn.Identity(), self.net]

    def trunk(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))

    def tail(self, inputs: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(inputs[:, :1]), inputs * self.net.get_parameter("weight")], dim=1)


class Fragile(Method):
    """Fails while its steps are longer than a limit; a weight with a gradient of −1 tells their length."""

    def __init__(self, failure: Failure, limit: float) -> None:
        super().__init__(Scaled())
        self.harm, self.limit = 12.0 if failure == "collapsed" else math.nan, limit
        self.at = nn.Parameter(torch.zeros(1))
        self.register_buffer("before", torch.zeros(1))
        self.register_buffer("length", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        scale = self.backbone.tail(inputs)[:, 1:].sum(1) / inputs.sum(1)
        return torch.stack([scale, self.at.expand(len(inputs))], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        scale, at = batch.outputs.mean(0)
        harm = torch.where(self.get_buffer("length") > self.limit, self.harm, 0.0).sum()
        return {"slope": -at, "harm": harm * scale.square() / 2}

    def after_step(self, batch: Batch) -> None:
        self.get_buffer("length").copy_(self.at - self.get_buffer("before"))
        self.get_buffer("before").copy_(self.at)


CONFIG = settings(epochs=3, lr=0.1, momentum=0.9, weight_decay=0.0)
# Steps of the first epoch have lengths 0.1, 0.19, 0.27 and 0.34; those of the second end with 0.39 and 0.43.
FAILURES: list[tuple[Failure, float, list[int]]] = [
    ("diverged", 0.2, [0]),
    ("collapsed", 0.2, [0]),
    ("diverged", 0.36, [1]),
    ("collapsed", 0.36, [1]),
    ("diverged", 0.05, [0, 0]),
]


def fit(method: Method, folder: Path | None, **options: Any) -> TrainingResult:
    data = named(LABELS[:16]), small_store(16, SMALL)  # four steps per epoch
    return train(method, *data, CONFIG, folder=folder, **{"runtime": CPU, **options})


def end_by_hand(failed: Sequence[int]) -> float:
    """Return where the weight with a gradient of −1 ends."""
    at = speed = 0.0
    for epoch in range(CONFIG.epochs):
        for _ in range(4):
            speed = 0.9 * speed + 1
            at += 0.3 ** sum(other <= epoch for other in failed) * schedule(CONFIG, epoch) * speed
    return at


@pytest.mark.parametrize(("failure", "limit", "failed"), FAILURES)
def test_a_failed_epoch_is_repeated_at_a_lower_rate(
    tmp_path: Path, failure: Failure, limit: float, failed: list[int]
) -> None:
    method, notes = Fragile(failure, limit), list[str]()
    result = fit(method, tmp_path, runtime=replace(CPU, note=notes.append))
    lrs = [0.1 * 0.3**number for number in range(1, len(failed) + 1)]
    assert [*result.setbacks] == notes
    assert notes == [
        f"Training {failure} in epoch {epoch}; going back to its start with a learning rate of {lr:.3g}."
        for epoch, lr in zip(failed, lrs, strict=True)
    ]
    assert method.at.item() == pytest.approx(end_by_hand(failed), rel=1e-5)
    assert method.backbone.get_parameter("net.weight") == 1
    (tmp_path / "log.json").write_text(f"[{','.join((tmp_path / 'log.jsonl').read_text().splitlines())}]")
    start, *log = strict_json(tmp_path / "log.json")
    assert {"effective_rank", "spread"} == start["initial"].keys() < log[0].keys()
    wanted = [each for epoch in range(3) for each in [f"epoch {epoch}", f"setback {epoch}"] * failed.count(epoch)]
    order = sorted([*wanted, *(f"epoch {epoch}" for epoch in range(3))], key=lambda each: int(each[-1]))
    assert [f"{record['event']} {record['epoch']}" for record in log] == order
    setbacks = [record for record in log if record["event"] == "setback"]
    assert [(record["reason"], record["lr"]) for record in setbacks] == [(failure, pytest.approx(lr)) for lr in lrs]
    old = {name: value for name, value in asdict(result).items() if name != "setbacks"}
    assert read_record(TrainingResult, old) == replace(result, setbacks=())


@pytest.mark.parametrize(("failure", "limit", "failed"), FAILURES)
def test_a_run_interrupted_after_every_step_goes_back_to_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Failure, limit: float, failed: list[int]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    whole, method, result, runs = Fragile(failure, limit), Fragile(failure, limit), None, 0
    expected = fit(whole, tmp_path / "whole")
    while result is None:
        steps = iter(range(2))  # the second one is lost
        runtime = replace(CPU, progress=lambda *_, steps=steps: next(steps, None) or next(steps))
        runs += 1
        try:
            result = fit(method, tmp_path / "cut", runtime=runtime, checkpoint_every=0.0)
        except StopIteration:
            method = Fragile(failure, limit)
    assert runs >= 4 * (3 + len(failed))
    assert timeless(vars(result)) == timeless(vars(expected))
    assert same(weights(method), weights(whole))
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


def test_three_setbacks_are_enough(tmp_path: Path) -> None:
    method = Fragile("diverged", 0.0)
    before = weights(method)
    with pytest.raises(SortalError) as caught:
        fit(method, tmp_path)
    assert str(caught.value) == (
        "Training diverged in epoch 0 even at a learning rate of 0.0027, after 3 setbacks. "
        "Use a lower lr, or other weights."
    )
    assert same(weights(method), before)
    assert not (tmp_path / "model.json").exists()


def work(rank: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    method = Fragile("collapsed", 0.36)
    result = fit(method, None, processes=launch("cpu"))
    torch.save((result.setbacks, weights(method)), folder / f"{rank}.pt")


def test_two_processes_go_back_together(tmp_path: Path) -> None:
    run_two(work, tmp_path)
    method = Fragile("collapsed", 0.36)
    setbacks = fit(method, None).setbacks
    for rank in range(2):
        got, state = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert got == setbacks != ()
        torch.testing.assert_close(state, weights(method))
