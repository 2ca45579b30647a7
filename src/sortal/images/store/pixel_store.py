"""PixelStore: images decoded and resized once, read from memory-mapped files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from sortal.errors import InputError
from sortal.images import near_duplicates
from sortal.images.decoding import DIGEST_SIZE, FACTS, Quarantined
from sortal.images.store.index import Index
from sortal.images.store.vector_rows import Vectors
from sortal.system.mapped_arrays import check_whole
from sortal.system.regular_files import open_regular
from sortal.system.text import plural

COLUMNS = ("parts", "offsets", "heights", "widths", "digests", "facts")  # of a PixelStore, a row per image


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PixelStore:
    """The pixels of an image set, row by row; unreadable images have size 0 and are listed in `quarantine`, in order.

    A store can be sent to another process: it is pickled without the pixels of its files, which are mapped there again.
    """

    flat: tuple[NDArray[np.uint8], ...]  # of each part: the pixels of its images, each followed by its thumbnail
    parts: NDArray[np.int64]  # (n,) number in `flat` of the part that each image is in
    offsets: NDArray[np.int64]  # (n,) where its pixels start there
    heights: NDArray[np.int64]  # (n,)
    widths: NDArray[np.int64]  # (n,)
    quarantine: tuple[Quarantined, ...]
    digests: NDArray[np.bytes_]  # (n,) of contents; b"" where unreadable
    facts: NDArray[np.void]  # (n,) about the files; zeros where unreadable
    vectors: Vectors | None = None  # that are sorted instead of these pixels, which are only looked at
    made: str = ""  # the key of the settings that decide the pixels of a content
    files: tuple[Path, ...] = ()  # that `flat` is mapped from

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "flat": ()} if self.files else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "flat": tuple(map(_mapped, state["files"]))} if state["files"] else state)

    def __len__(self) -> int:
        return len(self.heights)

    def __repr__(self) -> str:
        return (
            f"<PixelStore: {plural(len(self), 'image')}, {self.present.sum():,} stored, "
            f"{len(self.quarantine):,} in quarantine>"
        )

    @property
    def present(self) -> NDArray[np.bool_]:
        """The mask (n,) of rows that have pixels."""
        return self.heights > 0

    def select(self, rows: NDArray[np.bool_]) -> "PixelStore":
        """Return the rows of a mask (n,), in the same order."""
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        vectors = None if self.vectors is None else self.vectors.select(rows)
        quarantine = tuple(compress(self.quarantine, rows[~self.present]))
        return replace(self, quarantine=quarantine, vectors=vectors, **columns)

    def image(self, row: int) -> NDArray[np.uint8]:
        """Return the pixels of an image, (height, width, 3), as a view of the mapped file."""
        if not 0 <= row < len(self):
            raise InputError(f"row must be from 0 to {len(self) - 1}, got {row}.")
        if not self.heights[row]:
            raise InputError(f"Row {row} has no pixels: its image could not be read; see `quarantine`.")
        self._check_whole()
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
        self._check_whole()
        for piece, row, top, left in zip(out, rows.tolist(), tops.tolist(), lefts.tolist(), strict=True):
            np.copyto(piece, self._image(row)[top : top + size, left : left + size])
        return out

    def thumbnails(self) -> NDArray[np.uint8]:
        """Return the thumbnails that near-duplicates are found by, (n, LENGTH); zeros where unreadable."""
        self._check_whole()
        found = np.zeros((len(self), near_duplicates.LENGTH), np.uint8)
        for row in np.flatnonzero(self.present):
            end = self.offsets[row] + 3 * self.heights[row] * self.widths[row]
            found[row] = self.flat[self.parts[row]][end : end + near_duplicates.LENGTH]
        return found

    def _check_whole(self) -> None:
        for file, part in zip(self.files, self.flat, strict=False):  # pixels that are not in files have none
            check_whole(part, f"The pixel store {str(file)!r}")

    def _image(self, row: int) -> NDArray[np.uint8]:
        height, width, offset = int(self.heights[row]), int(self.widths[row]), int(self.offsets[row])
        part: NDArray[np.uint8] = self.flat[self.parts[row]]
        return part[offset : offset + height * width * 3].reshape(height, width, 3)


def open_store(index: Index, contents: Sequence[str], quarantine: tuple[Quarantined, ...] = ()) -> PixelStore:
    """Map the pixels of stored contents, row by row; "" stands for an unreadable image."""
    table = np.zeros((4, len(contents)), dtype=np.int64)
    facts = np.zeros(len(contents), FACTS)
    for row, content in enumerate(contents):
        if content:
            offset, height, width, fact, part = index.stored[content]
            table[:, row], facts[row] = (part, offset, height, width), tuple(fact)
    used, parts = np.unique(table[0], return_inverse=True)
    files = tuple(index.pixels(part).absolute() for part in used.tolist()) if any(contents) else ()
    return PixelStore(
        flat=tuple(map(_mapped, files)),
        parts=parts,
        offsets=table[1],
        heights=table[2],
        widths=table[3],
        quarantine=quarantine,
        digests=np.array(contents, dtype=f"S{DIGEST_SIZE}"),
        facts=facts,
        made=index.home.name,
        files=files,
    )


def _mapped(file: Path) -> NDArray[np.uint8]:
    try:
        with open_regular(file) as opened:
            return np.asarray(np.memmap(opened, dtype=np.uint8, mode="r"))  # slicing this is faster than slicing a map
    except (OSError, ValueError) as error:  # ValueError: it is empty
        why = getattr(error, "strerror", None) or error
        raise InputError(f"The pixel store {str(file)!r} cannot be read: {why}. Run the same command again.") from error


def fit(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Resize an image so that its longer side is `side`; enlarge a smaller one by a whole factor."""
    height, width = image.shape[:2]
    if (times := side // max(height, width)) >= 1:
        return image.repeat(times, axis=0).repeat(times, axis=1)
    smaller = Image.fromarray(image)
    smaller.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=2.0)
    return np.asarray(smaller)
