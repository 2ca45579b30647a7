"""RLCD (Liu et al., ICML 2025): reciprocal learning of all categories and of old classes, by a token each."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.config import Losses, Reciprocity, Training
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.heads import Classifier, output_index
from sortal.learning.losses import EPSILON, classification, contrastive, entropy_deficit, soft_classification
from sortal.learning.methods.method import Method, Problem
from sortal.learning.methods.simgcd import distillation, other_view
from sortal.learning.optimiser import Optimiser


class Rlcd(Method):
    """A cosine classifier of k categories on the class token, and one of the `known` classes on an added token.

    The second learns from labelled images, and from those that the first takes for old; its predictions for them teach
    the first. Both are to make categories distinct. Needs a vision transformer.
    """

    config: Reciprocity
    version = 1
    known: Tensor

    def __init__(
        self, backbone: Backbone, k: int, known: Sequence[int], config: Reciprocity | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(backbone)
        self.config = config or Reciprocity()
        backbone.add_tokens(1, seed=seed)
        self.categories = Classifier(backbone.spec.width, k, bias=False, seed=seed)
        self.old = Classifier(backbone.spec.width, len(known), bias=False, seed=seed + 1)
        self.register_buffer("known", torch.tensor(known, dtype=torch.int64))

    @classmethod
    def create(cls, backbone: Backbone, losses: Losses, problem: Problem) -> Self:
        return cls(backbone, problem.k, problem.known, losses, seed=problem.training.seed)

    def optimiser(self, parameters: Mapping[str, Tensor], training: Training) -> Optimiser:
        return Optimiser.of(parameters, training, factors={"backbone.net.blocks.": self.config.block_rate})

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the unit features of both tokens and their cosines, concatenated to (n, 2d + k + known)."""
        features, added = self.backbone.tail(inputs), self.backbone.token_rows(inputs)[:, 1]
        rows = [nnf.normalize(each.float(), dim=1) for each in (features, added)]
        return torch.cat([*rows, self.categories(features, cosine=True), self.old(added, cosine=True)], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        width, n_old = self.categories.weight.shape[1], len(self.known)
        features, added, cosines, old = batch.outputs.split([width, width, len(self.categories.weight), n_old], dim=1)
        ids = output_index(batch.labels, self.known)
        main = self._main(features, cosines, ids, batch)
        if not n_old:
            return main
        taken_for_old = (ids >= 0) | (cosines.argmax(1) < n_old)
        return {
            **main,
            **self._auxiliary(added, old, ids, taken_for_old, batch),
            "exchange": self.config.exchange_weight * self._exchange(cosines[:, :n_old], old, taken_for_old),
        }

    def _main(self, features: Tensor, cosines: Tensor, ids: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Compute the losses of the classifier of all categories."""
        c, supervised = self.config, self.config.supervised_weight
        logits = cosines / c.student_temperature
        chances, everything = logits.softmax(1), torch.ones_like(ids, dtype=torch.bool)
        return {
            "distillation": (1 - supervised) * distillation(cosines, batch, c),
            "balance": (1 - supervised) * c.entropy_weight * entropy_deficit(chances),
            "distinction": (1 - supervised) * c.distinction_weight * overlap(chances, ids, everything),
            "classification": supervised * classification(logits, ids),
            "supervised": supervised * contrastive(features, batch.labels, temperature=c.supervised_temperature),
        }

    def _auxiliary(
        self, added: Tensor, cosines: Tensor, ids: Tensor, taken_for_old: Tensor, batch: Batch
    ) -> dict[str, Tensor]:
        """Compute the losses of the classifier of old classes, without labels where both views are taken for old."""
        c, supervised = self.config, self.config.auxiliary_weight
        logits, both = cosines / c.student_temperature, taken_for_old & other_view(taken_for_old)
        logs = logits.log_softmax(1)
        apart = (logs.exp() * (logs - other_view(logs))).sum(1)  # KL(q ‖ q of the other view)
        agreement = apart.masked_fill(~both, 0).sum() / both.sum().clamp(min=1)
        contrast = contrastive(added, batch.labels, temperature=c.supervised_temperature)
        return {
            "old_agreement": (1 - supervised) * agreement,
            "old_distinction": (1 - supervised) * c.distinction_weight * overlap(logs.exp(), ids, both),
            "old_classification": supervised * classification(logits, ids),
            "old_supervised": supervised * contrast,
        }

    def _exchange(self, cosines: Tensor, old: Tensor, taken_for_old: Tensor) -> Tensor:
        """Compute the cross-entropy of the first classifier, among old classes, with the second, by its confidence."""
        teacher = (old.detach() / self.config.student_temperature).softmax(1)
        sure = teacher.max(1, keepdim=True).values
        return soft_classification(cosines / self.config.student_temperature, sure * teacher, taken_for_old)

    def classifier(self) -> Tensor:
        table = nnf.normalize(self.categories.weights_and_biases(), dim=1)
        return table / self.config.student_temperature


def overlap(chances: Tensor, ids: Tensor, among: Tensor) -> Tensor:
    """Compute 1 − the agreement of the two views on what an image of a category looks like; 0 if it is one-hot.

    The expected prediction for category c is the mean of the rows (n, k) of a mask (n,), weighted by their entry c. Its
    inner product between the two views is averaged over the categories that are predicted, or labels in `ids` (n,).
    """
    present = nnf.one_hot(torch.where(ids >= 0, ids, chances.argmax(1)), chances.shape[1])
    present = (present.bool() & among[:, None]).any(0)
    first, second = (
        (view.T @ view) / view.sum(0).clamp(min=EPSILON)[:, None]
        for view in chances.masked_fill(~among[:, None], 0).chunk(2)
    )  # (k, k) each
    each = 1 - (first * second).sum(1)
    return each.masked_fill(~present, 0).sum() / present.sum().clamp(min=1)
