"""Estimation of the number of classes: the k whose clusters fit the labelled images best (GCD §3.3)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, log
from numbers import Integral
from statistics import fmean, median
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, distributed

from sortal.clustering.cluster_sums import LabelledSums
from sortal.clustering.inputs import NO_CLASS, ArrayOrTensor, check_number, draw_seed, read_inputs
from sortal.clustering.lloyd import FEW_CHANGES, MAX_ITER, LloydState, RestartResult, lloyd, seed_groups
from sortal.clustering.points import Points, full_precision
from sortal.clustering.seeding import Seeds
from sortal.errors import InputError
from sortal.metrics import accuracy
from sortal.runs.facts import TriedK
from sortal.system.distributed import Peers

KMethod = Literal["brent", "separation"]
CLOSE_SHARE = 0.03  # the search ends when the best k has neighbours this close on both sides
TOL = 1e-4  # of each restart, as in `SemiSupervisedKMeans`
FIRST_RESTARTS = 3  # of each k; the others follow unless these are clearly worse than another's
USUALLY_TRIED = 10  # ks
TOLERANCE = 0.08  # "separation": a k is likely if its score is at most this share below the best


@dataclass(frozen=True, kw_only=True)
class KEstimate:
    """The estimate `k`, and how it came about.

    `interval` is the range of the ks that single restarts choose, or if "separation" that of likely ks.
    `curve` has every k that was tried with its score, in order of k. `method` is the one of `estimate_k`.
    """

    k: int
    interval: tuple[int, int]
    curve: tuple[TriedK, ...]
    method: str


def largest_k(classes: int) -> int:
    """Return the largest k to consider by default, given the number of labelled classes."""
    return max(1000, 4 * classes)


def estimate_k(
    x: ArrayOrTensor,
    y: ArrayOrTensor,
    *,
    k_min: int = 1,
    k_max: int = 1000,
    method: KMethod = "brent",
    n_init: int = 10,
    random_state: int | np.random.RandomState | None = None,
    device: str = "auto",
    callback: Callable[[TriedK], None] | None = None,
    known: Iterable[TriedK] = (),
    group: "distributed.ProcessGroup | None" = None,
) -> KEstimate:
    """Estimate the number of classes among the rows of `x`, (n, d), with labels `y`, (n,), −1 for unlabelled.

    `method` is one of two:
    "brent", the paper's: plain k-means on all rows; the score of k is the accuracy of its clusters on labelled rows.
    "separation", for features that were trained with these labels, on which clusters that merge unlabelled classes are
    just as accurate, or for rows with labels of at most one class: semi-supervised k-means; the score of k is the
    silhouette of its clusters on unlabelled rows, each left out of its own centre, and 0 for one cluster. The interval
    ranges over the ks within `TOLERANCE` of the best.

    A score is the mean over `n_init` restarts, or `FIRST_RESTARTS` if they leave no hope; if "separation", the median.
    Brent's method maximises it in log k, from `k_min`, but at least the number of labelled classes, to `k_max`.
    `callback` gets every k tried, and again when it has all restarts; pass what it got as `known` to resume an
    interrupted call with the same seed and result. With a process `group`, each process passes its own rows.
    `random_state` and `device` are those of `SemiSupervisedKMeans`. Memory grows with n_init.

    >>> x, y = [[0.0], [0.1], [1.0], [1.1], [9.0], [9.1]], ["a", "a", "b", "b", -1, -1]
    >>> estimate_k(x, y, k_max=4, random_state=0).k
    3
    """
    if method not in get_args(KMethod):
        raise InputError(f"method must be one of {', '.join(map(repr, get_args(KMethod)))}, got {method!r}.")
    for name, number in (("k_min", k_min), ("k_max", k_max), ("n_init", n_init)):
        check_number(name, number, Integral, 1)
    processes = Peers(group)
    rows, labels, classes = read_inputs(x, y, device, processes)
    c = len(classes)
    if c < 2 and method == "brent":
        raise InputError(f"y must label rows of at least two classes for 'brent', got {c}. Use 'separation' instead.")
    if k_max < c:
        raise InputError(f"k_max must be at least {c} (the labelled classes), got {k_max}.")
    if k_max < k_min:
        raise InputError(f"k_max must be at least k_min, {k_min}, got {k_max}.")
    seed = draw_seed(random_state, processes)
    average = median if method == "separation" else fmean
    done = _check_known(known, n_init, processes, average)
    fitted = None if method == "brent" else c
    clusterings = _Clusterings(rows, labels, fitted, list(range(seed, seed + n_init)), processes, k_max)
    high = min(k_max, clusterings.k_limit)
    if high < k_min:
        raise InputError(f"k_min must be at most {high} (the labelled classes and the unlabelled rows), got {k_min}.")
    margin = TOLERANCE if method == "separation" else 0.0
    search = _Search(clusterings, average, n_init, margin, done, callback, low=max(c, k_min), high=high)
    search.brent()
    likely = search.likely() if method == "separation" else None
    best, alone = search.best()
    interval = likely or (min(best, *alone), max(best, *alone))
    curve = tuple(search.tried[k] for k in sorted(search.tried))
    return KEstimate(k=best, interval=interval, curve=curve, method=method)


def _check_known(
    known: Iterable[TriedK], n_init: int, processes: Peers, average: Callable[[Sequence[float]], float]
) -> dict[int, TriedK]:
    """Return the first process's evaluations by k, with scores recomputed from their parts."""
    found: dict[int, TriedK] = {}
    for at in processes.gather_objects(tuple(known))[0]:
        if len(at.each) not in (n_init, min(n_init, FIRST_RESTARTS)):
            raise InputError(
                f"known must come from a call with the same n_init, {n_init}, got {len(at.each)} scores of k = {at.k}."
            )
        found[at.k] = TriedK(k=at.k, score=average(at.each), each=tuple(at.each))
    return found


