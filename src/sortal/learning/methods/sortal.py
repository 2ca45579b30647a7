"""Sortal's classifier: SimGCD's losses, with a share of the unlabelled images for each category."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from sortal.config import Losses, Rounds
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.losses import divergence, mean_among, running_mean
from sortal.learning.methods.method import Problem
from sortal.learning.methods.simgcd import SimGcd


class Sortal(SimGcd):
    """A cosine classifier whose mean prediction over unlabelled views is drawn towards given shares of categories.

    `shares` (k,) are positive. With `centres` (k, d), the categories start there; where a centre is 0, at random. The
    mean is that of a batch, or where its `batch_views` are fewer than the categories, of about as many recent views.
    """

    shares: Tensor
    recent: Tensor | None  # (k,) mean prediction over recent views; None if a batch has enough of them
    version = 1

    def __init__(
        self,
        backbone: Backbone,
        known: Sequence[int],
        shares: NDArray[np.float64],
        config: Rounds | None = None,
        *,
        batch_views: int,
        centres: NDArray[np.float32] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone, len(shares), known, (config or Rounds()).distillation(), seed=seed)
        self.register_buffer("shares", torch.from_numpy(shares / shares.sum()).float())
        self.register_buffer("recent", self.shares.clone() if batch_views < len(shares) else None)
        if centres is not None:
            directions = nnf.normalize(torch.from_numpy(centres), dim=1)
            with torch.no_grad():
                self.categories.weight.copy_(
                    torch.where(directions.any(1, keepdim=True), directions, self.categories.weight)
                )

    @classmethod
    def create(cls, backbone: Backbone, losses: Losses, problem: Problem) -> Self:
        shares = np.ones(max(problem.k, len(problem.known), 1))
        training = problem.training
        views = cls.views * training.batch_size
        return cls(backbone, problem.known, shares, losses, batch_views=views, seed=training.seed)

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({} if self.recent is None else {"balance": "recent views"})

    def imbalance(self, probabilities: Tensor, batch: Batch) -> Tensor:
        return divergence(probabilities, batch.labels < 0, self.shares, self.recent, self._weight(batch))

    def after_step(self, batch: Batch) -> None:
        if self.recent is None:
            return
        cosines = batch.outputs[:, -len(self.shares) :].to(self.recent.dtype)
        among = batch.labels < 0
        mean = mean_among((cosines / self.config.student_temperature).softmax(1), among)
        self.recent.copy_(running_mean(self.recent, mean, among, self._weight(batch)))

    def _weight(self, batch: Batch) -> float:
        """Return the weight of a batch in the mean of recent views: a function of sizes, which CUDA graphs keep."""
        return min(1.0, len(batch.labels) / len(self.shares))
