"""Packing: row i of a store is image i, whatever else happens: kills, changes, damage, lack of room."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from sortal import packing, pixels, space
from sortal.errors import InputError, SortalError
from sortal.images import ImageSet, image_set
from sortal.packing import Settings, pack
from sortal.pixels import UnreadableError
from sortal.reading import read_images
from sortal.segments import Place, create, find
from sortal.store import PixelStore
from sortal.workers import Job, Progress, Task, Values

SMALL = Settings(shorter_side=16)
DATA = Path(__file__).parents[2] / "shared" / "data"


def noise(height: int, width: int, seed: int) -> Image.Image:
    """Coarse noise: every image another one, and turning or mirroring one changes it."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)


def save(path: Path, height: int = 20, width: int = 30, seed: int = 0, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise(height, width, seed).save(path, **options)
    return path


def cut(path: Path) -> None:
    """An image whose header is whole: only decoding can tell that it is not."""
    whole = save(path, 200, 300).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[pixels.ORIENTATION] = orientation
    return exif


def resize(image: Image.Image, shorter_side: int = 16) -> Image.Image:
    """What torchvision's Resize makes of an upright RGB image."""
    width, height = image.size
    short, long = min(width, height), max(width, height)
    longer = int(shorter_side * long / short)
    size = (shorter_side, longer) if width <= height else (longer, shorter_side)
    return image.resize(size, Image.Resampling.BICUBIC)


def expected(path: Path | str, shorter_side: int = 16) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(resize(ImageOps.exif_transpose(image).convert("RGB"), shorter_side))


def read(folder: Path) -> ImageSet:
    return read_images(folder, need_labels=False)


def fill(folder: Path, n: int) -> ImageSet:
    """A folder of n images of three shapes, all different."""
    for i in range(n):
        save(folder / f"{i:03}.png", *((20, 30), (31, 20), (24, 24))[i % 3], seed=i)
    return read(folder)


def check(store: PixelStore, images: ImageSet, shorter_side: int = 16) -> None:
    """Every row has the pixels of its image."""
    assert len(store) == len(images)
    assert store.quarantine == ()
    assert store.present.all()
    for row, path in enumerate(images.paths):
        wanted = expected(path, shorter_side)
        assert (store.heights[row], store.widths[row]) == wanted.shape[:2], path
        np.testing.assert_array_equal(store.image(row), wanted, err_msg=path)


def home(store: Path, settings: Settings = SMALL) -> Path:
    return store / settings.key


def files(folder: Path, *endings: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.endswith(endings)}


def marks(store: Path) -> list[int]:
    return [mark for segment in find(home(store)) for mark in segment.done().tolist()]


class Inline:
    """In place of `workers.run`: the same tasks in this process, and a list of what was asked for."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str | int]] = []

    def __call__(
        self, task: Task, jobs: Iterable[Job], *, options: Mapping[str, Any] | None = None, workers: int | None = None
    ) -> Iterator[tuple[int, Values]]:
        for job in jobs:
            name = Path(job.source).name if isinstance(job.source, str) else job.row
            self.jobs.append((task.__name__, name))
            try:
                result = task(job.source, {**(options or {}), **job.options})
            except UnreadableError as error:
                result = {"reason": error.reason, "detail": error.detail}
            yield job.row, result

    def taken(self) -> list[tuple[str, str | int]]:
        """The jobs since the last time of asking."""
        jobs, self.jobs = self.jobs, []
        return jobs


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Inline:
    runner = Inline()
    monkeypatch.setattr(packing, "run", runner)
    return runner


# What is stored


def test_row_i_is_image_i(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    save(folder / "landscape.jpg", 300, 411, 1)
    save(folder / "portrait.png", 333, 270, 2)
    save(folder / "square.webp", 280, 280, 3, lossless=True)
    save(folder / "small.bmp", 20, 31, 4)
    save(folder / "long.tif", 40, 500, 5)
    save(folder / "turned.jpg", 300, 400, 6, exif=turned(6))
    save(folder / "turned.tif", 40, 50, 6, exif=turned(6))
    save(folder / "upside down.jpg", 300, 400, 7, exif=turned(3))
    noise(50, 40, 8).quantize(64).save(folder / "palette.gif")
    noise(50, 40, 9).convert("L").save(folder / "grey.png")
    shutil.copy(folder / "portrait.png", folder / "zz copy.png")
    images = read(folder)
    store = pack(images, tmp_path / "store", workers=2)
    check(store, images, 256)
    assert min(store.heights.min(), store.widths.min()) == 256
    assert store.widths[images.files.index("landscape.jpg")] == 350  # 256 · 411 / 300 = 350.72
    assert not store.image(0).flags.writeable


@pytest.mark.parametrize("orientation", range(1, 9))
def test_any_way_up(tmp_path: Path, inline: Inline, orientation: int) -> None:
    save(tmp_path / "images" / "a.png", 20, 30, 1, exif=turned(orientation))
    save(tmp_path / "images" / "b.jpg", 20, 20, 2, exif=turned(orientation))
    images = read(tmp_path / "images")
    for _ in range(2):
        store = pack(images, tmp_path / "store", settings=SMALL)
        check(store, images)
    assert (store.heights[0], store.widths[0]) == ((24, 16) if orientation >= 5 else (16, 24))
    assert marks(tmp_path / "store") == [2 if orientation >= 5 else 1, 1]


def test_a_content_is_stored_once(tmp_path: Path, inline: Inline) -> None:
    folder = tmp_path / "images"
    images = fill(folder, 3)  # 16 × 24, 24 × 16, 16 × 16
    for copy in ("other/000.png", "001 again.png", "001 once more.png"):
        (folder / copy).parent.mkdir(exist_ok=True)
        shutil.copy(folder / f"{copy[-7:] if '/' in copy else '001.png'}", folder / copy)
    images = read(folder)
    store = pack(images, tmp_path / "store", settings=SMALL)
    check(store, images)
    assert len(images) == 6
    (segment,) = find(home(tmp_path / "store"))
    assert segment.pixels_file.stat().st_size == 3 * (16 * 24 + 24 * 16 + 16 * 16)


def archive(n: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 11, 3), dtype=np.uint8)


def rows_of(array: NDArray[np.uint8]) -> ImageSet:
    names = [f"{i:03}" for i in range(len(array))]
    return image_set(names, pixels=array, labels=[None] * len(array))


def test_rows_of_an_archive(tmp_path: Path) -> None:
    array = archive(9)
    array[7] = array[2]
    store = pack(rows_of(array), tmp_path / "store", settings=SMALL, workers=2)
    for row in range(9):
        np.testing.assert_array_equal(store.image(row), np.asarray(resize(Image.fromarray(array[row]))))
    assert store.image(0).shape == (16, 22, 3)
    assert find(home(tmp_path / "store"))[0].size == 8 * 3 * 16 * 22


def test_rows_of_an_archive_are_known_by_content(tmp_path: Path, inline: Inline) -> None:
    array = archive(5)
    pack(rows_of(array), tmp_path / "store", settings=SMALL)
    inline.taken()
    pack(rows_of(array[::-1]), tmp_path / "store", settings=SMALL)
    assert inline.taken() == []
    more = np.concatenate([archive(2, seed=1), array])
    store = pack(rows_of(more), tmp_path / "store", settings=SMALL)
    assert inline.taken() == [("put", 0), ("put", 1)]
    for row in range(7):
        np.testing.assert_array_equal(store.image(row), np.asarray(resize(Image.fromarray(more[row]))))


def test_rows_of_an_archive_too_long_and_thin_get_no_place(tmp_path: Path, inline: Inline) -> None:
    thin = np.zeros((2, 1, 500, 3), dtype=np.uint8)
    settings = Settings(shorter_side=16, max_pixels=100_000)  # 16 × 8,000 pixels if they were resized
    store = pack(rows_of(thin), tmp_path, settings=settings, budget=1000)
    assert [(entry.file, entry.reason) for entry in store.quarantine] == [("000", "too large"), ("001", "too large")]
    assert find(home(tmp_path, settings)) == []


def huge_png() -> bytes:
    """A few bytes that claim to be 100 megapixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = (10_000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_what_cannot_be_read_is_named_and_nothing_else_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    good = [save(folder / name, 40, 60, seed).name for seed, name in enumerate(("a.png", "k.jpg", "z.jpg"))]
    whole = save(folder / "cut.jpg", 200, 300, 5, quality=95).read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    shutil.copy(folder / "cut.jpg", folder / "cut too.jpg")
    cut(folder / "cut.png")
    save(folder / "gone.png", seed=6)
    (folder / "text.jpg").write_text("this is no image")
    (folder / "huge.png").write_bytes(huge_png())
    (folder / "empty.png").touch()
    (folder / "header.jpg").write_bytes(whole[:10])
    save(folder / "thin.png", 1, 3000, 7)
    images = read(folder)
    (folder / "gone.png").unlink()
    settings = Settings(shorter_side=256, max_pixels=50_000_000)
    for _ in range(2):
        store = pack(images, tmp_path / "store", settings=settings, workers=2)
        assert {entry.file: entry.reason for entry in store.quarantine} == {
            "cut.jpg": "truncated",
            "cut too.jpg": "truncated",
            "cut.png": "truncated",
            "gone.png": "missing",
            "text.jpg": "not an image",
            "huge.png": "too large",
            "empty.png": "empty",
            "header.jpg": "truncated",
            "thin.png": "too large",  # 256 × 768,000 if it were resized
        }
        assert [entry.file for entry in store.quarantine] == [name for name in images.files if name not in good]
        assert all(entry.detail for entry in store.quarantine)
        for row, name in enumerate(images.files):
            assert store.present[row] == (name in good)
            if name in good:
                np.testing.assert_array_equal(store.image(row), expected(folder / name, 256))
            else:
                assert (store.heights[row], store.widths[row], store.digests[row]) == (0, 0, b"")


def test_a_set_of_nothing_that_can_be_read(tmp_path: Path, inline: Inline) -> None:
    (tmp_path / "a.png").write_text("no image")
    store = pack(read(tmp_path), tmp_path / "store", settings=SMALL)
    assert [entry.file for entry in store.quarantine] == ["a.png"]
    assert not store.present.any()
    with pytest.raises(InputError, match="Row 0 has no pixels"):
        store.image(0)


def test_a_set_of_no_images(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 1)
    store = pack(images.select(np.zeros(1, dtype=bool)), tmp_path / "store", settings=SMALL)
    assert (len(store), store.quarantine) == (0, ())


@pytest.mark.parametrize(
    "name", [b"caf\xe9.png", "été.png".encode(), b"new\nline.png", b"a b#%.png", b"n" * 240 + b".png"]
)
def test_any_name(tmp_path: Path, name: bytes) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n")
    os.mkdir(folder)
    noise(20, 30, 1).save(tmp_path / "a.png")
    path = os.path.join(folder, os.fsdecode(name))
    os.rename(tmp_path / "a.png", path)
    images = read_images([path], need_labels=False)
    store = pack(images, os.path.join(folder, "store"), settings=SMALL, workers=1)
    np.testing.assert_array_equal(store.image(0), expected(path))


def test_any_number_of_workers_makes_the_same_files(tmp_path: Path) -> None:
    images = fill(tmp_path / "images", 30)
    made = []
    for n in (1, 2, 5):
        check(pack(images, tmp_path / str(n), settings=SMALL, workers=n), images)
        made.append(files(home(tmp_path / str(n)), ".bin", ".done", ".npy", "settings.json"))
    assert made[0] == made[1] == made[2]
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        pack(images, tmp_path / "none", settings=SMALL, workers=0)


def test_as_many_workers_as_asked_for(tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def run(*args: Any, workers: int | None, **options: Any) -> Iterator[tuple[int, Values]]:
        asked.append(workers)
        return inline(*args, **options)

    monkeypatch.setattr(packing, "run", run)
    pack(fill(tmp_path / "images", 1), tmp_path / "store", settings=SMALL, workers=3)
    assert asked == [3, 3]


# Settings


def test_every_setting_has_a_folder_of_its_own_and_changes_something(tmp_path: Path, inline: Inline) -> None:
    folder = tmp_path / "images"
    save(folder / "a.jpg", 150, 200, 1)
    save(folder / "b.png", 20, 30, 2)
    images = read(folder)
    store = tmp_path / "store"
    plain = pack(images, store, settings=SMALL)
    before = files(home(store), "")
    exact = pack(images, store, settings=Settings(shorter_side=16, draft=False))
    check(exact, images)
    assert (plain.image(0) != exact.image(0)).any()  # decoded at a fraction of its size
    np.testing.assert_allclose(plain.image(0), exact.image(0), atol=12)
    np.testing.assert_array_equal(plain.image(1), exact.image(1))
    larger = pack(images, store, settings=Settings(shorter_side=20, draft=False))
    check(larger, images, 20)
    limited = pack(images, store, settings=Settings(shorter_side=16, max_pixels=29_999))
    assert [(entry.file, entry.reason) for entry in limited.quarantine] == [("a.jpg", "too large")]
    np.testing.assert_array_equal(limited.image(1), plain.image(1))
    (segment,) = find(home(store, Settings(shorter_side=16, max_pixels=29_999)))
    assert len(segment.plan) == 1  # no place for what is refused by its header
    assert len(list(store.iterdir())) == 4
    assert files(home(store), "") == before
    assert json.loads(before["settings.json"]) == {"shorter_side": 16, "draft": True, "max_pixels": 80_000_000}


@pytest.mark.parametrize("name", ["shorter_side", "max_pixels"])
def test_settings_must_make_sense(name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(InputError, match=f"{name} must be a whole number of at least 1, got 0"):
        Settings(**options)


def test_the_key_of_settings_stays() -> None:
    """Stores outlive versions: another key would make every store be packed again."""
    assert Settings().key == "256px-3c6ac25f" == Settings(shorter_side=256, draft=True, max_pixels=80_000_000).key
    others = (Settings(shorter_side=255), Settings(draft=False), Settings(max_pixels=1))
    assert len({Settings().key, *(other.key for other in others)}) == 4


# The paper's crops


def test_random_crops_are_those_of_torchvision(tmp_path: Path, inline: Inline) -> None:
    torch = pytest.importorskip("torch")
    transforms = pytest.importorskip("torchvision.transforms")
    folder = tmp_path / "images"
    for seed, (height, width) in enumerate([(300, 411), (411, 300), (280, 280), (32, 32), (257, 1000), (99, 71)]):
        save(folder / f"{seed}.png", height, width, seed)
    images = read(folder)
    store = pack(images, tmp_path / "store")
    whole = transforms.Resize(256, transforms.InterpolationMode.BICUBIC)
    torch.manual_seed(0)
    rows = np.arange(30) % 6
    wanted, tops, lefts = [], [], []
    for row in rows:
        with Image.open(images.paths[row]) as image:
            resized = whole(image)
        top, left, _, _ = transforms.RandomCrop.get_params(resized, (224, 224))
        wanted.append(np.asarray(transforms.functional.crop(resized, top, left, 224, 224)))
        tops.append(top)
        lefts.append(left)
    assert len({*tops}) > 10
    np.testing.assert_array_equal(store.crops(rows, np.array(tops), np.array(lefts), 224), np.stack(wanted))


def test_every_corner_is_in_reach(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    store = pack(images, tmp_path / "store", settings=SMALL)
    for row in range(3):
        wanted = expected(images.paths[row])
        for top in {0, store.heights[row] - 12}:
            for left in {0, store.widths[row] - 12}:
                crop = store.crops(np.array([row]), np.array([top]), np.array([left]), 12)[0]
                np.testing.assert_array_equal(crop, wanted[top : top + 12, left : left + 12])


# What is there already


def test_a_second_time_nothing_is_read(tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    images = fill(tmp_path / "images", 6)
    (tmp_path / "images" / "text.png").write_text("no image")
    cut(tmp_path / "images" / "cut.png")
    images = read(tmp_path / "images")
    first = pack(images, tmp_path / "store", settings=SMALL)
    assert len(inline.taken()) == 8 + 7  # all are looked at; of text there is nothing to store
    before = files(home(tmp_path / "store"), "")
    again = pack(images, tmp_path / "store", settings=SMALL)
    monkeypatch.chdir(tmp_path)
    relative = pack(read(Path("images")), "store", settings=SMALL)
    assert inline.taken() == []
    pack(read(Path("images")), "other", settings=SMALL)
    inline.taken()
    pack(images, "other", settings=SMALL)  # known by absolute paths, though read by relative ones
    assert inline.taken() == []
    assert files(home(tmp_path / "store"), "") == before
    for store in (again, relative):
        assert store.quarantine == first.quarantine
        np.testing.assert_array_equal(store.present, first.present)
        for row in np.flatnonzero(first.present).tolist():
            np.testing.assert_array_equal(store.image(row), first.image(row))


def test_a_second_time_no_process_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = fill(tmp_path / "images", 2)
    pack(images, tmp_path / "store", settings=SMALL, workers=1)
    monkeypatch.delattr("subprocess.Popen")
    check(pack(images, tmp_path / "store", settings=SMALL, workers=1), images)


def test_a_touched_file_is_read_but_not_stored_again(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    inline.taken()
    os.utime(images.paths[1], (1, 1))
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == [("look", "001.png")]


def test_a_changed_file_is_stored_anew(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    first = pack(images, tmp_path / "store", settings=SMALL)
    old = first.image(1).copy()
    inline.taken()
    save(tmp_path / "images" / "001.png", 50, 70, seed=77)
    store = pack(images, tmp_path / "store", settings=SMALL)
    check(store, images)
    assert inline.taken() == [("look", "001.png"), ("put", "001.png")]
    np.testing.assert_array_equal(first.image(1), old)  # whoever has the store open keeps what there was
    (tmp_path / "images" / "001.png").write_text("no image any more")
    store = pack(images, tmp_path / "store", settings=SMALL)
    assert [(entry.file, entry.reason) for entry in store.quarantine] == [("001.png", "not an image")]


def test_moved_and_renamed_files_are_known_by_content(tmp_path: Path, inline: Inline) -> None:
    fill(tmp_path / "images", 4)
    pack(read(tmp_path / "images"), tmp_path / "store", settings=SMALL)
    inline.taken()
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "000.png").rename(tmp_path / "elsewhere" / "zzz.png")
    images = read(tmp_path / "elsewhere")
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert {task for task, _ in inline.taken()} == {"look"}
    (tmp_path / "store").rename(tmp_path / "moved store")
    check(pack(images, tmp_path / "moved store", settings=SMALL), images)
    assert inline.taken() == []


def test_added_images_are_appended_and_removed_ones_do_no_harm(tmp_path: Path, inline: Inline) -> None:
    folder, store = tmp_path / "images", tmp_path / "store"
    fill(folder, 4)
    pack(read(folder), store, settings=SMALL)
    before = files(home(store), ".bin", ".done", ".npy")
    times = {name: (home(store) / name).stat().st_mtime_ns for name in before}
    inline.taken()
    save(folder / "000 and a half.png", 40, 22, seed=50)
    save(folder / "x" / "y.png", 20, 70, seed=51)
    (folder / "002.png").unlink()
    images = read(folder)
    check(pack(images, store, settings=SMALL), images)
    added = ["000 and a half.png", "y.png"]
    assert inline.taken() == [("look", name) for name in added] + [("put", name) for name in added]
    after = files(home(store), ".bin", ".done", ".npy")
    assert {name: after[name] for name in before} == before
    assert {name: (home(store) / name).stat().st_mtime_ns for name in before} == times
    assert [segment.size for segment in find(home(store)) if segment.pixels_file.name not in before] == [
        3 * 16 * (29 + 56)
    ]


def test_the_log_of_files_can_be_lost(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    inline.taken()
    log = home(tmp_path / "store") / "seen.jsonl"
    lines = log.read_bytes()
    log.unlink()
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == [("look", f"{i:03}.png") for i in range(3)]
    log.write_bytes(lines[:-5])  # torn by a kill
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == [("look", "002.png")]
    log.write_bytes(b'\x00\xff garbage\n{"digest"\n' + lines)
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == []


# Kills

CHILD = """
import os, signal, sys
from pathlib import Path
from sortal import packing, seen, segments
from sortal.reading import read_images

folder, store, stop, commit = sys.argv[1:]

def wait():
    print("stopped", flush=True)
    sys.stdin.readline()

def on_progress(what, count, total):
    print(what.split()[0], count, total, flush=True)
    if stop == f"{what.split()[0]} {count}":
        wait()

def torn(self):
    text = "\\n".join(self._unwritten).encode()
    with self.path.open("ab") as file:
        file.write(text[: len(text) - 7])
    wait()

if stop == "plan":
    os.replace = lambda *_: wait()
if stop == "mark":
    segments.Segment.mark = lambda *_: wait()
if stop == "log":
    seen.Seen.flush = torn
packing.COMMIT = float(commit)
images = read_images(folder, need_labels=False)
packing.pack(
    images, store, settings=packing.Settings(shorter_side=16), workers=2, on_progress=on_progress
)
"""


class Child:
    """Another process that packs, and stops at one point until told to go on or killed."""

    def __init__(self, folder: Path, store: Path, stop: str = "", *, commit: float = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(store), stop, str(commit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def until_stopped(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "stopped\n":
                return
            self.lines.append(line.strip())
        raise AssertionError(self.end())

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> str:
        """Wait for the end; what it said on stderr."""
        said, errors = self.process.communicate(timeout=60)
        self.lines += said.split("\n")[:-1]
        return errors

    def progress(self, stage: str) -> list[tuple[int, int]]:
        """(how many, of how many) for every call about a stage, Looking or Storing."""
        found = [line.split() for line in self.lines if line.startswith(stage)]
        return [(int(count), int(total)) for _, count, total in found]

    def left_behind(self) -> list[int]:
        """Processes of its group that still live; they get time to find out that their parent has gone."""
        deadline = time.monotonic() + 30
        while (alive := _group(self.process.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return alive


def _group(number: int) -> list[int]:
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == number and state != "Z":
            alive.append(int(stat.parent.name))
    return alive


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A folder of 120 images, and the files of a store of them that nobody disturbed."""
    folder = tmp_path_factory.mktemp("many")
    images = fill(folder / "images", 120)
    check(pack(images, folder / "store", settings=SMALL, workers=2), images)
    return folder / "images", files(home(folder / "store"), ".bin", ".done", ".npy")


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, many: tuple[Path, dict[str, bytes]]) -> None:
    folder, unbroken = many
    store = tmp_path / "store"
    stops = ["Looking 1", "Looking 60", "log", "Looking 120", "plan", "mark", "Storing 1", "Storing 15", "Storing 40"]
    for stop in stops:
        done = sum(map(bool, marks(store)))
        child = Child(folder, store, stop)
        child.until_stopped()
        child.kill()
        assert child.process.returncode == -signal.SIGKILL
        assert child.left_behind() == []
        storing = child.progress("Storing")
        assert {total for _, total in storing} <= {120 - done}  # what was done is not done again
        assert sum(map(bool, marks(store))) >= done + len(storing)  # and what was said to be done is
    assert 56 <= sum(map(bool, marks(store))) < 120
    done = sum(map(bool, marks(store)))
    last = Child(folder, store)
    assert last.end() == ""
    assert last.progress("Storing") == [(i, 120 - done) for i in range(1, 121 - done)]
    assert files(home(store), ".bin", ".done", ".npy") == unbroken
    images = read(folder)
    check(pack(images, store, settings=SMALL), images)


def test_a_killed_survey_goes_on_where_it_was(tmp_path: Path, many: tuple[Path, dict[str, bytes]]) -> None:
    """Reading every file takes long where there are many, also without decoding them."""
    child = Child(many[0], tmp_path, "Looking 60")
    child.until_stopped()
    child.kill()
    assert child.left_behind() == []
    again = Child(many[0], tmp_path)
    assert again.end() == ""
    counts = [count for count, _ in again.progress("Looking")]
    assert counts == list(range(counts[0], 121))
    assert 59 <= counts[0] <= 61
    assert files(home(tmp_path), ".bin", ".done", ".npy") == many[1]


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, many: tuple[Path, dict[str, bytes]]) -> None:
    child = Child(many[0], tmp_path, "Storing 20", commit=1e9)
    child.until_stopped()
    os.killpg(child.process.pid, signal.SIGINT)  # Ctrl-C goes to every process of a terminal
    assert "KeyboardInterrupt" in child.end()
    assert child.process.returncode == -signal.SIGINT
    assert child.left_behind() == []
    assert sum(map(bool, marks(tmp_path))) == 20
    again = Child(many[0], tmp_path, commit=1e9)
    assert again.end() == ""
    assert (again.progress("Looking"), again.progress("Storing")[-1]) == ([], (100, 100))
    assert files(home(tmp_path), ".bin", ".done", ".npy") == many[1]


@pytest.mark.parametrize(("step", "wanted"), [(0.0, [0] * 6), (packing.COMMIT + 1, [1, 2, 3, 4, 5, 6])])
def test_commits_come_in_time(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch, step: float, wanted: list[int]
) -> None:
    images = fill(tmp_path / "images", 6)
    clock = count(0.0, step)
    monkeypatch.setattr(packing, "monotonic", lambda: next(clock))
    stored: list[int] = []

    def on_progress(what: str, _: int, __: int) -> None:
        if what.startswith("Storing"):
            stored.append(sum(marks(tmp_path / "store")))

    pack(images, tmp_path / "store", settings=SMALL, on_progress=on_progress)
    assert stored == wanted
    assert marks(tmp_path / "store") == [1] * 6


def test_two_runs_at_once_make_one_store(tmp_path: Path, many: tuple[Path, dict[str, bytes]]) -> None:
    both = [Child(many[0], tmp_path, "Looking 120") for _ in range(2)]
    for child in both:
        child.until_stopped()
    for child in both:
        assert child.process.stdin is not None
        child.process.stdin.write("go on\n")
        child.process.stdin.flush()
    assert [child.end() for child in both] == ["", ""]
    assert files(home(tmp_path), ".bin", ".done", ".npy") == many[1]
    images = read(many[0])
    check(pack(images, tmp_path, settings=SMALL), images)


def test_of_two_places_the_one_with_pixels_counts(tmp_path: Path, inline: Inline) -> None:
    """Two runs at once, of sets that overlap, may plan a place each for one content."""
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    inline.taken()
    (segment,) = find(home(tmp_path / "store"))
    planned = [entry["digest"].decode() for entry in segment.plan]
    sizes = [(int(entry["height"]), int(entry["width"])) for entry in segment.plan]
    for order in ([0], [1], [2], [1, 0], [2, 0], [0, 2], [2, 1]):
        create(segment.home, [planned[i] for i in order], [sizes[i] for i in order])
    assert segment not in (find(segment.home)[0], find(segment.home)[-1])
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == []


class StopError(Exception):
    pass


@pytest.mark.parametrize("stage", ["Looking", "Storing"])
def test_no_worker_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: Inline, stage: str
) -> None:
    """In a notebook the error, and with it the frame that was reading results, stays alive until the next error."""
    closed = []

    def run(*args: Any, **options: Any) -> Iterator[tuple[int, Values]]:
        try:
            yield from inline(*args, **options)
        finally:
            closed.append(True)

    def on_progress(what: str, count: int, total: int) -> None:
        if what.startswith(stage) and count == 2:
            raise StopError

    monkeypatch.setattr(packing, "run", run)
    images = fill(tmp_path / "images", 4)
    with pytest.raises(StopError) as caught:
        pack(images, tmp_path / "store", settings=SMALL, on_progress=on_progress)
    assert caught.traceback  # still held
    assert closed == [True] * (1 if stage == "Looking" else 2)
    assert sum(marks(tmp_path / "store")) == (0 if stage == "Looking" else 2)


# Damage


def delete_pixels(store: Path) -> None:
    next(home(store).glob("*.bin")).unlink()


def cut_marks(store: Path) -> None:
    os.truncate(next(home(store).glob("*.done")), 1)


def break_plan(store: Path) -> None:
    next(home(store).glob("*.plan.npy")).write_bytes(b"no plan")


@pytest.mark.parametrize("damage", [delete_pixels, cut_marks, break_plan])
def test_a_damaged_store_says_what_to_delete(tmp_path: Path, inline: Inline, damage: Callable[[Path], None]) -> None:
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    damage(tmp_path / "store")
    with pytest.raises(InputError, match="is damaged") as caught:
        pack(images, tmp_path / "store", settings=SMALL)
    told = re.search(r"Delete its files \((\S+)\)", str(caught.value))
    assert told is not None
    for path in home(tmp_path / "store").glob(told[1]):
        path.unlink()
    check(pack(images, tmp_path / "store", settings=SMALL), images)


def test_half_a_segment_deleted_never_gives_black_images(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    for ending in ("*.bin", "*.npy"):
        next(home(tmp_path / "store").glob(ending)).unlink()
    check(pack(images, tmp_path / "store", settings=SMALL), images)


def test_a_store_cannot_be_a_file(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 1)
    (tmp_path / "store").write_text("")
    with pytest.raises(InputError, match=r"The pixel store in '.*store.*' cannot be written"):
        pack(images, tmp_path / "store", settings=SMALL)


def test_a_complete_store_opens_where_nothing_can_be_written(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    folders = [home(tmp_path / "store"), tmp_path / "store"]
    for path in home(tmp_path / "store").iterdir():
        path.chmod(0o400)
    for path in folders:
        path.chmod(0o500)
    try:
        if os.access(folders[0], os.W_OK):
            pytest.skip("this user may write everywhere")
        check(pack(images, tmp_path / "store", settings=SMALL), images)
        save(tmp_path / "images" / "new.png", seed=99)
        with pytest.raises(InputError, match="cannot be written: Permission denied"):
            pack(read(tmp_path / "images"), tmp_path / "store", settings=SMALL)
    finally:
        for path in reversed(folders):
            path.chmod(0o700)


# Room

NEEDED = 3 * (16 * 24 + 24 * 16 + 16 * 16)  # what fill(…, 3) takes


def test_a_budget_holds_before_anything_is_stored(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    with pytest.raises(InputError, match=r"3 images more, resized for 16px-.*Raise the budget") as caught:
        pack(images, tmp_path / "store", settings=SMALL, budget=NEEDED - 1)
    assert str(tmp_path / "store") in str(caught.value)
    assert {path.name for path in home(tmp_path / "store").iterdir()} == {"settings.json", "seen.jsonl"}
    check(pack(images, tmp_path / "store", settings=SMALL, budget=NEEDED), images)
    save(tmp_path / "images" / "more.png", 20, 20, seed=9)
    images = read(tmp_path / "images")
    with pytest.raises(InputError, match=r"1 images? more"):
        pack(images, tmp_path / "store", settings=SMALL, budget=NEEDED + 3 * 16 * 16 - 1)
    assert len(find(home(tmp_path / "store"))) == 1
    check(pack(images, tmp_path / "store", settings=SMALL, budget=NEEDED + 3 * 16 * 16), images)


def refusal(images: ImageSet, store: Path, budget: int, settings: Settings = SMALL) -> tuple[str, str]:
    """How large a store would be and what it may take, as the error has it."""
    with pytest.raises(InputError) as caught:
        pack(images, store, settings=settings, budget=budget)
    found = re.search(r"would take ([\d.,]+ \w+).*the budget is ([\d.,]+ \w+)", str(caught.value))
    assert found is not None, caught.value
    return found[1], found[2]


def test_a_budget_is_told_in_sizes_people_read(tmp_path: Path, inline: Inline) -> None:
    square = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    side = Settings(shorter_side=1000)
    assert refusal(rows_of(square), tmp_path, 2_500_000, side) == ("6.0 MB", "2.5 MB")
    wide = Settings(shorter_side=16_000, max_pixels=10**9)
    assert refusal(rows_of(square), tmp_path, 1_234_000_000, wide) == ("1.5 GB", "1.2 GB")


@pytest.mark.parametrize("short", [1, 1000])
def test_a_budget_that_is_a_little_short_does_not_read_as_enough(tmp_path: Path, inline: Inline, short: int) -> None:
    would_take, given = refusal(fill(tmp_path / "images", 3), tmp_path / "store", NEEDED - short)
    assert would_take != given


def test_a_budget_is_for_the_whole_store(tmp_path: Path, inline: Inline) -> None:
    """A store holds several settings, and the disk does not care which of them the bytes belong to."""
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    other = Settings(shorter_side=16, draft=False)
    with pytest.raises(InputError, match="budget"):
        pack(images, tmp_path / "store", settings=other, budget=2 * NEEDED - 1)
    check(pack(images, tmp_path / "store", settings=other, budget=2 * NEEDED), images)


def free(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=room))


def test_a_full_disk_is_said_before_anything_is_stored(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = fill(tmp_path / "images", 3)
    free(monkeypatch, space.MARGIN + NEEDED - 1)
    with pytest.raises(InputError, match=r"the disk has 67,111,935 bytes free.*Make room"):
        pack(images, tmp_path / "store", settings=SMALL)
    assert find(home(tmp_path / "store")) == []
    free(monkeypatch, space.MARGIN + NEEDED)
    check(pack(images, tmp_path / "store", settings=SMALL), images)


def test_what_is_planned_but_not_there_yet_needs_room_too(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = fill(tmp_path / "images", 3)

    def stop(what: str, count: int, total: int) -> None:
        if what.startswith("Storing"):
            raise StopError

    with pytest.raises(StopError):
        pack(images, tmp_path / "store", settings=SMALL, on_progress=stop)
    rest = NEEDED - 3 * 16 * 24
    free(monkeypatch, space.MARGIN + rest - 1)
    with pytest.raises(InputError, match="the disk has"):
        pack(images, tmp_path / "store", settings=SMALL)
    free(monkeypatch, space.MARGIN + rest)
    check(pack(images, tmp_path / "store", settings=SMALL), images)


def test_a_full_disk_is_told_what_is_still_to_come(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 3), dtype=np.uint8)
    side = Settings(shorter_side=1000)
    pack(rows_of(array[:1]), tmp_path, settings=side)  # 3 MB
    free(monkeypatch, space.MARGIN + 5_900_000)
    with pytest.raises(InputError, match=r"6\.0 MB.*the disk has 73\.0 MB free"):
        pack(rows_of(array), tmp_path, settings=side)


def test_a_complete_store_opens_on_a_full_disk(tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an image had a place and could not be decoded."""
    images = fill(tmp_path / "images", 3)
    cut(tmp_path / "images" / "cut.png")
    first = pack(read(tmp_path / "images"), tmp_path / "store", settings=SMALL)
    free(monkeypatch, 0)
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    again = pack(read(tmp_path / "images"), tmp_path / "store", settings=SMALL)
    assert again.quarantine == first.quarantine != ()


@pytest.mark.parametrize(("file", "why"), [("/nowhere/x.bin", "No such file"), ("/dev/full", "No space left")])
def test_a_store_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, why: str
) -> None:
    if not os.path.exists(file) and file.startswith("/dev"):
        pytest.skip(f"no {file}")
    images = fill(tmp_path / "images", 9)
    place, threads = Place.job, set(threading.enumerate())
    with monkeypatch.context() as patch:
        patch.setattr(Place, "job", lambda self: {**place(self), "file": file})
        with pytest.raises(SortalError, match=f"The pixel store '{file}' could not be written: {why}"):
            pack(images, tmp_path / "store", settings=SMALL, workers=2)
    assert set(threading.enumerate()) <= threads
    assert set(marks(tmp_path / "store")) == {0}
    check(pack(images, tmp_path / "store", settings=SMALL, workers=2), images)


# Files that change while they are read


def between(act: Callable[[], object]) -> Progress:
    """Do something after the last file was looked at, and before the first is stored."""

    def on_progress(what: str, count: int, total: int) -> None:
        if what.startswith("Looking") and count == total:
            act()

    return on_progress


def test_a_file_that_changes_in_between_is_told_and_tried_again(tmp_path: Path) -> None:
    images = fill(tmp_path / "images", 3)
    change = between(lambda: save(tmp_path / "images" / "001.png", 31, 20, seed=88))
    store = pack(images, tmp_path / "store", settings=SMALL, workers=1, on_progress=change)
    assert [(entry.file, entry.reason) for entry in store.quarantine] == [("001.png", "changed")]
    assert store.present.tolist() == [True, False, True]
    np.testing.assert_array_equal(store.image(2), expected(images.paths[2]))
    check(pack(images, tmp_path / "store", settings=SMALL, workers=1), images)


@pytest.mark.parametrize("how", ["emptied", "cut", "deleted", "a folder"])
def test_a_file_that_comes_back_is_stored(tmp_path: Path, inline: Inline, how: str) -> None:
    """Programs that write a file empty it first; nothing said of it then is true of what it held before."""
    images = fill(tmp_path / "images", 3)
    file = tmp_path / "images" / "001.png"
    content = file.read_bytes()

    def act() -> None:
        file.unlink()
        if how == "a folder":
            file.mkdir()
        elif how != "deleted":
            file.write_bytes(content[:-20] if how == "cut" else b"")

    store = pack(images, tmp_path / "store", settings=SMALL, on_progress=between(act))
    assert [entry.file for entry in store.quarantine] == ["001.png"]
    if how == "a folder":
        file.rmdir()
    file.write_bytes(content)
    check(pack(images, tmp_path / "store", settings=SMALL), images)


@pytest.mark.parametrize(
    ("change_to", "reason"),
    [
        (lambda path: save(path, seed=88), "changed"),
        (lambda path: path.write_bytes(b""), "changed"),
        (lambda path: path.unlink(), "missing"),
    ],
)
def test_a_copy_stands_in_for_a_file_that_changed(
    tmp_path: Path, inline: Inline, change_to: Callable[[Path], object], reason: str
) -> None:
    """The second file is as it was: it must be stored, and must not be called changed."""
    images = fill(tmp_path / "images", 1)
    shutil.copy(images.paths[0], tmp_path / "images" / "copy.png")
    images = read(tmp_path / "images")
    wanted = expected(images.paths[1])
    change = between(lambda: change_to(tmp_path / "images" / "000.png"))
    store = pack(images, tmp_path / "store", settings=SMALL, on_progress=change)
    assert [(entry.file, entry.reason) for entry in store.quarantine] == [("000.png", reason)]
    np.testing.assert_array_equal(store.image(1), wanted)


@pytest.mark.parametrize(
    ("where", "name", "error"),
    [(Image.Image, "convert", MemoryError()), (pixels, "open", OSError(5, "Input/output error"))],
)
def test_trouble_of_the_machine_is_not_held_against_an_image(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch, where: object, name: str, error: Exception
) -> None:
    images = fill(tmp_path / "images", 2)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        breaks = between(lambda: patch.setattr(where, name, fail, raising=False))
        store = pack(images, tmp_path / "store", settings=SMALL, on_progress=breaks)
    assert [entry.file for entry in store.quarantine] == ["000.png", "001.png"]
    check(pack(images, tmp_path / "store", settings=SMALL), images)


def test_a_decoder_that_dies_costs_its_image_only_this_time(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = fill(tmp_path / "images", 3)

    def run(task: Task, jobs: Iterable[Job], **options: Any) -> Iterator[tuple[int, Values]]:
        for row, result in inline(task, jobs, **options):
            dies = task is packing.put and row == 1
            yield row, {"reason": "crashed", "detail": "signal SIGSEGV"} if dies else result

    with monkeypatch.context() as patch:
        patch.setattr(packing, "run", run)
        store = pack(images, tmp_path / "store", settings=SMALL)
    assert [(entry.file, entry.reason) for entry in store.quarantine] == [("001.png", "crashed")]
    assert store.present.tolist() == [True, False, True]
    inline.taken()
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == [("put", "001.png")]


# Progress


def test_progress_counts_up_to_the_end_of_both_stages(tmp_path: Path) -> None:
    images = fill(tmp_path / "images", 7)
    shutil.copy(images.paths[0], tmp_path / "images" / "copy.png")
    (tmp_path / "images" / "text.png").write_text("no image")
    images = read(tmp_path / "images")
    calls: list[tuple[str, int, int]] = []
    pack(images, tmp_path / "store", settings=SMALL, workers=2, on_progress=lambda *call: calls.append(call))
    looking = [("Looking at images", i, 9) for i in range(1, 10)]
    assert calls == looking + [("Storing pixels", i, 7) for i in range(1, 8)]
    calls.clear()
    os.utime(images.paths[3], (1, 1))
    pack(images, tmp_path / "store", settings=SMALL, workers=2, on_progress=lambda *call: calls.append(call))
    assert calls == [("Looking at images", 9, 9)]


# Real images


@pytest.mark.skipif(not DATA.is_dir(), reason="no real images here")
def test_real_images(tmp_path: Path) -> None:
    chosen = [str(path) for name in ("flowers55", "cifar10_5k") for path in sorted((DATA / name).glob("*/*"))[::50]]
    flowers = [path for path in chosen if "flowers55" in path][:60]
    small = [path for path in chosen if "cifar10_5k" in path][:60]
    images = read_images(flowers + small, need_labels=False)
    assert len(images) == 120
    store = pack(images, tmp_path, workers=2)
    check(store, images, 256)
    rows = np.flatnonzero(store.present)
    generator = np.random.default_rng(0)
    tops, lefts = generator.integers(0, store.heights - 223), generator.integers(0, store.widths - 223)
    for row, crop in zip(rows, store.crops(rows, tops, lefts, 224), strict=True):
        whole = expected(images.paths[row], 256)
        np.testing.assert_array_equal(crop, whole[tops[row] :, lefts[row] :][:224, :224])


def test_what_is_no_set_and_no_budget(tmp_path: Path) -> None:
    wrong: Any = "photos"
    with pytest.raises(InputError, match=r"images must be an ImageSet, got str\. Pass read_images"):
        pack(wrong, tmp_path)
    with pytest.raises(InputError, match="budget must be a whole number of bytes, got '50GB'"):
        pack(fill(tmp_path / "images", 1), tmp_path / "store", budget=cast(int, "50GB"))


def test_a_store_shows_itself(tmp_path: Path, inline: Inline) -> None:
    fill(tmp_path / "images", 3)
    (tmp_path / "images" / "x.png").touch()
    store = pack(read(tmp_path / "images"), tmp_path / "store", settings=SMALL)
    assert repr(store) == "<PixelStore: 4 images, 3 stored, 1 in quarantine>"
    with pytest.raises(InputError, match="in row 3, 0 × 0 pixels; it could not be read, see quarantine"):
        store.crops([3], [0], [0], 8)
    with pytest.raises(InputError, match="size must be at least 1, got 0"):
        store.crops([0], [0], [0], 0)


def test_marks_that_get_lost_are_not_passed_over(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its mark an image may lie there turned, or not at all."""
    monkeypatch.setattr("sortal.segments.Segment.mark", lambda *_: None)
    with pytest.raises(SortalError, match="lost marks while it was filled"):
        pack(fill(tmp_path / "images", 2), tmp_path / "store", settings=SMALL)
