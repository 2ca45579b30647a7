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
from sortal.discovery.grouping import shared_kmeans
from sortal.discovery.job import Job
from sortal.images.image_set import ImageSet
from sortal.learning.batches import ImageTable
from sortal.system import cache
from sortal.system.distributed import alone
from sortal.system.open_folder import CACHE, make_folder, own_folder
from sortal.system.progress import ROUND, OnEpoch

WATCHED = "watched.jsonl"


def without_truth(images: ImageSet) -> ImageSet:
    return replace(images, truth=np.full(len(images), -1))


def watching(truth: NDArray[np.int64], path: Path, *, seed: int, then: OnEpoch | None = None) -> OnEpoch:
    """Return what appends the accuracy after an epoch to a file; `truth` (n,) is that of the images of training.

    Features are clustered into the true number of classes, `k`, by semi-supervised k-means, started once: not by what
    sorts the images in the end, which is not there yet. Each row also has the round of training, how many classes had
    labels in it (`known`; some are hidden while Sortal's own method learns to count) and how many images are scored.
    `then` is called afterwards.
    """
    make_folder(path.parent)

    def watch(epoch: int, images: ImageTable, figures: Mapping[str, float]) -> None:
        of, labels = truth[images.rows], images.labels.cpu().numpy()
        x, k, free = images.features().cpu().numpy(), len(np.unique(of[of >= 0])), (labels < 0) & (of >= 0)
        if k and free.any():
            known = np.unique(labels[labels >= 0])
            given, most = labels if len(known) else None, max(k, len(known))
            clusters = shared_kmeans.fit(x, given, most, n_init=1, seed=seed, processes=alone("cpu")).labels
            found = metrics.accuracy(of[free], clusters[free], old=known.tolist())
            row = {"round": int(figures.get(ROUND, 1)), "epoch": epoch, "k": most, "known": len(known)}
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row | {'images': int(free.sum())} | asdict(found))}\n")
        if then is not None:
            then(epoch, images, figures)

    return watch


def watched_by(job: Job) -> Path:
    """Return the file of what is watched while a job learns."""
    key = cache.key("watched", asdict(job.recipe), job.settings.k)
    return own_folder(job.place) / CACHE / "watched" / f"{key}.jsonl"
