"""Losses: the paper's equations as slow loops, points at known angles, finite differences, empty batches."""

from math import cos, exp, log, radians, sin
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tiny_methods import contrast, sinkhorn_knopp
from torch import Tensor

from sortal.learning.losses import (
    classification,
    contrastive,
    divergence,
    entropy_deficit,
    pairwise,
    same_top_features,
    sinkhorn,
    soft_classification,
)

Rows = NDArray[np.float64]
untimed = settings(deadline=None)


def unit_rows(n: int, d: int, seed: int) -> Rows:
    x = np.random.default_rng(seed).normal(size=(n, d)) + 1e-3
    rows: Rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    return rows


def at_angles(*degrees: float) -> Tensor:
    return torch.tensor([[cos(radians(a)), sin(radians(a))] for a in degrees])


def loss_of(rows: Rows | Tensor, ids: list[int], temperature: float) -> float:
    return float(contrastive(torch.as_tensor(rows), torch.tensor(ids, dtype=torch.int64), temperature=temperature))


def gradient_of(rows: Rows | Tensor, ids: list[int], temperature: float) -> Tensor:
    leaf = torch.as_tensor(rows).clone().requires_grad_()
    contrastive(leaf, torch.tensor(ids, dtype=torch.int64), temperature=temperature).backward()
    assert leaf.grad is not None
    return leaf.grad


@st.composite
def batches(draw: st.DrawFn) -> tuple[Rows, list[int], float]:
    """Draw up to 12 rows of up to 5 numbers, a few ids, some of them −1, and a temperature."""
    ids = draw(st.lists(st.sampled_from([-1, -1, 0, 1, 2, 7, 2**40]), max_size=12))
    rows = unit_rows(len(ids), draw(st.integers(1, 5)), draw(st.integers(0, 2**32)))
    return rows, ids, draw(st.floats(0.02, 10))


# The paper's equations


@untimed
@given(batches())
def test_the_contrastive_loss_is_equation_2_over_the_rows_with_an_id(batch: tuple[Rows, list[int], float]) -> None:
    rows, ids, temperature = batch
    assert loss_of(*batch) == pytest.approx(contrast(rows.tolist(), ids, temperature), rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=20)
@given(batches())
def test_gradients_are_finite_differences(batch: tuple[Rows, list[int], float]) -> None:
    rows, ids, temperature = torch.from_numpy(batch[0]).requires_grad_(), torch.tensor(batch[1]), max(batch[2], 0.1)
    if len(ids):
        assert contrastive(rows, ids, temperature=temperature).dtype == torch.float64
        assert torch.autograd.gradcheck(lambda x: contrastive(x, ids, temperature=temperature), rows)


# Hand-computed


def test_points_at_known_angles() -> None:
    # At a temperature of a half, a partner at −1, others at 1 and −1: log(1 + 1 + e^4).
    assert loss_of(at_angles(0, 0, 180, 180), [0, 1, 0, 1], 0.5) == pytest.approx(log(2 + exp(4)), abs=1e-5)
    # 90° has no other of its id, but pushes 0° and 60° away: −0.5 + log(e^0.5 + 1) and −0.5 + log(e^0.5 + e^0.866025).
    alone = (log(2.648721) + log(4.026164)) / 2 - 0.5
    assert loss_of(at_angles(0, 60, 90), [0, 0, 1], 1.0) == pytest.approx(alone, abs=1e-6)
    assert loss_of(at_angles(0, 60, 90), [0, 0, -1], 1.0) == pytest.approx(0.0, abs=1e-6)  # unless unlabelled


# Rows that are ignored


@pytest.mark.parametrize("ids", [[], [3], [-1], [-1, -1, -1, -1], [0, 1, 2], [-1, 2, -1]])
def test_without_an_anchor_the_loss_is_0_and_so_are_its_gradients(ids: list[int]) -> None:
    rows = unit_rows(len(ids), 3, seed=1)
    assert loss_of(rows, ids, 0.01) == 0.0
    assert torch.equal(gradient_of(rows, ids, 0.01), torch.zeros(len(ids), 3, dtype=torch.float64))


def test_images_of_a_group_do_not_repel_each_other() -> None:
    rows = at_angles(0, 10, 100, 120, 200, 230)
    ids, groups = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([5, 5, 5, 5, 6, 6])
    found = contrastive(rows, ids, temperature=0.5, groups=groups)
    # Views of the first two images have each other and the third as negatives, but not one another's.
    scores = (rows @ rows.T / 0.5).tolist()
    parts = [([1, 4, 5], 1), ([0, 4, 5], 0), ([3, 4, 5], 3), ([2, 4, 5], 2), ([0, 1, 2, 3, 5], 5), ([0, 1, 2, 3, 4], 4)]
    each = [log(sum(exp(scores[row][at]) for at in among)) - scores[row][own] for row, (among, own) in enumerate(parts)]
    assert found.item() == pytest.approx(sum(each) / 6, rel=1e-5)
    alone = contrastive(rows, ids, temperature=0.5, groups=ids)
    torch.testing.assert_close(alone, contrastive(rows, ids, temperature=0.5))


