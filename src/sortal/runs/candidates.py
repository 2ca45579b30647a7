"""Candidates for new categories: added images that are far from every centre and near each other."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sortal.runs.categories import rows_of
from sortal.runs.confidence import Confidence
from sortal.runs.run import UNSURE, Assignments, Candidate, Category

BEYOND = 1.0  # standard deviations beyond the usual distance at which an unsure image is considered
CLOSE = 1.75  # times the usual distance to a centre: the mean distance between images of one category
LEAST = 3  # images of a candidate
MOST = 5000  # images that are compared with each other; of more, the farthest


def find_candidates(
    assignments: Assignments,
    categories: Sequence[Category],
    x: NDArray[np.float32],
    centres: NDArray[np.float32],
    confidence: Confidence,
) -> tuple[Candidate, ...]:
    """Group the unsure images that were added, the largest group first; `x` is (n, d), `centres` (k, d)."""
    a = assignments
    beyond = confidence.beyond(rows_of(categories, a.category), a.distance)
    rows = np.flatnonzero((a.folders > 0) & (a.status == UNSURE) & (beyond > BEYOND))
    if len(rows) > MOST:
        rows = np.sort(rows[np.argsort(-beyond[rows], kind="stable")[:MOST]])
    if len(rows) < LEAST:
        return ()
    groups = _cluster(x[rows], CLOSE * float(confidence.usual.mean()))
    members = [rows[groups == number] for number in np.unique(groups)]
    members = sorted((group for group in members if len(group) >= LEAST), key=lambda group: (-len(group), group[0]))
    return tuple(_candidate(number, group, a, categories, x, centres) for number, group in enumerate(members, start=1))


def _cluster(x: NDArray[np.float32], within: float) -> NDArray[np.int64]:
    """Number (n,) the groups of rows whose mean distance from each other is at most this."""
    from scipy.cluster.hierarchy import fcluster, linkage

    groups: NDArray[np.int64] = fcluster(linkage(x.astype(np.float64), "average"), within, "distance").astype(np.int64)
    return groups


def _candidate(
    number: int,
    rows: NDArray[np.int64],
    a: Assignments,
    categories: Sequence[Category],
    x: NDArray[np.float32],
    centres: NDArray[np.float32],
) -> Candidate:
    middle = x[rows].mean(axis=0)
    order = np.argsort(np.linalg.norm(x[rows] - middle, axis=1), kind="stable")
    members = rows[order].tolist()
    return Candidate(
        id=number,
        files=tuple(a.files[row] for row in members),
        folders=tuple(int(a.folders[row]) for row in members),
        nearest=categories[int(np.linalg.norm(centres - middle, axis=1).argmin())].id,
    )
