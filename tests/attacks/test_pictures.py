"""Hostile images: mutated files, bombs, headers that lie, extreme shapes, and files that are something else."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support import nasty
from support.examining import examine
from support.mutation import mutated
from support.nasty import Ok
from support.world import Trial

from sortal.errors import LASTING, UnreadableError
from sortal.images import decoding
from sortal.images.image_set import image_set
from sortal.images.store.packing import Settings, pack
from sortal.system import workers
from sortal.system.progress import Runtime
from sortal.system.workers import JsonObject, WorkItem, run_workers

MANY = 100  # mutated files in a trial
LIMIT = 4_000_000  # pixels, so that a false header costs no time
HANGING = 120  # seconds for one image
RESIDENT = 2**30  # bytes that decoding may take, of which 80 million pixels take most


def examined(files: Sequence[Path], max_pixels: int = LIMIT) -> list[JsonObject]:
    """Examine files in a worker, as users' files are; fail where one crashes or stalls it, or reaches outside."""
    items = [WorkItem(row, str(path)) for row, path in enumerate(files)]
    with patch.object(workers, "IMAGE_PATIENCE", HANGING):
        found = dict(run_workers(examine, items, options={"max_pixels": max_pixels}, workers=1))
    for row, path in enumerate(files):
        one, name = found[row], f"{path}: {found[row]}"
        assert "reason" not in one, name  # it died or lacked memory
        assert not one["outside"], name
        assert {one["check"], one["refused"]} <= {"", *LASTING}, name
        if not one["refused"]:
            assert sorted(one["shape"][:2]) == one["claimed"], name
            assert one["shape"][0] * one["shape"][1] <= max_pixels, name
            assert one["check"] in ("", "too large"), name  # too thin to be resized
        else:
            assert one["check"], name
    return [found[row] for row in range(len(files))]


@cache
def seeds() -> dict[str, bytes]:
    """Return files of all formats and variants, by name, that are small and sound."""
    return {
        name: content
        for name, (content, verdict) in nasty.CORPUS.items()
        if isinstance(verdict, Ok) and isinstance(content, bytes) and len(content) < 20_000
    } | {
        "progressive noise.jpg": nasty.jpeg(nasty.NOISE, progressive=True),
        "lossy noise.webp": nasty.saved(nasty.NOISE, "WEBP", quality=80),
        "noise.gif": nasty.saved(nasty.NOISE[..., 0], "GIF"),
        "LZW.tif": nasty.saved(nasty.NOISE, "TIFF", compression="tiff_lzw"),
        "deflate.tif": nasty.saved(nasty.NOISE, "TIFF", compression="tiff_adobe_deflate"),
        "JPEG.tif": nasty.saved(nasty.NOISE, "TIFF", compression="jpeg"),
        "packbits.tif": nasty.saved(nasty.SCENE, "TIFF", compression="packbits"),
    }


@cache
def expected(name: str) -> str:
    """Return the digest of the pixels of a seed, decoded here."""
    return decoding.digest(decoding.decode(seeds()[name]).rgb)


def write_mutated(folder: Path, random_: random.Random) -> tuple[list[Path], dict[Path, str]]:
    """Write mutated files, and an original after every fifth; return all of them, and the names of the originals."""
    names, files, originals = [*seeds()], list[Path](), dict[Path, str]()
    for number in range(MANY):
        files.append(folder / f"{number}.jpg")
        files[-1].write_bytes(mutated([*seeds().values()], random_))
        if number % 5 == 4:
            files.append(folder / f"{number} original.png")
            originals[files[-1]] = random_.choice(names)
            files[-1].write_bytes(seeds()[originals[files[-1]]])
    return files, originals


@pytest.mark.attack
def test_mutations(trial: Trial) -> None:
    """Mutated files are refused or decoded as they claim; originals among them keep their pixels."""
    files, originals = write_mutated(trial.folder, trial.random)
    for path, found in zip(files, examined(files), strict=True):
        if path in originals:
            assert found.get("pixels") == expected(originals[path]), f"{originals[path]}: {found}"


