"""What the truth says of a run: accuracy, whether it rises with confidence, and which old classes are mixed up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal import metrics
from sortal.run import LABELLED, Assignments

POINTS = 200  # of a curve
BINS = 10  # of confidence

Mask = NDArray[np.bool_]


def evaluate(assignments: Assignments, names: Sequence[str], n_known: int) -> dict[str, Any] | None:
    """Figures for metrics.json, over the unlabelled images whose truth is known; None where there is no such image.

    An image is right when its category is the one that its class is matched with, by one assignment over all of them.
    """
    a = assignments
    rows = np.array([t is not None for t in a.truth], dtype=bool) & (a.status != LABELLED)
    if not rows.any():
        return None
    truth = [a.truth[row] for row in np.flatnonzero(rows)]
    category, confidence = a.category[rows], a.confidence[rows]
    old = names[:n_known]
    scores = metrics.evaluate(truth, category, old=old, categories=[names[j] for j in category.tolist()])
    matched = metrics.match(truth, category, old=old)
    right = np.array([matched.get(j) == t for j, t in zip(category.tolist(), truth, strict=True)], dtype=bool)
    is_old = np.isin(np.array(truth, dtype=object), np.array(old, dtype=object))
    parts = {"all": np.ones(len(right), dtype=bool), "old": is_old, "new": ~is_old}
    confusion = Counter((t, j) for t, j, known in zip(truth, category.tolist(), is_old, strict=True) if known)
    return {
        "images": len(truth),
        "k_true": len({t for t in a.truth if t is not None}),
        "accuracy": asdict(scores.accuracy),
        "legacy": asdict(scores.legacy),
        "nmi": scores.nmi,
        "ari": scores.ari,
        "known_accuracy": scores.known,
        "risk_coverage": {part: risk_coverage(right[mask], confidence[mask]) for part, mask in parts.items()},
        "reliability": reliability(right, confidence),
        "calibration_error": {part: calibration_error(right[mask], confidence[mask]) for part, mask in parts.items()},
        "confusion": [[t, j, count] for (t, j), count in sorted(confusion.items())],
    }


def risk_coverage(right: Mask, confidence: NDArray[np.float64]) -> list[list[float]]:
    """[share of images, accuracy on them, least confidence among them], the surest images first.

    Images of equal confidence come in together: no order among them is better than another.
    """
    if not len(right):
        return []
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    last = np.flatnonzero(np.append(sorted_confidence[1:] != sorted_confidence[:-1], True))
    if len(last) > POINTS:
        last = last[np.unique(np.linspace(0, len(last) - 1, POINTS).round().astype(np.int64))]
    count = last + 1
    accuracy = np.cumsum(right[order])[last] / count
    rows = zip(count / len(right), accuracy, sorted_confidence[last], strict=True)
    return [[round(float(value), 6) for value in row] for row in rows]


def reliability(right: Mask, confidence: NDArray[np.float64]) -> list[dict[str, float]]:
    """Mean confidence and accuracy of the images in each tenth of confidence that has some."""
    at = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return [
        {
            "from": b / BINS,
            "to": (b + 1) / BINS,
            "images": int((at == b).sum()),
            "confidence": round(float(confidence[at == b].mean()), 6),
            "accuracy": round(float(right[at == b].mean()), 6),
        }
        for b in np.unique(at).tolist()
    ]


def calibration_error(right: Mask, confidence: NDArray[np.float64]) -> float | None:
    """How far confidence is from accuracy, on average over the images, by tenths."""
    if not len(right):
        return None
    bins = reliability(right, confidence)
    return round(sum(b["images"] * abs(b["confidence"] - b["accuracy"]) for b in bins) / len(right), 6)
