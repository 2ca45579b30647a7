"""Runs over planted classes: Gaussian clusters on the unit sphere around directions at right angles to each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from sortal.runs.run import Run
from support.sample_run import sample_run

Ints = NDArray[np.int64]
Features = NDArray[np.float32]


def planted(counts: list[int], *, d: int = 16, noise: float = 0.5, seed: int = 0) -> tuple[Features, Ints]:
    """Return features (n, d) of so many images of each class, and their classes (n,), in random order.

    `noise` is the usual length of what is added to the direction of a class, which has length 1.
    """
    generator = np.random.default_rng(seed)
    directions = np.linalg.qr(generator.normal(size=(d, len(counts))))[0].T
    of = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    x = directions[of] + generator.normal(0, noise / np.sqrt(d), (len(of), d))
    return unit(x), of


def unit(x: NDArray[np.floating]) -> Features:
    rows: Features = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    return rows


def cut(x: Features, rows: Ints, parts: int) -> Ints:
    """Return the part (m,) of each of the rows, by k-means."""
    found: Ints = KMeans(parts, n_init=3, random_state=0).fit(x[rows]).labels_.astype(np.int64)
    return found


def planted_run(x: Features, category: Ints, *, known: int = 0) -> Run:
    """Return a run in which images (n, d) were sorted into these categories (n,), the first of which are known."""
    k = int(category.max()) + 1
    return sample_run(categories=k, known=known, images=len(x), features=x, category=category, truth=False)


def contents(run: Run, rows: NDArray[np.integer]) -> tuple[str, ...]:
    return tuple(run.assignments.contents[row] for row in rows.tolist())
