"""Sortal's own method: learn by contrast, count the categories, try classifiers for about as many, refine the best.

How many classes there are, and how large, is counted on learned features, so k need not be known: raw features would
mislead a classifier from the start. The count remains a guess, as some classes only come apart once a classifier learns
them, so more and fewer categories are tried, too. Classifiers start from the pretrained weights again, as contrastive
learning has drawn labelled images closer together than unlabelled ones of the same class.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sortal.config import Rounds
from sortal.discovery.grouping.choose_k import bounds_of_k, estimated_k
from sortal.discovery.grouping.clusters import fit, rows_of
from sortal.discovery.job import Job
from sortal.discovery.results import add_to_means
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.checkpoint import run_key
from sortal.learning.methods import Contrastive, Method, Sortal
from sortal.learning.token_cache import Budget, SharedTokens
from sortal.learning.train import train
from sortal.runs.confidence import Features
from sortal.runs.facts import TrainingResult
from sortal.system import cache
from sortal.system.open_folder import make_folder
from sortal.system.progress import Runtime
from sortal.system.text import plural

LEAST_UNLABELLED = 0.1  # share of a class's estimated size that is taken to be unlabelled, at least
MOST_CONTRASTIVE = 40  # epochs of contrastive learning at most; more draw labelled images away from unlabelled ones
MOST_TRIES, EPOCHS_PER_TRY = 3, 10  # classifiers at most, and the epochs that each needs if there are several
EQUAL_SEPARATION = 0.02  # separations that differ by at most this share are taken to be equal


ONCE_MORE = "That was during training; after it, the k of the run is counted once more."


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningResult:
    """The outcome of training; empty for a method that trains nothing."""

    trained: TrainingResult | None = None
    folders: tuple[Path, ...] = ()  # of its rounds; the backbone is saved in the last
    head: Features | None = None  # (k, d + 1), where the method trains a classifier
    summary: str = ""  # of what it counted between its rounds
    likely: tuple[int, int] | None = None  # range of k, from features that were not trained for one of them
    earlier: tuple[Features, ...] = ()  # (n, d) of rounds before the last, to see which categories they share


@dataclass(frozen=True, kw_only=True, eq=False)
class Count:
    """Categories counted on features, the known ones first."""

    shares: NDArray[np.float64]  # (k,) estimated numbers of unlabelled images, all positive
    clusters: NDArray[np.int64]  # (n,)
    separation: float  # of the clusters
    likely: tuple[int, int] | None  # range of k; None if k was not estimated

    @property
    def k(self) -> int:
        return len(self.shares)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """A classifier that was trained for k categories, and what was counted on its features."""

    k: int
    weights: dict[str, Tensor]  # of the backbone
    head: dict[str, Tensor]
    features: Features  # (n, d)
    counted: Count
    centres: Features  # (counted.k, d)


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
    """Train the backbone in place, in up to five rounds; `features` computes those it has now."""
    losses, training = job.recipe.losses, job.recipe.training
    assert isinstance(losses, Rounds)
    epochs = epochs_of_rounds(losses, training.epochs)
    first = Contrastive(backbone, losses.contrast(), seed=training.seed)
    key = cache.key("tokens", run_key(first, images, store, training))  # other runs may share the cache
    shared = SharedTokens(job.cache / "learn" / key)
    if backbone.has_trunk:
        make_folder(shared.folder)
    rounds = _Trainings(job, losses, backbone, images, store, features, budget, shared, runtime)
    pretrained = (weights_of(backbone), features(runtime)) if losses.restart and epochs.classifiers else None
    rounds.train(first, epochs.contrast, "Learning by contrast")
    if not epochs.classifiers:
        return rounds.result()
    x = features(runtime)
    counted = count(job, x, images, runtime)
    attempts = rounds.attempts(x, counted, epochs, pretrained or (weights_of(backbone), x))
    best = choose(attempts)
    left = training.epochs - rounds.epochs  # more than planned if fewer classifiers were tried
    if left:
        method = rounds.classifier(best.counted, best.weights, best.centres)
        method.head.load_state_dict(best.head)
        # Every image equally often: drawn as often as all others together, labelled ones would move away from them.
        rounds.train(method, left, f"Refining {_categories(best.counted.k)}", balanced=False)
    return replace(
        rounds.result(),
        summary=_summary(counted, attempts, best),
        likely=counted.likely,
        earlier=(x, *(each.features for each in attempts)),
    )


def choose(attempts: list[Attempt]) -> Attempt:
    """Return the attempt with the most categories of those that separate the images about as well as the best.

    Fewer categories are a little easier to separate, and what is merged is never told apart.
    """
    best = max(one.counted.separation for one in attempts)
    good = [one for one in attempts if one.counted.separation >= best - EQUAL_SEPARATION * abs(best)]
    return max(good, key=lambda one: (one.counted.k, one.counted.separation))


@dataclass(frozen=True)
class Epochs:
    """The epochs of contrastive learning, of all `tries` of a classifier together, and of refining the best."""

    contrast: int
    classifiers: int
    refinement: int
    tries: int


def epochs_of_rounds(losses: Rounds, epochs: int) -> Epochs:
    """Divide the epochs among the rounds; with too few for several classifiers, train one or none."""
    first = min(ceil(losses.contrastive * epochs), MOST_CONTRASTIVE)
    left = epochs - first
    classifiers = left - max(int(losses.refinement * left), int(left > 1))
    tries = MOST_TRIES if losses.ratio > 1 and classifiers >= MOST_TRIES * EPOCHS_PER_TRY else min(classifiers, 1)
    classifiers -= classifiers % max(tries, 1)
    return Epochs(first, classifiers, left - classifiers, tries)


def next_k(attempts: list[Attempt], ratio: float, bounds: tuple[int, int]) -> int | None:
    """Return how many categories to try next: more as long as more are better, then fewer; None if bounds end it."""
    tried = [one.k for one in attempts]
    more, fewer = min(round(ratio * max(tried)), bounds[1]), max(round(min(tried) / ratio), bounds[0])
    if choose(attempts).k == max(tried) and more not in tried:
        return more
    return fewer if fewer not in tried else None


def count(job: Job, x: Features, images: ImageSet, runtime: Runtime, *, k: int | None = None) -> Count:
    """Count the categories, or take k of them, and their unlabelled images on features (n, d).

    The sizes of clusters are levelled, as small ones are often parts of larger ones, before the labelled images are
    taken off.
    """
    losses = job.recipe.losses
    assert isinstance(losses, Rounds)
    known, labelled = np.unique(images.labels[images.labelled], return_counts=True)
    rows, likely = rows_of(job, x), None
    if k is None:
        estimate = estimated_k(job, rows, images, runtime)
        k, likely = estimate.k, estimate.interval
    found = fit(job, rows, images.labels if len(known) else None, k)
    sizes = levelled(np.bincount(found.clusters, minlength=k).astype(np.float64) + 1, losses.shrinkage)
    shares = np.maximum(sizes - np.pad(labelled, (0, k - len(known))), LEAST_UNLABELLED * sizes)
    return Count(shares=shares, clusters=found.clusters, separation=found.separation, likely=likely)


def means_of(x: Features, clusters: NDArray[np.int64], k: int) -> Features:
    """Return the mean (k, d) of the features (n, d) in each cluster (n,); 0 for an empty one."""
    return add_to_means(np.zeros((k, x.shape[1]), np.float32), np.zeros(k, np.int64), clusters, x)[0]


def levelled(sizes: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    """Draw positive sizes (k,) towards their mean, geometrically, without changing their sum; 1 makes them equal."""
    drawn = sizes ** (1 - strength) * sizes.mean() ** strength
    level: NDArray[np.float64] = drawn * sizes.sum() / drawn.sum()
    return level


@dataclass
class _Trainings:
    """Trainings of one backbone on the same images, whose tokens are computed once."""

    job: Job
    losses: Rounds
    backbone: Backbone
    images: ImageSet
    store: PixelStore
    features: Callable[[Runtime], Features]
    budget: Budget
    shared: SharedTokens
    runtime: Runtime
    done: dict[Path, TrainingResult] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        return sum(one.epochs for one in self.done.values())

    def attempts(
        self, x: Features, counted: Count, epochs: Epochs, start: tuple[dict[str, Tensor], Features]
    ) -> list[Attempt]:
        """Train classifiers for clusters of features x (n, d), from these weights and the features they give."""
        weights, features = start
        attempts: list[Attempt] = []
        k: int | None = counted.k
        while k is not None:
            begun = counted if k == counted.k else count(self.job, x, self.images, self.runtime, k=k)
            method = self.classifier(begun, weights, means_of(features, begun.clusters, k))
            self.train(method, epochs.classifiers // epochs.tries, f"Learning {_categories(k)}")
            now = self.features(self.runtime)
            found = count(self.job, now, self.images, self.runtime)
            head, centres = copied(method.head.state_dict().items()), means_of(now, found.clusters, found.k)
            attempts.append(
                Attempt(k=k, weights=weights_of(self.backbone), head=head, features=now, counted=found, centres=centres)
            )
            bounds = bounds_of_k(self.job.settings, self.images)
            k = next_k(attempts, self.losses.ratio, bounds) if len(attempts) < epochs.tries else None
        return attempts

    def classifier(self, counted: Count, weights: Mapping[str, Tensor], centres: Features) -> Sortal:
        """Load weights into the backbone, and add outputs at these centres (k, d)."""
        for name, value in self.backbone.named_parameters():
            if name in weights:
                value.data.copy_(weights[name])
        known, seed = self.images.known.tolist(), self.job.recipe.training.seed
        return Sortal(self.backbone, known, counted.shares, self.losses, centres=centres, seed=seed)

    def train(self, method: Method, epochs: int, what: str, *, balanced: bool = True) -> None:
        usual, at = self.job.recipe.training, self.runtime.prefixed(f"{what}: ")
        how = replace(usual, epochs=epochs, balanced=usual.balanced and balanced)
        folder = self.job.cache / "learn" / cache.key("learn", run_key(method, self.images, self.store, how))
        self.done[folder] = train(
            method,
            self.images,
            self.store,
            how,
            folder=folder,
            processes=self.job.processes,
            budget=self.budget,
            shared=self.shared,
            runtime=at,
        )

    def result(self) -> LearningResult:
        """Drop the tokens and summarise all trainings; the losses are those of the last one."""
        self.shared.close()
        each = tuple(self.done.values())
        seconds = sum(one.seconds for one in each)
        trained = replace(
            each[-1],
            epochs=self.epochs,
            selected=self.epochs - 1,
            seconds=seconds,
            images_per_second=sum(one.images_per_second * one.seconds for one in each) / max(seconds, 1e-9),
            devices=tuple(dict.fromkeys(name for one in each for name in one.devices)),
            setbacks=tuple(text for one in each for text in one.setbacks),
        )
        return LearningResult(trained=trained, folders=tuple(self.done))


def weights_of(backbone: Backbone) -> dict[str, Tensor]:
    """Copy the weights that are trained."""
    return copied((name, value) for name, value in backbone.named_parameters() if value.requires_grad)


def copied(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tensors}


def _categories(k: int) -> str:
    return plural(k, "category", "categories")


def _summary(counted: Count, attempts: list[Attempt], best: Attempt) -> str:
    """Summarise what was counted during training; the k of the run is counted on the features that it ends with."""
    text = f"Counted {_categories(counted.k)} after contrastive learning"
    if len(attempts) == 1:
        text += f", and {best.counted.k} after training a classifier for them."
    else:
        tried = ", ".join(f"{one.counted.separation:.3f} for {one.k}" for one in attempts)
        text += f". Separation of the images by classifiers, by the number of their categories: {tried}. "
        text += f"The one for {best.k} was trained further, with {_categories(best.counted.k)}."
    return f"{text} {ONCE_MORE}"
