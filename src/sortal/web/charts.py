"""Charts as shapes: figures turned into places on a drawing, for the page to draw as SVG."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.report.words import percent, plural

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 48, 20, 26, 44  # margins, for the figures of the axes
BINS = 20  # of the histogram of confidence


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point, a bar or a band, and what it says when pointed at."""

    x: float
    y: float
    width: float = 0
    height: float = 0
    text: str = ""
    style: str = ""


@dataclass(frozen=True)
class Line:
    """A path, the series it is of, and the name that is written into the legend."""

    path: str
    style: str
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart; x and y grow to the right and downwards."""

    title: str
    said: str  # what it shows, for those who cannot see it
    x_title: str
    y_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    bars: list[Mark] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    points: list[Mark] = field(default_factory=list)
    rules: list[Mark] = field(default_factory=list)  # upright lines with a word
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


@dataclass(frozen=True)
class Scale:
    """From values to places."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def k_curve(k: dict[str, Any]) -> Chart | None:
    """The score of each number of categories that was tried, or nothing where k was given."""
    curve = sorted((each for each in k.get("curve") or [] if each["k"] > 0), key=lambda each: int(each["k"]))
    if not curve:
        return None
    chosen, (low, high) = int(k["k"]), k.get("interval") or (k["k"], k["k"])
    spans = [(min([*each["each"], each["score"]]), max([*each["each"], each["score"]])) for each in curve]
    tried = [each["k"] for each in curve]
    x = Scale(min(*tried, low, chosen), max(*tried, high, chosen), LEFT + 12, WIDTH - RIGHT - 12, log=True)
    y_ticks, y = _axis(min(a for a, _ in spans), max(b for _, b in spans))
    band = [(x(n), y(b)) for n, (_, b) in zip(tried, spans, strict=True)]
    band += [(x(n), y(a)) for n, (a, _) in zip(tried[::-1], spans[::-1], strict=True)]
    interval = [Mark(x(low), TOP, max(2, x(high) - x(low)), HEIGHT - BOTTOM - TOP, f"interval {low} to {high}", "area")]
    return Chart(
        title="How many categories?",
        said=f"Score of {plural(len(curve), 'number')} of categories that were tried; {chosen} was chosen.",
        x_title="number of categories (k)",
        y_title="score",
        x_ticks=_log_ticks(x),
        y_ticks=y_ticks,
        bars=interval if k.get("interval") else [],
        lines=[Line(_path(band) + "Z", "band"), _line(tried, [each["score"] for each in curve], x, y, "own")],
        points=[Mark(x(e["k"]), y(e["score"]), text=f"k = {e['k']:,}: {e['score']:.3f}", style="own") for e in curve],
        rules=[Mark(x(chosen), TOP, text=f"k = {chosen:,}")],
    )


def risk_coverage(curves: dict[str, list[list[float]]]) -> Chart | None:
    """Accuracy of the surest images, against how many of all these are."""
    present = {name: curves[name] for name in ("all", "old", "new") if curves.get(name)}
    if not present:
        return None
    lowest = min(point[1] for curve in present.values() for point in curve)
    y_ticks, y = _percent_axis(lowest)
    x = Scale(0, 1, LEFT, WIDTH - RIGHT)
    return Chart(
        title="The surer, the better?",
        said="Accuracy of the surest images against the share of images that are taken. "
        + " ".join(f"{name.title()}: {percent(curve[-1][1])} of all." for name, curve in present.items()),
        x_title="share of images, the surest first",
        y_title="accuracy",
        x_ticks=_percent_ticks(x, 0, 4),
        y_ticks=y_ticks,
        lines=[_line([p[0] for p in c], [p[1] for p in c], x, y, name, name.title()) for name, c in present.items()],
    )


