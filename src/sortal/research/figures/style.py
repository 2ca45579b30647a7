"""The look of print figures: one style, colour-blind safe colours, and names that any font can draw."""

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
from sortal.system.text import plain, shorten

FigureFormat: TypeAlias = Literal["png", "svg"]

TEXT_WIDTH = 7.0  # inches: the text width of A4 or letter, so that figures are printed without scaling
DPI = 300
MADE_BY = "sortal figures"  # in the metadata of every file, to recognise earlier figures
BLUE, ORANGE, DARK = "#0072b2", "#d55e00", "#333333"  # old classes, new ones, and all: colours of Okabe and Ito
GREY, PALE = "#666666", "#bbbbbb"  # secondary text; points without a colour of their own
# The "muted" palette of Paul Tol, which also differs in brightness; the strongest first.
COLOURS = ("#332288", "#cc6677", "#117733", "#88ccee", "#882255", "#ddcc77", "#44aa99", "#aa4499", "#999933")
CHARACTERS_PER_INCH = 19  # of a caption
FONT = "DejaVu Sans"  # comes with matplotlib; other scripts need one of the fonts below, if installed
OTHER_FONTS = """\
Noto Sans CJK SC, Noto Sans CJK JP, Noto Sans CJK KR, Source Han Sans SC, WenQuanYi Micro Hei, PingFang SC,
Hiragino Sans, Apple SD Gothic Neo, Microsoft YaHei, Yu Gothic, Malgun Gothic, Nirmala UI, Noto Sans Devanagari,
Noto Sans Thai, Arial Unicode MS""".replace("\n", " ").split(", ")
JOINERS = "\u200c\u200d"  # invisible, but needed to write Persian and Hindi

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
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "path",  # looks the same everywhere
    "svg.hashsalt": MADE_BY,  # makes files reproducible
    "text.parse_math": False,  # a $ in a name stays a $
}


class LeftOutError(InputError):
    """A figure that a run does not have the data for."""


@contextmanager
def style() -> Iterator[None]:
    """Override the user's matplotlib settings; wraps everything that creates or writes a figure."""
    with matplotlib.style.context(["default", STYLE, {"font.family": list(_families())}]):
        yield


def figure(width: float, height: float, **options: Any) -> Figure:
    """Return an empty figure, sized in inches, that pyplot does not manage."""
    return Figure(figsize=(width, height), dpi=DPI, **options)


def freeze_layout(figure: Figure) -> Figure:
    """Lay a figure out once, so that it is the same however often it is written."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def render(figure: Figure, format_: FigureFormat) -> bytes:
    """Return a figure as a reproducible file."""
    buffer = io.BytesIO()
    metadata = {"png": {"Software": MADE_BY}, "svg": {"Creator": MADE_BY, "Date": None}}[format_]
    with style():
        figure.savefig(buffer, format=format_, dpi=DPI, facecolor="white", metadata=metadata)
    return buffer.getvalue()


def caption(figure: Figure, text: str) -> None:
    """Write small text at the foot of a figure."""
    lines = textwrap.fill(text, int(CHARACTERS_PER_INCH * figure.get_figwidth()))
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=7, color=GREY)


def percents(axis: Axis) -> None:
    """Label an axis of fractions in per cent."""
    axis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], min_n_ticks=3))
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def drawable(text: object, longest: int = 28) -> str:
    """Shorten a name, and escape control and direction characters and those that no font has."""
    return shorten(plain(str(text)[:1000], _has_glyph), longest)


def _has_glyph(character: str) -> bool:
    kind = unicodedata.category(character)
    if kind[0] == "C" or kind in ("Zl", "Zp"):
        return character in JOINERS
    return any(ord(character) in glyphs for glyphs in _glyphs())


@cache
def _families() -> tuple[str, ...]:
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return FONT, *(name for name in OTHER_FONTS if name in installed)


@cache
def _glyphs() -> tuple[frozenset[int], ...]:
    """Return the characters of each font."""
    paths = [font_manager.findfont(name) for name in _families()]
    return tuple(frozenset(font_manager.get_font(path).get_charmap()) for path in paths)
