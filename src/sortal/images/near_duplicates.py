"""Near-duplicates: which images look the same but for their size, encoding, brightness or contrast."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16  # of thumbnails, in pixels
LENGTH = SIDE * SIDE * 3
ALIKE = 0.98  # the least correlation of two thumbnails
REST = 8.0  # and the most that may be left of one, in levels of 255, once the other is fitted to it
MOST = 100_000  # images; the work grows with the square of their number
BLOCK = 1024  # rows compared at a time
TILE = 2**14  # with as many leaders


def thumbnail(rgb: NDArray[np.uint8]) -> bytes:
    """What is compared of an image, whatever its shape: LENGTH bytes."""
    return Image.fromarray(rgb).resize((SIDE, SIDE), Image.Resampling.BOX).tobytes()


def leaders(
    thumbnails: NDArray[np.uint8], on_progress: Callable[[int, int], None] = lambda *_: None
) -> NDArray[np.int64]:
    """For each row of (n, LENGTH) the first row that it looks like and that looks like none before it; or itself.

    So that a group never grows by steps from like to like: all of it look like its leader. An image of one colour
    looks like no other.
    """
    n = len(thumbnails)
    x = thumbnails.astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    spread = x.std(axis=1)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)

    def alike(some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(some, others): whether they look alike."""
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
        on_progress(min(start + BLOCK, n), n)
    return found
