"""Training that diverges or collapses goes back at a lower rate, whatever interrupts it, and says so."""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.processes import run_two
from support.runtimes import CPU
from support.stores import noise, store_of
from support.tiny_methods import Colours
from support.tiny_run import LABELS, left, named, same, settings, timeless, weights
from torch import Tensor, nn

from sortal.errors import SortalError
from sortal.learning.batches import Batch
from sortal.learning.health import (
    PROBED_IMAGES,
    Failure,
    FeatureHealth,
    Probe,
    effective_rank_and_spread,
    evenly_spaced,
)
from sortal.learning.methods import Method
from sortal.learning.step import schedule
from sortal.learning.train import TrainingResult, train
from sortal.system.distributed import launch
from sortal.system.json_records import read_record


@pytest.mark.parametrize(
    ("rows", "rank", "spread"),
    [
        (np.concatenate([np.eye(5), -np.eye(5)]), 5, 1),  # k equal directions
        (np.concatenate([np.eye(9)[:2], -np.eye(9)[:2]]), 2, 1),  # fewer rows than columns
        ([[3, 0], [-3, 0], [0, 1], [0, -1]], 100 / 82, 5),  # eigenvalues 9 to 1
        ([[1, 0], [0, 1]], 1, 0.5),  # the mean has a length of √½
        ([[0, 1]] * 3, 0, 0),
        ([[0, 0]] * 3, 0, 0),  # a dead network
    ],
)
def test_effective_rank_and_spread_by_hand(rows: Any, rank: float, spread: float) -> None:
    x = torch.tensor(np.array(rows), dtype=torch.float64)
    assert effective_rank_and_spread(x) == pytest.approx((rank, spread), abs=1e-12)


def test_an_epoch_fails_below_its_limits() -> None:
    """A low rank alone is no failure: two classes far apart have one. Features that are alike cannot collapse."""
    probe = Probe.__new__(Probe)
    for rank, spread, loss, expected in (
        (40, 0.5, 1.0, None),
        (40, 0.5, math.inf, "diverged"),
        (math.nan, math.nan, 1.0, "diverged"),
        (40, 0.09, 1.0, "collapsed"),
        (40, 0.11, 1.0, None),
        (3.9, 0.49, 1.0, "collapsed"),
        (4.1, 0.49, 1.0, None),
        (1.0, 0.6, 1.0, None),
    ):
        now = FeatureHealth(effective_rank=rank, spread=spread, largest_query=None)
        probe.initial = FeatureHealth(effective_rank=40, spread=0.5, largest_query=None)
        assert probe.failure([2.0, loss], now) == expected
        probe.initial = FeatureHealth(effective_rank=1e9, spread=1e-15, largest_query=None)
        assert probe.failure([2.0, loss], now) == (expected if expected == "diverged" else None)
    assert evenly_spaced(np.arange(7)).tolist() == list(range(7))
    assert evenly_spaced(np.arange(3 * PROBED_IMAGES)).tolist() == list(range(0, 3 * PROBED_IMAGES, 3))


class Scaled(Colours):
    """Features (1, scale · mean colours): the smaller the scale, the more alike."""

    def tail(self, inputs: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(inputs[:, :1]), inputs * self.net.get_parameter("weight")], dim=1)


