"""SimGCD (Wen et al., ICCV 2023): GCD's contrastive losses and a self-distilled classifier."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.config import Distillation, Losses, SelfDistillation
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.heads import Classifier, ProjectionHead, output_index
from sortal.learning.losses import classification, contrastive, entropy_deficit, soft_classification
from sortal.learning.methods.method import Method, Problem


class SimGcd(Method):
    """A projection head and a cosine classifier of k categories, the first of which are the `known` class numbers.

    Labelled images are classified; each view of any image is trained towards the sharpened prediction for its other
    view; and the entropy of the mean prediction over a batch is maximised.
    """

    config: Distillation
    version = 1
    known: Tensor

    def __init__(
        self, backbone: Backbone, k: int, known: Sequence[int], config: Distillation | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(backbone)
        c = self.config = config or Distillation()
        self.head = ProjectionHead(backbone.spec.width, hidden=c.hidden, bottleneck=c.bottleneck, seed=seed)
        self.categories = Classifier(backbone.spec.width, k, bias=False, seed=seed)
        self.register_buffer("known", torch.tensor(known, dtype=torch.int64))

    @classmethod
    def create(cls, backbone: Backbone, losses: Losses, problem: Problem) -> Self:
        return cls(backbone, problem.k, problem.known, losses, seed=problem.training.seed)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outputs(self.backbone.tail(inputs))

    def outputs(self, features: Tensor) -> Tensor:
        """Compute the projection and the cosines to all categories, concatenated to (n, bottleneck + k)."""
        return torch.cat([self.head(features), self.categories(features, cosine=True)], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, supervised = self.config, self.config.supervised_weight
        projected, cosines = batch.outputs.split([c.bottleneck, len(self.categories.weight)], dim=1)
        logits, groups = cosines / c.student_temperature, self.groups_of(batch)
        alone = contrastive(projected, batch.images, temperature=c.temperature, groups=groups)
        return {
            "distillation": (1 - supervised) * distillation(cosines, batch, c),
            "balance": (1 - supervised) * c.entropy_weight * self.imbalance(logits.softmax(1), batch),
            "classification": supervised * classification(logits, output_index(batch.labels, self.known)),
            "unsupervised": (1 - supervised) * alone,
            "supervised": supervised * contrastive(projected, batch.labels, temperature=c.supervised_temperature),
        }

    def imbalance(self, probabilities: Tensor, batch: Batch) -> Tensor:
        """Return how far the mean prediction over views, (views, k), is from the one that is wanted."""
        return entropy_deficit(probabilities)

    def classifier(self) -> Tensor:
        table = nnf.normalize(self.categories.weights_and_biases(), dim=1)
        return table / self.config.student_temperature


def distillation(cosines: Tensor, batch: Batch, c: SelfDistillation) -> Tensor:
    """Compute the cross-entropy between each view's prediction and the sharpened one for its other view."""
    sharpened = (batch.progress / c.sharpening).clamp(max=1)
    temperature = c.first_teacher_temperature + (c.teacher_temperature - c.first_teacher_temperature) * sharpened
    teacher = other_view((cosines.detach() / temperature).softmax(1))
    everything = torch.ones_like(batch.labels, dtype=torch.bool)
    return soft_classification(cosines / c.student_temperature, teacher, everything)


def other_view(rows: Tensor) -> Tensor:
    """Return in the place of each view the row of the other view of its image."""
    return torch.cat(rows.chunk(2)[::-1])
