"""CMS (Choi, Kang and Cho, CVPR 2024): contrast between projections that were shifted towards their neighbours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from sortal import metrics
from sortal.config.rivals import MeanShift
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch, ImageTable
from sortal.learning.heads import ProjectionHead
from sortal.learning.losses import contrastive
from sortal.learning.methods.method import Method, Problem

SHIFTED_AT_ONCE = 2**26  # similarities of rows
WARD_ROWS = 15_000  # of a tree, whose memory grows with their square
WARD_CLUSTERS = 1000  # that a cut may have if k is not given


class Cms(Method):
    """(1 − λ) InfoNCE between shifted projections of all views + λ SupCon on the projections of labelled views.

    A projection is shifted towards the mean of its nearest ones in a memory of all images, which is renewed before
    every epoch.
    """

    config: MeanShift
    version = 2
    memory: Tensor  # (m, bottleneck)

    def __init__(self, backbone: Backbone, config: MeanShift, problem: Problem) -> None:
        super().__init__(backbone)
        c, seed = config, problem.training.seed
        self.config = c
        self.head = ProjectionHead(backbone.spec.width, hidden=c.hidden, bottleneck=c.bottleneck, seed=seed)
        self.register_buffer("memory", torch.zeros(0, c.bottleneck), persistent=False)

    def prepare(self, labels: Tensor) -> None:
        if len(labels) != len(self.memory):
            self.memory = self.memory.new_zeros(len(labels), self.config.bottleneck)

    def start_epoch(self, epoch: int, images: ImageTable) -> None:
        self.memory.copy_(images.features(self))

    def forward(self, inputs: Tensor) -> Tensor:
        projected: Tensor = self.head(self.backbone.tail(inputs))
        return projected

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, rows = self.config, batch.outputs
        moved = shifted(rows, self.memory, c)
        supervised = contrastive(rows, batch.labels, temperature=c.supervised_temperature)
        return {
            "unsupervised": (1 - c.supervised_weight) * contrastive(moved, batch.images, temperature=c.temperature),
            "supervised": c.supervised_weight * supervised,
        }


def shifted(rows: Tensor, memory: Tensor, settings: MeanShift) -> Tensor:
    """Shift unit rows (n, d) towards the mean of the nearest in a memory (m, d), the very nearest left out."""
    count = min(settings.neighbours, len(memory) - 1)
    if count < 1:
        return rows
    with torch.no_grad():
        near = (rows @ memory.T).topk(count + 1, dim=1).indices[:, 1:]
    return nnf.normalize((1 - settings.shift) * rows + settings.shift * memory[near].mean(1), dim=1)


def cluster(
    x: NDArray[np.float32], labels: NDArray[np.int64], k: int | None, settings: MeanShift, seed: int
) -> NDArray[np.int64]:
    """Shift all features (n, d) over and over and cut a Ward tree of them, while labelled images (n,) improve.

    Without k, the cut is where they are most accurate. Of more than `WARD_ROWS` rows only some are in the tree; the
    others get −1.
    """
    rows = torch.from_numpy(x)
    chosen = _sample(labels, seed)
    best, found, waited = -1.0, np.zeros(len(chosen), dtype=np.int64), 0
    while waited < settings.patience:
        blocks = rows.split(max(SHIFTED_AT_ONCE // len(rows), 1))
        rows = torch.cat([shifted(block, rows, settings) for block in blocks])
        score, cut = best_cut(rows[chosen].numpy(), labels[chosen], k)
        waited = 0 if score > best else waited + 1
        if score > best:
            best, found = score, cut
    clusters = np.full(len(x), -1)
    clusters[chosen] = found
    return clusters


def _sample(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Choose at most `WARD_ROWS` rows, labelled ones first."""
    if len(labels) <= WARD_ROWS:
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.sort(order[np.argsort(labels[order] < 0, kind="stable")][:WARD_ROWS])


def best_cut(x: NDArray[np.float32], labels: NDArray[np.int64], k: int | None) -> tuple[float, NDArray[np.int64]]:
    """Cut the Ward tree of rows (n, d) into k clusters, or where labelled ones are most accurate; return both.

    Of equally accurate cuts, as all are without labels, it is the one with the widest gap between two merges.
    """
    from scipy.cluster.hierarchy import linkage

    n, known = len(x), labels >= 0
    if n == 1:
        return 0.0, np.zeros(1, dtype=np.int64)
    tree = linkage(x, "ward")
    if k is None:
        gaps = np.diff(tree[:, 2], prepend=0.0)[::-1]  # those of 2, 3, … clusters
        scores = np.full(min(n, WARD_CLUSTERS) + 1, -1.0)
        for own, clusters, least, most in _labelled_cuts(tree, labels):
            scores[least : most + 1] = _accuracy(own, clusters)
        best = np.flatnonzero(scores == scores.max())
        k = int(max(best, key=lambda each: gaps[each - 2] if each > 1 else 0.0))
    cut = _cut(tree, min(max(k, 1), n))
    return _accuracy(labels[known], cut[known]), cut


def _labelled_cuts(
    tree: NDArray[Any], labels: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], int, int]]:
    """Yield the labels and clusters of labelled rows, (m,) each, and the fewest and most clusters of such cuts.

    The next of them tells other labelled rows apart. There are at most `WARD_CLUSTERS` clusters.
    """
    from scipy.cluster.hierarchy import leaves_list

    n, order = len(labels), leaves_list(tree)
    known = labels[order] >= 0
    own, children = labels[order][known], tree[:, :2].astype(np.int64)
    starts = np.zeros(2 * n - 1, dtype=np.int64)  # of the labelled leaves below each node, which are neighbours
    starts[order] = np.cumsum(known) - known
    counts = np.zeros_like(starts)
    counts[order] = known
    for node, pair in enumerate(children, start=n):
        starts[node], counts[node] = starts[pair].min(), counts[pair].sum()
    clusters, least = np.zeros(len(own), dtype=np.int64), 1
    for k, (one, other) in enumerate(reversed(children[-WARD_CLUSTERS + 1 :]), start=1):
        if counts[one] and counts[other]:
            yield own, clusters, least, k
            clusters[starts[other] : starts[other] + counts[other]] = k
            least = k + 1
    yield own, clusters, least, min(n, WARD_CLUSTERS)


def _accuracy(labels: NDArray[np.int64], clusters: NDArray[np.int64]) -> float:
    return metrics.accuracy(labels, clusters, old=np.unique(labels)).all or 0.0


def _cut(tree: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the clusters (n,) that are left after all merges of a tree but the last k − 1."""
    n = len(tree) + 1
    of = np.arange(n + n - k)
    for step in reversed(range(n - k)):  # from the root down: a node is in the cluster of the one it was merged into
        of[tree[step, :2].astype(np.int64)] = of[n + step]
    return np.unique(of[:n], return_inverse=True)[1]
