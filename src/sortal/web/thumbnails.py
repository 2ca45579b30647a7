"""Thumbnails: small pictures of many images on a few sheets, as large as their room allows."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GAP = 2  # pixels around a picture that repeat its edge, so that scaling mixes in nothing of the neighbours
SHEET = 1024  # pixels: about as wide and as high is a sheet; browsers decode no more than those in view
PILOT = 48  # images encoded to guess what all would take
TINY = 48  # pixels: images no larger are kept as they are, dot by dot
SAFE = 0.95  # of the room, which a guess may fill

Pixels = NDArray[np.uint8]  # (height, width, 3)


class Store(Protocol):
    """What holds the pixels of images, row by row; rows of height 0 have none."""

    @property
    def heights(self) -> NDArray[np.int64]: ...

    @property
    def widths(self) -> NDArray[np.int64]: ...

    def image(self, row: int, /) -> Pixels: ...


@dataclass(frozen=True)
class Step:
    """How large and how good pictures are."""

    cell: int  # pixels: a picture and the gap around it
    quality: int  # of WebP; 100 is lossless


LADDER = tuple(
    Step(cell, quality)
    for cell, quality in (
        *((192, 80), (160, 78), (128, 75), (112, 72), (96, 70)),
        *((80, 65), (64, 55), (48, 45), (40, 40), (32, 35)),
    )
)


@dataclass(frozen=True, kw_only=True)
class Sheets:
    """Pictures side by side in their order: `columns` to a line and as many lines to a sheet."""

    cell: int
    columns: int
    sizes: list[tuple[int, int]]  # (width, height) of each picture, in the middle of its cell; (0, 0) without one
    images: list[bytes]  # WebP
    crisp: bool  # whether pictures are so small that they are better enlarged dot by dot

    @property
    def bytes(self) -> int:
        return sum(map(len, self.images))


def sheets(
    store: Store,
    rows: Sequence[int],
    *,
    room: int,
    cells: tuple[int, int],
    on_done: Callable[[int], None] = lambda _: None,
) -> Sheets | None:
    """The best pictures of these rows that take at most `room` bytes, or nothing if none are small enough.

    `cells` are the smallest and the largest size that will do.
    """
    for step in _worth_trying(store, rows, room, cells):
        made = _encode(store, rows, step, on_done)
        if made.bytes <= room:
            return made
    return None


def _worth_trying(store: Store, rows: Sequence[int], room: int, cells: tuple[int, int]) -> list[Step]:
    """Steps of the ladder, the best first, from the first on that should do by what a few of the images take."""
    side = _largest(store, rows) + 2 * GAP
    steps = [Step(min(step.cell, side), step.quality) for step in LADDER if cells[0] <= step.cell <= cells[1]]
    if side <= TINY + 2 * GAP:
        steps = [Step(side, 100), *steps]
    pilot = [rows[at] for at in np.linspace(0, len(rows) - 1, min(PILOT, len(rows))).astype(int)] if rows else []
    scale = len(rows) / max(1, len(pilot))
    for first, step in enumerate(steps):
        if _encode(store, pilot, step).bytes * scale <= SAFE * room:
            return steps[first:]
    return steps[-1:]


def _largest(store: Store, rows: Sequence[int]) -> int:
    """The longest side of these images."""
    at = np.asarray(rows, dtype=np.int64)
    return max(1, int(max(store.heights[at].max(initial=0), store.widths[at].max(initial=0))))


def _encode(store: Store, rows: Sequence[int], step: Step, on_done: Callable[[int], None] = lambda _: None) -> Sheets:
    columns = max(1, SHEET // step.cell)
    sizes: list[tuple[int, int]] = []
    images = []
    for start in range(0, len(rows), columns * columns):
        part = rows[start : start + columns * columns]
        lines = -(-len(part) // columns)
        sheet = np.full((lines * step.cell, min(columns, len(part)) * step.cell, 3), 128, dtype=np.uint8)
        for at, row in enumerate(part):
            top, left = at // columns * step.cell, at % columns * step.cell
            sizes.append(_draw(sheet[top : top + step.cell, left : left + step.cell], store, row))
        images.append(_webp(sheet, step.quality))
        on_done(len(sizes))
    return Sheets(cell=step.cell, columns=columns, sizes=sizes, images=images, crisp=step.quality == 100)


def _draw(cell: Pixels, store: Store, row: int) -> tuple[int, int]:
    """Put the image of a row into the middle of a cell; its width and height there."""
    if not store.heights[row]:
        return 0, 0
    picture = fit(store.image(row), len(cell) - 2 * GAP)
    height, width = picture.shape[:2]
    top, left = (len(cell) - height) // 2, (len(cell) - width) // 2
    around = ((top, len(cell) - height - top), (left, len(cell) - width - left), (0, 0))
    cell[:] = np.pad(picture, around, mode="edge")
    return width, height


def fit(image: Pixels, side: int) -> Pixels:
    """The whole image, so that its longer side is `side`; a smaller one is enlarged dot by dot, by a whole number."""
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
