"""Images that were rejected from categories: the nearest category that an image may still be in."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal.runs.confidence import Floats, Ints, Matrix

Rejections: TypeAlias = frozenset[tuple[str, int]]  # contents of images, and ids of categories they do not belong to


def nearest_allowed(
    x: Matrix, contents: Sequence[str], centres: Matrix, ids: Sequence[int], rejected: Rejections
) -> Ints:
    """Return the id (n,) of the nearest category that an image was not rejected from; −1 if none is left.

    Images have features (n, d) and contents, categories have centres (k, d) and ids.
    """
    x, centres = x.astype(np.float64), centres.astype(np.float64)
    squared: Floats = (centres**2).sum(axis=1) - 2 * x @ centres.T
    barred = [[(content, each) in rejected for each in ids] for content in contents]
    squared[np.array(barred, dtype=bool).reshape(squared.shape)] = np.inf
    nearest = np.array(ids, dtype=np.int64)[squared.argmin(axis=1)]
    return np.where(np.isfinite(squared).any(axis=1), nearest, -1)


def keep_away(
    category: Ints,
    x: Matrix,
    contents: Sequence[str],
    centres: Matrix,
    ids: Sequence[int],
    rejected: Rejections,
    *,
    open_: NDArray[np.bool_],
    otherwise: Ints,
) -> Ints:
    """Move open images out of categories that they were rejected from, to the nearest allowed one.

    `category` (n,) are ids, `open_` (n,) is a mask, and `otherwise` (n,) is where an image goes that may be in none.
    """
    pairs = zip(contents, category.tolist(), strict=True)
    rows = np.flatnonzero(open_ & np.array([pair in rejected for pair in pairs], dtype=bool))
    if not len(rows):
        return category
    moved, allowed = (
        category.copy(),
        nearest_allowed(x[rows], [contents[row] for row in rows.tolist()], centres, ids, rejected),
    )
    moved[rows] = np.where(allowed < 0, otherwise[rows], allowed)
    return moved
