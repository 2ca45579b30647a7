"""SelEx (Rastegar et al., ECCV 2024): contrast by a hierarchy of clusters, which are found again before every epoch.

With a curvature, it is Hyp-SelEx (Liu, He and Han, CVPR 2025).
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from sortal.config.rivals import SelfExpertise
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch, ImageTable
from sortal.learning.heads import ProjectionHead, output_index
from sortal.learning.losses import contrastive
from sortal.learning.methods.method import Method, Problem

FREE_ITERATIONS = 100  # of k-means, at most, after those with a cap
HIERARCHY_SALT = 0x5E1E  # separates these draws from other uses of the same seed


class Selex(Method):
    """A projection head, and for every level of a hierarchy the cluster of each image and how far it reaches.

    Supervised losses draw views of a cluster together, on fewer dimensions the coarser the clusters are. In the
    unsupervised loss, a view is drawn to those of its image, or rather to any that are far away, so that it is told
    apart from its neighbours.
    """

    config: SelfExpertise
    version = 2
    known: Tensor
    clusters: Tensor  # (levels, m), finest first
    reach: Tensor  # (levels, m), distance from the centre of its cluster to the nearest other one

    def __init__(self, backbone: Backbone, config: SelfExpertise, problem: Problem) -> None:
        super().__init__(backbone)
        c, width, self.seed = config, backbone.spec.width, problem.training.seed
        self.config, self.sizes = c, halvings(len(problem.known), problem.k - len(problem.known))
        self.head = ProjectionHead(width, hidden=c.hidden, bottleneck=c.bottleneck, seed=self.seed)
        self.register_buffer("known", torch.tensor(problem.known, dtype=torch.int64))
        self.register_buffer("clusters", torch.zeros(len(self.sizes), 0, dtype=torch.int64), persistent=False)
        self.register_buffer("reach", torch.zeros(len(self.sizes), 0), persistent=False)

    def prepare(self, labels: Tensor) -> None:
        if len(labels) != self.reach.shape[1]:
            self.clusters = self.clusters.new_full((len(self.sizes), len(labels)), -1)
            self.reach = self.reach.new_zeros(len(self.sizes), len(labels))

    def start_epoch(self, epoch: int, images: ImageTable) -> None:
        x, random = images.features(), np.random.default_rng([HIERARCHY_SALT, epoch, self.seed])
        found = hierarchy(x, output_index(images.labels, self.known), self.sizes, self.config.capped, random)
        for level, each in enumerate(found):
            self.clusters[level].copy_(each.of)
            self.reach[level].copy_(gaps(each.centres)[each.of])

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the projection and the unit features, concatenated to (n, bottleneck + d).

        In hyperbolic space, the projection has not yet its length.
        """
        features = self.backbone.tail(inputs)
        projected = self.head.mlp(features).float() if self.config.curvature else self.head(features)
        return torch.cat([projected, nnf.normalize(features.float(), dim=1)], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, projected = self.config, batch.outputs[:, : self.config.bottleneck]
        flat = self._losses(batch, projected, cosines)
        if not c.curvature:
            return flat
        rows = on_ball(projected, c.curvature, c.radius)
        curved = self._losses(batch, rows, partial(nearness, curvature=c.curvature))
        share = c.curved * batch.progress
        return {name: value.lerp(curved[name], share.to(value)) for name, value in flat.items()}

    def _losses(self, batch: Batch, rows: Tensor, similarity: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        c = self.config
        contrast = partial(contrastive, temperature=c.supervised_temperature, similarity=similarity)
        supervised = {"supervised": contrast(rows, batch.labels)}
        if self.clusters.shape[1]:
            for level, of in enumerate(self.clusters):
                part = rows[:, : max(c.bottleneck >> (level + 1), 1)]
                supervised[f"level_{level}"] = 0.5 ** (level + 1) * contrast(part, of[batch.images])
        unsupervised = self._unsupervised(similarity(rows), batch.outputs[:, c.bottleneck :].detach(), batch.images)
        weight = c.supervised_weight / 2
        return {
            "unsupervised": (1 - c.supervised_weight) * unsupervised,
            **{name: weight * value for name, value in supervised.items()},
        }

    def _unsupervised(self, similarities: Tensor, features: Tensor, images: Tensor) -> Tensor:
        """Compute the mean cross-entropy of each view's similarities to all others and its target."""
        other = ~torch.eye(len(images), dtype=torch.bool, device=images.device)
        same = (images[:, None] == images) & other
        distances = torch.cdist(features, features)
        far = torch.zeros_like(distances)
        for level in range(len(self.reach) if self.reach.shape[1] else 0):
            far += 0.5**level * (distances > self.reach[level, images])
        far = far.masked_fill(~other, 0)
        own, total = same.to(far.dtype) / same.sum(1, keepdim=True), far.sum(1, keepdim=True)
        away = torch.where(total > 0, far / total, own)
        target = (1 - self.config.smoothing) * own + self.config.smoothing * away
        scores = similarities / self.config.temperature
        log_all = scores.masked_fill(~other, torch.finfo(scores.dtype).min).logsumexp(1)
        return (log_all - (target * scores).sum(1)).mean()


def cosines(rows: Tensor) -> Tensor:
    """Return the cosines (n, n) of rows (n, d)."""
    unit = nnf.normalize(rows, dim=1)
    return unit @ unit.T


def on_ball(rows: Tensor, curvature: float, radius: float) -> Tensor:
    """Shorten rows (n, d) to a radius, and map them to the Poincaré ball by the exponential map at its centre."""
    lengths = rows.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).eps)
    return rows / lengths * (sqrt(curvature) * lengths.clamp(max=radius)).tanh() / sqrt(curvature)


