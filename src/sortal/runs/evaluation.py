"""The accuracy of a run where true classes are known, its relation to confidence, and confusions of known classes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sortal import metrics
from sortal.runs.facts import CalibrationError, Confused, CoveragePoint, Metrics, ReliabilityBin, RiskCoverage
from sortal.runs.run import KNOWN, LABELLED, Assignments, Category

POINTS, BINS = 200, 10  # of a curve, and of confidence


def evaluate(assignments: Assignments, categories: Sequence[Category]) -> Metrics | None:
    """Score the unlabelled images of known truth, by one assignment of categories to classes; None without any."""
    is_known = np.array([truth is not None for truth in assignments.truth], dtype=bool)
    a = assignments.select(is_known & (assignments.status != LABELLED))
    if not len(a):
        return None
    names, category = {each.id: each.name for each in categories}, a.category.tolist()
    old = [each.name for each in categories if each.kind == KNOWN]
    scores = metrics.evaluate(a.truth, a.category, old=old, categories=[names[j] for j in category])
    matched = metrics.match(a.truth, a.category, old=old)
    right = np.array([matched.get(j) == t for j, t in zip(category, a.truth, strict=True)], dtype=bool)
    is_old = np.isin(np.array(a.truth, dtype=object), np.array(old, dtype=object))
    parts = {"all": np.ones(len(a), dtype=bool), "old": is_old, "new": ~is_old}
    pairs = zip(a.truth, category, is_old, strict=True)
    confusion = Counter((t, j) for t, j, known in pairs if t is not None and known)
    return Metrics(
        images=len(a),
        k_true=len({*assignments.truth} - {None}),
        accuracy=scores.accuracy,
        legacy=scores.legacy,
        nmi=scores.nmi,
        ari=scores.ari,
        known_accuracy=scores.known,
        risk_coverage=RiskCoverage(**{part: risk_coverage(right[m], a.confidence[m]) for part, m in parts.items()}),
        reliability=reliability(right, a.confidence),
        calibration_error=CalibrationError(
            **{part: calibration_error(right[m], a.confidence[m]) for part, m in parts.items()}
        ),
        confusion=tuple(Confused(t, j, count) for (t, j), count in sorted(confusion.items())),
    )


def risk_coverage(right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> tuple[CoveragePoint, ...]:
    """Compute accuracy against coverage, the surest images first; images of equal confidence are taken together."""
    if not len(right):
        return ()
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    last = np.flatnonzero(np.append(sorted_confidence[1:] != sorted_confidence[:-1], True))
    if len(last) > POINTS:
        last = last[np.unique(np.linspace(0, len(last) - 1, POINTS).round().astype(np.int64))]
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
