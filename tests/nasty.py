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
from PIL.TiffImagePlugin import TiffImageFile

from sortal.pixels import Reason

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

# Where EXIF says that row 0 and column 0 of what is stored belong
SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def upright(stored: Rgb, way: int) -> Rgb:
    """What is stored, turned as EXIF's table of sides says."""
    row, column = SIDES[way]
    turned = stored.swapaxes(0, 1) if row in ("left", "right") else stored
    if "bottom" in (row, column):
        turned = turned[::-1]
    if "right" in (row, column):
        turned = turned[:, ::-1]
    return turned


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
    interlaced: bool = False,
    size: tuple[int, int] | None = None,  # as claimed, width and height
    stream: Callable[[bytes], bytes] = zlib.compress,
    split: int = 2**31 - 1,  # bytes of a chunk of pixels
) -> bytes:
    if values.ndim == 2:
        values = values[..., None]
    steps = [(0, 0, 1, 1)]  # row and column to start from, and how many to go on by
    if interlaced:
        steps = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    raw = b"".join(b"\0" + row for y, x, down, on in steps for row in packed(values[y::down, x::on], bits))
    width, height = size or (values.shape[1], values.shape[0])
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    data = stream(raw)
    pieces = b"".join(chunk(b"IDAT", data[i : i + split]) for i in range(0, len(data), split))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before + pieces + after + chunk(b"IEND", b"")


BYTE, SHORT, LONG = 1, 3, 4  # types of a tag of a TIFF


def tiff(
    strips: Sequence[bytes],
    *,
    bits: Sequence[int],
    photometric: int,  # 0 grey from white, 1 grey from black, 2 RGB, 3 palette, 5 CMYK, 8 CIELAB
    order: str = "<",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    compression: int = 1,
    sample: int = 1,  # 1 unsigned, 2 signed, 3 float
    tags: Mapping[int, tuple[int, Sequence[int]]] | None = None,
    itself_next: bool = False,
) -> bytes:
    """A TIFF of one page, its directory before its pixels."""
    entries: dict[int, tuple[int, Sequence[int]]] = {
        256: (LONG, [size[0]]),
        257: (LONG, [size[1]]),
        258: (SHORT, bits),
        259: (SHORT, [compression]),
        262: (SHORT, [photometric]),
        273: (LONG, [0] * len(strips)),
        277: (SHORT, [len(bits)]),
        278: (LONG, [-(-size[1] // len(strips))]),
        279: (LONG, [len(strip) for strip in strips]),
        339: (SHORT, [sample] * len(bits)),
        **(tags or {}),
    }
    letters = {BYTE: "B", SHORT: "H", LONG: "I"}
    start = 8 + 2 + 12 * len(entries) + 4  # of the values that do not fit into the directory
    end = start + sum(_long(entry) for entry in entries.values())
    at = np.cumsum([end, *map(len, strips)])[:-1]
    entries[273] = (LONG, at.tolist())
    directory, values = struct.pack(order + "H", len(entries)), b""
    for tag, (kind, numbers) in sorted(entries.items()):
        data = struct.pack(f"{order}{len(numbers)}{letters[kind]}", *numbers)
        if len(data) > 4:
            place = struct.pack(order + "I", start + len(values))
            values += data
        else:
            place = data.ljust(4, b"\0")
        directory += struct.pack(order + "HHI", tag, kind, len(numbers)) + place
    directory += struct.pack(order + "I", 8 if itself_next else 0)
    signature = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    return signature + directory + values + b"".join(strips)


def _long(entry: tuple[int, Sequence[int]]) -> int:
    size = {BYTE: 1, SHORT: 2, LONG: 4}[entry[0]] * len(entry[1])
    return size if size > 4 else 0


def grey_tiff(values: "NDArray[Any]", **options: Any) -> bytes:
    """Grey of any type of NumPy's, as it lies in memory."""
    order = options.get("order", "<")
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    bits = [8 * values.dtype.itemsize]
    size = (values.shape[1], values.shape[0])
    return tiff([data], **{"bits": bits, "photometric": 1, "sample": kind, "size": size, **options})


def bmp(
    data: bytes,
    bits: int,
    *,
    palette: bytes = b"",
    compression: int = 0,
    size: tuple[int, int] = (WIDTH, HEIGHT),  # a negative height: from the top
) -> bytes:
    start = 14 + 40 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, *size, 1, bits, compression, len(data), 2835, 2835, len(palette) // 4, 0)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + header + palette + data


BMP_PALETTE = b"".join(bytes([blue, green, red, 0]) for red, green, blue in COLOURS.tolist())


def bmp_runs() -> bytes:
    """The scene in runs of 32 equal pixels."""
    rows = (bytes([32, left, 32, right, 0, 0]) for left, right in QUARTER[::-1, ::32].tolist())
    return b"".join(rows) + b"\0\1"


# Pixels to make files of


ALPHA = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))  # all of it, from left to right
RGBA = np.dstack([SCENE, ALPHA])
CLEARING = on_white(SCENE, ALPHA)
LUMA = np.array([30, 90, 150, 240], dtype=np.uint8)[QUARTER]
RAMP = np.rint(np.linspace(0, 65535, HEIGHT * WIDTH)).astype(np.uint16).reshape(HEIGHT, WIDTH)  # dark to light
RAMP_OF_8 = np.rint(RAMP * (255 / 65535)).astype(np.uint8)
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
FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "bmp": "BMP", "gif": "GIF"}


