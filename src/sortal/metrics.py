"""Agreement of clusters with the true classes: accuracy under one optimal match, its legacy variant, NMI, ARI.

In every function `truth` holds the true class of each image, `clusters` its cluster, in the same order, and `old` names
the classes that have labelled images; all others are new. Labels are any hashables, compared by equality (1 == True ==
1.0, but 1 != "1"). Every row counts, so select the rows to score (the unlabelled images) first. Scores are fractions in
0..1, or None where undefined (no such image). Memory: one (clusters, classes) table of int64.

>>> from sortal import metrics
>>> metrics.accuracy(["cat", "cat", "dog", "fox"], [0, 0, 1, 1], old=["cat", "dog"])
Accuracy(all=0.75, old=1.0, new=0.0)
"""

import warnings
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
    """Fraction of correct images: among `all`, among those of `old` classes, among those of `new` classes."""

    all: float | None
    old: float | None
    new: float | None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """All metrics, as computed by `evaluate`.

    `accuracy` is the headline figure, with one match; `legacy` is optimistic and never the headline figure. `nmi` and
    `ari` are those of the functions of that name. `known` is the accuracy on old classes without a match, None if no
    categories were given. `k` and `classes` count the clusters and classes among the rows; `k_error` is
    |k - classes| / classes. `class_mean` is the mean over classes of their
    accuracy under the match of `accuracy`, or one of them if several are as good.
    """

    accuracy: Accuracy
    legacy: Accuracy
    class_mean: float | None
    nmi: float | None
    ari: float | None
    known: float | None
    k: int
    classes: int
    k_error: float | None


def accuracy(truth: Labels, clusters: Labels, *, old: Classes) -> Accuracy:
    """Compute the accuracy under one optimal match of all clusters to all classes (GCD §4; "v2" in the authors' code).

    `truth` and `clusters` hold the class and the cluster of each image. `old` may name classes without images. Among
    equally good matches, the one with the best `old` counts, so that `new` is never flattered and no figure depends on
    the order of rows or the names of clusters.
    """
    table = _tabulate(_code(truth), clusters)
    return _accuracy(table.counts, _old_mask(old, table.classes))


def legacy_accuracy(truth: Labels, clusters: Labels, *, old: Classes) -> Accuracy:
    """Compute the accuracy under two matches, one for images of old classes and one for those of new ones (NCD; "v1").

    Optimistic, as a cluster may match both an old and a new class. `truth` and `clusters` hold the class and the
    cluster of each image; `old` names the old classes.
    """
    table = _tabulate(_code(truth), clusters)
    return _accuracy(table.counts, _old_mask(old, table.classes), legacy=True)


def match(truth: Labels, clusters: Labels, *, old: Classes = ()) -> dict[Hashable, Hashable]:
    """Return the match behind `accuracy`, from cluster to class; unmatched clusters are absent.

    `truth` and `clusters` hold the class and the cluster of each image; `old` names the old classes, which break ties.
    A cluster matches only a class with which it shares an image. Other ties follow the sorted order of the labels, or
    the order of rows if labels cannot be sorted.
    """
    table = _tabulate(_code(truth), clusters)
    mask = _old_mask(old, table.classes)
    rows, columns = _assign(table.counts, mask, np.ones_like(mask))
    return {table.clusters[i]: table.classes[j] for i, j in zip(rows.tolist(), columns.tolist(), strict=True)}


def known_accuracy(truth: Labels, categories: Labels, *, old: Classes) -> float | None:
    """Compute the accuracy on old classes without a match: the fraction of their images whose category *is* the class.

    `truth` and `categories` hold the class and the category of each image; `old` names the old classes. The category of
    a known class has exactly its name (1 is not "1"); discovered categories have other names.
    """
    table = _tabulate(_code(truth), categories, "categories")
    return _known_accuracy(table, _old_mask(old, table.classes))


def nmi(truth: Labels, clusters: Labels) -> float | None:
    """Compute the mutual information of `truth` and `clusters` divided by their mean entropy; 1 for one of each."""
    return _by_scikit_learn("normalized_mutual_info_score", _tabulate(_code(truth), clusters).counts)


def ari(truth: Labels, clusters: Labels) -> float | None:
    """Compute the Rand index of `truth` and `clusters`, adjusted for chance; it can be negative."""
    return _by_scikit_learn("adjusted_rand_score", _tabulate(_code(truth), clusters).counts)


def evaluate(truth: Labels, clusters: Labels, *, old: Classes, categories: Labels | None = None) -> Scores:
    """Compute all metrics.

    `truth` and `clusters` hold the class and the cluster of each image; `old` names the old classes. `categories`, the
    name of each image's category (see `known_accuracy`), are needed for `known` only.
    """
    classes = _code(truth)
    counts = _tabulate(classes, clusters).counts
    mask = _old_mask(old, classes.labels)
    k, n_classes = counts.shape
    shares = _correct(counts, mask) / counts.sum(axis=0)
    return Scores(
        accuracy=_accuracy(counts, mask),
        legacy=_accuracy(counts, mask, legacy=True),
        class_mean=float(shares.mean()) if len(shares) else None,
        nmi=_by_scikit_learn("normalized_mutual_info_score", counts),
        ari=_by_scikit_learn("adjusted_rand_score", counts),
        known=None if categories is None else _known_accuracy(_tabulate(classes, categories, "categories"), mask),
        k=k,
        classes=n_classes,
        k_error=_share(abs(k - n_classes), n_classes),
    )


class _Column(NamedTuple):
    codes: NDArray[np.intp]  # (n,) row i has labels[codes[i]]
    labels: Sequence[Hashable]  # distinct, all used, sorted if possible


