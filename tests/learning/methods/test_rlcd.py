"""RLCD: its losses against loops over views, class-wise overlap, gradients, and its token."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from math import log
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from support.tiny_methods import (
    CASES,
    Row,
    batch_of,
    contrast,
    convnet,
    cross_entropy,
    dot,
    double_precision,
    inputs_of,
    mean,
    small,
    softmax,
    transformer,
    values,
)
from torch import Tensor

from sortal.config import Reciprocity, Training
from sortal.errors import InputError
from sortal.learning.batches import Batch
from sortal.learning.methods import Rlcd
from sortal.learning.methods.rlcd import overlap

MAIN = ["distillation", "balance", "distinction", "classification", "supervised"]
AUXILIARY = ["old_agreement", "old_distinction", "old_classification", "old_supervised"]
LOSSES = [*MAIN, *AUXILIARY, "exchange"]
USUAL = Reciprocity()
WIDTH = 64
EXACT: dict[str, Any] = {"rel": 1e-11, "abs": 1e-11}  # float64: some thousand roundings of logits of up to 20


@cache
def a_method(k: int, known: tuple[int, ...], config: Reciprocity = USUAL) -> Rlcd:
    with double_precision():
        return Rlcd(transformer(), k, known, config)


def synthetic(n: int, k: int, n_old: int, seed: int = 0) -> Tensor:
    """Make outputs of 2n views: two unit features, and cosines of categories and of old classes."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 2 * n, WIDTH, generator=generator, dtype=torch.float64)
    cosines = 0.2 * torch.randn(2 * n, k + n_old, generator=generator, dtype=torch.float64)
    return torch.cat([*nnf.normalize(rows, dim=2), cosines], dim=1)


def a_batch(outputs: Tensor, labels: list[int], progress: float = 0.0) -> Batch:
    return replace(batch_of(outputs, labels), progress=torch.tensor(progress, dtype=torch.float64))


def class_wise(first: list[Row], second: list[Row], present: set[int]) -> float:
    """1 − mean of (H₁H₂ᵀ)_cc over classes, H = diag(1 / column sums of P) · PᵀP, entry by entry."""
    if not present:
        return 0.0
    k = len(first[0])

    def h(rows: list[Row], c: int, j: int) -> float:
        return sum(row[c] * row[j] for row in rows) / sum(row[c] for row in rows)

    return 1 - mean([sum(h(first, c, j) * h(second, c, j) for j in range(k)) for c in present])


def oracle(
    rows: list[Row], labels: list[int], known: list[int], k: int, c: Reciprocity, progress: float
) -> dict[str, float]:
    n, n_old, both = len(labels), len(known), [*labels, *labels]
    z, a = ([row[start : start + WIDTH] for row in rows] for start in (0, WIDTH))
    cosines, old = [row[2 * WIDTH : 2 * WIDTH + k] for row in rows], [row[2 * WIDTH + k :] for row in rows]
    p = [softmax(row, c.student_temperature) for row in cosines]
    first, last = c.first_teacher_temperature, c.teacher_temperature
    temperature = first + (last - first) * min(progress / c.sharpening, 1)
    teachers = [softmax(row, temperature) for row in cosines]
    average = [mean([row[j] for row in p]) for j in range(k)]
    ids = [known.index(label) if label >= 0 else None for label in both]
    seen = {row.index(max(row)) if own is None else own for row, own in zip(p, ids, strict=True)}
    s, w = c.supervised_weight, c.distinction_weight
    found = {
        "distillation": (1 - s) * mean([cross_entropy(teachers[(v + n) % (2 * n)], p[v]) for v in range(2 * n)]),
        "balance": (1 - s) * c.entropy_weight * (log(k) + sum(each * log(each) for each in average)),
        "distinction": (1 - s) * w * class_wise(p[:n], p[n:], seen),
        "classification": s * mean([-log(row[own]) for row, own in zip(p, ids, strict=True) if own is not None]),
        "supervised": s * contrast(z, both, c.supervised_temperature),
    }
    if not n_old:
        return found
    q = [softmax(row, c.student_temperature) for row in old]
    taken = [own is not None or row.index(max(row)) < n_old for row, own in zip(p, ids, strict=True)]
    pairs = [i for i in range(n) if taken[i] and taken[i + n]]
    apart = [
        sum(one * log(one / other) for one, other in zip(q[i], q[j], strict=True))
        for i in pairs
        for i, j in ((i, i + n), (i + n, i))
    ]
    seen = set()
    for v in (v for i in pairs for v in (i, i + n)):
        own = ids[v]
        seen.add(q[v].index(max(q[v])) if own is None else own)
    t = c.auxiliary_weight
    taught = [
        max(q[v]) * cross_entropy(q[v], softmax(cosines[v][:n_old], c.student_temperature))
        for v in range(2 * n)
        if taken[v]
    ]
    return found | {
        "old_agreement": (1 - t) * mean(apart),
        "old_distinction": (1 - t) * w * class_wise([q[i] for i in pairs], [q[i + n] for i in pairs], seen),
        "old_classification": t * mean([-log(row[own]) for row, own in zip(q, ids, strict=True) if own is not None]),
        "old_supervised": t * contrast(a, both, c.supervised_temperature),
        "exchange": c.exchange_weight * mean(taught),
    }


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("progress", [0.07, 1.0])
def test_losses_match_a_loop_over_views(case: str, progress: float) -> None:
    labels, known, k = CASES[case]
    outputs = synthetic(len(labels), k, len(known))
    got = values(a_method(k, tuple(known)).losses(a_batch(outputs, labels, progress)))
    assert list(got) == (LOSSES if known else MAIN)
    assert got == pytest.approx(oracle(outputs.tolist(), labels, known, k, USUAL, progress), **EXACT)


