"""Segments: the files of a pixel store, in which each image has its place before it is written."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
            plan: NDArray[np.void] = np.load(self.home / f"{self.name}.plan.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise _damaged(self, str(error)) from None
        if plan.dtype != PLAN:
            raise _damaged(self, f"its plan has the columns {plan.dtype}")
        return plan

    @property
    def size(self) -> int:
        """Bytes of pixels, once all are there."""
        last = self.plan[-1]
        return int(last["offset"]) + 3 * int(last["height"]) * int(last["width"])

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

    def pixels(self) -> NDArray[np.uint8]:
        """All pixels as one flat array, mapped from the file."""
        return np.asarray(np.memmap(self.pixels_file, dtype=np.uint8, mode="r"))


def create(home: Path, digests: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Segment:
    """Plan a segment for images of these contents and sizes (height, width), in this order. The plan comes last."""
    plan = np.zeros(len(digests), dtype=PLAN)
    plan["digest"] = [text.encode() for text in digests]
    plan["height"], plan["width"] = np.array(sizes).T
    used = 3 * plan["height"].astype(np.int64) * plan["width"]
    plan["offset"] = np.cumsum(used) - used
    segment = Segment(home, digest(plan.tobytes())[:16])  # the same plan made twice is one segment
    for path, size in ((segment.pixels_file, int(used.sum())), (segment.done_file, len(plan))):
        with path.open("ab") as file:
            file.truncate(size)
    temporary = home / f"{segment.name}.plan.{os.getpid()}.tmp"
    with temporary.open("wb") as file:
        np.save(file, plan)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, home / f"{segment.name}.plan.npy")
    return segment


def find(home: Path) -> list[Segment]:
    """The segments in a folder, in one order."""
    return [Segment(home, path.name.removesuffix(".plan.npy")) for path in sorted(home.glob("*.plan.npy"))]


def _damaged(segment: Segment, how: str) -> InputError:
    return InputError(
        f"The segment {segment.name!r} of the pixel store in {str(segment.home)!r} is damaged: {how}. "
        f"Delete its files ({segment.name}.*), and its images are stored again."
    )
