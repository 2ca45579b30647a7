"""Training: the weights of a plain loop in PyTorch, whatever the order of rows, the processes and the cache."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from support import tiny_run
from support.processes import run_two
from support.runtimes import CPU
from support.stores import noise, small_store, store_of
from support.tiny_methods import NAMES, TRANSFORMED, double_precision, small
from support.tiny_run import (
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
from sortal.config import Swaps, Training
from sortal.errors import InputError, SortalError
from sortal.images.decoding import Quarantined
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import views
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Batch, draw
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.learning.health import Probe, Validation
from sortal.learning.methods import Contrastive, Method
from sortal.learning.optimiser import Optimiser
from sortal.learning.step import TrainingStep, schedule
from sortal.learning.token_cache import Budget, SharedTokens
from sortal.learning.train import TrainingResult
from sortal.system.device import Compute
from sortal.system.distributed import launch
from sortal.system.files import lock_folder

PLENTY = Budget(memory=10**9)


def fit(method: Method, data: tuple[ImageSet, PixelStore], config: Training, **options: Any) -> TrainingResult:
    return tiny_run.train(method, *data, config, **{"runtime": CPU, "budget": PLENTY, **options})


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# The oracle


def contrast(rows: Tensor, ids: Sequence[int], temperature: float) -> Tensor:
    """Compute the paper's formula, anchor by anchor."""
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
    """Cut views one by one and normalise them in float32, as the backbone does."""
    size, cut = backbone.spec.image_size, []
    mean, std = (np.array(values, np.float32) * 255 for values in (backbone.spec.mean, backbone.spec.std))
    for row, top, left, flipped in zip(crops.rows, crops.tops, crops.lefts, crops.flipped, strict=True):
        piece = store.image(int(row))[top : top + size, left : left + size]
        cut.append(((piece[:, ::-1] if flipped else piece) - mean) / std)
    return torch.from_numpy(np.stack(cut)).permute(0, 3, 1, 2).to(backbone.dtype)


def costs_of(method: Method, batch: Batch) -> Tensor:
    """Compute the loss of GCD by the paper's formula, and that of other methods, tested elsewhere, by themselves."""
    if not isinstance(method, Contrastive):
        return torch.stack([*method.losses(batch).values()]).sum()
    c = method.config
    unsupervised = contrast(batch.outputs, batch.images.tolist(), c.temperature)
    supervised = contrast(batch.outputs, batch.labels.tolist(), c.supervised_temperature)
    return (1 - c.supervised_weight) * unsupervised + c.supervised_weight * supervised


def rates_of(optimizer: torch.optim.Optimizer, config: Training) -> LRScheduler:
    """Make the schedule from those of torch."""
    before = round(config.warmup * config.epochs)
    if config.schedule == "step":
        at = math.ceil(config.drop_at * config.epochs) - before
        then: LRScheduler = MultiStepLR(optimizer, [at], gamma=config.final_lr)
    else:
        then = CosineAnnealingLR(optimizer, config.epochs - before, config.lr * config.final_lr)
    if not before:
        return then
    return SequentialLR(optimizer, [LinearLR(optimizer, config.final_lr, total_iters=before), then], [before])


def clip(method: Method, most: float | None) -> None:
    gradients = [value.grad for value in method.parameters() if value.grad is not None]
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    for gradient in gradients:
        gradient.mul_(1.0 if most is None else min(most / norm, 1.0))


