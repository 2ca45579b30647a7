"""Numbers at and beyond their limits, and features, labels and tables of almost nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.world import Trial

from sortal import metrics
from sortal.clustering import tsne
from sortal.clustering.estimate_k import estimate_k
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.errors import InputError
from sortal.runs import confidence
from sortal.runs.projection import SPAN, coordinates

pytestmark = pytest.mark.thorough

KINDS = (np.int8, np.uint8, np.int64, np.uint64, np.bool_, np.float16, np.float64, np.float32)  # of numbers
FEATURES: dict[str, Callable[[NDArray[np.float32]], NDArray[Any]]] = {
    "constant": lambda x: np.repeat(x[:1], len(x), axis=0),
    "zero": lambda x: 0 * x,
    "pairs": lambda x: np.repeat(x, 2, axis=0)[: len(x)],
    "line": lambda x: x * np.eye(1, x.shape[1], dtype=np.float32),
    "nearly constant": lambda x: 1 + np.float32(1e-7) * x,
    "far": lambda x: np.concatenate([x[:-1], np.full_like(x[-1:], 6e4)]),  # which float16 can hold
    "usual": lambda x: x,
}
ODD: dict[str, Callable[[NDArray[np.float32]], NDArray[Any]]] = {
    **FEATURES,
    "huge": lambda x: x * np.float32(1e37),
    "tiny": lambda x: x * np.float32(1e-40),
    "half": lambda x: x.astype(np.float16),
    "nan": lambda x: np.where(np.arange(x.size).reshape(x.shape) == x.size // 2, np.float32("nan"), x),
    "inf": lambda x: np.where(np.arange(x.size).reshape(x.shape) == x.size // 2, np.float32("inf"), x),
}


def generator(trial: Trial) -> np.random.Generator:
    return np.random.default_rng(trial.random.randrange(2**32))


def rows(name: str, n: int, d: int, draw: np.random.Generator) -> NDArray[Any]:
    """Return features (n, d) of an odd kind."""
    return np.ascontiguousarray(ODD[name](draw.standard_normal((n, d), dtype=np.float32)))


def refuse(call: Callable[[], Any]) -> None:
    """Require that a call is refused."""
    with pytest.raises(InputError):
        call()


@pytest.mark.attack(most=2 * len(ODD))
def test_clustering(trial: Trial) -> None:
    """K-means and the estimate of k answer odd features with a sound result or an InputError."""
    name, draw = trial.case([*ODD]), generator(trial)
    for n in (1, 2, 7, 30):
        x = rows(name, n, 3, draw)
        for classes in (0, 1, min(n, 3), n):
            y = np.where(np.arange(n) < classes, np.arange(n), -1)
            for k in (1, max(classes, 1), n, n + 1):
                _cluster(x, y, k)
            try:
                found = estimate_k(x, y, k_max=n, n_init=1, random_state=0, device="cpu")
                assert 1 <= found.k <= n
            except InputError:
                pass


def _cluster(x: NDArray[Any], y: NDArray[np.int64], k: int) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer clusters than asked for, say
            found = SemiSupervisedKMeans(k, n_init=2, random_state=0, device="cpu").fit(x, y)
    except InputError:
        all_labelled = (y >= 0).all()  # nothing is left to cluster
        odd = not np.isfinite(x).all() or abs(x.astype(float)).max() > 1e30 or all_labelled
        assert odd or k < y.max() + 1 or k > len(np.unique(x, axis=0)), "what is sound is not refused"
        return
    assert np.isfinite(found.cluster_centers_).all()
    assert np.isfinite(found.inertia_)
    assert ((found.labels_ >= 0) & (found.labels_ < k)).all()
    assert (found.labels_[y >= 0] == y[y >= 0]).all(), "labelled rows stay with their class"


def scores_of(value: Any) -> list[float]:
    """Return all numbers of a score, without those that are undefined."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in scores_of(each)]
    return [] if value is None else [float(value)]


@pytest.mark.attack(most=50)
def test_metrics(trial: Trial) -> None:
    """Score tables of no row, of one and of one class, with labels of many kinds: fractions, or None if undefined."""
    draw = generator(trial)
    kinds: tuple[Callable[[NDArray[np.int64]], Any], ...] = (
        lambda x: x.tolist(), lambda x: x.astype(np.uint8), lambda x: x.astype(np.float16), lambda x: x.astype(str),
        lambda x: x.astype(object), lambda x: x - 2**62, lambda x: x.astype(bool),
    )  # fmt: skip
    for n in (0, 1, 2, 9):
        for classes, clusters in ((1, 1), (1, n + 1), (n + 1, 1), (n + 1, n + 1)):
            truth, found = draw.integers(0, classes, n), draw.integers(0, clusters, n)
            for kind in kinds:
                some = kind(truth)
                old = list(some)[:1] if trial.random.random() < 0.7 else []
                result = metrics.evaluate(some, kind(found), old=old)
                numbers = scores_of({**asdict(result), "k": None, "classes": None, "k_error": None})
                assert all(math.isfinite(each) and -0.5 <= each <= 1 for each in numbers), result
                assert (result.accuracy.all is None) == (n == 0), result
                if n and (classes == 1) and (clusters == 1):
                    assert result.accuracy.all == result.nmi == result.ari == 1, "one cluster is the one class"
    for odd in (math.nan, np.float32("nan"), np.datetime64("NaT", "s")):
        for where in ("truth", "clusters", "old"):
            given: dict[str, Any] = {"truth": [0, 1], "clusters": [0, 1], "old": [0]}
            given[where] = [0, odd]
            refuse(partial(metrics.evaluate, **given))
    refuse(lambda: metrics.evaluate([0, 1], [0], old=[]))


