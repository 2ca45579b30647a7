"""The projection head that the losses are taken on; it is thrown away after training."""

from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn


class ProjectionHead(nn.Module):
    """Three linear layers down to a bottleneck, L2-normalised; the paper's head goes on to many prototypes.

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
