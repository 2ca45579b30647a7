"""Semi-supervised k-means as a scikit-learn estimator (GCD §3.2)."""

import warnings
from math import log
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, distributed

from sortal.clustering.cluster_sums import LabelledSums
from sortal.clustering.estimate_k import KEstimate, estimate_k
from sortal.clustering.inputs import UNLABELLED, ArrayOrTensor, check_number, check_restarts, read_inputs, read_rows
from sortal.clustering.lloyd import LloydState, restarts
from sortal.clustering.points import BUDGET, Points, full_precision, slices
from sortal.errors import InputError
from sortal.system.device import choose_device
from sortal.system.distributed import Processes


class SemiSupervisedKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """k-means in which labelled rows stay in the cluster of their class; cluster j is the j-th labelled class.

    Without labels it is plain k-means. L2-normalise the features first.

    >>> x, y = [[0.0], [1.0], [9.0], [10.0]], ["a", -1, -1, -1]
    >>> SemiSupervisedKMeans(2, random_state=0).fit(x, y).labels_.tolist()
    [0, 0, 1, 1]

    Parameters
    ----------
    n_clusters : clusters in total, including those of the labelled classes; "auto" estimates it (`sortal.estimate_k`
        with its defaults).
    n_init : restarts; the one with the lowest inertia wins.
    n_candidates : rows from which the best becomes the next starting centre; None means 2 + log(n_clusters), as in
        scikit-learn, and 1 is the paper's k-means++.
    max_iter : iterations of each restart, at most.
    tol : a restart also ends when its centres move, squared and summed, by at most this fraction of the mean variance
        of the features; with 0, it ends when no row changes its cluster.
    random_state : int, RandomState or None.
    device : "auto", "cpu", "cuda", "cuda:N" or "mps".

    Attributes
    ----------
    labels_ : (n,) cluster of each row. cluster_centers_ : (n_clusters, d). inertia_ : sum of squared distances of all
    rows to their centres. n_iter_ : iterations of the best restart. classes_ : the labelled classes, in cluster order.
    n_clusters_ : clusters in total. k_estimate_ : the estimate if "auto", else None.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = "auto",
        *,
        n_init: int = 10,
        n_candidates: int | None = None,
        max_iter: int = 200,
        tol: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.n_candidates = n_candidates
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device

    def fit(
        self, X: ArrayOrTensor, y: ArrayOrTensor | None = None, *, group: "distributed.ProcessGroup | None" = None
    ) -> Self:
        """Cluster the rows of X with labels y, −1 for unlabelled.

        With a process `group`, each process passes its own rows and gets their `labels_`; all other results are equal.
        """
        if self.n_clusters != "auto":
            check_number("n_clusters", self.n_clusters, Integral, 1, " or 'auto'")
        check_restarts(self.n_init, self.n_candidates, self.max_iter, self.tol)
        processes = Processes(group)
        x, labels, classes = read_inputs(X, y, self.device, processes)
        validate_data(self, X, skip_check_array=True)
        unlabelled = self._check_count(labels, len(classes), processes)
        seed = processes.gather_objects(int(check_random_state(self.random_state).randint(2**31 - 1)))[0]
        self.classes_ = classes
        self.k_estimate_: KEstimate | None = None
        if self.n_clusters == "auto":
            most = min(max(1000, 2 * len(classes)), len(classes) + unlabelled)
            self.k_estimate_ = estimate_k(x, labels, k_max=most, random_state=seed, group=group)
        self.n_clusters_ = self.k_estimate_.k if self.k_estimate_ else int(self.n_clusters)
        with full_precision(x.device):
            self._cluster(x, torch.from_numpy(labels).to(x.device), seed, processes)
        return self

    def _cluster(self, x: Tensor, labels: Tensor, seed: int, processes: Processes) -> None:
        """Run the restarts, select the best, and fill in `labels`."""
        free = None if len(self.classes_) == 0 else (labels == UNLABELLED).nonzero()[:, 0]
        points = Points(x, free, processes=processes)
        fixed, k = LabelledSums.of(x, labels, len(self.classes_), points), self.n_clusters_
        candidates = self.n_candidates or 2 + int(log(k))
        ended = restarts(
            points, fixed, k, self.n_init, seed, candidates=candidates, max_iter=self.max_iter, tol=self.tol
        )
        # Restarts that end in the same clusters differ in their last digits: the first of them wins.
        n = sum(processes.gather_objects(len(x)))
        digit = 1e-10 * max(points.variance(), torch.finfo(x.dtype).tiny) * x.shape[1] * n
        best = min(ended, key=lambda one: (round(one.spread / digit), one.restart))
        centres = (best.centres.to(points.wide) + points.mean).to(x.dtype)
        # The centres have been rounded. Look again where that, and errors of the scores, may matter.
        slack = points.slack(torch.linalg.vector_norm(best.centres, dim=1)[None])[0]
        unsure = (best.gap <= 3 * slack).nonzero()[:, 0]
        if len(unsure):
            best.assigned[unsure] = _nearest(x, centres, unsure if free is None else free[unsure])
        labels[slice(None) if free is None else free] = best.assigned
        if empty := int((processes.sum(torch.bincount(labels, minlength=k)) == 0).sum()):
            message = f"{empty} of {k} clusters are empty, as many rows are equal. Lower n_clusters."
            warnings.warn(message, ConvergenceWarning, stacklevel=3)
        self.labels_: NDArray[np.int64] = labels.cpu().numpy()
        self.inertia_ = float(processes.sum(_inertia(x, centres, labels)))
        self.cluster_centers_: NDArray[Any] = centres.cpu().numpy()
        self.n_iter_ = best.n_iter
        self._n_features_out = k

    def fit_predict(self, X: ArrayOrTensor, y: ArrayOrTensor | None = None, **fit_params: Any) -> NDArray[np.int64]:
        """Return `fit(X, y).labels_`."""
        return self.fit(X, y, **fit_params).labels_

    def predict(self, X: ArrayOrTensor) -> NDArray[np.int64]:
        """Return the nearest cluster of each row."""
        x, centres = self._fitted(X)
        with full_precision(x.device):
            return _nearest(x, centres).cpu().numpy()

    def transform(self, X: ArrayOrTensor) -> NDArray[Any]:
        """Return the distance of each row to each centre, (n, n_clusters)."""
        x, centres = self._fitted(X)
        out = np.empty((len(x), len(centres)), dtype=self.cluster_centers_.dtype)
        for part in slices(len(x), len(centres), BUDGET[x.device.type]):
            out[part] = torch.cdist(x[part], centres, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
        return out

    def score(self, X: ArrayOrTensor, y: object = None) -> float:
        """Return minus the sum of squared distances of the rows to their nearest centres."""
        x, centres = self._fitted(X)
        with full_precision(x.device):
            return -float(_inertia(x, centres, _nearest(x, centres)))

    def _fitted(self, X: ArrayOrTensor) -> tuple[Tensor, Tensor]:
        check_is_fitted(self)
        device = choose_device(self.device, X)
        x = read_rows(X, device)
        validate_data(self, X, reset=False, skip_check_array=True)
        centres = torch.from_numpy(self.cluster_centers_).to(device)
        dtype = torch.promote_types(x.dtype, centres.dtype)
        return x.to(dtype), centres.to(dtype)

    def _check_count(self, labels: NDArray[np.int64], classes: int, processes: Processes) -> int:
        """Check n_clusters against the rows of all processes; return how many of them are unlabelled."""
        parts = processes.gather_objects((len(labels), int((labels == UNLABELLED).sum())))
        rows, unlabelled = (int(sum(counts)) for counts in zip(*parts, strict=True))
        if unlabelled == 0:
            raise InputError(
                f"y must leave some rows unlabelled (-1), got {rows} rows, all labelled. "
                "Pass y=None to cluster them without labels."
            )
        if self.n_clusters != "auto":
            k, most = int(self.n_clusters), classes + unlabelled
            bounds = {
                f"at least {classes} (the labelled classes)": k >= classes,
                f"at most n_samples={rows} (the rows of X)": k <= rows,
                f"at most {most} (the {classes} labelled classes and {unlabelled} unlabelled rows)": k <= most,
            }
            for bound, holds in bounds.items():
                if not holds:
                    raise InputError(f"n_clusters must be {bound}, got {k}.")
        return unlabelled


def _nearest(x: Tensor, centres: Tensor, free: Tensor | None = None) -> Tensor:
    """Find the nearest of uncentred centres (k, d) for each row."""
    points = Points(x, free, mean=centres.to(torch.float64 if x.device.type != "mps" else x.dtype).mean(0))
    relative = (centres.to(points.wide) - points.mean).to(x.dtype)
    return LloydState.at(points, relative[None]).assigned[0]


def _inertia(x: Tensor, centres: Tensor, assigned: Tensor) -> Tensor:
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    total = torch.zeros((), dtype=wide, device=x.device)
    for part in slices(len(x), 2 * x.shape[1], BUDGET[x.device.type]):
        total += (x[part] - centres[assigned[part]]).square_().sum(dtype=wide)
    return total
