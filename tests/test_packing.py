"""Packing: row i of a store is image i, whatever else happens: kills, changes, damage, lack of room."""

import errno
import io
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fork_server import KILLED, ForkServer, count_operations, say
from numpy.typing import NDArray
from PIL import Image, ImageOps

from sortal import packing, pixels, space
from sortal.errors import InputError, SortalError
from sortal.images import ImageSet, image_set
from sortal.packing import Settings, pack
from sortal.pixels import UnreadableError
from sortal.reading import read_images
from sortal.segments import STORED, TURNED, Place, find
from sortal.store import PixelStore
from sortal.workers import Job, Progress, Task, Values
from sortal.workers import run as workers_run

SMALL = Settings(shorter_side=16)
NEEDED = 3 * (16 * 24 + 24 * 16 + 16 * 16)  # bytes that the three images of fill(…, 3) take


def noise(height: int, width: int, seed: int) -> Image.Image:
    """Make coarse noise: each seed gives another image, and turning or mirroring one changes it."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)


def save(path: Path, height: int = 20, width: int = 30, seed: int = 0, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise(height, width, seed).save(path, **options)
    return path


def cut(path: Path) -> None:
    """Write an image whose header is whole: only decoding can tell that it is not."""
    whole = save(path, 200, 300, 5).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[pixels.ORIENTATION] = orientation
    return exif


def resize(image: Image.Image, shorter_side: int = 16) -> NDArray[np.uint8]:
    """Resize an upright RGB image as torchvision's Resize does."""
    width, height = image.size
    longer = int(shorter_side * max(width, height) / min(width, height))
    size = (shorter_side, longer) if width <= height else (longer, shorter_side)
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC))


def expected(path: Path | str, shorter_side: int = 16) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return resize(ImageOps.exif_transpose(image).convert("RGB"), shorter_side)


def read(folder: Path) -> ImageSet:
    return read_images(folder, need_labels=False)


def fill(folder: Path, n: int) -> ImageSet:
    """Write n images of three shapes, all different."""
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


def troubles(store: PixelStore) -> list[tuple[str, str]]:
    return [(entry.file, entry.reason) for entry in store.quarantine]


def home(store: Path, settings: Settings = SMALL) -> Path:
    return store / settings.key


def files(folder: Path, *endings: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.endswith(endings)}


def segment_files(store: Path) -> dict[str, bytes]:
    return files(home(store), ".bin", ".done", ".npy")


def marks(store: Path) -> list[int]:
    return [mark for segment in find(home(store)) for mark in segment.done().tolist()]


class Inline:
    """Replace `workers.run`: do the same tasks in this process, and list what was asked for."""

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
    save(folder / "small.bmp", 20, 31, 4)
    save(folder / "turned.jpg", 300, 400, 6, exif=turned(6))
    save(folder / "turned.tif", 40, 50, 6, exif=turned(6))
    save(folder / "turned square.jpg", 300, 300, 6, exif=turned(8))
    save(folder / "upside down.png", 300, 400, 7, exif=turned(3))
    noise(50, 40, 9).convert("L").save(folder / "grey.png")
    shutil.copy(folder / "portrait.png", folder / "zz copy.png")
    images = read(folder)
    for _ in range(2):  # stored, and opened again
        store = pack(images, tmp_path / "store", workers=2)
        check(store, images, 256)
    assert store.widths[images.files.index("landscape.jpg")] == 350  # 256 · 411 / 300 = 350.72
    assert not store.image(0).flags.writeable
    (segment,) = find(home(tmp_path / "store", Settings()))
    done = dict(zip(images.files, segment.done().tolist(), strict=False))
    assert (done["turned.jpg"], done["turned square.jpg"], done["landscape.jpg"]) == (TURNED, STORED, STORED)
    assert segment.size == sum(store.image(row).size for row in range(len(images) - 1))  # copies are stored once


def archive(n: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 11, 3), dtype=np.uint8)


def rows_of(array: NDArray[np.uint8]) -> ImageSet:
    names = [f"{i:03}" for i in range(len(array))]
    return image_set(names, pixels=array, labels=[None] * len(array))


