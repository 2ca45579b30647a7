"""Packing: read every image once, and store its pixels in the memory-mapped files of a pixel store.

A store is a folder that may hold several image sets under several settings. It has a folder for each settings, with

    settings.json      the settings
    index.jsonl        the content of every file read; for each content the facts about it and where its pixels are
    pixels.bin         uint8 pixels (height, width, 3) and thumbnail, image after image; it only grows
    .lock              held by the process that writes; others wait for it and then find its images
    1, 2, ...          further parts of the same kind, each written by one of several processes that work together

One pass over the files hashes, checks and decodes each: a worker reads a file, asks this process for a place, which
only a new content gets, and writes the pixels there. Every few seconds the pixels are synced to disk and then their
lines appended to the index: a killed run resumes after the last of them and overwrites the rest.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from sortal.config import MAX_PIXELS, Interpolation, SettingsGroup, option
from sortal.errors import InputError, NoSpaceError, Reason, UnreadableError, listing
from sortal.images import decoding, near_duplicates
from sortal.images.decoding import FACTS, Quarantined
from sortal.images.image_set import ImageSet, image_set
from sortal.images.store.index import Index, Stamp, bytes_of, stamp_of
from sortal.images.store.pixel_store import PixelStore, open_store
from sortal.images.store.vector_rows import Vectors, unit_rows
from sortal.system.files import lock_folder, write_atomically, writing
from sortal.system.open_folder import check_held, make_folder
from sortal.system.progress import Runtime
from sortal.system.regular_files import regular
from sortal.system.resources import free_disk
from sortal.system.text import byte_sizes
from sortal.system.workers import Conversation, JsonObject, PathOrPixels, WorkItem, run_workers

PIXEL_FORMAT = 1  # of the pixels
UNCOMMITTED_SECONDS = 2.0  # seconds between commits: the most work that a kill can lose
DISK_RESERVE = 2**26  # bytes that stay free on the disk
UNCHECKED = 2**22  # bytes for which places are assigned before the disk is looked at again
WAY_OUT = "or choose a smaller shorter_side; then run again to resume"
NEUTRAL_TILE = np.full((48, 48, 3), 222, dtype=np.uint8)  # in place of a picture


class Team(Protocol):
    """Processes that pack one set of images together."""

    rank: int
    size: int

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the `value` of every process, in rank order."""


class Resized(Protocol):
    """What a network says about the size of its images."""

    @property
    def shorter_side(self) -> int: ...

    @property
    def interpolation(self) -> Interpolation: ...