CHANGES: dict[str, tuple[Any, list[str]]] = {  # another value, and the losses that do not depend on it
    "student_temperature": (0.2, ["supervised", "old_supervised"]),
    "first_teacher_temperature": (0.1, LOSSES[1:]),
    "teacher_temperature": (0.02, LOSSES[1:]),
    "sharpening": (0.5, LOSSES[1:]),
    "entropy_weight": (1.0, [name for name in LOSSES if name != "balance"]),
    "supervised_weight": (0.5, [*AUXILIARY, "exchange"]),
    "supervised_temperature": (0.2, [name for name in LOSSES if "supervised" not in name]),
    "distinction_weight": (1.0, [name for name in LOSSES if "distinction" not in name]),
    "auxiliary_weight": (0.2, [*MAIN, "exchange"]),
    "exchange_weight": (0.2, [*MAIN, *AUXILIARY]),
    "block_rate": (0.1, LOSSES),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_constant_changes_the_right_losses_by_the_right_amount(name: str) -> None:
    assert {*CHANGES} == {each.name for each in fields(Reciprocity)}
    labels, known, k = CASES["mixed"]
    changed, outputs = replace(USUAL, **{name: CHANGES[name][0]}), synthetic(6, k, 2)
    before, after = (
        values(a_method(k, tuple(known), c).losses(a_batch(outputs, labels, 0.1))) for c in (USUAL, changed)
    )
    assert [loss for loss in LOSSES if before[loss] == pytest.approx(after[loss], rel=1e-9)] == CHANGES[name][1]
    assert after == pytest.approx(oracle(outputs.tolist(), labels, known, k, changed, 0.1), **EXACT)


def test_categories_overlap_unless_predictions_are_certain_and_agree() -> None:
    """Four images of two classes; in the last case, the views disagree on which is which."""
    certain = torch.eye(2, dtype=torch.float64)[[0, 0, 1, 1] * 2]
    unlabelled, everything = torch.full((8,), -1), torch.ones(8, dtype=torch.bool)
    assert overlap(certain, unlabelled, everything) == 0
    assert overlap(torch.full_like(certain, 0.5), unlabelled, everything) == 0.5
    assert overlap(certain, unlabelled, ~everything) == 0
    swapped = torch.cat([certain[:4], certain[:4].flip(1)])
    assert overlap(swapped, unlabelled, everything) == 0, "classes are compared, and not images"


def test_gradients_match_finite_differences() -> None:
    """Of what learns without a teacher; predictions are not near a tie."""
    labels, known, k = CASES["mixed"]
    method, outputs = a_method(k, tuple(known)), synthetic(6, k, 2)
    for part in outputs[:, 2 * WIDTH :].split([k, 2], dim=1):
        best = part.topk(2, dim=1).values
        assert (best[:, 0] - best[:, 1]).min() > 1e-3
    features = outputs[:, : 2 * WIDTH]

    def losses(cosines: Tensor) -> Tensor:
        found = method.losses(a_batch(torch.cat([features, cosines], dim=1), labels))
        return torch.stack([found[name] for name in LOSSES if name not in ("distillation", "exchange")])

    assert torch.autograd.gradcheck(losses, outputs[:, 2 * WIDTH :].clone().requires_grad_(), eps=1e-6, atol=1e-6)


def test_the_second_classifier_teaches_the_first_and_not_the_other_way_round() -> None:
    labels, known, k = CASES["mixed"]
    method, outputs = a_method(k, tuple(known)), synthetic(6, k, 2).requires_grad_()
    loss = method.losses(a_batch(outputs, labels))["exchange"]
    learned = torch.autograd.grad(loss, outputs)[0].any(0)
    assert learned[2 * WIDTH : 2 * WIDTH + 2].all(), "the old classes of the first"
    assert learned.sum() == 2


def test_both_tokens_are_trained_and_the_blocks_at_their_own_rate() -> None:
    method = small("rlcd", losses=replace(USUAL, block_rate=0.1), k=5)
    inputs = inputs_of(method, 6)
    outputs, features = method(inputs), method.backbone.tail(inputs)
    assert outputs.shape == (6, 2 * WIDTH + 5 + 2)
    torch.testing.assert_close(outputs[:, :WIDTH], nnf.normalize(features, dim=1))
    added = nnf.normalize(method.backbone.token_rows(inputs)[:, 1], dim=1)
    torch.testing.assert_close(outputs[:, WIDTH : 2 * WIDTH], added)
    for start, own, head in ((0, features, method.categories), (5, added, method.old)):
        cosines = nnf.cosine_similarity(own[:, None], head.weight[None], dim=2)
        torch.testing.assert_close(outputs[:, 2 * WIDTH + start :][:, : len(head.weight)], cosines)
    trained = {name: value for name, value in method.named_parameters() if value.requires_grad}
    assert "backbone.net.added_tokens" in trained
    factors = method.optimiser(trained, Training()).factors
    assert {name for name, factor in factors.items() if factor == 0.1} == {name for name in trained if "blocks" in name}
    assert dot([*factors.values()], [1.0] * len(factors)) > 3, "the others learn at the full rate"


def test_other_backbones_are_refused() -> None:
    with pytest.raises(InputError, match="Further tokens need a vision transformer, which convnet is not"):
        Rlcd(convnet(), 4, [0, 1])
