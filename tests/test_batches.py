"""Batches: how often each image is drawn, against its weight; how often before, against a loop; and from what seed."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from sortal.batches import Draws, draw

Mask = NDArray[np.bool_]
untimed = settings(deadline=None)


def drawn(labelled: Mask, *, batch_size: int = 32, balanced: bool = True, seed: int = 0, epoch: int = 0) -> Draws:
    rows = np.arange(len(labelled))
    return draw(rows, labelled, batch_size=batch_size, balanced=balanced, seed=seed, epoch=epoch)


def first(n: int, of: int) -> Mask:
    """The first n labelled."""
    mask: Mask = np.arange(of) < n
    return mask


def same(one: Draws, other: Draws) -> bool:
    return bool(np.array_equal(one.rows, other.rows) and np.array_equal(one.times, other.times))


def counts(labelled: Mask, epochs: int, *, balanced: bool) -> NDArray[np.int64]:
    """How often each row is drawn in many epochs, (n,)."""
    each = [drawn(labelled, balanced=balanced, epoch=epoch).rows.ravel() for epoch in range(epochs)]
    return np.bincount(np.concatenate(each), minlength=len(labelled))


# How many


@pytest.mark.parametrize(("n", "batch_size", "steps"), [(1280, 128, 10), (1279, 128, 9), (127, 128, 1), (5, 1, 5)])
def test_steps_are_whole_batches_and_at_least_one(n: int, batch_size: int, steps: int) -> None:
    draws = drawn(first(n // 2, n), batch_size=batch_size)
    assert len(draws) == steps
    assert draws.rows.shape == draws.times.shape == (steps, batch_size)
    assert draws.rows.dtype == draws.times.dtype == np.int64


@untimed
@given(st.sets(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(1, 20), st.booleans(), st.data())
def test_what_is_drawn_are_the_rows_that_were_given(
    given_rows: set[int], batch_size: int, balanced: bool, data: st.DataObject
) -> None:
    rows = np.array(list(given_rows))
    labelled = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    draws = draw(rows, labelled, batch_size=batch_size, balanced=balanced, seed=1, epoch=2)
    assert draws.rows.shape == (max(len(rows) // batch_size, 1), batch_size)
    assert set(draws.rows.ravel().tolist()) <= given_rows
    at_place = draw(np.arange(len(rows)), labelled, batch_size=batch_size, balanced=balanced, seed=1, epoch=2)
    assert np.array_equal(draws.rows, rows[at_place.rows])


@untimed
@given(st.integers(1, 60), st.integers(1, 70), st.booleans(), st.integers(0, 2**63 - 1))
def test_times_count_earlier_draws_of_the_epoch(n: int, batch_size: int, balanced: bool, seed: int) -> None:
    draws = drawn(first(n // 3, n), batch_size=batch_size, balanced=balanced, seed=seed)
    seen: Counter[int] = Counter()
    for row, times in zip(draws.rows.ravel().tolist(), draws.times.ravel().tolist(), strict=True):
        assert times == seen[row]
        seen[row] += 1


def test_one_image_fills_a_batch_alone() -> None:
    draws = drawn(first(1, 1), batch_size=4)
    assert draws.rows.tolist() == [[0, 0, 0, 0]]
    assert draws.times.tolist() == [[0, 1, 2, 3]]


# How often


@pytest.mark.parametrize(("n_labelled", "n"), [(150, 600), (500, 600), (10, 640), (639, 640)])
def test_balanced_half_of_a_batch_is_labelled(n_labelled: int, n: int) -> None:
    by_row = counts(first(n_labelled, n), epochs=40, balanced=True)
    total = by_row.sum()
    off = by_row[:n_labelled].sum() - total / 2
    assert abs(off) < 4 * np.sqrt(total) / 2  # four standard deviations of a fair coin


@pytest.mark.parametrize(("n_labelled", "n"), [(150, 600), (500, 600), (10, 640), (0, 600), (600, 600), (1, 64)])
@pytest.mark.parametrize("balanced", [True, False])
def test_each_image_is_drawn_as_often_as_its_weight_says(n_labelled: int, n: int, balanced: bool) -> None:
    weights = np.ones(n)
    if balanced and n_labelled:
        weights[n_labelled:] = n_labelled / (n - n_labelled) if n > n_labelled else 1
    by_row = counts(first(n_labelled, n), epochs=200, balanced=balanced)
    expected = by_row.sum() * weights / weights.sum()
    assert stats.chisquare(by_row, expected).pvalue > 0.001


def test_every_part_of_a_batch_is_half_labelled() -> None:
    """Processes take columns and steps take rows: neither may have more of one kind."""
    labelled = first(100, 1000)
    is_labelled = np.stack([labelled[drawn(labelled, batch_size=50, epoch=epoch).rows] for epoch in range(100)])
    for axes in ((0, 1), (0, 2)):
        total = np.prod([is_labelled.shape[axis] for axis in axes])
        assert np.abs(is_labelled.sum(axes) - total / 2).max() < 4 * np.sqrt(total) / 2


@pytest.mark.parametrize("n_labelled", [0, 60])
def test_with_all_or_none_labelled_there_is_nothing_to_balance(n_labelled: int) -> None:
    mask = first(n_labelled, 60)
    assert same(drawn(mask, balanced=True), drawn(mask, balanced=False))


def test_an_image_may_come_twice_in_a_batch() -> None:
    draws = drawn(first(500, 1000), batch_size=500)
    assert all(len(set(step)) < len(step) for step in draws.rows.tolist())


# From what


def test_draws_are_a_function_of_seed_and_epoch_alone() -> None:
    mask = first(20, 200)
    before = np.random.get_state(legacy=False)
    draws = [drawn(mask, seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)]
    after = np.random.get_state(legacy=False)
    assert str(after) == str(before)
    np.random.seed(5)
    again = [drawn(mask, seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)]
    for i, one in enumerate(draws):
        for j, other in enumerate(again):
            assert same(one, other) == (i == j)


def test_large_seeds_are_seeds_of_their_own() -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (2**32, 0), (2**32 + 1, 0), (2**32, 1), (2**63 - 1, 0), (2**63 - 1, 2**31 - 1)]
    draws = [drawn(first(20, 200), seed=seed, epoch=epoch) for seed, epoch in pairs]
    for i, one in enumerate(draws):
        for j, other in enumerate(draws):
            assert same(one, other) == (i == j), (pairs[i], pairs[j])


def test_arguments_are_left_as_they_were() -> None:
    rows, labelled = np.arange(40)[::-1].copy(), first(7, 40)
    draw(rows, labelled, batch_size=8, balanced=True, seed=0, epoch=0)
    assert rows.tolist() == list(range(39, -1, -1))
    assert labelled.sum() == 7
