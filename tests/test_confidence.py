"""Confidence: the obvious loop as oracle, temperatures that were planted, and what must rise and fall with it."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sortal import confidence
from sortal.confidence import ENOUGH, UNCALIBRATED, Confidence, Placed, calibrate, place
from sortal.errors import InputError

untimed = settings(deadline=None)
Rows = list[list[float]]
Floats = NDArray[np.float64]

quarters = st.integers(-12, 12).map(lambda number: number / 4)  # whose squares and sums are exact


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
    """Own category and distance, next one and distance, probability, of each row; a head's scores decide."""
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


def assert_placed(placed: Placed, expected: list[list[float]]) -> None:
    columns = [placed.category, placed.distance, placed.next_category, placed.next_distance, placed.probability]
    for at, column in enumerate(columns):
        told = np.array([row[at] for row in expected])
        assert column.shape == told.shape
        np.testing.assert_allclose(column, told, rtol=1e-9, atol=1e-12)
    assert [column.dtype.str for column in (placed.category, placed.next_category)] == [np.dtype(np.int64).str] * 2


# Among centres


@given(points_and_centres(), st.sampled_from([0.05, 1.0, 7.5]), st.booleans(), st.data())
@untimed
def test_places_are_those_of_the_obvious_loop(
    both: tuple[Rows, Rows], temperature: float, by_head: bool, data: st.DataObject
) -> None:
    x, centres = both
    n, k, d = len(x), len(centres), len(centres[0])
    row = st.lists(quarters, min_size=d + 1, max_size=d + 1)
    rows = data.draw(st.lists(row, min_size=k, max_size=k)) if by_head else None
    head = None if rows is None else np.array(rows)
    for told in (None, data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))):
        category = None if told is None else np.array(told, dtype=np.int64)
        placed = place(array(x, d), array(centres, d), temperature, category=category, head=head)
        assert_placed(placed, slow(x, centres, temperature, told, rows))
        assert category is None or category.tolist() == told


def test_four_points_by_hand() -> None:
    x, centres = array([[0, 0], [3, 4], [0, 1], [0, 4]], 2), array([[0, 0], [3, 4], [0, 5]], 2)
    placed = place(x, centres, 1.0)
    assert placed.category.tolist() == [0, 1, 0, 2]
    assert placed.distance.tolist() == [0, 0, 1, 1]
    assert placed.next_category.tolist() == [1, 2, 2, 1]  # the first: both others are 5 away
    np.testing.assert_allclose(placed.next_distance, [5, math.sqrt(10), 4, 3])
    assert placed.probability[0] == pytest.approx(1 / (1 + 2 * math.exp(-25)))
    assert placed.probability[3] == pytest.approx(math.exp(-1) / (math.exp(-1) + math.exp(-9) + math.exp(-16)))


@pytest.mark.parametrize("head", [None, np.array([[-3.0, 2.0]])], ids=["distances", "head"])
def test_one_category_is_certain_and_has_no_next(head: Floats | None) -> None:
    placed = place(array([[0], [5]], 1), array([[1]], 1), 0.1, head=head)
    assert placed.category.tolist() == [0, 0]
    assert placed.distance.tolist() == [1, 4]
    assert placed.next_category.tolist() == [-1, -1]
    assert np.isnan(placed.next_distance).all()
    assert placed.probability.tolist() == [1, 1]


@pytest.mark.parametrize("chunk", [1, 5, 14, 15])
@pytest.mark.parametrize("by_head", [False, True])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int, by_head: bool) -> None:
    draw = np.random.default_rng(0)
    x, centres = ((draw.integers(-8, 8, (n, 3)) / 4).astype(np.float32) for n in (7, 5))  # whose sums are exact
    head, told = draw.integers(-8, 8, (5, 4)) / 4 if by_head else None, draw.integers(0, 5, 7)
    whole = [place(x, centres, 0.5, category=category, head=head) for category in (None, told)]
    monkeypatch.setattr(confidence, "CHUNK", chunk)
    for before, category in zip(whole, (None, told), strict=True):
        after = place(x, centres, 0.5, category=category, head=head)
        for name, column in vars(before).items():
            # The last digit of an exponential may depend on its place in a vector.
            np.testing.assert_allclose(getattr(after, name), column, rtol=1e-13, err_msg=name)


