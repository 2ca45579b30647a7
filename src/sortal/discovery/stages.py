"""Sorting in stages: pixels, training, features, the number of classes, clusters. One function per stage."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sortal.config import OWN_K, Rounds
from sortal.discovery import results
from sortal.discovery.grouping import rounds
from sortal.discovery.grouping.bursts import describe_bursts, find_moments
from sortal.discovery.grouping.choose_k import granular_k
from sortal.discovery.grouping.clusters import Rows, cluster, cluster_by_method, fit, repeat, rows_of
from sortal.discovery.grouping.label_doubt import VERY_DOUBTFUL, Doubts, doubts, untrusted
from sortal.discovery.grouping.outliers import apartness
from sortal.discovery.grouping.rounds import LearningResult
from sortal.discovery.grouping.stability import overlaps
from sortal.discovery.job import Job, check_sortable
from sortal.discovery.label_splits import few_held_out, held_out, set_aside, with_decisions, with_sample
from sortal.discovery.results import Clusters
from sortal.discovery.watching import WATCHED, watched_by, watching, without_truth
from sortal.errors import SortalError, listing
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.review_states import SETTLED, ReviewState
from sortal.images.store.packing import Settings, pack, select_readable, store_pictures
from sortal.images.store.pixel_store import PixelStore
from sortal.images.store.vector_rows import digests_of
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.checkpoint import content_order, run_key
from sortal.learning.features import extract
from sortal.learning.frozen import KeptTokens
from sortal.learning.methods import make
from sortal.learning.token_cache import Budget, free_bytes
from sortal.learning.train import train
from sortal.runs.building import contents_of
from sortal.runs.confidence import Features
from sortal.runs.facts import KChoice
from sortal.runs.run import INITIAL, LOG, MODEL, Run
from sortal.system import cache
from sortal.system.files import write_atomically
from sortal.system.open_folder import make_folder
from sortal.system.progress import Runtime
from sortal.system.regular_files import read_regular
from sortal.system.resources import free_disk
from sortal.system.temporary import temporary_folder
from sortal.system.text import plural

DISK_SHARE = 0.5  # share of the free disk space that tokens may take
KEPT_SHARE = 0.1  # share of the free memory of the device that tokens of centre crops may take between rounds


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
        self.timings[name] = round(self.timings.get(name, 0.0) + perf_counter() - start, 3)

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


def store_pixels(job: Job, backbone: Backbone, stages: Stages) -> PixelStore:
    """Store the pixels of all images, each of which is read once; the rows are those of the job's images."""
    settings = Settings.of(backbone.spec, job.settings.max_pixels)
    place, features = job.cache / "pixels", job.images.features
    with stages.stage("pixels", "Reading images") as runtime:
        store = pack if features is None else partial(store_pictures, contents=digests_of(features))
        return store(job.images, folder=place, settings=settings, team=job.processes, runtime=runtime)


