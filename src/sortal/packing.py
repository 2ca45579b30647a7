"""Packing: every image is decoded and resized once, into the memory-mapped files of a pixel store.

A store is a folder that may hold several sets of images under several settings. Below it, for each settings, lie

    settings.json         what the pixels were made with
    seen.jsonl            which content each file had when it was last looked at, and the contents that cannot be read
    <segment>.plan.npy    for each image of a segment: its content, and where its pixels lie
    <segment>.bin         the pixels, uint8, image after image, each (height, width, 3)
    <segment>.done        one byte an image: 0 not there yet, 1 there, 2 there with height and width exchanged

Images are known by their content, so moved, renamed and repeated files cost nothing. A place is planned before anything
is written, and marked as done after its pixels are on disk: a killed run goes on where it was, and two runs at once
write the same bytes to the same places.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

import numpy as np

from sortal import pixels, segments, space
from sortal.errors import InputError, SortalError, listing
from sortal.images import ImageSet, Source
from sortal.pixels import OF_THE_FILE, Quarantined, Reason, UnreadableError
from sortal.seen import Seen, Stamp, stamp_of
from sortal.segments import Place, Segment
from sortal.store import PixelStore, opened
from sortal.workers import Job, Progress, Values, run

FORMAT = 1  # of the files; another number is another folder
CHANGED = "it changed while it was being stored; run again"
COMMIT = 2.0  # seconds between commits: what a kill can cost

Troubles: TypeAlias = dict[int, tuple[Reason, str]]  # by row: why it could not be read this time, and the detail


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the pixels of an image, beside its content."""

    shorter_side: int = pixels.SHORTER_SIDE
    draft: bool = True
    max_pixels: int = pixels.MAX_PIXELS

    def __post_init__(self) -> None:
        for name in ("shorter_side", "max_pixels"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")

    @property
    def key(self) -> str:
        text = json.dumps({"format": FORMAT, "decoder": pixels.VERSION, **asdict(self)}, sort_keys=True)
        return f"{self.shorter_side}px-{pixels.digest(text.encode())[:8]}"


def pack(
    images: ImageSet,
    folder: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    workers: int | None = None,
    budget: int | None = None,
    on_progress: Progress = lambda *_: None,
) -> PixelStore:
    """Put every image that is not there yet into the store, and open it for the rows of a set.

    `budget` is the most bytes of pixels the store may hold, under all settings; without one, what the disk has free. It
    is checked before any pixel is written. Images that cannot be read end up in `quarantine`.
    """
    if not isinstance(images, ImageSet):
        raise InputError(f"images must be an ImageSet, got {type(images).__name__}. Pass read_images(...).")
    if budget is not None and not isinstance(budget, int):
        raise InputError(f"budget must be a whole number of bytes, got {budget!r}.")
    settings = settings or Settings()
    home = Path(folder) / settings.key
    with _writing(home):
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "settings.json").exists():
            segments.write_atomically(home / "settings.json", json.dumps(asdict(settings), indent=2).encode())
        ledger = _Ledger(home, Seen(home / "seen.jsonl"))
    contents, troubles = _survey(images, ledger, settings, workers, on_progress)
    wanted = _plan(contents, ledger, settings, budget)
    troubles |= _fill(images, wanted, ledger, settings, workers, on_progress)
    return _open(images, contents, troubles, ledger)


def pack_readable(
    images: ImageSet,
    folder: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    workers: int | None = None,
    on_progress: Progress = lambda *_: None,
) -> tuple[ImageSet, PixelStore, tuple[Quarantined, ...]]:
    """The images that can be read, their pixels row by row, and those that cannot; at least one must be there."""
    options: dict[str, Any] = {"settings": settings, "workers": workers, "on_progress": on_progress}
    store = pack(images, folder, **options)
    quarantine = store.quarantine
    if not quarantine:
        return images, store, ()
    if not store.present.any():
        raise InputError(
            f"There must be an image that can be read, got {len(images):,} that cannot: "
            f"{listing([bad.file for bad in quarantine])}. sortal check says why."
        )
    readable = images.select(store.present)
    store = pack(readable, folder, **options)
    if store.quarantine:
        raise SortalError(
            f"Files vanished while they were read: {listing([b.file for b in store.quarantine])}. Run again."
        )
    return readable, store, quarantine


