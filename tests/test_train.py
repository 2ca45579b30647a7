"""The loop: the weights that ten plain lines of PyTorch give, whatever the order, the processes and the place."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import run_two
from stores import noise, small_store, store_of
from tiny_methods import NAMES, small
from tiny_run import (
    HELD_OUT,
    IN_A_FILE,
    LABELS,
    LARGE,
    SMALL,
    a_convnet,
    a_set,
    a_transformer,
    named,
    reordered,
    same,
    settings,
    weights,
)
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, MultiStepLR, SequentialLR

import sortal
from sortal import views
from sortal.backbone import load_backbone
from sortal.batches import Batch, draw
from sortal.compute import Compute
from sortal.config import TRAININGS, Swaps, Training
from sortal.errors import InputError, SortalError
from sortal.images import ImageSet
from sortal.methods import Contrastive, Method
from sortal.pixels import Quarantined
from sortal.processes import launch
from sortal.selection import Validation
from sortal.step import Step
from sortal.store import PixelStore
from sortal.tokens import Budget, Live
from sortal.train import Trained, schedule, train

PLENTY = Budget(memory=10**9)


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not survive power cuts, and waiting would take longer than all the rest."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def fit(method: Method, data: tuple[ImageSet, PixelStore], config: Training, **options: Any) -> Trained:
    return train(method, *data, config, device="cpu", **{"budget": PLENTY, **options})


# The oracle


def contrast(rows: Tensor, ids: Sequence[int], temperature: float) -> Tensor:
    """The paper's formula, one anchor after the other."""
    costs = []
    for i, own in enumerate(ids):
        others = [j for j, other in enumerate(ids) if j != i and other >= 0]
        alike = [j for j in others if ids[j] == own]
        if own >= 0 and alike:
            scores = {j: rows[i] @ rows[j] / temperature for j in others}
            log_all = torch.stack(list(scores.values())).logsumexp(0)
            costs.append(torch.stack([log_all - scores[j] for j in alike]).mean())
    return torch.stack(costs).mean() if costs else rows.sum() * 0


def view(store: PixelStore, crops: views.Crops, backbone: Any) -> Tensor:
    """Views as the backbone wants them, cut one by one."""
    size, cut = backbone.spec.image_size, []
    for row, top, left, flipped in zip(crops.rows, crops.tops, crops.lefts, crops.flipped, strict=True):
        piece = store.image(int(row))[top : top + size, left : left + size]
        cut.append(torch.from_numpy((piece[:, ::-1] if flipped else piece).copy()).permute(2, 0, 1) / 255)
    mean, std = (torch.tensor(values)[:, None, None] for values in (backbone.spec.mean, backbone.spec.std))
    return (torch.stack(cut) - mean) / std


def costs_of(method: Method, batch: Batch) -> Tensor:
    """Of GCD by the paper's formula; of other methods by their own losses, which have loops as oracles elsewhere."""
    if not isinstance(method, Contrastive):
        return torch.stack([*method.losses(batch).values()]).sum()
    c = method.config
    unsupervised = contrast(batch.outputs, batch.images.tolist(), c.temperature)
    supervised = contrast(batch.outputs, batch.labels.tolist(), c.supervised_temperature)
    return (1 - c.supervised_weight) * unsupervised + c.supervised_weight * supervised


def rates_of(optimizer: torch.optim.Optimizer, config: Training) -> LRScheduler:
    """Torch's own schedules."""
    before = round(config.warmup * config.epochs)
    if config.schedule == "step":
        at = math.ceil(config.drop_at * config.epochs) - before
        then: LRScheduler = MultiStepLR(optimizer, [at], gamma=config.final_lr)
    else:
        then = CosineAnnealingLR(optimizer, config.epochs - before, config.lr * config.final_lr)
    if not before:
        return then
    return SequentialLR(optimizer, [LinearLR(optimizer, config.final_lr, total_iters=before), then], [before])


