"""Losses: the paper's equations as slow loops, points at known angles, finite differences, next to nothing."""

from math import cos, exp, log, radians, sin
from random import Random

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_methods import sinkhorn_knopp
from torch import Tensor

from sortal.losses import (
    classification,
    contrastive,
    lack_of_entropy,
    pairwise,
    same_top,
    sinkhorn,
    soft_classification,
)

Rows = NDArray[np.float64]
untimed = settings(deadline=None)
temperatures = st.floats(0.02, 10)


def unit_rows(n: int, d: int, seed: int) -> Rows:
    x = np.random.default_rng(seed).normal(size=(n, d)) + 1e-3
    rows: Rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    return rows


def at_angles(*degrees: float) -> Tensor:
    return torch.tensor([[cos(radians(a)), sin(radians(a))] for a in degrees])


def loss_of(rows: Rows | Tensor, ids: list[int], temperature: float) -> float:
    return float(contrastive(torch.as_tensor(rows).float(), torch.tensor(ids), temperature=temperature))


def gradient_of(rows: Rows | Tensor, ids: list[int], temperature: float) -> Tensor:
    leaf = torch.as_tensor(rows).float().clone().requires_grad_()
    contrastive(leaf, torch.tensor(ids), temperature=temperature).backward()
    assert leaf.grad is not None
    return leaf.grad


@st.composite
def batches(draw: st.DrawFn) -> tuple[Rows, list[int], float]:
    """Up to 12 rows of up to 5 numbers, of a few ids and of none, and a temperature."""
    ids = draw(st.lists(st.sampled_from([-1, -1, 0, 1, 2, 7, 2**40]), max_size=12))
    rows = unit_rows(len(ids), draw(st.integers(1, 5)), draw(st.integers(0, 2**32)))
    return rows, ids, draw(temperatures)


# The paper's equations


def info_nce(z: Rows, other_view: list[int], temperature: float) -> float:
    """Equation 1, the mean over all views: −log exp(z_i · z_i' / τ) / Σ_{n ≠ i} exp(z_i · z_n / τ)."""
    total = 0.0
    for i in range(len(z)):
        below = sum(exp(float(z[i] @ z[n]) / temperature) for n in range(len(z)) if n != i)
        total -= log(exp(float(z[i] @ z[other_view[i]]) / temperature) / below)
    return total / len(z)


def sup_con(z: Rows, ids: list[int], temperature: float) -> float:
    """Equation 2, the mean over labelled views that have another of their class."""
    labelled = [i for i in range(len(z)) if ids[i] != -1]
    terms = []
    for i in labelled:
        alike = [q for q in labelled if q != i and ids[q] == ids[i]]
        if alike:
            below = sum(exp(float(z[i] @ z[n]) / temperature) for n in labelled if n != i)
            of_alike = [log(exp(float(z[i] @ z[q]) / temperature) / below) for q in alike]
            terms.append(-sum(of_alike) / len(alike))
    return sum(terms) / len(terms) if terms else 0.0


