"""Clustering problems at the paper's scales, and the peers that solve them: Sortal, plain torch (twice), libraries.

Plain k-means cannot use labels, so each peer says which problem it solves: `semi` (labelled rows stay in their class)
or plain (all rows are free). All stop when no row changes its cluster, or after MAX_ITER iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal import SemiSupervisedKMeans

MAX_ITER = 200
BLOCK = 1 << 22  # elements of one distance table of `blocked`
LEAST = 8  # images of the rarest class

# The problem


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size and difficulty of a synthetic problem."""

    n: int
    k: int
    old: int  # classes 0..old−1; half of their images, drawn at random, are labelled
    separation: float  # spread of the class means over the spread within a class
    d: int = 768
    tail: float = 0.0  # class sizes fall as rank^−tail
    k_max: int = 1000  # for the estimate of k


# With these separations plain k-means is about as accurate as on real features (ACC 0.5–0.75). More images per class
# reveal a weaker structure, so the CIFAR-100-like classes lie closer; the many small Herbarium-like ones need as much
# as the CUB-like. At 1.0 all is easy and k-means takes few iterations; at 0.5 nothing can be found.
SCALES = {
    "cub": Scale(n=6_000, k=200, old=100, separation=0.8),
    "cifar100": Scale(n=50_000, k=100, old=80, separation=0.65),
    "herbarium": Scale(n=34_300, k=683, old=341, separation=0.8, tail=0.5),
    "small": Scale(n=2_000, k=100, old=50, separation=0.8),
    "tiny": Scale(n=300, k=6, old=3, d=16, separation=1.0, tail=0.3, k_max=12),
}


@dataclass(frozen=True)
class Problem:
    """Features to cluster, their labels and the truth; rows are in random order."""

    name: str
    x: Tensor  # (n, d) float32, L2-normalised
    labels: NDArray[np.int64]  # (n,) −1 is unlabelled
    truth: NDArray[np.int64]  # (n,)
    k: int
    old: int


