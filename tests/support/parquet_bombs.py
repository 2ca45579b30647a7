"""Small Parquet tables that stand for gigabytes, and what is said of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

SMALL = 200_000  # bytes of every bomb


def write(path: Path, table: Any, **options: Any) -> None:
    parquet.write_table(table, path, **options)
    assert path.stat().st_size < SMALL


def same_text(rows: int, length: int) -> Any:
    """Return a column of one text, which is stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * length]))


def many_rows(path: Path) -> None:
    names = pa.DictionaryArray.from_arrays(pa.array(bytearray(10_000_000), pa.int8()), pa.array(["a"]))
    write(path, pa.table({"file_name": names, "label": names}), compression="zstd")


def many_rows_of_nothing(path: Path) -> None:
    write(path, pa.table({"file_name": pa.nulls(40_000_000), "label": pa.nulls(40_000_000)}))


def one_text_often(path: Path) -> None:
    write(path, pa.table({"file_name": same_text(5000, 10**6), "label": ["x"] * 5000}), compression="zstd")


def texts_below_the_limit_often(path: Path) -> None:
    text = same_text(200_000, 100_000)
    write(path, pa.table({"file_name": text, "label": ["x"] * 200_000}), compression="zstd")


def a_long_text(path: Path) -> None:
    write(path, pa.table({"file_name": ["x" * 15 * 10**7], "label": ["x"]}), compression="zstd", use_dictionary=False)


def growing_texts(path: Path) -> None:
    """Each text is the one before and a character, as which it is stored."""
    names = pa.array(["x" * at for at in range(1, 30_000)])
    how: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"file_name": "DELTA_BYTE_ARRAY"}}
    write(path, pa.table({"file_name": names, "label": pa.nulls(len(names), pa.string())}), compression="zstd", **how)


def nested(path: Path) -> None:
    lists = pa.ListArray.from_arrays(pa.array([0, 10**7]), pa.nulls(10**7))
    write(path, pa.table({"file_name": ["a"], "label": lists}), compression="zstd")


def a_long_text_that_is_denied(path: Path) -> None:
    """A page that is far larger than the end of the file says."""
    a_long_text(path)
    content, size = path.read_bytes(), parquet.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    true, false = varint(2 * size), b"\x94\x80\x80\x80\x00"  # as thrift writes numbers: twice as much; 10, as long
    assert len(true) == len(false)
    assert true in content[start:]
    path.write_bytes(content[:start] + content[start:].replace(true, false))
    assert parquet.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size == 10


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


BOMBS: tuple[tuple[Callable[[Path], None], str], ...] = (
    (many_rows, r"has 10,000,000 or more rows, but a Parquet file of its size has at most 262,144\. Save it as CSV"),
    (many_rows_of_nothing, r"has 40,000,000 or more rows"),
    (one_text_often, r"has a cell with more than 131,072 characters"),
    (texts_below_the_limit_often, r"MB or more in its cells, but a file of its size has at most 67\.1 MB"),
    (a_long_text, r"has 150\.0 MB or more in its cells"),
    (a_long_text_that_is_denied, r"has 150\.0 MB or more in its cells"),
    (growing_texts, r"MB or more in its cells"),
    (nested, r"has an invalid label\. A label must be text or a number, got list<"),
)