def test_rows_of_an_archive_are_known_by_content(tmp_path: Path, inline: Inline) -> None:
    array = archive(6)
    array[5] = array[2]
    pack(rows_of(array), tmp_path, settings=SMALL)
    assert inline.taken() == [("put", row) for row in range(5)]
    assert find(home(tmp_path))[0].size == 5 * 3 * 16 * 22
    more = np.concatenate([archive(2, seed=1), array[::-1]])
    store = pack(rows_of(more), tmp_path, settings=SMALL)
    assert inline.taken() == [("put", 0), ("put", 1)]
    for row in range(8):
        np.testing.assert_array_equal(store.image(row), resize(Image.fromarray(more[row])))


def test_rows_of_an_archive_too_long_and_thin_get_no_place(tmp_path: Path, inline: Inline) -> None:
    thin = np.zeros((2, 1, 500, 3), dtype=np.uint8)
    settings = Settings(shorter_side=16, max_pixels=100_000)  # 16 × 8,000 pixels if they were resized
    store = pack(rows_of(thin), tmp_path, settings=settings, budget=1000)
    assert troubles(store) == [("000", "too large"), ("001", "too large")]
    assert find(home(tmp_path, settings)) == []


def test_what_cannot_be_read_is_named_and_nothing_else_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    good = [save(folder / name, 40, 60, seed).name for seed, name in enumerate(("a.png", "k.jpg", "z.jpg"))]
    bad = {
        "cut.jpg": "truncated",
        "cut too.jpg": "truncated",
        "cut.png": "truncated",
        "gone.png": "missing",
        "text.jpg": "not an image",
        "large.png": "too large",  # as it is
        "empty.png": "empty",
        "thin.png": "too large",  # 16 × 48,000 if it were resized
    }
    cut(folder / "cut.jpg")
    shutil.copy(folder / "cut.jpg", folder / "cut too.jpg")
    cut(folder / "cut.png")
    (folder / "text.jpg").write_text("this is no image")
    save(folder / "large.png", 600, 900, 8)
    (folder / "empty.png").touch()
    save(folder / "thin.png", 1, 3000, 7)
    save(folder / "gone.png", seed=6)
    images = read(folder)
    (folder / "gone.png").unlink()
    settings = Settings(shorter_side=16, max_pixels=500_000)
    for _ in range(2):
        store = pack(images, tmp_path / "store", settings=settings, workers=2)
        assert troubles(store) == [(name, bad[name]) for name in images.files if name not in good]
        assert all(entry.detail for entry in store.quarantine)
        for row, name in enumerate(images.files):
            assert store.present[row] == (name in good)
            if name in good:
                np.testing.assert_array_equal(store.image(row), expected(folder / name))
            else:
                assert (store.heights[row], store.widths[row], store.digests[row]) == (0, 0, b"")
    (segment,) = find(home(tmp_path / "store", settings))
    assert len(segment.plan) == len(good) + 1  # no place for what is refused by its header


def test_a_set_with_nothing_to_store(tmp_path: Path, inline: Inline) -> None:
    (tmp_path / "a.png").write_text("no image")
    images = read(tmp_path)
    store = pack(images, tmp_path / "store", settings=SMALL)
    assert troubles(store) == [("a.png", "not an image")]
    assert store.present.tolist() == [False]
    nothing = pack(images.select(np.zeros(1, dtype=bool)), tmp_path / "store", settings=SMALL)
    assert (len(nothing), nothing.quarantine) == (0, ())


def test_any_names_and_any_number_of_workers_make_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n")
    os.mkdir(folder)
    names = (b"caf\xe9.png", "été.png".encode(), b"new\nline.png", b"a b#%.png", b"n" * 240 + b".png")
    paths = [os.path.join(folder, os.fsdecode(name)) for name in names]
    for seed, path in enumerate(paths):
        os.rename(save(tmp_path / "a.png", seed=seed), path)
    images, asked = read_images(paths, need_labels=False), []

    def run(*args: Any, workers: int | None, **options: Any) -> Iterator[tuple[int, Values]]:
        asked.append(workers)
        return workers_run(*args, workers=workers, **options)

    monkeypatch.setattr(packing, "run", run)
    stores = [Path(folder, "one"), Path(folder, "two")]
    for n, store in enumerate(stores, start=1):
        check(pack(images, store, settings=SMALL, workers=n), images)
    assert segment_files(stores[0]) == segment_files(stores[1])
    assert asked == [1, 1, 2, 2]


