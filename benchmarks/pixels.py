"""Speed of reading images: the pixel store against decoding and against copying memory; packing; the health check.

    python benchmarks/pixels.py crops --images FOLDER --workers 2
    python benchmarks/pixels.py check --images FOLDER --count 10000

read       seconds to list 100,000 empty files (or --files) in 100 folders, and to read tables of them
near       the share of changed copies of an image that the check reports as near-duplicates
crops      random 224-crops per second: from the store, by decoding 500 × 375 JPEGs each time, and plain copies
pack       seconds to fill the store, against decoding and resizing the same files in as many processes
check      seconds of the health check alone
first      seconds of a first run up to training: pixels and health check, by the wall and by the processors

Images are those of FOLDER, resized to 500 × 375 (or --size) and saved as JPEG, mirrored and turned if --count asks for
more; without FOLDER they are smoothed noise (seed: the number of the image). `--as-is` uses the files of FOLDER as they
are.
"""

import argparse
import io
import json
import os
import platform
import resource
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from sortal import __version__, read_images
from sortal.images import near_duplicates
from sortal.images.check import check, check_stored
from sortal.images.image_set import ImageSet
from sortal.images.store.packing import pack
from sortal.images.store.pixel_store import PixelStore
from sortal.system import csv_tables
from sortal.system.progress import Runtime

SHORTER, CROP, BATCH = 256, 224, 128
REPEATS = 3


