"""Labels that look wrong, by the labels of all other images, on features that were not trained with any of them.

Ridge regression onto the classes has a closed form for the scores of an image whose own label is left out. What the
scores mean is fitted together with the share of labels that are wrong, so weak features lead to little doubt.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sortal.runs.confidence import Features, Floats, Ints

VERY_DOUBTFUL = 0.9  # doubt above which a label is not learned from
MOST_UNTRUSTED, LEAST_TRUSTED = 0.2, 2  # share of a class's labels, at most, and labels at least
FEWEST_OF_CLASS = 3  # labels, below which those of a class are not doubted: nothing is left to speak for them
BALANCE = 0.5  # power of the size of a class that its labels weigh less by; at 1 all classes weigh the same
RIDGES = tuple(np.geomspace(0.01, 100, 9).tolist())
SCALES = tuple(np.geomspace(1, 32, 11).tolist())  # of scores, before they become probabilities
WRONG_RATES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
MOST_SCORES = 2**22  # of images and classes, that are computed at once and that the three are chosen by


@dataclass(frozen=True, kw_only=True, eq=False)
class Doubts:
    """How likely each label is wrong, and what other labels speak for instead."""

    doubt: Floats  # (n,) 0 without a label
    suggested: Ints  # (n,) number of a class; −1 without a label

    @classmethod
    def none(cls, n: int) -> "Doubts":
        return cls(doubt=np.zeros(n), suggested=np.full(n, -1))


def doubts(x: Features, labels: Ints, groups: Ints) -> Doubts:
    """Return how likely each label (n,) is wrong, by features (n, d) of unit length.

    Images of one group (n,), such as copies, do not speak for each other: those with the same label count as one.
    """
    made, rows = Doubts.none(len(labels)), np.flatnonzero(labels >= 0)
    if len(np.unique(labels[rows])) < 2:
        return made
    pairs, place = np.unique(np.stack([groups[rows], labels[rows]]), axis=1, return_inverse=True)
    place = place.reshape(-1)
    known, own = np.unique(pairs[1], return_inverse=True)
    found, other = _assess(_Others.of(_means(x[rows], place), own))
    found[np.bincount(own)[own] < FEWEST_OF_CLASS] = 0
    made.doubt[rows], made.suggested[rows] = found[place], known[other[place]]
    return made


def untrusted(labels: Ints, doubt: Floats) -> NDArray[np.bool_]:
    """Return the mask (n,) of labels that are too doubtful to learn from; every class keeps most of its labels."""
    found = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels[(labels >= 0) & (doubt > VERY_DOUBTFUL)]):
        rows = np.flatnonzero(labels == label)
        most = max(min(int(MOST_UNTRUSTED * len(rows)), len(rows) - LEAST_TRUSTED), 0)
        worst = rows[np.argsort(-doubt[rows], kind="stable")[:most]]
        found[worst[doubt[worst] > VERY_DOUBTFUL]] = True
    return found


def _means(x: Features, place: Ints) -> Floats:
    """Return the mean direction of the rows of x (m, d) at each place (m,)."""
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    sums = np.add.reduceat(x[order], starts, axis=0, dtype=np.float64)
    means: Floats = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return means


@dataclass(frozen=True, kw_only=True, eq=False)
class _Others:
    """Ridge regression of classes on features, of which each image's scores leave out its own label."""

    x: Floats  # (m, d + 1) along the axes of their scatter
    own: Ints  # (m,) class of each
    weight: Floats  # (m,)
    scatter: Floats  # (d + 1,)
    classes: Floats  # (d + 1, k) sums of each class

    @classmethod
    def of(cls, x: Floats, own: Ints) -> "_Others":
        weight = np.bincount(own)[own].astype(np.float64) ** -BALANCE
        weight *= len(own) / weight.sum()
        centred = np.column_stack([x - weight @ x / len(own), np.ones(len(own))])
        scatter, axes = np.linalg.eigh(centred.T @ (centred * weight[:, None]))
        along = centred @ axes
        classes = np.zeros((int(own.max()) + 1, along.shape[1]))
        np.add.at(classes, own, along * weight[:, None])
        return cls(x=along, own=own, weight=weight, scatter=np.maximum(scatter, 0), classes=classes.T)

    def scores(self, rows: Ints, ridge: float) -> Floats:
        """Return the scores (b, k) of some rows."""
        x, own = self.x[rows], self.own[rows]
        shrunk = x / (self.scatter + ridge)
        found, share = shrunk @ self.classes, (shrunk * x).sum(axis=1) * self.weight[rows]
        found[np.arange(len(rows)), own] -= share
        found /= (1 - share)[:, None]
        return found


def _assess(others: _Others) -> tuple[Floats, Ints]:
    """Return how likely the class of each image is wrong, and the most likely other one."""
    m, k = len(others.own), others.classes.shape[1]
    at_once = max(MOST_SCORES // k, 1)
    ridge, scale, rate = _chosen(others, np.arange(0, m, -(-m // at_once)))
    doubt, other = np.zeros(m), np.zeros(m, dtype=np.int64)
    for rows in np.split(np.arange(m), range(at_once, m, at_once)):
        scores, own = others.scores(rows, ridge), others.own[rows]
        right, wrong = _shares(_chance(scores, own, scale), k, rate)
        doubt[rows] = wrong / (right + wrong)
        scores[np.arange(len(rows)), own] = -np.inf
        other[rows] = scores.argmax(axis=1)
    return doubt, other


def _chosen(others: _Others, rows: Ints) -> tuple[float, float, float]:
    """Return the ridge, the scale and the share of wrong labels that make the labels of these rows most likely."""
    best, own, k = (-np.inf, 0.0, 0.0, 0.0), others.own[rows], others.classes.shape[1]
    for ridge in RIDGES:
        scores = others.scores(rows, ridge)
        for scale in SCALES:
            chance = _chance(scores, own, scale)
            for rate in WRONG_RATES:
                likely = float(np.log(sum(_shares(chance, k, rate))).mean())
                best = max(best, (likely, ridge, scale, rate))
    return best[1:]


def _chance(scores: Floats, own: Ints, scale: float) -> Floats:
    """Return the probability (b,) of the own class, by scores (b, k)."""
    scaled = scale * (scores - scores.max(axis=1, keepdims=True))
    chance: Floats = np.exp(scaled[np.arange(len(own)), own]) / np.exp(scaled).sum(axis=1)
    return chance


def _shares(chance: Floats, k: int, rate: float) -> tuple[Floats, Floats]:
    """Return how likely a label is given and right (b,), and given and wrong, for classes of these chances (b,)."""
    return (1 - rate) * chance, rate * (1 - chance) / (k - 1)
