"""One table with a row per image."""

import io
from collections.abc import Sequence

from sortal.errors import InputError
from sortal.runs.export.format import Request, Row, utf8
from sortal.runs.tables import Column, record_columns, table
from sortal.system.files import write_atomically


def csv(request: Request) -> Sequence[str]:
    return _write(request, table(_columns(request)))


def parquet(request: Request) -> Sequence[str]:
    """Write the same columns, typed. Parquet text is UTF-8, so other bytes in names are escaped."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError('The format parquet needs pyarrow: pip install "sortal[parquet]", or export as csv.') from None
    types = {"category_id": pyarrow.int64(), "confidence": pyarrow.float64()}
    columns = {}
    for name, column in _columns(request):
        cells = [utf8(value) or None if isinstance(value, str) else value for value in column]
        columns[name] = pyarrow.array(cells, types.get(name, pyarrow.string()))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    return _write(request, buffer.getvalue())


def _columns(request: Request) -> list[tuple[str, Column]]:
    has_truth = any(row.truth is not None for row in request.rows)
    left_out = {"image_folder", "path", *["truth"] * (not has_truth)} - {*request.places}
    return record_columns(request.rows, [name for name in Row._fields if name not in left_out])


def _write(request: Request, content: bytes) -> Sequence[str]:
    write_atomically(request.out, content)
    request.runtime.progress("Exporting", len(request.rows), len(request.rows))
    return ()
