"""SimGCD: its five losses against loops over views, the teacher's temperature, and gradients."""

from __future__ import annotations

from dataclasses import fields, replace
from math import exp, log
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from support.tiny_methods import (
    CASES,
    D,
    Row,
    batch_of,
    contrast,
    convnet,
    cross_entropy,
    inputs_of,
    mean,
    small,
    softmax,
    synthetic,
    values,
)

from sortal.config import Distillation
from sortal.learning.methods import SimGcd

SMALL = Distillation(hidden=16, bottleneck=D)
LOSSES = ["distillation", "balance", "classification", "unsupervised", "supervised"]


def oracle(
    rows: list[Row], labels: list[int], known: list[int], k: int, c: Distillation, progress: float
) -> dict[str, float]:
    """Follow METHOD §6, view by view; a row is a projection and then k cosines."""
    n, both = len(labels), [*labels, *labels]
    projections, cosines = [row[:-k] for row in rows], [row[-k:] for row in rows]
    students = [softmax(row, c.student_temperature) for row in cosines]
    first, last = c.first_teacher_temperature, c.teacher_temperature
    temperature = first + (last - first) * progress / c.sharpening if progress < c.sharpening else last
    teachers = [softmax(row, temperature) for row in cosines]
    distilled = [cross_entropy(teachers[(view + n) % (2 * n)], students[view]) for view in range(2 * n)]
    average = [mean([row[j] for row in students]) for j in range(k)]
    entropy = -sum(p * log(p) for p in average)
    classified = [-log(students[view][known.index(label)]) for view, label in enumerate(both) if label >= 0]
    weight = c.supervised_weight
    return {
        "distillation": (1 - weight) * mean(distilled),
        "balance": (1 - weight) * c.entropy_weight * (log(k) - entropy),
        "classification": weight * mean(classified),
        "unsupervised": (1 - weight) * contrast(projections, [*range(n), *range(n)], c.temperature),
        "supervised": weight * contrast(projections, both, c.supervised_temperature),
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("progress", [0.0, 0.07, 0.16, 1.0])
def test_losses_match_a_loop_over_views(case: str, progress: float) -> None:
    labels, known, k = CASES[case]
    outputs = synthetic(len(labels), k)
    got = values(SimGcd(convnet(), k, known, SMALL).losses(batch_of(outputs, labels, progress)))
    assert list(got) == LOSSES
    assert got == pytest.approx(oracle(outputs.tolist(), labels, known, k, SMALL, progress), rel=1e-5, abs=1e-5)


CHANGES: dict[str, tuple[Any, str]] = {  # another value, and the losses that depend on it
    "student_temperature": (0.2, "distillation balance classification"),
    "first_teacher_temperature": (0.1, "distillation"),
    "teacher_temperature": (0.02, "distillation"),
    "sharpening": (0.5, "distillation"),
    "entropy_weight": (1.0, "balance"),
    "supervised_weight": (0.5, " ".join(LOSSES)),
    "temperature": (0.5, "unsupervised"),
    "supervised_temperature": (0.5, "supervised"),
    "hidden": (24, ""),
    "bottleneck": (2, " ".join(LOSSES)),  # other columns of the same rows
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_constant_changes_the_right_losses_by_the_right_amount(name: str) -> None:
    assert list(CHANGES) == [each.name for each in fields(Distillation)]
    labels, known, k = CASES["mixed"]
    changed = replace(SMALL, **{name: CHANGES[name][0]})
    outputs = synthetic(6, k + SMALL.bottleneck - changed.bottleneck)
    before, after = (
        values(SimGcd(convnet(), outputs.shape[1] - c.bottleneck, known, c).losses(batch_of(outputs, labels, 0.1)))
        for c in (SMALL, changed)
    )
    assert " ".join(loss for loss in LOSSES if before[loss] != pytest.approx(after[loss], rel=1e-9)) == CHANGES[name][1]
    n_outputs = outputs.shape[1] - changed.bottleneck
    assert after == pytest.approx(oracle(outputs.tolist(), labels, known, n_outputs, changed, 0.1), rel=1e-5, abs=1e-5)


def test_the_temperature_of_the_teacher_falls_linearly() -> None:
    """From 0.07 to 0.04 over 30 of 200 epochs. Two cosines that differ by g have odds of e^(g/τ) : 1."""
    method = SimGcd(convnet(), 2, [], SMALL)
    rows = torch.tensor([[1.0, 0, 0, 0.1, 0.0]] * 2)  # both views alike
    student = 1 / (1 + exp(-0.1 / 0.1))
    for progress, temperature in ((0, 0.07), (0.05, 0.06), (0.1, 0.05), (0.15, 0.04), (0.2, 0.04), (1, 0.04)):
        sure = 1 / (1 + exp(-0.1 / temperature))
        expected = 0.65 * -(sure * log(student) + (1 - sure) * log(1 - student))
        got = values(method.losses(batch_of(rows, [-1], progress)))["distillation"]
        assert got == pytest.approx(expected, abs=1e-5)


def test_each_view_learns_from_the_other_without_gradients_through_the_teacher() -> None:
    """The gradient of a view's scores is (its probabilities − those of the teacher, the other view) / τ / views."""
    method, outputs = SimGcd(convnet(), 4, [], SMALL), synthetic(3, 4).requires_grad_()
    loss = method.losses(batch_of(outputs, [-1] * 3))["distillation"]
    found = torch.autograd.grad(loss, outputs)[0][:, D:]
    cosines = outputs.detach()[:, D:]
    taught = (cosines / 0.07).softmax(1).roll(3, dims=0)
    torch.testing.assert_close(found, 0.65 * ((cosines / 0.1).softmax(1) - taught) / 0.1 / 6, rtol=1e-5, atol=1e-8)


def test_outputs_are_projections_and_cosines_concatenated() -> None:
    method = small("simgcd", k=5)
    inputs = inputs_of(method, 6)
    outputs, features = method(inputs), method.backbone.tail(inputs)
    torch.testing.assert_close(outputs[:, :8], method.head(features))
    torch.testing.assert_close(
        outputs[:, 8:], nnf.cosine_similarity(features[:, None], method.categories.weight[None], dim=2)
    )
    with torch.no_grad():
        method.categories.weight.mul_(torch.linspace(0.1, 7, 5)[:, None])  # their length does not matter
    torch.testing.assert_close(method(inputs), outputs)
