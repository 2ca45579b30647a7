"""Charts in the report: two of its own, and the coordinates at which the page draws any chart as SVG."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sortal.runs.curves import Axis, Chart, Line, Point, Span, Spread, Upright, percent_axis, round_axis
from sortal.runs.facts import ReliabilityBin
from sortal.system.text import percent, plural

CHART_WIDTH, CHART_HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 48, 460, 26, 226  # edges of the plot, which leave margins for tick labels
INSET = 12  # room for points at the ends of an axis
HISTOGRAM_BINS = 20
Scale = Callable[[float], float]


def scale(axis: Axis, start: float, end: float) -> Scale:
    """Return a map from the values of an axis to coordinates."""
    start, end = (start + INSET, end - INSET) if axis.log else (start, end)

    def place(value: float) -> float:
        low, high, v = (math.log(each) if axis.log else each for each in (axis.low, axis.high, value))
        share = (v - low) / (high - low) if high > low else 0.5
        return round(start + share * (end - start), 1)

    return place


def path(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x(a):g},{y(b):g}" for a, b in points)


def band(spread: Spread, x: Scale, y: Scale) -> str:
    """Return the path around the values: along the largest, and back along the smallest."""
    there, back = ([(at, pick(each)) for at, each in spread.values] for pick in (max, min))
    return path([*there, *reversed(back)], x, y) + "Z"


def reliability(bins: Sequence[ReliabilityBin]) -> Chart | None:
    """Chart accuracy against confidence: on the diagonal where they agree."""
    if not bins:
        return None
    most = max(each.images for each in bins)
    points = []
    for each in bins:
        size = round(3 + 9 * math.sqrt(each.images / most), 1)
        sure, right = percent(each.confidence), percent(each.accuracy)
        text = f"{plural(each.images, 'image')}: confidence {sure}, accuracy {right}"
        points.append(Point(each.confidence, each.accuracy, "own", text, size))
    return Chart(
        title="Does confidence match accuracy?",
        description=f"Accuracy against confidence in {plural(len(bins), 'bin')}; on the diagonal, they are equal.",
        x=percent_axis("confidence"),
        y=percent_axis("accuracy"),
        lines=[
            Line("perfect match", [(0, 0), (1, 1)], "diagonal"),
            Line("this run", [(each.confidence, each.accuracy) for each in bins], "own"),
        ],
        points=points,
    )


def histogram(confidence: NDArray[np.float64], threshold: float) -> Chart | None:
    """Chart the distribution of the confidence of unlabelled images."""
    if not len(confidence):
        return None
    counts = np.histogram(np.clip(confidence, 0, 1), bins=HISTOGRAM_BINS, range=(0, 1))[0].tolist()
    bars = []
    for at, count in enumerate(counts):
        low, high = at / HISTOGRAM_BINS, (at + 1) / HISTOGRAM_BINS
        text = f"{plural(count, 'image')} with a confidence of {percent(low, 0)} to {percent(high, 0)}"
        bars.append(Span("", low, high, text, "unsure" if high <= threshold + 1e-9 else "own", count))
    return Chart(
        title="How confident?",
        description=f"Histogram of the confidence of {plural(len(confidence), 'unlabelled image')}.",
        x=percent_axis("confidence"),
        y=round_axis("images", 0, max(counts), finest=1),
        spans=bars,
        uprights=[Upright("", threshold, f"unsure below {100 * threshold:g}%")],
    )
