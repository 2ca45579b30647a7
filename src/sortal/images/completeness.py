"""Completeness: whether a file holds all the pixels that its header claims.

Decoders fill in what is missing, with grey, black or nothing, and keep it to themselves. What is found here costs sound
images next to nothing.
"""

import re
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sortal.errors import UnreadableError

MAX_SCANS = 200  # of a progressive JPEG; encoders write about ten, and each one costs a pass over all pixels


def check(image: Image.Image, data: bytes) -> None:
    """Raise UnreadableError if an opened image lacks pixels; to find out, JPEGs and PNGs are decoded."""
    if isinstance(image, JpegImageFile):
        _load_jpeg(image, data)
    elif isinstance(image, PngImageFile):
        _load_png(image, data)
    elif isinstance(image, TiffImageFile):
        _check_strips(image)


# JPEG

MARKER = re.compile(rb"\xff[^\x00\xff]")
RESTART = re.compile(rb"\xff[\xd0-\xd7]")
SEGMENT = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd8]")  # a marker with a length, or the end
END_OF_IMAGE, START_OF_SCAN, RESTART_INTERVAL = 0xD9, 0xDA, 0xDD
SEQUENTIAL, PROGRESSIVE = (0xC0, 0xC1), 0xC2  # frames with Huffman codes
ONES = b"\xff\x00"  # 8 bits of the longest Huffman code, which is never used
PADDING = 32 * ONES  # more than decoders read ahead, less than most blocks of 8 × 8 pixels take
RESTARTS = tuple(bytes([0xFF, 0xD0 + n]) + ONES for n in range(8))  # for a decoder that waits for one of them
COEFFICIENTS = 64


@dataclass
class _Scans:
    """The frame of a JPEG and its scans."""

    start: int = 0  # of the data of the first scan
    end: int = 0  # of the data of the last one
    several: bool = False
    restarts: bool = False  # whether there are markers at which decoding can start again
    components: int = 0
    progressive: bool = False
    begun: dict[int, int] = field(default_factory=dict)  # by component: a bit for each coefficient that some scan has
    exact: dict[int, int] = field(default_factory=dict)  # the same, down to its last bit
    count: int = 0

    def add(self, header: bytes) -> None:
        """Note what a scan holds: its header names components, coefficients and bits."""
        names = header[1 : 1 + 2 * header[0] : 2]
        first, last, bits = header[1 + 2 * header[0] :][:3] if self.progressive else (0, COEFFICIENTS - 1, 0)
        held = ((1 << (last - first + 1)) - 1) << first if first <= last < COEFFICIENTS else 0
        for name in names:
            self.begun[name] = self.begun.get(name, 0) | held
            self.exact[name] = self.exact.get(name, 0) | (held if bits & 15 == 0 else 0)
        self.several |= self.progressive or len(names) < self.components
        self.count += 1

    @property
    def all_there(self) -> bool:
        """Whether every component has been sent, and to the last bit what has been begun of it."""
        return len(self.begun) >= self.components and all(self.begun[name] == self.exact[name] for name in self.begun)


def _load_jpeg(image: JpegImageFile, data: bytes) -> None:
    """Decode a JPEG, and require that its entropy-coded data suffice for all its pixels.

    Where they end, the decoder finds ones instead of a marker: asked for more pixels, it does not make them up, but
    waits for data that do not come.
    """
    scans = _find_scans(data)
    if scans is None or len(image.tile) != 1:
        image.load()
        return
    if scans.several and not scans.all_there:
        raise UnreadableError("truncated", "the last scans of the JPEG are missing")
    if scans.restarts and not scans.several and not _in_turn(data, scans):
        raise UnreadableError("damaged", "restart markers of the JPEG are missing")
    _, extents, offset, args = image.tile[0]
    image.load_prepare()
    decoder = Image._getdecoder(image.mode, "jpeg", args, image.decoderconfig)
    try:
        decoder.setimage(image.im, extents)
        _feed(decoder, data, offset, scans)
    finally:
        decoder.cleanup()
    image.tile = []


