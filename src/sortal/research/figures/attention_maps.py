"""Attention: where each head of the last block looks, before training and after it, and how focused it is."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from sortal import views
from sortal.config import AUTO
from sortal.errors import InputError, listing, quoted
from sortal.figures import grid
from sortal.figures.backbones import backbones
from sortal.figures.images import classes_of, drawn_order, stored
from sortal.figures.paper import LeftOutError
from sortal.inputs import choose_device
from sortal.network import Backbone
from sortal.run import LABELLED, Run
from sortal.store import PixelStore
from sortal.workers import Progress

SAMPLED = 3  # images of old classes, and as many of new ones, where none are named
MOST = 12  # images that can be named: more make no page
SEARCHED = 10_000  # names that are looked through for one like a wrong one

logger = logging.getLogger(__name__)


def focus(maps: ArrayLike) -> NDArray[np.float64]:
    """How focused attention is, (..., rows, columns) -> (...): 0 when all patches get the same, 1 when one gets all.

    1 − H / log P, with H the entropy of a map scaled to sum to 1, over its P patches: a head that looks at m patches
    alike and at no others has 1 − log m / log P. It says how narrowly a head looks, not whether at the right place.
    NaN where it is not defined: for a map that is all 0, and for a single patch.
    """
    a = np.asarray(maps, dtype=np.float64)
    flat = a.reshape(*a.shape[:-2], -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = flat / flat.sum(axis=-1, keepdims=True)
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)
        found = 1 - entropy / np.log(flat.shape[-1])
    return np.clip(np.where(np.isfinite(found), found, np.nan), 0, 1)


def attention(
    run: Run,
    *,
    images: Sequence[str] | None = None,
    seed: int = 0,
    device: str = AUTO,
    workers: int | None = None,
    on_progress: Progress = lambda *_: None,
    on_note: Callable[[str], None] = logger.info,
) -> Figure:
    """Where the class token looks in the last block, head by head, before training above after it.

    For the images of these names or, without any, for three of old and three of new classes, drawn by seed and content,
    those without a label first. A map goes from 0 to its own largest value, with its `focus` above it; above a head is
    the mean of these. Where there is nothing from before training, there is one row, and that is noted.
    """
    rows = np.array(sampled(run, seed) if images is None else named(run, images), dtype=np.int64)
    both = backbones(run)
    if type(both.after).attention is Backbone.attention:
        raise LeftOutError(f"{both.after.spec.name} has no class token, so there is no attention to show.")
    store = stored(run, rows, workers=workers, on_progress=on_progress)
    on_progress("Looking where heads look", 0, 0)
    pixels = _middles(store, both.after.spec.image_size)
    maps = [_maps(both.after, pixels, device)]
    if both.before is None:
        on_note(f"Attention is shown once. {both.lacking}")
    else:
        maps = [_maps(both.before, pixels, device), *maps]
    classes = classes_of(run)
    subjects = [
        grid.Subject(classes.names[row], bool(classes.old[row]), run.assignments.files[row]) for row in rows.tolist()
    ]
    together = np.stack(maps, axis=1)  # (n, states, heads, rows, columns)
    return grid.draw(pixels, together, focus(together), subjects, both.lacking)


def named(run: Run, names: Sequence[str]) -> list[int]:
    """The rows of images by the names that they have in the run, or by their paths."""
    if isinstance(names, str) or not 0 < len(names) <= MOST:
        got = quoted(names) if isinstance(names, str) else f"{len(names):,}"
        raise InputError(f"images must be a list of 1 to {MOST} file names of the run, got {got}.")
    rows: dict[str, list[int]] = {}
    for row, file in enumerate(run.assignments.files):
        rows.setdefault(file, []).append(row)
    if not all(name in rows for name in names):
        rows = {**_by_path(run, names), **rows}
    if unknown := [name for name in names if name not in rows]:
        have = run.assignments.files[:SEARCHED]
        like = (get_close_matches(str(unknown[0]), have, n=1) or have)[0]
        raise InputError(
            f"images must be file names of the run, as its assignments.csv has them, got {listing(unknown)}. "
            f"There is {quoted(like)}, for example."
        )
    return list(dict.fromkeys(row for name in names for row in rows[name]))


def _by_path(run: Run, names: Sequence[str]) -> dict[str, list[int]]:
    try:
        places = {os.path.abspath(path): row for row, path in enumerate(run.paths())}
    except InputError:  # images of an array lie nowhere
        return {}
    return {name: [places[at]] for name in names if (at := os.path.abspath(name)) in places}


def sampled(run: Run, seed: int) -> list[int]:
    """Rows of a few images of old and a few of new classes: no class twice while there are others."""
    classes, labelled = classes_of(run), run.assignments.status == LABELLED
    chosen: list[int] = []
    for kind in (True, False):
        times: Counter[str] = Counter()
        turns: list[tuple[int, int, int]] = []  # how often the class was there before, the place in the order, the row
        rows = sorted((row for row in drawn_order(run, seed).tolist() if classes.old[row] == kind), key=labelled.item)
        for row in rows:
            turns.append((times[classes.names[row]], len(turns), row))
            times[classes.names[row]] += 1
        chosen += [row for _, _, row in sorted(turns)[:SAMPLED]]
    return chosen


def _middles(store: PixelStore, size: int) -> NDArray[np.uint8]:
    """What the backbone is shown of each image, (n, size, size, 3)."""
    crops = views.centre(store, np.arange(len(store)), size=size)
    return store.crops(crops.rows, crops.tops, crops.lefts, size)


def _maps(backbone: Backbone, pixels: NDArray[np.uint8], device: str) -> NDArray[np.float64]:
    """(n, heads, rows, columns), in float32 wherever it is computed; one by one, for heads of large networks."""
    on = backbone.to(choose_device(device, None))
    try:
        maps = [on.attention(on.normalise(torch.from_numpy(image[None]).to(on.device))).cpu() for image in pixels]
    except InputError as error:
        raise LeftOutError(str(error)) from error
    return torch.cat(maps).double().numpy()
