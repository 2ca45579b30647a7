"""Sums and counts of the rows of each cluster, in the wide type, so that the order of rows does not matter."""

from dataclasses import dataclass
from itertools import chain
from typing import Self

import torch
from torch import Tensor

from sortal.clustering.points import Points


def add_rows(sums: Tensor, place: Tensor, rows: Tensor, sign: int = 1) -> None:
    """Add (1) or subtract (−1) rows (r, d) at their places (r,) among sums (s, d)."""
    if sums.device.type == "cpu":  # there index_add_ handles every row on its own, several times more slowly
        at = torch.stack([place, torch.arange(len(rows))])
        signs, shape = rows.new_full((len(rows),), float(sign)), (len(sums), len(rows))
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # or the product warns, from torch 2.11 on
            sums.addmm_(torch.sparse_coo_tensor(at, signs, shape, is_coalesced=True), rows)
    else:
        sums.index_add_(0, place, rows, alpha=sign)


@dataclass(frozen=True)
class LabelledSums:
    """Sums and counts of the labelled rows at the first c centres, over all processes."""

    sums: Tensor  # (c, d) of uncentred rows, in the wide type
    counts: Tensor  # (c,)

    @classmethod
    def of(cls, x: Tensor, labels: Tensor, c: int, points: Points) -> Self:
        """Sum up the rows of x whose labels (n,) are 0..c−1."""
        sums = points.mean.new_zeros(c, x.shape[1])
        known = (labels >= 0).nonzero()[:, 0]
        for some in points.pieces(known, 3 * x.shape[1]):
            add_rows(sums, labels[some], x[some].to(points.wide))
        counts = torch.bincount(labels[known], minlength=c).to(points.wide)
        return cls(points.processes.sum(sums), points.processes.sum(counts))

    @property
    def means(self) -> Tensor:
        return self.sums / self.counts[:, None]


@dataclass(frozen=True)
class ClusterSums:
    """Sums and counts of the rows at each centre of g restarts, labelled rows included, over all processes."""

    sums: Tensor  # (g, k, d) of uncentred rows
    counts: Tensor  # (g, k)

    @classmethod
    def of(cls, points: Points, fixed: LabelledSums, assigned: Tensor, k: int) -> Self:
        """Sum up all rows at the centres they are assigned to, (g, m)."""
        g, d = len(assigned), points.x.shape[1]
        sums, counts = points.mean.new_zeros(g, k, d), points.mean.new_zeros(g, k)
        flat = assigned + k * torch.arange(g, device=assigned.device)[:, None]
        for part, rows in points.chunks(3 * d):
            wide = rows.to(points.wide)
            for r in range(g):
                add_rows(sums.view(g * k, d), flat[r, part], wide)
            counts.view(-1).index_add_(0, flat[:, part].flatten(), counts.new_ones(g * len(rows)))
        sums, counts = points.processes.sum(sums), points.processes.sum(counts)
        sums[:, : len(fixed.counts)] += fixed.sums
        counts[:, : len(fixed.counts)] += fixed.counts
        return cls(sums, counts)

    def __getitem__(self, restarts: Tensor) -> "ClusterSums":
        return ClusterSums(self.sums[restarts], self.counts[restarts])

    def spread(self, points: Points, restart: int, centres: Tensor) -> float:
        """Compute Σ ‖x − c‖² − ‖x − mean‖² over all rows of a restart with centres (k, d), from the sums alone."""
        wide, counts = centres.to(points.wide), self.counts[restart]
        inner = self.sums[restart] - counts[:, None] * points.mean
        return float((counts * wide.square().sum(1)).sum() - 2 * (wide * inner).sum())

    def move(self, points: Points, pairs: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Move rows, given as (restart, row) pairs (p, 2), from their centres `before` to those `after`.

        Return the mask of centres that gained or lost a row in any process, (g, k).
        """
        shards, (g, k, d) = points.processes, self.sums.shape
        touched = torch.zeros(g * k, dtype=torch.int32, device=self.sums.device)
        sums, counts = self.sums, self.counts
        if shards.size > 1:  # sum only the differences over processes
            sums, counts = torch.zeros_like(sums), torch.zeros_like(counts)
        for some in points.pieces(pairs, 3 * d):
            run, row = some[:, 0], some[:, 1]
            rows, ones = points.take(row).to(points.wide), counts.new_ones(len(some))
            places = run * k + torch.stack([before[run, row], after[run, row]])  # (2, p)
            for place, sign in zip(places, (-1, 1), strict=True):
                add_rows(sums.view(g * k, d), place, rows, sign)
                counts.view(-1).index_add_(0, place, ones, alpha=sign)
            touched.index_fill_(0, places.flatten(), 1)
        if shards.size > 1:
            self.sums.add_(shards.sum(sums))
            self.counts.add_(shards.sum(counts))
        return shards.sum(touched).view(g, k) > 0

    def refill(self, points: Points, restart: int, centres: Tensor, assigned: Tensor) -> Tensor:
        """Assign to each empty centre of a restart the row farthest from its own centre, unless that would empty it.

        Update `assigned` (m,) and return the rows of this process that moved; the caller must `move` them.
        """
        shards, counts = points.processes, self.counts[restart]
        empty = (counts == 0).nonzero()[:, 0].tolist()
        place = centres + points.mean.to(centres.dtype)
        distance = points.norms.new_empty(points.count)
        for part, rows in points.chunks(points.x.shape[1]):
            distance[part] = (rows - place[assigned[part]]).square_().sum(1)
        distance[distance <= points.copies] = 0
        far = distance.topk(min(points.count, len(empty) + len(counts))).indices
        mine = zip(distance[far].tolist(), far.tolist(), assigned[far].tolist(), strict=True)
        offers = chain(*shards.gather_objects([(value, shards.rank, row, donor) for value, row, donor in mine]))
        left, moved = counts.tolist(), []
        for value, rank, row, donor in sorted(offers, key=lambda offer: -offer[0]):
            if not empty or value == 0:
                break
            if left[donor] > 1:
                left[donor] -= 1
                target = empty.pop(0)
                if rank == shards.rank:
                    assigned[row] = target
                    moved.append(row)
        return torch.tensor(moved, dtype=torch.int64, device=assigned.device)
