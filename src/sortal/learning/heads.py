"""Heads on a backbone's features: the projection that losses are taken on, and what tells categories."""

from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

SALT = 0x5A4D  # keeps a classifier's draws apart from those of backbones and projections of the same seed


class ProjectionHead(nn.Module):
    """Three linear layers down to a bottleneck, L2-normalised; it is thrown away after training.

    The paper's head goes on to many prototypes.

    With `prototypes`, the output is the cosine to each of them, L2-normalised again: (n, prototypes). Without, it is
    the bottleneck itself.
    """

    def __init__(
        self, width: int, *, hidden: int = 2048, bottleneck: int = 256, prototypes: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        linear = partial(nn.utils.skip_init, nn.Linear)  # which would draw from torch's own random numbers
        self.mlp = nn.Sequential(
            linear(width, hidden), nn.GELU(), linear(hidden, hidden), nn.GELU(), linear(hidden, bottleneck)
        )
        self.prototypes = nn.Parameter(torch.empty(prototypes, bottleneck)) if prototypes is not None else None
        self._initialise(torch.Generator().manual_seed(seed))

    def _initialise(self, generator: torch.Generator) -> None:
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
                nn.init.zeros_(layer.bias)
        if self.prototypes is not None:
            bound = self.prototypes.shape[1] ** -0.5  # as torch initialises linear layers
            nn.init.uniform_(self.prototypes, -bound, bound, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        bottleneck = nnf.normalize(self.mlp(features).float(), dim=1)
        if self.prototypes is None:
            return bottleneck
        return nnf.normalize((bottleneck @ nnf.normalize(self.prototypes, dim=1).T).float(), dim=1)


class Classifier(nn.Module):
    """Linear scores of k categories by features of length 1, in float32; drawn as torch draws linear layers."""

    def __init__(self, width: int, k: int, *, bias: bool, seed: int = 0) -> None:
        super().__init__()
        bound, generator = width**-0.5, torch.Generator().manual_seed(seed ^ SALT)
        self.weight = nn.Parameter(torch.empty(k, width).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(k).uniform_(-bound, bound, generator=generator)) if bias else None

    def forward(self, features: Tensor, *, cosine: bool = False) -> Tensor:
        """(n, k) scores of features of any length (n, d); as `cosine`, weights count as of length 1 too."""
        with torch.autocast(features.device.type, enabled=False):  # a cosine's digits count
            rows = nnf.normalize(features.float(), dim=1)
            weight = nnf.normalize(self.weight, dim=1) if cosine else self.weight
            return nnf.linear(rows, weight, self.bias)

    def table(self) -> Tensor:
        """(k, d + 1) weights and biases."""
        bias = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias
        return torch.cat([self.weight, bias[:, None]], dim=1).detach()


def outputs_of(labels: Tensor, known: Tensor) -> Tensor:
    """The output of a head that each class number (n,) stands for: its place among the `known`; −1 is unlabelled."""
    return torch.where(labels >= 0, torch.searchsorted(known, labels.clamp(min=0)), -1)