@dataclass
class _Search:
    """Evaluations of ks from `low` to `high`, each tried once, and searches for the best."""

    clusterings: "_Clusterings"
    average: Callable[[Sequence[float]], float]  # score of a k from those of its restarts
    n_init: int
    margin: float  # share of the best score by which one must be worse to be hopeless
    known: dict[int, TriedK]
    callback: Callable[[TriedK], None] | None
    low: int
    high: int
    tried: dict[int, TriedK] = field(default_factory=dict)

    def score(self, k: int) -> float:
        """Try k by its first restarts, and by the others if these do not settle whether it is the best."""
        if k not in self.tried:
            self._evaluate(k, lambda: self.clusterings.scores(k), min(FIRST_RESTARTS, self.n_init))
            self.settle()
        return self.tried[k].score

    def _evaluate(self, k: int, compute: Callable[[], Sequence[float]], restarts: int) -> None:
        """Note the scores of so many restarts of k, known ones or computed."""
        known = self.known.get(k)
        is_known = known is not None and len(known.each) >= restarts
        each = tuple(known.each[:restarts] if known is not None and is_known else compute())
        self.tried[k] = TriedK(k=k, score=self.average(each), each=each)
        if self.callback is not None and not is_known:
            self.callback(self.tried[k])

    def settle(self, *, finally_: bool = False) -> None:
        """Run the other restarts of the best k and of those that may be as good; `finally_` even where none is."""
        while True:
            best = max(self.tried.values(), key=lambda at: (at.score, -at.k))
            hope = min(best.each) - (max(best.each) - min(best.each)) - self.margin * abs(best.score)
            rivals = [at for at in self.tried.values() if at is not best and max(at.each) >= hope]
            wanted = [best, *rivals] if rivals or finally_ else []
            at = next((at for at in wanted if len(at.each) < self.n_init), None)
            if at is None:
                return
            self._evaluate(at.k, partial(self._whole, at), self.n_init)

    def _whole(self, at: TriedK) -> Sequence[float]:
        return [*at.each, *self.clusterings.scores(at.k, rest=True)]

    def brent(self) -> None:
        """Maximise the score by Brent's method, which may stop early on a noisy curve; then close in on the best k."""
        if self.high - self.low <= 2:
            for k in range(self.low, self.high + 1):
                self.score(k)
        else:
            bounds, options = (log(self.low), log(self.high)), {"xatol": 1.5 * CLOSE_SHARE}  # steps of half the share
            minimize_scalar(lambda at: -self.score(round(exp(at))), bounds=bounds, method="bounded", options=options)
        self.close_in()

    def close_in(self) -> None:
        """Try ks halfway between the best and its neighbours until the neighbours are within `CLOSE_SHARE`."""
        while True:
            self.settle(finally_=True)
            ks = sorted(self.tried)
            at = ks.index(max(ks, key=lambda k: self.tried[k].score))
            gaps = [(ks[i + 1] - ks[i], ks[i]) for i in (at - 1, at) if 0 <= i < len(ks) - 1]
            gap, below = max(gaps, default=(0, 0))
            if gap <= max(1, CLOSE_SHARE * ks[at]):
                return
            self.score(below + gap // 2)

    def best(self) -> tuple[int, list[int]]:
        """Return the smallest of the best ks, and that of each restart alone."""
        best = max(self.tried.values(), key=lambda at: (at.score, -at.k))
        whole = [at for at in self.tried.values() if len(at.each) == len(best.each)]
        return best.k, [-max((at.each[i], -at.k) for at in whole)[1] for i in range(len(best.each))]

    def within(self, tolerance: float) -> list[int]:
        """Return the tried ks that score within a tolerance of the best."""
        best = max(at.score for at in self.tried.values())
        return [k for k, at in self.tried.items() if at.score >= best - tolerance * abs(best)]

    def likely(self) -> tuple[int, int]:
        """Return the smallest and the largest k that score within `TOLERANCE` of the best.

        Bisect between each of them and the next k outside, or the bound, until they are close. Whenever a better k
        turns up, close in on it and start again.
        """
        while True:
            self.close_in()
            inside = self.within(TOLERANCE)
            first, last = min(inside), max(inside)
            below = max((k for k in self.tried if k < first), default=self.low - 1)
            above = min((k for k in self.tried if k > last), default=self.high + 1)
            if first - below > max(1, CLOSE_SHARE * first):
                self.score((below + first) // 2)
            elif above - last > max(1, CLOSE_SHARE * last):
                self.score((last + above) // 2)
            else:
                return first, last


class _Clusterings:
    """Clusterings of rows into any k, one per seed; the seeds of a smaller k are the first of those of a larger one.

    With `fitted` classes, labelled rows stay in the cluster of their class, and the score is the separation of all
    clusters. With None, it is plain k-means, and the score is the accuracy on labelled rows.
    """

    def __init__(
        self, x: Tensor, labels: NDArray[np.int64], fitted: int | None, seeds: list[int], processes: Peers, k_max: int
    ) -> None:
        self.separates, fitted = fitted is not None, fitted or 0
        self.known = torch.from_numpy(np.flatnonzero(labels != NO_CLASS)).to(x.device)
        self.truth = processes.concat(torch.from_numpy(labels).to(x.device)[self.known])[0].cpu().numpy()
        numbers = labels if fitted else np.full_like(labels, NO_CLASS)
        free = np.flatnonzero(numbers == NO_CLASS)
        self.points = Points(x, torch.from_numpy(free).to(x.device) if fitted else None, processes=processes)
        self.fixed = LabelledSums.of(x, torch.from_numpy(numbers).to(x.device), fitted, self.points)
        self.rows = sum(processes.gather_objects(len(free)))
        self.k_limit = fitted + self.rows
        self.first, self.rest = (
            list(seed_groups(self.points, self.fixed, some, k_max, 2 + int(log(k_max))))
            for some in (seeds[:FIRST_RESTARTS], seeds[FIRST_RESTARTS:])
        )

    def scores(self, k: int, *, rest: bool = False) -> list[float]:
        """Score k clusters once for each of the first seeds or the rest; ties go to the first centre of any k."""
        with full_precision(self.points.x.device):
            tol = TOL * self.points.variance()
            return [score for seeds in (self.rest if rest else self.first) for score in self._scores(seeds, k, tol)]

    def _scores(self, seeds: Seeds, k: int, tol: float) -> list[float]:
        if seeds.grow(k).centres.shape[1] > k:
            state = LloydState.at(self.points, seeds.centres[:, :k])
        else:
            state = LloydState.seeded(seeds)
            # Seeding resolved near ties by rounding. Reset these rows: they are scored again.
            state.assigned[state.upper > state.lower - self.points.slack(state.lengths)] = 0
        runs = lloyd(self.points, self.fixed, state, max_iter=MAX_ITER, tol=tol, few=int(FEW_CHANGES * self.rows))
        ended = sorted(runs, key=lambda one: one.restart)
        if self.separates:
            return separation(self.points, torch.stack([one.centres for one in ended]), self.fixed.counts)
        return [self._accuracy(one) for one in ended]

    def _accuracy(self, ended: RestartResult) -> float:
        """Return the accuracy of the clusters on labelled rows."""
        clusters, _ = self.points.processes.concat(ended.assigned[self.known])
        share = accuracy(self.truth, clusters.cpu().numpy(), old=()).all
        assert share is not None  # there are labelled rows
        return share


def separation(points: Points, centres: Tensor, labelled: Tensor, absent: Tensor | None = None) -> list[float]:
    """Compute the mean of (b − a) / max(a, b) over rows, 0 for a row alone in its cluster, for centres (g, k, d).

    a is the distance of a row to the centre of the other rows of its cluster, `labelled` (c,) rows included; b that to
    the next centre. A row's own weight in its centre would favour many small clusters. One cluster has 0. Centres that
    are `absent` (g, k) do not count.
    """
    if centres.shape[1] == 1:
        return [0.0] * len(centres)
    state, (g, k, _) = LloydState.at(points, centres, absent), centres.shape
    own, near = state.assigned, (state.upper, state.lower)
    a, b = ((score + points.norms).clamp_min_(0).sqrt_() for score in near)  # to the nearest centre, and to the second
    cluster = own + k * torch.arange(g, device=own.device)[:, None]
    sizes = points.processes.sum(torch.bincount(cluster.flatten(), minlength=g * k)).view(g, k)
    sizes[:, : len(labelled)] += labelled.to(sizes.dtype)
    others = (sizes.gather(1, own) - 1).to(a.dtype)
    a = a * (others + 1) / others.clamp(min=1)
    counts = (others > 0) & b.isfinite()  # there is no second of one centre
    return points.averages(torch.where(counts, (b - a) / torch.maximum(a, b).clamp(min=1e-30), 0))
