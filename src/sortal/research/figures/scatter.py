"""t-SNE: the images of a run as points, before training and after it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from sortal.config import AUTO
from sortal.features import extract
from sortal.figures import paper
from sortal.figures.backbones import UNLEARNED, backbones, why_no_before
from sortal.figures.images import cache_of, classes_of, drawn_order, stored
from sortal.figures.paper import LeftOutError, letters
from sortal.images import in_order
from sortal.inputs import check_number
from sortal.report import layout
from sortal.report.words import plural
from sortal.run import Run
from sortal.workers import Progress

POINTS = layout.POINTS  # at most; of more images a sample is shown
BEFORE, AFTER, ONLY = "Raw features", "Fine-tuned features", "Features"
GONE = "Raw features are not to be had any more."
SHAPES = {True: "o", False: "^"}  # of old classes, and of new ones
KINDS = {True: "Old classes", False: "New classes"}
PANEL, LINE = 3.0, 0.17  # inches: the height of a panel, and of a line of the legend
NAME, SHORT = 19, 4  # letters of a name: in the legend at most, and to stand among points

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """How a class is told apart from others of its kind: its colour, and a word that is written among its points."""

    word: str
    colour: str
    old: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """What every point is of, one row each."""

    names: tuple[str, ...]  # classes
    old: NDArray[np.bool_]  # (n,)
    entries: dict[str, Entry]  # of those classes that are told apart

    def rows(self, *, old: bool, told: bool) -> list[int]:
        """Those of old or new classes, of the ones that are told apart or of the others."""
        kinds = enumerate(zip(self.names, self.old.tolist(), strict=True))
        return [row for row, (name, is_old) in kinds if is_old == old and (name in self.entries) == told]

    def others(self, *, old: bool) -> set[str]:
        """The classes that are not told apart."""
        return {self.names[row] for row in self.rows(old=old, told=False)}


def tsne(
    run: Run,
    *,
    points: int = POINTS,
    seed: int = 0,
    device: str = AUTO,
    workers: int | None = None,
    on_progress: Progress = lambda *_: None,
    on_note: Callable[[str], None] = logger.info,
) -> Figure:
    """Images that are alike beside each other, by raw and by fine-tuned features: the same images in both panels.

    At most `points` images, drawn by seed and content. Circles are of old classes, triangles of new ones; the nine
    largest classes of either are coloured, the others grey. Where there is nothing from before training to be shown,
    there is one panel, and that is noted.
    """
    check_number("points", points, int, 1)
    rows = drawn_order(run, seed)[:points]
    features = {AFTER: np.asarray(run.features[rows])}
    lacking = why_no_before(run)
    try:
        features = {BEFORE: _raw(run, rows, device, workers, on_progress), **features}
    except LeftOutError as error:
        on_note(f"t-SNE shows one set of features. {error}")
        if lacking == UNLEARNED:
            features = {ONLY: features[AFTER]}
    places, cache = {}, cache_of(run)
    for name, x in features.items():
        on_progress(f"Placing images by their {name.lower()}", 0, 0)
        places[name] = layout.placed(x, seed=seed, folder=None if cache is None else cache / "map")
    classes = classes_of(run)
    names, old = tuple(classes.names[row] for row in rows.tolist()), classes.old[rows]
    how = "t-SNE" if min(map(_different, features.values())) >= layout.FEWEST else "principal components"
    both = ", the same in both panels" if len(features) == 2 else ""
    said = f"{len(rows):,} of {plural(len(run.assignments), 'image')}{both}, by {classes.said}; {how}, seed {seed}."
    if not both:
        said += f" {lacking or GONE}"
    return _drawn(places, Points(names=names, old=old, entries=_entries(names, old)), said)


def _raw(run: Run, rows: NDArray[np.int64], device: str, workers: int | None, tell: Progress) -> NDArray[np.float32]:
    """Features by the backbone as it was before training, (n, d); kept in the run's cache."""
    if lacking := why_no_before(run):
        raise LeftOutError(lacking)
    before = backbones(run).before
    assert before is not None
    return extract(
        before,
        stored(run, rows, workers=workers, on_progress=tell),
        normalise=True,
        folder=cache_of(run),
        device=device,
        precision=run.about["precision"],
        on_progress=tell,
    )


