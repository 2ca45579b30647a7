"""Centre crops of images that are read once and not stored: workers decode them into a few slots of a file."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sortal.errors import Reason, UnreadableError
from sortal.images import decoding
from sortal.images.store.packing import Settings
from sortal.system.files import writing
from sortal.system.open_folder import make_folder
from sortal.system.temporary import temporary_folder
from sortal.system.workers import Conversation, JsonObject, PathOrPixels, WorkItem, run_workers, worker_count

CLOSED_POLL = 0.5  # seconds between looks at whether the reader was closed


class Crop(NamedTuple):
    """What was read of an image: its content, and its pixels unless these are known, read already or unreadable."""

    row: int
    digest: str  # "" if not even that could be read
    pixels: NDArray[np.uint8] | None = None  # (size, size, 3); overwritten after the next crop is taken
    failure: tuple[Reason, str] | None = None
    lasting: bool = False  # whether the failure holds for the content permanently


@dataclass(eq=False)
class CropReader:
    """Reads images in worker processes, each content once; at most `slots` crops wait to be taken."""

    size: int  # of a crop, in pixels
    settings: Settings  # how images are decoded
    slots: int
    known: Callable[[str], bool]  # contents whose pixels are not needed
    workers: int | None = None
    _free: list[int] = field(default_factory=list)
    _taken: dict[int, tuple[int, str]] = field(default_factory=dict)  # by row: its slot, and its content
    _read: set[str] = field(default_factory=set)  # contents
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def read(self, items: Sequence[WorkItem], folder: Path) -> Generator[Crop]:
        """Yield a crop for each item, as they are read; the folder holds the slots meanwhile."""
        shape = (self.slots + worker_count(self.workers), self.size, self.size, 3)
        self._free = [*range(shape[0])]
        make_folder(folder)
        with temporary_folder(folder) as place:
            file = place / "crops.bin"
            pixels = np.asarray(np.memmap(file, dtype=np.uint8, mode="w+", shape=shape))
            options = {"how": asdict(self.settings), "file": str(file), "size": self.size}
            run = run_workers(crop_image, items, options=options, workers=self.workers, answer=self._assign)
            with closing(run), closing(self):
                for row, result in run:
                    slot, digest = self._taken.pop(row, (None, ""))
                    digest = result.get("digest", digest)
                    if "unreadable" in result or "reason" in result:
                        reason, detail = result.get("unreadable") or (result["reason"], result["detail"])
                        yield Crop(row, digest, failure=(reason, detail), lasting="unreadable" in result)
                    else:
                        yield Crop(row, digest, None if slot is None else pixels[slot])
                    if slot is not None:
                        with self._changed:
                            self._free.append(slot)
                            self._changed.notify()

    def close(self) -> None:
        """Let threads that wait for a slot go on without one."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _assign(self, row: int, question: JsonObject) -> JsonObject:
        """Return the slot for the pixels of a content; nothing if they are not needed."""
        digest = question["digest"]
        with self._changed:
            if self.known(digest) or digest in self._read:
                return {}
            self._read.add(digest)
            while not self._free and not self._closed:
                self._changed.wait(CLOSED_POLL)
            if self._closed:
                return {}
            slot = self._free.pop()
            self._taken[row] = slot, digest
            return {"slot": slot}


def crop_image(source: PathOrPixels, options: JsonObject) -> Conversation:
    """Read an image, ask for a slot, and write its centre crop there: what a worker does."""
    data = decoding.read(source) if isinstance(source, str) else source
    found: JsonObject = {"digest": decoding.digest(data)}
    reply = yield found
    if not reply:
        return found
    size = options["size"]
    try:
        picture = decoding.decode(data, **options["how"])
    except UnreadableError as error:
        if not error.lasting:
            raise
        return {**found, "unreadable": [error.reason, error.detail]}
    top, left = (int(np.rint((side - size) / 2)) for side in picture.rgb.shape[:2])  # as in learning.views
    crop = np.ascontiguousarray(picture.rgb[top : top + size, left : left + size])
    with writing(options["file"], crop.nbytes), open(options["file"], "rb+") as file:
        file.seek(reply["slot"] * crop.nbytes)
        file.write(crop.data)
    return found
