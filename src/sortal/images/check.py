"""A health check of images: what cannot be read, what is there twice, and what will look odd to a model."""

import base64
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sortal import near, pixels
from sortal.errors import InputError
from sortal.images import ImageSet, Source
from sortal.pixels import Quarantined
from sortal.workers import Job, Progress, Values, run

TINY = 32  # a shorter side below this is tiny

Kind = Literal["two labels", "labelled and unlabelled", "same"]
KINDS: tuple[Kind, ...] = ("two labels", "labelled and unlabelled", "same")  # the worst first


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """How many images a class has, and how many of them cannot be read; the name is None for those without a label."""

    name: str | None
    images: int
    unreadable: int


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """Images that are one, or nearly: their files, the label of each, and what that means."""

    kind: Kind
    files: tuple[str, ...]
    labels: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Health:
    """What `check` found. The counts of `classes` add up to `images`."""

    images: int
    labelled: int
    classes: tuple[ClassCount, ...]  # known classes in their order, then the unlabelled
    alike_names: tuple[tuple[str, ...], ...]  # classes whose names differ only in case and spaces
    unreadable: tuple[Quarantined, ...]
    duplicates: tuple[Duplicates, ...]  # by content, the worst first
    near_duplicates: tuple[Duplicates, ...] | None  # by looks, the worst first; None where there are too many images
    tiny: tuple[str, ...]
    rotated: tuple[str, ...]
    deep: tuple[str, ...]  # more than 8 bits a channel
    ignored: tuple[str, ...]  # files beside the images that are none by their extension

    @property
    def contradictions(self) -> int:
        """How many images lie under two labels."""
        return sum(group.kind == "two labels" for group in self.duplicates)


def check(
    images: ImageSet,
    *,
    tiny: int = TINY,
    max_pixels: int = pixels.MAX_PIXELS,
    workers: int | None = None,
    on_progress: Progress = lambda *_: None,
) -> Health:
    """Read every image once and report; nothing is written."""
    for name, value in (("tiny", tiny), ("max_pixels", max_pixels)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    n = len(images)
    unreadable: dict[int, Quarantined] = {}
    contents: dict[str, list[int]] = {}
    sizes, bits, rotated = np.zeros((n, 2), np.int64), np.zeros(n, np.int64), np.zeros(n, bool)
    thumbnails = np.zeros((n if n <= near.MOST else 0, near.LENGTH), np.uint8)
    jobs = (Job(row, images.source(row)) for row in range(n))
    with closing(run(examine, jobs, options={"max_pixels": max_pixels}, workers=workers)) as results:
        for done, (row, found) in enumerate(results, start=1):
            if "reason" in found:
                unreadable[row] = Quarantined(images.files[row], found["reason"], found["detail"])
            else:
                contents.setdefault(found["digest"], []).append(row)
                sizes[row], bits[row], rotated[row] = found["size"], found["bits"], found["rotated"]
                if len(thumbnails):
                    thumbnails[row] = np.frombuffer(base64.b64decode(found["thumbnail"]), np.uint8)
            on_progress("Checking images", done, n)
    shorter = sizes.min(axis=1)
    same = sorted(sorted(rows) for rows in contents.values())

    def files(rows: NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(images.files[row] for row in np.flatnonzero(rows))

    return Health(
        images=n,
        labelled=int((images.labels >= 0).sum()),
        classes=_counts(images, sorted(unreadable)),
        alike_names=_alike_names(images.classes),
        unreadable=tuple(unreadable[row] for row in sorted(unreadable)),
        duplicates=_groups(images, same),
        near_duplicates=_groups(images, _near(same, thumbnails, shorter, on_progress)) if n <= near.MOST else None,
        tiny=files((shorter < tiny) & (shorter > 0)),
        rotated=files(rotated),
        deep=files(bits > 8),
        ignored=images.ignored,
    )


def examine(source: Source, options: Values) -> Values:
    """A worker's task: decode an image at small size and say what it is like."""
    data = pixels.read(source) if isinstance(source, str) else source
    picture = pixels.decode(data, shorter_side=2 * near.SIDE, max_pixels=options["max_pixels"])
    # What could not be stored at full size would be left out of every run.
    pixels.check_resized(picture.width, picture.height, pixels.SHORTER_SIDE, options["max_pixels"])
    return {
        "digest": pixels.digest(data),
        "size": [picture.width, picture.height],
        "bits": picture.bits,
        "rotated": picture.rotated,
        "thumbnail": base64.b64encode(near.thumbnail(picture.rgb)).decode(),
    }


def _counts(images: ImageSet, unreadable: Sequence[int]) -> tuple[ClassCount, ...]:
    def count(labels: NDArray[np.int64]) -> list[int]:
        unlabelled, *known = np.bincount(labels + 1, minlength=len(images.classes) + 1).tolist()
        return [*known, unlabelled]

    columns = zip((*images.classes, None), count(images.labels), count(images.labels[list(unreadable)]), strict=True)
    return tuple(ClassCount(name=name, images=there, unreadable=bad) for name, there, bad in columns)


def _alike_names(classes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(" ".join(name.casefold().replace("_", " ").split()), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def _groups(images: ImageSet, groups: Iterable[Sequence[int]]) -> tuple[Duplicates, ...]:
    """Groups of two rows and more, the worst kind first, then in row order."""

    def describe(rows: Sequence[int]) -> Duplicates:
        labels = tuple(images.classes[label] if label >= 0 else None for label in images.labels[list(rows)])
        named = {label for label in labels if label is not None}
        kind: Kind = (
            "two labels" if len(named) > 1 else "labelled and unlabelled" if named and None in labels else "same"
        )
        return Duplicates(kind=kind, files=tuple(images.files[row] for row in rows), labels=labels)

    several = sorted(sorted(rows) for rows in groups if len(rows) > 1)
    return tuple(sorted(map(describe, several), key=lambda group: KINDS.index(group.kind)))


def _near(
    same: Sequence[Sequence[int]], thumbnails: NDArray[np.uint8], shorter: NDArray[np.int64], on_progress: Progress
) -> Iterable[list[int]]:
    """Rows in groups of contents that look alike. An image smaller than its thumbnail is like no other."""
    large = [rows for rows in same if shorter[rows[0]] >= near.SIDE]
    members: dict[int, list[Sequence[int]]] = {}
    leaders = near.leaders(
        thumbnails[[rows[0] for rows in large]], lambda done, of: on_progress("Comparing images", done, of)
    )
    for rows, leader in zip(large, leaders.tolist(), strict=True):
        members.setdefault(leader, []).append(rows)
    return [[row for rows in group for row in rows] for group in members.values() if len(group) > 1]
