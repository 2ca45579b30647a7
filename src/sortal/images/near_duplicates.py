"""Near-duplicates: images that differ only in size, encoding, brightness or contrast."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16  # of a thumbnail, in pixels
LENGTH = SIDE * SIDE * 3
ALIKE = 0.98  # minimum correlation of two thumbnails
REST = 8.0  # maximum residual, in levels of 255, after a linear fit of one to the other
MOST = 100_000  # images compared; the work grows with the square of their number
BLOCK = 1024  # rows compared at a time
TILE = 2**14  # leaders they are compared with at a time


def thumbnail(rgb: NDArray[np.uint8]) -> bytes:
    """Shrink an image of any shape to the LENGTH bytes that are compared."""
    return Image.fromarray(rgb).resize((SIDE, SIDE), Image.Resampling.BOX).tobytes()


def leaders(thumbnails: NDArray[np.uint8], progress: Callable[[int, int], None] = lambda *_: None) -> NDArray[np.int64]:
    """Return for each row of (n, LENGTH) the leader of its group: the first leader it looks like, or itself.

    Every member of a group looks like its leader, so that groups do not grow by small steps. An image of a single
    colour looks like no other.
    """
    n = len(thumbnails)
    x = thumbnails.astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    spread = x.std(axis=1)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)

    def alike(some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask (some, others) of pairs that look alike."""
        correlation = x[some] @ x[others].T
        pairs: NDArray[np.bool_] = correlation > ALIKE
        one, other = np.nonzero(pairs)
        rest = (1 - correlation[one, other] ** 2) * np.maximum(spread[some[one]], spread[others[other]]) ** 2
        pairs[one, other] = rest < REST**2
        return pairs

    found = np.full(n, -1)
    for start in range(0, n, BLOCK):
        free = np.arange(start, min(start + BLOCK, n))
        before = np.flatnonzero(found[:start] == np.arange(start))
        for tile in range(0, len(before), TILE):
            those = before[tile : tile + TILE]
            pairs = alike(free, those)
            hit = pairs.any(axis=1)
            found[free[hit]] = those[pairs[hit].argmax(axis=1)]
            free = free[~hit]
        pairs = alike(free, free)
        for place, row in enumerate(free):
            if found[row] < 0:
                found[row] = row
                followers = free[place + 1 :][pairs[place, place + 1 :]]
                found[followers[found[followers] < 0]] = row
        progress(min(start + BLOCK, n), n)
    return found
