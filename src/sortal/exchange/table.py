"""One table with a row per image."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from sortal.exchange.format import LeftOut, Request
from sortal.images import parquet_tables
from sortal.images.columns import GROUP_COLUMN
from sortal.images.exported import ExportedRow, utf8
from sortal.system.csv_tables import Column, record_columns, table
from sortal.system.files import write_atomically
from sortal.system.text import numbered

# Columns of an image that embeddings have beside its own.
EMBEDDING_COLUMNS = ("label", "category", "status", "confidence", "group", "calibrated")


def csv(request: Request) -> LeftOut:
    request, left = _unchanged(request)
    _write(request, table(_columns(request)))
    return left


def parquet(request: Request) -> LeftOut:
    """Write the same columns, typed. Parquet text is UTF-8, so other bytes in names are escaped."""
    arrow, parquet = parquet_tables.arrow("The format parquet", "export as csv")
    request, left = _unchanged(request)
    _write(request, _table(parquet, arrow.table(_typed(request, arrow))))
    return left


def embeddings(request: Request) -> LeftOut:
    """Write the learned features of each image as Parquet, with its name, category, confidence and own columns."""
    arrow, parquet = parquet_tables.arrow("The format embeddings", "export as csv")
    kept = [row for row in range(len(request.rows)) if not request.originals.has_changed(row)]
    request, left = _unchanged(request)
    x = np.ascontiguousarray(request.run.features[kept], dtype=np.float32)
    typed = _typed(request, arrow)
    left_out = {*ExportedRow._fields} - {*EMBEDDING_COLUMNS, *["path"] * request.absolute_paths}
    columns = {"id": arrow.array(_ids(request.rows), arrow.string())} | {
        name: each for name, each in typed.items() if name not in left_out
    }
    values = arrow.array(x.ravel(), arrow.float32())
    columns["features"] = arrow.FixedSizeListArray.from_arrays(values, x.shape[1])
    _write(request, _table(parquet, arrow.table(columns)))
    return left


def _ids(rows: Sequence[ExportedRow]) -> list[str]:
    """Return the names of images, with their folder and a number where several have the same."""
    counts = Counter(row.file_name for row in rows)
    named = [f"{row.image_folder}/{row.file_name}" if counts[row.file_name] > 1 else row.file_name for row in rows]
    found = dict[str, None]()
    for name in map(utf8, named):
        found[numbered(name, found)] = None
    return [*found]


def _typed(request: Request, arrow: Any) -> dict[str, Any]:
    """Return the columns of a table as arrays of pyarrow, by name."""
    own = [each for each in request.run.assignments.columns.each if each.name != GROUP_COLUMN]
    numbers = [each.name for each in own if each.kind == "number"]
    types = {"category_id": arrow.int64()} | dict.fromkeys(("confidence", *numbers), arrow.float64())
    columns = {}
    for name, column in _columns(request):
        cells = [utf8(value) or None if isinstance(value, str) else value for value in column]
        cells = [float(value) if isinstance(value, Decimal) else value for value in cells]
        columns[utf8(name)] = arrow.array(cells, types.get(name, arrow.string()))
    return columns


def _table(parquet: Any, table: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _unchanged(request: Request) -> tuple[Request, LeftOut]:
    """Leave out files that are known to have changed: what their row says is not true of them.

    A table needs no files, so those that are missing are in it.
    """
    changed = {number for number in range(len(request.rows)) if request.originals.has_changed(number)}
    rows = tuple(row for number, row in enumerate(request.rows) if number not in changed)
    names = tuple(request.rows[number].file_name for number in sorted(changed))
    return replace(request, rows=rows), LeftOut(changed=names)


def _columns(request: Request) -> list[tuple[str, Column]]:
    has_truth = any(row.truth for row in request.rows)
    left_out = {"image_folder", "path", "group", "calibrated", "own", *["truth"] * (not has_truth)} - {*request.places}
    own: list[tuple[str, Column]] = [
        (each.name, [row.own[each.name] for row in request.rows])
        for each in request.run.assignments.columns.each
        if each.name != GROUP_COLUMN
    ]
    return [*record_columns(request.rows, [name for name in ExportedRow._fields if name not in left_out]), *own]


def _write(request: Request, content: bytes) -> None:
    write_atomically(request.out, content)
    request.runtime.progress("Exporting", len(request.rows), len(request.rows))
