"""Accuracy of a run in print: against k, against coverage, and as inflated by legacy matching."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from sortal import metrics
from sortal.metrics import Accuracy, Classes, Labels
from sortal.research.figures import style
from sortal.runs import curves
from sortal.runs.categories import known_names
from sortal.runs.curves import Chart
from sortal.runs.run import LABELLED, Run
from sortal.system.text import percent, plural

NO_TRUTH = "No unlabelled image has a known true class, so there is no accuracy to show."
MOST_CLUSTERS = 8  # shared clusters shown, the largest first
CLUSTER_LENGTH = 11  # characters of a name
CHARACTER_WIDTH = 0.02  # the width of one, as a share of the axis
LOOKS = {  # colour and dashes of each style
    "own": (style.DARK, "-"),
    "all": (style.DARK, "-"),
    "old": (style.BLUE, "--"),
    "new": (style.ORANGE, "-."),
    "chosen": (style.BLUE, "-"),
    "true": (style.ORANGE, "--"),
}


@style.style()
def k_curve(run: Run) -> Figure:
    """Plot the score of each number of clusters that was tried: of every restart, and their average."""
    chart = curves.k_curve(run.k, None if run.metrics is None else run.metrics.k_true)
    if chart is None:
        raise style.LeftOutError(f"The number of categories was given (k = {run.k.k:,}), so no others were tried.")
    figure = plot(chart)
    if run.k.method != "separation":  # whose score is not an accuracy
        figure.axes[0].set_ylabel("accuracy on the labelled images")
        style.percents(figure.axes[0].yaxis)
    return style.freeze_layout(figure)


@style.style()
def risk_coverage(run: Run) -> Figure:
    """Plot accuracy on the most confident images against their share; beyond the dot on a curve, images are unsure."""
    unsure = run.confidence.unsure_below
    chart = None if run.metrics is None else curves.risk_coverage(run.metrics.risk_coverage, unsure)
    if chart is None:
        raise style.LeftOutError(NO_TRUTH)
    note = "" if run.confidence.calibrated else " Confidence is not calibrated."
    title = f"Accuracy on all images. Right of the dot, confidence is below {percent(unsure, 0)}.{note}"
    return style.freeze_layout(plot(chart, title))


@dataclass(frozen=True, kw_only=True)
class SharedCluster:
    """A cluster that legacy matching assigns to an old and to a new class, and how many images of each it has."""

    cluster: Hashable
    old: Hashable
    old_images: int
    new: Hashable
    new_images: int


def shared_clusters(truth: Labels, clusters: Labels, *, old: Classes) -> tuple[SharedCluster, ...]:
    """Return the clusters that legacy matching assigns to both an old and a new class, the largest first."""
    chosen = set(old)
    pairs = list(zip(truth, clusters, strict=True))
    counts = Counter(pairs)
    parts = ([pair for pair in pairs if (pair[0] in chosen) == kind] for kind in (True, False))
    of_old, of_new = (metrics.match([t for t, _ in part], [c for _, c in part], old=chosen) for part in parts)
    found = [
        SharedCluster(cluster=c, old=t, old_images=counts[t, c], new=of_new[c], new_images=counts[of_new[c], c])
        for c, t in of_old.items()
        if c in of_new
    ]
    return tuple(sorted(found, key=lambda each: -(each.old_images + each.new_images)))


@style.style()
def legacy_inflation(run: Run) -> Figure:
    """Plot accuracy under one matching and under the two of legacy, and the clusters that these use twice."""
    a = run.assignments
    free = (a.status != LABELLED) & ~a.binned
    rows = [row for row, t in enumerate(a.truth) if t is not None and free[row]]
    if not rows:
        raise style.LeftOutError(NO_TRUTH)
    truth, clusters, old = [a.truth[row] for row in rows], a.category_id[rows].tolist(), known_names(run.categories)
    one, two = metrics.accuracy(truth, clusters, old=old), metrics.legacy_accuracy(truth, clusters, old=old)
    shared = shared_clusters(truth, clusters, old=old)
    figure = style.figure(style.TEXT_WIDTH, 3.2, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _bars(left, one, two)
    _clusters(right, shared, run.names)
    left.set_title("Accuracy")
    largest = f"; the {MOST_CLUSTERS} largest" if len(shared) > MOST_CLUSTERS else ""
    right.set_title(f"{len(shared):,} of {plural(len(set(clusters)), 'cluster')} used twice{largest}")
    style.caption(figure, _caption(len(rows), one, two, shared))
    return style.freeze_layout(figure)


def _caption(images: int, one: Accuracy, two: Accuracy, shared: Sequence[SharedCluster]) -> str:
    assert one.all is not None
    assert two.all is not None
    more = f"Legacy matching counts {round((two.all - one.all) * images):,} more of them as correct."
    old, new = sum(each.old_images for each in shared), sum(each.new_images for each in shared)
    twice = f" Clusters used twice count for {plural(old, 'image')} of old classes and {new:,} of new ones; "
    twice += "under one assignment, each of them counts for one class only."
    return f"{plural(images, 'unlabelled image')}. {more}{twice if shared else ''}"


def _bars(axes: Axes, one: Accuracy, two: Accuracy) -> None:
    parts = [part for part, share in vars(one).items() if share is not None]
    at = np.arange(len(parts))
    looks = (
        ("One assignment", one, -0.2, style.DARK, ""),
        ("Legacy: two assignments", two, 0.2, "white", "////"),
    )
    for label, found, shift, colour, hatch in looks:
        values = [getattr(found, part) for part in parts]
        bars = axes.bar(at + shift, values, 0.38, color=colour, hatch=hatch, edgecolor=style.DARK, label=label, lw=0.8)
        axes.bar_label(bars, [f"{100 * value:.1f}" for value in values], fontsize=7, padding=1.5)
    axes.set(xticks=at, xticklabels=[part.title() for part in parts], ylim=(0, 1.12), yticks=np.linspace(0, 1, 6))
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    style.percents(axes.yaxis)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, columnspacing=1, handlelength=1.4)


def _clusters(axes: Axes, shared: Sequence[SharedCluster], names: Mapping[Any, str]) -> None:
    """Draw one bar per cluster: its images of the old class, then those of the new one."""
    axes.grid(visible=False, axis="y")
    if not shared:
        axes.text(0.5, 0.5, "No cluster is used\nfor an old and a new class.", ha="center", va="center", c=style.GREY)
        axes.set_axis_off()
        return
    listed = shared[:MOST_CLUSTERS]
    at = np.arange(len(listed))
    old, new = np.array([each.old_images for each in listed]), np.array([each.new_images for each in listed])
    axes.barh(at, old, 0.55, color=style.BLUE, label="Images of an old class")
    look: Any = {"color": style.ORANGE, "hatch": "////", "edgecolor": "white", "lw": 0}
    axes.barh(at, new, 0.55, left=old, label="Images of a new class", **look)
    longest = 0
    for row, each in enumerate(listed):
        names_of = style.drawable(each.old, CLUSTER_LENGTH), style.drawable(each.new, CLUSTER_LENGTH)
        text = f" {names_of[0]} ({each.old_images:,}) + {names_of[1]} ({each.new_images:,})"
        axes.text(old[row] + new[row], row, text, va="center", fontsize=7)
        longest = max(longest, len(text))
    room = 1 - CHARACTER_WIDTH * longest  # for the bars
    axes.set(
        xlabel="images, by true class",
        ylabel="predicted category",
        xlim=(0, (old + new).max() / room),
        ylim=(max(len(listed), 4) - 0.5, -0.5),
    )
    axes.set_yticks(at, [style.drawable(names[each.cluster], CLUSTER_LENGTH) for each in listed])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, columnspacing=1, handlelength=1.4)


def plot(chart: Chart, legend_title: str = "") -> Figure:
    """Draw a chart, with a legend below it."""
    figure = style.figure(style.TEXT_WIDTH * 0.75, 3.4, layout="constrained")
    axes = figure.add_subplot()
    for span in chart.spans:
        axes.axvspan(span.low, span.high, color=style.BLUE, alpha=0.12, lw=0, label=f"{span.name}: {span.text}")
    for spread in chart.spreads:
        x, y = zip(*((at, value) for at, each in spread.values for value in each), strict=True)
        axes.scatter(x, y, 9, style.PALE, linewidths=0, zorder=2, label=spread.name)
    for line in chart.lines:
        colour, dashes = LOOKS[line.style]
        label = f"{line.name}: {line.text}" if line.text else line.name
        axes.plot(*zip(*line.points, strict=True), dashes, c=colour, label=label)
    for point in chart.points:
        axes.plot(point.x, point.y, "o", c=LOOKS[point.style][0], ms=point.size, label="_")
    for upright in chart.uprights:
        colour, dashes = LOOKS[upright.style]
        axes.axvline(upright.x, c=colour, ls=dashes, lw=1.4, label=f"{upright.name}: {upright.text}")
    axes.set(title=chart.title, xlabel=chart.x.title, ylabel=chart.y.title)
    axes.set(xscale="log" if chart.x.log else "linear", xlim=_ends(chart.x), ylim=_ends(chart.y))
    _set_ticks(axes.xaxis, chart.x)
    _set_ticks(axes.yaxis, chart.y)
    figure.legend(loc="outside lower center", ncols=3, title=legend_title or None)
    return figure


def _set_ticks(axis: Axis, own: curves.Axis) -> None:
    axis.set_major_locator(FixedLocator([value for value, _ in own.ticks]))
    axis.set_major_formatter(FixedFormatter([text for _, text in own.ticks]))
    axis.set_minor_locator(NullLocator())


def _ends(axis: curves.Axis) -> tuple[float, float]:
    """Return where an axis ends: with room for points on both sides if it is logarithmic, else for the top line."""
    if axis.log:
        room = (axis.high / axis.low) ** 0.04 if axis.high > axis.low else 1.1
        return axis.low / room, axis.high * room
    return axis.low, axis.high + 0.01 * (axis.high - axis.low)
