"""UNO+: swapped predictions (Fini et al., ICCV 2021) on old and new categories, the GCD paper's baseline."""

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from sortal.config import AUTO, Losses, Swaps
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.heads import Classifier, output_index
from sortal.learning.losses import sinkhorn
from sortal.learning.methods.method import Method, Problem

VIEWS_PER_CATEGORY = 4  # views in the Sinkhorn assignment, at least
DECAY = 0.99  # of the moving average of a head's loss


class Uno(Method):
    """Cosine prototypes of k categories, the first of which are the `known` class numbers.

    Labelled images are classified; unlabelled ones are assigned evenly to all categories by Sinkhorn's iterations, and
    each view is trained towards the assignment of the other. Of several heads, the one with the lowest loss predicts;
    over-clustering heads never do.
    """

    config: Swaps
    version = 1
    known: Tensor
    queue: Tensor
    filled: Tensor
    mean_losses: Tensor

    def __init__(
        self,
        backbone: Backbone,
        k: int,
        known: Sequence[int],
        config: Swaps | None = None,
        *,
        seed: int = 0,
        batch_size: int = 128,
    ) -> None:
        super().__init__(backbone)
        c = self.config = config or Swaps()
        over = [len(known) + c.overclustering * (k - len(known))] * c.heads if c.overclustering else []
        self.sizes = [k] * c.heads + over
        seeds = torch.randint(2**62, (len(self.sizes),), generator=torch.Generator().manual_seed(seed)).tolist()
        self.heads: Sequence[Classifier] = nn.ModuleList(  # type: ignore[assignment]
            Classifier(backbone.spec.width, size, bias=False, seed=own)
            for size, own in zip(self.sizes, seeds, strict=True)
        )
        self._renormalise()
        needed = VIEWS_PER_CATEGORY * max(self.sizes)
        enough = needed <= batch_size // 2  # unlabelled images in a batch, in expectation
        length = (0 if enough else needed) if c.queue == AUTO else int(c.queue)
        self.register_buffer("known", torch.tensor(known, dtype=torch.int64))
        self.register_buffer("queue", torch.zeros(length, sum(self.sizes)))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean_losses", torch.zeros(c.heads))

    @classmethod
    def create(cls, backbone: Backbone, losses: Losses, problem: Problem) -> Self:
        training = problem.training
        return cls(backbone, problem.k, problem.known, losses, seed=training.seed, batch_size=training.batch_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the cosines to the prototypes of all heads, concatenated; `after_step` normalises prototypes."""
        features = self.backbone.tail(inputs)
        return torch.cat([head(features) for head in self.heads], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        each = self._view_losses(batch)  # (heads, views)
        unlabelled = batch.labels < 0
        return {
            "unsupervised": each.masked_fill(~unlabelled, 0).mean(),
            "supervised": each.masked_fill(unlabelled, 0).mean(),
        }

    def _view_losses(self, batch: Batch) -> Tensor:
        """Compute the loss of each view in each head, (heads, views)."""
        c, outputs = self.config, output_index(batch.labels, self.known)
        costs = []
        parts = zip(batch.outputs.split(self.sizes, dim=1), self.queue.split(self.sizes, dim=1), strict=True)
        for cosines, recent in parts:
            shares = torch.cat([self._assign(view, recent, batch) for view in cosines.detach().chunk(2)[::-1]])
            one_hot = nnf.one_hot(outputs.clamp(min=0), cosines.shape[1])
            targets = torch.where((outputs >= 0)[:, None], one_hot, shares)
            costs.append(-(targets * (cosines / c.temperature).log_softmax(1)).sum(1))
        return torch.stack(costs)

    def _assign(self, view: Tensor, recent: Tensor, batch: Batch) -> Tensor:
        """Assign the unlabelled images of one view, together with the queue, to categories: (images, categories)."""
        unlabelled = batch.labels.chunk(2)[0] < 0
        queued = torch.arange(len(recent), device=recent.device) < self.filled
        scores, among = torch.cat([view, recent]), torch.cat([unlabelled, queued])
        shares = sinkhorn(scores, among, epsilon=self.config.epsilon, iterations=self.config.iterations)
        return shares[: len(view)]

    def after_step(self, batch: Batch) -> None:
        self._renormalise()
        if self.config.heads > 1:
            now = self._view_losses(batch)[: self.config.heads].mean(1)
            self.mean_losses.mul_(DECAY).add_((1 - DECAY) * now)
        if len(self.queue):
            self._enqueue(batch.outputs.detach(), batch.labels < 0)

    def _enqueue(self, rows: Tensor, which: Tensor) -> None:
        """Put the rows of a mask at the front of the queue, and drop its oldest rows."""
        count, first = which.sum(), torch.argsort(~which, stable=True)
        at = torch.arange(len(self.queue), device=rows.device)
        source = torch.where(at < count, first[at.clamp(max=len(rows) - 1)], len(rows) + at - count)
        self.queue.copy_(torch.cat([rows, self.queue])[source])
        self.filled.copy_((self.filled + count).clamp(max=len(self.queue)))

    @torch.no_grad()
    def _renormalise(self) -> None:
        for head in self.heads:
            head.weight.copy_(nnf.normalize(head.weight, dim=1))

    def classifier(self) -> Tensor:
        best = int(self.mean_losses.argmin())
        return self.heads[best].weights_and_biases() / self.config.temperature
