"""Sorting in stages: pixels, training, features, the number of classes, clusters. One function per stage."""

import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sortal import metrics
from sortal.clustering.estimate_k import Evaluation, Method, estimate_k
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.config import Discovery, Recipe, Training
from sortal.discovery import results
from sortal.discovery.job import Job, check_sortable
from sortal.discovery.results import Clusters
from sortal.discovery.stability import cluster_again
from sortal.errors import SortalError, listing
from sortal.images.image_set import ImageSet
from sortal.images.store.packing import Settings, pack, select_readable
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import token_cache
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.checkpoint import content_order, run_key
from sortal.learning.features import extract
from sortal.learning.methods import make
from sortal.learning.token_cache import Budget
from sortal.learning.train import VIEWS, train
from sortal.runs import cache
from sortal.runs.confidence import ENOUGH, Features, Floats, place
from sortal.runs.facts import KChoice, TrainingResult, TriedK
from sortal.runs.run import INITIAL, LOG, MODEL, Run
from sortal.system.files import write_atomically
from sortal.system.json_records import read_record
from sortal.system.progress import Runtime
from sortal.system.text import plural

HELD_OUT = 1000  # labelled images at most to calibrate on
DISK = 0.5  # share of the free disk space that tokens may take


@dataclass(eq=False)
class Stages:
    """The stages of a run in their order: their progress, times and notes."""

    order: tuple[str, ...]
    runtime: Runtime
    timings: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[Runtime]:
        runtime = self.runtime.prefixed(f"[{self.order.index(name) + 1}/{len(self.order)}] ")
        runtime.progress(doing, 0, 0)
        start = perf_counter()
        yield runtime
        self.timings[name] = round(perf_counter() - start, 3)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.runtime.note(text)

    def recorded_in(self, run: Run) -> Run:
        """Return the run with all notes and times so far."""
        return replace(run, facts=replace(run.facts, notes=tuple(self.notes), timings=dict(self.timings)))


