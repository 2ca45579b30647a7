"""One benchmark run: a preset, a seed and a data set become a run folder and a record."""

import os
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sortal.config import AUTO, LIVE, Discovery, Recipe, registration_of
from sortal.discovery.job import Job, Origin, check_sortable
from sortal.discovery.results import features_of
from sortal.discovery.stages import Stages, sort, store_pixels
from sortal.images import datasets
from sortal.images.decoding import Quarantined
from sortal.images.image_set import ImageSet
from sortal.images.store.index import stamp_of
from sortal.images.store.packing import Settings, pack, select_readable
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.methods import learner_of, loaded
from sortal.learning.methods.code import LOOP, source_of
from sortal.research.benchmark import records
from sortal.research.benchmark.bounds import bounds_of
from sortal.research.benchmark.presets import Preset
from sortal.research.benchmark.records import BOUNDS_STAGE, KRecord, Record
from sortal.reviews.loading import save_run
from sortal.runs.categories import ids_of
from sortal.runs.confidence import place
from sortal.runs.evaluation import score
from sortal.runs.facts import SplitScores
from sortal.runs.run import Run
from sortal.system import cache
from sortal.system.distributed import Processes
from sortal.system.files import lock_folder
from sortal.system.open_folder import CACHE, own_folder
from sortal.system.progress import Runtime
from sortal.system.temporary import sweep_below
from sortal.system.text import plural


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """The splits of a benchmark; validation images are in `train`, marked as such."""

    train: ImageSet
    test: ImageSet

    @property
    def k(self) -> int:
        """Return the number of classes among the images to sort."""
        return len(np.unique(self.train.truth[~self.train.validation]))

    @cached_property
    def stamp(self) -> str:
        """Return a digest of the images, their classes and the sizes of their files."""
        return cache.key("data", *(_stamp(images) for images in (self.train, self.test)))


@dataclass(frozen=True, kw_only=True)
class Task:
    """One run to do: a preset, a seed, the folder of the data set and the folder of the sweep."""

    preset: Preset
    seed: int
    root: Path
    out: Path
    command: str
    watch_truth: bool = False  # which the result does not depend on

    @property
    def dataset(self) -> str:
        """Return the name of the data set, or that of a folder of the user's own."""
        return datasets.label(self.preset.dataset, self.root)

    @property
    def place(self) -> Path:
        return self.out / self.preset.name / f"k-{self.preset.k}" / f"seed-{self.seed}"

    @property
    def cache(self) -> Path:
        """Return the folder that the runs on a data set share."""
        return own_folder(self.out) / CACHE / self.dataset

    @property
    def recipe(self) -> Recipe:
        recipe = self.preset.recipe
        return replace(recipe, training=replace(recipe.training, seed=self.seed))

    @property
    def title(self) -> str:
        return f"{self.preset.name}, k {self.preset.k}, seed {self.seed}"

    def key(self, data: Data) -> str:
        """Return a digest of everything that decides the result; the location of the data does not."""
        describes = ("name", "version", "title", "needs")
        decides = {name: value for name, value in asdict(self.preset).items() if name not in describes}
        if decides["trained"] is None:
            del decides["trained"]  # as before there was a choice
        weights = None if self.preset.weights is None else stamp_of(self.preset.weights)
        return cache.key("benchmark", decides, weights, self.seed, data.stamp, self._versions)

    @property
    def _versions(self) -> tuple[int | str, ...] | None:
        """Return the versions of the training loop and the method; None for one of ours that is not trained."""
        of = registration_of(self.preset.recipe.method)
        learner = learner_of(of.name)
        if not of.is_own:
            return (LOOP, source_of(*(code for code in (learner, loaded(of.cluster)) if code is not None)))
        return None if learner is None else (LOOP, learner.version)

    @property
    def training_key(self) -> tuple[Any, ...]:
        """Return everything that decides the training: the first of several tasks with the same key trains for all."""
        p = self.preset
        k = p.k if registration_of(p.recipe.method).needs_k else None
        how = repr(p.recipe.losses), repr(p.recipe.training), p.recipe.method, p.trained
        return self.dataset, p.backbone, p.weights, *how, self.seed, k


def _stamp(images: ImageSet) -> list[Any]:
    rows = [images.files, images.classes, images.new_classes, cache.hashed(images.labels, images.truth)]
    if images.pixels is not None:
        return [*rows, cache.hashed(images.pixels)]
    return [*rows, [(stamp_of(path) or [-1])[0] for path in images.paths]]


def read(dataset: str, root: Path) -> Data:
    return Data(train=datasets.load(dataset, root), test=datasets.load(dataset, root, part="test"))


