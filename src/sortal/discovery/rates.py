"""Rates: a little of every stage of a run, done on a sample of its images and timed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from sortal.clustering.estimate_k import estimate_k
from sortal.clustering.tsne import mapper
from sortal.config import AUTO, Precision
from sortal.discovery import clusters, shared_kmeans
from sortal.discovery.job import Job
from sortal.images.check import check_stored
from sortal.images.image_set import ImageSet
from sortal.images.store.packing import Settings, pack, select_readable
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.frozen import BATCH, ON_CPU, FrozenEncoder
from sortal.learning.methods import Method
from sortal.learning.token_cache import Budget
from sortal.learning.train import train
from sortal.learning.views import centre_crop_batches
from sortal.runs import projection
from sortal.system.device import choose_compute, choose_device
from sortal.system.progress import Runtime
from sortal.web import report
from sortal.web.thumbnails import make_sheets

SAMPLE = 256  # images that are read; a CPU computes the features of one batch of them
PASSES = 16  # of the sample through the network on a GPU
STEPS, STEPS_ON_GPU = 4, 24  # of training
ROWS, ROWS_ON_GPU = 2000, 20_000  # that are clustered, at most; the time on a GPU is hardly that of the rows
PICTURES = projection.POINTS  # in a report: as many on its map, and fewer on cards


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Rates and sizes of a sample: seconds for one unit of each kind of work, and bytes."""

    check: float  # an image
    pixels: float  # an image, decoded and stored
    view: float  # through the whole network
    step: float  # of training, with cached tokens where the backbone has a frozen part
    epoch: float  # beyond its steps
    k: float  # a row, to estimate the number of classes
    clusters: float  # a row, with all restarts
    place: float  # a point on the map
    picture: float  # in the report
    stored: float  # bytes of an image's pixels
    base: int  # peak memory before the network ran
    working: int  # memory that the network added to it
    tiny: bool  # most images
    unreadable: tuple[str, ...]


def measure(job: Job, backbone: Backbone, method: Method | None, known: int, k: int, folder: Path) -> Measurements:
    """Do a little of every stage and time it; without a method nothing is trained."""
    report_progress = job.runtime.progress
    report_progress("Measuring how fast images are read", 0, 4)
    images = choose_rows(job.images, SAMPLE)
    store, pixels = measure_reading(images, backbone, folder, job.runtime, max_pixels=job.settings.max_pixels)
    quarantine, started = store.quarantine, perf_counter()
    health = check_stored(images, store)
    checking = (perf_counter() - started) / len(images)
    images, store = select_readable(images, store)
    report_progress("Measuring how fast the network is trained", 1, 4)
    base = _peak_memory()
    view = measure_view(backbone, images, store, job.recipe.training.precision, job.runtime)
    step, epoch = _measure_training(job, method, images, store) if method is not None else (0.0, 0.0)
    working = _peak_memory() - base
    report_progress("Measuring how fast images are clustered", 2, 4)
    estimation, clustering = _measure_clustering(job, backbone.spec.width, known, k)
    report_progress("Measuring how fast the report is drawn", 3, 4)
    place, picture = measure_report(len(job.images), backbone.spec.width, store, job.runtime)
    report_progress("Measuring how fast the report is drawn", 4, 4)
    return Measurements(
        check=checking,
        pixels=pixels,
        view=view,
        step=step,
        epoch=epoch,
        k=estimation,
        clusters=clustering,
        place=place,
        picture=picture,
        stored=float((3 * store.heights * store.widths).mean()),
        base=base,
        working=working,
        tiny=2 * len(health.tiny) > health.images,
        unreadable=tuple(bad.file for bad in quarantine),
    )


def choose_rows(images: ImageSet, size: int) -> ImageSet:
    """Return a few images from all over the set, labelled and unlabelled ones in the same proportion."""
    order = np.argsort(images.unlabelled, kind="stable")
    mask = np.zeros(len(images), dtype=bool)
    mask[order[np.linspace(0, len(images) - 1, min(size, len(images))).round().astype(int)]] = True
    return images.select(mask)


def measure_reading(
    images: ImageSet, backbone: Backbone, folder: Path, runtime: Runtime, *, max_pixels: int
) -> tuple[PixelStore, float]:
    """Store images in a folder; return them, and the seconds of one."""
    clock, settings = Clock(), Settings(shorter_side=backbone.spec.shorter_side, max_pixels=max_pixels)
    store = pack(images, folder, settings=settings, runtime=Runtime(workers=runtime.workers, progress=clock))
    return store, clock.seconds_per_item


