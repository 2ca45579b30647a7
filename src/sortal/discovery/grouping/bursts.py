"""Bursts: images of the same moment, which differ by a crop, a shift, their size or their encoding; cached.

Images with a similar layout of colours are compared in detail: the middle of one, at several scales, is looked for in
the other. Fine structure decides, which two photographs of similar things do not share.
"""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from sortal.config import GroupsHold, Rounds
from sortal.discovery.grouping.neighbours import nearest
from sortal.discovery.job import Job
from sortal.images import near_duplicates as near
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.frozen import prefetch
from sortal.system import cache
from sortal.system.progress import Runtime
from sortal.system.resources import cores
from sortal.system.text import plural

LAYOUT = 4  # colours along a side of the layouts whose nearest neighbours are compared
CLOSEST_LAYOUTS = 5  # of each image
WIDTH, MIDDLE = 64, 40  # of the grey images that are compared, and of the middle that is looked for, in pixels
SCALES = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.11, 1.18, 1.25)
FINE, COARSE = 1.0, 4.0  # standard deviations of the blurs whose difference is compared, in pixels
SAME_MOMENT = 0.9  # correlation from which two images are of one moment
FAR_ABOVE_USUAL = 4  # times the usual correlation, on Fisher's scale, that it must reach as well
USUAL_PAIRS = 400  # random pairs, whose median correlation is the usual one
MOST_IN_BURST, FEWEST_IN_BURST, LARGEST_SHARE = 20, 3, 0.1  # images, by the share of all images between these bounds
MOST_GREY = 500_000  # images up to which they are compared; of more, only copies share a moment
PAIRS_AT_ONCE = 64
READ_AT_ONCE = 32  # images, by each thread
MOST_TORN = 0.1  # share of groups with several labels whose labels differ by mistake, if groups are of one class


def find_moments(job: Job, images: ImageSet, store: PixelStore, runtime: Runtime) -> Moments:
    """Return the moments that Sortal's own method counts once; published methods count every image.

    Those of a group that was given are one, if it is of one class. Images with different labels are not of one moment.
    Where too few moments would be left to sort, every image counts.
    """
    single = Moments.single(len(images))
    if not isinstance(job.recipe.losses, Rounds):
        return single
    given = groups_of_one_class(images, job.settings.groups)
    found = _cached(job, store, runtime).split_where(images.labels).joined(given).split_where(images.labels, given)
    free, k = int((found.labels(images.labels) < 0).sum()), job.settings.k
    enough = free > 0 and (isinstance(k, str) or k <= len(images.known) + free)
    return found if enough else single


def what_groups_hold(images: ImageSet, hold: GroupsHold) -> GroupsHold | None:
    """Return what the user has said that given groups hold, or else what labels tell; None without groups.

    They hold one class unless the labels of more than a few differ.
    """
    given = Moments.grouped(images.groups)
    if hold != "auto" or not given.any_burst:
        return hold if given.any_burst else None
    torn = int(given.torn(images.labels).sum())
    return "several" if torn > MOST_TORN * _with_labels(given, images) else "one"


def _with_labels(given: Moments, images: ImageSet) -> int:
    """Count the groups of which several images are labelled."""
    return int((np.bincount(given.of[images.labelled], minlength=len(given)) > 1).sum())


def groups_of_one_class(images: ImageSet, hold: GroupsHold) -> Moments:
    """Return the given groups, if their images are of one class; otherwise, each image is its own.

    A group with different labels is split.
    """
    if what_groups_hold(images, hold) != "one":
        return Moments.single(len(images))
    return Moments.grouped(images.groups).split_where(images.labels)


