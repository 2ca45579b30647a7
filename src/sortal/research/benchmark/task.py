"""One run of a benchmark: a preset, a seed and a data set become a run folder and a record."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sortal import datasets, kept, metrics, outcome
from sortal.backbone import load_backbone
from sortal.benchmark import records
from sortal.benchmark.presets import Preset
from sortal.benchmark.records import Record
from sortal.config import CLASSIFIERS, Discovery, Recipe
from sortal.features import extract
from sortal.images import ImageSet
from sortal.job import Job, check_sortable
from sortal.lock import alone
from sortal.network import Backbone
from sortal.packing import Settings, pack_readable
from sortal.run import Run
from sortal.seen import stamp_of
from sortal.sorting import Stages, order_of, sort
from sortal.workers import Progress

CACHE = "cache"  # in the folder of a sweep: what runs on one data set share
BESIDE = ("name", "version", "title", "needs")  # what a preset says beside what decides its result
FIGURES = ("images", "accuracy", "legacy", "nmi", "ari", "known_accuracy")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run: a preset, a seed, where the data set is, and where the run goes."""

    preset: Preset
    seed: int
    root: Path
    out: Path
    device: str
    workers: int | None
    command: str

    @property
    def dataset(self) -> str:
        """The data set's name; a user's own folder is called what the folder is."""
        return datasets.label(self.preset.dataset, self.root)

    @property
    def place(self) -> Path:
        return self.out / self.preset.name / f"k-{self.preset.k}" / f"seed-{self.seed}"

    @property
    def cache(self) -> Path:
        return self.out / CACHE / self.dataset

    @property
    def recipe(self) -> Recipe:
        recipe = self.preset.recipe
        return replace(recipe, training=replace(recipe.training, seed=self.seed))

    @property
    def title(self) -> str:
        return f"{self.preset.name}, k {self.preset.k}, seed {self.seed}"

    def key(self, data: Data) -> str:
        """What decides the result, wherever the data lie."""
        decides = {name: value for name, value in asdict(self.preset).items() if name not in BESIDE}
        weights = None if self.preset.weights is None else stamp_of(self.preset.weights)
        return kept.key("benchmark", decides, weights, self.seed, data.stamp)

    @property
    def lesson(self) -> tuple[Any, ...]:
        """What decides what is learned: tasks that have it in common learn once, the others find it done."""
        p = self.preset
        k = p.k if p.recipe.method in CLASSIFIERS else None
        return self.dataset, p.backbone, p.weights, repr(p.recipe.losses), repr(p.recipe.training), self.seed, k


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """A benchmark: images to learn from and to sort, those for validation among them; and the test split."""

    train: ImageSet
    test: ImageSet

    @property
    def k(self) -> int:
        """Classes among the images that are sorted."""
        return len(np.unique(self.train.truth[~self.train.validation]))

    @cached_property
    def stamp(self) -> str:
        """Which images there are, of which classes, and how long their files are."""
        return kept.key("data", *(_stamp(images) for images in (self.train, self.test)))


def _stamp(images: ImageSet) -> list[Any]:
    rows = [images.files, images.classes, images.new_classes, kept.hashed(images.labels, images.truth)]
    if images.pixels is not None:
        return [*rows, kept.hashed(images.pixels)]
    return [*rows, [(stamp_of(path) or [-1])[0] for path in images.paths]]


def read(dataset: str, root: Path) -> Data:
    return Data(train=datasets.load(dataset, root), test=datasets.load(dataset, root, part="test"))


def settings_of(task: Task, data: Data) -> Discovery:
    """How a task sorts; what cannot end well is refused."""
    preset, training = task.preset, task.recipe.training
    settings = Discovery(
        k=data.k if preset.k == "true" else preset.k,
        method=preset.recipe.method,
        backbone=preset.backbone,
        weights=preset.weights,
        epochs=training.epochs,
        lr=training.lr,
        views=training.views,
        seed=task.seed,
        n_init=preset.n_init,
        held_out=0.0,
    )
    check_sortable(data.train.select(~data.train.validation), settings)
    return settings


def run(
    task: Task, data: Data, *, on_progress: Progress = lambda *_: None, on_note: Callable[[str], None] = logger.info
) -> Record:
    """Do one run, and record it."""
    preset, recipe, settings = task.preset, task.recipe, settings_of(task, data)
    job = Job(
        images=data.train,
        source=None if data.train.pixels is not None else os.path.abspath(task.root),
        settings=settings,
        place=task.place,
        device=task.device,
        workers=task.workers,
        command=task.command,
        recipe=recipe,
        shared=task.cache,
    )
    with alone(task.place):
        backbone = load_backbone(preset.backbone, weights=preset.weights, seed=task.seed)
        stages = Stages((*order_of(settings, recipe), "test"), on_progress, on_note)
        found = sort(job, recipe, backbone, stages)
        with stages.stage("test", "Sorting the test split") as tell:
            inductive = _inductive(job, backbone, found.run, data.test, tell)
        (task.place / records.NAME).unlink(missing_ok=True)  # of another run, from now on
        found.run.save(found.files)
        record = _record(task, found.run, inductive, data, stages.timings)
        records.save(record, task.place)
    return records.load(task.place)  # as it will be found again


def _inductive(job: Job, backbone: Backbone, run: Run, test: ImageSet, tell: Progress) -> dict[str, Any] | None:
    """The figures on images that were not learned from: each in the nearest category, or the classifier's.

    Where an epoch was selected, it was by those of them that are of old classes.
    """
    if not len(test):
        return None
    settings = Settings(shorter_side=backbone.spec.shorter_side)
    options: Any = {"settings": settings, "workers": job.workers, "on_progress": tell}
    images, store, _ = pack_readable(test, job.cache / "pixels", **options)
    options = {"device": job.device, "precision": run.about["precision"], "on_progress": tell}
    x = extract(backbone, store, normalise=True, folder=job.cache, **options)
    old, names = run.about["classes"], (*images.classes, *images.new_classes)
    confidence = outcome.confidence_of(run)
    category = outcome.assign(images, store.digests, x, run.centres, len(old), confidence).category
    truth, categories = [names[i] for i in images.truth.tolist()], [run.names[j] for j in category.tolist()]
    scores = asdict(metrics.evaluate(truth, category, old=old, categories=categories))
    return {name: {**scores, "images": len(images), "known_accuracy": scores["known"]}[name] for name in FIGURES}


def _record(task: Task, run: Run, inductive: dict[str, Any] | None, data: Data, timings: dict[str, float]) -> Record:
    assert run.metrics is not None  # a benchmark knows the truth
    preset, about, k, k_true = task.preset, run.about, run.k["k"], data.k
    told = {"interval": run.k["interval"], "curve": run.k["curve"]}
    return Record(
        key=task.key(data),
        name=preset.name,
        version=preset.version,
        dataset=task.dataset,
        method=preset.recipe.method,
        clustering=preset.recipe.clustering,
        backbone=preset.backbone,
        weights=about["weights"],
        seed=task.seed,
        k={"asked": preset.k, "k": k, "true": k_true, "error": abs(k - k_true) / k_true, **told},
        transductive={name: run.metrics[name] for name in FIGURES},
        inductive=inductive,
        recipe={**about["recipe"], "n_init": preset.n_init},
        training=about["training"],
        timings=timings,
        machine=about["machine"],
        versions=about["versions"],
        command=about["command"],
        finished=about["finished"],
    )
