"""Legacy matching: how much matching old and new classes separately inflates accuracy, and where."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sortal import metrics
from sortal.metrics import Accuracy, Classes, Labels
from sortal.research.figures import style
from sortal.research.figures.curves import NO_TRUTH
from sortal.research.figures.samples import known_names
from sortal.research.figures.style import LeftOutError, drawable
from sortal.runs.run import LABELLED, Run
from sortal.system.text import plural

LISTED = 8  # shared clusters shown, the largest first
NAME = 11  # characters of a name
CHARACTER = 0.02  # the width of one, as a share of the axis


@dataclass(frozen=True, kw_only=True)
class SharedCluster:
    """A cluster that legacy matching gives to an old and a new class, and its images of both."""

    cluster: Hashable
    old: Hashable
    old_images: int
    new: Hashable
    new_images: int


def shared_clusters(truth: Labels, clusters: Labels, *, old: Classes) -> tuple[SharedCluster, ...]:
    """Return the clusters that legacy matching gives to both an old and a new class, largest first.

    A single matching gives each of them to at most one of the two.
    """
    chosen = set(old)
    pairs = list(zip(truth, clusters, strict=True))
    counts = Counter(pairs)
    matched = []
    for kind in (True, False):
        part = [(t, c) for t, c in pairs if (t in chosen) == kind]
        matched.append(metrics.match([t for t, _ in part], [c for _, c in part], old=chosen))
    of_old, of_new = matched
    found = [
        SharedCluster(cluster=c, old=t, old_images=counts[t, c], new=of_new[c], new_images=counts[of_new[c], c])
        for c, t in of_old.items()
        if c in of_new
    ]
    return tuple(sorted(found, key=lambda each: -(each.old_images + each.new_images)))


@style.style()
def legacy_inflation(run: Run) -> Figure:
    """Plot accuracy under one matching and under legacy's two, and the clusters that legacy matching uses twice.

    Covers the unlabelled images whose true class is known.
    """
    a = run.assignments
    rows = [row for row, t in enumerate(a.truth) if t is not None and a.status[row] != LABELLED]
    if not rows:
        raise LeftOutError(NO_TRUTH)
    truth, clusters, old = [a.truth[row] for row in rows], a.category[rows].tolist(), known_names(run)
    one, two = metrics.accuracy(truth, clusters, old=old), metrics.legacy_accuracy(truth, clusters, old=old)
    shared = shared_clusters(truth, clusters, old=old)
    figure = style.figure(style.WIDTH, 3.2, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _bars(left, one, two)
    _clusters(right, shared, run.names)
    left.set_title("Accuracy")
    largest = f"; the {LISTED} largest" if len(shared) > LISTED else ""
    right.set_title(f"{len(shared):,} of {plural(len(set(clusters)), 'cluster')} used twice{largest}")
    style.caption(figure, _caption(len(rows), one, two, shared))
    return style.freeze_layout(figure)


def _caption(images: int, one: Accuracy, two: Accuracy, shared: Sequence[SharedCluster]) -> str:
    assert one.all is not None
    assert two.all is not None
    text = f"{plural(images, 'unlabelled image')}. "
    text += f"Legacy matching counts {round((two.all - one.all) * images):,} more of them as correct."
    if shared:
        old, new = sum(each.old_images for each in shared), sum(each.new_images for each in shared)
        text += f" Clusters used twice count for {plural(old, 'image')} of old classes and {new:,} of new ones; "
        text += "under one assignment, each of them counts for one class only."
    return text


def _bars(axes: Axes, one: Accuracy, two: Accuracy) -> None:
    parts = [part for part, share in vars(one).items() if share is not None]
    at = np.arange(len(parts))
    looks = (("One assignment", one, -0.2, style.ALL, ""), ("Legacy: two assignments", two, 0.2, "white", "////"))
    for label, found, shift, colour, hatch in looks:
        values = [getattr(found, part) for part in parts]
        bars = axes.bar(at + shift, values, 0.38, color=colour, hatch=hatch, edgecolor=style.ALL, label=label, lw=0.8)
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
    listed = shared[:LISTED]
    at = np.arange(len(listed))
    old, new = np.array([each.old_images for each in listed]), np.array([each.new_images for each in listed])
    axes.barh(at, old, 0.55, color=style.OLD, label="Images of an old class")
    look: Any = {"color": style.NEW, "hatch": "////", "edgecolor": "white", "lw": 0}
    axes.barh(at, new, 0.55, left=old, label="Images of a new class", **look)
    longest = 0
    for row, each in enumerate(listed):
        text = f" {drawable(each.old, NAME)} ({each.old_images:,}) + {drawable(each.new, NAME)} ({each.new_images:,})"
        axes.text(old[row] + new[row], row, text, va="center", fontsize=7)
        longest = max(longest, len(text))
    room = 1 - CHARACTER * longest  # for the bars
    axes.set(xlabel="images", xlim=(0, (old + new).max() / room), ylim=(max(len(listed), 4) - 0.5, -0.5))
    axes.set_yticks(at, [drawable(names[each.cluster], NAME) for each in listed])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, columnspacing=1, handlelength=1.4)
