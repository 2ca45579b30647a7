"""UMAP and HDBSCAN: what they are given, the k they find or come near to, and a library that is missing.

UMAP itself takes half a minute to compile, so that another projection stands in for it.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sortal import metrics
from sortal.config.rivals import Density
from sortal.errors import InputError
from sortal.learning.methods.umap_hdbscan import cluster, smallest_size

GIVEN: dict[str, Any] = {}


class Projection:
    """Project rows to their first components."""

    def __init__(self, **given: Any) -> None:
        GIVEN.clear()
        GIVEN.update(given)

    def fit_transform(self, x: NDArray[Any]) -> NDArray[Any]:
        return x[:, : GIVEN["n_components"]]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    GIVEN.clear()
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Projection))


def groups(sizes: list[int], *, noise: float = 0.05) -> tuple[NDArray[Any], NDArray[np.int64]]:
    truth = np.repeat(np.arange(len(sizes)), sizes)
    return np.eye(16)[truth] + noise * np.random.default_rng(0).normal(size=(len(truth), 16)), truth


def test_groups_are_found_without_k_and_without_labels() -> None:
    x, truth = groups([40, 30, 20, 60])
    found = cluster(x, np.full(len(x), -1), None, Density(), 3)
    assert metrics.accuracy(truth[found >= 0], found[found >= 0], old=()).all == 1.0
    assert found.max() == 3
    expected = {"n_components": 10, "n_neighbors": 15, "min_dist": 0.0, "metric": "cosine"}
    assert {**expected, "random_state": 3, "n_jobs": 1} == GIVEN
    assert np.array_equal(found, cluster(x, np.full(len(x), -1), None, Density(), 3))


def test_every_setting_is_passed_on() -> None:
    x, _ = groups([40, 30, 20, 60])
    none = np.full(len(x), -1)
    found = cluster(x, none, None, Density(components=5, neighbours=7, distance=0.2, smallest=25), 0)
    assert [GIVEN[name] for name in ("n_components", "n_neighbors", "min_dist")] == [5, 7, 0.2]
    assert found.max() + 1 < 4, "a category has at least 25 images"
    loose, strict = ((cluster(x, none, None, Density(samples=each), 0) < 0).sum() for each in (1, 30))
    assert loose != strict


def test_a_given_k_decides_the_size_of_the_smallest_category() -> None:
    generator = np.random.default_rng(1)
    coarse = np.repeat(np.eye(16)[:3], 60, axis=0)
    x = coarse + 0.3 * np.tile(np.repeat(np.eye(16)[5:8], 20, axis=0), (3, 1)) + 0.02 * generator.normal(size=(180, 16))
    rows: Any = x
    ks = [len({*cluster(rows, np.full(180, -1), k, Density(), 0).tolist()} - {-1}) for k in (3, 9)]
    assert ks == [3, 9]


def test_the_automatic_size_is_half_of_the_labels_of_a_class_within_bounds() -> None:
    assert smallest_size(np.full(9, -1)) == 5
    assert smallest_size(np.repeat([-1, 0, 1, 2], [50, 4, 4, 90])) == 5
    assert smallest_size(np.repeat([-1, 0, 1, 2], [50, 30, 40, 90])) == 20
    assert smallest_size(np.repeat([0, 1], [500, 900])) == 50


@pytest.mark.parametrize("n", [1, 2, 9, 12, 25])
@pytest.mark.parametrize("k", [None, 3])
def test_few_images_are_clustered_too(n: int, k: int | None) -> None:
    found = cluster(groups([n])[0], np.full(n, -1), k, Density(), 0)
    assert found.shape == (n,)
    assert found.max() >= 0


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(InputError, match=r"^The method umap-hdbscan needs umap-learn: pip install 'sortal\[umap\]' \("):
        cluster(groups([40])[0], np.full(40, -1), None, Density(), 0)