@untimed
@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 2**32), temperatures, st.booleans())
def test_with_an_id_for_each_image_it_is_info_nce(b: int, d: int, seed: int, temperature: float, halves: bool) -> None:
    z = unit_rows(2 * b, d, seed)
    if halves:  # first all first views, then all second ones
        ids, other_view = [*range(b), *range(b)], [*range(b, 2 * b), *range(b)]
    else:  # the two views of an image side by side
        ids, other_view = [i // 2 for i in range(2 * b)], [i ^ 1 for i in range(2 * b)]
    assert loss_of(z, ids, temperature) == pytest.approx(info_nce(z, other_view, temperature), rel=1e-4, abs=1e-4)


@untimed
@given(batches())
def test_with_labels_it_is_sup_con_over_the_labelled_rows(batch: tuple[Rows, list[int], float]) -> None:
    assert loss_of(*batch) == pytest.approx(sup_con(*batch), rel=1e-4, abs=1e-4)


@settings(deadline=None, max_examples=30)
@given(batches())
def test_gradients_are_differences_of_the_equations(batch: tuple[Rows, list[int], float]) -> None:
    rows, ids, temperature = batch
    temperature = max(temperature, 0.1)
    expected = np.zeros_like(rows)
    for at in np.ndindex(*rows.shape):
        above, below = rows.copy(), rows.copy()
        above[at] += 1e-5
        below[at] -= 1e-5
        expected[at] = (sup_con(above, ids, temperature) - sup_con(below, ids, temperature)) / 2e-5
    np.testing.assert_allclose(gradient_of(rows, ids, temperature), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ids", [[0, 1, 2, 0, 1, 2], [0, 0, 0, 4, 4, -1], [3, -1, -1, -1, 5, -1]])
def test_gradients_in_double_precision(ids: list[int]) -> None:
    rows = torch.from_numpy(unit_rows(6, 3, seed=0)).requires_grad_()
    numbers = torch.tensor(ids)
    assert contrastive(rows, numbers, temperature=0.3).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: contrastive(x, numbers, temperature=0.3), rows)


# Hand-computed

FOUR = at_angles(0, 60, 90, 180)
# Cosines: 0–60 0.5, 0–90 0, 0–180 −1, 60–90 0.866025, 60–180 −0.5, 90–180 0; their exponentials: e^0.5 = 1.648721,
# e^0.866025 = 2.377443, e^−0.5 = 0.606531, e^−1 = 0.367879. Sums over the other three, and their logarithms:
#   0°:   1.648721 + 1 + 0.367879        = 3.016601   1.104130
#   60°:  1.648721 + 2.377443 + 0.606531 = 4.632695   1.533138
#   90°:  1 + 2.377443 + 1               = 4.377443   1.476465
#   180°: 0.367879 + 0.606531 + 1        = 1.974410   0.680270


def test_two_pairs_at_known_angles() -> None:
    # less the cosine of the partner: 0.604130, 1.033138, 1.476465, 0.680270
    assert loss_of(FOUR, [0, 0, 1, 1], 1.0) == pytest.approx(3.794003 / 4, abs=1e-6)


def test_of_three_alike_the_mean_is_taken_outside_the_logarithm() -> None:
    # 0° has 60° and 90° alike, mean cosine 0.25; 60° has 0.683013; 90° has 0.433013; 180° is alone and no anchor
    expected = (1.104130 - 0.25 + 1.533138 - 0.683013 + 1.476465 - 0.433013) / 3
    assert loss_of(FOUR, [5, 5, 5, 8], 1.0) == pytest.approx(expected, abs=1e-6)


def test_a_row_without_another_of_its_id_still_pushes_the_others_away() -> None:
    # of 0°, 60° and 90° with 90° alone: −0.5 + log(e^0.5 + 1) and −0.5 + log(e^0.5 + e^0.866025)
    alone = (log(2.648721) + log(4.026164)) / 2 - 0.5
    assert loss_of(FOUR[:3], [0, 0, 1], 1.0) == pytest.approx(alone, abs=1e-6)
    assert loss_of(FOUR[:3], [0, 0, -1], 1.0) == pytest.approx(0.0, abs=1e-6)  # unlabelled, it does not


def test_opposite_points_at_a_temperature_of_a_half() -> None:
    # each anchor: its partner at cosine 1, two others at −1: log(1 + 2 e^(−4))
    assert loss_of(at_angles(0, 0, 180, 180), [0, 0, 1, 1], 0.5) == pytest.approx(log(1 + 2 * exp(-4)), abs=1e-6)
    # and the wrong way round: partner at −1, others at 1 and −1: log(1 + 1 + e^4)
    assert loss_of(at_angles(0, 0, 180, 180), [0, 1, 0, 1], 0.5) == pytest.approx(log(2 + exp(4)), abs=1e-5)


def test_views_of_an_image_that_was_drawn_twice_are_alike() -> None:
    # images 0, 0, 1, two views each; as positives the four views of image 0 have three others each
    angles = at_angles(0, 30, 90, 60, 45, 120)
    assert loss_of(angles, [0, 0, 1, 0, 0, 1], 1.0) == pytest.approx(
        sup_con(angles.double().numpy(), [0, 0, 1, 0, 0, 1], 1.0), abs=1e-6
    )
    assert loss_of(angles, [0, 0, 1, 0, 0, 1], 1.0) != pytest.approx(loss_of(angles, [0, 2, 1, 0, 2, 1], 1.0), abs=0.01)


@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_identical_rows_cost_the_logarithm_of_the_others(n: int, temperature: float) -> None:
    rows = at_angles(20).repeat(n, 1)
    assert loss_of(rows, [4] * n, temperature) == pytest.approx(log(n - 1), abs=1e-4)
    assert gradient_of(rows, [4] * n, temperature).abs().max() < 1e-4


# Rows that take no part


@untimed
@given(batches())
def test_rows_of_no_id_take_no_part(batch: tuple[Rows, list[int], float]) -> None:
    rows, ids, temperature = batch
    kept = [i for i, each in enumerate(ids) if each != -1]
    subset, gradient = [ids[i] for i in kept], gradient_of(rows, ids, temperature)
    assert loss_of(rows, ids, temperature) == pytest.approx(loss_of(rows[kept], subset, temperature), abs=1e-4)
    expected = torch.zeros_like(gradient)
    expected[kept] = gradient_of(rows[kept], subset, temperature)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


NEXT_TO_NOTHING: dict[str, list[int]] = {
    "no row": [],
    "one row": [3],
    "one row of no id": [-1],
    "no labelled row": [-1, -1, -1, -1],
    "all alone": [0, 1, 2],
    "one labelled row": [-1, 2, -1],
}


@pytest.mark.parametrize("ids", NEXT_TO_NOTHING.values(), ids=NEXT_TO_NOTHING.keys())
@pytest.mark.parametrize("temperature", [0.01, 1.0])
def test_without_an_anchor_the_loss_is_0_and_so_are_its_gradients(ids: list[int], temperature: float) -> None:
    rows = unit_rows(len(ids), 3, seed=1)
    assert loss_of(rows, ids, temperature) == 0.0
    assert torch.equal(gradient_of(rows, ids, temperature), torch.zeros(len(ids), 3))


@pytest.mark.parametrize("ids", [[6, 6], [-1, 6, -1, -1, 6, -1]])
def test_the_two_views_of_one_labelled_image_have_nothing_to_be_told_from(ids: list[int]) -> None:
    rows = unit_rows(len(ids), 3, seed=2)
    assert loss_of(rows, ids, 0.07) == pytest.approx(0.0, abs=1e-5)
    assert gradient_of(rows, ids, 0.07).abs().max() < 1e-5


def test_rows_that_take_no_part_are_further_away_than_any_other() -> None:
    assert loss_of(at_angles(0, 180, 90, 270), [6, 6, -1, -1], 0.001) == 0.0  # scores of −1000, less than which is none
    assert loss_of(at_angles(0, 180, 180, 90), [6, 6, 7, -1], 0.001) == pytest.approx(1000 + log(2) / 2, rel=1e-6)


# Invariants


@untimed
@given(batches(), st.randoms(use_true_random=False))
def test_the_order_of_rows_and_the_names_of_ids_do_not_matter(
    batch: tuple[Rows, list[int], float], random: Random
) -> None:
    rows, ids, temperature = batch
    order = list(range(len(ids)))
    random.shuffle(order)
    names = {-1: -1, 0: 12, 1: 3, 2: 0, 7: 2**50, 2**40: 1}
    shuffled = loss_of(rows[order], [names[ids[i]] for i in order], temperature)
    assert shuffled == pytest.approx(loss_of(rows, ids, temperature), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.01, 100.0])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    rows, ids = unit_rows(32, 4, seed=3), [i % 5 - 1 for i in range(32)]
    assert loss_of(rows, ids, temperature) == pytest.approx(sup_con(rows, ids, temperature), rel=1e-4)
    assert gradient_of(rows, ids, temperature).isfinite().all()
    worst = at_angles(0, 180, 0, 180)  # the partner opposite, another one on top: (1 − −1) / τ
    assert loss_of(worst, [0, 0, 1, 1], 0.01) == pytest.approx(200, rel=1e-5)
    assert gradient_of(worst, [0, 0, 1, 1], 0.01).isfinite().all()


