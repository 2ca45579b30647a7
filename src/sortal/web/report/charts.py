"""Charts of the report: values turned into coordinates, for the page to draw as SVG."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sortal.runs import curves
from sortal.runs.facts import KChoice, ReliabilityBin, RiskCoverage
from sortal.system.text import percent, plural

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 48, 460, 26, 226  # edges of the plot, which leave margins for tick labels
NAMES = {"all": "All", "old": "Known classes", "new": "New classes"}
BINS = 20  # of the confidence histogram
Scale = Callable[[float], float]


class Tick(NamedTuple):
    at: float
    text: str


class Mark(NamedTuple):
    """A point, a bar or a rule, and its tooltip."""

    x: float
    y: float
    width: float = 0
    height: float = 0
    text: str = ""
    style: str = ""


class Line(NamedTuple):
    """A path, its CSS class, and its name in the legend."""

    path: str
    style: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart in SVG coordinates: y grows downwards."""

    title: str
    description: str  # for screen readers
    x_title: str
    y_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    bars: list[Mark] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    points: list[Mark] = field(default_factory=list)
    rules: list[Mark] = field(default_factory=list)  # vertical lines with a label


def _scale(low: float, high: float, start: float, end: float, *, log: bool = False) -> Scale:
    """Return a map from values to coordinates."""

    def place(value: float) -> float:
        least, most, v = (math.log(each) if log else each for each in (low, high, value))
        share = (v - least) / (most - least) if most > least else 0.5
        return round(start + share * (end - start), 1)

    return place


def k_curve(k: KChoice) -> Chart | None:
    """Chart the score of each number of categories that was tried; None if k was given."""
    curve = sorted(k.curve, key=lambda tried: tried.k)
    if not curve:
        return None
    shown, (low, high) = curves.shown_k(k), k.interval or (k.k, k.k)
    scores = [(*tried.each, tried.score) for tried in curve]
    x = _scale(min(shown), max(shown), LEFT + 12, RIGHT - 12, log=True)
    y_ticks, y = _axis(min(map(min, scores)), max(map(max, scores)))
    band = [(x(tried.k), y(max(each))) for tried, each in zip(curve, scores, strict=True)]
    band += [(x(tried.k), y(min(each))) for tried, each in zip(curve[::-1], scores[::-1], strict=True)]
    interval = Mark(x(low), TOP, max(2, x(high) - x(low)), BOTTOM - TOP, f"likely {low:,} to {high:,}", "area")
    return Chart(
        title=curves.K_TITLE,
        description=f"The score of {plural(len(curve), 'number')} of categories; {k.k:,} was chosen.",
        x_title="number of categories (k)",
        y_title="score",
        x_ticks=[Tick(x(value), f"{value:,}") for value in curves.log_ticks(min(shown), max(shown))],
        y_ticks=y_ticks,
        bars=[interval] if k.interval else [],
        lines=[Line(_path(band) + "Z", "band"), _line([(tried.k, tried.score) for tried in curve], x, y, "own")],
        points=[Mark(x(e.k), y(e.score), text=f"k = {e.k:,}: {e.score:.3f}", style="own") for e in curve],
        rules=[Mark(x(k.k), TOP, text=f"k = {k.k:,}")],
    )


def risk_coverage(risk_coverage: RiskCoverage) -> Chart | None:
    """Chart the accuracy on the most confident images against their share."""
    found = curves.coverage_curves(risk_coverage)
    if not found:
        return None
    floor = curves.accuracy_floor(found.values())
    steps = round((1 - floor) * 5)
    x, y = _scale(0, 1, LEFT, RIGHT), _scale(floor, 1, BOTTOM, TOP)
    return Chart(
        title=curves.COVERAGE_TITLE,
        description="Accuracy on the most confident images against their share. "
        + " ".join(f"{NAMES[part]}: {percent(each[-1].accuracy)} with all included." for part, each in found.items()),
        x_title="share of images, most confident first",
        y_title="accuracy",
        x_ticks=_percent_ticks(x, 0, 4),
        y_ticks=_percent_ticks(y, floor, 4 if steps in (1, 2) else steps),
        lines=[_line([point[:2] for point in each], x, y, part, NAMES[part]) for part, each in found.items()],
    )


