"""From a folder of images to sorted categories: discover() stores pixels, checks, sorts and draws the report.

Each stage caches its result in the run folder under a key made of everything it depends on: the content of the images,
the settings it uses and the version of the code. Another k repeats only the stages after it; a killed run resumes.
"""

import os
import platform
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from textwrap import indent
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sortal.clustering.tsne import mapper
from sortal.config import AUTO, Discovery, Reading, Rounds, describe, from_keywords, load_method, load_named_backbone
from sortal.discovery import defaults
from sortal.discovery.config_files import settings_in
from sortal.discovery.earlier import EarlierRun
from sortal.discovery.job import Job, Source, check_sortable, prepare
from sortal.discovery.results import features_of, named_at_source, sources_of, with_images
from sortal.discovery.reviewing.advice import compare
from sortal.discovery.run_places import ANOTHER_FOLDER, check_output_folder
from sortal.discovery.sampling import check_room, learned_part
from sortal.discovery.stages import SortingResult, Stages, sort, store_pixels
from sortal.discovery.streaming import sort_rest
from sortal.discovery.symptoms import symptoms
from sortal.errors import InputError, listing
from sortal.images.check import Health, check_stored, contradictory
from sortal.images.reading import PerImage
from sortal.images.review_states import ReviewState
from sortal.images.store.pixel_store import PixelStore
from sortal.images.store.vector_rows import unit_rows
from sortal.images.vector_sets import feature_notes, features_in_memory
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.backbones.vectors import VectorBackbone
from sortal.reviews.carrying import EarlierReview, reviewed_run
from sortal.reviews.journal import audited
from sortal.reviews.loading import load_run, save_run
from sortal.runs.building import contents_of, unassigned
from sortal.runs.run import REPORT, Run
from sortal.system import cache
from sortal.system.device import quick_threads, start
from sortal.system.distributed import alone
from sortal.system.files import LOCK_FILE, lock_folder
from sortal.system.progress import Runtime, shown
from sortal.system.text import plural
from sortal.web.report import report

THREADS = "threads.json"  # in the cache: with how many the run computes


def discover(
    images: Source | Run | None = None,
    *,
    features: Any = None,
    files: PerImage | None = None,
    labels: str | os.PathLike[str] | PerImage | None = None,
    out: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    force: bool = False,
    watch_truth: bool = False,
    progress: bool = True,
    runtime: Runtime = Runtime(),
    **settings: Any,
) -> Run:
    """Sort images into known and newly discovered categories, each with a confidence, and write a report.

    `images` is a folder, several folders, a list of files or an ImageSet; or a run, whose images are sorted again, or
    its folder. `labels` is a table of labels for folders. `features` are sorted instead of images: a file of vectors,
    or an array (n, d) with lists of names (`files`) and `labels`; `images` is then the folder of their pictures, if
    any. The run is written to the folder `out`, by default IMAGES-run in the current folder. Calling it again resumes
    an interrupted run, or recomputes whatever other settings change: settings that are not given come from the run in
    `out`, and images that were added to it take part. `force` overwrites that run, and takes nothing from it.
    `config` is a file of settings: the run.json of a run, which repeats it, or TOML. `watch_truth` writes the accuracy
    of each epoch by the truth, where it is known, to watched.jsonl, which nothing else reads. `progress` shows what is
    being done, and `runtime` has the device and the processes that read images.

        run = sortal.discover("photos", labels="labels.csv", k=40)

    `settings`, with their defaults:
    """
    for name in settings.keys() & {field.name for field in fields(Runtime)}:
        raise InputError(f"{name!r} is not a setting. Pass runtime=Runtime({name}=...).")
    if "method" in settings:
        settings["method"] = load_method(settings["method"])
    if "backbone" in settings:
        settings["backbone"] = load_named_backbone(settings["backbone"])
    if config is not None:
        found = settings_in(config, {*settings, *(["labels"] if labels is not None else [])})
        labels, settings = found.pop("labels", labels), {**found, **settings}
    how, reading = from_keywords(settings, Discovery, Reading, others=discover.__kwdefaults__ or ())
    images = images.folder if isinstance(images, Run) else images
    if features is not None and not isinstance(features, str | os.PathLike):
        if isinstance(labels, str | os.PathLike) or images is not None:
            raise InputError("An array of features goes with lists of files and labels, not with a table or a folder.")
        images, labels, features = features_in_memory(features, files=files, labels=labels, reading=reading), None, None
        reading = Reading()
    elif files is not None or not isinstance(labels, str | os.PathLike | None):
        raise InputError("files and lists of labels go with an array of features. Pass a table of labels otherwise.")
    elif images is None and features is None:
        raise InputError("images or features are required: a folder, or a file or an array of vectors.")
    with shown(runtime, wanted=progress) as runtime:
        job = prepare(
            images,
            labels,
            out,
            how,
            reading,
            given=settings,
            runtime=runtime,
            force=force,
            watch_truth=watch_truth,
            features=features,
        )
        if job.retraining:
            job.runtime.note(job.retraining)
        return carry_out(job)


