"""The number of categories, and the category of each image, from features; both are cached.

Images are clustered by features averaged with those of their neighbours (`smooth`), if the recipe has any.
"""

from contextlib import suppress
from dataclasses import asdict

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray

from sortal import metrics
from sortal.clustering.estimate_k import Evaluation, KEstimate, Method, estimate_k, separation
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.clustering.points import Points, full_precision
from sortal.config import Discovery, Recipe
from sortal.discovery import results
from sortal.discovery.job import Job
from sortal.discovery.stability import cluster_again
from sortal.images.image_set import ImageSet
from sortal.runs import cache
from sortal.runs.confidence import Features, Floats, place
from sortal.runs.facts import KChoice, TriedK
from sortal.system.files import write_atomically
from sortal.system.json_records import read_record
from sortal.system.progress import Runtime

SMOOTHINGS = 2  # rounds of averaging with neighbours
BLOCK = 2**26  # similarities at once


def estimator(recipe: Recipe) -> Method:
    """Return the rule that estimates k: features trained with the labels need another than the paper's."""
    return "separation" if recipe.learns and recipe.estimate_on == "learned" else "brent"


def choose_k(job: Job, x: Features, smoothed: Features, images: ImageSet, runtime: Runtime) -> KChoice:
    """Return the given number of categories, or estimate it."""
    settings = job.settings
    if isinstance(settings.k, str):
        return estimated_k(job, x, smoothed, images, runtime)
    return KChoice(k=settings.k, estimated=False, known=len(np.unique(images.labels[images.labelled])))


def estimated_k(job: Job, x: Features, smoothed: Features, images: ImageSet, runtime: Runtime) -> KChoice:
    """Estimate the number of categories; every k that is tried is cached at once.

    Of the ks that features (n, d) leave likely, take the one that separates smoothed features best: with less noise,
    more ks can be told apart. Alone, they would not do, as smoothing draws any few neighbours together, so that
    hundreds of small clusters may look separate.
    """
    bounds = bounds_of_k(job.settings, images)
    found = _estimate(job, x, images, bounds, runtime)
    k = found.k if smoothed is x else _estimate(job, smoothed, images, found.interval, runtime).k
    curve = tuple(TriedK(k=each.k, score=each.score, each=each.each) for each in found.curve)
    return KChoice(k=k, estimated=True, known=bounds[0], interval=found.interval, method=found.method, curve=curve)


def bounds_of_k(settings: Discovery, images: ImageSet) -> tuple[int, int]:
    """Return the smallest and the largest number of categories that may be estimated."""
    known = len(np.unique(images.labels[images.labelled]))
    return known, min(settings.k_max, known + int(images.unlabelled.sum()))


def _estimate(job: Job, x: Features, images: ImageSet, bounds: tuple[int, int], runtime: Runtime) -> KEstimate:
    """Estimate the number of categories within bounds."""
    settings, method = job.settings, estimator(job.recipe)
    key = cache.key("k", method, cache.hashed(x, images.labels), *bounds, settings.seed)
    path = job.cache / "k" / f"{key}.json"
    tried = [read_record(Evaluation, each) for each in cache.load(path) or []]

    def on_k(at: Evaluation) -> None:
        tried.append(at)
        cache.save(path, [asdict(each) for each in tried])
        runtime.progress(f"Estimating the number of classes: k = {at.k} scores {at.score:.3f}", 0, 0)

    return estimate_k(
        x,
        images.labels,
        k_min=bounds[0],
        k_max=bounds[1],
        method=method,
        random_state=settings.seed,
        device=runtime.device,
        callback=on_k,
        known=tuple(tried),
    )


