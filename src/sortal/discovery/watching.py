"""Accuracy by the truth after each epoch, for whoever studies a method: written apart, where nothing reads it.

Training, selection and counting get images without their truth, so what is watched cannot lead them.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal import metrics
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.images.image_set import ImageSet
from sortal.learning.image_table import ImageTable
from sortal.system.open_folder import make_folder
from sortal.system.progress import OnEpoch

WATCHED = "watched.jsonl"


def without_truth(images: ImageSet) -> ImageSet:
    return replace(images, truth=np.full(len(images), -1))


def watching(truth: NDArray[np.int64], path: Path, *, seed: int, then: OnEpoch | None = None) -> OnEpoch:
    """Return what appends the accuracy after an epoch to a file; `truth` (n,) is that of the images of training.

    Features are clustered into the true number of classes by semi-supervised k-means. `then` is called afterwards.
    """
    make_folder(path.parent)

    def watch(epoch: int, images: ImageTable, figures: Mapping[str, float]) -> None:
        of, labels = truth[images.rows], images.labels.cpu().numpy()
        x, k, free = images.features().cpu().numpy(), len(np.unique(of[of >= 0])), (labels < 0) & (of >= 0)
        if k and free.any():
            model = SemiSupervisedKMeans(max(k, len(np.unique(labels[labels >= 0]))), n_init=1, random_state=seed)
            clusters = model.fit(x, labels).labels_
            found = metrics.accuracy(of[free], clusters[free], old=np.unique(labels[labels >= 0]).tolist())
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps({'epoch': epoch, **asdict(found)})}\n")
        if then is not None:
            then(epoch, images, figures)

    return watch
