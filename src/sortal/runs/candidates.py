"""Candidates for new categories: added images that are far from every centre and near each other."""

from collections.abc import Sequence

import numpy as np

from sortal.runs.categories import rows_of
from sortal.runs.confidence import Confidence, Features
from sortal.runs.run import UNSURE, Assignments, Candidate, Category

BEYOND = 1.0  # standard deviations beyond the usual distance at which an unsure image is considered
CLOSE = 1.75  # times the usual distance to a centre: the mean distance between images of one category
LEAST = 3  # images of a candidate
MOST = 5000  # images that are compared with each other; of more, the farthest


def find_candidates(
    assignments: Assignments, categories: Sequence[Category], x: Features, centres: Features, confidence: Confidence
) -> tuple[Candidate, ...]:
    """Group the unsure images that were added, the largest group first; `x` is (n, d), `centres` (k, d)."""
    a = assignments
    beyond = confidence.beyond(rows_of(categories, a.category), a.distance)
    rows = np.flatnonzero((a.folders > 0) & (a.status == UNSURE) & (beyond > BEYOND))
    if len(rows) > MOST:
        rows = np.sort(rows[np.argsort(-beyond[rows], kind="stable")[:MOST]])
    if len(rows) < LEAST:
        return ()
    from scipy.cluster.hierarchy import fcluster, linkage

    tree, within = linkage(x[rows].astype(np.float64), "average"), CLOSE * float(confidence.usual.mean())
    groups = fcluster(tree, within, "distance")  # (n,) numbers of groups within this mean distance
    members = [rows[groups == number] for number in np.unique(groups)]
    members = sorted((group for group in members if len(group) >= LEAST), key=lambda group: (-len(group), group[0]))
    found = []
    for number, group in enumerate(members, start=1):
        middle = x[group].mean(axis=0)
        order = group[np.argsort(np.linalg.norm(x[group] - middle, axis=1), kind="stable")].tolist()
        nearest = categories[int(np.linalg.norm(centres - middle, axis=1).argmin())].id
        files, folders = tuple(a.files[row] for row in order), tuple(a.folders[order].tolist())
        found.append(Candidate(id=number, files=files, folders=folders, nearest=nearest))
    return tuple(found)