def test_progress_counts_up_to_the_end_of_both_stages(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 4)
    shutil.copy(images.paths[0], tmp_path / "images" / "copy.png")
    (tmp_path / "images" / "text.png").write_text("no image")
    images = read(tmp_path / "images")
    calls: list[tuple[str, int, int]] = []
    pack(images, tmp_path / "store", settings=SMALL, on_progress=lambda *call: calls.append(call))
    looking = [("Looking at images", i, 6) for i in range(1, 7)]
    assert calls == looking + [("Storing pixels", i, 4) for i in range(1, 5)]
    calls.clear()
    os.utime(images.paths[3], (1, 1))
    pack(images, tmp_path / "store", settings=SMALL, on_progress=lambda *call: calls.append(call))
    assert calls == [("Looking at images", 6, 6)]


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
    np.testing.assert_array_equal(plain.image(1), exact.image(1))
    larger = pack(images, store, settings=Settings(shorter_side=20, draft=False))
    check(larger, images, 20)
    limited = pack(images, store, settings=Settings(shorter_side=16, max_pixels=29_999))
    assert troubles(limited) == [("a.jpg", "too large")]
    np.testing.assert_array_equal(limited.image(1), plain.image(1))
    assert len(list(store.iterdir())) == 4
    assert files(home(store), "") == before
    assert json.loads(before["settings.json"]) == {"shorter_side": 16, "draft": True, "max_pixels": 80_000_000}


def test_the_key_of_settings_stays() -> None:
    """Stores outlive versions: another key would make every store be packed again."""
    assert Settings().key == "256px-3c6ac25f" == Settings(shorter_side=256, draft=True, max_pixels=80_000_000).key
    others = (Settings(shorter_side=255), Settings(draft=False), Settings(max_pixels=1))
    assert len({Settings().key, *(other.key for other in others)}) == 4


@pytest.mark.parametrize("name", ["shorter_side", "max_pixels"])
@pytest.mark.parametrize("wrong", [0, True, 1.5])
def test_settings_must_make_sense(name: str, wrong: Any) -> None:
    with pytest.raises(InputError, match=f"{name} must be a whole number of at least 1, got {wrong}"):
        Settings(**{name: wrong})


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"images must be an ImageSet, got str\. Pass read_images"):
        pack(cast(ImageSet, "photos"), tmp_path)
    images = fill(tmp_path / "images", 1)
    with pytest.raises(InputError, match="budget must be a whole number of bytes, got '50GB'"):
        pack(images, tmp_path / "store", budget=cast(int, "50GB"))
    (tmp_path / "store").touch()
    with pytest.raises(InputError, match=r"The pixel store in '.*store.*' cannot be written: Not a directory"):
        pack(images, tmp_path / "store", settings=SMALL)


# What is there already


