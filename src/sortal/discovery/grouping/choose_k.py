"""The number of categories: the given one, or an estimate from features, finer or coarser if that is wished; cached."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from math import ceil, floor, log

from sortal.clustering.estimate_k import USUALLY_TRIED, KEstimate, KMethod, estimate_k, largest_k
from sortal.config import Discovery, Granularity, Recipe
from sortal.discovery.grouping.clusters import Rows
from sortal.discovery.grouping.counting import KDistribution, count_again
from sortal.discovery.job import Job
from sortal.images.image_set import ImageSet
from sortal.runs.confidence import Features
from sortal.runs.facts import KChoice, TriedK
from sortal.system import cache
from sortal.system.json_records import read_record
from sortal.system.progress import Runtime

LEAST_FACTOR, MOST_FACTOR = 1.25, 2.5  # between the usual number of categories and a finer or a coarser one
# The end of a reported range is at most so many times its start. Of 87 recorded runs, 60 had wider ones, and all of
# these still hold the truth when they are narrowed to this; with 1.9, six lose it (benchmarks/archive/collections.md).
WIDEST_RANGE = 2


def estimator(recipe: Recipe, known: int) -> KMethod:
    """Return the rule that estimates k: the paper's needs two known classes, and features trained without them."""
    return "separation" if known < 2 or (recipe.learns and recipe.estimate_on == "learned") else "brent"


def choose_k(
    job: Job, rows: Rows, images: ImageSet, runtime: Runtime, *, counted: KDistribution | None = None
) -> KChoice:
    """Return the given number of categories, or estimate it; `counted` is what was counted while learning."""
    settings = job.settings
    if isinstance(settings.k, str) and counted is not None:
        return recounted_k(job, rows, images, counted, runtime)
    if isinstance(settings.k, str):
        return estimated_k(job, rows, images, runtime)
    return KChoice(k=settings.k, estimated=False, known=len(images.known))


def estimated_k(
    job: Job, rows: Rows, images: ImageSet, runtime: Runtime, *, bounds: tuple[int, int] | None = None
) -> KChoice:
    """Estimate the number of categories, within bounds if given; every k that is tried is cached at once.

    Among the ks that are likely on features as they are, choose the one that separates smoothed features best: with
    less noise, more ks can be told apart. Smoothed features alone are not enough, as smoothing draws any few neighbours
    together, so that hundreds of small clusters may look separate.
    """
    method, bounds = estimator(job.recipe, len(images.known)), bounds or bounds_of_k(job.settings, images)
    inputs = "choice", method, *rows.key, cache.hashed(images.labels), *bounds, job.settings.seed
    path = job.cache / "k" / f"{cache.key(*inputs)}.json"
    if (cached := job.processes.by_first(partial(cache.load, path))) is not None:
        return read_record(KChoice, cached)
    found = _estimate(job, rows.x, images, bounds, runtime)
    k = found.k
    if rows.neighbours and method == "separation":
        k = _estimate(job, rows.smoothed, images, found.interval, runtime).k
    known, interval = len(images.known), found.interval
    choice = KChoice(k=k, estimated=True, known=known, interval=interval, method=method, curve=found.curve)
    if job.processes.is_first:
        cache.save(path, asdict(choice))
    return choice


def recounted_k(job: Job, rows: Rows, images: ImageSet, counted: KDistribution, runtime: Runtime) -> KChoice:
    """Estimate the number of categories from what was counted while learning, and how the features separate now.

    Features that were trained for one k make others look unlikely, so the interval is that of the first count,
    narrowed.
    """
    found, (low, high) = count_again(job, rows, images, counted, runtime), counted.interval
    curve = tuple(TriedK(k=k, score=each, each=(each,)) for k, each in zip(found.ks, found.separations, strict=True))
    return KChoice(
        k=found.k,
        estimated=True,
        known=len(images.known),
        interval=narrowed(found.k, min(low, found.k), max(high, found.k)),
        method="separation",
        curve=curve,
        trial=counted.trial,
    )


def narrowed(k: int, low: int, high: int) -> tuple[int, int]:
    """Bring the ends of a likely range nearer to k, on a log scale and in proportion, if it is wider than is reported.

    What steers a later count is the range as it was, so this changes no category.
    """
    if high <= WIDEST_RANGE * low:
        return low, high
    share = log(WIDEST_RANGE) / log(high / low)
    first = max(round(k * (low / k) ** share), ceil(k / WIDEST_RANGE))
    return first, min(round(k * (high / k) ** share), WIDEST_RANGE * first)


def bounds_of_k(settings: Discovery, images: ImageSet) -> tuple[int, int]:
    """Return the smallest and the largest number of categories that may be estimated."""
    known = len(images.known)
    least, most = max(known, 1), largest_k(known) if isinstance(settings.k_max, str) else settings.k_max
    return least, max(min(most, known + int(images.unlabelled.sum())), least)


def _estimate(job: Job, x: Features, images: ImageSet, bounds: tuple[int, int], runtime: Runtime) -> KEstimate:
    """Estimate the number of categories within bounds."""
    settings, method, processes = job.settings, estimator(job.recipe, len(images.known)), job.processes
    own = slice(*processes.share_of(len(x)))
    key = cache.key("k", method, cache.hashed(x, images.labels), *bounds, settings.seed)
    path = job.cache / "k" / f"{key}.json"
    tried = [read_record(TriedK, each) for each in processes.by_first(partial(cache.load, path)) or ()]

    def on_k(at: TriedK) -> None:
        tried.append(at)
        if processes.is_first:
            cache.save(path, [asdict(each) for each in tried])
        report()

    def report() -> None:  # a search usually tries so many, and may try more
        runtime.progress("Estimating the number of classes", len(tried), max(USUALLY_TRIED, len(tried) + 1))

    report()
    return estimate_k(
        x[own],
        images.labels[own],
        k_min=bounds[0],
        k_max=bounds[1],
        method=method,
        random_state=settings.seed,
        device=str(processes.device),
        callback=on_k,
        known=tuple(tried),
        group=processes.group,
    )


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
