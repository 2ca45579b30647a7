"""estimate_k: planted mixtures with a known k, the search and its errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from math import log
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from support.thorough import thorough_but

from sortal import KEstimate, SemiSupervisedKMeans, estimate_k
from sortal.clustering.estimate_k import (
    CLOSE_SHARE,
    FIRST_RESTARTS,
    TOLERANCE,
    KMethod,
    _Clusterings,
    separation,
)
from sortal.clustering.lloyd import padded
from sortal.clustering.points import Points
from sortal.errors import InputError
from sortal.metrics import accuracy
from sortal.runs.facts import TriedK
from sortal.system.distributed import Peers

METHODS = get_args(KMethod)


def mixture(n: int, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Sample unit rows from k Gaussians, and labels for half of the rows of half of the classes."""
    rng = np.random.default_rng(0)
    truth = rng.integers(k, size=n)
    x = 1.2 * rng.normal(size=(k, 32))[truth] + rng.normal(size=(n, 32))
    labels = np.where((truth < k // 2) & (rng.random(n) < 0.5), truth, -1)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


def chosen(found: KEstimate) -> tuple[int, tuple[int, int]]:
    """Compute k and the interval from the curve alone, as the docs define them."""

    def best(scores: dict[int, float]) -> int:
        return min(k for k, score in scores.items() if score == max(scores.values()))

    k = best({at.k: at.score for at in found.curve})
    n_init = max(len(at.each) for at in found.curve)
    ks = [best({at.k: at.each[i] for at in found.curve if len(at.each) == n_init}) for i in range(n_init)]
    if found.method == "separation":
        ks = near(found, TOLERANCE)
    return k, (min(k, *ks), max(k, *ks))


def near(found: KEstimate, tolerance: float) -> list[int]:
    """Return the tried ks that score within a tolerance of the best, in order."""
    top = max(at.score for at in found.curve)
    return [at.k for at in found.curve if at.score >= top - tolerance * abs(top)]


@pytest.mark.parametrize("method", METHODS)
def test_planted_k_is_found_and_every_evaluation_is_returned(method: KMethod) -> None:
    """The bounds allow for noise, but exclude the number of labelled classes, k_max and chance."""
    x, labels = mixture(600, 20)
    seen: list[TriedK] = []
    options: dict[str, Any] = {"k_max": 100, "method": method, "n_init": 4, "device": "cpu"}
    found = estimate_k(x, labels, random_state=0, callback=seen.append, **options)
    assert 16 <= found.k <= 25
    assert Counter((at.k, len(at.each)) for at in seen).most_common(1)[0][1] == 1, "no restart is run twice"
    assert sorted({at.k: at for at in seen}.values(), key=lambda at: at.k) == list(found.curve)
    assert all(10 <= at.k <= 100 for at in found.curve)
    total = np.median if method == "separation" else np.mean
    assert all(len(at.each) in (FIRST_RESTARTS, 4) for at in found.curve)
    assert all(at.score == pytest.approx(total(at.each)) for at in found.curve)
    assert found.method == method
    assert (found.k, found.interval) == chosen(found), "the best of all, not the last"
    assert found == estimate_k(torch.from_numpy(x), labels, random_state=0, **options)
    assert found != estimate_k(x, labels, random_state=1, **options)


def test_the_score_is_that_of_plain_k_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle is scikit-learn's k-means from the same starts."""
    monkeypatch.setattr("sortal.clustering.estimate_k.MAX_ITER", 300)
    monkeypatch.setattr("sortal.clustering.estimate_k.TOL", 0.0)
    x, labels = mixture(600, 8)
    known = labels >= 0
    plain = clusterings(x, labels, fitted=None)
    scores = plain.scores(9)
    starts = (plain.first[0].centres.double() + plain.points.mean).numpy()
    for score, start in zip(scores, starts, strict=True):
        model = KMeans(9, init=start, n_init=1, tol=0).fit(x.astype(np.float64))
        wanted = accuracy(labels[known], model.labels_[known], old=()).all
        # A row between two centres may belong to either.
        assert score == pytest.approx(wanted, abs=2 / known.sum())


def test_separation_leaves_every_row_out_of_its_own_centre() -> None:
    """By hand, row by row: the centre of the others of its cluster, labelled ones included, against the next centre."""
    x, labels = mixture(60, 4)
    fitted = clusterings(x, labels, fitted=2)
    model = SemiSupervisedKMeans(12, n_init=1, random_state=0, device="cpu").fit(x, labels)
    centres, of, each = model.cluster_centers_.astype(np.float64), model.labels_, []
    for row in np.flatnonzero(labels < 0):
        others = (of == of[row]) & (np.arange(len(x)) != row)
        b = np.sort(np.linalg.norm(centres - x[row], axis=1))[1]
        a = np.linalg.norm(x[others].mean(0) - x[row]) if others.any() else b
        each.append((b - a) / max(a, b))
    relative = (torch.from_numpy(centres) - fitted.points.mean).to(fitted.points.x.dtype)
    known = len(fitted.fixed.counts)
    renumbered = torch.cat([relative[:known], relative[known:].flip(0)])
    found = separation(fitted.points, torch.stack([relative, renumbered]), fitted.fixed.counts)
    assert found == pytest.approx([np.mean(each)] * 2, abs=1e-4)


def clusterings(x: NDArray[np.float32], labels: NDArray[np.int64], fitted: int | None) -> _Clusterings:
    return _Clusterings(torch.from_numpy(x), labels, fitted, [1, 2, 3], Peers(), 100)


def lattice(n: int, d: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Make rows on a lattice so wide that squares are rounded, some of them labelled with four classes.

    Many rows are exactly as far from one seed as from another, so that rounding may decide which is drawn.
    """
    rng = np.random.default_rng(0)
    half = 4001 * rng.integers(-6, 7, (n // 2, d))
    labels = np.where(rng.random(2 * len(half)) < 0.4, rng.integers(0, 4, 2 * len(half)), -1)
    return np.concatenate([half, -half]).astype(np.float32), labels


@pytest.mark.parametrize("fitted", [0, 4])
@pytest.mark.parametrize(("n", "d"), [(60, 1), (200, 2), (300, 5)])
def test_scores_do_not_depend_on_what_was_tried_before(n: int, d: int, fitted: int) -> None:
    x, labels = lattice(n, d)
    grown = clusterings(x, labels, fitted)
    for k in (31, 4, 20, 7, 12, 9, 17, 5):
        alone = clusterings(x, labels, fitted)
        assert grown.scores(k) == alone.scores(k)
        assert torch.equal(grown.first[0].centres[:, :k], alone.first[0].centres)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the ks that are computed."""
    ks: list[int] = []
    scores = _Clusterings.scores

    def counted(self: _Clusterings, k: int, *, rest: bool = False) -> list[float]:
        ks.append(k)
        return scores(self, k, rest=rest)

    monkeypatch.setattr(_Clusterings, "scores", counted)
    return ks


@pytest.mark.parametrize("method", thorough_but(["brent"], METHODS))
def test_a_call_interrupted_anywhere_resumes_to_the_same_result(tried: list[int], method: KMethod) -> None:
    rows = lattice(100, 2)
    options: dict[str, Any] = {"k_max": 100, "method": method, "n_init": 4, "random_state": 0}
    whole: list[TriedK] = []
    wanted = estimate_k(*rows, **options, callback=whole.append)
    assert len(whole) > 5
    for n in range(1, len(whole) + 1, 3):
        seen = whole[:n]  # before the interruption
        tried.clear()
        assert estimate_k(*rows, **options, known=iter(whole[:n]), callback=seen.append) == wanted
        assert seen == whole, "known scores are not reported again, and the rest come in the same order"
        assert tried == [at.k for at in whole[n:]]


def test_known_scores_are_trusted_and_survive_json(tried: list[int]) -> None:
    """JSON turns tuples into lists; a known k that is never requested has no effect."""
    x, labels = mixture(150, 8)
    options: dict[str, Any] = {"k_max": 40, "n_init": 2, "random_state": 0}
    wanted = estimate_k(x, labels, **options)
    known = [TriedK(**json.loads(json.dumps(asdict(at)))) for at in wanted.curve]
    stranger = next(k for k in range(4, 40) if k not in {at.k for at in wanted.curve})
    known.append(TriedK(k=stranger, score=2.0, each=(2.0, 2.0)))
    assert estimate_k(x, labels, **options, known=known) == wanted
    worse = TriedK(k=wanted.k, score=1.0, each=(0.0, 0.0))  # the parts count
    assert estimate_k(x, labels, **options, known=[worse]).k != wanted.k
    tried.clear()
    with pytest.raises(InputError) as caught:
        estimate_k(x, labels, n_init=2, known=[TriedK(k=5, score=0.5, each=(0.5, 0.5, 0.5))])
    assert str(caught.value) == "known must come from a call with the same n_init, 2, got 3 scores of k = 5."
    assert tried == []


@pytest.mark.parametrize(
    ("method", "rows", "k_max", "most"),
    [("brent", 30, 2, 2), ("separation", 30, 4, 4), ("brent", 4, 99, 4), ("separation", 6, 99, 4)],
)
def test_every_k_of_a_narrow_range_is_tried(method: KMethod, rows: int, k_max: int, most: int) -> None:
    """k_max or the rows limit it: four rows, or two labelled classes and two unlabelled rows."""
    x = np.random.default_rng(0).normal(size=(rows, 2))
    labels = np.array([0, 0, 1, 1, *[-1] * (rows - 4)])
    found = estimate_k(x, labels, k_max=k_max, method=method, n_init=2, random_state=0)
    assert [at.k for at in found.curve] == list(range(2, most + 1))


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([3, -1, 3, -1], {}, "y must label rows of at least two classes for 'brent', got 1. Use 'separation' instead."),
        ([0, 1, 2, -1], {"k_max": 2}, "k_max must be at least 3 .the labelled classes., got 2"),
        ([0, 1, 2, -1], {"k_max": 0}, "k_max must be a whole number of at least 1, got 0"),
        ([0, 1, 2, -1], {"n_init": 0}, "n_init must be a whole number of at least 1, got 0"),
        ([0, 1, 2, -1], {"method": "guess"}, "method must be one of 'brent', 'separation', got 'guess'"),
    ],
)
def test_bad_input_is_reported(labels: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_k(np.eye(4), labels, **options)


def test_separation_tells_apart_classes_that_brent_merges() -> None:
    """Three classes are labelled. One cluster for the two others costs no accuracy, but they are well separated."""
    truth = np.arange(100) % 5
    centres = np.array([[0, 0], [10, 0], [0, 10], [10, 10], [14, 14]])
    x = centres[truth] + np.random.default_rng(0).normal(scale=0.3, size=(100, 2))
    labels = np.where((truth < 3) & (np.arange(100) < 50), truth, -1)
    found = {method: estimate_k(x, labels, k_max=20, method=method, random_state=0) for method in METHODS}
    assert (found["brent"].k, found["separation"].k) == (4, 5)


@pytest.mark.parametrize("known", [0, 1])
def test_separation_needs_no_labels(known: int) -> None:
    truth = np.arange(80) % 4
    centres = np.array([[0, 0], [10, 0], [0, 10], [10, 10]])
    x = centres[truth] + np.random.default_rng(0).normal(scale=0.3, size=(80, 2))
    labels = np.where((truth < known) & (np.arange(80) < 40), truth, -1)
    assert estimate_k(x, labels, k_max=20, method="separation", random_state=0).k == 4
    model = SemiSupervisedKMeans("auto", random_state=0).fit(x, labels)
    assert model.k_estimate_ is not None
    assert (model.n_clusters_, model.k_estimate_.method) == (4, "separation")


@pytest.mark.parametrize(("rows", "labels"), [(1, [-1]), (5, [-1] * 5), (5, [3, 3, -1, -1, -1]), (2, [3, -1])])
def test_rows_that_are_all_equal_are_one_cluster(rows: int, labels: list[int]) -> None:
    """Nothing is separated, so every k scores 0, and the smallest is chosen."""
    found = estimate_k(np.ones((rows, 3)), labels, method="separation", n_init=2, random_state=0)
    assert (found.k, found.interval[0]) == (1, 1)
    assert {at.score for at in found.curve} == {0.0}


def scored(
    score: Callable[[int, int], float], *, method: KMethod, k_max: int, k_min: int = 1, n_init: int = 1
) -> KEstimate:
    """Estimate k for 400 rows, 100 of them labelled with three classes; `score` maps k and restart to a score."""
    x = np.arange(800, dtype=np.float32).reshape(400, 2)
    labels = np.where(np.arange(400) < 100, np.arange(400) % 3, -1)

    def scores(self: _Clusterings, k: int, *, rest: bool = False) -> list[float]:
        return [score(k, i) for i in range(n_init) if (i >= FIRST_RESTARTS) == rest]

    with patch.object(_Clusterings, "scores", scores):
        return estimate_k(x, labels, k_min=k_min, k_max=k_max, n_init=n_init, method=method, random_state=0)


def test_the_other_restarts_are_left_out_where_the_first_are_clearly_worse() -> None:
    """Scores of restarts differ by 0.02: all are run unless the best is so much worse than the worst of the best k.

    Far from that one, a restart beyond the first ones would win all on its own, but is never run.
    """

    def score(k: int, i: int) -> float:
        return 1 - abs(log(k / 20)) + (i % 3) / 100 + 9 * (k < 15 and i >= FIRST_RESTARTS)

    found = scored(score, method="brent", k_max=100, n_init=5)
    best = next(at for at in found.curve if at.k == found.k)
    assert (found.k, len(best.each)) == (20, 5)
    assert {len(at.each) for at in found.curve if at.k < 15} == {FIRST_RESTARTS}
    for at in found.curve:
        assert len(at.each) == 5 or max(at.each) < min(best.each) - 0.02


@pytest.mark.parametrize("peak", [3, 10, 47, 100])
def test_a_peak_is_found(peak: int) -> None:
    found = scored(lambda k, _: -abs(np.log(k / peak)), method="brent", k_max=100)
    assert abs(found.k - peak) <= max(1, 0.03 * peak)
    assert len(found.curve) < 30


@pytest.mark.parametrize(("peak", "k_max", "interval"), [(20, 60, (12, 28)), (5, 60, (3, 13)), (29, 30, (21, 30))])
def test_the_interval_has_all_ks_that_score_almost_as_well(peak: int, k_max: int, interval: tuple[int, int]) -> None:
    """Eight steps of 0.9 % are within the tolerance of 8 %; the bounds, 3 and k_max, end it."""
    found = scored(lambda k, _: 1 - 0.009 * abs(k - peak), method="separation", k_max=k_max)
    assert (found.k, found.interval) == (peak, interval)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("k_min", "k_max", "k"), [(1, 60, 20), (25, 60, 25), (3, 15, 15), (30, 30, 30)])
def test_the_search_keeps_within_its_bounds(method: KMethod, k_min: int, k_max: int, k: int) -> None:
    found = scored(lambda k, _: -abs(np.log(k / 20)), method=method, k_max=k_max, k_min=k_min)
    assert abs(found.k - k) <= max(1, CLOSE_SHARE * k)
    assert all(max(k_min, 3) <= at.k <= k_max for at in found.curve)


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(InputError, match="k_max must be at least k_min, 31, got 30"):
        scored(lambda k, _: 0.0, method="brent", k_max=30, k_min=31)
    with pytest.raises(InputError, match=r"k_min must be at most 303 \(the labelled classes"):
        scored(lambda k, _: 0.0, method="separation", k_max=1000, k_min=304)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), k_max=st.integers(3, 120), n_init=st.integers(1, 7), levels=st.integers(1, 20))
