"""Moments: images of one moment (a burst, or copies, crops and shifts of one image) or one given group count once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Moments:
    """The moment of each image; most moments have one image."""

    of: NDArray[np.int64]  # (n,) numbers of moments, in the order of their first images

    @classmethod
    def grouped(cls, groups: NDArray[np.generic]) -> "Moments":
        """Number the moments of images whose groups (n,) are given in any way."""
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        return cls(np.argsort(np.argsort(first))[inverse])

    @classmethod
    def single(cls, n: int) -> "Moments":
        """Return a moment for each of n images."""
        return cls(np.arange(n))

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of images of each moment (m,)."""
        return np.bincount(self.of)

    @property
    def any_burst(self) -> bool:
        return len(self) < len(self.of)

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """The mask (n,) of one image of each moment, in the order of the moments."""
        mask = np.zeros(len(self.of), dtype=bool)
        mask[np.unique(self.of, return_index=True)[1]] = True
        return mask

    def any(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the mask (m,) of the moments of which any image is in a mask (n,)."""
        return np.bincount(self.of[mask], minlength=len(self)) > 0

    def labels(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the label (m,) of each moment, that of any labelled image of it; −1 without one."""
        found = np.full(len(self), -1)
        np.maximum.at(found, self.of, labels)
        return found

    def torn(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask (m,) of moments whose images have different labels (n,)."""
        highest, lowest = self.labels(labels), np.full(len(self), np.iinfo(np.int64).max)
        np.minimum.at(lowest, self.of[labels >= 0], labels[labels >= 0])
        return highest > lowest

    def split_where(self, labels: NDArray[np.int64], into: "Moments | None" = None) -> "Moments":
        """Return the moments, with those whose images have different labels (n,) split into others, or into images."""
        torn, parts = self.torn(labels)[self.of], np.arange(len(self.of)) if into is None else into.of
        return self if not torn.any() else Moments.grouped(np.where(torn, len(self) + parts, self.of))

    def joined(self, other: "Moments") -> "Moments":
        """Return moments that have all images of the same images in either."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        if not self.any_burst or not other.any_burst:
            return other if not self.any_burst else self
        pairs = coo_array((np.ones(len(self.of)), (self.of, other.of)), shape=(len(self), len(other)))
        links = coo_array((pairs.data, (pairs.row, len(self) + pairs.col)), shape=(len(self) + len(other),) * 2)
        return Moments.grouped(connected_components(links, directed=False)[1][self.of])

    def of_images(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return for each image the row of its moment, (n, d), of those of all moments (m, d)."""
        return x[self.of] if self.any_burst else x

    def means(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean direction (m, d) of the unit rows (n, d) of each moment."""
        if not self.any_burst:
            return x
        found: NDArray[np.float32] = x[self.first]
        several = np.flatnonzero(self.sizes > 1)
        rows = np.flatnonzero(self.sizes[self.of] > 1)
        sums = np.zeros((len(several), x.shape[1]))
        np.add.at(sums, np.searchsorted(several, self.of[rows]), x[rows].astype(np.float64))
        found[several] = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        return found

    def in_order(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the moments (m,) in the order in which their first images come in this order (n,) of images."""
        ordered = self.of[order]
        return ordered[np.sort(np.unique(ordered, return_index=True)[1])]
