"""Agreement of clusters with the true classes: accuracy under one optimal match, its legacy variant, NMI, ARI.

Labels are any hashables, compared by equality (1 == True == 1.0, but 1 != "1"). Every row counts, so select the rows to
score (the unlabelled images) first. Scores are fractions in 0..1, or None where undefined (no such image). Memory: one
(clusters, classes) table of int64.

>>> from sortal import metrics
>>> metrics.accuracy(["cat", "cat", "dog", "fox"], [0, 0, 1, 1], old=["cat", "dog"])
Accuracy(all=0.75, old=1.0, new=0.0)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
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
    """Fraction of correct images: among all, among those of old classes, among those of new classes."""

    all: float | None
    old: float | None
    new: float | None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """All metrics, as computed by `evaluate`."""

    accuracy: Accuracy  # the headline figure: one match
    legacy: Accuracy  # optimistic, never the headline figure
    nmi: float | None
    ari: float | None
    known: float | None  # accuracy on old classes without a match; also None if no categories were given
    k: int  # clusters among the rows
    classes: int  # classes among the rows
    k_error: float | None  # |k - classes| / classes


def accuracy(truth: Labels, clusters: Labels, *, old: Classes) -> Accuracy:
    """Compute the accuracy under one optimal match of all clusters to all classes (GCD §4; "v2" in the authors' code).

    `old` may name classes without images. Among equally good matches, the one with the best `old` counts, so that `new`
    is never flattered and no figure depends on the order of rows or the names of clusters.
    """
    table = _tabulate(truth, clusters)
    return _accuracy(table.counts, _old_mask(old, table.classes))


def legacy_accuracy(truth: Labels, clusters: Labels, *, old: Classes) -> Accuracy:
    """Compute the accuracy under two matches, one for images of old classes and one for those of new ones (NCD; "v1").

    Optimistic, as a cluster may match both an old and a new class.
    """
    table = _tabulate(truth, clusters)
    return _legacy_accuracy(table.counts, _old_mask(old, table.classes))


def match(truth: Labels, clusters: Labels, *, old: Classes = ()) -> dict[Hashable, Hashable]:
    """Return the match behind `accuracy`, from cluster to class; unmatched clusters are absent.

    A cluster matches only a class with which it shares an image. Ties follow the sorted order of the labels, or the
    order of rows if labels cannot be sorted.
    """
    table = _tabulate(truth, clusters)
    rows, columns = _assign(table.counts, _old_mask(old, table.classes))
    return {table.clusters[i]: table.classes[j] for i, j in zip(rows, columns, strict=True)}


def known_accuracy(truth: Labels, categories: Labels, *, old: Classes) -> float | None:
    """Compute the accuracy on old classes without a match: the fraction of their images whose category *is* the class.

    The category of a known class has exactly its name (1 is not "1"); discovered categories have other names.
    """
    table = _tabulate(truth, categories, name="categories")
    return _known_accuracy(table, _old_mask(old, table.classes))


def nmi(truth: Labels, clusters: Labels) -> float | None:
    """Compute the mutual information divided by the mean entropy; 1 for one class and one cluster."""
    return _nmi(_tabulate(truth, clusters).counts)


def ari(truth: Labels, clusters: Labels) -> float | None:
    """Compute the Rand index, adjusted for chance; it can be negative."""
    return _ari(_tabulate(truth, clusters).counts)


def evaluate(truth: Labels, clusters: Labels, *, old: Classes, categories: Labels | None = None) -> Scores:
    """Compute all metrics; `categories` (see `known_accuracy`) are needed for `known` only."""
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
    labels: Sequence[Hashable]  # distinct, all used, sorted if possible


class _Table(NamedTuple):
    counts: NDArray[np.int64]  # (clusters, classes) images in both; no row or column is all 0
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
        if int(array.max()) - low <= 4 * array.size:  # or the lookup table would be longer than the rows
            return _code_integers(array.astype(np.int64), low)
    return _code_objects(_python_values(array), name)


def _code_integers(array: NDArray[np.int64], low: int) -> _Column:
    """Encode without sorting or a dict: 1e6 rows in milliseconds."""
    offsets = array - low
    present = np.bincount(offsets) > 0
    codes = (np.cumsum(present) - 1)[offsets]
    return _Column(codes, (np.flatnonzero(present) + low).tolist())


def _code_objects(rows: list[Hashable], name: str) -> _Column:
    labels = _distinct(rows, name)
    with suppress(TypeError):  # mixed types stay in order of appearance
        labels = sorted(labels)  # type: ignore[type-var]
    code_of = {label: code for code, label in enumerate(labels)}
    return _Column(np.fromiter(map(code_of.__getitem__, rows), dtype=np.intp, count=len(rows)), labels)


def _distinct(labels: Iterable[Hashable], name: str) -> list[Hashable]:
    try:
        distinct = list(dict.fromkeys(labels))
    except TypeError as error:
        raise InputError(f"{name} must contain hashable labels (numbers, strings, tuples): {error}.") from None
    for label in distinct:
        unequal = label != label  # NaN, NaT
        if isinstance(unequal, bool | np.bool_) and unequal:
            raise InputError(
                f"{name} must not contain {label!r}, which is not equal to itself. Use None or a name instead."
            )
        if _is_array(label) and not isinstance(label, np.generic):  # hashed by identity, so all would differ
            raise InputError(f"{name} must not contain arrays or tensors, got {label!r}. Pass one array instead.")
    return distinct


def _is_array(values: object) -> bool:
    return hasattr(values, "__array__")  # numpy, pandas, CPU tensors


def _python_values(array: NDArray[Any]) -> list[Hashable]:
    """Convert to Python values, except dates: tolist turns nanoseconds into plain integers."""
    return list(array) if array.dtype.kind in "mM" else list(array.tolist())


def _old_mask(old: Classes, classes: Sequence[Hashable]) -> NDArray[np.bool_]:
    """Return the mask of old classes, (classes,)."""
    if isinstance(old, str | bytes):
        raise InputError(f"old must be a collection of classes, got {old!r}. For one class, pass [{old!r}].")
    names = np.asarray(old) if _is_array(old) else old
    if not isinstance(names, Iterable) or (isinstance(names, np.ndarray) and names.ndim != 1):
        raise InputError(f"old must be a one-dimensional collection of classes, got {old!r}.")
    names = _distinct(_python_values(names) if isinstance(names, np.ndarray) else names, "old")
    if classes and _any_bool(names) and not _any_bool(classes):  # True equals class 1
        raise InputError(f"old must name classes, not mask them, got {names!r} where no class is True or False.")
    chosen = set(names)
    return np.array([label in chosen for label in classes], dtype=np.bool_)


def _any_bool(labels: Sequence[Hashable]) -> bool:
    return any(isinstance(label, bool | np.bool_) for label in labels)


# From the table to the metrics


def _assign(counts: NDArray[np.int64], old: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
    """Match clusters to classes: most images correct, then most of old classes; the surplus is unmatched."""
    from scipy.optimize import linear_sum_assignment  # half a second to import

    # One image outweighs any tie-break: at most counts[:, old].sum() images of old classes can be correct.
    # Integers below n², thus exact in float64 up to about 9e7 images.
    weights = counts * (int(counts[:, old].sum()) + 1 + old)
    rows, columns = linear_sum_assignment(weights, maximize=True)
    shared = counts[rows, columns] > 0
    return rows[shared].tolist(), columns[shared].tolist()


def _correct(counts: NDArray[np.int64], old: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the correct images of each class under one match, (classes,)."""
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
    from sklearn.metrics import normalized_mutual_info_score

    score = _by_scikit_learn(normalized_mutual_info_score, counts)
    return None if score is None else min(score, 1.0)  # rounding may exceed 1


def _ari(counts: NDArray[np.int64]) -> float | None:
    from sklearn.metrics import adjusted_rand_score

    return _by_scikit_learn(adjusted_rand_score, counts)


def _by_scikit_learn(score: Callable[..., float], counts: NDArray[np.int64]) -> float | None:
    cells = np.nonzero(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn takes many small clusters for a regression target
        return float(score(*(np.repeat(numbers, counts[cells]) for numbers in cells))) if counts.size else None
