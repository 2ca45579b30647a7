"""A small honest demo on handwritten digits, half of 0–4 labelled, 5–9 unknown, the same way as a user's own folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sortal.datasets import digits
from sortal.errors import InputError
from sortal.estimate import estimate_k
from sortal.images import ImageSet
from sortal.kmeans import SemiSupervisedKMeans
from sortal.metrics import Accuracy, accuracy
from sortal.packing import Settings, pack

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
    plain: Accuracy
    semi_supervised: Accuracy
    seconds: float  # the clustering and, where asked for, the estimate of k


def grey_pixels(images: ImageSet, folder: Path) -> NDArray[np.float32]:
    """The images as L2-normalised grey pixels, (n, 64); `folder` is where they are stored on the way."""
    store = pack(images, folder, settings=Settings(shorter_side=SIDE))
    rows = np.arange(len(store))
    x = store.crops(rows, 0 * rows, 0 * rows, SIDE)[..., 0].reshape(len(store), -1).astype(np.float32)
    unit: NDArray[np.float32] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit


def run(
    *,
    k: int | Literal["auto"] = 10,
    labelled: float = 0.5,
    n_init: int = 100,
    seed: int = 0,
    device: str = "auto",
    on_step: Callable[[str], None] = lambda _: None,
) -> DemoResult:
    """Cluster the digits with and without their labels; `on_step` is told what is going on."""
    on_step("Writing and reading images")
    with TemporaryDirectory() as folder:
        images = digits.write(Path(folder, "digits"), labelled=labelled, seed=seed)
        x = grey_pixels(images, Path(folder, "pixels"))
    labels, truth, unlabelled, n_old = images.labels, images.truth, images.unlabelled, len(images.classes)
    if k != "auto" and not n_old <= k <= len(x):
        raise InputError(f"k must be from {n_old} (the labelled classes) to {len(x)} (the images), got {k}.")

    def cluster(y: NDArray[np.int64]) -> Accuracy:
        model = SemiSupervisedKMeans(n_clusters, n_init=n_init, random_state=seed, device=device).fit(x, y)
        return accuracy(truth[unlabelled], model.labels_[unlabelled], old=range(n_old))

    start = perf_counter()
    if k == "auto":
        on_step("Estimating the number of classes")
        n_clusters = estimate_k(
            x,
            labels,
            k_max=K_MAX,
            random_state=seed,
            device=device,
            callback=lambda at: on_step(f"Estimating the number of classes: {at.k} scores {at.score:.3f}"),
        ).k
    else:
        n_clusters = k
    on_step("Clustering without labels")
    plain = cluster(np.full_like(labels, -1))
    on_step("Clustering with labels")
    semi_supervised = cluster(labels)
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
        seconds=perf_counter() - start,
    )