def make_problem(name: str, scale: Scale, *, seed: int, device: str = "cpu") -> Problem:
    """Draw Gaussian classes around Gaussian means, both with a power-law spectrum, off the origin, L2-normalised."""
    g = torch.Generator().manual_seed(seed)
    truth = _classes(scale, g)
    means = scale.separation * torch.randn(scale.k, scale.d, generator=g) + torch.randn(scale.d, generator=g)
    x = torch.randn(scale.n, scale.d, generator=g)
    spectrum = torch.arange(1, scale.d + 1) ** -0.5
    for part in pieces(scale.n, 4096):
        x[part] = torch.nn.functional.normalize((x[part] + means[truth[part]]) * spectrum)
    classes = truth.numpy()
    labels = np.full(scale.n, -1, dtype=np.int64)
    candidates = np.flatnonzero(classes < scale.old)
    kept = candidates[np.random.RandomState(seed).choice(len(candidates), len(candidates) // 2, replace=False)]
    labels[kept] = classes[kept]
    return Problem(name, x.to(device), labels, classes, scale.k, scale.old)


def pieces(n: int, step: int) -> Iterator[slice]:
    """Yield consecutive slices of 0..n−1."""
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def _classes(scale: Scale, g: torch.Generator) -> Tensor:
    """Draw the class of each row, (n,)."""
    weights = torch.arange(1, scale.k + 1, dtype=torch.float64) ** -scale.tail
    sizes = LEAST + (weights / weights.sum() * (scale.n - LEAST * scale.k)).long()
    sizes[: scale.n - int(sizes.sum())] += 1
    sizes = sizes[torch.randperm(scale.k, generator=g)]
    return torch.repeat_interleave(torch.arange(scale.k), sizes)[torch.randperm(scale.n, generator=g)]


@dataclass(frozen=True)
class Solution:
    """The best restart of a peer."""

    labels: NDArray[np.int64]  # (n,)
    centres: Tensor  # (k, d)
    iterations: int
    seconds: float | None = None  # if the peer timed a part of its work and extrapolated the rest
    note: str = ""


def inertia(x: Tensor, solution: Solution) -> float:
    """Sum the squared distances of all rows to their centres, in float64, for every peer alike."""
    centres, labels = solution.centres.to(x.device).double(), torch.from_numpy(solution.labels).to(x.device)
    return sum(float((x[part].double() - centres[labels[part]]).square().sum()) for part in pieces(len(x), 4096))


# Libraries


def ours(problem: Problem, n_init: int, seed: int, *, semi: bool, candidates: int | None = None) -> Solution:
    """Run Sortal; one candidate per centre is the paper's seeding."""
    model = SemiSupervisedKMeans(
        problem.k, n_init=n_init, n_candidates=candidates, max_iter=MAX_ITER, random_state=seed
    )
    model.fit(problem.x, problem.labels if semi else None)
    return Solution(model.labels_, torch.from_numpy(model.cluster_centers_), model.n_iter_)


def scikit_learn(problem: Problem, n_init: int, seed: int, *, algorithm: str) -> Solution:
    """Run scikit-learn's KMeans."""
    from sklearn.cluster import KMeans

    model = KMeans(
        problem.k,
        init="k-means++",
        n_init=n_init,
        max_iter=MAX_ITER,
        tol=0,
        algorithm=algorithm,
        random_state=seed,
    ).fit(problem.x.numpy())
    return Solution(model.labels_.astype(np.int64), torch.from_numpy(model.cluster_centers_), model.n_iter_)


def faiss_kmeans(problem: Problem, n_init: int, seed: int, *, niter: int) -> Solution:
    """Run faiss's Kmeans on all rows, seeded with random rows. Its iterations are the mean of its restarts."""
    import faiss

    x = problem.x.numpy()
    model = faiss.Kmeans(
        x.shape[1],
        problem.k,
        niter=niter,
        nredo=n_init,
        seed=seed,
        max_points_per_centroid=len(x),
        min_points_per_centroid=1,
    )
    model.train(x)
    assert model.obj is not None
    _, nearest = model.index.search(x, 1)
    return Solution(nearest[:, 0].astype(np.int64), torch.from_numpy(model.centroids), round(len(model.obj) / n_init))


# Plain torch


@dataclass(frozen=True)
class Split:
    """The unlabelled rows, and the share of the labelled ones in the first c centres."""

    rows: Tensor  # (m, d)
    where: Tensor  # (m,) their indices among all rows
    known: Tensor  # (n,) class, −1 for unlabelled rows
    sums: Tensor  # (c, d)
    counts: Tensor  # (c,)
    norms: Tensor  # (m,) squared

    @classmethod
    def of(cls, problem: Problem, *, semi: bool) -> Split:
        x = problem.x
        known = np.full(len(x), -1, dtype=np.int64)
        labelled = problem.labels >= 0 if semi else np.zeros(len(x), dtype=np.bool_)
        classes, known[labelled] = np.unique(problem.labels[labelled], return_inverse=True)
        numbers = torch.from_numpy(known).to(x.device)
        fixed = (numbers >= 0).nonzero()[:, 0]
        where = (numbers < 0).nonzero()[:, 0]
        rows = x[where] if semi else x
        sums = x.new_zeros(len(classes), x.shape[1]).index_add_(0, numbers[fixed], x[fixed])
        counts = torch.bincount(numbers[fixed], minlength=len(classes)).to(x.dtype)
        return cls(rows, where, numbers, sums, counts, rows.square().sum(1))

    def means(self, assigned: Tensor, before: Tensor) -> Tensor:
        """Return the means of the members (k, d), labelled rows included; an empty centre does not move."""
        sums, counts = torch.zeros_like(before), before.new_zeros(len(before))
        sums[: len(self.sums)], counts[: len(self.sums)] = self.sums, self.counts
        sums.index_add_(0, assigned, self.rows)
        counts += torch.bincount(assigned, minlength=len(before))
        return torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], before)

    def solution(self, run: Run, seconds: float | None = None, note: str = "") -> Solution:
        labels = self.known.clone()
        labels[self.where] = run.assigned
        return Solution(labels.cpu().numpy(), run.centres, run.iterations, seconds, note)


class Run(NamedTuple):
    """A finished restart."""

    inertia: float  # less the squared norms of the labelled rows, the same for every restart
    centres: Tensor  # (k, d)
    assigned: Tensor  # (m,)
    iterations: int