def test_a_second_time_nothing_is_read_or_written(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = fill(tmp_path / "images", 6)
    (tmp_path / "images" / "text.png").write_text("no image")
    cut(tmp_path / "images" / "cut.png")
    images = read(tmp_path / "images")
    first = pack(images, tmp_path / "store", settings=SMALL)
    assert len(inline.taken()) == 8 + 7  # all are looked at; of text there is nothing to store
    before = files(home(tmp_path / "store"), "")
    monkeypatch.chdir(tmp_path)
    pack(read(Path("images")), "other", settings=SMALL)
    inline.taken()
    real = io.open

    def read_only(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            raise OSError(errno.EROFS, "Read-only file system", file)
        return real(file, mode, *args, **options)

    monkeypatch.setattr(io, "open", read_only)  # what Path.open calls
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        again = pack(images, tmp_path / "store", settings=SMALL, budget=0)
        relative = pack(read(Path("images")), "store", settings=SMALL)
        pack(images, "other", settings=SMALL)  # known by absolute paths, though read by relative ones
    assert inline.taken() == []
    assert files(home(tmp_path / "store"), "") == before
    for store in (again, relative):
        assert store.quarantine == first.quarantine
        np.testing.assert_array_equal(store.present, first.present)
        for row in np.flatnonzero(first.present).tolist():
            np.testing.assert_array_equal(store.image(row), first.image(row))
    save(tmp_path / "images" / "new.png", seed=99)
    with pytest.raises(InputError, match="cannot be written: Read-only file system"):
        pack(read(tmp_path / "images"), tmp_path / "store", settings=SMALL)


def test_only_what_has_another_content_is_stored_again(tmp_path: Path, inline: Inline) -> None:
    folder, store = tmp_path / "images", tmp_path / "store"
    images = fill(folder, 3)
    first = pack(images, store, settings=SMALL)
    old = first.image(1).copy()
    inline.taken()
    os.utime(images.paths[1], (1, 1))
    check(pack(images, store, settings=SMALL), images)
    assert inline.taken() == [("look", "001.png")]
    save(folder / "001.png", 50, 70, seed=77)
    check(pack(images, store, settings=SMALL), images)
    assert inline.taken() == [("look", "001.png"), ("put", "001.png")]
    np.testing.assert_array_equal(first.image(1), old)  # whoever has the store open keeps what there was
    (folder / "000.png").rename(folder / "zzz.png")
    folder.rename(tmp_path / "elsewhere")
    images = read(tmp_path / "elsewhere")
    check(pack(images, store, settings=SMALL), images)
    assert inline.taken() == [("look", name) for name in ("001.png", "002.png", "zzz.png")]
    store.rename(tmp_path / "moved store")
    check(pack(images, tmp_path / "moved store", settings=SMALL), images)
    assert inline.taken() == []
    (tmp_path / "elsewhere" / "001.png").write_text("no image any more")
    assert troubles(pack(images, tmp_path / "moved store", settings=SMALL)) == [("001.png", "not an image")]


def test_added_images_are_appended_and_removed_ones_do_no_harm(tmp_path: Path, inline: Inline) -> None:
    folder, store = tmp_path / "images", tmp_path / "store"
    pack(fill(folder, 4), store, settings=SMALL)
    before = segment_files(store)
    times = {name: (home(store) / name).stat().st_mtime_ns for name in before}
    inline.taken()
    save(folder / "000 and a half.png", 40, 22, seed=50)
    save(folder / "x" / "y.png", 20, 70, seed=51)
    (folder / "002.png").unlink()
    images = read(folder)
    check(pack(images, store, settings=SMALL), images)
    added = ["000 and a half.png", "y.png"]
    assert inline.taken() == [("look", name) for name in added] + [("put", name) for name in added]
    after = segment_files(store)
    assert {name: after.pop(name) for name in before} == before
    assert {name: (home(store) / name).stat().st_mtime_ns for name in before} == times
    assert [len(content) for name, content in after.items() if name.endswith(".bin")] == [3 * 16 * (29 + 56)]


def test_the_log_of_files_can_be_lost(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    inline.taken()
    (home(tmp_path / "store") / "seen.jsonl").unlink()
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == [("look", f"{i:03}.png") for i in range(3)]


# Kills


def pack_in_child(folder: str, store: str, fatal: int | None) -> None:
    """Pack, with a commit after every image, and say what is done; die before the sync or rename of number `fatal`."""
    packing.COMMIT = 0
    vars(packing)["run"] = Inline()
    count = count_operations(["fsync", "replace"], fatal)
    pack(read(Path(folder)), store, settings=SMALL, on_progress=lambda what, *_: say(what.split()[0]))
    say("operations", count())


def test_a_run_killed_anywhere_goes_on_where_it_was(tmp_path: Path, inline: Inline, fork_server: ForkServer) -> None:
    n, store = 4, tmp_path / "store"
    images = fill(tmp_path / "images", n)
    whole = fork_server.run(pack_in_child, str(tmp_path / "images"), str(store), None)
    check(pack(images, store, settings=SMALL), images)
    assert inline.taken() == []
    unbroken = segment_files(store)
    (operations,) = whole.each("operations")
    assert operations > 3 * n
    for fatal in range(1, operations + 1):
        shutil.rmtree(store)
        ended = fork_server.run(pack_in_child, str(tmp_path / "images"), str(store), fatal)
        assert ended.code == KILLED
        check(pack(images, store, settings=SMALL), images)
        tasks = [task for task, _ in inline.taken()]
        for task, stage in (("look", "Looking"), ("put", "Storing")):
            left = n - ended.said.count([stage])
            assert left - 1 <= tasks.count(task) <= left  # at most one was done and could not be told
        assert segment_files(store) == unbroken


def pack_and_interrupt(folder: str, store: str) -> None:
    """Pack with workers, in a process group that is interrupted as by Ctrl-C once five images are stored."""
    os.setsid()
    packing.COMMIT = 1e9
    try:
        interrupt = at("Storing", 5, lambda: os.killpg(0, signal.SIGINT))
        pack(read(Path(folder)), store, settings=SMALL, workers=2, on_progress=interrupt)
    except KeyboardInterrupt:
        say("interrupted", True)


def test_an_interrupt_keeps_what_is_done(tmp_path: Path, inline: Inline, fork_server: ForkServer) -> None:
    images, store = fill(tmp_path / "images", 12), tmp_path / "store"
    ended = fork_server.run(pack_and_interrupt, str(tmp_path / "images"), str(store))
    assert ended.each("interrupted") == [True]
    assert sum(marks(store)) == 5
    check(pack(images, store, settings=SMALL), images)
    assert [task for task, _ in inline.taken()] == ["put"] * 7


@pytest.mark.parametrize(("step", "wanted"), [(0.0, [0] * 4), (packing.COMMIT + 1, [1, 2, 3, 4])])
def test_commits_come_in_time(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch, step: float, wanted: list[int]
) -> None:
    images = fill(tmp_path / "images", 4)
    clock = count(0.0, step)
    monkeypatch.setattr(packing, "monotonic", lambda: next(clock))
    stored: list[int] = []

    def on_progress(what: str, _: int, __: int) -> None:
        if what.startswith("Storing"):
            stored.append(sum(marks(tmp_path / "store")))

    pack(images, tmp_path / "store", settings=SMALL, on_progress=on_progress)
    assert stored == wanted
    assert marks(tmp_path / "store") == [1] * 4


def at(stage: str, number: int, act: Callable[[], object]) -> Progress:
    """Do something when so many images of a stage, Looking or Storing, are done."""

    def on_progress(what: str, count: int, total: int) -> None:
        if what.startswith(stage) and count == number:
            act()

    return on_progress


@pytest.mark.parametrize("stop", [("Looking", 1), ("Looking", 3), ("Storing", 1), ("Storing", 3)])
def test_two_runs_at_once_make_one_store(tmp_path: Path, inline: Inline, stop: tuple[str, int]) -> None:
    """One run comes to its end while the other is at some image."""
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "alone", settings=SMALL)
    other = at(*stop, lambda: check(pack(images, tmp_path / "store", settings=SMALL), images))
    check(pack(images, tmp_path / "store", settings=SMALL, on_progress=other), images)
    assert segment_files(tmp_path / "store") == segment_files(tmp_path / "alone")


class StopError(Exception):
    pass


def stop() -> None:
    raise StopError


@pytest.mark.parametrize(("stage", "runs", "done"), [("Looking", 1, 0), ("Storing", 2, 2)])
def test_no_worker_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: Inline, stage: str, runs: int, done: int
) -> None:
    """In a notebook the error, and with it the frame that was reading results, stays alive until the next error."""
    closed = []

    def run(*args: Any, **options: Any) -> Iterator[tuple[int, Values]]:
        try:
            yield from inline(*args, **options)
        finally:
            closed.append(True)

    monkeypatch.setattr(packing, "run", run)
    images = fill(tmp_path / "images", 4)
    with pytest.raises(StopError) as caught:
        pack(images, tmp_path / "store", settings=SMALL, on_progress=at(stage, 2, stop))
    assert caught.traceback  # still held
    assert closed == [True] * runs
    assert sum(marks(tmp_path / "store")) == done


# Damage and lack of room


def test_a_damaged_store_says_what_to_delete(tmp_path: Path, inline: Inline) -> None:
    images = fill(tmp_path / "images", 3)
    pack(images, tmp_path / "store", settings=SMALL)
    next(home(tmp_path / "store").glob("*.bin")).unlink()
    with pytest.raises(InputError, match="is damaged") as caught:
        pack(images, tmp_path / "store", settings=SMALL)
    told = re.search(r"Delete its files \((\S+)\)", str(caught.value))
    assert told is not None
    for path in home(tmp_path / "store").glob(told[1]):
        path.unlink()
    check(pack(images, tmp_path / "store", settings=SMALL), images)


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


def test_what_is_planned_but_not_there_yet_needs_room_on_the_disk(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = fill(tmp_path / "images", 3)
    free = 0
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    free = space.MARGIN + NEEDED - 1
    with pytest.raises(InputError, match=r"the disk has 67,111,935 bytes free.*Make room"):
        pack(images, tmp_path / "store", settings=SMALL)
    assert find(home(tmp_path / "store")) == []
    free += 1
    with pytest.raises(StopError):
        pack(images, tmp_path / "store", settings=SMALL, on_progress=at("Storing", 1, stop))
    free -= 3 * 16 * 24 + 1
    with pytest.raises(InputError, match="the disk has"):
        pack(images, tmp_path / "store", settings=SMALL)
    free += 1
    check(pack(images, tmp_path / "store", settings=SMALL), images)


@pytest.mark.parametrize(("file", "why"), [("/nowhere/x.bin", "No such file"), ("/dev/full", "No space left")])
def test_a_store_that_cannot_be_written_ends_the_run(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch, file: str, why: str
) -> None:
    if not os.path.exists(file) and file.startswith("/dev"):
        pytest.skip(f"no {file}")
    images = fill(tmp_path / "images", 3)
    place = Place.job
    with monkeypatch.context() as patch:
        patch.setattr(Place, "job", lambda self: {**place(self), "file": file})
        with pytest.raises(SortalError, match=f"The pixel store '{file}' could not be written: {why}"):
            pack(images, tmp_path / "store", settings=SMALL)
    assert set(marks(tmp_path / "store")) == {0}
    check(pack(images, tmp_path / "store", settings=SMALL), images)


def test_marks_that_get_lost_are_not_passed_over(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its mark an image may lie there turned, or not at all."""
    monkeypatch.setattr("sortal.segments.Segment.mark", lambda *_: None)
    with pytest.raises(SortalError, match="lost marks while it was filled"):
        pack(fill(tmp_path / "images", 2), tmp_path / "store", settings=SMALL)


# Files that change, and machines that fail, between a look and the storing


@pytest.mark.parametrize(
    ("change_to", "reason"),
    [
        (lambda path: save(path, seed=88), "changed"),
        (lambda path: path.touch(), "changed"),  # programs that write a file empty it first
        (lambda path: None, "missing"),
        (lambda path: path.mkdir(), "not a file"),
    ],
)
def test_a_file_that_changes_is_named_a_copy_stands_in_for_it_and_it_may_come_back(
    tmp_path: Path, inline: Inline, change_to: Callable[[Path], object], reason: str
) -> None:
    """Nothing said of what the file holds in between is true of what it held before."""
    fill(tmp_path / "images", 3)
    file, copy = tmp_path / "images" / "001.png", tmp_path / "images" / "copy.png"
    content = file.read_bytes()
    for has_copy in (False, True):
        if has_copy:
            shutil.copy(file, copy)
        images = read(tmp_path / "images")
        store = tmp_path / f"store {has_copy}"

        def change() -> None:
            file.unlink()
            change_to(file)

        packed = pack(images, store, settings=SMALL, on_progress=at("Looking", len(images), change))
        assert troubles(packed) == [("001.png", reason)]
        assert packed.present.tolist() == [True, False, True, True][: len(images)]
        for row in np.flatnonzero(packed.present).tolist():
            np.testing.assert_array_equal(packed.image(row), expected(images.paths[row]))
        if file.is_dir():
            file.rmdir()
        file.write_bytes(content)
        check(pack(images, store, settings=SMALL), images)


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
        breaks = at("Looking", 2, lambda: patch.setattr(where, name, fail, raising=False))
        store = pack(images, tmp_path / "store", settings=SMALL, on_progress=breaks)
    assert [entry.file for entry in store.quarantine] == ["000.png", "001.png"]
    check(pack(images, tmp_path / "store", settings=SMALL), images)


def test_a_decoder_that_dies_costs_its_image_and_copies_of_it_only_this_time(
    tmp_path: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "images", 3)
    shutil.copy(tmp_path / "images" / "001.png", tmp_path / "images" / "copy.png")
    images = read(tmp_path / "images")

    def run(task: Task, jobs: Iterable[Job], **options: Any) -> Iterator[tuple[int, Values]]:
        for row, result in inline(task, jobs, **options):
            dies = task is packing.put and row == 1
            yield row, {"reason": "crashed", "detail": "signal SIGSEGV"} if dies else result

    with monkeypatch.context() as patch:
        patch.setattr(packing, "run", run)
        store = pack(images, tmp_path / "store", settings=SMALL)
    assert troubles(store) == [("001.png", "crashed"), ("copy.png", "crashed")]
    assert store.present.tolist() == [True, False, True, False]
    inline.taken()
    check(pack(images, tmp_path / "store", settings=SMALL), images)
    assert inline.taken() == [("put", "001.png")]
