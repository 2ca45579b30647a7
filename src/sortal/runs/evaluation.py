"""The accuracy of a run where true classes are known, its relation to confidence, and confusions of known classes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sortal import metrics
from sortal.runs import facts
from sortal.runs.categories import known_names
from sortal.runs.facts import CoveragePoint, Metrics, ReliabilityBin, SplitScores
from sortal.runs.run import LABELLED, Assignments, Category

CURVE_POINTS, BINS = 200, 10  # of a curve, and of confidence


def evaluate(assignments: Assignments, categories: Sequence[Category]) -> Metrics | None:
    """Score the unlabelled images whose true class is known, under one match to categories; None without any.

    Images whose category a person has decided are left out, as labelled ones and those in the bin are.
    """
    is_known = np.array([truth is not None for truth in assignments.truth], dtype=bool)
    a = assignments.select(is_known & (assignments.status != LABELLED) & ~assignments.settled & ~assignments.binned)
    if not len(a):
        return None
    old, category = known_names(categories), a.category_id.tolist()
    matched = metrics.match(a.truth, a.category_id, old=old)
    right = np.array([matched.get(j) == t for j, t in zip(category, a.truth, strict=True)], dtype=bool)
    is_old = np.isin(np.array(a.truth, dtype=object), np.array(old, dtype=object))
    masks = {"all": np.ones(len(a), dtype=bool), "old": is_old, "new": ~is_old}
    parts = {part: (right[mask], a.confidence[mask]) for part, mask in masks.items()}
    pairs = zip(a.truth, category, is_old, strict=True)
    confusion = Counter((t, j) for t, j, known in pairs if t is not None and known)
    return Metrics(
        **vars(score(a.truth, a.category_id, categories)),
        k_true=len({*assignments.truth} - {None}),
        risk_coverage=facts.RiskCoverage(**{part: risk_coverage(*rows) for part, rows in parts.items()}),
        reliability=reliability(right, a.confidence),
        calibration_error=facts.CalibrationError(**{part: calibration_error(*rows) for part, rows in parts.items()}),
        confusion=tuple(facts.Confused(t, j, count) for (t, j), count in sorted(confusion.items())),
    )


def score(truth: Sequence[str | None], category: NDArray[np.int64], categories: Sequence[Category]) -> SplitScores:
    """Score images whose true class is known; `category` (n,) has ids."""
    names = {each.id: each.name for each in categories}
    found = metrics.evaluate(
        truth, category, old=known_names(categories), categories=[names[j] for j in category.tolist()]
    )
    return SplitScores.of(len(truth), found)


def risk_coverage(right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> tuple[CoveragePoint, ...]:
    """Compute accuracy against coverage, the surest images first; images of equal confidence are taken together."""
    if not len(right):
        return ()
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    last = np.flatnonzero(np.append(sorted_confidence[1:] != sorted_confidence[:-1], True))
    if len(last) > CURVE_POINTS:
        last = last[np.unique(np.linspace(0, len(last) - 1, CURVE_POINTS).round().astype(np.int64))]
    accuracy = np.cumsum(right[order])[last] / (last + 1)
    rows = zip((last + 1) / len(right), accuracy, sorted_confidence[last], strict=True)
    return tuple(CoveragePoint(*(round(float(value), 6) for value in row)) for row in rows)


def reliability(right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> tuple[ReliabilityBin, ...]:
    """Compute mean confidence and accuracy of the images in each tenth of confidence that has any."""
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return tuple(
        ReliabilityBin(
            low=b / BINS,
            high=(b + 1) / BINS,
            images=int((at == b).sum()),
            confidence=round(float(confidence[at == b].mean()), 6),
            accuracy=round(float(right[at == b].mean()), 6),
        )
        for b in np.unique(at).tolist()
    )


def calibration_error(right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> float | None:
    """Compute the mean difference between confidence and accuracy over the images, by tenths."""
    if not len(right):
        return None
    bins = reliability(right, confidence)
    return round(sum(b.images * abs(b.confidence - b.accuracy) for b in bins) / len(right), 6)
