"""A folder of images as they come from cameras, scanners, the web and broken disks, each with what must become of it.

Most hold the same scene, four quarters of four colours, so that what comes out of them can be written down. What Pillow
cannot write is put together here by hand.
"""

import io
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sortal.errors import Reason

Rgb: TypeAlias = "NDArray[np.uint8]"  # (height, width, 3)


@dataclass(frozen=True, eq=False)
class Ok:
    """A file that must decode, and to what."""

    rgb: Rgb
    format: str
    bits: int = 8
    near: int = 0  # the most by which a value may differ
    rotated: bool = False


Content: TypeAlias = bytes | Callable[[Path], None]  # of a file, or what to call to make something else at its place
Verdict: TypeAlias = Ok | Reason


def write(folder: Path) -> dict[str, Path]:
    """Make every file of the corpus in a folder, and say where each one is."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / name for name in CORPUS}
    for name, (content, _) in CORPUS.items():
        if isinstance(content, bytes):
            paths[name].write_bytes(content)
        else:
            content(paths[name])
    return paths


# The scene


RED, GREEN, BLUE, GOLD = (200, 30, 40), (20, 160, 60), (30, 60, 190), (220, 190, 50)
COLOURS = np.array([RED, GREEN, BLUE, GOLD], dtype=np.uint8)
QUARTER = np.repeat(np.repeat([[0, 1], [2, 3]], 16, axis=0), 32, axis=1)  # (32, 64) which of the colours
SCENE: Rgb = COLOURS[QUARTER]  # quarters end where blocks of a JPEG do, so that lossy formats keep them
HEIGHT, WIDTH = 32, 64

# Where EXIF says that row 0 and column 0 of what is stored belong: top, bottom, left or right
SIDES = dict(enumerate(("tl", "tr", "br", "bl", "lt", "rt", "rb", "lb"), start=1))


def upright(stored: Rgb, way: int) -> Rgb:
    """What is stored, turned as EXIF's table of sides says."""
    turned = stored.swapaxes(0, 1) if SIDES[way][0] in "lr" else stored
    turned = turned[::-1] if "b" in SIDES[way] else turned
    return turned[:, ::-1] if "r" in SIDES[way] else turned


def levels(*values: int) -> "NDArray[np.uint8]":
    """A value for each quarter."""
    found: NDArray[np.uint8] = np.array(values, dtype=np.uint8)[QUARTER]
    return found


def grey(values: "NDArray[Any]") -> Rgb:
    return np.repeat(np.asarray(values, dtype=np.uint8)[..., None], 3, axis=2)


def on_white(rgb: "NDArray[Any]", alpha: "NDArray[Any]") -> Rgb:
    """Colours (h, w, 3) seen through their alpha (h, w), 0..255, before a white wall."""
    share = alpha[..., None] / 255
    return np.rint(rgb * share + 255 * (1 - share)).astype(np.uint8)


# Writers


def saved(image: "Image.Image | NDArray[Any]", format_: str, **options: Any) -> bytes:
    """A file as Pillow writes it."""
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def jpeg(image: "Image.Image | NDArray[Any]" = SCENE, **options: Any) -> bytes:
    return saved(image, "JPEG", **{"quality": 95, "subsampling": 0, **options})


def exif(orientation: int) -> bytes:
    """An EXIF block that says nothing but which way is up."""
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 0)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(values: "NDArray[Any]", bits: int) -> list[bytes]:
    """Rows of values (h, w, channels) with the most significant bit first, each row filled up to a byte."""
    rows = np.asarray(values).reshape(len(values), -1)
    digits = (rows[..., None] >> np.arange(bits)[::-1]) & 1
    return [np.packbits(row.astype(np.uint8)).tobytes() for row in digits]


def png(
    values: "NDArray[Any]",  # (h, w) or (h, w, channels)
    *,
    bits: int = 8,
    colour: int = 0,  # 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA
    before: bytes = b"",  # chunks before the pixels
    after: bytes = b"",
    size: tuple[int, int] | None = None,  # as claimed, width and height
    stream: Callable[[bytes], bytes] = zlib.compress,
) -> bytes:
    if values.ndim == 2:
        values = values[..., None]
    raw = b"".join(b"\0" + row for row in packed(values, bits))
    width, height = size or (values.shape[1], values.shape[0])
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    pieces = chunk(b"IDAT", stream(raw)) + after + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + pieces


