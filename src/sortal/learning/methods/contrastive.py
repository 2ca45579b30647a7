"""GCD (Vaze et al., CVPR 2022): contrastive learning, self-supervised on all images and supervised on labelled ones."""

from typing import Self

from torch import Tensor

from sortal.config import Contrast, Losses
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.heads import ProjectionHead
from sortal.learning.losses import contrastive
from sortal.learning.methods.method import Method, Problem


class Contrastive(Method):
    """(1 − λ) InfoNCE over all views + λ SupCon over labelled views, on the output of a projection head."""

    config: Contrast
    version = 1

    def __init__(self, backbone: Backbone, config: Contrast | None = None, *, seed: int = 0) -> None:
        super().__init__(backbone)
        c = self.config = config or Contrast()
        prototypes, width = c.prototypes if c.output == "prototypes" else None, backbone.spec.width
        self.head = ProjectionHead(width, hidden=c.hidden, bottleneck=c.bottleneck, prototypes=prototypes, seed=seed)

    @classmethod
    def create(cls, backbone: Backbone, losses: Losses, problem: Problem) -> Self:
        return cls(backbone, losses, seed=problem.training.seed)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone.tail(inputs))

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c = self.config
        groups = self.groups_of(batch)
        unsupervised = contrastive(batch.outputs, batch.images, temperature=c.temperature, groups=groups)
        supervised = contrastive(batch.outputs, batch.labels, temperature=c.supervised_temperature)
        return {
            "unsupervised": (1 - c.supervised_weight) * unsupervised,
            "supervised": c.supervised_weight * supervised,
        }
