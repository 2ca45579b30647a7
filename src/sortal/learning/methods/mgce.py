"""MGCE's graph clustering (after DCCL, CVPR 2023, and MGCE): communities of a neighbour graph teach, and predict."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from sortal import metrics
from sortal.config.rivals import Communities
from sortal.config.rules import AUTO
from sortal.errors import InputError
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch, ImageTable
from sortal.learning.heads import Classifier, ProjectionHead, output_index
from sortal.learning.losses import classification, contrastive
from sortal.learning.methods.method import Method, Problem

TRIED_NEIGHBOURS = (5, 10, 15, 20, 30)  # if their number is not given
RESOLUTIONS = tuple(2.0 ** (power / 2) for power in range(-8, 16))  # of communities, for a given k
EDGES_AT_ONCE = 2**26  # similarities


class Mgce(Method):
    """GCD's contrastive losses, a classifier of the known classes, and a memory of the communities of the epoch.

    The weight of the classification of images into their communities rises; the number of communities is k.
    """

    config: Communities
    version = 1
    known: Tensor
    community: Tensor  # (m,), −1 for none
    memory: Tensor  # (most communities, d)
    count: Tensor  # (), of communities
    nearest: Tensor  # (), neighbours in the graph; 0 before the first epoch

    def __init__(self, backbone: Backbone, config: Communities, problem: Problem) -> None:
        super().__init__(backbone)
        c, width, self.seed = config, backbone.spec.width, problem.training.seed
        self.config = c
        self.head = ProjectionHead(width, hidden=c.hidden, bottleneck=c.bottleneck, seed=self.seed)
        self.categories = Classifier(width, len(problem.known), bias=False, seed=self.seed)
        self.register_buffer("known", torch.tensor(problem.known, dtype=torch.int64))
        self.register_buffer("community", torch.zeros(0, dtype=torch.int64), persistent=False)
        self.register_buffer("memory", torch.zeros(0, width), persistent=False)
        for name in ("count", "nearest"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64), persistent=False)

    def prepare(self, labels: Tensor) -> None:
        if len(labels) != len(self.community):
            self.community = self.community.new_full((len(labels),), -1)
            self.memory = self.memory.new_zeros(len(labels) // self.config.fewest, self.backbone.spec.width)

    def start_epoch(self, epoch: int, images: ImageTable) -> None:
        x, labels = images.features(), output_index(images.labels, self.known).cpu().numpy()
        rows = x.cpu().float().numpy()
        if epoch == 0:
            self.nearest.fill_(neighbours_of(rows, labels, self.config, self.seed))
        adjacency = graph(rows, labels, int(self.nearest), self.config.similarity)
        found = torch.from_numpy(detected(adjacency, self.config.fewest, self.seed)).to(x.device)
        k = int(found.max()) + 1
        self.community.copy_(found)
        self.count.fill_(k)
        members = (found[:, None] == torch.arange(k, device=x.device)).to(x.dtype)
        self.memory[:k] = nnf.normalize(members.T @ x, dim=1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the projection, the cosines to known classes and the unit features, concatenated."""
        features = self.backbone.tail(inputs)
        parts = self.head(features), self.categories(features, cosine=True), nnf.normalize(features.float(), dim=1)
        return torch.cat(parts, dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, weight = self.config, self.config.supervised_weight
        projected, cosines, features = batch.outputs.tensor_split([c.bottleneck, c.bottleneck + len(self.known)], dim=1)
        logits = cosines / c.student_temperature
        found = {
            "classification": weight * classification(logits, output_index(batch.labels, self.known)),
            "unsupervised": (1 - weight) * contrastive(projected, batch.images, temperature=c.temperature),
            "supervised": weight * contrastive(projected, batch.labels, temperature=c.supervised_temperature),
        }
        if len(self.memory):
            risen = (batch.progress / c.ramp).clamp(max=1)
            missing = torch.arange(len(self.memory), device=self.count.device) >= self.count
            scores = (features @ self.memory.T / c.community_temperature).masked_fill(missing, -1e4)
            of_community = classification(scores, self.community[batch.images])
            found["communities"] = (c.first_weight + (c.last_weight - c.first_weight) * risen) * of_community
        return found

    def after_step(self, batch: Batch) -> None:
        """Move the memory of the communities in a batch towards the mean of their views."""
        if not len(self.memory):
            return
        features = batch.outputs[:, -self.memory.shape[1] :].detach()
        members = (self.community[batch.images][:, None] == torch.arange(len(self.memory), device=features.device)).to(
            features.dtype
        )
        moved = self.config.momentum * self.memory + (1 - self.config.momentum) * (
            members.T @ features / members.sum(0)[:, None].clamp(min=1)
        )
        self.memory.copy_(torch.where(members.any(0)[:, None], nnf.normalize(moved, dim=1), self.memory))


def neighbours_of(x: NDArray[np.float32], labels: NDArray[np.int64], settings: Communities, seed: int) -> int:
    """Return the given number of neighbours, or the one whose communities agree best with labelled images (n,).

    The agreement is their accuracy times 1 − |classes − communities| / communities, counted among labelled images.
    """
    known = labels >= 0
    if settings.neighbours != AUTO:
        return int(settings.neighbours)

    def agreement(count: int) -> float:
        found = detected(graph(x, np.full_like(labels, -1), count, settings.similarity), 1, seed)[known]
        classes, k = len(np.unique(labels[known])), len(np.unique(found))
        score = metrics.accuracy(labels[known], found, old=np.unique(labels[known])).all or 0.0
        return score * (1 - abs(classes - k) / k)

    return max(TRIED_NEIGHBOURS, key=agreement) if known.any() else TRIED_NEIGHBOURS[1]


def graph(x: NDArray[np.float32], labels: NDArray[np.int64], count: int, least: float) -> Any:
    """Return the graph of unit rows (n, d) and their nearest of at least a cosine: a sparse (n, n) matrix of cosines.

    A neighbour of the same class counts as much as the nearest. Edges have the larger of the weights at their ends.
    """
    from scipy.sparse import csr_matrix

    rows, size, parts = torch.from_numpy(x), max(EDGES_AT_ONCE // len(x), 1), []
    for start in range(0, len(rows), size):
        alike = rows[start : start + size] @ rows.T
        own = torch.arange(len(alike))
        alike[own, own + start] = -torch.inf  # not itself
        parts.append(alike.topk(min(count, len(x) - 1), dim=1))
    cosines, ends = (torch.cat(each).numpy() for each in zip(*parts, strict=True))
    same = (labels[:, None] == labels[ends]) & (labels[:, None] >= 0)
    weights = np.where(same, cosines[:, :1], cosines)
    starts, near = np.nonzero((cosines >= least) & (weights > 0))
    found = csr_matrix((weights[starts, near], (starts, ends[starts, near])), shape=(len(x), len(x)))
    return found.maximum(found.T)


def detected(adjacency: Any, fewest: int, seed: int, resolution: float = 1.0) -> NDArray[np.int64]:
    """Return the community (n,) of each node of a graph by Leiden's algorithm, −1 in those of fewer than so many."""
    leiden = _library()
    found = np.arange(adjacency.shape[0])
    if adjacency.nnz:
        found = leiden(resolution=resolution, random_state=seed).fit_predict(adjacency)
    _, of, sizes = np.unique(found, return_inverse=True, return_counts=True)
    return np.where(sizes >= fewest, np.cumsum(sizes >= fewest) - 1, -1)[of]


def _library() -> Any:
    try:
        from sknetwork.clustering import Leiden
    except ImportError as error:
        raise InputError(f"The method mgce needs scikit-network: pip install 'sortal[graph]' ({error}).") from None
    return Leiden


def cluster(
    x: NDArray[np.float32], labels: NDArray[np.int64], k: int | None, settings: Communities, seed: int
) -> NDArray[np.int64]:
    """Return the communities of features (n, d); with k, at the resolution that gives about so many."""
    if len(x) == 1:
        return np.zeros(1, dtype=np.int64)
    adjacency = graph(x, labels, neighbours_of(x, labels, settings, seed), settings.similarity)
    tried = [detected(adjacency, settings.fewest, seed, each) for each in (RESOLUTIONS if k is not None else (1.0,))]
    found = min(tried, key=lambda each: abs(int(each.max()) + 1 - (k or 0)))
    return found if found.max() >= 0 else np.zeros_like(found)
