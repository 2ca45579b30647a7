"""One table with a row per image."""

import io
from collections.abc import Sequence
from typing import Any

from sortal.errors import InputError
from sortal.runs.export.format import ASSIGNED, Request, utf8
from sortal.runs.tables import table
from sortal.system.files import write_atomically


def csv(request: Request) -> Sequence[str]:
    return _write(request, table([*_columns(request).items()]))


def parquet(request: Request) -> Sequence[str]:
    """Write the same columns, typed. Parquet text is UTF-8, so other bytes in names are escaped."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError('The format parquet needs pyarrow: pip install "sortal[parquet]", or export as csv.') from None
    types = {"category": pyarrow.int64(), "confidence": pyarrow.float64()}
    columns = {
        name: pyarrow.array(
            [utf8(value) if isinstance(value, str) else value for value in column], types.get(name, pyarrow.string())
        )
        for name, column in _columns(request).items()
    }
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    return _write(request, buffer.getvalue())


def _columns(request: Request) -> dict[str, list[Any]]:
    rows = [
        {"file_name": row.file, "path": row.path or None, **row.assigned, "label": row.label, "truth": row.truth}
        for row in request.rows
    ]
    truth = ("truth",) if any(row["truth"] is not None for row in rows) else ()
    return {name: [row[name] for row in rows] for name in ("file_name", "path", *ASSIGNED, "label", *truth)}


def _write(request: Request, content: bytes) -> Sequence[str]:
    write_atomically(request.out, content)
    request.runtime.progress("Exporting", len(request.rows), len(request.rows))
    return ()
