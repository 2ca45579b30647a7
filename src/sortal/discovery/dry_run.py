"""Dry runs: the plan of a run and its cost, from the shapes of its arrays and rates measured on a sample."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sortal.clustering.tsne import mapper
from sortal.config import AUTO, CONVNET, VIEWS, Auto, Discovery, MethodName, Rounds, Training
from sortal.discovery import defaults, stages
from sortal.discovery.grouping.rounds import epochs_of_rounds
from sortal.discovery.job import Job
from sortal.discovery.pipeline import stages_of
from sortal.discovery.rates import (
    PICTURES,
    Measurements,
    choose_sample,
    measure,
    measure_reading,
    measure_report,
    measure_view,
)
from sortal.discovery.sampling import free_disk, learned_part, remedies
from sortal.errors import InputError, Remedy, Spelling
from sortal.images import near_duplicates
from sortal.images.reading import read_images
from sortal.images.store.packing import select_readable
from sortal.learning import token_cache
from sortal.learning.backbones import hub
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.names import path_of_saved
from sortal.learning.backbones.registry import load_backbone, load_without_weights
from sortal.learning.features import LARGEST
from sortal.learning.health import IMAGES
from sortal.learning.methods import Method, make
from sortal.learning.token_cache import TokenPlan
from sortal.review.loading import load_run
from sortal.runs import projection
from sortal.runs.run import MODEL
from sortal.system.device import choose_compute, choose_device
from sortal.system.progress import Runtime
from sortal.system.scratch import LARGE
from sortal.system.text import byte_sizes, duration, plural
from sortal.web.report import report

ROW = 512  # bytes per image in the text files of a run, rounded up
INDEX = 400  # bytes per image in the index of the pixel store
RECORD = 2000  # bytes of memory per image: its names, digests and places
LONG = 3600  # seconds from which a plan names quicker ones
FEWEST, SAMPLED = 2000, 0.1  # images to learn on that are suggested: so many at least, or this share of them
LEAST_VIEWS = 2
START = "start"  # the time before the first stage, beside those of the stages


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The plan of a run and its cost; sizes in bytes."""

    images: int
    labelled: int
    unlabelled: int
    classes: int  # known ones
    held_out: int  # labelled images reserved for calibration
    k: int | Auto
    method: MethodName
    backbone: str
    weights: str
    device: str
    epochs: int
    views: int | None  # cached views of an image; None for new views in every epoch
    tokens: TokenPlan | None  # the size and place of the cached views
    memory: int  # at the peak, without that of a GPU
    disk: int  # of the run's folder, at the peak
    free_disk: int
    seconds: dict[str, float]  # by stage
    notes: tuple[str, ...]
    unreadable_sample: tuple[str, ...]  # unreadable files of the sample

    def to_json(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))  # tuples become lists


@dataclass(frozen=True, kw_only=True)
class DryPrediction:
    """The plan of a prediction and its cost; sizes in bytes."""

    images: int
    in_run: int  # images that the run has already
    update: bool
    backbone: str
    device: str
    disk: int  # that it adds to the run's folder
    free_disk: int
    seconds: dict[str, float]  # by stage
    unreadable_sample: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))