def measure_view(
    backbone: Backbone, images: ImageSet, store: PixelStore, precision: Precision, runtime: Runtime
) -> float:
    """Return the seconds of a view through the network; a GPU gets the same images several times, until it is warm."""
    device = choose_device(runtime.device, None)
    images, store = _batch(images, store, device)
    compute = choose_compute(device, precision=precision, worthwhile=False)
    encoder = FrozenEncoder(backbone.to(device), compute, whole=True)
    size, rows = backbone.spec.image_size, np.arange(len(images))

    def encode(rows: NDArray[np.int64], clock: Clock) -> None:
        done, batch_size = 0, ON_CPU if device.type == "cpu" else BATCH
        for features in encoder.stream(store, centre_crop_batches(store, rows, size=size, batch_size=batch_size)):
            done += len(features)
            clock("", done, len(rows))

    if device.type == "cpu":
        encode(rows[:2], Clock())  # allocates memory
        return _timed(lambda: encode(rows, Clock())) / len(rows)
    encode(np.tile(rows, PASSES), clock := Clock(device))
    return clock.seconds_per_item


def _measure_training(job: Job, method: Method, images: ImageSet, store: PixelStore) -> tuple[float, float]:
    """Return the seconds of a training step, and those of an epoch beyond its steps, which hardly matter on a CPU."""
    images, store = _batch(images, store, job.device)
    training, clock = job.recipe.training, Clock(job.device)
    each, steps = max(len(images) // training.batch_size, 1), STEPS_ON_GPU if job.on_gpu else STEPS
    short = replace(
        training,
        epochs=math.ceil(steps / each),
        views=2 if method.backbone.has_trunk else training.views,
        lr=1e-9,  # too low to diverge
    )
    anywhere = Budget(device=sys.maxsize, memory=sys.maxsize)
    quiet = Runtime(device=job.runtime.device, note=lambda _: None, progress=clock)
    train(method, images, store, short, budget=anywhere, runtime=quiet)
    return clock.steps_and_rest(each)


def _batch(images: ImageSet, store: PixelStore, device: torch.device) -> tuple[ImageSet, PixelStore]:
    """Return as many of the images as a CPU computes in a few seconds; all of them on another device."""
    if device.type != "cpu":
        return images, store
    rows = np.arange(len(images)) % math.ceil(len(images) / ON_CPU) == 0
    return images.select(rows), store.select(rows)


def measure_report(n: int, width: int, store: PixelStore, runtime: Runtime) -> tuple[float, float]:
    """Return the seconds of a point on the map of n images, and of a picture."""
    few = min(n, projection.POINTS)
    x, place = _random(few, width), mapper(runtime.device).place
    place(x[:20], 0)  # initialises the device
    placing = _timed(lambda: place(x, 0))
    rows = [row % len(store) for row in range(max(min(n, PICTURES) // 4, len(store)))]  # enough for all threads
    drawing = _timed(lambda: make_sheets(store, rows, room=report.MAP_ROOM, cells=report.MAP_CELLS))
    return placing / few, drawing / len(rows)


def _random(n: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(n).standard_normal((n, width), dtype=np.float32)


def _measure_clustering(job: Job, width: int, known: int, k: int) -> tuple[float, float]:
    """Return the seconds per row to estimate k and to cluster, on overlapping clusters of which some are labelled."""
    settings, rows = job.settings, min(len(job.images), max(ROWS_ON_GPU if job.on_gpu else ROWS, 4 * k))
    cluster = np.arange(rows) % k
    x = _random(k, width)[cluster] + 2 * _random(rows, width)
    y = np.where((cluster < known) & (np.arange(rows) // k % 2 == 0), cluster, -1)
    device, estimation, clustering = job.runtime.device, 0.0, 0.0
    if settings.k == AUTO:
        most, method = min(settings.k_max, known + int((y < 0).sum())), clusters.estimator(job.recipe)
        estimation = _timed(lambda: estimate_k(x, y, k_max=most, method=method, random_state=0, device=device))
    if job.recipe.clustering != "head":
        clustering = _timed(lambda: shared_kmeans.fit(x, y, k, n_init=settings.n_init, seed=0, device=device))
    return estimation / rows, clustering / rows


def _timed(work: Callable[[], object]) -> float:
    started = perf_counter()
    work()
    return perf_counter() - started


class Clock:
    """A progress callback that measures the rate of the last task; its first half may include warming up."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.task = ""
        self.reports: list[tuple[int, float]] = []  # how much was done, and when

    def __call__(self, task: str, done: int, total: int) -> None:
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.reports = [*(self.reports if task == self.task else []), (done, perf_counter())]
        self.task = task

    @property
    def seconds_per_item(self) -> float:
        (before, start), (done, end) = self.reports[(len(self.reports) - 1) // 2], self.reports[-1]
        return (end - start) / max(done - before, 1)

    def steps_and_rest(self, each: int) -> tuple[float, float]:
        """Return the seconds of an item, and those between two groups of `each` items; with one to a group, 0."""
        late = self.reports[(len(self.reports) - 1) // 2 :]
        within, between = list[float](), list[float]()
        for (_, start), (done, end) in pairwise(late):
            (between if (done - 1) % each == 0 else within).append(end - start)
        if not within:
            return self.seconds_per_item, 0.0
        step = median(within)
        return step, max(median(between) - step, 0.0) if between else 0.0


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
