"""DebGCD (Liu and Han, ICLR 2025): SimGCD with a second classifier, guided by detectors of the old classes."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.config import Debiasing
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.heads import Classifier, ProjectionHead, output_index
from sortal.learning.losses import classification
from sortal.learning.methods.simgcd import SimGcd, other_view


class DebGcd(SimGcd):
    """SimGCD, with a second classifier and a detector for each of the `known` classes on the same features.

    The second classifier learns labels and confident predictions of the first, weighted by how sure the detectors are
    that the image is of an old class or of none. It shapes the features only; the first classifier predicts.
    """

    config: Debiasing
    version = 1

    def __init__(
        self, backbone: Backbone, k: int, known: Sequence[int], config: Debiasing | None = None, *, seed: int = 0
    ) -> None:
        c, width = config or Debiasing(), backbone.spec.width
        super().__init__(backbone, k, known, c, seed=seed)
        self.debiased = Classifier(width, k, bias=False, seed=seed + 1)
        self.detector = ProjectionHead(
            width, hidden=c.hidden, bottleneck=c.bottleneck, n_layers=c.detector_layers, seed=seed + 1
        )
        self.detected = Classifier(c.bottleneck, 2 * len(known), bias=False, seed=seed + 2)

    def outputs(self, features: Tensor) -> Tensor:
        """Add the second classifier's cosines and the detectors', (n, bottleneck + 2k + 2 known): not, then is."""
        detected = self.detected(self.detector(features), cosine=True)
        return torch.cat([super().outputs(features), self.debiased(features, cosine=True), detected], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        c, k, n_old = self.config, len(self.categories.weight), len(self.known)
        base, debiased, detected = batch.outputs.split([c.bottleneck + k, k, 2 * n_old], dim=1)
        logits, ids = debiased / c.student_temperature, output_index(batch.labels, self.known)
        odds = (detected[:, :n_old] - detected[:, n_old:]) / c.student_temperature  # of not being of a class
        chances = (base[:, c.bottleneck :].detach() / c.student_temperature).softmax(1)
        pseudo = self._pseudo(logits, chances, odds.detach().sigmoid(), ids < 0)
        return {
            **super().losses(replace(batch, outputs=base)),
            "debiased_labels": c.debiased_weight * (1 - c.pseudo_weight) * classification(logits, ids),
            "debiased_predictions": c.debiased_weight * c.pseudo_weight * pseudo,
            "detection": c.detector_weight * detection(odds, ids),
            "ambiguity": c.detector_weight * c.ambiguity_weight * ambiguity(odds, ids < 0),
            "consistency": c.detector_weight * c.consistency_weight * inconsistency(odds, ids < 0),
        }

    def _pseudo(self, logits: Tensor, chances: Tensor, unlike: Tensor, among: Tensor) -> Tensor:
        """Compute the cross-entropy of views with confident predictions, weighted, over the views of a mask (n,).

        `unlike` (n, known) are the probabilities of not being of each old class; the least of them decides the weight.
        """
        confidence, category = chances.max(1)
        sure = (2 * unlike.amin(1) - 1).abs() if unlike.shape[1] else torch.ones_like(confidence)
        each = sure * nnf.cross_entropy(logits, category, reduction="none")
        return each.masked_fill(~among | (confidence < self.config.confidence), 0).sum() / among.sum().clamp(min=1)


def detection(odds: Tensor, ids: Tensor) -> Tensor:
    """Compute the loss of detectors whose log odds against each class are given, (n, known), over the rows with an id.

    It is −log of the probability of the row's own class, and of not being of the class that it is most mistaken for.
    """
    own = nnf.one_hot(ids.clamp(min=0), odds.shape[1]).bool() if odds.shape[1] else odds.bool()
    missed = nnf.softplus(odds).masked_fill(~own, 0).sum(1)
    mistaken = nnf.pad(nnf.softplus(-odds).masked_fill(own, 0), (0, 1)).amax(1)  # 0 without other classes
    return (missed + mistaken).masked_fill(ids < 0, 0).sum() / (ids >= 0).sum().clamp(min=1)


def ambiguity(odds: Tensor, among: Tensor) -> Tensor:
    """Compute the mean entropy of detectors, (n, known), over the rows of a mask (n,)."""
    each = odds.sigmoid() * nnf.softplus(-odds) + (-odds).sigmoid() * nnf.softplus(odds)
    return each.masked_fill(~among[:, None], 0).sum() / (among.sum() * odds.shape[1]).clamp(min=1)


def inconsistency(odds: Tensor, among: Tensor) -> Tensor:
    """Compute the squared distance of the detectors' probabilities in two views, over the images of a mask of views."""
    apart = odds.sigmoid() - other_view(odds.sigmoid())
    each = 2 * apart.square().sum(1)  # of being of a class, and of not being
    return each.masked_fill(~among, 0).sum() / among.sum().clamp(min=1)
