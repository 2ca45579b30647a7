"""DebGCD: its losses against loops over views, gradients, and its heads."""

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
    convnet,
    double_precision,
    inputs_of,
    mean,
    small,
    softmax,
    synthetic,
    values,
)
from torch import Tensor

from sortal.config import Debiasing, Distillation
from sortal.learning.methods import DebGcd, SimGcd
from sortal.learning.methods.debgcd import ambiguity, detection, inconsistency

SMALL = Debiasing(hidden=16, bottleneck=D)
OWN = ["debiased_labels", "debiased_predictions", "detection", "ambiguity", "consistency"]
EXACT: dict[str, Any] = {"rel": 1e-12, "abs": 1e-12}  # float64: some hundred roundings of logits of up to 20


def a_method(k: int, known: list[int], config: Debiasing = SMALL) -> DebGcd:
    with double_precision():
        return DebGcd(convnet(), k, known, config)


def oracle(rows: list[Row], labels: list[int], known: list[int], k: int, c: Debiasing) -> dict[str, float]:
    """Follow the formulas view by view; a row is a projection, k cosines, k more, and those of not and of being."""
    n, n_old, both, t = len(labels), len(known), [*labels, *labels], c.student_temperature
    p = [softmax(row[D : D + k], t) for row in rows]
    debiased = [softmax(row[D + k : D + 2 * k], t) for row in rows]
    pairs = [[(row[D + 2 * k + j], row[D + 2 * k + n_old + j]) for j in range(n_old)] for row in rows]
    unlike = [[exp(a / t) / (exp(a / t) + exp(b / t)) for a, b in row] for row in pairs]  # o: P(not of class)
    of_labels, detected, pseudo, entropies, apart = [], [], [], [], []
    for v, label in enumerate(both):
        if label >= 0:
            y = known.index(label)
            of_labels.append(-log(debiased[v][y]))
            others = [-log(unlike[v][j]) for j in range(n_old) if j != y]
            detected.append(-log(1 - unlike[v][y]) + max(others, default=0.0))
            continue
        top = max(p[v])
        certainty = abs(2 * min(unlike[v]) - 1) if n_old else 1.0
        pseudo.append(certainty * -log(debiased[v][p[v].index(top)]) if top >= c.confidence else 0.0)
        entropies.append(mean([-o * log(o) - (1 - o) * log(1 - o) for o in unlike[v]]))
        if v < n:
            apart.append(2 * sum((one - two) ** 2 for one, two in zip(unlike[v], unlike[v + n], strict=True)))
    return {
        "debiased_labels": c.debiased_weight * (1 - c.pseudo_weight) * mean(of_labels),
        "debiased_predictions": c.debiased_weight * c.pseudo_weight * mean(pseudo),
        "detection": c.detector_weight * mean(detected),
        "ambiguity": c.detector_weight * c.ambiguity_weight * mean(entropies),
        "consistency": c.detector_weight * c.consistency_weight * mean(apart),
    }


def outputs_for(labels: list[int], known: list[int], k: int, seed: int = 2) -> Tensor:
    return synthetic(len(labels), 2 * k + 2 * len(known), seed)


@pytest.mark.parametrize("case", CASES)
def test_losses_match_a_loop_over_views_and_the_others_are_those_of_simgcd(case: str) -> None:
    labels, known, k = CASES[case]
    outputs = outputs_for(labels, known, k)
    got = values(a_method(k, known).losses(batch_of(outputs, labels, 0.1)))
    wanted = oracle(outputs.tolist(), labels, known, k, SMALL)
    assert {name: got.pop(name) for name in OWN} == pytest.approx(wanted, **EXACT)
    base = Distillation(**{each.name: getattr(SMALL, each.name) for each in fields(Distillation)})
    assert got == values(SimGcd(convnet(), k, known, base).losses(batch_of(outputs[:, : D + k], labels, 0.1)))
    if case == "mixed":
        assert all(wanted.values())


