"""Model selection: nearest-class-mean accuracy on the validation images."""

import numpy as np
import torch

from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.batches import ImageTable
from sortal.learning.frozen import FrozenEncoder, KeptTokens


class Validation:
    """Measures the accuracy on the validation images; the trunk's tokens are `kept` between epochs if they fit."""

    def __init__(self, trunk: FrozenEncoder, images: ImageSet, store: PixelStore, kept: KeptTokens) -> None:
        rows = np.flatnonzero((images.labels >= 0) & np.isin(images.labels, images.labels[images.labelled]))
        self.table = ImageTable(torch.from_numpy(images.labels[rows]), rows, store, trunk, kept)
        self.held_out = torch.from_numpy(images.validation[rows])

    def accuracy(self) -> float:
        """Return the fraction of validation images whose nearest class mean is that of their own class."""
        x = self.table.features().cpu()
        known, numbers = torch.unique(self.table.labels, return_inverse=True)
        training = ~self.held_out
        sums = torch.zeros(len(known), x.shape[1]).index_add_(0, numbers[training], x[training])
        means = sums / torch.bincount(numbers[training], minlength=len(known))[:, None]
        nearest = torch.cdist(x[self.held_out], means).argmin(1)
        return float((nearest == numbers[self.held_out]).float().mean())