def interlaced(values: "NDArray[Any]") -> bytes:  # (h, w) of 8 bits
    """An interlaced PNG of grey."""
    starts = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    parts = [values[y::down, x::across] for y, x, down, across in starts]
    raw = [b"\0" + row for part in parts if part.size for row in packed(part, 8)]
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 0, 0, 0, 1)
    data = chunk(b"IDAT", zlib.compress(b"".join(raw)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b"")


Tags: TypeAlias = Mapping[int, tuple[str, Sequence[int]]]  # of a TIFF: the type, as struct names it, and the values


def tiff(
    strips: Sequence[bytes],
    *,
    bits: Sequence[int],
    photometric: int,  # 0 grey from white, 1 grey from black, 2 RGB, 3 palette, 5 CMYK, 8 CIELAB
    order: str = "<",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    compression: int = 1,
    sample: int = 1,  # 1 unsigned, 2 signed, 3 float
    tags: Tags | None = None,
) -> bytes:
    """A TIFF of one page, its directory before its pixels."""
    head, signature = b"", b"II*\0" if order == "<" else b"MM\0*"
    for _ in range(2):  # the second time it is known where the pixels lie
        entries: Tags = {
            256: ("I", [size[0]]),
            257: ("I", [size[1]]),
            258: ("H", bits),
            259: ("H", [compression]),
            262: ("H", [photometric]),
            273: ("I", np.cumsum([len(head), *map(len, strips)])[:-1].tolist()),
            277: ("H", [len(bits)]),
            278: ("I", [-(-size[1] // len(strips))]),
            279: ("I", [len(strip) for strip in strips]),
            339: ("H", [sample] * len(bits)),
            **(tags or {}),
        }
        start, values = 8 + 2 + 12 * len(entries) + 4, b""  # values that do not fit into the directory follow it
        head = signature + struct.pack(order + "IH", 8, len(entries))
        for tag, (kind, numbers) in sorted(entries.items()):
            data = struct.pack(f"{order}{len(numbers)}{kind}", *numbers)
            head += struct.pack(order + "HHI", tag, {"B": 1, "H": 3, "I": 4}[kind], len(numbers))
            head += data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(order + "I", start + len(values))
            values += data if len(data) > 4 else b""
        head += bytes(4) + values
    return head + b"".join(strips)


def grey_tiff(values: "NDArray[Any]", **options: Any) -> bytes:
    """Grey of any type of NumPy's, as it lies in memory."""
    order = options.get("order", "<")
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    shape = {"bits": [8 * values.dtype.itemsize], "size": values.shape[::-1]}
    return tiff([data], **{"photometric": 1, "sample": kind, **shape, **options})


def bmp(
    data: bytes, bits: int, palette: bytes = b"", compression: int = 0, size: tuple[int, int] = (WIDTH, HEIGHT)
) -> bytes:
    start = 14 + 40 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, *size, 1, bits, compression, len(data), 0, 0, len(palette) // 4, 0)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + header + palette + data


BMP_PALETTE = b"".join(bytes([blue, green, red, 0]) for red, green, blue in COLOURS.tolist())
# The scene in runs of 32 equal pixels
BMP_RUNS = b"".join(bytes([32, left, 32, right, 0, 0]) for left, right in QUARTER[::-1, ::32].tolist()) + b"\0\1"


# Pixels to make files of


ALPHA = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))  # all of it, from left to right
RGBA = np.dstack([SCENE, ALPHA])
CLEARING = on_white(SCENE, ALPHA)
LUMA = levels(30, 90, 150, 240)
RAMP = np.rint(np.linspace(0, 65535, HEIGHT * WIDTH)).astype(np.uint16).reshape(HEIGHT, WIDTH)  # dark to light
RAMP_OF_8 = np.rint(RAMP * (255 / 65535)).astype(np.uint8)
CLEAR_RAMP = np.where(RAMP == 0, 255, RAMP_OF_8)
UNIT = np.linspace(0, 1, HEIGHT * WIDTH, dtype=np.float32).reshape(HEIGHT, WIDTH)
UNIT_OF_8 = np.rint(UNIT * 255.0).astype(np.uint8)
DEEP = (SCENE.astype(np.uint16) << 8) + 77  # the scene in 16 bits, with low bytes that say something else
CMYK = np.array([[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 255, 0], [64, 128, 192, 100]], dtype=np.uint8)[QUARTER]
CMYK_SEEN = np.rint((255.0 - CMYK[..., :3]) * (255 - CMYK[..., 3:]) / 255).astype(np.uint8)
HOLES = UNIT.copy()
HOLES[0, :3] = [np.nan, np.inf, -np.inf]
HOLES_OF_8 = UNIT_OF_8.copy()
HOLES_OF_8[0, :3] = [0, 255, 0]
XMP_6 = (
    b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/></rdf:RDF></x:xmpmeta>'
)
NOISE = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)  # the same, however often it is drawn
JUNK = np.random.default_rng(1).bytes(2000)


def without(colour: int) -> Rgb:
    """The scene where one colour is transparent."""
    clear = np.full(4, 255)
    clear[colour] = 0
    return on_white(SCENE, clear[QUARTER])


def indexed() -> Image.Image:
    image = Image.frombytes("P", (WIDTH, HEIGHT), QUARTER.astype(np.uint8).tobytes())
    image.putpalette(COLOURS.tobytes())
    return image


PLAIN: dict[str, bytes] = {
    "jpg": jpeg(),
    "png": saved(SCENE, "PNG"),
    "webp": saved(SCENE, "WEBP", lossless=True),
    "tif": saved(SCENE, "TIFF"),
    "bmp": saved(SCENE, "BMP"),
    "gif": saved(indexed(), "GIF"),
}  # one of each format


# Files that need a word


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def claiming(data: bytes, width: int, height: int) -> bytes:
    """The same JPEG, sequential or progressive, with another size in its header."""
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    return patched(data, at + 5, struct.pack(">HH", height, width))


def frame_of(gif: bytes) -> bytes:
    """The only frame of a GIF with a palette of its own before it."""
    return gif[13 + 3 * 2 ** ((gif[10] & 7) + 1) : -1]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def animated(format_: str, **options: Any) -> bytes:
    """The scene, then what must not be seen."""
    others = [Image.fromarray(NOISE[:HEIGHT, :WIDTH]), Image.fromarray(SCENE[::-1])]
    first = indexed() if format_ == "GIF" else Image.fromarray(SCENE)
    return saved(first, format_, save_all=True, append_images=others, **options)


# The corpus


Corpus: TypeAlias = dict[str, tuple[Content, Verdict]]

OK_PNG, OK_TIFF, OK_GIF, OK_BMP, OK_WEBP = (Ok(SCENE, name) for name in ("PNG", "TIFF", "GIF", "BMP", "WEBP"))
OK_JPEG, SIX_JPEG = Ok(SCENE, "JPEG", near=2), Ok(upright(SCENE, 6), "JPEG", near=2, rotated=True)
SIX_PNG, SIX_TIFF = (Ok(upright(SCENE, 6), name, rotated=True) for name in ("PNG", "TIFF"))

_jpg, _png, _webp, _gif = (PLAIN[end] for end in ("jpg", "png", "webp", "gif"))
_noise = jpeg(NOISE)
TWO, _two = grey(levels(0, 255, 0, 255)), Image.fromarray(QUARTER % 2 == 1)  # black and white
_phone = animated("MPO", quality=95, subsampling=0, exif=exif(6))

JPEGS: Corpus = {
    "plain.jpg": (_jpg, OK_JPEG),
    "grey.jpg": (jpeg(LUMA), Ok(grey(LUMA), "JPEG", near=2)),
    "CMYK.jpg": (jpeg(Image.fromarray(CMYK, "CMYK")), Ok(CMYK_SEEN, "JPEG", near=3)),
    "phone.jpg": (_phone, Ok(upright(SCENE, 6), "MPO", near=2, rotated=True)),
    "phone with a film.jpg": (_jpg + b"\0\0\0\x18ftypmp42" + JUNK + b"\xff\xda" + JUNK, OK_JPEG),
    "padded, rest never written.jpg": (_noise[:2] + b"\xff" + half(_noise)[2:] + bytes(9000), "truncated"),
    "way by XMP.jpg": (jpeg(xmp=XMP_6), SIX_JPEG),
    "EXIF garbage.jpg": (jpeg(exif=b"Exif\0\0" + JUNK), OK_JPEG),
    "EXIF way 9.jpg": (jpeg(exif=exif(9)), OK_JPEG),
    "EXIF way 0.jpg": (jpeg(exif=exif(0)), OK_JPEG),
    "end missing.jpg": (_jpg[:-2], "truncated"),
    "rest never written.jpg": (half(_noise).ljust(len(_noise), b"\0"), "truncated"),
    "flat grey.jpg": (jpeg(LUMA * 0 + 128), Ok(grey(LUMA * 0 + 128), "JPEG")),
    "restarts.jpg": (jpeg(restart_marker_blocks=3), OK_JPEG),
    "progressive.jpg": (jpeg(progressive=True), OK_JPEG),
    "padded before its end.jpg": (_jpg[:-2] + b"\xff\xff\xff\xd9" + half(_noise), OK_JPEG),
    "end marker in a comment.jpg": (jpeg(comment=b"\xff\xd9\xff\xda\xff\xd9"), OK_JPEG),
    "claims 65500 squared.jpg": (claiming(_jpg, 65500, 65500), "too large"),
    "no height.jpg": (claiming(_jpg, WIDTH, 0), "damaged"),
}

_palette = chunk(b"PLTE", COLOURS.tobytes())
_steps, _half_clear = levels(0, 85, 170, 255), chunk(b"tRNS", bytes([0, 85, 170, 255]))
_text_bomb = chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(8 * 2**20), 9))