def _in_turn(data: bytes, scans: _Scans) -> bool:
    """Return whether the restart markers of the only scan are numbered 0 to 7 again and again, as they must be."""
    numbers = b"".join(RESTART.findall(data, scans.start, scans.end))[1::2]
    return numbers == (bytes(range(0xD0, 0xD8)) * (len(numbers) // 8 + 1))[: len(numbers)]


def _feed(decoder: Any, data: bytes, start: int, scans: _Scans) -> None:
    """Decode the data of all scans; raise UnreadableError if they end too early."""
    used, error = decoder.decode(memoryview(data)[start : scans.end])
    left = data[start + used : scans.end] if used >= 0 else b""
    for more in (PADDING, ONES, ONES, *(RESTARTS if scans.restarts else ())):
        if used >= 0:
            used, error = decoder.decode(left + more)
            left = (left + more)[used:] if used >= 0 else b""
        if left:  # an unfinished block; beyond the last one everything is skipped
            break
    if used >= 0 and scans.several and not left:
        used, error = decoder.decode(b"\xff\xd9")
    if used >= 0:
        raise UnreadableError("truncated", "the JPEG has an end marker, but its last pixels are missing")
    if error < 0:
        raise ImageFile._get_oserror(error, encoder=False)


def _find_scans(data: bytes) -> _Scans | None:
    """Return the scans of a JPEG with Huffman codes; None if it is of another kind, or broken before its first scan."""
    scans, at = _Scans(), 2
    while found := SEGMENT.search(data, at):
        at, kind = found.start(), data[found.start() + 1]
        if kind == END_OF_IMAGE:
            scans.end = scans.end or at
            break
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at + 4 : at + 2 + length]
        if kind in (*SEQUENTIAL, PROGRESSIVE) and len(segment) > 5:
            scans.components, scans.progressive = segment[5], kind == PROGRESSIVE
        elif kind == RESTART_INTERVAL:
            scans.restarts = segment > b"\0\0"
        elif kind == START_OF_SCAN:
            if not scans.components or not segment or len(segment) < 4 + 2 * segment[0]:
                break
            scans.add(segment)
            scans.start = scans.start or at + 2 + length
            if scans.count > MAX_SCANS:
                raise UnreadableError("too large", f"a JPEG of more than {MAX_SCANS:,} scans")
            if not scans.several:
                end = (SEGMENT if scans.restarts else MARKER).search(data, scans.start)
                scans.end = end.start() if end else 0
                break
        at += 2 + length
    if (scans.count and not scans.end) or data.find(b"\xff\xd9", scans.end or at) < 0:
        raise UnreadableError("truncated", "the JPEG has no end marker")
    if not scans.count:
        return None
    return scans


# PNG

SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # per pixel, by colour type
WHOLE = ((0, 0, 1, 1),)  # first column and row, and the steps, of the only pass
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
PIECE = 2**20  # bytes inflated at a time


def _load_png(image: PngImageFile, data: bytes) -> None:
    """Decode a PNG, and require that its stream has all rows: missing ones are left at 0.

    Only where the row that comes last in the file is 0 are the bytes of the stream counted.
    """
    image.load()
    width, height = image.size
    interlaced = data[28] != 0
    last = height - 1 - (interlaced and height % 2)  # the last pass has the odd rows
    if last > 0 and np.asarray(image.crop((0, last, width, last + 1))).any():
        return
    needed = _png_bytes(width, height, data[24] * SAMPLES.get(data[25], 1), interlaced)
    found = _inflated_bytes(data, needed)
    if found < needed:
        raise UnreadableError("truncated", f"the PNG has only {found:,} of the {needed:,} bytes of its rows")


def _png_bytes(width: int, height: int, bits: int, interlaced: bool) -> int:
    """Return the length of the rows of a PNG, each with a byte for its filter."""
    total = 0
    for x, y, across, down in PASSES if interlaced else WHOLE:
        columns, rows = -(-(width - x) // across), -(-(height - y) // down)
        total += rows * (1 + -(-columns * bits // 8)) if columns > 0 and rows > 0 else 0
    return total


def _inflated_bytes(data: bytes, needed: int) -> int:
    """Return how many bytes of rows a PNG has, up to `needed`."""
    stream, at, found = zlib.decompressobj(), 8, 0
    while found < needed and not stream.eof and len(head := data[at : at + 8]) == 8:
        length = int.from_bytes(head[:4], "big")
        if head[4:] == b"IDAT":
            left: bytes = data[at + 8 : at + 8 + length]
            while left and found < needed and not stream.eof:
                found += len(stream.decompress(left, PIECE))
                left = stream.unconsumed_tail
        at += 12 + length
    return found


# TIFF


def _check_strips(image: TiffImageFile) -> None:
    """Require that the strips or tiles of a TIFF cover it."""
    boxes = {tile.extents or (0, 0, *image.size) for tile in image.tile}
    if sum((right - left) * (bottom - top) for left, top, right, bottom in boxes) < image.width * image.height:
        raise UnreadableError("truncated", "the TIFF lacks some of its strips or tiles")