def cluster(
    job: Job, x: Features, smoothed: Features, images: ImageSet, k: int, head: Features | None
) -> tuple[NDArray[np.int64], Features]:
    """Return the cluster (n,) of each image, and the centres; the first clusters are the known classes."""
    if head is not None:
        return _cluster_by_head(x, images, head)
    semi_supervised = job.recipe.clustering == "semi-supervised"
    clusters, centres = fit(job, smoothed, images.labels if semi_supervised else None, k)
    if not semi_supervised:
        order = match_known(clusters, images.labels, k)
        clusters, centres = np.argsort(order)[clusters], centres[order]
    if smoothed is not x:  # new images are placed by features as they are
        centres = means_of(x, clusters, k)
    return clusters, centres


def means_of(x: Features, clusters: NDArray[np.int64], k: int) -> Features:
    """Return the mean (k, d) of the features (n, d) in each cluster (n,); 0 for an empty one."""
    return results.add_to_means(np.zeros((k, x.shape[1]), np.float32), np.zeros(k, np.int64), clusters, x)[0]


def fit(job: Job, x: Features, labels: NDArray[np.int64] | None, k: int) -> tuple[NDArray[np.int64], Features]:
    """Return the clusters (n,) and the centres of k-means."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    settings = job.settings
    inputs = cache.hashed(x, np.zeros(0) if labels is None else labels), k, settings.n_init, settings.seed
    path = job.cache / "clusters" / f"{cache.key('clusters', *inputs)}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        held = load_file(path)
        return held["clusters"], held["centres"]
    model = SemiSupervisedKMeans(k, n_init=settings.n_init, random_state=settings.seed, device=job.runtime.device)
    model.fit(x, labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    centres = np.ascontiguousarray(model.cluster_centers_)
    write_atomically(path, save({"clusters": model.labels_, "centres": centres}))
    return model.labels_, centres


def separation_of(x: Features, labels: NDArray[np.int64], centres: Features, device: torch.device) -> float:
    """Return how well clusters with these centres (k, d) separate the unlabelled of the features (n, d); 0 for one."""
    if len(centres) == 1:
        return 0.0
    rows = torch.from_numpy(x).to(device)
    points = Points(rows, torch.from_numpy(np.flatnonzero(labels < 0)).to(device))
    known = torch.from_numpy(np.unique(labels[labels >= 0], return_counts=True)[1]).to(device)
    with full_precision(device):
        relative = torch.from_numpy(centres).to(device) - points.mean.to(rows.dtype)
        return separation(points, relative, known)


def repeat(
    job: Job, x: Features, images: ImageSet, order: NDArray[np.int64], clusters: NDArray[np.int64], k: int
) -> Floats | None:
    """Return how often each image (n,) stays in its cluster when clustering is repeated, or None if it cannot be."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    seed = job.settings.seed
    labels = np.full(len(x), -1) if job.recipe.clustering == "kmeans" else images.labels
    path = job.cache / "stability" / f"{cache.key('stability', cache.hashed(x, labels, clusters), k, seed)}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        return load_file(path)["agreement"]
    found = cluster_again(x, labels, clusters, k, order=order, seed=seed, device=job.runtime.device)
    if found is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save({"agreement": found}))
    return found


@torch.no_grad()
def smooth(x: Features, neighbours: int, device: torch.device) -> Features:
    """Average each of the unit rows (n, d) with the mean of its nearest `neighbours`, half and half, twice."""
    count = min(neighbours, len(x) - 1)
    if count < 1:
        return x
    rows = torch.from_numpy(x).to(device)
    for _ in range(SMOOTHINGS):
        means = torch.empty_like(rows)
        for part in torch.arange(len(rows), device=device).split(max(BLOCK // len(rows), 1)):
            alike = rows[part] @ rows.T
            alike[torch.arange(len(part), device=device), part] = -torch.inf  # not itself
            means[part] = rows[alike.topk(count, dim=1).indices].mean(1)
        rows = nnf.normalize(rows + means, dim=1)
    return rows.cpu().numpy()


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
    known = np.unique(images.labels[images.labelled])
    clusters = np.where(images.labelled, np.searchsorted(known, images.labels), chosen)
    return clusters, results.add_to_means(weights, np.zeros(len(head), dtype=np.int64), clusters, x)[0]
