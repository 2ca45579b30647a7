"""A folder of images as they come from cameras, scanners, the web and broken disks, each with what must become of it.

Most hold the same scene, four quarters of four colours, so that what comes out of them can be written down. What Pillow
cannot write is put together here by hand.
"""

import io
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features
from PIL.TiffImagePlugin import TiffImageFile

from sortal.pixels import Reason

Rgb: TypeAlias = "NDArray[np.uint8]"  # (height, width, 3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ok:
    """A file that must decode, and to what."""

    rgb: Rgb
    near: int = 0  # the most by which a value may differ
    seams: int = 0  # pixels on either side of where colours meet that may differ by more
    format: str
    bits: int = 8
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
    rows = values.reshape(len(values), -1)
    if bits == 8:
        return [row.astype(np.uint8).tobytes() for row in rows]
    if bits == 16:
        return [row.astype(">u2").tobytes() for row in rows]
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


BYTE, SHORT, LONG, UNDEFINED = 1, 3, 4, 7  # types of a tag of a TIFF


def tiff(
    strips: Sequence[bytes],
    *,
    bits: Sequence[int],
    photometric: int,  # 0 grey from white, 1 grey from black, 2 RGB, 3 palette, 5 CMYK, 8 CIELAB
    order: str = "<",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    compression: int = 1,
    sample: int = 1,  # 1 unsigned, 2 signed, 3 float
    tile: tuple[int, int] | None = None,
    tags: dict[int, tuple[int, Sequence[int]]] | None = None,
    itself_next: bool = False,
) -> bytes:
    """A TIFF of one page, its directory before its pixels."""
    offsets, counts = (324, 325) if tile else (273, 279)
    entries: dict[int, tuple[int, Sequence[int]]] = {
        256: (LONG, [size[0]]),
        257: (LONG, [size[1]]),
        258: (SHORT, bits),
        259: (SHORT, [compression]),
        262: (SHORT, [photometric]),
        offsets: (LONG, [0] * len(strips)),
        277: (SHORT, [len(bits)]),
        counts: (LONG, [len(strip) for strip in strips]),
        339: (SHORT, [sample] * len(bits)),
        **({322: (LONG, [tile[0]]), 323: (LONG, [tile[1]])} if tile else {278: (LONG, [-(-size[1] // len(strips))])}),
        **(tags or {}),
    }
    letters = {BYTE: "B", SHORT: "H", LONG: "I", UNDEFINED: "B"}
    start = 8 + 2 + 12 * len(entries) + 4  # of the values that do not fit into the directory
    end = start + sum(_long(entry) for entry in entries.values())
    at = np.cumsum([end, *map(len, strips)])[:-1]
    entries[offsets] = (LONG, at.tolist())
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
    size = {BYTE: 1, SHORT: 2, LONG: 4, UNDEFINED: 1}[entry[0]] * len(entry[1])
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


def bmp_rows(values: "NDArray[Any]", bits: int) -> bytes:
    """Rows from the bottom, each filled up to four bytes."""
    return b"".join(row + bytes(-len(row) % 4) for row in packed(values[::-1], bits))


BMP_PALETTE = b"".join(bytes([blue, green, red, 0]) for red, green, blue in COLOURS.tolist())
FIVES = (SCENE.astype(np.uint16) >> 3) @ np.array([1 << 10, 1 << 5, 1], dtype=np.uint16)  # (h, w) 5 bits a channel


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
    image = Image.fromarray(QUARTER.astype(np.uint8)).convert("P")
    image.putdata(QUARTER.ravel().tolist())
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


def ycck() -> bytes:
    """Inks as photo editors write them: cyan, magenta and yellow as if they were RGB, turned into YCC."""
    planes = np.asarray(Image.fromarray(CMYK[..., :3]).convert("YCbCr"))
    data = jpeg(Image.frombytes("CMYK", (WIDTH, HEIGHT), np.dstack([255 - planes, CMYK[..., 3]]).tobytes()))
    return patched(data, data.index(b"Adobe") + 11, b"\x02")


def breaking(raw: bytes) -> bytes:
    """Half the pixels deflated, then bytes that are not."""
    packer = zlib.compressobj()
    return packer.compress(raw[: len(raw) // 2]) + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 64


def bomb_of(width: int, height: int) -> bytes:
    """A PNG that really is as large as it claims, in a few KB."""
    zeros = zlib.compress(bytes((-(-width // 8) + 1) * height), 9)
    return png(np.zeros((1, 1), dtype=np.uint8), bits=1, size=(width, height), stream=lambda _: zeros)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def magick_exif(way: int) -> bytes:
    """EXIF as ImageMagick puts it into a PNG: as text."""
    text = f"\nexif\n{len(exif(way)):8}\n{exif(way).hex()}\n"
    return b"Raw profile type exif\0\0" + zlib.compress(text.encode())


def webp_canvas(width: int, height: int) -> bytes:
    """A WebP whose canvas is larger than the picture on it."""
    start = b"VP8X" + struct.pack("<II", 10, 2) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    frame = bytes(6) + (WIDTH - 1).to_bytes(3, "little") + (HEIGHT - 1).to_bytes(3, "little") + b"\x64\0\0\0"
    frame += PLAIN["webp"][12:]
    body = b"WEBP" + start + b"ANIM" + struct.pack("<IIH", 6, 0, 0) + b"ANMF" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", len(body)) + body


def zip_of(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("image.png", data)
    return file.getvalue()


def lzw(values: Rgb) -> bytes:
    """Pixels as they lie in a TIFF with LZW."""
    data = saved(values, "TIFF", compression="tiff_lzw")
    with Image.open(io.BytesIO(data)) as image:
        assert isinstance(image, TiffImageFile)
        start, length = int(image.tag_v2[273][0]), int(image.tag_v2[279][0])
    return bytes(data[start : start + length])


def tiles(side: int) -> list[bytes]:
    """The scene in squares, those at the edges filled up."""
    whole = np.pad(SCENE, ((0, -HEIGHT % side), (0, -WIDTH % side), (0, 0)))
    rows, columns = range(0, len(whole), side), range(0, whole.shape[1], side)
    return [np.ascontiguousarray(whole[y : y + side, x : x + side]).tobytes() for y in rows for x in columns]


def animated(format_: str, **options: Any) -> bytes:
    """The scene, then what must not be seen."""
    others = [Image.fromarray(NOISE[:HEIGHT, :WIDTH]), Image.fromarray(SCENE[::-1])]
    first = indexed() if format_ == "GIF" else Image.fromarray(SCENE)
    return saved(first, format_, save_all=True, append_images=others, **options)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_broken_link(path: Path) -> None:
    path.symlink_to("nothing at all")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def a_link(path: Path) -> None:
    aside = path.with_suffix(".data")
    aside.write_bytes(PLAIN["png"])
    path.symlink_to(aside.name)


def a_forbidden_file(path: Path) -> None:
    path.write_bytes(PLAIN["png"])
    path.chmod(0)


# The corpus


Corpus: TypeAlias = dict[str, tuple[Content, Verdict]]

OK_JPEG, OK_PNG, OK_TIFF = (
    Ok(rgb=SCENE, near=2, format="JPEG"),
    Ok(rgb=SCENE, format="PNG"),
    Ok(rgb=SCENE, format="TIFF"),
)
OK_GIF, OK_BMP, OK_WEBP = (Ok(rgb=SCENE, format=name) for name in ("GIF", "BMP", "WEBP"))
SIX_JPEG = Ok(rgb=upright(SCENE, 6), near=2, format="JPEG", rotated=True)
SIX_PNG = Ok(rgb=upright(SCENE, 6), format="PNG", rotated=True)


def ok_grey(values: "NDArray[Any]", format_: str = "PNG", bits: int = 8, near: int = 0) -> Ok:
    return Ok(rgb=grey(values), format=format_, bits=bits, near=near)


def ok_png(rgb: Rgb, bits: int = 8, near: int = 0) -> Ok:
    return Ok(rgb=rgb, format="PNG", bits=bits, near=near)


_jpg, _png, _webp, _gif = (PLAIN[end] for end in ("jpg", "png", "webp", "gif"))
_noise = jpeg(NOISE)
_palette = chunk(b"PLTE", COLOURS.tobytes())
_text_bomb = b"x\0\0" + zlib.compress(bytes(8 * 2**20), 9)

JPEGS: Corpus = {
    "plain.jpg": (_jpg, OK_JPEG),
    "progressive.jpg": (jpeg(progressive=True), OK_JPEG),
    "restart markers.jpg": (jpeg(restart_marker_blocks=1), OK_JPEG),
    "half chroma.jpg": (jpeg(subsampling=2), Ok(rgb=SCENE, near=6, seams=4, format="JPEG")),
    "stored as RGB.jpg": (jpeg(keep_rgb=True), OK_JPEG),
    "grey.jpg": (jpeg(LUMA), ok_grey(LUMA, "JPEG", near=2)),
    "CMYK.jpg": (
        jpeg(Image.frombytes("CMYK", (WIDTH, HEIGHT), CMYK.tobytes())),
        Ok(rgb=CMYK_SEEN, near=3, format="JPEG"),
    ),
    "YCCK.jpg": (ycck(), Ok(rgb=CMYK_SEEN, near=4, format="JPEG")),
    "phone.jpg": (animated("MPO", quality=95, subsampling=0), Ok(rgb=SCENE, near=2, format="MPO")),
    "phone, turned.jpg": (
        animated("MPO", quality=95, subsampling=0, exif=exif(6)),
        Ok(rgb=upright(SCENE, 6), near=2, format="MPO", rotated=True),
    ),
    "phone with a film.jpg": (_jpg + b"\0\0\0\x18ftypmp42" + JUNK + b"\xff\xda" + JUNK, OK_JPEG),
    "garbage after.jpg": (_jpg + JUNK, OK_JPEG),
    "two in a row.jpg": (_jpg + jpeg(NOISE), OK_JPEG),
    "way by XMP.jpg": (jpeg(xmp=XMP_6), SIX_JPEG),
    "EXIF garbage.jpg": (with_app1(_jpg, b"Exif\0\0" + JUNK), OK_JPEG),
    "EXIF cut.jpg": (with_app1(_jpg, exif(6)[:16]), OK_JPEG),
    "EXIF empty.jpg": (with_app1(_jpg, b"Exif\0\0"), OK_JPEG),
    "EXIF counts too many.jpg": (with_app1(_jpg, patched(exif(6), 14, b"\xff\xff")), SIX_JPEG),
    "EXIF way 9.jpg": (jpeg(exif=exif(9)), OK_JPEG),
    "EXIF way 0.jpg": (jpeg(exif=exif(0)), OK_JPEG),
    "end missing.jpg": (_jpg[:-2], "truncated"),
    "garbage for a rest.jpg": (half(_noise) + JUNK, "truncated"),
    "rest never written.jpg": (half(_noise).ljust(len(_noise), b"\0"), "truncated"),
    "claims 65500 squared.jpg": (claiming(_jpg, 65500, 65500), "too large"),
    "claims 10000 squared.jpg": (claiming(_jpg, 10000, 10000), "too large"),
    "no height.jpg": (claiming(_jpg, WIDTH, 0), "damaged"),
}

PNGS: Corpus = {
    "plain.png": (_png, OK_PNG),
    "by hand.png": (png(SCENE, colour=2), OK_PNG),
    "many pieces.png": (png(SCENE, colour=2, split=7), OK_PNG),
    "interlaced.png": (png(SCENE, colour=2, interlaced=True), OK_PNG),
    "interlaced 2 bits.png": (png(QUARTER, bits=2, interlaced=True), ok_grey(levels(0, 85, 170, 255), bits=2)),
    "animated.png": (animated("PNG"), OK_PNG),
    "animated, with a still.png": (animated("PNG", default_image=True), OK_PNG),
    "grey.png": (png(LUMA), ok_grey(LUMA)),
    "grey 1 bit.png": (png(QUARTER % 2, bits=1), ok_grey(levels(0, 255, 0, 255), bits=1)),
    "grey 2 bits.png": (png(QUARTER, bits=2), ok_grey(levels(0, 85, 170, 255), bits=2)),
    "grey 4 bits.png": (png(QUARTER * 5, bits=4), ok_grey(levels(0, 85, 170, 255), bits=4)),
    "grey 16 bits.png": (png(RAMP, bits=16), ok_grey(RAMP_OF_8, bits=16)),
    "grey 16 bits, dark.png": (png(RAMP // 64, bits=16), ok_grey(np.rint(RAMP // 64 * (255 / 65535)), bits=16)),
    "RGB 16 bits.png": (png(DEEP, bits=16, colour=2), ok_png(SCENE, bits=16, near=1)),
    "RGBA 16 bits.png": (png(RGBA.astype(np.uint16) * 257, bits=16, colour=6), ok_png(CLEARING, bits=16, near=1)),
    "RGBA.png": (png(RGBA, colour=6), ok_png(CLEARING, near=1)),
    "grey and alpha.png": (png(np.dstack([LUMA, ALPHA]), colour=4), ok_png(on_white(grey(LUMA), ALPHA), near=1)),
    "grey and alpha 16 bits.png": (
        png(np.dstack([LUMA, ALPHA]).astype(np.uint16) * 257, bits=16, colour=4),
        ok_png(on_white(grey(LUMA), ALPHA), bits=16, near=1),
    ),
    "palette.png": (png(QUARTER, colour=3, before=_palette), OK_PNG),
    "palette 2 bits.png": (png(QUARTER, bits=2, colour=3, before=_palette), ok_png(SCENE, bits=2)),
    "palette, one clear.png": (
        png(QUARTER, colour=3, before=_palette + chunk(b"tRNS", b"\xff\0")),
        ok_png(without(1)),
    ),
    "palette, half clear.png": (
        png(QUARTER, colour=3, before=_palette + chunk(b"tRNS", bytes([0, 85, 170, 255]))),
        ok_png(on_white(SCENE, levels(0, 85, 170, 255)), near=1),
    ),
    "RGB, one clear.png": (
        png(SCENE, colour=2, before=chunk(b"tRNS", struct.pack(">HHH", *BLUE))),
        ok_png(without(2)),
    ),
    "RGB 16 bits, one clear.png": (
        png(DEEP, bits=16, colour=2, before=chunk(b"tRNS", struct.pack(">HHH", *DEEP[0, 0].tolist()))),
        ok_png(without(0), bits=16, near=1),
    ),
    "grey, one clear.png": (png(LUMA, before=chunk(b"tRNS", b"\0\x1e")), ok_grey(levels(255, 90, 150, 240))),
    "grey 1 bit, black clear.png": (
        png(QUARTER % 2, bits=1, before=chunk(b"tRNS", b"\0\0")),
        ok_grey(levels(*[255] * 4), bits=1),
    ),
    "grey 2 bits, one clear.png": (
        png(QUARTER, bits=2, before=chunk(b"tRNS", b"\0\1")),
        ok_grey(levels(0, 255, 170, 255), bits=2),
    ),
    "grey 16 bits, black clear.png": (
        png(RAMP, bits=16, before=chunk(b"tRNS", b"\0\0")),
        ok_grey(np.where(RAMP == 0, 255, RAMP_OF_8), bits=16),
    ),
    "way told last.png": (png(SCENE, colour=2, after=chunk(b"eXIf", exif(6)[6:])), SIX_PNG),
    "way by ImageMagick.png": (png(SCENE, colour=2, before=chunk(b"zTXt", magick_exif(6))), SIX_PNG),
    "EXIF garbage.png": (png(SCENE, colour=2, before=chunk(b"eXIf", JUNK)), OK_PNG),
    "garbage after.png": (_png + JUNK, OK_PNG),
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
    "claims 64 megapixels.png": (png(LUMA, size=(8000, 8000)), "truncated"),
    "bomb.png": (bomb_of(10_000, 10_000), "too large"),
    "bomb of text.png": (png(SCENE, colour=2, before=chunk(b"zTXt", _text_bomb)), "damaged"),
    "bomb of a profile.png": (png(SCENE, colour=2, before=chunk(b"iCCP", _text_bomb)), "damaged"),
}

_rgb: dict[str, Any] = {"bits": [8, 8, 8], "photometric": 2}
_raw = [SCENE.tobytes()]
_twelve = RAMP >> 4
_ink = tiff([CMYK.tobytes()], bits=[8] * 4, photometric=5)

TIFFS: Corpus = {
    "plain.tif": (PLAIN["tif"], OK_TIFF),
    "LZW.tif": (saved(SCENE, "TIFF", compression="tiff_lzw"), OK_TIFF),
    "deflate.tif": (saved(SCENE, "TIFF", compression="tiff_adobe_deflate"), OK_TIFF),
    "packbits.tif": (saved(SCENE, "TIFF", compression="packbits"), OK_TIFF),
    "JPEG inside.tif": (saved(SCENE, "TIFF", compression="jpeg", quality=95), Ok(rgb=SCENE, near=3, format="TIFF")),
    "fax.tif": (
        saved(Image.fromarray(QUARTER % 2 == 1), "TIFF", compression="group4"),
        ok_grey(levels(0, 255, 0, 255), "TIFF", bits=1),
    ),
    "big.tif": (saved(SCENE, "TIFF", big_tiff=True), OK_TIFF),
    "strips.tif": (tiff([SCENE[y : y + 5].tobytes() for y in range(0, HEIGHT, 5)], **_rgb), OK_TIFF),
    "tiles.tif": (tiff(tiles(16), **_rgb, tile=(16, 16)), OK_TIFF),
    "tiles beyond the edge.tif": (tiff(tiles(48), **_rgb, tile=(48, 48)), OK_TIFF),
    "pages.tif": (animated("TIFF"), OK_TIFF),
    "page is its own next.tif": (tiff(_raw, **_rgb, itself_next=True), OK_TIFF),
    "big-endian.tif": (tiff(_raw, **_rgb, order=">"), OK_TIFF),
    "planes.tif": (
        tiff([SCENE[..., i].tobytes() for i in range(3)], **_rgb, tags={284: (SHORT, [2]), 278: (LONG, [HEIGHT])}),
        OK_TIFF,
    ),
    "palette.tif": (saved(indexed(), "TIFF"), OK_TIFF),
    "RGBA.tif": (
        tiff([RGBA.tobytes()], bits=[8] * 4, photometric=2, tags={338: (SHORT, [2])}),
        Ok(rgb=CLEARING, near=1, format="TIFF"),
    ),
    "CMYK.tif": (_ink, Ok(rgb=CMYK_SEEN, near=1, format="TIFF")),
    "CIELAB.tif": (tiff(_raw, bits=[8] * 3, photometric=8), "unsupported"),
    "grey 8 bits from white.tif": (grey_tiff(LUMA, photometric=0), ok_grey(255 - LUMA, "TIFF")),
    "grey 12 bits.tif": (
        tiff([b"".join(packed(_twelve, 12))], bits=[12], photometric=1),
        ok_grey(np.rint(_twelve * (255 / 4095)), "TIFF", bits=12),
    ),
    "grey 16 bits.tif": (grey_tiff(RAMP), ok_grey(RAMP_OF_8, "TIFF", bits=16)),
    "grey 16 bits big-endian.tif": (grey_tiff(RAMP, order=">"), ok_grey(RAMP_OF_8, "TIFF", bits=16)),
    "grey 16 bits LZW.tif": (
        saved(Image.fromarray(RAMP), "TIFF", compression="tiff_lzw"),
        ok_grey(RAMP_OF_8, "TIFF", bits=16),
    ),
    "grey 16 bits from white.tif": (grey_tiff(RAMP, photometric=0), ok_grey(255 - RAMP_OF_8, "TIFF", bits=16)),
    "grey 16 bits signed.tif": (
        grey_tiff((RAMP.astype(np.int32) - 32768).astype(np.int16)),
        ok_grey(RAMP_OF_8, "TIFF", bits=16),
    ),
    "RGB 16 bits.tif": (
        tiff([DEEP.tobytes()], bits=[16] * 3, photometric=2),
        Ok(rgb=SCENE, near=1, format="TIFF", bits=16),
    ),
    "int32.tif": (grey_tiff(RAMP.astype(np.int32) * 20 - 1000), ok_grey(RAMP_OF_8, "TIFF", bits=32)),
    "uint32.tif": (grey_tiff(RAMP.astype(np.uint32) * 65537), ok_grey(RAMP_OF_8, "TIFF", bits=32)),
    "float to 1.tif": (grey_tiff(UNIT), ok_grey(UNIT_OF_8, "TIFF", bits=32)),
    "float to 1, half used.tif": (grey_tiff(UNIT / 2), ok_grey(np.rint(UNIT * 127.5), "TIFF", bits=32, near=1)),
    "float to 255.tif": (grey_tiff(UNIT * 255), ok_grey(UNIT_OF_8, "TIFF", bits=32)),
    "float to 4000.tif": (grey_tiff(UNIT * 4000), ok_grey(UNIT_OF_8, "TIFF", bits=32, near=1)),
    "float below 0.tif": (grey_tiff(UNIT * 300 - 100), ok_grey(UNIT_OF_8, "TIFF", bits=32, near=1)),
    "float from white.tif": (grey_tiff(UNIT, photometric=0), ok_grey(255 - UNIT_OF_8, "TIFF", bits=32, near=1)),
    "float big-endian.tif": (grey_tiff(UNIT, order=">"), ok_grey(UNIT_OF_8, "TIFF", bits=32)),
    "float with holes.tif": (grey_tiff(HOLES), ok_grey(HOLES_OF_8, "TIFF", bits=32)),
    "float nothing but holes.tif": (grey_tiff(UNIT * np.float32(np.nan)), ok_grey(UNIT * 0, "TIFF", bits=32)),
    "float all the same.tif": (grey_tiff(UNIT * 0 + np.float32(-7)), ok_grey(UNIT * 0, "TIFF", bits=32)),
    "float64.tif": (grey_tiff(UNIT.astype(np.float64)), "unsupported"),
    "float16.tif": (grey_tiff(UNIT.astype(np.float16)), "unsupported"),
    "float RGB.tif": (
        tiff([SCENE.astype(np.float32).tobytes()], bits=[32] * 3, photometric=2, sample=3),
        "unsupported",
    ),
    "two channels 16 bits.tif": (
        tiff([np.dstack([RAMP, RAMP]).tobytes()], bits=[16] * 2, photometric=1),
        "unsupported",
    ),
    "way by XMP.tif": (
        tiff(_raw, **_rgb, tags={700: (BYTE, list(XMP_6))}),
        Ok(rgb=upright(SCENE, 6), format="TIFF", rotated=True),
    ),
    "way 9.tif": (tiff(_raw, **_rgb, tags={274: (SHORT, [9])}), OK_TIFF),
    "EXIF nowhere.tif": (tiff(_raw, **_rgb, tags={34665: (LONG, [10**9]), 34853: (LONG, [10**9])}), OK_TIFF),
    "claims a strip of 2 GB.tif": (tiff(_raw, **_rgb, tags={279: (LONG, [2**31])}), OK_TIFF),
    "strip is elsewhere.tif": (tiff(_raw, **_rgb, tags={279: (LONG, [10 * len(_raw[0])])})[:-9], "truncated"),
    "claims 60000 squared.tif": (tiff(_raw, **_rgb, size=(60_000, 60_000)), "too large"),
    "claims 64 megapixels.tif": (tiff(_raw, **_rgb, size=(8000, 8000)), "truncated"),
    "claims 64 megapixels of LZW.tif": (tiff(_raw, **_rgb, size=(8000, 8000), compression=5), "damaged"),
    "no width.tif": (tiff(_raw, **_rgb, size=(0, HEIGHT)), "damaged"),
}

OTHERS: Corpus = {
    "plain.gif": (_gif, OK_GIF),
    "animated.gif": (animated("GIF"), OK_GIF),
    "interlaced.gif": (saved(indexed(), "GIF", interlace=1), OK_GIF),
    "in order.gif": (saved(indexed(), "GIF", interlace=0), OK_GIF),
    "clear.gif": (saved(indexed(), "GIF", transparency=3), Ok(rgb=without(3), format="GIF")),
    "frame beyond the canvas.gif": (patched(_gif, 6, struct.pack("<HH", 8, 8)), OK_GIF),
    "garbage after.gif": (_gif + JUNK, OK_GIF),
    "end missing.gif": (_gif[:-1], OK_GIF),
    "canvas of 65535 squared.gif": (patched(_gif, 6, b"\xff" * 4), "too large"),
    "frame of 65535 squared.gif": (patched(_gif, _gif.index(b",") + 5, b"\xff" * 4), "too large"),
    "plain.bmp": (PLAIN["bmp"], OK_BMP),
    "1 bit.bmp": (
        bmp(bmp_rows(QUARTER % 2, 1), 1, palette=BMP_PALETTE[:8]),
        Ok(rgb=COLOURS[QUARTER % 2], format="BMP"),
    ),
    "1 bit black and white.bmp": (
        saved(Image.fromarray(QUARTER % 2 == 1), "BMP"),
        ok_grey(levels(0, 255, 0, 255), "BMP", bits=1),
    ),
    "4 bits.bmp": (bmp(bmp_rows(QUARTER, 4), 4, palette=BMP_PALETTE), OK_BMP),
    "8 bits.bmp": (bmp(bmp_rows(QUARTER, 8), 8, palette=BMP_PALETTE), OK_BMP),
    "16 bits.bmp": (bmp(bmp_rows(FIVES.byteswap(), 16), 16), Ok(rgb=SCENE, near=8, format="BMP")),
    "24 bits.bmp": (bmp(bmp_rows(SCENE[..., ::-1], 8), 24), OK_BMP),
    "32 bits.bmp": (bmp(bmp_rows(np.dstack([SCENE[..., ::-1], 0 * ALPHA]), 8), 32), OK_BMP),
    "runs.bmp": (bmp(bmp_runs(), 8, palette=BMP_PALETTE, compression=1), OK_BMP),
    "from the top.bmp": (bmp(bmp_rows(SCENE[::-1, :, ::-1], 8), 24, size=(WIDTH, -HEIGHT)), OK_BMP),
    "garbage after.bmp": (PLAIN["bmp"] + JUNK, OK_BMP),
    "runs out.bmp": (bmp(bmp_runs()[:60], 8, palette=BMP_PALETTE, compression=1), "truncated"),
    "claims 30000 squared.bmp": (bmp(b"", 24, size=(30_000, 30_000)), "too large"),
    "claims 64 megapixels.bmp": (bmp(b"", 24, size=(8000, 8000)), "truncated"),
    "unknown compression.bmp": (bmp(bytes(100), 24, compression=9), "unsupported"),
    "plain.webp": (_webp, OK_WEBP),
    "lossy.webp": (saved(SCENE, "WEBP", quality=95), Ok(rgb=SCENE, near=6, seams=4, format="WEBP")),
    "clear.webp": (saved(RGBA, "WEBP", lossless=True, exact=True), Ok(rgb=CLEARING, near=1, format="WEBP")),
    "clear lossy.webp": (saved(RGBA, "WEBP", quality=95), Ok(rgb=CLEARING, near=8, seams=4, format="WEBP")),
    "animated.webp": (animated("WEBP", lossless=True), OK_WEBP),
    "EXIF garbage.webp": (saved(SCENE, "WEBP", lossless=True, exif=b"Exif\0\0" + JUNK), OK_WEBP),
    "garbage after.webp": (_webp + JUNK, OK_WEBP),
    "16383 squared.webp": (webp_canvas(16383, 16383), "too large"),
    "one pixel.png": (png(np.array([[7]])), ok_grey(np.array([[7]]))),
    "one pixel.gif": (saved(Image.new("P", (1, 1)), "GIF"), ok_grey(np.array([[0]]), "GIF")),
    "thin.png": (png(np.full((20_000, 1), 9)), ok_grey(np.full((20_000, 1), 9))),
    "wide.png": (png(np.full((1, 20_000), 9)), ok_grey(np.full((1, 20_000), 9))),
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
        WAYS[f"way {_way}.{_end}"] = (_data, Ok(rgb=_turned, near=_near, format=FORMATS[_end], rotated=_way > 1))

HALVES: Corpus = {f"half.{end}": (data[: len(data) // 2], "truncated") for end, data in PLAIN.items()}
HALVES |= {
    "half, lossy.webp": (half(saved(SCENE, "WEBP", quality=95)), "truncated"),
    "half, animated.webp": (half(animated("WEBP")), "truncated"),
    "half, progressive.jpg": (half(jpeg(NOISE, progressive=True)), "truncated"),
    "half, pixels.jpg": (half(_noise), "truncated"),
    "half, big.tif": (half(saved(SCENE, "TIFF", big_tiff=True)), "truncated"),
    "half, runs.bmp": (half(bmp(bmp_runs(), 8, palette=BMP_PALETTE, compression=1)), "truncated"),
    "directory cut off.tif": (half(saved(SCENE, "TIFF", compression="tiff_lzw")), "damaged"),
    "header.jpg": (_jpg[:20], "damaged"),
    "header.png": (_png[:33], "damaged"),
    "header.webp": (_webp[:12], "truncated"),
    "header.tif": (PLAIN["tif"][:8], "damaged"),
    "header of a big one.tif": (saved(SCENE, "TIFF", big_tiff=True)[:16], "damaged"),
    "header.bmp": (PLAIN["bmp"][:54], "truncated"),
    "header.gif": (_gif[:13], "damaged"),
}

FOREIGN: Corpus = {
    "empty.jpg": (b"", "empty"),
    "one byte.jpg": (b"\xff", "not an image"),
    "text.jpg": (b"This is not an image.\n", "not an image"),
    "page.png": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "not an image"),
    "drawing.png": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "not an image"),
    "photo.heic.jpg": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + JUNK, "not an image"),
    "photo.avif.jpg": (saved(SCENE, "AVIF") if features.check("avif") else b"\0\0\0\x20ftypavif", "not an image"),
    "ICO.png": (saved(SCENE, "ICO"), "not an image"),
    "PPM.jpg": (saved(SCENE, "PPM"), "not an image"),
    "paper.jpg": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + JUNK, "not an image"),
    "PostScript.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", "not an image"),
    "archive.jpg": (zip_of(_png), "not an image"),
    "sound.jpg": (b"RIFF" + struct.pack("<I", 36 + len(JUNK)) + b"WAVEfmt " + bytes(28) + JUNK, "not an image"),
    "pickle.jpg": (pickle.dumps({"never": "load me"}), "not an image"),
    "zeros.jpg": (bytes(5000), "not an image"),
    **{f"random {seed}.jpg": (np.random.default_rng(seed).bytes(3000), "not an image") for seed in range(5, 9)},
    "really a PNG.jpg": (_png, OK_PNG),
    "really a JPEG.png": (_jpg, OK_JPEG),
    "really a GIF.tif": (_gif, OK_GIF),
    "no extension": (_webp, OK_WEBP),
}

PLACES: Corpus = {
    "folder.jpg": (a_folder, "not a file"),
    "pipe.jpg": (os.mkfifo, "not a file"),
    "broken link.jpg": (a_broken_link, "missing"),
    "link to itself.jpg": (a_link_to_itself, "missing"),
    "link.png": (a_link, OK_PNG),
    "forbidden.png": (a_forbidden_file, OK_PNG if os.geteuid() == 0 else "forbidden"),
}

NAMES: Corpus = dict.fromkeys(
    (
        " leading and trailing .png ",
        "#hash?query=1&x=%20.png",
        '=HYPERLINK("x").png',
        "<script>alert(1)",
        "two\nlines\tand\rmore.png",
        "quote'\"`$HOME.png",
        "back\\slash.png",
        "-rf.png",
        "Ünïcödé 图像 🌿.png",
        "u\u0308 in two.png",
        "\u202egnp.exe.png",
        "not UTF-8 \udce9\udcff.png",
        "\x1b[31mred\x7f.png",
        "x" * 251 + ".png",
    ),
    (_png, OK_PNG),
)

CORPUS: Corpus = {**JPEGS, **PNGS, **TIFFS, **OTHERS, **WAYS, **HALVES, **FOREIGN, **PLACES, **NAMES}

# Damage that Pillow's decoders keep to themselves; kept apart, as nothing can be expected of it.
UNTOLD: Corpus = {
    "claims twice the height.jpg": (claiming(_jpg, WIDTH, 2 * HEIGHT), "damaged"),
    "cut and ended.jpg": (half(_noise) + b"\xff\xd9", "damaged"),
    "half the rows.png": (png(SCENE, colour=2, stream=lambda raw: zlib.compress(half(raw))), "damaged"),
}
