"""The report page: records, thumbnails and the map in one HTML file of at most 20 MB."""

import base64
import hashlib
import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from numpy.typing import NDArray

from sortal.exchange.card import card_of
from sortal.exchange.naming import shared_command, shared_text
from sortal.images.store.pixel_store import PixelStore
from sortal.runs import curves, projection
from sortal.runs.projection import Mapper
from sortal.runs.run import LABELLED, Run
from sortal.system.progress import Runtime
from sortal.system.text import percent, plural, readable
from sortal.web.report import charts, summary
from sortal.web.report.highlights import NOT_COMPARED, Comparison, Highlights, find_highlights
from sortal.web.report.summary import LONGEST_PATH, Card
from sortal.web.report.thumbnails import Sheets, make_sheets

LARGEST_REPORT = 19_500_000  # bytes of the file
CARD_ROOM, OTHER_ROOM = 9_000_000, 6_000_000  # bytes of thumbnails at most, before base64
CARD_CELLS, OTHER_CELLS = (32, 192), (40, 128)  # pixels: their smallest and largest size
NAMED_IMAGES = 8000  # that have a name and, where there is room, a picture
OTHER_POINTS = 100_000  # points on the map; 20 bytes each
BYTES_PER_IMAGE = 12  # bytes that the width and height of a thumbnail add to the page
MAP, THUMBNAILS = "Drawing the map", "Making thumbnails"
SCRIPTS = (  # in the order in which they use each other
    *(f"shared/{name}.js" for name in ("text", "dom", "geometry", "point_map")),
    *(f"report/{name}.js" for name in ("order", "sheets", "viewer", "cards", "map")),
)


@dataclass(frozen=True, kw_only=True)
class Detail:
    """How many images per category and points on the map are shown."""

    typical: int
    doubtful: int
    points: int  # on the map that have a name, and a picture if it fits
    others: int = 0  # that have only a category and a status
    images: int = 0  # on the page at least, so that one can page through categories
    most: int = 10**9  # categories that this is meant for


DETAILS = (
    Detail(typical=10, doubtful=5, points=projection.MAP_POINTS, others=OTHER_POINTS, images=NAMED_IMAGES, most=120),
    Detail(typical=5, doubtful=5, points=projection.MAP_POINTS, others=OTHER_POINTS, images=NAMED_IMAGES, most=2500),
    Detail(typical=3, doubtful=2, points=projection.MAP_POINTS, others=OTHER_POINTS, images=NAMED_IMAGES, most=6000),
    Detail(typical=1, doubtful=1, points=3000),
    Detail(typical=1, doubtful=0, points=1000),
)


def make_report(
    run: Run,
    store: PixelStore,
    mapper: Mapper,
    compared: Comparison = NOT_COMPARED,
    *,
    seed: int = 0,
    folder: Path | None = None,
    absolute_paths: bool = False,
    runtime: Runtime = Runtime(),
) -> bytes:
    """Return the report of a run as an HTML file; `store` holds the pixels of each row, and `folder` caches the map.

    Categories that have been `compared` are shown where they look alike or mixed. Unless `absolute_paths` are wanted,
    nothing on the page says where the images and the run are on this computer.
    """
    a, inside = run.assignments, np.flatnonzero(~run.assignments.binned)
    points = inside[projection.sample(a.category_id[inside], a.distance[inside], mapper.points, seed=seed)]
    runtime.progress(MAP, 0, len(points))
    order = np.argsort(points)  # by row, so that a different k still finds the cached map
    places = np.empty((len(points), 2), dtype=np.int64)
    places[order] = projection.coordinates(run.features[points[order]], mapper.place, seed=seed, folder=folder)
    runtime.progress(MAP, len(points), len(points))
    for detail in (each for each in DETAILS if len(run.categories) <= each.most):
        count = detail.points + detail.others
        cards = summary.cards(run, typical=detail.typical, doubtful=detail.doubtful)
        highlights = find_highlights(run, cards, compared)
        others = _of_each(a.category_id, (store.heights > 0) & ~a.binned, detail.images, seed)
        named = [*points[: detail.points].tolist(), *others.tolist()][: max(detail.points, detail.images)]
        page = _Page(run, cards, highlights, points[:count], places[:count], named, absolute_paths)
        sheets = _sheets(store, page, LARGEST_REPORT - len(page.render([])), runtime)
        if sheets is not None:
            return page.render(sheets)
    return page.render([])


