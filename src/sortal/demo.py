"""A small honest demo on handwritten digits, half of 0–4 labelled, 5–9 unknown, the same way as a user's own folder."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sortal.backbone import load_backbone
from sortal.config import CONVNET, TINY_CONTRAST, TINY_TRAINING
from sortal.datasets import digits
from sortal.errors import InputError
from sortal.estimate import estimate_k
from sortal.features import extract
from sortal.images import ImageSet
from sortal.kmeans import SemiSupervisedKMeans
from sortal.methods import Contrastive
from sortal.metrics import Accuracy, accuracy
from sortal.packing import Settings, pack
from sortal.train import train
from sortal.workers import Progress

SIDE = 8  # of the images, in pixels
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
    plain: Accuracy  # k-means on pixels
    semi_supervised: Accuracy  # on pixels
    learned: Accuracy | None  # semi-supervised k-means on learned features; None where nothing was learned
    seconds: float  # all but the writing and reading of images


def grey_pixels(images: ImageSet, folder: Path) -> NDArray[np.float32]:
    """The images as L2-normalised grey pixels, (n, 64); `folder` is where they are stored on the way."""
    store = pack(images, folder, settings=Settings(shorter_side=SIDE))
    rows = np.arange(len(store))
    x = store.crops(rows, 0 * rows, 0 * rows, SIDE)[..., 0].reshape(len(store), -1).astype(np.float32)
    unit: NDArray[np.float32] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit


def learned_features(
    images: ImageSet, folder: Path, *, epochs: int, seed: int, device: str = "auto", on_progress: Progress
) -> NDArray[np.float32]:
    """The images as features of a small network that learns from them, from scratch, (n, 512)."""
    backbone = load_backbone(CONVNET, seed=seed)
    store = pack(images, folder, settings=Settings(shorter_side=backbone.spec.shorter_side))
    config = replace(TINY_TRAINING, epochs=epochs, seed=seed)
    method = Contrastive(backbone, TINY_CONTRAST, seed=seed)
    train(method, images, store, config, device=device, on_progress=on_progress)
    return extract(backbone, store, normalise=True, device=device, precision=config.precision)


def run(
    *,
    k: int | Literal["auto"] = 10,
    labelled: float = 0.5,
    epochs: int = TINY_TRAINING.epochs,
    n_init: int = 100,
    seed: int = 0,
    device: str = "auto",
    on_progress: Progress = lambda *_: None,
) -> DemoResult:
    """Cluster the digits on pixels, with and without their labels, and on features learned from them."""

    def on_step(what: str) -> None:
        on_progress(what, 0, 0)

    if epochs < 0:
        raise InputError(f"epochs must be at least 0, got {epochs}.")
    on_step("Writing and reading images")
    with TemporaryDirectory() as folder:
        images = digits.write(Path(folder, "digits"), labelled=labelled, seed=seed)
        pixels = grey_pixels(images, Path(folder, "pixels"))
        labels, truth, unlabelled, n_old = images.labels, images.truth, images.unlabelled, len(images.classes)
        if k != "auto" and not n_old <= k <= len(pixels):
            raise InputError(f"k must be from {n_old} (the labelled classes) to {len(pixels)} (the images), got {k}.")
        start = perf_counter()
        features = None
        if epochs:
            features = learned_features(
                images, Path(folder, "pixels"), epochs=epochs, seed=seed, device=device, on_progress=on_progress
            )

    def cluster(x: NDArray[np.float32], y: NDArray[np.int64]) -> Accuracy:
        model = SemiSupervisedKMeans(n_clusters, n_init=n_init, random_state=seed, device=device).fit(x, y)
        return accuracy(truth[unlabelled], model.labels_[unlabelled], old=range(n_old))

    if k == "auto":
        on_step("Estimating the number of classes")
        n_clusters = estimate_k(
            pixels if features is None else features,
            labels,
            k_max=K_MAX,
            random_state=seed,
            device=device,
            callback=lambda at: on_step(f"Estimating the number of classes: {at.k} scores {at.score:.3f}"),
        ).k
    else:
        n_clusters = k
    on_step("Clustering without labels")
    plain = cluster(pixels, np.full_like(labels, -1))
    on_step("Clustering with labels")
    semi_supervised = cluster(pixels, labels)
    learned = None if features is None else cluster(features, labels)
    return DemoResult(
        n_labelled=int(images.labelled.sum()),
        n_unlabelled=int(unlabelled.sum()),
        old=tuple(map(int, images.classes)),
        new=tuple(map(int, images.new_classes)),
        k=n_clusters,
        k_true=n_old + len(images.new_classes),
        k_estimated=k == "auto",
        plain=plain,
        semi_supervised=semi_supervised,
        learned=learned,
        seconds=perf_counter() - start,
    )