def test_the_choice_follows_from_the_curve(method: KMethod, seed: int, k_max: int, n_init: int, levels: int) -> None:
    """For any scores; few levels make many ties, of which the smallest k wins."""

    def score(k: int, i: int) -> float:
        return int(np.random.default_rng([seed, k, i]).integers(-1, levels)) / levels

    found = scored(score, method=method, k_max=k_max, n_init=n_init)
    assert (found.k, found.interval) == chosen(found)
    tried, (first, *_, last) = [2, *(at.k for at in found.curve), k_max + 1], near(found, TOLERANCE) * 2
    assert all(3 <= k <= k_max for k in tried[1:-1])
    if method == "separation":  # the next ks outside are close, or beyond the bounds
        assert first - tried[tried.index(first) - 1] <= max(1, CLOSE_SHARE * first)
        assert tried[tried.index(last) + 1] - last <= max(1, CLOSE_SHARE * last)


def test_separations_of_different_numbers_of_centres_at_once_are_those_of_each() -> None:
    random = np.random.default_rng(0)
    points, labelled = Points(torch.from_numpy(random.normal(size=(60, 4)))), torch.tensor([3, 2])
    centres = [torch.from_numpy(random.normal(size=(1, k, 4))) for k in (1, 2, 7)]
    each = [separation(points, one, labelled[: one.shape[1]])[0] for one in centres]
    together, absent = padded(centres)
    found = separation(points, together, labelled, absent)
    assert found[1:] == pytest.approx(each[1:], abs=1e-12)
    assert found[0] == each[0] == 0