@contextmanager
def _writing(home: Path) -> Iterator[None]:
    """Around what writes to the store, and nothing else: what a user's own functions raise is not about it."""
    try:
        yield
    except OSError as error:
        raise InputError(f"The pixel store in {str(home)!r} cannot be written: {error.strerror or error}.") from error


class _Ledger:
    """What was found and done, written down every few seconds: pixels first, then the marks that they are there."""

    def __init__(self, home: Path, seen: Seen) -> None:
        self.home = home
        self.seen = seen
        self._done: dict[Segment, dict[int, int]] = {}
        self._last = monotonic()

    def __enter__(self) -> None:
        """Whatever happens within, what was done by then is written down at the end."""

    def __exit__(self, *_: object) -> None:
        self.commit()

    def mark(self, place: Place, mark: int) -> None:
        self._done.setdefault(place.segment, {})[place.slot] = mark

    def commit(self, *, only_if_due: bool = False) -> None:
        if only_if_due and monotonic() - self._last < COMMIT:
            return
        with _writing(self.home):
            for segment, slots in self._done.items():
                segment.mark(slots)
            self._done.clear()
            self.seen.flush()
        self._last = monotonic()


def _survey(
    images: ImageSet, ledger: _Ledger, settings: Settings, workers: int | None, on_progress: Progress
) -> tuple[list[str], Troubles]:
    """The content of every row ("" where it has none); only files that are not as they were when last seen are read."""
    contents, seen, options = [""] * len(images), ledger.seen, asdict(settings)
    troubles: Troubles = {}
    stamps: dict[int, Stamp] = {}
    jobs: list[Job] = []
    for row in range(len(images)):
        source = images.source(row)
        if not isinstance(source, str):
            contents[row] = pixels.digest(source)
            seen.note({"digest": contents[row], **_place_or_trouble(source.shape[1], source.shape[0], options)})
        elif (stamp := stamp_of(source)) is not None and (known := seen.content(source, stamp)):
            contents[row] = known
        else:
            stamps[row] = stamp or []
            jobs.append(Job(row, source))
    with ledger, closing(run(look, jobs, options=options, workers=workers)) as results:
        for count, (row, result) in enumerate(results, start=len(images) - len(jobs) + 1):
            if "digest" in result:
                contents[row] = result["digest"]
                seen.add({"path": os.path.abspath(images.paths[row]), "stamp": stamps[row], **result})
            else:
                troubles[row] = (result["reason"], result["detail"])
            ledger.commit(only_if_due=True)
            on_progress("Looking at images", count, len(images))
    return contents, troubles


def look(source: Source, options: Values) -> Values:
    """A worker's task: the content of a file and, by its header, the size of its image or what is wrong with it."""
    assert isinstance(source, str)
    data = pixels.read(source)
    try:
        found = _place_or_trouble(*pixels.size(data, max_pixels=options["max_pixels"]), options)
    except UnreadableError as error:
        found = _lasting(error)
    return {"digest": pixels.digest(data), **found}


def _place_or_trouble(width: int, height: int, options: Values) -> Values:
    """The size of an image, if it can be stored once resized."""
    try:
        pixels.check_resized(width, height, options["shorter_side"], options["max_pixels"])
    except UnreadableError as error:
        return _lasting(error)
    return {"size": [width, height]}


def _lasting(error: UnreadableError) -> Values:
    """A verdict to be kept; what is not about the content is raised again."""
    if not error.lasting:
        raise error
    return {"bad": [error.reason, error.detail]}


@dataclass(frozen=True)
class Wanted:
    """A content that is not stored yet: where it goes, and the rows that have it, any of which will do."""

    content: str
    place: Place
    rows: list[int]


