"""Audits: how many of the images that a person accepted unseen are right, from a random sample of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor

REQUIRED = 0.95  # share of right images, below which a category fails
FAILING_CHANCE = 0.15  # a category fails if this many errors would be less likely than this at the required share
LEVEL = 0.95  # of intervals
SAMPLE_SHARE = 0.1  # of the images of a category in its sample
SMALLEST_SAMPLE, LARGEST_SAMPLE = 4, 60  # images


@dataclass(frozen=True, kw_only=True)
class Tally:
    """A sample of the images of a category that were accepted unseen, and how many of it are right."""

    images: int = 0  # that were accepted when the sample was drawn
    sampled: int = 0
    right: int = 0

    def failed(self) -> bool:
        """Tell whether there are too many wrong ones."""
        from scipy.stats import binom

        wrong = self.sampled - self.right
        return wrong > 0 and bool(binom.sf(wrong - 1, self.sampled, 1 - REQUIRED) < FAILING_CHANCE)


NO_TALLY = Tally()
UnseenImages = tuple[int, Tally]  # images of a category that are still unseen, and its tally


@dataclass(frozen=True, kw_only=True)
class UnseenPrecision:
    """The estimated share of right images among those accepted unseen, with an interval."""

    images: int  # accepted unseen, those that samples have shown since included
    sampled: int
    estimate: float | None  # None without a sample
    low: float
    high: float


def due(unseen: int, tally: Tally) -> int:
    """Return the number of images that are still to be sampled of a category."""
    wanted = max(SMALLEST_SAMPLE, ceil(round(SAMPLE_SHARE * unseen, 6)))
    return 0 if tally.sampled else min(unseen, wanted, LARGEST_SAMPLE)


def precision(parts: Iterable[UnseenImages], failed: Iterable[Tally] = ()) -> UnseenPrecision:
    """Estimate the share of right images over categories, each with its images still unseen and its tally.

    Those that have `failed` are no longer accepted, but those that passed did so by the same samples, some of them by
    luck. So the lower end is that of all, as if none had been dropped; the upper end is that of those that passed.
    """
    known = [(tally.images if tally.sampled else unseen, tally) for unseen, tally in parts]
    images, sampled = sum(n for n, _ in known), sum(tally.sampled for _, tally in known)
    if not sampled:
        return UnseenPrecision(images=images, sampled=0, estimate=None, low=0.0, high=1.0)
    every = [*known, *((tally.images, tally) for tally in failed)]
    share, low, high = _estimate(known)
    if len(every) > len(known):
        low = _estimate(every)[1]
    return UnseenPrecision(images=images, sampled=sampled, estimate=share, low=low, high=high)


def _estimate(known: Sequence[tuple[int, Tally]]) -> tuple[float, float, float]:
    """Return the share of right images among those of categories with so many images each, and its interval.

    An image of a small sample stands for many. Samples of unequal shares tell as much as a smaller even one (Kish);
    the interval is the exact one for that size, and does not claim to know more than was sampled: a category without a
    sample may be all right or all wrong.
    """
    images = sum(n for n, _ in known)
    known = [(n, tally) for n, tally in known if tally.sampled]
    among, sampled = sum(n for n, _ in known), sum(tally.sampled for _, tally in known)
    right = sum(n * tally.right / tally.sampled for n, tally in known)
    size = min(sampled, max(1, floor(among**2 / sum(n**2 / tally.sampled for n, tally in known))))
    low = interval(floor(round(size * right / among, 6)), size, among)[0]
    high = interval(ceil(round(size * right / among, 6)), size, among)[1]
    return right / among, low * among / images, (high * among + images - among) / images


def interval(right: int, sampled: int, total: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of the share of right ones among `total`, from a sample without replacement.

    It holds every number of right ones with which a sample this extreme, on either side, is likelier than half of what
    `level` leaves.
    """
    from scipy.stats import hypergeom

    tail, least, most = (1 - level) / 2, right, total - (sampled - right)

    def first(low: int, high: int, holds: Callable[[int], bool]) -> int:
        """Return the first number for which this holds; it does for `high`, and for all that follow."""
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle + 1, high)
        return low

    low = first(least, most, lambda good: bool(hypergeom.sf(right - 1, total, good, sampled) > tail))
    beyond = first(low, most + 1, lambda good: good > most or bool(hypergeom.cdf(right, total, good, sampled) <= tail))
    return low / total, max(low, beyond - 1) / total
