"""How likely two categories are one class, from what is known without asking: distances, neighbours, probabilities.

Three signs of one class cut in two: centres that are near each other, compared with the spread around them; images
whose nearest neighbours are in the other category; and images that might as well belong to the other, by the
calibrated probability. Their weights are those of a logistic regression on pairs of clusters of three data sets, each
clustered into 1, 1.3 and 1.6 times its number of classes (benchmarks/archive/review.md).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sortal.runs.confidence import Features, Floats, Ints

MOST_IMAGES_COMPARED = 8000  # of more, a random sample
NEIGHBOURS_COMPARED = 10
DISTANCE_WEIGHT, SHARED_WEIGHT, PROBABLE_WEIGHT, OFFSET_WEIGHT = -0.8, 4.9, 5.6, -3.6
SIMILARITIES_AT_ONCE = 2**24


class Likeness:
    """Compares categories of the images with features (n, d), whose neighbours are found once."""

    def __init__(self, x: Features, seed: int) -> None:
        rows = np.arange(len(x))
        if len(x) > MOST_IMAGES_COMPARED:
            rows = np.sort(np.random.default_rng(seed).permutation(len(x))[:MOST_IMAGES_COMPARED])
        some = np.asarray(x[rows], dtype=np.float32)
        self.rows, self.near = rows, _neighbours(some)
        self.x = some.astype(np.float64)
        self.squares = (self.x**2).sum(axis=1)

    def between(self, category: Ints, ids: Sequence[int], centres: Floats, temperature: float) -> Floats:
        """Return how likely each two of the categories (k, k) are one class; `category` (n,) are ids of all images."""
        k, place = len(ids), {each: at for at, each in enumerate(ids)}
        own = np.array([place.get(each, -1) for each in category[self.rows].tolist()], dtype=np.int64)
        there = own >= 0
        counts = np.maximum(np.bincount(own[there], minlength=k), 1)
        squared = _squared(self.x, self.squares, centres)
        within = np.bincount(own[there], squared[there, own[there]], minlength=k) / counts
        chance = np.exp(-(squared - squared.min(axis=1, keepdims=True)) / temperature)
        chance /= chance.sum(axis=1, keepdims=True)
        probable, shared = np.zeros((k, k)), np.zeros((k, k))
        np.add.at(probable, own[there], chance[there])
        of, to = np.repeat(own, self.near.shape[1]), own[self.near].ravel()
        edges = (of >= 0) & (to >= 0)
        np.add.at(shared, (of[edges], to[edges]), 1 / max(self.near.shape[1], 1))
        probable, shared = (each / counts[:, None] for each in (probable, shared))
        between = _squared(centres, (centres**2).sum(axis=1), centres)
        apart = np.sqrt(np.maximum(between, 0) / np.maximum(within[:, None] + within, 1e-12))
        score = DISTANCE_WEIGHT * apart + OFFSET_WEIGHT
        score += SHARED_WEIGHT * np.sqrt(shared + shared.T) + PROBABLE_WEIGHT * np.sqrt(probable + probable.T)
        found: Floats = 1 / (1 + np.exp(-np.clip(score, -50, 50)))
        np.fill_diagonal(found, 0.0)
        return found


def _neighbours(x: NDArray[np.float32]) -> Ints:
    """Return the most similar other rows (n, NEIGHBOURS_COMPARED) of each row."""
    count = min(NEIGHBOURS_COMPARED, len(x) - 1)
    found = np.zeros((len(x), max(count, 0)), dtype=np.int64)
    if count < 1:
        return found
    step = max(1, SIMILARITIES_AT_ONCE // len(x))
    for start in range(0, len(x), step):
        alike = x[start : start + step] @ x.T
        alike[np.arange(len(alike)), start + np.arange(len(alike))] = -np.inf  # not itself
        found[start : start + step] = np.argpartition(-alike, count - 1, axis=1)[:, :count]
    return found


def _squared(a: Floats, squares: Floats, b: Floats) -> Floats:
    """Return the squared distances of each of a to each of b, given the squared lengths of a."""
    return squares[:, None] - 2 * (a @ b.T) + (b**2).sum(axis=1)
