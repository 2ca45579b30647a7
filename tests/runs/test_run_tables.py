"""Tables as CSV; whole runs of hostile names are in tests/runs/test_run.py."""

import csv
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.runs import tables

FORMULA = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")
NAMES = st.builds(str.__add__, st.sampled_from(["", "'", *FORMULA]), st.text(st.characters(codec="utf-8"), max_size=20))


@given(st.lists(st.tuples(NAMES, NAMES), max_size=8))
def test_any_text_comes_back_and_none_is_a_formula(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("cells") / "table.csv"
    columns = [("a", [row[0] for row in rows]), ("b", [row[1] for row in rows])]
    path.write_bytes(tables.table(columns))
    assert tables.read(path) == dict(columns)
    written = list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))[1:]
    assert not [cell for row in written for cell in row if cell.startswith(FORMULA)]


def test_numbers_stay_numbers_and_what_is_none_is_empty() -> None:
    columns: list[tuple[str, list[Any]]] = [
        ("n", [np.int64(3), -2]),
        ("x", [np.float64(0.12345678), float("nan")]),
        ("t", [None, "-2"]),
    ]
    assert tables.table(columns).decode() == '"n","x","t"\n3,0.123457,""\n-2,"","\'-2"\n'