def forecast(job: Job, spell: Spelling | None = None, *, since: float | None = None) -> DryRun:
    """Plan a job and predict the cost of running it from scratch, without touching its folder.

    `spell` writes settings in notes as a front end does; by default as in Python. `since` is when the program began, by
    `perf_counter`: a run takes as long to start.
    """
    whole, (job, _) = job, learned_part(job)
    settings, recipe, n, rest = job.settings, job.recipe, len(job.images), len(whole.images) - len(job.images)
    notes: list[str] = []
    backbone = _load_backbone(settings, notes)
    started = {} if since is None else {START: round(perf_counter() - since, 3)}
    training = recipe.training if recipe.learns else replace(recipe.training, epochs=0)
    _, tokens = stages.token_plan(job, backbone, training, n)
    views = VIEWS if isinstance(training.views, str) else training.views
    if tokens is not None and tokens.where is None:
        notes.append(f"{views} views of {plural(n, 'image')}: {tokens}, which is slower.")
        tokens = None
    views = None if tokens is None else views
    classes = np.unique(job.images.labels[job.images.labelled]).tolist()
    known, unlabelled = len(classes), int(job.images.unlabelled.sum())
    k = min(2 * known, known + unlabelled) if settings.k == AUTO else int(settings.k)
    method = make(recipe, backbone, k=k, known=classes) if recipe.learns else None
    model, trained = model_sizes(backbone, method)
    counts = 0  # between rounds of training
    if recipe.learns and isinstance(recipe.losses, Rounds):
        tries = epochs_of_rounds(recipe.losses, training.epochs).tries
        counts = 1 + (tries if known > 1 else 1) if tries else 0
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        measured = measure(job, backbone, method, known, k, Path(folder))
    found = DryRun(
        images=n + rest,
        labelled=int(whole.images.labelled.sum()),
        unlabelled=int(whole.images.unlabelled.sum()),
        classes=known,
        held_out=int(stages.held_out(job.images, np.arange(n), settings, np.ones(n, dtype=bool)).sum()),
        k=settings.k,
        method=settings.method,
        backbone=backbone.spec.name,
        weights=backbone.source,
        device=torch.cuda.get_device_name(job.device) if job.on_gpu else job.device.type,
        epochs=training.epochs,
        views=views,
        tokens=tokens,
        memory=memory(n, backbone.spec.width, measured, tokens),
        disk=disk(n, backbone.spec.width, k, measured, model, trained, tokens, rounds=counts + 1)
        + rest * (2 * 4 * backbone.spec.width + INDEX + ROW),
        free_disk=free_disk(job),
        seconds=started
        | seconds(
            stages_of(whole),
            measured,
            n,
            training,
            views,
            backbone.has_trunk,
            counts=counts,
            kept=bool(counts) and backbone.has_trunk and _fits(job, backbone, n),
            points=mapper(job.runtime.device).points,
            rest=rest,
        ),
        notes=(),
        unreadable_sample=measured.unreadable,
    )
    advice = remedies(job, backbone, n) if found.disk > found.free_disk else ()
    return replace(found, notes=(*notes, *_notes(job, found, measured, advice, spell)))


def forecast_prediction(
    run: str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    update: bool = False,
    max_pixels: int | None = None,
    since: float | None = None,
    runtime: Runtime = Runtime(),
) -> DryPrediction:
    """Predict the cost of `sortal.predict` without touching the run; `since` is as for `forecast`."""
    found, read = load_run(run), read_images(images, folders="ignore", need_labels=False)
    backbone, device = load_backbone(str(found.folder / f"{MODEL}.json")), choose_device(runtime.device, None)
    n, before, width = len(read), len(found.assignments), backbone.spec.width
    each = {} if since is None else {START: perf_counter() - since}
    sample, drawn = choose_sample(read), 0.0
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        runtime.progress("Measuring how fast images are read", 0, 3)
        limit = found.facts.settings.max_pixels if max_pixels is None else max_pixels
        store, pixels = measure_reading(sample, backbone, Path(folder), runtime, max_pixels=limit)
        quarantine = store.quarantine
        sample, store = select_readable(sample, store)
        runtime.progress("Measuring how fast the network is", 1, 3)
        view = measure_view(backbone, sample, store, found.facts.precision, runtime)
        if update:
            runtime.progress("Measuring how fast the report is drawn", 2, 3)
            place, picture = measure_report(before + n, width, store, runtime)
            drawn = min(before + n, mapper(runtime.device).points) * place + min(before + n, PICTURES) * picture
        runtime.progress("Measuring how fast the report is drawn", 3, 3)
        stored = float((3 * store.heights * store.widths).mean())
    each |= {"pixels": n * pixels, "features": n * view} | ({"report": drawn} if update else {})
    return DryPrediction(
        images=n,
        in_run=before,
        update=update,
        backbone=backbone.spec.name,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        disk=round(n * (stored + near_duplicates.LENGTH + INDEX + 4 * width + 32 + update * (4 * width + ROW))),
        free_disk=shutil.disk_usage(found.folder).free,
        seconds={name: round(value, 3) for name, value in each.items()},
        unreadable_sample=tuple(bad.file for bad in quarantine),
    )


