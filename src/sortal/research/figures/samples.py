"""The images of a run that figures show: their classes, the order they are sampled in, and their pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, listing
from sortal.images.decoding import DIGEST
from sortal.images.store.index import Index
from sortal.images.store.packing import Settings, pack
from sortal.images.store.pixel_store import PixelStore, open_store
from sortal.learning.views import splitmix64
from sortal.research.figures.style import LeftOutError
from sortal.runs.run import LABELLED, Run
from sortal.system.progress import Runtime
from sortal.system.text import plural

HALVES = (slice(0, DIGEST // 2), slice(DIGEST // 2, DIGEST))  # of a hexadecimal digest, 64 bits each


@dataclass(frozen=True, kw_only=True, eq=False)
class Classes:
    """The class of each image: its true class if known, else its category."""

    names: tuple[str, ...]
    old: NDArray[np.bool_]  # (n,) whether the class has labels
    meaning: str  # which of the two they are, for a caption


def classes_of(run: Run) -> Classes:
    a, categories = run.assignments, run.names
    old = known_names(run)
    names = tuple(t if t is not None else categories[j] for t, j in zip(a.truth, a.category.tolist(), strict=True))
    known = np.array([t is not None for t in a.truth], dtype=bool)
    if known.all():
        meaning = "true class"
    else:
        meaning = "true class if known, else category" if known[a.status != LABELLED].any() else "category"
    return Classes(names=names, old=np.array([name in old for name in names], dtype=bool), meaning=meaning)


def known_names(run: Run) -> set[str]:
    """Return the names of the known categories."""
    return {category.name for category in run.categories if category.kind == "known"}


def writable_cache(run: Run) -> Path | None:
    """Return the run's cache; None if the run is read-only."""
    return run.cache if os.access(run.cache if run.cache.exists() else run.folder, os.W_OK) else None


def sampling_order(run: Run, seed: int) -> NDArray[np.int64]:
    """Return all rows, (n,), in a random order that depends on the seed and the contents of the images only."""
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"seed must be from 0 to 2**32 - 1, got {seed!r}.")
    contents = run.assignments.contents
    first, second = (np.array([int(each[half], 16) for each in contents], dtype=np.uint64) for half in HALVES)
    return np.argsort(splitmix64(splitmix64(first) ^ second ^ splitmix64(np.uint64(seed))), kind="stable")


def load_pixels(run: Run, rows: NDArray[np.int64], *, runtime: Runtime) -> PixelStore:
    """Load the pixels of some images of a run, one row each: from its cache, which may outlive the files, or the files.

    Images are found by content, so a file that has changed since is not taken for the image that was sorted.
    """
    settings = Settings(shorter_side=run.facts.backbone.shorter_side)
    home = run.cache / "pixels" / settings.key
    contents = [run.assignments.contents[row] for row in rows.tolist()]
    try:
        missing = _missing(contents, Index(home))
        if missing:
            wanted = np.zeros(len(run.assignments), dtype=bool)
            wanted[rows[missing]] = True
            pack(run.images().select(wanted), home.parent, settings=settings, runtime=runtime)
    except InputError as error:
        raise LeftOutError(f"The pixels of the images are unavailable: {error}") from error
    index = Index(home)
    if missing := _missing(contents, index):
        files = listing([run.assignments.files[row] for row in rows[missing].tolist()])
        raise LeftOutError(
            f"The pixels of {plural(len(missing), 'image')} are neither in the run's folder nor in an unchanged file: "
            f"{files}. Restore the files."
        )
    return open_store(index, contents)


def _missing(contents: Sequence[str], index: Index) -> list[int]:
    return [at for at, content in enumerate(contents) if content not in index.stored]
