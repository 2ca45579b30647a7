"""Safe decoding: untrusted bytes become upright RGB pixels, or an error that names the reason."""

import errno
import hashlib
import io
import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeAlias

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sortal.config import MAX_PIXELS, Interpolation
from sortal.errors import Reason, UnreadableError
from sortal.images import colour_modes
from sortal.images.folders import INSTALL, reads_heif
from sortal.system.regular_files import NotAFileError, open_regular

ImageContent: TypeAlias = bytes | NDArray[np.uint8]  # of a file, or pixels (height, width, 3)
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
HEIF_FORMAT = "HEIF"  # the name of the format that pillow-heif adds to Pillow
MAX_BYTES = 2**30
SHORTER_SIDE = 256  # default size of stored images, as in the paper
PIXEL_VERSION = 2  # of the pixels that `decode` returns; raising it invalidates all pixel stores
# What `decode` refuses depends on these; with another number after PIXEL_VERSION, refused images are tried again.
DECODER = f"{PIXEL_VERSION}.1, Pillow {PIL.__version__}"
DECODER += f", pillow-heif {version('pillow-heif')}" if reads_heif() else ""
TIFFS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", *TIFFS, b"BM", b"GIF8")
SEGMENT = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd8]")  # a marker of a JPEG that a length follows, or its end
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
MAX_SCANS = 200  # of a progressive JPEG; encoders write about ten, and each one costs a pass over all pixels
ORIENTATION = 0x0112  # EXIF tag
RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation
SWAPPED = (5, 6, 7, 8)  # orientations that exchange width and height
DIGEST_SIZE = 32  # characters of a digest
PILLOW_LOCK = threading.Lock()
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


@dataclass(frozen=True)
class Quarantined:
    """An unreadable image, under the name the user gave it, and the reason."""

    file: str
    reason: Reason
    detail: str


FACTS = np.dtype([("width", "<i4"), ("height", "<i4"), ("bits", "<i4"), ("rotated", "?")])  # see Picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A decoded image and the facts about its file."""

    rgb: NDArray[np.uint8]  # (height, width, 3) upright, transparency on white
    width: int  # in the file, upright
    height: int
    bits: int  # per channel in the file
    rotated: bool  # turned or mirrored, as its EXIF data asks for

    @property
    def facts(self) -> list[int]:
        """The facts about the file, in the order of FACTS."""
        return [self.width, self.height, self.bits, self.rotated]


def read(path: str) -> bytes:
    """Read a file; raise UnreadableError with the reason if that is impossible."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise UnreadableError("too large", f"{size:,} bytes; the limit is {MAX_BYTES:,}")
            data = file.read(size)  # no further, for the file may be growing
    except NotAFileError as error:
        raise UnreadableError("not a file", error.kind) from None
    except PermissionError:
        raise UnreadableError("forbidden", "no permission to read it") from None
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        if isinstance(error, ValueError) or error.errno in ABSENT:
            raise UnreadableError("missing", "no such file, or a broken link") from None
        raise UnreadableError("unavailable", f"the file cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise UnreadableError("no memory", "not enough memory to read it") from None
    if not data:
        raise UnreadableError("empty", "0 bytes")
    return data


def digest(data: ImageContent) -> str:
    """Return the hash that identifies a content."""
    found = hashlib.blake2b(digest_size=DIGEST_SIZE // 2)
    if not isinstance(data, bytes):
        found.update(f"pixels {data.shape} ".encode())
        data = data.tobytes()
    found.update(data)
    return found.hexdigest()


def size(data: ImageContent, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return width and height by the header alone, before any rotation."""
    if not isinstance(data, bytes):
        return data.shape[1], data.shape[0]
    with _guarded():
        return _open(data, max_pixels).size


def resized_size(width: int, height: int, shorter_side: int) -> tuple[int, int]:
    """Return width and height after resizing the shorter side; the longer is rounded down, as in torchvision."""
    if width <= height:
        return shorter_side, shorter_side * height // width
    return shorter_side * width // height, shorter_side


