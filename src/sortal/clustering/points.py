"""The rows being clustered, and their scores against centres, computed in pieces of bounded size.

Everywhere below, centres are kept relative to the mean of the data, so that a common offset costs few digits, and the
*score* of row x for centre c is ‖x − c‖² − ‖x − mean‖²: the squared distance without the part that is the same for
every centre. One matrix product gives it, and comparing scores is comparing distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sortal.shards import Shards

BUDGET = {"cpu": 1 << 22, "cuda": 1 << 27, "mps": 1 << 25}  # elements of one temporary array, by device


def slices(n: int, width: int, device: torch.device) -> Iterator[slice]:
    """Consecutive pieces of n rows, small enough for a (piece, width) array."""
    step = max(1, BUDGET.get(device.type, 1 << 24) // max(1, width))
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
        shards: Shards | None = None,
        budget: int | None = None,
    ) -> None:
        self.shards = shards or Shards()
        self.budget = budget or BUDGET.get(x.device.type, 1 << 24)
        self.wide = torch.float32 if x.device.type == "mps" else torch.float64  # the type sums are kept in
        self.count = x.shape[0] if free is None else free.shape[0]
        self.mean = self._mean(x) if mean is None else mean.to(self.wide)  # (d,) what centres are relative to
        self._twice_mean = 2 * self.mean
        if free is not None and self.count * x.shape[1] <= self.budget:
            x, free = x.index_select(0, free), None  # small enough to have the rows side by side
        self.x = x  # (n, d)
        self.free = free  # (m,) where the rows that may move are in x; None: everywhere
        self.norms = x.new_empty(self.count)  # (m,) squared distance of each row to the mean
        self.lengths = x.new_empty(self.count)  # (m,) distance of each row to the origin
        near = self.mean.to(x.dtype)
        for part, rows in self.chunks(x.shape[1]):
            self.norms[part] = (rows - near).square_().sum(1)
            self.lengths[part] = rows.square().sum(1).sqrt()
        self.radii = self.norms.sqrt()  # (m,) distance of each row to the mean
        self.digits = (8 + 2 * x.shape[1] ** 0.5) * torch.finfo(x.dtype).eps  # of a product of d terms, generously
        self.rounding = self.digits * (
            self.lengths + near.square().sum().sqrt()
        )  # (m,) error of a score, per length of centre
        self.copies = self.rounding * self.radii  # (m,) a row whose squared distance is less may lie on the centre

    def _mean(self, x: Tensor) -> Tensor:
        """Of all rows, labelled ones included, of all processes."""
        total = torch.zeros(x.shape[1] + 1, dtype=self.wide, device=x.device)
        step = self._step(x.shape[1])
        for start in range(0, x.shape[0], step):
            total[:-1] += x[start : start + step].sum(0, dtype=self.wide)
        total[-1] = x.shape[0]
        total = self.shards.sum(total)
        return total[:-1] / total[-1]

    def _step(self, width: int) -> int:
        return max(1, self.budget // max(1, width))

    def chunks(self, width: int) -> Iterator[tuple[slice, Tensor]]:
        """Consecutive pieces of the rows, small enough for a (piece, width) array."""
        step = self._step(width + (0 if self.free is None else self.x.shape[1]))
        for start in range(0, self.count, step):
            part = slice(start, min(start + step, self.count))
            yield part, self.x[part] if self.free is None else self.x.index_select(0, self.free[part])

    def pieces(self, index: Tensor, width: int) -> Iterator[Tensor]:
        """Consecutive pieces of an index, small enough for a (piece, width) array."""
        step = self._step(width)
        for start in range(0, len(index), step):
            yield index[start : start + step]

    def take(self, index: Tensor) -> Tensor:
        """Copies of the rows at `index`, any shape: (..., d)."""
        flat = index.flatten()
        rows = self.x.index_select(0, flat if self.free is None else self.free[flat])
        return rows.view(*index.shape, self.x.shape[1])

    def bias(self, centres: Tensor) -> Tensor:
        """The part of a score that depends on the centre alone: (..., d), in any type, -> (...)."""
        wide = centres.to(self.wide)
        return ((wide + self._twice_mean) * wide).sum(-1).to(self.x.dtype)

    def slack(self, lengths: Tensor, rows: slice = slice(None)) -> Tensor:
        """How far rounding may have moved the scores of some rows at centres of these lengths: (g, k) -> (g, r)."""
        longest = lengths.amax(1, keepdim=True)
        slack: Tensor = self.rounding[rows] * (longest + self.radii[rows]) + self.digits * longest.square()
        return slack

    def variance(self) -> float:
        """Mean over features of the squared deviation from `mean`, of the rows that may move."""
        total = self.shards.sum(torch.stack([self.norms.sum(dtype=self.wide), self.mean.new_tensor(float(self.count))]))
        return float(total[0] / total[1].clamp_min(1) / self.x.shape[1])


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Matrix products in the precision of their type, whatever the caller set for its training."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False), torch.no_grad():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def scores(bias: Tensor, centres: Tensor, rows: Tensor) -> Tensor:
    """(c,), (c, d), (r, d) -> (c, r)."""
    return torch.addmm(bias[:, None], centres, rows.T, alpha=-2)


def best_two(table: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Best centre, its score and the runner-up's, over dim -2 of a (..., c, r) score table.

    Ties go to the centre in `keep` (..., r) where given, else to the first.
    """
    best, chosen = table.min(-2)
    if keep is not None:
        stay = table.gather(-2, keep.unsqueeze(-2)).squeeze(-2) <= best
        chosen = torch.where(stay, keep, chosen)
    place = chosen.unsqueeze(-2)
    second = table.scatter_(-2, place, torch.inf).amin(-2)
    table.scatter_(-2, place, best.unsqueeze(-2))  # as it was
    return chosen, best, second


def nearest(
    table: Tensor, keep: Tensor | None, slack: Tensor, centres: Tensor, rows: Tensor, points: Points
) -> tuple[Tensor, Tensor, Tensor]:
    """`best_two` of a (g, c, r) score table of centres (g, c, d) and rows (g, r, d), right to the last digit.

    Where two centres are closer in score than rounding (`slack`, (g, r)) can tell, their scores are computed again in
    the wide type: what wins depends neither on the shape of the matrix product nor on the number of threads.
    """
    chosen, best, second = best_two(table)
    tied = (second - best <= slack).nonzero()
    if not len(tied):
        return chosen, best, second
    run, place = tied[:, 0], tied[:, 1]
    few = table[run, :, place].to(points.wide)  # (t, c)
    for some in points.pieces((few <= (best + slack)[run, place][:, None]).nonzero(), 8 * points.x.shape[1]):
        pair, centre = some[:, 0], some[:, 1]
        c = centres[run[pair], centre].to(points.wide)
        x = rows[run[pair], place[pair]].to(points.wide)
        few[pair, centre] = (c * (c + 2 * (points.mean - x))).sum(1)
    exact = best_two(few.T.contiguous(), None if keep is None else keep[run, place])
    for found, better in zip((chosen, best, second), exact, strict=True):
        found[run, place] = better.to(found.dtype)
    return chosen, best, second
