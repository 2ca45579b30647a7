"""The outcome of a run: images in categories, how sure that is, how good it is where the truth is known."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import sortal
from sortal import categories, kept
from sortal.confidence import Confidence, calibrate, place
from sortal.config import Recipe
from sortal.evaluation import evaluate
from sortal.images import ImageSet
from sortal.inputs import choose_device
from sortal.job import Job
from sortal.network import Backbone
from sortal.pixels import Quarantined
from sortal.run import UNSURE, Assignments, Run
from sortal.store import PixelStore
from sortal.train import Trained


def gather(
    job: Job,
    images: ImageSet,
    held: NDArray[np.bool_],
    x: NDArray[np.float32],
    clusters: NDArray[np.int64],
    centres: NDArray[np.float32],
    k: dict[str, Any],
    store: PixelStore,
    quarantine: tuple[Quarantined, ...],
    head: NDArray[np.float32] | None = None,
) -> Run:
    """Categories, confidence and, where the truth is known, how good they are.

    Cluster j is the j-th known class, or new; a labelled image is in its class, also one that was `held` out (n,).
    """
    classes = np.unique(images.labels[images.labels >= 0])
    n_known = len(classes)
    labelled = images.labels >= 0
    own = np.where(labelled, np.searchsorted(classes, images.labels), clusters)
    confidence = calibrate(
        x,
        centres,
        clusters,
        held_out=held,
        truth=own,
        unsure_below=job.settings.unsure_below,
        unlabelled=~labelled,
        n_known=n_known,
        head=None if head is None else head.astype(np.float64),
    )
    names = categories.names_for([images.classes[i] for i in classes], len(centres) - n_known)
    assignments = assign(images, store.digests, x, centres, n_known, confidence, category=own)
    return Run(
        folder=job.place,
        about={"centre_sizes": np.bincount(clusters, minlength=len(centres)).tolist()},
        assignments=assignments,
        categories=categories.describe(assignments, names, n_known, x, centres),
        k=k,
        confidence=confidence.to_json(),
        metrics=evaluate(assignments, names, n_known),
        features=x,
        centres=centres,
        quarantine=quarantine,
        head=head,
    )


def confidence_of(run: Run) -> Confidence:
    """What turned the features of a saved run into confidence."""
    return Confidence.from_json(run.confidence, None if run.head is None else run.head.astype(np.float64))


def assign(
    images: ImageSet,
    contents: NDArray[np.bytes_],
    x: NDArray[np.float32],
    centres: NDArray[np.float32],
    n_known: int,
    confidence: Confidence,
    *,
    category: NDArray[np.int64] | None = None,
    folder: int = 0,
) -> Assignments:
    """Images in the given category or, without one, in the nearest."""
    names = (*images.classes, *images.new_classes, None)
    nothing = np.zeros(len(images))
    blank = Assignments(
        files=images.files,
        folders=np.full(len(images), folder),
        contents=tuple(content.decode() for content in contents.tolist()),
        labels=tuple(names[i] for i in images.labels.tolist()),
        truth=tuple(names[i] for i in images.truth.tolist()),
        category=np.zeros(len(images), np.int64) if category is None else category,
        status=np.full(len(images), UNSURE),
        confidence=nothing,
        distance=nothing,
        next_category=np.zeros(len(images), np.int64),
        next_distance=nothing,
    )
    return placed(blank, x, centres, n_known, confidence, anew=category is None)


def placed(
    assignments: Assignments,
    x: NDArray[np.float32],
    centres: NDArray[np.float32],
    n_known: int,
    confidence: Confidence,
    *,
    anew: bool = False,
) -> Assignments:
    """The same images as the centres are now: in their categories, or `anew` in the nearest, or that of a head."""
    told = None if anew else assignments.category
    among = place(x, centres, confidence.temperature, category=told, head=confidence.head)
    labelled = np.array([label is not None for label in assignments.labels], dtype=bool)
    sure = np.where(labelled, 1.0, confidence.of(among))
    return replace(
        assignments,
        category=among.category,
        status=categories.statuses(labelled, among.category, n_known, sure >= confidence.unsure_below),
        confidence=sure,
        distance=among.distance,
        next_category=among.next_category,
        next_distance=among.next_distance,
    )


def about(
    job: Job,
    backbone: Backbone,
    trained: Trained | None,
    images: ImageSet,
    assignments: Assignments,
    x: NDArray[np.float32],
    recipe: Recipe,
) -> dict[str, Any]:
    """What run.json says, but for how long it took."""
    packages = ("numpy", "scikit-learn", "timm", "torch")
    gpu = f", {torch.cuda.get_device_name()}" if job.on_gpu else ""
    return {
        "cache": None if job.shared is None else os.path.abspath(job.shared),
        "images": [{"folder": job.source, "images": len(images), "paths": elsewhere(images, job.source)}],
        "settings": asdict(job.settings),
        "recipe": asdict(recipe),
        "command": job.command,
        "classes": [images.classes[i] for i in np.unique(images.labels[images.labels >= 0])],
        "backbone": asdict(backbone.spec),
        "weights": backbone.source,
        "precision": recipe.training.precision,
        "training": None if trained is None else asdict(trained),
        "device": choose_device(job.device, None).type,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{gpu}",
        "versions": {
            "sortal": sortal.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "hashes": {"model": backbone.fingerprint(), **hashes(assignments, x)},
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "updates": [],
    }


def hashes(assignments: Assignments, x: NDArray[np.float32]) -> dict[str, str]:
    """Of what images there are under which labels, in whatever order, and of their features (n, d), row by row."""
    rows = sorted(zip(assignments.contents, (label or "" for label in assignments.labels), strict=True))
    return {"images": hashlib.sha256(json.dumps(rows).encode()).hexdigest(), "features": kept.hashed(x)}


def elsewhere(images: ImageSet, folder: str | None) -> dict[str, str]:
    """Files that do not open under their name in the folder, and where they do."""
    if folder is None:
        return {}
    rows = zip(images.files, map(os.path.abspath, images.paths), strict=True)
    return {file: path for file, path in rows if os.path.abspath(os.path.join(folder, file)) != path}
