"""Charts of a run as records, in the units of their data: the report draws them as SVG, figures with matplotlib."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sortal.runs.facts import KChoice, RiskCoverage
from sortal.system.text import percent, plural

PARTS = {"all": "All", "old": "Known classes", "new": "New classes"}


class Axis(NamedTuple):
    """An axis from `low` to `high`, and what is written at some values."""

    title: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False  # logarithmic, with room for points at its ends


class Span(NamedTuple):
    """A range of x, over the whole height or as a bar."""

    name: str
    low: float
    high: float
    text: str
    style: str = "area"
    height: float | None = None


class Spread(NamedTuple):
    """The values at each x that a line sums up."""

    name: str
    values: Sequence[tuple[float, Sequence[float]]]


class Line(NamedTuple):
    """A line through points, and its name in a legend."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str
    text: str = ""


class Upright(NamedTuple):
    """A vertical line with a label."""

    name: str
    x: float
    text: str
    style: str = "own"


class Point(NamedTuple):
    x: float
    y: float
    style: str
    text: str = ""
    size: float = 3.5


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart; its styles are own, all, old, new, chosen, true, area, unsure and diagonal."""

    title: str
    description: str  # for screen readers
    x: Axis
    y: Axis
    spans: Sequence[Span] = ()
    spreads: Sequence[Spread] = ()
    lines: Sequence[Line] = ()
    uprights: Sequence[Upright] = ()
    points: Sequence[Point] = ()


def k_curve(k: KChoice, true: int | None = None) -> Chart | None:
    """Chart the score of each number of categories that was tried; None if k was given. Mark the true one if given."""
    curve = sorted(k.curve, key=lambda tried: tried.k)
    if not curve:
        return None
    spread = [(tried.k, tried.each or (tried.score,)) for tried in curve]
    scores = [score for _, each in spread for score in each]
    average = "Best" if k.trial else "Median" if k.method == "separation" else "Mean"
    uprights = [Upright("Chosen", k.k, f"k = {k.k:,}", "chosen")]
    if true is not None:
        uprights.append(Upright("True", true, f"k = {true:,}", "true"))
    shown = [*(tried.k for tried in curve), *(k.interval or ()), *(int(each.x) for each in uprights)]
    low, high = min(shown), max(shown)
    ticks = [(value, f"{value:,}") for value in log_ticks(low, high)]
    return Chart(
        title="How many categories?",
        description=f"The score of {plural(len(curve), 'number')} of categories; {k.k:,} was chosen.",
        x=Axis("number of categories (k)", low, high, ticks, log=True),
        y=round_axis("score", min(scores), max(scores)),
        spans=[Span("Interval", *k.interval, "likely {:,} to {:,}".format(*k.interval))] if k.interval else [],
        spreads=[Spread("One restart", spread)],
        lines=[Line(f"{average} of restarts", [(tried.k, tried.score) for tried in curve], "own")],
        uprights=uprights,
        points=[Point(each.k, each.score, "own", f"k = {each.k:,}: {each.score:.3f}") for each in curve],
    )


def risk_coverage(curves: RiskCoverage, unsure_below: float = 0) -> Chart | None:
    """Chart the accuracy on the most confident images against their share; None without images.

    A point on each line separates images whose confidence is below `unsure_below` from those above, if there are both.
    """
    found = {part: curve for part, curve in vars(curves).items() if curve}
    if not found:
        return None
    lines, points = [], []
    for part, curve in found.items():
        lines.append(Line(PARTS[part], [point[:2] for point in curve], part, percent(curve[-1].accuracy)))
        sure = [point for point in curve if point.confidence >= unsure_below]
        if 0 < len(sure) < len(curve):
            points.append(Point(sure[-1].coverage, sure[-1].accuracy, part, size=5))
    floor = min(0.8, math.floor(5 * min(y for line in lines for _, y in line.points)) / 5)  # a multiple of 20 %
    steps = round((1 - floor) * 5)
    finals = " ".join(f"{line.name}: {line.text} with all included." for line in lines)
    return Chart(
        title="Are confident images more often right?",
        description=f"Accuracy on the most confident images against their share. {finals}",
        x=percent_axis("share of images, most confident first"),
        y=percent_axis("accuracy", floor, 4 if steps in (1, 2) else steps),
        lines=lines,
        points=points,
    )


def percent_axis(title: str, low: float = 0, steps: int = 4) -> Axis:
    """Return an axis of fractions from `low` to 1, labelled in per cent."""
    values = [low + (1 - low) * i / steps for i in range(steps + 1)]
    return Axis(title, low, 1, [(value, percent(value, 0)) for value in values])


def round_axis(title: str, low: float, high: float, finest: float = 0) -> Axis:
    """Return an axis with about four round steps, none below `finest`."""
    span = max(high - low or abs(high) or 1.0, 4 * finest)
    power = 10.0 ** math.floor(math.log10(span / 4))
    steps = [each * power for each in (1, 2, 2.5, 5, 10) if not finest or each * power % finest == 0]
    step = next(each for each in steps if each >= span / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    digits = max(0, -math.floor(math.log10(step) + 1e-9) + (round(step / power, 1) == 2.5))
    ticks = [(i * step, f"{i * step:,.{digits}f}") for i in range(first, last + 1)]
    return Axis(title, first * step, last * step, ticks)


def log_ticks(least: int, most: int) -> list[int]:
    """Return 1, 2, 5, 10 ... from `least` to `most`, more of them on a short axis; its ends if fewer than two fit."""
    tens = [10**power for power in range(len(str(most)))]
    few, many = (
        [m * ten for ten in tens for m in steps if least <= m * ten <= most]
        for steps in ((1, 2, 5), (1, 2, 3, 4, 5, 7))
    )
    ticks = few if len(few) >= 4 else many
    return ticks if len(ticks) >= 2 else sorted({least, most})