def settings_of(task: Task, data: Data) -> Discovery:
    """Return the settings of a task; raise InputError if they do not suit the data."""
    preset, training = task.preset, task.recipe.training
    settings = Discovery(
        k=data.k if preset.k == "true" else preset.k,
        method=preset.recipe.method,
        trained=preset.trained or AUTO,
        backbone=preset.backbone,
        weights=preset.weights,
        epochs=training.epochs,
        lr=training.lr,
        views=training.views or LIVE,
        seed=task.seed,
        n_init=preset.n_init,
        held_out=0.0,
    )
    check_sortable(data.train.select(~data.train.validation), settings)
    return settings


def run(task: Task, data: Data, *, processes: Processes, runtime: Runtime) -> Record:
    """Carry out one run and record it; the first of several processes writes."""
    preset, settings = task.preset, settings_of(task, data)
    job = Job(
        images=data.train,
        origin=Origin(
            folder=None if data.train.pixels is not None else os.path.abspath(task.root), command=task.command
        ),
        settings=settings,
        place=task.place,
        watch_truth=task.watch_truth,
        recipe=task.recipe,
        runtime=runtime,
        shared=task.cache,
        processes=processes,
    )
    with lock_folder(task.place if processes.is_first else None):
        sweep_below(task.cache)
        backbone = load_backbone(preset.backbone, weights=preset.weights, trained=job.trained, seed=task.seed)
        stages = Stages((job.order[0], BOUNDS_STAGE, *job.order[1:], "test"), runtime)
        pixels = store_pixels(job, backbone, stages)
        with stages.stage(BOUNDS_STAGE, "Computing floor and ceiling") as at_work:
            bounds = bounds_of(job, backbone, pixels, at_work)
        found = sort(job, backbone, stages, pixels)
        with stages.stage("test", "Sorting the test split") as at_work:
            inductive, unreadable = _inductive(job, backbone, None if found is None else found.run, data.test, at_work)
        if found is not None:
            (task.place / records.RECORD_FILE).unlink(missing_ok=True)  # it describes the run that is replaced now
            done = stages.recorded_in(found.run)
            save_run(done, found.files)
            record = _record(task, done, inductive, unreadable, data)
            records.save(replace(record, bounds=bounds), task.place)
    processes.barrier()
    return records.load(task.place)  # exactly as later sweeps will read it


def _inductive(
    job: Job, backbone: Backbone, run: Run | None, test: ImageSet, runtime: Runtime
) -> tuple[SplitScores | None, tuple[Quarantined, ...]]:
    """Score the test split, and return its unreadable files too.

    If an epoch was selected, the test images of old classes decided which. Only the first process has a `run`; the
    others help to compute the features.
    """
    if not len(test):
        return None, ()
    settings = Settings.of(backbone.spec)
    store = pack(test, job.cache / "pixels", settings=settings, team=job.processes, runtime=runtime)
    unreadable = store.quarantine
    if unreadable:
        runtime.note(f"{plural(len(unreadable), 'file')} of the test split could not be read and will be left out.")
    images, store = select_readable(test, store)
    x = features_of(job, backbone, store, runtime)
    if run is None:
        return None, unreadable
    names = (*images.classes, *images.new_classes)
    rows = place(x, run.centres, run.confidence.temperature, head=run.head).row
    truth = [names[i] for i in images.truth.tolist()]
    return score(truth, ids_of(run.categories, rows), run.categories), unreadable


def _record(
    task: Task, run: Run, inductive: SplitScores | None, unreadable: tuple[Quarantined, ...], data: Data
) -> Record:
    assert run.metrics is not None  # the truth of a benchmark is known
    preset, facts, k, true = task.preset, run.facts, run.k.k, data.k
    curve = tuple(asdict(tried) for tried in run.k.curve)
    same = ("weights", "timings", "device", "machine", "versions", "command", "finished")
    return Record(
        key=task.key(data),
        name=preset.name,
        version=preset.version,
        dataset=task.dataset,
        method=preset.recipe.method,
        title=registration_of(preset.recipe.method).title,
        clustering=preset.recipe.clustering,
        backbone=preset.backbone,
        seed=task.seed,
        k=KRecord(asked=preset.k, k=k, true=true, error=abs(k - true) / true, interval=run.k.interval, curve=curve),
        transductive=SplitScores(**{field.name: getattr(run.metrics, field.name) for field in fields(SplitScores)}),
        inductive=inductive,
        recipe={**asdict(facts.recipe), "n_init": preset.n_init},
        training=None if facts.training is None else asdict(facts.training),
        unreadable=(*run.quarantine, *unreadable),
        **{name: getattr(facts, name) for name in same},
    )