def check_resized(width: int, height: int, shorter_side: int, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return `resized_size`; raise UnreadableError if a thin image would become too large."""
    wide, high = resized_size(width, height, shorter_side)
    if wide * high > max_pixels:
        raise UnreadableError(
            "too large", f"{width:,} × {height:,} pixels would become {wide:,} × {high:,}; max_pixels is {max_pixels:,}"
        )
    return wide, high


def decode(
    data: ImageContent,
    *,
    shorter_side: int | None = None,
    draft: bool = True,
    max_pixels: int = MAX_PIXELS,
    interpolation: Interpolation = "bicubic",
) -> Picture:
    """Decode the bytes of a file, or take pixels, and resize them to a shorter side of `shorter_side`.

    `draft` decodes large JPEGs at a fraction of their size, which is several times faster and changes pixels slightly;
    it has no effect on images with a shorter side below four times `shorter_side`.
    """
    with _guarded():
        if isinstance(data, bytes):
            image = _open(data, max_pixels)
            bits = colour_modes.bits_of(image, data)
        else:
            image, bits = Image.fromarray(data), 8
        width, height = image.size
        drafted = None
        if shorter_side is not None:
            target = check_resized(width, height, shorter_side, max_pixels)
            if draft and isinstance(image, JpegImageFile):
                drafted = image.draft(None, (2 * target[0], 2 * target[1]))  # at least twice the target size
        if isinstance(data, bytes):
            _check_complete(image, data)
        if isinstance(image, PngImageFile):
            image.load()  # before EXIF, which follows the pixels in some
        orientation = _orientation(image)
        picture = colour_modes.to_rgb(image, bits)
        if drafted and picture.size != (width, height):  # a draft is padded to whole pixels, which its box excludes
            picture = picture.resize(target, RESAMPLING[interpolation], box=drafted[1])
        turned = orientation in TURNS
        if isinstance(image, TiffImageFile):  # Pillow has turned it already
            width, height = picture.size
        elif turned:
            picture = picture.transpose(TURNS[orientation])
            width, height = (height, width) if orientation in SWAPPED else (width, height)
        if shorter_side is not None and picture.size != resized_size(width, height, shorter_side):
            picture = picture.resize(resized_size(width, height, shorter_side), RESAMPLING[interpolation])
        return Picture(rgb=np.asarray(picture), width=width, height=height, bits=bits, rotated=turned)


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn any error of a decoder into `UnreadableError`, and silence its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="Truncated File Read")
            yield
    except UnreadableError:
        raise
    except MemoryError:
        raise UnreadableError("no memory", "not enough memory to decode it") from None
    except Exception as error:  # decoders raise nearly anything on damaged input
        text = " ".join(str(error).split()) or type(error).__name__
        low = text.lower()
        reason: Reason = "unsupported" if "unsupported" in low else "damaged"
        if "truncated" in low or "not enough image data" in low:
            reason = "truncated"
        raise UnreadableError(reason, text.removeprefix(f"{reason} ")) from None


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """Open an image: its header is read, its pixels are not decoded yet."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) < int.from_bytes(data[4:8], "little") + 8:
        raise UnreadableError("truncated", "the file is shorter than its header states")
    try:
        with pillows_limit(max_pixels):
            image = Image.open(io.BytesIO(data), formats=_formats(data))
    except Image.DecompressionBombError as error:
        claimed = re.search(r"\d+", str(error))
        number = f"{int(claimed[0]):,} pixels" if claimed else "too many pixels"
        raise UnreadableError("too large", f"{number}; max_pixels is {max_pixels:,}") from None
    except UnidentifiedImageError:
        if data[4:8] == b"ftyp":
            way = "" if reads_heif() else f", or to read HEIC, {INSTALL}"
            raise UnreadableError("not an image", f"HEIC, AVIF or a video; save it as JPEG{way}") from None
        if data.startswith(TIFFS) and _has_unknown_mode(data):
            raise UnreadableError("unsupported", "its numbers or channels cannot be shown as colours") from None
        if data.startswith(SIGNATURES):
            raise UnreadableError("damaged", "its header is incomplete or damaged") from None
        raise UnreadableError("not an image", f"none of {', '.join(IMAGE_FORMATS)}") from None
    width, height = image.size
    if width * height > max_pixels:
        raise UnreadableError("too large", f"{width:,} × {height:,} pixels; max_pixels is {max_pixels:,}")
    if not width or not height:
        raise UnreadableError("damaged", f"{width:,} × {height:,} pixels")
    return image


def _formats(data: bytes) -> tuple[str, ...]:
    """Return the formats that a content may have; HEIF is added to Pillow when first met."""
    if data[4:8] != b"ftyp" or not reads_heif():
        return IMAGE_FORMATS
    if HEIF_FORMAT not in Image.OPEN:
        import pillow_heif

        pillow_heif.register_heif_opener()
    return (*IMAGE_FORMATS, HEIF_FORMAT)


@contextmanager
def pillows_limit(max_pixels: int) -> Iterator[None]:
    """Raise Pillow's limit, which is global, to ours while images are opened."""
    with PILLOW_LOCK:
        theirs = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = theirs and max(theirs, max_pixels)
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = theirs


def _has_unknown_mode(data: bytes) -> bool:
    """Return whether a TIFF is intact, but of a kind that Pillow does not support."""
    try:
        TiffImageFile(io.BytesIO(data))
    except Exception as error:
        return str(error) == "unknown pixel mode"
    return False


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 (upright) if it is missing or invalid."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # broken EXIF is no reason to lose the image
        return 1
    return found if isinstance(found, int) else 1


def _check_complete(image: Image.Image, data: bytes) -> None:
    """Raise UnreadableError if an image, opened but not decoded, lacks its end, which decoders would fill in.

    What this and Pillow miss is a file that ends as it should, but with fewer pixels than its header claims.
    """
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
