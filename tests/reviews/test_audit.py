"""Audits: intervals are exact, whatever is sampled; and they hold for what is left when failures are taken back."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.reviews.audit import NO_TALLY, Tally, UnseenPrecision, due, interval, precision

interval_of = cache(interval)  # of the same sample again and again


def chance(right: int, sampled: int, good: int, total: int) -> Fraction:
    """Return the probability of so many right ones in a sample, if `good` of all are right."""
    return Fraction(comb(good, right) * comb(total - good, sampled - right), comb(total, sampled))


# One category


@pytest.mark.parametrize("total", [1, 2, 3, 5, 8, 13, 20])
def test_an_interval_has_every_number_of_right_ones_that_makes_neither_tail_unlikely(total: int) -> None:
    tail = Fraction(1, 40)
    for sampled in range(1, total + 1):
        of = [[chance(right, sampled, good, total) for right in range(sampled + 1)] for good in range(total + 1)]
        for right in range(sampled + 1):
            tails = [min(sum(row[: right + 1]), sum(row[right:])) for row in of]
            likely = [good for good, each in enumerate(tails) if each > tail]
            maybe = [good for good, each in enumerate(tails) if each >= tail]  # a tie is a matter of rounding
            low, high = interval(right, sampled, total)
            assert low in (likely[0] / total, maybe[0] / total)
            assert high in (likely[-1] / total, maybe[-1] / total)


def test_intervals_by_hand() -> None:
    assert [interval(right, 10, 10) for right in (0, 7, 10)] == [(0, 0), (0.7, 0.7), (1, 1)]  # all are known
    assert (interval(0, 1, 1), interval(1, 1, 1)) == ((0, 0), (1, 1))
    # Of 10, 4 are right: C(6, 4) / C(10, 4) is 15 / 210, above 1/40, and C(5, 4) / C(10, 4) is below.
    assert interval(4, 4, 10) == (0.6, 1)
    assert interval(0, 4, 10) == (0, 0.4)
    assert interval(4, 4, 10, level=0.5) == (0.8, 1)  # C(8, 4) / C(10, 4) is 70 / 210, and C(7, 4) / C(10, 4) 35 / 210


@given(st.data())
def test_an_interval_holds_the_estimate_and_follows_it(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 3000))
    sampled = data.draw(st.integers(1, min(total, 400)))
    right = data.draw(st.integers(0, sampled))
    low, high = interval(right, sampled, total)
    assert right / total <= low <= right / sampled <= high <= (total - sampled + right) / total
    assert interval(sampled - right, sampled, total) == pytest.approx((1 - high, 1 - low)), "of the wrong ones"
    if right < sampled:
        more = interval(right + 1, sampled, total)
        assert low <= more[0]
        assert high <= more[1]


@pytest.mark.parametrize(("total", "sampled"), [(7, 4), (30, 4), (60, 6), (90, 30), (200, 20)])
def test_intervals_hold_the_truth_at_least_as_often_as_they_claim(total: int, sampled: int) -> None:
    found = [interval(right, sampled, total) for right in range(sampled + 1)]
    for good in range(total + 1):
        holds = [right for right, (low, high) in enumerate(found) if low <= good / total <= high]
        assert sum(chance(right, sampled, good, total) for right in holds) >= Fraction(95, 100)


def test_a_category_fails_if_so_many_wrong_ones_are_unlikely_at_the_required_share() -> None:
    for sampled in range(41):
        for wrong in range(sampled + 1):
            fewer = sum(comb(sampled, each) * 19 ** (sampled - each) for each in range(wrong))  # of 20 ** sampled
            failed = 1 - Fraction(fewer, 20**sampled) < Fraction(3, 20)
            assert Tally(sampled=sampled, right=sampled - wrong).failed() == failed
    # 1 − 0.95³ is 0.143, and 1 − 0.95⁴ is 0.185.
    assert Tally(sampled=3, right=2).failed()
    assert not Tally(sampled=4, right=3).failed()


def test_a_tenth_is_sampled_at_least_four_and_once() -> None:
    counts = {0: 0, 1: 1, 3: 3, 4: 4, 5: 4, 40: 4, 41: 5, 100: 10, 101: 11, 600: 60, 1000: 60}
    assert {unseen: due(unseen, NO_TALLY) for unseen in counts} == counts
    assert due(1000, Tally(sampled=1, right=0)) == 0


# All categories


def test_nothing_is_known_without_a_sample() -> None:
    assert precision([]) == UnseenPrecision(images=0, sampled=0, estimate=None, low=0, high=1)
    assert precision([(30, NO_TALLY), (0, NO_TALLY)]) == UnseenPrecision(
        images=30, sampled=0, estimate=None, low=0, high=1
    )


def test_a_single_category_has_its_own_interval() -> None:
    low, high = interval(9, 10, 100)
    expected = UnseenPrecision(images=100, sampled=10, estimate=0.9, low=low, high=high)
    assert precision([(90, Tally(images=100, sampled=10, right=9)), (0, NO_TALLY)]) == expected


def test_an_image_of_a_small_sample_stands_for_many() -> None:
    parts = [(90, Tally(images=100, sampled=10, right=9)), (10, Tally(images=20, sampled=10, right=10))]
    # 90 of 100 and 20 of 20 are right; 120² / (100² / 10 + 20² / 10) is 13.8 images, of which 11.9 are right.
    (low, _), (_, high) = interval(11, 13, 120), interval(12, 13, 120)
    found = precision(parts)
    assert (found.images, found.sampled, found.low, found.high) == (120, 20, low, high)
    assert found.estimate == pytest.approx(110 / 120)
    even = precision([(5, Tally(images=100, sampled=10, right=right)) for right in (9, 10)])
    assert (even.low, even.high) == interval(19, 20, 200), "equal shares lose nothing"


def test_categories_without_a_sample_may_be_all_right_or_all_wrong() -> None:
    parts = [(90, Tally(images=100, sampled=10, right=9)), (100, NO_TALLY)]
    low, high = interval(9, 10, 100)
    found = precision(parts)
    assert (found.images, found.sampled, found.estimate) == (200, 10, 0.9)
    assert (found.low, found.high) == pytest.approx((low / 2, (high + 1) / 2))


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_any_samples_give_a_valid_interval(counts: list[tuple[int, int, int]]) -> None:
    parts = [
        (unseen, Tally(images=sum((unseen, right, wrong)), sampled=right + wrong, right=right))
        for unseen, right, wrong in counts
    ]
    found = precision(parts)
    assert 0 <= found.low <= found.high <= 1
    assert found.images == sum(map(sum, counts))
    right, wrong = (sum(each[at] for each in counts) for at in (1, 2))
    assert (found.estimate is None) == (right + wrong == 0)
    if not wrong and right:
        assert found.estimate == pytest.approx(1)
        assert found.high == pytest.approx(1)


@pytest.mark.parametrize(
    ("images", "right"),
    [
        ([400, 300, 200, 100, 60, 30, 12], [400, 240, 198, 97, 57, 27, 12]),
        ([50] * 12, [50, 49, 48, 47, 46, 45] * 2),
        ([30] * 30, [27] * 30),  # so small that a sample tells little
    ],
    ids=["different", "middling", "small"],
)
def test_intervals_hold_for_what_is_left_after_failures(images: list[int], right: list[int]) -> None:
    generator, failed = np.random.default_rng(0), cache(Tally.failed)
    overall, each = list[bool](), list[bool]()
    for _ in range(200):
        left, dropped = list[tuple[int, int, Tally]](), list[Tally]()
        for total, good in zip(images, right, strict=True):
            sampled = due(total, NO_TALLY)
            found = int(generator.hypergeometric(good, total - good, sampled))
            if failed(tally := Tally(images=total, sampled=sampled, right=found)):
                dropped.append(tally)
            else:
                left.append((total, good, tally))
                low, high = interval_of(found, sampled, total)
                each.append(low <= good / total <= high)
        share = sum(good for _, good, _ in left) / sum(total for total, _, _ in left)
        claim = precision([(total - tally.sampled, tally) for total, _, tally in left], dropped)
        overall.append(claim.low - 1e-9 <= share <= claim.high + 1e-9)
    assert np.mean(each) >= 0.9
    assert np.mean(overall) >= 0.9