def _plan(contents: Sequence[str], ledger: _Ledger, settings: Settings, budget: int | None) -> list[Wanted]:
    """The contents that are not stored yet, each with a place, which is made where there is none."""
    seen, home = ledger.seen, ledger.home
    rows: dict[str, list[int]] = {}
    for row, content in enumerate(contents):
        if content and content not in seen.bad:
            rows.setdefault(content, []).append(row)
    places = segments.places(home)
    missing = [content for content in rows if content not in places or not places[content].mark]
    if not missing:
        return []
    sizes = {content: pixels.resized(*seen.sizes[content], settings.shorter_side)[::-1] for content in missing}
    space.check(home, [3 * high * wide for high, wide in sizes.values()], budget)
    if new := [content for content in missing if content not in places]:
        with _writing(home):
            segments.create(home, new, [sizes[content] for content in new])
        places = segments.places(home)
    return [Wanted(content, places[content], rows[content]) for content in missing]


def _fill(
    images: ImageSet,
    wanted: list[Wanted],
    ledger: _Ledger,
    settings: Settings,
    workers: int | None,
    on_progress: Progress,
) -> Troubles:
    """Store contents at their places. The first row of each is tried; where its file is to blame, the next one is."""
    troubles: Troubles = {}
    total, settled = len(wanted), 0
    while wanted:
        waiting = {content.rows[0]: content for content in wanted}
        jobs = [Job(row, images.source(row), content.place.job()) for row, content in waiting.items()]
        wanted = []
        with ledger, closing(run(put, jobs, options=asdict(settings), workers=workers)) as results:
            for row, result in results:
                tried = waiting[row]
                if "mark" in result:
                    ledger.mark(tried.place, result["mark"])
                elif "bad" in result:
                    ledger.seen.add({"digest": tried.content, "bad": result["bad"]})
                else:
                    of_the_file = result["reason"] in OF_THE_FILE
                    blamed = [row] if of_the_file else tried.rows
                    troubles |= dict.fromkeys(blamed, (result["reason"], result["detail"]))
                    if of_the_file and tried.rows[1:]:
                        wanted.append(Wanted(tried.content, tried.place, tried.rows[1:]))
                        continue
                settled += 1
                ledger.commit(only_if_due=True)
                on_progress("Storing pixels", settled, total)
    return troubles


def put(source: Source, options: Values) -> Values:
    """A worker's task: decode an image and write its pixels to their place."""
    try:
        data = pixels.read(source) if isinstance(source, str) else source
    except UnreadableError as error:
        raise UnreadableError("changed", CHANGED) if error.lasting else error from None
    if pixels.digest(data) != options["digest"]:
        raise UnreadableError("changed", CHANGED)
    height, width = options["height"], options["width"]
    sizes = {name: options[name] for name in ("shorter_side", "draft", "max_pixels")}
    try:
        rgb = pixels.decode(data, **sizes).rgb
        if rgb.shape[:2] not in ((height, width), (width, height)):
            raise UnreadableError("damaged", "its pixels are not as many as its header says")
    except UnreadableError as error:
        return _lasting(error)
    try:
        with open(options["file"], "rb+") as file:
            file.seek(options["offset"])
            file.write(np.ascontiguousarray(rgb).data)
    except OSError as error:
        raise SortalError(f"The pixel store {options['file']!r} could not be written: {error.strerror}.") from None
    return {"mark": segments.STORED if rgb.shape[0] == height else segments.TURNED}


def _open(images: ImageSet, contents: Sequence[str], troubles: Troubles, ledger: _Ledger) -> PixelStore:
    places = segments.places(ledger.home)
    present = list(contents)
    quarantine = []
    for row, content in enumerate(contents):
        if row in troubles or content in ledger.seen.bad:
            quarantine.append(Quarantined(images.files[row], *(troubles.get(row) or ledger.seen.bad[content])))
            present[row] = ""
        elif not places[content].mark:
            raise SortalError(f"The pixel store in {str(ledger.home)!r} lost marks while it was filled. Run again.")
    return opened(ledger.home, present, tuple(quarantine))
