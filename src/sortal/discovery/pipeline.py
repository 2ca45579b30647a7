"""From a folder of images to sorted categories: discover() checks them, sorts them and draws the report.

Each stage keeps what it made in the run's cache, under a name made of all it depends on: the content of the images, the
settings it looks at, and the version of the code. Another k redoes only what follows; a killed run goes on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from sortal import advice, kept, report
from sortal.backbone import load_backbone
from sortal.check import Health, check
from sortal.confidence import ENOUGH
from sortal.config import AUTO, BACKBONE, Auto, Discovery, MethodName, Recipe
from sortal.errors import listing
from sortal.job import Job, Source, prepare
from sortal.lock import alone
from sortal.reading import UNLABELLED, Folders, Unlisted
from sortal.run import REPORT, Run
from sortal.seen import stamp_of
from sortal.sorting import Stages, order_of, sort
from sortal.tables import ExtraColumns
from sortal.workers import Progress

logger = logging.getLogger(__name__)


def discover(
    images: Source,
    *,
    labels: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    k: int | Auto = AUTO,
    method: MethodName = "gcd",
    backbone: str = BACKBONE,
    weights: str | os.PathLike[str] | None = None,
    epochs: int | Auto = AUTO,
    lr: float | Auto = AUTO,
    views: int | Auto | None = AUTO,
    seed: int = 0,
    k_max: int = Discovery.k_max,
    n_init: int = Discovery.n_init,
    held_out: float = Discovery.held_out,
    unsure_below: float = Discovery.unsure_below,
    folders: Folders = "classes",
    unlabelled: str = UNLABELLED,
    unlisted: Unlisted = "error",
    extra_columns: ExtraColumns = "error",
    device: str = AUTO,
    workers: int | None = None,
    force: bool = False,
    on_progress: Progress = lambda *_: None,
    on_note: Callable[[str], None] = logger.info,
) -> Run:
    """Sort images: every one into a known or a newly found category, with a confidence, and a report to look at.

    `images` is what `read_images` reads, with its options, or an ImageSet. The run goes to the folder `out`, by default
    one beside the current work named after the images. Called again it goes on, or redoes what other settings ask for.
    `force` allows to write over a run of other images or one that images were added to.
    """
    settings = Discovery(
        k=k,
        method=method,
        backbone=backbone,
        weights=None if weights is None else os.fspath(weights),
        epochs=epochs,
        lr=lr,
        views=views,
        seed=seed,
        k_max=k_max,
        n_init=n_init,
        held_out=held_out,
        unsure_below=unsure_below,
    )
    reading = {"folders": folders, "unlabelled": unlabelled, "unlisted": unlisted, "extra_columns": extra_columns}
    job = prepare(images, labels, out, settings, reading, device=device, workers=workers, force=force)
    return carry_out(job, on_progress=on_progress, on_note=on_note)


def carry_out(
    job: Job, *, on_progress: Progress = lambda *_: None, on_note: Callable[[str], None] = logger.info
) -> Run:
    """All stages of a job, in a folder that no other process is at work in."""
    settings = job.settings
    backbone = load_backbone(settings.backbone, weights=settings.weights, seed=settings.seed)
    recipe = job.recipe or advice.recipe_for(settings, len(job.images), on_gpu=job.on_gpu)
    with alone(job.place):
        stages = Stages(stages_of(settings, recipe), on_progress, on_note)
        with stages.stage("check", "Checking images") as tell:
            tiny = _checked(job, stages, tell)
        labelled = int(job.images.labelled.sum())
        for text in advice.notes(settings, recipe, mostly_tiny=tiny, labelled=labelled, on_gpu=job.on_gpu):
            stages.note(text)
        found = sort(job, recipe, backbone, stages)
        with stages.stage("report", "Drawing the report") as tell:
            if not found.run.confidence["calibrated"]:
                stages.note(
                    "Confidence is not calibrated: "
                    + ("none" if not settings.held_out else f"fewer than {ENOUGH}")
                    + " of the labelled images were to be held out for that (--held-out)."
                )
            page = report.make(found.run, found.store, seed=settings.seed, folder=job.cache / "map", on_progress=tell)
        found.run.about.update(notes=stages.notes, timings=stages.timings)
        found.run.save({REPORT: page, **found.files})
    return found.run


def stages_of(settings: Discovery, recipe: Recipe) -> tuple[str, ...]:
    """The stages of a run in their order."""
    return ("check", *order_of(settings, recipe), "report")


def _checked(job: Job, stages: Stages, tell: Progress) -> bool:
    """Say what is odd about the images; whether most of them are tiny."""
    if job.images.pixels is not None:
        stamps: Any = kept.hashed(job.images.pixels)
    else:
        stamps = [stamp_of(path) for path in job.images.paths]
    key = kept.key("check", job.images.files, job.images.labels.tolist(), job.images.classes, stamps)
    path = job.cache / "check" / f"{key}.json"
    found = kept.load(path)
    if found is None:
        health = check(job.images, workers=job.workers, on_progress=tell)
        found = {"findings": _findings(health), "tiny": 2 * len(health.tiny) > len(job.images)}
        kept.save(path, found)
    for text in found["findings"]:
        stages.note(text)
    return bool(found["tiny"])


def _findings(health: Health) -> list[str]:
    said = []
    for kind, words in (
        ("two labels", "lie under two labels, which teaches contradictions"),
        ("labelled and unlabelled", "are there labelled and unlabelled"),
    ):
        groups = [group for group in health.duplicates if group.kind == kind]
        if groups:
            said.append(f"Of {len(groups):,} images copies {words}: {listing([' = '.join(g.files) for g in groups])}.")
    if health.alike_names:
        said.append(f"Names of classes differ only in case or spaces: {listing(health.alike_names[0])}.")
    again = sum(len(group.files) - 1 for group in health.duplicates)
    near = sum(len(group.files) - 1 for group in health.near_duplicates or ())
    for count, words in ((again, "Copies of other images"), (near, "Images nearly the same as others")):
        if count:
            said.append(f"{words}: {count:,}; sortal check lists them.")
    return said
