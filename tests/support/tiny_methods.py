"""Every training method in small, on any backbone, and made-up batches for their losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from sortal.config import (
    BUILT_IN,
    Contrast,
    Debiasing,
    Distillation,
    Losses,
    Ranks,
    Recipe,
    Reciprocity,
    Retention,
    Rounds,
    Swaps,
    Training,
)
from sortal.config.rivals import Communities, MeanShift, SelfExpertise
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Batch
from sortal.learning.heads import ProjectionHead
from sortal.learning.methods import Method, make

TRANSFORMED = ("rlcd",)  # methods that need a vision transformer
NAMES = tuple(sorted(name for name, of in BUILT_IN.items() if of.learner and name not in TRANSFORMED))
D = 3  # width of the projections in synthetic outputs
IN_SMALL: dict[str, Losses] = {
    "cms": MeanShift(neighbours=3, hidden=16, bottleneck=8),
    "debgcd": Debiasing(hidden=16, bottleneck=8, confidence=0.2),
    "gcd": Contrast(hidden=16, bottleneck=8),
    "legogcd": Retention(hidden=16, bottleneck=8, confidence=0.2),
    "mgce": Communities(neighbours=3, similarity=-1.0, fewest=2, hidden=16, bottleneck=8),
    "rankstats": Ranks(),
    "rlcd": Reciprocity(),
    "selex": SelfExpertise(smoothing=0.5, hidden=16, bottleneck=8),
    "simgcd": Distillation(hidden=16, bottleneck=8),
    "sortal": Rounds(hidden=16, bottleneck=8),
    "uno": Swaps(),
}


def convnet(*, trained: int = 1, seed: int = 0) -> Backbone:
    return load_backbone("convnet", weights="random", image_size=8, trained=trained, seed=seed)


def transformer(*, trained: int = 1, seed: int = 0) -> Backbone:
    return load_backbone("test_vit", weights="random", image_size=32, trained=trained, seed=seed)


def small(
    name: str,
    backbone: Backbone | None = None,
    *,
    k: int = 4,
    known: Sequence[int] = (0, 1),
    losses: Losses | None = None,
    batch_size: int = 4,
    seed: int = 0,
) -> Any:
    """A method as it is made for a run; by default UNO has a queue, as a batch is too small for k categories.

    A projection's outputs are of about the size of its inputs: steps are small, so that rounding stays small.
    """
    of_recipe: Any = name
    recipe = Recipe(
        method=of_recipe,
        training=Training(batch_size=batch_size, seed=seed),
        losses=losses or IN_SMALL[name],
        clustering="head" if BUILT_IN[name].classifies else "semi-supervised",
        estimate_on="raw",
    )
    if backbone is None:
        backbone = transformer() if name in TRANSFORMED else convnet()
    method = make(recipe, backbone, k=k, known=known)
    with torch.no_grad():
        for head in method.modules():
            for layer in head.mlp if isinstance(head, ProjectionHead) else ():
                if isinstance(layer, nn.Linear):
                    layer.weight.mul_(50 / layer.in_features**0.5)  # from a deviation of 0.02
    return method


@torch.no_grad()
def start_epoch(method: Method, features: Tensor, labels: Sequence[int], epoch: int = 0) -> None:
    """Prepare a method for images with these features (m, d) and labels, and start an epoch."""
    of_images = torch.tensor(labels)
    method.prepare(of_images)

    def computed(forward: Method | None = None) -> Tensor:
        return nnf.normalize(features if forward is None else forward.head(features), dim=1)

    table: Any = SimpleNamespace(labels=of_images, features=computed)
    method.start_epoch(epoch, table)


@contextmanager
def double_precision() -> Iterator[None]:
    """Compute in float64 also what is computed in float32, so that the order of sums does not matter to 1e-9.

    What is made within is in float64 from the start, such as networks and buffers.
    """
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def inputs_of(method: Method, views: int, *, seed: int = 0) -> Tensor:
    """What the trunk gives for images of noise, a row for each view."""
    size = method.backbone.spec.image_size
    return method.backbone.trunk(torch.randn(views, 3, size, size, generator=torch.Generator().manual_seed(seed)))


def batch_of(outputs: Tensor, labels: Sequence[int], progress: float = 0.0) -> Batch:
    """Two views of each image, first all first ones."""
    n = len(labels)
    assert len(outputs) == 2 * n
    return Batch(outputs, torch.arange(n).repeat(2), torch.tensor([*labels, *labels]), torch.tensor(progress))


def synthetic(n: int, k: int, seed: int = 0) -> Tensor:
    """Make outputs of 2n views, in float64: unit projections and k cosines, more or less."""
    generator = torch.Generator().manual_seed(seed)
    projections = nnf.normalize(torch.randn(2 * n, D, generator=generator, dtype=torch.float64), dim=1)
    return torch.cat([projections, 0.3 * torch.randn(2 * n, k, generator=generator, dtype=torch.float64)], dim=1)


def values(losses: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value.detach()) for name, value in losses.items()}


def state(method: nn.Module) -> dict[str, Tensor]:
    """Its weights and buffers as they are now."""
    return {name: value.detach().clone() for name, value in method.state_dict().items()}


# The arithmetic of slow oracles, on lists of numbers

Row = list[float]


def softmax(row: Row, temperature: float = 1.0) -> Row:
    powers = [exp((value - max(row)) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def cross_entropy(target: Row, chances: Row) -> float:
    return -sum(t * log(p) for t, p in zip(target, chances, strict=True) if t)


def dot(one: Row, other: Row) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def mean(numbers: Sequence[float]) -> float:
    """Of no numbers it is 0."""
    return sum(numbers) / len(numbers) if numbers else 0.0


def contrast(
    rows: list[Row], ids: Sequence[int], temperature: float, similarity: Callable[[Row, Row], float] = dot
) -> float:
    """GCD's equation 2, over rows of an id: −log of the chance of each row alike, among all the others."""
    costs = []
    for i, own in enumerate(ids):
        others = [j for j, other in enumerate(ids) if j != i and other >= 0]
        alike = [j for j in others if ids[j] == own]
        if own >= 0 and alike:
            scores = {j: similarity(rows[i], rows[j]) / temperature for j in others}
            below = sum(exp(score) for score in scores.values())
            costs.append(mean([-log(exp(scores[j]) / below) for j in alike]))
    return mean(costs)