@dataclass(frozen=True, kw_only=True, eq=False)
class SortingResult:
    """A run that is not saved yet, its pixels, and further files of its folder; None removes a file."""

    run: Run
    store: PixelStore
    files: dict[str, bytes | Path | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningResult:
    """The outcome of training; all of it is None for a method that trains nothing."""

    trained: TrainingResult | None = None
    folder: Path | None = None  # where the backbone is saved
    head: Features | None = None  # (k, d + 1), where the method trains a classifier


def store_pixels(job: Job, backbone: Backbone, stages: Stages) -> PixelStore:
    """Store the pixels of all images, each of which is read once; the rows are those of the job's images."""
    settings = Settings(shorter_side=backbone.spec.shorter_side)
    with stages.stage("pixels", "Reading images") as runtime:
        return pack(job.images, job.cache / "pixels", settings=settings, runtime=runtime)


def sort(job: Job, backbone: Backbone, stages: Stages, pixels: PixelStore) -> SortingResult:
    """Sort every image into a category, with a confidence."""
    recipe, quarantine = job.recipe, pixels.quarantine
    everything, pixels = _readable(job, pixels, stages)
    to_sort = ~everything.validation
    images, store = everything.select(to_sort), pixels.select(to_sort)
    order = content_order(images, store)
    held = held_out(images, order, job.settings)
    shown = replace(images, labels=np.where(held, -1, images.labels))  # without the labels held out
    to_learn, of_learning = shown, store
    if recipe.select:
        labels = everything.labels.copy()
        labels[to_sort] = shown.labels
        to_learn, of_learning = replace(everything, labels=labels), pixels

    def features(runtime: Runtime) -> Features:
        precision = recipe.training.precision
        x = extract(backbone, store, normalise=True, folder=job.cache, precision=precision, runtime=runtime)
        if not np.isfinite(x).all():  # training measures only some of them
            raise SortalError("Features must be finite, got NaN or infinity. Use a lower lr, or other weights.")
        return x

    k: KChoice | None = None
    if job.order[1] == "k":
        with stages.stage("k", "Estimating the number of classes") as runtime:
            k = _choose_k(job, features(runtime), shown, runtime)
    with stages.stage("learn", "Training") as runtime:
        learned = _learn(job, backbone, to_learn, of_learning, k, runtime)
        if learned.trained is not None:
            stages.notes.extend(learned.trained.setbacks)  # already reported
    with stages.stage("features", "Computing features") as runtime:
        x = features(runtime)
    if k is None:
        with stages.stage("k", "Estimating the number of classes") as runtime:
            k = _choose_k(job, x, shown, runtime)
    with stages.stage("clusters", "Clustering"):
        of, centres = _clusters(job, x, shown, k.k, learned.head)
        agreement = None if learned.head is not None else _repeat(job, x, shown, order, of, k.k)
    clusters = Clusters(of=of, centres=centres, k=k, head=learned.head, agreement=agreement)
    run = results.gather(job, backbone, learned.trained, images, store.digests, held, x, clusters, quarantine)
    return SortingResult(run=stages.recorded_in(run), store=store, files=_files(job, backbone, learned.folder))


# The stages


def _readable(job: Job, pixels: PixelStore, stages: Stages) -> tuple[ImageSet, PixelStore]:
    """Return the readable images and their pixels, which must still be sortable."""
    images, store = select_readable(job.images, pixels)
    if pixels.quarantine:
        stages.note(f"{plural(len(pixels.quarantine), 'file')} could not be read and will be left out.")
        to_sort = images.select(~images.validation)
        check_sortable(to_sort, job.settings)
        lost = set(range(len(images.classes))) - set(to_sort.labels.tolist())
        if lost:
            names = listing([images.classes[i] for i in sorted(lost)])
            stages.note(f"These known classes have no labelled image left: {names}.")
    return images, store


def held_out(images: ImageSet, order: NDArray[np.int64], settings: Discovery) -> NDArray[np.bool_]:
    """Draw the labelled images (n,) whose labels are held out for calibration: a share of each class, rounded down.

    They are drawn from the rows in this order (n,), which must not depend on file names.
    """
    generator = np.random.default_rng(settings.seed)
    drawn = [np.zeros(0, dtype=np.int64)]
    for label in np.unique(images.labels[images.labelled]):
        rows = order[images.labels[order] == label]
        drawn.append(generator.choice(rows, size=int(settings.held_out * len(rows)), replace=False))
    held = np.zeros(len(images), dtype=bool)
    rows = generator.permutation(np.concatenate(drawn))[:HELD_OUT]
    held[rows if len(rows) >= ENOUGH else []] = True  # fewer serve training better
    return held


def _learn(
    job: Job, backbone: Backbone, images: ImageSet, store: PixelStore, k: KChoice | None, runtime: Runtime
) -> LearningResult:
    """Train the backbone in place."""
    recipe = job.recipe
    if not recipe.learns:
        return LearningResult()
    known = np.unique(images.labels[images.labelled]).tolist()
    given = job.settings.k
    n_categories = k.k if k is not None else 0 if isinstance(given, str) else given
    method = make(recipe, backbone, k=n_categories, known=known)
    folder = job.cache / "learn" / cache.key("learn", run_key(method, images, store, recipe.training))
    _save_initial(backbone, folder)
    budget, _ = token_plan(job, backbone, recipe.training, len(images))
    trained = train(method, images, store, recipe.training, folder=folder, budget=budget, runtime=runtime)
    head = method.classifier()
    return LearningResult(trained=trained, folder=folder, head=None if head is None else head.float().cpu().numpy())


def _save_initial(backbone: Backbone, folder: Path) -> None:
    """Save the weights that will be trained, so that before and after can be compared."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    trained = {name: value.detach().cpu() for name, value in backbone.named_parameters() if value.requires_grad}
    if not (folder / INITIAL).exists():
        write_atomically(folder / INITIAL, save(trained))


def token_plan(job: Job, backbone: Backbone, training: Training, n: int) -> tuple[Budget, token_cache.TokenPlan | None]:
    """Return where tokens of n images may be cached and where they will be; None without tokens."""
    if not training.epochs or training.views is None or not backbone.has_trunk:
        return Budget(), None
    views = VIEWS if isinstance(training.views, str) else training.views
    needed = n * views * 2 * math.prod(token_cache.token_shape(backbone))
    there = next(each for each in (job.cache.absolute() / "_").parents if each.is_dir())
    room = int(DISK * shutil.disk_usage(there).free)
    # Without a GPU they take minutes to hours, so they go to a file where it fits, which survives a kill.
    budget = Budget(disk=room, memory=0 if needed <= room and not job.on_gpu else None)
    return budget, token_cache.plan_tokens(needed, budget, job.device, there)


def estimator(recipe: Recipe) -> Method:
    """Return the rule that estimates k: features trained with the labels need another than the paper's."""
    return "plateau" if recipe.learns and recipe.estimate_on == "learned" else "brent"


def _choose_k(job: Job, x: Features, images: ImageSet, runtime: Runtime) -> KChoice:
    """Return the given number of categories, or estimate it; every k that is tried is cached at once."""
    settings = job.settings
    known = len(np.unique(images.labels[images.labelled]))
    if not isinstance(settings.k, str):
        return KChoice(k=settings.k, estimated=False, known=known)
    method = estimator(job.recipe)
    key = cache.key("k", method, cache.hashed(x, images.labels), settings.k_max, settings.seed)
    path = job.cache / "k" / f"{key}.json"
    tried = [read_record(Evaluation, each) for each in cache.load(path) or []]

    def on_k(at: Evaluation) -> None:
        tried.append(at)
        cache.save(path, [asdict(each) for each in tried])
        runtime.progress(f"Estimating the number of classes: k = {at.k} scores {at.score:.3f}", 0, 0)

    most = min(settings.k_max, known + int(images.unlabelled.sum()))
    found = estimate_k(
        x,
        images.labels,
        k_max=most,
        method=method,
        random_state=settings.seed,
        device=runtime.device,
        callback=on_k,
        known=tuple(tried),
    )
    curve = tuple(TriedK(k=each.k, score=each.score, each=each.each) for each in found.curve)
    return KChoice(k=found.k, estimated=True, known=known, interval=found.interval, method=found.method, curve=curve)


def _clusters(
    job: Job, x: Features, images: ImageSet, k: int, head: Features | None
) -> tuple[NDArray[np.int64], Features]:
    """Return the cluster (n,) of each image, and the centres; the first clusters are the known classes."""
    if head is not None:
        return _cluster_by_head(x, images, head)
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    settings, labels, clustering = job.settings, images.labels, job.recipe.clustering
    key = cache.key("clusters", clustering, cache.hashed(x, labels), k, settings.n_init, settings.seed)
    path = job.cache / "clusters" / f"{key}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        held = load_file(path)
        return held["clusters"], held["centres"]
    model = SemiSupervisedKMeans(k, n_init=settings.n_init, random_state=settings.seed, device=job.runtime.device)
    model.fit(x, labels if clustering == "semi-supervised" else None)
    clusters, centres = model.labels_, model.cluster_centers_
    if clustering == "kmeans":
        order = match_known(clusters, labels, k)
        clusters, centres = np.argsort(order)[clusters], centres[order]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, save({"clusters": clusters, "centres": np.ascontiguousarray(centres)}))
    return clusters, centres


