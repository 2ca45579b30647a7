"""Safe decoding: bytes that claim to be an image become upright RGB pixels, or a named reason why not."""

import hashlib
import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sortal.errors import SortalError

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
MAX_PIXELS = 80_000_000  # a 12 KB file can claim more; beyond it an image is refused before it is decoded
MAX_BYTES = 2**30
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"II*\0", b"MM\0*", b"BM", b"GIF8")
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
    "crashed",  # the process that decoded it died
]


class UnreadableError(SortalError):
    """An image that cannot be decoded, and why."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


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
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise UnreadableError("damaged", f"the file cannot be read: {error}") from None
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
            format_, bits = str(image.format), _bits(image, data)
        else:
            image = Image.fromarray(data)
            format_, bits = "pixels", 8
        width, height = image.size
        if shorter_side is not None:
            target = check_resized(width, height, shorter_side, max_pixels)
            if draft and isinstance(image, JpegImageFile):
                image.draft(None, (GAP * target[0], GAP * target[1]))
        orientation = _orientation(image) if isinstance(data, bytes) else 1
        picture = _rgb(image, bits)
        if orientation in TURNS and format_ != "TIFF":  # Pillow turns TIFFs by itself
            picture = picture.transpose(TURNS[orientation])
        if orientation in SWAPPED and format_ != "TIFF":
            width, height = height, width
        if shorter_side is not None:
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
    except (Image.DecompressionBombError, MemoryError) as error:
        raise UnreadableError("too large", str(error) or "not enough memory to decode it") from None
    except Exception as error:  # decoders raise nearly every kind on damaged input
        text = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableError("truncated" if "truncated" in text.lower() else "damaged", text) from None


def _open(data: bytes, max_pixels: int) -> Image.Image:
    """The image with its header read and nothing decoded."""
    if data.startswith(b"RIFF") and len(data) < int.from_bytes(data[4:8], "little") + 8:
        raise UnreadableError("truncated", "the file is shorter than its header says")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        if data.startswith(SIGNATURES):
            raise UnreadableError("damaged", "its header is cut or broken") from None
        raise UnreadableError("not an image", f"none of {', '.join(FORMATS)}") from None
    width, height = image.size
    if width * height > max_pixels:
        raise UnreadableError("too large", f"{width:,} × {height:,} pixels; the limit is {max_pixels:,}")
    if not width or not height:
        raise UnreadableError("damaged", f"{width:,} × {height:,} pixels")
    return image


def _bits(image: Image.Image, data: bytes) -> int:
    """Bits per channel in the file, which Pillow's mode does not tell for colour."""
    if isinstance(image, TiffImageFile):
        return int(max(image.tag_v2.get(258, (1,))))
    if image.format == "PNG":
        return data[24]
    return 1 if image.mode == "1" else 8


def _orientation(image: Image.Image) -> int:
    """What EXIF says about the way up, 1 to 8; 1, which is upright, where it says nothing that makes sense."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # broken EXIF is no reason to lose the image
        return 1
    return found if isinstance(found, int) else 1


def _rgb(image: Image.Image, bits: int) -> Image.Image:
    """Any mode as RGB of 8 bits: transparency on white, deep grey scaled into range."""
    image.load()
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        return Image.fromarray(_eight_bits(np.asarray(image), bits)).convert("RGB")
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.mode == "LAB":
        raise UnreadableError("unsupported", "CIELAB colours; save it as RGB")
    return image.convert("RGB")


def _eight_bits(values: NDArray[np.generic], bits: int) -> NDArray[np.uint8]:
    """Deep grey in 0..255. Whole numbers of up to 16 bits are scaled by the range of the file's type.

    Floats from 0 to 1, or to 255, are taken at their word. What else there is has no range of its own, and is stretched
    from its least to its greatest value. NaN is black.
    """
    x = values.astype(np.float64)
    finite = np.isfinite(x)
    low, high = (x[finite].min(), x[finite].max()) if finite.any() else (0.0, 0.0)
    if values.dtype.kind in "iu" and low >= 0 and high < 2**16:
        low, high = 0.0, 2.0 ** min(bits, 16) - 1
    elif low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    scaled = (np.nan_to_num(x, nan=low, posinf=high, neginf=low) - low) * (255 / ((high - low) or 1))
    eight: NDArray[np.uint8] = np.rint(scaled.clip(0, 255)).astype(np.uint8)
    return eight