def sort(job: Job, backbone: Backbone, stages: Stages, pixels: PixelStore) -> SortingResult | None:
    """Sort every image into a category, with a confidence; return None in all processes but the first."""
    inputs = _inputs(job, pixels, stages)
    compute, moments = _extractor(job, backbone, inputs.store), inputs.moments

    def features(runtime: Runtime) -> Features:
        return moments.means(compute(runtime))

    with stages.stage(job.order[1], "Checking labels") as runtime:
        inputs, doubted = _without_doubtful(job, inputs, compute, runtime)
    k: KChoice | None = None
    if job.order[1] == "k":
        with stages.stage("k", "Estimating the number of classes") as runtime:
            k = granular_k(job, rows_of(job, features(runtime)), inputs.counted, runtime, stages.note)
    with stages.stage("learn", "Training") as runtime:
        learned = _learn(job, backbone, inputs, k, features, runtime)
        if learned.trained is not None:
            stages.notes.extend(learned.trained.setbacks)  # already reported
        if learned.summary:
            stages.note(learned.summary)
    with stages.stage("features", "Computing features") as runtime:
        rows = rows_of(job, features(runtime), learned.beside)
    if k is None and job.settings.k != OWN_K:
        with stages.stage("k", "Estimating the number of classes") as runtime:
            k = granular_k(job, rows, inputs.counted, runtime, stages.note, counted=learned.counted)
    with stages.stage("clusters", "Clustering") as runtime:
        clusters = _clusters(job, rows, inputs, k, learned, runtime)
        if k is not None and clusters.k.k != k.k:
            stages.note(f"The method was to find {plural(k.k, 'category', 'categories')}, and found {clusters.k.k:,}.")
    if not job.processes.is_first:
        return None
    images, contents = inputs.images, inputs.store.digests
    run, lost = results.gather(
        job,
        backbone,
        learned.trained,
        images,
        inputs.counted.known,
        contents,
        inputs.held,
        doubted,
        rows.x,
        clusters,
        pixels.quarantine,
    )
    if emptied := clusters.k.k - run.k.k:
        where = "are in categories that people made, and stay there"
        stages.note(f"{emptied:,} of the {plural(clusters.k.k, 'cluster')} found now would take images that {where}.")
    if lost:
        stages.note(f"No category resembles {listing(lost)} of the earlier run, none of whose images was confirmed.")
    return SortingResult(run=stages.recorded_in(run), store=inputs.store, files=_files(job, backbone, learned.folders))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Inputs:
    """The readable images of a job, labelled by the review of an earlier run, and what learning sees of them."""

    images: ImageSet  # to be sorted
    store: PixelStore  # with their pixels
    moments: Moments  # of these images
    together: Moments  # the same, or given groups that hold several classes, which are never split
    order: NDArray[np.int64]  # (m,) of moments, by content
    held: NDArray[np.bool_]  # (n,) those whose labels are held out for calibration
    settled: NDArray[np.bool_]  # (n,) those that people have decided on
    # An image of each moment, with labels that categories of a review imply, without those that are held out, set aside
    # or very doubtful.
    counted: ImageSet
    to_learn: ImageSet  # all images with these labels, and validation images where training selects an epoch by them
    truth: NDArray[np.int64]  # of `to_learn`, which has none itself, like `counted`: nothing that learns may see it
    pixels_to_learn: PixelStore


def _inputs(job: Job, pixels: PixelStore, stages: Stages) -> _Inputs:
    everything, pixels = _readable(job, pixels, stages)
    everything, states, confirmed, implied = with_decisions(job, everything, contents_of(pixels.digests), stages.note)
    talked_about, settled = states != ReviewState.OPEN, np.isin(states, SETTLED)
    to_sort = ~everything.validation
    images, store = everything.select(to_sort), pixels.select(to_sort)
    with stages.stage(job.order[1], "Checking images") as runtime:
        moments = find_moments(job, images, store, runtime)
    together = moments.joined(Moments.grouped(images.groups))
    if together.any_burst:
        stages.note(describe_bursts(moments, images, job.settings.groups))
    of, rows, by_content = moments.of, moments.first, content_order(images, store)
    order = moments.in_order(by_content)
    labelled = replace(images, labels=moments.labels(images.labels)[of]).select(rows)
    among = ~moments.any(talked_about[to_sort])
    drawn = held_out(labelled, order, job.settings, among, together.of[rows])
    if few := few_held_out(drawn, together.of[rows], held_out(labelled, order, job.settings, among)):
        stages.note(few)
    sample = np.array([content in job.earlier.audited for content in contents_of(store.digests)], dtype=bool)
    held = with_sample(images, drawn[of] & images.labelled, sample & (states[to_sort] != ReviewState.OPEN), by_content)
    aside = set_aside(images, confirmed[to_sort] & ~held, by_content, job.settings.seed)
    seen = np.where(images.labels < 0, implied[to_sort], np.where(held | aside, -1, images.labels))
    labels = moments.labels(seen)
    shown = replace(without_truth(images), labels=labels[of])
    to_learn, pixels_to_learn, truth = shown, store, images.truth
    if job.recipe.select:
        labels = everything.labels.copy()
        labels[to_sort] = shown.labels
        to_learn, pixels_to_learn = replace(without_truth(everything), labels=labels), pixels
        truth = everything.truth
    return _Inputs(
        images=images,
        store=store,
        moments=moments,
        together=together,
        order=order,
        held=held,
        counted=shown.select(rows),
        settled=settled[to_sort],
        to_learn=to_learn,
        truth=truth,
        pixels_to_learn=pixels_to_learn,
    )