def test_autocast_changes_nothing() -> None:
    rows, ids = unit_rows(16, 8, seed=4), [i % 5 - 1 for i in range(16)]
    leaf = torch.from_numpy(rows).float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrastive(leaf, torch.tensor(ids), temperature=0.07)
    loss.backward()
    assert float(loss.detach()) == loss_of(rows, ids, 0.07)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, gradient_of(rows, ids, 0.07))


def test_rows_in_bfloat16_are_compared_in_float32() -> None:
    rows = torch.from_numpy(unit_rows(16, 8, seed=5)).to(torch.bfloat16)
    ids = torch.arange(16) % 4
    loss = contrastive(rows, ids, temperature=0.07)
    assert loss.dtype == torch.float32
    assert loss == contrastive(rows.float(), ids, temperature=0.07)


def test_pulling_rows_together_lowers_it() -> None:
    rows, ids = torch.from_numpy(unit_rows(12, 4, seed=6)).float(), [i % 3 for i in range(12)]
    for _ in range(300):
        rows = nnf.normalize(rows - gradient_of(rows, ids, 0.5), dim=1)
    similar = rows @ rows.T
    alike = torch.tensor(ids)[:, None] == torch.tensor(ids)
    assert similar[alike].min() > 0.99
    assert similar[~alike].max() < 0  # three classes in space end up at 120°


