"""Attention: where each head of the last block looks before and after training, how narrowly, and a page of maps."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from sortal.errors import InputError, listing, quoted
from sortal.exchange.format import paths_of
from sortal.learning import views
from sortal.learning.backbones.backbone import Backbone
from sortal.research.figures import samples, style
from sortal.research.figures.samples import classes_of, load_pixels, sampling_order
from sortal.runs.run import LABELLED, Run
from sortal.system.device import choose_device
from sortal.system.progress import Runtime

EACH_KIND = 3  # images of old classes, and as many of new ones, unless some are named
MOST_IMAGES = 12  # on a page
STATE_NAMES = ("before", "after")
SUBJECT_LENGTH = 14  # characters of a name next to a picture
# Inches: the side of a map, between maps, and around them
CELL, GAP, MAP_TITLE, STATE_WIDTH = 0.56, 0.03, 0.125, 0.22
PAGE_MARGIN, WORDS_WIDTH, HEAD_NAMES, CAPTION = 0.08, 1.05, 0.38, 0.45
LEAST_WIDTH = 6.0  # for the caption
PITCH = MAP_TITLE + CELL + GAP  # from one map to the one below
INK = to_rgb("#b2182b")
HEAT = LinearSegmentedColormap.from_list("attention", [(*INK, 0.0), (*INK, 1.0)])  # shows the image below
SHARPEST = 112  # pixels of the side of a picture below a map, which keeps files small
GREY_RANGE = (-400, 255)  # the levels drawn as black and white, which makes a picture pale


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
    cache: Path | None = None,
    runtime: Runtime = Runtime(),
) -> Figure:
    """Show where the class token looks in the last block, head by head, before training above after it.

    Shows the named images or, by default, three of old and three of new classes, sampled by seed and content,
    unlabelled ones first. Each map is scaled to its maximum and has its `focus_score` above it; each head has the mean.
    Without weights from before training, shows one row and says so in a note. `cache` holds pixels, by default that of
    the run.
    """
    rows = np.array(sample_rows(run, seed) if images is None else find_rows(run, images), dtype=np.int64)
    after, missing = samples.trained_backbone(run), samples.why_untrained_missing(run)
    if type(after).attention is Backbone.attention:
        raise style.LeftOutError(f"{after.spec.name} has no class token, so it has no attention to show.")
    states = [after] if missing else [samples.untrained_backbone(run, after), after]
    store = load_pixels(run, rows, cache, runtime=runtime)
    runtime.progress("Computing attention", 0, 0)
    crops = views.centre_crops(store, np.arange(len(store)), size=after.spec.image_size)
    pixels = store.crops(crops.rows, crops.tops, crops.lefts, after.spec.image_size)  # (n, size, size, 3)
    if missing:
        runtime.note(f"Attention is shown after training only. {missing}")
    maps = np.stack([_maps(each, pixels, runtime.device) for each in states], axis=1)
    classes, files = classes_of(run), run.assignments.files
    subjects = [
        Subject(classes.names[row], bool(classes.old[row]), bool(classes.predicted[row]), files[row])
        for row in rows.tolist()
    ]
    return draw_page(pixels, maps, subjects, missing)


def find_rows(run: Run, names: Sequence[str]) -> list[int]:
    """Return the rows of images, given by their names in the run or by their paths."""
    if isinstance(names, str) or not 0 < len(names) <= MOST_IMAGES:
        got = quoted(names) if isinstance(names, str) else f"{len(names):,}"
        raise InputError(f"images must be a list of 1 to {MOST_IMAGES} file names of the run, got {got}.")
    files = run.assignments.files
    rows = {name: [row for row, file in enumerate(files) if file == name] for name in names}
    if not all(rows.values()):
        by_path = {path: row for row, path in enumerate(paths_of(run))}
        rows |= {name: [by_path[at]] for name in names if not rows[name] and (at := os.path.abspath(name)) in by_path}
    if unknown := [name for name in names if not rows[name]]:
        raise InputError(
            f"images must be file names of the run, as in its assignments.csv, got {listing(unknown)}. "
            f"Use names such as {quoted(files[0])}."
        )
    return list(dict.fromkeys(row for name in names for row in rows[name]))


def sample_rows(run: Run, seed: int) -> list[int]:
    """Return the rows of a few images of old and of new classes, each class once before any is repeated."""
    classes, labelled = classes_of(run), run.assignments.status == LABELLED
    chosen: list[int] = []
    for kind in (True, False):
        times: Counter[str] = Counter()
        earlier: dict[int, int] = {}  # images of the same class before each row
        rows = [row for row in sampling_order(run, seed).tolist() if classes.old[row] == kind]
        for row in sorted(rows, key=labelled.item):
            earlier[row] = times[classes.names[row]]
            times[classes.names[row]] += 1
        chosen += sorted(earlier, key=earlier.__getitem__)[:EACH_KIND]
    return chosen


def _maps(backbone: Backbone, pixels: NDArray[np.uint8], device: str) -> NDArray[np.float64]:
    """Compute maps, (n, heads, rows, columns), in float32; one image at a time to save memory."""
    on = backbone.to(choose_device(device, None))
    try:
        maps = [on.attention(on.normalise(torch.from_numpy(image[None]).to(on.device))).cpu() for image in pixels]
    except InputError as error:
        raise style.LeftOutError(str(error)) from error
    return torch.cat(maps).double().numpy()


# The page: one block per image, its pixels next to the maps of its heads


@dataclass(frozen=True)
class Subject:
    """An image and its class."""

    name: str
    old: bool
    predicted: bool  # whether that is its category rather than its true class
    file: str


class Page:
    """A figure and the positions of everything in it, in inches from the upper left corner."""

    def __init__(self, images: int, states: int, heads: int) -> None:
        self.states = states  # maps of each head of an image: 1, or before and after
        self.heads = heads
        self.picture = CELL + (states - 1) * PITCH  # the side of an image, as high as all its maps
        self.block = states * PITCH + 3 * GAP  # the height of one image
        width = PAGE_MARGIN + WORDS_WIDTH + self.picture + STATE_WIDTH + heads * (CELL + GAP) + PAGE_MARGIN
        self.width, self.height = max(width, LEAST_WIDTH), PAGE_MARGIN + HEAD_NAMES + images * self.block + CAPTION
        self.figure = style.figure(self.width, self.height)

    def corner(self, image: int) -> tuple[float, float]:
        """Return the upper left corner of a picture."""
        return PAGE_MARGIN + WORDS_WIDTH, PAGE_MARGIN + HEAD_NAMES + image * self.block + MAP_TITLE

    def map(self, image: int, state: int, head: int) -> tuple[float, float]:
        x, y = self.corner(image)
        return x + self.picture + STATE_WIDTH + head * (CELL + GAP), y + state * PITCH

    def axes(self, x: float, y: float, side: float, label: str) -> Axes:
        place = (x / self.width, 1 - (y + side) / self.height, side / self.width, side / self.height)
        axes = self.figure.add_axes(place, label=label)
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.spines[:].set(visible=True, color=style.PALE, linewidth=0.4)
        return axes

    def text(self, x: float, y: float, text: str, **look: Any) -> None:
        self.figure.text(x / self.width, 1 - y / self.height, text, **look)


@style.style()
def draw_page(pixels: NDArray[np.uint8], maps: NDArray[np.float64], subjects: Sequence[Subject], note: str) -> Figure:
    """Draw images (n, size, size, 3) and their maps (n, states, heads, rows, columns); the note ends the caption."""
    focus = focus_score(maps)  # (n, states, heads)
    page = Page(*focus.shape)
    for image, subject in enumerate(subjects):
        x, y = page.corner(image)
        page.axes(x, y, page.picture, "image").imshow(pixels[image])
        _describe(page, subject, x - 2 * GAP, y)
        for state, head in np.ndindex(page.states, page.heads):
            axes = page.axes(*page.map(image, state, head), CELL, f"head {head + 1}")
            _map(axes, pixels[image], maps[image, state, head])
            axes.set_title(_mean(focus[[image], state, head]), fontsize=6.5, pad=1.5, loc="center")
        for state, name in enumerate(STATE_NAMES if page.states > 1 else ()):
            x, y = page.map(image, state, 0)
            page.text(x - 0.05, y + CELL / 2, name, size=7, rotation=90, ha="right", va="center", c=style.GREY)
    _name_heads(page, focus)
    style.caption(
        page.figure,
        "Attention of the class token to each patch, darkest at the maximum of each map. The number above a map is "
        f"its focus: 0 = uniform, 1 = a single patch. Below the name of each head is the mean. {note}",
    )
    return page.figure


def _map(axes: Axes, pixels: NDArray[np.uint8], values: NDArray[np.float64]) -> None:
    """Draw a map over the image in pale grey."""
    step = max(1, len(pixels) // SHARPEST)
    side = len(pixels) // step
    whole = pixels[: side * step, : side * step]
    grey = whole.reshape(side, step, side, step, 3).mean(axis=(1, 3, 4))
    most = float(values.max()) or 1.0
    extent = (-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5)
    axes.imshow(grey, cmap="gray", vmin=GREY_RANGE[0], vmax=GREY_RANGE[1], interpolation="none", extent=extent)
    axes.imshow(values, cmap=HEAT, vmin=0, vmax=most, interpolation="none", extent=extent)


def _name_heads(page: Page, focus: NDArray[np.float64]) -> None:
    for head in range(page.heads):
        means = " → ".join(_mean(focus[:, state, head]) for state in range(page.states))
        x, y = page.map(0, 0, head)
        middle = x + CELL / 2
        page.text(middle, y - MAP_TITLE - 0.17, f"Head {head + 1}", size=7.5, weight="bold", ha="center")
        page.text(middle, y - MAP_TITLE - 0.055, means, size=6, ha="center", c=style.GREY)


def _describe(page: Page, subject: Subject, x: float, y: float) -> None:
    kind = f"{'old' if subject.old else 'new'}{', predicted' if subject.predicted else ' class'}"
    words = (
        (style.drawable(subject.name, SUBJECT_LENGTH), 8, "bold", "black"),
        (kind, 7, "normal", style.BLUE if subject.old else style.ORANGE),
        (style.drawable(subject.file, SUBJECT_LENGTH + 5), 6, "normal", style.GREY),
    )
    for at, (text, size, weight, colour) in enumerate(words):
        page.text(x, y + 0.1 + 0.145 * at, text, size=size, weight=weight, c=colour, ha="right")


def _mean(values: NDArray[np.float64]) -> str:
    """Return the mean of the values that are not NaN, a dash if there are none."""
    defined = values[~np.isnan(values)]
    return f"{defined.mean():.2f}" if len(defined) else "–"
