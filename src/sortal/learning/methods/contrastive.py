"""Generalized category discovery (Vaze et al., CVPR 2022): contrast among all images and among the labelled ones."""

from dataclasses import asdict
from typing import Any

from torch import Tensor

from sortal.batches import Batch
from sortal.config import Contrast
from sortal.head import ProjectionHead
from sortal.losses import contrastive
from sortal.methods.method import Method
from sortal.network import Backbone


class Contrastive(Method):
    """(1 − λ) InfoNCE over all views + λ SupCon over the labelled ones, on the output of a projection head."""

    def __init__(self, backbone: Backbone, config: Contrast | None = None, *, seed: int = 0) -> None:
        super().__init__(backbone)
        self.config = config or Contrast()
        self.head = ProjectionHead(
            backbone.spec.width,
            hidden=self.config.hidden,
            bottleneck=self.config.bottleneck,
            prototypes=self.config.prototypes if self.config.output == "prototypes" else None,
            seed=seed,
        )

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **asdict(self.config)}

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.backbone.tail(inputs))
        return outputs

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        unsupervised = contrastive(batch.outputs, batch.images, temperature=c.temperature)
        supervised = contrastive(batch.outputs, batch.labels, temperature=c.supervised_temperature)
        return {
            "unsupervised": (1 - c.supervised_weight) * unsupervised,
            "supervised": c.supervised_weight * supervised,
        }
