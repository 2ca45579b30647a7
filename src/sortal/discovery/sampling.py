"""The images that a run learns on, where that is a sample of them, and the size of a sample that fits the disk."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sortal.discovery.grouping.stability import together
from sortal.discovery.job import Job, check_sortable
from sortal.discovery.run_places import ANOTHER_FOLDER
from sortal.errors import InputError, NoSpaceError, Remedy
from sortal.images.image_set import ImageSet
from sortal.images.store.index import bytes_of
from sortal.images.store.packing import DISK_RESERVE, stored_bytes
from sortal.learning.backbones.backbone import Backbone
from sortal.system.resources import free_disk
from sortal.system.text import byte_sizes, plural

FEWEST_LEARNED = 1000  # images of a sample that is worth proposing
PIXELS_SHARE = 0.8  # of the room that the pixels of a proposed sample fill
TABLE_BYTES = 1024  # bytes of each image in the index and the tables of a run, rounded up
A_SAMPLE = "learn on a sample, and sort the others by prediction, without storing their pixels"


def learned_part(job: Job) -> tuple[Job, NDArray[np.bool_]]:
    """Return the job with the images that it learns on, and their mask among all of its images (n,)."""
    n = job.settings.learn_on
    if n is None or n >= len(job.images):
        return job, np.ones(len(job.images), dtype=bool)
    chosen = draw(job.images, n, job.settings.seed)
    images = job.images.select(chosen)
    check_sortable(images, job.settings)
    return replace(job, images=images), chosen


def draw(images: ImageSet, n: int, seed: int) -> NDArray[np.bool_]:
    """Draw n images as a mask: at most half of them labelled, in proportion to their classes, but one of each at least.

    The rest are unlabelled, as far as there are enough. Rows are drawn by number, as no image has been read yet. Images
    of a group follow each other, so that few groups are drawn in part.
    """
    generator = np.random.default_rng(seed)
    labelled, free = (generator.permutation(np.flatnonzero(mask)) for mask in (images.labelled, images.unlabelled))
    labelled, free = (together(rows, images.groups) for rows in (labelled, free))
    known = len(images.known)
    if n // 2 < known:
        raise InputError(
            f"learn_on must be at least {2 * known:,} (twice the number of labelled classes), got {n:,}.",
            Remedy("learn on more images", learn_on=max(2 * known, FEWEST_LEARNED)),
        )
    by_class = labelled[np.argsort(images.labels[labelled], kind="stable")]
    _, starts, counts = np.unique(images.labels[by_class], return_index=True, return_counts=True)
    share = (np.arange(len(by_class)) - np.repeat(starts, counts)) / np.repeat(
        counts, counts
    )  # of the class, before it
    labelled = by_class[np.argsort(share, kind="stable")[: n // 2]]
    mask = np.zeros(len(images), dtype=bool)
    mask[labelled] = True
    mask[free[: n - len(labelled)]] = True
    return mask


def check_room(job: Job, backbone: Backbone) -> None:
    """Refuse a job whose pixels do not fit the disk before any of them is stored."""
    needed = bytes_of_pixels(job, backbone, len(job.images)) - stored_bytes(job.cache / "pixels")
    free = free_disk(job.cache)
    if needed > free - DISK_RESERVE and job.images.pixels is None:
        room, there = byte_sizes(needed + DISK_RESERVE, free)
        raise NoSpaceError(
            f"Not enough disk space for {str(job.cache)!r}: the pixels of {plural(len(job.images), 'image')} need "
            f"{room} ({byte_sizes(DISK_RESERVE)[0]} of it as a reserve), and {there} are free.",
            Remedy("free some space"),
            ANOTHER_FOLDER,
            *remedies(job, backbone, len(job.images)),
        )


def remedies(job: Job, backbone: Backbone, n: int) -> tuple[Remedy, ...]:
    """Return the advice to learn on a sample of n images that fits on the disk, if one of a useful size does."""
    others = n * (2 * 4 * backbone.spec.width + TABLE_BYTES)  # features in the cache and in the run, and tables
    fits = int(PIXELS_SHARE * (free_disk(job.cache) - DISK_RESERVE - others) / bytes_of_pixels(job, backbone, 1))
    fits -= fits % 10 ** max(len(str(fits)) - 2, 0)  # two digits
    worthwhile = max(FEWEST_LEARNED, 4 * len(job.images.known))
    return (Remedy(A_SAMPLE, learn_on=fits),) if worthwhile <= fits < n else ()


def bytes_of_pixels(job: Job, backbone: Backbone, n: int) -> int:
    """Return the bytes of n stored images that are square; others take more."""
    side = backbone.spec.shorter_side
    return n * bytes_of(side, side)