def test_ignored_rows_do_not_count_however_far_the_others_are() -> None:
    assert loss_of(at_angles(0, 180, 90, 270), [6, 6, -1, -1], 0.001) == 0.0  # scores of −1000
    assert loss_of(at_angles(0, 180, 180, 90), [6, 6, 7, -1], 0.001) == pytest.approx(1000 + log(2) / 2, rel=1e-6)


# Precision


@pytest.mark.parametrize("temperature", [0.01, 100.0])
def test_extreme_temperatures_stay_finite_in_float32(temperature: float) -> None:
    rows, ids = unit_rows(32, 4, seed=3), [i % 5 - 1 for i in range(32)]
    single = torch.from_numpy(rows).float()
    assert loss_of(single, ids, temperature) == pytest.approx(contrast(rows.tolist(), ids, temperature), rel=1e-4)
    assert gradient_of(single, ids, temperature).isfinite().all()
    worst = at_angles(0, 180, 0, 180)  # the partner opposite, another one on top: (1 − −1) / τ
    assert loss_of(worst, [0, 0, 1, 1], 0.01) == pytest.approx(200, rel=1e-5)
    assert gradient_of(worst, [0, 0, 1, 1], 0.01).isfinite().all()


def test_products_are_in_float32_even_for_bfloat16_rows_and_under_autocast() -> None:
    rows, ids = torch.from_numpy(unit_rows(16, 8, seed=4)).float(), [i % 5 - 1 for i in range(16)]
    leaf = rows.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrastive(leaf, torch.tensor(ids), temperature=0.07)
    assert float(loss.detach()) == loss_of(rows, ids, 0.07)
    assert torch.equal(torch.autograd.grad(loss, leaf)[0], gradient_of(rows, ids, 0.07))
    halves = rows.bfloat16()
    assert contrastive(halves, torch.tensor(ids), temperature=0.07).dtype == torch.float32
    assert loss_of(halves, ids, 0.07) == loss_of(halves.float(), ids, 0.07)


# Cross-entropy


@untimed
@given(st.lists(st.integers(-1, 4), max_size=8), st.integers(1, 3), st.integers(0, 2**32))
def test_cross_entropies_match_torch_over_the_selected_rows(rows: list[int], more: int, seed: int) -> None:
    ids, k = torch.tensor(rows, dtype=torch.int64), max([0, *rows]) + more
    logits, among = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(rows), k)) * 3), ids >= 0
    targets = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(k), len(logits)))
    hard, soft = classification(logits, ids), soft_classification(logits, targets, among)
    if among.any():
        torch.testing.assert_close(hard, nnf.cross_entropy(logits, ids, ignore_index=-1))
        torch.testing.assert_close(soft, nnf.cross_entropy(logits[among], targets[among]))
    else:
        assert hard == soft == 0


@pytest.mark.parametrize("shape", [(0, 3), (4, 3), (4, 0), (0, 0)])
def test_classification_of_no_rows_or_into_no_classes_is_0_with_gradients_of_0(shape: tuple[int, int]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = classification(logits, torch.full(shape[:1], -1))
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient, torch.zeros(shape))


# The mean over rows


@untimed
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 2**32), st.booleans())
def test_the_entropy_deficit_is_that_of_the_mean(n: int, k: int, seed: int, certain: bool) -> None:
    generator = np.random.default_rng(seed)
    rows = np.eye(k)[generator.integers(0, k, n)] if certain else generator.dirichlet(np.ones(k), n)
    mean = [sum(row[j] for row in rows.tolist()) / n for j in range(k)]
    expected = log(k) - sum(-p * log(p) for p in mean if p > 0)
    assert float(entropy_deficit(torch.from_numpy(rows))) == pytest.approx(expected, abs=1e-7)


# Pairs


