"""Parquet tables from anyone, read in a separate process: a few bytes of such a file may expand to gigabytes.

What it holds is compared with limits while it is read in batches, and the process may have only so much memory.
"""

import os
import sys
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sortal.errors import InputError, listing
from sortal.images.columns import unique_names
from sortal.images.exported import is_exported
from sortal.system.regular_files import open_regular
from sortal.system.text import byte_sizes
from sortal.system.workers import Answer, Conversation, JsonObject, PathOrPixels, WorkFunction, WorkItem, run_workers

BATCH_ROWS = 512  # rows
LONGEST_CELL = 2**17  # characters of a cell, as in CSV
FEW_ROWS = 2**18  # that any file may have; a larger one as many as it has bytes
LITTLE_TEXT, RATIO = 2**26, 64  # bytes of cells that any file may have; a larger one so many times its own
MEMORY = 2**30  # bytes for reading, where the system can limit it
CSV = "Save it as CSV."  # which cannot expand


def read(
    path: Path, known: Collection[str], needed: Collection[str], *, others: bool = False
) -> tuple[list[str], list[Mapping[str, object]]]:
    """Return the names of all columns of a Parquet file, and those that are known as rows of texts and numbers.

    The needed columns must hold such; others that do not are left out. With `others`, unknown columns are there, too,
    also those of times and truth values; repeated ones get numbers, and long texts are shortened. Only in a table that
    Sortal exported are more columns known than `file_name` and the needed ones. Errors lack their subject, the table.
    """
    rows: list[Mapping[str, object]] = []

    def collect(_: int, batch: JsonObject) -> JsonObject:
        names = unique_names(batch["names"]) if others else batch["names"]
        rows.extend(dict(zip(names, cells, strict=True)) for cells in zip(*batch["columns"], strict=True))
        return {}

    options = {"known": [*known], "needed": [*needed], "others": others}
    return read_apart(read_batches, path, options, collect, "save it as CSV"), rows


def read_apart(function: WorkFunction, path: Path, options: JsonObject, collect: Answer, way_out: str) -> Any:
    """Return what a work function makes of a Parquet file, the batches of which are collected meanwhile."""
    if find_spec("pyarrow") is None:
        raise InputError(f"needs pyarrow: pip install 'sortal[parquet]', or {way_out}.")
    items, given = [WorkItem(0, str(path))], {**options, "way_out": f"{way_out[0].upper()}{way_out[1:]}."}
    [(_, result)] = run_workers(function, items, options=given, workers=1, answer=collect)
    if "found" in result:
        return result["found"]
    raise InputError(result.get("problem") or f"cannot be read as Parquet: {result['detail']}. {given['way_out']}")


def arrow(what: str, way_out: str) -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet, to write it."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f'{what} needs pyarrow: pip install "sortal[parquet]", or {way_out}.') from None
    return pyarrow, parquet


def read_batches(path: PathOrPixels, options: JsonObject) -> Conversation:
    """In a worker: send the columns in batches, and return the header, or the problem."""
    return within_limits(_batches(str(path), options), options)