def clear(*key: int) -> bytes:
    """Say which value, or colour, of a PNG is transparent."""
    return chunk(b"tRNS", struct.pack(f">{len(key)}H", *key))


def bad_checksum(raw: bytes) -> bytes:
    return zlib.compress(raw)[:-4] + bytes(4)


PNGS: Corpus = {
    "plain.png": (_png, OK_PNG),
    "animated.png": (animated("PNG"), OK_PNG),
    "grey 1 bit.png": (png(QUARTER % 2, bits=1), Ok(TWO, "PNG", bits=1)),
    "grey 16 bits.png": (png(RAMP, bits=16), Ok(grey(RAMP_OF_8), "PNG", bits=16)),
    "RGB 16 bits.png": (png(DEEP, bits=16, colour=2), Ok(SCENE, "PNG", bits=16, near=1)),
    "RGBA 16 bits.png": (png(RGBA.astype(np.uint16) * 257, bits=16, colour=6), Ok(CLEARING, "PNG", bits=16, near=1)),
    "RGBA.png": (png(RGBA, colour=6), Ok(CLEARING, "PNG", near=1)),
    "grey and alpha.png": (png(np.dstack([LUMA, ALPHA]), colour=4), Ok(on_white(grey(LUMA), ALPHA), "PNG", near=1)),
    "palette 2 bits.png": (png(QUARTER, bits=2, colour=3, before=_palette), Ok(SCENE, "PNG", bits=2)),
    "half clear.png": (
        png(QUARTER, colour=3, before=_palette + _half_clear),
        Ok(on_white(SCENE, _steps), "PNG", near=1),
    ),
    "RGB, one clear.png": (png(SCENE, colour=2, before=clear(*BLUE)), Ok(without(2), "PNG")),
    "RGB 16 bits, clear.png": (
        png(DEEP, bits=16, colour=2, before=clear(*DEEP[0, 0])),
        Ok(without(0), "PNG", 16, near=1),
    ),
    "grey, one clear.png": (png(LUMA, before=clear(30)), Ok(grey(levels(255, 90, 150, 240)), "PNG")),
    "grey 1 bit, clear.png": (png(QUARTER % 2, bits=1, before=clear(0)), Ok(grey(0 * LUMA + 255), "PNG", bits=1)),
    "grey 2 bits, clear.png": (
        png(QUARTER, bits=2, before=clear(1)),
        Ok(grey(levels(0, 255, 170, 255)), "PNG", bits=2),
    ),
    "grey 16 bits, clear.png": (png(RAMP, bits=16, before=clear(0)), Ok(grey(CLEAR_RAMP), "PNG", bits=16)),
    "way told last.png": (png(SCENE, colour=2, after=chunk(b"eXIf", exif(6)[6:])), SIX_PNG),
    "EXIF garbage.png": (png(SCENE, colour=2, before=chunk(b"eXIf", JUNK)), OK_PNG),
    "one pixel.png": (png(np.array([[7]])), Ok(grey(np.array([[7]])), "PNG")),
    "thin.png": (png(np.full((20_000, 1), 9)), Ok(grey(np.full((20_000, 1), 9)), "PNG")),
    "end missing.png": (_png[:-12], OK_PNG),
    "checksum of the stream.png": (png(SCENE, colour=2, stream=bad_checksum), "damaged"),
    "rest never written.png": (half(_png).ljust(len(_png), b"\0"), "damaged"),
    "interlaced.png": (interlaced(LUMA), Ok(grey(LUMA), "PNG")),
    "black.png": (png(LUMA * 0), Ok(grey(LUMA * 0), "PNG")),
    "black and odd, interlaced.png": (interlaced(LUMA[:31] * 0), Ok(grey(LUMA[:31] * 0), "PNG")),
    "no size.png": (png(LUMA, size=(0, 0)), "damaged"),
    "claims 100 megapixels.png": (png(LUMA, size=(10_000, 10_000)), "too large"),
    "claims the most.png": (png(LUMA, size=(2**31 - 1, 2**31 - 1)), "too large"),
    "claims 4 megapixels.png": (png(LUMA, size=(2000, 2000)), "truncated"),
    "bomb of text.png": (png(SCENE, colour=2, before=_text_bomb), "damaged"),
}