def describe_bursts(moments: Moments, images: ImageSet, hold: GroupsHold) -> str:
    """Say how many images are not the only one of their moment, how many groups were given, and what they hold."""
    bursts, given = moments.sizes[moments.sizes > 1], Moments.grouped(images.groups)
    groups = plural(len(bursts), "group")
    if not given.any_burst:
        images_of = plural(int(bursts.sum()), "image is a near-duplicate", "images are near-duplicates")
        return f"{images_of} of others ({groups}); each group counts once."
    count = int((given.sizes > 1).sum())
    several, torn = plural(count, "group"), given.torn(images.labels)
    whole = ~torn[given.of]
    within = len(np.unique((given.of * len(moments) + moments.of)[whole])) == int((~torn).sum())  # a moment
    if within and what_groups_hold(images, hold) == "one":
        joined = f", {groups} with near-duplicates" * (count - int(torn.sum()) != len(bursts))
        split = f" {plural(int(torn.sum()), 'group has', 'groups have')} different labels: every image of it counts."
        assumed = " No group has two labels, so each is assumed to be of one class."
        text = f"{several} of images given{joined}; each group counts once."
        return text + split * bool(torn.any()) + assumed * (hold == "auto" and not _with_labels(given, images))
    once = f" {plural(int(bursts.sum()), 'image')} in {groups} of near-duplicates count once." * bool(len(bursts))
    return f"{several} of images given, which stay together, but every image counts.{once}"


def _cached(job: Job, store: PixelStore, runtime: Runtime) -> Moments:
    """Return the moments of stored images; all processes get the same. Of vectors, copies alone share one."""
    if store.vectors is not None:  # whatever their pictures show
        return Moments.grouped(np.unique(store.digests, return_inverse=True)[1])
    key = cache.key("bursts", store.made, cache.hashed(store.digests))
    path = job.cache / "bursts" / f"{key}.json"

    def find() -> Moments:
        if (held := cache.load(path)) is None:
            held = burst_groups(store, job.processes.device, runtime).tolist()
            cache.save(path, held)
        return Moments.grouped(np.array(held, dtype=np.int64))

    return job.processes.by_first(find)


@torch.no_grad()
def burst_groups(store: PixelStore, device: torch.device, runtime: Runtime = Runtime()) -> NDArray[np.int64]:
    """Return the group (n,) of each image: connected images that show the same moment. All must be readable."""
    _, first, inverse = np.unique(store.digests, return_index=True, return_inverse=True)
    large = np.minimum(store.facts["width"], store.facts["height"])[first] >= near.SIDE
    compared = np.flatnonzero(large)
    if not 1 < len(compared) <= MOST_GREY:
        return inverse
    pairs = _candidates(store.select(np.isin(np.arange(len(store)), first[compared])), device)
    rows = np.sort(first[compared])
    parts = (rows[start : start + READ_AT_ONCE] for start in range(0, len(rows), READ_AT_ONCE))
    grey = np.concatenate([*prefetch(partial(_grey, store), parts, threads=cores())])
    measure = partial(_correlations, torch.from_numpy(grey), device=device)
    drawn = np.random.default_rng(0).integers(0, len(rows), (USUAL_PAIRS, 2))
    by_content = np.argsort(store.digests[rows])  # independent of the order of files
    usual = np.median(measure(by_content[drawn[drawn[:, 0] != drawn[:, 1]]], runtime=Runtime()))
    least = max(SAME_MOMENT, float(np.tanh(FAR_ABOVE_USUAL * np.arctanh(np.clip(usual, 0, 0.999)))))
    same = pairs[measure(pairs, runtime=runtime) >= least]
    contents = inverse[rows]
    joined = coo_array((np.ones(len(same)), (contents[same[:, 0]], contents[same[:, 1]])), shape=(len(first),) * 2)
    group = connected_components(joined, directed=False)[1].astype(np.int64)  # of each content
    # So many are not of a moment, but of things that always look the same, such as products on a belt.
    most = np.clip(LARGEST_SHARE * len(first), FEWEST_IN_BURST, MOST_IN_BURST)
    large_groups = (np.bincount(group) > most)[group]
    return np.where(large_groups, len(first) + np.arange(len(first)), group)[inverse]


