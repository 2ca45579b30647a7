"""Sortal's own method: count the categories, learn by contrast, train a classifier for as many, count again, refine.

How many classes there are, and how large, is counted on learned features, so k need not be known: raw features would
mislead a classifier from the start, and so would a wrong k, which its outputs make real. Features to count on are
learned without the labels of some known classes, as the only evidence of how finely to cut. The count remains a guess,
so it is repeated on what the classifier has learned; classifiers for more and fewer categories can be tried, too. They
start from the pretrained weights again, as contrast has drawn labelled images closer together than unlabelled ones of
the same class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sortal.config import AUTO, Auto, Rounds
from sortal.discovery.grouping.choose_k import bounds_of_k
from sortal.discovery.grouping.clusters import Rows, fit, rows_of
from sortal.discovery.grouping.counting import (
    KDistribution,
    Pilot,
    count_again,
    count_first,
    hidden_classes,
    separation_scores,
)
from sortal.discovery.job import Job
from sortal.discovery.results import means_of
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import labelled_share
from sortal.learning.checkpoint import copies, run_key
from sortal.learning.methods import Contrastive, Method, Sortal
from sortal.learning.token_cache import Budget, SharedTokens
from sortal.learning.train import train
from sortal.runs.confidence import Features, Ints
from sortal.runs.facts import TrainingResult
from sortal.runs.run import MODEL
from sortal.system import cache
from sortal.system.open_folder import make_folder
from sortal.system.progress import ROUND, Runtime
from sortal.system.text import plural

LEAST_UNLABELLED = 0.1  # share of a class's estimated size that is taken to be unlabelled, at least
MOST_CONTRASTIVE = 40  # epochs of contrastive learning at most; more draw labelled images away from unlabelled ones
MOST_TRIES, EPOCHS_PER_TRY = 3, 10  # classifiers at most, and the epochs that each needs if there are several
MOST_OF_ONE = 20  # epochs of a single classifier at most, before it is refined
FULL_WEIGHT = 0.25  # labelled share of a batch from which labels have their full weight
ONCE_MORE = "That was during training; after it, the k of the run is counted once more."


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningResult:
    """The outcome of training; empty for a method that trains nothing."""

    trained: TrainingResult | None = None
    folders: tuple[Path, ...] = ()  # of its rounds; the backbone is saved in the last
    head: Features | None = None  # (k, d + 1), where the method trains a classifier
    summary: str = ""  # of what it counted between its rounds
    counted: KDistribution | None = None  # from features that were not trained for one k
    earlier: tuple[Features, ...] = ()  # (n, d) of rounds before the last, to see which categories they share

    @property
    def beside(self) -> Features | None:
        """Features (n, d) of contrast, which were trained for no number of categories; None if they are the last."""
        return self.earlier[0] if self.earlier else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Count:
    """Categories counted on features, the known ones first."""

    shares: NDArray[np.float64]  # (k,) estimated numbers of unlabelled images, all positive
    clusters: NDArray[np.int64]  # (n,)
    distribution: KDistribution

    @property
    def k(self) -> int:
        return len(self.shares)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """A classifier that was trained for k categories, and what was counted on its features."""

    k: int
    prior: float  # log density of the k that was counted, before
    separation: float  # of so many clusters of its features
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
    moments: Moments,
    *,
    features: Callable[[Runtime], Features],
    budget: Budget,
    runtime: Runtime,
) -> LearningResult:
    """Train the backbone in place, in up to six rounds; `features` computes those of each moment it has now."""
    losses, training = job.recipe.losses, job.recipe.training
    assert isinstance(losses, Rounds)
    epochs = epochs_of_rounds(losses, training.epochs)
    first = Contrastive(backbone, losses.contrast(), seed=training.seed)
    key = cache.key("tokens", run_key(first, images, store, training, moments))  # other runs may share the cache
    shared = SharedTokens(job.cache / "learn" / key)
    if backbone.has_trunk:
        make_folder(shared.folder)
    rounds = _Trainings(job, losses, backbone, images, store, moments, features, budget, shared, runtime)
    weights = weights_of(backbone)
    pretrained = (weights, features(runtime)) if losses.restart and epochs.classifiers else None
    hidden = hidden_classes(images, training.seed) if epochs.classifiers else np.zeros(0, dtype=np.int64)
    pilot = None
    if len(hidden):
        # Half of each batch is labelled, however few labels there are: known classes that come apart show that k is
        # too large. What is learned without some labels is good for counting alone.
        rounds.train(first, epochs.contrast, "Learning to count", hidden=hidden, repeats=None)
        pilot = Pilot(rows_of(job, features(runtime)), hidden)
        rounds.load(weights)
        first = Contrastive(backbone, losses.contrast(), seed=training.seed)
    rounds.train(first, epochs.contrast, "Learning by contrast", repeats=None)
    if not epochs.classifiers:
        return rounds.result()
    x = features(runtime)
    rows = rows_of(job, x)
    counted = count(job, rows, rounds.counted, runtime, pilot=pilot)
    attempts = rounds.attempts(rows, counted, epochs, pretrained or (weights_of(backbone), x))
    best = choose(attempts)
    counting = epochs.contrast if len(hidden) else 0
    left = training.epochs + counting - rounds.epochs  # more than planned if fewer classifiers were tried
    if left:
        method = rounds.classifier(best.counted, best.weights, best.centres)
        method.head.load_state_dict(best.head)
        # Every image equally often: drawn more often, labelled ones would move away from others.
        rounds.train(method, left, f"Refining {_categories(best.counted.k)}", balanced=False)
    return replace(
        rounds.result(),
        summary=_summary(counted, attempts, best),
        counted=counted.distribution,
        earlier=(x, *(each.features for each in attempts)),
    )


def choose(attempts: list[Attempt]) -> Attempt:
    """Return the attempt whose number of categories is the likeliest, given how well its features separate."""
    scores = separation_scores([one.separation for one in attempts])
    return max(zip(attempts, scores, strict=True), key=lambda pair: pair[0].prior + pair[1])[0]


def next_k(attempts: list[Attempt], prior: KDistribution, ratio: float, bounds: tuple[int, int]) -> int | None:
    """Return how many categories to try next: on the side of the best so far, or else on the other; None if neither."""
    tried = [one.k for one in attempts]
    more, fewer = min(round(ratio * max(tried)), bounds[1]), max(round(min(tried) / ratio), bounds[0])
    sides, best = [each for each in (more, fewer) if each not in tried], choose(attempts).k
    if len(tried) == 1:
        sides.sort(key=prior.score_of, reverse=True)
    elif best == min(tried):
        sides.reverse()
    return sides[0] if sides else None


def weighted(losses: Rounds, share: float) -> Rounds:
    """Return the losses with less weight on labels where few of a batch are labelled, lest they are memorised."""
    return replace(losses, supervised_weight=losses.supervised_weight * min(share / FULL_WEIGHT, 1.0))


@dataclass(frozen=True)
class Epochs:
    """The epochs of contrastive learning, of all `tries` of a classifier together, and of refining the best."""

    contrast: int
    classifiers: int
    refinement: int
    tries: int


def epochs_of_rounds(losses: Rounds, epochs: int) -> Epochs:
    """Divide the epochs among the rounds; with too few for several classifiers, train one or none.

    What a single one leaves goes to the refinement, which does not draw labelled images more often than others.
    """
    first = min(ceil(losses.contrastive * epochs), MOST_CONTRASTIVE)
    left = epochs - first
    classifiers = left - max(int(losses.refinement * left), int(left > 1))
    tries = MOST_TRIES if losses.ratio > 1 and classifiers >= MOST_TRIES * EPOCHS_PER_TRY else min(classifiers, 1)
    classifiers = min(classifiers, MOST_OF_ONE) if tries == 1 else classifiers - classifiers % max(tries, 1)
    return Epochs(first, classifiers, left - classifiers, tries)


def count(
    job: Job,
    rows: Rows,
    images: ImageSet,
    runtime: Runtime,
    *,
    pilot: Pilot | None = None,
    before: KDistribution | None = None,
    also: int | None = None,
) -> Count:
    """Count the categories and their unlabelled images on features, for the first time or once more."""
    if before is not None:
        found = count_again(job, rows, images, before, runtime, also=also)
    else:
        found = count_first(job, rows, images, bounds_of_k(job.settings, images), runtime, pilot=pilot)
    return recut(job, rows, images, found, found.k)


def recut(job: Job, rows: Rows, images: ImageSet, counted: KDistribution, k: int) -> Count:
    """Cluster features into k categories, and estimate how many unlabelled images each has.

    The sizes of clusters are levelled, as small ones are often parts of larger ones, before the labelled images are
    taken off.
    """
    losses = job.recipe.losses
    assert isinstance(losses, Rounds)
    known, labelled = np.unique(images.labels[images.labelled], return_counts=True)
    clusters = fit(job, rows, images.labels if len(known) else None, k).clusters
    sizes = levelled(np.bincount(clusters, minlength=k).astype(np.float64) + 1, losses.shrinkage)
    shares = np.maximum(sizes - np.pad(labelled, (0, k - len(known))), LEAST_UNLABELLED * sizes)
    return Count(shares=shares, clusters=clusters, distribution=counted)


def levelled(sizes: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    """Draw positive sizes (k,) towards their mean, geometrically, without changing their sum; 1 makes them equal."""
    drawn = sizes ** (1 - strength) * sizes.mean() ** strength
    return drawn * sizes.sum() / drawn.sum()


@dataclass
class _Trainings:
    """Trainings of one backbone on the same images, whose tokens are computed once."""

    job: Job
    losses: Rounds
    backbone: Backbone
    images: ImageSet
    store: PixelStore
    moments: Moments  # of the images
    features: Callable[[Runtime], Features]
    budget: Budget
    shared: SharedTokens
    runtime: Runtime
    done: dict[Path, TrainingResult] = field(default_factory=dict)

    @cached_property
    def counted(self) -> ImageSet:
        """One image of each moment, labelled if any of the moment is."""
        return self.images.select(self.moments.first)

    @property
    def epochs(self) -> int:
        return sum(one.epochs for one in self.done.values())

    def attempts(
        self, contrast: Rows, counted: Count, epochs: Epochs, start: tuple[dict[str, Tensor], Features]
    ) -> list[Attempt]:
        """Train classifiers for clusters of features of contrast, from these weights and the features they give.

        Categories are counted on the features of each beside those of contrast, as its own show the k it has learned.
        """
        (weights, features), prior = start, counted.distribution
        attempts: list[Attempt] = []
        k: int | None = counted.k
        while k is not None:
            begun = counted if k == counted.k else recut(self.job, contrast, self.counted, prior, k)
            method = self.classifier(begun, weights, means_of(features, begun.clusters, k))
            self.train(method, epochs.classifiers // epochs.tries, f"Learning {_categories(k)}")
            now = self.features(self.runtime)
            rows = rows_of(self.job, now, contrast.x)
            found = count(self.job, rows, self.counted, self.runtime, before=prior, also=k)
            attempts.append(
                Attempt(
                    k=k,
                    prior=prior.score_of(found.k),
                    separation=found.distribution.separation_of(found.k),
                    weights=weights_of(self.backbone),
                    head=copies(method.head.state_dict()),
                    features=now,
                    counted=found,
                    centres=means_of(now, found.clusters, found.k),
                )
            )
            bounds = bounds_of_k(self.job.settings, self.counted)
            k = next_k(attempts, prior, self.losses.ratio, bounds) if len(attempts) < epochs.tries else None
        return attempts

    def classifier(self, counted: Count, weights: Mapping[str, Tensor], centres: Features) -> Sortal:
        """Load weights into the backbone, and add outputs at these centres (k, d)."""
        self.load(weights)
        images, training = self.images, self.job.recipe.training
        share = labelled_share(int(images.labelled.sum()), len(images), training.repeats)
        losses, known = weighted(self.losses, share), images.known.tolist()
        views, seed = Sortal.views * training.batch_size, training.seed
        return Sortal(self.backbone, known, counted.shares, losses, batch_views=views, centres=centres, seed=seed)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights into the backbone."""
        for name, value in self.backbone.named_parameters():
            if name in weights:
                value.data.copy_(weights[name])

    def train(
        self,
        method: Method,
        epochs: int,
        what: str,
        *,
        balanced: bool = True,
        hidden: Ints | None = None,
        repeats: float | Auto | None = AUTO,
    ) -> None:
        """Train a method on the images; it does not see the labels of the classes that are `hidden`."""
        usual, at, images = self.job.recipe.training, self.runtime.prefixed(f"{what}: "), self.images
        number, on_epoch = len(self.done) + 1, at.on_epoch
        if on_epoch is not None:
            at = replace(at, on_epoch=lambda epoch, table, figures: on_epoch(epoch, table, {**figures, ROUND: number}))
        if hidden is not None and len(hidden):
            images = replace(images, labels=np.where(np.isin(images.labels, hidden), -1, images.labels))
        repeats = usual.repeats if repeats == AUTO else repeats
        how = replace(usual, epochs=epochs, balanced=usual.balanced and balanced, repeats=repeats)
        key = run_key(method, images, self.store, how, self.moments)
        folder = self.job.cache / "learn" / cache.key("learn", key)
        self.done[folder] = train(
            method,
            images,
            self.store,
            how,
            folder=folder,
            processes=self.job.processes,
            budget=self.budget,
            shared=self.shared,
            moments=self.moments,
            key=key,
            save_model=False,
            runtime=at,
        )

    def result(self) -> LearningResult:
        """Drop the tokens, save the model and summarise all trainings; the losses are those of the last one."""
        self.shared.close()
        if self.job.processes.is_first:
            self.backbone.save([*self.done][-1] / MODEL)
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
    return copies({name: value for name, value in backbone.named_parameters() if value.requires_grad})


def _categories(k: int) -> str:
    return plural(k, "category", "categories")


def _summary(counted: Count, attempts: list[Attempt], best: Attempt) -> str:
    """Summarise what was counted during training; the k of the run is counted on the features that it ends with."""
    text = f"Counted {_categories(counted.k)} after contrastive learning"
    if len(attempts) == 1:
        text += f", and {best.counted.k} after training a classifier for them."
    else:
        tried = ", ".join(f"{one.separation:.3f} for {one.k}" for one in attempts)
        text += f". Separation of the images by classifiers, by the number of their categories: {tried}. "
        text += f"The one for {best.k} was trained further, with {_categories(best.counted.k)}."
    return f"{text} {ONCE_MORE}"
