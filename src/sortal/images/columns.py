"""Columns: what a table says of each image besides its label, with one type for each column, inferred once.

Nothing that a cell holds is an error. Numbers and times are kept in one notation, all other cells as they were written.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from sortal.system.text import numbered

ColumnKind = Literal["number", "time", "category", "text"]
GROUP_COLUMN = "group"  # the column that says which images belong together
NEAR_DUPLICATES = "near-duplicates"  # first word of the names of groups that were found, not given
OWN_PREFIX = "own_"  # of columns that are called like one of Sortal's
LONGEST_COLUMN_NAME = 200  # characters
MOST_VALUES, LONGEST_VALUE = 200, 80  # of a category: different ones, at most half as many as cells; characters of each
MISSING = frozenset({"", "na", "n/a", "n.a.", "nan", "nat", "null", "none", "<na>", "-", "--", "?"})  # in any case
# Digits after a leading zero, or very many, are those of an identifier, not of a number.
PLAIN = re.compile(r"[+-]?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3}){1,4}(\.\d+)?", re.ASCII)
DECIMAL_COMMA = re.compile(r"[+-]?(0|[1-9]\d{0,14})(,\d+)?", re.ASCII)
CLOCK = r"(?:[ T](\d{1,2}):(\d\d)(?::(\d\d))?)?"
SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # that stand for no byte, so that no file can hold them
YEAR_FIRST = re.compile(r"(\d{4})[:/.](\d{1,2})[:/.](\d{1,2})" + CLOCK, re.ASCII)  # colons are those of EXIF
YEAR_LAST = re.compile(r"(\d{1,2})([/.])(\d{1,2})[/.](\d{4})" + CLOCK, re.ASCII)


@dataclass(frozen=True, eq=False)
class ImageColumn:
    """A cell for each image, as text; empty where there is none. Numbers are 1234.5, times ISO 8601."""

    name: str
    kind: ColumnKind
    cells: tuple[str, ...] = field(repr=False)

    @classmethod
    def infer(cls, name: str, cells: Sequence[object]) -> "ImageColumn":
        """Make a column of cells of any type. Groups are called by their cells, even if those are numbers."""
        texts = [*map(as_text, cells)]
        different = {cell for cell in texts if not is_missing(cell)}
        for kind in ("number", "time") if different and name != GROUP_COLUMN else ():
            for rewrite in NOTATIONS[kind]:
                rewritten = {cell: rewrite(cell.strip()) for cell in different}
                if None not in rewritten.values() and not _ambiguous(rewrite, different):
                    return cls(name, kind, tuple(rewritten.get(cell) or cell for cell in texts))
        filled = sum(not is_missing(cell) for cell in texts)
        few = len(different) <= min(MOST_VALUES, max(2, filled // 2))
        short = all(len(cell) <= LONGEST_VALUE for cell in different)
        return cls(name, "category" if few and short else "text", tuple(texts))

    def typed(self) -> Sequence[str | Decimal | None]:
        """Return the cells as tables have them: text, or numbers with all of their digits; None for a missing one."""
        if self.kind != "number":
            return self.cells
        return [Decimal(cell) if PLAIN.fullmatch(cell) else None for cell in self.cells]

    @cached_property
    def values(self) -> tuple[float | None, ...]:
        """The number of each cell, of a time its seconds since 1970; None where there is none, or in other columns."""
        read = {"number": _number, "time": _seconds}.get(self.kind)
        known = {cell: None if read is None else read(cell) for cell in {*self.cells}}
        return tuple(known[cell] for cell in self.cells)

    def array(self) -> NDArray[Any] | list[str]:
        """Return the cells as a data frame has them: numbers, times in UTC, or text."""
        if self.kind == "number":
            return np.array([math.nan if x is None else x for x in self.values])
        if self.kind == "time":
            return np.array([None if x is None else round(x * 1000) for x in self.values], dtype="datetime64[ms]")
        return [*self.cells]


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a set of images; all have as many cells."""

    each: tuple[ImageColumn, ...] = ()

    @classmethod
    def infer(cls, names: Sequence[str], cells: Iterable[Sequence[object]], reserved: Iterable[str] = ()) -> "Columns":
        """Make columns of cells of any type, a sequence for each name; names become `unique_names`."""
        return cls(tuple(map(ImageColumn.infer, unique_names(names, reserved), cells)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.each)

    def get(self, name: str) -> ImageColumn | None:
        """Return the column of this name, if there is one."""
        return next((column for column in self.each if column.name == name), None)

    def groups(self, n: int) -> NDArray[np.int64]:
        """Return the number (n,) of the group of each of n images; an image without one has a number of its own."""
        given, numbers = self.get(GROUP_COLUMN), dict[str, int]()
        cells = given.cells if given is not None else ("",) * n
        found = (
            row if is_missing(cell) else numbers.setdefault(cell, n + len(numbers)) for row, cell in enumerate(cells)
        )
        return np.fromiter(found, dtype=np.int64, count=n)

    def take(self, rows: Iterable[int]) -> "Columns":
        """Return these rows; types stay as they are."""
        rows = [*rows] if self.each else []
        return Columns(tuple(replace(each, cells=tuple(each.cells[row] for row in rows)) for each in self.each))

    def followed(self, n: int, more: "Columns", m: int) -> "Columns":
        """Return the columns of n rows, followed by those of m more; cells that a column does not have are empty.

        A column of both keeps its type where both agree.
        """
        found = []
        for name in dict.fromkeys((*self.names, *more.names)):
            parts = self.get(name), more.get(name)
            cells = sum((part.cells if part else ("",) * size for part, size in zip(parts, (n, m), strict=True)), ())
            kinds = [part.kind for part in parts if part is not None and any(part.cells)]
            same = len({*kinds}) == 1
            found.append(ImageColumn(name, kinds[0], cells) if same else ImageColumn.infer(name, cells))
        return Columns(tuple(found))

    def beside(self, *more: ImageColumn) -> "Columns":
        """Return these columns and others of the same images, which replace those of the same name."""
        names = {column.name for column in more}
        return Columns((*(column for column in self.each if column.name not in names), *more))


NO_COLUMNS = Columns()


def unique_names(names: Sequence[str], reserved: Iterable[str] = ()) -> list[str]:
    """Return a name of its own for each column, on one line, none of them reserved.

    A reserved name gets a prefix, a repeated one a number; a column without a name is called by its number.
    """
    reserved, found = {*reserved}, list[str]()
    for number, name in enumerate(names, start=1):
        clean = normalize("NFC", " ".join(as_text(name).split()))[:LONGEST_COLUMN_NAME] or f"column {number}"
        own = f"{OWN_PREFIX}{clean}" if clean in reserved else clean
        found.append(numbered(own, {*reserved, *found}))
    return found


def as_text(cell: object) -> str:
    """Return a cell of any table as text; empty for none."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    text = json.dumps(cell, ensure_ascii=False) if isinstance(cell, bool | dict | list) else str(cell)
    return SURROGATES.sub("\ufffd", text)


def is_missing(cell: str) -> bool:
    """Tell whether a cell is empty, or says that there is nothing."""
    return cell.strip().casefold() in MISSING


def _number(cell: str) -> float | None:
    return float(cell) if PLAIN.fullmatch(cell) else None


def _seconds(cell: str) -> float | None:
    """Return the seconds since 1970 of a time in ISO 8601; one without a zone counts as in UTC."""
    try:
        time = datetime.fromisoformat(cell)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


# Notations: functions that rewrite a text, or return None for one that is in another notation


def _plain(text: str) -> str | None:
    return text if PLAIN.fullmatch(text) else None


def _thousands(text: str) -> str | None:
    return text.replace(",", "") if THOUSANDS.fullmatch(text) else _plain(text)


def _decimal_comma(text: str) -> str | None:
    return text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else None


def _iso(text: str) -> str | None:
    return text if "-" in text[1:] and _seconds(text) is not None else None


def _year_first(text: str) -> str | None:
    found = YEAR_FIRST.fullmatch(text)
    return _dated(*found.groups()) if found else None


def _day_first(text: str) -> str | None:
    found = YEAR_LAST.fullmatch(text)
    return _dated(found[4], found[3], found[1], *found.groups()[4:]) if found else None


def _month_first(text: str) -> str | None:
    found = YEAR_LAST.fullmatch(text)
    return _dated(found[4], found[1], found[3], *found.groups()[4:]) if found and found[2] == "/" else None


def _dated(*parts: str | None) -> str | None:
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    try:
        time = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return time.isoformat() if parts[3] is not None else time.date().isoformat()


def _ambiguous(rewrite: Callable[[str], str | None], cells: Iterable[str]) -> bool:
    """Tell whether two notations fit: 03/04/2024 is in March or in April, 1,234 about one or a thousand.

    Another cell may decide.
    """
    for one, other in ((_day_first, _month_first), (_thousands, _decimal_comma)):
        if rewrite in (one, other):
            either = [(one(cell.strip()), other(cell.strip())) for cell in cells]
            return not any(None in pair for pair in either) and any(first != second for first, second in either)
    return False


NOTATIONS: dict[ColumnKind, tuple[Callable[[str], str | None], ...]] = {
    "number": (_plain, _thousands, _decimal_comma),
    "time": (_iso, _year_first, _day_first, _month_first),
}
