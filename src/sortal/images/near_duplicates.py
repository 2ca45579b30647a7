"""Near-duplicates: images that differ only in size, encoding, brightness or contrast."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16  # of a thumbnail, in pixels
LENGTH = SIDE * SIDE * 3
LEAST_ALIKE = 0.98  # minimum correlation of two thumbnails
REST = 8.0  # maximum residual, in levels of 255, after a linear fit of one to the other
EXACT = 20_000  # images up to which every pair is compared
CELLS = 2  # that each of more images is compared in
MOST_THUMBNAILS = 2_000_000  # images compared; their thumbnails are in memory
BLOCK_ROWS = 1024  # rows compared at a time
TILE = 2**14  # leaders they are compared with at a time


def thumbnail(rgb: NDArray[np.uint8]) -> bytes:
    """Shrink an image of any shape to the LENGTH bytes that are compared."""
    return Image.fromarray(rgb).resize((SIDE, SIDE), Image.Resampling.BOX).tobytes()


def leaders(thumbnails: NDArray[np.uint8], progress: Callable[[int, int], None] = lambda *_: None) -> NDArray[np.int64]:
    """Return for each row of (n, LENGTH) the leader of its group: the first leader it looks like, or itself.

    Every member of a group looks like its leader, so that groups do not grow by small steps. An image of a single
    colour looks like no other. More than `EXACT` rows are compared within cells of similar ones, which misses a few.
    """
    n = len(thumbnails)
    if n <= EXACT:
        return _leaders(thumbnails, progress)
    cells = _cells(thumbnails)
    candidates = np.repeat(np.arange(n)[:, None], CELLS, axis=1)  # the leader of each row in each of its cells
    order = np.argsort(cells, axis=None, kind="stable")
    ends = np.searchsorted(cells.ravel()[order], np.arange(cells.max() + 2))
    for start, end in pairwise(ends.tolist()):
        rows, columns = np.divmod(order[start:end], CELLS)
        candidates[rows, columns] = rows[_leaders(thumbnails[rows], lambda *_: None)]
        progress(end // CELLS, n)
    found = np.arange(n)
    for row in np.flatnonzero((candidates != found[:, None]).any(axis=1)).tolist():
        alike = [each for each in candidates[row].tolist() if each < row and found[each] == each]
        found[row] = min(alike, default=row)
    return found


def _cells(thumbnails: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the cells (n, CELLS) of each row: the most similar of √n rows, always the same ones."""
    n = len(thumbnails)
    centres = _normalised(thumbnails[np.random.default_rng(0).permutation(n)[: round(n**0.5)]])[0]
    found = np.empty((n, CELLS), dtype=np.int64)
    for start in range(0, n, TILE):
        alike = _normalised(thumbnails[start : start + TILE])[0] @ centres.T
        found[start : start + TILE] = np.argpartition(-alike, CELLS - 1, axis=1)[:, :CELLS]
    return found


def _normalised(thumbnails: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return rows less their means, of length 1 unless they are of a single colour, and their standard deviations."""
    x = thumbnails.astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    spread = x.std(axis=1)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    return x, spread


def _leaders(thumbnails: NDArray[np.uint8], progress: Callable[[int, int], None]) -> NDArray[np.int64]:
    """Return the leaders of rows by comparing each with all leaders before it."""
    n = len(thumbnails)
    x, spread = _normalised(thumbnails)

    def alike(some: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask (some, others) of pairs that look alike."""
        correlation = x[some] @ x[others].T
        pairs: NDArray[np.bool_] = correlation > LEAST_ALIKE
        one, other = np.nonzero(pairs)
        rest = (1 - correlation[one, other] ** 2) * np.maximum(spread[some[one]], spread[others[other]]) ** 2
        pairs[one, other] = rest < REST**2
        return pairs

    found = np.full(n, -1)
    for start in range(0, n, BLOCK_ROWS):
        free = np.arange(start, min(start + BLOCK_ROWS, n))
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
        progress(min(start + BLOCK_ROWS, n), n)
    return found
