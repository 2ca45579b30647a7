"""Legacy matching: by how much two matches, one for old and one for new classes, inflate accuracy, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sortal import metrics
from sortal.figures import paper
from sortal.figures.images import old_names
from sortal.figures.paper import LeftOutError, letters
from sortal.metrics import Accuracy, Classes, Labels
from sortal.report.words import plural
from sortal.run import LABELLED, Run

LISTED = 8  # clusters that are used twice; of more, the largest are shown
NAME = 11  # letters of a name
LETTER = 0.02  # its width, as a share of that of the bars
PARTS = ("all", "old", "new")


@dataclass(frozen=True, kw_only=True)
class Twice:
    """A cluster that legacy matching gives to an old class and to a new one, and its images of both."""

    cluster: Hashable
    old: Hashable
    old_images: int
    new: Hashable
    new_images: int


def used_twice(truth: Labels, clusters: Labels, *, old: Classes) -> tuple[Twice, ...]:
    """The clusters that serve an old and a new class at once under legacy matching; those with most images first.

    One match leaves each of them at most one of its two classes.
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
        Twice(cluster=c, old=t, old_images=counts[t, c], new=of_new[c], new_images=counts[of_new[c], c])
        for c, t in of_old.items()
        if c in of_new
    ]
    return tuple(sorted(found, key=lambda each: -(each.old_images + each.new_images)))


@paper.style()
def legacy(run: Run) -> Figure:
    """Accuracy by one match and by legacy's two, and the clusters that legacy matching uses twice.

    On the images without a label whose truth is known.
    """
    a = run.assignments
    rows = [row for row, t in enumerate(a.truth) if t is not None and a.status[row] != LABELLED]
    if not rows:
        raise LeftOutError("No image without a label has a known truth, so there is no accuracy to show.")
    truth, clusters, old = [a.truth[row] for row in rows], a.category[rows].tolist(), old_names(run)
    one, two = metrics.accuracy(truth, clusters, old=old), metrics.legacy_accuracy(truth, clusters, old=old)
    twice = used_twice(truth, clusters, old=old)
    drawn = paper.figure(paper.WIDTH, 3.2, layout="constrained")
    left, right = drawn.subplots(1, 2, width_ratios=(1, 1.25))
    _bars(left, one, two)
    _clusters(right, twice, dict(enumerate(run.names)))
    left.set_title("Accuracy")
    used = len(set(clusters))
    largest = f"; the {LISTED} largest" if len(twice) > LISTED else ""
    right.set_title(f"{len(twice):,} of {plural(used, 'cluster')} used twice{largest}")
    paper.caption(drawn, _said(len(rows), one, two, twice))
    return paper.settled(drawn)


def _said(images: int, one: Accuracy, two: Accuracy, twice: Sequence[Twice]) -> str:
    assert one.all is not None
    assert two.all is not None
    said = f"{plural(images, 'image')} without a label. "
    said += f"Legacy matching calls {round((two.all - one.all) * images):,} more of them right."
    if twice:
        old, new = sum(each.old_images for each in twice), sum(each.new_images for each in twice)
        said += f" Clusters used twice win {plural(old, 'image')} of old classes and {new:,} of new ones; "
        said += "by one assignment each of them wins for one class only."
    return said


def _bars(axes: Axes, one: Accuracy, two: Accuracy) -> None:
    parts = [part for part in PARTS if getattr(one, part) is not None]
    at = np.arange(len(parts))
    looks = (("One assignment", one, -0.2, paper.ALL, ""), ("Legacy: two assignments", two, 0.2, "white", "////"))
    for label, found, shift, colour, hatch in looks:
        values = [getattr(found, part) for part in parts]
        bars = axes.bar(at + shift, values, 0.38, color=colour, hatch=hatch, edgecolor=paper.ALL, label=label, lw=0.8)
        axes.bar_label(bars, [f"{100 * value:.1f}" for value in values], fontsize=7, padding=1.5)
    axes.set(xticks=at, xticklabels=[part.title() for part in parts], ylim=(0, 1.12), yticks=np.linspace(0, 1, 6))
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    paper.percents(axes.yaxis)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, columnspacing=1, handlelength=1.4)


def _clusters(axes: Axes, twice: Sequence[Twice], names: Mapping[Hashable, str]) -> None:
    """One bar a cluster: its images of the old class, then those of the new one."""
    axes.grid(visible=False, axis="y")
    if not twice:
        axes.text(0.5, 0.5, "No cluster serves\nan old and a new class.", ha="center", va="center", c=paper.GREY)
        axes.set_axis_off()
        return
    listed = twice[:LISTED]
    at = np.arange(len(listed))
    old, new = np.array([each.old_images for each in listed]), np.array([each.new_images for each in listed])
    axes.barh(at, old, 0.55, color=paper.OLD, label="Images of an old class")
    axes.barh(at, new, 0.55, left=old, color=paper.NEW, hatch="////", edgecolor="white", lw=0, label="and of a new one")
    words = [
        f" {letters(each.old, NAME)} ({each.old_images:,}) + {letters(each.new, NAME)} ({each.new_images:,})"
        for each in listed
    ]
    for row, text in enumerate(words):
        axes.text(old[row] + new[row], row, text, va="center", fontsize=7)
    room = 1 - LETTER * max(map(len, words))  # what is left for bars
    axes.set(xlabel="images", xlim=(0, (old + new).max() / room), ylim=(max(len(listed), 4) - 0.5, -0.5))
    axes.set_yticks(at, [letters(names[each.cluster], NAME) for each in listed])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, columnspacing=1, handlelength=1.4)
