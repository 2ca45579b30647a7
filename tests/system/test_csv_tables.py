"""Tables as CSV: any text is read as it was written, nothing is a formula, and faults are located."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.system import csv_tables

FORMULA = (*"=+-@\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")  # characters that start one, for some program
CELLS = st.builds(str.__add__, st.sampled_from(["", "'", *FORMULA]), st.text(st.characters(codec="utf-8"), max_size=20))


@given(st.lists(st.tuples(CELLS, CELLS), max_size=8))
def test_any_text_is_read_unchanged_and_none_is_a_formula(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("cells") / "table.csv"
    columns = [("a", [row[0] for row in rows]), ("b", [row[1] for row in rows])]
    path.write_bytes(csv_tables.table(columns))
    assert csv_tables.read(path) == dict(columns)
    with path.open(encoding="utf-8", newline="") as file:
        assert not [cell for row in csv.reader(file) for cell in row if cell.startswith(FORMULA)]


def test_bytes_that_are_not_utf8_and_very_long_cells_are_read_unchanged(tmp_path: Path) -> None:
    path, names = tmp_path / "table.csv", ["caf\udce9.jpg", "x" * 200_000]
    path.write_bytes(csv_tables.table([("file_name", names)]))
    assert b'"caf\xe9.jpg"' in path.read_bytes(), "in the bytes of the file system"
    assert csv_tables.read(path) == {"file_name": names}


def test_only_cells_that_look_like_formulas_are_escaped() -> None:
    for first in csv_tables.FORMULA:
        assert csv_tables.safe_cell(f"{first}1") == f"'{first}1"
    assert {*FORMULA, "'"} <= {*csv_tables.FORMULA}
    values: list[Any] = ["a=1", " =", None, -1, np.int64(-1), -0.5, np.float64(1 / 3), np.nan, np.inf, np.str_("=")]
    found = [csv_tables.safe_cell(value) for value in values]
    assert found == ["a=1", " =", "", -1, -1, -0.5, 0.333333, "", "", "'="]


def test_columns_must_be_equally_long() -> None:
    with pytest.raises(ValueError, match="shorter"):
        csv_tables.table([("a", ["x", "y"]), ("b", ["z"])])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must have columns"),
        ("a,a\n1,2\n", "must have columns, each under a name of its own"),
        ("a,b\n1,2\n\n3\n", "must have 2 cells in every row, got 1 in line 4"),
        ('a,b\n"1\n",2\n"3"4,5\n', "is damaged in line 4"),
    ],
)
def test_damage_is_a_value_error_that_names_the_table(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(ValueError, match=rf"^table\.csv {message}"):
        csv_tables.read(tmp_path / "table.csv")
