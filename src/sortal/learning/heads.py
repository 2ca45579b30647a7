"""Heads on a backbone's features: a projection for contrastive losses, and a linear classifier."""

from itertools import pairwise

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

CLASSIFIER_SALT = 0x5A4D  # separates a classifier's draws from those of backbones and projections with the same seed


class ProjectionHead(nn.Module):
    """Linear layers, mostly three, and an L2-normalised bottleneck, (n, bottleneck); discarded after training.

    With `prototypes`, as in the paper, the output is the cosine to each of them, L2-normalised: (n, prototypes).
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int = 2048,
        bottleneck: int = 256,
        prototypes: int | None = None,
        n_layers: int = 3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # quicker than skip_init, which imports sympy
            layers = [nn.Linear(*sizes) for sizes in pairwise([width, *[hidden] * (n_layers - 1), bottleneck])]
        self.mlp = nn.Sequential(*[each for layer in layers for each in (layer, nn.GELU())][:-1])
        generator = torch.Generator().manual_seed(seed)
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)
        self.prototypes: nn.Parameter | None = None
        if prototypes is not None:
            bound = bottleneck**-0.5  # as torch does for linear layers
            values = torch.empty(prototypes, bottleneck).uniform_(-bound, bound, generator=generator)
            self.prototypes = nn.Parameter(values)

    def forward(self, features: Tensor) -> Tensor:
        bottleneck = nnf.normalize(self.mlp(features).float(), dim=1)
        if self.prototypes is None:
            return bottleneck
        return nnf.normalize((bottleneck @ nnf.normalize(self.prototypes, dim=1).T).float(), dim=1)


class Classifier(nn.Module):
    """Linear scores of k categories on L2-normalised features, in float32; initialised like torch's linear layers."""

    def __init__(self, width: int, k: int, *, bias: bool, seed: int = 0) -> None:
        super().__init__()
        bound, generator = width**-0.5, torch.Generator().manual_seed(seed ^ CLASSIFIER_SALT)
        self.weight = nn.Parameter(torch.empty(k, width).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(k).uniform_(-bound, bound, generator=generator)) if bias else None

    def forward(self, features: Tensor, *, cosine: bool = False) -> Tensor:
        """Score features (n, d), which are L2-normalised first, as (n, k); with `cosine`, so are the weights."""
        with torch.autocast(features.device.type, enabled=False):  # cosines need float32
            rows = nnf.normalize(features.float(), dim=1)
            weight = nnf.normalize(self.weight, dim=1) if cosine else self.weight
            return nnf.linear(rows, weight, self.bias)

    def weights_and_biases(self) -> Tensor:
        """Return a detached (k, d + 1) table, the bias last."""
        bias = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias
        return torch.cat([self.weight, bias[:, None]], dim=1).detach()


def output_index(labels: Tensor, known: Tensor) -> Tensor:
    """Map class numbers (n,) to outputs of a head, their index among the sorted `known`; −1 stays −1."""
    return torch.where(labels >= 0, torch.searchsorted(known, labels.clamp(min=0)), -1)
