"""Labels that learning does not see: some calibrate confidence, others were confirmed in a review."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sortal.config import Discovery
from sortal.images.image_set import ImageSet
from sortal.runs.confidence import ENOUGH

MOST_HELD_OUT = 1000  # labelled images at most to calibrate on


def held_out(
    images: ImageSet, order: NDArray[np.int64], settings: Discovery, among: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Draw the labelled images (n,) whose labels are held out for calibration: a share of each class.

    Rows are drawn in this order (n,), which must not depend on file names, and only from the mask `among` (n,): labels
    that people gave to what a run showed them are not a fair sample of a class. Of few labelled images a smaller share
    is held out, down to none, as they serve training better.
    """
    generator = np.random.default_rng(settings.seed)
    of = [order[(images.labels[order] == label) & among[order]] for label in images.known]
    n = sum(map(len, of))
    count = settings.held_out * n
    drawn = [
        generator.choice(rows, size=size, replace=False)
        for rows, size in zip(of, _shares(int(min(count, 2 * count - ENOUGH)), list(map(len, of))), strict=True)
    ]
    held = np.zeros(len(images), dtype=bool)
    held[generator.permutation(np.concatenate([np.zeros(0, dtype=np.int64), *drawn]))[:MOST_HELD_OUT]] = True
    return held


def _shares(count: int, sizes: Sequence[int]) -> list[int]:
    """Divide a count among classes in proportion to their sizes, by largest remainders; each class keeps an image."""
    quotas = [max(count, 0) * size / max(sum(sizes), 1) for size in sizes]
    found = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda row: found[row] - quotas[row])
    for row in by_remainder[: max(count, 0) - sum(found)]:
        found[row] += 1
    return [min(each, max(size - 1, 0)) for each, size in zip(found, sizes, strict=True)]


def set_aside(images: ImageSet, confirmed: NDArray[np.bool_], order: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Draw half of the images of each class that were `confirmed` (n,) in a review; learning does not see their labels.

    People confirm what a run is sure of. If all of that were labelled, only difficult images would be left unlabelled,
    and would look like classes of their own. Rows are drawn in this order (n,).
    """
    generator, drawn = np.random.default_rng(seed), np.zeros(len(images), dtype=bool)
    for label in images.known:
        rows = order[(images.labels[order] == label) & confirmed[order]]
        drawn[generator.choice(rows, size=len(rows) // 2, replace=False)] = True
    return drawn
