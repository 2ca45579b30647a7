"""RankStats+: ranking statistics (Han et al., ICLR 2020) for categories old and new, as the GCD paper's baseline."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.batches import Batch
from sortal.config import Ranks
from sortal.head import Classifier, outputs_of
from sortal.losses import classification, pairwise, same_top
from sortal.methods.method import Method
from sortal.network import Backbone


class RankStats(Method):
    """A linear classifier of k categories, of which the first are the `known` class numbers.

    Labelled images learn their class among the known ones; unlabelled images whose largest features are the same learn
    to be in one category, all others to be apart; and both views of any image learn to agree.
    """

    known: Tensor

    def __init__(
        self, backbone: Backbone, k: int, known: Sequence[int], config: Ranks | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(backbone)
        self.config = config or Ranks()
        self.head = Classifier(backbone.spec.width, k, bias=True, seed=seed)
        self.register_buffer("known", torch.tensor(known, dtype=torch.int64))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **asdict(self.config)}

    def forward(self, inputs: Tensor) -> Tensor:
        """Features and scores side by side, (n, d + k)."""
        features = self.backbone.tail(inputs).float()
        return torch.cat([features, self.head(features)], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, k = self.config, len(self.head.weight)
        features, logits = batch.outputs.split([batch.outputs.shape[1] - k, k], dim=1)
        first, second = logits.softmax(1).chunk(2)
        alike = same_top(features.chunk(2)[0].detach(), c.top)
        unlabelled = batch.labels.chunk(2)[0] < 0
        risen = c.consistency * torch.exp(-5 * (1 - (batch.progress / c.ramp).clamp(max=1)) ** 2)
        return {
            "classification": classification(logits[:, : len(self.known)], outputs_of(batch.labels, self.known)),
            "pairs": pairwise(first, second, alike, unlabelled),
            "consistency": risen * nnf.mse_loss(first, second),
        }

    def classifier(self) -> Tensor:
        return self.head.table()