# Cross-entropy


@st.composite
def scores_and_ids(draw: st.DrawFn) -> tuple[Rows, list[int]]:
    """Up to 8 rows of scores of up to 5 categories, some of them of no id."""
    k = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(-1, k - 1), max_size=8))
    return np.random.default_rng(draw(st.integers(0, 2**32))).normal(size=(len(ids), k)) * 3, ids


@untimed
@given(scores_and_ids())
def test_classification_is_torchs_cross_entropy_over_rows_with_an_id(batch: tuple[Rows, list[int]]) -> None:
    logits, ids = torch.from_numpy(batch[0]), torch.tensor(batch[1], dtype=torch.int64)
    got = classification(logits, ids)
    if (ids < 0).all():
        assert got == 0
    else:
        torch.testing.assert_close(got, nnf.cross_entropy(logits, ids, ignore_index=-1))


def test_classification_by_hand() -> None:
    logits = torch.tensor([[log(3.0), 0.0], [0.0, 0.0], [9.0, -9.0]])  # 3/4 and 1/4; 1/2 each; of no id
    assert float(classification(logits, torch.tensor([1, 0, -1]))) == pytest.approx((log(4) + log(2)) / 2)


@pytest.mark.parametrize("shape", [(0, 3), (4, 3), (4, 0), (0, 0)])
def test_classification_of_no_row_or_into_nothing_is_0_with_gradients_of_0(shape: tuple[int, int]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = classification(logits, torch.full(shape[:1], -1))
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.equal(gradient, torch.zeros(shape))


@untimed
@given(scores_and_ids(), st.integers(0, 2**32))
def test_soft_classification_is_torchs_over_the_rows_of_the_mask(batch: tuple[Rows, list[int]], seed: int) -> None:
    logits, among = torch.from_numpy(batch[0]), torch.tensor(batch[1], dtype=torch.int64) >= 0
    targets = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(logits.shape[1]), len(logits)))
    got = soft_classification(logits, targets, among)
    if among.any():
        torch.testing.assert_close(got, nnf.cross_entropy(logits[among], targets[among]))
    else:
        assert got == 0


def test_soft_classification_by_hand() -> None:
    # chances of 3/4 and 1/4, wanted half and half: (−log 3/4 − log 1/4) / 2
    logits, targets = torch.tensor([[log(3.0), 0.0], [5.0, 1.0]]), torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    assert float(soft_classification(logits, targets, torch.tensor([True, False]))) == pytest.approx(log(16 / 3) / 2)


# The mean over rows


def test_the_lack_of_entropy_by_hand() -> None:
    even, one, two = torch.full((5, 4), 0.25), torch.eye(4)[[2, 2]], torch.eye(4)[[1, 3]]
    assert float(lack_of_entropy(even)) == pytest.approx(0, abs=1e-6)
    assert float(lack_of_entropy(torch.eye(4))) == pytest.approx(0, abs=1e-6)  # even on average
    assert float(lack_of_entropy(one)) == pytest.approx(log(4), abs=1e-5)
    assert float(lack_of_entropy(two)) == pytest.approx(log(4) - log(2), abs=1e-5)
    quarters = torch.tensor([[0.5, 0.5], [1.0, 0.0]])  # on average 3/4 and 1/4
    assert float(lack_of_entropy(quarters)) == pytest.approx(log(2) + 0.75 * log(0.75) + 0.25 * log(0.25), abs=1e-6)


