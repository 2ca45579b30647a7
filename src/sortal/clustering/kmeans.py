"""Semi-supervised k-means as a scikit-learn estimator (GCD §3.2)."""

import warnings
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, distributed

from sortal.clustering import fitting
from sortal.clustering.estimate_k import KEstimate, KMethod, estimate_k, largest_k
from sortal.clustering.inputs import ArrayOrTensor, check_number, draw_seed, read_inputs, read_rows
from sortal.clustering.points import BUDGET, slices
from sortal.system.device import choose_device
from sortal.system.distributed import Peers
from sortal.system.text import plural


class SemiSupervisedKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """k-means in which labelled rows stay in the cluster of their class; cluster j is the j-th labelled class.

    Without labels it is plain k-means. L2-normalise the features first.

    >>> x, y = [[0.0], [1.0], [9.0], [10.0]], ["a", -1, -1, -1]
    >>> SemiSupervisedKMeans(2, random_state=0).fit(x, y).labels_.tolist()
    [0, 0, 1, 1]

    Parameters
    ----------
    n_clusters : clusters in total, including those of the labelled classes; "auto" estimates it (`sortal.estimate_k`
        with its defaults; by "separation" if fewer than two classes are labelled).
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
        """Cluster the rows of `X`, (n, d), with labels `y`, (n,), of any kind; −1 is unlabelled, None is no labels.

        With a process `group`, each process passes its own rows and gets their `labels_`; all other results are equal.
        """
        if self.n_clusters != "auto":
            check_number("n_clusters", self.n_clusters, Integral, 1, " or 'auto'")
        check_number("n_init", self.n_init, Integral, 1)
        if self.n_candidates is not None:
            check_number("n_candidates", self.n_candidates, Integral, 1, " or None")
        check_number("max_iter", self.max_iter, Integral, 1)
        check_number("tol", self.tol, Real, 0)
        processes = Peers(group)
        x, labels, classes = read_inputs(X, y, self.device, processes)
        validate_data(self, X, skip_check_array=True)
        given = None if self.n_clusters == "auto" else int(self.n_clusters)
        unlabelled = fitting.check_count(given, labels, len(classes), processes)
        seed = draw_seed(self.random_state, processes)
        self.classes_ = classes
        self.k_estimate_: KEstimate | None = None
        if given is None:
            most = min(largest_k(len(classes)), len(classes) + unlabelled)
            rule: KMethod = "brent" if len(classes) > 1 else "separation"
            self.k_estimate_ = estimate_k(x, labels, k_max=most, method=rule, random_state=seed, group=group)
            given = self.k_estimate_.k
        self.n_clusters_ = given
        found = fitting.fit(
            x,
            labels,
            given,
            classes=len(classes),
            n_init=self.n_init,
            seed=seed,
            candidates=self.n_candidates,
            max_iter=self.max_iter,
            tol=self.tol,
            processes=processes,
        )
        if found.empty:
            empty = f"{found.empty} of {plural(given, 'cluster is', 'clusters are')} empty"
            message = f"{empty}, as many rows are equal. Lower n_clusters."
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        self.labels_ = found.labels
        self.inertia_ = found.inertia
        self.cluster_centers_ = found.centres
        self.n_iter_ = found.n_iter
        self._n_features_out = given
        return self

    def fit_predict(self, X: ArrayOrTensor, y: ArrayOrTensor | None = None, **fit_params: Any) -> NDArray[np.int64]:
        """Return the `labels_` of `fit(X, y, **fit_params)`: `X`, `y` and `fit_params` are those of `fit`."""
        return self.fit(X, y, **fit_params).labels_

    def predict(self, X: ArrayOrTensor) -> NDArray[np.int64]:
        """Return the nearest cluster of each row of `X`, (n,)."""
        x, centres = self._fitted(X)
        return fitting.nearest(x, centres).cpu().numpy()

    def transform(self, X: ArrayOrTensor) -> NDArray[Any]:
        """Return the distance of each row of `X` to each centre, (n, n_clusters)."""
        x, centres = self._fitted(X)
        out = np.empty((len(x), len(centres)), dtype=self.cluster_centers_.dtype)
        for part in slices(len(x), len(centres), BUDGET[x.device.type]):
            out[part] = torch.cdist(x[part], centres, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()
        return out

    def score(self, X: ArrayOrTensor, y: object = None) -> float:
        """Return minus the sum of squared distances of the rows of `X` to their nearest centres; `y` is ignored."""
        x, centres = self._fitted(X)
        return -fitting.inertia(x, centres)

    def _fitted(self, X: ArrayOrTensor) -> tuple[Tensor, Tensor]:
        check_is_fitted(self)
        device = choose_device(self.device, X)
        x = read_rows(X, device)
        validate_data(self, X, reset=False, skip_check_array=True)
        centres = torch.from_numpy(self.cluster_centers_).to(device)
        dtype = torch.promote_types(x.dtype, centres.dtype)
        return x.to(dtype), centres.to(dtype)
