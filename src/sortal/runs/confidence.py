"""How sure a category is: calibrated on labelled images that were held out, from distances to the centres.

An image of squared distances d² to the centres belongs to category j with probability softmax(−d² / T)_j, as in a
mixture of equally wide, round clusters. T is the one that makes held-out labels most likely. Where a method has trained
a classifier, its scores stand in the place of −d².

Held-out images are of known classes; among the unlabelled images in known categories there are others too, strangers.
They show in that unlabelled images are less sure than held-out ones, and how much so tells how many there are at each
probability: learning from positive and unlabelled examples (Elkan and Noto, KDD 2008). Last, an image unlike all that
there is shows in how much farther from its centre it is than others are.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, logsumexp

from sortal.errors import InputError

ENOUGH = 20  # held-out images to calibrate on; with fewer, T is a share of the mean squared distance
UNCALIBRATED = 0.3  # that share; calibration finds 0.1 to 1 where training went well
FAR = 2.5  # standard deviations beyond the usual distance at which an image begins to be unlike its category
PRIOR = 10  # images' worth of the usual distance over all categories, for categories of few images
SUREST = 0.75  # the quantile of held-out images from which on there are no strangers
TOP = 1e-3  # probabilities closer to 0 and 1 than this are taken for it
CHUNK = 2**24  # numbers of a block of distances

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """Images among centres, one row each."""

    category: Ints  # (n,) the nearest, or the one that was told
    distance: Floats  # (n,) to its centre
    next_category: Ints  # (n,) the nearest other one; −1 where there is no other
    next_distance: Floats  # (n,) to its centre; NaN where there is no other
    probability: Floats  # (n,) of the category among all


@dataclass(frozen=True, kw_only=True, eq=False)
class Confidence:
    """What turns distances into confidence, and below what an image counts as unsure."""

    temperature: float
    held_out: int  # labelled images it was calibrated on; 0 where there were too few
    unsure_below: float
    usual: Floats  # (k,) distance of the images of a category to its centre, on average
    deviation: Floats  # (k,) its standard deviation
    n_known: int = 0  # categories that strangers were looked for in: the first so many
    strangers: float = 0.0  # how fast they grow in number as log-odds fall
    surest: float = 0.0  # log-odds from which on there are none
    head: Floats | None = None  # (k, d + 1) weights and biases of a classifier that tells categories; None: the nearest

    @property
    def calibrated(self) -> bool:
        return self.held_out > 0

    def of(self, placed: Placed) -> Floats:
        """(n,) that the category is the right one: its probability, less for strangers and for images far from it."""
        own = placed.category
        beyond = (placed.distance - self.usual[own]) / self.deviation[own]
        below = np.minimum(_log_odds(placed.probability) - self.surest, 0) * (own < self.n_known)
        sure: Floats = placed.probability * np.exp(self.strangers * below + (FAR**2 - np.maximum(beyond, FAR) ** 2) / 2)
        return sure

    def to_json(self) -> dict[str, Any]:
        return {
            "calibrated": self.calibrated,
            "held_out": self.held_out,
            "unsure_below": self.unsure_below,
            "temperature": self.temperature,
            "known": self.n_known,
            "strangers": self.strangers,
            "surest": self.surest,
            "usual_distance": self.usual.tolist(),
            "deviation": self.deviation.tolist(),
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any], head: Floats | None) -> Self:
        """What was saved; the head is kept in a file of its own."""
        return cls(
            temperature=saved["temperature"],
            held_out=saved["held_out"],
            unsure_below=saved["unsure_below"],
            usual=np.array(saved["usual_distance"]),
            deviation=np.array(saved["deviation"]),
            n_known=saved["known"],
            strangers=saved["strangers"],
            surest=saved["surest"],
            head=head,
        )


def calibrate(
    x: NDArray[np.float32],
    centres: NDArray[np.float32],
    category: Ints,
    *,
    held_out: NDArray[np.bool_],
    truth: Ints,
    unsure_below: float,
    unlabelled: NDArray[np.bool_] | None = None,
    n_known: int = 0,
    head: Floats | None = None,
) -> Confidence:
    """Fit to features (n, d) in categories (n,); `truth` (n,) is the true category of the images `held_out` (n,).

    Strangers are looked for among the `unlabelled` (n,) in the first `n_known` categories. A `head` (k, d + 1) tells
    categories by its scores instead of distances; not calibrated, its probabilities are as they were trained.
    """
    if not 0 <= unsure_below <= 1:
        raise InputError(f"unsure_below must be from 0 to 1, got {unsure_below}.")
    distance = place(x, centres, 1.0, category=category).distance
    enough = int(held_out.sum()) >= ENOUGH and len(centres) > 1
    if enough:
        temperature = _most_likely(_costs(x[held_out], centres, head), truth[held_out])
    elif head is not None:
        temperature = 1.0
    else:
        temperature = max(UNCALIBRATED * float(np.mean(distance**2)), 1e-6)
    usual, deviation = _spread(distance, category, len(centres))
    strangers = surest = 0.0
    if enough and unlabelled is not None:
        odds = _log_odds(place(x, centres, temperature, category=category, head=head).probability)
        known = category < n_known
        strangers, surest = _strangers(odds[held_out & known], odds[unlabelled & known])
    return Confidence(
        temperature=temperature,
        held_out=int(held_out.sum()) if enough else 0,
        unsure_below=unsure_below,
        usual=usual,
        deviation=deviation,
        n_known=n_known,
        strangers=strangers,
        surest=surest,
        head=head,
    )


def place(
    x: NDArray[np.float32],
    centres: NDArray[np.float32],
    temperature: float,
    *,
    category: Ints | None = None,
    head: Floats | None = None,
) -> Placed:
    """Features (n, d) among centres (k, d): in the nearest, or that of a head, or in the given category."""
    n, k = len(x), len(centres)
    own = np.zeros(n, dtype=np.int64) if category is None else category.astype(np.int64)
    other, chance = np.full(n, -1), np.ones(n)
    distances = np.full((2, n), np.nan)
    step = max(1, CHUNK // max(k, 1))
    for start in range(0, n, step):
        part = slice(start, start + step)
        costs = _costs(x[part], centres, head)
        squared = costs if head is None else _squared(x[part], centres)
        rows = np.arange(len(costs))
        if category is None:
            own[part] = costs.argmin(axis=1)
        chance[part] = np.exp(-costs[rows, own[part]] / temperature - logsumexp(-costs / temperature, axis=1))
        distances[0, part] = np.sqrt(squared[rows, own[part]])
        if k > 1:
            costs[rows, own[part]] = np.inf
            other[part] = costs.argmin(axis=1)
            distances[1, part] = np.sqrt(squared[rows, other[part]])
    return Placed(
        category=own,
        distance=distances[0],
        next_category=other,
        next_distance=distances[1],
        probability=np.minimum(chance, 1.0),
    )


def _costs(x: NDArray[np.float32], centres: NDArray[np.float32], head: Floats | None) -> Floats:
    """(n, k) what speaks against each category: squared distances, or how far its score is below the best."""
    if head is None:
        return _squared(x, centres)
    scores = x.astype(np.float64) @ head[:, :-1].T + head[:, -1]
    costs: Floats = scores.max(axis=1, keepdims=True) - scores
    return costs


def _squared(x: NDArray[np.float32], centres: NDArray[np.float32]) -> Floats:
    """(n, k) squared distances, in double precision: those of equal points are 0 but for its rounding."""
    a, b = x.astype(np.float64), centres.astype(np.float64)
    squared: Floats = (a * a).sum(axis=1)[:, None] - 2 * a @ b.T + (b * b).sum(axis=1)
    return np.maximum(squared, 0.0)


def _most_likely(costs: Floats, truth: Ints) -> float:
    """The temperature under which the true categories are most likely.

    As if one image more had been of the category next to its own: that none is wrong among a few does not make sure
    of all others.
    """
    rows = np.arange(len(costs))
    others = costs.copy()
    others[rows, truth] = np.inf
    wrong = 1 / (len(costs) + 2)
    of_truth = (1 - wrong) * costs[rows, truth] + wrong * others.min(axis=1)

    def loss(log_t: float) -> float:
        t = np.exp(log_t)
        return float(np.mean(of_truth / t + logsumexp(-costs / t, axis=1)))

    scale = np.log(max(float(costs.mean()), 1e-12))
    return float(np.exp(minimize_scalar(loss, bounds=(scale - 9, scale + 3), method="bounded").x))


def _log_odds(probability: Floats) -> Floats:
    p = np.clip(probability, TOP, 1 - TOP)
    odds: Floats = np.log(p / (1 - p))
    return odds


def _strangers(held_out: Floats, unlabelled: Floats) -> tuple[float, float]:
    """How fast strangers grow in number as log-odds fall, and from where on there are none.

    By logistic regression of held-out (n,) against unlabelled (m,) images, both parts of the same weight, on their
    log-odds; a standard error less than its slope, so that chance finds no strangers where there are none.
    """
    if min(len(held_out), len(unlabelled)) < ENOUGH:
        return 0.0, 0.0
    columns = np.concatenate([held_out, unlabelled])
    x = np.stack([np.ones_like(columns), columns], axis=1)
    y = np.arange(len(columns)) < len(held_out)
    weight = np.where(y, 1.0, len(held_out) / len(unlabelled))
    ridge = np.diag([0.0, 1e-2])  # where nothing but held-out images is sure, the slope would be infinite
    beta = np.zeros(2)
    for _ in range(50):  # Newton's method
        p = expit(x @ beta)
        information = (x * (weight * p * (1 - p))[:, None]).T @ x + ridge
        step = np.linalg.solve(information, x.T @ (weight * (y - p)) - ridge @ beta)
        beta += step
        if np.abs(step).max() < 1e-9:
            break
    scores = x * (weight * (y - expit(x @ beta)))[:, None]
    inverse = np.linalg.inv(information)
    error = float(np.sqrt((inverse @ (scores.T @ scores) @ inverse)[1, 1]))
    return max(0.0, float(beta[1]) - error), float(np.quantile(held_out, SUREST))


def _spread(distance: Floats, category: Ints, k: int) -> tuple[Floats, Floats]:
    """(k,) mean and standard deviation of the distances in each category, drawn towards those over all."""
    counts = np.bincount(category, minlength=k)
    overall, within = float(distance.mean()), float(distance.var())
    usual = (np.bincount(category, distance, minlength=k) + PRIOR * overall) / (counts + PRIOR)
    squares = np.bincount(category, (distance - usual[category]) ** 2, minlength=k)
    variance = (squares + PRIOR * within) / (counts + PRIOR)
    return usual, np.sqrt(np.maximum(variance, 1e-12))
