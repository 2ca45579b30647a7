"""SimGCD (Wen et al., ICCV 2023): GCD's two contrastive losses, and a classifier that teaches itself."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.batches import Batch
from sortal.config import Distillation
from sortal.head import Classifier, ProjectionHead, outputs_of
from sortal.losses import classification, contrastive, lack_of_entropy, soft_classification
from sortal.methods.method import Method
from sortal.network import Backbone


class SimGcd(Method):
    """A cosine classifier of k categories, of which the first are the `known` class numbers, beside a projection head.

    Labelled images learn their class; each view of any image learns what the other view is taken for, sharpened; and
    all categories are to be used, on average over a batch.
    """

    known: Tensor

    def __init__(
        self, backbone: Backbone, k: int, known: Sequence[int], config: Distillation | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(backbone)
        c = self.config = config or Distillation()
        self.head = ProjectionHead(backbone.spec.width, hidden=c.hidden, bottleneck=c.bottleneck, seed=seed)
        self.categories = Classifier(backbone.spec.width, k, bias=False, seed=seed)
        self.register_buffer("known", torch.tensor(known, dtype=torch.int64))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **asdict(self.config)}

    def forward(self, inputs: Tensor) -> Tensor:
        """The projection and the cosines to all categories side by side, (n, bottleneck + k)."""
        features = self.backbone.tail(inputs)
        return torch.cat([self.head(features), self.categories(features, cosine=True)], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, supervised = self.config, self.config.supervised_weight
        projected, cosines = batch.outputs.split([c.bottleneck, len(self.categories.weight)], dim=1)
        logits = cosines / c.student_temperature
        sharpened = (batch.progress / c.sharpening).clamp(max=1)
        temperature = c.first_teacher_temperature + (c.teacher_temperature - c.first_teacher_temperature) * sharpened
        teacher = (cosines.detach() / temperature).softmax(1)
        other = torch.cat(teacher.chunk(2)[::-1])  # what the other view of the image is taken for
        everything = torch.ones_like(batch.labels, dtype=torch.bool)
        return {
            "distillation": (1 - supervised) * soft_classification(logits, other, everything),
            "entropy": (1 - supervised) * c.entropy_weight * lack_of_entropy(logits.softmax(1)),
            "classification": supervised * classification(logits, outputs_of(batch.labels, self.known)),
            "unsupervised": (1 - supervised) * contrastive(projected, batch.images, temperature=c.temperature),
            "supervised": supervised * contrastive(projected, batch.labels, temperature=c.supervised_temperature),
        }

    def classifier(self) -> Tensor:
        table = nnf.normalize(self.categories.table(), dim=1)
        return table / self.config.student_temperature