def _repeat(
    job: Job, x: Features, images: ImageSet, order: NDArray[np.int64], clusters: NDArray[np.int64], k: int
) -> Floats | None:
    """Return how often each image (n,) stays in its cluster when clustering is repeated, or None if it cannot be."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save

    seed = job.settings.seed
    labels = np.full(len(x), -1) if job.recipe.clustering == "kmeans" else images.labels
    path = job.cache / "stability" / f"{cache.key('stability', cache.hashed(x, labels, clusters), k, seed)}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        return load_file(path)["agreement"]
    found = cluster_again(x, labels, clusters, k, order=order, seed=seed, device=job.runtime.device)
    if found is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save({"agreement": found}))
    return found


def match_known(clusters: NDArray[np.int64], labels: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the clusters (k,) in an order in which the first are the known classes.

    Plain k-means ignores labels: each class gets the cluster that one match of the labelled images gives it, and a
    class without a match one of the remaining clusters.
    """
    rows = labels >= 0
    known = np.unique(labels[rows])
    cluster_of = {label: cluster for cluster, label in metrics.match(labels[rows], clusters[rows], old=known).items()}
    left = iter(sorted(set(range(k)) - set(cluster_of.values())))
    first = [cluster_of[label] if label in cluster_of else next(left) for label in known.tolist()]
    return np.array([*first, *left], dtype=np.int64)


def _cluster_by_head(x: Features, images: ImageSet, head: Features) -> tuple[NDArray[np.int64], Features]:
    """Cluster by a classifier's scores; centres are means or, for a cluster without images, the head's direction."""
    weights = head[:, :-1] / np.maximum(np.linalg.norm(head[:, :-1], axis=1, keepdims=True), 1e-12)
    chosen = place(x, weights, 1.0, head=head).row
    known = np.unique(images.labels[images.labelled])
    clusters = np.where(images.labelled, np.searchsorted(known, images.labels), chosen)
    return clusters, results.add_to_means(weights, np.zeros(len(head), dtype=np.int64), clusters, x)[0]


def _files(job: Job, backbone: Backbone, learned_in: Path | None) -> dict[str, bytes | Path | None]:
    """Return the files of the model and, after training, its initial weights and the log."""
    folder = _untrained(job, backbone) if learned_in is None else learned_in
    log = folder / LOG
    return {
        f"{MODEL}.safetensors": folder / f"{MODEL}.safetensors",
        f"{MODEL}.json": folder / f"{MODEL}.json",
        INITIAL: None if learned_in is None else folder / INITIAL,
        LOG: log.read_bytes() if log.exists() else None,  # not a link: a log is appended to in place
    }


def _untrained(job: Job, backbone: Backbone) -> Path:
    """Return the folder of the untrained backbone; another process may be saving the same one."""
    folder = job.cache / "untrained" / backbone.fingerprint()[:16]
    if not folder.exists():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        backbone.save(made / MODEL)
        try:
            made.rename(folder)
        except OSError:
            shutil.rmtree(made)
    return folder
