"""How many categories there are, as a distribution over k, from what separation, sizes and hidden classes say.

How finely to cut is a convention, and the labelled classes are the only evidence of it. So some of them are hidden from
a pilot round of learning, and every k is judged by three things at once: how well its clusters separate the images as
they are, and how well they agree with the hidden labels, both on the features of the pilot; and whether new categories
are about as large as known ones, since people rarely name classes by their size, on features learned with all labels.
Any of them may be flat or misleading, and a maximum of noise is no estimate, so k is the mean of the distribution, on a
log scale, and the interval holds four fifths of it. (What is reported is narrower: `choose_k.narrowed`.)
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from math import exp, log, log1p
from typing import NamedTuple

import numpy as np

from sortal import metrics
from sortal.discovery.grouping import shared_kmeans
from sortal.discovery.grouping.clusters import Rows, separations_of
from sortal.discovery.job import Job
from sortal.discovery.results import means_of
from sortal.images.image_set import ImageSet
from sortal.runs.confidence import Floats, Ints
from sortal.runs.facts import FEWEST_TO_HIDE, Trial
from sortal.system import cache
from sortal.system.json_records import read_record
from sortal.system.progress import Runtime

HIDDEN_SHARE = 1 / 3  # of the known classes
FITS_PER_K = 3  # of k-means for each k
WIDE_STEP, NARROW_STEP = 1.35, 1.08  # ratio between ks that are tried, first and where they are likely
HOPELESS = 6.0  # below the best log density: where the search ends
PLAUSIBLE = 4.0  # below the best log density: down to where ks between others are tried
MOST_TRIED, OFTEN_TRIED = 30, 15  # ks
KS_AT_ONCE = 8  # ks, whose clusterings share their starting centres
AROUND = 1.1  # by which a later count may leave the interval of the first, as a factor
WORSE_SEPARATION, WORSE_TRAINED = 0.15, 0.03  # shares of the best that are one standard deviation: at first, and later
LEAST_SEPARATION = 0.05  # below which the share is of this one
MOST_WORSE = 0.05  # one standard deviation at most, or clear classes would be merged
SIZES_DIFFER = 0.4  # by which the mean log sizes of known and new classes differ anyway
NO_AGREEMENT = 0.1  # added to the agreement with hidden labels, below which it means little
HIDDEN_WEIGHT = 0.5  # of a hidden class: their images say less than as many independent ones
INSIDE = 0.8  # share of the distribution in its interval
FOUND = 0.5  # share of a hidden class that is in one category, and of that category's hidden images, if it was found


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one clustering into k says."""

    k: int
    separation: float  # of the unlabelled images, as they are
    smoothed: float  # the same, averaged with their neighbours
    known_size: float  # mean of the log sizes of known categories
    known_spread: float  # their standard deviation
    new_size: float | None  # mean of the log sizes of the other categories, if there are any
    agreement: float = 0.0  # adjusted Rand index of clusters and hidden labels
    found: int = 0  # hidden classes that were found


@dataclass(frozen=True)
class KDistribution:
    """Log densities of ks, in ascending order, over log k; `known` is the number of labelled classes."""

    known: int
    ks: tuple[int, ...]
    scores: tuple[float, ...]
    separations: tuple[float, ...]
    trial: Trial | None = None

    @property
    def weights(self) -> Floats:
        """The probability of the interval around each k."""
        logs = np.log(self.ks)
        edges = np.concatenate([logs[:1], (logs[1:] + logs[:-1]) / 2, logs[-1:]])
        found = np.exp(np.array(self.scores) - max(self.scores)) * np.maximum(np.diff(edges), 1e-9)
        return found / found.sum()

    @property
    def k(self) -> int:
        return round(exp(float(self.weights @ np.log(self.ks))))

    @property
    def interval(self) -> tuple[int, int]:
        below = np.cumsum(self.weights)
        first = self.ks[int(np.searchsorted(below, (1 - INSIDE) / 2))]
        last = self.ks[min(int(np.searchsorted(below, (1 + INSIDE) / 2)), len(self.ks) - 1)]
        return min(first, self.k), max(last, self.k)

    def score_of(self, k: int) -> float:
        """Return the log density of k, interpolated."""
        return float(np.interp(log(k), np.log(self.ks), self.scores))

    def separation_of(self, k: int) -> float:
        """Return how well k clusters separate the images, interpolated."""
        return float(np.interp(log(k), np.log(self.ks), self.separations))


class Pilot(NamedTuple):
    """Features that were learned without the labels of the hidden classes."""

    rows: Rows
    hidden: Ints


def hidden_classes(images: ImageSet, seed: int) -> Ints:
    """Draw the known classes whose labels the first round of learning does not see."""
    classes, counts = np.unique(images.labels[images.labelled], return_counts=True)
    if len(classes) < FEWEST_TO_HIDE:
        return classes[:0]
    drawn = np.random.default_rng(seed).permutation(classes[counts > 1])
    return np.sort(drawn[: round(HIDDEN_SHARE * len(classes))])