def _readable(job: Job, pixels: PixelStore, stages: Stages) -> tuple[ImageSet, PixelStore]:
    """Return the readable images and their pixels, which must still be sortable."""
    images, store = select_readable(job.images, pixels)
    if pixels.quarantine:
        stages.note(f"{plural(len(pixels.quarantine), 'file')} could not be read and will be left out.")
        to_sort = images.select(~images.validation)
        check_sortable(to_sort, job.settings)
        lost = [name for number, name in enumerate(images.classes) if number not in to_sort.labels]
        if lost:
            stages.note(f"These known classes have no labelled image left: {listing(lost)}.")
    return images, store


def _without_doubtful(
    job: Job, inputs: _Inputs, features: Callable[[Runtime], Features], runtime: Runtime
) -> tuple[_Inputs, Doubts]:
    """Return how doubtful labels are, and what is to be learned without those that are very doubtful.

    Only Sortal's own method leaves them out; the others learn as published.
    """
    labels, moments, grouped = inputs.images.labels, inputs.moments, inputs.together
    copies = grouped.of if grouped.any_burst else np.unique(inputs.store.digests, return_inverse=True)[1]
    if len(inputs.images.known) < 2:
        return inputs, Doubts.none(len(labels))
    x = features(runtime)
    found = job.processes.by_first(lambda: doubts(x, labels, copies))
    if not isinstance(job.recipe.losses, Rounds):
        return inputs, found
    doubtful = np.where(inputs.settled, 0.0, found.doubt)
    learned = inputs.to_learn.labels
    left_out = untrusted(np.where(labels >= 0, learned, -1), doubtful)
    lost = moments.any(left_out)[moments.of]
    to_learn = replace(inputs.to_learn, labels=np.where(lost, -1, learned))
    held = inputs.held & (doubtful <= VERY_DOUBTFUL)
    return replace(inputs, held=held, counted=to_learn.select(moments.first), to_learn=to_learn), found


def _extractor(job: Job, backbone: Backbone, store: PixelStore) -> Callable[[Runtime], Features]:
    """Return a function that computes the features (n, d) of the images with the backbone as it is then."""
    kept = None  # Sortal's own method computes features after each round, with the same trunk
    if isinstance(job.recipe.losses, Rounds) and backbone.has_trunk:
        kept = KeptTokens(int(KEPT_SHARE * free_bytes(job.device)))

    compute = partial(extract, backbone, store, normalise=True, folder=job.cache, processes=job.processes, kept=kept)

    def features(runtime: Runtime) -> Features:
        x = compute(precision=job.recipe.training.precision, runtime=runtime)
        if not np.isfinite([x.min(), x.max()]).all():  # training measures only some of them
            raise SortalError("Features must be finite, got NaN or infinity. Use a lower lr, or other weights.")
        return x

    return features


def _learn(
    job: Job,
    backbone: Backbone,
    inputs: _Inputs,
    k: KChoice | None,
    features: Callable[[Runtime], Features],
    runtime: Runtime,
) -> LearningResult:
    """Train the backbone in place."""
    recipe, images, store = job.recipe, inputs.to_learn, inputs.pixels_to_learn
    if not recipe.learns:
        return LearningResult()
    budget = token_budget(job)
    if job.watch_truth and job.processes.is_first:
        watch = watching(inputs.truth, watched_by(job), seed=recipe.training.seed, then=runtime.on_epoch)
        runtime = replace(runtime, on_epoch=watch)
    if isinstance(recipe.losses, Rounds):
        initial = _initial(backbone)
        found = rounds.learn(
            job, backbone, images, store, inputs.moments, features=features, budget=budget, runtime=runtime
        )
        if job.processes.is_first:
            _save_initial(initial, found.folders[-1])
        return found
    given = job.settings.k
    n_categories = k.k if k is not None else 0 if isinstance(given, str) else given
    method = make(recipe, backbone, k=n_categories, known=images.known.tolist())
    folder = job.cache / "learn" / cache.key("learn", run_key(method, images, store, recipe.training))
    if job.processes.is_first:
        _save_initial(_initial(backbone), folder)
    trained = train(
        method, images, store, recipe.training, folder=folder, processes=job.processes, budget=budget, runtime=runtime
    )
    head = method.classifier() if recipe.clustering == "head" else None
    return LearningResult(trained=trained, folders=(folder,), head=None if head is None else head.float().cpu().numpy())


