"""CMS: shifted features and both losses against loops, gradients, and the cut of the tree against trying every one."""

from __future__ import annotations

from dataclasses import fields, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from support.tiny_methods import CASES, Row, batch_of, contrast, convnet, dot, mean, start_epoch, values
from torch import Tensor

from sortal import metrics
from sortal.config import Training
from sortal.config.rivals import MeanShift
from sortal.learning.checkpoint import TrainingState
from sortal.learning.methods import cms
from sortal.learning.methods.cms import Cms, best_cut, cluster, shifted
from sortal.learning.methods.method import Problem

SMALL = MeanShift(neighbours=3, hidden=16, bottleneck=8)
PROBLEM = Problem(k=0, known=(), training=Training())
LOSSES = ["unsupervised", "supervised"]


def unit(n: int, d: int = 4, seed: int = 0) -> Tensor:
    drawn = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return nnf.normalize(drawn, dim=1)


def moved(row: Row, memory: list[Row], c: MeanShift) -> Row:
    """½ of the row and ½ of the mean of its nearest in memory but the first, in length 1."""
    ranked = sorted(memory, key=lambda other: -dot(row, other))[1 : c.neighbours + 1]
    middle = [mean([other[j] for other in ranked]) for j in range(len(row))]
    sums = [(1 - c.shift) * a + c.shift * b for a, b in zip(row, middle, strict=True)] if ranked else row
    return [value / sqrt(dot(sums, sums)) for value in sums]


def oracle(rows: list[Row], memory: list[Row], labels: list[int], c: MeanShift) -> dict[str, float]:
    n, weight = len(labels), c.supervised_weight
    shifts = [moved(row, memory, c) for row in rows]
    return {
        "unsupervised": (1 - weight) * contrast(shifts, [*range(n), *range(n)], c.temperature),
        "supervised": weight * contrast(rows, [*labels, *labels], c.supervised_temperature),
    }


def with_memory(c: MeanShift, memory: Tensor) -> Cms:
    method = Cms(convnet(), c, PROBLEM)
    method.memory = memory
    return method


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("m", [1, 2, 3, 4, 11])
def test_losses_match_a_loop_over_views(case: str, m: int) -> None:
    labels = CASES[case][0]
    rows, memory = unit(2 * len(labels)), unit(m, seed=1)
    got = values(with_memory(SMALL, memory).losses(batch_of(rows, labels)))
    assert list(got) == LOSSES
    # Some hundred operations in float64, whose errors a temperature of 0.07 multiplies by 15.
    assert got == pytest.approx(oracle(rows.tolist(), memory.tolist(), labels, SMALL), rel=1e-11, abs=1e-11)