def _candidates(store: PixelStore, device: torch.device) -> NDArray[np.int64]:
    """Return pairs (p, 2) of rows that have similar layouts of colours, those with the same second row together."""
    n, step = len(store), near.SIDE // LAYOUT
    layout = store.thumbnails().reshape(n, LAYOUT, step, LAYOUT, step, 3).mean(axis=(2, 4), dtype=np.float32)
    x = torch.from_numpy(layout.reshape(n, -1)).to(device)
    x = x - x.mean(0)
    reach = 4 * x.norm(dim=1).max().clamp(min=1)  # on so large a sphere, angles are ordered as distances are
    x = torch.cat([x, (reach**2 - (x**2).sum(1, keepdim=True)).sqrt()], dim=1) / reach
    count = min(CLOSEST_LAYOUTS, n - 1)
    found = [torch.stack([some[:, None].expand(-1, count), others], -1).cpu() for some, others in nearest(x, count)]
    pairs: NDArray[np.int64] = torch.cat(found).reshape(-1, 2).numpy()
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    return pairs[np.argsort(pairs[:, 1], kind="stable")]


def _grey(store: PixelStore, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    images = (Image.fromarray(store.image(row)).convert("L") for row in rows.tolist())
    return np.stack([np.asarray(image.resize((WIDTH, WIDTH), Image.Resampling.BILINEAR)) for image in images])


def _correlations(
    grey: Tensor, pairs: NDArray[np.int64], *, device: torch.device, runtime: Runtime
) -> NDArray[np.float32]:
    """Return how well the images of each pair (p, 2) can be aligned."""
    found = []
    for done, some in enumerate(torch.from_numpy(pairs).split(PAIRS_AT_ONCE)):
        one, (sought, which) = some[:, 0], some[:, 1].unique(return_inverse=True)
        parts, middles = (structure(grey[rows].to(device).float()) for rows in (one, sought))
        found.append(align(parts, middles, which.to(device)).cpu())
        runtime.progress("Comparing images", min((done + 1) * PAIRS_AT_ONCE, len(pairs)), len(pairs))
    return torch.cat(found).numpy() if found else np.zeros(0, dtype=np.float32)


def structure(grey: Tensor) -> Tensor:
    """Return the fine structure of grey images (b, WIDTH, WIDTH): neither single pixels nor large shapes."""
    at = torch.arange(WIDTH, device=grey.device)
    apart = (at[:, None] - at) ** 2
    # Smaller weights count for nothing, and with subnormal numbers processors compute a hundred times as slowly.
    fine, coarse = (torch.softmax((-apart / (2 * spread**2)).clamp(min=-40), dim=1) for spread in (FINE, COARSE))
    return fine @ grey @ fine.T - coarse @ grey @ coarse.T


def align(one: Tensor, others: Tensor, which: Tensor) -> Tensor:
    """Return the best correlation (b,) of the middle of `others[which]`, at any of SCALES, with a part of `one`."""
    size, places = (WIDTH, WIDTH), WIDTH - MIDDLE + 1
    resize = _resizing(one.device)
    middle = resize @ others[:, None] @ resize.mT  # (others, scales, MIDDLE, MIDDLE)
    middle = middle - middle.mean((2, 3), keepdim=True)
    middle = middle / middle.norm(dim=(2, 3), keepdim=True).clamp(min=MIDDLE)
    spectrum = torch.fft.rfft2(one)
    window = torch.fft.rfft2(torch.ones(MIDDLE, MIDDLE, device=one.device), s=size).conj()
    sums = torch.fft.irfft2(spectrum * window, s=size)[:, :places, :places]
    squares = torch.fft.irfft2(torch.fft.rfft2(one**2) * window, s=size)[:, :places, :places]
    spread = (squares - sums**2 / MIDDLE**2).clamp(min=MIDDLE**2).sqrt()  # of at least one level of 255
    patterns = torch.fft.rfft2(middle, s=size).conj_physical()[which]
    products = torch.fft.irfft2(patterns.mul_(spectrum[:, None]), s=size)[:, :, :places, :places]
    found: Tensor = products.amax(1) / spread
    return found.amax((1, 2))


def _resizing(device: torch.device) -> Tensor:
    """Return matrices (scales, MIDDLE, WIDTH) that cut the middle out of a line at each scale."""
    at = (torch.arange(MIDDLE) + 0.5 - MIDDLE / 2) / torch.tensor(SCALES)[:, None] + (WIDTH - 1) / 2
    weights: Tensor = (1 - (at[..., None] - torch.arange(WIDTH)).abs()).clamp(min=0)
    return weights.to(device)
