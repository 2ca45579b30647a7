"""The category of each image, from features and the number of categories; cached.

Images are clustered by features averaged with those of their neighbours (`smooth`), if the recipe has any.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray

from sortal import metrics
from sortal.clustering.estimate_k import separation
from sortal.clustering.lloyd import ks_at_once, padded
from sortal.clustering.points import Points, full_precision
from sortal.config import registration_of
from sortal.discovery import results
from sortal.discovery.grouping import shared_kmeans
from sortal.discovery.grouping.neighbours import nearest
from sortal.discovery.grouping.stability import cluster_again
from sortal.discovery.job import Job
from sortal.discovery.results import means_of
from sortal.errors import SortalError
from sortal.images.image_set import ImageSet
from sortal.learning.methods import loaded
from sortal.runs.confidence import Features, Floats, Ints, place
from sortal.system import cache
from sortal.system.distributed import Processes
from sortal.system.mapped_arrays import scratch
from sortal.system.text import plural

SMOOTHINGS = 2  # rounds of averaging with neighbours
OF_CONTRAST = 0.5  # weight of features of contrast beside those of a classifier, whose weight is 1


@dataclass(frozen=True, eq=False)
class Rows:
    """Features of images as they are, (n, d), and averaged with those of their neighbours when that is needed.

    Averages are of features joined with those that are `beside` them, if any.
    """

    x: Features
    neighbours: int
    processes: Processes
    folder: Path | None = None  # for large arrays
    beside: Features | None = None  # (n, e), of unit length, as x

    @cached_property
    def smoothed(self) -> Features:
        x = self.x if self.beside is None else joined(self.x, self.beside, self.folder)
        return smooth(x, self.neighbours, self.processes, self.folder)

    @cached_property
    def key(self) -> tuple[str, int]:
        """What both depend on, for the keys of caches; averages differ in their last digits between machines."""
        both = [self.x] if self.beside is None else [self.x, self.beside]
        return cache.hashed(*both), self.neighbours


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """The result of k-means on smoothed features."""

    clusters: NDArray[np.int64]  # (n,)
    centres: Features  # (k, d)


def rows_of(job: Job, x: Features, beside: Features | None = None) -> Rows:
    return Rows(x, job.recipe.neighbours, job.processes, job.cache, beside)


def cluster(
    job: Job, rows: Rows, images: ImageSet, k: int, head: Features | None
) -> tuple[NDArray[np.int64], Features]:
    """Return the cluster (n,) of each image, and the centres; the first clusters are the known classes."""
    if head is not None:
        return _cluster_by_head(rows.x, images, head)
    semi_supervised = job.recipe.clustering == "semi-supervised"
    found = fit(job, rows, images.labels if semi_supervised else None, k)
    clusters, centres = found.clusters, found.centres
    if not semi_supervised:
        order = match_known(clusters, images.labels, k)
        clusters, centres = np.argsort(order)[clusters], centres[order]
    if rows.neighbours or rows.beside is not None:  # new images are placed by features as they are
        own = centres[:, : rows.x.shape[1]]  # stays where a cluster is empty
        centres = results.add_to_means(own, np.zeros(k, dtype=np.int64), clusters, rows.x)[0]
    return clusters, centres


def fit(job: Job, rows: Rows, labels: NDArray[np.int64] | None, k: int) -> Fit:
    """Cluster smoothed features by k-means; labelled images (n,) stay in the clusters of their classes."""
    settings, processes = job.settings, job.processes
    inputs = *rows.key, cache.hashed(np.zeros(0) if labels is None else labels), k, settings.n_init, settings.seed
    path = job.cache / "clusters" / f"{cache.key('clusters', *inputs)}.safetensors"
    if (held := processes.by_first(partial(_load_arrays, path))) is not None:
        return Fit(clusters=held["clusters"], centres=held["centres"])
    model = shared_kmeans.fit(rows.smoothed, labels, k, n_init=settings.n_init, seed=settings.seed, processes=processes)
    found = Fit(clusters=model.labels, centres=np.ascontiguousarray(model.centres))
    if processes.is_first:
        cache.save_arrays(path, vars(found))
    return found


def _load_arrays(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return cached arrays; None if there are none, or if they are damaged."""
    with suppress(ValueError):
        return cache.load_arrays(path)
    return None


def separations_of(
    x: Features, labels: NDArray[np.int64] | None, centres: Sequence[Features], processes: Processes
) -> list[float]:
    """Return how well clusters with each of these centres (k, d) separate the unlabelled rows (n, d); 0 for one."""
    own, device = slice(*processes.share_of(len(x))), processes.device
    part, free, labelled = torch.from_numpy(x[own]).to(device), None, torch.zeros(0, device=device)
    if labels is not None:
        free = torch.from_numpy(np.flatnonzero(labels[own] < 0)).to(device)
        labelled = torch.from_numpy(np.unique(labels[labels >= 0], return_counts=True)[1]).to(device)
    points, found = Points(part, free, processes=processes), list[float]()
    with full_precision(device):
        relative = [(torch.from_numpy(each).to(device) - points.mean.to(part.dtype))[None] for each in centres]
        room = ks_at_once(points, max(map(len, centres)))
        for start in range(0, len(relative), room):
            some, absent = padded(relative[start : start + room])
            found += separation(points, some, labelled, absent if room > 1 else None)
    return found