@pytest.mark.attack(most=2 * len(FEATURES))
def test_confidence(trial: Trial) -> None:
    """Calibrate on nothing, on one image and on equal ones, with empty categories: confidence is from 0 to 1."""
    name, draw = trial.case([*FEATURES]), generator(trial)
    tried = 0
    for n in (1, 2, 5, 40):
        x = rows(name, n, 4, draw)
        for k in (1, 2, n, n + 3):  # of which some are empty
            row = draw.integers(0, max(1, k - 1), n)
            centres = x[draw.integers(0, n, k)] if k <= n else rows("usual", k, 4, draw)
            for held_out in (np.zeros(n, dtype=bool), np.ones(n, dtype=bool), np.arange(n) == 0):
                agreement = np.where(np.arange(n) % 2, draw.random(n), np.nan)
                overlap = draw.random(k) if tried % 3 else None
                found = confidence.calibrate(
                    x, centres, row, held_out=held_out, truth=draw.integers(0, k, n), unsure_below=0.5,
                    agreement=None if tried % 2 else agreement, overlap=overlap,
                )  # fmt: skip
                given = confidence.place(x, centres, found.temperature)
                sure = found.of(given)
                assert math.isfinite(found.temperature)
                assert found.temperature > 0
                assert np.isfinite(sure).all()
                assert ((sure >= 0) & (sure <= 1)).all(), sure
                assert np.isfinite(given.distance).all()
                assert np.isfinite(given.next_distance).all() == (k > 1)
                tried += 1


@pytest.mark.attack(most=2 * len(FEATURES))
def test_maps(trial: Trial) -> None:
    """Place few, equal and nearly equal rows on a map: positions are finite. Rows with NaN or infinity are refused."""
    name, draw = trial.case([*FEATURES]), generator(trial)
    sizes = (0, 1, 2, 3, 4, 5, 11, 40)
    for n in sizes:
        for d in (1, 3, 70):
            x = rows(name, n, d, draw)
            for kind in (np.float32, np.float16, np.float64):
                xy = tsne.place(x.astype(kind), 0, device="cpu")
                assert xy.shape == (n, 2)
                assert np.isfinite(xy).all(), (name, n, d, kind)
            at = coordinates(x, lambda x, seed: tsne.place(x, seed, device="cpu"), seed=0)
            assert ((at >= 0) & (at <= SPAN)).all()
    for odd in (np.nan, np.inf):
        for n in (1, 12):
            x = rows("usual", n, 3, draw)
            x[0, 0] = odd
            refuse(partial(tsne.place, x, 0, device="cpu"))


@pytest.mark.attack(most=50)
def test_kinds_of_numbers(trial: Trial) -> None:
    """Cluster the same numbers as integers and floats of every width, in every memory layout: the results agree."""
    draw = generator(trial)
    n = 24
    whole = draw.integers(0, 2 if trial.number % 2 else 100, (n, 3))
    y = np.where(np.arange(n) < 6, np.arange(n) % 2, -1)
    results = []
    for kind in KINDS:
        if kind is np.bool_ and whole.max() > 1:
            continue
        for x in (whole.astype(kind), np.asfortranarray(whole.astype(kind)), np.repeat(whole, 2, 0).astype(kind)[::2]):
            fitted = SemiSupervisedKMeans(4, n_init=3, random_state=0, device="cpu").fit(x, y)
            assert np.isfinite(fitted.cluster_centers_).all()
            estimate = estimate_k(x, y, k_max=6, n_init=2, random_state=0, device="cpu")
            results.append((round(float(fitted.inertia_), 2), estimate.k))
    assert {k for _, k in results} <= {*range(2, 7)}
    lowest = min(inertia for inertia, _ in results)
    assert all(inertia <= 1.5 * lowest + 1 for inertia, _ in results), results
    for odd in (whole.astype(complex), whole[:, :0], whole[:0], whole[0]):
        labels = y[: len(odd)]
        refuse(partial(SemiSupervisedKMeans(2, random_state=0, device="cpu").fit, odd, labels))
        refuse(partial(estimate_k, odd, labels, k_max=4, random_state=0, device="cpu"))