def nearest(split: Split, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared distance to the nearest centre (m,) and its index: ‖x‖² − 2xc + ‖c‖², in blocks of rows."""
    bias = centres.square().sum(1)
    distance, which = torch.empty_like(split.norms), torch.empty(len(split.rows), dtype=torch.int64, device=bias.device)
    double = -2 * centres.T  # on aarch64, twice as fast as alpha=-2
    for part in pieces(len(split.rows), max(1, BLOCK // len(centres))):
        torch.min(torch.addmm(bias, split.rows[part], double), 1, out=(distance[part], which[part]))
    return distance.add_(split.norms).clamp_min_(0), which


def generator(split: Split, seed: int) -> torch.Generator:
    return torch.Generator(split.rows.device).manual_seed(seed)


def draw(weights: Tensor, g: torch.Generator) -> Tensor:
    """Draw a row (1,) in proportion to its weight."""
    return torch.multinomial(weights, 1, generator=g)


def plus_plus(split: Split, k: int, g: torch.Generator, running: Tensor | None) -> Tensor:
    """Return k-means++ seeds (k, d), with a `running` nearest distance that starts at the labelled means."""
    have = len(split.sums)
    centres = split.rows.new_empty(k, split.rows.shape[1])
    centres[:have] = split.sums / split.counts[:, None]
    for j in range(have, k):
        centres[j] = split.rows[draw(torch.ones_like(split.norms) if running is None else running, g)[0]]
        distance, _ = nearest(split, centres[j : j + 1])
        running = distance if running is None else torch.minimum(running, distance)
    return centres


Assign = Callable[[Split, Tensor], tuple[Tensor, Tensor]]


def lloyd(split: Split, centres: Tensor, assign: Assign) -> Run:
    """Assign and average until no row changes its centre."""
    distance, assigned = assign(split, centres)
    iterations, changed = 0, True
    while changed and iterations < MAX_ITER:
        iterations += 1
        before = assigned
        centres = split.means(before, centres)
        distance, assigned = assign(split, centres)
        changed = not torch.equal(before, assigned)
    own = centres[: len(split.sums)].double()
    pinned = (split.counts * own.square().sum(1)).sum() - 2 * (own * split.sums).sum()
    return Run(float(distance.sum(dtype=torch.float64) + pinned), centres, assigned, iterations)


def blocked(problem: Problem, n_init: int, seed: int) -> Solution:
    """Run (b): all distances by blocked matrix products in every iteration, one restart after the other."""
    split = Split.of(problem, semi=True)
    running, _ = nearest(split, split.sums / split.counts[:, None])  # the same for all restarts
    generators = (generator(split, seed + r) for r in range(n_init))
    runs = (lloyd(split, plus_plus(split, problem.k, g, running), nearest) for g in generators)
    return split.solution(min(runs, key=lambda run: run.inertia))


# The published algorithm, taken literally


def block_rows(split: Split, k: int) -> int:
    """Return how many rows of an (m, k, d) array and its square fit into 8 GB, or 60 % of the GPU's memory."""
    device = split.rows.device
    room = 0.6 * torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 8e9
    return max(1, int(room / 2 / (4 * k * split.rows.shape[1])))


def direct(split: Split, centres: Tensor) -> Tensor:
    """Return squared distances (m, k) from broadcast differences (m, k, d), in row blocks only where necessary."""
    blocks = pieces(len(split.rows), block_rows(split, len(centres)))
    return torch.cat([((split.rows[part, None] - centres[None]) ** 2).sum(-1) for part in blocks])


def direct_nearest(split: Split, centres: Tensor) -> tuple[Tensor, Tensor]:
    distance, which = direct(split, centres).min(1)
    return distance, which


class Stopwatch:
    """Equal pieces of work, some done `slow` and timed, the others `quick` with the same result."""

    def __init__(self, slow: Assign, quick: Assign, clocked: Iterable[int]) -> None:
        self.slow, self.quick, self.clocked = slow, quick, set(clocked)
        self.calls = 0
        self.times: list[float] = []

    def __call__(self, split: Split, centres: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        if self.calls - 1 not in self.clocked:
            return self.quick(split, centres)
        synchronise(split.rows.device)
        start = perf_counter()
        result = self.slow(split, centres)
        synchronise(split.rows.device)
        self.times.append(perf_counter() - start)
        return result

    @property
    def total(self) -> float:
        """Extrapolate the seconds of all calls."""
        return self.calls * sum(self.times) / len(self.times)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def published_start(split: Split, k: int, g: torch.Generator, distances: Assign) -> Tensor:
    """Return k-means++ seeds (k, d), computing all distances to all previous centres again for each draw."""
    centres = split.sums / split.counts[:, None]
    for j in range(len(centres), k):
        weights = distances(split, centres)[0] if j else torch.ones_like(split.norms)
        centres = torch.cat([centres, split.rows[draw(weights, g)]])
    return centres


def published(
    problem: Problem, n_init: int, seed: int, *, draws: int | None = None, iterations: int | None = None
) -> Solution:
    """Run (a): the algorithm as published, one restart after the other.

    Only `draws` of the draws of the seeding, spread evenly (their cost grows evenly), and the first `iterations`
    assignments are computed literally and clocked, and their time extrapolated; the rest comes from `nearest`, which
    gives the same clusters but for rounding. 0 is all of them; None is all of them on a GPU or where (m, k, d) fits,
    else 4 and 2.
    """
    split = Split.of(problem, semi=True)
    have, k = len(split.sums), problem.k
    fits = block_rows(split, k) >= len(split.rows)
    literal = fits or problem.x.is_cuda
    draws = (0 if literal else 4) if draws is None else draws
    iterations = (0 if literal else 2) if iterations is None else iterations
    drawn = np.linspace(0, k - have - 1, draws or k - have).round().astype(int).tolist()
    seeding = Stopwatch(direct_nearest, nearest, drawn)
    runs, assigning = [], []
    for r in range(n_init):
        seeding.calls = 0
        start = published_start(split, k, generator(split, seed + r), seeding)
        assigning.append(Stopwatch(direct_nearest, nearest, range(iterations or MAX_ITER + 1)))
        runs.append(lloyd(split, start, assigning[-1]))
    notes = [] if fits else ["(m, k, d) in row blocks"]
    seconds = None
    if draws or iterations:
        seconds = n_init * seeding.total + sum(watch.total for watch in assigning)
        notes.append(f"extrapolated from {draws or 'all'} of {k - have} draws, {iterations or 'all'} assignments")
    return split.solution(min(runs, key=lambda run: run.inertia), seconds, "; ".join(notes))


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A clustering implementation."""

    name: str
    group: str  # as in --peers
    solve: Callable[[Problem, int, int], Solution]
    semi: bool
    needs: str = "torch"  # a required module; only torch's peers run on a GPU
    most: int | None = None  # restarts at most


def all_peers(draws: int | None = None, iterations: int | None = None) -> list[Peer]:
    """Return all peers, Sortal first. `draws` and `iterations` are those of `published`."""
    sk, fa = "sklearn", "faiss"
    return [
        Peer(name="ours", group="ours", solve=partial(ours, semi=True), semi=True),
        Peer(name="ours, paper's starts", group="ours", solve=partial(ours, semi=True, candidates=1), semi=True),
        Peer(name="ours, plain", group="ours", solve=partial(ours, semi=False), semi=False),
        Peer(
            name="(a) published",
            group="a",
            solve=partial(published, draws=draws, iterations=iterations),
            semi=True,
        ),
        Peer(name="(b) blocked", group="b", solve=blocked, semi=True),
        Peer(name="(c) scikit-learn", group=sk, solve=partial(scikit_learn, algorithm="lloyd"), semi=False, needs=sk),
        Peer(
            name="(c) scikit-learn, elkan",
            group=sk,
            solve=partial(scikit_learn, algorithm="elkan"),
            semi=False,
            needs=sk,
            most=1,
        ),
        Peer(name="(d) faiss, 25 iterations", group=fa, solve=partial(faiss_kmeans, niter=25), semi=False, needs=fa),
        Peer(name="(d) faiss, 100 iterations", group=fa, solve=partial(faiss_kmeans, niter=100), semi=False, needs=fa),
    ]