@untimed
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 2**32))
def test_the_lack_of_entropy_is_that_of_the_mean(n: int, k: int, seed: int) -> None:
    rows = np.random.default_rng(seed).dirichlet(np.ones(k), n)
    mean = [sum(row[j] for row in rows.tolist()) / n for j in range(k)]
    expected = log(k) - sum(-p * log(p) for p in mean if p > 0)
    assert float(lack_of_entropy(torch.from_numpy(rows))) == pytest.approx(expected, abs=1e-5)


# Pairs


def test_which_rows_have_the_same_largest_entries_by_hand() -> None:
    features = torch.tensor(
        [
            [0.9, 0.1, 0.8, 0.0],  # the largest two: 0 and 2
            [0.3, 0.2, 0.7, -5.0],  # 2 and 0, in another order
            [-0.1, -0.2, -0.9, -0.8],  # 0 and 1, though all are below 0
            [0.0, 0.6, 0.1, 0.5],  # 1 and 3
        ]
    )
    t, f = True, False
    assert same_top(features, 2).tolist() == [[t, t, f, f], [t, t, f, f], [f, f, t, f], [f, f, f, t]]
    # one: 0, 2, 0, 1; three: {0, 1, 2}, {0, 1, 2}, {0, 1, 3}, {1, 2, 3}; four, and more than there are: all
    assert same_top(features, 1).tolist() == [[t, f, t, f], [f, t, f, f], [t, f, t, f], [f, f, f, t]]
    assert same_top(features, 3).tolist() == [[t, t, f, f], [t, t, f, f], [f, f, t, f], [f, f, f, t]]
    assert same_top(features, 4).all()
    assert same_top(features, 9).all()
    assert same_top(features[:0], 2).shape == (0, 0)


@untimed
@given(st.integers(0, 7), st.integers(1, 6), st.integers(1, 7), st.integers(0, 2**32))
def test_rows_with_the_same_largest_entries_are_those_of_equal_sets(n: int, d: int, top: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(n, d))
    largest = [set(sorted(range(d), key=lambda j, row=row: -row[j])[:top]) for row in rows.tolist()]  # type: ignore[misc]
    expected = [[one == other for other in largest] for one in largest]
    assert same_top(torch.from_numpy(rows), top).tolist() == expected


def test_pairs_by_hand() -> None:
    # Together: ⟨(1, 0), (½, ½)⟩ = ½; ⟨(1, 0), (¼, ¾)⟩ = ¼; ⟨(½, ½), any⟩ = ½. The third row does not count.
    first = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8]])
    second = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]])
    alike = torch.tensor([[True, False, True], [False, True, True], [True, True, True]])
    expected = (-log(1 / 2) - log(3 / 4) - log(1 / 2) - log(1 / 2)) / 4
    assert float(pairwise(first, second, alike, torch.tensor([True, True, False]))) == pytest.approx(expected, abs=1e-6)
    # view 1 of i with view 2 of j, and not the other way round
    other = (-log(1 / 2) - log(1 / 4) - log(1 / 2) - log(1 / 2)) / 4
    swapped = torch.tensor([[True, True, True], [False, True, True], [True, True, True]])
    assert float(pairwise(first, second, swapped, torch.tensor([True, True, False]))) == pytest.approx(other, abs=1e-6)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Rows, Rows, NDArray[np.bool_], NDArray[np.bool_]]:
    n, k = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    first, second = generator.dirichlet(np.ones(k), (2, n))
    return first, second, generator.random((n, n)) < 0.5, generator.random(n) < draw(st.sampled_from([0, 0.6, 1]))


