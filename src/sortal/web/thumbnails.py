"""Thumbnails: sprite sheets of many small pictures, as large as their byte budget allows."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GAP = 2  # pixels around a picture that repeat its edge, so that scaling does not blend in its neighbours
SHEET = 1024  # pixels: the approximate side of a sheet; browsers decode only the sheets in view
PILOT = 48  # images encoded to estimate the size of all
TINY = 48  # pixels: images up to this size are stored losslessly
SAFE = 0.95  # of the budget that an estimate may fill

Pixels = NDArray[np.uint8]  # (height, width, 3)


class Store(Protocol):
    """The pixels of images, by row; a row of height 0 has none."""

    @property
    def heights(self) -> NDArray[np.int64]: ...

    @property
    def widths(self) -> NDArray[np.int64]: ...

    def image(self, row: int, /) -> Pixels: ...


@dataclass(frozen=True)
class Encoding:
    """The size and quality of pictures."""

    cell: int  # pixels of a picture with the gap around it
    quality: int  # of WebP; 100 is lossless


QUALITY = {192: 80, 160: 78, 128: 75, 112: 72, 96: 70, 80: 65, 64: 55, 48: 45, 40: 40, 32: 35}  # by cell, best first


@dataclass(frozen=True, kw_only=True)
class Sheets:
    """Pictures side by side, in order: `columns` to a line and as many lines to a sheet."""

    cell: int
    columns: int
    sizes: list[tuple[int, int]]  # (width, height) of each picture, centred in its cell; (0, 0) if it is missing
    images: list[bytes]  # WebP
    crisp: bool  # whether pictures are so small that they are best enlarged pixel by pixel

    @property
    def bytes(self) -> int:
        return sum(map(len, self.images))


def make_sheets(
    store: Store,
    rows: Sequence[int],
    *,
    room: int,
    cells: tuple[int, int],
    on_done: Callable[[int], None] = lambda _: None,
) -> Sheets | None:
    """Return the best pictures of these rows in at most `room` bytes; None if even the smallest take more.

    `cells` are the smallest and the largest acceptable size.
    """
    for encoding in _candidates(store, rows, room, cells):
        made = _encode(store, rows, encoding, on_done)
        if made.bytes <= room:
            return made
    return None


def _candidates(store: Store, rows: Sequence[int], room: int, cells: tuple[int, int]) -> list[Encoding]:
    """Return the encodings from the best one that should fit, judging by a few images."""
    side = _largest(store, rows) + 2 * GAP
    allowed = [Encoding(min(each, side), quality) for each, quality in QUALITY.items() if cells[0] <= each <= cells[1]]
    if side <= TINY + 2 * GAP:
        allowed = [Encoding(side, 100), *allowed]
    pilot = [rows[at] for at in np.linspace(0, len(rows) - 1, min(PILOT, len(rows))).astype(int)] if rows else []
    scale = len(rows) / max(1, len(pilot))
    for first, encoding in enumerate(allowed):
        if _encode(store, pilot, encoding).bytes * scale <= SAFE * room:
            return allowed[first:]
    return allowed[-1:]


def _largest(store: Store, rows: Sequence[int]) -> int:
    """Return the longest side of these images."""
    at = np.asarray(rows, dtype=np.int64)
    return max(1, int(max(store.heights[at].max(initial=0), store.widths[at].max(initial=0))))


def _encode(
    store: Store, rows: Sequence[int], encoding: Encoding, on_done: Callable[[int], None] = lambda _: None
) -> Sheets:
    cell = encoding.cell
    columns = max(1, SHEET // cell)
    sizes: list[tuple[int, int]] = []
    images = []
    for start in range(0, len(rows), columns * columns):
        part = rows[start : start + columns * columns]
        lines = -(-len(part) // columns)
        sheet = np.full((lines * cell, min(columns, len(part)) * cell, 3), 128, dtype=np.uint8)
        for at, row in enumerate(part):
            top, left = at // columns * cell, at % columns * cell
            sizes.append(_draw(sheet[top : top + cell, left : left + cell], store, row))
        images.append(_webp(sheet, encoding.quality))
        on_done(len(sizes))
    return Sheets(cell=cell, columns=columns, sizes=sizes, images=images, crisp=encoding.quality == 100)


def _draw(cell: Pixels, store: Store, row: int) -> tuple[int, int]:
    """Draw an image into the middle of a cell; return its width and height there."""
    if not store.heights[row]:
        return 0, 0
    picture = fit(store.image(row), len(cell) - 2 * GAP)
    height, width = picture.shape[:2]
    top, left = (len(cell) - height) // 2, (len(cell) - width) // 2
    around = ((top, len(cell) - height - top), (left, len(cell) - width - left), (0, 0))
    cell[:] = np.pad(picture, around, mode="edge")
    return width, height


def fit(image: Pixels, side: int) -> Pixels:
    """Resize an image so that its longer side is `side`; enlarge a smaller one by a whole factor."""
    height, width = image.shape[:2]
    if (times := side // max(height, width)) >= 1:
        return image.repeat(times, axis=0).repeat(times, axis=1)
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    smaller = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    return np.asarray(smaller)


def _webp(sheet: Pixels, quality: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "WEBP", quality=quality, lossless=quality == 100)
    return buffer.getvalue()