class Fragile(Method):
    """Its scale is pulled to 0, or to NaN, after steps longer than a limit; a weight with a gradient of −1 tells."""

    def __init__(self, failure: Failure, limit: float) -> None:
        super().__init__(Scaled().train_last(1))
        for value in self.backbone.parameters():
            nn.init.ones_(value)
        self.harm, self.limit = 12.0 if failure == "collapsed" else math.nan, limit
        self.at = nn.Parameter(torch.zeros(1))
        self.register_buffer("before", torch.zeros(1))
        self.register_buffer("length", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        scale = self.backbone.tail(inputs)[:, 1] / inputs[:, 0]
        return torch.stack([scale, self.at.expand(len(inputs))], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        scale, at = batch.outputs.mean(0)
        harm = torch.where(self.get_buffer("length") > self.limit, self.harm, 0.0).sum()
        return {"slope": -at, "harm": harm * scale.square() / 2}

    def after_step(self, batch: Batch) -> None:
        self.get_buffer("length").copy_(self.at - self.get_buffer("before"))
        self.get_buffer("before").copy_(self.at)


CONFIG = settings(epochs=3, lr=0.1, momentum=0.9, weight_decay=0.0)


def fit(method: Method, folder: Path | None, **options: Any) -> TrainingResult:
    data = named(LABELS[:16]), store_of([image[:4, :4] for image in noise(16, 4)])  # four steps per epoch
    return train(method, *data, CONFIG, folder=folder, **{"runtime": CPU, **options})


@pytest.mark.parametrize(
    ("failure", "limit", "failed"),
    # Steps of the first epoch have lengths 0.1, 0.19, 0.27 and 0.34; those of the second end with 0.39 and 0.43.
    [
        ("collapsed", 0.36, [1]),
        ("diverged", 0.05, [0, 0]),
        pytest.param("diverged", 0.2, [0], marks=pytest.mark.thorough),
        pytest.param("collapsed", 0.2, [0], marks=pytest.mark.thorough),
    ],
)
def test_a_failed_epoch_is_repeated_even_if_interrupted_after_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Failure, limit: float, failed: list[int]
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    method, notes = Fragile(failure, limit), list[str]()
    result = fit(method, tmp_path / "whole", runtime=replace(CPU, note=notes.append))
    lrs = [0.1 * 0.3**number for number in range(1, len(failed) + 1)]
    assert [*result.setbacks] == notes
    assert notes == [
        f"Training {failure} in epoch {epoch}; going back to its start with a learning rate of {lr:.3g}."
        for epoch, lr in zip(failed, lrs, strict=True)
    ]
    at = speed = 0.0
    for epoch in [0] * 4 + [1] * 4 + [2] * 4:
        speed = 0.9 * speed + 1
        at += 0.3 ** sum(other <= epoch for other in failed) * schedule(CONFIG, epoch) * speed
    assert method.at.item() == pytest.approx(at, rel=1e-5)
    assert method.backbone.get_parameter("net.weight") == 1

    text = (tmp_path / "whole/log.jsonl").read_text()
    assert "NaN" not in text
    start, *log = map(json.loads, text.splitlines())
    assert start["initial"].keys() == {"effective_rank", "spread"} < log[0].keys()
    events = [("epoch", epoch) for epoch in range(3)]
    for epoch in failed:
        events[epoch:epoch] = [("epoch", epoch), ("setback", epoch)]
    assert [(record["event"], record["epoch"]) for record in log] == events
    setbacks = [(record["reason"], record["lr"]) for record in log if record["event"] == "setback"]
    assert setbacks == [(failure, pytest.approx(lr)) for lr in lrs]
    old = {name: value for name, value in json.loads(json.dumps(asdict(result))).items() if name != "setbacks"}
    assert read_record(TrainingResult, old) == replace(result, setbacks=())

    again, runs = None, 0
    while again is None:
        steps, cut, runs = iter(range(2)), Fragile(failure, limit), runs + 1  # the second step is lost
        runtime = replace(CPU, progress=lambda *_, steps=steps: next(steps) and next(steps))
        with suppress(StopIteration):
            again = fit(cut, tmp_path / "cut", runtime=runtime, checkpoint_every=0.0)
    assert runs == 4 * (3 + len(failed))
    assert timeless(vars(again)) == timeless(vars(result))
    assert same(weights(cut), weights(method))
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


def test_three_setbacks_are_enough(tmp_path: Path) -> None:
    method, untrained = Fragile("diverged", 0.0), Fragile("diverged", 0.0)
    with pytest.raises(
        SortalError, match=r"^Training diverged in epoch 0 even at .* of 0\.0027, .* Use a lower lr, or "
    ):
        fit(method, tmp_path)
    assert same(weights(method), weights(untrained))
    assert not (tmp_path / "model.json").exists()


def work(rank: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    method = Fragile("collapsed", 0.36)
    torch.save((fit(method, None, processes=launch("cpu")).setbacks, weights(method)), folder / f"{rank}.pt")


def test_two_processes_go_back_together(tmp_path: Path) -> None:
    run_two(work, tmp_path)
    method = Fragile("collapsed", 0.36)
    setbacks = fit(method, None).setbacks
    for rank in range(2):
        got, state = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert got == setbacks != ()
        torch.testing.assert_close(state, weights(method))