def count_first(
    job: Job, rows: Rows, images: ImageSet, bounds: tuple[int, int], runtime: Runtime, *, pilot: Pilot | None = None
) -> KDistribution:
    """Count categories on features that were learned with all labels, and on those of a pilot that hid some classes."""
    hidden = images.labels[:0] if pilot is None else pilot.hidden
    is_hidden = images.labelled & np.isin(images.labels, hidden)

    def evidence(ks: list[int]) -> list[Evidence]:
        none = np.full(len(images), -1)
        found = _evidence(job, rows, images.labels, none, ks)
        if pilot is None:
            return found
        held = np.where(is_hidden, images.labels, -1)
        tried = _evidence(job, pilot.rows, np.where(is_hidden, -1, images.labels), held, ks)
        return [
            replace(one, separation=other.separation, agreement=other.agreement, found=other.found)
            for one, other in zip(found, tried, strict=True)
        ]

    score = partial(_scores, hidden=len(hidden), known=len(images.known))
    before = rows.key if pilot is None else (*rows.key, *pilot.rows.key)
    key = cache.key("first", *before, cache.hashed(images.labels, hidden), *bounds, job.settings.seed)
    ahead = KS_AT_ONCE if job.processes.device.type == "cuda" else 1  # several take a GPU little longer than one
    found = _cached(job, key, runtime, partial(_search, evidence, score, bounds, ahead))
    ks, separations = tuple(each.k for each in found), tuple(each.separation for each in found)
    counted = KDistribution(len(images.known), ks, tuple(score(found)), separations)
    if pilot is None:
        return counted
    nearest = min(found, key=lambda each: abs(log(each.k / counted.k)))
    return replace(counted, trial=Trial(len(hidden), nearest.found))


def count_again(
    job: Job, rows: Rows, images: ImageSet, before: KDistribution, runtime: Runtime, *, also: int | None = None
) -> KDistribution:
    """Count categories on features learned since: what was counted before, and how the new features separate.

    They were trained with all labels, so they say nothing new about hidden classes, and for some k, so that averages
    with neighbours tell more ks apart than features as they are. Of the ks that are tried, `also` is one.
    """
    low, high = before.interval
    low, high = max(round(low / AROUND), before.ks[0]), min(round(AROUND * high), before.ks[-1])
    ks = sorted({min(round(low * NARROW_STEP**i), high) for i in range(MOST_TRIED)} | {before.k, also or before.k})
    evidence = partial(_evidence, job, rows, images.labels, np.full(len(images), -1))
    key = cache.key("again", *rows.key, cache.hashed(images.labels), *ks, job.settings.seed)
    found = _cached(job, key, runtime, partial(_evaluate, evidence, ks))
    smoothed = separation_scores([each.smoothed for each in found])
    scores = tuple(each + before.score_of(k) for k, each in zip(ks, smoothed, strict=True))
    return KDistribution(before.known, tuple(ks), scores, tuple(each.smoothed for each in found), before.trial)


# Evidence of single ks


def _evidence(job: Job, rows: Rows, labels: Ints, hidden: Ints, ks: list[int]) -> list[Evidence]:
    """Cluster into each of ks; `hidden` (n,) are the labels of hidden classes, −1 elsewhere."""
    fitted = labels if (labels >= 0).any() else None
    seed, processes = job.settings.seed, job.processes
    models = shared_kmeans.fit_each(rows.smoothed, fitted, ks, n_init=FITS_PER_K, seed=seed, processes=processes)
    plain = [means_of(rows.x, model.labels, k) for k, model in zip(ks, models, strict=True)]
    separations = separations_of(rows.x, fitted, plain, processes)
    smoothed = separations_of(rows.smoothed, fitted, [model.centres for model in models], processes)
    known, asked = len(np.unique(labels[labels >= 0])), hidden >= 0
    found = []
    for at, (k, model) in enumerate(zip(ks, models, strict=True)):
        sizes = np.log(np.maximum(np.bincount(model.labels, minlength=k), 1))
        agreement = metrics.ari(hidden[asked], model.labels[asked]) if asked.any() else None
        found.append(
            Evidence(
                k=k,
                separation=separations[at],
                smoothed=smoothed[at],
                known_size=float(sizes[:known].mean()) if known else 0.0,
                known_spread=float(sizes[:known].std()) if known else 0.0,
                new_size=float(sizes[known:].mean()) if k > known else None,
                agreement=agreement or 0.0,
                found=_classes_found(hidden[asked], model.labels[asked], k),
            )
        )
    return found


