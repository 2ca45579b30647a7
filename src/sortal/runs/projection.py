"""The two-dimensional map of the images: a sample of them, and their coordinates."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sortal.errors import NoSpaceError
from sortal.runs.confidence import Features, Floats, Ints
from sortal.system import cache

MAP_POINTS = 5000  # images on the map at most, unless they are placed on a GPU
SPAN = 9999  # coordinates are whole numbers from 0 to this
Placer: TypeAlias = Callable[[Features, int], Floats]  # features (n, d) and a seed to positions (n, 2)


@dataclass(frozen=True)
class Mapper:
    """How images are placed on a map, and how many at most; made by a package that may use torch."""

    place: Placer
    points: int = MAP_POINTS


def sample(category: Ints, distance: Floats, points: int, *, seed: int) -> Ints:
    """Choose rows for the map: the most typical image of each category, then others in random order while they fit."""
    order = np.lexsort((distance, category))
    first = order[np.unique(category[order], return_index=True)[1]]
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(category)), first))
    return np.concatenate([first, rest])[:points]


def coordinates(features: Features, place: Placer, *, seed: int, folder: Path | None = None) -> Ints:
    """Place images and return coordinates (n, 2) from 0 to SPAN, cached in a folder."""
    if folder is None:
        return _scaled(place(features, seed))
    path = folder / f"{cache.key('t-SNE', cache.hashed(features), seed)}.json"
    with suppress(ValueError, TypeError, OverflowError):
        found = np.array(cache.load(path), dtype=np.int64).reshape(len(features), 2)
        if ((found >= 0) & (found <= SPAN)).all():
            return found
    made = _scaled(place(features, seed))
    with suppress(OSError, NoSpaceError):  # the map does without
        cache.save(path, made.tolist())
    return made


def _scaled(xy: Floats) -> Ints:
    """Stretch each axis to the whole span; where all rows are equal, use its middle."""
    if not len(xy):
        return np.zeros((0, 2), dtype=np.int64)
    low, extent = xy.min(axis=0), np.ptp(xy, axis=0)
    fraction = np.where(extent > 0, (xy - low) / np.where(extent > 0, extent, 1.0), 0.5)
    return np.rint(fraction * SPAN).astype(np.int64)
