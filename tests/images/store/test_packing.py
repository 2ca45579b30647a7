"""Packing: row i of a store is image i, despite kills, changes, damage and lack of space."""

import builtins
import errno
import io
import json
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import numpy as np
import pytest
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image
from support import nasty
from support.fork_server import KILLED, ForkServer, count_operations, say

from sortal.errors import InputError, NoSpaceError, UnreadableError
from sortal.images import decoding
from sortal.images.check import check_stored
from sortal.images.image_set import ImageSet, image_set
from sortal.images.near_duplicates import LENGTH, thumbnail
from sortal.images.reading import read_images
from sortal.images.store import packing
from sortal.images.store.index import Index
from sortal.images.store.packing import Settings, pack
from sortal.images.store.pixel_store import PixelStore
from sortal.system.progress import Progress, Runtime
from sortal.system.text import byte_sizes
from sortal.system.workers import Answer, JsonObject, PathOrPixels, WorkFunction, WorkItem, finish, run_workers

SMALL = Settings(shorter_side=16)
SIZES = [3 * 16 * 24 + LENGTH, 3 * 24 * 16 + LENGTH, 3 * 16 * 16 + LENGTH]  # bytes of the images of fill(…, 3)

Results: TypeAlias = Iterator[tuple[int, JsonObject]]
read = partial(read_images, need_labels=False)
pack_small = partial(pack, settings=SMALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "images"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def save(path: Path, height: int = 20, width: int = 30, seed: int = 0, **options: Any) -> None:
    """Write coarse noise: each seed gives a different image, without symmetry."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR).save(path, **options)


def fill(folder: Path, n: int) -> ImageSet:
    """Write n images of three shapes, all different."""
    for i in range(n):
        save(folder / f"{i:03}.png", *((20, 30), (31, 20), (24, 24))[i % 3], seed=i)
    return read(folder)


def expected(source: PathOrPixels, shorter_side: int = 16) -> NDArray[np.uint8]:
    data = Path(source).read_bytes() if isinstance(source, str) else source
    return decoding.decode(data, shorter_side=shorter_side, draft=False).rgb


def check(store: PixelStore, images: ImageSet, side: int = 16, bad: Mapping[str, str] | None = None) -> None:
    """Check that every row has the pixels of its image, or none and a reason."""
    bad = bad or {}
    assert [(entry.file, entry.reason) for entry in store.quarantine] == [
        (file, bad[file]) for file in images.files if file in bad
    ]
    assert all(entry.detail for entry in store.quarantine)
    assert store.present.tolist() == [file not in bad for file in images.files]
    for row, file in enumerate(images.files):
        if file in bad:
            assert (store.heights[row], store.widths[row], store.digests[row]) == (0, 0, b"")
        else:
            np.testing.assert_array_equal(store.image(row), expected(images.source(row), side), err_msg=file)


def home(store: Path, settings: Settings = SMALL) -> Path:
    return store / settings.key


def files(folder: Path, *endings: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.endswith(endings)}


def pixel_files(store: Path) -> dict[str, bytes]:
    return files(home(store), ".bin")


def committed(store: Path) -> int:
    """Count the images that a new run would find in the store."""
    return len(Index(home(store)).stored)


def at(number: int, act: Callable[[], None]) -> Progress:
    """Act when `number` images are done."""
    return lambda _, count, __: act() if count == number else None


def stop() -> None:
    raise KeyboardInterrupt


class Inline:
    """Replace `run_workers`: work in this process, and list the images read with their outcomes."""

    def __init__(self) -> None:
        self.done: list[tuple[str | int, str]] = []

    def __call__(
        self, function: WorkFunction, items: Iterable[WorkItem], *, options: JsonObject, workers: Any, answer: Answer
    ) -> Results:
        for item in items:
            name = Path(item.source).name if isinstance(item.source, str) else item.row
            try:
                result = function(item.source, options)
                if isinstance(result, Generator):
                    result = finish(result, partial(answer, item.row))
            except UnreadableError as error:
                result = {"reason": error.reason, "detail": error.detail}
            outcome = next((key for key in ("stored", "unreadable", "reason") if key in result), "known")
            self.done.append((name, outcome))
            yield item.row, result

    def taken(self) -> list[tuple[str | int, str]]:
        """Return the images since the last call."""
        done, self.done = self.done, []
        return done


def stored(*names: str | int) -> list[tuple[str | int, str]]:
    return [(name, "stored") for name in names]


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Inline:
    runner = Inline()
    monkeypatch.setattr(packing, "run_workers", runner)
    return runner


def test_row_i_is_image_i_for_any_path_and_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xff\n#%"))
    save(folder / "landscape.jpg", 300, 411, 1)
    save(folder / "portrait.png", 333, 270, 2)
    save(folder / "small.bmp", 20, 31, 4)
    save(folder / "turned.jpg", 300, 400, 6, exif=nasty.exif(6))
    save(folder / "turned.tif", 40, 50, 6, exif=nasty.exif(6))
    save(folder / "turned square.jpg", 300, 300, 6, exif=nasty.exif(8))
    save(folder / "upside down.png", 300, 400, 7, exif=nasty.exif(3))
    shutil.copy(folder / "portrait.png", folder / "zz copy.png")
    images, asked = read(folder), []

    def run(*args: Any, workers: int | None, **options: Any) -> Results:
        asked.append(workers)
        return run_workers(*args, workers=workers, **options)

    monkeypatch.setattr(packing, "run_workers", run)
    for n in (1, 2):
        packed = pack(images, folder / f"store {n}", runtime=Runtime(workers=n))
        check(packed, images, 256)
        (pixels,) = files(home(folder / f"store {n}", Settings()), ".bin").values()
        one_each = range(len(images) - 1)  # copies are stored once
        assert len(pixels) == sum(packed.image(row).size + LENGTH for row in one_each)
        assert packed.thumbnails().tolist() == [list(thumbnail(packed.image(row))) for row in range(len(images))]
        facts = dict(zip(images.files, packed.facts.tolist(), strict=True))
        assert facts["landscape.jpg"] == (411, 300, 8, False)
        assert facts["turned.jpg"] == (300, 400, 8, True)
    assert asked == [1, 2]
    assert packed.widths[images.files.index("landscape.jpg")] == 350  # 256 · 411 / 300 = 350.72
    assert not packed.image(0).flags.writeable


def rows_of(array: NDArray[np.uint8]) -> ImageSet:
    names = [f"{i:03}" for i in range(len(array))]
    return image_set(names, pixels=array, labels=[None] * len(array))


def test_rows_of_an_array_are_known_by_content_and_thin_ones_are_not_stored(store: Path, inline: Inline) -> None:
    array = np.random.default_rng(0).integers(0, 256, (8, 8, 11, 3), dtype=np.uint8)
    array[7] = array[4]
    pack_small(rows_of(array[:1:-1]), store)
    assert inline.taken() == stored(0, 1, 2, 4, 5)
    assert [len(pixels) for pixels in pixel_files(store).values()] == [5 * (3 * 16 * 22 + LENGTH)]
    check(pack_small(rows_of(array), store), rows_of(array))
    assert inline.taken() == stored(0, 1)
    thin = rows_of(np.zeros((2, 1, 500, 3), dtype=np.uint8))
    settings = Settings(shorter_side=16, max_pixels=100_000)  # 16 × 8,000 pixels if resized
    packed = pack(thin, store, settings=settings)
    check(packed, thin, bad={"000": "too large", "001": "too large"})
    assert files(home(store, settings), ".bin") == {}


def test_unreadable_files_are_listed_and_all_others_stored(tmp_path: Path, folder: Path, store: Path) -> None:
    contents = {
        "cut.jpg": (nasty.half(nasty.PLAIN["jpg"]), "truncated"),
        "cut too.jpg": (nasty.half(nasty.PLAIN["jpg"]), "truncated"),
        "cut.png": (nasty.half(nasty.PLAIN["png"]), "truncated"),  # only decoding can tell
        "gone.png": (nasty.PLAIN["png"], "missing"),
        "text.jpg": (b"this is no image", "not an image"),
        "large.png": (nasty.png(nasty.LUMA, size=(900, 600)), "too large"),
        "empty.png": (b"", "empty"),
        "thin.png": (nasty.png(np.zeros((1, 3000), int)), "too large"),  # 16 × 48,000 if resized
    }
    for seed, name in enumerate(("a.png", "k.jpg", "z.jpg")):
        save(folder / name, 40, 60, seed)
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    images, bad = read(folder), {name: reason for name, (_, reason) in contents.items()}
    (folder / "gone.png").unlink()
    settings = Settings(shorter_side=16, max_pixels=500_000)
    for _ in range(2):
        packed = pack(images, store, settings=settings, runtime=Runtime(workers=2))
        check(packed, images, bad=bad)
    ((name, pixels),) = files(home(store, settings), ".bin").items()
    assert name == "pixels.bin"
    assert (
        len(pixels) <= 3 * (3 * 16 * 24 + LENGTH) + 3 * 16 * 32 + LENGTH
    )  # nothing is reserved for files that their header rules out
    for rows in (~packed.present, np.zeros(len(images), dtype=bool)):  # nothing to store
        some = images.select(rows)
        check(pack(some, tmp_path / "other", settings=settings, runtime=Runtime(workers=1)), some, bad=bad)


def test_every_setting_has_its_own_folder_and_an_effect(folder: Path, store: Path, inline: Inline) -> None:
    save(folder / "a.jpg", 150, 200, 1)
    save(folder / "b.png", 20, 30, 2)
    images = read(folder)
    plain = pack_small(images, store)
    before = files(home(store), "")
    exact = pack(images, store, settings=Settings(shorter_side=16, draft=False))
    check(exact, images)
    assert (plain.image(0) != exact.image(0)).any()  # decoded at a fraction of its size
    np.testing.assert_array_equal(plain.image(1), exact.image(1))
    check(pack(images, store, settings=Settings(shorter_side=20, draft=False)), images, 20)
    limited = pack(images, store, settings=Settings(shorter_side=16, max_pixels=29_999))
    check(limited, images, bad={"a.jpg": "too large"})
    assert len(list(store.iterdir())) == 4
    assert files(home(store), "") == before
    assert json.loads(before["settings.json"]) == {"shorter_side": 16, "draft": True, "max_pixels": 80_000_000}
    # Stores outlive versions: with another key, every store would be packed again.
    assert Settings().key == "256px-ac1debe4" == Settings(shorter_side=256, draft=True, max_pixels=80_000_000).key


def test_invalid_settings_images_and_budgets_are_refused(folder: Path, store: Path) -> None:
    for name in ("shorter_side", "max_pixels"):
        for wrong in (0, True, 1.5):
            with pytest.raises(InputError, match=f"{name} must be a whole number of at least 1, got {wrong}"):
                Settings(**cast(Any, {name: wrong}))
    with pytest.raises(InputError, match=r"images must be an ImageSet, got str\. Pass read_images"):
        pack(cast(ImageSet, "photos"), store)
    images = fill(folder, 1)
    with pytest.raises(InputError, match="budget must be a whole number of bytes, got '50GB'"):
        pack(images, store, budget=cast(int, "50GB"))
    store.touch()
    with pytest.raises(InputError, match=r"The pixel store in '.*store.*' cannot be written: Not a directory"):
        pack(images, store)


def test_packing_again_reads_and_writes_nothing(
    tmp_path: Path, folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, 3)
    shutil.copy(folder / "000.png", folder / "copy.png")
    (folder / "text.png").write_text("no image")
    (folder / "cut.png").write_bytes(nasty.half(nasty.PLAIN["png"]))
    images, bad = read(folder), {"cut.png": "truncated", "text.png": "not an image"}
    calls: list[tuple[str, int, int]] = []
    pack_small(images, store, runtime=Runtime(progress=lambda *call: calls.append(call)))
    assert calls == [("Reading images", i, 6) for i in range(1, 7)]
    assert [outcome for _, outcome in inline.taken()] == ["stored"] * 3 + ["known", "unreadable", "unreadable"]
    before = files(home(store), "")
    monkeypatch.chdir(tmp_path)
    pack_small(read("images"), "other")
    inline.taken()
    real = io.open

    def read_only(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax+") and Path(file).is_relative_to(store):
            raise OSError(errno.EROFS, "Read-only file system", file)
        return real(file, mode, *args, **options)

    monkeypatch.setattr(builtins, "open", read_only)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        check(pack_small(images, store, budget=0), images, bad=bad)
        check(pack_small(read("images"), "store"), images, bad=bad)
        pack_small(images, "other")  # packed by relative paths
    assert inline.taken() == []
    assert files(home(store), "") == before
    save(folder / "new.png", seed=99)
    with pytest.raises(InputError, match="cannot be written: Read-only file system"):
        pack_small(read(folder), store)


def test_only_new_content_is_stored_and_appended(tmp_path: Path, folder: Path, store: Path, inline: Inline) -> None:
    images = fill(folder, 3)
    first = pack_small(images, store)
    old = first.image(1).copy()
    inline.taken()
    os.utime(images.paths[1], (1, 1))
    calls: list[tuple[str, int, int]] = []
    check(pack_small(images, store, runtime=Runtime(progress=lambda *call: calls.append(call))), images)
    assert inline.taken() == [("001.png", "known")]
    assert calls == [("Reading images", 3, 3)]
    ((name, before),) = pixel_files(store).items()
    save(folder / "001.png", 50, 70, seed=77)
    save(folder / "000 and a half.png", 40, 22, seed=50)
    (folder / "002.png").unlink()
    images, new = read(folder), ["000 and a half.png", "001.png"]
    check(pack_small(images, store), images)
    assert inline.taken() == stored(*new)
    ((same, after),) = pixel_files(store).items()
    assert same == name
    assert after[: len(before)] == before
    assert len(after) - len(before) == 3 * 16 * (29 + 22) + 2 * LENGTH
    np.testing.assert_array_equal(first.image(1), old)  # an open store is unaffected
    (folder / "000.png").rename(folder / "zzz.png")
    folder = folder.rename(tmp_path / "elsewhere")
    images = read(folder)
    check(pack_small(images, store), images)
    assert inline.taken() == [(name, "known") for name in (*new, "zzz.png")]
    store = store.rename(tmp_path / "moved store")
    check(pack_small(images, store), images)
    assert inline.taken() == []
    (folder / "001.png").write_text("no image any more")
    check(pack_small(images, store), images, bad={"001.png": "not an image"})


# Kills


def pack_in_child(folder: str, store: str, fatal: int | None) -> None:
    """Pack with a commit after every image, and report progress; die before sync or rename number `fatal`."""
    packing.UNCOMMITTED_SECONDS = 0
    vars(packing)["run_workers"] = Inline()
    count = count_operations(["fsync", "replace"], fatal)
    pack_small(read(folder), store, runtime=Runtime(progress=lambda *_: say("done")))
    say("operations", count())


def test_a_run_killed_anywhere_resumes_where_it_stopped(
    folder: Path, store: Path, inline: Inline, fork_server: ForkServer
) -> None:
    n = 4
    images = fill(folder, n)
    whole = fork_server.run(pack_in_child, str(folder), str(store), None)
    check(pack_small(images, store), images)
    assert inline.taken() == []
    unbroken = pixel_files(store)
    (operations,) = whole.each("operations")
    assert operations > 2 * n
    for fatal in {*range(1, operations + 1, 2), operations}:
        shutil.rmtree(store)
        ended = fork_server.run(pack_in_child, str(folder), str(store), fatal)
        assert ended.code == KILLED
        check(pack_small(images, store), images)
        left = n - ended.said.count(["done"])
        assert left - 1 <= len(inline.taken()) <= left  # at most one was done but not reported
        assert pixel_files(store) == unbroken


@pytest.mark.parametrize(("step", "wanted"), [(0.0, [0] * 4), (packing.UNCOMMITTED_SECONDS + 1, [1, 2, 3, 4])])
def test_commits_are_made_at_intervals(
    folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch, step: float, wanted: list[int]
) -> None:
    clock, found = count(0.0, step), []
    monkeypatch.setattr(packing, "monotonic", lambda: next(clock))
    pack_small(fill(folder, 4), store, runtime=Runtime(progress=lambda *_: found.append(committed(store))))
    assert found == wanted
    assert committed(store) == 4


def test_pixels_are_synced_before_the_index_names_them(
    folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, synced = fill(folder, 2), []

    def fsync(number: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{number}")).name
        synced.append((name, committed(store), sum(map(len, pixel_files(store).values()))))

    pack_small(images.select(np.array([True, False])), store)
    monkeypatch.setattr(os, "fsync", fsync)
    pack_small(images, store)
    assert synced == [("pixels.bin", 1, sum(SIZES[:2])), ("index.jsonl", 2, sum(SIZES[:2]))]


def test_a_run_waits_for_another_and_then_reuses_its_images(
    folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, reports = fill(folder, 3), []
    home(store).mkdir(parents=True)
    lock = FileLock(home(store) / ".lock")
    lock.acquire()
    monkeypatch.setattr("sortal.system.files.LOCK_EVERY", 0)

    def other(what: str, done: int, _: int) -> None:
        reports.append((what.partition(" ")[0], done))
        if what.startswith("Waiting") and len(reports) == 3:
            lock.release()
            check(pack_small(images, store), images)
            assert inline.taken() == stored("000.png", "001.png", "002.png")

    check(pack_small(images, store, runtime=Runtime(progress=other)), images)
    assert reports == [("Waiting", 0)] * 3 + [("Reading", number) for number in (1, 2, 3)]
    assert [outcome for _, outcome in inline.taken()] == ["known"] * 3
    assert [len(pixels) for pixels in pixel_files(store).values()] == [sum(SIZES)]


def test_an_interrupt_commits_finished_images_and_ends_the_workers(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch, inline: Inline
) -> None:
    """Even if the error keeps the frame that reads results alive, as in a notebook."""
    closed = []

    def run(*args: Any, **options: Any) -> Results:
        try:
            yield from inline(*args, **options)
        finally:
            closed.append(True)

    monkeypatch.setattr(packing, "run_workers", run)
    images = fill(folder, 4)
    with pytest.raises(KeyboardInterrupt) as caught:
        pack_small(images, store, runtime=Runtime(progress=at(2, stop)))
    assert caught.traceback  # still held
    assert closed == [True]
    assert committed(store) == 2
    inline.taken()
    check(pack_small(images, store), images)
    assert inline.taken() == stored("002.png", "003.png")


def open_once(source: PathOrPixels, options: JsonObject) -> Generator[JsonObject, JsonObject, JsonObject]:
    """Store an image, and count how often it is opened, hashed and decoded."""
    counts = {"opened": 0, "hashed": 0, "decoded": 0}
    real = decoding.digest, decoding.decode

    def opened(event: str, details: tuple[Any, ...]) -> None:
        counts["opened"] += event == "open" and str(details[0]) == source

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*args, **named)

        return call

    sys.addaudithook(opened)
    vars(decoding).update(digest=counted("hashed", real[0]), decode=counted("decoded", real[1]))
    result = yield from packing.store_image(source, options)
    vars(decoding).update(digest=real[0], decode=real[1])
    return {**result, "counts": counts}


def test_a_first_run_opens_hashes_and_decodes_each_image_once_and_a_second_none(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by audit events in the worker processes and in this one."""
    images = fill(folder, 6)
    found: list[JsonObject] = []
    here: list[str] = []

    def run(_: WorkFunction, *args: Any, **options: Any) -> Results:
        for row, result in run_workers(open_once, *args, **options):
            found.append(result.pop("counts"))
            yield row, result

    monkeypatch.setattr(packing, "run_workers", run)
    sys.addaudithook(lambda event, details: here.append(str(details[0])) if event == "open" else None)
    for runs in (1, 2):
        packed = pack_small(images, store, runtime=Runtime(workers=2))
        health = check_stored(images, packed)
        assert found == [{"opened": 1, "hashed": 1, "decoded": 1}] * 6, f"after run {runs}"
        assert not set(here) & set(images.paths)
        assert (health.images, health.unreadable, health.duplicates) == (6, (), ())
    check(packed, images)


def test_lost_files_are_rebuilt(folder: Path, store: Path, inline: Inline) -> None:
    images = fill(folder, 3)
    pack_small(images, store)
    (home(store) / "index.jsonl").unlink()
    inline.taken()
    check(pack_small(images, store), images)
    assert inline.taken() == stored("000.png", "001.png", "002.png")
    os.truncate(home(store) / "pixels.bin", sum(SIZES) - 1)
    check(pack_small(images, store), images)
    assert inline.taken() == stored("002.png")
    (home(store) / "pixels.bin").unlink()
    check(pack_small(images, store), images)
    assert inline.taken() == stored("000.png", "001.png", "002.png")


def test_a_store_never_grows_beyond_its_budget(folder: Path, store: Path, inline: Inline) -> None:
    images, least = fill(folder, 3), 3 * SIZES[2]  # if all were square
    with pytest.raises(
        InputError, match=rf"store' must not exceed its budget of .*, and needs at least {least:,} bytes"
    ):
        pack_small(images, store, budget=least - 1)
    assert inline.taken() == []
    with pytest.raises(InputError, match=rf"needs at least {sum(SIZES):,} bytes\. Raise the budget, .* to resume\."):
        pack_small(images, store, budget=sum(SIZES) - 1)
    assert sum(map(len, pixel_files(store).values())) == sum(SIZES[:2])
    inline.taken()
    with pytest.raises(InputError, match="needs at least"):  # stores with other settings count too
        pack(images, store, settings=Settings(shorter_side=17), budget=sum(SIZES[:2]) + 1000)
    check(pack_small(images, store, budget=sum(SIZES)), images)
    assert inline.taken() == stored("002.png")


def test_some_disk_space_is_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=packing.DISK_RESERVE + 3_000_000))
    packing.check_room(tmp_path, 10**9, 3_000_000, budget=None)
    message = r"at least 71\.1 MB of free space \(67\.1 MB of it as a reserve\), and 70\.1 MB are free\. Free some"
    with pytest.raises(NoSpaceError, match=message):
        packing.check_room(tmp_path, 0, 4_000_000, budget=None)
    assert byte_sizes(2_500_000_000, 1_200_000) == ["2.5 GB", "1.2 MB"]
    assert byte_sizes(40_000) == ["40,000 bytes"]
    assert byte_sizes(1_000_000_000, 1_000_000_001) == ["1,000,000,000 bytes", "1,000,000,001 bytes"]


