"""The images of a run that figures show: their classes, an order to draw samples in, and their pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal import segments
from sortal.errors import InputError, listing
from sortal.figures.paper import LeftOutError
from sortal.packing import Settings, pack
from sortal.pixels import DIGEST
from sortal.report.words import plural
from sortal.run import LABELLED, Run
from sortal.store import PixelStore, opened
from sortal.views import mixed
from sortal.workers import Progress

HALVES = (slice(0, DIGEST // 2), slice(DIGEST // 2, DIGEST))  # of a digest, each a number of 64 bits


@dataclass(frozen=True, kw_only=True, eq=False)
class Classes:
    """What every image is of: its true class where that is known, else its category."""

    names: tuple[str, ...]
    old: NDArray[np.bool_]  # (n,) whether that is a class that has labels
    said: str  # which of the two it is, in words


def classes_of(run: Run) -> Classes:
    a, categories = run.assignments, run.names
    old = old_names(run)
    names = tuple(t if t is not None else categories[j] for t, j in zip(a.truth, a.category.tolist(), strict=True))
    known = np.array([t is not None for t in a.truth], dtype=bool)
    if known.all():
        said = "true class"
    else:
        said = "true class where it is known, else category" if known[a.status != LABELLED].any() else "category"
    return Classes(names=names, old=np.array([name in old for name in names], dtype=bool), said=said)


def old_names(run: Run) -> set[str]:
    """The classes that have labels."""
    return {category.name for category in run.categories if category.kind == "known"}


def cache_of(run: Run) -> Path | None:
    """Where what is computed is kept, so that it is not computed twice; none where the run may only be read."""
    return run.cache if os.access(run.cache if run.cache.exists() else run.folder, os.W_OK) else None


def drawn_order(run: Run, seed: int) -> NDArray[np.int64]:
    """All rows in a random order, (n,), that follows from the seed and from what the images show, not from names."""
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"seed must be from 0 to 2**32 - 1, got {seed!r}.")
    contents = run.assignments.contents
    first, second = (np.array([int(each[half], 16) for each in contents], dtype=np.uint64) for half in HALVES)
    return np.argsort(mixed(mixed(first) ^ second ^ mixed(np.uint64(seed))), kind="stable")


def stored(run: Run, rows: NDArray[np.int64], *, workers: int | None, on_progress: Progress) -> PixelStore:
    """The pixels of some images of a run, one row each: what its folder has, also of files that are gone, then files.

    They are found by content, so a file that was changed since does not pass for the image that was sorted.
    """
    settings = Settings(shorter_side=run.about["backbone"]["shorter_side"])
    home = run.cache / "pixels" / settings.key
    contents = [run.assignments.contents[row] for row in rows.tolist()]
    try:
        missing = _missing(contents, segments.places(home))
        if missing:
            wanted = np.zeros(len(run.assignments), dtype=bool)
            wanted[rows[missing]] = True
            pack(run.images().select(wanted), home.parent, settings=settings, workers=workers, on_progress=on_progress)
    except InputError as error:
        raise LeftOutError(f"The pixels of its images are not to be had: {error}") from error
    if missing := _missing(contents, segments.places(home)):
        files = listing([run.assignments.files[row] for row in rows[missing].tolist()])
        raise LeftOutError(
            f"Of {plural(len(missing), 'image')} there are no pixels, neither in the run's folder nor in an unchanged "
            f"file: {files}. Put the files back."
        )
    return opened(home, contents)


def _missing(contents: Sequence[str], places: dict[str, segments.Place]) -> list[int]:
    return [at for at, content in enumerate(contents) if content not in places or not places[content].mark]
