"""Clusters: known classes come first, by a match or by a head; smoothing averages with neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sortal.discovery.grouping import clusters
from sortal.discovery.grouping.clusters import Fit, Rows, joined, match_known, separations_of, smooth
from sortal.images.image_set import image_set
from sortal.system.distributed import alone


@given(st.integers(1, 5), st.data())
@settings(deadline=None)
def test_clusters_are_named_so_that_most_labelled_images_agree(k: int, data: st.DataObject) -> None:
    rows = st.tuples(st.integers(0, k - 1), st.integers(-1, min(k, 3) - 1))
    drawn = np.array(data.draw(st.lists(rows, max_size=12)), dtype=np.int64).reshape(-1, 2)
    clusters, labels = drawn.T
    known = np.unique(labels[labels >= 0]).tolist()

    def right(order: Sequence[int]) -> int:
        return sum(label >= 0 and order[known.index(label)] == c for c, label in zip(clusters, labels, strict=True))

    order = match_known(clusters, labels, k).tolist()
    assert sorted(order) == list(range(k))
    assert order[len(known) :] == sorted(order[len(known) :])
    assert right(order) == max(map(right, itertools.permutations(range(k))))


def by_head(
    x: Any, labels: Sequence[str | None], head: Any, *, gone: Sequence[int] = ()
) -> tuple[NDArray[np.int64], Any]:
    """Cluster images with these labels by a head, without the rows `gone`, whose classes keep their numbers."""
    files = [f"{row}.png" for row in range(len(labels))]
    images = image_set(files, paths=files, labels=labels).select(~np.isin(np.arange(len(labels)), gone))
    return clusters._cluster_by_head(np.array(x, dtype=np.float32), images, np.array(head, dtype=np.float32))


def test_a_head_assigns_unlabelled_images_and_gives_centres() -> None:
    """Scores are x, y + 0.1, −x and −5y − 9; the centre of an empty category is the direction of its weights."""
    head = [[1, 0, 0], [0, 1, 0.1], [-1, 0, 0], [0, -5, -9]]
    x = [[0.8, 0.6], [0.6, 0.8], [-0.6, 0.8], [-1, 0], [0, -1], [-0.8, -0.6]]
    clusters, centres = by_head(x, [None, "a", "a", None, "b", None], head)
    # Rows 1 and 2 are labelled "a", the first category, and row 4 "b"; the last row scores 0.8 for the third.
    assert clusters.tolist() == [0, 0, 0, 2, 1, 2]
    wanted = [[0.8 / 3, 2.2 / 3], [0, -1], [-0.9, -0.3], [0, -1]]
    np.testing.assert_allclose(centres, np.array(wanted), atol=1e-6)
    assert clusters.dtype == np.int64
    assert centres.dtype == np.float32
    # The second of three classes has no images left, so "c" is the second output.
    x, head = [[1, 0], [1, 0], [0.6, 0.8], [-1, 0]], [[1, 0, 0], [0, 1, 0], [-1, 0, 0]]
    clusters, centres = by_head(x, ["a", "c", None, None, "b"], head, gone=[4])
    assert clusters.tolist() == [0, 1, 1, 2]
    np.testing.assert_allclose(centres, np.array([[1, 0], [0.8, 0.4], [-1, 0]]), atol=1e-6)
    # Weights of length 0 have no direction.
    np.testing.assert_array_equal(by_head([[1, 0]], [None], [[0, 0, 3], [0, 0, 1]])[1], [[1, 0], [0, 0]])


@pytest.mark.parametrize("neighbours", [1, 3, 50])
def test_smoothing_averages_with_the_nearest_neighbours(neighbours: int) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(20, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    slow = x.astype(np.float64)
    for _ in range(2):
        alike = slow @ slow.T - 9 * np.eye(20)
        means = np.stack([slow[np.argsort(-row)[: min(neighbours, 19)]].mean(0) for row in alike])
        slow = slow + means
        slow /= np.linalg.norm(slow, axis=1, keepdims=True)
    for block in (2**26, 60):  # all rows at once, and three at a time
        with patch("sortal.discovery.grouping.neighbours.MOST_SIMILARITIES", block):
            np.testing.assert_allclose(smooth(x, neighbours, alone("cpu")), slow, atol=1e-5)
    assert smooth(x, 0, alone("cpu")) is x
    assert smooth(x[:1], 8, alone("cpu")).shape == (1, 4)


def unit(generator: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    x = generator.normal(size=shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_cosines_of_joined_features_are_weighted_means() -> None:
    """Features beside others weigh half as much. An entry has 12 products, each off by a few roundings of 2^−24."""
    generator = np.random.default_rng(0)
    x, beside = unit(generator, 9, 4), unit(generator, 9, 8)
    both = joined(x, beside).astype(np.float64)
    wanted = (2 * (x.astype(np.float64) @ x.T) + beside.astype(np.float64) @ beside.T) / 3
    np.testing.assert_allclose(both @ both.T, wanted, rtol=0, atol=2**-20)


def test_what_is_beside_features_is_averaged_with_them_and_part_of_their_key() -> None:
    generator = np.random.default_rng(1)
    x, beside, alone_ = unit(generator, 20, 4), unit(generator, 20, 3), alone("cpu")
    rows, without = Rows(x, 2, alone_, beside=beside), Rows(x, 2, alone_)
    np.testing.assert_array_equal(rows.smoothed, smooth(joined(x, beside), 2, alone_))
    np.testing.assert_array_equal(without.smoothed, smooth(x, 2, alone_))
    assert len({each.key for each in (rows, without, Rows(x, 2, alone_, beside=beside[::-1]))}) == 3


@pytest.mark.parametrize("neighbours", [0, 2])
def test_centres_are_means_of_the_last_features_alone(neighbours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(2)
    x, beside, found = unit(generator, 12, 4), unit(generator, 12, 3), np.arange(12) % 3
    monkeypatch.setattr(clusters, "fit", lambda *_: Fit(clusters=found, centres=unit(generator, 3, 7)))
    job: Any = SimpleNamespace(recipe=SimpleNamespace(clustering="semi-supervised"))
    images = image_set([str(i) for i in range(12)], paths=["x"] * 12, labels=[None] * 12)
    rows = Rows(x, neighbours, alone("cpu"), beside=beside)
    same, centres = clusters.cluster(job, rows, images, 3, None)
    assert same.tolist() == found.tolist()
    np.testing.assert_allclose(centres, [x[found == c].mean(0) for c in range(3)], rtol=0, atol=2**-22)


@pytest.mark.parametrize("labelled", [False, True])
def test_separations_computed_at_once_are_those_computed_one_by_one(labelled: bool) -> None:
    """Several are computed at once on a GPU."""
    random = np.random.default_rng(0)
    x: Any = random.normal(size=(60, 4))
    labels = np.where(np.arange(60) < 12, np.arange(60) % 2, -1) if labelled else None
    centres: list[Any] = [random.normal(size=(k, 4)) for k in (2, 5, 3, 7)]
    found = []
    for room in (1, 3, 9):
        with patch.object(clusters, "ks_at_once", lambda *_, room=room: room):
            found.append(separations_of(x, labels, centres, alone("cpu")))
    assert len({*found[0]}) == len(centres)
    for together in found[1:]:
        assert together == pytest.approx(found[0], abs=1e-12)  # in double precision
