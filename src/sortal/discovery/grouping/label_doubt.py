"""Labels that look wrong, by the labels of all other images, on features that were not trained with any of them.

Ridge regression onto the classes has a closed form for the scores of an image whose own label is left out. These scores
do not depend on that label, so they also say what margins a wrong label would have: doubt is how much more a margin is
like those, given how many of the labels seem to be wrong. Weak features thus lead to little doubt.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from sortal.runs.confidence import Features, Floats, Ints

VERY_DOUBTFUL = 0.8  # doubt above which a label is not learned from
MOST_UNTRUSTED, LEAST_TRUSTED = 0.2, 2  # share of a class's labels, at most, and labels at least
FEWEST_OF_CLASS = 3  # labels, below which those of a class are not doubted: nothing is left to speak for them
BALANCE = 0.5  # power of the size of a class that its labels weigh less by; at 1 all classes weigh the same
RIDGES = tuple(np.geomspace(0.01, 100, 9).tolist())
LEAST_RATE, MOST_RATE = 0.005, 0.2  # share of the labels that is taken to be wrong
ROUNDS, NEWTON_STEPS, SHRINKAGE = 30, 10, 1e-3  # of the fit of doubt to margins
MOST_SCORES = 2**22  # of images and classes that are computed at once, and that doubt is fitted to


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
    return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)


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
    some = np.arange(0, m, -(-m // at_once))
    ridge = max(RIDGES, key=lambda each: _fits(others, some, each))
    scores, own = others.scores(some, ridge), others.own[some]
    wrong = (own + 1 + np.arange(len(own)) % (k - 1)) % k
    line, rate = _fit(_margin(scores, own)[0], _margin(scores, wrong)[0])
    parts = []
    for rows in np.split(np.arange(m), range(at_once, m, at_once)):
        margin, other = _margin(others.scores(rows, ridge), others.own[rows])
        parts.append((_doubt(margin, line, rate), other))
    doubt, suggested = map(np.concatenate, zip(*parts, strict=True))
    return doubt, suggested


def _fits(others: _Others, rows: Ints, ridge: float) -> float:
    """Return how well scores fit the classes of some rows: their negative mean squared error."""
    scores = others.scores(rows, ridge)
    scores[np.arange(len(rows)), others.own[rows]] -= 1
    return -float(((scores**2).sum(axis=1) * others.weight[rows]).mean())


def _margin(scores: Floats, own: Ints) -> tuple[Floats, Ints]:
    """Return by how much the score of the own class exceeds the best other one (b,), and which that is."""
    rest, rows = scores.copy(), np.arange(len(own))
    rest[rows, own] = -np.inf
    best = rest.argmax(axis=1)
    return scores[rows, own] - rest[rows, best], best


def _fit(given: Floats, wrong: Floats) -> tuple[Floats, float]:
    """Fit doubt to the margins (n,) of given labels, some of which are wrong, and of wrong ones (n,).

    Return the log odds of being wrong as a line over margins, and the share of given labels that are wrong: labels with
    a margin below the median of wrong ones are all taken to be wrong. The line is found by expectation maximisation.
    """
    n, line = len(given), np.zeros(2)
    rate = float(np.clip(2 * (given < np.median(wrong)).mean(), LEAST_RATE, MOST_RATE))
    doubt = np.full(n, rate)
    margin, is_wrong = np.concatenate([given, given, wrong]), np.repeat([0.0, 1.0, 1.0], n)
    design = np.column_stack([np.ones(3 * n), margin])
    for _ in range(ROUNDS):
        right, astray = n - doubt.sum(), n + doubt.sum()  # odds of margins, not of how many there are of each
        weight = np.concatenate([(1 - doubt) / right, doubt / astray, np.full(n, 1 / astray)]) * n
        for _ in range(NEWTON_STEPS):
            chance = expit(design @ line)
            slope = design.T @ (weight * (is_wrong - chance)) - SHRINKAGE * line
            bend = (design * (weight * chance * (1 - chance))[:, None]).T @ design + SHRINKAGE * np.eye(2)
            line = line + np.linalg.solve(bend, slope)
        line[1] = min(line[1], 0.0)  # a larger margin never makes a label more doubtful
        doubt = _doubt(given, line, rate)
    return line, rate


def _doubt(margin: Floats, line: Floats, rate: float) -> Floats:
    """Return how likely labels with these margins (n,) are wrong."""
    return expit(line[0] + line[1] * margin + np.log(rate / (1 - rate)))
