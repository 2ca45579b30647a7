"""Frozen features, UMAP and HDBSCAN: what people run in notebooks. Trains nothing, and finds k itself."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.config.rivals import Density
from sortal.config.rules import AUTO
from sortal.errors import InputError

ROWS_FOR_UMAP = 20  # below which UMAP has too little to go by, and HDBSCAN gets the features
SMALLEST_BOUNDS = 5, 50  # of the automatic size of the smallest category
TRIED_SIZES = 12  # of the smallest category, for a given k


def cluster(
    x: NDArray[np.float32], labels: NDArray[np.int64], k: int | None, settings: Density, seed: int
) -> NDArray[np.int64]:
    """Cluster features (n, d); −1 is noise. With k, the smallest category has the size that gives about so many."""
    if len(x) < 2 * SMALLEST_BOUNDS[0]:
        return np.zeros(len(x), dtype=np.int64)
    rows = _embedded(x, settings, seed)
    if k is None:
        return _dense(rows, smallest_size(labels) if settings.smallest == AUTO else int(settings.smallest), settings)
    largest = max(len(x) // max(k, 1), 3)
    tried = [_dense(rows, size, settings) for size in np.unique(np.geomspace(2, largest, TRIED_SIZES).astype(int))]
    return min(tried, key=lambda found: abs(int(found.max()) + 1 - k))


def smallest_size(labels: NDArray[np.int64]) -> int:
    """Return half of the median number of labelled images (n,) of a class, within bounds; a few without labels."""
    counts = np.unique(labels[labels >= 0], return_counts=True)[1]
    return int(np.clip(np.median(counts) / 2 if len(counts) else 0, *SMALLEST_BOUNDS))


def _embedded(x: NDArray[np.float32], settings: Density, seed: int) -> NDArray[Any]:
    """Reduce rows (n, d) to a few dimensions, (n, components)."""
    umap = _library()
    if len(x) < ROWS_FOR_UMAP + settings.components:
        return x
    model = umap.UMAP(
        n_components=settings.components,
        n_neighbors=min(settings.neighbours, len(x) - 1),
        min_dist=settings.distance,
        metric="cosine",
        random_state=seed,
        n_jobs=1,  # or the result would depend on how threads happen to run
    )
    return model.fit_transform(x)


def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)  # of TensorFlow, which one part of it would use
            import umap
    except ImportError as error:
        raise InputError(f"The method umap-hdbscan needs umap-learn: pip install 'sortal[umap]' ({error}).") from None
    return umap


def _dense(rows: NDArray[Any], smallest: int, settings: Density) -> NDArray[np.int64]:
    """Return the clusters (n,) of HDBSCAN, −1 for noise; a single one if there is nothing but noise."""
    from sklearn.cluster import HDBSCAN

    samples = None if settings.samples == AUTO else min(int(settings.samples), len(rows))
    model = HDBSCAN(min_cluster_size=min(smallest, len(rows)), min_samples=samples, copy=True)
    found: NDArray[np.int64] = model.fit_predict(rows).astype(np.int64)
    return found if found.max() >= 0 else np.zeros_like(found)
