"""Categories described by their images: names, sizes, cohesion, typical files; candidates for new ones; overlaps."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sortal.runs.confidence import Confidence, Features, Floats, Ints
from sortal.runs.run import (
    DOUBTFUL_STATUSES,
    KNOWN,
    LABELLED,
    NEW,
    OTHER,
    UNSURE,
    Assignments,
    Candidate,
    Category,
    Run,
)

TYPICAL_FILES = 12  # files that are named for each category
BEYOND = 0.5  # deviations by which a doubtful image that may belong to a candidate is farther apart than is usual
CANDIDATE_SPREAD = 1.5  # times the usual distance to a centre: the mean distance between images of one category
SMALLEST_CANDIDATE = 3  # images of a candidate
MOST_CANDIDATE_IMAGES = 5000  # images that are compared with each other; of more, the farthest


def outline(classes: Sequence[str], weights: Sequence[int]) -> tuple[Category, ...]:
    """Create categories without images: the known classes, then "new 1", "new 2", … for the other weights."""
    names = [*classes, *free_names(classes, len(weights) - len(classes))]
    return tuple(
        Category(id=number, name=name, kind="known" if number < len(classes) else "new", weight=weight)
        for number, (name, weight) in enumerate(zip(names, weights, strict=True))
    )


def free_names(taken: Sequence[str], count: int, *, after: int = 0) -> list[str]:
    """Return the first names "new 1", "new 2", … that are not taken, with numbers after one."""
    names = (f"{NEW} {number}" for number in itertools.count(after + 1))
    return list(itertools.islice((name for name in names if name not in taken), count))


def is_generated(name: str) -> bool:
    """Tell whether a name is one of "new 1", "new 2", …, which Sortal makes up."""
    start, _, number = name.partition(" ")
    return start == NEW and number.isascii() and number.isdigit() and not number.startswith("0")


def describe(categories: Sequence[Category], a: Assignments, centres: Features) -> tuple[Category, ...]:
    """Complete categories by what follows from their images and centres (k, d): sizes, cohesion, typical files."""
    own, k = rows_of(categories, a.category_id), len(centres)
    labelled, unsure, other = (
        np.bincount(own[(a.status == status) & (own >= 0)], minlength=k).tolist()
        for status in (LABELLED, UNSURE, OTHER)
    )
    tight = cohesion(own[own >= 0], a.distance[own >= 0], centres)
    known = np.flatnonzero(known_mask(categories))
    among = centres[known].astype(np.float64)
    squared = (among**2).sum(axis=1) - 2 * centres.astype(np.float64) @ among.T
    squared[known, np.arange(len(known))] = np.inf  # a known category is not its own neighbour
    nearest = [categories[known[row.argmin()]].id if np.isfinite(row).any() else None for row in squared]
    return tuple(
        replace(
            categories[j],
            size=len(rows),
            labelled=labelled[j],
            unsure=unsure[j],
            other=other[j],
            cohesion=round(float(tight[j]), 6) if len(rows) else None,
            nearest_known_id=nearest[j],
            typical=tuple(a.files[row] for row in one_of_each(rows, a.group)[:TYPICAL_FILES]),
        )
        for j, rows in enumerate(members(a.category_id, typicality(a), categories))
    )


def cohesion(row: Ints, distance: Floats, centres: Features) -> Floats:
    """Return the cohesion (k,) of each category: 1 − its images' mean squared distance to its centre / that of all.

    `row` (n,) is the row of each image's centre (k, d), and `distance` (n,) the distance to it. The mean squared
    distance of all images to their common centre is the spread within categories plus that between centres. A category
    without images has a cohesion of 1.
    """
    k, squared, middle = len(centres), distance**2, centres.astype(np.float64)
    counts = np.bincount(row, minlength=k)
    within = np.bincount(row, squared, minlength=k) / np.maximum(counts, 1)
    share = counts / max(1, len(row))
    overall = share @ (within + ((middle - share @ middle) ** 2).sum(axis=1))
    return np.clip(1 - within / max(overall, 1e-12), 0.0, 1.0)


def typicality(a: Assignments) -> Ints:
    """Rank images (n,), the most typical first: sure ones, nearest to their centre first, then the others by doubt."""
    unsure = np.isin(a.status, DOUBTFUL_STATUSES)
    rank = np.empty(len(a), dtype=np.int64)
    rank[np.lexsort((a.distance, np.where(unsure, -a.confidence, 0.0), unsure))] = np.arange(len(a))
    return rank


def one_of_each(rows: Ints, group: Ints) -> Ints:
    """Return the first of the rows of each group (n,), in the same order."""
    return rows[np.sort(np.unique(group[rows], return_index=True)[1])]


def find_candidates(
    a: Assignments, categories: Sequence[Category], x: Features, centres: Features, confidence: Confidence
) -> tuple[Candidate, ...]:
    """Group later images that are unlike all categories and near each other; `x` is (n, d), `centres` (k, d)."""
    beyond = confidence.strangeness(rows_of(categories, a.category_id), a.distance, a.apart)
    doubtful = (a.folders >= confidence.later_from) & np.isin(a.status, DOUBTFUL_STATUSES) & ~a.binned
    rows = np.flatnonzero(doubtful & (beyond > BEYOND))
    if len(rows) > MOST_CANDIDATE_IMAGES:
        rows = np.sort(rows[np.argsort(-beyond[rows], kind="stable")[:MOST_CANDIDATE_IMAGES]])
    if len(rows) < SMALLEST_CANDIDATE:
        return ()
    from scipy.cluster.hierarchy import fcluster, linkage

    tree, within = linkage(x[rows].astype(np.float64), "average"), CANDIDATE_SPREAD * float(confidence.usual.mean())
    groups = fcluster(tree, within, "distance")  # (n,) numbers of groups within this mean distance
    members = [rows[groups == number] for number in np.unique(groups)]
    members = sorted(
        (group for group in members if len(group) >= SMALLEST_CANDIDATE), key=lambda group: (-len(group), group[0])
    )
    found = []
    for number, group in enumerate(members, start=1):
        middle = x[group].mean(axis=0)
        order = group[np.argsort(np.linalg.norm(x[group] - middle, axis=1), kind="stable")].tolist()
        nearest = categories[int(np.linalg.norm(centres - middle, axis=1).argmin())].id
        files, folders = tuple(a.files[row] for row in order), tuple(a.folders[order].tolist())
        found.append(Candidate(id=number, files=files, folders=folders, nearest_id=nearest))
    return tuple(found)


def candidate_rows(run: Run) -> list[Ints]:
    """Return the rows of each candidate, the most typical first."""
    a, members = run.assignments, [[*zip(each.folders, each.files, strict=True)] for each in run.candidates]
    wanted = {*itertools.chain(*members)}
    places = enumerate(zip(a.folders.tolist(), a.files, strict=True)) if wanted else ()
    at = {place: row for row, place in places if place in wanted}
    return [np.array([at[place] for place in each if place in at], dtype=np.int64) for each in members]


def rows_of(categories: Sequence[Category], ids: Ints) -> Ints:
    """Return the row (n,) of each id among the categories, and so of its centre; −1 stays −1."""
    rows = positions(ids, [category.id for category in categories])
    if (rows[ids >= 0] < 0).any():
        raise ValueError("every image must be in a category that exists")
    return rows


def positions(values: Ints, ids: Sequence[int]) -> Ints:
    """Return the position (n,) of each value in a list of different ids, or −1."""
    own = np.array(ids, dtype=np.int64)
    if not len(own):
        return np.full(len(values), -1)
    order = np.argsort(own)
    at = order[np.minimum(np.searchsorted(own[order], values), len(own) - 1)]
    return np.where(own[at] == values, at, -1)


def ids_of(categories: Sequence[Category], rows: Ints) -> Ints:
    """Return the id (n,) of the category of each row; −1 stays −1."""
    own = np.array([*(category.id for category in categories), -1], dtype=np.int64)
    return own[rows]


def known_mask(categories: Sequence[Category]) -> NDArray[np.bool_]:
    """Return the mask (k,) of the known categories."""
    return np.array([category.kind == KNOWN for category in categories], dtype=bool)


def known_names(categories: Sequence[Category]) -> list[str]:
    """Return the names of the known categories."""
    return [category.name for category in categories if category.kind == KNOWN]


def rows_by(category: Ints) -> dict[int, Ints]:
    """Return the rows of each category that has any, by its id; `category` (n,) has the ids."""
    ids, starts = np.unique(np.sort(category), return_index=True)
    order = np.argsort(category, kind="stable")
    return dict(zip(ids.tolist(), np.split(order, starts[1:]), strict=False))  # without ids, one empty part


def nearest_first(x: Features, rows: Ints, centre: Floats | None = None) -> Ints:
    """Sort rows by the distance of their features (n, d) to a centre, by default their mean."""
    own = np.asarray(x[rows], dtype=np.float64)
    squared = ((own - (own.mean(axis=0) if centre is None else centre)) ** 2).sum(axis=1)
    return rows[np.argsort(squared, kind="stable")]


def members(category: Ints, key: Ints | Floats, categories: Sequence[Category], rows: Ints | None = None) -> list[Ints]:
    """Return the rows of each category in order of their key (n,), among all or the given rows."""
    among = np.arange(len(category)) if rows is None else rows
    order = among[np.lexsort((key[among], category[among]))]
    ids = [each.id for each in categories]
    starts, ends = (np.searchsorted(category[order], ids, side) for side in ("left", "right"))
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def jaccard(one: NDArray[np.int64], other: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the images in both of two clusters, as a share of those in either, for all pairs of two clusterings."""
    common = np.bincount(one * shape[1] + other, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
    either = common.sum(axis=1, keepdims=True) + common.sum(axis=0) - common
    return common / np.maximum(either, 1)


def match_by_overlap(shares: NDArray[np.float64], allowed: NDArray[np.bool_]) -> dict[int, int]:
    """Match rows with columns of overlaps, each at most once, the largest overlap first, among the allowed pairs."""
    found: dict[int, int] = {}
    for row, column in zip(*np.unravel_index(np.argsort(-shares, axis=None), shares.shape), strict=True):
        if allowed[row, column] and row not in found and column not in found.values():
            found[int(row)] = int(column)
    return found