def nearness(rows: Tensor, curvature: float) -> Tensor:
    """Return minus the hyperbolic distances (n, n) of rows (n, d) of the Poincaré ball.

    They are arcosh(1 + 2s²) / √c, as 2 arsinh(s) / √c, whose gradient is finite where rows are equal.
    """
    room = (1 - curvature * rows.square().sum(1)).sqrt()
    chords = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return -2 / sqrt(curvature) * (sqrt(curvature) * chords / (room[:, None] * room)).asinh()


class Level(NamedTuple):
    """Clusters of rows (n,), and the centres (k, d); the first are the known classes, or groups of them."""

    of: Tensor
    centres: Tensor


def halvings(known: int, new: int) -> list[tuple[int, int]]:
    """Return the numbers of groups of known and of new clusters at each level, halved until one known is left."""
    found = [(known, new)]
    while found[-1][0] > 1:
        known, new = found[-1]
        found.append((-(-known // 2), -(-new // 2)))
    return found


def hierarchy(
    x: Tensor, ids: Tensor, sizes: list[tuple[int, int]], capped: int, random: np.random.Generator
) -> list[Level]:
    """Cluster rows (n, d) with ids (n,) of their classes, −1 for none; then group the known and the new clusters."""
    levels = [kmeans(x, ids, sum(sizes[0]), capped, random)]
    for (known, _), (fewer, fewer_new) in pairwise(sizes):
        below = levels[-1]
        group = torch.zeros(len(below.centres), dtype=torch.int64, device=x.device)
        for part, first, count in ((slice(None, known), 0, fewer), (slice(known, None), fewer, fewer_new)):
            rows = below.centres[part]
            group[part] = first + kmeans(rows, torch.full_like(group[part], -1), count, capped, random).of
        of = group[below.of]
        levels.append(Level(of, means(x, of, below.centres.new_zeros(fewer + fewer_new, x.shape[1]))))
    return levels


def kmeans(x: Tensor, ids: Tensor, k: int, capped: int, random: np.random.Generator) -> Level:
    """Cluster rows (n, d) by k-means; those with an id (n,) from 0 on stay in that cluster.

    In the first iterations no cluster may have more than ⌈n/k⌉ rows, except for those that stay.
    """
    free, of = ids < 0, ids.clone()
    if not len(x) or not k:
        return Level(of, x.new_zeros(k, x.shape[1]))
    centres = _started(x, ids, k, random)
    room = (-(-len(x) // k) - torch.bincount(ids[~free], minlength=k)).clamp(min=0)
    for iteration in range(capped + FREE_ITERATIONS):
        distances, before = torch.cdist(x[free], centres), of.clone()
        of[free] = _within(distances, room) if iteration < capped else distances.argmin(1)
        centres = means(x, of, centres)
        if iteration >= capped and torch.equal(of, before):
            break
    return Level(of, centres)


def _started(x: Tensor, ids: Tensor, k: int, random: np.random.Generator) -> Tensor:
    """Return the means of the classes, and further centres by k-means++ on the other rows."""
    centres = means(x, ids, x.new_zeros(int(ids.max()) + 1, x.shape[1]))
    rows = x[ids < 0] if (ids < 0).any() else x
    nearest = torch.cdist(rows, centres).amin(1) if len(centres) else torch.ones_like(rows[:, 0])
    while len(centres) < k:
        weights = nearest.double().cpu().numpy() ** 2
        drawn = rows[random.choice(len(rows), p=weights / weights.sum() if weights.any() else None)][None]
        distances = torch.cdist(rows, drawn)[:, 0]
        nearest = torch.minimum(nearest, distances) if len(centres) else distances
        centres = torch.cat([centres, drawn])
    return centres


def _within(distances: Tensor, room: Tensor) -> Tensor:
    """Assign rows to the nearest cluster that has room (k,), given their distances (n, k); nearer rows go first."""
    of, room = torch.full_like(distances[:, 0], -1, dtype=torch.int64), room.clone()
    left, clusters = (torch.arange(length, device=of.device) for length in distances.shape)
    while len(left):
        nearest = distances[left].masked_fill(room == 0, torch.inf).min(1)
        order = nearest.values.argsort(stable=True)
        order = order[nearest.indices[order].argsort(stable=True)]
        chosen = nearest.indices[order]
        rank = torch.arange(len(chosen), device=of.device) - torch.searchsorted(chosen, clusters)[chosen]
        fits = rank < room[chosen]
        of[left[order[fits]]] = chosen[fits]
        room -= torch.bincount(chosen[fits], minlength=len(room))
        left = left[order[~fits]]
    return of


def means(x: Tensor, of: Tensor, otherwise: Tensor) -> Tensor:
    """Return the mean of the rows (n, d) of each cluster (n,), −1 for none; (k, d), as `otherwise` where empty."""
    members = (of[:, None] == torch.arange(len(otherwise), device=of.device)).to(x.dtype)
    counts = members.sum(0)[:, None]
    return torch.where(counts > 0, members.T @ x / counts.clamp(min=1), otherwise)


def gaps(centres: Tensor) -> Tensor:
    """Return the distance (k,) of each centre (k, d) to the nearest other one; 0 if it is the only one."""
    distances = torch.cdist(centres, centres)
    return distances.fill_diagonal_(torch.inf).amin(1).nan_to_num(posinf=0.0)


def cluster(
    x: NDArray[np.float32], labels: NDArray[np.int64], k: int, settings: SelfExpertise, seed: int
) -> NDArray[np.int64]:
    """Cluster features (n, d) by the k-means of training; labelled rows (n,) stay with their classes."""
    known, ids = np.unique(labels[labels >= 0]), np.full(len(labels), -1)
    ids[labels >= 0] = np.searchsorted(known, labels[labels >= 0])
    random = np.random.default_rng([HIERARCHY_SALT, seed])
    return kmeans(torch.from_numpy(x), torch.from_numpy(ids), k, settings.capped, random).of.numpy()
