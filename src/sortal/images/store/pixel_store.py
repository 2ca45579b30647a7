"""The pixel store: images that were decoded and resized once, read from memory-mapped files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sortal import segments
from sortal.errors import InputError
from sortal.pixels import DIGEST, Quarantined


class PixelStore:
    """The pixels of the images of a set, row by row; rows of `quarantine` have none, and their sizes are 0.

    A store can be sent to another process: it is pickled without its pixels, which are mapped there again.
    """

    def __init__(
        self,
        segments: Sequence[NDArray[np.uint8]],
        segment: NDArray[np.int64],
        offset: NDArray[np.int64],
        heights: NDArray[np.int64],
        widths: NDArray[np.int64],
        quarantine: tuple[Quarantined, ...],
        digests: NDArray[np.bytes_] | None = None,
        made: str = "",
    ) -> None:
        self.heights = heights  # (n,)
        self.widths = widths  # (n,)
        self.quarantine = quarantine
        self.digests = np.zeros(len(heights), "S32") if digests is None else digests  # (n,) of contents; b"" unread
        self.made = made  # how, in a word: the key of the settings that decide the pixels of a content
        self._segment = segment
        self._offset = offset
        self._maps = segments
        self._flat = [np.asarray(flat) for flat in segments]  # slicing these is faster than slicing maps

    def __getstate__(self) -> dict[str, Any]:
        maps = [flat.filename if isinstance(flat, np.memmap) else flat for flat in self._maps]
        return {**self.__dict__, "_maps": maps, "_flat": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        maps = [
            flat if isinstance(flat, np.ndarray) else np.memmap(flat, dtype=np.uint8, mode="r")
            for flat in state["_maps"]
        ]
        self.__dict__.update(state, _maps=maps, _flat=[np.asarray(flat) for flat in maps])

    def __len__(self) -> int:
        return len(self.heights)

    def __repr__(self) -> str:
        return (
            f"<PixelStore: {len(self):,} images, {self.present.sum():,} stored, {len(self.quarantine):,} in quarantine>"
        )

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rows have pixels, (n,)."""
        return self.heights > 0

    def select(self, rows: NDArray[np.bool_]) -> "PixelStore":
        """The rows of a mask (n,), in the same order; the quarantine stays whole."""
        return PixelStore(
            self._maps,
            self._segment[rows],
            self._offset[rows],
            self.heights[rows],
            self.widths[rows],
            self.quarantine,
            self.digests[rows],
            self.made,
        )

    def image(self, row: int) -> NDArray[np.uint8]:
        """The pixels of an image, (height, width, 3), as they lie in the file."""
        if not 0 <= row < len(self):
            raise InputError(f"row must be from 0 to {len(self) - 1}, got {row}.")
        if not self.heights[row]:
            raise InputError(f"Row {row} has no pixels: its image could not be read; see quarantine.")
        return self._image(row)

    def crops(
        self, rows: ArrayLike, tops: ArrayLike, lefts: ArrayLike, size: int, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Square pieces of images, (b, size, size, 3): for each row of `rows`, the one whose corner is at top, left."""
        if size < 1:
            raise InputError(f"size must be at least 1, got {size}.")
        rows, tops, lefts = (np.asarray(values, dtype=np.int64) for values in (rows, tops, lefts))
        shape = (len(rows), size, size, 3)
        out = np.empty(shape, dtype=np.uint8) if out is None else out
        if not rows.shape == tops.shape == lefts.shape == (len(rows),) or out.shape != shape or out.dtype != np.uint8:
            raise InputError(
                f"rows, tops and lefts must be as long as each other and out uint8 of shape {shape}, "
                f"got {rows.shape}, {tops.shape}, {lefts.shape} and {out.dtype} {out.shape}."
            )
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise InputError(f"rows must be from 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}.")
        bad = (tops < 0) | (lefts < 0) | (tops > self.heights[rows] - size) | (lefts > self.widths[rows] - size)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            unread = "; it could not be read, see quarantine" if not self.heights[rows[at]] else ""
            raise InputError(
                f"A crop must lie within its image; {size} × {size} at ({tops[at]}, {lefts[at]}) does not "
                f"in row {rows[at]}, {self.heights[rows[at]]} × {self.widths[rows[at]]} pixels{unread}."
            )
        for piece, row, top, left in zip(out, rows.tolist(), tops.tolist(), lefts.tolist(), strict=True):
            np.copyto(piece, self._image(row)[top : top + size, left : left + size])
        return out

    def _image(self, row: int) -> NDArray[np.uint8]:
        height, width, offset = int(self.heights[row]), int(self.widths[row]), int(self._offset[row])
        flat: NDArray[np.uint8] = self._flat[self._segment[row]][offset : offset + height * width * 3]
        return flat.reshape(height, width, 3)


def opened(home: Path, contents: Sequence[str], quarantine: tuple[Quarantined, ...] = ()) -> PixelStore:
    """The pixels of contents that are stored in a folder, row by row; "" has none."""
    places = segments.places(home)
    files = {segment: number for number, segment in enumerate(segments.find(home))}
    table = np.zeros((4, len(contents)), dtype=np.int64)  # segment, offset, height, width
    for row, content in enumerate(contents):
        if content:
            place = places[content]
            entry = place.segment.plan[place.slot]
            sides = (int(entry["height"]), int(entry["width"]))
            turned = place.mark == segments.TURNED
            table[:, row] = files[place.segment], entry["offset"], *(sides[::-1] if turned else sides)
    segment, offset, heights, widths = table
    digests = np.array(contents, dtype=f"S{DIGEST}")
    maps = [file.pixels() for file in files]
    return PixelStore(maps, segment, offset, heights, widths, quarantine, digests, home.name)