@untimed
@given(pairs())
def test_pairs_cost_what_a_double_loop_says(
    batch: tuple[Rows, Rows, NDArray[np.bool_], NDArray[np.bool_]],
) -> None:
    first, second, alike, among = batch
    costs = []
    for i in range(len(first)):
        for j in range(len(first)):
            if among[i] and among[j]:
                p = sum(a * b for a, b in zip(first[i].tolist(), second[j].tolist(), strict=True))
                costs.append(-log((p if alike[i, j] else max(1 - p, 0)) + 1e-7))
    expected = sum(costs) / len(costs) if costs else 0.0
    assert float(pairwise(*map(torch.from_numpy, batch))) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_pairs_of_the_wrong_kind_that_are_certain_cost_a_finite_number() -> None:
    rows = torch.eye(2).requires_grad_()
    wrong = ~torch.eye(2, dtype=torch.bool)
    loss = pairwise(rows, rows.detach(), wrong, torch.tensor([True, True]))
    assert float(loss.detach()) == pytest.approx(-log(1e-7), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, rows)
    assert gradient.isfinite().all()
    sure = pairwise(rows, rows.detach(), torch.eye(2, dtype=torch.bool), torch.tensor([True, True]))
    assert float(sure.detach()) == pytest.approx(0, abs=1e-6)


# Finite differences in double precision


@pytest.mark.parametrize("labelled", [[0, 2, 1, -1], [-1, -1, -1, -1], [1, 1, 1, 1]])
def test_gradients_of_cross_entropies_in_double_precision(labelled: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 3, generator=generator, dtype=torch.float64).requires_grad_()
    ids, targets = torch.tensor(labelled), torch.rand(4, 3, generator=generator, dtype=torch.float64)
    assert classification(logits, ids).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: classification(x, ids), logits)
    assert torch.autograd.gradcheck(lambda x: soft_classification(x, targets, ids >= 0), logits)


def test_gradients_of_pairs_and_of_the_lack_of_entropy_in_double_precision() -> None:
    generator = torch.Generator().manual_seed(2)
    first, second = (
        torch.randn(4, 3, generator=generator, dtype=torch.float64).softmax(1).requires_grad_() for _ in range(2)
    )
    alike = torch.rand(4, 4, generator=generator) < 0.5
    for among in ([True, True, False, True], [False] * 4):
        assert torch.autograd.gradcheck(lambda a, b, m=among: pairwise(a, b, alike, torch.tensor(m)), (first, second))
    assert torch.autograd.gradcheck(lack_of_entropy, first)


# Shares


def shares_of(scores: Rows | Tensor, among: list[bool] | None = None, *, epsilon: float, iterations: int) -> Tensor:
    rows = torch.as_tensor(scores)
    mask = torch.ones(len(rows), dtype=torch.bool) if among is None else torch.tensor(among, dtype=torch.bool)
    return sinkhorn(rows, mask, epsilon=epsilon, iterations=iterations)


def cosines(n: int, k: int, seed: int) -> Rows:
    return np.random.default_rng(seed).uniform(-1, 1, (n, k))


def test_shares_by_hand() -> None:
    # exp(scores / ε) is 3, 1; 1, 1. By category: 3/4, 1/4 and 1/2, 1/2; then by row: 3 : 2 and 1 : 2.
    scores = np.array([[0.1 * log(3), 0.0], [0.0, 0.0]])
    expected = torch.tensor([[3 / 5, 2 / 5], [1 / 3, 2 / 3]], dtype=torch.float64)
    torch.testing.assert_close(shares_of(scores, epsilon=0.1, iterations=1), expected)
    # and once more: 9/14, 5/14 and 3/8, 5/8; then 12 : 7 and 4 : 7
    expected = torch.tensor([[12 / 19, 7 / 19], [4 / 11, 7 / 11]], dtype=torch.float64)
    torch.testing.assert_close(shares_of(scores, epsilon=0.1, iterations=2), expected)


@untimed
@given(st.integers(1, 8), st.integers(1, 6), st.floats(0.03, 2), st.integers(1, 6), st.integers(0, 2**32))
def test_shares_are_those_of_the_paper_s_algorithm(n: int, k: int, epsilon: float, times: int, seed: int) -> None:
    scores = cosines(n, k, seed)
    expected = np.array(sinkhorn_knopp(scores.tolist(), k, epsilon=epsilon, iterations=times))
    np.testing.assert_allclose(shares_of(scores, epsilon=epsilon, iterations=times), expected, rtol=1e-7, atol=1e-12)
    in_float32 = shares_of(torch.from_numpy(scores).float(), epsilon=epsilon, iterations=times)
    np.testing.assert_allclose(in_float32, expected, rtol=1e-3, atol=1e-5)


