"""Confidence: a plain loop as oracle, planted temperatures, and the effect of distances and stability."""

import math
import unittest.mock
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.rounding import rounding

from sortal.runs import confidence
from sortal.runs.confidence import ENOUGH, TEMPERATURE_SPREAD, UNCALIBRATED, Confidence, Placement, calibrate, place

untimed = settings(deadline=None)
Rows = list[list[float]]
Floats = NDArray[np.float64]

quarters = st.integers(-12, 12).map(lambda number: number / 4)  # with exact squares and sums


@st.composite
def points_and_centres(draw: st.DrawFn) -> tuple[Rows, Rows]:
    d = draw(st.integers(1, 3))
    row = st.lists(quarters, min_size=d, max_size=d)
    return draw(st.lists(row, max_size=8)), draw(st.lists(row, min_size=1, max_size=5))


def array(rows: Rows, d: int) -> NDArray[np.float32]:
    return np.array(rows, dtype=np.float32).reshape(-1, d)


def slow(
    x: Rows, centres: Rows, temperature: float, category: list[int] | None, head: Rows | None = None
) -> list[list[float]]:
    """Return category, distance, next category, its distance and probability of each row; a head's scores decide."""
    found = []
    for i, row in enumerate(x):
        squared = [sum((a - b) ** 2 for a, b in zip(row, centre, strict=True)) for centre in centres]
        costs = squared if head is None else [-sum(a * b for a, b in zip([*row, 1], h, strict=True)) for h in head]
        own = min(range(len(centres)), key=lambda j: costs[j]) if category is None else category[i]
        others = [j for j in range(len(centres)) if j != own]
        following = min(others, key=lambda j: costs[j]) if others else -1
        weights = [math.exp((min(costs) - each) / temperature) for each in costs]
        found.append(
            [
                own,
                math.sqrt(squared[own]),
                following,
                math.sqrt(squared[following]) if others else math.nan,
                weights[own] / math.fsum(weights),
            ]
        )
    return found


def assert_placed(placed: Placement, expected: list[list[float]]) -> None:
    columns = [placed.row, placed.distance, placed.next_row, placed.next_distance, placed.probability]
    for at, column in enumerate(columns):
        wanted = np.array([row[at] for row in expected])
        assert column.shape == wanted.shape
        np.testing.assert_allclose(column, wanted, rtol=1e-9, atol=1e-12)
    assert [column.dtype.str for column in (placed.row, placed.next_row)] == [np.dtype(np.int64).str] * 2


@given(st.data(), points_and_centres(), st.sampled_from([0.05, 1.0, 7.5]), st.booleans(), st.sampled_from([1, 5, 99]))
@untimed
def test_placements_match_a_plain_loop_for_any_chunk_size(
    data: st.DataObject, both: tuple[Rows, Rows], temperature: float, by_head: bool, chunk: int
) -> None:
    x, centres = both
    n, k, d = len(x), len(centres), len(centres[0])
    row = st.lists(quarters, min_size=d + 1, max_size=d + 1)
    rows = data.draw(st.lists(row, min_size=k, max_size=k)) if by_head else None
    head = None if rows is None else np.array(rows)
    for given_rows in (None, data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))):
        category = None if given_rows is None else np.array(given_rows, dtype=np.int64)
        with unittest.mock.patch.object(confidence, "NUMBERS_AT_ONCE", chunk):
            placed = place(array(x, d), array(centres, d), temperature, row=category, head=head)
        assert_placed(placed, slow(x, centres, temperature, given_rows, rows))
        assert category is None or category.tolist() == given_rows


def test_equal_points_have_distance_0_even_far_from_the_origin() -> None:
    x = (1000 * np.random.default_rng(0).normal(size=(200, 16))).astype(np.float32)
    placed = place(x, x, 1.0, row=np.arange(200))
    assert (placed.distance < 1e-3).all()  # the root of rounding errors of squares: √(20 · 5e7 · 2e-16) = 5e-4
    np.testing.assert_allclose(placed.probability, 1)


