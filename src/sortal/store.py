"""The pixel store: images that were decoded and resized once, read from memory-mapped files."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.pixels import Quarantined


class PixelStore:
    """The pixels of the images of a set, row by row; rows of `quarantine` have none, and their sizes are 0."""

    def __init__(
        self,
        segments: Sequence[NDArray[np.uint8]],
        segment: NDArray[np.int64],
        offset: NDArray[np.int64],
        heights: NDArray[np.int64],
        widths: NDArray[np.int64],
        quarantine: tuple[Quarantined, ...],
    ) -> None:
        self.heights = heights  # (n,)
        self.widths = widths  # (n,)
        self.quarantine = quarantine
        self._segments = segments
        self._segment = segment
        self._offset = offset

    def __len__(self) -> int:
        return len(self.heights)

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rows have pixels, (n,)."""
        return self.heights > 0

    def image(self, row: int) -> NDArray[np.uint8]:
        """The pixels of an image, (height, width, 3), as they lie in the file."""
        height, width, offset = int(self.heights[row]), int(self.widths[row]), int(self._offset[row])
        flat: NDArray[np.uint8] = self._segments[self._segment[row]][offset : offset + height * width * 3]
        return flat.reshape(height, width, 3)

    def crops(
        self,
        rows: NDArray[np.integer[Any]],
        tops: NDArray[np.integer[Any]],
        lefts: NDArray[np.integer[Any]],
        size: int,
        *,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Square pieces of images, (b, size, size, 3): for each row of `rows`, the one whose corner is at top, left."""
        room_below, room_right = self.heights[rows] - size, self.widths[rows] - size
        bad = (tops < 0) | (lefts < 0) | (tops > room_below) | (lefts > room_right)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"A crop must lie within its image; {size} × {size} at ({int(tops[at])}, {int(lefts[at])}) does not "
                f"in row {int(rows[at])}, {int(self.heights[rows[at]])} × {int(self.widths[rows[at]])} pixels."
            )
        out = np.empty((len(rows), size, size, 3), dtype=np.uint8) if out is None else out
        for piece, row, top, left in zip(out, rows.tolist(), tops.tolist(), lefts.tolist(), strict=True):
            np.copyto(piece, self.image(row)[top : top + size, left : left + size])
        return out
