"""Confidence that an image is in the right category, calibrated on held-out labelled images and repeated clustering.

An image of squared distances d² to the centres belongs to category j with probability softmax(−d² / T)_j, as in a
mixture of equally wide, round clusters. T is the most probable temperature given the held-out labels and a prior around
the usual one, so that a few labels change it little. Where a method has trained a classifier, its scores take the place
of −d².

Held-out images are of known classes and say nothing about new categories, which may be parts of a class or mixtures.
The images of such a category do not stay together when half of the images are clustered again (Lange, Roth, Braun and
Buhmann, Neural Computation 2004), so the share that does is a factor of the confidence in every category. Images on a
border move anyway and have a low probability, so the share is weighted by it. Nor does a network
that was trained differently find such a category again, so the overlap with its most similar category limits the mean
confidence: the probability is raised to a power, which lowers small probabilities most. Finally, an image unlike all
others is recognised by its unusual distance from its centre. One that is far from its nearest images, too, by the
standard of the collection, fits no category.

Images that come later may be of classes that the run was made without, to which all of this is blind: such an image is
nearest to some category, too. But it is farther apart from similar images than those of that category are, so the
confidence in it is multiplied by the chance that it belongs to any category at all.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENOUGH = 20  # held-out images that calibrate well; with fewer, confidence is rough
# The usual share of the mean squared distance that T is, and the scale of its deviations, as a log: what T is taken
# to be until held-out images tell otherwise. On three collections, even and long-tailed, calibration finds 0.55 to 1.3.
UNCALIBRATED, TEMPERATURE_SPREAD = 0.7, 0.5
FAR = 2.5  # standard deviations beyond the usual distance at which confidence begins to fall
PRIOR = 10  # weight, in images, of the usual distance, and of the stability, over all categories
SURE, STEEPEST = 0.99, 500.0  # probability that is raised to a power, and that power, at most
# Odds, as a logarithm, that a later image belongs to any category if it is as far apart as is usual there, and their
# fall with each deviation more: fitted to flowers of classes that a run was made without, as a fifth of what is added.
BELONGS, BELONGS_LESS = 2.1, 1.15
NUMBERS_AT_ONCE = 2**24  # numbers in a block of features and distances
Features = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Matrix = Features | Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Images among centres, one row each; `row` and `next_row` are rows of the centres, not ids of categories."""

    row: Ints  # (n,) the nearest, or the given one
    distance: Floats  # (n,) to its centre
    next_row: Ints  # (n,) the nearest other one; −1 without another
    next_distance: Floats  # (n,) to its centre; NaN without another
    probability: Floats  # (n,) of the category among all


@dataclass(frozen=True, kw_only=True, eq=False)
class Confidence:
    """The parameters that turn distances into confidence, and the thresholds of the statuses unsure and other."""

    temperature: float
    held_out: int  # labelled images it was calibrated on, those of a group counted once
    unsure_below: float
    usual: Floats  # (k,) mean distance of the images of a category to its centre
    deviation: Floats  # (k,) its standard deviation
    stability: Floats | None = None  # (k,) share of a category's images that stay together when clustered again
    exponent: Floats | None = None  # (k,) power of the probability; above 1 where another training run disagrees
    other_above: float | None = None  # how far apart from similar images one is that fits no category; None: none is
    usual_apart: Floats | None = None  # (k,) mean of how far apart the images of a category are; None: not known
    deviation_apart: Floats | None = None  # (k,) its standard deviation
    later_from: int = 1  # number of the first folder whose images came later than the run

    @property
    def calibrated(self) -> bool:
        """Whether enough images were held out for a confidence of 80% to mean that four out of five are right."""
        return self.held_out >= ENOUGH

    def _by_category(self) -> dict[str, Floats]:
        """Return all that is known by category, by name."""
        return {name: each for name, each in vars(self).items() if isinstance(each, np.ndarray)}

    def of_rows(self, rows: NDArray[np.bool_]) -> "Confidence":
        """Return the parameters of some categories, given as a mask (k,)."""
        some: dict[str, Any] = {name: each[rows] for name, each in self._by_category().items()}
        return replace(self, **some)

    def suits(self, k: int) -> bool:
        """Tell whether all that is known by category is known of k categories."""
        return all(each.shape == (k,) for each in self._by_category().values())

    def fits_nowhere(self, apart: Floats) -> NDArray[np.bool_]:
        """Return the mask (n,) of images that fit no category, given how far apart they are from similar ones."""
        return apart > (np.inf if self.other_above is None else self.other_above)

    def of(self, placement: Placement) -> Floats:
        """Return the confidence (n,): the probability, less in unstable categories and for distant images."""
        beyond = self.beyond(placement.row, placement.distance)
        found = placement.probability
        if self.exponent is not None:
            found = _lowered(found, self.exponent[placement.row])
        if self.stability is not None:
            found = found * self.stability[placement.row]
        return found * np.exp((FAR**2 - np.maximum(beyond, FAR) ** 2) / 2)

    def belonging(self, strangeness: Floats) -> Floats:
        """Return the chance (n,) that a later image belongs to any category, given its strangeness."""
        from scipy.special import expit

        return np.ones(len(strangeness)) if self.usual_apart is None else expit(BELONGS - BELONGS_LESS * strangeness)

    def strangeness(self, row: Ints, distance: Floats, apart: Floats) -> Floats:
        """Return by how many deviations (n,) images are farther apart than is usual in their category.

        Where that is not known, their distance from its centre stands for it.
        """
        if self.usual_apart is None or self.deviation_apart is None:
            return self.beyond(row, distance)
        return (apart - self.usual_apart[row]) / self.deviation_apart[row]

    def beyond(self, row: Ints, distance: Floats) -> Floats:
        """Return by how many standard deviations (n,) the distances to the centres exceed the usual ones."""
        return (distance - self.usual[row]) / self.deviation[row]