def sinkhorn_knopp(scores: list[Row], k: int, *, epsilon: float, iterations: int) -> list[Row]:
    """UNO's algorithm in its own words: Q = exp(scores / ε)ᵀ; over and over each of its K rows gets 1/K, and then each
    of its B columns 1/B; in the end times B, so that columns sum to 1. In numbers as they are, not in logarithms."""
    b = len(scores)
    q = [[exp(row[j] / epsilon) for row in scores] for j in range(k)]
    total = sum(map(sum, q))
    q = [[value / total for value in row] for row in q]
    for _ in range(iterations):
        q = [[value / sum(row) / k for value in row] for row in q]
        sums = [sum(q[j][i] for j in range(k)) for i in range(b)]
        q = [[q[j][i] / sums[i] / b for i in range(b)] for j in range(k)]
    return [[q[j][i] * b for j in range(k)] for i in range(b)]


# Which images of a batch are labelled, which classes are known, and how many categories there are

CASES: dict[str, tuple[list[int], list[int], int]] = {
    "mixed": ([0, -1, 1, -1, -1, 1], [0, 1], 5),
    "all labelled": ([0, 1, 1, 0], [0, 1], 4),
    "all unlabelled": ([-1, -1, -1, -1, -1], [0, 1], 4),
    "numbers with gaps": ([5, -1, 2, 0, -1, -1, 2], [0, 2, 5], 6),
    "nothing known": ([-1, -1, -1, -1], [], 3),
    "nothing new": ([2, -1, 5, 0, -1], [0, 2, 5], 3),
    "one image": ([-1], [0], 3),
    "one labelled image": ([4], [4], 3),
    "one category": ([-1, -1, 3], [3], 1),
}


class Colours(Backbone):
    """Its features are the mean colours of views."""

    def __init__(self) -> None:
        spec = Spec(name="colours", image_size=4, shorter_side=4, width=3, mean=(0, 0, 0), std=(1, 1, 1))
        super().__init__(nn.Linear(1, 1), spec)
        self.calls = 0

    @property
    def blocks(self) -> list[nn.Module]:
        return [nn.Identity(), self.net]

    def trunk(self, images: Tensor) -> Tensor:
        self.calls += 1
        return images.mean((2, 3))

    def tail(self, inputs: Tensor) -> Tensor:
        return inputs
