"""Sorting: pixels, learning, features, the number of classes, categories. One function a stage, called in order."""

from __future__ import annotations

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

from sortal import estimate, kept, metrics, outcome, tokens
from sortal.confidence import ENOUGH, place
from sortal.config import AUTO, Discovery, Recipe, Training
from sortal.errors import SortalError, listing
from sortal.estimate import Evaluation, estimate_k
from sortal.features import extract
from sortal.identity import by_content, key_of
from sortal.images import ImageSet
from sortal.inputs import choose_device
from sortal.job import Job, check_sortable
from sortal.kmeans import SemiSupervisedKMeans
from sortal.methods import make
from sortal.network import Backbone
from sortal.packing import Settings, pack_readable
from sortal.pixels import Quarantined
from sortal.run import INITIAL, LOG, MODEL, Run
from sortal.segments import write_atomically
from sortal.store import PixelStore
from sortal.tokens import Budget
from sortal.train import VIEWS, Trained, train
from sortal.workers import Progress

HELD_OUT = 1000  # labelled images are enough to calibrate on
DISK = 0.5  # of what is free, that tokens may take while they are needed

Features = NDArray[np.float32]


@dataclass(eq=False)
class Stages:
    """How long stages took; what they do is told with their number in the order."""

    order: tuple[str, ...]
    on_progress: Progress
    on_note: Callable[[str], None]
    timings: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[Progress]:
        number = f"[{self.order.index(name) + 1}/{len(self.order)}]"
        self.on_progress(f"{number} {doing}", 0, 0)
        start = perf_counter()
        yield lambda what, done, total: self.on_progress(f"{number} {what}", done, total)
        self.timings[name] = round(perf_counter() - start, 3)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.on_note(text)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sorted:
    """What came of sorting: a run that is not saved yet, its pixels, and further files that belong to it."""

    run: Run
    store: PixelStore
    files: dict[str, bytes | Path]


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """What came of learning; all of it is None where nothing was learned."""

    trained: Trained | None = None
    folder: Path | None = None  # where the backbone is saved
    head: Features | None = None  # (k, d + 1), where the method trains a classifier


def order_of(settings: Discovery, recipe: Recipe) -> tuple[str, ...]:
    """The stages of sorting in their order: k comes first where a method must know it to learn."""
    before = settings.k == AUTO and recipe.learns and recipe.estimate_on == "raw"
    return (
        ("pixels", "k", "learn", "features", "clusters") if before else ("pixels", "learn", "features", "k", "clusters")
    )


def sort(job: Job, recipe: Recipe, backbone: Backbone, stages: Stages) -> Sorted:
    """Every image in a category, with a confidence and, where the truth is known, how good that is."""
    with stages.stage("pixels", "Storing pixels") as tell:
        everything, pixels, quarantine = _pixels(job, backbone, stages, tell)
        to_sort = ~everything.validation
        images, store = everything.select(to_sort), pixels.select(to_sort)
        held = held_out(images, by_content(images, store), job.settings)
    shown = replace(images, labels=np.where(held, -1, images.labels))  # what learning and clustering may know

    def features(tell: Progress) -> Features:
        x = extract(
            backbone,
            store,
            normalise=True,
            folder=job.cache,
            device=job.device,
            precision=recipe.training.precision,
            on_progress=tell,
        )
        if not np.isfinite(x).all():  # weights may blow up in the last step, whose loss was still a number
            raise SortalError("Features must be numbers, got some that are none. Use a lower lr, or other weights.")
        return x

    k: dict[str, Any] | None = None
    if order_of(job.settings, recipe)[1] == "k":
        with stages.stage("k", "Estimating the number of classes") as tell:
            k = _how_many(job, recipe, features(tell), shown, tell)
    with stages.stage("learn", "Learning") as tell:
        to_learn = everything if recipe.select else images
        hidden = np.zeros(len(to_learn), dtype=bool)
        hidden[to_sort if recipe.select else slice(None)] = held
        to_learn = replace(to_learn, labels=np.where(hidden, -1, to_learn.labels))
        learned = _learn(job, recipe, backbone, to_learn, pixels if recipe.select else store, k, stages, tell)
    with stages.stage("features", "Computing features") as tell:
        x = features(tell)
    if k is None:
        with stages.stage("k", "Estimating the number of classes") as tell:
            k = _how_many(job, recipe, x, shown, tell)
    with stages.stage("clusters", "Clustering"):
        clusters, centres = _clusters(job, recipe, x, shown, k["k"], learned.head)
        run = outcome.gather(job, images, held, x, clusters, centres, k, store, quarantine, learned.head)
    about = outcome.about(job, backbone, learned.trained, images, run.assignments, x, recipe)
    run.about.update(about, notes=stages.notes, timings=stages.timings)
    return Sorted(run=run, store=store, files=_files(job, backbone, learned.folder))


# The stages


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
        to_sort = images.select(~images.validation)
        check_sortable(to_sort, job.settings)
        lost = set(range(len(images.classes))) - set(to_sort.labels.tolist())
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
    recipe: Recipe,
    backbone: Backbone,
    images: ImageSet,
    store: PixelStore,
    k: dict[str, Any] | None,
    stages: Stages,
    tell: Progress,
) -> Learned:
    """Train the backbone, in place."""
    if not recipe.learns:
        return Learned()
    known = np.unique(images.labels[images.labelled]).tolist()
    given = job.settings.k
    n_categories = k["k"] if k is not None else 0 if isinstance(given, str) else given
    method = make(recipe, backbone, k=n_categories, known=known)
    folder = job.cache / "learn" / kept.key("learn", key_of(method, images, store, recipe.training))
    _keep_initial(backbone, folder)
    trained = train(
        method,
        images,
        store,
        recipe.training,
        folder=folder,
        device=job.device,
        budget=token_plan(job, backbone, recipe.training, len(images))[0],
        on_progress=tell,
        on_note=stages.on_note,
    )
    head = method.classifier()
    return Learned(trained=trained, folder=folder, head=None if head is None else head.float().cpu().numpy())


