"""What a run would do and cost: measured on a few of its images with the code of a run, then scaled to all of them."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass, replace
from math import log, prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sortal import advice, near, pipeline, segments, tokens, workers
from sortal.backbone import RANDOM, load_backbone
from sortal.check import check
from sortal.config import AUTO, CONVNET, Auto, Discovery, MethodName, Training
from sortal.errors import InputError, listing
from sortal.estimate import estimate_k
from sortal.features import extract
from sortal.images import ImageSet
from sortal.inputs import choose_device
from sortal.job import Job
from sortal.kmeans import SemiSupervisedKMeans
from sortal.methods import Contrastive
from sortal.network import Backbone
from sortal.packing import Settings, pack
from sortal.report import layout, page, thumbnails
from sortal.space import for_people
from sortal.step import WARM
from sortal.store import PixelStore
from sortal.train import VIEWS, train

SAMPLE, PER_CORE, LARGEST = 64, 32, 512  # images that are tried: at least, for each core, and at most (and on a GPU)
STEPS, STEPS_ON_GPU = 4, 12  # of learning that are tried
ROWS, ROWS_ON_GPU = 2000, 20_000  # that are clustered
RESTARTS, RESTARTS_OF_K = 2, 10  # of k-means that are tried, and those of each k that estimate_k tries
COMPARED, PLACED = 4096, 400  # rows that near-duplicates are looked for among, and that are put on a map
TABLES = 512  # bytes of an image in all tables and lists of a run
RESTART = 50  # bytes of an image in a restart of k-means


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would do; sizes in bytes."""

    images: int
    labelled: int
    unlabelled: int
    classes: int  # known ones
    held_out: int  # labelled images that are kept for calibration
    k: int | Auto
    method: MethodName
    backbone: str
    weights: str
    device: str
    epochs: int
    views: int | None  # of an image that are kept; None computes new ones in every epoch
    tokens: tokens.Plan | None  # how much is kept of these views, and where
    memory: int  # at the peak, without that of a GPU
    disk: int  # that the run's folder takes
    free_disk: int
    seconds: dict[str, float]  # by stage
    notes: tuple[str, ...]
    unreadable_sample: tuple[str, ...]  # files of the sample that cannot be read

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))  # which has lists where here are tuples
        return values


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds: to start and end, and for each of many."""

    fixed: float
    each: float

    def seconds(self, n: int) -> float:
        return self.fixed + n * self.each


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Seconds: to start and end, for a view in the trunk, and for a step with what came out of it."""

    fixed: float = 0.0
    view: float = 0.0
    step: float = 0.0

    def seconds(self, n: int, training: Training, views: int | None) -> float:
        steps = training.epochs * max(n // training.batch_size, 1)
        through_trunk = steps * 2 * training.batch_size if views is None else n * views
        return self.fixed + through_trunk * self.view + steps * self.step if steps else 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was measured. What is in seconds is scaled to all images already."""

    check: Pace
    pixels: Pace
    features: Pace
    learning: Learning
    comparing: float  # seconds
    k: float  # seconds
    clusters: float  # seconds
    report: float  # seconds
    page: int  # bytes of the report
    stored: float  # bytes of an image's pixels
    base: int  # bytes of memory without any of the below
    working: int  # bytes of memory that learning takes beside tokens
    tiny: bool  # most images
    unreadable: tuple[str, ...]

    def stages(self, n: int, training: Training, views: int | None) -> dict[str, float]:
        return {
            "check": self.check.seconds(n) + self.comparing,
            "pixels": self.pixels.seconds(n),
            "learn": self.learning.seconds(n, training, views),
            "features": self.features.seconds(n),
            "k": self.k,
            "clusters": self.clusters,
            "report": self.report,
        }


def plan(job: Job, *, on_progress: workers.Progress = lambda *_: None) -> Plan:
    """What `discover` would do with a job, and what that costs from scratch. Its folder is not touched."""
    settings, n, device = job.settings, len(job.images), choose_device(job.device, None)
    said: list[str] = []
    backbone = _backbone(settings, said)
    method = Contrastive(backbone, advice.contrast_for(settings), seed=settings.seed)
    training = advice.training_for(settings, n, on_gpu=job.on_gpu)
    if settings.method == "kmeans":
        training = replace(training, epochs=0)
    views, kept = _kept(training, backbone, n, device, said)
    known = len(np.unique(job.images.labels[job.images.labelled]))
    k = min(2 * known, known + int(job.images.unlabelled.sum())) if settings.k == AUTO else int(settings.k)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        trial = _try(job, method, training, known, k, Path(folder), on_progress)
    found = Plan(
        images=n,
        labelled=int(job.images.labelled.sum()),
        unlabelled=int(job.images.unlabelled.sum()),
        classes=known,
        held_out=int(pipeline._held_out(job.images, settings).sum()),
        k=settings.k,
        method=settings.method,
        backbone=backbone.spec.name,
        weights=backbone.source,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        epochs=training.epochs,
        views=views,
        tokens=kept,
        memory=memory(n, backbone.spec.width, trial, kept),
        disk=disk(n, backbone.spec.width, k, trial, *_bytes(method, training)),
        free_disk=shutil.disk_usage(next(at for at in (job.place.absolute() / "_").parents if at.is_dir())).free,
        seconds={stage: round(value, 3) for stage, value in trial.stages(n, training, views).items()},
        notes=(),
        unreadable_sample=trial.unreadable,
    )
    return replace(found, notes=tuple(_notes(job, training, found, trial, said)))


def memory(n: int, width: int, trial: Trial, kept: tokens.Plan | None) -> int:
    """Bytes at the peak: what the process takes anyway, and the stage that takes most."""
    checking = n * near.LENGTH * 9 if n <= near.MOST else 0  # thumbnails, as numbers, and those less their means
    learning = trial.working + (kept.bytes if kept is not None and kept.where == "memory" else 0)
    features = 3 * 4 * n * width  # of each content, in the making, and in the order of the images
    clusters = 2 * 4 * n * width + RESTARTS_OF_K * n * RESTART
    return trial.base + max(checking, learning, features, clusters)


def disk(n: int, width: int, k: int, trial: Trial, model: int, trained: int) -> int:
    """Bytes of the run's folder; `trained` are those of what is trained, which checkpoints hold with its momentum."""
    store = round(n * (trial.stored + segments.PLAN.itemsize + 1))
    features = n * (4 * width + 32) + n * 4 * width  # in the cache, each with its content, and as a table
    clusters = 8 * n + 2 * 4 * k * width
    return store + features + clusters + model + 2 * 2 * trained + trial.page + TABLES * n


def pace(events: dict[str, list[tuple[int, float]]], seconds: float) -> Pace:
    """The pace of what took so many seconds in all, by how many were done when; each kind begins with (0, start).

    Where there are more events, the time until the first was for starting as well.
    """
    fixed, each = seconds, 0.0
    for at in events.values():
        (before, start), (done, end) = at[min(1, len(at) - 2)], at[-1]
        one = (end - start) / max(done - before, 1)
        fixed, each = fixed - done * one, each + one
    return Pace(fixed=max(fixed, 0.0), each=each)


class _Watch:
    """An `on_progress` that notes when how many were done."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.events: dict[str, list[tuple[int, float]]] = {}
        self.memory: dict[str, int] = {}  # bytes at the peak so far
        self.began = self.last = perf_counter()

    def __call__(self, what: str, done: int, total: int) -> None:
        at = self.events.setdefault(what, [(0, self.last)])
        self.mark()
        at.append((done, self.last))
        self.memory[what] = _peak()

    def mark(self, _: str = "") -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # else it is only asked for, not done
        self.last = perf_counter()

    def pace(self) -> Pace:
        self.mark()
        return pace(self.events, self.last - self.began)


def _peak() -> int:
    """The most bytes of memory that this process has had."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _backbone(settings: Discovery, said: list[str]) -> Backbone:
    """The backbone; weights that are not on this machine are not fetched, for random ones take the same time."""
    if settings.weights is not None or not _to_be_fetched(settings.backbone):
        return load_backbone(settings.backbone, weights=settings.weights, seed=settings.seed)
    said.append(f"The weights of {settings.backbone} are not on this machine: they are fetched first, once.")
    backbone = load_backbone(settings.backbone, weights=RANDOM, seed=settings.seed)
    backbone.source = "the Hugging Face hub"
    return backbone


def _to_be_fetched(name: str) -> bool:
    import timm
    from huggingface_hub import try_to_load_from_cache

    if name == CONVNET or name.endswith((".json", ".safetensors")) or Path(f"{name}.json").is_file():
        return False
    try:
        cfg = timm.get_pretrained_cfg(name)
    except RuntimeError:  # no such model, which loading it says better
        return False
    if cfg is None or not cfg.hf_hub_id:
        return False
    return not isinstance(try_to_load_from_cache(cfg.hf_hub_id, cfg.hf_hub_filename or "model.safetensors"), str)


def _kept(
    training: Training, backbone: Backbone, n: int, device: torch.device, said: list[str]
) -> tuple[int | None, tokens.Plan | None]:
    """How many views of an image training would keep, and where."""
    if not training.epochs or training.views is None or not backbone.has_trunk:
        return None, None
    views = VIEWS if isinstance(training.views, str) else training.views
    kept = tokens.plan(n * views * 2 * prod(tokens.token_shape(backbone)), Budget(), device, None)
    if kept.where is None:
        said.append(f"{views} views of {n:,} images: {kept}, which is slower.")
        return None, None
    return views, kept


def _bytes(method: Contrastive, training: Training) -> tuple[int, int]:
    """The size of the model, and of what is trained of it and the head."""
    trained = sum(value.nbytes for value in method.parameters() if value.requires_grad)
    return sum(value.nbytes for value in method.backbone.net.state_dict().values()), trained if training.epochs else 0


def _notes(job: Job, training: Training, found: Plan, trial: Trial, said: list[str]) -> list[str]:
    advised = advice.notes(
        job.settings, training, mostly_tiny=trial.tiny, labelled=found.labelled, on_gpu=job.on_gpu
    )
    said = [*said, *advised]
    if bad := found.unreadable_sample:
        said.append(f"Of the images that were tried, {len(bad):,} cannot be read: {listing(bad)}. They are left out.")
    if found.disk > found.free_disk:
        needs, has = for_people(found.disk, found.free_disk)
        said.append(f"The disk does not suffice: {needs} are needed, {has} are free. Choose another folder (--out).")
    if found.memory - trial.base > tokens.free_memory():
        needs, has = for_people(found.memory - trial.base, tokens.free_memory())
        said.append(f"Memory may not suffice: {needs} more are needed, {has} are free.")
    if job.cache.is_dir() and any(job.cache.iterdir()):
        said.append("All of this is from scratch: what an earlier run left in the folder will be used, and saves time.")
    return said


# Doing a little of every stage


def _try(
    job: Job, method: Contrastive, training: Training, known: int, k: int, folder: Path, tell: workers.Progress
) -> Trial:
    width = method.backbone.spec.width
    tell("Trying how fast images are read", 0, 4)
    sample, read = _reading(job, method.backbone, folder)
    tell("Trying how fast features are learned", 1, 4)
    learned = _learning(job, method, training, sample, folder)
    tell("Trying how fast they are clustered", 2, 4)
    clustered = _clustering(job, width, known, k)
    tell("Trying how fast the report is drawn", 3, 4)
    return Trial(**read, **learned, **clustered, **_reporting(_packed(job, sample, method.backbone, folder), job, k))
