"""Clustering again after decisions: the features stay; clusters, their number and their stability are found anew.

Images that a person has settled are labelled with their category. If a category that a person has named, merged, split,
kept or put an image into has few of them, its most typical images count as labelled, too. So the parts of a merged
category stay together, and categories that are to be kept apart stay apart.
"""

from collections.abc import Sequence

import numpy as np

from sortal.clustering.estimate_k import estimate_k
from sortal.discovery.grouping import shared_kmeans
from sortal.discovery.grouping.clusters import smooth
from sortal.discovery.grouping.stability import cluster_again
from sortal.errors import InputError
from sortal.images.moments import Moments
from sortal.reviews.actions import Refit
from sortal.reviews.carrying import SAME_OVERLAP
from sortal.reviews.history import Review
from sortal.reviews.rejections import keep_away
from sortal.runs.categories import jaccard, match_by_overlap, nearest_first, one_of_each, positions
from sortal.runs.confidence import Features, Ints, stable_shares
from sortal.runs.run import sizes_of
from sortal.system.distributed import Processes

ANCHORS = 8  # images that stand for a category that a person has changed or kept
WIDER = 1.2  # times the present number of categories: up to where another number is looked for
RESTARTS = 5  # for each number that is tried


def refit(review: Review, processes: Processes) -> Refit:
    """Cluster the images of a run again, with what people have decided about it as constraints."""
    run, seed = review.base, review.base.facts.settings.seed
    if review.settled.all():
        raise InputError("Every image is settled, so there is nothing to cluster again.")
    inside = np.flatnonzero(~review.binned)
    ids, of_images = _anchors(review)
    of_images = of_images[inside]
    moments = _moments(run.assignments.group[inside], of_images)
    x = smooth(moments.means(np.array(run.features[inside])), run.facts.recipe.neighbours, processes, run.cache)
    labels = moments.labels(of_images)
    k = _number(x, labels, review, str(processes.device))
    clusters = shared_kmeans.fit(x, labels, k, n_init=run.facts.settings.n_init, seed=seed, processes=processes).labels
    found, names = _identified(review, ids, review.category[inside][moments.first], clusters, k)
    category = _kept_away(review, inside, np.array(found, dtype=np.int64)[clusters[moments.of]], moments.of_images(x))
    order = moments.in_order(np.argsort(np.array(run.assignments.contents)[inside], kind="stable"))
    agreement = cluster_again(x, labels, clusters, k, order=order, seed=seed, processes=processes)
    shares = np.ones(k) if agreement is None else stable_shares(agreement, np.ones(len(x)), clusters, k)
    stability = {each: min(shares[at] for at, own in enumerate(found) if own == each) for each in found}
    moved = (category != review.category[inside]) & ~review.settled[inside]
    target = dict(zip(review.contents_of(inside[moved].tolist()), category[moved].tolist(), strict=True))
    return Refit(
        images=tuple(target),
        to=tuple(target.values()),
        names=names,
        categories=tuple(stability),
        stability=tuple(round(float(share), 6) for share in stability.values()),
    )


def _anchors(review: Review) -> tuple[list[int], Ints]:
    """Return the categories with labelled images, and the label (n,) of each image, −1 without one."""
    settled, group = review.settled, review.base.assignments.group
    labels = np.where(settled, review.category, -1)
    for each in review.categories.values():
        rows = review.members(each.id)
        if not len(rows) or not (settled[rows].any() or each.is_made):
            continue
        sources = review.base.assignments.category_id[rows]
        for source in sizes_of(sources):
            part = rows[sources == source]
            near = one_of_each(nearest_first(review.base.features, part), group)
            missing = max(0, min(ANCHORS, len(near)) - int(settled[part].sum()))
            labels[near[~settled[near]][:missing]] = each.id
    if (labels[~review.binned] >= 0).all():  # k-means needs something to place
        labels[np.flatnonzero(~settled)] = -1
    ids = [*sizes_of(labels[labels >= 0])]
    return ids, positions(labels, ids)


def _moments(group: Ints, labels: Ints) -> Moments:
    """Return the moments of images with these groups and labels (n,), each of which counts once.

    Where a person has decided on images of every moment, each image counts.
    """
    found = Moments.grouped(group).split_where(labels)
    return found if (found.labels(labels) < 0).any() else Moments.single(len(labels))


def _number(x: Features, labels: Ints, review: Review, device: str) -> int:
    """Estimate the number of clusters: that of the categories, or somewhat more, because people can merge."""
    now, anchored, free = len(sizes_of(review.category[~review.binned])), int(labels.max()) + 1, int((labels < 0).sum())
    least = max(anchored, now)
    most = min(max(round(now * WIDER), least), anchored + free, len(x))
    if anchored < 2 or least >= most:
        return max(min(least, most), anchored)
    found = estimate_k(
        x,
        labels,
        k_min=least,
        k_max=most,
        method="separation",
        n_init=RESTARTS,
        random_state=review.base.facts.settings.seed,
        device=device,
    )
    return found.k


def _identified(
    review: Review, ids: Sequence[int], category: Ints, clusters: Ints, k: int
) -> tuple[list[int], tuple[str, ...]]:
    """Return the category of each cluster, and the names of those that are new; the first clusters are `ids`.

    `category` (m,) is that of each moment before, and `clusters` (m,) has its cluster.
    A cluster most of whose moments are in a category that a person has merged is a part of it.
    """
    there = [*sizes_of(category)]
    before = positions(category, there)
    common = np.bincount(clusters * len(there) + before, minlength=k * len(there)).reshape(k, -1)
    shares, found = jaccard(clusters, before, (k, len(there))), dict(enumerate(ids))
    for row in range(len(ids), k):
        most = int(common[row].argmax())
        if 2 * common[row, most] > common[row].sum() and _is_merged(review, there[most]):
            found[row] = there[most]
    free = np.array([row not in found for row in range(k)])[:, None] & ~np.isin(there, [*found.values()])
    for row, at in match_by_overlap(shares, free & (shares > SAME_OVERLAP)).items():
        found[row] = there[at]
    new = [row for row in range(k) if row not in found]
    for number, row in enumerate(new):
        found[row] = review.next_id + number
    return [found[row] for row in range(k)], tuple(review.free_names(len(new)))


def _is_merged(review: Review, category: int) -> bool:
    sources = review.base.assignments.category_id[review.members(category)]
    return review.categories[category].by_hand and len(sizes_of(sources)) > 1


def _kept_away(review: Review, rows: Ints, category: Ints, x: Features) -> Ints:
    """Move images, rows (n,) of the run, out of categories (n,) that they were rejected from, to the nearest other."""
    ids = [*sizes_of(category)]
    centres = np.array([x[category == each].mean(axis=0) for each in ids])
    contents, open_ = review.contents_of(rows.tolist()), ~review.settled[rows]
    return keep_away(category, x, contents, centres, ids, review.rejected, open_=open_, otherwise=review.category[rows])
