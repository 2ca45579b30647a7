"""Stability of clusters: which images stay together when half of them are clustered again."""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from sortal import metrics
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.runs.confidence import Features, Floats

SPLITS = 2  # of the unlabelled images into halves, each of which is clustered
RESTARTS = 10  # of k-means; with one or two, a poor local optimum would look like an unstable cluster
Ints = NDArray[np.int64]


def cluster_again(
    x: Features, labels: Ints, clusters: Ints, k: int, *, order: Ints, seed: int, device: str
) -> Floats | None:
    """Return the share (n,) of repetitions in which an image stays in its cluster; NaN for labelled images.

    Each repetition clusters the labelled images and half of the others, and puts all others into the nearest cluster;
    clusters correspond by one match. Halves are drawn from the rows in this `order` (n,), which must not depend on file
    names. None if half of the images are too few for k clusters.
    """
    generator, labelled, free = np.random.default_rng(seed), order[labels[order] >= 0], order[labels[order] < 0]
    half = len(free) // 2
    if half == 0 or half + len(np.unique(labels[labelled])) < k:
        return None
    stayed = np.zeros(len(free))
    for _ in range(SPLITS):
        shuffled = generator.permutation(free)
        for part in (shuffled[:half], shuffled[half:]):
            rows = np.concatenate([labelled, part])
            model = SemiSupervisedKMeans(k, n_init=RESTARTS, random_state=int(generator.integers(2**31)), device=device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the clusters themselves warn of equal images
                again = model.fit(x[rows], labels[rows]).predict(x[free])
            matched = metrics.match(clusters[free], again)
            cluster_of = np.array([matched.get(j, -1) for j in range(k)])
            stayed += cluster_of[again] == clusters[free]
    agreement = np.full(len(x), np.nan)
    agreement[free] = stayed / (2 * SPLITS)
    return agreement
