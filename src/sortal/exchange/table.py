"""One table with a row per image."""

import io
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from sortal.errors import InputError
from sortal.exchange.format import LeftOut, Request
from sortal.images.columns import GROUP_COLUMN
from sortal.images.exported import ExportedRow, utf8
from sortal.system.csv_tables import Column, record_columns, table
from sortal.system.files import write_atomically


def csv(request: Request) -> LeftOut:
    request, left = _unchanged(request)
    _write(request, table(_columns(request)))
    return left


def parquet(request: Request) -> LeftOut:
    """Write the same columns, typed. Parquet text is UTF-8, so other bytes in names are escaped."""
    pyarrow, parquet = _arrow("parquet")
    request, left = _unchanged(request)
    numbers = [each.name for each in request.run.assignments.columns.each if each.kind == "number"]
    types = {"category_id": pyarrow.int64()} | dict.fromkeys(("confidence", *numbers), pyarrow.float64())
    columns = {}
    for name, column in _columns(request):
        cells = [utf8(value) or None if isinstance(value, str) else value for value in column]
        cells = [float(value) if isinstance(value, Decimal) else value for value in cells]
        columns[utf8(name)] = pyarrow.array(cells, types.get(name, pyarrow.string()))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    _write(request, buffer.getvalue())
    return left


def embeddings(request: Request) -> LeftOut:
    """Write the learned features of each image as Parquet, with its name, category and confidence."""
    pyarrow, parquet = _arrow("embeddings")
    rows = tuple(range(len(request.rows)))
    kept = [row for row in rows if not request.originals.has_changed(row)]
    _, left = _unchanged(request)
    x = np.ascontiguousarray(request.run.features[kept], dtype=np.float32)
    values = pyarrow.array(x.ravel(), pyarrow.float32())
    columns = {
        "id": [utf8(request.rows[row].file_name) for row in kept],
        "label": [request.rows[row].label or None for row in kept],
        "category": [request.rows[row].category for row in kept],
        "status": [request.rows[row].status for row in kept],
        "confidence": pyarrow.array([request.rows[row].confidence for row in kept], pyarrow.float64()),
        "features": pyarrow.FixedSizeListArray.from_arrays(values, x.shape[1]),
    }
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    _write(request, buffer.getvalue())
    return left


def _arrow(format: str) -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f'The format {format} needs pyarrow: pip install "sortal[parquet]", or export as csv.'
        ) from None
    return pyarrow, parquet


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
    left_out = {"image_folder", "path", "group", "own", *["truth"] * (not has_truth)} - {*request.places}
    own: list[tuple[str, Column]] = [
        (each.name, [row.own[each.name] for row in request.rows])
        for each in request.run.assignments.columns.each
        if each.name != GROUP_COLUMN
    ]
    return [*record_columns(request.rows, [name for name in ExportedRow._fields if name not in left_out]), *own]


def _write(request: Request, content: bytes) -> None:
    write_atomically(request.out, content)
    request.runtime.progress("Exporting", len(request.rows), len(request.rows))
