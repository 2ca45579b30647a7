"""MGCE's graph: its losses and memory against loops, the graph against a loop over pairs, and communities."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from support.tiny_methods import CASES, Row, batch_of, contrast, convnet, dot, mean, small, softmax, start_epoch, values
from torch import Tensor

from sortal import metrics
from sortal.config import Training
from sortal.config.rivals import Communities
from sortal.errors import InputError
from sortal.learning.methods import mgce
from sortal.learning.methods.method import Problem
from sortal.learning.methods.mgce import Mgce, cluster, detected, graph, neighbours_of

pytest.importorskip("sknetwork")

D, WIDTH, IMAGES, COUNT = 3, 5, 9, 3  # of projections and features in synthetic outputs; images and communities
SMALL = Communities(hidden=16, bottleneck=D)


def oracle(
    rows: list[Row],
    labels: list[int],
    known: list[int],
    community: list[int],
    memory: list[Row],
    c: Communities,
    t: float,
) -> dict[str, float]:
    """Follow the formulas, view by view; a row is a projection, the cosines to known classes and a feature."""
    n, both, at = len(labels), [*labels, *labels], c.bottleneck + len(known)
    projections, features = [row[: c.bottleneck] for row in rows], [row[at:] for row in rows]
    chances = [softmax(row[c.bottleneck : at], c.student_temperature) if known else [] for row in rows]
    classified = [-log(chances[view][known.index(label)]) for view, label in enumerate(both) if label >= 0]
    costs = []
    for view, feature in enumerate(features):
        if (own := community[view % n]) >= 0:
            scores = [exp(dot(feature, each) / c.community_temperature) for each in memory[:COUNT]]
            costs.append(-log(scores[own] / sum(scores)))
    weight, risen = c.supervised_weight, min(t / c.ramp, 1)
    return {
        "classification": weight * mean(classified),
        "unsupervised": (1 - weight) * contrast(projections, [*range(n), *range(n)], c.temperature),
        "supervised": weight * contrast(projections, both, c.supervised_temperature),
        "communities": (c.first_weight + (c.last_weight - c.first_weight) * risen) * mean(costs),
    }


def synthetic(n: int, known: int, seed: int = 0) -> Tensor:
    """Make outputs of 2n views."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(2 * n, width, generator=generator, dtype=torch.float64) for width in (D, known, WIDTH)]
    return torch.cat([nnf.normalize(parts[0], dim=1), 0.3 * parts[1], nnf.normalize(parts[2], dim=1)], dim=1)


def a_method(known: list[int], c: Communities = SMALL) -> Mgce:
    """Make a method with three communities, of which there could be five; some images are in none."""
    method = Mgce(convnet(), c, Problem(k=0, known=tuple(known), training=Training()))
    generator = torch.Generator().manual_seed(1)
    method.community = torch.randint(-1, COUNT, (IMAGES,), generator=generator)
    method.memory = nnf.normalize(torch.randn(5, WIDTH, generator=generator, dtype=torch.float64), dim=1)
    method.count = torch.tensor(COUNT)
    return method


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("progress", [0.0, 0.2, 0.7])
def test_losses_match_a_loop_over_views(case: str, progress: float) -> None:
    labels, known, _ = CASES[case]
    method, outputs = a_method(known), synthetic(len(labels), len(known))
    got = values(method.losses(batch_of(outputs, labels, progress)))
    community, memory = method.community.tolist(), method.memory.tolist()
    expected = oracle(outputs.tolist(), labels, known, community, memory, SMALL, progress)
    assert list(got) == list(expected)
    # Progress is in float32, with an error of 6e-8 at most; it changes one weight.
    assert got == pytest.approx(expected, rel=1e-7, abs=1e-11)


