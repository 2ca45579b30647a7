"""Stability of clusters: when half of the images are clustered again, or after another training run."""

from collections.abc import Sequence

import numpy as np

from sortal import metrics
from sortal.discovery.grouping import shared_kmeans
from sortal.runs.categories import jaccard
from sortal.runs.confidence import Features, Floats, Ints
from sortal.system.distributed import Processes

SPLITS = 2  # of the unlabelled images into halves, each of which is clustered
REPEAT_RESTARTS = 10  # of k-means; with one or two, a poor local optimum would look like an unstable cluster
MOST_REPEATED = 100_000  # labelled images, and unlabelled ones, that take part; of more, a random sample


def cluster_again(
    x: Features,
    labels: Ints,
    clusters: Ints,
    k: int,
    *,
    order: Ints,
    seed: int,
    groups: Ints | None = None,
    processes: Processes,
) -> Floats | None:
    """Return the share (n,) of repetitions in which an image stays in its cluster; NaN for labelled images.

    Each repetition clusters the labelled images and half of the others, and puts all others into the nearest cluster;
    clusters correspond by one match. Halves are drawn from the rows in this `order` (n,), which must not depend on file
    names; one of the `groups` (n,) is in one half, but for one at the border. None if half of the images are too few
    for k clusters. Of more than `MOST_REPEATED` images, those that are not drawn are NaN.
    """
    generator, labelled, free = np.random.default_rng(seed), order[labels[order] >= 0], order[labels[order] < 0]
    if len(labelled) > MOST_REPEATED:
        labelled = _some_of_each(labelled, labels, generator)
    if len(free) > MOST_REPEATED:
        free = generator.permutation(free)[:MOST_REPEATED]
    half = len(free) // 2
    if half == 0 or half + len(np.unique(labels[labelled])) < k:
        return None
    stayed = np.zeros(len(free))
    for _ in range(SPLITS):
        shuffled = generator.permutation(free)
        if groups is not None:
            shuffled = together(shuffled, groups)
        for part in (shuffled[:half], shuffled[half:]):
            rows = np.concatenate([labelled, part])
            number = int(generator.integers(2**31))
            found = shared_kmeans.fit(
                x[rows], labels[rows], k, n_init=REPEAT_RESTARTS, seed=number, processes=processes
            )
            again = shared_kmeans.predict(found.centres, x[free], processes)
            matched = metrics.match(clusters[free], again)
            cluster_of = np.array([matched.get(j, -1) for j in range(k)])
            stayed += cluster_of[again] == clusters[free]
    agreement = np.full(len(x), np.nan)
    agreement[free] = stayed / (2 * SPLITS)
    return agreement


def together(rows: Ints, groups: Ints) -> Ints:
    """Return rows in this order, but those of each of the groups (n,) where the first of them is."""
    _, first, inverse = np.unique(groups[rows], return_index=True, return_inverse=True)
    return rows[np.argsort(first[inverse], kind="stable")]


def _some_of_each(rows: Ints, labels: Ints, generator: np.random.Generator) -> Ints:
    """Draw at most `MOST_REPEATED` labelled rows: equally many of each class, or all it has, but at least one."""
    drawn = generator.permutation(rows)
    drawn = drawn[np.argsort(labels[drawn], kind="stable")]
    classes, starts, counts = np.unique(labels[drawn], return_index=True, return_counts=True)
    place = np.arange(len(drawn)) - np.repeat(starts, counts)
    return drawn[place < max(MOST_REPEATED // len(classes), 1)]


def overlaps(clusters: Ints, others: Sequence[Ints], k: int) -> Floats:
    """Return the largest share (k,) of images that each cluster has in common with one of another clustering.

    All cluster the same images (n,) into k clusters. The share is of the images in either of the two clusters
    (Jaccard), so half of a cluster, or two that were merged, overlap by half. It is 0 for an empty cluster.
    """
    return np.max([jaccard(clusters, other, (k, k)).max(axis=1) for other in others], axis=0)
