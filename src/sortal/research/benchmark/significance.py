"""Whether methods differ by more than chance: a paired bootstrap, and ranks with their critical difference.

Ranks: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

COVERAGE = 0.95
DRAWS = 10_000
FEWEST_RANKED, FEWEST_RANKED_ROWS = 3, 2  # methods and rows that ranks need
FEWEST_JUDGED = (
    6  # runs that an interval and a verdict need; differences without a cause agree in sign with probability 2 · 0.5**n
)

Nest: TypeAlias = float | Sequence["Nest"]  # a value, or those of units inside a unit: seeds in splits in data sets


@dataclass(frozen=True, kw_only=True)
class MeanRanks:
    """The mean ranks of methods over rows of a table, 1 being the best, and how far apart they must be."""

    ranks: Mapping[str, float]  # the best first
    rows: int
    critical: float  # the difference of mean ranks that is significant (Nemenyi)
    statistic: float  # Friedman's chi-squared, corrected for ties
    p: float

    @property
    def groups(self) -> list[list[str]]:
        """Return the largest groups of neighbours of which no two differ by more than the critical difference."""
        names, ranks = [*self.ranks], [*self.ranks.values()]
        groups: list[list[str]] = []
        end = 0
        for first in range(len(names)):
            last = max(at for at in range(first, len(names)) if ranks[at] - ranks[first] <= self.critical)
            if last > first and last + 1 > end:
                groups.append(names[first : last + 1])
            end = max(end, last + 1)
        return groups


def rank(scores: Mapping[str, Sequence[float]]) -> MeanRanks | None:
    """Rank methods by their scores in the same rows, higher being better and ties sharing their ranks.

    None for fewer than three methods or two rows, or if all methods are equal in every row.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    table = np.array([*scores.values()], dtype=np.float64)  # (methods, rows)
    if len(table) < FEWEST_RANKED or table.shape[1] < FEWEST_RANKED_ROWS or (table == table[0]).all():
        return None
    methods, rows = table.shape
    means = rankdata(-table, axis=0).mean(axis=1)
    order = np.argsort(means, kind="stable").tolist()
    names = [*scores]
    statistic, p = friedmanchisquare(*table)
    spread = studentized_range.isf(1 - COVERAGE, methods, np.inf) / math.sqrt(2)
    return MeanRanks(
        ranks={names[i]: float(means[i]) for i in order},
        rows=rows,
        critical=float(spread * math.sqrt(methods * (methods + 1) / (6 * rows))),
        statistic=float(statistic),
        p=float(p),
    )


def mean(values: Nest) -> float:
    """Return the mean over units of the means inside them, so that a data set with more runs does not weigh more."""
    return values if isinstance(values, float) else math.fsum(map(mean, values)) / len(values)


def interval(values: Nest, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float] | None:
    """Return the ends of the central 95 % of means of resampled units; None for a single value.

    Units are drawn with replacement at every level: data sets, splits of each one drawn, and seeds of each of these.
    """
    if _count(values) < 2:
        return None
    means = _resample(values, draws, np.random.default_rng(seed))
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _count(values: Nest) -> int:
    return 1 if isinstance(values, float) else sum(map(_count, values))


def _resample(values: Nest, draws: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return the means (draws,) of resampled units; a unit that is drawn twice is resampled twice."""
    if isinstance(values, float):
        return np.full(draws, values)
    chosen = random.integers(len(values), size=(draws, len(values)))
    drawn = np.empty(chosen.shape)
    for at, each in enumerate(values):
        here = chosen == at
        drawn[here] = _resample(each, int(here.sum()), random)
    return drawn.mean(axis=1)
