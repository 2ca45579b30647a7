"""How well clusters agree with the truth: accuracy under one optimal match, its legacy variant, NMI, ARI.

Labels are any hashables; two are the same when Python calls them equal (1 == True == 1.0, but 1 != "1"). Every row
counts, so select the rows to score (the unlabelled images) before the call. All shares are fractions in 0..1, and None
where they are not defined (no such image). Memory: one (clusters, classes) table of int64.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError

Labels: TypeAlias = Sequence[Hashable] | NDArray[Any]  # one label per row
Classes: TypeAlias = Iterable[Hashable] | NDArray[Any]  # names of classes, in any order


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Share of correct images: of all, of those whose true class is old, of those whose true class is new."""

    all: float | None
    old: float | None
    new: float | None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Everything `evaluate` measures."""

    accuracy: Accuracy  # the headline: one match
    legacy: Accuracy  # optimistic: reported beside, never as the headline
    nmi: float | None
    ari: float | None
    known: float | None  # old classes without any match; None too when no categories were given
    k: int  # clusters among the rows
    classes: int  # classes among the rows
    k_error: float | None  # |k - classes| / classes


def accuracy(truth: Labels, clusters: Labels, *, old: Classes) -> Accuracy:
    """Accuracy under one optimal match of all clusters to all classes (GCD §4; "v2" in the authors' code).

    `old` may name classes without an image here. Of several matches with the best All the one with the best Old counts,
    so New is never flattered and all three numbers are independent of row order and of what the clusters are called.
    """
    table = _tabulate(truth, clusters)
    return _accuracy(table.counts, _old_mask(old, table.classes))


def legacy_accuracy(truth: Labels, clusters: Labels, *, old: Classes) -> Accuracy:
    """Accuracy under two matches, one for the images of old and one for those of new classes (NCD; "v1").

    Optimistic: a cluster can serve an old and a new class at once. `all` is the correct images of both parts over all.
    """
    table = _tabulate(truth, clusters)
    return _legacy_accuracy(table.counts, _old_mask(old, table.classes))


def match(truth: Labels, clusters: Labels, *, old: Classes = ()) -> dict[Hashable, Hashable]:
    """Cluster -> class, the match behind `accuracy` with the same `old`; absent clusters are matched to no class.

    A cluster is matched only to a class it shares an image with. Where equally good maps are left, which one comes back
    follows the sorted order of the labels, or the order of the rows if the labels cannot be sorted.
    """
    table = _tabulate(truth, clusters)
    rows, columns = _assign(table.counts, _old_mask(old, table.classes))
    return {table.clusters[i]: table.classes[j] for i, j in zip(rows, columns, strict=True)}


def known_accuracy(truth: Labels, categories: Labels, *, old: Classes) -> float | None:
    """Old-class accuracy without a match: share of the images of old classes whose category *is* their class.

    A category that is a known class has exactly its name (1 is not "1"); discovered ones have any other name.
    """
    table = _tabulate(truth, categories, name="categories")
    return _known_accuracy(table, _old_mask(old, table.classes))


def nmi(truth: Labels, clusters: Labels) -> float | None:
    """Mutual information over the mean of the two entropies; 1 if there is one class and one cluster."""
    return _nmi(_tabulate(truth, clusters).counts)


def ari(truth: Labels, clusters: Labels) -> float | None:
    """Rand index, adjusted for chance; can be negative."""
    return _ari(_tabulate(truth, clusters).counts)


def evaluate(truth: Labels, clusters: Labels, *, old: Classes, categories: Labels | None = None) -> Scores:
    """All metrics at once; `categories` (see `known_accuracy`) are needed for `known` only."""
    classes = _code(truth, "truth")
    table = _cross(classes, _code(clusters, "clusters"), "clusters")
    mask = _old_mask(old, table.classes)
    known = None
    if categories is not None:
        known = _known_accuracy(_cross(classes, _code(categories, "categories"), "categories"), mask)
    k, n_classes = table.counts.shape
    return Scores(
        accuracy=_accuracy(table.counts, mask),
        legacy=_legacy_accuracy(table.counts, mask),
        nmi=_nmi(table.counts),
        ari=_ari(table.counts),
        known=known,
        k=k,
        classes=n_classes,
        k_error=_share(abs(k - n_classes), n_classes),
    )


# From labels to one table of counts


class _Column(NamedTuple):
    codes: NDArray[np.intp]  # (n,) row i has labels[codes[i]]
    labels: Sequence[Hashable]  # distinct, each used, sorted where they can be


class _Table(NamedTuple):
    counts: NDArray[np.int64]  # (clusters, classes) images in both; no row and no column is all 0
    clusters: Sequence[Hashable]
    classes: Sequence[Hashable]


def _tabulate(truth: Labels, clusters: Labels, *, name: str = "clusters") -> _Table:
    return _cross(_code(truth, "truth"), _code(clusters, name), name)


def _cross(truth: _Column, clusters: _Column, name: str) -> _Table:
    if len(clusters.codes) != len(truth.codes):
        raise InputError(
            f"{name} must have one label for each of the {len(truth.codes)} rows of truth, got {len(clusters.codes)}."
        )
    shape = len(clusters.labels), len(truth.labels)
    cells = np.bincount(clusters.codes * shape[1] + truth.codes, minlength=shape[0] * shape[1])
    return _Table(cells.astype(np.int64, copy=False).reshape(shape), clusters.labels, truth.labels)


def _code(values: Labels, name: str) -> _Column:
    if isinstance(values, str | bytes | Set | Mapping) or not hasattr(values, "__len__"):
        raise InputError(f"{name} must be a list or array with one label per row, got {type(values).__name__}.")
    if not _is_array(values):
        return _code_objects(list(values), name)
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, one label per row, got shape {array.shape}.")
    if array.size and array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64):
        low = int(array.min())
        if int(array.max()) - low <= 4 * array.size:  # else the lookup table would outgrow the rows
            return _code_integers(array.astype(np.int64), low)
    return _code_objects(_python_values(array), name)


def _code_integers(array: NDArray[np.int64], low: int) -> _Column:
    """Without a sort or a dict: 1e6 rows in milliseconds."""
    offsets = array - low
    present = np.bincount(offsets) > 0
    codes = (np.cumsum(present) - 1)[offsets]
    return _Column(codes, (np.flatnonzero(present) + low).tolist())


def _code_objects(rows: list[Hashable], name: str) -> _Column:
    labels = _distinct(rows, name)
    with suppress(TypeError):  # mixed types do not sort and stay as they come
        labels = sorted(labels)  # type: ignore[type-var]
    code_of = {label: code for code, label in enumerate(labels)}
    return _Column(np.fromiter(map(code_of.__getitem__, rows), dtype=np.intp, count=len(rows)), labels)


def _distinct(labels: Iterable[Hashable], name: str) -> list[Hashable]:
    try:
        distinct = list(dict.fromkeys(labels))
    except TypeError as error:
        raise InputError(f"{name} must hold hashable labels (numbers, strings, tuples): {error}.") from None
    for label in distinct:
        unequal = label != label  # NaN, NaT
        if isinstance(unequal, bool | np.bool_) and unequal:
            raise InputError(f"{name} must not hold {label!r}: it is not equal to itself. Use None or a name instead.")
        if _is_array(label) and not isinstance(label, np.generic):  # hashed by identity: all would differ
            raise InputError(f"{name} must not hold arrays or tensors, got {label!r}. Give one array instead.")
    return distinct


def _is_array(values: object) -> bool:
    return hasattr(values, "__array__")  # numpy, pandas, CPU tensors


def _python_values(array: NDArray[Any]) -> list[Hashable]:
    """Not np.unique: a dict is faster on strings. Dates stay numpy's, as tolist makes plain ints of nanoseconds."""
    return list(array) if array.dtype.kind in "mM" else list(array.tolist())


def _old_mask(old: Classes, classes: Sequence[Hashable]) -> NDArray[np.bool_]:
    """(classes,) which of them are old."""
    if isinstance(old, str | bytes):
        raise InputError(f"old must be a collection of classes, got {old!r}. For that one class write [{old!r}].")
    names = np.asarray(old) if _is_array(old) else old
    if not isinstance(names, Iterable) or (isinstance(names, np.ndarray) and names.ndim != 1):
        raise InputError(f"old must be a one-dimensional collection of classes, got {old!r}.")
    names = _distinct(_python_values(names) if isinstance(names, np.ndarray) else names, "old")
    if classes and _any_bool(names) and not _any_bool(classes):  # True would pass for class 1
        raise InputError(f"old must name classes, not mask them, got {names!r} where no class is True or False.")
    chosen = set(names)
    return np.array([label in chosen for label in classes], dtype=np.bool_)


def _any_bool(labels: Sequence[Hashable]) -> bool:
    return any(isinstance(label, bool | np.bool_) for label in labels)


# From the table to the metrics


def _assign(counts: NDArray[np.int64], old: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
    """Matched (clusters, classes): most images correct, then most of old classes. What is surplus matches nothing."""
    from scipy.optimize import linear_sum_assignment  # half a second to import

    # One image outweighs every tie: at most counts[:, old].sum() images of old classes can be correct.
    # Whole numbers below n², thus exact in float64 to about 9e7 images.
    weights = counts * (int(counts[:, old].sum()) + 1 + old)
    rows, columns = linear_sum_assignment(weights, maximize=True)
    shared = counts[rows, columns] > 0
    return rows[shared].tolist(), columns[shared].tolist()


def _correct(counts: NDArray[np.int64], old: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(classes,) correct images of each class under one match."""
    rows, columns = _assign(counts, old)
    correct = np.zeros(counts.shape[1], dtype=np.int64)
    correct[columns] = counts[rows, columns]
    return correct


def _accuracy(counts: NDArray[np.int64], old: NDArray[np.bool_]) -> Accuracy:
    return _shares(_correct(counts, old), counts, old)


def _legacy_accuracy(counts: NDArray[np.int64], old: NDArray[np.bool_]) -> Accuracy:
    correct = np.zeros(counts.shape[1], dtype=np.int64)
    for part in (old, ~old):
        correct[part] = _correct(counts[:, part], old[part])
    return _shares(correct, counts, old)


def _shares(correct: NDArray[np.int64], counts: NDArray[np.int64], old: NDArray[np.bool_]) -> Accuracy:
    sizes = counts.sum(axis=0)
    return Accuracy(
        all=_share(correct.sum(), sizes.sum()),
        old=_share(correct[old].sum(), sizes[old].sum()),
        new=_share(correct[~old].sum(), sizes[~old].sum()),
    )


def _share(part: int | np.integer, whole: int | np.integer) -> float | None:
    return float(part / whole) if whole else None


def _known_accuracy(table: _Table, old: NDArray[np.bool_]) -> float | None:
    row_of = {category: row for row, category in enumerate(table.clusters)}
    known = [j for j in np.flatnonzero(old).tolist() if table.classes[j] in row_of]
    rows = [row_of[table.classes[j]] for j in known]
    return _share(table.counts[rows, known].sum(), table.counts[:, old].sum())


def _nmi(counts: NDArray[np.int64]) -> float | None:
    if counts.size == 0:
        return None
    if counts.size == 1:  # both entropies are 0: agreement by convention
        return 1.0
    of_clusters, of_classes = _entropy(counts.sum(axis=1)), _entropy(counts.sum(axis=0))
    mutual = of_clusters + of_classes - _entropy(counts.ravel())
    return min(1.0, max(0.0, 2 * mutual / (of_clusters + of_classes)))


def _entropy(sizes: NDArray[np.int64]) -> float:
    """In nats. Sorted, so that equal partitions have equal entropies to the last bit, whatever their order."""
    p = np.sort(sizes[sizes > 0]) / sizes.sum()
    return float(-(p * np.log(p)).sum())


def _ari(counts: NDArray[np.int64]) -> float | None:
    if counts.size == 0:
        return None
    n, together = int(counts.sum()), int((counts**2).sum())  # ordered pairs, each image with itself included
    of_clusters, of_classes = int((counts.sum(axis=1) ** 2).sum()), int((counts.sum(axis=0) ** 2).sum())
    only_cluster, only_class = of_clusters - together, of_classes - together  # pairs joined by one of the two
    both, neither = together - n, n * n - of_clusters - only_class
    if only_cluster == only_class == 0:
        return 1.0
    chance = (both + only_class) * (only_class + neither) + (both + only_cluster) * (only_cluster + neither)
    return 2 * (both * neither - only_cluster * only_class) / chance
