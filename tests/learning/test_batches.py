"""Batches: draw frequencies against weights, counts of earlier draws against a loop, and seeds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from sortal.learning.batches import Draws, draw, labelled_share

ViewMask = NDArray[np.bool_]


def drawn(labelled: ViewMask, *, batch_size: int = 32, balanced: bool = True, seed: int = 0, epoch: int = 0) -> Draws:
    rows = np.arange(len(labelled))
    return draw(rows, labelled, batch_size=batch_size, balanced=balanced, seed=seed, epoch=epoch)


def first(n: int, of: int) -> ViewMask:
    """ViewMask the first n rows as labelled."""
    mask: ViewMask = np.arange(of) < n
    return mask


def same(one: Draws, other: Draws) -> bool:
    return bool(np.array_equal(one.rows, other.rows) and np.array_equal(one.times, other.times))


@pytest.mark.parametrize(("n", "batch_size", "steps"), [(1280, 128, 10), (1279, 128, 9), (127, 128, 1), (5, 1, 5)])
def test_steps_are_whole_batches_and_at_least_one(n: int, batch_size: int, steps: int) -> None:
    draws = drawn(first(n // 2, n), batch_size=batch_size)
    assert len(draws.rows) == steps
    assert draws.rows.shape == draws.times.shape == (steps, batch_size)
    assert draws.rows.dtype == draws.times.dtype == np.int64


@settings(deadline=None)
@given(st.sets(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(1, 70), st.booleans(), st.data())
def test_rows_are_drawn_by_position_and_times_count_earlier_draws(
    given_rows: set[int], batch_size: int, balanced: bool, data: st.DataObject
) -> None:
    rows = np.array(list(given_rows))
    before, seed = rows.copy(), data.draw(st.integers(0, 2**63 - 1))
    labelled = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    draws = draw(rows, labelled, batch_size=batch_size, balanced=balanced, seed=seed, epoch=2)
    assert np.array_equal(rows, before)  # arguments are not changed
    places = drawn(labelled, batch_size=batch_size, balanced=balanced, seed=seed, epoch=2)
    assert np.array_equal(draws.rows, rows[places.rows])
    seen: Counter[int] = Counter()
    for row, times in zip(draws.rows.ravel().tolist(), draws.times.ravel().tolist(), strict=True):
        assert times == seen[row]
        seen[row] += 1


@pytest.mark.parametrize(("n_labelled", "n"), [(150, 600), (500, 600), (0, 600), (600, 600), (1, 64)])
@pytest.mark.parametrize("balanced", [True, False])
def test_each_image_is_drawn_in_proportion_to_its_weight(n_labelled: int, n: int, balanced: bool) -> None:
    """If balanced, half of all draws are labelled, provided that there are both kinds."""
    weights = np.ones(n)
    if balanced and 0 < n_labelled < n:
        weights[:n_labelled], weights[n_labelled:] = 1 / n_labelled, 1 / (n - n_labelled)
    each = [drawn(first(n_labelled, n), balanced=balanced, epoch=epoch).rows.ravel() for epoch in range(200)]
    by_row = np.bincount(np.concatenate(each), minlength=n)
    assert stats.chisquare(by_row, by_row.sum() * weights / weights.sum()).pvalue > 0.001


def test_every_part_of_a_batch_is_half_labelled() -> None:
    """Processes take columns and steps take rows: neither may be biased."""
    labelled = first(100, 1000)
    is_labelled = np.stack([labelled[drawn(labelled, batch_size=50, epoch=epoch).rows] for epoch in range(100)])
    for axes in ((0, 1), (0, 2)):
        total = np.prod([is_labelled.shape[axis] for axis in axes])
        assert np.abs(is_labelled.sum(axes) - total / 2).max() < 4 * np.sqrt(total) / 2


def test_draws_depend_on_seed_and_epoch_alone() -> None:
    """Large seeds do not collide with small ones."""
    seeds = [(0, 0), (0, 1), (1, 0), (2**32, 0), (2**32 + 1, 0), (2**32, 1), (2**63 - 1, 0), (2**63 - 1, 2**31 - 1)]
    before = str(np.random.get_state(legacy=False))
    draws = [drawn(first(20, 200), seed=seed, epoch=epoch) for seed, epoch in seeds]
    assert str(np.random.get_state(legacy=False)) == before
    np.random.seed(5)
    again = [drawn(first(20, 200), seed=seed, epoch=epoch) for seed, epoch in seeds]
    for i, one in enumerate(draws):
        for j, other in enumerate(again):
            assert same(one, other) == (i == j), (seeds[i], seeds[j])


def test_rows_are_drawn_in_proportion_to_their_shares_and_half_of_them_labelled() -> None:
    shares = np.array([1.0, 0.5, 0.5, 1.0, 0.25, 0.25, 0.25, 0.25])
    labelled = first(3, 8)
    rows = np.arange(8)
    draws = draw(rows, labelled, shares, batch_size=50_000, balanced=True, seed=0, epoch=0)
    counts = np.bincount(draws.rows.ravel(), minlength=8)
    expected = np.array([0.25, 0.125, 0.125, 0.25, 0.0625, 0.0625, 0.0625, 0.0625]) * 50_000
    assert stats.chisquare(counts, expected).pvalue > 1e-6
    assert shares.tolist() == [1.0, 0.5, 0.5, 1.0, 0.25, 0.25, 0.25, 0.25]  # arguments are not changed


@pytest.mark.parametrize(
    ("labelled", "n", "repeats", "share"),
    [
        (500, 1000, None, 0.5),
        (1, 1000, None, 0.5),
        (200, 1000, 8.0, 0.5),  # 8 · 200 are more than 800 others
        (100, 1000, 9.0, 0.5),
        (100, 1000, 3.0, 0.25),  # 300 of 300 + 900
        (100, 1000, 1.0, 0.1),
        (10, 1000, 8.0, 0.1),  # a tenth at least
        (900, 1000, 1.0, 0.5),
        (0, 1000, 8.0, 0.5),
        (1000, 1000, 8.0, 0.5),
    ],
)
def test_a_labelled_image_is_drawn_at_most_so_often_as_others(
    labelled: int, n: int, repeats: float | None, share: float
) -> None:
    assert labelled_share(labelled, n, repeats) == pytest.approx(share)


@pytest.mark.parametrize(("repeats", "share"), [(None, 0.5), (4.0, 1 / 3), (1.0, 1 / 9)])
def test_batches_have_the_labelled_share(repeats: float | None, share: float) -> None:
    """Eight labelled images of 72; shares within both kinds stay as they are."""
    labelled, shares = first(8, 72), np.tile([1.0, 3.0], 36)
    draws = draw(np.arange(72), labelled, shares, batch_size=60_000, balanced=True, seed=0, epoch=0, repeats=repeats)
    wanted = np.where(labelled, share * shares / shares[:8].sum(), (1 - share) * shares / shares[8:].sum())
    counts = np.bincount(draws.rows.ravel(), minlength=72)
    assert stats.chisquare(counts, 60_000 * wanted).pvalue > 1e-6
    free = draw(np.arange(72), labelled, shares, batch_size=60_000, balanced=False, seed=0, epoch=0, repeats=repeats)
    counts = np.bincount(free.rows.ravel(), minlength=72)
    assert stats.chisquare(counts, 60_000 * shares / shares.sum()).pvalue > 1e-6
