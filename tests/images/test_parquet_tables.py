"""Parquet tables that stand for far more than they seem to: refused in little memory, whatever they claim."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fork_server import ForkServer, say

from sortal.errors import InputError
from sortal.images import label_tables, parquet_tables

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which limits and measures memory")
SMALL = 200_000  # bytes of every bomb
PEAK = 3 * 2**29  # bytes that a process may have had at most, libraries included
ROOM = 3 * 2**30  # bytes of address space for the process that asks


def write(path: Path, table: Any, **options: Any) -> None:
    parquet.write_table(table, path, **options)
    assert path.stat().st_size < SMALL


def same_text(rows: int, length: int) -> Any:
    """Return a column of one text, which is stored once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * length]))


def many_rows(path: Path) -> None:
    names = pa.DictionaryArray.from_arrays(pa.array(bytearray(30_000_000), pa.int8()), pa.array(["a"]))
    write(path, pa.table({"file_name": names, "label": names}), compression="zstd")


def many_rows_of_nothing(path: Path) -> None:
    write(path, pa.table({"file_name": pa.nulls(40_000_000), "label": pa.nulls(40_000_000)}))


def one_text_often(path: Path) -> None:
    write(path, pa.table({"file_name": same_text(5000, 10**6), "label": ["x"] * 5000}), compression="zstd")


def texts_below_the_limit_often(path: Path) -> None:
    text = same_text(200_000, 100_000)
    write(path, pa.table({"file_name": text, "label": ["x"] * 200_000}), compression="zstd")


def a_long_text(path: Path) -> None:
    write(path, pa.table({"file_name": ["x" * 3 * 10**8], "label": ["x"]}), compression="zstd", use_dictionary=False)


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
    (many_rows, r"has 30,000,000 rows or more, but a Parquet file of its size has at most 262,144\. Save it as CSV"),
    (many_rows_of_nothing, r"has 40,000,000 rows or more"),
    (one_text_often, r"has a cell with more than 131,072 characters"),
    (texts_below_the_limit_often, r"MB or more in its cells, but a Parquet file of its size has at most 67\.1 MB"),
    (a_long_text, r"has 300\.0 MB or more in its cells"),
    (a_long_text_that_is_denied, r"has 300\.0 MB or more in its cells"),
    (growing_texts, r"MB or more in its cells"),
    (nested, r"has an invalid label\. A label must be text or a number, got list<"),
)


def read_in_little_memory(path: str) -> int:
    """In a child: read a table with little room, and say what came of it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        say("rows", len(label_tables.read(Path(path)).file_name))
    except InputError as error:
        say("problem", str(error))
    return 0


@linux_only
@pytest.mark.parametrize(("bomb", "problem"), BOMBS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_bomb_is_refused_in_little_memory(
    fork_server: ForkServer, tmp_path: Path, bomb: Callable[[Path], None], problem: str
) -> None:
    bomb(path := tmp_path / "t.parquet")
    ended = fork_server.run(read_in_little_memory, str(path), codes=[0])
    [text] = ended.each("problem")
    assert text.startswith(f"The table {str(path)!r} ")
    assert re.search(problem, text), text
    assert ended.peak < PEAK


def take_memory() -> int:
    """In a child: take more than the reader of tables may."""
    parquet_tables._limit_memory()
    try:
        say("bytes", len(bytearray(2 * parquet_tables.MEMORY)))
    except MemoryError:
        say("refused", True)
    return 0


@linux_only
def test_the_process_that_reads_has_little_memory(fork_server: ForkServer) -> None:
    assert fork_server.run(take_memory, codes=[0]).said == [["refused", True]]


def test_a_table_may_have_many_rows_if_it_is_large(tmp_path: Path) -> None:
    """Its files have different names, which take room."""
    count = parquet_tables.FEW_ROWS + 1
    names = [f"{at}.jpg" for at in range(count)]
    parquet.write_table(pa.table({"file_name": names, "label": ["x"] * count}), tmp_path / "t.parquet")
    found = label_tables.read(tmp_path / "t.parquet")
    assert found.file_name == names
    assert {*found.label} == {"x"}


def test_numbers_of_every_kind_are_labels(tmp_path: Path) -> None:
    kinds = {
        "decimal": pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)),
        "half": pa.array([1.5, None], pa.float16()),
    }
    for labels in kinds.values():
        parquet.write_table(pa.table({"file_name": ["a", "b"], "label": labels}), tmp_path / "t.parquet")
        assert label_tables.read(tmp_path / "t.parquet").label == ["1.5", None]


def test_other_columns_may_be_of_any_kind(tmp_path: Path) -> None:
    table = pa.table({"file_name": ["a"], "label": ["x"], "source": [[1, 2]], "note": [b"y"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    assert label_tables.read(tmp_path / "t.parquet", extra_columns="ignore").label == ["x"]


def test_text_that_is_none_is_refused(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"], pa.binary()).buffers())
    parquet.write_table(pa.table({"file_name": ["a"], "label": broken}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="must have UTF-8 text in its cells"):
        label_tables.read(tmp_path / "t.parquet")
