"""Bounds of a task: k-means on the features of the network as it came, and a linear probe that is told the truth."""

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from sortal import metrics
from sortal.discovery.grouping.clusters import Rows, fit
from sortal.discovery.job import Job
from sortal.discovery.results import features_of
from sortal.images.image_set import ImageSet
from sortal.images.store.packing import select_readable
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.research.benchmark.records import Bounds
from sortal.runs.confidence import Features
from sortal.runs.facts import SplitScores
from sortal.system import cache
from sortal.system.json_records import read_record
from sortal.system.progress import Runtime

FOLDS = 5
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the probe, as shares of the mean eigenvalue


def bounds_of(job: Job, backbone: Backbone, pixels: PixelStore, runtime: Runtime) -> Bounds:
    """Score both on the unlabelled images of a job whose truth is known; cached.

    The floor has the true k and no labels. Neither depends on the method, if the backbone is not trained yet.
    """
    everything, store = select_readable(job.images, pixels)
    to_sort = ~everything.validation
    images, seed = everything.select(to_sort), job.settings.seed
    x = features_of(job, backbone, store.select(to_sort), runtime)
    inputs = cache.hashed(x, images.labels, images.truth), len(images.classes), job.settings.n_init, seed
    path = job.cache / "bounds" / f"{cache.key('bounds 2', *inputs)}.json"
    if (held := job.processes.by_first(lambda: cache.load(path))) is not None:
        return read_record(Bounds, held)
    known = images.truth >= 0
    k = len(np.unique(images.truth[known]))
    clusters = fit(job, Rows(x, 0, job.processes, job.cache), None, k).clusters
    free = images.unlabelled & known
    predicted = probe(x[known], images.truth[known], free[known], seed=seed)
    floor = _scores(images, free, clusters[free])
    found = Bounds(floor=floor, ceiling=_scores(images, free, predicted, by_name=True))
    if job.processes.is_first:
        cache.save(path, asdict(found))
    return found


def probe(x: Features, truth: NDArray[np.int64], evaluated: NDArray[np.bool_], *, seed: int = 0) -> NDArray[np.int64]:
    """Predict the classes of the evaluated rows of x (n, d) by ridge regression on the truth (n,) of all others.

    The evaluated rows are cut into folds, of every class about equally many, and each is predicted by a probe of all
    other rows. The penalty is the one of a few that is right most often, so the probe knows the truth twice.
    """
    classes, codes = np.unique(truth, return_inverse=True)
    rows = np.append(x, np.ones((len(x), 1), dtype=x.dtype), axis=1).astype(np.float64)  # with a constant
    targets = np.eye(len(classes))[codes]  # (n, classes)
    folds = _folds(codes, evaluated, seed)
    gram, cross = rows.T @ rows, rows.T @ targets
    scale = np.trace(gram) / len(gram)
    predicted = np.zeros((len(PENALTIES), len(x)), dtype=np.int64)
    for fold in range(FOLDS):
        out = folds == fold
        values, vectors = np.linalg.eigh(gram - rows[out].T @ rows[out])
        inner = vectors.T @ (cross - rows[out].T @ targets[out])
        turned = rows[out] @ vectors
        for at, penalty in enumerate(PENALTIES):
            weights = inner / (np.maximum(values, 0) + penalty * scale)[:, None]
            predicted[at, out] = (turned @ weights).argmax(axis=1)
    right = (predicted == codes)[:, evaluated].sum(axis=1)
    return classes[predicted[right.argmax()][evaluated]]


def _folds(codes: NDArray[np.int64], evaluated: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """Return the fold (n,) of each evaluated row, of every class in turn and in a random order; −1 for other rows."""
    folds = np.full(len(codes), -1)
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(evaluated))
    by_class = rows[np.argsort(codes[rows], kind="stable")]
    folds[by_class] = np.arange(len(rows)) % FOLDS
    return folds


def _scores(
    images: ImageSet, free: NDArray[np.bool_], clusters: NDArray[np.int64], by_name: bool = False
) -> SplitScores:
    truth, old = images.truth[free], list(range(len(images.classes)))
    found = metrics.evaluate(truth, clusters, old=old, categories=clusters if by_name else None)
    return SplitScores.of(len(truth), found)