def _fits(job: Job, backbone: Backbone, n: int) -> bool:
    """Tell whether the tokens of one view of n images fit the memory that is kept for them."""
    width = 2 if choose_compute(job.device, precision=job.recipe.training.precision, worthwhile=False).bf16 else 4
    size = n * width * math.prod(token_cache.token_shape(backbone))
    return size <= stages.KEPT * token_cache.free_bytes(job.device)


def _load_backbone(settings: Discovery, notes: list[str]) -> Backbone:
    """Load the backbone, with arbitrary weights (which take the same time) instead of downloading any.

    Weights that the run could not download are an error, as they would be then.
    """
    there = None if settings.weights is not None else _to_download(settings.backbone)
    if there is None:
        return load_backbone(settings.backbone, weights=settings.weights, seed=settings.seed)
    hub.check_reachable(settings.backbone, *there)
    notes.append(f"The weights of {settings.backbone} are not on this machine; the run downloads them first.")
    backbone = load_without_weights(settings.backbone)
    backbone.source = "the Hugging Face hub"
    return backbone


def _to_download(name: str) -> tuple[str, str] | None:
    """Return the repository and the file of weights that are not on this machine, if the hub has them."""
    if name == CONVNET or path_of_saved(name) is not None:
        return None
    import timm

    try:
        cfg = timm.get_pretrained_cfg(name)
    except RuntimeError:  # unknown model: load_backbone raises a better error
        return None
    if cfg is None or not cfg.hf_hub_id:
        return None
    there = cfg.hf_hub_id, cfg.hf_hub_filename or hub.FILE
    return there if hub.cached(*there) is None else None


def _notes(
    job: Job, found: DryRun, measured: Measurements, advice: tuple[Remedy, ...], spell: Spelling | None
) -> list[str]:
    notes = defaults.notes(
        job.settings, job.recipe, mostly_tiny=measured.tiny, labelled=found.labelled, on_gpu=job.on_gpu
    )
    if found.disk > found.free_disk:
        needed, free = byte_sizes(found.disk, found.free_disk)
        problem = f"Not enough disk space: {needed} needed, {free} free."
        error = InputError(problem, Remedy("choose a folder on another disk"), *advice)
        notes.append(str(error) if spell is None else error.text(spell))
    if (took := sum(found.seconds.values())) >= LONG and (ways := quicker(found, job.settings.learn_on)):
        error = InputError(f"This takes about {duration(took)}; other settings are quicker.", *ways)
        notes.append(str(error) if spell is None else error.text(spell))
    if found.memory - measured.base > token_cache.free_memory():
        needed, free = byte_sizes(found.memory - measured.base, token_cache.free_memory())
        notes.append(f"There may not be enough memory: {needed} more needed, {free} free. Choose a smaller backbone.")
    if job.cache.is_dir() and any(job.cache.iterdir()):
        notes.append("These are the costs from scratch; this run will reuse the cache of an earlier one and cost less.")
    return notes