def test_equal_points_are_no_distance_apart_even_far_from_the_origin() -> None:
    x = (1000 * np.random.default_rng(0).normal(size=(200, 16))).astype(np.float32)
    placed = place(x, x, 1.0, category=np.arange(200))
    assert (placed.distance < 1e-3).all()  # the root of some roundings of squares: √(20 · 5e7 · 2e-16) = 5e-4
    np.testing.assert_allclose(placed.probability, 1)


def test_temperatures_near_nothing_and_scores_of_any_size_give_probabilities() -> None:
    x, centres = array([[0.4], [0.6]], 1), array([[0], [1]], 1)
    loud = np.array([[0.0, 1e5], [0, -1e5]])
    for temperature, head, category in ((1e-16, None, [0, 1]), (1e-3, loud, [0, 0])):
        placed = place(x, centres, temperature, head=head)
        assert placed.category.tolist() == category
        assert placed.probability.tolist() == [1, 1]
        wrong = place(x, centres, temperature, category=1 - np.array(category), head=head)
        assert wrong.probability.tolist() == [0, 0]


# By the scores of a head


def of_distances(centres: NDArray[np.float32]) -> Floats:
    """A head whose scores are |x|² − d², so that it says what distances say: 2c and −|c|²."""
    c = centres.astype(np.float64)
    return np.concatenate([2 * c, -(c**2).sum(axis=1, keepdims=True)], axis=1)


def test_a_head_by_hand() -> None:
    """It says the far one: distances are to the centres of what it says, probabilities are of its scores."""
    x, centres = array([[0, 0], [3, 4]], 2), array([[0, 0], [3, 4], [0, 5]], 2)
    head = np.array([[0.0, 0, 1], [0, 0, 2], [1, 0, 0]])  # scores 1, 2, 0 and 1, 2, 3
    placed = place(x, centres, 0.5, head=head)
    assert placed.category.tolist() == [1, 2]
    np.testing.assert_allclose(placed.distance, [5, math.sqrt(10)])
    assert placed.next_category.tolist() == [0, 1]
    np.testing.assert_allclose(placed.next_distance, [0, 0])
    e = math.exp
    np.testing.assert_allclose(placed.probability, [e(4) / (e(2) + e(4) + e(0)), e(6) / (e(2) + e(4) + e(6))])
    told = place(x, centres, 0.5, category=np.array([2, 0]), head=head)
    assert told.category.tolist() == [2, 0]
    assert told.next_category.tolist() == [1, 2]
    np.testing.assert_allclose(told.distance, [5, 5])
    np.testing.assert_allclose(told.probability, [e(0) / (e(2) + e(4) + e(0)), e(2) / (e(2) + e(4) + e(6))])


# Calibration