def _classes_found(hidden: Ints, clusters: Ints, k: int) -> int:
    """Count the hidden classes of which most images are in one cluster, whose hidden images are mostly of it."""
    if not len(hidden):
        return 0
    classes, rows = np.unique(hidden, return_inverse=True)
    table = np.zeros((len(classes), k))
    np.add.at(table, (rows, clusters), 1)
    most = table.argmax(axis=1)
    largest = table.max(axis=1)
    good = (largest > FOUND * table.sum(axis=1)) & (largest > FOUND * table.sum(axis=0)[most])
    return int(good.sum())


def separation_scores(separations: Sequence[float], worse: float = WORSE_TRAINED) -> list[float]:
    """Return log densities of separations; `worse` is the share of the best that is one standard deviation."""
    best = max(separations)
    scale = min(worse * max(abs(best), LEAST_SEPARATION), MOST_WORSE)
    return [-(((best - each) / scale) ** 2) / 2 for each in separations]


def _scores(found: list[Evidence], *, hidden: int, known: int) -> list[float]:
    """Return the log density of each k, in ascending order, up to a constant."""
    best = max(max(each.agreement, 0.0) for each in found) + NO_AGREEMENT
    worse = WORSE_SEPARATION if known > 1 else WORSE_TRAINED  # all there is to go by without labels
    scores = separation_scores([each.separation for each in found], worse)
    sizes = [_size_score(each, known) for each in found] if known > 1 else []
    for at, each in enumerate(found):
        if sizes:  # of the next k where there is no new category
            scores[at] += next((size for size in sizes[at:] if size is not None), 0.0)
        if hidden:
            scores[at] += HIDDEN_WEIGHT * hidden * log((max(each.agreement, 0.0) + NO_AGREEMENT) / best)
    return scores


def _size_score(each: Evidence, known: int) -> float | None:
    """Return the log density of the sizes of known and new categories, None without new ones.

    Few labels may hold few unlabelled images in their categories, so that larger new ones say less than smaller ones.
    """
    if each.new_size is None:
        return None
    variance = each.known_spread**2 * (1 / known + 1 / (each.k - known)) + SIZES_DIFFER**2
    off = (each.new_size - each.known_size) ** 2 / variance
    return -off / 2 if each.new_size < each.known_size else -log1p(off) / 2


# The search


class _Scored(NamedTuple):
    k: int
    score: float


Judge = Callable[[list[int]], list[Evidence]]
Note = Callable[[int], None]  # is told how many ks were tried


def _search(
    evidence: Judge, score: Callable[[list[Evidence]], list[float]], bounds: tuple[int, int], ahead: int, note: Note
) -> list[Evidence]:
    """Try ks from the fewest upwards until they are hopeless, then ever closer ones where they are likely.

    So many of the first ks are judged `ahead`; those beyond a hopeless one are dropped.
    """
    (low, high), tried = bounds, dict[int, Evidence]()

    def scored() -> list[_Scored]:
        found = [tried[k] for k in sorted(tried)]
        return [_Scored(each.k, value) for each, value in zip(found, score(found), strict=True)]

    wide = [low]
    while wide[-1] < high:
        wide.append(min(max(round(WIDE_STEP * wide[-1]), wide[-1] + 1), high))
    for each in chain.from_iterable(evidence(wide[at : at + ahead]) for at in range(0, len(wide), ahead)):
        tried[each.k] = each
        note(len(tried))
        last_two = [one.score for one in scored()][-2:]
        if max(last_two) < max(one.score for one in scored()) - HOPELESS:
            break
    while len(tried) < MOST_TRIED:
        all_scored = scored()
        best = max(each.score for each in all_scored)
        gaps = [
            (b.k / a.k, a.k, b.k)
            for a, b in pairwise(all_scored)
            if b.k - a.k > 1 and b.k > NARROW_STEP * a.k and max(a.score, b.score) > best - PLAUSIBLE
        ]
        if not gaps:
            break
        widest = sorted(gaps, reverse=True)[: MOST_TRIED - len(tried)]
        between = [min(max(round((a * b) ** 0.5), a + 1), b - 1) for _, a, b in widest]
        tried |= {each.k: each for each in evidence(sorted(between))}
        note(len(tried))
    return [tried[k] for k in sorted(tried)]


def _evaluate(evidence: Judge, ks: list[int], note: Note) -> list[Evidence]:
    found = list[Evidence]()
    for at in range(0, len(ks), KS_AT_ONCE):
        found += evidence(ks[at : at + KS_AT_ONCE])
        note(len(found))
    return found


def _cached(job: Job, key: str, runtime: Runtime, find: Callable[[Note], list[Evidence]]) -> list[Evidence]:
    """Return cached evidence, or find and cache it."""
    path = job.cache / "k" / f"{key}.json"
    if (held := job.processes.by_first(partial(cache.load, path))) is not None:
        return [read_record(Evidence, each) for each in held]

    def note(tried: int) -> None:
        runtime.progress("Counting categories", tried, max(OFTEN_TRIED, tried + 1))

    note(0)
    found = find(note)
    if job.processes.is_first:
        cache.save(path, [asdict(each) for each in found])
    return found