@dataclass(frozen=True, kw_only=True)
class Settings(SettingsGroup):
    """The settings that, with its content, decide the pixels of an image."""

    shorter_side: int = option(decoding.SHORTER_SIDE, least=1)
    draft: bool = option(True)
    max_pixels: int = option(MAX_PIXELS, least=1)
    interpolation: Interpolation = option("bicubic")

    @classmethod
    def of(cls, network: Resized, max_pixels: int = MAX_PIXELS) -> Self:
        """Return the settings for the images of a network."""
        return cls(shorter_side=network.shorter_side, interpolation=network.interpolation, max_pixels=max_pixels)

    def described(self) -> dict[str, Any]:
        """Return the settings, without an interpolation that is usual, as earlier versions had no other."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("interpolation", "bicubic")}

    @property
    def key(self) -> str:
        text = json.dumps(
            {"format": PIXEL_FORMAT, "decoder": decoding.PIXEL_VERSION, **self.described()}, sort_keys=True
        )
        return f"{self.shorter_side}px-{decoding.digest(text.encode())[:8]}"


def pack(
    images: ImageSet,
    folder: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    budget: int | None = None,
    team: Team | None = None,
    runtime: Runtime = Runtime(),
) -> PixelStore:
    """Store every image that is not in the store yet, and open the store for the rows of the set.

    `budget` limits the bytes of pixels under all settings; the free disk space always does. Nothing is written beyond
    either. Unreadable images end up in `quarantine`. The processes of a `team` share out the images among them; all
    must be able to write to the folder, and each returns the whole set.
    """
    if not isinstance(images, ImageSet):
        raise InputError(f"images must be an ImageSet, got {type(images).__name__}. Pass read_images(...).")
    if budget is not None and not isinstance(budget, int):
        raise InputError(f"budget must be a whole number of bytes, got {budget!r}.")
    settings = settings or Settings()
    rank, size = (team.rank, team.size) if team else (0, 1)
    index = Index(Path(folder) / settings.key, rank)
    contents, items, stamps = look_up(images, index, index.knows)
    items = [item for item in items if item.row % size == rank]
    failures: dict[int, tuple[Reason, str]] = {}  # by row: why it could not be read this time
    tried: dict[str, int] = {}  # by content: the row that was to be stored
    if items or (size > 1 and rank == 0):
        sizes = {stamp[0] for stamp in stamps.values() if stamp} - {0}  # files of equal size may be copies
        _prepare(index, settings, len(sizes) if stamps else len(items), budget)
        waiting = "Waiting for another process that reads images"
        with lock_folder(index.folder(), lambda: runtime.progress(waiting, 0, 0)):
            index.refresh()  # another process may have stored images before this one had the lock
            writer = _Writer(index, budget)
            options = {"how": asdict(settings), "file": str(index.pixels())}
            run = run_workers(store_image, items, options=options, workers=runtime.workers, answer=writer.assign_place)
            with closing(writer), closing(run) as results:
                for done, (row, result) in enumerate(results, start=1):
                    if "digest" in result:
                        contents[row] = result["digest"]
                        file = {"path": os.path.abspath(images.paths[row]), "stamp": stamps[row]} if stamps else {}
                        writer.add({**file, **result})
                    else:
                        failures[row] = (result["reason"], result["detail"])
                    left = (len(items) - done) * size  # as if all processes were equally fast
                    runtime.progress("Reading images", max(len(images) - left, 0), len(images))
            tried = writer.places
    if team and size > 1:
        read = {item.row: contents[item.row] for item in items}
        for theirs, their_failures, their_tried in team.gather_objects((read, failures, tried)):
            failures |= their_failures
            tried |= their_tried
            for row, content in theirs.items():
                contents[row] = content
        index.refresh()
    tried = {contents[row]: row for row in failures} | tried
    for row, content in enumerate(contents):  # copies share the failure of the one that was tried
        if row not in failures and not index.knows(content):
            failures[row] = failures[tried[content]]
    found = {row: failures.get(row) or index.unreadable.get(content) for row, content in enumerate(contents)}
    quarantine = tuple(Quarantined(images.files[row], *reason) for row, reason in found.items() if reason)
    return open_store(index, ["" if found[row] else content for row, content in enumerate(contents)], quarantine)


def select_readable(images: ImageSet, store: PixelStore) -> tuple[ImageSet, PixelStore]:
    """Return the readable images of a packed set and their pixels; there must be at least one."""
    if not store.quarantine:
        return images, store
    if not store.present.any():
        raise InputError(
            f"At least one image must be readable, but none of {len(images):,} is: "
            f"{listing([bad.file for bad in store.quarantine])}. Run sortal check to see why."
        )
    return images.select(store.present), store.select(store.present)


@contextmanager
def _errors_named(home: Path) -> Iterator[None]:
    """Turn an OSError of the enclosed writes, and only of these, into an error that names the store."""
    try:
        with writing(home):
            yield
    except OSError as error:
        raise InputError(f"The pixel store in {str(home)!r} cannot be written: {error.strerror or error}.") from error


def _prepare(index: Index, settings: Settings, n_images: int, budget: int | None) -> None:
    """Create the folders of the settings, if the store has room for so many images, were they all square."""
    home = index.home
    with _errors_named(home):
        make_folder(index.folder())
        if index.part == 0 and not (home / "settings.json").exists():
            write_atomically(home / "settings.json", json.dumps(settings.described(), indent=2).encode())
        least = n_images * bytes_of(settings.shorter_side, settings.shorter_side)
        check_room(home.parent, stored_bytes(home.parent), least, budget)


def stored_bytes(folder: Path) -> int:
    """Return the size of all pixel files of a store, under all settings."""
    return sum(path.lstat().st_size for path in folder.glob("**/*.bin"))


def check_room(folder: Path, stored: int, more: int, budget: int | None) -> int:
    """Return how many bytes a store of `stored` bytes may grow by; raise InputError or NoSpaceError if not `more`."""
    if budget is not None and stored + more > budget:
        total, limit = byte_sizes(stored + more, budget)
        raise InputError(
            f"The pixel store in {str(folder)!r} must not exceed its budget of {limit}, and needs at least {total}. "
            f"Raise the budget, {WAY_OUT}."
        )
    free = free_disk(folder)
    if more > free - DISK_RESERVE:
        needed, found = byte_sizes(more + DISK_RESERVE, free)
        raise NoSpaceError(
            f"Not enough disk space for the pixel store in {str(folder)!r}: it needs at least {needed} of free space "
            f"({byte_sizes(DISK_RESERVE)[0]} of it as a reserve), and {found} are free. "
            f"Free some space, use another folder, {WAY_OUT}."
        )
    return free - DISK_RESERVE if budget is None else min(free - DISK_RESERVE, budget - stored)


def look_up(
    images: ImageSet, index: Index, knows: Callable[[str], bool]
) -> tuple[list[str], list[WorkItem], dict[int, Stamp]]:
    """Return the content of every row, as far as it is known, the images that must be read, and their files' stamps."""
    contents, items, stamps, new = [""] * len(images), list[WorkItem](), dict[int, Stamp](), set[str]()
    for row in range(len(images)):
        source = images.source(row)
        if isinstance(source, str):
            stamp = stamp_of(source)
            content = (stamp and index.last_content(source, stamp)) or ""
            if knows(content):
                contents[row] = content
            else:
                stamps[row] = stamp or []
                items.append(WorkItem(row, source))
        else:
            contents[row] = decoding.digest(source)
            if not knows(contents[row]) and contents[row] not in new:
                new.add(contents[row])
                items.append(WorkItem(row, source))
    return contents, items, stamps


