"""estimate_k: planted mixtures with a known k, the search itself, errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from sortal import KEstimate, estimate_k
from sortal.errors import InputError
from sortal.estimate import Evaluation, Method, _Fold, _half, _search, silhouette
from sortal.metrics import accuracy
from sortal.points import Points
from sortal.shards import Shards

METHODS = get_args(Method)


def mixture(
    n: int, k: int, *, tail: float, seed: int = 0, d: int = 32
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Unit rows from k Gaussians, the i-th class (1 + i)^-tail as likely as the first, and labels for half of half."""
    rng = np.random.default_rng(seed)
    weight = rng.permutation((1.0 + np.arange(k)) ** -tail)
    truth = rng.choice(k, size=n, p=weight / weight.sum())
    x = 1.2 * rng.normal(size=(k, d))[truth] + rng.normal(size=(n, d))
    labels = np.where((truth < k // 2) & (rng.random(n) < 0.5), truth, -1)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


# Both estimators see k through the labelled classes. Balanced, they come close; with a long tail the smallest classes
# have a handful of rows, k-means has no use for a centre there, and both stay below the truth (as they do by half in
# benchmarks/RESULTS.md). The bounds are wide enough for noise, too narrow for |Y_L|, for k_max or for chance.
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("k", "n", "tail", "low", "high"),
    [(20, 1500, 0.0, 17, 24), (20, 1500, 0.7, 13, 25), (100, 5000, 0.0, 85, 125), (100, 5000, 0.7, 60, 125)],
)
def test_planted_k_is_found(method: Method, k: int, n: int, tail: float, low: int, high: int) -> None:
    x, labels = mixture(n, k, tail=tail)
    found = estimate_k(x, labels, k_max=400, method=method, n_init=6, random_state=0)
    assert low <= found.k <= high
    assert found.interval[0] <= found.k <= found.interval[1]


def chosen(found: KEstimate, labelled: int) -> tuple[int, tuple[int, int]]:
    """k and the interval as the docs have them, from the curve alone."""

    def best(scores: dict[int, float]) -> int:
        top = max(scores.values())
        if found.method != "plateau":
            return min(k for k, score in scores.items() if score == top)
        share = (labelled * top + 1) / (labelled + 2)
        return max(k for k, score in scores.items() if score >= top - np.sqrt(share * (1 - share) / labelled))

    def of_a_k(at: Evaluation) -> float:
        few = max(len(at.each) // 3, 1) if found.method == "plateau" else len(at.each)
        return sum(sorted(at.each, reverse=True)[:few][::-1]) / few if few < len(at.each) else at.score

    k = best({at.k: of_a_k(at) for at in found.curve})
    alone = [best({at.k: at.each[i] for at in found.curve}) for i in range(len(found.curve[0].each))]
    return k, (min(k, *alone), max(k, *alone))


@pytest.mark.parametrize("method", METHODS)
def test_what_comes_back(method: Method) -> None:
    x, labels = mixture(400, 12, tail=0.0)
    told: list[Evaluation] = []
    found = estimate_k(x, labels, k_max=60, method=method, n_init=4, random_state=0, callback=told.append)
    assert isinstance(found, KEstimate)
    assert Counter(at.k for at in told).most_common(1)[0][1] == 1, "no k is tried twice"
    assert sorted(told, key=lambda at: at.k) == list(found.curve)
    assert all(6 <= at.k <= 60 for at in found.curve)
    assert all(len(at.each) == 4 and at.score == pytest.approx(np.mean(at.each)) for at in found.curve)
    assert found.method == method
    assert (found.k, found.interval) == chosen(found, int((labels >= 0).sum())), "of all seen, not the last"
    assert found == estimate_k(torch.from_numpy(x), labels, k_max=60, method=method, n_init=4, random_state=0)
    assert found != estimate_k(x, labels, k_max=60, method=method, n_init=4, random_state=1)


def test_the_score_is_the_accuracy_of_plain_k_means_on_labelled_rows() -> None:
    """With scikit-learn as the k-means, from the same starts."""
    x, labels = mixture(600, 8, tail=0.0)
    known = labels >= 0
    fold = _Fold(torch.from_numpy(x), labels, 4, np.arange(4), [1, 2, 3], 4, Shards(), 100)
    scores = fold.scores(9, 300, 0.0)
    starts = (fold.seeds[0].centres.double() + fold.points.mean).float().numpy()
    for score, start in zip(scores, starts, strict=True):
        clusters = KMeans(9, init=start, n_init=1, tol=0).fit(x).labels_
        assert score == accuracy(labels[known], clusters[known], old=()).all


def lattice(n: int, d: int, *, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows on a lattice around the origin, so wide that squares are rounded, and labels of four classes for some.

    Many rows are exactly as far from one seed as from another, and rounding has a say in which is taken.
    """
    rng = np.random.default_rng(seed)
    half = 4001 * rng.integers(-6, 7, (n // 2, d))
    labels = np.where(rng.random(2 * len(half)) < 0.4, rng.integers(0, 4, 2 * len(half)), -1)
    return np.concatenate([half, -half]).astype(np.float32), labels


KS = (4, 5, 7, 9, 12, 17, 20, 31)
ROWS = {
    "a mixture": mixture(200, 8, tail=0.0, d=5),
    "one dimension": lattice(60, 1),
    "two dimensions": lattice(200, 2),
    "five dimensions": lattice(300, 5),
}


def new_fold(rows: str, hidden: tuple[int, ...]) -> _Fold:
    x, labels = ROWS[rows]
    return _Fold(torch.from_numpy(x), labels, 4, np.array(hidden), [1, 2, 3], 4, Shards(), 100)


@cache
def alone(rows: str, hidden: tuple[int, ...], k: int) -> tuple[list[float], torch.Tensor]:
    """The scores of a k that is the first to be tried, and its seeds."""
    fold = new_fold(rows, hidden)
    return fold.scores(k, 100, 1e-4), fold.seeds[0].centres


@pytest.mark.parametrize("hidden", [(0, 1, 2, 3), (0, 1)])
@pytest.mark.parametrize("rows", ROWS)
@settings(max_examples=12, deadline=None)
@given(order=st.permutations(KS))
def test_scores_do_not_depend_on_what_was_tried_before(rows: str, hidden: tuple[int, ...], order: list[int]) -> None:
    fold = new_fold(rows, hidden)
    for k in order:
        scores, seeds = alone(rows, hidden, k)
        assert fold.scores(k, 100, 1e-4) == scores
        assert torch.equal(fold.seeds[0].centres[:, :k], seeds), "the seeds of a smaller k are the first of a larger"


class BrokenError(Exception):
    pass


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ks that were computed, once for every fold."""
    ks: list[int] = []
    scores = _Fold.scores

    def counted(self: _Fold, k: int, max_iter: int, tol: float) -> list[float]:
        ks.append(k)
        return scores(self, k, max_iter, tol)

    monkeypatch.setattr(_Fold, "scores", counted)
    return ks


def broken(told: list[Evaluation], after: int) -> Callable[[Evaluation], None]:
    """A callback that writes down what it is told, and breaks the call off after so many."""

    def callback(at: Evaluation) -> None:
        told.append(at)
        if len(told) == after:
            raise BrokenError

    return callback


@pytest.mark.parametrize("rows", [mixture(150, 8, tail=0.0), lattice(100, 2)], ids=["mixture", "lattice"])
@pytest.mark.parametrize("method", METHODS)
def test_a_call_broken_off_anywhere_goes_on_to_the_same_end(
    tried: list[int], method: Method, rows: tuple[NDArray[np.float32], NDArray[np.int64]]
) -> None:
    options: dict[str, Any] = {"k_max": 100, "method": method, "n_init": 2, "random_state": 0}
    whole: list[Evaluation] = []
    wanted = estimate_k(*rows, **options, callback=whole.append)
    assert len(whole) > 5
    for n in range(1, len(whole) + 1):
        told: list[Evaluation] = []
        with pytest.raises(BrokenError):
            estimate_k(*rows, **options, callback=broken(told, n))
        assert told == whole[:n]
        tried.clear()
        assert estimate_k(*rows, **options, known=iter(told), callback=told.append) == wanted
        assert told == whole, "what was known is not told again, and the rest comes in the same order"
        assert list(dict.fromkeys(tried)) == [at.k for at in whole[n:]]


def test_known_scores_are_taken_at_their_word_whatever_held_them() -> None:
    """Through JSON, which has lists for tuples; a k that is not asked for leaves no trace."""
    x, labels = mixture(150, 8, tail=0.0)
    options: dict[str, Any] = {"k_max": 40, "n_init": 2, "random_state": 0}
    wanted = estimate_k(x, labels, **options)
    known = [Evaluation(**json.loads(json.dumps(asdict(at)))) for at in wanted.curve]
    stranger = next(k for k in range(4, 40) if k not in {at.k for at in wanted.curve})
    known.append(Evaluation(k=stranger, score=2.0, each=(2.0, 2.0)))
    assert estimate_k(x, labels, **options, known=known) == wanted
    best = next(at for at in wanted.curve if at.k == wanted.k)
    worse = replace(best, each=(0.0, 0.0), score=0.0)
    assert estimate_k(x, labels, **options, known=[worse]).k != wanted.k


@pytest.mark.parametrize("each", [(), (0.5,), (0.5, 0.5, 0.5)])
def test_known_scores_of_another_n_init_are_refused(tried: list[int], each: tuple[float, ...]) -> None:
    x, labels = mixture(150, 8, tail=0.0)
    with pytest.raises(InputError) as caught:
        estimate_k(x, labels, n_init=2, known=[Evaluation(k=5, score=0.5, each=each)])
    assert str(caught.value) == (f"known must be of a call with the same n_init, 2, got {len(each)} scores of k = 5.")
    assert tried == []


def test_a_fold_shows_half_of_the_classes_and_is_scored_on_the_other() -> None:
    x, labels = mixture(500, 10, tail=0.0)
    hidden = _half(5, 0, seed=3)
    fold = _Fold(torch.from_numpy(x), labels, 5, hidden, [1], 4, Shards(), 100)
    assert len(hidden) == 3
    assert sorted([*hidden.tolist(), *_half(5, 1, seed=3).tolist()]) == [0, 1, 2, 3, 4]
    assert sorted(set(fold.truth.tolist())) == sorted(hidden.tolist())
    shown = [j for j in range(5) if j not in hidden]
    assert fold.fixed.counts.tolist() == [float((labels == j).sum()) for j in shown]
    assert fold.k_limit == 2 + int((labels < 0).sum() + np.isin(labels, hidden).sum())


def test_silhouette_by_hand() -> None:
    points = Points(torch.tensor([[0.0], [1.0], [4.0]]))
    centres = torch.tensor([[0.0], [4.0]]) - points.mean.float()
    assert silhouette(points, centres) == pytest.approx((1 + (1 - 1 / 3) + 1) / 3, abs=1e-3)
    assert silhouette(points, centres[[0, 0]]) == pytest.approx(0)


@pytest.mark.parametrize("peak", [3, 10, 47, 100])
def test_the_search_finds_a_peak(peak: int) -> None:
    tried: dict[int, Evaluation] = {}

    def loss(at: float) -> float:
        k = round(np.exp(at))
        tried.setdefault(k, Evaluation(k=k, score=-abs(np.log(k / peak)), each=()))
        return -tried[k].score

    _search(loss, 3, 100, tried)
    best = max(tried.values(), key=lambda at: at.score).k
    assert abs(best - peak) <= max(1, 0.03 * peak)
    assert len(tried) < 30
    assert all(3 <= k <= 100 for k in tried)


@pytest.mark.parametrize("k_max", [2, 3, 4])
def test_a_narrow_range_is_tried_whole(k_max: int) -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    labels = np.array([0, 0, 0, 1, 1, 1, *[-1] * 24])
    found = estimate_k(x, labels, k_max=k_max, n_init=2, random_state=0)
    assert [at.k for at in found.curve] == list(range(2, k_max + 1))


@pytest.mark.parametrize("method", METHODS)
def test_k_max_is_held_to_the_rows(method: Method) -> None:
    x = np.random.default_rng(0).normal(size=(12, 2))
    found = estimate_k(x, [0, 0, 1, 1, *[-1] * 8], method=method, n_init=2, random_state=0)
    assert max(at.k for at in found.curve) <= 12


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([-1, -1, -1, -1], {}, "y must label rows of two classes or more .* got 0"),
        ([3, -1, 3, -1], {}, "y must label rows of two classes or more .* got 1"),
        ([0, 1, 2, -1], {"k_max": 2}, "k_max must be at least 3 .the labelled classes., got 2"),
        ([0, 1, 2, -1], {"k_max": 0}, "k_max must be a whole number of at least 1, got 0"),
        ([0, 1, 2, -1], {"n_init": 0}, "n_init must be a whole number of at least 1, got 0"),
        ([0, 1, 2, -1], {"method": "guess"}, "method must be one of 'brent', 'hidden', 'plateau', got 'guess'"),
        ([0, 1, 2, -1], {"max_iter": 0}, "max_iter must be a whole number of at least 1, got 0"),
        ([0, 1, 2, -1], {"tol": -1}, "tol must be a number of at least 0, got -1"),
        ([0, 1, -1], {}, "y must have one label for each of the 4 rows"),
    ],
)
def test_bad_input_is_named(labels: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_k(np.eye(4), labels, **options)


# "plateau"


def trained(k: int, known: int, *, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """As after training with labels: tight clusters, the known classes far from all, the new ones near each other."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(k), 30)
    centres = rng.normal(size=(k, 32))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    centres[known:] = 0.6 * centres[known:] + 0.15 * rng.normal(size=32)
    x = centres[truth] + 0.04 * rng.normal(size=(len(truth), 32))
    labels = np.where((truth < known) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("k", "known"), [(12, 6), (24, 12), (40, 15)])
def test_the_end_of_a_plateau_is_found_where_the_best_k_is_too_few(k: int, known: int, seed: int) -> None:
    x, labels = trained(k, known, seed=seed)
    options: dict[str, Any] = {"k_max": 200, "n_init": 6, "random_state": seed}
    best = estimate_k(x, labels, **options)
    found = estimate_k(x, labels, **options, method="plateau")
    assert best.k < 0.85 * k, "the score is as good with too few clusters, and the first of equals is taken"
    assert found.interval[0] <= k <= found.interval[1]
    assert abs(found.k - k) <= 0.25 * k
    assert set(best.curve) <= set(found.curve), "it goes on from where the other ends"


def test_with_one_restart_the_end_of_the_plateau_is_not_before_the_best_k() -> None:
    for seed in range(5):
        x, labels = mixture(300, 10, tail=0.5, seed=seed)
        options: dict[str, Any] = {"k_max": 60, "n_init": 1, "random_state": seed}
        end = estimate_k(x, labels, **options, method="plateau")
        assert estimate_k(x, labels, **options).k <= end.k == end.interval[0] == end.interval[1]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_is_known_does_not_change_the_end_of_a_plateau(data: st.DataObject) -> None:
    x, labels = ROWS["a mixture"]
    wanted = known_plateau()
    known = data.draw(st.lists(st.sampled_from(wanted.curve), unique=True))
    told: list[Evaluation] = []
    found = estimate_k(
        x, labels, k_max=60, n_init=3, random_state=0, method="plateau", known=known, callback=told.append
    )
    assert found == wanted
    assert {*told, *known} == {*wanted.curve}
    assert len(told) + len(known) == len(wanted.curve)


@cache
def known_plateau() -> KEstimate:
    return estimate_k(*ROWS["a mixture"], k_max=60, n_init=3, random_state=0, method="plateau")


def scored(score: Callable[[int, int], float], *, method: Method, k_max: int, n_init: int = 1) -> KEstimate:
    """An estimate over 400 rows, 100 of them labelled, three classes; `score` is that of a k and a restart."""
    x = np.arange(800, dtype=np.float32).reshape(400, 2)
    labels = np.where(np.arange(400) < 100, np.arange(400) % 3, -1)

    def scores(self: _Fold, k: int, max_iter: int, tol: float) -> list[float]:
        return [score(k, i) for i in range(n_init if method != "hidden" else 1)]

    with patch.object(_Fold, "scores", scores):
        return estimate_k(x, labels, k_max=k_max, n_init=n_init, method=method, random_state=0)


@settings(max_examples=60, deadline=None)
@given(end=st.integers(3, 500), k_max=st.integers(3, 500), top=st.floats(0.5, 1))
def test_a_plateau_is_followed_to_its_end(end: int, k_max: int, top: float) -> None:
    """The score is flat up to some k, and falls from there on, by more than chance does with 100 labels."""
    found = scored(lambda k, _: top if k <= end else top - 0.1 * (1 + np.log(k / end)), method="plateau", k_max=k_max)
    assume(found.curve[0].k <= end)  # the search does not try every k, and may pass by a plateau of one or two
    limit = min(end, k_max, 400)
    assert limit - max(1, 0.03 * limit) <= found.k <= limit
    assert found.interval == (found.k, found.k)
    assert all(3 <= at.k <= min(k_max, 400) for at in found.curve)
    if min(k_max, 400) <= 33:
        assert found.k == limit, "where 3 % are less than one, there is nothing between"


@pytest.mark.parametrize(("drop", "end"), [(0.030, 40), (0.032, 20)])
def test_how_much_less_is_still_as_good(drop: float, end: int) -> None:
    """Of 100 labelled rows 90 are right: (90 + 1) / 102 = 0.892 of all, whose standard error is 0.0310."""
    found = scored(lambda k, _: 0.9 if k <= 20 else 0.9 - drop if k <= 40 else 0.5, method="plateau", k_max=60)
    assert abs(found.k - end) <= 1


def test_restarts_that_ended_badly_do_not_shorten_a_plateau() -> None:
    """Of six restarts two are as good up to 40, the others only up to 10: the third that is best counts."""
    found = scored(lambda k, i: 1.0 if k <= (40 if i < 2 else 10) else 0.6, method="plateau", k_max=60, n_init=6)
    assert found.k in (39, 40)
    assert found.interval == (max(at.k for at in found.curve if at.k <= 10), found.k), "each restart alone"
    assert scored(lambda k, i: 1.0 if k <= (40 if i < 1 else 10) else 0.6, method="plateau", k_max=60, n_init=6).k <= 10


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), k_max=st.integers(3, 120), n_init=st.integers(1, 7), levels=st.integers(1, 20))
def test_the_choice_is_the_one_the_curve_asks_for(
    method: Method, seed: int, k_max: int, n_init: int, levels: int
) -> None:
    """Whatever the scores are; few levels make many ties, and the smaller of two best ks is the best."""

    def score(k: int, i: int) -> float:
        return int(np.random.default_rng([seed, k, i]).integers(0, levels)) / levels

    found = scored(score, method=method, k_max=k_max, n_init=n_init)
    assert (found.k, found.interval) == chosen(found, 100)
    assert found.k in {at.k for at in found.curve}
    assert all(3 <= at.k <= k_max for at in found.curve)


@pytest.mark.parametrize("seed", range(4))
def test_the_paper_s_rule_is_the_best_k_and_the_first_of_equals(seed: int) -> None:
    for x, labels in (mixture(300, 10, tail=0.0, seed=seed), trained(12, 6, seed=seed)):
        found = estimate_k(x, labels, k_max=60, n_init=4, random_state=seed)
        scores = {at.k: float(np.mean(at.each)) for at in found.curve}
        assert found.k == min(k for k, score in scores.items() if score > max(scores.values()) - 1e-9)
