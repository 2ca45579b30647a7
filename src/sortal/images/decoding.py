"""Safe decoding: bytes that claim to be an image become upright RGB pixels, or a named reason why not."""

import errno
import hashlib
import io
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sortal import colours
from sortal.errors import SortalError

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
MAX_PIXELS = 80_000_000  # a 12 KB file can claim more; beyond it an image is refused before it is decoded
MAX_BYTES = 2**30
SHORTER_SIDE = 256  # what images are resized to unless told, as in the paper
VERSION = 1  # of the pixels that `decode` gives; another number makes stores decode again
DECODER = f"{VERSION}, Pillow {PIL.__version__}"
TIFFS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", *TIFFS, b"BM", b"GIF8")
ORIENTATION = 0x0112  # the EXIF tag
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation
SWAPPED = (5, 6, 7, 8)  # those that exchange width and height
DIGEST = 32  # characters of a digest
LOCK = threading.Lock()
GAP = 2  # JPEGs are decoded at reduced size, never below this many times the size asked for

Reason = Literal[
    "missing",  # nothing there, or a link to nothing
    "not a file",  # a folder, a pipe, a device
    "forbidden",  # the system refuses to read it
    "empty",
    "not an image",  # none of the formats above, whatever its name says
    "truncated",
    "damaged",
    "too large",  # beyond the limit of pixels
    "unsupported",  # an image of a kind that has no defined RGB
    "changed",  # between two looks at it in one run
    "unavailable",  # the system failed to read it, though it is there
    "no memory",  # not enough to decode it
    "timed out",  # decoding took so long that it was given up
    "crashed",  # the process that decoded it died
]
# Those that are true of a content for ever; the others are worth another try.
LASTING: frozenset[Reason] = frozenset({"empty", "not an image", "truncated", "damaged", "too large", "unsupported"})
PERHAPS_NO_MEMORY = ("broken data stream", "could not create decoder object")  # what JPEG and WebP say then, too
# Those that say something of the file, not of the content it had.
OF_THE_FILE: frozenset[Reason] = frozenset({"missing", "not a file", "forbidden", "changed", "unavailable"})


class UnreadableError(SortalError):
    """An image that cannot be decoded, and why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    @property
    def lasting(self) -> bool:
        """Whether it is true of the content for ever, and not only of this attempt."""
        return self.reason in LASTING and not self.detail.startswith(PERHAPS_NO_MEMORY)


@dataclass(frozen=True)
class Quarantined:
    """An image that was left out, by the name the user gave it, and why."""

    file: str
    reason: Reason
    detail: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A decoded image, and what its file was like."""

    rgb: NDArray[np.uint8]  # (height, width, 3) upright, transparency on white
    format: str
    width: int  # in the file, upright
    height: int
    bits: int  # per channel in the file
    rotated: bool  # the file asks for it to be turned or mirrored, and it was


def read(path: str) -> bytes:
    """The bytes of a file, or the reason why there are none."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableError("not a file", "a folder, pipe or device")
        if found.st_size > MAX_BYTES:
            raise UnreadableError("too large", f"{found.st_size:,} bytes; the limit is {MAX_BYTES:,}")
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise UnreadableError("missing", "no such file, or a link to nothing") from None
    except PermissionError:
        raise UnreadableError("forbidden", "no permission to read it") from None
    except (NotADirectoryError, ValueError):  # ValueError: no file can have that name
        raise UnreadableError("missing", "no such file") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise UnreadableError("missing", "no such file, or a link to nothing") from None
        raise UnreadableError("unavailable", f"the file cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise UnreadableError("no memory", "not enough memory to read it") from None
    if not data:
        raise UnreadableError("empty", "0 bytes")
    return data


def digest(data: bytes | NDArray[np.uint8]) -> str:
    """What an image is known by: a hash of its content."""
    found = hashlib.blake2b(digest_size=DIGEST // 2)
    if not isinstance(data, bytes):
        found.update(f"pixels {data.shape} ".encode())
        data = data.tobytes()
    found.update(data)
    return found.hexdigest()


def size(data: bytes, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Width and height by the header alone, before any rotation."""
    with _guarded():
        return _open(data, max_pixels).size


def resized(width: int, height: int, shorter_side: int) -> tuple[int, int]:
    """Width and height once the shorter side is as asked for; the longer one is rounded down, as torchvision does."""
    if width <= height:
        return shorter_side, shorter_side * height // width
    return shorter_side * width // height, shorter_side


