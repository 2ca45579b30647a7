"""Feature vectors that are sorted instead of images: their contents, their neighbours and their spread."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sortal.images.decoding import DIGEST_SIZE, digest

VectorMatrix = NDArray[np.float32]
NEIGHBOURS = 8  # of each vector
MOST_ANCHORS = 8192  # vectors, evenly spaced, that neighbours are looked for among
ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Vectors:
    """Rows of unit length, (n, d), but for those that are 0."""

    rows: VectorMatrix

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: NDArray[np.bool_]) -> "Vectors":
        """Return the rows of a mask (n,)."""
        return Vectors(self.rows[rows])

    @cached_property
    def means(self) -> VectorMatrix:
        """The mean of each dimension, (d,)."""
        return self.rows.mean(axis=0, dtype=np.float64).astype(np.float32)

    @cached_property
    def deviations(self) -> VectorMatrix:
        """The standard deviation of each dimension, (d,)."""
        return self.rows.std(axis=0, dtype=np.float64).astype(np.float32)

    @cached_property
    def neighbours(self) -> NDArray[np.int64]:
        """The rows of the nearest others of each, (n, count), the nearest first; among many, of a part of them."""
        n = len(self.rows)
        anchors = np.unique(np.linspace(0, n - 1, min(n, MOST_ANCHORS)).astype(np.int64))
        count = min(NEIGHBOURS, len(anchors) - 1)
        found = np.empty((n, count), dtype=np.int64)
        among = self.rows[anchors].T
        for start in range(0, n, ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            cosines = self.rows[part] @ among
            cosines[anchors == np.arange(n)[part, None]] = -np.inf
            nearest = (
                np.argpartition(-cosines, range(count), axis=1)[:, :count] if count else cosines[:, :0].astype(int)
            )
            found[part] = anchors[nearest]
        return found


def unit_rows(x: NDArray[np.floating]) -> VectorMatrix:
    """Return rows (n, d) of unit length; those that are 0 stay so."""
    lengths = row_lengths(x)
    return (x / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)


def row_lengths(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the length of each row, (n,); squares of float32 numbers may be too large for their type, or too small."""
    return np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))


def digests_of(x: VectorMatrix) -> NDArray[np.bytes_]:
    """Return the digest of each row, (n,)."""
    rows = np.ascontiguousarray(x).view(np.uint8)
    return np.array([digest(row) for row in rows], dtype=f"S{DIGEST_SIZE}")
