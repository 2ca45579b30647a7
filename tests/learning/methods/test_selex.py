"""SelEx: its losses against loops over views, flat and curved, gradients, and the hierarchy: caps, labels, nesting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from math import acosh, dist, exp, log, sqrt, tanh
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from support.thorough import thorough_but
from support.tiny_methods import CASES, Row, batch_of, contrast, convnet, dot, mean, small, start_epoch, values
from torch import Tensor

from sortal import metrics
from sortal.config import Training
from sortal.config.rivals import SelfExpertise
from sortal.learning.methods.method import Problem
from sortal.learning.methods.selex import (
    Level,
    Selex,
    cluster,
    gaps,
    halvings,
    hierarchy,
    kmeans,
    means,
    nearness,
    on_ball,
)

D, WIDTH, IMAGES = 8, 5, 9  # of projections and features in synthetic outputs, and images in all
SMALL = SelfExpertise(smoothing=0.4, hidden=16, bottleneck=D)
CURVED = replace(SMALL, curvature=0.1)


def unit(row: Row) -> Row:
    return [value / sqrt(dot(row, row)) for value in row]


def cosine(one: Row, other: Row) -> float:
    return dot(unit(one), unit(other))


def mapped(row: Row, c: SelfExpertise) -> Row:
    """The exponential map at the centre of the ball, tanh(√c ‖v‖) v / (√c ‖v‖), of a row that was cut to a length."""
    length, root = sqrt(dot(row, row)), sqrt(c.curvature)
    return [tanh(root * min(length, c.radius)) / root * value / length for value in row]


def hyperbolic(one: Row, other: Row, curvature: float) -> float:
    """The distance on the Poincaré ball of this curvature, c: arcosh(1 + 2c‖x−y‖² / ((1−c‖x‖²)(1−c‖y‖²))) / √c."""
    room = [1 - curvature * dot(row, row) for row in (one, other)]
    return acosh(1 + 2 * curvature * dist(one, other) ** 2 / (room[0] * room[1])) / sqrt(curvature)


def oracle(
    rows: list[Row], labels: list[int], clusters: list[list[int]], reach: list[Row], c: SelfExpertise, progress: float
) -> dict[str, float]:
    """Mix the losses by cosines, more and more, with those by distances on the ball."""
    projections, features = [row[: c.bottleneck] for row in rows], [row[c.bottleneck :] for row in rows]
    flat = by_similarity(projections, features, labels, clusters, reach, c, cosine)
    if not c.curvature:
        return flat
    ball = [mapped(row, c) for row in projections]
    curved = by_similarity(
        ball, features, labels, clusters, reach, c, lambda one, other: -hyperbolic(one, other, c.curvature)
    )
    share = c.curved * progress
    return {name: (1 - share) * flat[name] + share * curved[name] for name in flat}


def by_similarity(
    projections: list[Row],
    features: list[Row],
    labels: list[int],
    clusters: list[list[int]],
    reach: list[Row],
    c: SelfExpertise,
    similarity: Callable[[Row, Row], float],
) -> dict[str, float]:
    """Follow the formulas, view by view."""
    n, both = len(labels), [*labels, *labels]
    views, of = range(2 * n), [*range(n), *range(n)]
    costs = []
    for a in views:
        others = [b for b in views if b != a]
        scores = {b: exp(similarity(projections[a], projections[b]) / c.temperature) for b in others}
        chances = {b: score / sum(scores.values()) for b, score in scores.items()}
        far = {
            b: sum(2.0**-i for i, each in enumerate(reach) if dist(features[a], features[b]) > each[of[b]])
            for b in others
        }
        total = sum(far.values())
        own = {b: float(of[b] == of[a]) for b in others}
        target = {b: (1 - c.smoothing) * own[b] + c.smoothing * (far[b] / total if total else own[b]) for b in others}
        costs.append(-sum(target[b] * log(chances[b]) for b in others))
    weight, temperature = c.supervised_weight, c.supervised_temperature
    found = {"unsupervised": (1 - weight) * mean(costs)}
    found["supervised"] = weight / 2 * contrast(projections, both, temperature, similarity)
    for i, each in enumerate(clusters):
        parts = [row[: max(c.bottleneck // 2 ** (i + 1), 1)] for row in projections]
        loss = contrast(parts, [each[image] for image in of], temperature, similarity)
        found[f"level_{i}"] = weight / 2 * 0.5 ** (i + 1) * loss
    return found


def synthetic(n: int, seed: int = 0) -> Tensor:
    """Make outputs of 2n views."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(2 * n, width, generator=generator, dtype=torch.float64) for width in (D, WIDTH)]
    return torch.cat([nnf.normalize(part, dim=1) for part in parts], dim=1)


