"""What a run or a prediction will cost: from the sizes of its arrays, and from three rates (`rates`)."""

import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal

import numpy as np

from sortal.config import AUTO, CONVNET, FASTER, VIEWS, Granularity, Rounds, Training, is_reference
from sortal.discovery import defaults, stages
from sortal.discovery.alternatives import LONG, SMALL_SIZE, quicker
from sortal.discovery.costs import FEATURE_BYTES, Work, disk, memory, model_bytes, seconds, seconds_to_report
from sortal.discovery.grouping.counting import hidden_classes
from sortal.discovery.grouping.rounds import epochs_of_rounds
from sortal.discovery.job import Job
from sortal.discovery.label_splits import held_out
from sortal.discovery.pipeline import backbone_of, stages_of
from sortal.discovery.prediction import read_more
from sortal.discovery.rates import Measurements, measure, measure_network, measure_step
from sortal.discovery.sampling import TABLE_BYTES, learned_part, remedies
from sortal.errors import InputError, Remedy, Spelling
from sortal.learning import token_cache
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.names import path_of_saved
from sortal.learning.backbones.registry import cached_weights, check_downloadable, load_backbone, load_without_weights
from sortal.learning.health import PROBED_IMAGES
from sortal.learning.methods import make
from sortal.learning.token_cache import TokenPlan
from sortal.learning.training_inputs import windows_of
from sortal.reviews.loading import load_run
from sortal.runs.run import MODEL
from sortal.system.device import choose_compute, choose_device, name_of
from sortal.system.progress import Runtime
from sortal.system.resources import cores, free_disk, free_memory
from sortal.system.text import byte_sizes, duration, plural

logger = logging.getLogger(__name__)

