"""Sortal's own method: learn by contrast, count the categories, learn to classify them, count again, refine.

How many classes there are, and how large, is counted on learned features, so k need not be known: raw features would
mislead a classifier from the start. The second round starts from the pretrained weights again, as the first one has
drawn labelled images closer together than unlabelled ones of the same class.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sortal.config import Rounds, Training
from sortal.discovery.clusters import estimated_k, fit
from sortal.discovery.job import Job
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.checkpoint import run_key
from sortal.learning.methods import Contrastive, Method, Sortal
from sortal.learning.token_cache import Budget, SharedTokens
from sortal.learning.train import train
from sortal.runs import cache
from sortal.runs.confidence import Features
from sortal.runs.facts import TrainingResult
from sortal.system.progress import Runtime

LEAST = 0.1  # share of a class's estimated size that is taken to be unlabelled, at least
EQUAL = 0.02  # of ks that score within this share of the best, the largest is taken: what is merged is never told apart


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningResult:
    """The training of all rounds, the folder of each, and how many categories were counted between them."""

    trained: TrainingResult
    folders: tuple[Path, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Count:
    """Categories counted on features, the known ones first."""

    shares: NDArray[np.float64]  # (k,) estimated numbers of unlabelled images, all positive
    centres: Features  # (k, d)


def learn(
    job: Job,
    backbone: Backbone,
    images: ImageSet,
    store: PixelStore,
    *,
    features: Callable[[Runtime], Features],
    budget: Budget,
    runtime: Runtime,
) -> LearningResult:
    """Train the backbone in place in up to three rounds; `features` computes those it has now."""
    losses, training, seed = job.recipe.losses, job.recipe.training, job.recipe.training.seed
    assert isinstance(losses, Rounds)
    epochs = epochs_of_rounds(losses, training.epochs)
    known = np.unique(images.labels[images.labelled]).tolist()
    pretrained = {name: value.detach().clone() for name, value in _trainable(backbone)}
    first = Contrastive(backbone, losses.contrast(), seed=seed)
    key = cache.key("tokens", run_key(first, images, store, training))  # other runs may share the cache
    shared = SharedTokens(job.cache / "learn" / key)
    if backbone.has_trunk:
        shared.folder.mkdir(parents=True, exist_ok=True)
    done: dict[Path, TrainingResult] = {}
    counts: list[int] = []

    def run(method: Method, how: Training) -> None:
        folder = job.cache / "learn" / cache.key("learn", run_key(method, images, store, how))
        at = runtime.prefixed(f"Round {len(done) + 1} of {sum(map(bool, epochs))}: ")
        done[folder] = train(method, images, store, how, folder=folder, budget=budget, shared=shared, runtime=at)

    run(first, replace(training, epochs=epochs[0]))
    if epochs[1]:
        counted = count(job, features(runtime), images, runtime)
        counts.append(len(counted.shares))
        old, new = np.split(counted.shares, [len(known)])
        if losses.restart:
            for name, value in _trainable(backbone):
                value.data.copy_(pretrained[name])
        method = Sortal(backbone, known, np.concatenate([old, levelled(new, 1.0)]), losses, seed=seed)
        run(method, replace(training, epochs=epochs[1]))
    if epochs[2]:
        counted = count(job, features(runtime), images, runtime)
        counts.append(len(counted.shares))
        refined = Sortal(backbone, known, counted.shares, losses, centres=counted.centres, seed=seed)
        refined.head.load_state_dict(method.head.state_dict())
        run(refined, replace(training, epochs=epochs[2], lr=losses.refinement_lr * training.lr))
    shared.close()
    return LearningResult(trained=_joined(tuple(done.values())), folders=tuple(done), counts=tuple(counts))


def epochs_of_rounds(losses: Rounds, epochs: int) -> tuple[int, int, int]:
    """Divide the epochs among the rounds; a few epochs leave none to the later rounds."""
    first = ceil(losses.contrastive * epochs)
    last = min(int(losses.refinement * epochs), max(epochs - first - 1, 0))
    return first, epochs - first - last, last


def count(job: Job, x: Features, images: ImageSet, runtime: Runtime) -> Count:
    """Count the categories and their unlabelled images on features (n, d); a given k counts only without two classes.

    The sizes of clusters are levelled, as small ones are often parts of larger ones, before the labelled images are
    taken off.
    """
    losses, settings = job.recipe.losses, job.settings
    assert isinstance(losses, Rounds)
    known, labelled = np.unique(images.labels[images.labelled], return_counts=True)
    if len(known) < 2 and not isinstance(settings.k, str):
        k = settings.k
    else:
        tried = {each.k: each.score for each in estimated_k(job, x, images, runtime).curve}
        best = max(tried.values())
        k = max(k for k, score in tried.items() if score >= best - EQUAL * abs(best))
    clusters, centres = fit(job, x, images.labels if len(known) else None, k)
    sizes = levelled(np.bincount(clusters, minlength=k).astype(np.float64) + 1, losses.shrinkage)
    shares = np.maximum(sizes - np.pad(labelled, (0, k - len(known))), LEAST * sizes)
    return Count(shares=shares, centres=centres)


def levelled(sizes: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    """Draw positive sizes (k,) towards their mean, geometrically, without changing their sum; 1 makes them equal."""
    if not len(sizes):
        return sizes
    drawn = sizes ** (1 - strength) * sizes.mean() ** strength
    level: NDArray[np.float64] = drawn * sizes.sum() / drawn.sum()
    return level


def _trainable(backbone: Backbone) -> Iterator[tuple[str, Tensor]]:
    return ((name, value) for name, value in backbone.named_parameters() if value.requires_grad)


def _joined(rounds: tuple[TrainingResult, ...]) -> TrainingResult:
    """Summarise all rounds; the losses are those of the last one."""
    epochs, seconds = sum(each.epochs for each in rounds), sum(each.seconds for each in rounds)
    return replace(
        rounds[-1],
        epochs=epochs,
        selected=epochs - 1,
        seconds=seconds,
        images_per_second=sum(each.images_per_second * each.seconds for each in rounds) / max(seconds, 1e-9),
        setbacks=tuple(text for each in rounds for text in each.setbacks),
    )
