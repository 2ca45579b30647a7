"""Curves of a run in print: the score of each k that was tried, and accuracy by coverage."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from sortal.research.figures import style
from sortal.research.figures.style import LeftOutError
from sortal.runs import curves
from sortal.runs.run import Run
from sortal.system.text import percent

LINES = {"all": ("All", style.ALL, "-"), "old": ("Old", style.OLD, "--"), "new": ("New", style.NEW, "-.")}
WIDE = 5  # the ratio of the largest to the smallest k from which their axis is logarithmic
NO_TRUTH = "No unlabelled image has a known true class, so there is no accuracy to show."


@style.style()
def k_curve(run: Run) -> Figure:
    """Plot how well the labelled images are clustered against the number of clusters: each restart, and the mean."""
    k, curve = run.k, sorted(run.k.curve, key=lambda tried: tried.k)
    if not curve:
        raise LeftOutError(f"The number of categories was given (k = {k.k:,}), so no others were tried.")
    figure = style.figure(style.WIDTH * 0.75, 3.4, layout="constrained")
    axes, shown = figure.add_subplot(), curves.shown_k(k)
    if k.interval:
        low, high = k.interval
        axes.axvspan(low, high, color=style.OLD, alpha=0.12, lw=0, label=f"Interval: {low:,} to {high:,}")
    for number, tried in enumerate(curve):
        label = "One restart" if number == 0 else None
        axes.scatter([tried.k] * len(tried.each), tried.each, 9, style.PALE, linewidths=0, zorder=2, label=label)
    means = [(tried.k, tried.score) for tried in curve]
    axes.plot(*zip(*means, strict=True), "o-", c=style.ALL, ms=3.5, label="Mean of restarts")
    axes.axvline(k.k, c=style.OLD, lw=1.4, label=f"Chosen: k = {k.k:,}")
    if run.metrics is not None:
        true = run.metrics.k_true
        axes.axvline(true, c=style.NEW, ls="--", lw=1.4, label=f"True: k = {true:,}")
        shown = [*shown, true]
    axes.set(xlabel="number of clusters, k", ylabel="score", title=curves.K_TITLE)
    _k_axis(axes, shown)
    if k.method != "hidden":  # whose score is not an accuracy
        axes.set_ylabel("accuracy on the labelled images")
        style.percents(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=3)
    return style.freeze_layout(figure)


def _k_axis(axes: Axes, shown: Sequence[int]) -> None:
    least, most = min(shown), max(shown)
    if most < WIDE * least:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(curves.log_ticks(least, most)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


@style.style()
def risk_coverage(run: Run) -> Figure:
    """Plot accuracy on the most confident images against their share: for all, old and new classes.

    A dot on each curve marks the confidence below which images are called unsure.
    """
    found = {} if run.metrics is None else curves.coverage_curves(run.metrics.risk_coverage)
    if not found:
        raise LeftOutError(NO_TRUTH)
    figure = style.figure(style.WIDTH * 0.75, 3.4, layout="constrained")
    axes = figure.add_subplot()
    unsure = run.confidence.unsure_below
    for part, points in found.items():
        name, colour, dashes = LINES[part]
        coverage, accuracy, least = zip(*points, strict=True)
        axes.plot(coverage, accuracy, dashes, c=colour, label=f"{name}: {percent(accuracy[-1])}")
        sure = sum(each >= unsure for each in least)
        if 0 < sure < len(points):
            axes.plot(coverage[sure - 1], accuracy[sure - 1], "o", c=colour, ms=5, label=f"_{name}")
    axes.set(
        xlabel="coverage: share of the images, most confident first",
        ylabel="accuracy on these images",
        title=curves.COVERAGE_TITLE,
        xlim=(0, 1.01),
        ylim=(curves.accuracy_floor(found.values()), 1.01),
    )
    style.percents(axes.xaxis)
    style.percents(axes.yaxis)
    note = "" if run.confidence.calibrated else " Confidence is not calibrated."
    title = f"Accuracy on all images. Right of the dot, confidence is below {percent(unsure, 0)}.{note}"
    figure.legend(loc="outside lower center", ncols=3, title=title)
    return style.freeze_layout(figure)
