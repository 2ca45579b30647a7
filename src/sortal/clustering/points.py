"""The rows to cluster, and their scores against centres, computed in pieces of bounded size.

Centres are relative to the mean of the data, so that a common offset costs little precision. The *score* of row x at
centre c is ‖x − c‖² − ‖x − mean‖²: it orders centres like the distance, and one matrix product computes it.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sortal.system.distributed import Peers

# Elements of one temporary array, by device.
BUDGET = defaultdict(lambda: 1 << 24, {"cpu": 1 << 22, "cuda": 1 << 27, "mps": 1 << 25})


def slices(n: int, width: int, budget: int) -> Iterator[slice]:
    """Yield consecutive pieces of n rows, small enough for a (piece, width) array."""
    step = max(1, budget // max(1, width))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


class Points:
    """The unlabelled rows of `x` (all rows when `free` is None), with their mean and norms over all processes."""

    def __init__(
        self,
        x: Tensor,
        free: Tensor | None = None,
        *,
        mean: Tensor | None = None,
        processes: Peers | None = None,
        budget: int | None = None,
    ) -> None:
        self.processes = processes or Peers()
        self.budget = budget or BUDGET[x.device.type]
        self.wide = torch.float32 if x.device.type == "mps" else torch.float64  # the type of sums
        self.count = x.shape[0] if free is None else free.shape[0]
        self.mean = self._mean(x) if mean is None else mean.to(self.wide)  # (d,) the origin of centres
        if free is not None and self.count * x.shape[1] <= self.budget:
            x, free = x.index_select(0, free), None  # small enough to copy
        self.x = x  # (n, d)
        self.free = free  # (m,) indices of the unlabelled rows in x; None for all
        self.norms = x.new_empty(self.count)  # (m,) squared distance of each row to the mean
        self.lengths = x.new_empty(self.count)  # (m,) distance of each row to the origin
        near = self.mean.to(x.dtype)
        for part, rows in self.chunks(x.shape[1]):
            self.norms[part] = (rows - near).square_().sum(1)
            self.lengths[part] = torch.linalg.vector_norm(rows, dim=1)
        self.radii = self.norms.sqrt()  # (m,) distance of each row to the mean
        # Relative error of a product of d terms, generously, and error of a score per length of the centre, (m,).
        self.digits = (8 + 2 * x.shape[1] ** 0.5) * torch.finfo(x.dtype).eps
        self.rounding = self.digits * (self.lengths + near.square().sum().sqrt())
        self.copies = self.rounding * self.radii  # (m,) a row with a smaller squared distance may equal the centre

    def _mean(self, x: Tensor) -> Tensor:
        """Compute the mean of all rows, labelled ones included, over all processes."""
        total = torch.zeros(x.shape[1] + 1, dtype=self.wide, device=x.device)
        for part in slices(x.shape[0], 3 * x.shape[1], self.budget):
            rows = x[part].to(self.wide)
            total[:-1] += rows.new_ones(len(rows)) @ rows  # several times faster than a sum over columns
        total[-1] = x.shape[0]
        total = self.processes.sum(total)
        return total[:-1] / total[-1]

    def chunks(self, width: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield consecutive pieces of the rows, small enough for a (piece, width) array."""
        for part in slices(self.count, width + (0 if self.free is None else self.x.shape[1]), self.budget):
            yield part, self.x[part] if self.free is None else self.x.index_select(0, self.free[part])

    def pieces(self, index: Tensor, width: int) -> Iterator[Tensor]:
        """Yield consecutive pieces of an index, small enough for a (piece, width) array."""
        for part in slices(len(index), width, self.budget):
            yield index[part]

    def take(self, index: Tensor) -> Tensor:
        """Copy the rows at `index` (...) as (..., d)."""
        flat = index.flatten()
        rows = self.x.index_select(0, flat if self.free is None else self.free[flat])
        return rows.view(*index.shape, self.x.shape[1])

    def bias(self, centres: Tensor) -> Tensor:
        """Compute the part of a score that depends on the centre alone: (..., d) of any type -> (...)."""
        return torch.add(centres, self.mean, alpha=2).mul_(centres).sum(-1).to(self.x.dtype)  # in the wide type

    def slack(self, lengths: Tensor, rows: slice = slice(None)) -> Tensor:
        """Bound the rounding error of the scores of some rows at centres of these lengths: (g, k) -> (g, r)."""
        longest = lengths.amax(1, keepdim=True)
        return self.rounding[rows] * (longest + self.radii[rows]) + self.digits * longest.square()

    def variance(self) -> float:
        """Compute the mean over features of the unlabelled rows' squared deviation from `mean`."""
        return self.averages(self.norms[None])[0] / self.x.shape[1]

    def averages(self, values: Tensor) -> list[float]:
        """Compute the means of values (g, m), one per unlabelled row, over all processes; 0 without rows."""
        sums = torch.cat([values.sum(1, dtype=self.wide), self.mean.new_tensor([float(self.count)])])
        sums = self.processes.sum(sums)
        return (sums[:-1] / sums[-1].clamp_min(1)).tolist()


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute without gradients, autocast or TF32, whatever the caller has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False), torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def scores(bias: Tensor, centres: Tensor, rows: Tensor) -> Tensor:
    """Compute the scores of rows at centres: (c,), (c, d), (r, d) -> (c, r)."""
    return torch.addmm(bias[:, None], -2 * centres, rows.T)  # exact; with alpha=-2 it is half as fast on aarch64


def best_two(table: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Find the best centre, its score and the second best score, over dim -2 of a (..., c, r) score table.

    Ties go to the centre in `keep` (..., r) if given, else to the first.
    """
    best, chosen = table.min(-2)
    if keep is not None:
        stay = table.gather(-2, keep.unsqueeze(-2)).squeeze(-2) <= best
        chosen = torch.where(stay, keep, chosen)
    place = chosen.unsqueeze(-2)
    second = table.scatter_(-2, place, torch.inf).amin(-2)
    table.scatter_(-2, place, best.unsqueeze(-2))  # restore it
    return chosen, best, second


def nearest(
    table: Tensor, keep: Tensor | None, slack: Tensor, centres: Tensor, rows: Tensor, points: Points
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the `best_two` of a (g, c, r) score table of centres (g, c, d) and rows (g, r, d), unaffected by rounding.

    Scores that differ by no more than `slack` (g, r) are recomputed in the wide type, so that the result depends
    neither on the shape of the matrix product nor on the number of threads.
    """
    chosen, best, second = best_two(table)
    tied = (second - best <= slack).nonzero()
    if not len(tied):
        return chosen, best, second
    run, place = tied[:, 0], tied[:, 1]
    close = table[run, :, place].to(points.wide)  # (t, c)
    for some in points.pieces((close <= (best + slack)[run, place][:, None]).nonzero(), 8 * points.x.shape[1]):
        pair, centre = some[:, 0], some[:, 1]
        c = centres[run[pair], centre].to(points.wide)
        x = rows[run[pair], place[pair]].to(points.wide)
        close[pair, centre] = (c * (c + 2 * (points.mean - x))).sum(1)
    exact = best_two(close.T.contiguous(), None if keep is None else keep[run, place])
    for found, better in zip((chosen, best, second), exact, strict=True):
        found[run, place] = better.to(found.dtype)
    return chosen, best, second
