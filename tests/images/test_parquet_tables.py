"""Parquet tables that stand for far more than they seem to: refused in little memory, whatever they claim."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from support.fork_server import ForkServer, say
from support.parquet_bombs import BOMBS

from sortal.errors import InputError
from sortal.images import label_tables, parquet_tables

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux, which limits and measures memory")
PEAK = 3 * 2**29  # bytes that a process may have had at most, libraries included
ROOM = 3 * 2**30  # bytes of address space for the process that asks


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
    parquet_tables.limit_memory()
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
        "half": pa.array([np.float16(1.5), None], pa.float16()),
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
