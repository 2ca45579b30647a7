"""How much the categories of two groupings of the same images overlap, and which of them are the same."""

import numpy as np
from numpy.typing import NDArray


def jaccard(one: NDArray[np.int64], other: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the images in both of two clusters, as a share of those in either, for all pairs of two clusterings."""
    common = np.bincount(one * shape[1] + other, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    either = common.sum(axis=1, keepdims=True) + common.sum(axis=0) - common
    return common / np.maximum(either, 1)


def match_by_overlap(shares: NDArray[np.float64], allowed: NDArray[np.bool_]) -> dict[int, int]:
    """Match rows with columns of overlaps, each at most once, the largest overlap first, among the allowed pairs."""
    found: dict[int, int] = {}
    for row, column in zip(*np.unravel_index(np.argsort(-shares, axis=None), shares.shape), strict=True):
        if allowed[row, column] and row not in found and column not in found.values():
            found[int(row)] = int(column)
    return found
