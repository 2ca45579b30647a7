"""Ranks computed by hand, critical differences from published tables, and a bootstrap whose answer is known."""

import math
from itertools import product

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sortal.research.benchmark.significance import DRAWS, MeanRanks, interval, mean, rank


def test_ranks_are_means_over_rows_and_ties_share_them() -> None:
    """Rows rank a, b, c as 1 2 3; 1 3 2; 1.5 1.5 3; 2 1 3, so the means are 5.5/4, 7.5/4, 11/4.

    Friedman: 12 / (4·3·4) · (5.5² + 7.5² + 11²) − 3·4·4 = 0.25 · 207.5 − 48 = 3.875, divided by the correction for one
    tie of two, 1 − (2³ − 2) / (4 · (3³ − 3)) = 1 − 6/96.
    """
    found = rank({"a": [9, 9, 5, 4], "b": [8, 1, 5, 7], "c": [7, 2, 1, 1]})
    assert found is not None
    assert found.ranks == {"a": 1.375, "b": 1.875, "c": 2.75}
    assert [*found.ranks] == ["a", "b", "c"]
    assert found.rows == 4
    assert found.statistic == pytest.approx(3.875 / (1 - 6 / 96))
    assert found.p == pytest.approx(math.exp(-found.statistic / 2)), "chi-squared with two degrees of freedom"


@hypothesis.settings(deadline=None, max_examples=40)
@given(arrays(np.int64, st.tuples(st.integers(3, 6), st.integers(2, 8)), elements=st.integers(0, 9)))
def test_the_statistic_is_that_of_the_formula(table: np.ndarray) -> None:
    """Sum of squared deviations of rank sums over the variance of ranks within rows, which holds with ties as well."""
    found = rank({str(number): row.tolist() for number, row in enumerate(table)})
    if (table == table[0]).all():
        assert found is None
        return
    assert found is not None
    m, n = table.shape
    ranks = np.array([[(row > x).sum() + ((row == x).sum() + 1) / 2 for x in row] for row in table.T])  # (n, m)
    by_hand = (m - 1) * ((ranks.sum(axis=0) - n * (m + 1) / 2) ** 2).sum() / ((ranks - (m + 1) / 2) ** 2).sum()
    assert found.statistic == pytest.approx(by_hand)
    assert found.ranks == pytest.approx({str(i): each for i, each in enumerate(ranks.mean(axis=0))})
    assert [*found.ranks.values()] == sorted(found.ranks.values())


# Demšar, table 5(a): critical values of the two-tailed Nemenyi test at 0.05, from rounded ones.
PUBLISHED_Q = {3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}


@pytest.mark.parametrize(("methods", "q"), PUBLISHED_Q.items())
def test_the_critical_difference_is_the_published_one(methods: int, q: float) -> None:
    found = rank({str(at): [at + row for row in range(14)] for at in range(methods)})
    assert found is not None
    assert found.critical / math.sqrt(methods * (methods + 1) / (6 * 14)) == pytest.approx(q, abs=0.001)


def test_the_published_example_has_a_critical_difference_of_1_25() -> None:
    """Four classifiers on 14 data sets (Demšar, section 3.2.2)."""
    found = rank({name: [at] * 14 for at, name in enumerate("abcd")})
    assert found is not None
    assert found.critical == pytest.approx(1.25, abs=0.005)


def test_too_few_methods_or_rows_are_not_ranked() -> None:
    assert rank({"a": [1, 2], "b": [2, 1]}) is None
    assert rank({"a": [1], "b": [2], "c": [3]}) is None
    assert rank({"a": [1, 2], "b": [1, 2], "c": [1, 2]}) is None


def test_groups_are_the_longest_runs_within_the_critical_difference() -> None:
    def groups(*ranks: float) -> list[str]:
        named = dict(zip("abcdef", ranks, strict=False))
        return ["".join(each) for each in MeanRanks(ranks=named, rows=9, critical=1, statistic=0, p=1).groups]

    assert groups(1, 1.5, 2, 2.5) == ["abc", "bcd"]
    assert groups(1, 3, 5) == []
    assert groups(1, 2, 2, 4, 4.5, 6) == ["abc", "de"]
    assert groups(1, 1, 1) == ["abc"]


def test_every_data_set_and_split_weighs_the_same() -> None:
    assert mean(3.0) == 3
    assert mean([[[1.0, 3.0], [8.0]], [[0.0]]]) == (((1 + 3) / 2 + 8) / 2 + 0) / 2


def test_the_interval_of_a_few_values_is_that_of_all_their_resamples() -> None:
    """Of three values there are 27 resamples, and of two splits with two seeds 2² · (2²)² = 64."""
    values = (0.0, 1.0, 5.0)
    exact = np.quantile([np.mean(each) for each in product(values, repeat=3)], [0.025, 0.975], method="inverted_cdf")
    assert interval(values) == pytest.approx(tuple(exact))

    splits = ((0.0, 4.0), (10.0, 11.0))
    of_splits = [[(a + b) / 2 for a, b in product(each, repeat=2)] for each in splits]  # equally likely
    means = [(a + b) / 2 for one, other in product(of_splits, repeat=2) for a, b in product(one, other)]
    exact = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    assert interval(splits) == pytest.approx(tuple(exact))


@pytest.mark.thorough
def test_the_width_is_that_of_the_standard_error() -> None:
    """Of n normal values, the interval is about 1.96 standard errors to each side.

    The standard deviation of an estimated 2.5 % quantile is √(p (1 − p) / draws) / density = 0.027 errors, of which
    five are allowed; resampled means of 400 values are normal to a few thousandths.
    """
    values = np.random.default_rng(7).normal(size=400).tolist()
    error, found = np.std(values) / math.sqrt(400), interval(values)
    assert found is not None
    density = math.exp(-(1.96**2) / 2) / math.sqrt(2 * math.pi)
    allowed = 5 * math.sqrt(0.025 * 0.975 / DRAWS) / density + 0.02
    assert [(end - mean(values)) / error for end in found] == pytest.approx([-1.96, 1.96], abs=allowed)


def test_a_known_difference_is_inside_nineteen_of_twenty_times() -> None:
    """Of 400 experiments with 30 runs and a difference of 3, about 93 % contain it: ± 5 deviations of 1.3 %."""
    runs = 3 + np.random.default_rng(0).normal(size=(400, 30))
    inside = [
        ends is not None and ends[0] < 3 < ends[1] for ends in (interval(each, draws=500) for each in runs.tolist())
    ]
    assert 0.93 - 0.065 < np.mean(inside) < 0.93 + 0.065


def test_runs_that_repeat_each_other_do_not_narrow_the_interval() -> None:
    """Ten seeds that agree within each of four data sets are four values, not forty."""
    values = (1.0, 2.0, 6.0, 7.0)
    nested, flat = interval([[[each] * 10] for each in values]), interval([each for each in values for _ in range(10)])
    assert nested is not None
    assert flat is not None
    means = [np.mean(each) for each in product(values, repeat=4)]
    assert nested == pytest.approx(tuple(np.quantile(means, [0.025, 0.975], method="inverted_cdf")))
    assert nested[1] - nested[0] > 2 * (flat[1] - flat[0])


def test_one_value_has_no_interval_and_the_same_seed_gives_the_same_one() -> None:
    assert interval(2.0) is interval([[2.0]]) is None
    values = np.random.default_rng(0).normal(size=20).tolist()
    assert interval(values) == interval(values, seed=0) != interval(values, seed=1)