def calibrate(
    x: Features,
    centres: Features,
    row: Ints,
    *,
    held_out: NDArray[np.bool_],
    truth: Ints,
    groups: Ints | None = None,
    unsure_below: float,
    agreement: Floats | None = None,
    overlap: Floats | None = None,
    apart: Floats | None = None,
    head: Matrix | None = None,
) -> Confidence:
    """Calibrate on features (n, d) at rows (n,) of the centres (k, d); `truth` (n,) has the right rows.

    Held-out images of one of the `groups` (n,) are not independent, and count as one together.
    `agreement` (n,) is how often an image stayed in its category when clustered again; NaN where it could not leave.
    `overlap` (k,) is the share of a category that another training run found again, and `apart` (n,) how far images are
    from similar ones. The scores of a `head` (k, d + 1) replace distances; without held-out images its probabilities
    are as they were trained.
    """
    distance = place(x, centres, 1.0, row=row).distance
    usual, deviation = spread(distance, row, len(centres))
    groups = np.arange(len(x)) if groups is None else groups
    _, of, sizes = np.unique(groups[held_out], return_inverse=True, return_counts=True)
    count = len(sizes) if len(centres) > 1 else 0
    temperature = 1.0 if head is not None else max(UNCALIBRATED * float(np.mean(distance**2)), 1e-6)
    if count:
        temperature = _most_probable(costs_of(x[held_out], centres, head), truth[held_out], 1 / sizes[of], temperature)
    stability = exponent = None
    if agreement is not None or overlap is not None:
        probability = place(x, centres, temperature, row=row, head=head).probability
        free = np.ones(len(x), dtype=bool)
        if agreement is not None:
            stability, free = stable_shares(agreement, probability, row, len(centres)), np.isfinite(agreement)
        if overlap is not None:
            exponent = _exponent(probability[free], row[free], overlap / (1.0 if stability is None else stability))
    usual_apart, deviation_apart = (
        (None, None) if apart is None or not apart.any() else spread(apart, row, len(centres))
    )
    return Confidence(
        temperature=temperature,
        held_out=count,
        unsure_below=unsure_below,
        usual=usual,
        deviation=deviation,
        stability=stability,
        exponent=exponent,
        usual_apart=usual_apart,
        deviation_apart=deviation_apart,
    )


