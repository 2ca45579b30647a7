"""From a folder of images to sorted categories: one function per stage, and discover() that calls them in order.

Each stage keeps what it made in the run's cache, under a name made of all it depends on: the content of the images, the
settings it looks at, and the version of the code. Another k redoes only what follows; a killed run goes on.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal import advice, estimate, kept, outcome, report, tokens
from sortal.backbone import load_backbone
from sortal.check import Health, check
from sortal.confidence import ENOUGH
from sortal.config import AUTO, BACKBONE, Auto, Discovery, MethodName, Training
from sortal.errors import listing
from sortal.estimate import Evaluation, estimate_k
from sortal.features import extract
from sortal.identity import by_content, key_of
from sortal.images import ImageSet
from sortal.inputs import choose_device
from sortal.job import Job, Source, check_sortable, prepare
from sortal.kmeans import SemiSupervisedKMeans
from sortal.lock import alone
from sortal.methods import Contrastive
from sortal.network import Backbone
from sortal.packing import Settings, pack_readable
from sortal.pixels import Quarantined
from sortal.reading import UNLABELLED, Folders, Unlisted
from sortal.run import CACHE, LOG, MODEL, REPORT, Run
from sortal.seen import stamp_of
from sortal.segments import write_atomically
from sortal.store import PixelStore
from sortal.tables import ExtraColumns
from sortal.tokens import Budget
from sortal.train import VIEWS, Trained, train
from sortal.workers import Progress

STAGES = ("check", "pixels", "learn", "features", "k", "clusters", "report")
HELD_OUT = 1000  # labelled images are enough to calibrate on
DISK = 0.5  # of what is free, that tokens may take while they are needed

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Stages:
    """How long stages took; what they do is told with their number."""

    on_progress: Progress
    on_note: Callable[[str], None]
    timings: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[Progress]:
        number = f"[{STAGES.index(name) + 1}/{len(STAGES)}]"
        self.on_progress(f"{number} {doing}", 0, 0)
        start = perf_counter()
        yield lambda what, done, total: self.on_progress(f"{number} {what}", done, total)
        self.timings[name] = round(perf_counter() - start, 3)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note(text)


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
    with alone(job.place):
        return _all_stages(job, backbone, Stages(on_progress, on_note))


def _all_stages(job: Job, backbone: Backbone, stages: Stages) -> Run:
    with stages.stage("check", "Checking images") as tell:
        tiny = _checked(job, stages, tell)
    training = advice.training_for(job.settings, len(job.images), on_gpu=job.on_gpu)
    labelled = int(job.images.labelled.sum())
    for text in advice.notes(job.settings, training, mostly_tiny=tiny, labelled=labelled, on_gpu=job.on_gpu):
        stages.note(text)
    with stages.stage("pixels", "Storing pixels") as tell:
        images, store, quarantine = _pixels(job, backbone, stages, tell)
        held = held_out(images, by_content(images, store), job.settings)
    shown = replace(images, labels=np.where(held, -1, images.labels))  # what learning and clustering may know
    with stages.stage("learn", "Learning") as tell:
        trained, learned_in = _learn(job, backbone, shown, store, training, stages, tell)
    with stages.stage("features", "Computing features") as tell:
        x = extract(
            backbone,
            store,
            normalise=True,
            folder=job.cache,
            device=job.device,
            precision=training.precision,
            on_progress=tell,
        )
    with stages.stage("k", "Estimating the number of classes") as tell:
        k = _how_many(job, x, shown, tell)
    with stages.stage("clusters", "Clustering"):
        clusters, centres = _clusters(job, x, shown, k["k"])
    with stages.stage("report", "Drawing the report") as tell:
        found = outcome.gather(job, images, held, x, clusters, centres, k, store, quarantine)
        if not found.confidence["calibrated"]:
            stages.note(
                "Confidence is not calibrated: "
                + ("none" if not job.settings.held_out else f"fewer than {ENOUGH}")
                + " of the labelled images were to be held out for that (--held-out)."
            )
        about = outcome.about(job, backbone, trained, images, found.assignments, x, training.precision)
        found.about.update(about, notes=stages.notes, timings=stages.timings)
        page = report.make(found, store, seed=job.settings.seed, folder=job.cache / "map", on_progress=tell)
    found.save({REPORT: page, **_model(job, backbone, learned_in)})
    return found


# The stages


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


def _pixels(
    job: Job, backbone: Backbone, stages: Stages, tell: Progress
) -> tuple[ImageSet, PixelStore, tuple[Quarantined, ...]]:
    """The images that can be read, their pixels, and those that cannot."""
    images, store, quarantine = pack_readable(
        job.images,
        job.cache / "pixels",
        settings=Settings(shorter_side=backbone.spec.shorter_side),
        workers=job.workers,
        on_progress=tell,
    )
    if quarantine:
        stages.note(f"{len(quarantine):,} files cannot be read and are left out.")
        check_sortable(images, job.settings)
        lost = set(range(len(images.classes))) - set(images.labels.tolist())
        if lost:
            names = listing([images.classes[i] for i in sorted(lost)])
            stages.note(f"No labelled image is left of the known classes {names}.")
    return images, store, quarantine


def held_out(images: ImageSet, order: NDArray[np.int64], settings: Discovery) -> NDArray[np.bool_]:
    """(n,) labelled images whose labels are kept for calibration: a share of each class, rounded down.

    They are drawn from the rows in this order (n,), one that does not depend on what files are called.
    """
    generator = np.random.default_rng(settings.seed)
    drawn = [np.zeros(0, dtype=np.int64)]
    for label in np.unique(images.labels[images.labelled]):
        rows = order[images.labels[order] == label]
        drawn.append(generator.choice(rows, size=int(settings.held_out * len(rows)), replace=False))
    held = np.zeros(len(images), dtype=bool)
    rows = generator.permutation(np.concatenate(drawn))[:HELD_OUT]
    held[rows if len(rows) >= ENOUGH else []] = True  # fewer are better learned from
    return held


def _learn(
    job: Job,
    backbone: Backbone,
    images: ImageSet,
    store: PixelStore,
    training: Training,
    stages: Stages,
    tell: Progress,
) -> tuple[Trained | None, Path | None]:
    """Train the backbone, in place; what came of it, and the folder it is saved in."""
    if job.settings.method == "kmeans" or training.epochs == 0:
        return None, None
    method = Contrastive(backbone, advice.contrast_for(job.settings), seed=job.settings.seed)
    folder = job.cache / "learn" / kept.key("learn", key_of(method, images, store, training))
    trained = train(
        method,
        images,
        store,
        training,
        folder=folder,
        device=job.device,
        budget=token_plan(job, backbone, training, len(images))[0],
        on_progress=tell,
        on_note=stages.on_note,
    )
    return trained, folder


def token_plan(job: Job, backbone: Backbone, training: Training, n: int) -> tuple[Budget, tokens.Plan | None]:
    """Where tokens of n images may be kept, and where they will be; None without tokens.

    Without a GPU they take minutes to hours, so they go to a file where there is room, which a kill leaves.
    """
    if not training.epochs or training.views is None or not backbone.has_trunk:
        return Budget(), None
    views = VIEWS if isinstance(training.views, str) else training.views
    needed = n * views * 2 * math.prod(tokens.token_shape(backbone))
    there = next(each for each in (job.place.absolute() / CACHE).parents if each.is_dir())
    room = int(DISK * shutil.disk_usage(there).free)
    budget = Budget(disk=room, memory=0 if needed <= room and not job.on_gpu else None)
    return budget, tokens.plan(needed, budget, choose_device(job.device, None), there)


def estimator(settings: Discovery) -> estimate.Method:
    """How k is estimated: features that were trained with the labels need another rule than the paper's."""
    return "brent" if settings.method == "kmeans" or settings.epochs == 0 else "plateau"


