"""Clusters by a method's own function, in the form of all others: the known classes first, labelled images in them."""

import numpy as np
from numpy.typing import NDArray

from sortal.config import registration_of
from sortal.discovery.grouping.clusters import Rows, match_known
from sortal.discovery.job import Job
from sortal.discovery.results import means_of
from sortal.errors import SortalError
from sortal.images.image_set import ImageSet
from sortal.learning.methods import loaded
from sortal.runs.confidence import Features
from sortal.system.text import plural

Ids = NDArray[np.int64]


def cluster_by_method(job: Job, rows: Rows, images: ImageSet, k: int | None) -> tuple[Ids, Features]:
    """Return the cluster (n,) of each image, and the centres; without k, the method finds it, otherwise k is a wish."""
    of, recipe = registration_of(job.recipe.method), job.recipe
    function = loaded(of.cluster)

    def compute() -> tuple[Ids, Features]:
        found = function(rows.x.copy(), images.labels.copy(), k, recipe.losses, recipe.training.seed)
        return arranged(checked(found, len(images), of.name), images.labels, rows.x)

    return job.processes.by_first(compute)


def checked(found: object, n: int, method: str) -> Ids:
    """Return what a method's function has returned as (n,) whole numbers, if that is what it is."""
    clusters = np.asarray(found)
    if clusters.shape != (n,) or clusters.dtype.kind not in "iu" or not (clusters >= 0).any():
        raise SortalError(
            f"The clustering of {method} must return a whole number for each of {plural(n, 'image')}, below 0 for "
            f"none, got {clusters.dtype} of shape {clusters.shape}."
        )
    return clusters.astype(np.int64)


def arranged(clusters: Ids, labels: Ids, x: Features) -> tuple[Ids, Features]:
    """Number clusters (n,) from 0, known classes first, and return them with their centres (k, d).

    An image in no cluster (below 0) joins that with the nearest centre, and a labelled one that of its class.
    """
    inside = clusters >= 0
    _, numbers = np.unique(clusters[inside], return_inverse=True)
    found, means = np.full(len(clusters), -1), means_of(x[inside], numbers, int(numbers.max()) + 1)
    found[inside] = numbers
    found[~inside] = np.argmax(x[~inside] @ means.T - (means**2).sum(1) / 2, axis=1)
    known, k = np.unique(labels[labels >= 0]), max(len(means), len(np.unique(labels[labels >= 0])))
    found = np.argsort(match_known(found, labels, k))[found]
    found[labels >= 0] = np.searchsorted(known, labels[labels >= 0])
    used = np.unique(found)  # a cluster of nothing but labelled images of other classes is gone
    found = np.searchsorted(used, found)
    return found, means_of(x, found, len(used))