CHANGES: dict[str, tuple[Any, str]] = {  # another value, and the losses that depend on it
    "debiased_weight": (1.0, "debiased_labels debiased_predictions"),
    "confidence": (0.99, "debiased_predictions"),
    "pseudo_weight": (0.2, "debiased_labels debiased_predictions"),
    "detector_weight": (0.01, "detection ambiguity consistency"),
    "ambiguity_weight": (0.2, "ambiguity"),
    "consistency_weight": (0.5, "consistency"),
    "student_temperature": (0.2, " ".join(OWN)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_constant_changes_the_right_losses_by_the_right_amount(name: str) -> None:
    labels, known, k = CASES["mixed"]
    changed, outputs = replace(SMALL, **{name: CHANGES[name][0]}), outputs_for(labels, known, k)
    before, after = (values(a_method(k, known, c).losses(batch_of(outputs, labels))) for c in (SMALL, changed))
    assert " ".join(loss for loss in OWN if before[loss] != pytest.approx(after[loss], rel=1e-9)) == CHANGES[name][1]
    assert {name: after[name] for name in OWN} == pytest.approx(
        oracle(outputs.tolist(), labels, known, k, changed), **EXACT
    )


def test_detectors_by_hand() -> None:
    """Log odds of 0 are an even chance, and those of ±log 3 are 3 : 1."""
    odds = torch.tensor([[0.0, log(3)], [log(3), 0.0]], dtype=torch.float64)
    assert float(detection(odds, torch.tensor([0, -1]))) == pytest.approx(log(2) + log(4 / 3), **EXACT)
    assert float(detection(odds, torch.tensor([1, 1]))) == pytest.approx((log(4) + log(2) + log(2) + log(4 / 3)) / 2)
    entropy = -0.75 * log(0.75) - 0.25 * log(0.25)
    unlabelled = torch.tensor([True, True])
    assert float(ambiguity(odds, unlabelled)) == pytest.approx((log(2) + entropy) / 2, **EXACT)
    assert float(inconsistency(odds, unlabelled)) == pytest.approx(2 * 2 * 0.25**2, **EXACT)


def test_gradients_match_finite_differences() -> None:
    """No probability is near the confidence at which a view begins to count, and no two detectors are near a tie."""
    labels, known, k = CASES["mixed"]
    method, outputs = a_method(k, known), outputs_for(labels, known, k)
    confidence = (outputs[:, D : D + k] / 0.1).softmax(1).amax(1)
    assert (confidence - SMALL.confidence).abs().min() > 1e-3
    start, fixed = D + k, outputs[:, : D + k]

    def losses(rest: Tensor) -> Tensor:
        found = method.losses(batch_of(torch.cat([fixed, rest], dim=1), labels))
        return torch.stack([found[name] for name in OWN if name != "debiased_predictions"])

    assert torch.autograd.gradcheck(losses, outputs[:, start:].clone().requires_grad_(), eps=1e-6, atol=1e-6)


def test_predictions_teach_the_second_classifier_alone() -> None:
    """The gradient of a view that counts is (its probabilities − the predicted category) · certainty / τ / views."""
    method, outputs = a_method(3, [0]), outputs_for([-1] * 4, [0], 3, seed=0).requires_grad_()
    loss = method.losses(batch_of(outputs, [-1] * 4))["debiased_predictions"]
    found = torch.autograd.grad(loss, outputs)[0]
    assert not found[:, : D + 3].any(), "neither projections nor the first classifier"
    assert not found[:, D + 6 :].any(), "nor detectors"
    rows = outputs.detach()
    confidence, category = (rows[:, D : D + 3] / 0.1).softmax(1).max(1)
    certainty = (2 * ((rows[:, D + 6] - rows[:, D + 7]) / 0.1).sigmoid() - 1).abs()
    each = (rows[:, D + 3 : D + 6] / 0.1).softmax(1) - nnf.one_hot(category, 3)
    expected = each * ((confidence >= 0.7) * certainty)[:, None] * 2 * 0.5 / 0.1 / 8
    assert 0 < (confidence >= 0.7).sum() < 8
    torch.testing.assert_close(found[:, D + 3 : D + 6], expected)


def test_outputs_are_those_of_simgcd_of_the_second_classifier_and_of_detectors() -> None:
    method = small("debgcd", k=5, known=[0, 1, 4])
    inputs = inputs_of(method, 6)
    outputs, features = method(inputs), method.backbone.tail(inputs)
    parts = outputs.split([8, 5, 5, 6], dim=1)
    torch.testing.assert_close(parts[0], method.head(features))
    for part, rows, head in (
        (parts[1], features, method.categories),
        (parts[2], features, method.debiased),
        (parts[3], method.detector(features), method.detected),
    ):
        torch.testing.assert_close(part, nnf.cosine_similarity(rows[:, None], head.weight[None], dim=2))
    assert not torch.equal(method.categories.weight, method.debiased.weight)
    assert [type(each).__name__ for each in method.detector.mlp] == ["Linear", "GELU"] * 4 + ["Linear"]
    shallow = DebGcd(convnet(), 5, [0], replace(SMALL, detector_layers=2)).detector
    assert [tuple(value.shape) for name, value in shallow.named_parameters() if "weight" in name] == [
        (16, 512),
        (D, 16),
    ]
