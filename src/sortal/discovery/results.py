"""The result of sorting: categories, confidence and the facts of how they were made."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

import sortal
from sortal.config import method_source
from sortal.discovery.grouping.bursts import what_groups_hold
from sortal.discovery.grouping.label_doubt import Doubts
from sortal.discovery.grouping.outliers import OTHER_ABOVE
from sortal.discovery.job import Job
from sortal.images.decoding import Quarantined
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.features import extract
from sortal.reviews.carrying import EarlierReview
from sortal.runs.building import build_run, contents_of, hash_images, unassigned
from sortal.runs.categories import ids_of, outline
from sortal.runs.confidence import Features, Floats, calibrate
from sortal.runs.facts import Hashes, ImageSource, KChoice, RunFacts, TrainingResult
from sortal.runs.run import Assignments, Category, Run
from sortal.system import cache
from sortal.system.device import choose_compute, name_of
from sortal.system.distributed import Processes
from sortal.system.progress import Runtime
from sortal.system.text import plural

PACKAGES = ("numpy", "scikit-learn", "timm", "torch")
ADDED_AT_ONCE = 2**14  # images


@dataclass(frozen=True, kw_only=True, eq=False)
class Clusters:
    """Moments of images in clusters; the first clusters are the known classes."""

    of: NDArray[np.int64]  # (m,)
    centres: Features  # (k, d)
    k: KChoice
    head: Features | None = None  # (k, d + 1), where the method trains a classifier
    agreement: Floats | None = None  # (m,) with repeated clustering, where it can be repeated
    overlap: Floats | None = None  # (k,) with clusters of other training runs, where there were any
    apart: Floats  # (m,) how far each is from similar ones
    moments: Moments
    groups: NDArray[np.int64]  # (m,) what is held out together


def gather(
    job: Job,
    backbone: Backbone,
    trained: TrainingResult | None,
    images: ImageSet,
    known: NDArray[np.int64],
    contents: NDArray[np.bytes_],
    held: NDArray[np.bool_],
    doubted: Doubts,
    x: Features,
    clusters: Clusters,
    quarantine: tuple[Quarantined, ...],
) -> tuple[Run, list[str]]:
    """Build the run: labelled images, also those `held` out (n,), are in their class, all others in their cluster.

    The first clusters are those of the `known` classes, with labels or made by people in the review of an earlier run.

    Centres, spreads and calibration are those of moments with features x (m, d), so the images of a moment share them.
    What people decided about the earlier run is carried over; also return the names of categories that were lost.
    """
    before, moments = job.earlier.reviewed, clusters.moments
    categories, own = _categories(images, known, clusters)
    features = moments.of_images(x)
    review = EarlierReview(before, contents_of(contents))
    categories, lost = review.named(categories, own)
    confidence = calibrate(
        x,
        clusters.centres,
        clusters.of,
        held_out=moments.any(held),
        truth=review.kept_away(own, categories, features, clusters.centres)[moments.first],
        groups=clusters.groups,
        unsure_below=job.settings.unsure_below,
        agreement=clusters.agreement,
        overlap=clusters.overlap,
        apart=clusters.apart,
        head=clusters.head,
    )
    centres, head = clusters.centres, clusters.head
    free = moments.labels(images.labels)[moments.of] < 0
    placed = review.weighed(own, free, categories, features, centres, confidence, head)
    placed = review.kept_away(placed, categories, features, centres)
    suggested = np.where(doubted.suggested < 0, -1, np.searchsorted(known, doubted.suggested))
    suggested_id = ids_of(categories, suggested)
    stay = np.isin(np.arange(len(categories)), placed) | ~np.isin(np.arange(len(categories)), own)
    if not stay.all():  # a cluster is gone whose images have all stayed where people had put them
        categories, placed = tuple(compress(categories, stay)), (np.cumsum(stay) - 1)[placed]
        centres, head, confidence = centres[stay], None if head is None else head[stay], confidence.of_rows(stay)
    blank = named_at_source(job, images, unassigned(images, contents))
    assignments = replace(
        blank,
        category_id=ids_of(categories, placed),
        group=moments.of,
        reviewed=review.states,
        apart=clusters.apart[moments.of],
        doubt=doubted.doubt,
        suggested_id=suggested_id,
    )
    hashes = Hashes(model=backbone.fingerprint(), images=hash_images(assignments), features=cache.hashed(features))
    next_id = max(0 if before is None else before.facts.next_id, *(each.id + 1 for each in categories))
    facts = _facts(job, backbone, trained, images, hashes, next_id)
    added = job.earlier.added
    later_from = 1 + (len(added.sources) if added.rows else 0)  # also if no image of some is among these
    confidence = replace(confidence, other_above=OTHER_ABOVE, later_from=later_from)
    reviewed: dict[str, Any] = {name: getattr(before, name) for name in ("rejected", "decisions") if before is not None}
    run = build_run(
        folder=job.place,
        facts=facts,
        assignments=assignments,
        categories=categories,
        k=replace(clusters.k, k=len(categories)),
        confidence=confidence,
        features=features,
        centres=centres,
        head=head,
        quarantine=quarantine,
        **reviewed,
    )
    return run, lost


def features_of(
    job: Job, backbone: Backbone, store: PixelStore, runtime: Runtime, processes: Processes | None = None
) -> Features:
    """Compute features (n, d) of unit length as a job does, by default together with its other processes; cached."""
    precision, together = job.recipe.training.precision, processes or job.processes
    return extract(
        backbone, store, normalise=True, folder=job.cache, precision=precision, processes=together, runtime=runtime
    )


def with_images(
    run: Run,
    assignments: Assignments,
    features: Features,
    *,
    facts: RunFacts,
    quarantine: tuple[Quarantined, ...],
    categories: Sequence[Category] | None = None,
    centres: Features | None = None,
) -> Run:
    """Return a run with these images instead of its own; categories and centres stay unless others are given."""
    hashes = replace(facts.hashes, images=hash_images(assignments), features=cache.hashed(features))
    return build_run(
        folder=run.folder,
        facts=replace(facts, hashes=hashes),
        assignments=assignments,
        categories=run.categories if categories is None else categories,
        k=run.k,
        confidence=run.confidence,
        features=features,
        centres=run.centres if centres is None else centres,
        head=run.head,
        quarantine=quarantine,
        rejected=run.rejected,
        decisions=run.decisions,
    )


def _facts(
    job: Job, backbone: Backbone, trained: TrainingResult | None, images: ImageSet, hashes: Hashes, next_id: int
) -> RunFacts:
    """Return how a run was made; the stages record their times and notes."""
    precision = job.recipe.training.precision
    compute = choose_compute(backbone.device, precision=precision, worthwhile=False)
    origin, versions = job.origin, {"sortal": sortal.__version__, "python": platform.python_version()}
    return RunFacts(
        images=sources_of(job, images),
        folders=origin.folders,
        features=origin.features,
        labels=origin.labels,
        reading=origin.reading,
        groups_hold=what_groups_hold(images, job.settings.groups),
        settings=job.settings,
        recipe=job.recipe,
        method_source=method_source(job.recipe.method),
        command=origin.command,
        backbone=backbone.spec,
        weights=backbone.source,
        precision=precision,
        int8=compute.int8 and backbone.fits_int8,
        training=trained,
        device=name_of(backbone.device),  # where features were computed, whatever was asked for
        machine=f"{platform.system()} {platform.machine()}, {plural(os.cpu_count() or 1, 'core')}",
        versions=versions | {name: version(name) for name in PACKAGES},
        hashes=hashes,
        finished=now(),
        next_id=next_id,
        updates=job.earlier.added.updates,
        timings={},
    )


def _categories(
    images: ImageSet, known: NDArray[np.int64], clusters: Clusters
) -> tuple[tuple[Category, ...], NDArray[np.int64]]:
    """Return a category for each cluster, and the cluster (n,) of each image.

    That of a labelled image is its class, as is that of other images of the same moment.
    """
    sizes = np.bincount(clusters.of, minlength=len(clusters.centres))
    categories = outline([images.classes[i] for i in known], sizes.tolist())
    moments = clusters.moments
    labels = moments.labels(images.labels)
    return categories, np.where(labels >= 0, np.searchsorted(known, labels), clusters.of)[moments.of]


def add_to_means(
    means: Features, counts: NDArray[np.int64], rows: NDArray[np.int64], x: Features
) -> tuple[Features, NDArray[np.int64]]:
    """Add each x (n, d) to the mean of its row (n,); the means (k, d) are of `counts` (k,) values. Return both updated.

    A mean of no values stays what it is.
    """
    sums, total = counts[:, None] * means.astype(np.float64), counts + np.bincount(rows, minlength=len(counts))
    for start in range(0, len(rows), ADDED_AT_ONCE):
        part = slice(start, start + ADDED_AT_ONCE)
        into = np.concatenate([np.arange(len(counts)), rows[part]])  # the sums so far come first
        members = csc_array((np.ones(len(into)), into, np.arange(len(into) + 1)), shape=(len(counts), len(into)))
        sums = members @ np.concatenate([sums, x[part]])  # in this order, as np.add.at would, but several times faster
    moved: Features = np.where(total[:, None] > 0, sums / np.maximum(total[:, None], 1), means).astype(np.float32)
    return moved, total


def means_of(x: Features, clusters: NDArray[np.int64], k: int) -> Features:
    """Return the mean (k, d) of the features (n, d) in each cluster (n,); 0 for an empty one."""
    return add_to_means(np.zeros((k, x.shape[1]), np.float32), np.zeros(k, np.int64), clusters, x)[0]


def sources_of(job: Job, images: ImageSet) -> tuple[ImageSource, ...]:
    """Return where the images of a job came from: its own folder, then those of images added to the earlier run."""
    own, additions = job.origin.folder, job.earlier.added
    added = np.array([file in additions.rows for file in images.files], dtype=bool)
    if not added.any():
        return (source_of(images, own),)
    found = [source_of(images.select(~added), own)]
    others = images.select(added)
    rows = [(path, *additions.rows[file]) for file, path in zip(others.files, others.paths, strict=True)]
    for number, source in enumerate(additions.sources):
        paths = [(file, path) for path, at, file in rows if at == number]
        found.append(_source(paths, source.folder))
    return tuple(found)


def source_of(images: ImageSet, folder: str | None) -> ImageSource:
    """Return where images came from, with the path of each file that does not open under its name in the folder."""
    if folder is None:
        return ImageSource(folder=None, images=len(images), paths={})
    paths = (path and os.path.abspath(path) for path in images.paths)
    return _source([*zip(images.files, paths, strict=True)], folder)


def _source(rows: Sequence[tuple[str, str]], folder: str | None) -> ImageSource:
    paths = {file: path for file, path in rows if os.path.abspath(os.path.join(folder or "", file)) != path}
    return ImageSource(folder=folder, images=len(rows), paths=paths)


def named_at_source(job: Job, images: ImageSet, blank: Assignments) -> Assignments:
    """Give images that were added to the earlier run the names they have in their own folder."""
    own = [job.earlier.added.rows.get(file) for file in images.files]
    if not any(own):
        return blank
    files = (file if at is None else at[1] for file, at in zip(blank.files, own, strict=True))
    return replace(blank, files=tuple(files), folders=np.array([0 if at is None else at[0] + 1 for at in own]))


def now() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