def _of_each(category: NDArray[np.int64], present: NDArray[np.bool_], most: int, seed: int) -> NDArray[np.int64]:
    """Choose at most so many rows that are `present` (n,), about equally many of each category, in random order."""
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(present))
    order = np.argsort(category[rows], kind="stable")
    _, counts = np.unique(category[rows], return_counts=True)
    number = np.empty(len(rows), dtype=np.int64)  # of a row within its category
    number[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows[np.argsort(number, kind="stable")[:most]]


def _sheets(store: PixelStore, page: "_Page", left: int, runtime: Runtime) -> list[Sheets] | None:
    """Make thumbnails for the cards, and for as many other images as fit."""
    rows, first, others = page.rows, page.rows[: page.pictured], page.rows[page.pictured :]
    left = (left - BYTES_PER_IMAGE * len(rows)) * 3 // 4  # base64 turns three bytes into four

    def tell(done: int, before: int = 0) -> None:
        runtime.progress(THUMBNAILS, before + done, len(rows))

    tell(0)
    room = min(CARD_ROOM, left)
    cards = make_sheets(store, first, room=room, cells=CARD_CELLS, on_done=tell) if room > 0 else None
    if cards is None:
        return None
    room, tell_others = min(OTHER_ROOM, left - cards.bytes), partial(tell, before=len(first))
    while others:
        if made := make_sheets(store, others, room=room, cells=OTHER_CELLS, on_done=tell_others):
            return [cards, made]
        others = others[: len(others) // 2]  # still a fair sample: they are in random order
    return [cards]


class _Page:
    """A page without its thumbnails; its size determines how much room is left for them."""

    def __init__(
        self,
        run: Run,
        cards: Sequence[Card],
        highlights: Highlights,
        points: NDArray[np.int64],
        places: NDArray[np.int64],
        named: list[int],
        absolute_paths: bool,
    ) -> None:
        groups = summary.groups(run)
        parts = [each.rows for each in (*highlights.mixed, highlights.larger) if each is not None]
        asked = highlights.labels, highlights.apart
        shown = [*((card.typical, card.doubtful) for card in cards), groups, *parts, asked]
        first = dict.fromkeys(row for each in shown for rows in each for row in rows)
        self.pictured = len(first)  # how many of the rows, the first ones, are shown without asking
        self.rows = list(first | dict.fromkeys(named))
        place = {row: at for at, row in enumerate(self.rows)}
        on_map = [place.get(row, -1) for row in points.tolist()]
        self.data: dict[str, Any] = {
            "images": summary.images(run, self.rows, absolute_paths),
            "sources": summary.sources(run, absolute_paths),
            "columns": summary.columns(run, self.rows, absolute_paths),
            "unit": run.assignments.counted_once,
            "calibrated": run.confidence.calibrated,
            "categories": summary.categories(run, cards, self.rows),
            "map": {"image": on_map, **summary.points(run, points, places)},
        }
        scores, a, home = run.metrics, run.assignments.select(~run.assignments.binned), os.path.abspath(run.folder)
        shown_path = partial(summary.shown_path, absolute_paths=absolute_paths)
        shared = [shared_text(each, run.facts, home) for each in run.facts.notes]
        found = (curves.risk_coverage(scores.risk_coverage), charts.reliability(scores.reliability)) if scores else ()
        self.values = {
            "run": run,
            "inside": a,  # without the bin
            "highlights": highlights,
            "number": {card.category.id: at for at, card in enumerate(cards)},
            "pictures": lambda rows: " ".join(str(place[row]) for row in rows),
            "review": f"sortal review {shlex.quote(readable(shown_path(str(run.folder)), LONGEST_PATH))}",
            "folders": [each["name"] for each in self.data["sources"] if each["name"] is not None],
            "command": run.facts.command if absolute_paths else shared_command(run.facts.command),
            "notes": summary.Notes.of(run.facts.notes if absolute_paths else shared),
            "quarantine": [replace(each, file=shown_path(each.file)) for each in run.quarantine],
            "k_curve": curves.k_curve(run.k),
            "curves": [chart for chart in found if chart],
            "confusion": summary.confusion(scores.confusion, run.categories) if scores else None,
            "histogram": charts.histogram(a.confidence[a.status != LABELLED], run.confidence.unsure_below)
            if run.confidence.calibrated
            else None,
            "groups": groups,
            "card": card_of(run),
            "tables": summary.facts(run, absolute_paths),
            "points": len(points),
            "named": sum(at >= 0 for at in on_map),
        }

    def render(self, sheets: Sequence[Sheets]) -> bytes:
        sizes = [size for each in sheets for size in each.sizes]
        data = {
            **self.data,
            "width": [width for width, _ in sizes],
            "height": [height for _, height in sizes],
            "sheets": [
                {
                    "cell": each.cell,
                    "columns": each.columns,
                    "count": len(each.sizes),
                    "crisp": each.crisp,
                    "images": [base64.b64encode(image).decode() for image in each.images],
                }
                for each in sheets
            ],
        }
        # The page has one script, so modules neither import nor export anything here.
        modules = "\n".join(["'use strict';", *map(_part, SCRIPTS)])
        script = re.sub(r"^import [^;]*;\n", "", modules, flags=re.MULTILINE).replace("\nexport ", "\n")
        html = _template().render(
            **self.values,
            data=_json(data),
            style=_part("shared/style.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
        return html.encode()


def _json(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # These could end the script or start a tag, or are line ends that are legal in JSON but not in old scripts.
    for each in "<>&\u2028\u2029":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return text


def _part(name: str) -> str:
    return files("sortal.web").joinpath("static", name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(date=summary.date, percent=percent, plural=plural, readable=readable)
    environment.globals["charts"] = charts
    return environment.from_string(_part("report/page.html"))
