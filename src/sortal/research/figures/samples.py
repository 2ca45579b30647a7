"""What figures read from a run: classes, a sample, pixels, and the backbone before and after training."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from sortal.errors import InputError, listing
from sortal.images.decoding import DIGEST_SIZE
from sortal.images.exported import NO_CATEGORY
from sortal.images.store.index import Index
from sortal.images.store.packing import Settings, pack
from sortal.images.store.pixel_store import PixelStore, open_store
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.views import splitmix64
from sortal.research.figures.style import LeftOutError
from sortal.runs.categories import known_names
from sortal.runs.run import INITIAL, LABELLED, MODEL, Run
from sortal.system.progress import Runtime
from sortal.system.regular_files import openable
from sortal.system.text import plural

HALVES = (slice(0, DIGEST_SIZE // 2), slice(DIGEST_SIZE // 2, DIGEST_SIZE))  # of a hexadecimal digest, 64 bits each
UNTRAINED = "This run did not train its backbone."
FORGOTTEN = f"The run's folder does not have the weights from before training ({INITIAL})."


@dataclass(frozen=True, kw_only=True, eq=False)
class RunClasses:
    """The class of each image: its true class if known, else its label, else the category that was predicted."""

    names: tuple[str, ...]
    old: NDArray[np.bool_]  # (n,) whether the class has labels
    predicted: NDArray[np.bool_]  # (n,) whether it was predicted
    meaning: str  # what they are, for a caption


def classes_of(run: Run) -> RunClasses:
    a, categories = run.assignments, run.names
    old = {*known_names(run.categories)}
    pairs = zip(a.truth, a.category_id.tolist(), strict=True)
    names = tuple(t if t is not None else categories.get(j, NO_CATEGORY) for t, j in pairs)
    known = np.array([t is not None for t in a.truth], dtype=bool)
    free = a.status != LABELLED
    if not (free & ~known).any():
        meaning = "true class"
    else:
        meaning = "true class if known, else predicted category" if known[free].any() else "label or predicted category"
    of_old = np.array([name in old for name in names], dtype=bool)
    return RunClasses(names=names, old=of_old, predicted=free & ~known, meaning=meaning)


def writable_cache(run: Run, cache: Path | None) -> Path | None:
    """Return the cache, by default the run's; None if it is read-only."""
    place = cache or run.cache
    return place if os.access(place if place.exists() else run.folder, os.W_OK) else None


def sampling_order(run: Run, seed: int) -> NDArray[np.int64]:
    """Return all rows, (n,), in a random order that depends on the seed and the contents of the images only."""
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise InputError(f"seed must be from 0 to 2**32 - 1, got {seed!r}.")
    contents = run.assignments.contents
    first, second = (np.array([int(each[half], 16) for each in contents], dtype=np.uint64) for half in HALVES)
    return np.argsort(splitmix64(splitmix64(first) ^ second ^ splitmix64(np.uint64(seed))), kind="stable")


def load_pixels(run: Run, rows: NDArray[np.int64], cache: Path | None, *, runtime: Runtime) -> PixelStore:
    """Load the pixels of some images of a run, one row each: from the cache or, where they are missing, from the files.

    By default, the cache is the run's. Images are found by content, so a file that has changed since is not taken for
    the image that was sorted.
    """
    facts = run.facts
    if facts.features is not None:
        raise LeftOutError("The run was made of feature vectors, not of images.")
    settings = Settings.of(facts.backbone, facts.settings.max_pixels)
    home = (cache or run.cache) / "pixels" / settings.key
    contents = [run.assignments.contents[row] for row in rows.tolist()]
    try:
        missing = _missing(contents, Index(home))
        if missing:
            wanted = np.isin(np.arange(len(run.assignments)), rows[missing])
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


def trained_backbone(run: Run) -> Backbone:
    """Load the backbone of a run, on the CPU."""
    try:
        return load_backbone(str(run.folder / f"{MODEL}.json"))
    except InputError as error:
        raise LeftOutError(str(error)) from error


def why_untrained_missing(run: Run) -> str:
    """Return why the backbone from before training is unavailable; empty if it is available."""
    if (run.folder / INITIAL).is_file():
        return ""
    return UNTRAINED if run.facts.training is None else FORGOTTEN


@torch.no_grad()
def untrained_backbone(run: Run, after: Backbone | None = None) -> Backbone:
    """Load the backbone from before training, on the CPU; `after` is the trained one, if it is loaded already."""
    if missing := why_untrained_missing(run):
        raise LeftOutError(missing)
    path = run.folder / INITIAL
    before = trained_backbone(run) if after is None else copy.deepcopy(after)
    trained = {name: value for name, value in before.named_parameters() if value.requires_grad}
    try:
        with openable(path) as name:
            initial = load_file(name)
        if {name: value.shape for name, value in initial.items()} != {name: trained[name].shape for name in trained}:
            raise ValueError("it does not have the names and shapes of the trained parameters")
        for name, value in trained.items():
            value.copy_(initial[name])
    except (OSError, ValueError, SafetensorError, MemoryError) as error:  # the last where the file claims more
        raise LeftOutError(
            f"{str(path)!r} is damaged: {error}. Repeat the command that made the run, overwriting it."
        ) from error
    before.source = f"{before.source}, before training"
    return before