def repeat(
    job: Job,
    rows: Rows,
    images: ImageSet,
    order: NDArray[np.int64],
    clusters: NDArray[np.int64],
    k: int,
    groups: NDArray[np.int64],
) -> Floats | None:
    """Return how often each image (n,) stays in its cluster when clustering is repeated, or None if it cannot be.

    Images of one of the groups (n,) are clustered together.
    """
    seed, labels, processes = job.settings.seed, images.labels, job.processes
    if job.recipe.clustering == "kmeans":
        labels = np.full(len(clusters), -1)
    several = len(np.unique(groups)) < len(groups)
    key = cache.key("stability", *rows.key, cache.hashed(labels, clusters, *[groups] * several), k, seed)
    path = job.cache / "stability" / f"{key}.safetensors"
    if (held := processes.by_first(partial(_load_arrays, path))) is not None:
        return held["agreement"]
    found = cluster_again(
        rows.smoothed, labels, clusters, k, order=order, seed=seed, groups=groups, processes=processes
    )
    if found is not None and processes.is_first:
        cache.save_arrays(path, {"agreement": found})
    return found


@torch.no_grad()
def smooth(x: Features, neighbours: int, processes: Processes, folder: Path | None = None) -> Features:
    """Average each of the unit rows (n, d) with the mean of its nearest `neighbours`, half and half, twice.

    Large results are kept in files in the folder.
    """
    count = min(neighbours, len(x) - 1)
    if count < 1:
        return x
    device = processes.device
    rows = torch.from_numpy(x).to(device)
    for _ in range(SMOOTHINGS):
        averaged = torch.from_numpy(scratch(x.shape, folder)) if device.type == "cpu" else torch.zeros_like(rows)
        for part, near in nearest(rows, count, share=(processes.rank, processes.size)):
            averaged[part] = nnf.normalize(rows[part] + rows[near].mean(1), dim=1)
        processes.sum_in_place([averaged])
        rows = averaged
    found = rows.numpy() if device.type == "cpu" else scratch(x.shape, folder)
    if device.type != "cpu":
        torch.from_numpy(found).copy_(rows)
    return found


def joined(x: Features, beside: Features, folder: Path | None = None) -> Features:
    """Join unit rows (n, d) and (n, e) into unit rows (n, d + e), whose cosines are weighted means of both cosines."""
    found, width = scratch((len(x), x.shape[1] + beside.shape[1]), folder), x.shape[1]
    np.multiply(x, np.sqrt(1 / (1 + OF_CONTRAST), dtype=np.float32), out=found[:, :width])
    np.multiply(beside, np.sqrt(OF_CONTRAST / (1 + OF_CONTRAST), dtype=np.float32), out=found[:, width:])
    return found


def match_known(clusters: NDArray[np.int64], labels: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the clusters (k,) in an order in which the first are the known classes.

    Plain k-means ignores labels: each class gets the cluster that one match of the labelled images gives it, and a
    class without a match one of the remaining clusters.
    """
    rows = labels >= 0
    known = np.unique(labels[rows])
    cluster_of = {label: cluster for cluster, label in metrics.match(labels[rows], clusters[rows], old=known).items()}
    left = iter(sorted(set(range(k)) - set(cluster_of.values())))
    first = [cluster_of[label] if label in cluster_of else next(left) for label in known.tolist()]
    return np.array([*first, *left], dtype=np.int64)


def _cluster_by_head(x: Features, images: ImageSet, head: Features) -> tuple[NDArray[np.int64], Features]:
    """Cluster by a classifier's scores; centres are means or, for a cluster without images, the head's direction."""
    weights = head[:, :-1] / np.maximum(np.linalg.norm(head[:, :-1], axis=1, keepdims=True), 1e-12)
    chosen = place(x, weights, 1.0, head=head).row
    clusters = np.where(images.labelled, np.searchsorted(images.known, images.labels), chosen)
    return clusters, results.add_to_means(weights, np.zeros(len(head), dtype=np.int64), clusters, x)[0]


def cluster_by_method(job: Job, rows: Rows, images: ImageSet, k: int | None) -> tuple[Ints, Features]:
    """Return the cluster (n,) of each image, and the centres; without k, the method finds it, otherwise k is a wish."""
    of, recipe = registration_of(job.recipe.method), job.recipe
    function = loaded(of.cluster)

    def compute() -> tuple[Ints, Features]:
        found = function(rows.x.copy(), images.labels.copy(), k, recipe.losses, recipe.training.seed)
        return arranged(checked(found, len(images), of.name), images.labels, rows.x)

    return job.processes.by_first(compute)


def checked(found: object, n: int, method: str) -> Ints:
    """Return what a method's function has returned as (n,) whole numbers, if that is what it is."""
    clusters = np.asarray(found)
    if clusters.shape != (n,) or clusters.dtype.kind not in "iu" or not (clusters >= 0).any():
        raise SortalError(
            f"The clustering of {method} must return a whole number for each of {plural(n, 'image')}, below 0 for "
            f"none, got {clusters.dtype} of shape {clusters.shape}."
        )
    return clusters.astype(np.int64)


def arranged(clusters: Ints, labels: Ints, x: Features) -> tuple[Ints, Features]:
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