discover.__doc__ = f"{discover.__doc__}\n{indent(describe(Discovery, Reading), ' ' * 8)}\n"


def carry_out(job: Job) -> Run:
    """Run all stages of a job in its folder, which is locked meanwhile, and save the run.

    Several processes work together; the first one alone writes the run, which all of them return.
    """
    settings, processes = job.settings, job.processes
    start(job.device)
    job.runtime.progress("Loading the network", 0, 0)
    backbone = processes.in_turn(partial(backbone_of, job))
    job = replace(job, recipe=defaults.suited_to_network(job.recipe, settings, has_trunk=backbone.has_trunk))
    with lock_folder(job.place if processes.is_first else None), ExitStack() as meanwhile:
        processes.by_first(partial(_check_unchanged, job))
        if job.retraining is not None and processes.is_first:
            job.agree()
        job = replace(job, earlier=_with_review(job))
        stages = Stages(stages_of(job), job.runtime)
        measured = not job.on_gpu and processes.size == 1
        if threads := meanwhile.enter_context(quick_threads(measured, job.cache / THREADS)):
            stages.note(threads)
        job = with_reviewed_k(job, stages)
        whole, (job, chosen) = job, learned_part(job)
        processes.by_first(partial(check_room, job, backbone))
        pixels = store_pixels(job, backbone, stages)
        with stages.stage("check", "Checking images") as runtime:
            mostly_tiny = processes.by_first(lambda: _check(job, pixels, stages, runtime))
        job = without_contradictions(job, pixels)
        labelled = int(job.images.labelled.sum())
        for text in defaults.notes(settings, job.recipe, mostly_tiny=mostly_tiny, labelled=labelled, on_gpu=job.on_gpu):
            stages.note(text)
        to_sort, binned = without_bin(job, pixels, stages)
        found = sort(to_sort, backbone, stages, pixels.select(~binned))
        if found is None:
            processes.barrier()  # until the first process has saved the run
            return load_run(job.place)
        if binned.any():
            found = with_bin(job, binned, found, pixels, backbone, job.runtime)
        if not chosen.all():
            with stages.stage("rest", "Sorting the other images") as runtime:
                found = sort_rest(whole, chosen, found, pixels.present, backbone, stages, runtime)
        review = EarlierReview(job.earlier.reviewed, found.run.assignments.contents)
        if contradicted := review.contradicted(found.run):
            where = "; ".join(contradicted)
            stages.note(f"Sorted otherwise than reviewed, where nobody had decided image by image: {where}.")
        with stages.stage("report", "Drawing the report") as runtime:
            place, seed, maps = job.cache / "map", settings.seed, mapper(runtime.device)
            compared = compare(found.run, found.store, seed, runtime.device)
            for text in symptoms(found.run, compared):
                stages.note(text)
            run = stages.recorded_in(found.run)
            page = report.make_report(run, found.store, maps, compared, seed=seed, folder=place, runtime=runtime)
        run = stages.recorded_in(run)
        save_run(run, {REPORT: page, **found.files})
    processes.barrier()
    return run