def test_tiny_temperatures_and_huge_scores_give_valid_probabilities() -> None:
    x, centres = array([[0.4], [0.6]], 1), array([[0], [1]], 1)
    loud = np.array([[0.0, 1e5], [0, -1e5]])
    for temperature, head, category in ((1e-16, None, [0, 1]), (1e-3, loud, [0, 0])):
        placed = place(x, centres, temperature, head=head)
        assert placed.row.tolist() == category
        assert placed.probability.tolist() == [1, 1]
        wrong = place(x, centres, temperature, row=1 - np.array(category), head=head)
        assert wrong.probability.tolist() == [0, 0]


def of_distances(centres: NDArray[np.float32]) -> Floats:
    """Return a head (2c, −|c|²) with the scores |x|² − d², which rank categories as distances do."""
    c = centres.astype(np.float64)
    return np.concatenate([2 * c, -(c**2).sum(axis=1, keepdims=True)], axis=1)


def drawn(temperature: float, *, by_head: bool = False, n: int = 6000, k: int = 5) -> dict[str, Any]:
    """Draw points and their categories from softmax(scores / T), with −d² or the outputs of a head as scores."""
    draw = np.random.default_rng(0)
    x, centres = draw.normal(size=(n, 4)).astype(np.float32), draw.normal(size=(k, 4)).astype(np.float32)
    head = draw.normal(size=(k, 5)) if by_head else of_distances(centres)
    scores = x @ head[:, :-1].T + head[:, -1] + temperature * draw.gumbel(size=(n, k))
    return {"x": x, "centres": centres, "truth": scores.argmax(axis=1), "head": head if by_head else None}


def categories(planted: dict[str, Any]) -> NDArray[np.int64]:
    return place(planted["x"], planted["centres"], 1.0, head=planted["head"]).row


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("temperature", [0.2, 3.0])
def test_the_planted_temperature_is_found(by_head: bool, temperature: float) -> None:
    planted = drawn(temperature, by_head=by_head)
    held_out = np.arange(6000) % 2 == 0
    planted["truth"][~held_out] = 0  # the truth of other images must not matter
    found = calibrate(**planted, row=categories(planted), held_out=held_out, unsure_below=0.5)
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    assert found.held_out == 3000
    assert found.calibrated


def test_images_of_a_group_count_as_one_when_calibrating() -> None:
    planted = drawn(3.0, n=400)
    row, held = categories(planted), np.arange(400) < 100
    fitted = calibrate(**planted, row=row, held_out=held, unsure_below=0.5)
    again = {name: each if name in ("centres", "head") else np.concatenate([each, each[:100], each[:100]])
             for name, each in planted.items()}  # fmt: skip
    of, thrice = np.concatenate([np.arange(400), np.arange(100), np.arange(100)]), np.r_[row, row[:100], row[:100]]
    more = calibrate(**again, row=thrice, held_out=of < 100, groups=of, unsure_below=0.5)
    assert (more.held_out, fitted.held_out) == (100, 100)
    usual = [UNCALIBRATED * float(np.mean(place(each["x"], each["centres"], 1.0, row=at).distance ** 2))
             for each, at in ((planted, row), (again, thrice))]  # fmt: skip
    assert more.temperature == pytest.approx(fitted.temperature, rel=abs(np.log(usual[1] / usual[0])) + 1e-3)


@pytest.mark.parametrize("factor", [1e-3, 30.0])
def test_calibration_follows_the_scale_of_scores_and_ignores_their_offset(factor: float) -> None:
    planted = drawn(1.0, by_head=True, n=500)
    everyone, category = np.ones(500, dtype=bool), categories(planted)
    louder = {**planted, "head": factor * (planted["head"] + np.array([1.0, -2, 3, 0.5, 100]))}
    one, other = (calibrate(**each, row=category, held_out=everyone, unsure_below=0.5) for each in (planted, louder))
    assert other.temperature == pytest.approx(factor * one.temperature, rel=1e-2)
    same = [
        found.of(place(each["x"], each["centres"], found.temperature, head=each["head"]))
        for each, found in ((planted, one), (louder, other))
    ]
    np.testing.assert_allclose(same[0], same[1], rtol=5e-2)


