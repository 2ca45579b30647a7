"""Labels that learning does not see: some calibrate confidence, others were confirmed in a review."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sortal.config import Discovery
from sortal.discovery.job import Job, check_sortable
from sortal.errors import InputError
from sortal.images.image_set import ImageSet
from sortal.images.review_states import ReviewState
from sortal.reviews.carrying import EarlierReview
from sortal.runs.confidence import ENOUGH
from sortal.system.gathering import gathered
from sortal.system.text import plural

MOST_HELD_OUT = 1000  # labelled images at most to calibrate on


def with_decisions(
    job: Job, images: ImageSet, contents: tuple[str, ...], note: Callable[[str], None]
) -> tuple[ImageSet, NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Return the images with labels from the review of an earlier run, what people said of each (n,), its ReviewState,
    the mask (n,) of those that were confirmed and had no label, and labels (n,) that follow for others, or −1.
    """
    review = EarlierReview(job.earlier.reviewed, contents)
    found, given = review.labelled(images)
    if given.any():
        note(f"Labelled by a review: {plural(int(given.sum()), 'image')}.")
        if not found.unlabelled.any():
            raise InputError("Every image is labelled or was settled by a review, so there is nothing left to sort.")
        check_sortable(found.select(~found.validation), job.settings)
    implied, k = review.implied(found), job.settings.k
    more = {*implied[implied >= 0].tolist()} - {*found.known.tolist()}
    if not isinstance(k, str) and len(found.known) + len(more) > k:
        implied[np.isin(implied, [*more])] = -1
    states = review.states
    confirmed = np.isin(states, (ReviewState.CONFIRMED, ReviewState.UNSEEN))
    return found, states, confirmed & images.unlabelled, implied


def held_out(
    images: ImageSet,
    order: NDArray[np.int64],
    settings: Discovery,
    among: NDArray[np.bool_],
    groups: NDArray[np.int64] | None = None,
) -> NDArray[np.bool_]:
    """Draw the labelled images (n,) whose labels are held out for calibration: a share of each class.

    Rows are drawn in this order (n,), which must not depend on file names, and only from the mask `among` (n,): labels
    that people gave to what a run showed them are not a fair sample of a class. Of few labelled images a smaller share
    is held out, down to none, as they serve training better. Images of one of the `groups` (n,) are held out together,
    as what was learned from some of them is not fairly tested on the others.
    """
    generator = np.random.default_rng(settings.seed)
    of = [order[(images.labels[order] == label) & among[order]] for label in images.known]
    n = sum(map(len, of))
    count = settings.held_out * n
    shares = _shares(int(min(count, 2 * count - ENOUGH)), list(map(len, of)))
    held = np.zeros(len(images), dtype=bool)
    labelled = order[images.labels[order] >= 0]
    if groups is not None and len(np.unique(groups[labelled])) < len(labelled):
        left = dict(zip(images.known.tolist(), shares, strict=True))
        held[_whole_groups(images.labels, labelled, groups, among, left, generator)] = True
        return held
    drawn = [generator.choice(rows, size=size, replace=False) for rows, size in zip(of, shares, strict=True)]
    held[generator.permutation(np.concatenate([np.zeros(0, dtype=np.int64), *drawn]))[:MOST_HELD_OUT]] = True
    return held


def few_held_out(held: NDArray[np.bool_], groups: NDArray[np.int64], singly: NDArray[np.bool_]) -> str | None:
    """Say that groups (n,) leave too few held-out labels, where single images would be enough."""
    count, images = len(np.unique(groups[held])), int(held.sum())
    if count >= ENOUGH or singly.sum() < ENOUGH:
        return None
    instead = f"{plural(count, 'group')} of {plural(images, 'labelled image')}"
    return f"Groups are held out whole, so confidence is calibrated on {instead} only, and is rough."


def _whole_groups(
    labels: NDArray[np.int64],
    labelled: NDArray[np.int64],
    groups: NDArray[np.int64],
    among: NDArray[np.bool_],
    left: dict[int, int],
    generator: np.random.Generator,
) -> list[int]:
    """Draw labelled rows in whole groups, about as many of each class as `left` says; each class keeps an image.

    A group is drawn if that brings the counts nearer to what is wanted. Where this yields less than half of it, as
    groups are large, the smallest follow, up to half of the labels.
    """
    wanted, most = sum(left.values()), min(MOST_HELD_OUT, len(labelled) // 2)
    members = gathered(zip(groups[labelled].tolist(), labelled.tolist(), strict=True))
    every, kept, drawn = [*members.values()], Counter(labels[labelled].tolist()), list[int]()
    order = [every[at] for at in generator.permutation(len(members)).tolist()]

    def draw(rows: list[int], least: int, most: int) -> None:
        counts = Counter(labels[rows].tolist())
        gain = sum(min(count, max(left[label], 0)) for label, count in counts.items())
        fits = gain >= max(least, 1) and len(drawn) + len(rows) <= most
        if fits and among[rows].all() and all(kept[label] > count for label, count in counts.items()):
            drawn.extend(rows)
            kept.subtract(counts)
            for label, count in counts.items():
                left[label] -= count

    for rows in order:
        draw(rows, least=(len(rows) + 1) // 2, most=MOST_HELD_OUT)
    if 2 * len(drawn) < wanted:
        for rows in sorted(order, key=len):
            if len(drawn) < wanted and rows[0] not in drawn:
                draw(rows, least=1, most=most)
    return drawn


def _shares(count: int, sizes: Sequence[int]) -> list[int]:
    """Divide a count among classes in proportion to their sizes, by largest remainders; each class keeps an image."""
    quotas = [max(count, 0) * size / max(sum(sizes), 1) for size in sizes]
    found = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda row: found[row] - quotas[row])
    for row in by_remainder[: max(count, 0) - sum(found)]:
        found[row] += 1
    return [min(each, max(size - 1, 0)) for each, size in zip(found, sizes, strict=True)]


def with_sample(
    images: ImageSet, held: NDArray[np.bool_], sample: NDArray[np.bool_], order: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Add a random `sample` (n,) that people judged in a review to what is `held` out (n,) for calibration.

    It is a fair one, unlike all that they confirmed, if those that they found wrong count, too, wherever they are now.
    A class keeps half of its labels. Rows are taken in this order (n,).
    """
    found = held | (sample & images.unlabelled)
    for label in images.known:
        own = order[images.labels[order] == label]
        room = len(own) // 2 - int(held[own].sum())
        found[own[sample[own] & ~held[own]][: max(room, 0)]] = True
    return found


def set_aside(images: ImageSet, confirmed: NDArray[np.bool_], order: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Draw half of the images of each class that were `confirmed` (n,) in a review; learning does not see their labels.

    People confirm what a run is sure of. If all of that were labelled, only difficult images would be left unlabelled,
    and would look like classes of their own. Rows are drawn in this order (n,).
    """
    generator, drawn = np.random.default_rng(seed), np.zeros(len(images), dtype=bool)
    for label in images.known:
        rows = order[(images.labels[order] == label) & confirmed[order]]
        drawn[generator.choice(rows, size=len(rows) // 2, replace=False)] = True
    return drawn
