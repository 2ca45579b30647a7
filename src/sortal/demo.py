"""A small honest demo: the handwritten digits that come with scikit-learn, half of 0–4 labelled, 5–9 unknown."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from sortal.errors import InputError
from sortal.estimate import estimate_k
from sortal.kmeans import SemiSupervisedKMeans
from sortal.metrics import Accuracy, accuracy

OLD = (0, 1, 2, 3, 4)
NEW = (5, 6, 7, 8, 9)
K_MAX = 100  # where the search for k ends


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo did and what came out; accuracies are over the unlabelled images only."""

    n_labelled: int
    n_unlabelled: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    k: int
    k_true: int
    k_estimated: bool
    plain: Accuracy
    semi_supervised: Accuracy
    seconds: float  # the clustering and, where asked for, the estimate of k


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The 1,797 images as L2-normalised pixels, (n, 64), and their digits, (n,)."""
    pixels, truth = load_digits(return_X_y=True)
    x = pixels / np.linalg.norm(pixels, axis=1, keepdims=True)
    return x.astype(np.float32), truth.astype(np.int64)


def hide(truth: NDArray[np.int64], *, labelled: float, seed: int) -> NDArray[np.int64]:
    """Labels to learn from: a fraction `labelled` of the images of old classes keep theirs, all others get −1.

    The choice is the benchmarks' own: uniform over the images of all old classes together, not class by class.
    """
    if not 0 < labelled <= 1:
        raise InputError(f"labelled must be a fraction above 0 and at most 1, got {labelled}.")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be between 0 and 2**32 - 1, got {seed}.")
    rows = np.flatnonzero(np.isin(truth, OLD))
    kept = rows[np.random.RandomState(seed).choice(len(rows), size=int(labelled * len(rows)), replace=False)]
    labels = np.full_like(truth, -1)
    labels[kept] = truth[kept]
    if bare := set(OLD) - set(labels.tolist()):
        raise InputError(
            f"labelled must leave every old class a labelled image, got {labelled}: class {min(bare)} has none. "
            "Choose a larger fraction."
        )
    return labels


def run(
    *,
    k: int | Literal["auto"] = 10,
    labelled: float = 0.5,
    n_init: int = 10,
    seed: int = 0,
    device: str = "auto",
    on_step: Callable[[str], None] = lambda _: None,
) -> DemoResult:
    """Cluster the digits with and without their labels; `on_step` is told what is going on."""
    x, truth = digits()
    labels = hide(truth, labelled=labelled, seed=seed)
    unlabelled = labels == -1
    if k != "auto" and not len(OLD) <= k <= len(x):
        raise InputError(f"k must be from {len(OLD)} (the labelled classes) to {len(x)} (the images), got {k}.")

    def cluster(y: NDArray[np.int64]) -> Accuracy:
        model = SemiSupervisedKMeans(n_clusters, n_init=n_init, random_state=seed, device=device).fit(x, y)
        return accuracy(truth[unlabelled], model.labels_[unlabelled], old=OLD)

    start = perf_counter()
    if k == "auto":
        on_step("Estimating the number of classes")
        n_clusters = estimate_k(
            x,
            labels,
            k_max=K_MAX,
            random_state=seed,
            device=device,
            callback=lambda at: on_step(f"Estimating the number of classes: {at.k} scores {at.score:.3f}"),
        ).k
    else:
        n_clusters = k
    on_step("Clustering without labels")
    plain = cluster(np.full_like(labels, -1))
    on_step("Clustering with labels")
    semi_supervised = cluster(labels)
    return DemoResult(
        n_labelled=int((~unlabelled).sum()),
        n_unlabelled=int(unlabelled.sum()),
        old=OLD,
        new=NEW,
        k=n_clusters,
        k_true=len(OLD) + len(NEW),
        k_estimated=k == "auto",
        plain=plain,
        semi_supervised=semi_supervised,
        seconds=perf_counter() - start,
    )
