"""How many classes are there: k as the number of clusters that serves the labelled images best (GCD §3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from sklearn.utils import check_random_state
from torch import Tensor

from sortal.errors import InputError
from sortal.inputs import UNLABELLED, choose_device, read_labels, read_rows
from sortal.lloyd import Ended, State, lloyd, together
from sortal.members import Fixed
from sortal.metrics import accuracy
from sortal.points import Points
from sortal.seeding import Seeds, row_keys
from sortal.shards import Shards

Method = Literal["brent", "hidden"]
CLOSE = 0.03  # the search ends when the neighbours of the best k have been tried, this close on either side
HIDDEN = 0.5  # share of the labelled classes that a fold of "hidden" hides


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One k that was tried."""

    k: int
    score: float
    each: tuple[float, ...]  # the score of every restart ("brent") or fold ("hidden")


@dataclass(frozen=True, kw_only=True)
class KEstimate:
    """The best k that was tried, how far it could be off, and everything that was tried, by k."""

    k: int
    interval: tuple[int, int]  # least and greatest of the best k of each restart or fold, taken alone
    curve: tuple[Evaluation, ...]
    method: str


def estimate_k(
    x: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    k_max: int = 1000,
    method: Method = "brent",
    n_init: int = 5,
    max_iter: int = 100,
    tol: float = 1e-4,
    random_state: int | np.random.RandomState | None = None,
    device: str = "auto",
    callback: Callable[[Evaluation], None] | None = None,
) -> KEstimate:
    """Estimate the number of classes among the rows of x, labelled or not; y holds labels, −1 for unlabelled.

    "brent", the paper's: plain k-means on all rows; the score of k is the accuracy of its clusters on labelled rows.
    "hidden": semi-supervised k-means that is shown half of the labelled classes; the score of k is its accuracy on the
    other half times the silhouette of its clusters. Either score is maximised by Brent's method between the number of
    labelled classes and k_max (or the number of rows, where that is less), never trying a k twice. `n_init` restarts or
    folds are scored for each k; `callback` is told of every k tried.
    """
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(map(repr, get_args(Method)))}, got {method!r}.")
    rows = read_rows(x, choose_device(device, x))
    labels, _ = read_labels(y, len(rows))
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return estimate(
        rows,
        labels,
        k_max=k_max,
        method=method,
        n_init=n_init,
        max_iter=max_iter,
        tol=tol,
        seed=seed,
        callback=callback,
    )


def estimate(
    x: Tensor,
    labels: NDArray[np.int64],
    *,
    k_max: int = 1000,
    method: Method = "hidden",
    n_init: int = 5,
    max_iter: int = 100,
    tol: float = 1e-4,
    seed: int,
    callback: Callable[[Evaluation], None] | None = None,
    shards: Shards | None = None,
) -> KEstimate:
    """`estimate_k` on what it has read, and on rows that are spread over processes."""
    shards = shards or Shards()
    names = {label for part in shards.objects(np.unique(labels).tolist()) for label in part} - {UNLABELLED}
    classes = np.array(sorted(names), dtype=np.int64)
    if len(classes) < 2:
        raise InputError(
            f"y must label rows of two classes or more to estimate k from, got {len(classes)}. Give k instead."
        )
    if k_max < len(classes):
        raise InputError(f"k_max must be at least {len(classes)} (the labelled classes), got {k_max}.")
    if method == "brent":
        folds = [_Fold(x, labels, classes, [seed + i for i in range(n_init)], shards, k_max)]
    else:
        folds = [_Fold(x, labels, _half(classes, i, seed), [seed + i], shards, k_max) for i in range(n_init)]
    tried: dict[int, Evaluation] = {}

    def loss(at: float) -> float:
        k = round(exp(at))
        if k not in tried:
            outcomes = [outcome for fold in folds for outcome in fold.run(k, max_iter, tol)]
            each = tuple(o.accuracy if method == "brent" else o.accuracy * o.silhouette for o in outcomes)
            tried[k] = Evaluation(k=k, score=sum(each) / n_init, each=each)
            if callback is not None:
                callback(tried[k])
        return -tried[k].score

    low, high = len(classes), min(k_max, *(fold.k_limit for fold in folds))
    if high - low > 2:
        minimize_scalar(loss, bounds=(log(low), log(high)), method="bounded", options={"xatol": 0.5 / high})
    else:
        for k in range(low, high + 1):
            loss(log(k))
    _close_in(tried, loss)
    curve = tuple(tried[k] for k in sorted(tried))
    best = max(curve, key=lambda at: at.score).k
    alone = [max((at.each[i], -at.k) for at in curve)[1] for i in range(n_init)]
    alone = [-k for k in alone]
    return KEstimate(k=best, interval=(min(best, *alone), max(best, *alone)), curve=curve, method=method)


