"""PixelStore: images decoded and resized once, read from memory-mapped files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sortal.errors import InputError
from sortal.images import near_duplicates
from sortal.images.decoding import DIGEST, FACTS, Quarantined
from sortal.images.store.index import Index


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PixelStore:
    """The pixels of an image set, row by row; unreadable images have size 0 and are listed in `quarantine`, in order.

    A store can be sent to another process: it is pickled without the pixels of its file, which is mapped there again.
    """

    flat: NDArray[np.uint8]  # the pixels of all images, each followed by its thumbnail
    offsets: NDArray[np.int64]  # (n,) where the pixels of each image start
    heights: NDArray[np.int64]  # (n,)
    widths: NDArray[np.int64]  # (n,)
    quarantine: tuple[Quarantined, ...]
    digests: NDArray[np.bytes_]  # (n,) of contents; b"" where unreadable
    facts: NDArray[np.void]  # (n,) about the files; zeros where unreadable
    made: str = ""  # the key of the settings that decide the pixels of a content
    file: Path | None = None  # that `flat` is mapped from

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ if self.file is None else {**self.__dict__, "flat": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state if state["file"] is None else {**state, "flat": _mapped(state["file"])})

    def __len__(self) -> int:
        return len(self.heights)

    def __repr__(self) -> str:
        return (
            f"<PixelStore: {len(self):,} images, {self.present.sum():,} stored, {len(self.quarantine):,} in quarantine>"
        )

    @property
    def present(self) -> NDArray[np.bool_]:
        """The mask (n,) of rows that have pixels."""
        return self.heights > 0

    def select(self, rows: NDArray[np.bool_]) -> "PixelStore":
        """Return the rows of a mask (n,), in the same order."""
        columns = {name: getattr(self, name)[rows] for name in ("offsets", "heights", "widths", "digests", "facts")}
        return replace(self, quarantine=tuple(compress(self.quarantine, rows[~self.present])), **columns)

    def image(self, row: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (height, width, 3), as a view of the mapped file."""
        if not 0 <= row < len(self):
            raise InputError(f"row must be from 0 to {len(self) - 1}, got {row}.")
        if not self.heights[row]:
            raise InputError(f"Row {row} has no pixels: its image could not be read; see `quarantine`.")
        return self._image(row)

    def crops(
        self, rows: ArrayLike, tops: ArrayLike, lefts: ArrayLike, size: int, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return square crops, (b, size, size, 3): for each of `rows`, the one whose corner is at (top, left)."""
        if size < 1:
            raise InputError(f"size must be at least 1, got {size}.")
        rows, tops, lefts = (np.asarray(values, dtype=np.int64) for values in (rows, tops, lefts))
        shape = (len(rows), size, size, 3)
        out = np.empty(shape, dtype=np.uint8) if out is None else out
        if not rows.shape == tops.shape == lefts.shape == (len(rows),) or out.shape != shape or out.dtype != np.uint8:
            raise InputError(
                f"rows, tops and lefts must have the same length, and out must be uint8 of shape {shape}; "
                f"got {rows.shape}, {tops.shape}, {lefts.shape} and {out.dtype} {out.shape}."
            )
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise InputError(f"rows must be from 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}.")
        bad = (tops < 0) | (lefts < 0) | (tops > self.heights[rows] - size) | (lefts > self.widths[rows] - size)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            unread = "; it could not be read, see `quarantine`" if not self.heights[rows[at]] else ""
            raise InputError(
                f"A crop must lie within its image; {size} × {size} at ({tops[at]}, {lefts[at]}) does not lie within "
                f"row {rows[at]}, {self.heights[rows[at]]} × {self.widths[rows[at]]} pixels{unread}."
            )
        for piece, row, top, left in zip(out, rows.tolist(), tops.tolist(), lefts.tolist(), strict=True):
            np.copyto(piece, self._image(row)[top : top + size, left : left + size])
        return out

    def thumbnails(self) -> NDArray[np.uint8]:
        """Return the thumbnails that near-duplicates are found by, (n, LENGTH); zeros where unreadable."""
        found = np.zeros((len(self), near_duplicates.LENGTH), np.uint8)
        for row in np.flatnonzero(self.present):
            end = self.offsets[row] + 3 * self.heights[row] * self.widths[row]
            found[row] = self.flat[end : end + near_duplicates.LENGTH]
        return found

    def _image(self, row: int) -> NDArray[np.uint8]:
        height, width, offset = int(self.heights[row]), int(self.widths[row]), int(self.offsets[row])
        return self.flat[offset : offset + height * width * 3].reshape(height, width, 3)


def open_store(index: Index, contents: Sequence[str], quarantine: tuple[Quarantined, ...] = ()) -> PixelStore:
    """Map the pixels of stored contents, row by row; "" stands for an unreadable image."""
    table = np.zeros((3, len(contents)), dtype=np.int64)
    facts = np.zeros(len(contents), FACTS)
    for row, content in enumerate(contents):
        if content:
            *place, fact = index.stored[content]
            table[:, row], facts[row] = place, tuple(fact)
    file = index.pixels.absolute() if any(contents) else None
    return PixelStore(
        flat=np.zeros(0, np.uint8) if file is None else _mapped(file),
        offsets=table[0],
        heights=table[1],
        widths=table[2],
        quarantine=quarantine,
        digests=np.array(contents, dtype=f"S{DIGEST}"),
        facts=facts,
        made=index.home.name,
        file=file,
    )


def _mapped(file: Path) -> NDArray[np.uint8]:
    return np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))  # slicing this is faster than slicing a map
