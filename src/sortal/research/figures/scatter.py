"""t-SNE: the images of a run as points, before and after training."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from math import ceil
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from sortal.clustering.inputs import check_number
from sortal.clustering.tsne import differ, place
from sortal.images.class_names import in_order
from sortal.learning.features import extract
from sortal.research.figures import samples, style
from sortal.research.figures.samples import RunClasses, classes_of, load_pixels, sampling_order, writable_cache
from sortal.runs import projection
from sortal.runs.run import Run
from sortal.system.progress import Runtime
from sortal.system.text import plural

BEFORE, AFTER, ONLY = "Raw features", "Fine-tuned features", "Features"
MARKERS = {True: "o", False: "^"}  # by whether the class is old
KIND_TITLES = {True: "Old classes", False: "New classes"}
PANEL_HEIGHT, LINE_HEIGHT = 3.0, 0.17  # inches: the height of a panel, and of a line of the legend
LEGEND: dict[str, Any] = {"loc": "upper left", "alignment": "left", "ncols": 2, "fontsize": 7.5}
LEGEND |= {"handletextpad": 0.1, "columnspacing": 1.0, "borderpad": 0.2, "labelspacing": 0.25}
LEGEND_LENGTH, WORD_LENGTH = 19, 4  # characters of a name: in the legend, and among the points


@dataclass(frozen=True)
class Entry:
    """A class with a colour of its own, and the word written among its points."""

    word: str
    colour: str
    old: bool


def tsne(
    run: Run,
    *,
    points: int = projection.MAP_POINTS,
    seed: int = 0,
    cache: Path | None = None,
    runtime: Runtime = Runtime(),
) -> Figure:
    """Plot similar images next to each other, by raw and by fine-tuned features: the same images in both panels.

    Shows at most `points` images, sampled by seed and content. Circles are old classes, triangles new ones; the nine
    largest classes of either kind are coloured, the others grey. Without features from before training, draws one
    panel and says so in a note. `cache` holds pixels and features, by default that of the run.
    """
    check_number("points", points, int, 1)
    rows = sampling_order(run, seed)[:points]
    features = {AFTER: np.asarray(run.features[rows])}
    missing = samples.why_untrained_missing(run)
    try:
        features = {BEFORE: _raw(run, rows, cache, runtime), **features}
    except style.LeftOutError as error:
        runtime.note(f"t-SNE shows one set of features. {error}")
        if missing == samples.UNTRAINED:
            features = {ONLY: features[AFTER]}
    places, folder, placer = {}, writable_cache(run, cache), partial(place, device=runtime.device)
    for name, x in features.items():
        runtime.progress(f"Mapping images by their {name.lower()}", 0, 0)
        places[name] = projection.coordinates(x, placer, seed=seed, folder=None if folder is None else folder / "map")
    classes = classes_of(run)
    shown = tuple(classes.names[row] for row in rows.tolist())
    classes = replace(classes, names=shown, old=classes.old[rows], predicted=classes.predicted[rows])
    how = "t-SNE" if all(map(differ, features.values())) else "principal components"
    both = ", the same in both panels" if len(features) == 2 else ""
    text = f"{len(rows):,} of {plural(len(run.assignments), 'image')}{both}, by {classes.meaning}; {how}, seed {seed}."
    if not both:
        text += f" {missing or 'Raw features are no longer available.'}"
    return _draw(places, classes, text)


def _raw(run: Run, rows: NDArray[np.int64], cache: Path | None, runtime: Runtime) -> NDArray[np.float32]:
    """Compute the features of the backbone from before training, (n, d); cached."""
    backbone, store = samples.untrained_backbone(run), load_pixels(run, rows, cache, runtime=runtime)
    folder, precision = writable_cache(run, cache), run.facts.precision
    return extract(backbone, store, normalise=True, folder=folder, precision=precision, runtime=runtime)


def _entries(classes: RunClasses) -> dict[str, Entry]:
    """Give the largest classes colours, old ones first, and words: their names or, if these are long, letters."""
    chosen: dict[str, tuple[str, bool]] = {}
    for kind in (True, False):
        counts = Counter(compress(classes.names, classes.old == kind))
        largest = sorted(counts, key=lambda name: (-counts[name], name))[: len(style.COLOURS)]
        chosen |= {name: (colour, kind) for name, colour in zip(in_order(largest), style.COLOURS, strict=False)}
    words = [style.drawable(name) for name in chosen]
    if any(len(word) > WORD_LENGTH for word in words):
        words = list(ascii_uppercase[: len(chosen)])
    return {name: Entry(word, *look) for word, (name, look) in zip(words, chosen.items(), strict=True)}


@style.style()
def _draw(places: Mapping[str, NDArray[np.int64]], classes: RunClasses, text: str) -> Figure:
    coloured = _entries(classes)
    legends = {kind: _legend(classes, coloured, kind) for kind in KIND_TITLES}
    height = 0.3 + PANEL_HEIGHT + 0.3 + LINE_HEIGHT * max(ceil(len(each) / 2) for each in legends.values()) + 0.2
    figure = style.figure(style.TEXT_WIDTH, height)
    for at, (name, xy) in enumerate(places.items()):
        left, wide = (0.005 + 0.505 * at, 0.485) if len(places) == 2 else (0.2, 0.6)
        axes = figure.add_axes((left, 1 - (0.3 + PANEL_HEIGHT) / height, wide, PANEL_HEIGHT / height), label=name)
        axes.set_title(name)
        _scatter(axes, xy, classes, coloured)
    for kind, entries in legends.items():
        handles = [Line2D([], [], ls="", marker=MARKERS[kind], ms=5, mew=0, color=colour) for _, colour in entries]
        corner = (0.0 if kind else 0.505, 1 - (0.35 + PANEL_HEIGHT) / height)
        labels = [label for label, _ in entries]
        if entries:
            figure.legend(handles, labels, title=_title(classes, kind), bbox_to_anchor=corner, **LEGEND)
    style.caption(figure, text)
    return figure


def _title(classes: RunClasses, kind: bool) -> str:
    """Return the title of the legend of old or of new classes, which says whether they are true or predicted."""
    predicted = classes.predicted[classes.old == kind]
    return f"{KIND_TITLES[kind]}{', predicted' if predicted.all() else ', partly predicted' if predicted.any() else ''}"


def _scatter(axes: Axes, xy: NDArray[np.int64], classes: RunClasses, coloured: Mapping[str, Entry]) -> None:
    size = float(np.clip(12_000 / max(1, len(xy)), 5, 22))
    in_colour = np.array([name in coloured for name in classes.names])
    for shown in (False, True):  # the colours above the grey
        for kind, shape in MARKERS.items():
            rows = np.flatnonzero((classes.old == kind) & (in_colour == shown))
            colours = [coloured[classes.names[row]].colour if shown else style.PALE for row in rows]
            if colours:
                x, y = xy[rows].T
                axes.scatter(x, y, size, colours, marker=shape, linewidths=0, alpha=0.85)
    for name, entry in coloured.items():
        own = xy[[each == name for each in classes.names]]
        x, y = own[np.abs(own - np.median(own, axis=0)).sum(axis=1).argmin()]
        halo = [patheffects.withStroke(linewidth=2, foreground="white")]
        axes.text(x, y, entry.word, fontsize=7, weight="bold", ha="center", va="center", path_effects=halo)
    ends = (-0.03 * projection.SPAN, 1.03 * projection.SPAN)
    axes.set(xlim=ends, ylim=ends, xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=style.PALE, linewidth=0.6)


def _legend(classes: RunClasses, coloured: Mapping[str, Entry], kind: bool) -> list[tuple[str, str]]:
    """Return the text and colour of each line of the legend of old or of new classes."""
    entries = []
    for name, entry in coloured.items():
        if entry.old == kind:
            shown = style.drawable(name, LEGEND_LENGTH)
            entries.append((shown if entry.word == shown else f"{entry.word}  {shown}", entry.colour))
    others = {*compress(classes.names, classes.old == kind)} - coloured.keys()
    return [*entries, (f"{len(others):,} more", style.PALE)] if others else entries
