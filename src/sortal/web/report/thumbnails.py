"""Thumbnails: sprite sheets of many small pictures, as large as their byte budget allows."""

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sortal.images.store.pixel_store import PixelStore, fit
from sortal.system.workers import worker_count

CELL_GAP = 2  # pixels around a picture that repeat its edge, so that scaling does not mix it with its neighbours
SHEET_SIDE = 1024  # pixels: the approximate side of a sheet; browsers decode only the sheets in view
PILOT_IMAGES = 48  # images encoded to estimate the size of all
TINY_SIDE = 48  # pixels: images up to this size are stored losslessly
SAFE_SHARE = 0.95  # of the budget that an estimate may fill
# Quality of WebP by cell, which is the pixels of a picture with the gap around it; best first.
QUALITY = {192: 80, 160: 78, 128: 75, 112: 72, 96: 70, 80: 65, 64: 55, 48: 45, 40: 40, 32: 35}
LOSSLESS = 100
# Against the defaults (4, and 100 for lossless): 2.4 times as fast and 4 % larger; lossless, 3.6 times and no larger.
WEBP_METHOD, LOSSLESS_EFFORT = 2, 20
MOST_THREADS = 8  # that encode sheets at the same time, at most

Pixels = NDArray[np.uint8]  # (height, width, 3)
Done = Callable[[int], None]  # called with the number of pictures done so far


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
    store: PixelStore, rows: Sequence[int], *, room: int, cells: tuple[int, int], on_done: Done = lambda _: None
) -> Sheets | None:
    """Return the best pictures of these rows in at most `room` bytes, of sizes between `cells`; None if none fit."""
    for cell, quality in _candidates(store, rows, room, cells):
        made = _encode(store, rows, cell, quality, on_done)
        if made.bytes <= room:
            return made
    return None


def _candidates(store: PixelStore, rows: Sequence[int], room: int, cells: tuple[int, int]) -> list[tuple[int, int]]:
    """Return cells and qualities from the best that should fit, judging by a few images."""
    at = np.asarray(rows, dtype=np.int64)
    side = max(1, *(int(sides[at].max(initial=0)) for sides in (store.heights, store.widths))) + 2 * CELL_GAP
    allowed = [(min(each, side), quality) for each, quality in QUALITY.items() if cells[0] <= each <= cells[1]]
    if side <= TINY_SIDE + 2 * CELL_GAP:
        allowed = [(side, LOSSLESS), *allowed]
    pilot = [rows[at] for at in np.linspace(0, len(rows) - 1, min(PILOT_IMAGES, len(rows))).astype(int)] if rows else []
    scale = len(rows) / max(1, len(pilot))
    for first, (cell, quality) in enumerate(allowed):
        if _encode(store, pilot, cell, quality).bytes * scale <= SAFE_SHARE * room:
            return allowed[first:]
    return allowed[-1:]


def _encode(store: PixelStore, rows: Sequence[int], cell: int, quality: int, on_done: Done = lambda _: None) -> Sheets:
    columns = max(1, SHEET_SIDE // cell)
    parts = [rows[start : start + columns * columns] for start in range(0, len(rows), columns * columns)]
    sizes: list[tuple[int, int]] = []
    images = []
    with ThreadPoolExecutor(min(worker_count(None), MOST_THREADS), thread_name_prefix="sheets") as pool:
        for more, image in pool.map(lambda part: _sheet(store, part, cell, columns, quality), parts):
            sizes += more
            images.append(image)
            on_done(len(sizes))
    return Sheets(cell=cell, columns=columns, sizes=sizes, images=images, crisp=quality == LOSSLESS)


def _sheet(
    store: PixelStore, rows: Sequence[int], cell: int, columns: int, quality: int
) -> tuple[list[tuple[int, int]], bytes]:
    """Return the size of each picture on one sheet, and the sheet as WebP."""
    lines = -(-len(rows) // columns)
    sheet = np.full((lines * cell, min(columns, len(rows)) * cell, 3), 128, dtype=np.uint8)
    sizes = []
    for at, row in enumerate(rows):
        top, left = at // columns * cell, at % columns * cell
        sizes.append(_draw(sheet[top : top + cell, left : left + cell], store, row))
    buffer, lossless = io.BytesIO(), quality == LOSSLESS
    Image.fromarray(sheet).save(
        buffer, "WEBP", quality=LOSSLESS_EFFORT if lossless else quality, lossless=lossless, method=WEBP_METHOD
    )
    return sizes, buffer.getvalue()


def _draw(cell: Pixels, store: PixelStore, row: int) -> tuple[int, int]:
    """Draw an image into the middle of a cell; return its width and height there."""
    if not store.heights[row]:
        return 0, 0
    picture = fit(store.image(row), len(cell) - 2 * CELL_GAP)
    height, width = picture.shape[:2]
    top, left = (len(cell) - height) // 2, (len(cell) - width) // 2
    around = ((top, len(cell) - height - top), (left, len(cell) - width - left), (0, 0))
    cell[:] = np.pad(picture, around, mode="edge")
    return width, height