def stored(name: str) -> NDArray[np.uint8] | str:
    """Return the pixels of an original as they are stored, or why it is too thin for that."""
    try:
        return decoding.decode(seeds()[name], shorter_side=16, max_pixels=LIMIT).rgb
    except UnreadableError as error:
        return error.reason


@pytest.mark.attack
def test_packed_mutations(trial: Trial) -> None:
    """A pixel store of mutated files has a row or a reason for each; the originals have their own pixels."""
    files, originals = write_mutated(trial.folder, trial.random)
    images = image_set([path.name for path in files], paths=[str(path) for path in files], labels=[None] * len(files))
    settings = Settings(shorter_side=16, max_pixels=LIMIT)
    with patch.object(workers, "IMAGE_PATIENCE", HANGING):
        store = pack(images, trial.folder / "store", settings=settings, runtime=Runtime(workers=1))
    refused = {bad.file: bad.reason for bad in store.quarantine}
    assert set(refused.values()) <= LASTING, refused
    for row, path in enumerate(files):
        assert (path.name in refused) != store.present[row], path
        if path.name not in refused:
            assert store.image(row).shape == (store.heights[row], store.widths[row], 3)
            assert min(store.image(row).shape[:2]) == 16
        if path in originals:
            found = refused.get(path.name) or store.image(row)
            assert np.array_equal(found, stored(originals[path])), originals[path]


def _check_all(trial: Trial, files: Mapping[str, tuple[bytes, str]], max_pixels: int = LIMIT) -> None:
    """Examine files with the reasons for which they must be refused, joined by "|"; "" is none."""
    paths = [trial.folder / f"{number}.jpg" for number in range(len(files))]
    for path, (data, _) in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    for (name, (_, reasons)), found in zip(files.items(), examined(paths, max_pixels), strict=True):
        assert found["refused"] in reasons.split("|"), f"{name}: {found}, not {reasons!r}"
        assert found["peak"] < RESIDENT, f"{name}: {found}"


@pytest.mark.attack(most=1)
def test_bombs(trial: Trial) -> None:
    """Files that unpack to gigabytes, or take endless work to decode, cost little memory and time."""
    _check_all(trial, _bombs())


