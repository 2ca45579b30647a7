"""The best of several restarts of semi-supervised k-means; `kmeans` makes a scikit-learn estimator of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal.clustering.cluster_sums import LabelledSums
from sortal.clustering.inputs import NO_CLASS
from sortal.clustering.lloyd import LloydState, RestartResult, restarts
from sortal.clustering.points import BUDGET, Points, full_precision, slices
from sortal.errors import InputError
from sortal.system.distributed import Peers
from sortal.system.text import plural


@dataclass(frozen=True, kw_only=True, eq=False)
class KMeansFit:
    """The best restart; all but the labels are the same in all processes."""

    labels: NDArray[np.int64]  # (n,) cluster of each row of this process
    centres: NDArray[Any]  # (k, d)
    inertia: float
    n_iter: int
    empty: int  # clusters without rows


def fit(
    x: Tensor,
    labels: NDArray[np.int64],
    k: int,
    *,
    classes: int,
    n_init: int,
    seed: int,
    candidates: int | None = None,
    max_iter: int = 200,
    tol: float = 0.0,
    processes: Peers,
) -> KMeansFit:
    """Cluster rows (n, d); those labelled with one of the `classes` (n,), not −1, stay in the cluster of that number.

    The other parameters are those of `SemiSupervisedKMeans`.
    """
    with full_precision(x.device):
        assigned = torch.from_numpy(labels).to(x.device, copy=True)
        free = None if classes == 0 else (assigned == NO_CLASS).nonzero()[:, 0]
        points = Points(x, free, processes=processes)
        fixed = LabelledSums.of(x, assigned, classes, points)
        ended = restarts(
            points, fixed, k, n_init, seed, candidates=candidates or 2 + int(log(k)), max_iter=max_iter, tol=tol
        )
        # Restarts that end in the same clusters differ in their last digits: the first of them wins.
        n = sum(processes.gather_objects(len(x)))
        digit = 1e-10 * max(points.variance(), torch.finfo(x.dtype).tiny) * x.shape[1] * n
        best = best_restart(ended, digit)
        centres = (best.centres.to(points.wide) + points.mean).to(x.dtype)
        # The centres have been rounded. Look again where that, and errors of the scores, may matter.
        slack = points.slack(torch.linalg.vector_norm(best.centres, dim=1)[None])[0]
        unsure = (best.gap <= 3 * slack).nonzero()[:, 0]
        if len(unsure):
            best.assigned[unsure] = _nearest(x, centres, unsure if free is None else free[unsure])
        assigned[slice(None) if free is None else free] = best.assigned
        sizes = processes.sum(torch.bincount(assigned, minlength=k))
        return KMeansFit(
            labels=assigned.cpu().numpy(),
            centres=centres.cpu().numpy(),
            inertia=float(processes.sum(_inertia(x, centres, assigned))),
            n_iter=best.n_iter,
            empty=int((sizes == 0).sum()),
        )


def best_restart(ended: Iterable[RestartResult], digit: float) -> RestartResult:
    """Return the restart with the lowest spread; among those within `digit` of it, the one with the lowest number.

    Only one is held in memory at a time.
    """
    found, lowest = None, inf
    for one in ended:
        if (
            found is None
            or one.spread < found.spread - digit
            or (one.spread <= lowest + digit and one.restart < found.restart)
        ):
            found = one
        lowest = min(lowest, one.spread)
    assert found is not None
    return found


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """Return the nearest of the centres (k, d) of each row, (n,)."""
    with full_precision(x.device):
        return _nearest(x, centres)


def inertia(x: Tensor, centres: Tensor) -> float:
    """Return the sum of squared distances of the rows to their nearest centres."""
    with full_precision(x.device):
        return float(_inertia(x, centres, _nearest(x, centres)))


def check_count(k: int | None, labels: NDArray[np.int64], classes: int, processes: Peers) -> int:
    """Check the number of clusters, if given, against the rows of all processes; return how many are unlabelled."""
    parts = processes.gather_objects((len(labels), int((labels == NO_CLASS).sum())))
    rows, unlabelled = (int(sum(counts)) for counts in zip(*parts, strict=True))
    if unlabelled == 0:
        raise InputError(
            f"y must leave some rows unlabelled (-1), got {plural(rows, 'row')}, all labelled. "
            "Pass y=None to cluster them without labels."
        )
    if k is not None:
        if k < classes:
            raise InputError(f"n_clusters must be at least {classes} (the labelled classes), got {k}.")
        if k > classes + unlabelled:
            raise InputError(
                f"n_clusters must be at most {classes + unlabelled} (the labelled classes, {classes}, and the "
                f"unlabelled rows, {unlabelled} of n_samples={rows}), got {k}."
            )
    return unlabelled


def _nearest(x: Tensor, centres: Tensor, free: Tensor | None = None) -> Tensor:
    points = Points(x, free, mean=centres.to(torch.float64 if x.device.type != "mps" else x.dtype).mean(0))
    relative = (centres.to(points.wide) - points.mean).to(x.dtype)
    return LloydState.at(points, relative[None]).assigned[0]


def _inertia(x: Tensor, centres: Tensor, assigned: Tensor) -> Tensor:
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=wide, device=x.device)
    for part in slices(len(x), 2 * x.shape[1], BUDGET[x.device.type]):
        total += (x[part] - centres[assigned[part]]).square_().sum(dtype=wide)
    return total
