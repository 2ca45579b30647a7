"""The health check: which images are unreadable, duplicated or unusual. It follows from packing, or runs alone."""

import base64
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from sortal.config import MAX_PIXELS
from sortal.errors import InputError
from sortal.images import decoding
from sortal.images import near_duplicates as near
from sortal.images.class_names import named_like_places
from sortal.images.decoding import DIGEST_SIZE, FACTS, Quarantined
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.store.pixel_store import PixelStore
from sortal.system.gathering import gathered
from sortal.system.progress import Runtime
from sortal.system.workers import JsonObject, PathOrPixels, WorkItem, run_workers

TINY_BELOW = 32  # an image with a shorter side below this is tiny

DuplicateKind = Literal["two labels", "labelled and unlabelled", "same"]  # the worst first
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class ClassCount:
    """The number of images of a class, and of unreadable ones among them; the name of the unlabelled is None."""

    name: str | None
    images: int
    unreadable: int


@dataclass(frozen=True, kw_only=True)
class Duplicates:
    """A group of images that are equal, or nearly: their files and labels, and whether the labels agree."""

    kind: DuplicateKind
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
    like_places: tuple[str, ...] = ()  # classes named like cameras, stations or days, if most are
    groups: int = 0  # that were given, of two or more images
    grouped: int = 0  # images in them

    @property
    def contradictions(self) -> int:
        """The number of images found under two labels."""
        return sum(group.kind == "two labels" for group in self.duplicates)


