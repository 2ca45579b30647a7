"""The page: records, thumbnails and the map filled into one HTML file of at most 20 MB."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from sortal.report import charts, layout, records, thumbnails, words
from sortal.report.confusion import confusion
from sortal.report.thumbnails import Sheets, Store
from sortal.run import LABELLED, Run
from sortal.workers import Progress

LIMIT = 19_500_000  # bytes of the file
CARD_ROOM, MAP_ROOM = 9_000_000, 3_500_000  # bytes that thumbnails may take in any case, before base64
CARD_CELLS, MAP_CELLS = (32, 192), (40, 80)  # pixels: their smallest and largest sizes
PER_IMAGE = 12  # bytes that the size of a thumbnail may add to the page
SENTENCE = 5000  # characters of a note or a command
MAP, THUMBNAILS = "Drawing the map", "Making thumbnails"
SCRIPTS = ("script.js", "cards.js", "map.js")
# What ends a script or begins a tag must not be in it, nor the line ends that JSON knows and scripts did not.
_ESCAPED = "<>&\u2028\u2029"


@dataclass(frozen=True, kw_only=True)
class Share:
    """How much is shown."""

    typical: int
    doubtful: int
    points: int
    most: int = 10**9  # categories for which this is not too much


SHARES = (
    Share(typical=10, doubtful=5, points=layout.POINTS, most=120),
    Share(typical=5, doubtful=5, points=layout.POINTS, most=2500),
    Share(typical=3, doubtful=2, points=layout.POINTS, most=6000),
    Share(typical=1, doubtful=1, points=3000),
    Share(typical=1, doubtful=0, points=1000),
)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Which images the page knows: of cards and candidates, then those that are only on the map."""

    cards: list[records.Card]
    groups: list[records.Group]
    rows: list[int]
    pictured: int  # the first so many of the rows are of cards and candidates
    points: NDArray[np.int64]  # rows on the map
    places: NDArray[np.int64]  # (points, 2)


def make(
    run: Run, store: Store, *, seed: int = 0, folder: Path | None = None, on_progress: Progress = lambda *_: None
) -> bytes:
    """The report of a run, as an HTML file. `store` holds the pixels of the rows of its assignments.

    In `folder` the map is kept, which takes longest and changes only with the features and which images are on it.
    """
    a = run.assignments
    points = layout.sample(a.category, a.distance, layout.POINTS, seed=seed)
    on_progress(MAP, 0, len(points))
    order = np.argsort(points)  # that of the images, which another k does not change
    places = np.empty((len(points), 2), dtype=np.int64)
    places[order] = layout.placed(run.features[points[order]], seed=seed, folder=folder)
    on_progress(MAP, len(points), len(points))
    shares = [share for share in SHARES if len(run.categories) <= share.most]
    for share in shares:
        shown = _shown(run, share, points, places)
        page = _Page(run, shown)
        sheets = _sheets(store, shown, LIMIT - len(page.filled([])), on_progress)
        if sheets is not None:
            return page.filled(sheets)
    return page.filled([])


def _shown(run: Run, share: Share, points: NDArray[np.int64], places: NDArray[np.int64]) -> Shown:
    cards = records.cards(run, typical=share.typical, doubtful=share.doubtful)
    groups = records.groups(run)
    first = [row for card in cards for row in (*card.typical, *card.doubtful)]
    first = list(dict.fromkeys([*first, *(row for group in groups for row in group.rows)]))
    points, places = points[: share.points], places[: share.points]
    rows = list(dict.fromkeys([*first, *points.tolist()]))
    return Shown(cards=cards, groups=groups, rows=rows, pictured=len(first), points=points, places=places)


def _sheets(store: Store, shown: Shown, left: int, on_progress: Progress) -> list[Sheets] | None:
    """Thumbnails for the cards, and for as many of the other points of the map as there is room for."""
    left = (left - PER_IMAGE * len(shown.rows)) * 3 // 4  # base64 makes four bytes of three
    total = len(shown.rows)
    first, others = shown.rows[: shown.pictured], shown.rows[shown.pictured :]

    def told(before: int) -> Callable[[int], None]:
        return lambda done: on_progress(THUMBNAILS, before + done, total)

    told(0)(0)
    room = min(CARD_ROOM, left)
    cards = thumbnails.sheets(store, first, room=room, cells=CARD_CELLS, on_done=told(0)) if room > 0 else None
    if cards is None:
        return None
    room = min(MAP_ROOM, left - cards.bytes)
    while others:
        if made := thumbnails.sheets(store, others, room=room, cells=MAP_CELLS, on_done=told(len(first))):
            return [cards, made]
        others = others[: len(others) // 2]  # the others are in a random order
    return [cards]


class _Page:
    """The page of what is shown, to be filled with thumbnails: first without any, to see how large it is."""

    def __init__(self, run: Run, shown: Shown) -> None:
        self.shown = shown
        place = {row: at for at, row in enumerate(shown.rows)}
        self.data: dict[str, Any] = {
            "images": records.images(run, shown.rows),
            "categories": records.categories(shown.cards, place),
            "groups": [[place[row] for row in group.rows] for group in shown.groups],
            "map": {
                "image": [place[row] for row in shown.points.tolist()],
                "x": shown.places[:, 0].tolist(),
                "y": shown.places[:, 1].tolist(),
            },
        }
        self.values = _values(run, shown)

    def filled(self, sheets: Sequence[Sheets]) -> bytes:
        sizes = [size for each in sheets for size in each.sizes]
        data = {
            **self.data,
            "width": [width for width, _ in sizes],
            "height": [height for _, height in sizes],
            "sheets": [_sheet(each) for each in sheets],
        }
        script = "\n".join(["'use strict';", *map(_part, SCRIPTS)])
        html = _template().render(
            **self.values,
            data=_json(data),
            style=_part("style.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
        return html.encode()


def _values(run: Run, shown: Shown) -> dict[str, Any]:
    """What the template says."""
    metrics = run.metrics or {}
    unlabelled = run.assignments.confidence[run.assignments.status != LABELLED]
    return {
        "summary": records.summary(run),
        "method": run.k.get("method"),
        "k_curve": charts.k_curve(run.k),
        "metrics": run.metrics,
        "curves": [
            chart
            for chart in (
                charts.risk_coverage(metrics.get("risk_coverage", {})),
                charts.reliability(metrics.get("reliability", [])),
            )
            if chart
        ],
        "confusion": confusion(metrics.get("confusion", []), run.categories),
        "histogram": charts.histogram(unlabelled, run.confidence.get("unsure_below")),
        "doubt": records.doubt(run),
        "groups": shown.groups,
        "candidates": len(run.candidates),
        "unreadable": records.unreadable(run),
        "notes": [words.readable(note, SENTENCE) for note in run.about.get("notes", [])],
        "facts": records.facts(run),
        "command": words.readable(run.about.get("command", ""), SENTENCE),
        "points": len(shown.points),
    }


def _sheet(sheets: Sheets) -> dict[str, Any]:
    return {
        "cell": sheets.cell,
        "columns": sheets.columns,
        "count": len(sheets.sizes),
        "crisp": sheets.crisp,
        "images": [base64.b64encode(image).decode() for image in sheets.images],
    }


def _json(value: Any) -> str:
    """JSON that can stand in a page."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for each in _ESCAPED:
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text


def _part(name: str) -> str:
    return files("sortal.report").joinpath(name).read_text(encoding="utf-8")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(percent=words.percent, plural=words.plural)
    return environment.from_string(_part("page.html"))