def _clusters(
    job: Job, rows: Rows, inputs: _Inputs, k: KChoice | None, learned: LearningResult, runtime: Runtime
) -> Clusters:
    """Cluster the images, and see which clusters are found again: in halves of the images, and by other networks."""
    times, shown, moments = 2 + len(learned.earlier), inputs.counted, inputs.moments
    runtime.progress("Clustering", 0, times)
    if job.recipe.clustering == "own":
        of, centres = cluster_by_method(job, rows, shown, None if k is None else k.k)
        found = KChoice(k=len(centres), estimated=True, known=len(shown.known), method=OWN_K)
        k = found if k is None else replace(k, k=len(centres))
    else:
        assert k is not None
        of, centres = cluster(job, rows, shown, k.k, learned.head)
    runtime.progress("Clustering", 1, times)
    by_kmeans = learned.head is None and job.recipe.clustering != "own"
    groups = inputs.together.of[moments.first]
    agreement = repeat(job, rows, shown, inputs.order, of, k.k, groups) if by_kmeans else None
    others = []
    for done, each in enumerate(learned.earlier, start=2):
        runtime.progress("Clustering", done, times)
        others.append(fit(job, rows_of(job, each), shown.labels, k.k).clusters)
    overlap = overlaps(of[shown.unlabelled], [each[shown.unlabelled] for each in others], k.k) if others else None
    return Clusters(
        of=of,
        centres=centres,
        k=k,
        head=learned.head,
        agreement=agreement,
        overlap=overlap,
        moments=moments,
        groups=groups,
        apart=apartness(rows.x, job.processes),
    )


def _initial(backbone: Backbone) -> bytes:
    """Return the weights that will be trained, so that before and after can be compared."""
    from safetensors.torch import save

    return save({name: value.detach().cpu() for name, value in backbone.named_parameters() if value.requires_grad})


def _save_initial(weights: bytes, folder: Path) -> None:
    make_folder(folder)
    if not (folder / INITIAL).exists():
        write_atomically(folder / INITIAL, weights)


def token_budget(job: Job) -> Budget:
    """Return where the trunk's tokens may be cached.

    Without a GPU they take minutes to hours, so they go to a file where it fits, which survives a kill. Several
    processes have no files of tokens.
    """
    return Budget(disk=int(DISK_SHARE * free_disk(job.cache)), file_first=not job.on_gpu and job.processes.size == 1)


def _files(job: Job, backbone: Backbone, learned_in: Sequence[Path]) -> dict[str, bytes | Path | None]:
    """Return the files of the model and, after training, its initial weights and the logs of all rounds."""
    folder = learned_in[-1] if learned_in else _untrained(job, backbone)
    logs = [read_regular(path) for each in learned_in if (path := each / LOG).exists()]
    return {
        f"{MODEL}.safetensors": folder / f"{MODEL}.safetensors",
        f"{MODEL}.json": folder / f"{MODEL}.json",
        INITIAL: folder / INITIAL if learned_in else None,
        LOG: b"".join(logs) if logs else None,  # not a link: a log is appended to in place
        WATCHED: read_regular(watched_by(job)) if job.watch_truth and watched_by(job).exists() else None,
    }


def _untrained(job: Job, backbone: Backbone) -> Path:
    """Return the folder of the untrained backbone; another process may be saving the same one."""
    folder = job.cache / "untrained" / backbone.fingerprint()[:16]
    if not folder.exists():
        make_folder(folder.parent)
        with temporary_folder(folder.parent) as made:
            backbone.save(made / MODEL)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder
