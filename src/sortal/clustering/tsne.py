"""t-SNE: rows placed in the plane so that neighbours stay neighbours, on a CPU or a GPU.

The loss is that of van der Maaten and Hinton (2008): the Kullback-Leibler divergence of similarities in the plane,
q ∝ 1 / (1 + d²), from those of the rows, p, which are sparse here. Its gradient has two parts. Attraction is a sum
over the edges of the neighbour graph. Repulsion is half the slope of the potential Σⱼ 1 / (1 + d²), a convolution that
is computed on a grid by FFT as in particle-mesh methods: each point is spread over 4 × 4 nodes by a cubic B-spline, and
the potential and its slope are read off with the same spline (Essmann et al. 1995; compare Linderman et al. 2019).

Exaggeration falls geometrically while the points move, and the learning rate is n over it (Belkina et al. 2019). That
takes a third of the steps that two phases take. Positions are (2, n), so that each coordinate is contiguous.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal.clustering.points import BUDGET, full_precision, slices
from sortal.errors import InputError
from sortal.runs.projection import MAP_POINTS, Mapper
from sortal.system.device import choose_device

ON_GPU = 100_000  # images on a map that is made on a GPU
FEWEST_ROWS = 10  # different rows that t-SNE needs
DIMENSIONS = 50  # principal components in which neighbours are searched
SPARE_DIMENSIONS, SUBSPACE_ROUNDS = 14, 3  # of the subspace iteration that finds these components
GRAPH_NEIGHBOURS, PERPLEXITY = 30, 15.0
HALVINGS = 40  # of the interval in which the width of a row's neighbourhood is searched
STEPS, ROWS_OF_STEPS = 150, 5000  # steps for up to so many rows; for more, as many times as the map is wider
EXAGGERATION, EXAGGERATED = 8.0, 0.6  # at the start, and the share of the steps until it is 1
MOMENTUM, LONGEST_STEP = 0.8, 5.0  # of a step, and how far it may move a point
GAIN_MORE, GAIN_LESS, GAIN_LEAST = 0.2, 0.8, 0.01  # as in the first implementation (van der Maaten)
START_DEVIATION, JITTER = 1.0, 1e-2  # standard deviation of the first positions, and of the noise that parts equal rows
SPACING = 0.6  # of the nodes of the grid; the kernel is about 1 wide
SPLINE = 4  # nodes that a point is spread over, in each direction
FIXED = 2.0**40  # whole numbers of this fraction are added, as sums of them do not depend on the order


@dataclass(frozen=True)
class Graph:
    """Symmetric similarities of rows that sum to 1, sorted by the first row of each pair."""

    first: Tensor  # (m,)
    second: Tensor  # (m,)
    weight: Tensor  # (m,)
    offsets: Tensor  # (n + 1,) where the pairs of each row start and end


def mapper(device: str = "auto") -> Mapper:
    """Return the function that makes maps on a device, and how many images it can place: more on a GPU."""
    on_gpu = choose_device(device, None).type == "cuda"
    return Mapper(partial(place, device=device), points=ON_GPU if on_gpu else MAP_POINTS)


def place(features: NDArray[np.float32], seed: int, *, device: str = "auto") -> NDArray[np.float64]:
    """Return positions (n, 2) by t-SNE, or the first two principal components if fewer than FEWEST_ROWS rows differ."""
    if not np.isfinite(features).all():
        raise InputError("features must be finite to be placed on a map, got NaN or infinity.")
    chosen = choose_device(device, features)
    if chosen.type == "mps":
        chosen = torch.device("cpu")
    with full_precision(chosen):
        x = principal(torch.from_numpy(np.array(features, dtype=np.float32)).to(chosen))
        if x.shape[1] < 2 or not differ(features):
            xy = torch.nn.functional.pad(x, (0, 2))[:, :2]
        else:
            start = START_DEVIATION * x[:, :2] / x[:, 0].std()
            noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(seed))
            graph = graph_of(x)
            with one_thread(chosen.type == "cpu" and len(x) <= ROWS_OF_STEPS):
                xy = embed(graph, (start + JITTER * noise.to(chosen)).T).T
        return xy.double().cpu().numpy()


@contextmanager
def one_thread(wanted: bool) -> Iterator[None]:
    """Compute in one thread if wanted: for small arrays, waiting for others costs more than they contribute."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def differ(features: NDArray[np.float32]) -> bool:
    """Tell whether at least FEWEST_ROWS rows are different."""
    seen: set[bytes] = set()
    for row in features:
        seen.add(row.tobytes())
        if len(seen) >= FEWEST_ROWS:
            return True
    return False


def principal(x: Tensor) -> Tensor:
    """Return the first principal components (n, ≤ DIMENSIONS) in which rows (n, d) differ, the largest first.

    Their space is found by subspace iteration, unless it is small enough to be the space of the rows.
    """
    if not len(x):
        return x[:, :0]
    x = (x.double() - x.double().mean(0)).to(x.dtype)
    basis = torch.eye(x.shape[1], dtype=x.dtype)  # (d, d) or (d, DIMENSIONS + SPARE_DIMENSIONS), on the CPU
    if x.shape[1] > DIMENSIONS + SPARE_DIMENSIONS:
        shape = (x.shape[1], DIMENSIONS + SPARE_DIMENSIONS)
        basis = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
        for _ in range(SUBSPACE_ROUNDS):
            basis = torch.linalg.qr((x.T @ (x @ basis.to(x.device))).cpu())[0]
    reduced = x @ basis.to(x.device)
    wide = reduced.double()  # rounding in float32 would look like variance of more than 1e-9
    variance, axes = torch.linalg.eigh((wide.T @ wide).cpu())
    axes = axes[:, variance > variance[-1].clamp_min(1e-12) * 1e-9].flip(1)[:, :DIMENSIONS]
    # The sign of an axis is arbitrary: the largest entry is made positive, so that the same rows give the same map.
    whole = basis.double() @ axes
    sign = whole.gather(0, whole.abs().argmax(0, keepdim=True)).sign()
    return reduced @ (axes * sign).to(x)


def nearest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the squared distances (n, k) of each row to its nearest others, and these, in ascending order."""
    norms, squared, rows = x.square().sum(1), [], []
    for part in slices(len(x), len(x), BUDGET[x.device.type]):
        table = torch.addmm(norms[None], x[part], x.T, alpha=-2)
        table.diagonal(part.start).fill_(-torch.inf)  # a row is not its own neighbour, even if it has copies
        values, indices = table.topk(k + 1, largest=False)
        squared.append(values[:, 1:] + norms[part, None])
        rows.append(indices[:, 1:])
    return torch.cat(squared).clamp_min_(0), torch.cat(rows)


def similarities(squared: Tensor, perplexity: float) -> Tensor:
    """Return Gaussian weights (n, k) of neighbours, which sum to 1 and whose entropy is the log of the perplexity."""
    x = squared - squared[:, :1]
    x = x / x.mean(1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    low, high = (torch.full_like(x[:, :1], end) for end in (-20.0, 20.0))  # of the log of the precision
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        weights = torch.softmax(-x * middle.exp(), 1)
        flat = torch.special.entr(weights).sum(1, keepdim=True) > math.log(perplexity)
        low, high = torch.where(flat, middle, low), torch.where(flat, high, middle)
    return torch.softmax(-x * low.exp(), 1)


def graph_of(x: Tensor) -> Graph:
    """Return the similarities of rows (n, d) to their nearest neighbours, averaged over both directions."""
    n, k = len(x), min(GRAPH_NEIGHBOURS, len(x) - 1)
    squared, rows = nearest(x, k)
    weights = similarities(squared, min(PERPLEXITY, k / 2)).flatten() / (2 * n)
    first, second = torch.arange(n, device=x.device).repeat_interleave(k), rows.flatten()
    pairs, place = torch.cat([first * n + second, second * n + first]).unique(return_inverse=True)
    weight = weights.new_zeros(len(pairs)).index_add_(0, place, weights.repeat(2))  # at most two numbers per pair
    offsets = torch.searchsorted(pairs, torch.arange(n + 1, device=x.device) * n)
    return Graph(pairs // n, pairs % n, weight, offsets)


def embed(graph: Graph, y: Tensor) -> Tensor:
    """Minimise the loss from the first positions (2, n); return the last ones."""
    y = y - y.mean(1, keepdim=True)
    step, gain, grid = torch.zeros_like(y), torch.ones_like(y), Grid((0, 0), y)
    steps = round(STEPS * max(1.0, y.shape[1] / ROWS_OF_STEPS) ** 0.5)
    for number in range(steps):
        grid = grid.around(y)
        exaggeration = max(1.0, EXAGGERATION ** (1 - number / (EXAGGERATED * steps)))
        slope = gradient(graph, grid, y, exaggeration)
        gain = torch.where(step * slope < 0, gain + GAIN_MORE, gain * GAIN_LESS).clamp_min_(GAIN_LEAST)
        step = MOMENTUM * step - (y.shape[1] / exaggeration) * gain * slope
        step *= LONGEST_STEP / torch.linalg.vector_norm(step, dim=0).clamp_min_(LONGEST_STEP)
        y = y + step
        y = y - y.mean(1, keepdim=True)
    return y


def gradient(graph: Graph, grid: "Grid", y: Tensor, exaggeration: float = 1.0) -> Tensor:
    """Compute a quarter of the gradient (2, n) of the loss, with the similarities of rows multiplied by a factor."""
    apart = [each.index_select(0, graph.first) - each.index_select(0, graph.second) for each in y]  # each (m,)
    pull = exaggeration * graph.weight / (1 + apart[0].square() + apart[1].square())
    sums = [torch.segment_reduce(pull * each, "sum", offsets=graph.offsets, unsafe=True) for each in apart]
    potential, slope = grid.potential(y)
    return torch.stack(sums) + slope / (2 * (potential.sum() - y.shape[1]))


class Grid:
    """Nodes around the origin on which Σⱼ 1 / (1 + ‖y − yⱼ‖²) is computed, twice as many as needed in each direction.

    The other half keeps the convolution from wrapping around.
    """

    def __init__(self, sizes: tuple[int, int], like: Tensor, *, spacing: float = SPACING) -> None:
        self.sizes, self.spacing = sizes, spacing
        self.inner = (sizes[0] // 2, sizes[1] // 2)
        if not all(sizes):
            return
        at, wave = zip(*(_frequencies(size, like.device) for size in sizes), strict=True)
        kernel = 1 / (1 + spacing**2 * (at[0][:, None] ** 2 + at[1] ** 2))
        # A spline through all nodes: its coefficients are the values divided by the spectrum of the B-spline.
        damping = [((2 + each.cos()) / 3).square() for each in wave]
        spectrum = torch.fft.rfft2(kernel).real / (damping[0][:, None] * damping[1][: sizes[1] // 2 + 1])
        self.spectrum = spectrum.to(like.dtype)
        near = torch.arange(-1, SPLINE - 1, device=like.device)
        self.near = near[:, None] * self.inner[1] + near  # (4, 4) the nodes of a point, relative to one of them
        self.origin = like.new_tensor([[(each - 1) / 2] for each in self.inner])

    def around(self, y: Tensor) -> "Grid":
        """Return this grid, or one that fits positions (2, n) better."""
        needed = [2 * (2 * math.ceil(far / self.spacing) + SPLINE + 1) for far in y.abs().amax(1).tolist()]
        sizes = (_convenient(needed[0]), _convenient(needed[1]))
        return self if sizes == self.sizes else Grid(sizes, y, spacing=self.spacing)

    def potential(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the potential (n,) and its slope (2, n) at positions, each of which is a source of it."""
        at = y / self.spacing + self.origin
        corner = at.floor()
        weights, slopes = _spline(at - corner)
        corner = corner.long()
        nodes = (corner[0] * self.inner[1] + corner[1] + self.near[:, :, None]).flatten()  # of (4, 4, n)
        spread = (weights[:, None, 0] * (FIXED * weights[:, 1])).flatten().long()
        size = self.inner[0] * self.inner[1]
        density = torch.zeros(size, dtype=torch.int64, device=y.device).index_add_(0, nodes, spread)
        density = (density / FIXED).to(y.dtype).view(self.inner)
        waves = torch.fft.rfft2(density, s=self.sizes) * self.spectrum
        field = torch.fft.irfft2(waves, s=self.sizes)[: self.inner[0], : self.inner[1]]
        field = field.flatten().index_select(0, nodes).view(SPLINE, SPLINE, -1)
        along = (field * weights[:, 1]).sum(1)  # (4, n)
        across = (field * slopes[:, 1]).sum(1)
        slope = torch.stack([(along * slopes[:, 0]).sum(0), (across * weights[:, 0]).sum(0)]) / self.spacing
        return (along * weights[:, 0]).sum(0), slope


def _frequencies(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the signed numbers of the nodes of a circle, and its angular frequencies."""
    share = torch.fft.fftfreq(size, dtype=torch.float64, device=device)
    return share * size, 2 * math.pi * share


def _convenient(least: int) -> int:
    """Return a power of two, or three times one, that is at least this: few sizes, of which each has a fast FFT."""
    power = 1 << max(4, (least - 1).bit_length())
    return power * 3 // 4 if power * 3 // 4 >= least else power


def _spline(offset: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cubic B-splines of the four nearest nodes (4, 2, n) at offsets from 0 to 1, and their slopes."""
    rest = 1 - offset
    t, s = offset.square(), rest.square()
    inner = (4 + t * (3 * offset - 6), 4 + s * (3 * rest - 6))
    slopes = (-s, offset * (3 * offset - 4), rest * (4 - 3 * rest), t)
    return torch.stack([s * rest, *inner, t * offset]) / 6, torch.stack(slopes) / 2
