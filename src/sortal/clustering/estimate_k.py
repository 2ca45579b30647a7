"""How many classes are there: k as the number of clusters that serves the labelled images best (GCD §3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, log, sqrt
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from sklearn.utils import check_random_state
from torch import Tensor

from sortal.errors import InputError
from sortal.inputs import UNLABELLED, check_number, read
from sortal.lloyd import Ended, State, at_once, lloyd
from sortal.members import Fixed
from sortal.metrics import accuracy
from sortal.points import Points, full_precision
from sortal.seeding import Seeds, row_keys
from sortal.shards import Shards

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Method = Literal["brent", "hidden", "plateau"]
CLOSE = 0.03  # the search ends when the neighbours of the best k have been tried, this close on either side


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One k that was tried."""

    k: int
    score: float
    each: tuple[float, ...]  # the score of every restart ("brent") or fold ("hidden")


@dataclass(frozen=True, kw_only=True)
class KEstimate:
    """The k that was chosen among those tried, how far it could be off, and everything that was tried, by k."""

    k: int
    interval: tuple[int, int]  # least and greatest of what each restart or fold, taken alone, would choose
    curve: tuple[Evaluation, ...]
    method: str


def estimate_k(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    k_max: int = 1000,
    method: Method = "brent",
    n_init: int = 10,
    n_candidates: int | None = None,
    max_iter: int = 100,
    tol: float = 1e-4,
    random_state: int | np.random.RandomState | None = None,
    device: str = "auto",
    callback: Callable[[Evaluation], None] | None = None,
    known: Iterable[Evaluation] = (),
    group: ProcessGroup | None = None,
) -> KEstimate:
    """Estimate the number of classes among the rows of x, labelled or not; y holds labels, −1 for unlabelled.

    "brent", the paper's: plain k-means on all rows; the score of k is the accuracy of its clusters on labelled rows.
    "plateau", for features that were trained with these labels, on which the score hardly changes between too few
    clusters, which mix new classes with each other, and the right number: the largest k whose best restarts score as
    well as those of any k, within the standard error of an accuracy on that many labelled rows.
    "hidden": semi-supervised k-means that is shown half of the labelled classes; the score of k is its accuracy on the
    other half times the silhouette of its clusters. Either score, a mean over `n_init` restarts or choices of the half,
    is maximised by Brent's method, in log k, between the number of labelled classes and k_max (or what the rows allow,
    where that is less), never trying a k twice. `callback` is told of every k tried; what a call that was broken off
    told it may be `known` to the same call, with the same seed: the result is the same, and those ks are not tried.
    With a process `group`, each process passes its own rows. The other parameters are those of `SemiSupervisedKMeans`;
    candidates None is 2 + log(k_max), so that the seeds of a smaller k are the first of those of a larger. Memory grows
    with n_init.
    """
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(map(repr, get_args(Method)))}, got {method!r}.")
    for name, value in (("k_max", k_max), ("n_init", n_init), ("max_iter", max_iter)):
        check_number(name, value, Integral, 1)
    check_number("tol", tol, Real, 0)
    shards = Shards(group)
    rows, labels, classes = read(x, y, device, shards)
    c = len(classes)
    if c < 2:
        raise InputError(f"y must label rows of two classes or more to estimate k from, got {c}. Give k instead.")
    if k_max < c:
        raise InputError(f"k_max must be at least {c} (the labelled classes), got {k_max}.")
    seed = shards.objects(int(check_random_state(random_state).randint(2**31 - 1)))[0]
    hidden = [_half(c, i, seed) for i in range(n_init)] if method == "hidden" else [np.arange(c)]
    each_fold = n_init // len(hidden)
    few = n_candidates or 2 + int(log(k_max))
    before = _checked(known, n_init, shards)
    folds = [
        _Fold(rows, labels, c, hide, [seed + i * each_fold + j for j in range(each_fold)], few, shards, k_max)
        for i, hide in enumerate(hidden)
    ]
    tried: dict[int, Evaluation] = {}

    def loss(at: float) -> float:
        k = round(exp(at))
        if k not in tried and k in before:
            tried[k] = before[k]
        elif k not in tried:
            with full_precision(rows.device):
                each = tuple(score for fold in folds for score in fold.scores(k, max_iter, tol))
            tried[k] = Evaluation(k=k, score=sum(each) / n_init, each=each)
            if callback is not None:
                callback(tried[k])
        return -tried[k].score

    high = min(k_max, *(fold.k_limit for fold in folds))
    _search(loss, c, high, tried)
    if method == "plateau":
        n_labelled = sum(shards.objects(int((labels != UNLABELLED).sum())))
        best, alone = _plateau(loss, tried, n_labelled, high)
    else:
        best = max(tried.values(), key=lambda at: (at.score, -at.k)).k
        alone = [-max((at.each[i], -at.k) for at in tried.values())[1] for i in range(n_init)]
    curve = tuple(tried[k] for k in sorted(tried))
    return KEstimate(k=best, interval=(min(best, *alone), max(best, *alone)), curve=curve, method=method)