def backbone_of(job: Job) -> Backbone:
    """Load the network of a job; for feature vectors, only a head."""
    settings, features = job.settings, job.images.features
    if features is not None:
        mean = unit_rows(features).mean(axis=0, dtype=np.float64)
        return VectorBackbone(torch.from_numpy(mean), seed=settings.seed)
    return load_backbone(
        settings.backbone, weights=settings.weights, image_size=job.image_size, trained=job.trained, seed=settings.seed
    )


def _check_unchanged(job: Job) -> None:
    """Refuse a job whose run or folder another process changed before this one held the lock."""
    origin = job.origin
    now = check_output_folder(job.place, origin.folders, origin.folder, force=job.force, features=origin.features)
    if now != job.earlier.facts:
        raise InputError(
            f"The run in {str(job.place)!r} was changed by another process meanwhile. Repeat the command to sort "
            "with that change."
        )


def _with_review(job: Job) -> EarlierRun:
    """Return the run in the job's folder with its review, if there is one; refuse a folder that hosts do not share."""
    processes = job.processes
    seen = processes.in_turn((job.place / LOCK_FILE).exists)  # which the first process has made

    def check(hosts: list[str | None]) -> None:
        for host in filter(None, hosts):
            raise InputError(
                "The folder of the run must be on storage that all hosts share, but "
                f"{str(job.place.absolute())!r} on {host!r} is not the folder of the first process.",
                ANOTHER_FOLDER,
            )

    processes.by_first(partial(check, processes.gather_objects(None if seen else platform.node())))
    found = processes.in_turn(partial(reviewed_run, job.place, force=job.force))
    if found is None:
        return job.earlier
    return replace(job.earlier, reviewed=found, audited=processes.in_turn(partial(audited, job.place)))


def with_reviewed_k(job: Job, stages: Stages) -> Job:
    """Return the job with the number of categories that people have left, if it need not be found again.

    That is where they have made, or decided on, every new category, or where k was given to the earlier run.
    """
    before, k = job.earlier.reviewed, job.settings.k
    if before is None or job.settings.granularity != "usual" or not (k == AUTO or job.earlier.same_k):
        return job
    review = EarlierReview(before, ())
    if k == AUTO and not review.complete:
        return job
    now = sum(each.size > 0 for each in before.categories)
    if now == k:
        return job
    stages.note(f"The review has left {plural(now, 'category', 'categories')}, so as many are found again.")
    return replace(job, settings=replace(job.settings, k=now))


def stages_of(job: Job) -> tuple[str, ...]:
    """Return the stages of a run in their order."""
    pixels, *others = job.order
    n = job.settings.learn_on
    rest = ("rest",) if n is not None and n < len(job.images) else ()
    return (pixels, "check", *others, *rest, "report")


def _check(job: Job, pixels: PixelStore, stages: Stages, runtime: Runtime) -> bool:
    """Note what is unusual about the images; return whether most of them are tiny. No file is opened."""
    images = job.images
    if images.features is not None:
        for text in feature_notes(images):
            stages.note(text)
        return False
    counts_once = isinstance(job.recipe.losses, Rounds)  # and says itself which are near-duplicates
    key = cache.key(
        "check", counts_once, images.files, images.labels.tolist(), images.classes, cache.hashed(pixels.digests)
    )
    path = job.cache / "check" / f"{key}.json"
    if (found := cache.load(path)) is None:
        health = check_stored(images, pixels, runtime=runtime)
        found = {"findings": _findings(health, near=not counts_once), "mostly_tiny": 2 * len(health.tiny) > len(images)}
        cache.save(path, found)
    for text in found["findings"]:
        stages.note(text)
    return bool(found["mostly_tiny"])