_rgb: dict[str, Any] = {"bits": [8, 8, 8], "photometric": 2}
_raw, _strips = [SCENE.tobytes()], [SCENE[top : top + 8].tobytes() for top in range(0, HEIGHT, 8)]
_planes = {284: ("H", [2]), 278: ("I", [HEIGHT])}
_twelve, _signed = RAMP >> 4, (RAMP.astype(np.int32) - 32768).astype(np.int16)
_of_12 = tiff([b"".join(packed(_twelve, 12))], bits=[12], photometric=1)
_big = saved(SCENE, "TIFF", big_tiff=True)

TIFFS: Corpus = {
    "plain.tif": (PLAIN["tif"], OK_TIFF),
    "fax.tif": (saved(_two, "TIFF", compression="group4"), Ok(TWO, "TIFF", bits=1)),
    "big.tif": (_big, OK_TIFF),
    "pages.tif": (animated("TIFF"), OK_TIFF),
    "planes.tif": (tiff([SCENE[..., i].tobytes() for i in range(3)], **_rgb, tags=_planes), OK_TIFF),
    "CIELAB.tif": (tiff(_raw, bits=[8] * 3, photometric=8), "unsupported"),
    "grey 8 bits from white.tif": (grey_tiff(LUMA, photometric=0), Ok(grey(255 - LUMA), "TIFF")),
    "grey 12 bits.tif": (_of_12, Ok(grey(np.rint(_twelve * (255 / 4095))), "TIFF", bits=12)),
    "grey 16 bits, big-endian.tif": (grey_tiff(RAMP, order=">"), Ok(grey(RAMP_OF_8), "TIFF", bits=16)),
    "grey 16 bits from white.tif": (grey_tiff(RAMP, photometric=0), Ok(grey(255 - RAMP_OF_8), "TIFF", bits=16)),
    "grey 16 bits signed.tif": (grey_tiff(_signed), Ok(grey(RAMP_OF_8), "TIFF", bits=16)),
    "RGB 16 bits.tif": (tiff([DEEP.tobytes()], bits=[16] * 3, photometric=2), Ok(SCENE, "TIFF", bits=16, near=1)),
    "int32.tif": (grey_tiff(RAMP.astype(np.int32) * 20 - 1000), Ok(grey(RAMP_OF_8), "TIFF", bits=32)),
    "uint32.tif": (grey_tiff(RAMP.astype(np.uint32) * 65537), Ok(grey(RAMP_OF_8), "TIFF", bits=32)),
    "float to 1.tif": (grey_tiff(UNIT), Ok(grey(UNIT_OF_8), "TIFF", bits=32)),
    "float to 255.tif": (grey_tiff(UNIT * 255, order=">"), Ok(grey(UNIT_OF_8), "TIFF", bits=32)),
    "float from white.tif": (grey_tiff(UNIT, photometric=0), Ok(grey(255 - UNIT_OF_8), "TIFF", bits=32, near=1)),
    "float with holes.tif": (grey_tiff(HOLES), Ok(grey(HOLES_OF_8), "TIFF", bits=32)),
    "float64.tif": (grey_tiff(UNIT.astype(np.float64)), "unsupported"),
    "way by XMP.tif": (tiff(_raw, **_rgb, tags={700: ("B", list(XMP_6))}), SIX_TIFF),
    "way 9.tif": (tiff(_raw, **_rgb, tags={274: ("H", [9])}), OK_TIFF),
    "EXIF nowhere.tif": (tiff(_raw, **_rgb, tags={34665: ("I", [10**9]), 34853: ("I", [10**9])}), OK_TIFF),
    "claims a strip of 2 GB.tif": (tiff(_raw, **_rgb, tags={279: ("I", [2**31])}), OK_TIFF),
    "strip is elsewhere.tif": (tiff(_raw, **_rgb, tags={279: ("I", [10 * len(_raw[0])])})[:-9], "truncated"),
    "strips.tif": (tiff(_strips, **_rgb), OK_TIFF),
    "half of its strips.tif": (tiff(_strips[:2], **_rgb, tags={278: ("I", [8])}), "truncated"),
    "claims 60000 squared.tif": (tiff(_raw, **_rgb, size=(60_000, 60_000)), "too large"),
    "claims 4 megapixels.tif": (tiff(_raw, **_rgb, size=(2000, 2000)), "truncated"),
    "claims 4 megapixels of LZW.tif": (tiff(_raw, **_rgb, size=(2000, 2000), compression=5), "damaged"),
    "no width.tif": (tiff(_raw, **_rgb, size=(0, HEIGHT)), "damaged"),
}

