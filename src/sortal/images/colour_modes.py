"""Colour modes: conversion of every mode a file may have to RGB of 8 bits."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

BITS_PER_SAMPLE, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # TIFF tags
WHITE_IS_ZERO, UNSIGNED = 0, 1  # their values


def bits_of(image: Image.Image, data: bytes) -> int:
    """Return the bits per channel in the file, which Pillow's mode does not give for colour images."""
    if isinstance(image, TiffImageFile):
        return int(max(image.tag_v2.get(BITS_PER_SAMPLE, (1,))))
    if image.format == "PNG":
        return data[24]
    return 1 if image.mode == "1" else 8


def to_rgb(image: Image.Image, bits: int) -> Image.Image:
    """Convert any mode to RGB of 8 bits: transparency becomes white, deep grey is scaled."""
    image.load()
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        return Image.fromarray(_grey(image, bits)).convert("RGB")
    if image.mode == "LAB":
        raise ValueError("unsupported colours: CIELAB; save it as RGB")
    if image.format == "PNG" and bits != 8 and image.mode in ("L", "RGB") and "transparency" in image.info:
        key = image.info["transparency"]  # as stored, while the pixels have been scaled to 8 bits
        image.info["transparency"] = tuple(v >> 8 for v in key) if bits == 16 else key * 255 // (2**bits - 1)
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it


def _grey(image: Image.Image, bits: int) -> NDArray[np.uint8]:
    """Scale grey of more than 8 bits per pixel to 0..255."""
    values = np.asarray(image)
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    if bits == 32 and values.dtype.kind == "i" and tags.get(SAMPLE_FORMAT, (UNSIGNED,))[0] == UNSIGNED:
        values = values.view(np.uint32)
    grey = to_eight_bits(values, bits)
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        grey = 255 - grey
    if "transparency" in image.info:
        grey = np.where(values == image.info["transparency"], np.uint8(255), grey)
    return grey


def to_eight_bits(values: NDArray[np.generic], bits: int) -> NDArray[np.uint8]:
    """Scale values to 0..255.

    Integers of up to 16 bits are scaled by the range of their type, floats within 0..1 or 0..255 by that range. Other
    values have no range of their own and are stretched from their minimum to their maximum. NaN becomes black.
    """
    if values.dtype.kind in "iu" and bits <= 16 and values.min() >= 0:
        table = np.rint(np.arange(2**16) * (255 / (2**bits - 1))).clip(0, 255).astype(np.uint8)
        return table[values]
    x = values.astype(np.float64)
    finite = np.isfinite(x)
    low, high = (x[finite].min(), x[finite].max()) if finite.any() else (0.0, 0.0)
    if values.dtype.kind == "f" and low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    np.nan_to_num(x, copy=False, nan=low, posinf=high, neginf=low)
    x -= low
    x *= 255 / ((high - low) or 1)
    return np.rint(x).clip(0, 255).astype(np.uint8)