def reliability(bins: Sequence[dict[str, float]]) -> Chart | None:
    """Confidence against accuracy: on the diagonal where confidence is honest."""
    if not bins:
        return None
    x, y = Scale(0, 1, LEFT, WIDTH - RIGHT), Scale(0, 1, HEIGHT - BOTTOM, TOP)
    most = max(each["images"] for each in bins)
    points = [
        Mark(
            x(each["confidence"]),
            y(each["accuracy"]),
            width=round(3 + 9 * math.sqrt(each["images"] / most), 1),
            text=f"{plural(int(each['images']), 'image')}: confidence {percent(each['confidence'])}, "
            f"accuracy {percent(each['accuracy'])}",
            style="own",
        )
        for each in bins
    ]
    return Chart(
        title="Is confidence honest?",
        said=f"Accuracy against confidence in {plural(len(bins), 'bin')}; on the diagonal both are the same.",
        x_title="confidence",
        y_title="accuracy",
        x_ticks=_percent_ticks(x, 0, 4),
        y_ticks=_percent_ticks(y, 0, 4),
        lines=[Line(_path([(x(0), y(0)), (x(1), y(1))]), "diagonal", "honest"), _joined(bins, x, y)],
        points=points,
    )


def histogram(confidence: NDArray[np.float64], threshold: float | None) -> Chart | None:
    """How many images without a label have which confidence."""
    if not len(confidence):
        return None
    counts = np.histogram(np.clip(confidence, 0, 1), bins=BINS, range=(0, 1))[0].tolist()
    x = Scale(0, 1, LEFT, WIDTH - RIGHT)
    y_ticks, y = _axis(0, max(counts), finest=1)
    bars = []
    for at, count in enumerate(counts):
        low, high = at / BINS, (at + 1) / BINS
        text = f"{plural(count, 'image')} with a confidence from {percent(low, 0)} to {percent(high, 0)}"
        style = "unsure" if threshold is not None and high <= threshold + 1e-9 else "own"
        bars.append(Mark(x(low) + 1, y(count), round(x(high) - x(low) - 2, 1), round(y(0) - y(count), 1), text, style))
    return Chart(
        title="How sure?",
        said=f"Histogram of the confidence of {plural(len(confidence), 'image')} without a label.",
        x_title="confidence",
        y_title="images",
        x_ticks=_percent_ticks(x, 0, 4),
        y_ticks=y_ticks,
        bars=bars,
        rules=[] if threshold is None else [Mark(x(threshold), TOP, text="unsure below")],
    )


def _joined(bins: Sequence[dict[str, float]], x: Scale, y: Scale) -> Line:
    return _line([each["confidence"] for each in bins], [each["accuracy"] for each in bins], x, y, "own", "this run")


def _line(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale, style: str, name: str = "") -> Line:
    return Line(_path((x(a), y(b)) for a, b in zip(xs, ys, strict=True)), style, name)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g},{y:g}" for x, y in points)


def _axis(low: float, high: float, finest: float = 0) -> tuple[list[Tick], Scale]:
    """An upright axis with about four round figures, no finer than told."""
    span = max(high - low or abs(high) or 1.0, 4 * finest)
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = power * next(each for each in (1, 2, 2.5, 5, 10) if each * power >= span / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    y = Scale(first * step, last * step, HEIGHT - BOTTOM, TOP)
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) + (1 if round(step / power, 1) == 2.5 else 0)
    return [Tick(y(i * step), f"{i * step:,.{digits}f}") for i in range(first, last + 1)], y


def _percent_axis(lowest: float) -> tuple[list[Tick], Scale]:
    """An upright axis to 100 %, from the multiple of 20 % below the lowest value."""
    floor = min(0.8, math.floor(lowest * 5) / 5)
    y = Scale(floor, 1, HEIGHT - BOTTOM, TOP)
    steps = round((1 - floor) * 5)
    return _percent_ticks(y, floor, 4 if steps in (1, 2) else steps), y


def _percent_ticks(scale: Scale, low: float, steps: int) -> list[Tick]:
    values = [low + (1 - low) * i / steps for i in range(steps + 1)]
    return [Tick(scale(value), percent(value, 0)) for value in values]


def _log_ticks(x: Scale) -> list[Tick]:
    """1, 2, 5, 10, 20 ... as far as they lie on the axis; its ends where there are fewer than two of them."""
    values = [m * 10**power for power in range(8) for m in (1, 2, 5) if x.low <= m * 10**power <= x.high]
    if len(values) < 2:
        values = sorted({int(x.low), int(x.high)})
    return [Tick(x(value), f"{value:,}") for value in values]