def quicker(found: DryRun, learn_on: int | None) -> list[Remedy]:
    """Return the settings that would make a run quicker; which of them costs least accuracy depends on the images."""
    ways = []
    sample = max(FEWEST, 1000 * round(SAMPLED * found.images / 1000))
    if learn_on is None and sample <= found.images // 2:
        ways.append(Remedy("learn on some of the images, and predict the others", learn_on=sample))
    if found.method != "kmeans" and found.epochs:
        if found.epochs > 1:
            ways.append(Remedy("train for fewer epochs", epochs=max(found.epochs // 4, 1)))
        if found.backbone != CONVNET and (found.views is None or found.views > LEAST_VIEWS):
            ways.append(Remedy("cache fewer views of each image", views=LEAST_VIEWS))
        ways.append(Remedy("do not train at all", method="kmeans"))
    return ways


# Costs


def model_sizes(backbone: Backbone, method: Method | None) -> tuple[int, int]:
    """Return the bytes of the model, and those of its trained part with the method's head."""
    trained = [value.nbytes for value in method.parameters() if value.requires_grad] if method is not None else []
    return sum(value.nbytes for value in backbone.net.state_dict().values()), sum(trained)


def memory(n: int, width: int, measured: Measurements, tokens: TokenPlan | None) -> int:
    """Return the peak memory: that of the process, and of the stage that adds most to it."""
    # The thumbnails of near-duplicates in uint8, and those compared at once in float32, and less their mean
    checking = near_duplicates.LENGTH * (n + min(n, near_duplicates.EXACT) * (4 + 4))
    training = measured.working + (tokens.bytes if tokens is not None and tokens.where == "memory" else 0)
    rows = 4 * n * width
    features = 3 * rows if rows < LARGE else 2 * LARGEST  # as computed, by content, and in order; large ones in files
    return measured.base + RECORD * n + max(checking, training, features)


def disk(
    n: int,
    width: int,
    k: int,
    measured: Measurements,
    model: int,
    trained: int,
    tokens: TokenPlan | None = None,
    *,
    rounds: int = 1,
) -> int:
    """Return the peak size of the run's folder, while it holds cached tokens."""
    pixels = round(n * (measured.stored + near_duplicates.LENGTH + INDEX))
    kept = rounds + (rounds > 1)  # the raw ones, too, where categories are counted between rounds
    features = kept * n * (4 * width + 32) + n * 4 * width  # in the cache with digests, and in the run
    clusters = 8 * n + 2 * 4 * k * width
    checkpoints = 2 * 2 * trained  # two of them, each with weights and momentum
    page = min(pixels, report.LIMIT)  # its thumbnails are smaller than the pixels
    cached = tokens.bytes if tokens is not None and tokens.where == "file" else 0
    return pixels + features + clusters + rounds * (model + checkpoints) + page + ROW * n + cached


def seconds(
    order: tuple[str, ...],
    rates: Measurements,
    n: int,
    training: Training,
    views: int | None,
    has_trunk: bool,
    *,
    counts: int = 0,
    kept: bool = False,
    points: int = projection.POINTS,
    rest: int = 0,
) -> dict[str, float]:
    """Return the time of each stage: numbers multiplied by rates.

    Clusters are found twice, the second time to see how stable they are, and on the features of all rounds of training.
    The `rest` of the images is sorted by prediction. Training may count categories between its rounds: each time on new
    features, with two estimates of k, and with clusters for that k and for another. It then also computes the raw
    features. If the tokens of these are `kept`, the other features cost next to nothing.
    """
    steps = training.epochs * max(n // training.batch_size, 1)
    in_trunk = 0
    if has_trunk and steps:  # views to learn from, and images to measure
        in_trunk = (steps * 2 * training.batch_size if views is None else n * views) + min(n, IMAGES)
    raw, k_first = n * rates.view, order.index("k") < order.index("learn")
    features = 0.0 if kept else raw
    each = {
        "check": n * rates.check,
        "pixels": n * rates.pixels,
        "learn": in_trunk * rates.view
        + steps * rates.step
        + training.epochs * rates.epoch
        + bool(counts) * raw
        + counts * (features + 2 * n * (rates.k + rates.clusters)),
        "features": features,
        "k": (2 if counts else 1) * n * rates.k + features * k_first,  # of the untrained network, where k comes first
        "clusters": (2 + counts) * n * rates.clusters,
        "rest": rest * max(rates.pixels, rates.view),  # images are read while others are in the network
        "report": min(n + rest, points) * rates.place + min(n + rest, PICTURES) * rates.picture,
    }
    return {stage: round(each[stage], 3) for stage in order}
