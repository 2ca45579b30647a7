"""LegoGCD (Cao et al., CVPR 2024): SimGCD that does not forget old classes while it learns new ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sortal.config import Retention
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.methods.simgcd import SimGcd


class LegoGcd(SimGcd):
    """SimGCD, with one more loss: unlabelled views that are confidently of an old class become more so.

    `mean_prediction` (k,), a moving average over batches, gives categories that are predicted more often a margin.
    """

    config: Retention
    version = 1
    mean_prediction: Tensor

    def __init__(
        self, backbone: Backbone, k: int, known: Sequence[int], config: Retention | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(backbone, k, known, config or Retention(), seed=seed)
        self.register_buffer("mean_prediction", torch.full((k,), 1 / k))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {**super().losses(batch), "retention": self.config.retention_weight * self._retention(batch)}

    def _retention(self, batch: Batch) -> Tensor:
        """Compute the cross-entropy of confident views with their own predictions, summed, over all views."""
        c, cosines = self.config, batch.outputs[:, self.config.bottleneck :]
        confidence, category = (cosines.detach() / c.student_temperature).softmax(1).max(1)
        retained = (batch.labels < 0) & (category < len(self.known)) & (confidence >= c.confidence)
        logits = cosines / c.retention_temperature
        with_margin = (logits + c.margin * self.mean_prediction.log()).log_softmax(1)
        return -(logits.softmax(1) * with_margin).sum(1).masked_fill(~retained, 0).mean()

    def after_step(self, batch: Batch) -> None:
        cosines = batch.outputs.detach()[:, self.config.bottleneck :]
        self.mean_prediction.lerp_(cosines.softmax(1).mean(0), 1 - self.config.decay)