def without_contradictions(job: Job, pixels: PixelStore) -> Job:
    """Return the job without the labels of images that have two different ones; the check names these images."""
    torn = contradictory(job.images.labels, pixels.digests)
    if not torn:
        return job
    images = job.images.without_labels([row for rows in torn for row in rows])
    check_sortable(images, job.settings)
    return replace(job, images=images)


def _findings(health: Health, *, near: bool) -> list[str]:
    notes = []
    for kind, words in (
        ("two labels", "under two labels, which contradict each other and are ignored"),
        ("labelled and unlabelled", "both labelled and unlabelled"),
    ):
        groups = [group for group in health.duplicates if group.kind == kind]
        if groups:
            named = listing([f"{group.files[0]} (also {', '.join(group.files[1:])})" for group in groups])
            notes.append(f"{plural(len(groups), 'image appears', 'images appear')} {words}: {named}.")
    torn = sum(label is not None for each in health.duplicates if each.kind == "two labels" for label in each.labels)
    lost = sum(each.unreadable for each in health.classes if each.name is not None)
    if torn or lost:
        why = [f"of images with two labels ({torn:,})"] * bool(torn) + [f"of unreadable images ({lost:,})"] * bool(lost)
        notes.append(f"{plural(torn + lost, 'label is', 'labels are')} not used: {' and '.join(why)}.")
    if health.alike_names:
        notes.append(f"Some class names differ only in case or spaces: {listing(health.alike_names[0])}.")
    copies = sum(len(group.files) - 1 for group in health.duplicates)
    similar = sum(len(group.files) - 1 for group in health.near_duplicates or ()) if near else 0
    for count, words in ((copies, "exact"), (similar, "near")):
        if count:
            notes.append(f"{plural(count, f'{words} duplicate')} found; run sortal check for a list.")
    return notes


def without_bin(job: Job, pixels: PixelStore, stages: Stages) -> tuple[Job, NDArray[np.bool_]]:
    """Return the job without the images in the bin, and the mask (n,) of these; pixels are those of all its images."""
    review = EarlierReview(job.earlier.reviewed, contents_of(pixels.digests))
    binned = review.states == ReviewState.BINNED
    if not binned.any():
        return job, binned
    images = job.images.select(~binned)
    to_sort = images.select(~images.validation)
    if not to_sort.unlabelled.any():
        raise InputError("Every image is labelled or in the bin, so there is nothing left to sort.")
    check_sortable(to_sort, job.settings)
    stages.note(f"In the bin by a review: {plural(int(binned.sum()), 'image')}. Nothing is learned from the bin.")
    return replace(job, images=images), binned


def with_bin(
    job: Job, binned: NDArray[np.bool_], found: SortingResult, pixels: PixelStore, backbone: Backbone, runtime: Runtime
) -> SortingResult:
    """Add the images in the bin, a mask (n,), to a run of the job's other images; all are in the order of the job."""
    kept = pixels.present & ~job.images.validation
    binned = binned & kept
    everything, run, aside = job.images.select(kept), found.run, np.flatnonzero(binned[kept])
    images, store = job.images.select(binned), pixels.select(binned)
    x = features_of(job, backbone, store, runtime, alone(runtime.device))
    blank = named_at_source(job, images, unassigned(images, store.digests))
    blank = replace(blank, reviewed=np.full(len(images), int(ReviewState.BINNED)))
    order = np.argsort(np.concatenate([np.flatnonzero(~binned[kept]), aside]))
    whole = with_images(
        run,
        run.assignments.joined(blank).take(order),
        np.concatenate([run.features, x])[order],
        facts=replace(run.facts, images=sources_of(job, everything)),
        quarantine=run.quarantine,
    )
    return replace(found, run=whole, store=pixels.select(kept))