_runs = bmp(BMP_RUNS, 8, palette=BMP_PALETTE, compression=1)
_film = animated("WEBP", lossless=True)  # its canvas may be larger than the pictures on it

OTHERS: Corpus = {
    "plain.gif": (_gif, OK_GIF),
    "animated.gif": (animated("GIF"), OK_GIF),
    "clear.gif": (saved(indexed(), "GIF", transparency=3), Ok(without(3), "GIF")),
    "frame beyond the canvas.gif": (patched(_gif, 6, struct.pack("<HH", 8, 8)), OK_GIF),
    "canvas of 65535 squared.gif": (patched(_gif, 6, b"\xff" * 4), "too large"),
    "frame of 65535 squared.gif": (patched(_gif, _gif.index(b",") + 5, b"\xff" * 4), "too large"),
    "plain.bmp": (PLAIN["bmp"], OK_BMP),
    "1 bit.bmp": (saved(_two, "BMP"), Ok(TWO, "BMP", bits=1)),
    "runs.bmp": (_runs, OK_BMP),
    "runs out.bmp": (bmp(BMP_RUNS[:60], 8, palette=BMP_PALETTE, compression=1), "truncated"),
    "claims 30000 squared.bmp": (bmp(b"", 24, size=(30_000, 30_000)), "too large"),
    "claims 4 megapixels.bmp": (bmp(b"", 24, size=(2000, 2000)), "truncated"),
    "unknown compression.bmp": (bmp(bytes(100), 24, compression=9), "unsupported"),
    "plain.webp": (_webp, OK_WEBP),
    "clear.webp": (saved(RGBA, "WEBP", lossless=True, exact=True), Ok(CLEARING, "WEBP", near=1)),
    "animated.webp": (_film, OK_WEBP),
    "garbage after.webp": (_webp + JUNK, OK_WEBP),
    "16383 squared.webp": (patched(_film, 24, 2 * (16383 - 1).to_bytes(3, "little")), "too large"),
}

