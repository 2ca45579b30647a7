"""Segments: the files of a pixel store, in which each image has its place before it is written."""

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.pixels import DIGEST, digest

PLAN = np.dtype([("digest", f"S{DIGEST}"), ("offset", "<i8"), ("height", "<i4"), ("width", "<i4")])
PENDING, STORED, TURNED = 0, 1, 2  # TURNED: stored with height and width exchanged, which only decoding could tell


@dataclass(frozen=True)
class Segment:
    """Three files: a plan (what lies where), the pixels, and one byte an image that says whether they are there."""

    home: Path
    name: str

    @property
    def pixels_file(self) -> Path:
        return self.home / f"{self.name}.bin"

    @property
    def done_file(self) -> Path:
        return self.home / f"{self.name}.done"

    @cached_property
    def plan(self) -> NDArray[np.void]:
        """One entry an image, of type `PLAN`."""
        try:
            with (self.home / f"{self.name}.plan.npy").open("rb") as file:
                plan: NDArray[np.void] = np.lib.format.read_array(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise _damaged(self, str(error)) from None
        if plan.dtype != PLAN or plan.ndim != 1 or not len(plan):
            raise _damaged(self, f"its plan is {plan.dtype} of shape {plan.shape}")
        return plan

    @property
    def size(self) -> int:
        """Bytes of pixels, once all are there."""
        return int(sizes_of(self.plan).sum())

    def done(self) -> NDArray[np.uint8]:
        """PENDING, STORED or TURNED for each image of the plan."""
        try:
            done = np.fromfile(self.done_file, dtype=np.uint8)
            found = self.pixels_file.stat().st_size
        except OSError as error:
            raise _damaged(self, str(error)) from None
        if len(done) != len(self.plan) or found != self.size:
            raise _damaged(self, f"{len(done):,} marks for {len(self.plan):,} images, {found:,} bytes of {self.size:,}")
        return done

    def mark(self, slots: Mapping[int, int]) -> None:
        """Mark images as STORED or TURNED, after making sure that their pixels are on disk."""
        with self.pixels_file.open("rb+") as file:
            os.fsync(file.fileno())
        with self.done_file.open("rb+") as file:
            for slot, mark in slots.items():
                file.seek(slot)
                file.write(bytes([mark]))
            file.flush()
            os.fsync(file.fileno())

    def pixels(self) -> np.memmap[Any, np.dtype[np.uint8]]:
        """All pixels as one flat array, mapped from the file."""
        return np.memmap(self.pixels_file, dtype=np.uint8, mode="r")


def sizes_of(plan: NDArray[np.void]) -> NDArray[np.int64]:
    """Bytes of each image of a plan."""
    sizes: NDArray[np.int64] = 3 * plan["height"].astype(np.int64) * plan["width"]
    return sizes


def create(home: Path, digests: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Segment:
    """Plan a segment for images of these contents and sizes (height, width), in this order. The plan comes last.

    The same plan made twice is one segment, so that two processes at work on the same images share it.
    """
    plan = np.zeros(len(digests), dtype=PLAN)
    plan["digest"] = [text.encode() for text in digests]
    plan["height"], plan["width"] = np.array(sizes).T
    used = sizes_of(plan)
    plan["offset"] = np.cumsum(used) - used
    segment = Segment(home, digest(plan.tobytes())[:16])
    with suppress(FileExistsError), segment.pixels_file.open("xb"):
        segment.done_file.unlink(missing_ok=True)  # marks of pixels that somebody deleted
    for path, size in ((segment.pixels_file, int(used.sum())), (segment.done_file, len(plan))):
        with path.open("ab") as file:
            file.truncate(size)
    buffer = io.BytesIO()
    np.save(buffer, plan)
    write_atomically(home / f"{segment.name}.plan.npy", buffer.getvalue())
    return segment


def write_atomically(path: Path, content: bytes) -> None:
    """A file that is there whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # some file systems, and Windows, open no folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def find(home: Path) -> list[Segment]:
    """The segments in a folder, in one order."""
    return [Segment(home, path.name.removesuffix(".plan.npy")) for path in sorted(home.glob("*.plan.npy"))]


@dataclass(frozen=True)
class Place:
    """Where the pixels of a content lie, or will."""

    segment: Segment
    slot: int
    mark: int

    def job(self) -> dict[str, Any]:
        """What a worker must know to put pixels there."""
        entry = self.segment.plan[self.slot]
        return {
            "file": str(self.segment.pixels_file),
            "digest": entry["digest"].decode(),
            **{name: int(entry[name]) for name in ("offset", "height", "width")},
        }


def places(home: Path) -> dict[str, Place]:
    """The place of every content that has one; of two, that where its pixels are."""
    found: dict[str, Place] = {}
    for segment in find(home):
        for slot, (content, mark) in enumerate(
            zip(segment.plan["digest"].tolist(), segment.done().tolist(), strict=True)
        ):
            if mark or content.decode() not in found:
                found[content.decode()] = Place(segment, slot, mark)
    return found


def _damaged(segment: Segment, how: str) -> InputError:
    return InputError(
        f"The segment {segment.name!r} of the pixel store in {str(segment.home)!r} is damaged: {how}. "
        f"Delete its files ({segment.name}.*), and its images are stored again."
    )