# Files that need a word


def levels(*values: int) -> "NDArray[np.uint8]":
    """A value for each quarter."""
    found: NDArray[np.uint8] = np.array(values, dtype=np.uint8)[QUARTER]
    return found


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def claiming(data: bytes, width: int, height: int) -> bytes:
    """The same JPEG with another size in its header."""
    return patched(data, data.index(b"\xff\xc0") + 5, struct.pack(">HH", height, width))


def with_app1(data: bytes, content: bytes) -> bytes:
    """A JPEG with one more block of metadata."""
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content + data[2:]


def breaking(raw: bytes) -> bytes:
    """Half the pixels deflated, then bytes that are not."""
    packer = zlib.compressobj()
    return packer.compress(raw[: len(raw) // 2]) + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 64


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def webp_canvas(width: int, height: int) -> bytes:
    """A WebP whose canvas is larger than the picture on it."""
    start = b"VP8X" + struct.pack("<II", 10, 2) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    frame = bytes(6) + (WIDTH - 1).to_bytes(3, "little") + (HEIGHT - 1).to_bytes(3, "little") + b"\x64\0\0\0"
    frame += PLAIN["webp"][12:]
    body = b"WEBP" + start + b"ANIM" + struct.pack("<IIH", 6, 0, 0) + b"ANMF" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def lzw(values: Rgb) -> bytes:
    """Pixels as they lie in a TIFF with LZW."""
    data = saved(values, "TIFF", compression="tiff_lzw")
    with Image.open(io.BytesIO(data)) as image:
        assert isinstance(image, TiffImageFile)
        start, length = int(image.tag_v2[273][0]), int(image.tag_v2[279][0])
    return bytes(data[start : start + length])


def animated(format_: str, **options: Any) -> bytes:
    """The scene, then what must not be seen."""
    others = [Image.fromarray(NOISE[:HEIGHT, :WIDTH]), Image.fromarray(SCENE[::-1])]
    first = indexed() if format_ == "GIF" else Image.fromarray(SCENE)
    return saved(first, format_, save_all=True, append_images=others, **options)


def a_link(path: Path) -> None:
    path.with_suffix(".data").write_bytes(PLAIN["png"])
    path.symlink_to(path.with_suffix(".data").name)


def a_forbidden_file(path: Path) -> None:
    path.write_bytes(PLAIN["png"])
    path.chmod(0)


# The corpus


Corpus: TypeAlias = dict[str, tuple[Content, Verdict]]

OK_PNG, OK_TIFF, OK_GIF, OK_BMP, OK_WEBP = (Ok(SCENE, name) for name in ("PNG", "TIFF", "GIF", "BMP", "WEBP"))
OK_JPEG, SIX_JPEG = Ok(SCENE, "JPEG", near=2), Ok(upright(SCENE, 6), "JPEG", near=2, rotated=True)
SIX_PNG, SIX_TIFF = (Ok(upright(SCENE, 6), name, rotated=True) for name in ("PNG", "TIFF"))

_jpg, _png, _webp, _gif = (PLAIN[end] for end in ("jpg", "png", "webp", "gif"))
_noise = jpeg(NOISE)
TWO, _two = grey(levels(0, 255, 0, 255)), Image.fromarray(QUARTER % 2 == 1)  # black and white
_text_bomb = b"x\0\0" + zlib.compress(bytes(8 * 2**20), 9)

JPEGS: Corpus = {
    "plain.jpg": (_jpg, OK_JPEG),
    "progressive.jpg": (jpeg(progressive=True), OK_JPEG),
    "grey.jpg": (jpeg(LUMA), Ok(grey(LUMA), "JPEG", near=2)),
    "CMYK.jpg": (jpeg(Image.fromarray(CMYK, "CMYK")), Ok(CMYK_SEEN, "JPEG", near=3)),
    "phone.jpg": (
        animated("MPO", quality=95, subsampling=0, exif=exif(6)),
        Ok(upright(SCENE, 6), "MPO", near=2, rotated=True),
    ),
    "phone with a film.jpg": (_jpg + b"\0\0\0\x18ftypmp42" + JUNK + b"\xff\xda" + JUNK, OK_JPEG),
    "padded markers.jpg": (_jpg[:2] + b"\xff" + _jpg[2:], OK_JPEG),
    "padded, rest never written.jpg": (_noise[:2] + b"\xff" + half(_noise)[2:] + bytes(9000), "truncated"),
    "way by XMP.jpg": (jpeg(xmp=XMP_6), SIX_JPEG),
    "EXIF garbage.jpg": (with_app1(_jpg, b"Exif\0\0" + JUNK), OK_JPEG),
    "EXIF cut.jpg": (with_app1(_jpg, exif(6)[:16]), OK_JPEG),
    "EXIF counts too many.jpg": (with_app1(_jpg, patched(exif(6), 14, b"\xff\xff")), SIX_JPEG),
    "EXIF way 9.jpg": (jpeg(exif=exif(9)), OK_JPEG),
    "EXIF way 0.jpg": (jpeg(exif=exif(0)), OK_JPEG),
    "end missing.jpg": (_jpg[:-2], "truncated"),
    "garbage for a rest.jpg": (half(_noise) + JUNK, "truncated"),
    "rest never written.jpg": (half(_noise).ljust(len(_noise), b"\0"), "truncated"),
    "claims 65500 squared.jpg": (claiming(_jpg, 65500, 65500), "too large"),
    "no height.jpg": (claiming(_jpg, WIDTH, 0), "damaged"),
}

_palette = chunk(b"PLTE", COLOURS.tobytes())
_steps, _half_clear = levels(0, 85, 170, 255), chunk(b"tRNS", bytes([0, 85, 170, 255]))


def clear(*key: int) -> bytes:
    """Say which value, or colour, of a PNG is transparent."""
    return chunk(b"tRNS", struct.pack(f">{len(key)}H", *key))


PNGS: Corpus = {
    "plain.png": (_png, OK_PNG),
    "many pieces.png": (png(SCENE, colour=2, split=7), OK_PNG),
    "interlaced 2 bits.png": (png(QUARTER, bits=2, interlaced=True), Ok(grey(_steps), "PNG", bits=2)),
    "animated.png": (animated("PNG"), OK_PNG),
    "grey.png": (png(LUMA), Ok(grey(LUMA), "PNG")),
    "grey 1 bit.png": (png(QUARTER % 2, bits=1), Ok(TWO, "PNG", bits=1)),
    "grey 4 bits.png": (png(QUARTER * 5, bits=4), Ok(grey(_steps), "PNG", bits=4)),
    "grey 16 bits.png": (png(RAMP, bits=16), Ok(grey(RAMP_OF_8), "PNG", bits=16)),
    "RGB 16 bits.png": (png(DEEP, bits=16, colour=2), Ok(SCENE, "PNG", bits=16, near=1)),
    "RGBA 16 bits.png": (png(RGBA.astype(np.uint16) * 257, bits=16, colour=6), Ok(CLEARING, "PNG", bits=16, near=1)),
    "RGBA.png": (png(RGBA, colour=6), Ok(CLEARING, "PNG", near=1)),
    "grey and alpha.png": (png(np.dstack([LUMA, ALPHA]), colour=4), Ok(on_white(grey(LUMA), ALPHA), "PNG", near=1)),
    "palette 2 bits.png": (png(QUARTER, bits=2, colour=3, before=_palette), Ok(SCENE, "PNG", bits=2)),
    "palette, half clear.png": (
        png(QUARTER, colour=3, before=_palette + _half_clear),
        Ok(on_white(SCENE, _steps), "PNG", near=1),
    ),
    "RGB, one clear.png": (png(SCENE, colour=2, before=clear(*BLUE)), Ok(without(2), "PNG")),
    "RGB 16 bits, one clear.png": (
        png(DEEP, bits=16, colour=2, before=clear(*DEEP[0, 0].tolist())),
        Ok(without(0), "PNG", bits=16, near=1),
    ),
    "grey, one clear.png": (png(LUMA, before=clear(30)), Ok(grey(levels(255, 90, 150, 240)), "PNG")),
    "grey 1 bit, clear.png": (png(QUARTER % 2, bits=1, before=clear(0)), Ok(grey(0 * LUMA + 255), "PNG", bits=1)),
    "grey 2 bits, clear.png": (
        png(QUARTER, bits=2, before=clear(1)),
        Ok(grey(levels(0, 255, 170, 255)), "PNG", bits=2),
    ),
    "grey 16 bits, clear.png": (
        png(RAMP, bits=16, before=clear(0)),
        Ok(grey(np.where(RAMP == 0, 255, RAMP_OF_8)), "PNG", bits=16),
    ),
    "way told last.png": (png(SCENE, colour=2, after=chunk(b"eXIf", exif(6)[6:])), SIX_PNG),
    "EXIF garbage.png": (png(SCENE, colour=2, before=chunk(b"eXIf", JUNK)), OK_PNG),
    "one pixel.png": (png(np.array([[7]])), Ok(grey(np.array([[7]])), "PNG")),
    "thin.png": (png(np.full((20_000, 1), 9)), Ok(grey(np.full((20_000, 1), 9)), "PNG")),
    "end missing.png": (_png[:-12], OK_PNG),
    "checksum of the pixels.png": (patched(_png, len(_png) - 16, bytes(4)), OK_PNG),
    "checksum of the header.png": (patched(_png, 29, bytes(4)), "damaged"),
    "stream breaks.png": (png(SCENE, colour=2, stream=breaking), "damaged"),
    "checksum of the stream.png": (
        png(SCENE, colour=2, stream=lambda raw: zlib.compress(raw)[:-4] + bytes(4)),
        "damaged",
    ),
    "rest never written.png": (half(_png).ljust(len(_png), b"\0"), "damaged"),
    "no pixels.png": (png(SCENE, colour=2, stream=lambda raw: b""), "damaged"),
    "no size.png": (png(LUMA, size=(0, 0)), "damaged"),
    "claims 100 megapixels.png": (png(LUMA, size=(10_000, 10_000)), "too large"),
    "claims the most.png": (png(LUMA, size=(2**31 - 1, 2**31 - 1)), "too large"),
    "claims 4 megapixels.png": (png(LUMA, size=(2000, 2000)), "truncated"),
    "bomb of text.png": (png(SCENE, colour=2, before=chunk(b"zTXt", _text_bomb)), "damaged"),
    "bomb of a profile.png": (png(SCENE, colour=2, before=chunk(b"iCCP", _text_bomb)), "damaged"),
}

_rgb: dict[str, Any] = {"bits": [8, 8, 8], "photometric": 2}
_raw = [SCENE.tobytes()]
_planes = {284: (SHORT, [2]), 278: (LONG, [HEIGHT])}
_twelve = RAMP >> 4
_big = saved(SCENE, "TIFF", big_tiff=True)
_lzw = saved(SCENE, "TIFF", compression="tiff_lzw")

TIFFS: Corpus = {
    "plain.tif": (PLAIN["tif"], OK_TIFF),
    "LZW.tif": (_lzw, OK_TIFF),
    "JPEG inside.tif": (saved(SCENE, "TIFF", compression="jpeg", quality=95), Ok(SCENE, "TIFF", near=3)),
    "fax.tif": (saved(_two, "TIFF", compression="group4"), Ok(TWO, "TIFF", bits=1)),
    "big.tif": (_big, OK_TIFF),
    "pages.tif": (animated("TIFF"), OK_TIFF),
    "page is its own next.tif": (tiff(_raw, **_rgb, itself_next=True), OK_TIFF),
    "planes.tif": (tiff([SCENE[..., i].tobytes() for i in range(3)], **_rgb, tags=_planes), OK_TIFF),
    "CIELAB.tif": (tiff(_raw, bits=[8] * 3, photometric=8), "unsupported"),
    "grey 8 bits from white.tif": (grey_tiff(LUMA, photometric=0), Ok(grey(255 - LUMA), "TIFF")),
    "grey 12 bits.tif": (
        tiff([b"".join(packed(_twelve, 12))], bits=[12], photometric=1),
        Ok(grey(np.rint(_twelve * (255 / 4095))), "TIFF", bits=12),
    ),
    "grey 16 bits from white.tif": (grey_tiff(RAMP, photometric=0), Ok(grey(255 - RAMP_OF_8), "TIFF", bits=16)),
    "grey 16 bits signed.tif": (
        grey_tiff((RAMP.astype(np.int32) - 32768).astype(np.int16)),
        Ok(grey(RAMP_OF_8), "TIFF", bits=16),
    ),
    "RGB 16 bits.tif": (tiff([DEEP.tobytes()], **{**_rgb, "bits": [16] * 3}), Ok(SCENE, "TIFF", bits=16, near=1)),
    "int32.tif": (grey_tiff(RAMP.astype(np.int32) * 20 - 1000), Ok(grey(RAMP_OF_8), "TIFF", bits=32)),
    "uint32.tif": (grey_tiff(RAMP.astype(np.uint32) * 65537), Ok(grey(RAMP_OF_8), "TIFF", bits=32)),
    "float to 1.tif": (grey_tiff(UNIT), Ok(grey(UNIT_OF_8), "TIFF", bits=32)),
    "float to 255.tif": (grey_tiff(UNIT * 255, order=">"), Ok(grey(UNIT_OF_8), "TIFF", bits=32)),
    "float from white.tif": (grey_tiff(UNIT, photometric=0), Ok(grey(255 - UNIT_OF_8), "TIFF", bits=32, near=1)),
    "float with holes.tif": (grey_tiff(HOLES), Ok(grey(HOLES_OF_8), "TIFF", bits=32)),
    "float64.tif": (grey_tiff(UNIT.astype(np.float64)), "unsupported"),
    "way by XMP.tif": (tiff(_raw, **_rgb, tags={700: (BYTE, list(XMP_6))}), SIX_TIFF),
    "way 9.tif": (tiff(_raw, **_rgb, tags={274: (SHORT, [9])}), OK_TIFF),
    "EXIF nowhere.tif": (tiff(_raw, **_rgb, tags={34665: (LONG, [10**9]), 34853: (LONG, [10**9])}), OK_TIFF),
    "claims a strip of 2 GB.tif": (tiff(_raw, **_rgb, tags={279: (LONG, [2**31])}), OK_TIFF),
    "strip is elsewhere.tif": (tiff(_raw, **_rgb, tags={279: (LONG, [10 * len(_raw[0])])})[:-9], "truncated"),
    "claims 60000 squared.tif": (tiff(_raw, **_rgb, size=(60_000, 60_000)), "too large"),
    "claims 4 megapixels.tif": (tiff(_raw, **_rgb, size=(2000, 2000)), "truncated"),
    "claims 4 megapixels of LZW.tif": (tiff(_raw, **_rgb, size=(2000, 2000), compression=5), "damaged"),
    "no width.tif": (tiff(_raw, **_rgb, size=(0, HEIGHT)), "damaged"),
}

_runs = bmp(bmp_runs(), 8, palette=BMP_PALETTE, compression=1)

OTHERS: Corpus = {
    "plain.gif": (_gif, OK_GIF),
    "animated.gif": (animated("GIF"), OK_GIF),
    "clear.gif": (saved(indexed(), "GIF", transparency=3), Ok(without(3), "GIF")),
    "frame beyond the canvas.gif": (patched(_gif, 6, struct.pack("<HH", 8, 8)), OK_GIF),
    "end missing.gif": (_gif[:-1], OK_GIF),
    "canvas of 65535 squared.gif": (patched(_gif, 6, b"\xff" * 4), "too large"),
    "frame of 65535 squared.gif": (patched(_gif, _gif.index(b",") + 5, b"\xff" * 4), "too large"),
    "plain.bmp": (PLAIN["bmp"], OK_BMP),
    "1 bit.bmp": (saved(_two, "BMP"), Ok(TWO, "BMP", bits=1)),
    "runs.bmp": (_runs, OK_BMP),
    "runs out.bmp": (bmp(bmp_runs()[:60], 8, palette=BMP_PALETTE, compression=1), "truncated"),
    "claims 30000 squared.bmp": (bmp(b"", 24, size=(30_000, 30_000)), "too large"),
    "claims 4 megapixels.bmp": (bmp(b"", 24, size=(2000, 2000)), "truncated"),
    "unknown compression.bmp": (bmp(bytes(100), 24, compression=9), "unsupported"),
    "plain.webp": (_webp, OK_WEBP),
    "clear.webp": (saved(RGBA, "WEBP", lossless=True, exact=True), Ok(CLEARING, "WEBP", near=1)),
    "animated.webp": (animated("WEBP", lossless=True), OK_WEBP),
    "EXIF garbage.webp": (saved(SCENE, "WEBP", lossless=True, exif=b"Exif\0\0" + JUNK), OK_WEBP),
    "garbage after.webp": (_webp + JUNK, OK_WEBP),
    "16383 squared.webp": (webp_canvas(16383, 16383), "too large"),
}

WAYS: Corpus = {}
for _way in SIDES:
    _turned, _block = upright(SCENE, _way), exif(_way)
    for _end, _data, _near in (
        ("jpg", jpeg(exif=_block), 2),
        ("png", png(SCENE, colour=2, before=chunk(b"eXIf", _block[6:])), 0),
        ("webp", saved(SCENE, "WEBP", lossless=True, exif=_block), 0),
        ("tif", tiff(_raw, **_rgb, tags={274: (SHORT, [_way])}), 0),
    ):
        WAYS[f"way {_way}.{_end}"] = (_data, Ok(_turned, FORMATS[_end], near=_near, rotated=_way > 1))

HALVES: Corpus = {f"half.{end}": (half(data), "truncated") for end, data in PLAIN.items()}
HALVES |= {
    "half, lossy.webp": (half(saved(SCENE, "WEBP", quality=95)), "truncated"),
    "half, progressive.jpg": (half(jpeg(NOISE, progressive=True)), "truncated"),
    "half, pixels.jpg": (half(_noise), "truncated"),
    "half, runs.bmp": (half(_runs), "truncated"),
    "directory cut off.tif": (half(_lzw), "damaged"),
    "header.jpg": (_jpg[:20], "damaged"),
    "header.png": (_png[:33], "damaged"),
    "header.webp": (_webp[:12], "truncated"),
    "header.tif": (PLAIN["tif"][:8], "damaged"),
    "header of a big one.tif": (_big[:16], "damaged"),
    "header, big-endian.tif": (tiff(_raw, **_rgb, order=">")[:8], "damaged"),
    "header.bmp": (PLAIN["bmp"][:54], "truncated"),
    "header.gif": (_gif[:13], "damaged"),
}

FOREIGN: Corpus = {
    "empty.jpg": (b"", "empty"),
    "one byte.jpg": (b"\xff", "not an image"),
    "text.jpg": (b"This is not an image.\n", "not an image"),
    "photo.heic.jpg": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + JUNK, "not an image"),
    "ICO.png": (saved(SCENE, "ICO"), "not an image"),
    "PostScript.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not an image"),
    "sound.jpg": (b"RIFF" + struct.pack("<I", 36 + len(JUNK)) + b"WAVEfmt " + bytes(28) + JUNK, "not an image"),
    "zeros.jpg": (bytes(5000), "not an image"),
    "random.jpg": (np.random.default_rng(5).bytes(3000), "not an image"),
    "really a PNG.jpg": (_png, OK_PNG),
    "no extension": (_webp, OK_WEBP),
}

PLACES: Corpus = {
    "folder.jpg": (Path.mkdir, "not a file"),
    "pipe.jpg": (os.mkfifo, "not a file"),
    "broken link.jpg": (lambda path: path.symlink_to("nothing at all"), "missing"),
    "link to itself.jpg": (lambda path: path.symlink_to(path.name), "missing"),
    "link.png": (a_link, OK_PNG),
    "forbidden.png": (a_forbidden_file, OK_PNG if os.geteuid() == 0 else "forbidden"),
    "not UTF-8 \udce9\udcff.png": (_png, OK_PNG),
}

CORPUS: Corpus = {**JPEGS, **PNGS, **TIFFS, **OTHERS, **WAYS, **HALVES, **FOREIGN, **PLACES}
