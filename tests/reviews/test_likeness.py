"""How likely two categories are one class: halves of one are, different ones are not."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.planted import cut, planted

from sortal.reviews import likeness
from sortal.reviews.likeness import Likeness
from sortal.reviews.questions import MERGE_LIKELY

Array = NDArray[np.float64]
TEMPERATURE = 0.1


def halved(noise: float, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Six classes, of which class 0 is cut into the categories 0 and 5, and the last two are both category 4."""
    x, of = planted([60] * 6, noise=noise, seed=seed)
    rows = np.flatnonzero(of == 0)
    category = np.where(of == 5, 4, of)
    category[rows[cut(x, rows, 2) == 1]] = 5
    return x, category


def centres_of(x: NDArray[np.float32], category: NDArray[np.int64], ids: list[int]) -> Array:
    return np.array([x[category == each].astype(np.float64).mean(axis=0) for each in ids])


def likeliest(alike: Array, ids: list[int]) -> list[tuple[float, set[int]]]:
    """Return the pairs of ids, the most alike first."""
    pairs = [(float(alike[a, b]), {ids[a], ids[b]}) for a, b in combinations(range(len(ids)), 2)]
    return sorted(pairs, key=lambda each: -each[0])


@pytest.mark.parametrize("noise", [0.4, 0.8])
@pytest.mark.parametrize("seed", [0, 1])
def test_halves_of_a_class_are_alike_and_no_others(noise: float, seed: int) -> None:
    x, category = halved(noise, seed)
    ids = [*range(6)]
    alike = Likeness(x, 0).between(category, ids, centres_of(x, category, ids), TEMPERATURE)
    (first, pair), (second, _), *_ = likeliest(alike, ids)
    assert pair == {0, 5}
    assert first > MERGE_LIKELY
    assert second < 0.1 < MERGE_LIKELY
    np.testing.assert_allclose(alike, alike.T, rtol=1e-9)
    assert not alike.diagonal().any()


def test_a_sample_of_many_images_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    x, category = halved(0.6, 0)
    ids = [*range(6)]
    monkeypatch.setattr(likeness, "MOST_IMAGES_COMPARED", 120)
    found = Likeness(x, 3)
    assert (len(found.rows), len(found.x), found.near.max() < 120) == (120, 120, True)
    np.testing.assert_array_equal(found.rows, Likeness(x, 3).rows)
    (first, pair), (second, _), *_ = likeliest(
        found.between(category, ids, centres_of(x, category, ids), TEMPERATURE), ids
    )
    assert pair == {0, 5}
    assert first > MERGE_LIKELY
    assert second < 0.1 < MERGE_LIKELY


def test_categories_are_compared_whatever_their_ids_order_and_company() -> None:
    x, category = halved(0.6, 0)
    ids, other = [*range(6)], [4, 5, 0, 2, 1, 3]
    found = Likeness(x, 0)
    alike = found.between(category, ids, centres_of(x, category, ids), TEMPERATURE)
    again = found.between(100 + category, [100 + e for e in other], centres_of(x, category, other), TEMPERATURE)
    np.testing.assert_allclose(again, alike[np.ix_(other, other)], rtol=1e-9)
    some = [0, 5, 2]  # images of others do not matter, and neither does a category without images
    alone = np.isin(category, some)
    centres = centres_of(x, category, some)
    among = found.between(category, [*some, 77], np.vstack([centres, -centres[:1]]), TEMPERATURE)
    assert np.isfinite(among).all()
    assert likeliest(among, [*some, 77])[0][1] == {0, 5}
    assert likeliest(Likeness(x[alone], 0).between(category[alone], some, centres, TEMPERATURE), some)[0][1] == {0, 5}


def test_likeness_is_what_its_three_signs_say() -> None:
    x, of = planted([6, 7, 8], d=3, noise=0.9)
    found, centres, ids = Likeness(x, 0), centres_of(x, of, [0, 1, 2]), [0, 1, 2]
    alike = found.between(of, ids, centres, TEMPERATURE)
    squared = np.array([[((row - centre) ** 2).sum() for centre in centres] for row in x.astype(np.float64)])
    chance = [np.exp(-row / TEMPERATURE) / np.exp(-row / TEMPERATURE).sum() for row in squared]
    for a, b in combinations(ids, 2):
        rows = {each: np.flatnonzero(of == each).tolist() for each in (a, b)}
        near, likely, spread = 0.0, 0.0, 0.0
        for own, other in ((a, b), (b, a)):
            near += float(np.mean([of[each] == other for row in rows[own] for each in found.near[row]]))
            likely += float(np.mean([chance[row][other] for row in rows[own]]))
            spread += float(np.mean([squared[row][own] for row in rows[own]]))
        score = likeness.OFFSET_WEIGHT + likeness.DISTANCE_WEIGHT * np.linalg.norm(centres[a] - centres[b]) / np.sqrt(
            spread
        )
        score += likeness.SHARED_WEIGHT * np.sqrt(near) + likeness.PROBABLE_WEIGHT * np.sqrt(likely)
        assert near * likely > 0
        assert alike[a, b] == pytest.approx(1 / (1 + np.exp(-score)), rel=1e-5)


def test_neighbours_are_the_most_similar_others(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = planted([5] * 11 + [2], seed=1)
    monkeypatch.setattr(likeness, "SIMILARITIES_AT_ONCE", 57 * 10)  # ten rows at once
    similar = x.astype(np.float64) @ x.T.astype(np.float64)
    np.fill_diagonal(similar, -np.inf)
    expected = np.sort(np.argsort(-similar, axis=1)[:, :10], axis=1)
    np.testing.assert_array_equal(np.sort(Likeness(x, 0).near, axis=1), expected)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_images_are_compared_too(n: int) -> None:
    x, _ = planted([1] * n)
    found = Likeness(x, 0)
    assert found.near.shape == (n, n - 1)
    alike = found.between(np.arange(n), [*range(n)], x.astype(np.float64), TEMPERATURE)
    assert alike.shape == (n, n)
    assert ((alike >= 0) & (alike <= 1)).all()
