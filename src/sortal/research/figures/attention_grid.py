"""The page layout of attention: one block per image, its pixels next to the maps of its heads."""

from collections.abc import Sequence
from dataclasses import dataclass
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
NAME = 14  # characters of a name next to a picture
INK = to_rgb("#b2182b")
HEAT = LinearSegmentedColormap.from_list(
    "attention", [(*INK, 0.0), (*INK, 1.0)]
)  # transparent, to show the image below
SHARP = 112  # pixels of the side of a map, which keeps files small
PALE = (-400, 255)  # the grey levels figure as black and white, to pale an image


@dataclass(frozen=True)
class Subject:
    """An image and its class."""

    name: str
    old: bool
    file: str


@dataclass(frozen=True)
class Page:
    """The positions of everything, in inches from the upper left corner."""

    images: int
    states: int  # maps of each head of an image: 1, or before and after
    heads: int

    @property
    def lines(self) -> int:
        return -(-self.heads // ACROSS)

    @property
    def across(self) -> int:
        """Heads in a line."""
        return -(-self.heads // self.lines)

    @property
    def header(self) -> float:
        """The height of the heads' names above each line; 0 if they are at the top of the page only."""
        return HEADER if self.lines > 1 else 0.0

    @property
    def top(self) -> float:
        return MARGIN + HEADER - self.header

    @property
    def pitch(self) -> float:
        """From one map to the one below."""
        return TITLE + CELL + GAP

    @property
    def picture(self) -> float:
        """The side of an image, as high as all its maps."""
        return CELL + (self.states - 1) * self.pitch

    @property
    def line(self) -> float:
        return self.header + self.states * self.pitch

    @property
    def block(self) -> float:
        return self.lines * self.line + 3 * GAP

    @property
    def size(self) -> tuple[float, float]:
        width = MARGIN + WORDS + self.picture + TAG + self.across * (CELL + GAP) + MARGIN
        return max(width, NARROWEST), self.top + self.images * self.block + FOOT

    def corner(self, image: int) -> tuple[float, float]:
        """Return the upper left corner of a picture."""
        return MARGIN + WORDS, self.top + image * self.block + self.header + TITLE

    def map(self, image: int, state: int, head: int) -> tuple[float, float]:
        x, y = self.corner(image)
        line, column = divmod(head, self.across)
        return x + self.picture + TAG + column * (CELL + GAP), y + line * self.line + state * self.pitch


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
    images, states, heads = focus.shape
    page = Page(images, states, heads)
    figure = style.figure(*page.size)
    for image, subject in enumerate(subjects):
        x, y = page.corner(image)
        _axes(figure, page, x, y, page.picture, "image").imshow(pixels[image])
        _describe(figure, page, subject, x - 2 * GAP, y)
        for state, head in np.ndindex(states, heads):
            axes = _axes(figure, page, *page.map(image, state, head), CELL, f"head {head + 1}")
            _map(axes, pixels[image], maps[image, state, head])
            axes.set_title(_number(focus[image, state, head]), fontsize=6.5, pad=1.5, loc="center")
        for line in range(page.lines):
            _name_heads(figure, page, focus, image, line)
            _name_states(figure, page, image, line)
    style.caption(
        figure,
        "Attention of the class token to each patch, darkest at the maximum of each map. The number above a map is "
        f"its focus: 0 = uniform, 1 = a single patch. Below the name of each head is the mean. {note}",
    )
    return figure


def _map(axes: Axes, pixels: NDArray[np.uint8], values: NDArray[np.float64]) -> None:
    """Draw a map over the image in pale grey."""
    step = max(1, len(pixels) // SHARP)
    side = len(pixels) // step
    whole = pixels[: side * step, : side * step]
    grey = whole.reshape(side, step, side, step, 3).mean(axis=(1, 3, 4))
    most = float(values.max()) or 1.0
    look: dict[str, Any] = {
        "interpolation": "none",
        "extent": (-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5),
    }
    axes.imshow(grey, cmap="gray", vmin=PALE[0], vmax=PALE[1], **look)
    axes.imshow(values, cmap=HEAT, vmin=0, vmax=most, **look)


def _name_heads(figure: Figure, page: Page, focus: NDArray[np.float64], image: int, line: int) -> None:
    if page.lines == 1 and image > 0:
        return
    for head in range(line * page.across, min((line + 1) * page.across, page.heads)):
        means = " → ".join(_number(_mean(focus[:, state, head])) for state in range(page.states))
        x, y = page.map(image, 0, head)
        middle = x + CELL / 2
        _text(figure, page, middle, y - TITLE - 0.17, f"Head {head + 1}", size=7.5, weight="bold", ha="center")
        _text(figure, page, middle, y - TITLE - 0.055, means, size=6, ha="center", c=style.GREY)


def _name_states(figure: Figure, page: Page, image: int, line: int) -> None:
    for state, name in enumerate(STATES if page.states == len(STATES) else ()):
        x, y = page.map(image, state, line * page.across)
        look = {"size": 7, "rotation": 90, "ha": "right", "va": "center", "c": style.GREY}
        _text(figure, page, x - 0.05, y + CELL / 2, name, **look)


def _describe(figure: Figure, page: Page, subject: Subject, x: float, y: float) -> None:
    words = (
        (drawable(subject.name, NAME), 8, "bold", "black"),
        *(("old class", 7, "normal", style.OLD) if subject.old else ("new class", 7, "normal", style.NEW),),
        (drawable(subject.file, NAME + 5), 6, "normal", style.GREY),
    )
    for at, (text, size, weight, colour) in enumerate(words):
        _text(figure, page, x, y + 0.1 + 0.145 * at, text, size=size, weight=weight, c=colour, ha="right")


def _axes(figure: Figure, page: Page, x: float, y: float, side: float, label: str) -> Axes:
    wide, high = page.size
    axes = figure.add_axes((x / wide, 1 - (y + side) / high, side / wide, side / high), label=label)
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set(visible=True, color=style.PALE, linewidth=0.4)
    return axes


def _text(figure: Figure, page: Page, x: float, y: float, text: str, **look: Any) -> None:
    wide, high = page.size
    figure.text(x / wide, 1 - y / high, text, **look)


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the values that are not NaN."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.2f}"