def reliability(bins: Sequence[ReliabilityBin]) -> Chart | None:
    """Chart accuracy against confidence: on the diagonal where they agree."""
    if not bins:
        return None
    x, y = _scale(0, 1, LEFT, RIGHT), _scale(0, 1, BOTTOM, TOP)
    most = max(each.images for each in bins)
    points = []
    for each in bins:
        size = round(3 + 9 * math.sqrt(each.images / most), 1)
        sure, right = percent(each.confidence), percent(each.accuracy)
        text = f"{plural(each.images, 'image')}: confidence {sure}, accuracy {right}"
        points.append(Mark(x(each.confidence), y(each.accuracy), size, text=text, style="own"))
    run = _line([(each.confidence, each.accuracy) for each in bins], x, y, "own", "this run")
    return Chart(
        title="Does confidence match accuracy?",
        description=f"Accuracy against confidence in {plural(len(bins), 'bin')}; on the diagonal, they are equal.",
        x_title="confidence",
        y_title="accuracy",
        x_ticks=_percent_ticks(x, 0, 4),
        y_ticks=_percent_ticks(y, 0, 4),
        lines=[Line(_path([(x(0), y(0)), (x(1), y(1))]), "diagonal", "perfect match"), run],
        points=points,
    )


def histogram(confidence: NDArray[np.float64], threshold: float) -> Chart | None:
    """Chart the distribution of the confidence of unlabelled images."""
    if not len(confidence):
        return None
    counts = np.histogram(np.clip(confidence, 0, 1), bins=BINS, range=(0, 1))[0].tolist()
    x = _scale(0, 1, LEFT, RIGHT)
    y_ticks, y = _axis(0, max(counts), finest=1)
    bars = []
    for at, count in enumerate(counts):
        low, high = at / BINS, (at + 1) / BINS
        text = f"{plural(count, 'image')} with a confidence of {percent(low, 0)} to {percent(high, 0)}"
        style = "unsure" if high <= threshold + 1e-9 else "own"
        bars.append(Mark(x(low) + 1, y(count), round(x(high) - x(low) - 2, 1), round(y(0) - y(count), 1), text, style))
    return Chart(
        title="How confident?",
        description=f"Histogram of the confidence of {plural(len(confidence), 'unlabelled image')}.",
        x_title="confidence",
        y_title="images",
        x_ticks=_percent_ticks(x, 0, 4),
        y_ticks=y_ticks,
        bars=bars,
        rules=[Mark(x(threshold), TOP, text=f"unsure below {100 * threshold:g}%")],
    )


def _line(points: Sequence[tuple[float, float]], x: Scale, y: Scale, style: str, name: str = "") -> Line:
    return Line(_path((x(a), y(b)) for a, b in points), style, name)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _axis(low: float, high: float, finest: float = 0) -> tuple[list[Tick], Scale]:
    """Return ticks and scale of a vertical axis with about four round steps, none below `finest`."""
    span = max(high - low or abs(high) or 1.0, 4 * finest)
    power = 10.0 ** math.floor(math.log10(span / 4))
    steps = [each * power for each in (1, 2, 2.5, 5, 10) if not finest or each * power % finest == 0]
    step = next(each for each in steps if each >= span / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    y = _scale(first * step, last * step, BOTTOM, TOP)
    digits = max(0, -math.floor(math.log10(step) + 1e-9) + (round(step / power, 1) == 2.5))
    return [Tick(y(i * step), f"{i * step:,.{digits}f}") for i in range(first, last + 1)], y


def _percent_ticks(scale: Scale, low: float, steps: int) -> list[Tick]:
    values = [low + (1 - low) * i / steps for i in range(steps + 1)]
    return [Tick(scale(value), percent(value, 0)) for value in values]
