"""How figures look in print: one style, colours that everybody can tell apart, and any name as plain letters."""

from __future__ import annotations

import io
import textwrap
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeAlias

import matplotlib
import matplotlib.style
from matplotlib import font_manager
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sortal.errors import InputError
from sortal.report.words import readable

Format: TypeAlias = Literal["png", "svg"]

WIDTH = 7.0  # inches: a page of A4 or letter between its margins, so that letters are printed in their size
DPI = 300
MADE_BY = "sortal figures"  # stands in every file, by which an earlier drawing is known
OLD, NEW, ALL = "#0072b2", "#d55e00", "#333333"  # of Okabe and Ito, for every eye
GREY, PALE = "#666666", "#bbbbbb"  # words beside the matter; what is there but not told apart
# Nine colours of Paul Tol ("muted"), which differ in brightness too; the strongest first.
COLOURS = ("#332288", "#cc6677", "#117733", "#88ccee", "#882255", "#ddcc77", "#44aa99", "#aa4499", "#999933")
LETTERS_AN_INCH = 19  # of a caption
LETTERS = "DejaVu Sans"  # comes with matplotlib; for names in other scripts, those of these that are installed
OTHER_LETTERS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Nirmala UI",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
)
JOINERS = "\u200c\u200d"  # without a shape, and needed to write Persian and Hindi

STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.size": 8,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "path",  # looks the same wherever it is opened
    "svg.hashsalt": MADE_BY,  # so that the same figure is the same file
    "text.parse_math": False,  # a $ in a name is a $
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


class LeftOutError(InputError):
    """A figure that a run does not have the material for."""


@contextmanager
def style() -> Iterator[None]:
    """The same, whatever the user's own settings are; to be around all that makes a figure or writes it."""
    with matplotlib.style.context(["default", STYLE, {"font.family": list(_families())}]):
        yield


def figure(width: float, height: float, **options: Any) -> Figure:
    """An empty figure, in inches; of no window and no list of figures."""
    return Figure(figsize=(width, height), dpi=DPI, **options)


def settled(drawn: Figure) -> Figure:
    """A figure whose parts have found their places and stay there, however often it is written."""
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")
    return drawn


def file(drawn: Figure, format_: Format) -> bytes:
    """A figure as a file; the same every time."""
    buffer = io.BytesIO()
    metadata = {"png": {"Software": MADE_BY}, "svg": {"Creator": MADE_BY, "Date": None}}[format_]
    with style():
        drawn.savefig(buffer, format=format_, dpi=DPI, facecolor="white", metadata=metadata)
    return buffer.getvalue()


def caption(drawn: Figure, text: str) -> None:
    """Small words at the foot of a figure."""
    lines = textwrap.fill(text, int(LETTERS_AN_INCH * drawn.get_figwidth()))
    drawn.supxlabel(lines, x=0.01, ha="left", fontsize=7, color=GREY)


def percents(axis: Axis) -> None:
    """An axis of fractions, written in per cent."""
    axis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], min_n_ticks=3))
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def letters(text: object, longest: int = 28) -> str:
    """A name that can be drawn: what has no shape is written as an escape, and the middle of a long name is left out.

    That holds for bytes that are no text, control characters, those that turn the direction of writing, and letters
    that no font here has.
    """
    return readable("".join(each if _has_a_shape(each) else _escape(each) for each in str(text)[:1000]), longest)


def _has_a_shape(letter: str) -> bool:
    kind = unicodedata.category(letter)
    if kind[0] == "C" or kind in ("Zl", "Zp"):
        return letter in JOINERS
    return any(ord(letter) in shapes for shapes in _shapes())


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


@cache
def _families() -> tuple[str, ...]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return LETTERS, *(name for name in OTHER_LETTERS if name in installed)


@cache
def _shapes() -> tuple[frozenset[int], ...]:
    """The letters of each font."""
    paths = [font_manager.findfont(name) for name in _families()]
    return tuple(frozenset(font_manager.get_font(path).get_charmap()) for path in paths)
