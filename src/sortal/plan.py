"""What a run would do and cost: measured on a few of its images with the code of a run, then scaled to all of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from sortal import advice, near, segments, sorting, tokens, trial, workers
from sortal.backbone import RANDOM, load_backbone
from sortal.config import AUTO, CONVNET, Auto, Discovery, MethodName, Recipe, Training
from sortal.errors import listing
from sortal.inputs import choose_device
from sortal.job import Job
from sortal.methods import Method, make
from sortal.network import Backbone
from sortal.pipeline import stages_of
from sortal.space import for_people
from sortal.train import VIEWS
from sortal.trial import RESTARTS_OF_K, Trial

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


def plan(job: Job, *, on_progress: workers.Progress = lambda *_: None) -> Plan:
    """What `discover` would do with a job, and what that costs from scratch. Its folder is not touched."""
    settings, n, device = job.settings, len(job.images), choose_device(job.device, None)
    said: list[str] = []
    backbone = _backbone(settings, said)
    recipe = job.recipe or advice.recipe_for(settings, n, on_gpu=job.on_gpu)
    training = recipe.training if recipe.learns else replace(recipe.training, epochs=0)
    views, kept = _kept(job, training, backbone, said)
    classes = np.unique(job.images.labels[job.images.labelled]).tolist()
    known = len(classes)
    k = min(2 * known, known + int(job.images.unlabelled.sum())) if settings.k == AUTO else int(settings.k)
    method = make(recipe, backbone, k=k, known=classes) if recipe.learns else None
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tried = trial.try_out(job, recipe, backbone, method, known, k, Path(folder), on_progress)
    found = Plan(
        images=n,
        labelled=int(job.images.labelled.sum()),
        unlabelled=int(job.images.unlabelled.sum()),
        classes=known,
        held_out=int(sorting.held_out(job.images, np.arange(n), settings).sum()),
        k=settings.k,
        method=settings.method,
        backbone=backbone.spec.name,
        weights=backbone.source,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        epochs=training.epochs,
        views=views,
        tokens=kept,
        memory=memory(n, backbone.spec.width, tried, kept),
        disk=disk(n, backbone.spec.width, k, tried, *_bytes(backbone, method), kept),
        free_disk=shutil.disk_usage(next(at for at in (job.place.absolute() / "_").parents if at.is_dir())).free,
        seconds=_seconds(stages_of(settings, recipe), tried.stages(n, training, views)),
        notes=(),
        unreadable_sample=tried.unreadable,
    )
    return replace(found, notes=tuple(_notes(job, recipe, found, tried, said)))


def memory(n: int, width: int, trial: Trial, kept: tokens.Plan | None) -> int:
    """Bytes at the peak: what the process takes anyway, and the stage that takes most."""
    checking = n * near.LENGTH * 9 if n <= near.MOST else 0  # thumbnails, as numbers, and those less their means
    learning = trial.working + (kept.bytes if kept is not None and kept.where == "memory" else 0)
    features = 3 * 4 * n * width  # of each content, in the making, and in the order of the images
    clusters = 2 * 4 * n * width + RESTARTS_OF_K * n * RESTART
    return trial.base + max(checking, learning, features, clusters)


def disk(n: int, width: int, k: int, trial: Trial, model: int, trained: int, kept: tokens.Plan | None = None) -> int:
    """Bytes of the run's folder at the peak, while tokens are there.

    `trained` are those of what is trained, which checkpoints hold with its momentum.
    """
    store = round(n * (trial.stored + segments.PLAN.itemsize + 1))
    features = n * (4 * width + 32) + n * 4 * width  # in the cache, each with its content, and as a table
    clusters = 8 * n + 2 * 4 * k * width
    held = kept.bytes if kept is not None and kept.where == "file" else 0
    return store + features + clusters + model + 2 * 2 * trained + trial.page + TABLES * n + held


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


def _kept(job: Job, training: Training, backbone: Backbone, said: list[str]) -> tuple[int | None, tokens.Plan | None]:
    """How many views of an image training would keep, and where."""
    _, kept = sorting.token_plan(job, backbone, training, len(job.images))
    if kept is None:
        return None, None
    views = VIEWS if isinstance(training.views, str) else training.views
    if kept.where is None:
        said.append(f"{views} views of {len(job.images):,} images: {kept}, which is slower.")
        return None, None
    return views, kept


def _seconds(order: tuple[str, ...], each: dict[str, float]) -> dict[str, float]:
    """Of the stages in their order; where k comes before learning, features are computed for it as well."""
    first = order.index("k") < order.index("learn")
    taken = {**each, "k": each["k"] + each["features"] * first}
    return {stage: round(taken[stage], 3) for stage in order}


def _bytes(backbone: Backbone, method: Method | None) -> tuple[int, int]:
    """The size of the model, and of what is trained of it and the head."""
    trained = [value.nbytes for value in method.parameters() if value.requires_grad] if method is not None else []
    return sum(value.nbytes for value in backbone.net.state_dict().values()), sum(trained)


def _notes(job: Job, recipe: Recipe, found: Plan, trial: Trial, said: list[str]) -> list[str]:
    advised = advice.notes(job.settings, recipe, mostly_tiny=trial.tiny, labelled=found.labelled, on_gpu=job.on_gpu)
    said = [*said, *advised]
    if bad := found.unreadable_sample:
        said.append(f"Of the images that were tried, {len(bad):,} cannot be read: {listing(bad)}. They are left out.")
    if found.disk > found.free_disk:
        needs, has = for_people(found.disk, found.free_disk)
        said.append(f"The disk does not suffice: {needs} are needed, {has} are free. Choose another folder (--out).")
    if found.memory - trial.base > tokens.free_memory():
        needs, has = for_people(found.memory - trial.base, tokens.free_memory())
        said.append(f"Memory may not suffice: {needs} more are needed, {has} are free. Take a smaller backbone.")
    if job.cache.is_dir() and any(job.cache.iterdir()):
        said.append("All of this is from scratch: what an earlier run left in the folder will be used, and saves time.")
    return said