@untimed
@given(st.lists(st.booleans(), max_size=12), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32), st.randoms())
def test_rows_out_of_the_mask_have_no_share_and_no_influence(
    among: list[bool], k: int, times: int, seed: int, random: Random
) -> None:
    scores = torch.from_numpy(cosines(len(among), k, seed)).float()
    mask = torch.tensor(among, dtype=torch.bool)
    alone = shares_of(scores[mask], epsilon=0.05, iterations=times)
    for other in (0.0, 1.0, -1.0, 1e30, random.uniform(-9, 9)):
        shares = shares_of(scores.masked_fill(~mask[:, None], other), among, epsilon=0.05, iterations=times)
        torch.testing.assert_close(shares[mask], alone, rtol=1e-4, atol=1e-6)
        assert not shares[~mask].any()


@untimed
@given(st.integers(1, 9), st.integers(1, 6), st.sampled_from([0.05, 0.3, 1.0]), st.integers(0, 2**32))
def test_shares_of_categories_come_closer_to_even_with_every_iteration(
    n: int, k: int, epsilon: float, seed: int
) -> None:
    """Each row has its 1 after any of them; the largest and the smallest category move towards n / k."""
    scores = cosines(n, k, seed)
    low, high = 0.0, float(n)
    for times in range(1, 9):
        shares = shares_of(scores, epsilon=epsilon, iterations=times)
        np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
        by_category = shares.sum(0)
        assert low - 1e-9 <= float(by_category.min()) <= n / k + 1e-9 <= float(by_category.max()) + 2e-9
        assert float(by_category.max()) <= high + 1e-9
        low, high = float(by_category.min()), float(by_category.max())


@pytest.mark.parametrize(("n", "k"), [(12, 4), (5, 3), (3, 7)])
def test_many_iterations_make_the_shares_of_categories_even(n: int, k: int) -> None:
    shares = shares_of(cosines(n, k, seed=n), epsilon=0.5, iterations=200)
    np.testing.assert_allclose(shares.sum(0), n / k, rtol=1e-6)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)


def test_the_best_row_of_a_category_gets_most_of_it() -> None:
    scores = torch.tensor([[1.0, -1.0], [1.0, -0.9], [1.0, -0.2], [1.0, 0.1]])
    shares = shares_of(scores, epsilon=0.05, iterations=50)
    assert shares.argmax(1).tolist() == [0, 0, 1, 1]  # alone, all four would be of the first


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-12, 1e3])
def test_extreme_softness_gives_no_nan(epsilon: float) -> None:
    scores = torch.from_numpy(cosines(9, 5, seed=1)).float()
    among = [True] * 6 + [False] * 3
    shares = shares_of(scores, among, epsilon=epsilon, iterations=3)
    assert shares.isfinite().all()
    torch.testing.assert_close(shares.sum(1), torch.tensor(among).float(), rtol=1e-5, atol=1e-5)
    if epsilon == 1e3:
        torch.testing.assert_close(shares[:6], torch.full((6, 5), 0.2), rtol=1e-2, atol=0)


def test_equal_rows_get_equal_shares_and_one_row_is_spread_evenly() -> None:
    torch.testing.assert_close(
        shares_of(torch.tensor([[0.9, 0.1, -0.5]] * 4), epsilon=0.05, iterations=3), torch.full((4, 3), 1 / 3)
    )
    one = shares_of(torch.tensor([[0.7, -0.7], [0.2, 0.9]]), [True, False], epsilon=0.05, iterations=3)
    torch.testing.assert_close(one, torch.tensor([[0.5, 0.5], [0.0, 0.0]]))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_without_a_row_there_is_nothing_to_share_out(n: int) -> None:
    shares = shares_of(torch.ones(n, 3), [False] * n, epsilon=0.05, iterations=3)
    assert torch.equal(shares, torch.zeros(n, 3))