@pytest.mark.parametrize("by_head", [False, True])
def test_the_temperature_moves_smoothly_from_the_usual_one_to_the_fitted_one(by_head: bool) -> None:
    """Without held-out images it is a fraction of the mean squared distance, or 1 for a head."""
    planted = drawn(3.0, by_head=by_head, n=2000)
    placed = place(planted["x"], planted["centres"], 1.0, head=planted["head"])

    def fitted(held: int) -> Confidence:
        return calibrate(**planted, row=placed.row, held_out=np.arange(2000) < held, unsure_below=0.5)

    found = {held: fitted(held) for held in (0, 1, ENOUGH - 1, ENOUGH, 2000)}
    assert {held: each.held_out for held, each in found.items()} == {held: held for held in found}
    assert [each.calibrated for each in found.values()] == [False, False, False, True, True]
    share = UNCALIBRATED * float((placed.distance**2).mean())
    usual = 1.0 if by_head else pytest.approx(share)
    assert found[0].temperature == usual
    logs = {held: math.log(each.temperature) for held, each in found.items()}
    assert abs(logs[1] - logs[0]) < TEMPERATURE_SPREAD, "one image does not decide"
    assert abs(logs[ENOUGH] - logs[ENOUGH - 1]) < TEMPERATURE_SPREAD / 2, "nor does the last one that makes it enough"
    assert found[2000].temperature == pytest.approx(3.0, rel=0.15)


def test_one_category_cannot_be_calibrated() -> None:
    planted = drawn(3.0, by_head=False, n=200, k=1)
    found = calibrate(**planted, row=np.zeros(200, dtype=np.int64), held_out=np.arange(200) < 100, unsure_below=0.5)
    assert (found.held_out, found.calibrated, found.stability) == (0, False, None)


def test_a_head_that_scores_distances_is_calibrated_like_distances() -> None:
    planted = drawn(0.5, n=600)
    everyone, category = np.ones(600, dtype=bool), categories(planted)
    heads = (None, of_distances(planted["centres"]))
    plain, by_head = (
        calibrate(**{**planted, "head": head}, row=category, held_out=everyone, unsure_below=0.5) for head in heads
    )
    assert by_head.temperature == pytest.approx(plain.temperature, rel=2e-2)  # what is usual differs
    np.testing.assert_array_equal(by_head.usual, plain.usual)
    np.testing.assert_array_equal(by_head.deviation, plain.deviation)


def test_images_on_their_centres_leave_a_positive_temperature() -> None:
    x, centres, category = array([[0], [0], [1]], 1), array([[0], [1]], 1), np.array([0, 0, 1])
    found = calibrate(x, centres, category, held_out=np.zeros(3, dtype=bool), truth=category, unsure_below=0.5)
    assert found.temperature == 1e-6
    assert found.of(place(x, centres, found.temperature)).tolist() == [1, 1, 1]
    assert (found.deviation > 0).all()


def test_perfectly_separated_images_have_high_but_finite_confidence() -> None:
    n = 60
    truth = np.arange(n) % 2
    x = array([[float(10 * each)] for each in truth], 1)
    centres = array([[0], [10]], 1)
    found = calibrate(x, centres, truth, held_out=np.ones(n, dtype=bool), truth=truth, unsure_below=0.5)
    # All 60 are right; smoothing makes that 79 of 80.
    assert found.of(place(x, centres, found.temperature)) == pytest.approx(79 / 80, abs=5e-3)


