"""The two-dimensional map of the images: a sample of them, and their coordinates."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.runs import cache

POINTS = 5000  # images on the map at most
SPAN = 9999  # coordinates are whole numbers from 0 to this
DIMENSIONS = 50  # principal components that t-SNE is given
FEWEST = 10  # different images that t-SNE needs
Matrix = NDArray[np.float64]


def sample(category: NDArray[np.int64], distance: NDArray[np.float64], points: int, *, seed: int) -> NDArray[np.int64]:
    """Choose rows for the map: the most typical image of each category, then others in random order while they fit."""
    order = np.lexsort((distance, category))
    first = order[np.unique(category[order], return_index=True)[1]]
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(category)), first))
    return np.concatenate([first, rest])[:points]


def place(features: NDArray[np.float32], *, seed: int) -> NDArray[np.int64]:
    """Return coordinates (n, 2) from 0 to SPAN by t-SNE or, for too few different images, principal components."""
    if not len(features):
        return np.zeros((0, 2), dtype=np.int64)
    x = _principal(np.asarray(features, dtype=np.float64))
    if x.shape[1] < 2 or len(np.unique(x, axis=0)) < FEWEST:
        return _scaled(np.pad(x, ((0, 0), (0, 2)))[:, :2])
    from sklearn.manifold import TSNE

    start, perplexity = x[:, :2] / x[:, 0].std() * 1e-4, min(30.0, (len(x) - 1) / 3)
    tsne = TSNE(init=start.astype(np.float32), perplexity=perplexity, max_iter=500, random_state=seed)
    return _scaled(np.asarray(tsne.fit_transform(x.astype(np.float32)), dtype=np.float64))


def place_cached(features: NDArray[np.float32], *, seed: int, folder: Path | None) -> NDArray[np.int64]:
    """Return `place`, cached in a folder."""
    if folder is None:
        return place(features, seed=seed)
    path = folder / f"{cache.key('map', cache.hashed(features), seed)}.json"
    found = cache.load(path)
    if found is None:
        found = place(features, seed=seed).tolist()
        cache.save(path, found)
    return np.array(found, dtype=np.int64).reshape(len(features), 2)


def _principal(x: Matrix) -> Matrix:
    """Return the first principal components in which the rows differ, the largest first."""
    x = x - x.mean(axis=0)
    variance, axes = np.linalg.eigh(x.T @ x)
    differs = variance > max(variance[-1], 1e-12) * 1e-9
    axes = axes[:, differs][:, ::-1][:, :DIMENSIONS]
    # The sign of an axis is arbitrary: the largest entry is made positive, so that the same run gives the same map.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0, keepdims=True), axis=0)
    projected: Matrix = x @ (axes * np.sign(largest))
    return projected


def _scaled(xy: Matrix) -> NDArray[np.int64]:
    """Stretch each axis to the whole span; where all rows are equal, use its middle."""
    low, extent = xy.min(axis=0), np.ptp(xy, axis=0)
    fraction = np.where(extent > 0, (xy - low) / np.where(extent > 0, extent, 1.0), 0.5)
    whole: NDArray[np.int64] = np.rint(fraction * SPAN).astype(np.int64)
    return whole
