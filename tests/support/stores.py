"""Pixel stores made of arrays, without files."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sortal.images import decoding
from sortal.images.store.pixel_store import COLUMNS, PixelStore

Image = NDArray[np.uint8]


def noise(n: int, size: int, *, seed: int = 0) -> list[Image]:
    """Images a little larger than `size`, no two alike, (height, width, 3) each."""
    generator = np.random.default_rng(seed)
    sides = generator.integers(size, size + 9, (n, 2))
    return [generator.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in sides.tolist()]


def store_of(images: Sequence[Image]) -> PixelStore:
    """A store of these images, row by row."""
    sizes = np.array([image.size for image in images], dtype=np.int64)
    heights, widths = np.array([image.shape[:2] for image in images], dtype=np.int64).reshape(-1, 2).T
    return PixelStore(
        flat=(np.concatenate([np.zeros(0, np.uint8), *(image.ravel() for image in images)]),),
        parts=np.zeros(len(images), dtype=np.int64),
        offsets=np.cumsum(sizes) - sizes,
        heights=heights,
        widths=widths,
        quarantine=(),
        digests=np.array([decoding.digest(image) for image in images], dtype="S32"),
        facts=np.zeros(len(images), decoding.FACTS),
    )


def small_store(n: int, size: int, *, seed: int = 0) -> PixelStore:
    return store_of(noise(n, size, seed=seed))


def same_store(n: int) -> PixelStore:
    """A store of so many small images, the same ones again and again if there are many."""
    store = small_store(min(n, 72), 16)
    rows = np.arange(n) % max(1, len(store))
    columns = {name: getattr(store, name)[rows] for name in COLUMNS}
    return replace(store, **columns)