def make_images(folder: Path, source: Path | None, count: int, size: tuple[int, int]) -> None:
    """Write JPEGs of one size, each of another picture or another view of it."""
    originals = read_images(source, need_labels=False).paths if source else ()
    for number in range(count):
        if originals:
            view, which = divmod(number, len(originals))
            with Image.open(originals[which]) as file:
                picture = file.convert("RGB")
            picture = picture.rotate(90 * (view // 2), expand=True)
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if view % 2 else picture
        else:
            noise = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            picture = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(2))
        picture.resize(size, Image.Resampling.BICUBIC).save(folder / f"{number:06d}.jpg", quality=90)


def by_decoding(paths: tuple[str, ...], seed: int, count: int) -> float:
    """Time random crops the usual way: open, decode, resize, crop."""
    rng = np.random.default_rng(seed)
    out = np.empty((BATCH, CROP, CROP, 3), dtype=np.uint8)
    start = perf_counter()
    for number in range(count):
        with Image.open(paths[rng.integers(len(paths))]) as file:
            picture = file.convert("RGB")
        scale = SHORTER / min(picture.size)
        width, height = (int(side * scale) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
        left, top = int(rng.integers(width - CROP + 1)), int(rng.integers(height - CROP + 1))
        out[number % BATCH] = np.asarray(picture.crop((left, top, left + CROP, top + CROP)))
    return perf_counter() - start


@cache
def opened(folder: str, images: str) -> PixelStore:
    return pack(read_images(images, need_labels=False), folder)


def from_store(folder: str, images: str, seed: int, count: int) -> float:
    """Time as many random crops from the store, a batch at a time."""
    store = opened(folder, images)
    rng = np.random.default_rng(seed)
    out = np.empty((BATCH, CROP, CROP, 3), dtype=np.uint8)
    start = perf_counter()
    for _ in range(count // BATCH):
        rows = rng.integers(len(store), size=BATCH)
        tops = (rng.random(BATCH) * (store.heights[rows] - CROP + 1)).astype(np.int64)
        lefts = (rng.random(BATCH) * (store.widths[rows] - CROP + 1)).astype(np.int64)
        store.crops(rows, tops, lefts, CROP, out=out)
    return perf_counter() - start


def by_copying(seed: int, count: int) -> float:
    """Time copying as many bytes from random places of memory larger than any cache: the limit."""
    rng = np.random.default_rng(seed)
    piece = CROP * CROP * 3
    there = np.ones(2**29, dtype=np.uint8)
    out: NDArray[np.uint8] = np.empty((BATCH, piece), dtype=np.uint8)
    start = perf_counter()
    for _ in range(count // BATCH):
        for place, offset in zip(out, rng.integers(len(there) - piece, size=BATCH).tolist(), strict=True):
            place[:] = there[offset : offset + piece]
    return perf_counter() - start


def rate(pool: ProcessPoolExecutor, work: Callable[[int, int], float], workers: int, count: int) -> float:
    """Return crops per second of all workers together, the best of several repeats."""
    best = 0.0
    for repeat in range(REPEATS + 1):  # the first is the warm-up
        seconds = list(pool.map(work, range(repeat * workers, (repeat + 1) * workers), [count] * workers))
        best = max(best, workers * count / max(seconds)) if repeat else best
    return best


def crops(images: ImageSet, source: Path, folder: Path, workers: int) -> dict[str, float]:
    pack(images, folder / "store", runtime=Runtime(workers=workers))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        store = rate(pool, partial(from_store, str(folder / "store"), str(source)), workers, 20 * BATCH)
        decoding = rate(pool, partial(by_decoding, images.paths), workers, 3 * BATCH)
        copying = rate(pool, by_copying, workers, 20 * BATCH)
    return {
        "store, crops/s": store,
        "decoding, crops/s": decoding,
        "copying, crops/s": copying,
        "store against decoding": store / decoding,
        "store against copying": store / copying,
    }


def decode_all(paths: Iterable[str]) -> int:
    count = 0
    for path in paths:
        with Image.open(path) as file:
            picture = file.convert("RGB")
        scale = SHORTER / min(picture.size)
        picture.resize((int(picture.width * scale), int(picture.height * scale)), Image.Resampling.BICUBIC)
        count += 1
    return count


def packing(images: ImageSet, source: Path, folder: Path, workers: int) -> dict[str, float]:
    start = perf_counter()
    pack(images, folder / "store", runtime=Runtime(workers=workers))
    ours = perf_counter() - start
    start = perf_counter()
    pack(images, folder / "store", runtime=Runtime(workers=workers))
    again = perf_counter() - start
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        start = perf_counter()
        list(pool.map(decode_all, [images.paths[i::workers] for i in range(workers)]))
        plain = perf_counter() - start
    return {"pack, s": ours, "pack again, s": again, "decoding alone, s": plain, "decoding against pack": plain / ours}


def checking(images: ImageSet, source: Path, folder: Path, workers: int) -> dict[str, float]:
    start = perf_counter()
    health = check(images, runtime=Runtime(workers=workers))
    seconds = perf_counter() - start
    return {
        "seconds": seconds,
        "images/s": len(images) / seconds,
        "unreadable": len(health.unreadable),
        "groups of duplicates": len(health.duplicates),
        "groups of near-duplicates": len(health.near_duplicates or ()),
    }


def first_run(images: ImageSet, source: Path, folder: Path, workers: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for run in ("first", "second"):
        start, processors = perf_counter(), processor_seconds()
        health = check_stored(images, pack(images, folder / "store", runtime=Runtime(workers=workers)))
        figures |= {f"{run} run, s": perf_counter() - start, f"{run} run, CPU s": processor_seconds() - processors}
    return {**figures, "groups of near-duplicates": len(health.near_duplicates or ())}


def processor_seconds() -> float:
    """Seconds that all processors spent on this process and those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def reading(folder: Path, files: int) -> dict[str, float]:
    root = folder / "many"
    names = [f"{number % 100:02d}/{number:06d}.jpg" for number in range(files)]
    for number in range(100):
        (root / f"{number:02d}").mkdir(parents=True)
    for name in names:
        (root / name).touch()
    classes = [name.partition("/")[0] for name in names]
    (folder / "t.csv").write_bytes(csv_tables.table([("file_name", names), ("label", classes), ("truth", classes)]))
    lines = (json.dumps({"file_name": name, "label": label}) for name, label in zip(names, classes, strict=True))
    (folder / "t.jsonl").write_text("\n".join(lines))
    ways: dict[str, Callable[[], ImageSet]] = {
        "folders, s": lambda: read_images(root),
        "CSV with truth, s": lambda: read_images(root, labels=folder / "t.csv"),
        "JSON lines, s": lambda: read_images(root, labels=folder / "t.jsonl"),
        "list, s": lambda: read_images([root / name for name in names], labels=classes),
    }
    found = {}
    for what, read in ways.items():
        start = perf_counter()
        assert len(read()) == len(names)
        found[what] = perf_counter() - start
    return found


def jpeg(picture: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 30": lambda p: jpeg(p, 30),
    "half the size": lambda p: p.resize((p.width // 2, p.height // 2), Image.Resampling.BICUBIC),
    "20 % brighter": lambda p: ImageEnhance.Brightness(p).enhance(1.2),
    "20 % more contrast": lambda p: ImageEnhance.Contrast(p).enhance(1.2),
    "2 % cut off each side": lambda p: p.crop(
        (round(p.width * 0.02), round(p.height * 0.02), round(p.width * 0.98), round(p.height * 0.98))
    ),
    "grey": lambda p: p.convert("L").convert("RGB"),
}


def nearness(images: ImageSet, _source: Path, _folder: Path, _workers: int) -> dict[str, float]:
    rows = np.random.default_rng(0).choice(len(images), min(150, len(images)), replace=False)
    found = dict.fromkeys(CHANGES, 0.0)
    for row in rows:
        with Image.open(images.paths[row]) as file:
            picture = file.convert("RGB")
        for what, change in CHANGES.items():
            pair = [near_duplicates.thumbnail(np.asarray(each)) for each in (picture, change(picture))]
            thumbnails = np.frombuffer(b"".join(pair), np.uint8).reshape(2, near_duplicates.LENGTH)
            found[what] += float(near_duplicates.leaders(thumbnails)[1] == 0) / len(rows)
    return found


MODES = {"crops": crops, "pack": packing, "check": checking, "first": first_run, "near": nearness}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("read", *MODES))
    parser.add_argument("--images", type=Path)
    parser.add_argument("--as-is", action="store_true")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--files", type=int, default=100_000, help="of read")
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = options.images if options.as_is else folder / "images"
        if not options.as_is:
            source.mkdir()
            make_images(source, options.images, 1 if options.mode == "read" else options.count, tuple(options.size))
        images = read_images(source, need_labels=False)
        size = sum(os.path.getsize(path) for path in images.paths)
        if options.mode == "read":
            figures = reading(folder, options.files)
        else:
            figures = MODES[options.mode](images, source, folder, options.workers)
    print(f"{len(images):,} images of {size / len(images):,.0f} bytes on average, {options.workers} workers")
    for what, figure in figures.items():
        print(f"{what:28} {figure:12,.2f}")
    versions = {"sortal": __version__, **{name: version(name) for name in ("pillow", "numpy")}}
    print(json.dumps({"python": platform.python_version(), "machine": platform.machine(), **versions}))


if __name__ == "__main__":
    main()