def a_method(known: list[int], k: int, c: SelfExpertise = SMALL, *, far: float = 1.0) -> Selex:
    """Make a method with clusters of `IMAGES` images, which reach about as far as others are."""
    method = Selex(convnet(), c, Problem(k=k, known=tuple(known), training=Training()))
    generator, shape = torch.Generator().manual_seed(1), (len(method.sizes), IMAGES)
    method.clusters = torch.randint(0, 3, shape, generator=generator)
    method.reach = far * (1 + torch.rand(shape, generator=generator, dtype=torch.float64))
    return method


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("far", "c", "progress"), [(0.0, SMALL, 0.0), (0.9, SMALL, 0.5), (9.0, SMALL, 0.0), (0.9, CURVED, 0.25)]
)
def test_losses_match_a_loop_over_views(case: str, far: float, c: SelfExpertise, progress: float) -> None:
    labels, known, k = CASES[case]
    method, outputs = a_method(known, k, c, far=far), synthetic(len(labels))
    got = values(method.losses(batch_of(outputs, labels, progress)))
    levels = {0: 1, 1: 1, 2: 2, 3: 3}[len(known)]
    assert list(got) == ["unsupervised", "supervised", *(f"level_{i}" for i in range(levels))]
    expected = oracle(outputs.tolist(), labels, method.clusters.tolist(), method.reach.tolist(), c, progress)
    # Some hundred operations in float64, whose errors a temperature of 0.07 multiplies by 15.
    assert got == pytest.approx(expected, rel=1e-11, abs=1e-11)


CHANGES: dict[str, tuple[Any, str]] = {  # another value, and the losses that depend on it
    "smoothing": (1.0, "unsupervised"),
    "temperature": (0.5, "unsupervised"),
    "supervised_temperature": (0.5, "supervised level_0 level_1"),
    "supervised_weight": (0.5, "unsupervised supervised level_0 level_1"),
    "capped": (3, ""),
    "hidden": (24, ""),
    "bottleneck": (4, "unsupervised supervised level_0 level_1"),  # other columns of the same rows
    "curvature": (0.3, "unsupervised supervised level_0 level_1"),
    "radius": (0.5, "unsupervised supervised level_0 level_1"),
    "curved": (0.5, "unsupervised supervised level_0 level_1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_constant_changes_the_right_losses_by_the_right_amount(name: str) -> None:
    assert list(CHANGES) == [each.name for each in fields(SelfExpertise)]
    labels, known, k = CASES["mixed"]
    changed, outputs = replace(CURVED, **{name: CHANGES[name][0]}), synthetic(6)
    before, after = (values(a_method(known, k, c).losses(batch_of(outputs, labels, 0.5))) for c in (CURVED, changed))
    assert " ".join(loss for loss in before if before[loss] != pytest.approx(after[loss], rel=1e-9)) == CHANGES[name][1]
    method = a_method(known, k)
    expected = oracle(outputs.tolist(), labels, method.clusters.tolist(), method.reach.tolist(), changed, 0.5)
    assert after == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("c", thorough_but([SMALL], [SMALL, CURVED]), ids=["flat", "curved"])
def test_gradients_match_differences_and_reach_projections_only(c: SelfExpertise) -> None:
    """Features decide only what is far. On the ball, some of the projections are cut to its radius."""
    labels, method, outputs = CASES["mixed"][0], a_method([0, 1], 5, c), synthetic(6)
    outputs[:, :D] *= torch.linspace(0.5, 3, 12)[:, None]

    def total(projected: Tensor) -> Tensor:
        whole = torch.cat([projected, outputs[:, D:]], dim=1)
        return torch.stack([*method.losses(batch_of(whole, labels, 0.5)).values()]).sum()

    assert torch.autograd.gradcheck(total, outputs[:, :D].clone().requires_grad_())
    batch = batch_of(outputs.requires_grad_(), labels)
    (gradient,) = torch.autograd.grad(torch.stack([*method.losses(batch).values()]).sum(), outputs)
    assert gradient[:, :D].any(1).all()
    assert not gradient[:, D:].any()


def test_distances_of_equal_and_of_empty_rows_have_finite_gradients() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 2.0], [1.0, 2.0], [300.0, -400.0]], requires_grad=True)
    found = nearness(on_ball(rows, 0.1, 2.0), 0.1)
    assert found.diagonal().tolist() == [0] * 4
    assert found[1, 2] == 0
    # From the centre, the distance on the ball is twice the length before the map: 2 artanh(tanh √c‖v‖) / √c.
    # Some ten operations in float32 on numbers of about 4.
    assert found[0].tolist() == pytest.approx([0, -4, -4, -4], abs=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), rows)
    assert gradient.isfinite().all()
    assert gradient[1].any()


