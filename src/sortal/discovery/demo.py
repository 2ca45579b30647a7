"""The main job on handwritten digits, half of 0–4 labelled, 5–9 unknown, the same way as on a user's own folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.config import AUTO, CONVNET, Auto
from sortal.datasets import digits
from sortal.errors import InputError
from sortal.images import ImageSet
from sortal.job import check_place
from sortal.kmeans import SemiSupervisedKMeans
from sortal.metrics import Accuracy, accuracy
from sortal.packing import Settings, pack
from sortal.pipeline import discover
from sortal.reading import read_images
from sortal.run import Run
from sortal.workers import Progress

SIDE = 8  # of the images, in pixels
K_MAX = 100  # where the search for k ends
IMAGES = "images"  # the folder of the digits, in that of the run
OUT = "digits-run"


@dataclass(frozen=True, kw_only=True, eq=False)
class DemoResult:
    """What was found, and what k-means makes of the same images' pixels, for as many classes.

    Accuracies are over the unlabelled images only.
    """

    run: Run
    plain: Accuracy  # k-means on pixels
    semi_supervised: Accuracy  # on pixels, with all labels
    discovered: Accuracy
    k_true: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        kinds = {"plain": self.plain, "semi_supervised": self.semi_supervised, "discovered": self.discovered}
        return {
            **self.run.to_json(),
            "accuracy": {name: vars(found) for name, found in kinds.items()},
            "k_true": self.k_true,
            "seconds": self.seconds,
        }


def run(
    out: str | os.PathLike[str] = OUT,
    *,
    k: int | Auto = AUTO,
    labelled: float = 0.5,
    epochs: int | Auto = AUTO,
    seed: int = 0,
    device: str = AUTO,
    on_progress: Progress = lambda *_: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> DemoResult:
    """Write the digits as files into the folder of the run, sort them, and cluster their pixels beside."""
    start = perf_counter()
    folder = Path(out) / IMAGES
    check_place(Path(out), os.path.abspath(folder), of_folder=True, force=False)  # before anything is written there
    on_progress("Writing images", 0, 0)
    images = _images(folder, labelled, seed)
    found = discover(
        folder,
        labels=folder / digits.TABLE,
        out=out,
        backbone=CONVNET,
        k=k,
        k_max=K_MAX,
        epochs=epochs,
        seed=seed,
        device=device,
        on_progress=on_progress,
        on_note=on_note,
    )
    on_progress("Clustering pixels", 0, 0)
    pixels = grey_pixels(images, found.cache / "pixels")
    truth, hidden, old = images.truth, images.unlabelled, range(len(images.classes))

    def cluster(labels: NDArray[np.int64] | None) -> Accuracy:
        model = SemiSupervisedKMeans(len(found.categories), n_init=100, random_state=seed, device=device)
        return accuracy(truth[hidden], model.fit(pixels, labels).labels_[hidden], old=old)

    assert found.metrics is not None  # the truth is known
    return DemoResult(
        run=found,
        plain=cluster(None),
        semi_supervised=cluster(np.asarray(images.labels)),
        discovered=Accuracy(**found.metrics["accuracy"]),
        k_true=len(images.classes) + len(images.new_classes),
        seconds=perf_counter() - start,
    )


def grey_pixels(images: ImageSet, folder: Path) -> NDArray[np.float32]:
    """The images as L2-normalised grey pixels, (n, 64); `folder` is where they are stored on the way."""
    store = pack(images, folder, settings=Settings(shorter_side=SIDE))
    rows = np.arange(len(store))
    x = store.crops(rows, 0 * rows, 0 * rows, SIDE)[..., 0].reshape(len(store), -1).astype(np.float32)
    unit: NDArray[np.float32] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit


def _images(folder: Path, labelled: float, seed: int) -> ImageSet:
    """The digits, written now or by an earlier call with the same labels."""
    table = folder / digits.TABLE
    if not table.exists():
        return digits.write(folder, labelled=labelled, seed=seed)
    images, names = read_images(folder, labels=table), digits.labels(labelled, seed)
    if [images.classes[i] if i >= 0 else "" for i in images.labels] != names:
        raise InputError(
            f"The digits in {str(folder)!r} must have the labels that are asked for (labelled {labelled}, "
            f"seed {seed}), and have others. Choose another folder (--out)."
        )
    return images
