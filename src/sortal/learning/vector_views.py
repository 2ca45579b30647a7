"""Views of feature vectors: mixed with near ones, blurred, and like all others in some dimensions.

They take the place of crops: what differs between two views should not matter. A view is a function of its state.
"""

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sortal.images.store.vector_rows import VectorMatrix, Vectors
from sortal.learning.views import Keys, RowNumbers, uniform_draws

MIXED = 0.5  # share of a neighbour in a view, at most
NOISE = 0.2  # standard deviation, in those of each dimension over all vectors
DROPPED = 0.1  # share of the dimensions in which a view is like the mean
DRAWN = 2**20  # normal numbers, of which a view takes a stretch


def vector_views(vectors: Vectors, rows: RowNumbers, states: Keys | None) -> VectorMatrix:
    """Return a view (b, d) of each of these rows (b,); without states, the rows as they are."""
    x: VectorMatrix = vectors.rows[rows]
    if states is None:
        return x
    draws, width = uniform_draws(states, 4), x.shape[1]
    if count := vectors.neighbours.shape[1]:
        others = vectors.neighbours[rows, (draws[:, 0] * count).astype(np.int64)]
        x = x + MIXED * draws[:, 1:2] * (vectors.rows[others] - x)
    stretches = sliding_window_view(_normal_numbers(width), width)
    starts = (draws[:, 2:] * np.float32(DRAWN)).astype(np.int64)
    blurred = x + NOISE * vectors.deviations * stretches[starts[:, 0]]
    dropped = np.abs(stretches[starts[:, 1]]) < _threshold()
    view: VectorMatrix = np.where(dropped, vectors.means, blurred).astype(np.float32)
    return view


@cache
def _normal_numbers(width: int) -> NDArray[np.float32]:
    """Draw so many numbers that a stretch of this width may begin at each of the first `DRAWN`; always the same."""
    return np.random.default_rng(0).standard_normal(DRAWN + width, dtype=np.float32)


def _threshold() -> float:
    """Return what a share of `DROPPED` of normal numbers are below, by their size."""
    return NormalDist().inv_cdf((1 + DROPPED) / 2)