def test_an_epoch_starts_with_new_clusters_that_know_the_labels() -> None:
    method = small("selex", k=6, known=[2, 5, 7])
    labels = [2, 5, 7, -1, -1, 2, 5, -1, -1, -1, -1, -1]
    x = torch.randn(12, 512, generator=torch.Generator().manual_seed(0))
    start_epoch(method, x, labels)
    first = method.clusters.clone()
    assert first.shape == method.reach.shape == (3, 12)
    assert [first[0, i].item() for i in (0, 1, 2, 5, 6)] == [0, 1, 2, 0, 1]
    rows = nnf.normalize(x, dim=1)
    centres = means(rows, first[0], torch.zeros(6, 512)).tolist()
    nearest = [min(dist(one, other) for other in centres if other != one) for one in centres]
    # Norms of rows of length 1 and 512 numbers each in float32; by products, which cancel.
    torch.testing.assert_close(method.reach[0], torch.tensor(nearest)[first[0]], rtol=0, atol=1e-3)
    place = method.clusters.data_ptr()
    start_epoch(method, x, labels, epoch=0)
    assert torch.equal(method.clusters, first), "the same for the same epoch"
    start_epoch(method, -x.flip(0), labels, epoch=1)
    assert not torch.equal(method.clusters, first)
    assert method.clusters.data_ptr() == place
    assert not {"clusters", "reach"} & {*method.state_dict()}, "which identifies a run before it starts"


def test_gaps_are_distances_to_the_nearest_other_centre() -> None:
    assert gaps(torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])).tolist() == pytest.approx([5, 1, 1])
    assert gaps(torch.ones(1, 2)).tolist() == [0]


# The hierarchy


def blobs(sizes: list[int], *, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    centres = torch.eye(len(sizes), 16, dtype=torch.float64)
    return centres[truth] + noise * torch.randn(len(truth), 16, generator=generator, dtype=torch.float64), truth


def test_levels_are_halved_until_one_known_group_is_left() -> None:
    assert halvings(100, 100) == [(100, 100), (50, 50), (25, 25), (13, 13), (7, 7), (4, 4), (2, 2), (1, 1)]
    assert halvings(3, 1) == [(3, 1), (2, 1), (1, 1)]
    assert halvings(1, 7) == [(1, 7)]
    assert halvings(0, 7) == [(0, 7)]
    assert halvings(2, 0) == [(2, 0), (1, 0)]


def test_every_level_groups_the_one_below_and_never_known_with_new() -> None:
    x, truth = blobs([12] * 7)
    ids = torch.where((truth < 4) & (torch.arange(len(truth)) % 2 == 0), truth, -1)
    sizes = halvings(4, 3)
    levels = hierarchy(x, ids, sizes, 10, np.random.default_rng(0))
    assert [len(level.centres) for level in levels] == [7, 4, 2]
    assert torch.equal(levels[0].of[ids >= 0], ids[ids >= 0])
    for below, above, (known, _), (groups, _) in zip(levels, levels[1:], sizes, sizes[1:], strict=False):
        pairs = {*zip(below.of.tolist(), above.of.tolist(), strict=True)}
        assert len(pairs) == len({*below.of.tolist()})
        assert all((one < known) == (other < groups) for one, other in pairs)
        torch.testing.assert_close(above.centres, means(x, above.of, above.centres))
    assert metrics.accuracy(truth.tolist(), levels[0].of.tolist(), old=range(4)).all == 1.0


@pytest.mark.parametrize(("n", "k"), [(24, 4), (25, 4), (7, 7), (5, 8)])
def test_capped_clusters_have_at_most_the_mean_size(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sortal.learning.methods.selex.FREE_ITERATIONS", 0)
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0)).abs()
    found = kmeans(x, torch.full((n,), -1), k, 5, np.random.default_rng(0))
    assert torch.bincount(found.of, minlength=k).max() <= -(-n // k)
    ids = torch.where(torch.arange(n) < n // 2, 0, -1)  # a class larger than the cap keeps its own, and gets no other
    found = kmeans(x, ids, k, 5, np.random.default_rng(0))
    assert (found.of[: n // 2] == 0).all()
    assert torch.bincount(found.of, minlength=k)[1:].max() <= -(-n // k)
    assert (found.of >= 0).all()


def test_free_iterations_end_where_every_row_is_at_its_nearest_centre() -> None:
    x, truth = blobs([30, 6, 6, 6])  # which a cap alone would cut
    ids = torch.where(torch.arange(len(x)) < 3, truth, -1)
    found = kmeans(x, ids, 4, 10, np.random.default_rng(0))
    torch.testing.assert_close(found.centres, means(x, found.of, found.centres))
    assert torch.equal(torch.cdist(x, found.centres).argmin(1)[ids < 0], found.of[ids < 0])


def test_clusters_are_those_of_training() -> None:
    x, truth = blobs([20] * 5)
    labels = torch.where((truth < 2) & (torch.arange(100) % 2 == 0), 3 * truth + 1, -1).numpy()
    found = cluster(x.numpy(), labels, 5, SelfExpertise(), 0)
    assert metrics.accuracy(truth.tolist(), found.tolist(), old=range(2)).all == 1.0
    assert found[labels == 1].tolist() == [0] * 10
    assert found[labels == 4].tolist() == [1] * 10


def test_clusters_of_equal_rows_and_of_none_are_defined() -> None:
    alike = kmeans(torch.ones(4, 2), torch.full((4,), -1), 3, 2, np.random.default_rng(0))
    assert alike.centres.isfinite().all()
    empty = kmeans(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 0, 2, np.random.default_rng(0))
    assert (type(empty), empty.of.shape, empty.centres.shape) == (Level, (0,), (0, 2))