class _Table(NamedTuple):
    counts: NDArray[np.int64]  # (clusters, classes) images in both; no row or column is all 0
    clusters: Sequence[Hashable]
    classes: Sequence[Hashable]


def _tabulate(truth: _Column, values: Labels, name: str = "clusters") -> _Table:
    clusters = _code(values, name)
    if len(clusters.codes) != len(truth.codes):
        raise InputError(
            f"{name} must have one label for each row of truth, {len(truth.codes)} in all, got {len(clusters.codes)}."
        )
    shape = len(clusters.labels), len(truth.labels)
    cells = np.bincount(clusters.codes * shape[1] + truth.codes, minlength=shape[0] * shape[1])
    return _Table(cells.astype(np.int64, copy=False).reshape(shape), clusters.labels, truth.labels)


def _code(values: Labels, name: str = "truth") -> _Column:
    if isinstance(values, str | bytes | Set | Mapping) or not hasattr(values, "__len__"):
        raise InputError(f"{name} must be a list or array with one label per row, got {type(values).__name__}.")
    if not hasattr(values, "__array__"):  # NumPy, pandas, CPU tensors
        return _code_objects(list(values), name)
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, one label per row, got shape {array.shape}.")
    if array.size and array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64):
        low = int(array.min())
        if int(array.max()) - low <= 4 * array.size:  # or the lookup table would be longer than the rows
            offsets = array.astype(np.int64) - low  # without sorting or a dict: 1e6 rows in milliseconds
            present = np.bincount(offsets) > 0
            return _Column((np.cumsum(present) - 1)[offsets], (np.flatnonzero(present) + low).tolist())
    return _code_objects(_python_values(array), name)


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
        if hasattr(label, "__array__") and not isinstance(label, np.generic):  # hashed by identity, so all differ
            raise InputError(f"{name} must not contain arrays or tensors, got {label!r}. Pass one array instead.")
    return distinct


def _python_values(array: NDArray[Any]) -> list[Hashable]:
    """Convert to Python values, except dates: tolist turns nanoseconds into plain integers."""
    return list(array) if array.dtype.kind in "mM" else list(array.tolist())


def _old_mask(old: Classes, classes: Sequence[Hashable]) -> NDArray[np.bool_]:
    """Return the mask of old classes, (classes,)."""
    if isinstance(old, str | bytes):
        raise InputError(f"old must be a collection of classes, got {old!r}. For one class, pass [{old!r}].")
    names = np.asarray(old) if hasattr(old, "__array__") else old
    if not isinstance(names, Iterable) or (isinstance(names, np.ndarray) and names.ndim != 1):
        raise InputError(f"old must be a one-dimensional collection of classes, got {old!r}.")
    names = _distinct(_python_values(names) if isinstance(names, np.ndarray) else names, "old")
    has_bool = [any(isinstance(label, bool | np.bool_) for label in labels) for labels in (names, classes)]
    if classes and has_bool == [True, False]:  # True equals class 1
        raise InputError(f"old must name classes, not mask them, got {names!r} where no class is True or False.")
    chosen = set(names)
    return np.array([label in chosen for label in classes], dtype=np.bool_)


def _assign(
    counts: NDArray[np.int64], old: NDArray[np.bool_], part: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Match clusters to the classes in `part`: most images correct, then most of old classes; the rest is unmatched."""
    from scipy.optimize import linear_sum_assignment  # half a second to import

    # One image outweighs any tie-break: at most counts[:, old].sum() images of old classes can be correct.
    # Integers below n², thus exact in float64 up to about 9e7 images.
    weights = counts[:, part]
    weights *= int(counts[:, old].sum()) + 1 + old[part]
    rows, columns = linear_sum_assignment(weights, maximize=True)
    columns = np.flatnonzero(part)[columns]
    shared = counts[rows, columns] > 0
    return rows[shared], columns[shared]


def _accuracy(counts: NDArray[np.int64], old: NDArray[np.bool_], *, legacy: bool = False) -> Accuracy:
    correct, sizes = _correct(counts, old, legacy=legacy), counts.sum(axis=0)
    shares = [_share(correct[part].sum(), sizes[part].sum()) for part in (np.ones_like(old), old, ~old)]
    return Accuracy(all=shares[0], old=shares[1], new=shares[2])


def _correct(counts: NDArray[np.int64], old: NDArray[np.bool_], *, legacy: bool = False) -> NDArray[np.int64]:
    """Count the images of each class in its cluster."""
    correct = np.zeros(len(old), dtype=np.int64)
    for part in (old, ~old) if legacy else (np.ones_like(old),):
        rows, columns = _assign(counts, old, part)
        correct[columns] = counts[rows, columns]
    return correct


def _share(part: int | np.integer, whole: int | np.integer) -> float | None:
    return float(part / whole) if whole else None


def _known_accuracy(table: _Table, old: NDArray[np.bool_]) -> float | None:
    row_of = {category: row for row, category in enumerate(table.clusters)}
    known = [j for j in np.flatnonzero(old).tolist() if table.classes[j] in row_of]
    rows = [row_of[table.classes[j]] for j in known]
    return _share(table.counts[rows, known].sum(), table.counts[:, old].sum())


def _by_scikit_learn(score: str, counts: NDArray[np.int64]) -> float | None:
    if not counts.size:
        return None
    from sklearn import metrics

    cells = np.nonzero(counts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn takes many small clusters for a regression target
        value = float(getattr(metrics, score)(*(np.repeat(numbers, counts[cells]) for numbers in cells)))
    return min(value, 1.0)  # rounding may exceed 1