def test_usual_distances_match_those_computed_by_hand() -> None:
    """A category's distances are shrunk towards the overall ones as if it had ten more images."""
    x, centres, category = array([[1], [-1], [96]], 1), array([[0], [100], [500]], 1), np.array([0, 0, 1])
    none = np.zeros(3, dtype=bool)
    found = calibrate(x, centres, category, held_out=none, truth=category, unsure_below=0.5)
    # Distances 1, 1 and 4: their mean is 2, their variance 2.
    usual = [(2 + 20) / 12, (4 + 20) / 11, 20 / 10]
    squares = [2 * (1 - usual[0]) ** 2, (4 - usual[1]) ** 2, 0]
    deviation = [math.sqrt((square + 20) / count) for square, count in zip(squares, (12, 11, 10), strict=True)]
    np.testing.assert_allclose(found.usual, usual)
    np.testing.assert_allclose(found.deviation, deviation)


def plain(**changes: Any) -> Confidence:
    values = {"temperature": 1.0, "held_out": 30, "unsure_below": 0.5}
    spread = {"usual": np.array([1.0, 2.0]), "deviation": np.array([0.5, 1.0])}
    return Confidence(**{**values, **spread, **changes})


def at(distance: list[float], probability: list[float], category: list[int]) -> Placement:
    return Placement(
        row=np.array(category),
        distance=np.array(distance),
        next_row=1 - np.array(category),
        next_distance=np.array(distance) + 1,
        probability=np.array(probability),
    )


def test_confidence_falls_beyond_the_usual_distance() -> None:
    # 2.5 deviations beyond the usual distance are 2.25 in the first category and 4.5 in the second.
    placed = at([0, 2.25, 3, 3, 4.5, 6], [0.9, 0.9, 0.8, 1, 0.5, 0.5], [0, 0, 0, 1, 1, 1])
    found = plain().of(placed)
    expected = [0.9, 0.9, 0.8 * math.exp((6.25 - 16) / 2), 1, 0.5, 0.5 * math.exp((6.25 - 16) / 2)]
    np.testing.assert_allclose(found, expected)


def test_a_later_image_that_is_apart_from_similar_ones_may_belong_nowhere() -> None:
    """The logarithm of the odds is 2.1, less 1.15 for each deviation more than usual in its category."""
    known = plain(usual_apart=np.array([0.0, 1.0]), deviation_apart=np.array([1.0, 0.5]))
    row, apart = np.array([0, 0, 1, 1]), np.array([0.0, 2.0, 1.0, 2.0])
    strange = known.strangeness(row, np.zeros(4), apart)
    assert strange.tolist() == [0, 2, 0, 2]
    chance = known.belonging(strange)
    np.testing.assert_allclose(np.log(chance / (1 - chance)), [2.1, -0.2, 2.1, -0.2])
    assert plain().belonging(strange).tolist() == [1] * 4, "nothing is known of it"
    assert plain().strangeness(row, np.array([1.0, 2.0, 2.0, 3.0]), apart).tolist() == [0, 2, 0, 1], "by distances"


def test_how_far_apart_is_usual_is_computed_as_for_distances() -> None:
    x, centres, row = array([[0], [0], [5]], 1), array([[0], [5]], 1), np.array([0, 0, 1])
    case: dict[str, Any] = {"held_out": np.zeros(3, dtype=bool), "truth": row, "unsure_below": 0.5}
    found = calibrate(x, centres, row, **case, apart=np.array([1.0, 1, 4]))
    assert found.usual_apart is not None
    assert found.deviation_apart is not None
    usual = [(2 + 20) / 12, (4 + 20) / 11]  # of 2 over all, as if there were ten more images
    np.testing.assert_allclose(found.usual_apart, usual)
    squares = [2 * (1 - usual[0]) ** 2, (4 - usual[1]) ** 2]
    np.testing.assert_allclose(found.deviation_apart, np.sqrt((np.array(squares) + 20) / [12, 11]))
    assert calibrate(x, centres, row, **case, apart=np.zeros(3)).usual_apart is None, "too few images to tell"


