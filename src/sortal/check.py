"""A health check of images: what cannot be read, what is there twice, and what will look odd to a model."""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sortal import pixels
from sortal.errors import InputError
from sortal.images import ImageSet, Source
from sortal.pixels import Quarantined
from sortal.workers import Job, Values, run

TINY = 32  # a shorter side below this is tiny
SIDE = 16  # near-duplicates are told by thumbnails of this many pixels a side, in grey
ALIKE = 0.985  # by their correlation; recompressed, resized and brightened copies lie above it
BLOCK = 2**24  # correlations held at a time

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
    unreadable: tuple[Quarantined, ...]
    duplicates: tuple[Duplicates, ...]  # by content, the worst first
    near_duplicates: tuple[Duplicates, ...]  # by looks, the worst first
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
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Health:
    """Read every image once and report; nothing is written. `on_progress` gets how many are done, of how many."""
    for name, value in (("tiny", tiny), ("max_pixels", max_pixels)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    jobs = (Job(row, images.source(row)) for row in range(len(images)))
    results: dict[int, Values] = {}
    for row, result in run(examine, jobs, options={"max_pixels": max_pixels}, workers=workers):
        results[row] = result
        on_progress(len(results), len(images))
    found = [results[row] for row in range(len(images))]
    read = [row for row, result in enumerate(found) if "reason" not in result]

    def files(wanted: Callable[[Values], bool]) -> tuple[str, ...]:
        return tuple(images.files[row] for row in read if wanted(found[row]))

    contents: dict[str, list[int]] = {}
    for row in read:
        contents.setdefault(found[row]["digest"], []).append(row)
    return Health(
        images=len(images),
        labelled=int((images.labels >= 0).sum()),
        classes=_counts(images, np.array(["reason" in result for result in found])),
        unreadable=tuple(
            Quarantined(images.files[row], result["reason"], result["detail"])
            for row, result in enumerate(found)
            if "reason" in result
        ),
        duplicates=_groups(images, contents.values()),
        near_duplicates=_groups(images, _alike(contents, found)),
        tiny=files(lambda result: min(result["width"], result["height"]) < tiny),
        rotated=files(lambda result: bool(result["rotated"])),
        deep=files(lambda result: result["bits"] > 8),
        ignored=images.ignored,
    )


def examine(source: Source, options: Values) -> Values:
    """A worker's task: decode an image at small size and say what it is like."""
    data = pixels.read(source) if isinstance(source, str) else source
    picture = pixels.decode(data, shorter_side=2 * SIDE, max_pixels=options["max_pixels"])
    small = Image.fromarray(picture.rgb).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return {
        "digest": pixels.digest(data),
        "width": picture.width,
        "height": picture.height,
        "bits": picture.bits,
        "rotated": picture.rotated,
        "small": base64.b64encode(small.tobytes()).decode(),
    }


def _counts(images: ImageSet, unreadable: NDArray[np.bool_]) -> tuple[ClassCount, ...]:
    def count(labels: NDArray[np.int64]) -> list[int]:
        unlabelled, *known = np.bincount(labels + 1, minlength=len(images.classes) + 1).tolist()
        return [*known, unlabelled]

    columns = zip((*images.classes, None), count(images.labels), count(images.labels[unreadable]), strict=True)
    return tuple(ClassCount(name=name, images=there, unreadable=bad) for name, there, bad in columns)


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


def _alike(contents: dict[str, list[int]], found: Sequence[Values]) -> list[list[int]]:
    """Rows in groups of contents that look alike, each linked to another of its group by a correlation above ALIKE."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # An image smaller than the thumbnail has too few pixels to tell it from its like.
    rows = [rows for rows in contents.values() if min(found[rows[0]]["width"], found[rows[0]]["height"]) >= SIDE]
    if not rows:
        return []
    small = np.stack([np.frombuffer(base64.b64decode(found[first]["small"]), dtype=np.uint8) for first, *_ in rows])
    x = small.astype(np.float32)
    x -= x.mean(axis=1, keepdims=True)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)  # an image of one colour is like no other
    group = np.arange(len(x))
    step = max(1, BLOCK // len(x))
    for start in range(0, len(x), step):
        left, right = np.nonzero(x[start : start + step] @ x[start:].T > ALIKE)
        left, right = group[left + start], group[right + start]
        apart = left != right
        links = coo_array((np.ones(apart.sum(), bool), (left[apart], right[apart])), shape=(len(x), len(x)))
        group = connected_components(links, directed=False)[1][group] if apart.any() else group
    members: dict[int, list[int]] = {}
    for content, number in zip(rows, group.tolist(), strict=True):
        members.setdefault(number, []).extend(content)
    looks = np.bincount(group)
    return [found_rows for number, found_rows in members.items() if looks[number] > 1]
