"""Curves of a run: the score of each k that was tried, and accuracy against how many images are taken."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from sortal.figures import paper
from sortal.figures.paper import LeftOutError
from sortal.report.words import percent
from sortal.run import Run

LINES = {"all": ("All", paper.ALL, "-"), "old": ("Old", paper.OLD, "--"), "new": ("New", paper.NEW, "-.")}
WIDE = 5  # times the least k is the greatest, from where on an axis of k is logarithmic


@paper.style()
def k_curve(run: Run) -> Figure:
    """How well the labelled images are clustered, against the number of clusters: every restart, and their mean."""
    k = run.k
    curve = sorted(k["curve"], key=lambda tried: int(tried["k"]))
    if not curve:
        raise LeftOutError(f"The number of categories was given (k = {k['k']:,}): no others were tried.")
    drawn = paper.figure(paper.WIDTH * 0.75, 3.4, layout="constrained")
    axes = drawn.add_subplot()
    shown = [int(tried["k"]) for tried in curve]
    if k["interval"]:
        low, high = k["interval"]
        axes.axvspan(low, high, color=paper.OLD, alpha=0.12, lw=0, label=f"Interval: {low:,} to {high:,}")
    for number, tried in enumerate(curve):
        each = tried["each"]
        label = "One restart" if number == 0 else None
        axes.scatter([tried["k"]] * len(each), each, 9, paper.PALE, linewidths=0, zorder=2, label=label)
    axes.plot(shown, [tried["score"] for tried in curve], "o-", c=paper.ALL, ms=3.5, label="Mean of restarts")
    axes.axvline(k["k"], c=paper.OLD, lw=1.4, label=f"Chosen: k = {k['k']:,}")
    if run.metrics is not None:
        true = int(run.metrics["k_true"])
        axes.axvline(true, c=paper.NEW, ls="--", lw=1.4, label=f"True: k = {true:,}")
        shown.append(true)
    axes.set(xlabel="number of clusters, k", ylabel="score", title="How many classes?")
    _k_axis(axes, [*shown, k["k"], *(k["interval"] or ())])
    if k["method"] != "hidden":  # the score of which is more than an accuracy
        axes.set_ylabel("accuracy on the labelled images")
        paper.percents(axes.yaxis)
    drawn.legend(loc="outside lower center", ncols=3)
    return paper.settled(drawn)


def _k_axis(axes: Axes, shown: Sequence[int]) -> None:
    least, most = min(shown), max(shown)
    if most < WIDE * least:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(_round_numbers(least, most)))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _round_numbers(least: int, most: int) -> list[int]:
    """1, 2, 5, 10, 20 ... and, where few of them lie in a range, others between them."""
    tens = [10**power for power in range(math.ceil(math.log10(most)) + 1)]
    few, many = ([m * ten for ten in tens for m in each] for each in ((1, 2, 5), (1, 2, 3, 4, 5, 7)))
    return few if sum(least <= value <= most for value in few) >= 4 else many


@paper.style()
def risk_coverage(run: Run) -> Figure:
    """Accuracy on the surest images, against how many of all these are: of all, of old and of new classes.

    A dot on each curve says where images begin to be called unsure.
    """
    curves = {} if run.metrics is None else run.metrics["risk_coverage"]
    present = {part: curves[part] for part in LINES if curves.get(part)}
    if not present:
        raise LeftOutError("No image without a label has a known truth, so there is no accuracy to show.")
    drawn = paper.figure(paper.WIDTH * 0.75, 3.4, layout="constrained")
    axes = drawn.add_subplot()
    unsure = run.confidence["unsure_below"]
    for part, rows in present.items():
        name, colour, dashes = LINES[part]
        coverage, accuracy, least = zip(*rows, strict=True)
        axes.plot(coverage, accuracy, dashes, c=colour, label=f"{name}: {percent(accuracy[-1])}")
        sure = sum(each >= unsure for each in least)
        if 0 < sure < len(rows):
            axes.plot(coverage[sure - 1], accuracy[sure - 1], "o", c=colour, ms=5, label=f"_{name}")
    axes.set(
        xlabel="coverage: share of the images, the surest first",
        ylabel="accuracy on these images",
        title="The surer, the better?",
        xlim=(0, 1.01),
        ylim=(min(0.8, math.floor(10 * min(row[1] for rows in present.values() for row in rows)) / 10), 1.01),
    )
    paper.percents(axes.xaxis)
    paper.percents(axes.yaxis)
    told = "" if run.confidence["calibrated"] else " It is not calibrated."
    title = f"Accuracy on all images. From the dot on, confidence is below {percent(unsure, 0)}.{told}"
    drawn.legend(loc="outside lower center", ncols=3, title=title)
    return paper.settled(drawn)
