"""Candidates for new categories: added images that are far from every centre and near to each other."""

import numpy as np
from numpy.typing import NDArray

from sortal.confidence import Confidence
from sortal.run import UNSURE, Assignments, Candidate

BEYOND = 1.0  # standard deviations beyond the usual distance at which an unsure image is worth a look
CLOSE = 1.75  # times the usual distance to a centre: images of one category are this near to each other, on average
LEAST = 3  # images that make a candidate
MOST = 5000  # images that are compared with each other; of more, the farthest


def gather(
    assignments: Assignments, x: NDArray[np.float32], centres: NDArray[np.float32], confidence: Confidence
) -> tuple[Candidate, ...]:
    """Groups of unsure images that were added, the largest first; `x` is (n, d), `centres` (k, d)."""
    a = assignments
    beyond = (a.distance - confidence.usual[a.category]) / confidence.deviation[a.category]
    rows = np.flatnonzero((a.folders > 0) & (a.status == UNSURE) & (beyond > BEYOND))
    if len(rows) > MOST:
        rows = np.sort(rows[np.argsort(-beyond[rows], kind="stable")[:MOST]])
    if len(rows) < LEAST:
        return ()
    groups = _near_each_other(x[rows], CLOSE * float(confidence.usual.mean()))
    members = [rows[groups == number] for number in np.unique(groups)]
    members = sorted((group for group in members if len(group) >= LEAST), key=lambda group: (-len(group), group[0]))
    return tuple(_candidate(number, group, a, x, centres) for number, group in enumerate(members, start=1))


def _near_each_other(x: NDArray[np.float32], within: float) -> NDArray[np.int64]:
    """(n,) numbers of groups whose members are, on average, no farther apart than this."""
    from scipy.cluster.hierarchy import fcluster, linkage

    groups: NDArray[np.int64] = fcluster(linkage(x.astype(np.float64), "average"), within, "distance").astype(np.int64)
    return groups


def _candidate(
    number: int, rows: NDArray[np.int64], a: Assignments, x: NDArray[np.float32], centres: NDArray[np.float32]
) -> Candidate:
    middle = x[rows].mean(axis=0)
    order = np.argsort(np.linalg.norm(x[rows] - middle, axis=1), kind="stable")
    nearest = int(np.linalg.norm(centres - middle, axis=1).argmin())
    members = rows[order].tolist()
    return Candidate(
        id=number,
        files=tuple(a.files[row] for row in members),
        folders=tuple(int(a.folders[row]) for row in members),
        nearest=nearest,
    )
