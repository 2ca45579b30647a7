"""Categories from assignments: what they are called, how large and how tight they are, and what is typical of them."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sortal.run import KNOWN, LABELLED, NEW, UNSURE, Assignments, Category

TYPICAL = 12  # files that are named for each category


def describe(
    assignments: Assignments, names: Sequence[str], n_known: int, x: NDArray[np.float32], centres: NDArray[np.float32]
) -> tuple[Category, ...]:
    """One record a centre; the first `n_known` are the known classes. `x` (n, d) has rows of length 1."""
    a, k = assignments, len(centres)
    sizes, labelled, unsure = (
        np.bincount(a.category[rows], minlength=k).tolist()
        for rows in (slice(None), a.status == LABELLED, a.status == UNSURE)
    )
    unit = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    cosine = np.array([float(row @ unit[j]) for row, j in zip(x, a.category.tolist(), strict=True)])
    cohesion = np.bincount(a.category, cosine, minlength=k)
    nearest = _nearest_known(centres, n_known)
    return tuple(
        Category(
            id=j,
            name=names[j],
            kind="known" if j < n_known else "new",
            size=sizes[j],
            labelled=labelled[j],
            unsure=unsure[j],
            cohesion=round(float(cohesion[j] / sizes[j]), 6) if sizes[j] else None,
            nearest_known=nearest[j],
            typical=tuple(a.files[row] for row in rows[:TYPICAL]),
        )
        for j, rows in enumerate(members(a, k))
    )


def members(assignments: Assignments, k: int) -> list[NDArray[np.int64]]:
    """The rows of each category, the nearest to its centre first."""
    order = np.lexsort((assignments.distance, assignments.category))
    ends = np.searchsorted(assignments.category[order], np.arange(k + 1))
    return [order[start:end] for start, end in pairwise(ends)]


def names_for(classes: Sequence[str], n_new: int) -> tuple[str, ...]:
    """The known classes, and "new 1", "new 2", … for the others, but for names that a class has."""
    taken, names, number = set(classes), list(classes), 0
    while len(names) < len(classes) + n_new:
        number += 1
        if f"{NEW} {number}" not in taken:
            names.append(f"{NEW} {number}")
    return tuple(names)


def statuses(
    labelled: NDArray[np.bool_], category: NDArray[np.int64], n_known: int, sure: NDArray[np.bool_]
) -> NDArray[np.str_]:
    """(n,) what is said of each image."""
    named = np.where(category < n_known, KNOWN, NEW)
    return np.where(labelled, LABELLED, np.where(sure, named, UNSURE))


def _nearest_known(centres: NDArray[np.float32], n_known: int) -> list[int | None]:
    """For each category the known one whose centre is nearest, itself excepted."""
    if not n_known:
        return [None] * len(centres)
    known = centres[:n_known].astype(np.float64)
    squared = (known**2).sum(axis=1) - 2 * centres.astype(np.float64) @ known.T
    squared[np.arange(n_known), np.arange(n_known)] = np.inf
    return [int(row.argmin()) if np.isfinite(row).any() else None for row in squared]