FORWARD = 1 / 3  # share of the forward pass in a training step
BUSY = 0.2  # share of the cores that others use, from which a forecast says so
USUAL_CLASSES = 10  # of a collection that nothing is known about
STARTING = "start"  # the time before the first stage, beside those of the stages


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run and a prediction have in common; sizes in bytes."""

    images: int
    backbone: str
    device: str
    disk: int  # that it takes, or adds to the run's folder, at the peak
    free_disk: int
    seconds: dict[str, float]  # by stage
    unreadable_sample: tuple[str, ...]  # unreadable files of the sample

    def to_json(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))  # tuples become lists


@dataclass(frozen=True, kw_only=True)
class PredictionForecast(Forecast):
    """The plan of a prediction and its cost."""

    in_run: int  # images that the run has already
    update: bool


@dataclass(frozen=True, kw_only=True)
class RunForecast(Forecast):
    """The plan of a run and its cost."""

    labelled: int
    unlabelled: int
    classes: int  # known ones
    held_out: int  # labelled images reserved for calibration
    k: int | Literal["auto", "own"]
    granularity: Granularity
    method: str
    weights: str
    epochs: int
    counting_epochs: int  # before these, to learn features that classes are counted on
    views: int | None  # cached views of an image; None for new views in every epoch
    tokens: TokenPlan | None  # the size and place of the cached views
    memory: int  # at the peak, without that of a GPU
    quicker: str  # ways, if it takes long
    notes: tuple[str, ...]


def forecast(job: Job, spell: Spelling | None = None, *, since: float | None = None) -> RunForecast:
    """Plan a job and predict the cost of running it from scratch, without touching its folder.

    `spell` writes settings in notes as a front end does; by default as in Python. `since` is when the program began, by
    `perf_counter`: a run takes as long to start.
    """
    whole, (job, _) = job, learned_part(job)
    settings, n, notes = job.settings, len(job.images), list[str]()
    backbone = _load_backbone(job, notes) if job.images.features is None else backbone_of(job)
    recipe = defaults.suited_to_network(job.recipe, settings, has_trunk=backbone.has_trunk)
    job = replace(job, recipe=recipe)
    started = {} if since is None else {STARTING: round(perf_counter() - since, 3)}
    training = recipe.training if recipe.learns else replace(recipe.training, epochs=0)
    known, k = job.images.known, _expected_k(job)
    method = make(recipe, backbone, k=k, known=known.tolist()) if recipe.learns else None
    views, tokens = _planned_views(job, backbone, training, notes, least=2 if method is None else method.views)
    rounds = _rounds(job, training)
    work = _work(job, backbone, training, rounds, views, k, rest=len(whole.images) - n)
    measured = measure(
        job.images,
        backbone.to(job.device),
        training.precision,
        job.runtime,
        max_pixels=settings.max_pixels,
        patterns=windows_of(backbone, training) if method is not None else None,
        step=None if method is None else partial(measure_step, job, method.to(job.device)),
    )
    model = model_bytes(backbone, method)
    found = RunForecast(
        images=len(whole.images),
        labelled=int(whole.images.labelled.sum()),
        unlabelled=int(whole.images.unlabelled.sum()),
        classes=len(known),
        held_out=int(held_out(job.images, np.arange(n), settings, np.ones(n, dtype=bool), job.images.groups).sum()),
        k=settings.k,
        granularity=settings.granularity,
        method=settings.method,
        backbone=backbone.spec.name,
        weights=backbone.source,
        device=name_of(job.device),
        epochs=training.epochs,
        counting_epochs=rounds[1],
        views=views,
        tokens=tokens,
        memory=memory(work, measured, tokens),
        disk=disk(work, measured, model, tokens),
        free_disk=free_disk(job.cache),
        seconds=started | seconds(stages_of(whole), work, measured, model),
        quicker="",
        notes=(),
        unreadable_sample=measured.unreadable,
    )
    advice = remedies(job, backbone, n) if found.disk > found.free_disk else ()
    slow = _slow(whole, found, partial(_price, backbone=backbone, measured=measured, model=model), backbone, spell)
    return replace(found, quicker=slow, notes=(*notes, *_notes(job, found, measured, advice, spell)))


def quicker_ways(job: Job, spell: Spelling) -> str:
    """Name quicker ways than a job that is about to start, if it takes long.

    Empty also if that cannot be told: a forecast that fails keeps no run from starting.
    """
    try:
        return forecast(job, spell).quicker
    except Exception as error:  # such as a full disk for temporary files; what the run needs, it refuses itself
        logger.debug("No forecast: %s", error)
        return ""


def forecast_prediction(
    run: str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    features: str | os.PathLike[str] | None = None,
    update: bool = False,
    max_pixels: int | None = None,
    since: float | None = None,
    runtime: Runtime = Runtime(),
) -> PredictionForecast:
    """Predict the cost of `sortal.predict` without touching the run; `since` is as for `forecast`."""
    found = load_run(run)
    read, _ = read_more(found, images, features)
    backbone, device = load_backbone(str(found.folder / f"{MODEL}.json")), choose_device(runtime.device, None)
    n, before = len(read), len(found.assignments)
    each = {} if since is None else {STARTING: perf_counter() - since}
    limit = found.facts.settings.max_pixels if max_pixels is None else max_pixels
    measured = measure(read, backbone.to(device), found.facts.precision, runtime, max_pixels=limit)
    each |= {"pixels": n * measured.decode, "features": n * measured.view}
    if update:
        each["report"] = seconds_to_report(before + n)
    return PredictionForecast(
        images=n,
        in_run=before,
        update=update,
        backbone=backbone.spec.name,
        device=name_of(device),
        disk=round(n * (measured.stored + (1 + update) * FEATURE_BYTES * backbone.spec.width + TABLE_BYTES)),
        free_disk=free_disk(found.folder),
        seconds={name: round(value, 3) for name, value in each.items()},
        unreadable_sample=measured.unreadable,
    )


# The plan


def _load_backbone(job: Job, notes: list[str]) -> Backbone:
    """Load the backbone, with arbitrary weights (which take the same time) instead of downloading any.

    Weights that the run could not download are an error, as they would be then.
    """
    settings, name = job.settings, job.settings.backbone
    given = settings.weights is not None or name == CONVNET or is_reference(name) or path_of_saved(name) is not None
    if given or cached_weights(name) is not None:
        return backbone_of(job)
    check_downloadable(name)
    notes.append(f"The weights of {name} are not on this machine; the run downloads them first.")
    backbone = load_without_weights(name, job.image_size)
    backbone.source = "the Hugging Face hub"
    return backbone


def _planned_views(
    job: Job, backbone: Backbone, training: Training, notes: list[str], *, least: int
) -> tuple[int | None, TokenPlan | None]:
    """Return how many views of each image are cached, and where; None for new views in every epoch."""
    if not training.epochs or training.views is None or not backbone.has_trunk:
        return None, None
    n, views = len(job.images), max(VIEWS if isinstance(training.views, str) else training.views, least)
    needed = n * views * 2 * math.prod(token_cache.token_shape(backbone, windows_of(backbone, training)))
    tokens = token_cache.plan_tokens(needed, stages.token_budget(job), job.device, job.cache)
    if tokens.where is None:
        notes.append(f"{views} views of {plural(n, 'image')}: {tokens}, which is slower.")
        return None, None
    return views, tokens


def _expected_k(job: Job) -> int:
    """Return the given number of classes, or a guess: as many new classes as known ones, if two are."""
    if isinstance(job.settings.k, int):
        return job.settings.k
    known = len(job.images.known)
    return min(2 * known if known > 1 else USUAL_CLASSES, known + int(job.images.unlabelled.sum()))


def _rounds(job: Job, training: Training) -> tuple[int, int]:
    """Return how many classifiers are tried, and the epochs of learning to count, which the recipe does not include."""
    losses = job.recipe.losses
    if not isinstance(losses, Rounds) or not (planned := epochs_of_rounds(losses, training.epochs)).tries:
        return 0, 0
    return planned.tries, planned.contrast if len(hidden_classes(job.images, training.seed)) else 0


def _work(
    job: Job, backbone: Backbone, training: Training, rounds: tuple[int, int], views: int | None, k: int, *, rest: int
) -> Work:
    n, (tries, pilot) = len(job.images), rounds
    epochs, counts = training.epochs + pilot, tries and 1 + tries
    steps, batch = max(n // training.batch_size, 1), 2 * training.batch_size  # of an epoch, and views of a step
    through_trunk = 0
    if backbone.has_trunk and training.epochs:  # views to learn from, and images whose health is measured
        through_trunk = (epochs * steps * batch if views is None else n * views) + min(n, PROBED_IMAGES)
    return Work(
        learned=n,
        rest=rest,
        k=k,
        estimates_k=job.settings.k == AUTO,
        clusters=job.recipe.clustering != "head",
        width=backbone.spec.width,
        epochs=epochs,
        steps=epochs * (steps + FORWARD * min(n, PROBED_IMAGES) / batch),  # health after each epoch
        through_trunk=through_trunk,
        counts=counts,
        pilot=pilot > 0,
        kept=counts > 0 and backbone.has_trunk and _tokens_fit(job, backbone),
        on_gpu=job.on_gpu,
    )


def _tokens_fit(job: Job, backbone: Backbone) -> bool:
    """Tell whether the tokens of one view of each image fit the memory that is kept for them."""
    width = 2 if choose_compute(job.device, precision=job.recipe.training.precision, worthwhile=False).bf16 else 4
    size = len(job.images) * width * math.prod(token_cache.token_shape(backbone))
    return size <= stages.KEPT_SHARE * token_cache.free_bytes(job.device)


# Costs


def _price(job: Job, backbone: Backbone, measured: Measurements, model: int) -> float:
    """Return the seconds of a job with other settings than those that were measured, which it learns on a part of.

    Its model is taken to have as many bytes.
    """
    whole, (job, _) = job, learned_part(job)
    if job.settings.backbone == FASTER != backbone.spec.name:
        backbone = _load_backbone(job, [])
        measured = measure_network(backbone.to(job.device), measured)
        if job.recipe.learns:
            method = make(job.recipe, backbone, k=_expected_k(job), known=job.images.known.tolist())
            measured = replace(measured, step=measure_step(job, method.to(job.device)))
    training = job.recipe.training if job.recipe.learns else replace(job.recipe.training, epochs=0)
    views, _ = _planned_views(job, backbone, training, [], least=2)
    size = (job.image_size or backbone.spec.image_size) / backbone.spec.image_size
    rates = {name: getattr(measured, name) * size**2 for name in ("view", "crop", "step")}
    work = _work(
        job,
        backbone,
        training,
        _rounds(job, training),
        views,
        _expected_k(job),
        rest=len(whole.images) - len(job.images),
    )
    return sum(seconds(stages_of(whole), work, replace(measured, **rates), model).values())


# Notes


def _notes(
    job: Job, found: RunForecast, measured: Measurements, advice: Sequence[Remedy], spell: Spelling | None
) -> list[str]:
    notes = defaults.notes(
        job.settings, job.recipe, mostly_tiny=measured.tiny, labelled=found.labelled, on_gpu=job.on_gpu
    )

    def add(problem: str, *ways: Remedy) -> None:
        error = InputError(problem, *ways)
        notes.append(str(error) if spell is None else error.text(spell))

    if found.disk > found.free_disk:
        needed, free = byte_sizes(found.disk, found.free_disk)
        elsewhere = Remedy("choose a folder on another disk")
        add(f"Not enough disk space: {needed} needed, {free} free.", elsewhere, *advice)
    if measured.others is not None and measured.others > BUSY * cores():
        alone = sum(found.seconds.values()) * max(1 - measured.others / cores(), BUSY)
        notes.append(
            f"Other programs use {measured.others:.1f} of {plural(cores(), 'core')}, and the time counts on that; "
            f"alone on the machine, it may be {duration(alone)}."
        )
    if found.memory - measured.base > free_memory():
        needed, free = byte_sizes(found.memory - measured.base, free_memory())
        notes.append(f"There may not be enough memory: {needed} more needed, {free} free. Choose a smaller backbone.")
    if job.cache.is_dir() and any(job.cache.iterdir()):
        notes.append("These are the costs from scratch; this run will reuse the cache of an earlier one and cost less.")
    return notes


def _slow(
    job: Job, found: RunForecast, price: Callable[[Job], float], backbone: Backbone, spell: Spelling | None
) -> str:
    """Name quicker ways than a job that takes long, with their prices; empty if it does not, or if there are none."""
    took = sum(found.seconds.values())
    ways = quicker(job, took, _small_size(job, backbone), price) if took >= LONG else []
    if not ways:
        return ""
    error = InputError(f"This takes about {duration(took)}; other settings are quicker.", *ways)
    return str(error) if spell is None else error.text(spell)


def _small_size(job: Job, backbone: Backbone) -> int | None:
    """Return a smaller size of images, in whole patches, that a network can be made for; None if there is none."""
    name, size, grid = job.settings.backbone, backbone.spec.image_size, backbone.patch_grid
    if grid is None or not backbone.sees_windows or is_reference(name) or path_of_saved(name) is not None:
        return None
    patch = size // grid[0]
    small = patch * max(round(SMALL_SIZE / patch), 1)
    return small if small < size else None
