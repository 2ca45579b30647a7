"""Filters, orders and colours: images by the columns of the user's table."""

import posixpath
import re
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.images.columns import THOUSANDS, Columns, ImageColumn, is_missing
from sortal.runs.confidence import Ints
from sortal.runs.run import Assignments
from sortal.system.text import readable

MOST_CHOICES = 100  # values of a column that are offered, the most frequent first
MOST_IN_KEY = 20  # values of a column whose colours are explained
LONGEST_CELL_SHOWN = 1000  # characters
MOST_STACKED = 60  # images of a group that are shown beside one of them
LONGEST_FILTER = 200  # characters
BETWEEN = re.compile(r"(.*?)\.\.(.*)")
COMPARED = re.compile(r"(<=|>=|<|>|=)(.*)")
YEAR = re.compile(r"\d{4}", re.ASCII)
DAY = 86400  # seconds


def described(columns: Columns) -> list[dict[str, Any]]:
    """Return the names and types of columns, and the values of those with few, for a page."""
    return [
        {"name": readable(each.name), "kind": each.kind, "choices": _choices(each) if each.kind == "category" else []}
        for each in columns.each
    ]


def _choices(column: ImageColumn) -> list[str]:
    counts = Counter(cell for cell in column.cells if not is_missing(cell))
    return [readable(cell) for cell, _ in counts.most_common(MOST_CHOICES)]


def told(a: Assignments, rows: Ints) -> dict[str, Any]:
    """Return what the columns say of images, as names and cells, and the images of the group of each, for a page."""
    cells = [[(each.name, each.cells[row]) for each in a.columns.each if each.cells[row]] for row in rows.tolist()]
    shown = [[(readable(name), readable(cell, LONGEST_CELL_SHOWN)) for name, cell in pairs] for pairs in cells]
    stacks = [np.flatnonzero(a.group == each)[:MOST_STACKED].tolist() for each in a.group[rows]]
    return {"cells": shown, "stack": stacks}


def in_order(column: ImageColumn, rows: Ints, *, down: bool = False) -> Ints:
    """Return rows ordered by a column, those without a cell last."""

    def key(row: int) -> tuple[bool, float, str]:
        value, cell = column.values[row], column.cells[row]
        number = 0.0 if value is None else value
        return (value is None if column.kind in ("number", "time") else is_missing(cell)), number, cell.casefold()

    there = sorted(rows.tolist(), key=key)
    empty = sum(key(row)[0] for row in there)
    filled, rest = there[: len(there) - empty], there[len(there) - empty :]
    return np.array([*(filled[::-1] if down else filled), *rest], dtype=np.int64)


def matching(column: ImageColumn, text: str) -> NDArray[np.bool_]:
    """Return the mask (n,) of images whose cell fits a text: 5..9, >5, <=2024-05-01 or a value, or else contains it.

    An empty text fits every cell; = alone fits those that are empty.
    """
    wanted = text.strip()
    bounds = _bounds(column, wanted)
    if bounds is not None:
        low, high = bounds
        return np.array([value is not None and low <= value <= high for value in column.values], dtype=bool)
    if wanted.startswith("="):
        exact = wanted[1:].strip().casefold()
        return np.array([cell.strip().casefold() == exact or (not exact and is_missing(cell)) for cell in column.cells])
    part = wanted.casefold()
    return np.array([part in cell.casefold() for cell in column.cells], dtype=bool)


def _bounds(column: ImageColumn, text: str) -> tuple[float, float] | None:
    """Return the least and the largest number or time that a filter means, if it means any."""
    if column.kind not in ("number", "time"):
        return None

    if between := BETWEEN.fullmatch(text):
        low, high = (_span(column, part) if part.strip() else (-np.inf, np.inf) for part in between.groups())
        return (low[0], high[1]) if low is not None and high is not None else None
    compared = COMPARED.fullmatch(text)
    if compared is None or (limit := _span(column, compared[2])) is None:
        return None
    first, last = limit
    below, above = float(np.nextafter(first, -np.inf)), float(np.nextafter(last, np.inf))
    return {"<": (-np.inf, below), "<=": (-np.inf, last), ">": (above, np.inf), ">=": (first, np.inf)}.get(
        compared[1], limit
    )


def _span(column: ImageColumn, text: str) -> tuple[float, float] | None:
    """Return the first and the last value that a text means in a column of its kind: a day or a year has many."""
    text = text.strip()
    if column.kind == "number":
        text = text.replace(",", "") if THOUSANDS.fullmatch(text) else text
    elif YEAR.fullmatch(text):
        first, after = (ImageColumn("", "time", (f"{year:04}-01-01",)).values[0] for year in (int(text), int(text) + 1))
        return None if first is None or after is None else (first, float(np.nextafter(after, -np.inf)))
    found = ImageColumn.infer("", [text])
    [value] = found.values
    if value is None or found.kind != column.kind:
        return None
    whole_day = column.kind == "time" and len(found.cells[0].strip()) == len("2024-05-01")
    return value, float(np.nextafter(value + DAY, -np.inf)) if whole_day else value


def folders_around(a: Assignments, rows: Ints) -> list[str]:
    """Return the folder that each image is in, below that of all images."""
    return [readable(posixpath.dirname(a.files[row])) for row in rows.tolist()]


def coloured(column: ImageColumn, rows: Ints) -> dict[str, Any]:
    """Return what decides the colours of images: shares of the range of a column from 0 to 1, or numbers of values.

    Shares are of ranks, so that a few unusual numbers do not make all others look the same. Without a cell it is −1.
    The key has some of the values, with their texts.
    """
    there = rows.tolist()
    if column.kind in ("number", "time"):
        texts = {value: column.cells[row] for row in there if (value := column.values[row]) is not None}
        known = sorted(texts)
        rank = {value: round(at / max(len(known) - 1, 1), 3) for at, value in enumerate(known)}
        values = [-1.0 if value is None else rank[value] for value in (column.values[row] for row in there)]
        ends = dict.fromkeys(known[at * (len(known) - 1) // 4] for at in range(5)) if known else {}
        return {"values": values, "scale": True, "key": [(rank[value], readable(texts[value])) for value in ends]}
    numbers = {cell: at for at, cell in enumerate(_choices(column))}
    values = [numbers.get(readable(column.cells[row]), -1) for row in there]
    return {"values": values, "scale": False, "key": [(at, cell) for cell, at in numbers.items()][:MOST_IN_KEY]}
