"""The nearest neighbours of unit rows: exact for some ten thousand rows, within cells of similar ones for more.

Comparing each row with every other takes a time that grows with the square of their number. More than `EXACT_ROWS`
rows are divided into about √n cells around centres, and each row is compared with those of the cells nearest to its
own, so that the time grows with n to the power of 1.5.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as nnf
from torch import Tensor

EXACT_ROWS = 2**16  # up to which every pair is compared
MOST_SIMILARITIES = 2**26  # computed at once
CELLS_PROBED = 8  # whose rows a row is compared with, those of its own cell included
FEWEST_COMPARED = 32  # rows that it is compared with for each neighbour that is wanted
MOST_COMPARED = 2**12  # rows of each cell that it is compared with: cells of many similar images are large
ROWS_PER_CELL, KMEANS_ROUNDS = 32, 5  # rows that place the centre of each cell, and rounds of k-means


def nearest(rows: Tensor, count: int, *, share: tuple[int, int] = (0, 1)) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield some of the unit rows (n, d) as numbers (b,), and those of their nearest other rows, (b, count).

    `share` is the number of this process and of all processes, each of which gets other rows.
    """
    rank, size = share
    if len(rows) <= EXACT_ROWS:
        everything = torch.arange(len(rows), device=rows.device)
        yield from _among(rows, everything[rank::size], everything, count)
        return
    centres = _centres(rows, round(len(rows) ** 0.5))
    cell = torch.cat([(part @ centres.T).argmax(1) for part in rows.split(max(MOST_SIMILARITIES // len(centres), 1))])
    sizes = torch.bincount(cell, minlength=len(centres))
    members = cell.argsort(stable=True).split(sizes.tolist())
    compared = [own[:: max(-(-len(own) // MOST_COMPARED), 1)] for own in members]
    order = (centres @ centres.T).fill_diagonal_(torch.inf).argsort(1, descending=True)
    sizes = torch.tensor([len(each) for each in compared], device=rows.device)
    enough = (sizes[order].cumsum(1) < FEWEST_COMPARED * count).sum(1) + 1  # cells that have so many rows together
    for own, near, needed in list(zip(members, order.tolist(), enough.tolist(), strict=True))[rank::size]:
        if len(own):
            others = torch.cat([compared[each] for each in near[: max(CELLS_PROBED, needed)]])
            yield from _among(rows, own, others, count)


def _among(rows: Tensor, some: Tensor, others: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of some rows, given by their numbers, and the nearest of the others."""
    among = rows if len(others) == len(rows) else rows[others]
    for part in some.split(max(MOST_SIMILARITIES // len(others), 1)):
        alike = rows[part] @ among.T
        alike[part[:, None] == others] = -torch.inf  # not itself
        yield part, others[alike.topk(count, dim=1).indices]


def _centres(rows: Tensor, count: int) -> Tensor:
    """Place centres (count, d) by a little k-means on a sample of the rows, always the same one."""
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: ROWS_PER_CELL * count]
    sample = rows[drawn.to(rows.device)]
    centres = sample[:count].clone()
    for _ in range(KMEANS_ROUNDS):
        own = torch.cat([(part @ centres.T).argmax(1) for part in sample.split(max(MOST_SIMILARITIES // count, 1))])
        sums = torch.zeros_like(centres).index_add_(0, own, sample)
        empty = torch.bincount(own, minlength=count) == 0
        centres = torch.where(empty[:, None], centres, nnf.normalize(sums, dim=1))
    return centres
