"""UNO+: swapped predictions (Fini et al., ICCV 2021) for categories old and new, as the GCD paper's baseline."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from sortal.batches import Batch
from sortal.config import AUTO, Swaps
from sortal.head import Classifier, outputs_of
from sortal.losses import sinkhorn
from sortal.methods.method import Method
from sortal.network import Backbone

FOR_EACH = 4  # views for each category that are shared out together, at least
SLOW = 0.99  # how much of the mean loss of a head stays in a step


class Uno(Method):
    """Cosine prototypes of k categories, of which the first are the `known` class numbers.

    Labelled images learn their class; unlabelled ones are shared out evenly over all categories, and each view learns
    the share of the other. Of several heads, that with the lowest loss predicts; over-clustering heads only teach.
    """

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
        wanted = FOR_EACH * max(self.sizes)
        enough = wanted <= batch_size // 2  # what a view of a batch has without a label, in expectation
        length = (0 if enough else wanted) if c.queue == AUTO else int(c.queue)
        self.register_buffer("known", torch.tensor(known, dtype=torch.int64))
        self.register_buffer("queue", torch.zeros(length, sum(self.sizes)))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean_losses", torch.zeros(c.heads))

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **asdict(self.config)}

    def forward(self, inputs: Tensor) -> Tensor:
        """The cosines to the prototypes of all heads side by side; prototypes have length 1, see `settle`."""
        features = self.backbone.tail(inputs)
        return torch.cat([head(features) for head in self.heads], dim=1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        each = self._each(batch)  # (heads, views)
        unlabelled = batch.labels < 0
        return {
            "unsupervised": each.masked_fill(~unlabelled, 0).mean(),
            "supervised": each.masked_fill(unlabelled, 0).mean(),
        }

    def _each(self, batch: Batch) -> Tensor:
        """(heads, views) what each view costs in each head."""
        c, outputs = self.config, outputs_of(batch.labels, self.known)
        costs = []
        parts = zip(batch.outputs.split(self.sizes, dim=1), self.queue.split(self.sizes, dim=1), strict=True)
        for cosines, recent in parts:
            shares = torch.cat([self._shares(view, recent, batch) for view in cosines.detach().chunk(2)[::-1]])
            one_hot = nnf.one_hot(outputs.clamp(min=0), cosines.shape[1])
            targets = torch.where((outputs >= 0)[:, None], one_hot, shares)
            costs.append(-(targets * (cosines / c.temperature).log_softmax(1)).sum(1))
        return torch.stack(costs)

    def _shares(self, view: Tensor, recent: Tensor, batch: Batch) -> Tensor:
        """(images, categories) how the unlabelled ones of one view are shared out, together with the recent ones."""
        unlabelled = batch.labels.chunk(2)[0] < 0
        there = torch.arange(len(recent), device=recent.device) < self.filled
        scores, among = torch.cat([view, recent]), torch.cat([unlabelled, there])
        shares = sinkhorn(scores, among, epsilon=self.config.epsilon, iterations=self.config.iterations)
        return shares[: len(view)]

    def settle(self, batch: Batch) -> None:
        self._renormalise()
        if self.config.heads > 1:
            now = self._each(batch)[: self.config.heads].mean(1)
            self.mean_losses.mul_(SLOW).add_((1 - SLOW) * now)
        if len(self.queue):
            self._remember(batch.outputs.detach(), batch.labels < 0)

    def _remember(self, rows: Tensor, which: Tensor) -> None:
        """Put the rows of a mask before those of the queue, of which the oldest leave."""
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
        return self.heads[best].table() / self.config.temperature
