"""One table: a row an image."""

import csv as csvlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

from sortal.errors import InputError
from sortal.export.job import Job
from sortal.export.names import plain
from sortal.run import safe_cell
from sortal.segments import write_atomically


def csv(job: Job) -> Sequence[str]:
    write_atomically(job.out, csv_bytes(_columns(job)))
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


def csv_bytes(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """As the tables of a run: what a spreadsheet would take for a formula gets a ' in front."""
    text = io.StringIO()
    writer = csvlib.writer(text, lineterminator="\n", quoting=csvlib.QUOTE_NONNUMERIC)
    writer.writerow(columns)
    writer.writerows([safe_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue().encode("utf-8", "surrogateescape")


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
