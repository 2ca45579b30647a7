"""Views: random crops and flips of stored images, each a function of (seed, epoch, image, view number) alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, listing
from sortal.store import PixelStore

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / the golden ratio: the increments of SplitMix64


@dataclass(frozen=True)
class Crops:
    """Where views lie in their images; all (n,)."""

    rows: NDArray[np.int64]
    tops: NDArray[np.int64]
    lefts: NDArray[np.int64]
    flipped: NDArray[np.bool_]


def content_keys(store: PixelStore) -> NDArray[np.uint64]:
    """A number for each image from its content, (n,), so that the order of the rows does not matter."""
    halves = store.digests.astype("S16").view("<u8").reshape(-1, 2)
    keys: NDArray[np.uint64] = mixed(halves[:, 0]) ^ halves[:, 1]
    return keys


def check_size(store: PixelStore, size: int, shorter_side: int) -> None:
    """Every image that is there must be as large as a view, and not so large that a view shows a scrap of it."""
    small = np.flatnonzero(store.present & (np.minimum(store.heights, store.widths) < size))
    if len(small):
        at = small[0]
        raise InputError(
            f"Stored images must be at least {size} × {size} pixels for this backbone; {len(small):,} are not, the "
            f"first in row {at} ({store.heights[at]} × {store.widths[at]}). Pack them with "
            f"Settings(shorter_side={shorter_side})."
        )
    large = np.flatnonzero(np.minimum(store.heights, store.widths) > 2 * shorter_side)
    if len(large):
        at = large[0]
        raise InputError(
            f"Stored images must have a shorter side of about {shorter_side} pixels for this backbone; {len(large):,} "
            f"have more than twice as much, the first in row {at} ({store.heights[at]} × {store.widths[at]}). "
            f"Pack them with Settings(shorter_side={shorter_side})."
        )


def check_present(store: PixelStore, rows: NDArray[np.int64]) -> None:
    """Every one of these images must have been read."""
    if len(gone := rows[~store.present[rows]]):
        unread = np.flatnonzero(~store.present)
        names = listing([bad.file for row, bad in zip(unread, store.quarantine, strict=True) if row in gone])
        raise InputError(
            f"Every image must have been read; {len(gone):,} were not: {names}. "
            "Leave them out: pack(images.select(store.present), ...)."
        )
    if (store.digests[rows] == b"").any():  # images are told apart by content: their views, their features, their pairs
        raise InputError("The store must say which content each image has (digests). Use one made by pack(...).")


def random(
    store: PixelStore,
    keys: NDArray[np.uint64],
    rows: NDArray[np.int64],
    numbers: NDArray[np.int64],
    *,
    size: int,
    flip: bool,
    seed: int,
    epoch: int,
) -> Crops:
    """One view for each of `rows`, by its number: a crop anywhere in the image, mirrored or not.

    `keys` are the content keys of all rows of the store.
    """
    state = mixed(mixed(np.uint64(seed)) + np.uint64(epoch))
    state = mixed(mixed(keys[rows] ^ state) + numbers.astype(np.uint64))
    tops = _below(store.heights[rows] - size + 1, mixed(state + np.uint64(1)))
    lefts = _below(store.widths[rows] - size + 1, mixed(state + np.uint64(2)))
    flipped = (mixed(state + np.uint64(3)) >> np.uint64(63)).astype(bool) & flip
    return Crops(rows, tops, lefts, flipped)


def centre(store: PixelStore, rows: NDArray[np.int64], *, size: int) -> Crops:
    """The middle of each image, to be looked at by a trained network."""
    tops, lefts = (np.rint((sides[rows] - size) / 2).astype(np.int64) for sides in (store.heights, store.widths))
    return Crops(rows, tops, lefts, np.zeros(len(rows), dtype=bool))


def middles(store: PixelStore, rows: NDArray[np.int64], *, size: int, batch_size: int) -> Iterator[Crops]:
    """The middles of many images, in batches."""
    for start in range(0, len(rows), batch_size):
        yield centre(store, rows[start : start + batch_size], size=size)


def pair(keys: NDArray[np.uint64], times: NDArray[np.int64], *, views: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Two different ones of `views` for each image, (2, n); `times` is how often it was drawn before in the epoch."""
    state = mixed(mixed(np.uint64(seed)) + np.uint64(epoch))
    state = mixed(mixed(keys ^ state) + times.astype(np.uint64))
    first = _below(np.full(len(keys), views), mixed(state + np.uint64(4)))
    step = 1 + _below(np.full(len(keys), views - 1), mixed(state + np.uint64(5)))
    return np.stack([first, (first + step) % views])


def mixed(values: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """SplitMix64: numbers that look random, a function of the given ones."""
    state = np.atleast_1d(np.asarray(values, dtype=np.uint64)) + _GOLDEN
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _below(ends: NDArray[np.int64], state: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A whole number from 0 to below each end."""
    uniform = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (uniform * ends).astype(np.int64)
