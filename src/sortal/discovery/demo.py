"""A demonstration on handwritten digits: half of 0–4 labelled, 5–9 unlabelled, sorted like any folder."""

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.config import AUTO, CONVNET, Auto
from sortal.discovery.pipeline import discover
from sortal.discovery.run_places import ANOTHER_FOLDER, check_output_folder
from sortal.errors import InputError
from sortal.images.datasets import digits
from sortal.images.image_set import ImageSet
from sortal.images.reading import read_images
from sortal.images.store.packing import Settings, pack
from sortal.metrics import Accuracy, accuracy
from sortal.runs.run import Run
from sortal.system.progress import Runtime

DIGIT_SIDE = 8  # of the images, in pixels
K_MAX = 100
IMAGES_FOLDER = "images"  # folder of the digits within the run's
DEMO_FOLDER = "digits-run"


@dataclass(frozen=True, kw_only=True, eq=False)
class DemoResult:
    """The run, and its accuracy beside that of k-means on the pixels with the same k, on the unlabelled images."""

    run: Run
    plain: Accuracy  # k-means on pixels
    semi_supervised: Accuracy  # on pixels, with all labels
    discovered: Accuracy
    k_true: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        kinds = ("plain", "semi_supervised", "discovered")
        return {
            **self.run.to_json(),
            "accuracy": {kind: vars(getattr(self, kind)) for kind in kinds},
            "k_true": self.k_true,
            "seconds": self.seconds,
        }


def run(
    out: str | os.PathLike[str] = DEMO_FOLDER,
    *,
    k: int | Auto = AUTO,
    labelled: float = 0.5,
    epochs: int | Auto = AUTO,
    seed: int = 0,
    runtime: Runtime = Runtime(),
) -> DemoResult:
    """Write the digits as files into the folder of the run, sort them, and cluster their pixels for comparison."""
    start = perf_counter()
    folder = Path(out) / IMAGES_FOLDER
    check_output_folder(Path(out), [os.path.abspath(folder)], force=False)  # before writing into it
    runtime.progress("Writing images", 0, 0)
    images = _images(folder, labelled, seed)
    table = folder / digits.TABLE
    found = discover(
        folder, labels=table, out=out, backbone=CONVNET, k=k, k_max=K_MAX, epochs=epochs, seed=seed, runtime=runtime
    )
    runtime.progress("Clustering pixels", 0, 0)
    pixels = grey_pixels(images, found.cache / "pixels")
    truth, hidden, old = images.truth, images.unlabelled, range(len(images.classes))

    def cluster(labels: NDArray[np.int64] | None) -> Accuracy:
        model = SemiSupervisedKMeans(len(found.categories), n_init=100, random_state=seed, device=runtime.device)
        return accuracy(truth[hidden], model.fit(pixels, labels).labels_[hidden], old=old)

    assert found.metrics is not None  # the truth is known
    return DemoResult(
        run=found,
        plain=cluster(None),
        semi_supervised=cluster(np.asarray(images.labels)),
        discovered=found.metrics.accuracy,
        k_true=len(images.classes) + len(images.new_classes),
        seconds=perf_counter() - start,
    )


def grey_pixels(images: ImageSet, folder: Path) -> NDArray[np.float32]:
    """Return the images as L2-normalised grey pixels, (n, 64), packed into `folder`."""
    store = pack(images, folder, settings=Settings(shorter_side=DIGIT_SIDE))
    rows = np.arange(len(store))
    x = store.crops(rows, 0 * rows, 0 * rows, DIGIT_SIDE)[..., 0].reshape(len(store), -1).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _images(folder: Path, labelled: float, seed: int) -> ImageSet:
    """Write the digits, or read those of an earlier call with the same labels."""
    table = folder / digits.TABLE
    if not table.exists():
        return digits.write(folder, labelled=labelled, seed=seed)
    images, names = read_images(folder, labels=table), digits.labels(labelled, seed)
    if [images.classes[i] if i >= 0 else "" for i in images.labels] != names:
        raise InputError(
            f"The digits in {str(folder)!r} were labelled otherwise than with labelled={labelled} and seed={seed}.",
            ANOTHER_FOLDER,
        )
    return images