def _bombs() -> dict[str, tuple[bytes, str]]:
    zeros = zlib.compress(bytes(64 * 2**20), 9)
    png = nasty.PLAIN["png"]
    raw = [nasty.SCENE.tobytes()]

    def with_chunks(*chunks: bytes) -> bytes:
        return nasty.png(nasty.SCENE, colour=2, before=b"".join(chunks))

    def with_tag(tag: int, kind: int, count: int, value: int) -> bytes:
        whole = nasty.tiff(raw, bits=[8] * 3, photometric=2, tags={tag: ("I", [0])})
        at = whole.index(struct.pack("<HHI", tag, 4, 1))
        return nasty.patched(whole, at, struct.pack("<HHII", tag, kind, count, value))

    progressive = nasty.claiming(nasty.jpeg(progressive=True), 2000, 2000)
    scan = progressive[progressive.rindex(b"\xff\xda") : -2]
    endless = nasty.tiff(raw, bits=[8] * 3, photometric=2)
    entries = struct.unpack("<H", endless[8:10])[0]
    fast = nasty.jpeg()
    return {
        "pixels.png": (nasty.png(nasty.LUMA, size=(60_000, 60_000), stream=lambda _: zeros), "too large"),
        "more pixels than claimed.png": (nasty.png(nasty.LUMA, stream=lambda _: zeros), ""),
        "text.png": (with_chunks(nasty.chunk(b"zTXt", b"x\0\0" + zeros)), "damaged"),
        "international text.png": (with_chunks(nasty.chunk(b"iTXt", b"x\0\1\0\0\0" + zeros)), "damaged|"),
        "much text.png": (
            with_chunks(*[nasty.chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(10**6), 9))] * 80),
            "damaged",
        ),
        "profile.png": (with_chunks(nasty.chunk(b"iCCP", b"x\0\0" + zeros)), "|damaged"),
        "EXIF.png": (with_chunks(nasty.chunk(b"eXIf", bytes(2**20))), ""),
        "chunks.png": (with_chunks(*[nasty.chunk(b"tEXt", b"x\0y")] * 10_000), "|damaged"),
        "chunk of 2 GB.png": (nasty.patched(png, png.index(b"IDAT") - 4, b"\x7f\xff\xff\xff"), "|truncated|damaged"),
        "frames.gif": (nasty.PLAIN["gif"][:-1] + nasty.frame_of(nasty.PLAIN["gif"]) * 20_000 + b";", ""),
        "canvas.gif": (nasty.patched(nasty.PLAIN["gif"], 6, b"\xff" * 4), "too large"),
        "frames.webp": (
            nasty.saved(
                Image.new("RGB", (16, 16)),
                "WEBP",
                save_all=True,
                append_images=[Image.new("RGB", (16, 16), (n % 251, n % 17, n % 3)) for n in range(1, 600)],
            ),
            "",
        ),
        "strip.tif": (nasty.tiff([zeros], bits=[8] * 3, photometric=2, compression=8), "|damaged"),
        "strip of LZW.tif": (nasty.tiff([b"\x80" * 10**6], bits=[8] * 3, photometric=2, compression=5), "damaged"),
        "values of a tag.tif": (with_tag(700, 1, 2**31, 8), "|damaged|truncated"),
        "values of another tag.tif": (with_tag(33723, 4, 2**30, 8), "|damaged|truncated"),
        "directory of itself.tif": (nasty.patched(endless, 10 + 12 * entries, struct.pack("<I", 8)), ""),
        "strips.tif": (with_tag(273, 4, 2**28, 8), "damaged|truncated"),
        "scans.jpg": (progressive[:-2] + scan * 20_000 + b"\xff\xd9", "too large"),
        "segments.jpg": (fast[:2] + b"\xff\xe5\x00\x02" * 20_000 + fast[2:], ""),
        "padding.jpg": (fast[:2] + b"\xff" * 10**5 + fast[2:], ""),
        "markers between scans.jpg": (
            nasty.jpeg(progressive=True)[:-2] + b"\xff\x01\xff\xe5\x00\x02" * 20_000 + b"\xff\xd9",
            "",
        ),
        "EXIF that turns in circles.jpg": (
            nasty.jpeg(exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 34665, 4, 1, 8) + b"\x08\0\0\0"),
            "",
        ),
        "runs.bmp": (nasty.bmp(b"\xff\0" * 10**5, 8, palette=nasty.BMP_PALETTE, compression=1), "|damaged|truncated"),
        "deltas.bmp": (
            nasty.bmp(b"\0\2\0\0" * 10**4, 8, palette=nasty.BMP_PALETTE, compression=1),
            "truncated|damaged|",
        ),
    }


@pytest.mark.attack(most=4)
def test_near_the_limit(trial: Trial) -> None:
    """As many pixels as are allowed, from a few kilobytes, take memory in proportion, not more."""
    side = 8900 if trial.number else 1000
    rows, pixels = bytes((3 * side + 1) * side), bytes(3 * side * side)
    size = (side, side)
    makers: dict[str, Callable[[], bytes]] = {
        "png": lambda: nasty.png(nasty.SCENE, colour=2, size=size, stream=lambda _: zlib.compress(rows, 9)),
        "tif": lambda: nasty.tiff([zlib.compress(pixels, 9)], bits=[8] * 3, photometric=2, size=size, compression=8),
        "jpg": lambda: nasty.jpeg(Image.new("L", size)),
    }
    extension = trial.case([*makers])
    path = trial.folder / f"whole.{extension}"
    path.write_bytes(makers[extension]())
    (found,) = examined([path], 80_000_000)
    assert not found["refused"]
    assert found["peak"] < 2 * RESIDENT, found


@pytest.mark.attack(most=3)
def test_shapes(trial: Trial) -> None:
    """The thinnest images there can be are decoded, and refused where they would be enlarged beyond the limit."""
    files: dict[str, tuple[bytes, str]] = {}
    for format_, longest in {
        "PNG": 65_535,
        "TIFF": 65_535,
        "BMP": 65_535,
        "GIF": 65_535,
        "WEBP": 16_383,
        "JPEG": 65_500,
    }.items():
        for width, height in ((1, longest), (longest, 1), (3, 5000), (1, 1)):
            image = Image.new("L", (width, height), trial.random.randrange(256))
            files[f"{width} × {height} {format_}"] = (nasty.saved(image, format_), "")
    _check_all(trial, files)