def check_resized(width: int, height: int, shorter_side: int, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """The same, for an image that is not so long and thin that resizing would make it too large."""
    wide, high = resized(width, height, shorter_side)
    if wide * high > max_pixels:
        raise UnreadableError(
            "too large", f"{width:,} × {height:,} pixels would become {wide:,} × {high:,}; the limit is {max_pixels:,}"
        )
    return wide, high


def decode(
    data: bytes | NDArray[np.uint8],
    *,
    shorter_side: int | None = None,
    draft: bool = True,
    max_pixels: int = MAX_PIXELS,
) -> Picture:
    """Decode a file's bytes (or take pixels as they are), resized (bicubic) to a shorter side of `shorter_side`.

    `draft` lets large JPEGs be decoded at a fraction of their size, which is several times faster and changes
    pixels a little; an image whose shorter side is less than four times the one asked for is never touched by it.
    """
    with _guarded():
        if isinstance(data, bytes):
            image = _open(data, max_pixels)
            format_, bits = str(image.format), colours.bits_of(image, data)
        else:
            image = Image.fromarray(data)
            format_, bits = "pixels", 8
        width, height = image.size
        drafted = None
        if shorter_side is not None:
            target = check_resized(width, height, shorter_side, max_pixels)
            if draft and isinstance(image, JpegImageFile):
                drafted = image.draft(None, (GAP * target[0], GAP * target[1]))
        orientation = _orientation(image) if isinstance(data, bytes) else 1
        picture = colours.rgb(image, bits)
        if drafted and picture.size != (width, height):  # a draft is padded to whole pixels; its box leaves that out
            picture = picture.resize(target, Image.Resampling.BICUBIC, box=drafted[1])
        if orientation in TURNS and format_ != "TIFF":  # Pillow turns TIFFs by itself
            picture = picture.transpose(TURNS[orientation])
        if format_ == "TIFF":
            width, height = picture.size
        elif orientation in SWAPPED:
            width, height = height, width
        if shorter_side is not None and picture.size != resized(width, height, shorter_side):
            picture = picture.resize(resized(width, height, shorter_side), Image.Resampling.BICUBIC)
        return Picture(
            rgb=np.asarray(picture),
            format=format_,
            width=width,
            height=height,
            bits=bits,
            rotated=orientation in TURNS,
        )


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn whatever a decoder raises on foreign bytes into `UnreadableError`, and keep its warnings quiet."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", message="Truncated File Read")
            yield
    except UnreadableError:
        raise
    except MemoryError:
        raise UnreadableError("no memory", "not enough memory to decode it") from None
    except Exception as error:  # decoders raise nearly every kind on damaged input
        text = " ".join(str(error).split()) or type(error).__name__
        reason = _reason(text.lower())
        raise UnreadableError(reason, text.removeprefix(f"{reason} ")) from None


def _reason(text: str) -> Reason:
    """Which of the reasons a decoder's message comes down to."""
    if "truncated" in text or "not enough image data" in text:
        return "truncated"
    return "unsupported" if "unsupported" in text else "damaged"


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its header read and nothing decoded."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP" and len(data) < int.from_bytes(data[4:8], "little") + 8:
        raise UnreadableError("truncated", "the file is shorter than its header says")
    if data.startswith(b"\xff\xd8") and not _ends(data):
        raise UnreadableError("truncated", "the pixels of the JPEG have no end")
    try:
        with _limit_of_pillow_above(max_pixels):
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError as error:
        claimed = re.search(r"\d+", str(error))
        number = f"{int(claimed[0]):,} pixels" if claimed else "too many pixels"
        raise UnreadableError("too large", f"{number}; the limit is {max_pixels:,}") from None
    except UnidentifiedImageError:
        if data[4:8] == b"ftyp":
            raise UnreadableError("not an image", "HEIC, AVIF or a film; save it as JPEG") from None
        if data.startswith(TIFFS) and (kind := _kind(data)):
            raise UnreadableError("unsupported", kind) from None
        if data.startswith(SIGNATURES):
            raise UnreadableError("damaged", "its header is cut or broken") from None
        raise UnreadableError("not an image", f"none of {', '.join(FORMATS)}") from None
    width, height = image.size
    if width * height > max_pixels:
        raise UnreadableError("too large", f"{width:,} × {height:,} pixels; the limit is {max_pixels:,}")
    if not width or not height:
        raise UnreadableError("damaged", f"{width:,} × {height:,} pixels")
    return image


@contextmanager
def _limit_of_pillow_above(max_pixels: int) -> Iterator[None]:
    """Pillow refuses twice its own limit, which is the same for the whole process: lifted only where ours is higher."""
    theirs = Image.MAX_IMAGE_PIXELS
    if theirs is None or max_pixels <= 2 * theirs:
        yield
        return
    with LOCK:
        Image.MAX_IMAGE_PIXELS = max_pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = theirs


def _ends(data: bytes) -> bool:
    """Whether the pixels of a JPEG have an end: where a file was never written to its end, zeros decode as grey."""
    at = 2
    while data[at : at + 1] == b"\xff":
        if data[at + 1 : at + 2] == b"\xda":
            return data.find(b"\xff\xd9", at) > 0
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big") if data[at + 1 : at + 2] != b"\xff" else 1
    return True  # broken otherwise, which the decoder tells


def _kind(data: bytes) -> str | None:
    """What is stored in a TIFF that is whole but none that Pillow knows."""
    try:
        TiffImageFile(io.BytesIO(data))
    except SyntaxError as error:
        return "numbers or channels of a kind that cannot be shown" if str(error) == "unknown pixel mode" else None
    except Exception:
        return None
    return None


def _orientation(image: Image.Image) -> int:
    """What EXIF says about the way up, 1 to 8; 1, which is upright, where it says nothing that makes sense."""
    if image.format == "PNG":
        image.load()  # its EXIF may come last; what is wrong with its pixels must not be taken for broken EXIF
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # broken EXIF is no reason to lose the image
        return 1
    return found if isinstance(found, int) else 1