CHANGES: dict[str, tuple[Any, str]] = {  # another value, and the losses that depend on it
    "neighbours": (5, "unsupervised"),
    "shift": (0.2, "unsupervised"),
    "temperature": (0.5, "unsupervised"),
    "supervised_temperature": (0.5, "supervised"),
    "supervised_weight": (0.5, "unsupervised supervised"),
    "hidden": (8, ""),  # of the head
    "bottleneck": (4, ""),
    "patience": (1, ""),  # of clustering
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_constant_changes_the_right_losses_by_the_right_amount(name: str) -> None:
    assert list(CHANGES) == [each.name for each in fields(MeanShift)]
    labels, rows, memory = CASES["mixed"][0], unit(12), unit(9, seed=1)
    changed = replace(SMALL, **{name: CHANGES[name][0]})
    before, after = (values(with_memory(c, memory).losses(batch_of(rows, labels))) for c in (SMALL, changed))
    assert " ".join(loss for loss in LOSSES if before[loss] != pytest.approx(after[loss], rel=1e-9)) == CHANGES[name][1]
    assert after == pytest.approx(oracle(rows.tolist(), memory.tolist(), labels, changed), rel=1e-11, abs=1e-11)


def test_gradients_match_differences() -> None:
    """They pass the shift, but neither the choice of neighbours nor the memory."""
    method, labels = with_memory(SMALL, unit(9, seed=1)), CASES["mixed"][0]

    def total(rows: Tensor) -> Tensor:
        return torch.stack([*method.losses(batch_of(rows, labels)).values()]).sum()

    assert torch.autograd.gradcheck(total, unit(12).requires_grad_())


def test_the_memory_is_that_of_the_epoch_and_has_no_gradient() -> None:
    method = Cms(convnet(), SMALL, PROBLEM)
    for seed in (0, 1):
        features = torch.randn(5, 512, generator=torch.Generator().manual_seed(seed))
        start_epoch(method, features, [-1] * 5)
        torch.testing.assert_close(method.memory, nnf.normalize(method.head(features).detach(), dim=1))
    assert not method.memory.requires_grad
    assert "memory" in TrainingState(method, Training()).weights(), "which checkpoints hold"
    assert "memory" not in method.state_dict(), "which identifies a run before it starts"


def test_shifting_draws_images_of_a_group_together() -> None:
    centres = unit(3, 16)
    rows = nnf.normalize(centres.repeat_interleave(20, 0) + 0.15 * unit(60, 16, seed=1), dim=1)
    groups = torch.arange(3).repeat_interleave(20)

    def spread(x: Tensor) -> float:
        return float(torch.stack([x[groups == each].var(0).sum() for each in range(3)]).mean())

    assert spread(shifted(rows, rows, MeanShift())) < 0.5 * spread(rows)


# Clusters


def groups(
    n: int, k: int, *, noise: float, known: int, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Rows around k directions, their groups, and labels of every other row of the first groups."""
    generator = np.random.default_rng(seed)
    truth = np.arange(n) % k
    rows = np.linalg.qr(generator.normal(size=(16, 16)))[0][:k][truth] + noise * generator.normal(size=(n, 16))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return rows, truth, np.where((truth < known) & (np.arange(n) // k % 2 == 0), truth, -1)


def accuracy(labels: NDArray[Any], clusters: NDArray[Any]) -> float:
    return metrics.accuracy(labels[labels >= 0], clusters[labels >= 0], old=np.unique(labels[labels >= 0])).all or 0.0


@pytest.mark.parametrize("seed", range(3))
def test_the_best_cut_is_that_with_the_widest_gap_of_the_most_accurate(seed: int) -> None:
    x, _, labels = groups(60, 6, noise=0.25, known=3, seed=seed)
    tree = linkage(x, "ward")
    # Not fcluster: that of SciPy 1.13 makes at most n − 2 clusters.
    cuts = {k: cut_tree(tree, k)[:, 0] for k in range(1, 61)}
    scores = {k: accuracy(labels, each) for k, each in cuts.items()}
    heights = [0.0, *tree[:, 2].tolist()]
    best = max(scores, key=lambda k: (scores[k], heights[61 - k] - heights[60 - k] if k > 1 else 0.0))
    score, found = best_cut(x, labels, None)
    assert score == scores[best]
    assert len({*found.tolist()}) == len({*zip(found.tolist(), cuts[best].tolist(), strict=True)}) == best
    for k in (1, 2, 7, 60):
        score, found = best_cut(x, labels, k)
        assert score == scores[k]
        assert len({*found.tolist()}) == len({*zip(found.tolist(), cuts[k].tolist(), strict=True)}) == k


@pytest.mark.parametrize("k", [6, None])
def test_clusters_are_the_groups_that_there_are(k: int | None) -> None:
    x, truth, labels = groups(240, 6, noise=0.05, known=3)
    found = cluster(x, labels, k, MeanShift(), 0)
    assert metrics.accuracy(truth, found, old=range(3)).all == 1.0


def test_without_labels_the_widest_gap_of_the_tree_decides() -> None:
    x, truth, labels = groups(240, 6, noise=0.05, known=0)
    assert metrics.accuracy(truth, cluster(x, labels, None, MeanShift(), 0), old=()).all == 1.0
    assert cluster(x[:1], labels[:1], None, MeanShift(), 0).tolist() == [0]


def test_shifting_ends_when_labelled_images_no_longer_improve(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, seen = [0.5, 0.4, 0.6, 0.6, 0.3, 0.9], []

    def cut(x: NDArray[Any], labels: NDArray[Any], k: int | None) -> tuple[float, NDArray[Any]]:
        seen.append(x)
        return scores[len(seen) - 1], np.full(len(x), len(seen))

    monkeypatch.setattr(cms, "best_cut", cut)
    x, _, labels = groups(30, 3, noise=0.2, known=2)
    assert cluster(x, labels, 3, MeanShift(), 0).tolist() == [3] * 30
    assert len(seen) == 5
    first = torch.from_numpy(seen[0])
    torch.testing.assert_close(torch.from_numpy(seen[1]), shifted(first, first, MeanShift()))
    seen.clear()
    assert cluster(x, labels, 3, MeanShift(patience=1), 0).tolist() == [1] * 30


def test_a_tree_too_large_for_memory_is_one_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth, labels = groups(120, 6, noise=0.05, known=3)
    monkeypatch.setattr(cms, "WARD_ROWS", 60)
    monkeypatch.setattr(cms, "SHIFTED_AT_ONCE", 500)  # several blocks
    found = cluster(x, labels, 6, MeanShift(), 0)
    inside = found >= 0
    assert inside.sum() == 60
    assert inside[labels >= 0].all()
    assert metrics.accuracy(truth[inside], found[inside], old=range(3)).all == 1.0
    assert np.array_equal(found, cluster(x, labels, 6, MeanShift(), 0))


def test_a_cut_has_at_most_so_many_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, labels = groups(60, 6, noise=0.25, known=3)
    monkeypatch.setattr(cms, "WARD_CLUSTERS", 5)
    assert len({*best_cut(x, labels, None)[1].tolist()}) <= 5
    assert len({*best_cut(x, labels, 7)[1].tolist()}) == 7, "unless it is given"