@pytest.mark.attack
def test_lies(trial: Trial) -> None:
    """A header that claims another size does no harm; of TIFF, BMP and GIF, what has too few pixels is refused."""
    sizes = [0, 1, 2, 7, 33, 96, 129, 400, 1999, 65_535]
    files: dict[str, tuple[bytes, str]] = {}
    refusals = "truncated|damaged|too large|unsupported|not an image"
    for number in range(40):
        width, height = trial.random.choice(sizes), trial.random.choice(sizes)
        for name, (data, enough) in _claims(width, height).items():
            files[f"{number} {width} × {height} {name}"] = (data, f"|{refusals}" if enough else refusals)
    _check_all(trial, files)


def _claims(width: int, height: int) -> dict[str, tuple[bytes, bool]]:
    """Return a file of each format that claims a size, and whether it has rows enough for it."""
    high, wide = nasty.NOISE.shape[:2]
    gif = nasty.saved(nasty.NOISE[..., 0], "GIF")
    frame = gif.index(b",", 13 + 3 * 256)
    dimensions = struct.pack("<HH", width, height)
    claimed = nasty.patched(nasty.patched(gif, 6, dimensions), frame + 5, dimensions)
    png = nasty.png(nasty.NOISE, colour=2, size=(width, height))
    tiff = nasty.tiff([nasty.NOISE.tobytes()], bits=[8] * 3, photometric=2, size=(width, height))
    bmp = nasty.bmp(nasty.NOISE.tobytes(), 24, size=(width, height))
    return {
        "JPEG": (nasty.claiming(nasty.jpeg(nasty.NOISE), width, height), True),  # the decoder fills in the rest
        "PNG": (png, True),
        "TIFF": (tiff, width * height <= wide * high),
        "BMP": (bmp, height * (-(-3 * width // 4) * 4) <= 3 * wide * high),
        "GIF": (claimed, width * height <= wide * high),
    }


@pytest.mark.attack(most=1)
def test_strangers(trial: Trial) -> None:
    """Files that are also something else are images if they begin as one; nothing else is run, opened or asked."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x", b"y" * 100)
    script = b"<script>fetch('http://127.0.0.1:9')</script>#!/bin/sh\ntouch /tmp/x\n"
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\nshowpage\n%%EOF\n"
    dos_eps = b"\xc5\xd0\xd3\xc6" + struct.pack("<II", 30, len(postscript)) + bytes(18) + postscript
    box = b"\0\0\0\x1cftyp%s\0\0\0\0mif1miaf" + bytes(400)
    none: dict[str, bytes] = {
        "PostScript": postscript,
        "PostScript with a preview": dos_eps,
        "PDF": b"%PDF-1.7\n" + nasty.PLAIN["jpg"],
        "SVG": b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]><svg>&x;</svg>',
        "HEIC": box % b"heic",
        "AVIF": box % b"avif",
        "archive first": archive.getvalue() + nasty.PLAIN["png"],
        "page": b"<html>" + script,
        "icon": nasty.saved(nasty.SCENE, "ICO"),
        "JPEG 2000": nasty.saved(nasty.SCENE, "JPEG2000"),
        "real AVIF": nasty.saved(nasty.SCENE, "AVIF"),
        "TGA": nasty.saved(nasty.SCENE, "TGA"),
        "Windows metafile": b"\xd7\xcd\xc6\x9a" + bytes(300),
        "text plotted": b"P3 1 1 255 1 2 3",
        "film": b"\0\0\1\xb3" + bytes(300),
        "FITS": b"SIMPLE  =                    T".ljust(2880),
    }
    files = {name: (data, "not an image") for name, data in none.items()}
    for end, data in nasty.PLAIN.items():
        for name, more in {"archive": archive.getvalue(), "script": script, "PDF": b"%PDF-1.7\n"}.items():
            files[f"{end} and {name}"] = (data + more, "")
    _check_all(trial, files)