def within_limits(batches: Generator[JsonObject, JsonObject, Any], options: JsonObject) -> Conversation:
    """In a worker: send batches, and return what is found by then, or the problem."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others reserve memory in advance
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    limit_memory()
    try:
        return {"found": (yield from batches)}
    except InputError as error:
        return {"problem": error.message}
    except MemoryError:
        return {"problem": f"needs more than {byte_sizes(MEMORY)[0]} of memory to be read. {options['way_out']}"}
    except UnicodeDecodeError:
        return {"problem": f"must have UTF-8 text in its cells, but has other bytes. {options['way_out']}"}
    except (pyarrow.ArrowException, OSError) as error:
        return {"problem": f"cannot be read as Parquet: {str(error).rstrip('.')}."}


def _batches(path: str, options: JsonObject) -> Any:
    from pyarrow import parquet

    with open_regular(path) as opened:
        size = os.fstat(opened.fileno()).st_size
        file = parquet.ParquetFile(opened, pre_buffer=False)
        header: list[str] = list(file.schema_arrow.names)
        known = {*options["known"]} if is_exported(header) else {"file_name", *options["needed"]}
        wanted = _readable(file.schema_arrow, known, options)
        check_claim(file.metadata.num_rows, 0, size)
        rows = text = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False) if wanted else ():
            rows += batch.num_rows
            check_claim(rows, text + batch.nbytes, size)
            named = zip(batch.schema.names, batch.columns, strict=True)
            columns = [cells_of(column, shorten=name not in known) for name, column in named]
            text += sum(len(cell) if isinstance(cell, str) else 8 for cells in columns for cell in cells)
            check_claim(rows, text, size)
            yield {"names": batch.schema.names, "columns": columns}
    return unique_names([name for name in header if name in wanted]) if options["others"] else header


def _readable(schema: Any, known: Collection[str], options: JsonObject) -> list[str]:
    """Return the columns to read, those of values. Nested ones may hold anything, however often."""
    wanted = [field for field in schema if field.name in known]
    others = [field for field in schema if field.name not in known] if options["others"] else []
    names = [field.name for field in wanted]
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError(f"has the column {listing(twice)} twice. Rename one of them.")
    for field in wanted:
        if field.name in options["needed"] and not is_plain(field.type):
            raise InputError(f"has an invalid {field.name}. A label must be text or a number, got {field.type}.")
    bad = {field.name for field in others if not is_value(field.type)}
    kept = [field.name for field in wanted if is_plain(field.type)]
    return [*kept, *dict.fromkeys(field.name for field in others if field.name not in bad)]


def is_plain(kind: Any) -> bool:
    """Tell whether a type is one of text or numbers."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return is_plain(kind.value_type)
    text = types.is_string(kind) or types.is_large_string(kind)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    return bool(text or number or types.is_null(kind))


def is_value(kind: Any) -> bool:
    """Tell whether a type is one of text, numbers, times or truth values."""
    from pyarrow import types

    return is_plain(kind) or types.is_boolean(kind) or (types.is_temporal(kind) and not types.is_interval(kind))


def cells_of(column: Any, *, shorten: bool = False) -> Sequence[object]:
    """Return the cells of a batch as JSON has them; a text that many cells share is not copied.

    Texts that are too long are refused, or shortened.
    """
    from pyarrow import int64, string, types

    if types.is_dictionary(column.type):
        values, indices = cells_of(column.dictionary, shorten=shorten), column.indices.to_pylist()
        return [None if at is None else values[at] for at in indices]
    if types.is_temporal(column.type):
        column = column.cast(string()) if not types.is_duration(column.type) else column.cast(int64())
    cells: list[object] = column.to_pylist()
    if any(isinstance(cell, str) and len(cell) > LONGEST_CELL for cell in cells):
        if shorten:
            return [cell[:LONGEST_CELL] if isinstance(cell, str) else cell for cell in cells]
        raise InputError(f"has a cell with more than {LONGEST_CELL:,} characters. Shorten it.")
    if types.is_decimal(column.type):
        return [None if cell is None else str(cell) for cell in cells]
    if types.is_float16(column.type):
        return [None if cell is None else float(cell) for cell in cells]  # type: ignore[arg-type]
    return cells


def check_claim(rows: int, text: int, size: int, little: int = LITTLE_TEXT, ratio: int = RATIO) -> None:
    """Refuse more rows, or more bytes of cells, than a file of this size has."""
    most_rows, most_text = max(FEW_ROWS, size), max(little, ratio * size)
    if rows > most_rows:
        raise InputError(f"has {rows:,} or more rows, but a Parquet file of its size has at most {most_rows:,}. {CSV}")
    if text > most_text:
        has, limit = byte_sizes(text, most_text)
        raise InputError(f"has {has} or more in its cells, but a file of its size has at most {limit}. {CSV}")


def limit_memory() -> None:
    """Limit the memory that this process may still allocate, where the system says how much it has."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