def _how_many(job: Job, x: NDArray[np.float32], images: ImageSet, tell: Progress) -> dict[str, Any]:
    """What goes into k.json. Every k that is tried is written down at once."""
    settings = job.settings
    known = len(np.unique(images.labels[images.labelled]))
    if settings.k != AUTO:
        return {"k": settings.k, "estimated": False, "known": known, "interval": None, "method": None, "curve": []}
    method = estimator(settings)
    key = kept.key("k", method, kept.hashed(x, images.labels), settings.k_max, settings.seed)
    path = job.cache / "k" / f"{key}.json"
    tried = [Evaluation(k=e["k"], score=e["score"], each=tuple(e["each"])) for e in kept.load(path) or []]

    def on_k(at: Evaluation) -> None:
        tried.append(at)
        kept.save(path, [asdict(each) for each in tried])
        tell(f"Estimating the number of classes: {at.k} scores {at.score:.3f}", 0, 0)

    most = min(settings.k_max, known + int(images.unlabelled.sum()))
    found = estimate_k(
        x,
        images.labels,
        k_max=most,
        method=method,
        random_state=settings.seed,
        device=job.device,
        callback=on_k,
        known=tuple(tried),
    )
    return {"estimated": True, "known": known, **asdict(found)}


def _clusters(
    job: Job, x: NDArray[np.float32], images: ImageSet, k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The cluster of each image, and the centres; the first are the known classes."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    settings = job.settings
    key = kept.key("clusters", kept.hashed(x, images.labels), k, settings.n_init, settings.seed)
    path = job.cache / "clusters" / f"{key}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        held = load_file(path)
        return held["clusters"], held["centres"]
    model = SemiSupervisedKMeans(k, n_init=settings.n_init, random_state=settings.seed, device=job.device)
    model.fit(x, images.labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save({"clusters": model.labels_, "centres": model.cluster_centers_}))
    return model.labels_, model.cluster_centers_


def _model(job: Job, backbone: Backbone, learned_in: Path | None) -> dict[str, bytes | Path]:
    """The files of the model, and of the log where something was learned."""
    folder = job.cache / "untrained" if learned_in is None else learned_in
    if learned_in is None:
        backbone.save(folder / MODEL)
    files: dict[str, bytes | Path] = {f"{MODEL}{end}": folder / f"{MODEL}{end}" for end in (".safetensors", ".json")}
    if (folder / LOG).exists():
        files[LOG] = (folder / LOG).read_bytes()  # not a link: a log is written to in its place
    return files
