"""Completeness: cheap checks that a file has not been cut, where decoders would fill in what is missing.

What these checks and Pillow miss is a file that ends as it should, but with fewer pixels than its header claims.
"""

import re

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sortal.errors import UnreadableError

SEGMENT = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd8]")  # a marker of a JPEG that a length follows, or its end
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
MAX_SCANS = 200  # of a progressive JPEG; encoders write about ten, and each one costs a pass over all pixels


def check(image: Image.Image, data: bytes) -> None:
    """Raise UnreadableError if an image, opened but not decoded, lacks its end."""
    if isinstance(image, JpegImageFile):
        _check_scans(data)
    elif isinstance(image, TiffImageFile):
        _check_strips(image)


def _check_scans(data: bytes) -> None:
    """Require an end marker after the scans of a JPEG, and no more scans than can be decoded in reasonable time."""
    at = 2
    while (found := SEGMENT.search(data, at)) and found[0] not in (START_OF_SCAN, END_OF_IMAGE):
        at = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")  # of the whole segment
    end = data.find(END_OF_IMAGE, at)
    if end < 0:
        raise UnreadableError("truncated", "the JPEG has no end marker")
    if data.count(START_OF_SCAN, at, end) > MAX_SCANS:
        raise UnreadableError("too large", f"a JPEG of more than {MAX_SCANS:,} scans")


def _check_strips(image: TiffImageFile) -> None:
    """Require that the strips or tiles of a TIFF cover it."""
    boxes = {tile.extents or (0, 0, *image.size) for tile in image.tile}
    if sum((right - left) * (bottom - top) for left, top, right, bottom in boxes) < image.width * image.height:
        raise UnreadableError("truncated", "the TIFF lacks some of its strips or tiles")
