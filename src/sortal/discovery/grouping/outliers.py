"""Images that fit no category: far from the images most similar to them, by the standard of their collection.

The gap of an image is its mean distance to its nearest few others. It is compared with the gaps of all images, and with
those of the images around it, as in a class of varied images all gaps are large. The mean of both, as logarithms in
units of their usual spread, is how far apart the image is. More images are compared than make a gap, so that a few of
one kind are apart, too.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sortal.discovery.grouping.neighbours import MOST_SIMILARITIES, nearest
from sortal.runs.confidence import Features, Floats
from sortal.system.distributed import Processes

GAP_NEIGHBOURS, GAPS_AROUND = 5, 20  # nearest images that make a gap, and whose gaps it is compared with
FEWEST_IMAGES = GAPS_AROUND + 2  # of a collection that says what is usual
OTHER_ABOVE = 2.2  # how far apart an image is that fits no category; of those that do, 1 to 4 in 100 are, too
MOST_OVERALL = 3.0  # that the comparison with all images counts for at most, or a class of varied images would be apart
SMALLEST_GAP, SMALLEST_SPREAD = 1e-3, 0.02  # distance between images, or else they are copies; spread of logarithms
TO_DEVIATION = 1.4826  # median absolute deviations that are a standard deviation of normal values


class Collection(NamedTuple):
    """What is usual in a collection of rows of length 1."""

    rows: Tensor  # (m, d)
    gap: Tensor  # (m,) of each row
    centre: Tensor  # (2, 1) medians of gaps, and of gaps less those of neighbours
    spread: Tensor  # (2, 1) their spread

    def compared(self, gaps: Tensor) -> Tensor:
        """Return how far apart (n,) rows of these gaps (2, n) are."""
        overall, around = (gaps - self.centre) / self.spread
        return (overall.clamp(max=MOST_OVERALL) + around) / 2

    def gaps_of(self, rows: Tensor) -> Tensor:
        """Return the gaps (2, n) of other rows (n, d): their own, and less those of neighbours; a copy is none."""
        near = (rows @ self.rows.T).topk(GAPS_AROUND + 1, dim=1).indices
        away = _distances(rows, self.rows[near[:, : GAP_NEIGHBOURS + 1]])
        copied = away[:, :1] < SMALLEST_GAP
        near, away = (torch.where(copied, each[:, 1:], each[:, :-1]) for each in (near, away))
        own = _gaps(away)
        return torch.stack([own, own - _middle(self.gap[near])])


@torch.no_grad()
def apartness(x: Features, processes: Processes, *, reference: Features | Collection | None = None) -> Floats:
    """Return how far apart (n,) images are from similar ones; 0 is usual, 1 a usual deviation more.

    The features (n, d), of length 1, are compared with each other, or with those of a `reference` collection (m, d), in
    which a copy of an image does not count. All processes compute the former together, and each the latter alone.
    """
    if isinstance(reference, Collection):
        collection = reference
    else:
        known = _tensor(x if reference is None else reference, processes)
        if len(known) < FEWEST_IMAGES:
            return np.zeros(len(x))
        collection, gaps = collected(known, processes if reference is None else None)
    if reference is not None:
        parts = _tensor(x, processes).split(max(MOST_SIMILARITIES // len(collection.rows), 1))
        gaps = torch.cat([collection.rows.new_zeros(2, 0), *map(collection.gaps_of, parts)], dim=1)
    apart: Floats = collection.compared(gaps).cpu().numpy().astype(np.float64)
    return apart.round(6)


@torch.no_grad()
def collected(known: Tensor, processes: Processes | None = None) -> tuple[Collection, Tensor]:
    """Return what is usual among rows (m, d), which `processes` compute together, and their gaps (2, m)."""
    near = known.new_zeros((len(known), GAPS_AROUND), dtype=torch.int64)
    gap = known.new_zeros(len(known))
    for rows, others in nearest(known, GAPS_AROUND, share=(processes.rank, processes.size) if processes else (0, 1)):
        near[rows], gap[rows] = others, _gaps(_distances(known[rows], known[others[:, :GAP_NEIGHBOURS]]))
    if processes is not None:
        processes.sum_in_place([near])
        processes.sum_in_place([gap])
    gaps = torch.stack([gap, gap - _middle(gap[near])])
    centre = gaps.median(1, keepdim=True).values
    spread = TO_DEVIATION * (gaps - centre).abs().median(1, keepdim=True).values
    return Collection(known, gap, centre, spread.clamp(min=SMALLEST_SPREAD)), gaps


def _tensor(x: Features, processes: Processes) -> Tensor:
    return torch.from_numpy(np.require(x, requirements="W")).to(processes.device)


def _distances(rows: Tensor, near: Tensor) -> Tensor:
    """Return the distances (b, count) of rows (b, d) to those near them, (b, count, d)."""
    return torch.linalg.vector_norm(rows[:, None] - near, dim=2)


def _gaps(distances: Tensor) -> Tensor:
    """Return the logarithm (b,) of mean distances."""
    return distances.mean(1).clamp(min=SMALLEST_GAP).log()


def _middle(gaps: Tensor) -> Tensor:
    """Return the median of each row, which a few unusual neighbours hardly change."""
    return gaps.sort(1).values[:, (gaps.shape[1] - 1) // 2]  # which ONNX knows, unlike the median
