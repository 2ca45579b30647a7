"""LegoGCD: its loss against a loop over views, its moving average, and gradients."""

from __future__ import annotations

from dataclasses import fields, replace
from math import log
from typing import Any

import pytest
import torch
from support.tiny_methods import (
    CASES,
    D,
    Row,
    batch_of,
    convnet,
    cross_entropy,
    double_precision,
    mean,
    softmax,
    synthetic,
    values,
)
from torch import Tensor

from sortal.config import Distillation, Retention
from sortal.learning.methods import LegoGcd, SimGcd

SMALL = Retention(hidden=16, bottleneck=D)
EXACT: dict[str, Any] = {"rel": 1e-12, "abs": 1e-12}  # float64: some hundred roundings of logits of up to 40


def a_method(k: int, known: list[int], config: Retention = SMALL) -> LegoGcd:
    """Make a method in float64 whose categories were not predicted equally often."""
    with double_precision():
        method = LegoGcd(convnet(), k, known, config)
    method.mean_prediction.copy_(torch.arange(1.0, k + 1) / sum(range(k + 1)))
    return method


def oracle(rows: list[Row], labels: list[int], n_old: int, c: Retention, often: Row) -> tuple[float, int]:
    """Follow the formula view by view; rows are cosines. Return the loss and how many views take part in it."""
    costs, counted = [], 0
    for row, label in zip(rows, [*labels, *labels], strict=True):
        chances = softmax(row, c.student_temperature)
        if label < 0 and chances.index(max(chances)) < n_old and max(chances) >= c.confidence:
            margins = [value / c.retention_temperature + c.margin * log(q) for value, q in zip(row, often, strict=True)]
            costs.append(cross_entropy(softmax(row, c.retention_temperature), softmax(margins)))
            counted += 1
        else:
            costs.append(0.0)
    return c.retention_weight * mean(costs), counted


@pytest.mark.parametrize("case", CASES)
def test_the_loss_matches_a_loop_over_views_and_the_others_are_those_of_simgcd(case: str) -> None:
    labels, known, k = CASES[case]
    method, outputs = a_method(k, known), synthetic(len(labels), k, seed=2)
    got = values(method.losses(batch_of(outputs, labels, 0.1)))
    wanted, counted = oracle(outputs[:, D:].tolist(), labels, len(known), SMALL, method.mean_prediction.tolist())
    assert got.pop("retention") == pytest.approx(wanted, **EXACT)
    of_base = {each.name: getattr(SMALL, each.name) for each in fields(Distillation)}
    assert got == values(SimGcd(convnet(), k, known, Distillation(**of_base)).losses(batch_of(outputs, labels, 0.1)))
    if case == "mixed":
        assert 0 < counted < 6, "of the six unlabelled views"


@pytest.mark.parametrize(
    ("name", "value"),
    [("retention_weight", 1.0), ("retention_temperature", 0.1), ("confidence", 0.99), ("margin", 0.0)],
)
def test_each_constant_changes_the_loss_by_the_right_amount(name: str, value: Any) -> None:
    labels, known, k = CASES["mixed"]
    changed, outputs = replace(SMALL, **{name: value}), synthetic(6, k, seed=2)
    before, after = (
        values(a_method(k, known, c).losses(batch_of(outputs, labels)))["retention"] for c in (SMALL, changed)
    )
    often = a_method(k, known).mean_prediction.tolist()
    assert after == pytest.approx(oracle(outputs[:, D:].tolist(), labels, 2, changed, often)[0], **EXACT)
    assert after != pytest.approx(before, rel=1e-3)


def test_equal_categories_have_no_margin_so_that_the_loss_is_an_entropy() -> None:
    with double_precision():
        method = LegoGcd(convnet(), 2, [0, 1], SMALL)
    outputs = torch.tensor([[1.0, 0, 0, 0.1, 0.0]] * 2, dtype=torch.float64)  # 73 % at 0.1, 88 % at 0.05
    chances = softmax([0.1, 0.0], 0.05)
    got = values(method.losses(batch_of(outputs, [-1])))["retention"]
    assert got == pytest.approx(2 * cross_entropy(chances, chances), **EXACT)
    surer = values(method.losses(batch_of(outputs * 2, [-1])))["retention"]
    assert 0 < surer < got


def test_gradients_match_finite_differences() -> None:
    """No probability is near the confidence at which a view begins to count."""
    labels, known, k = CASES["mixed"]
    method, outputs = a_method(k, known), synthetic(6, k, seed=2)
    confidence = (outputs[:, D:] / 0.1).softmax(1).amax(1)
    assert (confidence - SMALL.confidence).abs().min() > 1e-3

    def loss(rows: Tensor) -> Tensor:
        return method.losses(batch_of(rows, labels))["retention"]

    assert torch.autograd.gradcheck(loss, outputs.requires_grad_(), eps=1e-6, atol=1e-6)


def test_the_mean_prediction_is_a_moving_average_over_batches() -> None:
    with double_precision():
        method = LegoGcd(convnet(), 4, [0], replace(SMALL, decay=0.9))
    wanted = [0.25] * 4
    for seed in (0, 1):
        outputs = synthetic(3, 4, seed=seed)
        method.after_step(batch_of(outputs, [0, -1, -1]))
        rows = [softmax(row) for row in outputs[:, D:].tolist()]
        wanted = [0.9 * old + 0.1 * mean([row[j] for row in rows]) for j, old in enumerate(wanted)]
    assert method.mean_prediction.tolist() == pytest.approx(wanted, **EXACT)
    assert sum(wanted) == pytest.approx(1)