def _checked(known: Iterable[Evaluation], n_init: int, shards: Shards) -> dict[int, Evaluation]:
    """Evaluations by k, those of the first process in all, with scores that are exactly what their parts make."""
    found: dict[int, Evaluation] = {}
    for at in shards.objects(tuple(known))[0]:
        if len(at.each) != n_init:
            raise InputError(
                f"known must be of a call with the same n_init, {n_init}, got {len(at.each)} scores of k = {at.k}."
            )
        found[at.k] = Evaluation(k=at.k, score=sum(at.each) / n_init, each=tuple(at.each))
    return found


def _search(loss: Callable[[float], float], low: int, high: int, tried: dict[int, Evaluation]) -> None:
    """Minimise a loss of log k over low..high by Brent's method, then close in on the best k from either side.

    Brent's method may stop early on a noisy curve: ks halfway between the best and its neighbours are tried until the
    neighbours are within `CLOSE`.
    """
    if high - low <= 2:
        for k in range(low, high + 1):
            loss(log(k))
        return
    minimize_scalar(loss, bounds=(log(low), log(high)), method="bounded", options={"xatol": 0.5 / high})
    while True:
        ks = sorted(tried)
        at = ks.index(max(ks, key=lambda k: tried[k].score))
        gaps = [(ks[i + 1] - ks[i], ks[i]) for i in (at - 1, at) if 0 <= i < len(ks) - 1]
        gap, below = max(gaps, default=(0, 0))
        if gap <= max(1, CLOSE * ks[at]):
            return
        loss(log(below + gap // 2))


def _plateau(
    loss: Callable[[float], float], tried: dict[int, Evaluation], n_labelled: int, high: int
) -> tuple[int, list[int]]:
    """The upper end of the ks up to `high` that score best, found by halving, and that of each restart taken alone."""
    n_init = len(next(iter(tried.values())).each)
    few = max(n_init // 3, 1)  # restarts: the others may have ended in poor minima

    def end(score: Callable[[Evaluation], float]) -> int:
        best = max(map(score, tried.values()))
        share = (best * n_labelled + 1) / (n_labelled + 2)  # of rows that are right; never quite 0 or 1
        margin = sqrt(share * (1 - share) / n_labelled)
        return max(k for k, at in tried.items() if score(at) >= best - margin)

    def of_the_best(at: Evaluation) -> float:
        return sum(sorted(at.each)[-few:]) / few

    while True:
        k = end(of_the_best)
        gap = min((other for other in tried if other > k), default=high + 1) - k
        if gap <= max(1, CLOSE * k):
            return k, [end(lambda at, i=i: at.each[i]) for i in range(n_init)]  # type: ignore[misc]
        loss(log(k + gap // 2))


class _Fold:
    """Clusterings of the rows in which some labelled classes are hidden, for any k.

    Their score is the accuracy on the hidden classes, times the silhouette unless all classes are hidden. Restarts
    begin with the same seeds whatever k is: the seeds of a smaller k are the first of those of a larger one.
    """

    def __init__(
        self,
        x: Tensor,
        labels: NDArray[np.int64],
        classes: int,
        hidden: NDArray[np.int64],
        seeds: list[int],
        candidates: int,
        shards: Shards,
        k_max: int,
    ) -> None:
        concealed = np.isin(labels, hidden)
        number = np.full(classes + 1, UNLABELLED)  # of the classes that are shown; the last one stands for unlabelled
        shown = np.setdiff1d(np.arange(classes), hidden)
        number[shown] = np.arange(len(shown))
        number = number[labels]
        free = np.flatnonzero(number == UNLABELLED)
        everything = len(shown) == 0
        self.points = Points(x, None if everything else torch.from_numpy(free).to(x.device), shards=shards)
        self.fixed = Fixed.of(x, torch.from_numpy(number).to(x.device), len(shown), self.points)
        self.scored = torch.from_numpy(np.flatnonzero(concealed[free])).to(x.device)
        self.truth = shards.concat(torch.from_numpy(labels[concealed]).to(x.device))[0].cpu().numpy()
        self.k_limit = len(shown) + sum(shards.objects(len(free)))
        first, keys = (self.fixed.means - self.points.mean).to(x.dtype), row_keys(self.points)
        size = at_once(self.points, k_max)
        self.seeds = [
            Seeds(self.points, keys, seeds[i : i + size], first, candidates) for i in range(0, len(seeds), size)
        ]

    def scores(self, k: int, max_iter: int, tol: float) -> list[float]:
        """How well k clusters serve the hidden classes, once from each seed."""
        found = []
        for seeds in self.seeds:
            start = self._start(seeds.grow(k), k)
            ended = lloyd(self.points, self.fixed, start, max_iter=max_iter, tol=tol * self.points.variance())
            found += [self._score(one) for one in sorted(ended, key=lambda one: one.restart)]
        return found

    def _start(self, seeds: Seeds, k: int) -> State:
        """Every row at the nearest of the first k seeds, the first of equally near ones, however many were drawn."""
        if seeds.drawn > k:
            return State.at(self.points, seeds.centres[:, :k])
        state = State.seeded(seeds)
        # Drawing left rows between equally near seeds where rounding had them. Whatever is close is scored again, and
        # a tie goes to where the row is, or else to the first.
        state.assigned[state.upper > state.lower - self.points.slack(state.lengths)] = 0
        return state

    def _score(self, ended: Ended) -> float:
        clusters, _ = self.points.shards.concat(ended.assigned[self.scored])
        share = accuracy(self.truth, clusters.cpu().numpy(), old=()).all
        assert share is not None  # hidden classes have rows
        return share if len(self.fixed.counts) == 0 else share * silhouette(self.points, ended.centres)


def silhouette(points: Points, centres: Tensor) -> float:
    """Mean over rows of 1 − a/b, with a and b the distances to the nearest and the second nearest centre."""
    state = State.at(points, centres[None])
    a, b = ((score[0] + points.norms).clamp_min_(0).sqrt_() for score in (state.upper, state.lower))
    parts = torch.where(b > 0, 1 - a / b, 0)
    total = points.shards.sum(torch.stack([parts.sum(dtype=points.wide), points.mean.new_tensor(float(points.count))]))
    return float(total[0] / total[1])


def _half(classes: int, fold: int, seed: int) -> NDArray[np.int64]:
    """The classes that a fold hides; an odd fold hides what the even one before it shows."""
    order = np.random.RandomState([seed, fold // 2]).permutation(classes)
    return order[: (classes + 1) // 2] if fold % 2 == 0 else order[(classes + 1) // 2 :]