def test_stability_matches_that_computed_by_hand() -> None:
    """A category's agreement is shrunk towards the overall one as if it had ten more images; labelled ones are NaN."""
    x, centres = array([[0], [0], [0], [5], [5]], 1), array([[0], [5], [9]], 1)
    case: dict[str, Any] = {"x": x, "centres": centres, "row": np.array([0, 0, 0, 1, 1]), "truth": np.zeros(5, int)}
    agreement = np.array([1, 0.5, math.nan, 0.25, 0.25])  # 0.5 over all
    found = calibrate(**case, held_out=np.zeros(5, dtype=bool), unsure_below=0.5, agreement=agreement)
    assert found.stability is not None
    np.testing.assert_allclose(found.stability, [(1.5 + 5) / 12, (0.5 + 5) / 12, 0.5])
    nothing = calibrate(**case, held_out=np.zeros(5, dtype=bool), unsure_below=0.5, agreement=np.full(5, math.nan))
    assert nothing.stability is not None
    assert nothing.stability.tolist() == [1, 1, 1]


def test_confidence_is_lower_in_unstable_categories() -> None:
    placed = at([1, 1, 1], [0.9, 0.5, 0.9], [0, 0, 1])
    assert plain(stability=np.array([0.5, 1])).of(placed) == pytest.approx([0.45, 0.25, 0.9])
    assert plain().of(placed) == pytest.approx([0.9, 0.5, 0.9])  # a run without it
    assert plain(exponent=np.array([2, 1])).of(placed) == pytest.approx([0.81, 0.25, 0.9])
    certain = at([1, 1], [1, 1], [0, 1])
    assert plain(exponent=np.array([2, 1])).of(certain) == pytest.approx([0.99**2, 1])


@pytest.mark.parametrize("width", [1.0, 0.1])  # of the clusters: probabilities of all sizes, or of 1 throughout
def test_mean_confidence_is_at_most_the_overlap_with_another_training_run(width: float) -> None:
    """Labelled images, whose agreement is NaN, do not count, and an empty category has nothing to lower."""
    row, none, centres = np.repeat([0, 1], 30), np.zeros(60, dtype=bool), np.array([[1], [3], [9]], dtype=np.float32)
    x = centres[row] + width * np.tile(np.linspace(-1, 1, 30, dtype=np.float32), 2)[:, None]
    agreement = np.where(np.arange(60) % 3 == 0, np.nan, 0.9)
    case: dict[str, Any] = {"held_out": none, "truth": row, "unsure_below": 0.5, "agreement": agreement}

    def means(overlap: list[float] | None) -> list[float]:
        found = calibrate(x, centres, row, **case, overlap=None if overlap is None else np.array(overlap))
        assert overlap is None or (found.exponent is not None and found.exponent[2] == 1)
        sure = found.of(place(x, centres, found.temperature, row=row))
        return [float(sure[(row == j) & np.isfinite(agreement)].mean()) for j in (0, 1)]

    usual = means(None)
    assert usual[0] > 0.6
    assert means([0.6, 1, 0]) == pytest.approx([0.6, usual[1]], abs=1e-6)
    assert means([1, 0.3, 0]) == pytest.approx([usual[0], 0.3], abs=1e-6)


unit = st.floats(0, 1)
powers = st.tuples(st.floats(1, 100), st.floats(1, 100))


@given(st.tuples(unit, unit), st.tuples(unit, unit), powers, st.integers(0, 1))
def test_confidence_is_a_probability_and_rises_with_that_of_the_category(
    probability: tuple[float, float], stability: tuple[float, float], power: tuple[float, float], row: int
) -> None:
    placed = at([3.0] * 2, sorted(probability), [row] * 2)
    low, high = plain(stability=np.array(stability), exponent=np.array(power)).of(placed)
    pow_is_off = 1 + rounding(10)  # powers next to 1 may be rounded up
    assert 0 <= low <= high * pow_is_off
    assert high <= max(probability) * pow_is_off
