"""Attention: where each head of the last block looks before and after training, and how narrowly."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from sortal.config import AUTO
from sortal.errors import InputError, listing, quoted
from sortal.learning import views
from sortal.learning.backbones.backbone import Backbone
from sortal.research.figures import attention_grid, samples
from sortal.research.figures.samples import classes_of, load_pixels, sampling_order
from sortal.research.figures.style import LeftOutError
from sortal.runs.image_folders import paths_of
from sortal.runs.run import LABELLED, Run
from sortal.system.device import choose_device
from sortal.system.progress import Progress

SAMPLED = 3  # images of old classes, and as many of new ones, unless some are named
MOST = 12  # images on a page
SEARCHED = 10_000  # names to search for one like a misspelt one

logger = logging.getLogger(__name__)


def focus_score(maps: ArrayLike) -> NDArray[np.float64]:
    """Measure how narrowly attention is focused, (..., rows, columns) -> (...): 0 if it is uniform, 1 if on one patch.

    1 − H / log P, where H is the entropy of a map of P patches, scaled to sum to 1: a head that attends equally to m
    patches and to no others scores 1 − log m / log P. It does not tell whether these are the right patches. NaN for a
    map of zeros and for a single patch.
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
    """Show where the class token looks in the last block, head by head, before training above after it.

    Shows the named images or, by default, three of old and three of new classes, sampled by seed and content,
    unlabelled ones first. Each map is scaled to its maximum and has its `focus_score` above it; each head has the mean.
    Without weights from before training, shows one row and says so in a note.
    """
    rows = np.array(sample_rows(run, seed) if images is None else find_rows(run, images), dtype=np.int64)
    after, missing = samples.trained_backbone(run), samples.why_untrained_missing(run)
    if type(after).attention is Backbone.attention:
        raise LeftOutError(f"{after.spec.name} has no class token, so it has no attention to show.")
    states = [after] if missing else [samples.untrained_backbone(run, after), after]
    store = load_pixels(run, rows, workers=workers, on_progress=on_progress)
    on_progress("Computing attention", 0, 0)
    crops = views.centre_crops(store, np.arange(len(store)), size=after.spec.image_size)
    pixels = store.crops(crops.rows, crops.tops, crops.lefts, after.spec.image_size)  # (n, size, size, 3)
    if missing:
        on_note(f"Attention is shown after training only. {missing}")
    maps = np.stack([_maps(each, pixels, device) for each in states], axis=1)  # (n, states, heads, rows, columns)
    classes = classes_of(run)
    subjects = [
        attention_grid.Subject(classes.names[row], bool(classes.old[row]), run.assignments.files[row])
        for row in rows.tolist()
    ]
    return attention_grid.draw(pixels, maps, focus_score(maps), subjects, missing)


def find_rows(run: Run, names: Sequence[str]) -> list[int]:
    """Return the rows of images, given by their names in the run or by their paths."""
    if isinstance(names, str) or not 0 < len(names) <= MOST:
        got = quoted(names) if isinstance(names, str) else f"{len(names):,}"
        raise InputError(f"images must be a list of 1 to {MOST} file names of the run, got {got}.")
    rows: dict[str, list[int]] = {}
    for row, file in enumerate(run.assignments.files):
        rows.setdefault(file, []).append(row)
    if not all(name in rows for name in names):
        by_path = {path: row for row, path in enumerate(paths_of(run))}
        rows = {name: [by_path[at]] for name in names if (at := os.path.abspath(name)) in by_path} | rows
    if unknown := [name for name in names if name not in rows]:
        have = run.assignments.files[:SEARCHED]
        like = (get_close_matches(str(unknown[0]), have, n=1) or have)[0]
        raise InputError(
            f"images must be file names of the run, as in its assignments.csv, got {listing(unknown)}. "
            f"Use names such as {quoted(like)}."
        )
    return list(dict.fromkeys(row for name in names for row in rows[name]))


def sample_rows(run: Run, seed: int) -> list[int]:
    """Return the rows of a few images of old and of new classes, no class twice before every class was shown."""
    classes, labelled = classes_of(run), run.assignments.status == LABELLED
    chosen: list[int] = []
    for kind in (True, False):
        times: Counter[str] = Counter()
        earlier: dict[int, int] = {}  # images of the same class before each row
        rows = [row for row in sampling_order(run, seed).tolist() if classes.old[row] == kind]
        for row in sorted(rows, key=labelled.item):
            earlier[row] = times[classes.names[row]]
            times[classes.names[row]] += 1
        chosen += sorted(earlier, key=earlier.__getitem__)[:SAMPLED]
    return chosen


def _maps(backbone: Backbone, pixels: NDArray[np.uint8], device: str) -> NDArray[np.float64]:
    """Compute maps, (n, heads, rows, columns), in float32; one image at a time to save memory."""
    on = backbone.to(choose_device(device, None))
    try:
        maps = [on.attention(on.normalise(torch.from_numpy(image[None]).to(on.device))).cpu() for image in pixels]
    except InputError as error:
        raise LeftOutError(str(error)) from error
    return torch.cat(maps).double().numpy()
