"""The wish for finer or coarser categories: the best k among clearly more, or clearly fewer, than the usual ones."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil, floor

from sortal.config import Granularity
from sortal.discovery.grouping.choose_k import bounds_of_k, choose_k, estimated_k
from sortal.discovery.grouping.clusters import Rows
from sortal.discovery.grouping.counting import KDistribution
from sortal.discovery.job import Job
from sortal.images.image_set import ImageSet
from sortal.runs.facts import KChoice
from sortal.system.progress import Runtime

LEAST_FACTOR, MOST_FACTOR = 1.25, 2.5  # between the usual number of categories and a finer or a coarser one


def granular_k(
    job: Job,
    rows: Rows,
    images: ImageSet,
    runtime: Runtime,
    note: Callable[[str], None],
    *,
    counted: KDistribution | None = None,
) -> KChoice:
    """Return the number of categories that the settings ask for; note if a wish for finer or coarser ones is in vain.

    The features stay as they are, so a wish trains nothing again.
    """
    usual, wish = choose_k(job, rows, images, runtime, counted=counted), job.settings.granularity
    if wish == "usual":
        return usual
    known, (least, most) = len(images.known), bounds_of_k(job.settings, images)
    within = bounds_of_wish(wish, usual.k, max(least, 2), most)
    if within is None:
        fewest = f"the known classes, {known}," if known > 1 else "two"
        limit = "no more are possible" if wish == "finer" else f"{fewest} are the fewest possible"
        note(f"Categories cannot be {wish} than usual, so their number is {usual.k:,} as without the wish: {limit}.")
        return usual
    found = estimated_k(job, rows, images, runtime, bounds=within)
    curve = {each.k: each for each in (*found.curve, *usual.curve)}
    return replace(usual, k=found.k, usual=usual.k, curve=tuple(curve[k] for k in sorted(curve)))


def bounds_of_wish(wish: Granularity, k: int, least: int, most: int) -> tuple[int, int] | None:
    """Return the fewest and the most categories that a wish for others than the usual k allows; None if there are none.

    Both are from `least` to `most`, and where these are closer to k than the factors say, that bound is taken.
    """
    if wish == "finer":
        low, high = min(ceil(LEAST_FACTOR * k), most), min(floor(MOST_FACTOR * k), most)
        return (low, high) if low > k else None
    low, high = max(ceil(k / MOST_FACTOR), least), max(floor(k / LEAST_FACTOR), least)
    return (low, high) if high < k else None
