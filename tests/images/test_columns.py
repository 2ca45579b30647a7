"""Columns of tables: names, types, and rows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sortal.images.columns import NO_COLUMNS, Columns, ImageColumn, unique_names
from sortal.system import csv_tables

ODD_CELLS = st.one_of(st.text(), st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.integers()))


@pytest.mark.parametrize(
    ("cells", "kind", "kept"),
    [
        (["1", "-2.5", "1e3", "NA", ""], "number", ["1", "-2.5", "1e3", "NA", ""]),
        (["1,234.5", "12", "-7,000"], "number", ["1234.5", "12", "-7000"]),
        (["3,14", "2"], "number", ["3.14", "2"]),
        (["1,234", "0,5"], "number", ["1.234", "0.5"]),
        (["1,234", "12.5"], "number", ["1234", "12.5"]),
        (["1,234", "2"], "category", ["1,234", "2"]),  # nothing says what the comma is
        ([3, 4.5, None, math.nan], "number", ["3", "4.5", "", ""]),
        (["007", "7"], "category", ["007", "7"]),  # an identifier
        (["12345678901234567890"], "category", ["12345678901234567890"]),
        (["12", "about 13"], "category", ["12", "about 13"]),
        ([True, False], "category", ["true", "false"]),
        (["2024-05-01", "2024-05-01T08:00:00+02:00", "?"], "time", ["2024-05-01", "2024-05-01T08:00:00+02:00", "?"]),
        (["2024:05:01 08:00:09"], "time", ["2024-05-01T08:00:09"]),
        (["24.12.2024", "1.2.2024 7:05"], "time", ["2024-12-24", "2024-02-01T07:05:00"]),
        (["03/04/2024", "24/12/2024"], "time", ["2024-04-03", "2024-12-24"]),
        (["03/04/2024", "12/24/2024"], "time", ["2024-03-04", "2024-12-24"]),
        (["03/04/2024", "05/06/2024"], "category", ["03/04/2024", "05/06/2024"]),  # nothing says which is the month
        (["2024-02-30"], "category", ["2024-02-30"]),
        (["", "n/a"], "category", ["", "n/a"]),
        (["a", "b", "c", "d"], "text", ["a", "b", "c", "d"]),
        (["a", "a", "b", "b"], "category", ["a", "a", "b", "b"]),
        (["x" * 81], "text", ["x" * 81]),
        ([[1, 2], {"a": None}], "category", ["[1, 2]", '{"a": null}']),
    ],
)
def test_types_are_inferred(cells: list[object], kind: str, kept: list[str]) -> None:
    column = ImageColumn.infer("x", cells)
    assert (column.kind, [*column.cells]) == (kind, kept)


def test_a_group_is_called_as_it_is_written() -> None:
    groups = ImageColumn.infer("group", ["1,234", "1,234", "2024/5/1", ""])
    assert (groups.kind, groups.cells) == ("category", ("1,234", "1,234", "2024/5/1", ""))
    assert ImageColumn.infer("group", [1, 1, 2, None]).kind == "category"


@given(st.lists(ODD_CELLS, max_size=5))
def test_no_cell_is_a_reason_to_fail(cells: list[object]) -> None:
    column = ImageColumn.infer("x", cells)
    again = ImageColumn.infer("x", column.cells)
    assert (again.kind, again.cells) == (column.kind, column.cells)  # what was rewritten stays
    assert len(column.values) == len(column.typed()) == len(column.array()) == len(cells)
    if column.kind in ("number", "time"):
        assert any(value is not None for value in column.values)


def test_values_are_numbers_and_seconds() -> None:
    assert ImageColumn.infer("x", ["1,000.0", "?"]).values == (1000.0, None)
    assert ImageColumn.infer("x", ["1970-01-02", ""]).values == (86400.0, None)
    assert ImageColumn.infer("x", ["1970-01-01T01:00:00+01:00"]).values == (0.0,)
    assert ImageColumn.infer("x", ["a", "b"]).values == (None, None)
    days = ImageColumn.infer("x", ["1970-01-02", ""]).array()
    assert np.array_equal(days, np.array(["1970-01-02", "NaT"], dtype="datetime64[ms]"), equal_nan=True)
    exact = ImageColumn.infer("x", ["0.10000000000000000001", "NA"]).typed()
    assert [None if cell is None else str(cell) for cell in exact] == ["0.10000000000000000001", None]


def test_text_can_be_written() -> None:
    column = ImageColumn.infer("x", ["a\ud800b", ["\udfff"], "caf\udce9"])
    assert column.cells == ("a\ufffdb", '["\ufffd"]', "caf\udce9")  # the last is a byte that is not UTF-8
    [name] = unique_names(["n\ud800"])
    assert name == "n\ufffd"
    csv_tables.table([(name, column.cells)])


def test_names_become_unique() -> None:
    names = ["note", "note", "note (2)", "", "status", "own_status", " a \n b ", "e\u0301"]
    expected = ["note", "note (2)", "note (2) (2)", "column 4", "own_status", "own_status (2)", "a b", "\u00e9"]
    assert unique_names(names, {"status"}) == expected
    assert len(unique_names(["x" * 500, "x" * 501])) == 2


def test_rows_are_taken_and_followed_by_others() -> None:
    some = Columns.infer(["n", "t"], [["1", "2"], ["a", "b"]])
    assert [column.cells for column in some.take([1, 0, 1]).each] == [("2", "1", "2"), ("b", "a", "b")]
    both = some.followed(2, Columns.infer(["n", "z"], [["x"], ["9"]]), 1)
    assert [(each.name, each.kind, each.cells) for each in both.each] == [
        ("n", "text", ("1", "2", "x")),
        ("t", "category", ("a", "b", "")),
        ("z", "number", ("", "", "9")),
    ]
    assert [each.kind for each in some.followed(2, NO_COLUMNS, 1).each] == [each.kind for each in some.each]
    assert some.beside(ImageColumn.infer("n", [3, 4])).names == ("t", "n")