class _Writer:
    """The writing end of a store: assigns places to new contents, and commits them to the index."""

    def __init__(self, index: Index, budget: int | None) -> None:
        self.index = index
        self.budget = budget
        self.places: dict[str, int] = {}  # by content: the row that a place was assigned to
        self._end = max((image.end for image in index.stored.values() if image.part == index.part), default=0)
        self._stored: int | None = None  # bytes in the whole store, once the file is open
        self._room = 0  # bytes for which places may be assigned before the disk is looked at again
        self._lock = threading.Lock()
        self._unsynced = False
        self._committed = monotonic()

    def assign_place(self, row: int, question: JsonObject) -> JsonObject:
        """Return the offset for a content; nothing if it has been stored, is known to be unreadable, or has a place."""
        digest, size = question["digest"], question["bytes"]
        check_held(self.index.pixels())
        with self._lock, _errors_named(self.index.home):
            if self.index.knows(digest) or digest in self.places:
                return {}
            if self._stored is None:
                if not self._end:  # where the index was lost, others may still be reading what it listed
                    self.index.pixels().unlink(missing_ok=True)
                with open(self.index.pixels(), "ab", opener=regular) as file:
                    file.truncate(self._end)  # without what a killed run did not commit
                self._stored = stored_bytes(self.index.home.parent)
            if size > self._room:
                self._room = min(check_room(self.index.home.parent, self._stored, size, self.budget), UNCHECKED)
            self._room -= size
            self.places[digest] = row
            self._end += size
            self._stored += size
            return {"offset": self._end - size}

    def add(self, record: JsonObject) -> None:
        """Add what was found to the index; commit it every few seconds."""
        self._unsynced |= "stored" in record
        self.index.add(record)
        if monotonic() - self._committed >= UNCOMMITTED_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Sync the pixels to disk, then append to the index."""
        check_held(self.index.pixels())
        with _errors_named(self.index.home):
            if self._unsynced:
                with open(self.index.pixels(), "rb+", opener=regular) as file:
                    os.fsync(file.fileno())
                self._unsynced = False
            self.index.flush()
        self._committed = monotonic()

    close = commit


def store_image(source: PathOrPixels, options: JsonObject) -> Conversation:
    """Read an image, ask for a place, and write its pixels there: what a worker does."""
    data = decoding.read(source) if isinstance(source, str) else source
    found: JsonObject = {"digest": decoding.digest(data)}
    limit, shorter_side = options["how"]["max_pixels"], options["how"]["shorter_side"]
    try:
        size = decoding.size(data, max_pixels=limit)
        width, height = decoding.check_resized(*size, shorter_side, limit)
        place = yield {**found, "bytes": bytes_of(height, width)}
        if not place:
            return found
        picture = decoding.decode(data, **options["how"])
        if picture.rgb.size != 3 * height * width:
            raise UnreadableError("damaged", "its pixels do not match the size in its header")
    except UnreadableError as error:
        if not error.lasting:
            raise
        return {**found, "unreadable": [error.reason, error.detail]}
    with _errors_named(Path(options["file"]).parent), open(options["file"], "rb+") as file:
        file.seek(place["offset"])
        file.write(np.ascontiguousarray(picture.rgb).data)
        file.write(near_duplicates.thumbnail(picture.rgb))
    height, width = picture.rgb.shape[:2]  # exchanged where EXIF turns the image
    return {**found, "stored": {"offset": place["offset"], "height": height, "width": width, "facts": picture.facts}}


def store_pictures(
    images: ImageSet,
    contents: NDArray[np.bytes_],
    folder: Path,
    *,
    settings: Settings,
    team: Team | None = None,
    runtime: Runtime = Runtime(),
) -> PixelStore:
    """Store the pictures of feature vectors with these contents (n,); a row without one shows a neutral tile.

    So does one whose picture cannot be read. The store has the vectors, too, if the images do.
    """
    tile = pack(image_set(["tile"], labels=[None], pixels=NEUTRAL_TILE[None]), folder, settings=settings, team=team)
    there = np.array([bool(path) and os.path.isfile(path) for path in images.paths], dtype=bool)
    shown = np.full(len(images), tile.digests[0])
    if there.any():
        found = pack(images.select(there), folder, settings=settings, team=team, runtime=runtime)
        shown[there] = np.where(found.present, found.digests, tile.digests[0])
    store = open_store(Index(folder / settings.key), [each.decode() for each in shown.tolist()])
    facts = np.where(shown == tile.digests[0], np.zeros(1, FACTS), store.facts)
    vectors = None if images.features is None else Vectors(unit_rows(images.features))
    return replace(store, digests=contents, facts=facts, vectors=vectors)