def check(
    images: ImageSet, *, tiny: int = TINY_BELOW, max_pixels: int = MAX_PIXELS, runtime: Runtime = Runtime()
) -> Health:
    """Check images by reading every file once, at reduced size; nothing is written."""
    for name, value in (("tiny", tiny), ("max_pixels", max_pixels)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    n = len(images)
    digests, facts, unreadable = np.zeros(n, f"S{DIGEST_SIZE}"), np.zeros(n, FACTS), dict[int, Quarantined]()
    thumbnails = np.zeros((n, near.LENGTH), np.uint8) if n <= near.MOST_THUMBNAILS else None
    items = (WorkItem(row, images.source(row)) for row in range(n))
    with closing(run_workers(examine, items, options={"max_pixels": max_pixels}, workers=runtime.workers)) as results:
        for done, (row, found) in enumerate(results, start=1):
            if "reason" in found:
                unreadable[row] = Quarantined(images.files[row], found["reason"], found["detail"])
            else:
                digests[row], facts[row] = found["digest"], tuple(found["facts"])
                if thumbnails is not None:
                    thumbnails[row] = np.frombuffer(base64.b64decode(found["thumbnail"]), np.uint8)
            runtime.progress("Checking images", done, n)
    quarantine = tuple(unreadable[row] for row in sorted(unreadable))
    return _health(images, digests, facts, thumbnails, quarantine, tiny, runtime)


def contradictory(labels: NDArray[np.int64], digests: NDArray[np.bytes_]) -> list[list[int]]:
    """Return groups of labelled images (n,) that have one content, but not one label."""
    groups = ([row for row in rows if labels[row] >= 0] for digest, rows in _places(digests.tolist()).items() if digest)
    return [rows for rows in groups if len({*labels[rows].tolist()}) > 1]


def check_stored(images: ImageSet, store: PixelStore, *, runtime: Runtime = Runtime()) -> Health:
    """Check images by what packing them found out; no file is opened."""
    thumbnails = store.thumbnails() if len(images) <= near.MOST_THUMBNAILS else None
    return _health(images, store.digests, store.facts, thumbnails, store.quarantine, TINY_BELOW, runtime)


def examine(source: PathOrPixels, options: JsonObject) -> JsonObject:
    """Decode an image at reduced size and return the facts about it: what a worker does."""
    data = decoding.read(source) if isinstance(source, str) else source
    picture = decoding.decode(data, shorter_side=2 * near.SIDE, max_pixels=options["max_pixels"])
    # Images that cannot be stored at full size would be left out of every run.
    decoding.check_resized(picture.width, picture.height, decoding.SHORTER_SIDE, options["max_pixels"])
    thumbnail = base64.b64encode(near.thumbnail(picture.rgb)).decode()
    return {"digest": decoding.digest(data), "facts": picture.facts, "thumbnail": thumbnail}


def _health(
    images: ImageSet,
    digests: NDArray[np.bytes_],
    facts: NDArray[np.void],
    thumbnails: NDArray[np.uint8] | None,
    unreadable: tuple[Quarantined, ...],
    tiny: int,
    runtime: Runtime,
) -> Health:
    """Derive the findings from what is known of each row; unreadable ones have the digest b""."""
    rows_of = _places(digests.tolist())
    lost = rows_of.pop(b"", [])
    same = list(rows_of.values())
    shorter = np.minimum(facts["width"], facts["height"])
    alike = None if thumbnails is None else _groups(images, _near(same, thumbnails, shorter, runtime))

    sizes = Moments.grouped(images.groups).sizes

    def count(labels: NDArray[np.int64]) -> list[int]:
        return [int(n) for n in np.roll(np.bincount(labels + 1, minlength=len(images.classes) + 1), -1)]

    counts = zip((*images.classes, None), count(images.labels), count(images.labels[lost]), strict=True)
    spelt = _places(" ".join(name.casefold().replace("_", " ").split()) for name in images.classes)
    return Health(
        images=len(images),
        labelled=int((images.labels >= 0).sum()),
        classes=tuple(ClassCount(name=name, images=n, unreadable=bad) for name, n, bad in counts),
        alike_names=tuple(tuple(images.classes[i] for i in group) for group in spelt.values() if len(group) > 1),
        unreadable=unreadable,
        duplicates=_groups(images, same),
        near_duplicates=alike,
        tiny=tuple(compress(images.files, (shorter < tiny) & (shorter > 0))),
        rotated=tuple(compress(images.files, facts["rotated"])),
        deep=tuple(compress(images.files, facts["bits"] > 8)),
        ignored=images.ignored,
        like_places=named_like_places(images.classes),
        groups=int((sizes > 1).sum()),
        grouped=int(sizes[sizes > 1].sum()),
    )


def _places(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Return where each key occurs, counted from 0."""
    return gathered((key, place) for place, key in enumerate(keys))


def _groups(images: ImageSet, groups: Iterable[Sequence[int]]) -> tuple[Duplicates, ...]:
    """Describe the groups of two and more rows, the worst kind first, then in row order."""

    def describe(rows: Sequence[int]) -> Duplicates:
        labels = tuple(images.classes[label] if label >= 0 else None for label in images.labels[list(rows)])
        known = len({label for label in labels if label is not None})
        kind: DuplicateKind = (
            "two labels" if known > 1 else "labelled and unlabelled" if known and None in labels else "same"
        )
        return Duplicates(kind=kind, files=tuple(images.files[row] for row in rows), labels=labels)

    several = sorted(sorted(rows) for rows in groups if len(rows) > 1)
    return tuple(sorted(map(describe, several), key=lambda group: get_args(DuplicateKind).index(group.kind)))


def _near(
    same: Sequence[Sequence[int]], thumbnails: NDArray[np.uint8], shorter: NDArray[np.int32], runtime: Runtime
) -> Iterable[list[int]]:
    """Return groups of rows that look alike but differ in content. Images smaller than a thumbnail are left out."""
    large = [rows for rows in same if shorter[rows[0]] >= near.SIDE]
    firsts = [rows[0] for rows in large]
    leaders = near.leaders(thumbnails[firsts], partial(runtime.progress, "Comparing images"))
    groups = _places(leaders.tolist()).values()
    return [[row for place in group for row in large[place]] for group in groups if len(group) > 1]
