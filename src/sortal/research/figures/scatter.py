"""t-SNE: the images of a run as points, before and after training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from sortal.clustering.inputs import check_number
from sortal.images.image_set import in_order
from sortal.learning.features import extract
from sortal.research.figures import style
from sortal.research.figures.backbones import UNTRAINED, backbones, why_untrained_missing
from sortal.research.figures.samples import classes_of, load_pixels, sampling_order, writable_cache
from sortal.research.figures.style import LeftOutError, drawable
from sortal.runs import projection
from sortal.runs.run import Run
from sortal.system.progress import Runtime
from sortal.system.text import plural

POINTS = projection.POINTS  # at most; more images are sampled
BEFORE, AFTER, ONLY = "Raw features", "Fine-tuned features", "Features"
GONE = "Raw features are no longer available."
SHAPES = {True: "o", False: "^"}  # by whether the class is old
KINDS = {True: "Old classes", False: "New classes"}
PANEL, LINE = 3.0, 0.17  # inches: the height of a panel, and of a line of the legend
NAME, SHORT = 19, 4  # characters of a name: in the legend, and among the points


@dataclass(frozen=True)
class Entry:
    """A class with a colour of its own, and the word written among its points."""

    word: str
    colour: str
    old: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """The class of each point."""

    names: tuple[str, ...]  # classes
    old: NDArray[np.bool_]  # (n,)
    entries: dict[str, Entry]  # of the coloured classes

    def rows(self, *, old: bool, coloured: bool) -> list[int]:
        """Return the rows of old or new classes, of those with a colour or without."""
        kinds = enumerate(zip(self.names, self.old.tolist(), strict=True))
        return [row for row, (name, is_old) in kinds if is_old == old and (name in self.entries) == coloured]

    def others(self, *, old: bool) -> set[str]:
        """Return the classes without a colour."""
        return {self.names[row] for row in self.rows(old=old, coloured=False)}


def tsne(run: Run, *, points: int = POINTS, seed: int = 0, runtime: Runtime = Runtime()) -> Figure:
    """Plot similar images next to each other, by raw and by fine-tuned features: the same images in both panels.

    Shows at most `points` images, sampled by seed and content. Circles are old classes, triangles new ones; the nine
    largest classes of either kind are coloured, the others grey. Without features from before training, draws one
    panel and says so in a note.
    """
    check_number("points", points, int, 1)
    rows = sampling_order(run, seed)[:points]
    features = {AFTER: np.asarray(run.features[rows])}
    missing = why_untrained_missing(run)
    try:
        features = {BEFORE: _raw(run, rows, runtime), **features}
    except LeftOutError as error:
        runtime.note(f"t-SNE shows one set of features. {error}")
        if missing == UNTRAINED:
            features = {ONLY: features[AFTER]}
    places, cache = {}, writable_cache(run)
    for name, x in features.items():
        runtime.progress(f"Mapping images by their {name.lower()}", 0, 0)
        places[name] = projection.place_cached(x, seed=seed, folder=None if cache is None else cache / "map")
    classes = classes_of(run)
    names, old = tuple(classes.names[row] for row in rows.tolist()), classes.old[rows]
    how = "t-SNE" if min(map(_count_distinct, features.values())) >= projection.FEWEST else "principal components"
    both = ", the same in both panels" if len(features) == 2 else ""
    text = f"{len(rows):,} of {plural(len(run.assignments), 'image')}{both}, by {classes.meaning}; {how}, seed {seed}."
    if not both:
        text += f" {missing or GONE}"
    return _draw(places, Points(names=names, old=old, entries=_entries(names, old)), text)


def _raw(run: Run, rows: NDArray[np.int64], runtime: Runtime) -> NDArray[np.float32]:
    """Compute the features of the backbone from before training, (n, d); cached in the run."""
    if missing := why_untrained_missing(run):
        raise LeftOutError(missing)
    before = backbones(run).before
    assert before is not None
    return extract(
        before,
        load_pixels(run, rows, runtime=runtime),
        normalise=True,
        folder=writable_cache(run),
        precision=run.facts.precision,
        runtime=runtime,
    )


def _count_distinct(x: NDArray[np.float32]) -> int:
    return len(np.unique(x, axis=0))


def _entries(names: Sequence[str], old: NDArray[np.bool_]) -> dict[str, Entry]:
    """Give the largest classes colours, old ones first, and words: their names or, if these are long, letters."""
    chosen: dict[str, tuple[str, bool]] = {}
    for kind in (True, False):
        counts = Counter(name for name, is_old in zip(names, old.tolist(), strict=True) if is_old == kind)
        largest = sorted(counts, key=lambda name: (-counts[name], name))[: len(style.COLOURS)]
        chosen |= {name: (colour, kind) for name, colour in zip(in_order(largest), style.COLOURS, strict=False)}
    words = [drawable(name) for name in chosen]
    if any(len(word) > SHORT for word in words):
        words = list(ascii_uppercase[: len(chosen)])
    return {name: Entry(word, *look) for word, (name, look) in zip(words, chosen.items(), strict=True)}


@style.style()
def _draw(places: Mapping[str, NDArray[np.int64]], points: Points, text: str) -> Figure:
    lines = max(_lines(points, kind) for kind in (True, False))
    height = 0.3 + PANEL + 0.3 + LINE * lines + 0.2
    figure = style.figure(style.WIDTH, height)
    for at, (name, xy) in enumerate(places.items()):
        left, wide = (0.005 + 0.505 * at, 0.485) if len(places) == 2 else (0.2, 0.6)
        axes = figure.add_axes((left, 1 - (0.3 + PANEL) / height, wide, PANEL / height), label=name)
        axes.set_title(name)
        _scatter(axes, xy, points)
    for kind, left in ((True, 0.0), (False, 0.505)):
        _legend(figure, points, kind, (left, 1 - (0.35 + PANEL) / height))
    style.caption(figure, text)
    return figure


def _scatter(axes: Axes, xy: NDArray[np.int64], points: Points) -> None:
    size = float(np.clip(12_000 / max(1, len(xy)), 5, 22))
    for coloured in (False, True):
        for kind, shape in SHAPES.items():
            rows = points.rows(old=kind, coloured=coloured)
            if not rows:
                continue
            colours = [points.entries[points.names[row]].colour if coloured else style.PALE for row in rows]
            x, y = xy[rows].T
            axes.scatter(x, y, size, colours, marker=shape, linewidths=0, alpha=0.85, label=_label(kind, coloured))
    for name, entry in points.entries.items():
        own = xy[[row for row, each in enumerate(points.names) if each == name]]
        x, y = own[np.abs(own - np.median(own, axis=0)).sum(axis=1).argmin()]
        halo = [patheffects.withStroke(linewidth=2, foreground="white")]
        axes.text(x, y, entry.word, fontsize=7, weight="bold", ha="center", va="center", path_effects=halo)
    ends = (-0.03 * projection.SPAN, 1.03 * projection.SPAN)
    axes.set(xlim=ends, ylim=ends, xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=style.PALE, linewidth=0.6)


def _label(old: bool, coloured: bool) -> str:
    return KINDS[old] if coloured else f"{KINDS[old]}, others"


def _lines(points: Points, kind: bool) -> int:
    entries = sum(entry.old == kind for entry in points.entries.values()) + bool(points.others(old=kind))
    return -(-entries // 2)


def _entry(name: str, entry: Entry) -> str:
    shown = drawable(name, NAME)
    return shown if entry.word == shown else f"{entry.word}  {shown}"


def _legend(figure: Figure, points: Points, kind: bool, corner: tuple[float, float]) -> None:
    entries = [(_entry(name, each), each.colour) for name, each in points.entries.items() if each.old == kind]
    if others := points.others(old=kind):
        entries.append((f"{len(others):,} more", style.PALE))
    if entries:
        figure.legend(
            [Line2D([], [], ls="", marker=SHAPES[kind], ms=5, mew=0, color=colour) for _, colour in entries],
            [text for text, _ in entries],
            loc="upper left",
            bbox_to_anchor=corner,
            ncols=2,
            fontsize=7.5,
            title=KINDS[kind],
            alignment="left",
            handletextpad=0.1,
            columnspacing=1.0,
            borderpad=0.2,
            labelspacing=0.25,
        )