def test_a_disk_that_fills_up_is_noticed_to_the_byte_though_seldom_looked_at(
    folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, looks, room = fill(folder, 3), list[int](), sum(SIZES) - 1

    def usage(_: Path) -> SimpleNamespace:
        looks.append(packing.DISK_RESERVE + room - packing.stored_bytes(store))
        return SimpleNamespace(free=looks[-1])

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(NoSpaceError, match="Not enough disk space for the pixel store"):
        pack_small(images, store)
    assert sum(map(len, pixel_files(store).values())) == sum(SIZES[:2])
    assert len(looks) == 3  # before the start, at the first image, and where the third does not fit
    room, looks = 2 * packing.UNCHECKED, []
    check(pack_small(fill(folder, 40), store), read(folder))
    assert len(looks) == 2


def test_a_store_that_cannot_be_written_ends_the_run(folder: Path, store: Path) -> None:
    images = fill(folder, 1)
    (home(store) / "pixels.bin").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        pack_small(images, store, runtime=Runtime(workers=1))
    options = {"file": "/nowhere/x.bin", "how": asdict(Settings(shorter_side=16, max_pixels=10_000))}
    conversation = packing.store_image(images.paths[0], options)
    next(conversation)
    with pytest.raises(InputError, match="The pixel store in '/nowhere' cannot be written: No such file"):
        conversation.send({"offset": 0})


@pytest.mark.parametrize(
    ("name", "error", "reason", "copies"),
    [
        ("sortal.images.colour_modes.to_rgb", MemoryError(), "no memory", ["known"]),
        ("sortal.images.decoding.open_regular", OSError(5, "Input/output error"), "unavailable", ["reason"]),
    ],
)
def test_a_failure_of_the_machine_loses_an_image_and_its_copies_only_this_time(
    folder: Path,
    store: Path,
    inline: Inline,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: Exception,
    reason: str,
    copies: list[str],
) -> None:
    fill(folder, 2)
    shutil.copy(folder / "001.png", folder / "copy.png")
    images = read(folder)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(name, fail, raising=False)
        packed = pack_small(images, store)
    check(packed, images, bad=dict.fromkeys(images.files, reason))
    assert [outcome for _, outcome in inline.taken()] == ["reason", "reason", *copies]  # a copy is not tried again
    check(pack_small(images, store), images)
    assert inline.taken() == [*stored("000.png", "001.png"), ("copy.png", "known")]
    (folder / "000.png").unlink()
    check(pack_small(images, store), images, bad={"000.png": "missing"})


def test_if_a_row_of_an_array_fails_so_do_its_copies(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = {"reason": "crashed", "detail": "by itself"}
    monkeypatch.setattr(packing, "run_workers", lambda _, items, **__: ((item.row, crash) for item in items))
    images = rows_of(np.zeros((2, 20, 30, 3), np.uint8))
    check(pack_small(images, store), images, bad={"000": "crashed", "001": "crashed"})


# Several processes


class Member:
    """One of several threads that stand for processes, which exchange objects when all have arrived."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: dict[int, Any]) -> None:
        self.rank, self.size, self.barrier, self.board = rank, size, barrier, board

    def gather_objects(self, value: Any) -> list[Any]:
        self.board[self.rank] = value
        self.barrier.wait(60)
        return [self.board[rank] for rank in range(self.size)]


def pack_together(size: int, images: ImageSet, store: Path) -> list[PixelStore]:
    barrier, board = threading.Barrier(size), dict[int, Any]()
    with ThreadPoolExecutor(size) as pool:
        jobs = [pool.submit(pack_small, images, store, team=Member(rank, size, barrier, board)) for rank in range(size)]
        return [job.result() for job in jobs]


def test_processes_share_out_the_files_and_all_get_every_image(folder: Path, store: Path, inline: Inline) -> None:
    """Copies that different processes read, and unreadable files, are the same for all of them."""
    images = fill(folder, 7)
    shutil.copy(folder / "000.png", folder / "copy.png")
    (folder / "bad.png").write_bytes((folder / "001.png").read_bytes()[:60])
    images = read(folder)
    for made in pack_together(2, images, store):
        check(made, images, bad={"bad.png": "truncated"})
        assert len(made.files) == 2
    assert sorted(name for name, _ in inline.done) == sorted(images.files), "each file is read once"
    inline.done.clear()
    check(pack_small(images, store), images, bad={"bad.png": "truncated"})
    assert not inline.done, "a single process finds all parts"
    for seed in (20, 21, 22):
        save(folder / f"more {seed}.png", seed=seed)
    images = read(folder)
    for made in pack_together(3, images, store):
        check(made, images, bad={"bad.png": "truncated"})
    assert len(inline.done) == 3


def test_a_failure_of_one_process_that_may_pass_is_known_to_all(folder: Path, store: Path, inline: Inline) -> None:
    images = fill(folder, 4)
    (folder / "002.png").unlink()
    for made in pack_together(2, images, store):
        check(made, images, bad={"002.png": "missing"})


def test_a_store_of_several_parts_can_be_selected_and_sent(folder: Path, store: Path, inline: Inline) -> None:
    images = fill(folder, 5)
    made, _ = pack_together(2, images, store)
    mask = np.array([True, False, False, True, True])
    sent = pickle.loads(pickle.dumps(made.select(mask)))
    check(sent, images.select(mask))
    assert len(pickle.dumps(made)) < 3000
    np.testing.assert_array_equal(made.thumbnails(), pack_small(images, store.with_name("other")).thumbnails())
