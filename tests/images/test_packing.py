"""Packing: row i of a store is image i, whatever else happens: kills, changes, damage, lack of room."""

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import nasty
import numpy as np
import pytest
from fork_server import KILLED, ForkServer, count_operations, say
from numpy.typing import NDArray
from PIL import Image

from sortal import packing, pixels
from sortal.errors import InputError, SortalError
from sortal.images import ImageSet, Source, image_set
from sortal.packing import Settings, pack
from sortal.pixels import UnreadableError
from sortal.reading import read_images
from sortal.segments import STORED, TURNED, Place, find
from sortal.store import PixelStore
from sortal.workers import Job, Progress, Task, Values
from sortal.workers import run as workers_run

SMALL = Settings(shorter_side=16)
SEGMENT = (".bin", ".done", ".npy")
NEEDED = 3 * (16 * 24 + 24 * 16 + 16 * 16)  # bytes that the three images of fill(…, 3) take

Results: TypeAlias = Iterator[tuple[int, Values]]
read = partial(read_images, need_labels=False)
pack_small = partial(pack, settings=SMALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "images"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def save(path: Path, height: int = 20, width: int = 30, seed: int = 0, **options: Any) -> None:
    """Write coarse noise: each seed gives another image, and turning or mirroring one changes it."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR).save(path, **options)


def fill(folder: Path, n: int) -> ImageSet:
    """Write n images of three shapes, all different."""
    for i in range(n):
        save(folder / f"{i:03}.png", *((20, 30), (31, 20), (24, 24))[i % 3], seed=i)
    return read(folder)


def expected(source: Source, shorter_side: int = 16) -> NDArray[np.uint8]:
    data = Path(source).read_bytes() if isinstance(source, str) else source
    return pixels.decode(data, shorter_side=shorter_side, draft=False).rgb


def check(store: PixelStore, images: ImageSet, side: int = 16, bad: Mapping[str, str] | None = None) -> None:
    """Every row has the pixels of its image, or none and a reason."""
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


def segment_files(store: Path) -> dict[str, bytes]:
    return files(home(store), *SEGMENT)


def marks(store: Path) -> list[int]:
    return [mark for segment in find(home(store)) for mark in segment.done().tolist()]


def at(stage: str, number: int, act: Callable[[], None]) -> Progress:
    """Do something when so many images of a stage, Looking or Storing, are done."""
    return lambda what, count, _: act() if what.startswith(stage) and count == number else None


def stop() -> None:
    raise KeyboardInterrupt


class Inline:
    """Replace `workers.run`: do the same tasks in this process, and list what was asked for."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, str | int]] = []

    def __call__(self, task: Task, jobs: Iterable[Job], *, options: Values, workers: int | None) -> Results:
        for job in jobs:
            name = Path(job.source).name if isinstance(job.source, str) else job.row
            self.jobs.append((task.__name__, name))
            try:
                result = task(job.source, {**options, **job.options})
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


def test_row_i_is_image_i_whatever_the_path_and_the_number_of_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        return workers_run(*args, workers=workers, **options)

    monkeypatch.setattr(packing, "run", run)
    homes = []
    for n in (1, 2):
        packed = pack(images, folder / f"store {n}", workers=n)
        check(packed, images, 256)
        homes.append(home(folder / f"store {n}", Settings()))
    assert asked == [1, 1, 2, 2]
    assert files(homes[0], *SEGMENT) == files(homes[1], *SEGMENT)
    assert packed.widths[images.files.index("landscape.jpg")] == 350  # 256 · 411 / 300 = 350.72
    assert not packed.image(0).flags.writeable
    (segment,) = find(homes[0])
    done = dict(zip(images.files, segment.done().tolist(), strict=False))
    assert (done["turned.jpg"], done["turned square.jpg"], done["landscape.jpg"]) == (TURNED, STORED, STORED)
    assert segment.size == sum(packed.image(row).size for row in range(len(images) - 1))  # copies are stored once


def rows_of(array: NDArray[np.uint8]) -> ImageSet:
    names = [f"{i:03}" for i in range(len(array))]
    return image_set(names, pixels=array, labels=[None] * len(array))


def test_rows_of_an_archive_are_known_by_content_and_thin_ones_get_no_place(store: Path, inline: Inline) -> None:
    array = np.random.default_rng(0).integers(0, 256, (8, 8, 11, 3), dtype=np.uint8)
    array[7] = array[4]
    pack_small(rows_of(array[:1:-1]), store)
    assert inline.taken() == [("put", row) for row in (0, 1, 2, 4, 5)]
    assert find(home(store))[0].size == 5 * 3 * 16 * 22
    check(pack_small(rows_of(array), store), rows_of(array))
    assert inline.taken() == [("put", 0), ("put", 1)]
    thin = rows_of(np.zeros((2, 1, 500, 3), dtype=np.uint8))
    settings = Settings(shorter_side=16, max_pixels=100_000)  # 16 × 8,000 pixels if they were resized
    packed = pack(thin, store, settings=settings, budget=1000)
    check(packed, thin, bad={"000": "too large", "001": "too large"})
    assert find(home(store, settings)) == []


def test_what_cannot_be_read_is_named_and_nothing_else_is_lost(tmp_path: Path, folder: Path, store: Path) -> None:
    contents = {
        "cut.jpg": (nasty.half(nasty.PLAIN["jpg"]), "truncated"),
        "cut too.jpg": (nasty.half(nasty.PLAIN["jpg"]), "truncated"),
        "cut.png": (nasty.half(nasty.PLAIN["png"]), "truncated"),  # which only decoding can tell
        "gone.png": (nasty.PLAIN["png"], "missing"),
        "text.jpg": (b"this is no image", "not an image"),
        "large.png": (nasty.png(nasty.LUMA, size=(900, 600)), "too large"),
        "empty.png": (b"", "empty"),
        "thin.png": (nasty.png(np.zeros((1, 3000), int)), "too large"),  # 16 × 48,000 if it were resized
    }
    for seed, name in enumerate(("a.png", "k.jpg", "z.jpg")):
        save(folder / name, 40, 60, seed)
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    images, bad = read(folder), {name: reason for name, (_, reason) in contents.items()}
    (folder / "gone.png").unlink()
    settings = Settings(shorter_side=16, max_pixels=500_000)
    for _ in range(2):
        packed = pack(images, store, settings=settings, workers=2)
        check(packed, images, bad=bad)
    (segment,) = find(home(store, settings))
    assert len(segment.plan) == 3 + 1  # no place for what is refused by its header
    for rows in (~packed.present, np.zeros(len(images), dtype=bool)):  # nothing to store
        some = images.select(rows)
        check(pack(some, tmp_path / "other", settings=settings, workers=1), some, bad=bad)


# Settings


def test_every_setting_has_a_folder_of_its_own_and_changes_something(folder: Path, store: Path, inline: Inline) -> None:
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
    # Stores outlive versions: another key would make every store be packed again
    assert Settings().key == "256px-3c6ac25f" == Settings(shorter_side=256, draft=True, max_pixels=80_000_000).key


def test_what_makes_no_sense_is_refused(folder: Path, store: Path) -> None:
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


# What is there already


def test_a_second_time_nothing_is_read_or_written(
    tmp_path: Path, folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, 3)
    shutil.copy(folder / "000.png", folder / "copy.png")
    (folder / "text.png").write_text("no image")
    (folder / "cut.png").write_bytes(nasty.half(nasty.PLAIN["png"]))
    images, bad = read(folder), {"cut.png": "truncated", "text.png": "not an image"}
    calls: list[tuple[str, int, int]] = []
    pack_small(images, store, on_progress=lambda *call: calls.append(call))
    looking = [("Looking at images", i, 6) for i in range(1, 7)]
    assert calls == looking + [("Storing pixels", i, 4) for i in range(1, 5)]
    before = files(home(store), "")
    monkeypatch.chdir(tmp_path)
    pack_small(read("images"), "other")
    inline.taken()
    real = io.open

    def read_only(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            raise OSError(errno.EROFS, "Read-only file system", file)
        return real(file, mode, *args, **options)

    monkeypatch.setattr(io, "open", read_only)  # what Path.open calls
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        check(pack_small(images, store, budget=0), images, bad=bad)
        check(pack_small(read("images"), "store"), images, bad=bad)
        pack_small(images, "other")  # known by absolute paths, though read by relative ones
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
    check(pack_small(images, store, on_progress=lambda *call: calls.append(call)), images)
    assert inline.taken() == [("look", "001.png")]
    assert calls == [("Looking at images", 3, 3)]
    before = segment_files(store)
    save(folder / "001.png", 50, 70, seed=77)
    save(folder / "000 and a half.png", 40, 22, seed=50)
    (folder / "002.png").unlink()
    images, new = read(folder), ["000 and a half.png", "001.png"]
    check(pack_small(images, store), images)
    assert inline.taken() == [("look", name) for name in new] + [("put", name) for name in new]
    after = segment_files(store)
    assert {name: after.pop(name) for name in before} == before
    assert [len(content) for name, content in after.items() if name.endswith(".bin")] == [3 * 16 * (29 + 22)]
    np.testing.assert_array_equal(first.image(1), old)  # whoever has the store open keeps what there was
    (folder / "000.png").rename(folder / "zzz.png")
    folder = folder.rename(tmp_path / "elsewhere")
    images = read(folder)
    check(pack_small(images, store), images)
    assert inline.taken() == [("look", name) for name in (*new, "zzz.png")]
    store = store.rename(tmp_path / "moved store")
    check(pack_small(images, store), images)
    assert inline.taken() == []
    (folder / "001.png").write_text("no image any more")
    check(pack_small(images, store), images, bad={"001.png": "not an image"})


# Kills


def pack_in_child(folder: str, store: str, fatal: int | None) -> None:
    """Pack, with a commit after every image, and say what is done; die before the sync or rename of number `fatal`."""
    packing.COMMIT = 0
    vars(packing)["run"] = Inline()
    count = count_operations(["fsync", "replace"], fatal)
    pack_small(read(folder), store, on_progress=lambda what, *_: say(what.split()[0]))
    say("operations", count())


def test_a_run_killed_anywhere_goes_on_where_it_was(
    folder: Path, store: Path, inline: Inline, fork_server: ForkServer
) -> None:
    n = 4
    images = fill(folder, n)
    whole = fork_server.run(pack_in_child, str(folder), str(store), None)
    check(pack_small(images, store), images)
    assert inline.taken() == []
    unbroken = segment_files(store)
    (operations,) = whole.each("operations")
    assert operations > 3 * n
    for fatal in range(1, operations + 1):
        shutil.rmtree(store)
        ended = fork_server.run(pack_in_child, str(folder), str(store), fatal)
        assert ended.code == KILLED
        check(pack_small(images, store), images)
        tasks = [task for task, _ in inline.taken()]
        for task, stage in (("look", "Looking"), ("put", "Storing")):
            left = n - ended.said.count([stage])
            assert left - 1 <= tasks.count(task) <= left  # at most one was done and could not be told
        assert segment_files(store) == unbroken


@pytest.mark.parametrize(("step", "wanted"), [(0.0, [0] * 4), (packing.COMMIT + 1, [1, 2, 3, 4])])
def test_commits_come_in_time(
    folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch, step: float, wanted: list[int]
) -> None:
    clock, stored = count(0.0, step), []
    monkeypatch.setattr(packing, "monotonic", lambda: next(clock))

    def on_progress(what: str, *_: int) -> None:
        if what.startswith("Storing"):
            stored.append(sum(marks(store)))

    pack_small(fill(folder, 4), store, on_progress=on_progress)
    assert stored == wanted
    assert marks(store) == [1] * 4


@pytest.mark.parametrize("moment", [("Looking", 1), ("Looking", 3), ("Storing", 1), ("Storing", 3)])
def test_two_runs_at_once_make_one_store(
    tmp_path: Path, folder: Path, store: Path, inline: Inline, moment: tuple[str, int]
) -> None:
    """One run comes to its end while the other is at some image."""
    images = fill(folder, 3)
    pack_small(images, tmp_path / "alone")
    other = at(*moment, lambda: check(pack_small(images, store), images))
    check(pack_small(images, store, on_progress=other), images)
    assert segment_files(store) == segment_files(tmp_path / "alone")


@pytest.mark.parametrize(("stage", "runs", "done"), [("Looking", 1, 0), ("Storing", 2, 2)])
def test_an_interrupt_keeps_what_is_done_and_ends_the_workers(
    folder: Path, store: Path, monkeypatch: pytest.MonkeyPatch, inline: Inline, stage: str, runs: int, done: int
) -> None:
    """In a notebook the error, and with it the frame that was reading results, stays alive until the next error."""
    closed = []

    def run(*args: Any, **options: Any) -> Results:
        try:
            yield from inline(*args, **options)
        finally:
            closed.append(True)

    monkeypatch.setattr(packing, "run", run)
    images = fill(folder, 4)
    with pytest.raises(KeyboardInterrupt) as caught:
        pack_small(images, store, on_progress=at(stage, 2, stop))
    assert caught.traceback  # still held
    assert closed == [True] * runs
    assert sum(marks(store)) == done
    inline.taken()
    check(pack_small(images, store), images)
    looks = 2 if stage == "Looking" else 0
    assert [task for task, _ in inline.taken()] == ["look"] * looks + ["put"] * (4 - done)


# Damage and lack of room


def test_what_is_lost_is_made_again(folder: Path, store: Path, inline: Inline) -> None:
    images = fill(folder, 3)
    pack_small(images, store)
    inline.taken()
    (home(store) / "seen.jsonl").unlink()
    check(pack_small(images, store), images)
    assert inline.taken() == [("look", f"{i:03}.png") for i in range(3)]
    next(home(store).glob("*.bin")).unlink()
    with pytest.raises(InputError, match="is damaged") as caught:
        pack_small(images, store)
    told = re.search(r"Delete its files \((\S+)\)", str(caught.value))
    assert told is not None
    for path in home(store).glob(told[1]):
        path.unlink()
    check(pack_small(images, store), images)


def test_a_budget_holds_before_anything_is_stored(folder: Path, store: Path, inline: Inline) -> None:
    images = fill(folder, 3)
    with pytest.raises(InputError, match=r"store' would .*3 images more, resized for 16px-.*Raise the budget"):
        pack_small(images, store, budget=NEEDED - 1)
    assert {path.name for path in home(store).iterdir()} == {"settings.json", "seen.jsonl"}
    with pytest.raises(KeyboardInterrupt):
        pack_small(images, store, budget=NEEDED, on_progress=at("Storing", 1, stop))
    with pytest.raises(InputError, match="2 images more"):  # planned, but not there yet
        pack_small(images, store, budget=NEEDED - 1)
    check(pack_small(images, store, budget=NEEDED), images)
    save(folder / "more.png", 20, 20, seed=9)
    images = read(folder)
    with pytest.raises(InputError, match=r"1 images? more"):
        pack_small(images, store, budget=NEEDED + 3 * 16 * 16 - 1)
    assert len(find(home(store))) == 1
    check(pack_small(images, store, budget=NEEDED + 3 * 16 * 16), images)


def test_a_store_that_cannot_be_written_ends_the_run(
    folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, place = fill(folder, 3), Place.job
    with monkeypatch.context() as patch:
        patch.setattr(Place, "job", lambda self: {**place(self), "file": "/nowhere/x.bin"})
        with pytest.raises(SortalError, match=r"The pixel store '/nowhere/x.bin' could not be written: No such file"):
            pack_small(images, store)
        assert set(marks(store)) == {0}
    with monkeypatch.context() as patch:
        patch.setattr("sortal.segments.Segment.mark", lambda *_: None)  # an image may lie there turned, or not at all
        with pytest.raises(SortalError, match="lost marks while it was filled"):
            pack_small(images, store)
    check(pack_small(images, store), images)


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
    folder: Path, store: Path, inline: Inline, change_to: Callable[[Path], object], reason: str
) -> None:
    """Nothing said of what the files hold in between is true of what they held before."""
    fill(folder, 3)
    shutil.copy(folder / "001.png", folder / "copy.png")
    images, before = read(folder), [(folder / name, (folder / name).read_bytes()) for name in ("001.png", "002.png")]

    def change() -> None:
        for path, _ in before:
            path.unlink()
            change_to(path)

    packed = pack_small(images, store, on_progress=at("Looking", 4, change))
    check(packed, images, bad={"001.png": reason, "002.png": reason})
    for path, content in before:
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)
    check(pack_small(images, store), images)


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("PIL.Image.Image.convert", MemoryError(), "no memory"),
        ("sortal.pixels.open", OSError(5, "Input/output error"), "unavailable"),
    ],
)
def test_trouble_of_the_machine_costs_an_image_and_copies_of_it_only_this_time(
    folder: Path, store: Path, inline: Inline, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, reason: str
) -> None:
    fill(folder, 2)
    shutil.copy(folder / "001.png", folder / "copy.png")
    images = read(folder)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        breaks = at("Looking", 3, lambda: patch.setattr(name, fail, raising=False))
        packed = pack_small(images, store, on_progress=breaks)
    check(packed, images, bad=dict.fromkeys(images.files, reason))
    inline.taken()
    check(pack_small(images, store), images)
    assert inline.taken() == [("put", "000.png"), ("put", "001.png")]
