"""RankStats+: ranking statistics (Han et al., ICLR 2020) on old and new categories, the GCD paper's baseline."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.config import Losses, Ranks
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.heads import Classifier, output_index
from sortal.learning.losses import classification, pairwise, same_top_features
from sortal.learning.methods.method import Method, Problem


class RankStats(Method):
    """A linear classifier of k categories, the first of which are the `known` class numbers.

    Labelled images are classified among the known classes; pairs of unlabelled images are pulled into one category if
    their largest features are the same, else apart; and both views of an image must agree.
    """

    config: Ranks
    version = 1
    known: Tensor

    def __init__(
        self, backbone: Backbone, k: int, known: Sequence[int], config: Ranks | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(backbone)
        self.config = config or Ranks()
        self.head = Classifier(backbone.spec.width, k, bias=True, seed=seed)
        self.register_buffer("known", torch.tensor(known, dtype=torch.int64))

    @classmethod
    def create(cls, backbone: Backbone, losses: Losses, problem: Problem) -> Self:
        return cls(backbone, problem.k, problem.known, losses, seed=problem.training.seed)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute features and logits, concatenated to (n, d + k)."""
        features = self.backbone.tail(inputs).float()
        return torch.cat([features, self.head(features)], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, k = self.config, len(self.head.weight)
        features, logits = batch.outputs.split([batch.outputs.shape[1] - k, k], dim=1)
        first, second = logits.softmax(1).chunk(2)
        alike = same_top_features(features.chunk(2)[0].detach(), c.top)
        unlabelled = batch.labels.chunk(2)[0] < 0
        ramped = c.consistency * torch.exp(-5 * (1 - (batch.progress / c.ramp).clamp(max=1)) ** 2)
        return {
            "classification": classification(logits[:, : len(self.known)], output_index(batch.labels, self.known)),
            "pairs": pairwise(first, second, alike, unlabelled),
            "consistency": ramped * nnf.mse_loss(first, second),
        }

    def classifier(self) -> Tensor:
        return self.head.weights_and_biases()