def by_hand(method: Method, data: tuple[ImageSet, PixelStore], config: Training) -> list[float]:
    """Train in plain PyTorch, and return the mean loss of each epoch."""
    (images, store), backbone = data, method.backbone
    learned = np.array(
        sorted(np.flatnonzero(~images.validation).tolist(), key=lambda row: (store.digests[row], images.labels[row]))
    )
    keys, kept = views.content_keys(store), isinstance(config.views, int)
    of_views: Any = {"size": backbone.spec.image_size, "flip": config.flip, "seed": config.seed}
    digests = sorted({*store.digests[learned].tolist()})
    contents = {digest: number for number, digest in enumerate(digests)}  # copies are one image
    first = np.array([min(row for row in learned.tolist() if store.digests[row] == own) for own in digests])
    labels_of = torch.tensor([max(images.labels[learned[store.digests[learned] == own]]) for own in digests])
    centres = views.centre_crops(store, first, size=backbone.spec.image_size)

    def features(forward: Callable[[Tensor], Tensor] = backbone.tail) -> Tensor:
        return nnf.normalize(forward(backbone.trunk(view(store, centres, backbone))), dim=1)

    method.prepare(labels_of)
    trained = [value for value in method.parameters() if value.requires_grad]
    spared = [value.dim() == 1 and not config.decay_biases for value in trained]
    groups: list[dict[str, Any]] = [
        {"params": [value for value, free in zip(trained, spared, strict=True) if not free]},
        {"params": [value for value, free in zip(trained, spared, strict=True) if free], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(
        groups,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    rates = rates_of(optimizer, config)
    means = []
    for epoch in range(config.epochs):
        with torch.no_grad():
            method.start_epoch(epoch, SimpleNamespace(labels=labels_of, features=features))  # type: ignore[arg-type]
        drawn = draw(
            learned,
            np.asarray(images.labels[learned] >= 0),
            batch_size=config.batch_size,
            balanced=config.balanced,
            seed=config.seed,
            epoch=epoch,
        )
        costs: list[float] = []
        for rows, times in zip(drawn.rows, drawn.times, strict=True):
            numbers = np.stack([2 * times, 2 * times + 1])
            if isinstance(config.views, int):
                numbers = views.choose_pairs(keys[rows], times, views=config.views, seed=config.seed, epoch=epoch)
            crops = [
                views.random_crops(store, keys, rows, number, **of_views, epoch=0 if kept else epoch)
                for number in numbers
            ]
            with torch.no_grad():
                inputs = torch.cat([backbone.trunk(view(store, crop, backbone)) for crop in crops])
            ids, labels = [contents[digest] for digest in store.digests[rows]] * 2, images.labels[rows].tolist() * 2
            outputs = method(inputs.bfloat16() if kept else inputs)
            batch = Batch(outputs, torch.tensor(ids), torch.tensor(labels), torch.tensor(epoch / config.epochs))
            loss = costs_of(method, batch)
            optimizer.zero_grad()
            loss.backward()
            clip(method, config.clip)
            rate = optimizer.param_groups[0]["lr"]
            if config.warmup_by == "step" and epoch < config.warmup * config.epochs:
                at = min((epoch + (len(costs) + 1) / len(drawn.rows)) / (config.warmup * config.epochs), 1)
                optimizer.param_groups[0]["lr"] = config.lr * (config.final_lr + (1 - config.final_lr) * at)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = rate
            with torch.no_grad():
                method.after_step(batch)
            costs.append(float(loss.detach()))
        rates.step()
        means.append(sum(costs) / len(costs))
    return means


def distance(one: dict[str, Tensor], other: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """Return the largest distance between two runs of any weight, relative to its change."""
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


# In float64 a thousand operations in a row lose fewer than 7 of 16 digits to their order, even if each amplifies the
# error of the one before. The smallest mistakes below are a million times as large.
CLOSE = 1e-9
MISTAKE = 1e-3

SETS: dict[str, list[str | None]] = {
    "some labelled": LABELS,
    "no labelled image": [None] * 9,
    "all labelled": ["a", "b", "c"] * 3,
    "fewer than a batch": ["a", None, None],
    "one image": [None],
    "one labelled image": ["a"],
}
PLACES: dict[str, tuple[Callable[[], Contrastive], int | None]] = {
    "no trunk": (a_convnet, None),
    "live": (a_transformer, None),
    "kept": (a_transformer, 3),
}


def of_kind(name: str, where: str = "no trunk", labels: Sequence[str | None] = LABELS, **options: Any) -> Any:
    """Make a method for images with these labels and two new classes; batches of 4 are too small for UNO."""
    known = range(len({label for label in labels if label is not None}))
    return small(name, PLACES[where][0]().backbone, k=len(known) + 2, known=known, batch_size=4, **options)


@double_precision()
@pytest.mark.parametrize(
    ("name", "where", "which"),
    [(name, "no trunk", "some labelled") for name in NAMES]
    + [("gcd", "no trunk", which) for which in [*SETS][1:]]
    + [("uno", "no trunk", "no labelled image"), ("uno", "no trunk", "all labelled")]
    + [(name, "kept", "some labelled") for name in ("gcd", "uno", *TRANSFORMED)]
    + [("gcd", "kept", "one image"), ("gcd", "live", "some labelled")],
)
def test_weights_and_buffers_match_a_plain_loop(tmp_path: Path, name: str, where: str, which: str) -> None:
    methods = [of_kind(name, where, SETS[which]) for _ in range(3)]
    data = named(SETS[which]), small_store(len(SETS[which]), methods[0].backbone.spec.image_size)
    config = settings(views=PLACES[where][1], epochs=3, lr=0.02, momentum=0.8, weight_decay=0.01, seed=5)
    result = fit(methods[0], data, config, folder=tmp_path)
    losses = by_hand(methods[1], data, config)
    assert_alike(*methods)
    records = log_of(tmp_path)[1:]
    assert [record["loss"] for record in records] == pytest.approx(losses, rel=CLOSE, abs=CLOSE)
    assert sum(result.losses.values()) == pytest.approx(losses[-1], rel=CLOSE, abs=CLOSE)
    assert (result.views, result.selected, result.validation) == (config.views, 2, None)  # the last is kept
    assert not any("validation_accuracy" in record for record in records)
    if name == "uno":
        k = methods[0].sizes[0]
        assert methods[0].queue.shape == (4 * k, k)
        assert (int(methods[0].filled) > 0) == (which not in ("all labelled", "one labelled image"))
        torch.testing.assert_close(methods[0].heads[0].weight.norm(dim=1), torch.ones(k))


BASE: dict[str, Any] = {"epochs": 2, "lr": 0.02, "weight_decay": 0.01}


@pytest.fixture(scope="module")
def unchanged() -> dict[str, Tensor]:
    """Train with settings that nothing is changed of; return the weights."""
    with double_precision():
        method = a_convnet()
        fit(method, (named(LABELS), a_set()[1]), settings(**BASE))
        return weights(method)


@double_precision()
@pytest.mark.parametrize(
    "change",
    [
        {"flip": False},
        {"balanced": False},
        {"momentum": 0.0},
        {"weight_decay": 0.0},
        {"decay_biases": False},
        {"batch_size": 7},
        {"final_lr": 0.5},
        {"seed": 2**32 - 1},
        {"chunks": 3},
        {"epochs": 1},
        {"epochs": 4, "schedule": "step", "drop_at": 0.5, "final_lr": 0.1},
        {"epochs": 4, "warmup": 0.5, "final_lr": 0.1},
        {"epochs": 4, "warmup": 0.5, "warmup_by": "step", "final_lr": 0.1},
        {"clip": 0.5},
        {"losses": {"supervised_weight": 0.65}},  # λ and 1 − λ the wrong way round
        {"losses": {"temperature": 0.9}},
        {"losses": {"supervised_temperature": 0.08}},
    ],
    ids=str,
)
def test_every_setting_has_its_documented_effect(change: dict[str, Any], unchanged: dict[str, Tensor]) -> None:
    """A setting that is ignored or confused with another makes a difference far above rounding."""
    method, other = a_convnet(), a_convnet()
    data = named(LABELS), a_set()[1]
    config = settings(**{**BASE, **{name: value for name, value in change.items() if name != "losses"}})
    for each in (method, other):
        each.config = replace(each.config, **change.get("losses", {}))
    fit(method, data, config)
    by_hand(other, data, config)
    assert_alike(method, other, a_convnet())
    difference = distance(weights(method), unchanged, weights(a_convnet()))
    assert difference < CLOSE if "chunks" in change else difference > MISTAKE


@double_precision()
@pytest.mark.parametrize(("labels", "held_out"), [("a", []), ("aa", [0, 1]), ("aab", [0, 1])])
def test_copies_are_one_image_and_validation_images_are_not_learned_from(labels: str, held_out: list[int]) -> None:
    """Views of copies are not pushed apart; validation images without a labelled one of their class select nothing."""
    pixels = noise(4, SMALL)
    data = named([*labels, None, None, None, None, None][:6], held_out), store_of([*pixels, pixels[1], pixels[0]])
    method, other, config = a_convnet(), a_convnet(), settings(epochs=4, batch_size=6, balanced=False)
    result = fit(method, data, config)
    by_hand(other, data, config)
    assert_alike(method, other, a_convnet())
    assert (result.selected, result.validation) == (3, None)


# The schedule


def rates(**options: Any) -> list[float]:
    config = Training(lr=0.1, **options)
    return [schedule(config, epoch) for epoch in range(config.epochs)]


def test_the_cosine_schedule_by_hand() -> None:
    half = math.sqrt(0.5)
    wanted = [0.1, 1e-4 + 0.0999 * (1 + half) / 2, 1e-4 + 0.0999 / 2, 1e-4 + 0.0999 * (1 - half) / 2]
    assert rates(epochs=4) == pytest.approx(wanted, rel=1e-12)
    assert schedule(Training(epochs=4, lr=0.1), 4) == pytest.approx(1e-4)  # the limit
    assert rates(epochs=3, final_lr=1) == pytest.approx([0.1] * 3)
    assert rates(epochs=2, final_lr=0) == pytest.approx([0.1, 0.05])
    assert schedule(Training(epochs=0), 0) == 0.1


def test_the_step_schedule_reduces_lr_from_its_epoch_on() -> None:
    for epochs, drop_at, before in ((4, 0.5, 2), (4, 0.51, 3), (3, 0.0, 0), (3, 1.0, 3), (1, 0.85, 1)):
        got = rates(epochs=epochs, schedule="step", final_lr=0.5, drop_at=drop_at)
        assert got == [0.1] * before + [0.05] * (epochs - before)
    for percent in range(1, 100):  # 0.55 · 100 is a little more than 55 in floating point, 0.29 · 100 a little less
        got = rates(epochs=100, schedule="step", final_lr=0.1, drop_at=percent / 100)
        assert got == pytest.approx([0.1] * percent + [0.01] * (100 - percent)), percent


def test_a_warm_up_is_linear_and_followed_by_the_schedule() -> None:
    """From a tenth of lr over 4 of 12 epochs, by 0.0225 each; then half a cosine over 8."""
    got = rates(epochs=12, warmup=1 / 3, final_lr=0.1)
    assert got[:4] == pytest.approx([0.01, 0.0325, 0.055, 0.0775])
    assert got[4:] == pytest.approx(rates(epochs=8, final_lr=0.1))
    step = rates(epochs=12, warmup=1 / 3, final_lr=0.1, schedule="step", drop_at=0.75)
    assert step == pytest.approx([0.01, 0.0325, 0.055, 0.0775, 0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01])
    assert rates(epochs=4, warmup=1.0, final_lr=0.0) == pytest.approx([0.0, 0.025, 0.05, 0.075])
    assert rates(epochs=1, warmup=0.5, final_lr=0.1) == pytest.approx([0.01])


def test_a_warm_up_by_step_rises_after_each_of_four_steps_up_to_lr() -> None:
    for warmup, wanted in ((1 / 3, [0.0325, 0.055, 0.0775, 0.1]), (1 / 6, [0.055, 0.1, 0.1, 0.1])):
        config = Training(lr=0.1, epochs=3, warmup=warmup, warmup_by="step", final_lr=0.1)
        assert [schedule(config, 0, step / 4) for step in range(1, 5)] == pytest.approx(wanted)
        by_epoch = replace(config, warmup_by="epoch")
        for epoch in (1, 2):
            assert {schedule(config, epoch, step / 4) for step in range(1, 5)} == {schedule(by_epoch, epoch)}
    assert schedule(Training(lr=0.1, epochs=2, warmup=1.0, warmup_by="step"), 1, 1.0) == pytest.approx(0.1)


# Selection


def scripted(monkeypatch: pytest.MonkeyPatch, method: Method, values: Sequence[float]) -> list[dict[str, Tensor]]:
    """Let validation return these numbers; list the weights and buffers at each call."""
    seen: list[dict[str, Tensor]] = []

    def accuracy(_: Validation) -> float:
        seen.append(weights(method))
        return values[len(seen) - 1]

    monkeypatch.setattr(Validation, "accuracy", accuracy)
    return seen


def test_the_epoch_with_the_best_validation_accuracy_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its buffers; training itself always continues from the last weights."""
    runs = []
    for values, best in (
        ([0.9, 0.8, 0.3, 0.2], 0),
        ([0.1, 0.8, 0.8, 0.2], 2),  # the later one of equals
        ([0.0, 0.0, 0.0, 0.0], 3),
    ):
        folder, method = tmp_path / str(best), of_kind("uno", losses=Swaps(heads=2))
        seen = scripted(monkeypatch, method, values)
        result = fit(method, a_set(), settings(epochs=4), folder=folder)
        assert (result.selected, result.validation, result.epochs) == (best, values[best], 4)
        assert [same(weights(method), state) for state in seen] == [epoch == best for epoch in range(4)]
        saved = weights(load_backbone(str(folder / "model.json")))
        assert all(torch.equal(value, seen[best][f"backbone.{name}"]) for name, value in saved.items())
        assert [record["validation_accuracy"] for record in log_of(folder)[1:]] == values
        assert not any(torch.equal(seen[0][name], seen[1][name]) for name in ("queue", "mean_losses"))
        runs.append(seen)
    assert all(same(one, other) for run in runs[1:] for one, other in zip(runs[0], run, strict=True))


def test_validation_may_be_rarer_but_includes_the_last_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for every, measured in ((2, [1, 3, 4]), (9, [4])):
        method, folder = a_convnet(), tmp_path / str(every)
        scripted(monkeypatch, method, [0.5] * 5)
        assert fit(method, a_set(), settings(epochs=5, validate_every=every), folder=folder).selected == 4
        assert [record["epoch"] for record in log_of(folder)[1:] if "validation_accuracy" in record] == measured


# Nothing to learn, order, determinism


def test_training_for_no_epochs_changes_nothing(tmp_path: Path) -> None:
    method = a_convnet()
    result = fit(method, a_set(), settings(epochs=0), folder=tmp_path)
    assert same(weights(method), weights(a_convnet()))
    assert (result.epochs, result.selected, result.validation, result.losses) == (0, None, None, {})
    assert same(weights(load_backbone(str(tmp_path / "model.json"))), weights(a_convnet().backbone))
    assert fit(a_convnet(), a_set(), settings(epochs=0), folder=tmp_path) == result


@pytest.mark.parametrize("where", PLACES)
def test_neither_the_order_of_rows_nor_global_random_numbers_matter(tmp_path: Path, where: str) -> None:
    """Nor that of copies: a labelled image appears again unlabelled, and as a validation image."""
    make, n_views = PLACES[where]
    one, other = make(), make()
    pixels = noise(9, one.backbone.spec.image_size)
    pixels += pixels[:3]
    images = named(["a", "b", None, "b", None, "a", None, None, "b", None, "b", "a"], held_out=[8, 10])
    order = np.random.default_rng(3).permutation(12).tolist()
    first = fit(one, (images, store_of(pixels)), settings(views=n_views), folder=tmp_path)
    shuffled = reordered(images, order), store_of([pixels[row] for row in order])
    np.random.seed(3)
    before = torch.manual_seed(3).get_state()
    second = fit(other, shuffled, settings(views=n_views))
    assert torch.equal(torch.get_rng_state(), before)  # none were drawn
    assert same(weights(one), weights(other))
    assert (first.losses, first.selected, first.validation) == (second.losses, second.selected, second.validation)
    assert fit(make(), shuffled, settings(views=n_views), folder=tmp_path) == first  # the same run


# Logs and notes


def test_the_log_describes_the_run_and_every_epoch(tmp_path: Path) -> None:
    """With the accuracy by which the epoch was selected, and the speed."""
    method, config = a_transformer(), settings(views=3, epochs=5, warmup=0.4)
    result = fit(method, a_set(LARGE), config, folder=tmp_path)
    start, *records = log_of(tmp_path)
    counts = {"images": 22, "labelled": 8, "unlabelled": 10, "validation": 4}
    untrained, store = FrozenEncoder(a_transformer().backbone, Compute(torch.device("cpu"))), a_set(LARGE)[1]
    learned = np.flatnonzero(~a_set()[0].validation)
    place = {"bf16": False, "device": "cpu", "processes": 1}
    assert start == {
        "event": "start",
        "method": "Contrastive",
        "backbone": json.loads(json.dumps(method.backbone.spec.described())),
        "weights": "random weights",
        "trained_blocks": 1,
        "settings": asdict(config),
        "views": 3,
        "initial": pytest.approx(Probe(untrained, store, learned, KeptTokens(0)).initial.figures()),
        "versions": {"sortal": sortal.__version__, "torch": torch.__version__},
        **counts,
        **place,
    }

    names = ["event", "epoch", "lr", "loss", "unsupervised", "supervised", "gradient_norm"]
    names += ["images_per_second", "effective_rank", "spread", "largest_query", "validation_accuracy"]
    assert [list(record) for record in records] == [names] * 5
    for epoch, record in enumerate(records):
        assert (record["event"], record["epoch"], record["lr"]) == ("epoch", epoch, schedule(config, epoch))
        assert record["loss"] == pytest.approx(record["unsupervised"] + record["supervised"], rel=1e-12)
        assert record["images_per_second"] > 0
    assert result.losses == {name: records[-1][name] for name in ("unsupervised", "supervised")}
    assert result.images_per_second == pytest.approx(5 * 4 * 4 / result.seconds)

    accuracies = [record["validation_accuracy"] for record in records]
    assert result.validation == max(accuracies)
    assert result.selected == max(epoch for epoch, value in enumerate(accuracies) if value == max(accuracies))
    trunk = FrozenEncoder(method.backbone, Compute(torch.device("cpu")))
    assert Validation(trunk, *a_set(LARGE), KeptTokens(0)).accuracy() == result.validation


TOKENS = 18 * 3 * 5 * 64 * 2  # bytes: images, views, tokens of 2 × 2 patches and a class, width, bfloat16


@pytest.mark.parametrize(
    ("budget", "where"),
    [
        (Budget(memory=TOKENS), "are cached in memory"),
        (Budget(memory=TOKENS - 1, disk=TOKENS), "are cached in a file"),
        (Budget(memory=TOKENS - 1, disk=TOKENS - 1), "do not fit the budget; views are computed in every epoch"),
    ],
)
def test_the_place_of_tokens_is_reported_and_makes_no_difference(tmp_path: Path, budget: Budget, where: str) -> None:
    notes: list[str] = []
    progress: list[tuple[str, int, int]] = []
    in_a_file: set[bool] = set()

    def on_progress(*done: Any) -> None:
        assert len(notes) == 1  # before anything is computed
        progress.append(done)
        in_a_file.add((tmp_path / "tokens.bf16").exists())

    method, other, fits = a_transformer(), a_transformer(), "not fit" not in where
    runtime = replace(CPU, note=notes.append, progress=on_progress)
    result = fit(method, a_set(LARGE), settings(views=3), folder=tmp_path, budget=budget, runtime=runtime)
    assert notes == [f"3 views of 18 images: {TOKENS:,} bytes of tokens {where}."]
    assert in_a_file == {"in a file" in where}
    assert not (tmp_path / "tokens.bf16").exists()  # once the run is done
    steps = [("Training", step, 8) for step in range(1, 9)]
    tokens = [("Computing tokens", min(done, 54), 54) for done in range(8, 54 + 8, 8)]  # few at once
    assert progress == (tokens if fits else []) + steps
    assert result.views == (3 if fits else None)
    fit(other, a_set(LARGE), settings(views=3 if fits else None))
    assert same(weights(method), weights(other))


def test_views_are_cached_by_default_if_there_is_a_trunk() -> None:
    method, eight = a_transformer(), a_transformer()
    notes: list[str] = []
    assert fit(method, a_set(LARGE), settings(views="auto")).views == 8
    assert fit(eight, a_set(LARGE), settings(views=8)).views == 8
    assert same(weights(method), weights(eight))
    assert fit(a_convnet(), a_set(), settings(views="auto"), runtime=replace(CPU, note=notes.append)).views is None
    fit(a_transformer(), a_set(LARGE), settings(views=None), runtime=replace(CPU, note=notes.append))
    assert notes == []  # no tokens could be cached


# Errors


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    """Diverged weights are not selected, and the log remains valid JSON."""
    with pytest.raises(
        SortalError, match=r"^Training diverged in epoch 0 even at a learning rate of 2\.7e\+28, after 3"
    ):
        fit(a_convnet(), a_set(), settings(epochs=4, lr=1e30), folder=tmp_path)
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()
    assert not (tmp_path / "model.safetensors").exists()


def not_read(store: PixelStore) -> PixelStore:
    """Make the image in row 3 unreadable."""
    heights = np.where(np.arange(len(store)) == 3, 0, store.heights)
    lost = (Quarantined("3.png", "truncated", "torn"),)
    return replace(store, heights=heights, quarantine=lost)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((a_set()[0], small_store(21, SMALL)), "store must have one row per image, got 21 rows for 22 images"),
        ((a_set()[0], not_read(a_set()[1])), r"1 could not be read: '3\.png'\. Leave them out"),
        ((a_set()[0], store_of([*noise(21, SMALL), noise(1, SMALL)[0][:7]])), r"the first in row 21 \(7 × "),
        ((named(["a"] * 3, range(3)), small_store(3, SMALL)), "include training images, but all .* are for validation"),
        (a_set(), "views must be 'auto' or 'live' .None in Training. for a backbone without frozen blocks, .* got 4"),
    ],
)
def test_invalid_input_is_refused_and_nothing_is_written(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(a_convnet(), data, settings(views=4 if "views" in message else None), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_frozen_backbone_is_refused() -> None:
    frozen = a_convnet()
    frozen.backbone.requires_grad_(False)  # but not its head
    with pytest.raises(InputError, match=r"blocks to train, but it is frozen\. Use backbone\.train_last\(1\)"):
        tiny_run.train(frozen, *a_set())


def test_a_folder_that_is_in_use_or_a_file_is_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(InputError, match=r"Another process is using .* another folder\."):
        fit(a_convnet(), a_set(), settings(), folder=tmp_path)
    (tmp_path / "run").write_text("no folder")
    with pytest.raises(InputError, match=r"The folder '.*run' cannot be written: .* Choose another\."):
        fit(a_convnet(), a_set(), settings(), folder=tmp_path / "run")


# Several processes


def tight(method: Contrastive, room: int, ranks: str = "01") -> Contrastive:
    """Run out of memory with more than `room` views at once, in the processes of `ranks`."""

    def check(_: torch.nn.Module, inputs: tuple[Tensor]) -> None:
        if os.environ["RANK"] in ranks and len(inputs[0]) > room:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    method.register_forward_pre_hook(check)
    return method


STEP_BATCH = 8


def one_step(processes: Any, chunks: int, images_here: list[int] | None, method: Contrastive) -> dict[str, Any]:
    """Return the losses of one step, and its update with a learning rate of 1, which is the clipped gradient."""
    inputs = torch.randn(2, STEP_BATCH, 3, SMALL, SMALL, generator=torch.Generator().manual_seed(0))
    images, labels = torch.arange(STEP_BATCH), torch.arange(STEP_BATCH) % 3 - 1
    optimiser = Optimiser(dict(method.named_parameters()), lr=1.0, clip=0.1)
    step = TrainingStep(processes, method, Compute(torch.device("cpu")), optimiser, chunks)
    whole, others = inputs.flatten(0, 1), (images.repeat(2), labels.repeat(2), torch.tensor(0.0))
    if images_here is None:
        terms = step(whole, *others)
    else:
        places = torch.tensor([*images_here, *(STEP_BATCH + image for image in images_here)], dtype=torch.int64)
        terms = step(whole[places], *others, places)
    start = weights(a_convnet())
    found = {"terms": terms, **{name: start[name] - value for name, value in weights(method).items()}}
    return {"chunks": step.chunks, "gradients": found}


TOGETHER: dict[str, tuple[Callable[[], Method], dict[str, Any]]] = {
    "no trunk": (a_convnet, {"epochs": 3}),
    "kept": (a_transformer, {"epochs": 3, "views": 3}),
    "in chunks": (a_convnet, {"epochs": 2, "chunks": 2, "clip": 0.1, "warmup": 0.5, "warmup_by": "step"}),
    "live": (a_transformer, {"epochs": 3}),
    "uneven": (a_convnet, {"epochs": 3, "batch_size": 5}),
    **{name: (partial(of_kind, name), {"epochs": 3, "lr": 0.02}) for name in NAMES if name != "uno"},
    "uno": (partial(of_kind, "uno", losses=Swaps(heads=2)), {"epochs": 3, "lr": 0.02}),
}
BROKEN_AT = 6
END = tuple[TrainingResult, dict[str, Tensor]]


def together(name: str, folder: Path | None, **options: Any) -> END:
    """Return the result and weights of a run; methods get no validation images, so that the queue of UNO overflows."""
    make, changes = TOGETHER[name]
    method = make()
    data = named(LABELS, () if name in NAMES else tiny_run.HELD_OUT), a_set(method.backbone.spec.image_size)[1]
    result = fit(method, data, settings(**changes), folder=folder, **options)
    return result, weights(method)


def work(rank: int, folder: Path) -> None:
    """Train as one of two processes in the environment of torchrun, and save the results."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    processes = launch("cpu")
    found: dict[str, Any] = {"place": (processes.rank, processes.size)}
    some = [image for image in range(STEP_BATCH) if (image in (1, 2)) == (rank == 0)]
    with double_precision():
        for chunks in (1, 3):
            found[f"step in {chunks}"] = one_step(processes, chunks, some, a_convnet())
        everything = [*range(STEP_BATCH)] if rank else []
        found["step in one that is idle"] = one_step(processes, 1, everything, a_convnet())
        found["step in one that is tight"] = one_step(processes, 1, some, tight(a_convnet(), 4, "1"))
        for name in ("no trunk", "kept", "in chunks", "uneven", *NAMES):
            found[name] = together(name, None if name in NAMES else folder / name, processes=processes)
        found["again"] = together("no trunk", folder / "no trunk", processes=processes)
        found["resumed"] = together("no trunk", folder / "resumed", processes=processes)
        found["in a file"] = together("kept", folder / "in a file", processes=processes, budget=tiny_run.IN_A_FILE)
    for name, method, config in (
        ("tight", tight(a_convnet(), 0), settings()),
        (
            "tight in one",
            tight(a_convnet(), 0, "1"),
            settings(),
        ),  # last: a process that fails alone leaves the other waiting
    ):
        try:
            fit(method, a_set(), config, processes=processes)
        except (SortalError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    torch.save(found, folder / f"{rank}.pt")


Both = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Return the results of two processes; one of their runs was begun by a single process."""
    folder = tmp_path_factory.mktemp("both")

    def stop(_: str, done: int, __: int) -> None:
        if done == BROKEN_AT:
            raise KeyboardInterrupt

    with double_precision(), pytest.raises(KeyboardInterrupt):
        together("no trunk", folder / "resumed", runtime=replace(CPU, progress=stop), checkpoint_every=0.0)
    run_two(work, folder)
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.thorough
@double_precision()
@pytest.mark.parametrize(("how", "chunks"), [("1", 1), ("3", 3), ("one that is idle", 1), ("one that is tight", 4)])
def test_a_step_of_two_processes_gives_the_gradients_of_one(both: Both, how: str, chunks: int) -> None:
    """Even if one of them runs out of memory, so that both split their parts."""
    wanted = one_step(launch("cpu"), 1, None, a_convnet())["gradients"]
    assert float(wanted["terms"][-1]) > 0.1  # so it is clipped
    for rank, found in enumerate(both[1]):
        assert found["place"] == (rank, 2)
        got = found[f"step in {how}"]["gradients"]
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            assert float((got[name] - value).norm()) <= CLOSE * float(value.norm()), name
        assert found[f"step in {how}"]["chunks"] == chunks


def assert_ends_like_one_process(ends: list[END], name: str, folder: Path | None, began: int = 2) -> None:
    """Check that both processes end like a single one, and that log and model are written once."""
    results = [{**asdict(result), "seconds": 0, "images_per_second": 0} for result, _ in ends]
    assert results[0] == results[1]
    assert same(ends[0][1], ends[1][1])
    result, wanted = together(name, None)
    first, ours = ends[0]
    make, config = TOGETHER[name]
    assert distance(ours, wanted, weights(make())) < CLOSE
    assert (first.selected, first.validation, first.views) == (result.selected, result.validation, result.views)
    assert (first.validation is None) == (name in NAMES)
    assert first.losses == pytest.approx(result.losses, rel=CLOSE)
    if folder is not None:
        log = log_of(folder)
        assert (log[0]["processes"], log[0]["views"]) == (began, config.get("views"))
        assert [record["epoch"] for record in log[1:]] == list(range(config["epochs"]))
        saved = weights(load_backbone(str(folder / "model.json")))
        assert same({f"backbone.{key}": saved[key] for key in saved}, {k: ours[k] for k in ours if "backbone." in k})


@pytest.mark.thorough
@double_precision()
@pytest.mark.parametrize("name", ["no trunk", "kept", "in chunks", "uneven", *NAMES, "again", "resumed", "in a file"])
def test_two_processes_end_like_one(both: Both, name: str) -> None:
    """Even when they resume a run of one process or a finished one; they do not use files of tokens."""
    how = {"again": "no trunk", "resumed": "no trunk", "in a file": "live"}.get(name, name)
    folder = None if name in NAMES else both[0] / ("no trunk" if name == "again" else name)
    ends = [found[name] for found in both[1]]
    assert_ends_like_one_process(ends, how, folder, began=1 if name == "resumed" else 2)
    if name == "again":
        assert ends[0][0] == both[1][0]["no trunk"][0]
    if name == "uno":  # the queue has the views of both, in the same order
        assert ends[0][1]["filled"] == len(ends[0][1]["queue"]) == 16


@pytest.mark.thorough
def test_an_error_in_one_process_ends_the_run_in_all(both: Both) -> None:
    """Running out of memory in all processes or in one."""
    for found in both[1]:
        for where in ("tight", "tight in one"):
            assert found[where].startswith("SortalError: Out of memory")


# Passes through the trunk


def test_every_view_passes_through_the_trunk_once_however_many_epochs_and_trainings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two views of each image that is learned from, and the centre of those that are measured, though in a file."""
    passed, stream = list[int](), FrozenEncoder.stream

    def counted(self: FrozenEncoder, store: PixelStore, crops: Any) -> Any:
        for batch in crops:
            passed.append(len(batch.rows))
            yield from stream(self, store, [batch])

    monkeypatch.setattr(FrozenEncoder, "stream", counted)
    data, shared = a_set(LARGE), SharedTokens(tmp_path)
    for config in (settings(views=2, epochs=3), settings(views=2, epochs=2, lr=0.01)):
        fit(a_transformer(), data, config, budget=Budget(disk=10**9, file_first=True), shared=shared)
        assert shared.where == "file"
    learned, validated = 18, 12
    assert sum(passed) == 2 * learned + learned + 2 * validated, "of those for validation once in each training"
    shared.close()
    assert (shared.tokens, shared.centre, shared.key) == (None, None, "")
