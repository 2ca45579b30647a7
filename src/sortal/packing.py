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
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import TypeAlias

import numpy as np

from sortal import pixels, segments
from sortal.errors import InputError, SortalError
from sortal.images import ImageSet, Source
from sortal.pixels import Quarantined, Reason, UnreadableError
from sortal.seen import LASTING, Seen, Stamp, stamp_of
from sortal.segments import Segment
from sortal.store import PixelStore
from sortal.workers import Job, Values, run

FORMAT = 1  # of the files; another number is another folder
COMMIT = 2.0  # seconds between commits: what a kill can cost
MARGIN = 2**28  # bytes that stay free on the disk

Progress: TypeAlias = Callable[[str, int, int], None]  # what is being done, how many are done, of how many


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the pixels of an image, beside its content."""

    shorter_side: int = 256
    draft: bool = True
    max_pixels: int = pixels.MAX_PIXELS

    def __post_init__(self) -> None:
        for name in ("shorter_side", "max_pixels"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")

    @property
    def key(self) -> str:
        text = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)
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

    `budget` is the most bytes the store may take; without one, what the disk has free. It is checked before any pixel
    is written. Images that cannot be read end up in `quarantine`.
    """
    settings = settings or Settings()
    home = Path(folder) / settings.key
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "settings.json").exists():
            (home / "settings.json").write_text(json.dumps(asdict(settings), indent=2))
        seen = Seen(home / "seen.jsonl")
        contents = _survey(images, seen, settings, workers, on_progress)
        _fill(images, contents, seen, home, settings, workers, budget, on_progress)
    except OSError as error:
        raise InputError(f"The pixel store in {str(home)!r} cannot be written: {error.strerror}.") from error
    return _open(images, contents, seen, home)


@dataclass(frozen=True)
class Content:
    """What a row turned out to be: a content, or none and the reason."""

    digest: str | None
    trouble: tuple[Reason, str] | None = None


def _survey(
    images: ImageSet, seen: Seen, settings: Settings, workers: int | None, on_progress: Progress
) -> list[Content]:
    """The content of every row; only files that are not as they were when last seen are read."""
    found: dict[int, Content] = {}
    stamps: dict[int, Stamp] = {}
    jobs: list[Job] = []
    for row in range(len(images)):
        source = images.source(row)
        if not isinstance(source, str):
            content = pixels.digest(source)
            seen.sizes[content] = (source.shape[1], source.shape[0])
            found[row] = Content(content)
            continue
        stamp = stamp_of(source)
        if stamp is not None and (known := seen.content(source, stamp)):
            found[row] = Content(known)
            continue
        if stamp is not None:
            stamps[row] = stamp
        jobs.append(Job(row, source))
    try:
        for row, result in run(look, jobs, options=asdict(settings), workers=workers):
            if "digest" in result and row in stamps:
                seen.add({"path": os.path.abspath(images.paths[row]), "stamp": stamps[row], **result})
            found[row] = Content(
                result.get("digest"), None if "digest" in result else (result["reason"], result["detail"])
            )
            on_progress("Looking at images", len(found), len(images))
    finally:
        seen.flush()
    return [found[row] for row in range(len(images))]


def look(source: Source, options: Values) -> Values:
    """A worker's task: the content of a file and, by its header, the size of its image or what is wrong with it."""
    assert isinstance(source, str)
    data = pixels.read(source)
    result: Values = {"digest": pixels.digest(data)}
    try:
        width, height = pixels.size(data, max_pixels=options["max_pixels"])
        pixels.check_resized(width, height, options["shorter_side"], options["max_pixels"])
    except UnreadableError as error:
        return {**result, "bad": [error.reason, error.detail]}
    return {**result, "size": [width, height]}


def _fill(
    images: ImageSet,
    contents: Sequence[Content],
    seen: Seen,
    home: Path,
    settings: Settings,
    workers: int | None,
    budget: int | None,
    on_progress: Progress,
) -> None:
    """Store the contents that are not there yet, at places planned before."""
    rows: dict[str, int] = {}  # the first row of each content that can be read
    for row, content in enumerate(contents):
        if content.digest is not None and content.digest not in seen.bad:
            rows.setdefault(content.digest, row)
    places = _places(home)
    new = [content for content in rows if content not in places]
    sizes = [pixels.resized(*seen.sizes[content], settings.shorter_side)[::-1] for content in new]
    _check_space(home, sum(3 * height * width for height, width in sizes), len(new), budget, settings)
    if new:
        segments.create(home, new, sizes)
        places = _places(home)
    waiting = {row: places[content] for content, row in rows.items() if not places[content].mark}
    jobs = [Job(row, images.source(row), place.job()) for row, place in waiting.items()]
    done: dict[Segment, dict[int, int]] = {}
    committed = monotonic()

    def commit() -> None:
        for segment, slots in done.items():
            segment.mark(slots)
        done.clear()
        seen.flush()

    try:
        for count, (row, result) in enumerate(run(put, jobs, options=asdict(settings), workers=workers), start=1):
            place = waiting[row]
            if "mark" in result:
                done.setdefault(place.segment, {})[place.slot] = result["mark"]
            elif result["reason"] in LASTING:
                seen.add({"digest": contents[row].digest, "bad": [result["reason"], result["detail"]]})
            else:
                seen.bad[str(contents[row].digest)] = (result["reason"], result["detail"])  # this time only
            if monotonic() - committed > COMMIT:
                commit()
                committed = monotonic()
            on_progress("Storing pixels", count, len(jobs))
    finally:
        commit()