WAYS: Corpus = {}
for _way in SIDES:
    _block = exif(_way)
    for _end, _format, _data in (
        ("jpg", "JPEG", jpeg(exif=_block)),
        ("png", "PNG", png(SCENE, colour=2, before=chunk(b"eXIf", _block[6:]))),
        ("webp", "WEBP", saved(SCENE, "WEBP", lossless=True, exif=_block)),
        ("tif", "TIFF", tiff(_raw, **_rgb, tags={274: ("H", [_way])})),
    ):
        _seen = Ok(upright(SCENE, _way), _format, near=2 if _end == "jpg" else 0, rotated=_way > 1)
        WAYS[f"way {_way}.{_end}"] = (_data, _seen)

HALVES: Corpus = {f"half.{end}": (half(data), "truncated") for end, data in PLAIN.items()}
HALVES |= {
    "half, pixels.jpg": (half(_noise), "truncated"),
    "half, runs.bmp": (half(_runs), "truncated"),
    "directory cut off.tif": (half(saved(SCENE, "TIFF", compression="tiff_lzw")), "damaged"),
    "header.jpg": (_jpg[:20], "damaged"),
    "header.png": (_png[:33], "damaged"),
    "header.webp": (_webp[:12], "truncated"),
    "header.tif": (PLAIN["tif"][:8], "damaged"),
    "header of a big one.tif": (_big[:16], "damaged"),
    "header, big-endian.tif": (tiff(_raw, **_rgb, order=">")[:8], "damaged"),
    "header.bmp": (PLAIN["bmp"][:54], "truncated"),
    "header.gif": (_gif[:13], "damaged"),
}

