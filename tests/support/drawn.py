"""What a figure shows, read from its axes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text


def caption(drawn: Figure) -> str:
    return drawn.get_supxlabel().replace("\n", " ")


def words(labels: Iterable[Text]) -> list[str]:
    return [label.get_text() for label in labels]


def texts_of(drawn: Figure) -> list[str]:
    """Return the texts of all legends of a figure, and its caption."""
    legends = [*drawn.legends, *(legend for axes in drawn.axes if (legend := axes.get_legend()))]
    return [text for legend in legends for text in words(legend.get_texts())] + [caption(drawn)]


def heights(axes: Axes) -> list[list[float]]:
    """Return the heights of the bars of each kind."""
    return [[bar.get_height() for bar in bars] for bars in axes.containers]


def xy(line: Line2D) -> list[list[float]]:
    rows: list[list[float]] = np.asarray(line.get_xydata()).tolist()
    return rows


def corners(collection: Collection) -> int:
    """Count the vertices of its marker: a circle has more than a triangle."""
    return len(np.asarray(collection.get_paths()[0].vertices))


def points_of(axes: Axes) -> list[tuple[float, float, str, int]]:
    """Return the position, colour and number of corners of every point, sorted."""
    return sorted(
        (float(x), float(y), to_hex(colour), corners(each))
        for each in axes.collections
        for (x, y), colour in zip(np.asarray(each.get_offsets()), np.asarray(each.get_facecolor()), strict=True)
    )
