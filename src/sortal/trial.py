"""Doing a little of every stage, to see how long all of it takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sortal import near, sorting, tokens, workers
from sortal.check import check
from sortal.config import AUTO, Recipe, Training
from sortal.estimate import estimate_k
from sortal.features import extract
from sortal.images import ImageSet
from sortal.inputs import choose_device
from sortal.job import Job
from sortal.kmeans import SemiSupervisedKMeans
from sortal.methods.method import Method
from sortal.network import Backbone
from sortal.packing import Settings, pack, pack_readable
from sortal.report import layout, page, thumbnails
from sortal.step import WARM
from sortal.store import PixelStore
from sortal.tokens import Budget
from sortal.train import train
from sortal.trunk import AHEAD, ON_CPU

SAMPLE, PER_CORE, LARGEST = 64, 32, 512  # images that are tried: at least, for each core, and at most (and on a GPU)
STEPS, STEPS_ON_GPU = 4, 12  # of learning that are tried
ROWS, ROWS_ON_GPU = 2000, 20_000  # that are clustered
RESTARTS, RESTARTS_OF_K = 2, 10  # of k-means that are tried, and those of each k that estimate_k tries
COMPARED, PLACED = 4096, 400  # rows that near-duplicates are looked for among, and that are put on a map
PICTURED = 16  # images that thumbnails are made of
PAGE = 200  # bytes of an image in the report, beside its thumbnail
SUSTAINED = 1.2  # a processor that computes for long is that much slower than in a trial of seconds
TRUNK = "Computing tokens"  # what train() tells of

Events = dict[str, list[tuple[int, float]]]  # by what is done: how many were done, and when


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


def try_out(
    job: Job,
    recipe: Recipe,
    backbone: Backbone,
    method: Method | None,
    known: int,
    k: int,
    folder: Path,
    tell: workers.Progress,
) -> Trial:
    """Without a method nothing is learned."""
    width = backbone.spec.width
    tell("Trying how fast images are read", 0, 4)
    images, store, read = _reading(job, backbone, folder)
    tell("Trying how fast features are learned", 1, 4)
    learned = _learning(job, backbone, method, recipe.training, images, folder)
    tell("Trying how fast images are clustered", 2, 4)
    clustered = _clustering(job, recipe, width, known, k)
    tell("Trying how fast the report is drawn", 3, 4)
    drawn = _drawing(store, len(job.images), width, k)
    tell("Trying how fast the report is drawn", 4, 4)
    return Trial(**read, **learned, **clustered, **drawn)


def sample(images: ImageSet, size: int) -> NDArray[np.bool_]:
    """(n,) a few images from all over the set, with and without a label as the set has them, and some of both."""
    order = np.argsort(images.unlabelled, kind="stable")
    mask = np.zeros(len(images), dtype=bool)
    mask[order[np.linspace(0, len(images) - 1, min(size, len(images))).round().astype(int)]] = True
    return mask


def _packed(job: Job, images: ImageSet, backbone: Backbone, folder: Path, watch: _Watch | None = None) -> PixelStore:
    settings = Settings(shorter_side=backbone.spec.shorter_side)
    return pack(images, folder, settings=settings, workers=job.workers, on_progress=watch or _Watch())


def _reading(job: Job, backbone: Backbone, folder: Path) -> tuple[ImageSet, PixelStore, dict[str, Any]]:
    """The images of a sample that can be read, their pixels, and how fast that was."""
    size = LARGEST if job.on_gpu else min(max(SAMPLE, PER_CORE * workers.count(None)), LARGEST)
    images = job.images.select(sample(job.images, size))
    watch = _Watch()
    health = check(images, workers=job.workers, on_progress=watch)
    checking, watch = watch.pace(), _Watch()
    settings = Settings(shorter_side=backbone.spec.shorter_side)
    options: Any = {"settings": settings, "workers": job.workers, "on_progress": watch}
    images, store, quarantine = pack_readable(images, folder, **options)
    packing, unreadable = watch.pace(), tuple(bad.file for bad in quarantine)
    return (
        images,
        store,
        {
            "check": checking,
            "comparing": _comparing(len(job.images)),
            "pixels": packing,
            "stored": float((3 * store.heights * store.widths).mean()),
            "tiny": 2 * len(health.tiny) > health.images,
            "unreadable": unreadable,
        },
    )


def _comparing(n: int) -> float:
    """Seconds that looking for near-duplicates takes, which grow with the square of n."""
    rows = min(n, COMPARED)
    looks = np.random.default_rng(0).integers(0, 256, (rows, near.LENGTH), dtype=np.uint8)
    return _timed(lambda: near.leaders(looks)) * (n / rows) ** 2 if n <= near.MOST else 0.0


def _timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _learning(
    job: Job, backbone: Backbone, method: Method | None, training: Training, images: ImageSet, folder: Path
) -> dict[str, Any]:
    """Features of the sample, and a few steps of learning."""
    base = _peak()
    store, first = (
        _packed(job, some, backbone, folder) for some in (images, images.select(np.arange(len(images)) < 2))
    )
    options: Any = {"normalise": True, "device": job.device, "precision": training.precision}
    started = _timed(lambda: extract(backbone, first, **options))
    longer = 1.0 if job.on_gpu else SUSTAINED
    features = Pace(fixed=started, each=longer * _timed(lambda: extract(backbone, store, **options)) / len(images))
    peak, in_trunk, learned = _peak(), len(images), Learning()
    if method is not None:
        watch = _Watch(choose_device(job.device, None))
        _steps(job, method, images, store, training, watch)
        watch.mark()
        learned = learning(watch.events, watch.last - watch.began, warm=WARM + 1 if job.on_gpu else 1)
        learned = replace(learned, view=longer * learned.view, step=longer * learned.step)
        peak, in_trunk = watch.memory.get(TRUNK, peak), watch.events.get(TRUNK, [(in_trunk, 0.0)])[-1][0]
    # A run has more views in its trunk at once, and others that are being cut meanwhile.
    at_once = tokens.PIECE if job.on_gpu else ON_CPU
    cut = AHEAD * at_once * 3 * backbone.spec.image_size**2
    working = (peak - base) * max(1.0, at_once / in_trunk) + _peak() - peak + cut
    return {"features": features, "learning": learned, "base": base, "working": round(working)}


def _steps(job: Job, method: Method, images: ImageSet, store: PixelStore, training: Training, watch: _Watch) -> None:
    """A few steps as a run does them, on two views of an image that are kept."""
    per_epoch = max(len(images) // training.batch_size, 1)
    few = replace(
        training,
        epochs=-(-(STEPS_ON_GPU if job.on_gpu else STEPS) // per_epoch),
        views=2 if method.backbone.has_trunk else training.views,
        lr=1e-9,  # nothing is learned, so that nothing can go wrong
    )
    anywhere = Budget(device=sys.maxsize, memory=sys.maxsize)
    train(method, images, store, few, device=job.device, budget=anywhere, on_progress=watch, on_note=watch.mark)


def _clustering(job: Job, recipe: Recipe, width: int, known: int, k: int) -> dict[str, Any]:
    """Seconds to estimate k and to cluster all images, by clusters that overlap, of which some rows are labelled."""
    settings, n = job.settings, len(job.images)
    rows = min(n, max(ROWS_ON_GPU if job.on_gpu else ROWS, 4 * k))
    cluster = np.arange(rows) % k
    y = np.where((cluster < known) & (np.arange(rows) // k % 2 == 0), cluster, -1)
    x = _unit(_random(k, width)[cluster] + 2 * _random(rows, width))
    share = 1 if job.on_gpu else RESTARTS_OF_K // RESTARTS  # on a GPU restarts together take hardly longer than one
    of_k, scale = 0.0, n / rows
    options: Any = {"random_state": 0, "device": job.device}
    if settings.k == AUTO:
        most = min(settings.k_max, known + int((y < 0).sum()))
        way: Any = {"method": sorting.estimator(recipe), "n_init": RESTARTS_OF_K // share}
        of_k = scale * share * _timed(lambda: estimate_k(x, y, k_max=most, **way, **options))
    if recipe.clustering == "head":
        return {"k": of_k, "clusters": 0.0}
    model = SemiSupervisedKMeans(k, n_init=-(-settings.n_init // share), **options)
    clusters = scale * _timed(lambda: model.fit(x, y)) * settings.n_init / model.n_init
    return {"k": of_k, "clusters": clusters}


def _drawing(store: PixelStore, n: int, width: int, k: int) -> dict[str, Any]:
    """Seconds that the report takes, and bytes."""
    shown, few, rows = min(n, layout.POINTS), min(n, PLACED), list(range(min(len(store), PICTURED)))
    x = _random(few, width)
    seconds = _timed(lambda: layout.place(x[:20], seed=0))  # which first loads what it needs
    seconds += _timed(lambda: layout.place(x, seed=0)) * shown * log(shown + 1) / (few * log(few + 1))
    share, size = next(share for share in page.SHARES if k <= share.most), 0.0
    for count, room, cells in (
        (min(n, k * (share.typical + share.doubtful)), page.CARD_ROOM, page.CARD_CELLS),
        (shown, page.MAP_ROOM, page.MAP_CELLS),
    ):
        began = perf_counter()
        sheets = thumbnails.sheets(store, rows, room=room, cells=cells)
        seconds += (perf_counter() - began) * count / (2 * len(rows))  # each is made twice, first to see its size
        size += min(room, sheets.bytes * count / len(rows)) if sheets else room
    return {"report": seconds, "page": min(round(size * 4 / 3) + PAGE * shown, page.LIMIT)}  # base64: 4 bytes of 3


def _random(n: int, width: int) -> NDArray[np.float32]:
    return _unit(np.random.default_rng(n).standard_normal((n, width), dtype=np.float32))


def _unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return rows


def pace(events: Events, seconds: float) -> Pace:
    """The pace of what took so many seconds in all, by how many were done when; each kind begins with (0, start).

    Where there are more events, the time until the first was for starting as well.
    """
    fixed, each = seconds, 0.0
    for at in events.values():
        (before, start), (done, end) = at[min(1, len(at) - 2)], at[-1]
        one = (end - start) / max(done - before, 1)
        fixed, each = fixed - done * one, each + one
    return Pace(fixed=max(fixed, 0.0), each=each)


def learning(events: Events, seconds: float, *, warm: int) -> Learning:
    """What steps take, of which the first few are slower, and views in the trunk; the rest of `seconds` is fixed."""
    times = [time for _, time in events["Learning"]]
    step = median(end - start for start, end in pairwise(times[min(warm, len(times) - 2) :]))
    trunk = pace({TRUNK: events[TRUNK]}, 0.0).each if TRUNK in events else 0.0
    views = events[TRUNK][-1][0] if TRUNK in events else 0
    return Learning(fixed=max(seconds - views * trunk - (len(times) - 1) * step, 0.0), view=trunk, step=step)


class _Watch:
    """An `on_progress` that notes when how many were done."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.events: Events = {}
        self.memory: dict[str, int] = {}  # bytes at the peak so far
        self.began = self.last = perf_counter()

    def __call__(self, what: str, done: int, total: int) -> None:
        at = self.events.setdefault(what, [(0, self.last)])
        self.mark()
        at.append((done, self.last))
        self.memory[what] = _peak()

    def mark(self, _: str = "") -> None:
        if self.device is not None and self.device.type == "cuda":
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
