"""The training images by their numbers in batches: labels, and features as they are now."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.frozen import FrozenEncoder, KeptTokens


@dataclass(frozen=True, eq=False)
class Numbering:
    """Numbers from 0 to m − 1 for the images of some rows; equal values share one."""

    numbers: NDArray[np.int64]  # (n,) of all rows; −1 for others
    rows: NDArray[np.int64]  # (m,), one of each number
    labels: NDArray[np.int64]  # (m,), that of any image with the number; −1 without one

    @classmethod
    def of(cls, values: NDArray[np.int64], rows: NDArray[np.int64], labels: NDArray[np.int64]) -> Self:
        """Number the values (n,) of some rows; labels are (n,)."""
        numbers = np.full(len(values), -1)
        _, first, numbers[rows] = np.unique(values[rows], return_index=True, return_inverse=True)
        found = np.full(len(first), -1)
        np.maximum.at(found, numbers[rows], labels[rows])
        return cls(numbers, rows[first], found)


def shared_groups(images: ImageSet, numbering: Numbering, device: torch.device) -> Tensor | None:
    """Return the given group (m,) of each number; None if each image is its own."""
    groups = images.groups
    return torch.from_numpy(groups[numbering.rows]).to(device) if len(np.unique(groups)) < len(groups) else None


@dataclass(frozen=True, eq=False)
class ImageTable:
    """The images that `Batch.images` numbers from 0 to m − 1; copies of one image share a number."""

    labels: Tensor  # (m,), class number; −1 is unlabelled
    rows: NDArray[np.int64]  # (m,), of the store
    store: PixelStore
    trunk: FrozenEncoder
    kept: KeptTokens  # of the trunk, between epochs

    def features(self, forward: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Compute the features of all images from centre crops, (m, d) float32 of unit length, on the device.

        With `forward`, such as a method, it is what that makes of the trunk's tokens.
        """
        tokens = self.kept.of(self.rows, lambda: self.trunk.centre_crops(self.store, self.rows))
        return nnf.normalize(torch.cat([*self.trunk.finished(tokens, forward)]).float(), dim=1)
