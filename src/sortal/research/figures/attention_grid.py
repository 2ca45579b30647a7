"""The page layout of attention: one block per image, its pixels next to the maps of its heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sortal.research.figures import style
from sortal.research.figures.style import drawable

ACROSS = 16  # heads in a line at most; larger networks take several lines
STATES = ("before", "after")
MARGIN, WORDS, TAG, GAP, TITLE, HEADER, FOOT = 0.08, 1.05, 0.22, 0.03, 0.125, 0.38, 0.45  # inches
NARROWEST = 6.0  # inches: room for the caption
CELL = 0.56  # inches: the side of a map
PITCH = TITLE + CELL + GAP  # from one map to the one below
NAME = 14  # characters of a name next to a picture
INK = to_rgb("#b2182b")
# Transparent, to show the image below
HEAT = LinearSegmentedColormap.from_list("attention", [(*INK, 0.0), (*INK, 1.0)])
SHARP = 112  # pixels of the side of a map, which keeps files small
PALE = (-400, 255)  # the grey levels figure as black and white, to pale an image


@dataclass(frozen=True)
class Subject:
    """An image and its class."""

    name: str
    old: bool
    file: str


class Page:
    """A figure and the positions of everything in it, in inches from the upper left corner."""

    def __init__(self, images: int, states: int, heads: int) -> None:
        self.states = states  # maps of each head of an image: 1, or before and after
        self.heads = heads
        self.lines = ceil(heads / ACROSS)
        self.across = ceil(heads / self.lines)  # heads in a line
        self.header = HEADER if self.lines > 1 else 0.0  # above each line; 0: the heads are named once, at the top
        self.top = MARGIN + HEADER - self.header
        self.picture = CELL + (states - 1) * PITCH  # the side of an image, as high as all its maps
        self.line = self.header + states * PITCH
        self.block = self.lines * self.line + 3 * GAP  # of one image
        width = MARGIN + WORDS + self.picture + TAG + self.across * (CELL + GAP) + MARGIN
        self.width, self.height = max(width, NARROWEST), self.top + images * self.block + FOOT
        self.figure = style.figure(self.width, self.height)

    def corner(self, image: int) -> tuple[float, float]:
        """Return the upper left corner of a picture."""
        return MARGIN + WORDS, self.top + image * self.block + self.header + TITLE

    def map(self, image: int, state: int, head: int) -> tuple[float, float]:
        x, y = self.corner(image)
        line, column = divmod(head, self.across)
        return x + self.picture + TAG + column * (CELL + GAP), y + line * self.line + state * PITCH

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
def draw(
    pixels: NDArray[np.uint8],
    maps: NDArray[np.float64],
    focus: NDArray[np.float64],
    subjects: Sequence[Subject],
    note: str,
) -> Figure:
    """Draw images (n, size, size, 3), maps (n, states, heads, rows, columns) and focus scores (n, states, heads).

    The note ends the caption.
    """
    page = Page(*focus.shape)
    for image, subject in enumerate(subjects):
        x, y = page.corner(image)
        page.axes(x, y, page.picture, "image").imshow(pixels[image])
        _describe(page, subject, x - 2 * GAP, y)
        for state, head in np.ndindex(page.states, page.heads):
            axes = page.axes(*page.map(image, state, head), CELL, f"head {head + 1}")
            _map(axes, pixels[image], maps[image, state, head])
            axes.set_title(_mean(focus[[image], state, head]), fontsize=6.5, pad=1.5, loc="center")
        if image == 0 or page.lines > 1:
            _name_heads(page, focus, image)
        if page.states == len(STATES):
            _name_states(page, image)
    style.caption(
        page.figure,
        "Attention of the class token to each patch, darkest at the maximum of each map. The number above a map is "
        f"its focus: 0 = uniform, 1 = a single patch. Below the name of each head is the mean. {note}",
    )
    return page.figure


def _map(axes: Axes, pixels: NDArray[np.uint8], values: NDArray[np.float64]) -> None:
    """Draw a map over the image in pale grey."""
    step = max(1, len(pixels) // SHARP)
    side = len(pixels) // step
    whole = pixels[: side * step, : side * step]
    grey = whole.reshape(side, step, side, step, 3).mean(axis=(1, 3, 4))
    most = float(values.max()) or 1.0
    extent = (-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5)
    axes.imshow(grey, cmap="gray", vmin=PALE[0], vmax=PALE[1], interpolation="none", extent=extent)
    axes.imshow(values, cmap=HEAT, vmin=0, vmax=most, interpolation="none", extent=extent)


def _name_heads(page: Page, focus: NDArray[np.float64], image: int) -> None:
    for head in range(page.heads):
        means = " → ".join(_mean(focus[:, state, head]) for state in range(page.states))
        x, y = page.map(image, 0, head)
        middle = x + CELL / 2
        page.text(middle, y - TITLE - 0.17, f"Head {head + 1}", size=7.5, weight="bold", ha="center")
        page.text(middle, y - TITLE - 0.055, means, size=6, ha="center", c=style.GREY)


def _name_states(page: Page, image: int) -> None:
    for line in range(page.lines):
        for state, name in enumerate(STATES):
            x, y = page.map(image, state, line * page.across)
            page.text(x - 0.05, y + CELL / 2, name, size=7, rotation=90, ha="right", va="center", c=style.GREY)


def _describe(page: Page, subject: Subject, x: float, y: float) -> None:
    words = (
        (drawable(subject.name, NAME), 8, "bold", "black"),
        ("old class" if subject.old else "new class", 7, "normal", style.OLD if subject.old else style.NEW),
        (drawable(subject.file, NAME + 5), 6, "normal", style.GREY),
    )
    for at, (text, size, weight, colour) in enumerate(words):
        page.text(x, y + 0.1 + 0.145 * at, text, size=size, weight=weight, c=colour, ha="right")


def _mean(values: NDArray[np.float64]) -> str:
    """Return the mean of the values that are not NaN, a dash if there are none."""
    defined = values[~np.isnan(values)]
    return f"{defined.mean():.2f}" if len(defined) else "–"