CHANGES: dict[str, tuple[Any, str]] = {  # another value, and the losses that depend on it
    "neighbours": (7, ""),
    "similarity": (0.1, ""),
    "fewest": (2, ""),
    "community_temperature": (0.5, "communities"),
    "first_weight": (0.05, "communities"),
    "last_weight": (0.5, "communities"),
    "ramp": (1.0, "communities"),
    "momentum": (0.5, ""),
    "student_temperature": (0.5, "classification"),
    "temperature": (0.5, "unsupervised"),
    "supervised_temperature": (0.5, "supervised"),
    "supervised_weight": (0.5, "classification unsupervised supervised"),
    "hidden": (24, ""),
    "bottleneck": (D, ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_constant_changes_the_right_losses_by_the_right_amount(name: str) -> None:
    assert list(CHANGES) == [each.name for each in fields(Communities)]
    labels, known, _ = CASES["mixed"]
    changed, outputs = replace(SMALL, **{name: CHANGES[name][0]}), synthetic(6, 2)
    before, after = (values(a_method(known, c).losses(batch_of(outputs, labels, 0.25))) for c in (SMALL, changed))
    assert " ".join(loss for loss in before if before[loss] != pytest.approx(after[loss], rel=1e-9)) == CHANGES[name][1]
    method = a_method(known)
    community, memory = method.community.tolist(), method.memory.tolist()
    expected = oracle(outputs.tolist(), labels, known, community, memory, changed, 0.25)
    assert after == pytest.approx(expected, rel=1e-7, abs=1e-11)


def test_gradients_match_differences() -> None:
    method, labels = a_method([0, 1]), CASES["mixed"][0]

    def total(outputs: Tensor) -> Tensor:
        return torch.stack([*method.losses(batch_of(outputs, labels, 0.25)).values()]).sum()

    assert torch.autograd.gradcheck(total, synthetic(6, 2).requires_grad_())


def test_a_step_moves_the_memory_of_the_communities_in_its_batch() -> None:
    method, outputs = a_method([0, 1]), synthetic(4, 2)
    community = [0, 2, 0, -1]
    method.community = torch.tensor([*community, 1, 1, 1, 1, 1])
    before = method.memory.tolist()
    method.after_step(batch_of(outputs, [-1] * 4))
    features = outputs[:, -WIDTH:].tolist()
    for number, old in enumerate(before):
        views = [row for view, row in enumerate(features) if community[view % 4] == number]
        sums = [0.1 * a + 0.9 * mean([row[j] for row in views]) for j, a in enumerate(old)] if views else old
        length = sqrt(dot(sums, sums)) if views else 1.0
        assert method.memory[number].tolist() == pytest.approx([value / length for value in sums], rel=1e-12)


def test_an_epoch_starts_with_the_communities_of_the_features_and_keeps_the_neighbours() -> None:
    centres = torch.eye(4, 512).repeat_interleave(6, 0)
    x = nnf.normalize(centres + 0.01 * torch.randn(24, 512, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = [0] * 3 + [-1] * 3 + [1] * 3 + [-1] * 15
    method = small("mgce", losses=Communities(hidden=16, bottleneck=8))
    start_epoch(method, x, labels)
    assert int(method.count) == 4
    of = method.community.view(4, 6)
    assert (of == of[:, :1]).all()
    assert {*of[:, 0].tolist()} == {0, 1, 2, 3}
    means = nnf.normalize(x.view(4, 6, 512).mean(1), dim=1)[of[:, 0].argsort()]
    torch.testing.assert_close(method.memory[:4], means, rtol=1e-5, atol=1e-6)
    chosen = int(method.nearest)
    assert chosen in mgce.TRIED_NEIGHBOURS
    start_epoch(method, x.flip(0), [-1] * 24, epoch=1)
    assert int(method.nearest) == chosen, "by the features before training"
    assert not {"community", "memory", "count", "nearest"} & {*method.state_dict()}


# The graph


def groups(k: int, each: int, *, noise: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    truth = np.repeat(np.arange(k), each)
    x = np.eye(16)[truth] + noise * np.random.default_rng(0).normal(size=(k * each, 16))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), truth


@pytest.mark.parametrize("at_once", [1, 100, 10**6])
def test_the_graph_matches_a_loop_over_pairs(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mgce, "EDGES_AT_ONCE", at_once)
    x, truth = groups(3, 6, noise=0.25)
    labels, n, rows = np.where(np.arange(18) % 2 == 0, truth, -1), 18, x.tolist()
    expected = np.zeros((n, n))
    for a in range(n):
        ranked = sorted((-dot(rows[a], rows[b]), b) for b in range(n) if b != a)
        near = [b for _, b in ranked[:5]]
        for b in near:
            cosine = dot(rows[a], rows[b])
            alike = labels[a] == labels[b] >= 0
            if cosine >= 0.6:
                expected[a, b] = dot(rows[a], rows[near[0]]) if alike else cosine
    expected = np.maximum(expected, expected.T)
    found = graph(x, labels, 5, 0.6)
    # 16 products in float32, each of at most 1.
    np.testing.assert_allclose(found.toarray(), expected, rtol=0, atol=16 * 2.0**-23)
    assert found.nnz == (expected > 0).sum()
    assert 0 < found.nnz < n * (n - 1)


def test_communities_are_groups_and_small_ones_are_dropped() -> None:
    x, truth = groups(4, 8, noise=0.05)
    found = detected(graph(x, np.full(32, -1), 5, 0.6), 5, 0)
    assert metrics.accuracy(truth, found, old=()).all == 1.0
    assert {*found.tolist()} == {0, 1, 2, 3}
    few = np.concatenate([np.arange(24), [24, 25]])
    found = detected(graph(x[few], np.full(26, -1), 5, 0.6), 5, 0)
    assert found[24:].tolist() == [-1, -1]
    assert {*found[:24].tolist()} == {0, 1, 2}
    assert detected(graph(x, np.full(32, -1), 5, 0.99999), 5, 0).tolist() == [-1] * 32, "no edges"


def test_the_number_of_neighbours_follows_the_labels_unless_it_is_given() -> None:
    x, truth = groups(8, 30, noise=0.2)
    labels = np.where((truth < 4) & (np.arange(240) % 2 == 0), truth, -1)

    def agreement(count: int) -> float:
        found = detected(graph(x, np.full(240, -1), count, 0.6), 1, 0)[labels >= 0]
        k = len({*found.tolist()})
        return (metrics.accuracy(labels[labels >= 0], found, old=range(4)).all or 0) * (1 - abs(4 - k) / k)

    scores = {count: agreement(count) for count in mgce.TRIED_NEIGHBOURS}
    chosen = neighbours_of(x, labels, Communities(), 0)
    assert scores[chosen] == max(scores.values())
    assert neighbours_of(x, labels, Communities(neighbours=7), 0) == 7
    assert neighbours_of(x, np.full(240, -1), Communities(), 0) == 10


def test_clusters_are_communities_and_a_given_k_their_resolution() -> None:
    x, truth = groups(6, 30, noise=0.15)
    labels = np.where((truth < 3) & (np.arange(180) % 2 == 0), truth, -1)
    found = cluster(x, labels, None, Communities(), 0)
    assert metrics.accuracy(truth, found, old=range(3)).all == 1.0
    ks = [len({*cluster(x, labels, k, Communities(), 0).tolist()} - {-1}) for k in (6, 20)]
    assert ks[0] == 6
    assert 10 <= ks[1] <= 30
    assert cluster(x[:1], labels[:1], None, Communities(), 0).tolist() == [0]
    assert cluster(x[:2], labels[:2], None, Communities(), 0).tolist() == [0, 0], "too few for a community"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sknetwork.clustering", None)
    with pytest.raises(InputError, match=r"^The method mgce needs scikit-network: pip install 'sortal\[graph\]' \("):
        cluster(*groups(2, 9, noise=0.1), None, Communities(), 0)
