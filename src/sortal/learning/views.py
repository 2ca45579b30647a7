"""Views: random crops and flips of stored images, or vectors, each determined by (seed, epoch, image, view number)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from statistics import NormalDist

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sortal.errors import InputError, listing
from sortal.images.store.pixel_store import PixelStore
from sortal.images.store.vector_rows import VectorMatrix, Vectors
from sortal.runs.facts import Spec

RowNumbers = NDArray[np.int64]  # one number per row: of a row, of a view, or of pixels
Keys = NDArray[np.uint64]  # hashes of contents
PATTERNS = 4096  # sets of patches that views choose from
SMALLEST_WINDOW = 0.6  # share of each side of the grid
# Of feature vectors, whose views take the place of crops:
MIXED = 0.5  # share of a neighbour in a view, at most
NOISE = 0.2  # standard deviation, in those of each dimension over all vectors
DROPPED = 0.1  # share of the dimensions in which a view is like the mean
DRAWN = 2**20  # normal numbers, of which a view takes a stretch
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / the golden ratio: the increments of SplitMix64


@dataclass(frozen=True)
class Crops:
    """Positions of views in their images; all (n,)."""

    rows: RowNumbers
    tops: RowNumbers
    lefts: RowNumbers
    flipped: NDArray[np.bool_]
    states: Keys | None = None  # from which further numbers of a view can be drawn


def content_keys(store: PixelStore) -> Keys:
    """Hash the content of each image, (n,), so that draws do not depend on the order of rows."""
    halves = store.digests.astype("S16").view("<u8").reshape(-1, 2)
    return splitmix64(halves[:, 0]) ^ halves[:, 1]


def check_store(store: PixelStore, spec: Spec) -> None:
    """Raise InputError if an image could not be read, has no digest, or is too small or too large for a backbone."""
    check_present(store)
    if store.vectors is None:
        check_size(store, spec.image_size, spec.shorter_side)


def check_size(store: PixelStore, size: int, shorter_side: int) -> None:
    """Raise InputError if a stored image is smaller than a view, or so large that a view shows little of it."""
    sides = np.minimum(store.heights, store.widths)
    for wrong, rule, problem in (
        (store.present & (sides < size), f"be at least {size} × {size} pixels", "are smaller"),
        (sides > 2 * shorter_side, f"have a shorter side of about {shorter_side} pixels", "have more than twice that"),
    ):
        if len(rows := np.flatnonzero(wrong)):
            raise InputError(
                f"Stored images must {rule} for this backbone, but {len(rows):,} {problem}, the first in row {rows[0]} "
                f"({store.heights[rows[0]]} × {store.widths[rows[0]]}). Pack them with "
                f"Settings(shorter_side={shorter_side})."
            )


def check_present(store: PixelStore) -> None:
    """Raise InputError if an image could not be read, or has no digest."""
    if not store.present.all():
        names = listing([bad.file for bad in store.quarantine])
        raise InputError(
            f"All images must be readable, but {len(store.quarantine):,} could not be read: {names}. "
            "Leave them out: pack(images.select(store.present), ...)."
        )
    if (store.digests == b"").any():  # views and features are keyed by content
        raise InputError("The store must hold a digest of each image. Use a store made by pack(...).")


def random_crops(
    store: PixelStore,
    keys: Keys,
    rows: RowNumbers,
    numbers: RowNumbers,
    *,
    size: int,
    flip: bool,
    seed: int,
    epoch: int,
) -> Crops:
    """Draw the view with the given number of each of `rows`: a crop, mirrored or not; `keys` are of the whole store."""
    state = _state(keys[rows], numbers, seed, epoch)
    tops = _below(store.heights[rows] - size + 1, splitmix64(state + np.uint64(1)))
    lefts = _below(store.widths[rows] - size + 1, splitmix64(state + np.uint64(2)))
    flipped = (splitmix64(state + np.uint64(3)) >> np.uint64(63)).astype(bool) & flip
    return Crops(rows, tops, lefts, flipped, state)


def centre_crops(store: PixelStore, rows: RowNumbers, *, size: int) -> Crops:
    """Crop the centre of each image, unmirrored."""
    tops, lefts = (np.rint((sides[rows] - size) / 2).astype(np.int64) for sides in (store.heights, store.widths))
    return Crops(rows, tops, lefts, np.zeros(len(rows), dtype=bool))


def centre_crop_batches(store: PixelStore, rows: RowNumbers, *, size: int, batch_size: int) -> Iterator[Crops]:
    """Yield centre crops in batches."""
    for start in range(0, len(rows), batch_size):
        yield centre_crops(store, rows[start : start + batch_size], size=size)


def choose_pairs(keys: Keys, times: RowNumbers, *, views: int, seed: int, epoch: int) -> RowNumbers:
    """Choose two different view numbers below `views` for each image, (2, n); `times` counts its earlier draws."""
    state = _state(keys, times, seed, epoch)
    first = _below(np.full(len(keys), views), splitmix64(state + np.uint64(4)))
    step = 1 + _below(np.full(len(keys), views - 1), splitmix64(state + np.uint64(5)))
    return np.stack([first, (first + step) % views])


def choose_views(keys: Keys, times: RowNumbers, count: int, *, views: int, seed: int, epoch: int) -> RowNumbers:
    """Choose so many different view numbers below `views` for each image, (count, n)."""
    if count == 2:
        return choose_pairs(keys, times, views=views, seed=seed, epoch=epoch)
    state = _state(keys, times, seed, epoch)
    order = [splitmix64(splitmix64(state + np.uint64(4)) + np.uint64(view)) for view in range(views)]
    return np.argsort(np.stack(order), axis=0, kind="stable")[:count]


def uniform_draws(states: Keys, count: int) -> NDArray[np.float32]:
    """Draw numbers from 0 to below 1 for each view, (n, count)."""
    drawn = [splitmix64(splitmix64(states + np.uint64(8)) + np.uint64(each)) for each in range(count)]
    return ((np.stack(drawn, axis=1) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)


def patch_patterns(grid: tuple[int, int], kept: float) -> RowNumbers:
    """Draw sets of patches of a grid, (PATTERNS, count): a share of all, from a random window; always the same."""
    count, random = max(round(kept * grid[0] * grid[1]), 1), np.random.default_rng(0)
    found = np.empty((PATTERNS, count), dtype=np.int64)
    for row in found:
        while True:
            height, width = (int(random.integers(ceil(SMALLEST_WINDOW * side), side + 1)) for side in grid)
            if height * width >= count:
                break
        top, left = (int(random.integers(0, room + 1)) for room in (grid[0] - height, grid[1] - width))
        window = np.add.outer(np.arange(top, top + height) * grid[1], np.arange(left, left + width)).ravel()
        row[:] = np.sort(random.permutation(window)[:count])
    return found


def pattern_of(states: Keys) -> RowNumbers:
    """Choose a pattern of patches for each view, (n,)."""
    return _below(np.full(len(states), PATTERNS), splitmix64(states + np.uint64(6)))


def choose_patterns(keys: Keys, times: RowNumbers, count: int = 2, *, seed: int, epoch: int) -> RowNumbers:
    """Choose patterns of patches for the views of each image, (count, n); `times` counts its earlier draws."""
    state, ends = _state(keys, times, seed, epoch), np.full(len(keys), PATTERNS)
    return np.stack([_below(ends, splitmix64(state + np.uint64(6 + each))) for each in range(count)])


def _state(keys: Keys, numbers: RowNumbers, seed: int, epoch: int) -> Keys:
    of_epoch = splitmix64(splitmix64(np.uint64(seed)) + np.uint64(epoch))
    return splitmix64(splitmix64(keys ^ of_epoch) + numbers.astype(np.uint64))


def splitmix64(values: Keys | np.uint64) -> Keys:
    """Hash numbers by SplitMix64."""
    state = np.atleast_1d(np.asarray(values, dtype=np.uint64)) + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _below(ends: RowNumbers, state: Keys) -> RowNumbers:
    """Map hashes to integers from 0 to below each end."""
    uniform = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (uniform * ends).astype(np.int64)


def vector_views(vectors: Vectors, rows: RowNumbers, states: Keys | None) -> VectorMatrix:
    """Return a view (b, d) of each of these rows (b,); without states, the rows as they are.

    It is mixed with a near one, blurred, and like all others in some dimensions, none of which should matter.
    """
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
    dropped = np.abs(stretches[starts[:, 1]]) < NormalDist().inv_cdf((1 + DROPPED) / 2)  # true of that share
    return np.where(dropped, vectors.means, blurred).astype(np.float32)


@cache
def _normal_numbers(width: int) -> NDArray[np.float32]:
    """Draw so many numbers that a stretch of this width may begin at each of the first `DRAWN`; always the same."""
    return np.random.default_rng(0).standard_normal(DRAWN + width, dtype=np.float32)