def put(source: Source, options: Values) -> Values:
    """A worker's task: decode an image and write its pixels to their place."""
    data = pixels.read(source) if isinstance(source, str) else source
    if pixels.digest(data) != options["digest"]:
        raise UnreadableError("changed", "it changed while it was being stored; run again")
    height, width = options["height"], options["width"]
    rgb = pixels.decode(
        data, shorter_side=options["shorter_side"], draft=options["draft"], max_pixels=options["max_pixels"]
    ).rgb
    assert rgb.shape in ((height, width, 3), (width, height, 3)), (rgb.shape, height, width)
    try:
        with open(options["file"], "rb+") as file:
            file.seek(options["offset"])
            file.write(np.ascontiguousarray(rgb).data)
    except OSError as error:
        raise SortalError(f"The pixel store {options['file']!r} could not be written: {error.strerror}.") from None
    return {"mark": segments.STORED if rgb.shape[0] == height else segments.TURNED}


@dataclass(frozen=True)
class Place:
    """Where the pixels of a content lie, or will."""

    segment: Segment
    slot: int
    mark: int

    def job(self) -> Values:
        entry = self.segment.plan[self.slot]
        return {
            "file": str(self.segment.pixels_file),
            "digest": entry["digest"].decode(),
            **{name: int(entry[name]) for name in ("offset", "height", "width")},
        }


def _places(home: Path) -> dict[str, Place]:
    """The place of every content that has one; of two, that where its pixels are."""
    places: dict[str, Place] = {}
    for segment in segments.find(home):
        for slot, (content, mark) in enumerate(
            zip(segment.plan["digest"].tolist(), segment.done().tolist(), strict=True)
        ):
            if mark or content.decode() not in places:
                places[content.decode()] = Place(segment, slot, mark)
    return places


def _check_space(home: Path, needed: int, count: int, budget: int | None, settings: Settings) -> None:
    """Nothing is written that cannot be finished."""
    there = segments.find(home)
    used = sum(segment.size for segment in there)
    unwritten = 0
    for segment in there:
        plan = segment.plan[segment.done() == segments.PENDING]
        unwritten += int((3 * plan["height"].astype(np.int64) * plan["width"]).sum())
    what = f"{_bytes(used + needed)} ({count:,} images more at a shorter side of {settings.shorter_side})"
    way_out = "or choose a smaller shorter_side"
    if budget is not None and used + needed > budget:
        raise InputError(
            f"The pixel store in {str(home)!r} would take {what}; the budget is {_bytes(budget)}. "
            f"Raise the budget, {way_out}."
        )
    free = shutil.disk_usage(home).free
    if needed + unwritten > free - MARGIN:
        raise InputError(
            f"The pixel store in {str(home)!r} would take {what}; the disk has {_bytes(free)} free, "
            f"of which {_bytes(MARGIN)} stay free. Make room, use another folder, {way_out}."
        )


def _bytes(n: int) -> str:
    return f"{n / 1e9:,.1f} GB" if n >= 1e9 else f"{n / 1e6:,.1f} MB"


def _open(images: ImageSet, contents: Sequence[Content], seen: Seen, home: Path) -> PixelStore:
    places = _places(home)
    files = {segment: number for number, segment in enumerate(segments.find(home))}
    table = np.zeros((4, len(images)), dtype=np.int64)  # segment, offset, height, width
    quarantine = []
    for row, content in enumerate(contents):
        place = places.get(content.digest) if content.digest is not None else None
        if place is None or not place.mark:
            reason, detail = content.trouble or seen.bad[str(content.digest)]
            quarantine.append(Quarantined(images.files[row], reason, detail))
            continue
        entry = place.segment.plan[place.slot]
        sides = (int(entry["height"]), int(entry["width"]))
        table[:, row] = (
            files[place.segment],
            entry["offset"],
            *(sides[::-1] if place.mark == segments.TURNED else sides),
        )
    segment, offset, heights, widths = table
    return PixelStore([file.pixels() for file in files], segment, offset, heights, widths, tuple(quarantine))
