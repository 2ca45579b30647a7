"""One table: a row an image."""

import io
from collections.abc import Sequence
from typing import Any

from sortal.cells import table
from sortal.errors import InputError
from sortal.export.job import Job
from sortal.export.names import plain
from sortal.segments import write_atomically


def csv(job: Job) -> Sequence[str]:
    write_atomically(job.out, table([*_columns(job).items()]))
    job.on_progress("Exporting", len(job.rows), len(job.rows))
    return ()


def parquet(job: Job) -> Sequence[str]:
    """The same columns with their types. Parquet's text is UTF-8, so names that are not are written with escapes."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError('The format parquet needs pyarrow: pip install "sortal[parquet]", or export as csv.') from None
    types = {"category": pyarrow.int64(), "confidence": pyarrow.float64()}
    columns = {
        name: pyarrow.array(
            [plain(value) if isinstance(value, str) else value for value in column], types.get(name, pyarrow.string())
        )
        for name, column in _columns(job).items()
    }
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    write_atomically(job.out, buffer.getvalue())
    job.on_progress("Exporting", len(job.rows), len(job.rows))
    return ()


def _columns(job: Job) -> dict[str, list[Any]]:
    rows = job.rows
    columns: dict[str, list[Any]] = {
        "file_name": [row.file for row in rows],
        "path": [row.path or None for row in rows],
        "category": [row.category for row in rows],
        "category_name": [row.name for row in rows],
        "status": [row.status for row in rows],
        "confidence": [row.confidence for row in rows],
        "label": [row.label for row in rows],
    }
    truth = [row.truth for row in rows]
    return {**columns, "truth": truth} if any(name is not None for name in truth) else columns