def _keep_initial(backbone: Backbone, folder: Path) -> None:
    """Write down what is to be trained as it is now, so that before and after can be compared."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    trained = {name: value.detach().cpu() for name, value in backbone.named_parameters() if value.requires_grad}
    if not (folder / INITIAL).exists():
        write_atomically(folder / INITIAL, save(trained))


def token_plan(job: Job, backbone: Backbone, training: Training, n: int) -> tuple[Budget, tokens.Plan | None]:
    """Where tokens of n images may be kept, and where they will be; None without tokens.

    Without a GPU they take minutes to hours, so they go to a file where there is room, which a kill leaves.
    """
    if not training.epochs or training.views is None or not backbone.has_trunk:
        return Budget(), None
    views = VIEWS if isinstance(training.views, str) else training.views
    needed = n * views * 2 * math.prod(tokens.token_shape(backbone))
    there = next(each for each in (job.cache.absolute() / "_").parents if each.is_dir())
    room = int(DISK * shutil.disk_usage(there).free)
    budget = Budget(disk=room, memory=0 if needed <= room and not job.on_gpu else None)
    return budget, tokens.plan(needed, budget, choose_device(job.device, None), there)


def estimator(recipe: Recipe) -> estimate.Method:
    """How k is estimated: features that were trained with the labels need another rule than the paper's."""
    return "plateau" if recipe.learns and recipe.estimate_on == "learned" else "brent"


def _how_many(job: Job, recipe: Recipe, x: Features, images: ImageSet, tell: Progress) -> dict[str, Any]:
    """What goes into k.json. Every k that is tried is written down at once."""
    settings = job.settings
    known = len(np.unique(images.labels[images.labelled]))
    if settings.k != AUTO:
        return {"k": settings.k, "estimated": False, "known": known, "interval": None, "method": None, "curve": []}
    method = estimator(recipe)
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
    job: Job, recipe: Recipe, x: Features, images: ImageSet, k: int, head: Features | None
) -> tuple[NDArray[np.int64], Features]:
    """The cluster of each image, and the centres; the first are the known classes."""
    if head is not None:
        return _by_head(x, images, head)
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    settings, labels = job.settings, images.labels
    key = kept.key("clusters", recipe.clustering, kept.hashed(x, labels), k, settings.n_init, settings.seed)
    path = job.cache / "clusters" / f"{key}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        held = load_file(path)
        return held["clusters"], held["centres"]
    model = SemiSupervisedKMeans(k, n_init=settings.n_init, random_state=settings.seed, device=job.device)
    model.fit(x, labels if recipe.clustering == "semi-supervised" else None)
    clusters, centres = model.labels_, model.cluster_centers_
    if recipe.clustering == "kmeans":
        order = named(clusters, labels, k)
        clusters, centres = np.argsort(order)[clusters], centres[order]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save({"clusters": clusters, "centres": np.ascontiguousarray(centres)}))
    return clusters, centres


def named(clusters: NDArray[np.int64], labels: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """(k,) clusters in an order in which the first are the known classes, as far as labelled images tell.

    Plain k-means knows no classes: each gets the cluster that one match of labelled images gives it, and those without
    one the clusters that are left.
    """
    rows = labels >= 0
    known = np.unique(labels[rows])
    cluster_of = {label: cluster for cluster, label in metrics.match(labels[rows], clusters[rows], old=known).items()}
    left = iter(sorted(set(range(k)) - set(cluster_of.values())))
    first = [cluster_of[label] if label in cluster_of else next(left) for label in known.tolist()]
    return np.array([*first, *left], dtype=np.int64)


def _by_head(x: Features, images: ImageSet, head: Features) -> tuple[NDArray[np.int64], Features]:
    """Categories by a classifier's scores; centres are means, or the direction of what no image has gone to."""
    weights = head[:, :-1] / np.maximum(np.linalg.norm(head[:, :-1], axis=1, keepdims=True), 1e-12)
    told = place(x, weights, 1.0, head=head.astype(np.float64)).category
    known = np.unique(images.labels[images.labelled])
    clusters = np.where(images.labelled, np.searchsorted(known, images.labels), told)
    sums, sizes = np.zeros(weights.shape), np.bincount(clusters, minlength=len(head))
    np.add.at(sums, clusters, x.astype(np.float64))
    means = np.where(sizes[:, None] > 0, sums / np.maximum(sizes[:, None], 1), weights)
    return clusters, means.astype(np.float32)


def _files(job: Job, backbone: Backbone, learned_in: Path | None) -> dict[str, bytes | Path]:
    """The files of the model, and, where something was learned, of what it was before and of the log."""
    folder = _untrained(job, backbone) if learned_in is None else learned_in
    files: dict[str, bytes | Path] = {f"{MODEL}{end}": folder / f"{MODEL}{end}" for end in (".safetensors", ".json")}
    if learned_in is not None:
        files[INITIAL] = folder / INITIAL
    if (folder / LOG).exists():
        files[LOG] = (folder / LOG).read_bytes()  # not a link: a log is written to in its place
    return files


def _untrained(job: Job, backbone: Backbone) -> Path:
    """The folder of the backbone as it came; others may be about to make the same one."""
    folder = job.cache / "untrained" / backbone.fingerprint()[:16]
    if not folder.exists():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        backbone.save(made / MODEL)
        try:
            made.rename(folder)
        except OSError:
            shutil.rmtree(made)
    return folder