def _close_in(tried: dict[int, Evaluation], loss: Callable[[float], float]) -> None:
    """Try ks halfway between the best and its neighbours until they are within `CLOSE` of it: Brent stops early."""
    while True:
        ks = sorted(tried)
        at = ks.index(max(ks, key=lambda k: tried[k].score))
        gaps = [(ks[i + 1] - ks[i], ks[i]) for i in (at - 1, at) if 0 <= i < len(ks) - 1]
        gap, low = max(gaps, default=(0, 0))
        if gap <= max(1, CLOSE * ks[at]):
            return
        loss(log(low + gap // 2))


@dataclass(frozen=True)
class _Outcome:
    accuracy: float  # on the rows of the hidden classes
    silhouette: float  # of all rows that may move


class _Fold:
    """Clusterings of the rows in which some labelled classes are hidden, for any k.

    Restarts begin with the same seeds whatever k is: the seeds of a smaller k are the first of those of a larger one.
    """

    def __init__(
        self,
        x: Tensor,
        labels: NDArray[np.int64],
        hidden: NDArray[np.int64],
        seeds: list[int],
        shards: Shards,
        k_max: int,
    ) -> None:
        concealed = np.isin(labels, hidden)
        shown = np.setdiff1d(labels[labels != UNLABELLED], hidden)
        shown = np.unique(np.concatenate([np.asarray(part, dtype=np.int64) for part in shards.objects(shown.tolist())]))
        number = np.where(concealed | (labels == UNLABELLED), UNLABELLED, np.searchsorted(shown, labels))
        free = np.flatnonzero(number == UNLABELLED)
        everything = len(shown) == 0
        self.points = Points(x, None if everything else torch.from_numpy(free).to(x.device), shards=shards)
        self.fixed = Fixed.of(x, torch.from_numpy(number).to(x.device), len(shown), self.points)
        self.scored = torch.from_numpy(np.flatnonzero(concealed[free])).to(x.device)
        self.truth = shards.concat(torch.from_numpy(labels[concealed]))[0].numpy()
        self.k_limit = len(shown) + int(shards.sum(torch.tensor(len(free))))
        first, keys = (self.fixed.means - self.points.mean).to(x.dtype), row_keys(self.points)
        size = together(self.points, k_max)
        self.seeds = [Seeds(self.points, keys, seeds[i : i + size], first) for i in range(0, len(seeds), size)]

    def run(self, k: int, max_iter: int, tol: float) -> list[_Outcome]:
        """Cluster into k, once from each seed."""
        outcomes = []
        for seeds in self.seeds:
            start = State.seeded(seeds) if seeds.grow(k).drawn == k else State.at(self.points, seeds.centres[:, :k])
            ended = lloyd(self.points, self.fixed, start, max_iter=max_iter, tol=tol * self.points.variance())
            outcomes += [self._outcome(one) for one in sorted(ended, key=lambda one: one.restart)]
        return outcomes

    def _outcome(self, ended: Ended) -> _Outcome:
        clusters = self.points.shards.concat(ended.assigned[self.scored])[0].cpu().numpy()
        share = accuracy(self.truth, clusters, old=()).all
        assert share is not None
        return _Outcome(share, silhouette(self.points, ended.centres))


def silhouette(points: Points, centres: Tensor) -> float:
    """Mean over rows of 1 − a/b, with a and b the distances to the nearest and the second nearest centre."""
    state = State.at(points, centres[None])
    a, b = ((score[0] + points.norms).clamp_min_(0).sqrt_() for score in (state.upper, state.lower))
    parts = torch.where(b > 0, 1 - a / b, 0)
    total = points.shards.sum(torch.stack([parts.sum(dtype=points.wide), points.mean.new_tensor(float(points.count))]))
    return float(total[0] / total[1])


def _half(classes: NDArray[np.int64], fold: int, seed: int) -> NDArray[np.int64]:
    """The classes that a fold hides; an odd fold hides what the even one before it shows."""
    order = np.random.RandomState([seed, fold // 2]).permutation(classes)
    size = max(1, round(HIDDEN * len(classes)))
    return order[:size] if fold % 2 == 0 else order[-size:]
