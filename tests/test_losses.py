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
from torch import Tensor

from sortal.losses import contrastive

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
