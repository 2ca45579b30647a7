"""What the report's charts and the print figures of the same curves share: titles, points and axes."""

import math
from collections.abc import Iterable

from sortal.runs.facts import CoveragePoint, KChoice, RiskCoverage

K_TITLE = "How many categories?"
COVERAGE_TITLE = "Are confident images more often right?"


def shown_k(k: KChoice) -> list[int]:
    """Return every k that must fit on the axis."""
    return [*(tried.k for tried in k.curve), k.k, *(k.interval or ())]


def log_ticks(least: int, most: int) -> list[int]:
    """Return 1, 2, 5, 10 ... from `least` to `most`, more of them on a short axis; its ends if fewer than two fit."""
    tens = [10**power for power in range(len(str(most)))]
    few, many = (
        [m * ten for ten in tens for m in steps if least <= m * ten <= most]
        for steps in ((1, 2, 5), (1, 2, 3, 4, 5, 7))
    )
    ticks = few if len(few) >= 4 else many
    return ticks if len(ticks) >= 2 else sorted({least, most})


def coverage_curves(curves: RiskCoverage) -> dict[str, tuple[CoveragePoint, ...]]:
    """Return the curves of all, old and new images that have points."""
    return {part: curve for part, curve in vars(curves).items() if curve}


def accuracy_floor(curves: Iterable[Iterable[CoveragePoint]]) -> float:
    """Return where the axis of accuracy starts: a multiple of 20%, at most 80%."""
    return min(0.8, math.floor(5 * min(point.accuracy for curve in curves for point in curve)) / 5)