def by_hand(method: Method, data: tuple[ImageSet, PixelStore], config: Training) -> list[float]:
    """Train in plain PyTorch; the mean loss of each epoch."""
    (images, store), backbone = data, method.backbone
    learned = np.array(
        sorted(np.flatnonzero(~images.validation).tolist(), key=lambda row: (store.digests[row], images.labels[row]))
    )
    keys, size = views.content_keys(store), backbone.spec.image_size
    contents = {digest: number for number, digest in enumerate(store.digests)}  # one image twice is one image
    optimizer = torch.optim.SGD(
        [value for value in method.parameters() if value.requires_grad],
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    rates = rates_of(optimizer, config)
    means = []
    for epoch in range(config.epochs):
        drawn = draw(
            learned,
            np.asarray(images.labels[learned] >= 0),
            batch_size=config.batch_size,
            balanced=config.balanced,
            seed=config.seed,
            epoch=epoch,
        )
        costs = []
        for rows, times in zip(drawn.rows, drawn.times, strict=True):
            if isinstance(config.views, int):
                numbers = views.pair(keys[rows], times, views=config.views, seed=config.seed, epoch=epoch)
                crops = [
                    views.random(store, keys, rows, number, size=size, flip=config.flip, seed=config.seed, epoch=0)
                    for number in numbers
                ]
            else:
                crops = [
                    views.random(store, keys, rows, number, size=size, flip=config.flip, seed=config.seed, epoch=epoch)
                    for number in (2 * times, 2 * times + 1)
                ]
            with torch.no_grad():
                inputs = torch.cat([backbone.trunk(view(store, crop, backbone)) for crop in crops])
            if isinstance(config.views, int):
                inputs = inputs.bfloat16()
            outputs = method(inputs)
            ids, labels = [contents[digest] for digest in store.digests[rows]] * 2, images.labels[rows].tolist() * 2
            progress = torch.tensor(epoch / config.epochs)
            batch = Batch(outputs, torch.tensor(ids), torch.tensor(labels), progress)
            loss = costs_of(method, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                method.settle(batch)
            costs.append(float(loss.detach()))
        rates.step()
        means.append(sum(costs) / len(costs))
    return means


def distance(one: dict[str, Tensor], other: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """How far apart two runs ended, as a part of how far they went; the worst of all weights."""
    assert one.keys() == other.keys() == start.keys()
    parts = [
        float((one[name] - value).double().norm() / (value - start[name]).double().norm())
        for name, value in other.items()
        if not torch.equal(value, start[name])
    ]
    assert len(parts) > 5
    assert all(torch.equal(one[name], value) for name, value in other.items() if torch.equal(value, start[name]))
    return max(parts)


def assert_alike(got: Method, wanted: Method, start: Method) -> None:
    assert distance(weights(got), weights(wanted), weights(start)) < CLOSE


CLOSE = 1e-4


SETS: dict[str, tuple[list[str | None], tuple[int, ...]]] = {
    "some labelled": (LABELS, ()),
    "no labelled image": ([None] * 9, ()),
    "all labelled": (["a", "b", "c"] * 3, ()),
    "fewer than a batch": (["a", None, None], ()),
    "one image": ([None], ()),
    "one labelled image": (["a"], ()),
}


@pytest.mark.parametrize("which", SETS)
@pytest.mark.parametrize("make", [a_convnet, a_transformer])
def test_ten_plain_lines_give_the_same_weights(tmp_path: Path, which: str, make: Callable[[], Contrastive]) -> None:
    """With new views, and for the transformer also with kept ones."""
    labels, held_out = SETS[which]
    for n_views in (None,) if make is a_convnet else (None, 3):
        method, other = make(), make()
        data = named(labels, held_out), small_store(len(labels), method.backbone.spec.image_size)
        config = settings(views=n_views, epochs=2, lr=0.2, momentum=0.8, weight_decay=0.01, seed=5)
        folder = tmp_path / str(n_views)
        result = fit(method, data, config, folder=folder)
        losses = by_hand(other, data, config)
        assert_alike(method, other, make())
        told = [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()[1:]]
        assert told == pytest.approx(losses, rel=1e-4, abs=1e-6)
        assert sum(result.losses.values()) == pytest.approx(losses[-1], rel=1e-4, abs=1e-6)
        assert result.views == n_views


@pytest.mark.parametrize(
    "change",
    [
        {"flip": False},
        {"balanced": False},
        {"momentum": 0.0},
        {"batch_size": 7},
        {"final_lr": 0.5},
        {"seed": 2**32 - 1},
        {"chunks": 3},
        {"epochs": 1},
        {"epochs": 4, "schedule": "step", "drop_at": 0.5, "final_lr": 0.1},
        {"epochs": 4, "warmup": 0.5, "final_lr": 0.1},
    ],
)
def test_every_setting_is_what_it_says(change: dict[str, Any]) -> None:
    method, other, unchanged = a_convnet(), a_convnet(), a_convnet()
    data = named(LABELS), a_set()[1]
    base = {"epochs": 2, "lr": 0.2, "weight_decay": 0.01}
    fit(method, data, settings(**{**base, **change}))
    by_hand(other, data, settings(**{**base, **change}))
    assert_alike(method, other, a_convnet())
    fit(unchanged, data, settings(**base))
    difference = distance(weights(method), weights(unchanged), weights(a_convnet()))
    assert difference < CLOSE if "chunks" in change else difference > 0.01


def test_one_image_twice_is_one_image() -> None:
    """Its views are alike, from whichever copy they come, and not pushed apart."""
    pixels = noise(4, SMALL)
    data = named(["a", None, None, None, None, None]), store_of([*pixels, pixels[1], pixels[0]])
    method, other = a_convnet(), a_convnet()
    config = settings(epochs=4, batch_size=6, balanced=False)
    fit(method, data, config)
    by_hand(other, data, config)
    assert_alike(method, other, a_convnet())


# Every method

OF_METHODS = {"live": (a_convnet, None), "kept": (a_transformer, 3)}


def of_kind(name: str, where: str = "live", labels: Sequence[str | None] = LABELS, **options: Any) -> Any:
    """A method for images with these labels, of whose classes two are new; batches of 4 are too small for UNO."""
    known = range(len({label for label in labels if label is not None}))
    return small(name, OF_METHODS[where][0]().backbone, k=len(known) + 2, known=known, batch_size=4, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("where", OF_METHODS)
@pytest.mark.parametrize("which", ["some labelled", "no labelled image", "all labelled", "one image"])
def test_ten_plain_lines_give_the_same_weights_and_buffers_of_every_method(name: str, where: str, which: str) -> None:
    """With new views, and with kept ones."""
    labels = SETS[which][0]
    methods = [of_kind(name, where, labels) for _ in range(3)]
    data = named(labels), small_store(len(labels), methods[0].backbone.spec.image_size)
    config = settings(views=OF_METHODS[where][1], epochs=3, lr=0.02, weight_decay=0.01, seed=5)
    result = fit(methods[0], data, config)
    losses = by_hand(methods[1], data, config)
    assert_alike(*methods)
    assert sum(result.losses.values()) == pytest.approx(losses[-1], rel=1e-4, abs=1e-6)
    assert result.views == config.views
    if name == "uno":
        assert methods[0].queue.shape == (4 * methods[0].sizes[0], methods[0].sizes[0])
        assert (int(methods[0].filled) > 0) == (which != "all labelled")
        torch.testing.assert_close(methods[0].heads[0].weight.norm(dim=1), torch.ones(methods[0].sizes[0]))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_views_live_or_kept_are_the_same_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let kept views be drawn in the order of live ones, and live ones be rounded as kept ones are."""
    stream = Live.stream

    def rounded(self: Live, *values: Any) -> Iterator[Tensor]:
        return (inputs.bfloat16() for inputs in stream(self, *values))

    def in_order(_: Any, times: Any, **__: Any) -> Any:
        assert times.max() < 8
        return np.stack([2 * times, 2 * times + 1])

    monkeypatch.setattr(Live, "stream", rounded)
    monkeypatch.setattr(views, "pair", in_order)
    live, kept, start = (of_kind(name, "kept") for _ in range(3))
    data = named(LABELS), a_set(LARGE)[1]
    for method, n_views in ((live, None), (kept, 16)):
        assert fit(method, data, settings(epochs=1, lr=0.02, views=n_views)).views == n_views
    assert_alike(kept, live, start)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunks", [2, 4])
def test_every_method_learns_the_same_in_chunks(name: str, chunks: int) -> None:
    one, other = of_kind(name), of_kind(name)
    for method, number in ((one, 1), (other, chunks)):
        fit(method, (named(LABELS), a_set()[1]), settings(epochs=3, lr=0.02, chunks=number))
    assert_alike(other, one, of_kind(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [1, 6, 12])
def test_after_an_error_weights_and_buffers_are_as_they_were(name: str, at: int) -> None:
    method, seen = of_kind(name), []

    def stop(_: str, done: int, __: int) -> None:
        if done == at:
            seen.append(weights(method))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(method, a_set(), settings(epochs=3), on_progress=stop)
    start = weights(of_kind(name))
    assert same(weights(method), start)
    changed = {key for key, value in seen[0].items() if not torch.equal(value, start[key])}
    assert ({"queue", "filled"} <= changed) == (name == "uno")


def test_the_selected_epoch_has_its_own_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    method, seen = of_kind("uno", losses=Swaps(heads=2)), []

    def accuracy(_: Validation) -> float:
        seen.append(weights(method))
        return [0.1, 0.9, 0.2][len(seen) - 1]

    monkeypatch.setattr(Validation, "accuracy", accuracy)
    assert fit(method, a_set(), settings(epochs=3)).selected == 1
    assert [same(weights(method), each) for each in seen] == [False, True, False]
    assert not torch.equal(seen[1]["queue"], seen[2]["queue"])
    assert not torch.equal(seen[1]["mean_losses"], seen[2]["mean_losses"])


def test_steps_are_told_how_much_of_training_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """And first views come first: the two halves of a batch are of the same images."""
    seen: list[float] = []
    call = Step.__call__

    def spied(self: Step, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor) -> Tensor:
        seen.append(float(progress))
        assert progress.shape == ()
        for values in (images, labels):
            assert torch.equal(*values.chunk(2))
        return call(self, inputs, images, labels, progress)

    monkeypatch.setattr(Step, "__call__", spied)
    fit(a_convnet(), a_set(), settings(epochs=5))
    assert seen == pytest.approx([epoch / 5 for epoch in range(5) for _ in range(4)])


# The schedule


def test_the_schedule_is_a_cosine_by_hand() -> None:
    config = Training(epochs=4, lr=0.1)
    half = math.sqrt(0.5)
    wanted = [0.1, 1e-4 + 0.0999 * (1 + half) / 2, 1e-4 + 0.0999 / 2, 1e-4 + 0.0999 * (1 - half) / 2]
    assert [schedule(config, epoch) for epoch in range(4)] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("epochs", [1, 2, 3, 200])
def test_the_schedule_starts_at_lr_falls_and_ends_above_a_thousandth(epochs: int) -> None:
    rates = [schedule(Training(epochs=epochs, lr=0.3), epoch) for epoch in range(epochs)]
    assert rates[0] == 0.3
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == epochs
    assert rates[-1] > 0.3e-3
    assert schedule(Training(epochs=epochs, lr=0.3), epochs) == pytest.approx(0.3e-3)  # where it would go


def test_the_end_of_the_schedule_can_be_chosen() -> None:
    assert [schedule(Training(epochs=3, lr=0.1, final_lr=1), epoch) for epoch in range(3)] == pytest.approx([0.1] * 3)
    assert schedule(Training(epochs=2, lr=0.1, final_lr=0), 1) == pytest.approx(0.05)
    assert schedule(Training(epochs=0), 0) == 0.1


def rates(**options: Any) -> list[float]:
    config = Training(lr=0.1, **options)
    return [schedule(config, epoch) for epoch in range(config.epochs)]


def test_a_step_leaves_a_share_of_lr_from_its_epoch_on() -> None:
    """RankStats: a tenth from epoch 170 of 200 on."""
    assert rates(epochs=200, schedule="step", final_lr=0.1, drop_at=0.85) == pytest.approx([0.1] * 170 + [0.01] * 30)
    assert TRAININGS["rankstats"].drop_at == 0.85
    assert rates(epochs=4, schedule="step", final_lr=0.5, drop_at=0.5) == [0.1, 0.1, 0.05, 0.05]
    assert rates(epochs=4, schedule="step", final_lr=0.5, drop_at=0.51) == [0.1, 0.1, 0.1, 0.05]
    assert rates(epochs=3, schedule="step", final_lr=0.5, drop_at=0.0) == [0.05] * 3
    assert rates(epochs=3, schedule="step", final_lr=0.5, drop_at=1.0) == [0.1] * 3
    assert rates(epochs=1, schedule="step", final_lr=0.5, drop_at=0.85) == [0.1]


@pytest.mark.parametrize("epochs", [25, 50, 100, 200, 300])
def test_a_step_is_at_its_epoch_whatever_rounding_says(epochs: int) -> None:
    """0.55 · 100 is a little more than 55 in floating point, and 0.29 · 100 a little less than 29."""
    for percent in range(1, 100):
        if percent * epochs % 100 == 0:
            at = percent * epochs // 100
            got = rates(epochs=epochs, schedule="step", final_lr=0.1, drop_at=percent / 100)
            assert got == pytest.approx([0.1] * at + [0.01] * (epochs - at)), percent


def test_a_warm_up_rises_in_a_line_and_is_followed_by_the_schedule() -> None:
    """From a tenth of lr over 4 of 12 epochs, by 0.0225 each; then half a wave over 8."""
    got = rates(epochs=12, warmup=1 / 3, final_lr=0.1)
    assert got[:5] == pytest.approx([0.01, 0.0325, 0.055, 0.0775, 0.1])
    assert got[8] == pytest.approx((0.1 + 0.01) / 2)
    assert got[4:] == pytest.approx([schedule(Training(lr=0.1, epochs=8, final_lr=0.1), epoch) for epoch in range(8)])
    step = rates(epochs=12, warmup=1 / 3, final_lr=0.1, schedule="step", drop_at=0.75)
    assert step == pytest.approx([0.01, 0.0325, 0.055, 0.0775, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])


def test_the_warm_up_of_uno_is_ten_epochs_of_two_hundred() -> None:
    got = rates(epochs=200, warmup=TRAININGS["uno"].warmup, final_lr=TRAININGS["uno"].final_lr)
    assert got[0] == pytest.approx(0.1 * 2.5e-3)
    assert got[5] == pytest.approx((0.1 + 0.1 * 2.5e-3) / 2)
    assert got[10] == max(got) == pytest.approx(0.1)
    assert got[9] < got[10] > got[11]
    assert got[105] == pytest.approx((0.1 + 0.1 * 2.5e-3) / 2)
    assert 0.1 * 2.5e-3 < got[199] < 0.0003


def test_all_may_be_warm_up() -> None:
    assert rates(epochs=4, warmup=1.0, final_lr=0.0) == pytest.approx([0.0, 0.025, 0.05, 0.075])
    assert rates(epochs=1, warmup=0.5, final_lr=0.1) == pytest.approx([0.01])


@pytest.mark.parametrize("change", [{}, {"schedule": "step", "drop_at": 0.5}, {"warmup": 0.5}])
def test_epochs_are_trained_at_the_rate_of_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    seen: list[float] = []
    call = Step.__call__

    def spied(self: Step, *values: Any) -> Tensor:
        seen.extend(group["lr"] for group in self.optimizer.param_groups)
        return call(self, *values)

    monkeypatch.setattr(Step, "__call__", spied)
    config = settings(epochs=4, final_lr=0.1, **change)
    fit(a_convnet(), a_set(), config, folder=tmp_path)
    wanted = [schedule(config, epoch) for epoch in range(4)]
    assert seen == [rate for rate in wanted for _ in range(4)]
    told = [json.loads(line)["lr"] for line in (tmp_path / "log.jsonl").read_text().splitlines()[1:]]
    assert told == wanted
    assert len(set(wanted)) > 1


# Selection


def scripted(monkeypatch: pytest.MonkeyPatch, values: Sequence[float]) -> list[dict[str, Tensor]]:
    """Let validation say these numbers; the weights that each was said of."""
    seen: list[dict[str, Tensor]] = []

    def accuracy(self: Validation) -> float:
        seen.append(weights(self.trunk.backbone))
        return values[len(seen) - 1]

    monkeypatch.setattr(Validation, "accuracy", accuracy)
    return seen


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.1, 0.8, 0.3, 0.2], 1),
        ([0.9, 0.8, 0.3, 0.2], 0),
        ([0.1, 0.8, 0.3, 0.9], 3),
        ([0.1, 0.8, 0.8, 0.2], 2),  # of equals the later one
        ([0.0, 0.0, 0.0, 0.0], 3),
    ],
)
def test_the_best_epoch_on_validation_images_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], best: int
) -> None:
    seen = scripted(monkeypatch, values)
    method = a_convnet()
    result = fit(method, a_set(), settings(epochs=4), folder=tmp_path)
    assert (result.selected, result.validation, result.epochs) == (best, values[best], 4)
    assert len(seen) == 4
    assert [same(weights(method.backbone), state) for state in seen] == [epoch == best for epoch in range(4)]
    assert same(weights(load_backbone(str(tmp_path / "model.json"))), seen[best])
    told = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()[1:]]
    assert [line["validation_accuracy"] for line in told] == values


@pytest.mark.parametrize(("every", "measured"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3, 4]), (3, [2, 4]), (9, [4])])
def test_validation_may_be_rarer_but_never_misses_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, measured: list[int]
) -> None:
    scripted(monkeypatch, [0.5] * 5)
    result = fit(a_convnet(), a_set(), settings(epochs=5, validate_every=every), folder=tmp_path)
    told = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()[1:]]
    assert [line["epoch"] for line in told if "validation_accuracy" in line] == measured
    assert result.selected == 4


def test_training_goes_on_from_the_last_weights_and_not_from_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = scripted(monkeypatch, [0.9, 0.1, 0.1])
    fit(a_convnet(), a_set(), settings(epochs=3))
    other = scripted(monkeypatch, [0.1, 0.2, 0.9])
    fit(a_convnet(), a_set(), settings(epochs=3))
    assert all(same(one, two) for one, two in zip(seen, other, strict=True))


def test_a_backbone_that_learns_is_selected_by_its_real_accuracy(tmp_path: Path) -> None:
    method = a_convnet()
    result = fit(method, a_set(), settings(epochs=5), folder=tmp_path)
    told = [json.loads(line)["validation_accuracy"] for line in (tmp_path / "log.jsonl").read_text().splitlines()[1:]]
    assert len(told) == 5
    assert result.validation == max(told)
    assert result.selected == max(epoch for epoch, value in enumerate(told) if value == max(told))
    from sortal.trunk import Frozen

    trunk = Frozen(method.backbone, Compute(torch.device("cpu")))
    assert Validation(trunk, *a_set(), keep=False).accuracy() == result.validation


def test_without_validation_images_the_last_epoch_is_kept(tmp_path: Path) -> None:
    method, other = a_convnet(), a_convnet()
    data = named(LABELS), a_set()[1]
    result = fit(method, data, settings(epochs=3), folder=tmp_path)
    by_hand(other, data, settings(epochs=3))
    assert (result.selected, result.validation) == (2, None)
    assert_alike(method, other, a_convnet())
    assert "validation_accuracy" not in (tmp_path / "log.jsonl").read_text()


@pytest.mark.parametrize("labels", [["a", "a", None, None, None], ["a", "a", "b", None, None]])
def test_validation_images_of_classes_that_are_not_learned_select_nothing(labels: list[str | None]) -> None:
    """No labelled image is there to compare them with, so that the last epoch is kept."""
    method, other = a_convnet(), a_convnet()
    store = small_store(5, SMALL)
    result = fit(method, (named(labels, [0, 1]), store), settings(epochs=3))
    by_hand(other, (named(labels, [0, 1]), store), settings(epochs=3))
    assert (result.selected, result.validation) == (2, None)
    assert_alike(method, other, a_convnet())


def test_validation_images_are_never_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pixels in them, or none of them at all, make no difference to the last weights."""
    ends = []
    for seed in (0, 1):
        scripted(monkeypatch, [0.1, 0.2])
        pixels = noise(len(LABELS), SMALL)
        others = noise(len(LABELS), SMALL, seed=99)
        for row in HELD_OUT:
            pixels[row] = pixels[row] if seed == 0 else others[row]
        method = a_convnet()
        fit(method, (named(LABELS, HELD_OUT), store_of(pixels)), settings())
        ends.append(weights(method))
    kept = [row for row in range(len(LABELS)) if row not in HELD_OUT]
    method = a_convnet()
    fit(method, (named([LABELS[row] for row in kept]), store_of([pixels[row] for row in kept])), settings())
    assert same(ends[0], ends[1])
    assert same(ends[0], weights(method))


@pytest.mark.parametrize("n_views", [None, 3])
def test_validation_images_are_not_drawn(monkeypatch: pytest.MonkeyPatch, n_views: int | None) -> None:
    seen: set[int] = set()
    call = Step.__call__
    data = a_set(LARGE)
    row_of = np.argsort(data[1].digests)  # images are numbered by content

    def spied(self: Step, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor) -> Tensor:
        rows = row_of[images.numpy()]
        seen.update(rows.tolist())
        assert labels.tolist() == data[0].labels[rows].tolist()
        return call(self, inputs, images, labels, progress)

    monkeypatch.setattr(Step, "__call__", spied)
    fit(a_transformer(), data, settings(epochs=6, views=n_views))
    assert seen == set(range(len(LABELS))) - set(HELD_OUT)


# Nothing to learn, order, determinism


def test_no_epochs_leave_the_backbone_as_it_is(tmp_path: Path) -> None:
    method = a_convnet()
    result = fit(method, a_set(), settings(epochs=0), folder=tmp_path)
    assert same(weights(method), weights(a_convnet()))
    assert (result.epochs, result.selected, result.validation, result.losses) == (0, None, None, {})
    assert same(weights(load_backbone(str(tmp_path / "model.json"))), weights(a_convnet().backbone))
    assert fit(a_convnet(), a_set(), settings(epochs=0), folder=tmp_path) == result


@pytest.mark.parametrize("n_views", [None, 3])
def test_the_order_of_rows_does_not_matter(tmp_path: Path, n_views: int | None) -> None:
    images, pixels = a_set()[0], noise(len(LABELS), LARGE)
    order = np.random.default_rng(3).permutation(len(LABELS)).tolist()
    one, other = a_transformer(), a_transformer()
    first = fit(one, (images, store_of(pixels)), settings(views=n_views), folder=tmp_path)
    shuffled = reordered(images, order), store_of([pixels[row] for row in order])
    second = fit(other, shuffled, settings(views=n_views))
    assert same(weights(one), weights(other))
    assert (first.losses, first.selected, first.validation) == (second.losses, second.selected, second.validation)
    assert fit(a_transformer(), shuffled, settings(views=n_views), folder=tmp_path) == first  # it is the same run


def test_the_order_of_copies_with_different_labels_does_not_matter(tmp_path: Path) -> None:
    """A labelled image is there again without its label, and held out under it."""
    pixels = noise(6, SMALL)
    pixels = [*pixels, pixels[0], pixels[1], pixels[2]]
    images = named(["a", "b", None, "b", None, "a", None, "b", "a"], held_out=[7])
    order = [8, 7, 6, 5, 4, 3, 2, 1, 0]
    one, other = a_convnet(), a_convnet()
    result = fit(one, (images, store_of(pixels)), settings(epochs=3), folder=tmp_path)
    shuffled = reordered(images, order), store_of([pixels[row] for row in order])
    fit(other, shuffled, settings(epochs=3))
    assert same(weights(one), weights(other))
    assert fit(a_convnet(), shuffled, settings(epochs=3), folder=tmp_path) == result


def test_another_seed_is_another_run() -> None:
    ends = []
    for seed in (0, 0, 1):
        method = a_convnet()
        fit(method, a_set(), settings(seed=seed))
        ends.append(weights(method))
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


def test_frozen_blocks_stay_as_they_are() -> None:
    method = a_transformer()
    fit(method, a_set(LARGE), settings())
    start = weights(a_transformer())
    changed = {name for name, value in weights(method).items() if not torch.equal(value, start[name])}
    assert changed
    assert all(name.startswith(("backbone.net.blocks.5.", "head.")) for name in changed)


def test_torchs_own_random_numbers_are_left_alone() -> None:
    method = a_convnet()
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    fit(method, a_set(), settings())
    assert torch.equal(torch.rand(3), wanted)
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        method = a_convnet()
        fit(method, a_set(), settings())
        ends.append(weights(method))
    assert same(*ends)


# What is told


def test_the_log_begins_with_what_the_run_is(tmp_path: Path) -> None:
    config = settings(views=3)
    fit(a_transformer(), a_set(LARGE), config, folder=tmp_path)
    start = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert start == {
        "event": "start",
        "bf16": False,
        "method": "Contrastive",
        "backbone": {
            "name": "test_vit",
            "image_size": LARGE,
            "shorter_side": 37,
            "width": 64,
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
        },
        "weights": "random weights",
        "trained_blocks": 1,
        "settings": asdict(config),
        "views": 3,
        "images": 22,
        "labelled": 8,
        "unlabelled": 10,
        "validation": 4,
        "device": "cpu",
        "processes": 1,
        "versions": {"sortal": sortal.__version__, "torch": torch.__version__},
    }


def test_the_log_has_a_line_for_every_epoch(tmp_path: Path) -> None:
    config = settings(epochs=3)
    result = fit(a_convnet(), a_set(), config, folder=tmp_path)

    def strict(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=strict) for line in lines][1:]
    names = ["event", "epoch", "lr", "loss", "unsupervised", "supervised", "images_per_second", "validation_accuracy"]
    assert [list(record) for record in records] == [names] * 3
    assert [(record["event"], record["epoch"]) for record in records] == [("epoch", 0), ("epoch", 1), ("epoch", 2)]
    assert [record["lr"] for record in records] == [schedule(config, epoch) for epoch in range(3)]
    for record in records:
        assert record["loss"] == pytest.approx(record["unsupervised"] + record["supervised"], rel=1e-12)
        assert record["images_per_second"] > 0
    assert result.losses == {name: records[-1][name] for name in ("unsupervised", "supervised")}


def test_tensorboard_shows_the_epochs(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    fit(a_convnet(), a_set(), settings(epochs=3), folder=tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()[1:]]
    for tag in ("loss", "lr", "validation_accuracy", "unsupervised", "supervised"):
        points = [(event.step, event.value) for event in events.Scalars(tag)]
        assert points == [(record["epoch"], pytest.approx(record[tag], rel=1e-6)) for record in records]


def test_nothing_fails_where_tensorboard_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, other = a_convnet(), a_convnet()
    fit(method, a_set(), settings(), folder=tmp_path / "with")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    fit(other, a_set(), settings(), folder=tmp_path / "without")
    assert same(weights(method), weights(other))
    assert [(tmp_path / name / "tensorboard").exists() for name in ("with", "without")] == [True, False]


@pytest.mark.parametrize("n_views", [None, 3])
def test_progress_goes_up_to_its_end(n_views: int | None) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    fit(
        a_transformer(),
        a_set(LARGE),
        settings(epochs=3, views=n_views),
        on_progress=lambda what, done, total: seen.setdefault(what, []).append((done, total)),
    )
    assert seen.pop("Learning") == [(step, 12) for step in range(1, 13)]
    tokens = seen.pop("Computing tokens", [])
    assert seen == {}
    if n_views is None:
        assert tokens == []
    else:
        assert tokens == sorted(tokens)
        assert tokens[-1] == (54, 54)


@pytest.mark.parametrize(
    ("budget", "where"),
    [
        (Budget(memory=10**9), "are kept in memory"),
        (IN_A_FILE, "are kept in a file"),
        (Budget(memory=0), "do not fit the budget: views are computed in every epoch"),
    ],
)
def test_what_tokens_cost_is_said_before_they_are_computed(tmp_path: Path, budget: Budget, where: str) -> None:
    told: list[str] = []
    fit(
        a_transformer(),
        a_set(LARGE),
        settings(epochs=1, views=3),
        folder=tmp_path,
        budget=budget,
        on_note=told.append,
        on_progress=lambda what, *_: told.append(what),
    )
    size = f"{18 * 3 * 5 * 64 * 2:,} bytes"  # images, views, tokens of (2 × 2 patches and a class), width, bfloat16
    assert told[0] == f"3 views of 18 images: {size} of tokens {where}."
    assert set(told[1:]) == ({"Learning"} if "not fit" in where else {"Learning", "Computing tokens"})


def test_a_note_is_given_only_where_tokens_could_be_kept() -> None:
    told: list[str] = []
    fit(a_convnet(), a_set(), settings(views="auto"), on_note=told.append)
    fit(a_transformer(), a_set(LARGE), settings(views=None), on_note=told.append)
    assert told == []


def test_the_place_of_tokens_makes_no_difference(tmp_path: Path) -> None:
    ends = []
    for number, budget in enumerate((Budget(memory=10**9), IN_A_FILE)):
        method, file = a_transformer(), tmp_path / str(number) / "tokens.bf16"
        there: list[bool] = []
        fit(
            method,
            a_set(LARGE),
            settings(views=3),
            folder=tmp_path / str(number),
            budget=budget,
            on_progress=lambda *_: there.append(file.exists()),  # noqa: B023 - called in this round only
        )
        assert set(there) == {budget is IN_A_FILE}
        assert not file.exists()  # once the run is done
        ends.append(weights(method))
    assert same(*ends)


def test_views_are_computed_anew_where_tokens_do_not_fit(tmp_path: Path) -> None:
    method, live = a_transformer(), a_transformer()
    tight = Budget(memory=18 * 3 * 5 * 64 * 2 - 1, disk=18 * 3 * 5 * 64 * 2 - 1)
    result = fit(method, a_set(LARGE), settings(views=3), budget=tight, folder=tmp_path)
    fit(live, a_set(LARGE), settings(views=None))
    assert result.views is None
    assert same(weights(method), weights(live))
    assert not (tmp_path / "tokens.bf16").exists()
    just = Budget(memory=18 * 3 * 5 * 64 * 2)
    assert fit(a_transformer(), a_set(LARGE), settings(views=3), budget=just).views == 3


def test_views_are_kept_by_default_where_there_is_a_trunk() -> None:
    method, eight = a_transformer(), a_transformer()
    assert fit(method, a_set(LARGE), settings(views="auto")).views == 8
    assert fit(eight, a_set(LARGE), settings(views=8)).views == 8
    assert same(weights(method), weights(eight))
    assert fit(a_convnet(), a_set(), settings(views="auto")).views is None


def test_speeds_are_of_the_images_that_were_seen() -> None:
    result = fit(a_convnet(), a_set(), settings(epochs=3))
    assert result.seconds > 0
    assert result.images_per_second == pytest.approx(3 * 4 * 4 / result.seconds)


# What is refused


def test_a_loss_that_is_no_number_any_more_ends_the_run(tmp_path: Path) -> None:
    """Weights that are lost are not selected, and no log holds what is not JSON."""
    with pytest.raises(SortalError, match=r"The loss must be a number, got .*nan.* Use a lower lr"):
        fit(a_convnet(), a_set(), settings(epochs=4, lr=1e30), folder=tmp_path)
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()
    assert not (tmp_path / "model.safetensors").exists()


def test_a_store_of_other_images_is_refused() -> None:
    with pytest.raises(InputError, match="must hold the images row by row: 22 images, 21 rows"):
        fit(a_convnet(), (a_set()[0], small_store(21, SMALL)), settings())


def test_images_that_were_not_read_are_named() -> None:
    images, store = a_set()
    heights = store.heights.copy()
    heights[3] = 0
    broken = PixelStore(
        store._maps, store._segment, store._offset, heights, store.widths, (Quarantined("3.png", "truncated", "torn"),)
    )
    with pytest.raises(InputError, match=r"1 were not: '3\.png'\. Leave them out"):
        fit(a_convnet(), (images, broken), settings())


def test_images_that_are_too_small_are_refused() -> None:
    pixels = noise(len(LABELS), SMALL)
    pixels[5] = pixels[5][:7]
    with pytest.raises(InputError, match=r"at least 8 × 8 .* 1 are not, the first in row 5 \(7 × "):
        fit(a_convnet(), (a_set()[0], store_of(pixels)), settings())


def test_a_backbone_that_is_all_frozen_is_refused() -> None:
    method = a_convnet()
    method.backbone.requires_grad_(False)  # with a head that could be trained, which would be for nothing
    with pytest.raises(InputError, match="all of the backbone is frozen"):
        fit(method, a_set(), settings())


def test_there_must_be_an_image_to_learn_from() -> None:
    with pytest.raises(InputError, match="got none outside validation"):
        fit(a_convnet(), (named(["a"] * 3, range(3)), small_store(3, SMALL)), settings())


def test_views_cannot_be_kept_where_there_is_no_trunk() -> None:
    with pytest.raises(InputError, match="views must be None or 'auto' where all of the backbone is trained, got 4"):
        fit(a_convnet(), a_set(), settings(views=4))


@pytest.mark.parametrize("data", [a_set(), (named([]), None)])
def test_nothing_is_written_where_something_is_refused(tmp_path: Path, data: Any) -> None:
    images, store = data
    with pytest.raises(InputError):
        fit(a_convnet(), (images, store or a_set()[1]), settings(views=4), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Several processes


def in_this_place(rank: int) -> None:
    """As torchrun sets it; the processes have met already."""
    os.environ.update(
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
    )


class Tight(Contrastive):
    """A method for which memory is always too small."""

    def forward(self, inputs: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")


class TightInOne(Contrastive):
    """A method for which memory is too small in the second process alone, for more than four views."""

    room = 4

    def forward(self, inputs: Tensor) -> Tensor:
        if os.environ.get("RANK") == "1" and len(inputs) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(inputs)


class TooTightInOne(TightInOne):
    room = 0


STEP_BATCH = 8


def step_batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, STEP_BATCH, 3, SMALL, SMALL, generator=generator)
    return inputs, torch.arange(STEP_BATCH), torch.arange(STEP_BATCH) % 3 - 1


def one_step(fabric: Any, chunks: int, part: slice, kind: type[Contrastive] = Contrastive) -> dict[str, Any]:
    """The update of one step with a learning rate of 1, which is the gradient, and the losses."""
    method = a_convnet()
    method.__class__ = kind
    inputs, images, labels = step_batch()
    step = Step(fabric, method, Compute(torch.device("cpu")), torch.optim.SGD(method.parameters(), lr=1.0), chunks)
    beside = images[part].repeat(2), labels[part].repeat(2), torch.tensor(0.0)
    terms = step(inputs[:, part].flatten(0, 1), *beside)
    start = weights(a_convnet())
    found = {"terms": terms, **{name: start[name] - value for name, value in weights(method).items()}}
    return {"chunks": step.chunks, "gradients": found}


TOGETHER: dict[str, dict[str, Any]] = {
    "live": {"make": "convnet", "config": {"epochs": 3}},
    "kept": {"make": "transformer", "config": {"epochs": 3, "views": 3}},
    "in chunks": {"make": "convnet", "config": {"epochs": 2, "chunks": 2}},
}
BROKEN_AT = 6


def together(name: str, folder: Path | None, **options: Any) -> tuple[Trained, dict[str, Tensor]]:
    scenario = TOGETHER[name]
    method = a_convnet() if scenario["make"] == "convnet" else a_transformer()
    data = a_set(method.backbone.spec.image_size)
    result = fit(method, data, settings(**scenario["config"]), folder=folder, **options)
    return result, weights(method)


def learned(name: str, **options: Any) -> tuple[Trained, dict[str, Tensor]]:
    """A method, trained without validation images; the queue of UNO overflows."""
    method = of_kind(name, losses=Swaps(heads=2) if name == "uno" else None)
    result = fit(method, (named(LABELS), a_set()[1]), settings(epochs=3, lr=0.02), **options)
    return result, weights(method)


def work(rank: int, folder: Path) -> None:
    """One of two processes; writes what it found."""
    in_this_place(rank)
    fabric = launch("cpu")
    found: dict[str, Any] = {"place": (fabric.global_rank, fabric.world_size)}
    half = slice(rank * STEP_BATCH // 2, (rank + 1) * STEP_BATCH // 2)
    for chunks in (1, 2, 3):
        found[f"step in {chunks}"] = one_step(fabric, chunks, half)
    found["step in one that is tight"] = one_step(fabric, 1, half, TightInOne)
    for name in TOGETHER:
        found[name] = together(name, folder / name, fabric=fabric)
    for name in NAMES:
        found[f"method {name}"] = learned(name, fabric=fabric)
    found["again"] = together("live", folder / "live", fabric=fabric)
    found["resumed"] = together("live", folder / "broken", fabric=fabric)
    found["alone"] = together("live", None, fabric=fabric)
    found["in a file"] = together("kept", folder / "in a file", fabric=fabric, budget=IN_A_FILE)
    for name, kind, config in (
        ("uneven", Contrastive, settings(batch_size=5)),
        ("tight", Tight, settings()),
        ("tight in one", TooTightInOne, settings()),  # last, as a process that gives up alone leaves the other waiting
    ):
        try:
            fit(kind(a_convnet().backbone, a_convnet().config), a_set(), config, fabric=fabric)
        except (SortalError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    torch.save(found, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What each of two processes found; they go on with a run that one process began."""
    folder = tmp_path_factory.mktemp("both")

    def stop(_: str, done: int, __: int) -> None:
        if done == BROKEN_AT:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together("live", folder / "broken", on_progress=stop, checkpoint_every=0.0)
    run_two(work, folder)
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


Both = tuple[Path, list[dict[str, Any]]]


def test_two_processes_know_of_each_other(both: Both) -> None:
    assert [found["place"] for found in both[1]] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(("how", "chunks"), [("1", 1), ("2", 2), ("3", 3), ("one that is tight", 2)])
def test_a_step_of_two_processes_has_the_gradients_of_one(both: Both, how: str, chunks: int) -> None:
    """Also where memory is too small for the whole in one of them, so that both cut their parts."""
    wanted = one_step(launch("cpu"), 1, slice(None))["gradients"]
    assert float(wanted["backbone.net.0.0.weight"].norm()) > 1e-4
    for found in both[1]:
        got = found[f"step in {how}"]["gradients"]
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            assert float((got[name] - value).norm()) <= 1e-4 * float(value.norm()), name
        assert found[f"step in {how}"]["chunks"] == chunks


@pytest.mark.parametrize("name", TOGETHER)
def test_two_processes_learn_what_one_learns(both: Both, name: str) -> None:
    result, wanted = together(name, None)
    start = weights(a_convnet() if TOGETHER[name]["make"] == "convnet" else a_transformer())
    (first, ours), (_, theirs) = (found[name] for found in both[1])
    assert same(ours, theirs)
    assert distance(ours, wanted, start) < CLOSE
    assert (first.selected, first.validation, first.views) == (result.selected, result.validation, result.views)
    assert first.losses == pytest.approx(result.losses, rel=1e-4)
    log = [json.loads(line) for line in (both[0] / name / "log.jsonl").read_text().splitlines()]
    assert log[0]["processes"] == 2
    assert [line["epoch"] for line in log[1:]] == list(range(TOGETHER[name]["config"]["epochs"]))
    saved = weights(load_backbone(str(both[0] / name / "model.json")))
    assert same({f"backbone.{key}": value for key, value in saved.items()}, {key: ours[key] for key in _of_net(ours)})


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_learn_what_one_learns_by_every_method(both: Both, name: str) -> None:
    """Weights and buffers: the views of both are in UNO's queue, in the same order."""
    result, wanted = learned(name)
    (first, ours), (_, theirs) = (found[f"method {name}"] for found in both[1])
    assert same(ours, theirs)
    start = weights(of_kind(name, losses=Swaps(heads=2) if name == "uno" else None))
    assert distance(ours, wanted, start) < CLOSE
    assert first.losses == pytest.approx(result.losses, rel=1e-4)
    if name == "uno":
        assert ours["filled"] == len(ours["queue"]) == 16


def _of_net(state: dict[str, Tensor]) -> list[str]:
    return [name for name in state if name.startswith("backbone.")]


@pytest.mark.parametrize("name", [*TOGETHER, "again", "resumed", "in a file", "alone"])
def test_all_processes_are_told_the_same(both: Both, name: str) -> None:
    told = [{**asdict(found[name][0]), "seconds": 0, "images_per_second": 0} for found in both[1]]
    assert told[0] == told[1]
    assert told[0]["validation"] is not None


def test_a_finished_run_of_two_processes_returns_at_once(both: Both) -> None:
    for found in both[1]:
        assert found["again"][0].losses == found["live"][0].losses
        assert same(found["again"][1], found["live"][1])


def test_two_processes_go_on_with_a_run_that_one_began(both: Both) -> None:
    _, wanted = together("live", None)
    for found in both[1]:
        assert distance(found["resumed"][1], wanted, weights(a_convnet())) < CLOSE
    log = [json.loads(line) for line in (both[0] / "broken" / "log.jsonl").read_text().splitlines()]
    assert log[0]["processes"] == 1  # where it began
    assert [line["epoch"] for line in log[1:]] == [0, 1, 2]


def test_two_processes_have_no_use_for_a_file_of_tokens(both: Both) -> None:
    assert [found["in a file"][0].views for found in both[1]] == [None, None]
    live = a_transformer()
    fit(live, a_set(LARGE), settings(epochs=3))
    for found in both[1]:
        assert distance(found["in a file"][1], weights(live), weights(a_transformer())) < CLOSE


def test_a_batch_must_be_shared_out_evenly(both: Both) -> None:
    for found in both[1]:
        assert found["uneven"] == "InputError: batch_size must be a multiple of the processes, 2, got 5."


@pytest.mark.parametrize("where", ["tight", "tight in one"])
def test_memory_that_is_too_small_for_a_row_in_any_process_ends_the_run_in_all(both: Both, where: str) -> None:
    for found in both[1]:
        assert found[where].startswith("SortalError: Memory ran out")


SCRIPT = """
import json, sys
from dataclasses import asdict
from pathlib import Path
import torch
from tiny_run import a_set, a_transformer, settings, weights, LARGE
from sortal.train import train

torch.set_num_threads(1)
folder, method = Path(sys.argv[1]), a_transformer()
result = train(method, *a_set(LARGE), settings(epochs=3, views=3), folder=folder / "run", device="cpu")
rank = torch.distributed.get_rank()
torch.save({"result": asdict(result), "weights": weights(method)}, folder / f"{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_torchrun_starts_processes_that_learn_together(tmp_path: Path) -> None:
    """A real start, as people do it: kept tokens are shared out, validation is done once, the model saved once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, tmp_path],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    result, wanted = together("kept", None)
    both = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert same(both[0]["weights"], both[1]["weights"])
    assert distance(both[0]["weights"], wanted, weights(a_transformer())) < CLOSE
    assert both[0]["result"]["validation"] == result.validation
    saved = weights(load_backbone(str(tmp_path / "run" / "model.json")))
    assert all(torch.equal(value, both[0]["weights"][f"backbone.{name}"]) for name, value in saved.items())
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in log] == ["start", "epoch", "epoch", "epoch"]
    assert (log[0]["processes"], log[0]["views"]) == (2, 3)


# Who may train where, and with what


def test_two_runs_may_not_train_in_one_folder_at_once(tmp_path: Path) -> None:
    seen: list[str] = []

    def again(*_: object) -> None:
        if not seen:
            with pytest.raises(InputError, match=r"Another process is at work in .* choose another folder\.") as caught:
                fit(a_convnet(), a_set(), settings(), folder=tmp_path)
            seen.append(str(caught.value))

    fit(a_convnet(), a_set(), settings(), folder=tmp_path, on_progress=again)
    assert len(seen) == 1
    fit(a_convnet(), a_set(), settings(), folder=tmp_path)  # afterwards one may


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("no folder")
    with pytest.raises(InputError, match=r"The folder '.*run' cannot be written: .* Choose another\."):
        fit(a_convnet(), a_set(), settings(), folder=tmp_path / "run")


def test_what_is_passed_in_a_wrong_place_is_named() -> None:
    (images, store), method = a_set(), a_convnet()
    wrong: list[tuple[list[Any], str]] = [
        ([method.backbone, images, store], r"method must be a Method, got ConvNet\. Pass Contrastive\(backbone\)\."),
        ([method, "photos", store], r"images must be a ImageSet, got str\. Pass read_images\(\.\.\.\)\."),
        ([method, images, "pixels"], r"store must be a PixelStore, got str\. Pass pack\(images, \.\.\.\)\."),
        ([method, images, store, {"epochs": 1}], r"config must be a Training, got dict\."),
    ]
    for values, message in wrong:
        with pytest.raises(InputError, match=message):
            train(*values)


def test_a_run_that_goes_on_or_is_done_says_so(tmp_path: Path) -> None:
    told: list[str] = []

    def stop(_: str, done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(a_convnet(), a_set(), settings(epochs=3), folder=tmp_path, checkpoint_every=0, on_progress=stop)
    for _ in range(2):
        fit(a_convnet(), a_set(), settings(epochs=3), folder=tmp_path, on_note=told.append)
    assert told == ["Going on in epoch 2.", "Training was done before."]
