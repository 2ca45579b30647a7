"""Which epoch's weights to keep: how well nearest class means tell the classes of the validation images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal import views
from sortal.images import ImageSet
from sortal.store import PixelStore
from sortal.trunk import Frozen

PIECE = 256  # images at once


class Validation:
    """The labelled and the validation images, seen whole; `keep` says whether the trunk's tokens of them stay."""

    def __init__(self, trunk: Frozen, images: ImageSet, store: PixelStore, *, keep: bool) -> None:
        self.trunk = trunk
        self.store = store
        self.rows = np.flatnonzero((images.labels >= 0) & np.isin(images.labels, images.labels[images.labelled]))
        self.labels = torch.from_numpy(images.labels[self.rows])
        self.held_out = torch.from_numpy(images.validation[self.rows])
        self._kept: list[Tensor] | None = [] if keep else None

    def accuracy(self) -> float:
        """The part of the validation images that are nearest to the mean of their own class."""
        x = nnf.normalize(torch.cat([self._features(inputs) for inputs in self._inputs()]).float(), dim=1).cpu()
        known, numbers = torch.unique(self.labels, return_inverse=True)
        learned = ~self.held_out
        sums = torch.zeros(len(known), x.shape[1]).index_add_(0, numbers[learned], x[learned])
        means = sums / torch.bincount(numbers[learned], minlength=len(known))[:, None]
        nearest = torch.cdist(x[self.held_out], means).argmin(1)
        return float((nearest == numbers[self.held_out]).float().mean())

    def _features(self, inputs: Tensor) -> Tensor:
        with torch.no_grad(), self.trunk.compute.autocast():
            return self.trunk.backbone.tail(inputs)

    def _inputs(self) -> Iterator[Tensor]:
        if self._kept:
            yield from self._kept
            return
        size = self.trunk.backbone.spec.image_size
        for inputs in self.trunk.stream(self.store, views.middles(self.store, self.rows, size=size, batch_size=PIECE)):
            if self._kept is not None:
                self._kept.append(inputs)
            yield inputs