def place(
    x: Features, centres: Features, temperature: float, *, row: Ints | None = None, head: Matrix | None = None
) -> Placement:
    """Place features (n, d) among centres (k, d): at the given row, or the head's choice, or the nearest."""
    from scipy.special import logsumexp

    n, k = len(x), len(centres)
    own = np.zeros(n, dtype=np.int64) if row is None else row.astype(np.int64)
    other, chance, distance, following = np.full(n, -1), np.ones(n), np.zeros(n), np.full(n, np.nan)
    step = max(1, NUMBERS_AT_ONCE // (k + x.shape[1]))
    for start in range(0, n, step):
        part = slice(start, start + step)
        costs = costs_of(x[part], centres, head)
        squared = costs if head is None else _squared(x[part], centres)
        at = np.arange(len(costs))
        if row is None:
            own[part] = costs.argmin(axis=1)
        chance[part] = np.exp(-costs[at, own[part]] / temperature - logsumexp(-costs / temperature, axis=1))
        distance[part] = np.sqrt(squared[at, own[part]])
        if k > 1:
            costs[at, own[part]] = np.inf
            other[part] = costs.argmin(axis=1)
            following[part] = np.sqrt(squared[at, other[part]])
    chance = np.minimum(chance, 1.0)
    return Placement(row=own, distance=distance, next_row=other, next_distance=following, probability=chance)


def costs_of(x: Features, centres: Features, head: Matrix | None) -> Floats:
    """Return the cost (n, k) of each category: squared distances, or how far its score is below the best."""
    if head is None:
        return _squared(x, centres)
    rows = head.astype(np.float64)
    scores = x.astype(np.float64) @ rows[:, :-1].T + rows[:, -1]
    return scores.max(axis=1, keepdims=True) - scores


def _squared(x: Features, centres: Features) -> Floats:
    """Return squared distances (n, k) in double precision, so that those of equal points are nearly 0."""
    a, b = x.astype(np.float64), centres.astype(np.float64)
    squared: Floats = (a * a).sum(axis=1)[:, None] - 2 * a @ b.T + (b * b).sum(axis=1)
    return np.maximum(squared, 0.0)


def _most_probable(costs: Floats, truth: Ints, weight: Floats, usual: float) -> float:
    """Return the temperature that is most probable, given the true categories, weights (n,), and what is usual."""
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp

    rows = np.arange(len(costs))
    others = costs.copy()
    others[rows, truth] = np.inf
    # A few images without a mistake do not prove that there are none, so a share counts as wrong.
    wrong = 1 / (weight.sum() + ENOUGH)
    of_truth = (1 - wrong) * costs[rows, truth] + wrong * others.min(axis=1)

    def loss(log_t: float) -> float:
        t = np.exp(log_t)
        unusual = np.log1p(((log_t - np.log(usual)) / TEMPERATURE_SPREAD) ** 2)  # heavy tails: many images overrule it
        return float(np.sum(weight * (of_truth / t + logsumexp(-costs / t, axis=1))) + unusual)

    scale = np.log(max(float(costs.mean()), 1e-12))
    return float(np.exp(minimize_scalar(loss, bounds=(scale - 9, scale + 3), method="bounded").x))


def stable_shares(agreement: Floats, weight: Floats, row: Ints, k: int) -> Floats:
    """Return the weighted mean agreement (k,) in each category, shrunk towards that over all; 1 without any."""
    weight = np.where(np.isfinite(agreement), weight, 0.0)
    kept = weight * np.nan_to_num(agreement)
    overall = kept.sum() / weight.sum() if weight.any() else 1.0
    counts, sums = (np.bincount(row, weights, minlength=k) for weights in (weight, kept))
    return (sums + PRIOR * overall) / (counts + PRIOR)


def _means(values: Floats, row: Ints, k: int) -> Floats:
    """Return the mean (k,) of the values in each category, 1 without any."""
    counts, sums = np.bincount(row, minlength=k), np.bincount(row, values, minlength=k)
    return np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)


def _exponent(probability: Floats, row: Ints, limit: Floats) -> Floats:
    """Return the least power (k,), 1 to STEEPEST, that brings the mean probability in each category to its limit."""
    k = len(limit)
    low, high = np.ones(k), np.full(k, STEEPEST)
    for _ in range(40):  # halvings of the interval
        middle = (low + high) / 2
        above = _means(_lowered(probability, middle[row]), row, k) > limit
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    fine = (_means(probability, row, k) <= limit) | (np.bincount(row, minlength=k) == 0)
    return np.where(fine, 1.0, high)


def _lowered(probability: Floats, power: Floats) -> Floats:
    """Raise probabilities (n,) to their powers (n,), capped at SURE first, because 1 would stay 1."""
    return np.where(power > 1, np.minimum(probability, SURE) ** power, probability)


def spread(values: Floats, row: Ints, k: int) -> tuple[Floats, Floats]:
    """Return mean and standard deviation (k,) of values (n,) in each category, shrunk towards those over all."""
    counts = np.bincount(row, minlength=k)
    overall, within = float(values.mean()), float(values.var())
    usual = (np.bincount(row, values, minlength=k) + PRIOR * overall) / (counts + PRIOR)
    squares = np.bincount(row, (values - usual[row]) ** 2, minlength=k)
    variance = (squares + PRIOR * within) / (counts + PRIOR)
    return usual, np.sqrt(np.maximum(variance, 1e-12))
