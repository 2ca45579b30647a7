"""The health check: which images are unreadable, duplicated or unusual. It comes out of packing, or runs alone."""

import base64
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images import decoding
from sortal.images import near_duplicates as near
from sortal.images.decoding import FACTS, Quarantined
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.system.progress import Runtime
from sortal.system.workers import ImageSource, JsonObject, WorkItem, run_workers

TINY = 32  # an image with a shorter side below this is tiny

Kind = Literal["two labels", "labelled and unlabelled", "same"]
KINDS: tuple[Kind, ...] = ("two labels", "labelled and unlabelled", "same")  # the worst first


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """The number of images of a class, and of unreadable ones among them; the name of the unlabelled is None."""

    name: str | None
    images: int
    unreadable: int


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """A group of images that are equal, or nearly: their files and labels, and whether the labels agree."""

    kind: Kind
    files: tuple[str, ...]
    labels: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Health:
    """The findings of a check. The counts of `classes` add up to `images`."""

    images: int
    labelled: int
    classes: tuple[ClassCount, ...]  # known classes in their order, then the unlabelled
    alike_names: tuple[tuple[str, ...], ...]  # classes whose names differ only in case and spaces
    unreadable: tuple[Quarantined, ...]
    duplicates: tuple[Duplicates, ...]  # by content, the worst first
    near_duplicates: tuple[Duplicates, ...] | None  # by looks, the worst first; None for too many images
    tiny: tuple[str, ...]
    rotated: tuple[str, ...]
    deep: tuple[str, ...]  # more than 8 bits per channel
    ignored: tuple[str, ...]  # files whose extension is not that of an image

    @property
    def contradictions(self) -> int:
        """The number of images found under two labels."""
        return sum(group.kind == "two labels" for group in self.duplicates)


def check(
    images: ImageSet,
    *,
    tiny: int = TINY,
    max_pixels: int = decoding.MAX_PIXELS,
    runtime: Runtime = Runtime(),
) -> Health:
    """Check images by reading every file once, at reduced size; nothing is written."""
    for name, value in (("tiny", tiny), ("max_pixels", max_pixels)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    n = len(images)
    contents, facts, unreadable = [""] * n, np.zeros(n, FACTS), dict[int, Quarantined]()
    thumbnails = np.zeros((n if n <= near.MOST else 0, near.LENGTH), np.uint8)
    items = (WorkItem(row, images.source(row)) for row in range(n))
    with closing(run_workers(examine, items, options={"max_pixels": max_pixels}, workers=runtime.workers)) as results:
        for done, (row, found) in enumerate(results, start=1):
            if "reason" in found:
                unreadable[row] = Quarantined(images.files[row], found["reason"], found["detail"])
            else:
                contents[row], facts[row] = found["digest"], tuple(found["facts"])
                if len(thumbnails):
                    thumbnails[row] = np.frombuffer(base64.b64decode(found["thumbnail"]), np.uint8)
            runtime.progress("Checking images", done, n)
    quarantine = tuple(unreadable[row] for row in sorted(unreadable))
    return _health(images, contents, facts, thumbnails, quarantine, tiny, runtime)


def check_stored(images: ImageSet, store: PixelStore, *, runtime: Runtime = Runtime()) -> Health:
    """Check images by what packing them found out; no file is opened."""
    thumbnails = store.thumbnails() if len(images) <= near.MOST else np.zeros((0, near.LENGTH), np.uint8)
    contents = [digest.decode() for digest in store.digests.tolist()]
    return _health(images, contents, store.facts, thumbnails, store.quarantine, TINY, runtime)


def examine(source: ImageSource, options: JsonObject) -> JsonObject:
    """Decode an image at reduced size and return the facts about it: what a worker does."""
    data = decoding.read(source) if isinstance(source, str) else source
    picture = decoding.decode(data, shorter_side=2 * near.SIDE, max_pixels=options["max_pixels"])
    # Images that cannot be stored at full size would be left out of every run.
    decoding.check_resized(picture.width, picture.height, decoding.SHORTER_SIDE, options["max_pixels"])
    return {
        "digest": decoding.digest(data),
        "facts": picture.facts,
        "thumbnail": base64.b64encode(near.thumbnail(picture.rgb)).decode(),
    }


def _health(
    images: ImageSet,
    contents: Sequence[str],
    facts: NDArray[np.void],
    thumbnails: NDArray[np.uint8],
    unreadable: tuple[Quarantined, ...],
    tiny: int,
    runtime: Runtime,
) -> Health:
    """Derive the findings from what is known of each row; unreadable ones have the content ""."""
    rows_of: dict[str, list[int]] = {}
    for row, content in enumerate(contents):
        rows_of.setdefault(content, []).append(row)
    lost = rows_of.pop("", [])
    same = list(rows_of.values())
    shorter = np.minimum(facts["width"], facts["height"])

    def files(rows: NDArray[np.bool_]) -> tuple[str, ...]:
        return tuple(images.files[row] for row in np.flatnonzero(rows))

    return Health(
        images=len(images),
        labelled=int((images.labels >= 0).sum()),
        classes=_counts(images, lost),
        alike_names=_alike_names(images.classes),
        unreadable=unreadable,
        duplicates=_groups(images, same),
        near_duplicates=_groups(images, _near(same, thumbnails, shorter, runtime))
        if len(images) <= near.MOST
        else None,
        tiny=files((shorter < tiny) & (shorter > 0)),
        rotated=files(facts["rotated"]),
        deep=files(facts["bits"] > 8),
        ignored=images.ignored,
    )


def _counts(images: ImageSet, unreadable: Sequence[int]) -> tuple[ClassCount, ...]:
    def count(labels: NDArray[np.int64]) -> list[int]:
        unlabelled, *known = np.bincount(labels + 1, minlength=len(images.classes) + 1).tolist()
        return [*known, unlabelled]

    columns = zip((*images.classes, None), count(images.labels), count(images.labels[list(unreadable)]), strict=True)
    return tuple(ClassCount(name=name, images=n, unreadable=bad) for name, n, bad in columns)


def _alike_names(classes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(" ".join(name.casefold().replace("_", " ").split()), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def _groups(images: ImageSet, groups: Iterable[Sequence[int]]) -> tuple[Duplicates, ...]:
    """Describe the groups of two and more rows, the worst kind first, then in row order."""

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
    same: Sequence[Sequence[int]], thumbnails: NDArray[np.uint8], shorter: NDArray[np.int32], runtime: Runtime
) -> Iterable[list[int]]:
    """Return groups of rows that look alike but differ in content. Images smaller than a thumbnail are left out."""
    large = [rows for rows in same if shorter[rows[0]] >= near.SIDE]
    members: dict[int, list[Sequence[int]]] = {}
    leaders = near.leaders(
        thumbnails[[rows[0] for rows in large]], lambda done, of: runtime.progress("Comparing images", done, of)
    )
    for rows, leader in zip(large, leaders.tolist(), strict=True):
        members.setdefault(leader, []).append(rows)
    return [[row for rows in group for row in rows] for group in members.values() if len(group) > 1]