def _different(x: NDArray[np.float32]) -> int:
    return len(np.unique(x, axis=0))


def _entries(names: Sequence[str], old: NDArray[np.bool_]) -> dict[str, Entry]:
    """The largest classes, as many old and as many new ones as there are colours; old ones first.

    Where names are too long to stand among points, letters do instead.
    """
    told: dict[str, tuple[str, bool]] = {}
    for kind in (True, False):
        counts = Counter(name for name, is_old in zip(names, old.tolist(), strict=True) if is_old == kind)
        largest = sorted(counts, key=lambda name: (-counts[name], name))[: len(paper.COLOURS)]
        told |= {name: (colour, kind) for name, colour in zip(in_order(largest), paper.COLOURS, strict=False)}
    words = [letters(name) for name in told]
    if any(len(word) > SHORT for word in words):
        words = list(ascii_uppercase[: len(told)])
    return {name: Entry(word, *look) for word, (name, look) in zip(words, told.items(), strict=True)}


# On paper


@paper.style()
def _drawn(places: Mapping[str, NDArray[np.int64]], points: Points, said: str) -> Figure:
    lines = max(_lines(points, kind) for kind in (True, False))
    height = 0.3 + PANEL + 0.3 + LINE * lines + 0.2
    drawn = paper.figure(paper.WIDTH, height)
    for at, (name, xy) in enumerate(places.items()):
        left, wide = (0.005 + 0.505 * at, 0.485) if len(places) == 2 else (0.2, 0.6)
        axes = drawn.add_axes((left, 1 - (0.3 + PANEL) / height, wide, PANEL / height), label=name)
        axes.set_title(name)
        _scatter(axes, xy, points)
    for kind, left in ((True, 0.0), (False, 0.505)):
        _legend(drawn, points, kind, (left, 1 - (0.35 + PANEL) / height))
    paper.caption(drawn, said)
    return drawn


def _scatter(axes: Axes, xy: NDArray[np.int64], points: Points) -> None:
    size = float(np.clip(12_000 / max(1, len(xy)), 5, 22))
    for told in (False, True):
        for kind, shape in SHAPES.items():
            rows = points.rows(old=kind, told=told)
            if not rows:
                continue
            colours = [points.entries[points.names[row]].colour if told else paper.PALE for row in rows]
            x, y = xy[rows].T
            axes.scatter(x, y, size, colours, marker=shape, linewidths=0, alpha=0.85, label=_label(kind, told))
    for name, entry in points.entries.items():
        own = xy[[row for row, each in enumerate(points.names) if each == name]]
        x, y = own[np.abs(own - np.median(own, axis=0)).sum(axis=1).argmin()]
        halo = [patheffects.withStroke(linewidth=2, foreground="white")]
        axes.text(x, y, entry.word, fontsize=7, weight="bold", ha="center", va="center", path_effects=halo)
    ends = (-0.03 * layout.SPAN, 1.03 * layout.SPAN)
    axes.set(xlim=ends, ylim=ends, xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=paper.PALE, linewidth=0.6)


def _label(old: bool, told: bool) -> str:
    return KINDS[old] if told else f"{KINDS[old]}, others"


def _lines(points: Points, kind: bool) -> int:
    entries = sum(entry.old == kind for entry in points.entries.values()) + bool(points.others(old=kind))
    return -(-entries // 2)


def _entry(name: str, entry: Entry) -> str:
    shown = letters(name, NAME)
    return shown if entry.word == shown else f"{entry.word}  {shown}"


def _legend(drawn: Figure, points: Points, kind: bool, corner: tuple[float, float]) -> None:
    entries = [(_entry(name, each), each.colour) for name, each in points.entries.items() if each.old == kind]
    if others := points.others(old=kind):
        entries.append((f"{len(others):,} more", paper.PALE))
    if entries:
        drawn.legend(
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
