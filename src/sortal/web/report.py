"""The report page: records, thumbnails and the map in one HTML file of at most 20 MB."""

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

from sortal.runs import projection
from sortal.runs.run import LABELLED, Run
from sortal.system.progress import Runtime
from sortal.system.text import percent, plural, readable
from sortal.web import charts, summary
from sortal.web.confusion import confusion
from sortal.web.thumbnails import Sheets, Store, make_sheets

LIMIT = 19_500_000  # bytes of the file
CARD_ROOM, MAP_ROOM = 9_000_000, 3_500_000  # bytes of thumbnails at most, before base64
CARD_CELLS, MAP_CELLS = (32, 192), (40, 80)  # pixels: their smallest and largest size
PER_IMAGE = 12  # bytes that the width and height of a thumbnail add to the page
SENTENCE = 5000  # characters of a note or a command
QUARANTINED = 500  # unreadable files listed
MAP, THUMBNAILS = "Drawing the map", "Making thumbnails"
SCRIPTS = ("script.js", "cards.js", "map.js")
# Characters that could end the script or start a tag, and line ends that are legal in JSON but not in old scripts.
_ESCAPED = "<>&\u2028\u2029"


@dataclass(frozen=True, kw_only=True)
class Detail:
    """How many images per category and points on the map are shown."""

    typical: int
    doubtful: int
    points: int
    most: int = 10**9  # categories that this is meant for


DETAILS = (
    Detail(typical=10, doubtful=5, points=projection.POINTS, most=120),
    Detail(typical=5, doubtful=5, points=projection.POINTS, most=2500),
    Detail(typical=3, doubtful=2, points=projection.POINTS, most=6000),
    Detail(typical=1, doubtful=1, points=3000),
    Detail(typical=1, doubtful=0, points=1000),
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The images on the page: those of cards and candidates, then those that are only on the map."""

    cards: list[summary.Card]
    groups: list[summary.Group]
    rows: list[int]
    pictured: int  # how many of the rows, the first ones, belong to cards and candidates
    points: NDArray[np.int64]  # rows on the map
    places: NDArray[np.int64]  # (points, 2)


def make_report(
    run: Run, store: Store, *, seed: int = 0, folder: Path | None = None, runtime: Runtime = Runtime()
) -> bytes:
    """Return the report of a run as an HTML file. `store` holds the pixels of each row of its assignments.

    `folder` caches the map, which takes longest and depends only on the features and the sample of images.
    """
    a = run.assignments
    points = projection.sample(a.category, a.distance, projection.POINTS, seed=seed)
    runtime.progress(MAP, 0, len(points))
    order = np.argsort(points)  # by row, so that a different k still finds the cached map
    places = np.empty((len(points), 2), dtype=np.int64)
    places[order] = projection.place_cached(run.features[points[order]], seed=seed, folder=folder)
    runtime.progress(MAP, len(points), len(points))
    for detail in (each for each in DETAILS if len(run.categories) <= each.most):
        page = _Page(run, _select(run, detail, points, places))
        sheets = _sheets(store, page.selection, LIMIT - len(page.render([])), runtime)
        if sheets is not None:
            return page.render(sheets)
    return page.render([])


def _select(run: Run, detail: Detail, points: NDArray[np.int64], places: NDArray[np.int64]) -> Selection:
    cards = summary.cards(run, typical=detail.typical, doubtful=detail.doubtful)
    groups = summary.groups(run)
    first = [row for card in cards for row in (*card.typical, *card.doubtful)]
    first = list(dict.fromkeys([*first, *(row for group in groups for row in group.rows)]))
    points, places = points[: detail.points], places[: detail.points]
    rows = list(dict.fromkeys([*first, *points.tolist()]))
    return Selection(cards=cards, groups=groups, rows=rows, pictured=len(first), points=points, places=places)


def _sheets(store: Store, selection: Selection, left: int, runtime: Runtime) -> list[Sheets] | None:
    """Make thumbnails for the cards, and for as many other points of the map as fit."""
    rows = selection.rows
    left = (left - PER_IMAGE * len(rows)) * 3 // 4  # base64 turns three bytes into four
    first, others = rows[: selection.pictured], rows[selection.pictured :]

    def count_from(before: int) -> Callable[[int], None]:
        return lambda done: runtime.progress(THUMBNAILS, before + done, len(rows))

    count_from(0)(0)
    room = min(CARD_ROOM, left)
    cards = make_sheets(store, first, room=room, cells=CARD_CELLS, on_done=count_from(0)) if room > 0 else None
    if cards is None:
        return None
    room = min(MAP_ROOM, left - cards.bytes)
    while others:
        if made := make_sheets(store, others, room=room, cells=MAP_CELLS, on_done=count_from(len(first))):
            return [cards, made]
        others = others[: len(others) // 2]  # still a fair sample: they are in random order
    return [cards]


class _Page:
    """A page without its thumbnails, whose size decides how much room is left for them."""

    def __init__(self, run: Run, selection: Selection) -> None:
        self.selection = shown = selection
        place = {row: at for at, row in enumerate(shown.rows)}
        self.data: dict[str, Any] = {
            "images": summary.images(run, shown.rows),
            "categories": summary.categories(shown.cards, place),
            "groups": [[place[row] for row in group.rows] for group in shown.groups],
            "map": {
                "image": [place[row] for row in shown.points.tolist()],
                "x": shown.places[:, 0].tolist(),
                "y": shown.places[:, 1].tolist(),
            },
        }
        self.values = _values(run, shown)

    def render(self, sheets: Sequence[Sheets]) -> bytes:
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


def _values(run: Run, shown: Selection) -> dict[str, Any]:
    """Return the variables of the template."""
    metrics = run.metrics
    unlabelled = run.assignments.confidence[run.assignments.status != LABELLED]
    found = (charts.risk_coverage(metrics.risk_coverage), charts.reliability(metrics.reliability)) if metrics else ()
    return {
        "summary": summary.summary(run),
        "method": run.k.method,
        "k_curve": charts.k_curve(run.k),
        "metrics": metrics,
        "curves": [chart for chart in found if chart],
        "confusion": confusion(metrics.confusion, run.categories) if metrics else None,
        "histogram": charts.histogram(unlabelled, run.confidence.unsure_below),
        "confidence": summary.explain_confidence(run),
        "groups": shown.groups,
        "candidates": len(run.candidates),
        "unreadable": run.quarantine[:QUARANTINED],
        "notes": [readable(note, SENTENCE) for note in run.facts.notes],
        "facts": summary.facts(run),
        "command": readable(run.facts.command, SENTENCE),
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
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for each in _ESCAPED:
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text


def _part(name: str) -> str:
    return files("sortal.web").joinpath("static", name).read_text(encoding="utf-8")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(percent=percent, plural=plural, readable=readable)
    return environment.from_string(_part("page.html"))
