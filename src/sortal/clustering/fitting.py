"""The best of several restarts of semi-supervised k-means; `kmeans` makes a scikit-learn estimator of it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal.clustering.cluster_sums import LabelledSums
from sortal.clustering.inputs import NO_CLASS
from sortal.clustering.lloyd import (
    FEW_CHANGES,
    MAX_ITER,
    LloydState,
    RestartResult,
    ks_at_once,
    lloyd,
    restarts,
    seed_groups,
)
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
        problem = _Problem(x, labels, classes, processes)
        points, fixed = problem.points, problem.fixed
        ended = restarts(
            points, fixed, k, n_init, seed, candidates=candidates or 2 + int(log(k)), max_iter=max_iter, tol=tol
        )
        return problem.fitted(best_restart(ended, problem.digit()))


def fit_each(
    x: Tensor, labels: NDArray[np.int64], ks: Iterable[int], *, classes: int, n_init: int, seed: int, processes: Peers
) -> list[KMeansFit]:
    """Cluster rows (n, d) into each of ks, as `fit` does but for a few rows; all draw the same starting centres.

    On a GPU restarts of several ks run at once: kernels are launched once for all of them.
    """
    order, found = sorted(set(ks)), dict[int, RestartResult]()
    with full_precision(x.device):
        problem = _Problem(x, labels, classes, processes)
        points, fixed, digit = problem.points, problem.fixed, problem.digit()
        few, top = int(FEW_CHANGES * sum(processes.gather_objects(points.count))), order[-1]
        for seeds in seed_groups(points, fixed, range(seed, seed + n_init), top, 2 + int(log(top))):
            numbers = [one - seed for one in seeds.seeds]
            room = ks_at_once(points, top, len(numbers))
            for start in range(0, len(order), room):
                some = order[start : start + room]
                state = LloydState.joined([LloydState.seeded(seeds.grow(k)) for k in some], points)
                for ended in lloyd(points, fixed, state, max_iter=MAX_ITER, tol=0.0, few=few):
                    k = some[ended.restart // len(numbers)]
                    one = replace(ended, restart=numbers[ended.restart % len(numbers)], centres=ended.centres[:k])
                    found[k] = best_restart([found[k], one] if k in found else [one], digit)
        return [problem.fitted(found[k]) for k in ks]


class _Problem:
    """Rows to cluster, of which the labelled ones stay where they are."""

    def __init__(self, x: Tensor, labels: NDArray[np.int64], classes: int, processes: Peers) -> None:
        self.x, self.processes = x, processes
        self.labels = torch.from_numpy(labels).to(x.device, copy=True)
        self.free = None if classes == 0 else (self.labels == NO_CLASS).nonzero()[:, 0]
        self.points = Points(x, self.free, processes=processes)
        self.fixed = LabelledSums.of(x, self.labels, classes, self.points)

    def digit(self) -> float:
        """Return by how much spreads of restarts that end in the same clusters may differ in their last digits."""
        n = int(sum(self.processes.gather_objects(len(self.x))))
        return 1e-10 * max(self.points.variance(), torch.finfo(self.x.dtype).tiny) * self.x.shape[1] * n

    def fitted(self, best: RestartResult) -> KMeansFit:
        """Return the outcome of the best restart, whose assignments it changes where rounding decides."""
        x, points = self.x, self.points
        centres = (best.centres.to(points.wide) + points.mean).to(x.dtype)
        # The centres have been rounded. Look again where that, and errors of the scores, may matter.
        slack = points.slack(torch.linalg.vector_norm(best.centres, dim=1)[None])[0]
        unsure = (best.gap <= 3 * slack).nonzero()[:, 0]
        if len(unsure):
            best.assigned[unsure] = _nearest(x, centres, unsure if self.free is None else self.free[unsure])
        assigned = self.labels.clone()
        assigned[slice(None) if self.free is None else self.free] = best.assigned
        sizes = self.processes.sum(torch.bincount(assigned, minlength=len(centres)))
        return KMeansFit(
            labels=assigned.cpu().numpy(),
            centres=centres.cpu().numpy(),
            inertia=float(self.processes.sum(_inertia(x, centres, assigned))),
            n_iter=best.n_iter,
            empty=int((sizes == 0).sum()),
        )


def best_restart(ended: Iterable[RestartResult], digit: float) -> RestartResult:
    """Return the restart with the lowest spread; among those within `digit` of it, the one with the lowest number.

    Restarts that end in the same clusters differ in their last digits. Only one is held in memory at a time.
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
