"""Tables as CSV; a cell that a spreadsheet would run as a formula is prefixed with ', which reading removes."""

import csv
import io
from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal.system.regular_files import read_regular
from sortal.system.text import plural

Column: TypeAlias = NDArray[Any] | Sequence[Any]
# First characters of a cell that are escaped: of a formula, also full-width = + - @, and ', which is the escape itself.
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20\t\r\n'")


def safe_cell(value: Any) -> Any:
    """Return a cell as it is written: text that looks like a formula is escaped."""
    if value is None:
        return ""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return round(value, 6) if isfinite(value) else ""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def unescape_cell(text: str) -> str:
    """Undo the escaping of `safe_cell`; an apostrophe that escapes nothing stays."""
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text


def record_columns(records: Sequence[Any], fields: Sequence[str]) -> list[tuple[str, Column]]:
    """Return these fields of records as columns."""
    return [(name, [getattr(each, name) for each in records]) for name in fields]


def table(columns: Sequence[tuple[str, Column]]) -> bytes:
    """Encode columns as CSV in UTF-8; bytes of file names that are not UTF-8 are kept."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow([safe_cell(name) for name, _ in columns])
    writer.writerows(zip(*(_cells(column) for _, column in columns), strict=True))
    return text.getvalue().encode("utf-8", "surrogateescape")


def _cells(column: Column) -> Iterable[Any]:
    """Return a column as it is written; columns of numbers, of which a table has most, take a short way."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        values = column.tolist()
        return values if column.dtype.kind != "f" else [round(x, 6) if isfinite(x) else "" for x in values]
    return map(safe_cell, column)


def data_frame(columns: Sequence[tuple[str, Column]]) -> Any:
    """Return columns as a pandas.DataFrame, numbers as they are and everything else as Python objects."""
    import pandas

    series = {name: pandas.Series(list(c), dtype=getattr(c, "dtype", object)) for name, c in columns}
    return pandas.DataFrame(series)


def parse(text: str, delimiter: str = ",") -> tuple[list[str], list[list[str]]]:
    """Return the header of a table and its rows, which have as many cells; empty lines are left out.

    A ValueError says what is wrong in which line, but lacks its subject, the table.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    limit = csv.field_size_limit(max(len(text), 1))  # so that any cell that was written can be read
    try:
        header = next(reader, [])
        for cells in reader:
            if len(cells) == len(header):
                rows.append(cells)
            elif any(cells):
                wrong = f"got {len(cells)} in line {reader.line_num:,}"
                raise ValueError(f"must have {plural(len(header), 'cell')} in every row, {wrong}")
    except csv.Error as error:
        raise ValueError(f"is damaged in line {reader.line_num:,}: {error}") from None
    finally:
        csv.field_size_limit(limit)
    return header, rows


def read(path: Path) -> dict[str, list[str]]:
    """Read the columns of a table by name; raise ValueError if it is damaged."""
    text = read_regular(path).decode("utf-8", "surrogateescape")
    try:
        header, rows = parse(text)
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None
    if not header or len({*header}) < len(header):
        raise ValueError(f"{path.name} must have columns, each under a name of its own")
    return {name: [unescape_cell(row[at]) for row in rows] for at, name in enumerate(header)}