def drawn(temperature: float, *, n: int = 6000, k: int = 5, d: int = 4, seed: int = 0) -> dict[str, Any]:
    """Points between centres, of the categories that softmax(−d² / T) says."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(k, d))
    x = draw.normal(size=(n, d))
    squared = ((x[:, None] - centres) ** 2).sum(axis=2)
    chance = np.exp(-(squared - squared.min(axis=1, keepdims=True)) / temperature)
    ends = np.cumsum(chance / chance.sum(axis=1, keepdims=True), axis=1)
    truth = np.minimum((draw.random((n, 1)) > ends).sum(axis=1), k - 1)
    return {"x": x.astype(np.float32), "centres": centres.astype(np.float32), "truth": truth}


def scored(temperature: float, *, n: int = 6000, k: int = 5, d: int = 4, seed: int = 0) -> dict[str, Any]:
    """Draw points of the categories that softmax(scores / T) of a head says; centres are anywhere."""
    draw = np.random.default_rng(seed)
    x, head = draw.normal(size=(n, d)).astype(np.float32), draw.normal(size=(k, d + 1))
    scores = x @ head[:, :-1].T + head[:, -1] + temperature * draw.gumbel(size=(n, k))
    centres = draw.normal(size=(k, d)).astype(np.float32)
    return {"x": x, "centres": centres, "truth": scores.argmax(axis=1), "head": head}


def categories(planted: dict[str, Any]) -> NDArray[np.int64]:
    return place(planted["x"], planted["centres"], 1.0, head=planted.get("head")).category


@pytest.mark.parametrize("planted_in", [drawn, scored])
@pytest.mark.parametrize("temperature", [0.2, 3.0])
def test_the_planted_temperature_is_found(planted_in: Callable[[float], dict[str, Any]], temperature: float) -> None:
    planted = planted_in(temperature)
    held_out = np.arange(len(planted["x"])) % 2 == 0
    planted["truth"][~held_out] = 0  # of others the truth is not looked at
    found = calibrate(**planted, category=categories(planted), held_out=held_out, unsure_below=0.5)
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    assert found.held_out == 3000
    assert found.calibrated
    assert found.head is planted.get("head")


@pytest.mark.parametrize("factor", [1e-3, 30.0])
def test_calibration_follows_the_scale_of_scores_and_not_their_level(factor: float) -> None:
    planted = scored(1.0, n=500)
    everyone, category = np.ones(500, dtype=bool), categories(planted)
    louder = {**planted, "head": factor * (planted["head"] + np.array([1.0, -2, 3, 0.5, 100]))}
    one, other = (
        calibrate(**each, category=category, held_out=everyone, unsure_below=0.5) for each in (planted, louder)
    )
    assert other.temperature == pytest.approx(factor * one.temperature, rel=1e-3)
    same = [
        found.of(place(each["x"], each["centres"], found.temperature, head=each["head"]))
        for each, found in ((planted, one), (louder, other))
    ]
    np.testing.assert_allclose(same[0], same[1], rtol=1e-2)


@pytest.mark.parametrize(("held", "k"), [(0, 5), (ENOUGH - 1, 5), (ENOUGH, 5), (100, 1)])
@pytest.mark.parametrize("planted_in", [drawn, scored])
def test_too_few_held_out_images_or_categories_do_not_calibrate(
    planted_in: Callable[..., dict[str, Any]], held: int, k: int
) -> None:
    """Distances then have a share of their mean square as temperature, and a head means what it was trained to."""
    planted = planted_in(3.0, n=200, k=k)
    placed = place(planted["x"], planted["centres"], 1.0, head=planted.get("head"))
    found = calibrate(**planted, category=placed.category, held_out=np.arange(200) < held, unsure_below=0.5)
    assert found.calibrated is (held == ENOUGH)
    assert found.held_out == (ENOUGH if found.calibrated else 0)
    assert found.strangers == 0.0
    if not found.calibrated:
        share = UNCALIBRATED * float((placed.distance**2).mean())
        assert found.temperature == (1.0 if "head" in planted else pytest.approx(share))


def test_a_head_that_scores_distances_is_calibrated_as_they_are() -> None:
    for strangers in (0, 600):
        case = two_known_categories(strangers)
        plain, _, _ = mean_confidence(case, n_known=2)
        told, _, _ = mean_confidence({**case, "head": of_distances(case["centres"])}, n_known=2)
        assert told.temperature == pytest.approx(plain.temperature, rel=1e-3)
        assert told.strangers == pytest.approx(plain.strangers, abs=1e-3)
        assert told.surest == pytest.approx(plain.surest, abs=1e-2)
        np.testing.assert_array_equal(told.usual, plain.usual)
        np.testing.assert_array_equal(told.deviation, plain.deviation)


def test_a_mixture_of_round_clusters_has_twice_their_variance() -> None:
    draw = np.random.default_rng(1)
    centres = draw.normal(size=(6, 3)).astype(np.float32)
    truth = draw.integers(0, 6, 5000)
    x = (centres[truth] + draw.normal(0, 0.4, (5000, 3))).astype(np.float32)
    placed = place(x, centres, 1.0)
    found = calibrate(x, centres, placed.category, held_out=np.ones(5000, dtype=bool), truth=truth, unsure_below=0.5)
    assert found.temperature == pytest.approx(2 * 0.4**2, rel=0.1)
    sure = place(x, centres, found.temperature).probability
    right = placed.category == truth
    for low in (0.3, 0.5, 0.7):  # confidence is how often it is right
        among = (sure >= low) & (sure < low + 0.2)
        assert among.sum() > 200
        assert right[among].mean() == pytest.approx(sure[among].mean(), abs=0.06)


def test_images_on_their_centres_leave_a_temperature_above_nothing() -> None:
    x, centres, category = array([[0], [0], [1]], 1), array([[0], [1]], 1), np.array([0, 0, 1])
    found = calibrate(x, centres, category, held_out=np.zeros(3, dtype=bool), truth=category, unsure_below=0.5)
    assert found.temperature == 1e-6
    assert found.of(place(x, centres, found.temperature)).tolist() == [1, 1, 1]
    assert (found.deviation > 0).all()


def test_perfectly_parted_images_are_sure_and_finite() -> None:
    n = 60
    truth = np.arange(n) % 2
    x = array([[float(10 * each)] for each in truth], 1)
    centres = array([[0], [10]], 1)
    found = calibrate(x, centres, truth, held_out=np.ones(n, dtype=bool), truth=truth, unsure_below=0.5)
    # None of 60 is wrong, and one more is taken to be: 61 of 62 are right.
    assert found.of(place(x, centres, found.temperature)) == pytest.approx(61 / 62, abs=1e-4)


@pytest.mark.parametrize("unsure_below", [-0.01, 1.01, math.nan])
def test_unsure_below_is_a_share(unsure_below: float) -> None:
    planted, nobody = drawn(0.5, n=50), np.zeros(50, dtype=bool)
    with pytest.raises(InputError, match=f"unsure_below must be from 0 to 1, got {unsure_below}"):
        calibrate(**planted, category=categories(planted), held_out=nobody, unsure_below=unsure_below)


def test_usual_distances_by_hand() -> None:
    """Those of a category, drawn towards those of all as if there were ten more images."""
    x, centres, category = array([[1], [-1], [96]], 1), array([[0], [100], [500]], 1), np.array([0, 0, 1])
    nobody = np.zeros(3, dtype=bool)
    found = calibrate(x, centres, category, held_out=nobody, truth=category, unsure_below=0.5)
    # Distances 1, 1 and 4: their mean is 2, their variance 2.
    usual = [(2 + 20) / 12, (4 + 20) / 11, 20 / 10]
    squares = [2 * (1 - usual[0]) ** 2, (4 - usual[1]) ** 2, 0]
    deviation = [math.sqrt((square + 20) / count) for square, count in zip(squares, (12, 11, 10), strict=True)]
    np.testing.assert_allclose(found.usual, usual)
    np.testing.assert_allclose(found.deviation, deviation)


# From distances to confidence


def plain(**changes: Any) -> Confidence:
    values = {"temperature": 1.0, "held_out": 30, "unsure_below": 0.5}
    spread = {"usual": np.array([1.0, 2.0]), "deviation": np.array([0.5, 1.0])}
    return Confidence(**{**values, **spread, **changes})


def at(distance: list[float], probability: list[float], category: list[int]) -> Placed:
    return Placed(
        category=np.array(category),
        distance=np.array(distance),
        next_category=1 - np.array(category),
        next_distance=np.array(distance) + 1,
        probability=np.array(probability),
    )


def test_confidence_by_hand() -> None:
    # 2.5 deviations beyond the usual distance are 2.25 in the first category and 4.5 in the second.
    placed = at([0, 2.25, 3, 3, 4.5, 6], [0.9, 0.9, 0.8, 1, 0.5, 0.5], [0, 0, 0, 1, 1, 1])
    found = plain().of(placed)
    expected = [0.9, 0.9, 0.8 * math.exp((6.25 - 16) / 2), 1, 0.5, 0.5 * math.exp((6.25 - 16) / 2)]
    np.testing.assert_allclose(found, expected)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1), st.integers(0, 1)), min_size=1, max_size=20),
    st.floats(0, 50),
)
@untimed
def test_confidence_is_a_share_that_falls_with_distance(rows: list[tuple[float, float, int]], more: float) -> None:
    distance, probability, category = (list(column) for column in zip(*rows, strict=True))
    one = plain().of(at(distance, probability, category))
    farther = plain().of(at([each + more for each in distance], probability, category))
    assert ((one >= 0) & (one <= 1)).all()
    assert (one <= probability).all()
    assert (farther <= one).all()


@pytest.mark.parametrize("head", [None, np.array([[-4.0, 0, 6], [4, 0, -6]])], ids=["distances", "head"])
def test_an_image_on_its_way_from_one_centre_outwards_becomes_less_sure(head: Floats | None) -> None:
    """Away from both centres the nearer of them gains in probability, yet the image is like neither."""
    draw = np.random.default_rng(0)
    centres = array([[0, 0], [3, 0]], 2)
    category = draw.integers(0, 2, 400)
    x = (centres[category] + draw.normal(0, 0.3, (400, 2))).astype(np.float32)
    everyone = np.ones(400, dtype=bool)
    found = calibrate(x, centres, category, held_out=everyone, truth=category, unsure_below=0.5, head=head)
    placed = place(array([[-0.2 * step, 0] for step in range(30)], 2), centres, found.temperature, head=head)
    sure = found.of(placed)
    assert (np.diff(placed.probability) >= -1e-12).all()
    beyond = placed.distance > found.usual[0] + confidence.FAR * found.deviation[0]
    np.testing.assert_array_equal(sure[~beyond], placed.probability[~beyond])
    assert (np.diff(sure[beyond]) < 0).all()
    assert sure[0] > 0.99
    assert sure[-1] < 1e-6


@given(
    st.lists(st.floats(1e-6, 1e6), min_size=4, max_size=4),
    st.integers(0, 1000),
    st.lists(st.tuples(st.floats(0, 10), st.floats(1e-6, 10)), min_size=1, max_size=5),
)
@untimed
def test_json_gives_every_bit_back(numbers: list[float], held_out: int, spread: list[tuple[float, float]]) -> None:
    usual, deviation = np.array(spread).T
    values = dict(zip(("temperature", "unsure_below", "strangers", "surest"), numbers, strict=True))
    found = plain(**values, held_out=held_out, usual=usual, deviation=deviation, n_known=held_out + 1)
    saved = json.loads(json.dumps(found.to_json(), allow_nan=False))
    head = np.array([[1.0, 1.0]])
    assert Confidence.from_json(saved, None).head is None
    again = Confidence.from_json(saved, head)
    assert again.head is head
    assert {name: getattr(again, name) for name in values} == values
    assert (again.held_out, again.n_known) == (held_out, held_out + 1)
    assert (again.usual.tolist(), again.deviation.tolist()) == (usual.tolist(), deviation.tolist())
    assert saved["calibrated"] is again.calibrated is (held_out > 0)


# Strangers


def two_known_categories(strangers: int, seed: int = 0) -> dict[str, Any]:
    """Images of two known classes on a line, 300 held out and 600 unlabelled, and strangers halfway between them."""
    draw = np.random.default_rng(seed)
    own = np.arange(900) % 2
    places = np.concatenate([own * 4 + draw.normal(0, 0.9, 900), draw.normal(2, 0.6, strangers)])
    x = places[:, None].astype(np.float32)
    truth = np.concatenate([own, np.full(strangers, -1)])
    held_out = np.arange(len(x)) < 300
    return {
        "x": x,
        "centres": array([[0], [4]], 1),
        "category": (places > 2).astype(np.int64),
        "held_out": held_out,
        "truth": truth,
        "unlabelled": ~held_out,
    }


def mean_confidence(case: dict[str, Any], n_known: int) -> tuple[Confidence, float, float]:
    """Of the unlabelled images: what is said, and how many are right."""
    found = calibrate(**{**case, "truth": np.maximum(case["truth"], 0)}, unsure_below=0.5, n_known=n_known)
    placed = place(case["x"], case["centres"], found.temperature, category=case["category"], head=found.head)
    said = found.of(placed)
    hidden = case["unlabelled"]
    return found, float(said[hidden].mean()), float((case["category"] == case["truth"])[hidden].mean())


@pytest.mark.parametrize("head", [None, np.array([[0.0, 0.0], [5.0, -10.0]])], ids=["distances", "head"])
def test_strangers_in_known_categories_are_counted_against_confidence(head: Floats | None) -> None:
    """By distances, and by a head of another slope and bias, by which strangers halfway are unsure as well."""
    case = {**two_known_categories(600), "head": head}
    _, said, right = mean_confidence(case, n_known=0)  # as if these were new categories
    assert said - right > 0.2
    found, said, right = mean_confidence(case, n_known=2)
    assert found.strangers > 0
    assert found.n_known == 2
    assert abs(said - right) < 0.08
    others = case["unlabelled"] & (case["category"] == 1)
    moved = {**case, "x": case["x"] + others[:, None].astype(np.float32)}
    for n_known, same in ((1, True), (2, False)):
        before, after = (mean_confidence(each, n_known=n_known)[0].strangers for each in (case, moved))
        assert (before == pytest.approx(after, rel=1e-6)) is same


def test_without_strangers_hardly_any_are_found() -> None:
    for seed in range(3):
        case = two_known_categories(0, seed)
        _, said, _ = mean_confidence(case, n_known=0)
        _, less, right = mean_confidence(case, n_known=2)
        assert said >= less
        assert abs(less - right) < 0.1


def test_strangers_are_the_slope_of_a_logistic_regression_less_its_error() -> None:
    from sklearn.linear_model import LogisticRegression

    draw = np.random.default_rng(0)
    held_out, unlabelled = draw.normal(3, 1, 200), draw.normal(2, 1.5, 500)
    x = np.concatenate([held_out, unlabelled])
    y = np.arange(700) < 200
    weight = np.where(y, 1, 200 / 500)
    model = LogisticRegression(C=1e6, tol=1e-10).fit(x[:, None], y, sample_weight=weight)
    slopes = []
    for _ in range(60):  # the error by drawing again
        rows = np.concatenate([draw.integers(0, 200, 200), draw.integers(200, 700, 500)])
        again = LogisticRegression(C=1e6).fit(x[rows, None], y[rows], sample_weight=weight[rows])
        slopes.append(again.coef_[0, 0])
    slope, surest = confidence._strangers(held_out, unlabelled)
    assert slope == pytest.approx(model.coef_[0, 0] - np.std(slopes), abs=0.03)
    assert surest == pytest.approx(np.quantile(held_out, 0.75))


def test_strangers_at_the_limits() -> None:
    """Too few images tell of none, and they stay finite where only held-out images are sure."""
    assert confidence._strangers(np.full(ENOUGH - 1, 3.0), np.zeros(500)) == (0.0, 0.0)
    assert confidence._strangers(np.full(500, 3.0), np.zeros(ENOUGH - 1)) == (0.0, 0.0)
    slope, surest = confidence._strangers(np.full(100, 6.0), np.full(100, -6.0))
    assert 0 < slope < 10
    assert surest == 6.0


def test_strangers_count_in_known_categories_alone_and_not_where_images_are_surest() -> None:
    one = plain(n_known=1, strangers=0.5, surest=math.log(9))  # of 0.9
    placed = at([1, 1, 1, 1], [0.95, 0.9, 0.5, 0.5], [0, 0, 0, 1])
    # At 0.5 the log-odds are 0, so that exp(0.5 · (0 − ln 9)) = 1/3 of it is left.
    assert one.of(placed) == pytest.approx([0.95, 0.9, 0.5 / 3, 0.5])
