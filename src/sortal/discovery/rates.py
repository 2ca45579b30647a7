"""Rates: a little of every stage of a run, done on a sample of its images and timed."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from sortal.clustering.estimate_k import USUALLY_TRIED, Evaluation, estimate_k
from sortal.clustering.estimate_k import KMethod as Estimator
from sortal.clustering.tsne import mapper
from sortal.config import AUTO, Precision
from sortal.discovery.grouping import clusters, shared_kmeans
from sortal.discovery.job import Job
from sortal.images.check import check_stored
from sortal.images.image_set import ImageSet
from sortal.images.store.packing import Settings, pack, select_readable
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.frozen import BATCH, ON_CPU, FrozenEncoder, views_at_once
from sortal.learning.health import IMAGES
from sortal.learning.methods import Method
from sortal.learning.step import Optimiser, TrainingStep
from sortal.learning.token_cache import Budget, token_shape
from sortal.learning.train import train
from sortal.learning.views import centre_crop_batches
from sortal.runs import projection
from sortal.system.device import choose_compute, choose_device
from sortal.system.progress import Runtime
from sortal.web.report import report
from sortal.web.report.thumbnails import make_sheets

BUDGET = 2.0  # seconds in which a rate is measured on a CPU, if one batch after a warm-up takes no longer
REPEATED, QUICK = 3, 0.2  # times that a batch is timed, and seconds after which it is not repeated
SAMPLE, BYTES, FEWEST = 256, 2**25, 8  # images that are read: so many, or so large, but at least these
PASSES = 16  # of the sample through the network on a GPU
STEPS, STEPS_ON_GPU = 4, 24  # of training
ROWS, ROWS_ON_GPU = 2000, 20_000  # that are clustered, at most; the time on a GPU is hardly that of the rows
FORWARD = 1 / 3  # share of the forward pass in a training step
PICTURES = report.IMAGES  # in a report, and fewer on cards


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
    images = choose_sample(job.images)
    store, pixels = measure_reading(images, backbone, folder, job.runtime, max_pixels=job.settings.max_pixels)
    quarantine, started = store.quarantine, perf_counter()
    health = check_stored(images, store)
    checking = (perf_counter() - started) / len(images)
    images, store = select_readable(images, store)
    report_progress("Measuring how fast the network is trained", 1, 4)
    base = _peak_memory()
    view = measure_view(backbone, images, store, job.recipe.training.precision, job.runtime)
    step, epoch, held, on_cpu = 0.0, 0.0, 0, job.device.type == "cpu"
    if on_cpu:
        held = views_at_once(backbone, BATCH) * _saved_bytes(backbone, lambda: backbone.tail(_tokens(backbone, 1)))
    if method is not None and on_cpu and backbone.has_trunk:
        step, epoch, held_by_step = _measure_steps(job, method)
        held = max(held, held_by_step)
    elif method is not None:
        step, epoch = _measure_training(job, method, images, store)
    working = max(_peak_memory() - base, held)
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


def choose_sample(images: ImageSet) -> ImageSet:
    """Return a few images to read, and fewer if their files are large."""
    few = choose_rows(images, SAMPLE)
    sizes = [_size(path) for path in few.paths] if few.pixels is None else [0]
    fitting = int(len(few) * BYTES / max(sum(sizes), 1))
    return few if fitting >= len(few) else choose_rows(images, max(fitting, FEWEST))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # reading it tells why
        return 0


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
        done, batch_size = 0, views_at_once(backbone, BATCH)
        for features in encoder.stream(store, centre_crop_batches(store, rows, size=size, batch_size=batch_size)):
            done += len(features)
            clock("", done, len(rows))

    if device.type == "cpu":
        return _seconds_each(lambda n: encode(rows[:n], Clock()), len(rows))[-1].each
    encode(np.tile(rows, PASSES), clock := Clock(device))
    return clock.seconds_per_item


def _measure_training(job: Job, method: Method, images: ImageSet, store: PixelStore) -> tuple[float, float]:
    """Return the seconds of a training step, and those of an epoch beyond its steps, by training for a moment."""
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


def _measure_steps(job: Job, method: Method) -> tuple[float, float, int]:
    """Return the seconds of a step on cached tokens, those of an epoch beyond its steps, and the bytes of a step.

    Measured on small batches: without the trunk, which is most of the network, a step is its batch and a constant.
    """
    backbone, training, known = method.backbone, job.recipe.training, job.images.labels[job.images.labelled]
    compute = choose_compute(job.device, precision=training.precision, worthwhile=False)
    weights = {name: value for name, value in method.named_parameters() if value.requires_grad}
    optimiser = Optimiser(weights, lr=1e-9, momentum=training.momentum, weight_decay=0.0, clip=training.clip)
    step = TrainingStep(job.processes, method.to(job.device), compute, optimiser, chunks=1)
    tokens, progress = _tokens(backbone, 2).to(torch.bfloat16), torch.tensor(0.0)

    def work(images: int) -> None:
        number = torch.arange(images).repeat(2)
        labels = torch.where(number % 2 == 0, int(known[0]) if len(known) else -1, -1)
        step(tokens.repeat(images, *[1] * (tokens.dim() - 1)), number, labels, progress)

    first, *others = _seconds_each(work, training.batch_size)
    last = others[-1] if others else first
    more = (last.seconds - first.seconds) / max(last.items - first.items, 1)
    more = min(max(more, last.each / 2), last.each)  # within what noise can explain
    seconds = last.seconds + more * (training.batch_size - last.items)
    saved = _saved_bytes(method, lambda: method(tokens)) // 2  # of a view
    batch = 2 * math.ceil(training.batch_size / training.chunks) * saved
    return (
        seconds,
        min(len(job.images), IMAGES) * more / 2 * FORWARD,
        batch + 2 * sum(value.nbytes for value in weights.values()),
    )


def _tokens(backbone: Backbone, views: int) -> torch.Tensor:
    return torch.randn(views, *token_shape(backbone), generator=torch.Generator().manual_seed(0))


def _saved_bytes(net: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """Return the bytes of what a forward pass saves for the backward pass, besides weights."""
    weights = {value.data_ptr() for value in net.parameters()}
    sizes: dict[int, int] = {}

    def save(value: torch.Tensor) -> torch.Tensor:
        if value.data_ptr() not in weights:
            sizes[value.data_ptr()] = value.nbytes
        return value

    with torch.autograd.graph.saved_tensors_hooks(save, lambda value: value), torch.enable_grad():
        kept = forward()  # and with it what was saved, so that no address is used again
    del kept
    return sum(sizes.values())


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
    drawing = _timed(lambda: make_sheets(store, rows, room=report.OTHER_ROOM, cells=report.OTHER_CELLS))
    return placing / few, drawing / len(rows)


def _random(n: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(n).standard_normal((n, width), dtype=np.float32)


def _measure_clustering(job: Job, width: int, known: int, k: int) -> tuple[float, float]:
    """Return the seconds per row to estimate k and to cluster, on overlapping clusters of which some are labelled."""
    settings, rows = job.settings, min(len(job.images), max(ROWS_ON_GPU if job.on_gpu else ROWS, 4 * k))
    cluster = np.arange(rows) % k
    x = _random(k, width)[cluster] + 2 * _random(rows, width)
    y = np.where((cluster < known) & (np.arange(rows) // k % 2 == 0), cluster, -1)
    estimation, clustering = 0.0, 0.0
    if settings.k == AUTO:
        most = min(settings.k_max, known + int((y < 0).sum()))
        estimation = _seconds_to_estimate(x, y, most, clusters.estimator(job.recipe), job.runtime.device)
    if job.recipe.clustering != "head":
        fit = partial(shared_kmeans.fit, x, y, k, seed=0, processes=job.processes)
        each = _seconds_each(lambda n: fit(n_init=n), settings.n_init)[-1]
        clustering = settings.n_init * each.each
    return estimation / rows, clustering / rows


def _seconds_to_estimate(
    x: NDArray[np.float32], y: NDArray[np.int64], k_max: int, method: Estimator, device: str
) -> float:
    """Return the seconds of an estimate of k, which is abandoned where a few of the numbers it tries tell them."""
    started, tried = perf_counter(), 0

    def count(_: Evaluation) -> None:
        nonlocal tried
        tried += 1
        if tried < USUALLY_TRIED and perf_counter() - started > BUDGET:
            raise _EnoughError

    with suppress(_EnoughError):
        estimate_k(x, y, k_max=k_max, method=method, random_state=0, device=device, callback=count)
        return perf_counter() - started
    return (perf_counter() - started) * USUALLY_TRIED / tried


class _EnoughError(Exception):
    """Enough was done to know a rate."""


@dataclass(frozen=True)
class _Timing:
    items: int
    seconds: float

    @property
    def each(self) -> float:
        return self.seconds / self.items


def _seconds_each(work: Callable[[int], object], most: int) -> list[_Timing]:
    """Time work on a number of items that doubles, up to `most`, while the next fits the budget, after a warm-up."""
    work(1)
    found, items, spent = list[_Timing](), min(2, most), 0.0
    while True:
        times = [_timed(partial(work, items))]
        while len(times) < REPEATED and sum(times) < QUICK:
            times.append(_timed(partial(work, items)))
        found.append(_Timing(items, min(times)))  # other programs can only slow it down
        spent += sum(times)
        if items >= most or spent + 2 * found[-1].seconds > BUDGET:
            return found
        items = min(2 * items, most)


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
