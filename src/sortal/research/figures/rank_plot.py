"""The plot of mean ranks with their critical difference: methods that do not differ are joined by a bar."""

import math

from matplotlib.figure import Figure

from sortal.research.benchmark.significance import MeanRanks
from sortal.research.figures import style

LINE = 0.24  # inches between names, and between bars
SCALE_HEIGHT = 0.7  # inches for the scale and the critical difference


@style.style()
def rank_plot(ranking: MeanRanks) -> Figure:
    """Draw a scale of ranks, the best on the left, with the names of its half on each side (Demšar 2006, figure 1)."""
    names, m = [*ranking.ranks], len(ranking.ranks)
    left, groups = math.ceil(m / 2), ranking.groups
    first = 0.5 * len(groups) + 0.6  # of the lines with names, below the scale and the bars
    depth = first + left
    figure = style.figure(style.TEXT_WIDTH, SCALE_HEIGHT + LINE * (depth + 1))
    axes = figure.add_axes((0.24, 0.02, 0.52, 0.96))
    axes.set(xlim=(1, m), ylim=(depth, -SCALE_HEIGHT / LINE))
    axes.axis("off")
    axes.plot([1, m], [0, 0], c=style.DARK, lw=1, clip_on=False)
    for tick in range(1, m + 1):
        axes.plot([tick, tick], [0, -0.3], c=style.DARK, lw=1, clip_on=False)
        axes.text(tick, -0.4, str(tick), ha="center", va="bottom")
    axes.plot([1, 1 + ranking.critical], [-1.8, -1.8], c=style.ORANGE, lw=2, clip_on=False, label="critical")
    axes.text(1, -1.95, f"critical difference {ranking.critical:.2f}", ha="left", va="bottom", color=style.ORANGE)
    for place, name in enumerate(names):
        rank, on_left = ranking.ranks[name], place < left
        row = first + (place if on_left else m - 1 - place)
        end = 1 - 0.02 * (m - 1) if on_left else m + 0.02 * (m - 1)
        axes.plot([rank, rank, end], [0, row, row], c=style.GREY, lw=0.8, clip_on=False, label=name)
        text = f"{style.drawable(name)}  {rank:.2f}" if on_left else f"{rank:.2f}  {style.drawable(name)}"
        axes.text(end, row, f"{text} " if on_left else f" {text}", ha="right" if on_left else "left", va="center")
    for number, group in enumerate(groups):
        ends, y = [ranking.ranks[group[0]], ranking.ranks[group[-1]]], 0.35 + 0.5 * number
        axes.plot(ends, [y, y], c=style.BLUE, lw=4, solid_capstyle="round", clip_on=False, label="group")
    return style.freeze_layout(figure)
