"""Images in the bin, by an earlier review: nothing is learned from them, and the new run keeps them there."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sortal.discovery.job import Job, check_sortable
from sortal.discovery.results import features_of, named_at_source, sources_of, with_images
from sortal.discovery.stages import SortingResult, Stages
from sortal.errors import InputError
from sortal.images.review_states import ReviewState
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import Backbone
from sortal.reviews.carrying import EarlierReview
from sortal.runs.building import contents_of, unassigned
from sortal.system.distributed import alone
from sortal.system.progress import Runtime
from sortal.system.text import plural


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