def test_small_batches_with_a_running_mean_have_the_value_and_gradient_of_a_large_one() -> None:
    """Where the earlier rows complete the mean, each of the batches has that of all; their gradients add up to its."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.dirichlet(np.full(50, 0.1), size=60))
    among = torch.arange(60) % 10 < 7  # seven rows of each batch
    shares = torch.from_numpy(rng.dirichlet(np.ones(50)))

    def value_and_gradient(rows: Tensor, *others: Any, **options: Any) -> tuple[float, Tensor]:
        leaf = rows.clone().requires_grad_()
        value = divergence(leaf, *others, **options)
        return value.item(), torch.autograd.grad(value, leaf)[0]

    value, gradient = value_and_gradient(rows, among, shares)
    mean, weight = rows[among].mean(0), 0.2
    parts = []
    for part in torch.arange(60).chunk(6):
        before = (mean - weight * rows[part][among[part]].mean(0)) / (1 - weight)
        found = value_and_gradient(rows[part], among[part], shares, before, weight=weight)
        assert found[0] == pytest.approx(value, rel=1e-9)
        parts.append(found[1] / 6)
    torch.testing.assert_close(torch.cat(parts), gradient, rtol=1e-9, atol=1e-12)
    nobody = torch.zeros(10, dtype=torch.bool)
    assert value_and_gradient(rows[:10], nobody, shares, mean, weight=weight)[0] == pytest.approx(value, rel=1e-9)


@untimed
@given(st.integers(0, 7), st.integers(1, 6), st.integers(1, 7), st.integers(0, 2**32))
def test_rows_match_if_the_sets_of_their_largest_entries_are_equal(n: int, d: int, top: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(n, d))
    largest = [set(sorted(range(d), key=lambda j, row=row: -row[j])[:top]) for row in rows.tolist()]  # type: ignore[misc]
    expected = [[one == other for other in largest] for one in largest]
    assert same_top_features(torch.from_numpy(rows), top).tolist() == expected


def test_certain_but_wrong_pairs_have_a_finite_loss() -> None:
    rows = torch.eye(2).requires_grad_()
    wrong = ~torch.eye(2, dtype=torch.bool)
    loss = pairwise(rows, rows.detach(), wrong, torch.tensor([True, True]))
    assert float(loss.detach()) == pytest.approx(-log(1e-7), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, rows)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("ids", [[0, 2, 1, -1], [-1, -1, -1, -1]])
def test_gradients_in_double_precision(ids: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    x, first, second = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64).unbind()
    among, targets = torch.tensor(ids) >= 0, second.softmax(1)
    logits, chances = x.requires_grad_(), (first.softmax(1).requires_grad_(), second.softmax(1).requires_grad_())
    alike = torch.rand(4, 4, generator=generator) < 0.5
    assert torch.autograd.gradcheck(lambda x: classification(x, torch.tensor(ids)), logits)
    assert torch.autograd.gradcheck(lambda x: soft_classification(x, targets, among), logits)
    assert torch.autograd.gradcheck(lambda a, b: pairwise(a, b, alike, among), chances)
    assert torch.autograd.gradcheck(entropy_deficit, chances[0])


# Sinkhorn


def shares_of(scores: Rows | Tensor, among: list[bool] | None = None, *, epsilon: float, iterations: int) -> Tensor:
    rows = torch.as_tensor(scores)
    mask = torch.ones(len(rows), dtype=torch.bool) if among is None else torch.tensor(among, dtype=torch.bool)
    return sinkhorn(rows, mask, epsilon=epsilon, iterations=iterations)


def cosines(n: int, k: int, seed: int) -> Rows:
    return np.random.default_rng(seed).uniform(-1, 1, (n, k))


@untimed
@given(st.integers(1, 8), st.integers(1, 6), st.floats(0.03, 2), st.integers(1, 6), st.integers(0, 2**32))
def test_sinkhorn_matches_the_paper_s_algorithm(n: int, k: int, epsilon: float, times: int, seed: int) -> None:
    scores = cosines(n, k, seed)
    expected = np.array(sinkhorn_knopp(scores.tolist(), k, epsilon=epsilon, iterations=times))
    np.testing.assert_allclose(shares_of(scores, epsilon=epsilon, iterations=times), expected, rtol=1e-7, atol=1e-12)
    in_float32 = shares_of(torch.from_numpy(scores).float(), epsilon=epsilon, iterations=times)
    np.testing.assert_allclose(in_float32, expected, rtol=1e-3, atol=1e-5)


@untimed
@given(st.lists(st.booleans(), max_size=12), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32), st.randoms())
def test_masked_rows_have_no_share_and_no_influence(
    among: list[bool], k: int, times: int, seed: int, random: Random
) -> None:
    scores = torch.from_numpy(cosines(len(among), k, seed)).float()
    mask = torch.tensor(among, dtype=torch.bool)
    alone = shares_of(scores[mask], epsilon=0.05, iterations=times)
    for other in (0.0, 1.0, -1.0, 1e30, random.uniform(-9, 9)):
        shares = shares_of(scores.masked_fill(~mask[:, None], other), among, epsilon=0.05, iterations=times)
        torch.testing.assert_close(shares[mask], alone, rtol=1e-4, atol=1e-6)
        assert not shares[~mask].any()


@pytest.mark.parametrize("epsilon", [1e-3, 1e-12, 1e3])
def test_extreme_epsilons_give_no_nan(epsilon: float) -> None:
    scores = torch.from_numpy(cosines(9, 5, seed=1)).float()
    among = [True] * 6 + [False] * 3
    shares = shares_of(scores, among, epsilon=epsilon, iterations=3)
    assert shares.isfinite().all()
    torch.testing.assert_close(shares.sum(1), torch.tensor(among).float(), rtol=1e-5, atol=1e-5)
    if epsilon == 1e3:
        torch.testing.assert_close(shares[:6], torch.full((6, 5), 0.2), rtol=1e-2, atol=0)
