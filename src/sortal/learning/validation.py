"""Model selection: nearest-class-mean accuracy on the validation images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning import views
from sortal.learning.frozen import FrozenEncoder

BATCH = 256  # images


class Validation:
    """Centre crops of the labelled and validation images; `keep` caches the trunk's tokens of them."""

    def __init__(self, trunk: FrozenEncoder, images: ImageSet, store: PixelStore, *, keep: bool) -> None:
        self.trunk = trunk
        self.store = store
        self.rows = np.flatnonzero((images.labels >= 0) & np.isin(images.labels, images.labels[images.labelled]))
        self.labels = torch.from_numpy(images.labels[self.rows])
        self.held_out = torch.from_numpy(images.validation[self.rows])
        self._cached: list[Tensor] | None = [] if keep else None

    def accuracy(self) -> float:
        """Return the fraction of validation images whose nearest class mean is that of their own class."""
        x = nnf.normalize(torch.cat([self._features(inputs) for inputs in self._inputs()]).float(), dim=1).cpu()
        known, numbers = torch.unique(self.labels, return_inverse=True)
        training = ~self.held_out
        sums = torch.zeros(len(known), x.shape[1]).index_add_(0, numbers[training], x[training])
        means = sums / torch.bincount(numbers[training], minlength=len(known))[:, None]
        nearest = torch.cdist(x[self.held_out], means).argmin(1)
        return float((nearest == numbers[self.held_out]).float().mean())

    def _features(self, inputs: Tensor) -> Tensor:
        with torch.no_grad(), self.trunk.compute.autocast():
            return self.trunk.backbone.tail(inputs)

    def _inputs(self) -> Iterator[Tensor]:
        if self._cached:
            yield from self._cached
            return
        size = self.trunk.backbone.spec.image_size
        for inputs in self.trunk.stream(
            self.store, views.centre_crop_batches(self.store, self.rows, size=size, batch_size=BATCH)
        ):
            if self._cached is not None:
                self._cached.append(inputs)
            yield inputs