_strangers = {
    "one byte": b"\xff",
    "text": b"This is not an image.\n",
    "zeros": bytes(5000),
    "random": np.random.default_rng(5).bytes(3000),
    "photo.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + JUNK,
    "icon": saved(SCENE, "ICO"),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    "sound": b"RIFF" + struct.pack("<I", 36 + len(JUNK)) + b"WAVEfmt " + bytes(28) + JUNK,
    "paper": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + JUNK,
    "archive": b"PK\x03\x04\x14\0\0\0" + JUNK,
    "pickle": b"\x80\x04\x95" + JUNK,
    "page": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "drawing": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "PPM of absurd size": b"P6 99999999 99999999 255\n" + JUNK,
}
FOREIGN: Corpus = {f"{name}.jpg": (data, "not an image") for name, data in _strangers.items()}

PLACES: Corpus = {
    "empty.jpg": (b"", "empty"),
    "really a PNG.jpg": (_png, OK_PNG),
    "no extension": (_webp, OK_WEBP),
    "folder.jpg": (Path.mkdir, "not a file"),
    "pipe.jpg": (os.mkfifo, "not a file"),
    "broken link.jpg": (lambda path: path.symlink_to("nothing at all"), "missing"),
    "link to itself.jpg": (lambda path: path.symlink_to(path.name), "missing"),
    "link.png": (lambda path: path.symlink_to("plain.png"), OK_PNG),
    "forbidden.png": (lambda path: path.touch(0), "forbidden" if os.geteuid() else "empty"),
    "not UTF-8 \udce9\udcff.png": (_png, OK_PNG),
}

CORPUS: Corpus = {**JPEGS, **PNGS, **TIFFS, **OTHERS, **WAYS, **HALVES, **FOREIGN, **PLACES}
