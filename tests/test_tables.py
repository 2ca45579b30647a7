"""Tables: every kind read to the same columns, every fault named with its place."""

import csv
import json
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sortal import tables
from sortal.errors import InputError

Rows = list[tuple[str, str | None]]

NFC, NFD = normalize("NFC", "café"), normalize("NFD", "café")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
not_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")


def put(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def rows(path: Path, **options: Any) -> Rows:
    table = tables.read(path, **options)
    return list(zip(table.file_name, table.label, strict=True))


def put_parquet(folder: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


# Every kind

PLAIN: Rows = [("a.jpg", "cat"), ("b/c.jpg", None), ("d.jpg", "7")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "file_name,label\na.jpg,cat\nb/c.jpg,\nd.jpg,7\n"),
        ("t.CSV", "file_name,label\na.jpg,cat\nb/c.jpg,\nd.jpg,7"),  # no new line at the end
        ("t.csv", "label,file_name\ncat,a.jpg\n,b/c.jpg\n7,d.jpg\n"),
        ("t.csv", "\ufefffile_name,label\na.jpg,cat\nb/c.jpg,-1\nd.jpg,7\n"),
        ("t.csv", '\ufeff"file_name","label"\n"a.jpg","cat"\n"b/c.jpg",""\n"d.jpg","7"\n'),
        ("t.csv", "file_name,label\r\na.jpg,cat\r\nb/c.jpg,\r\nd.jpg,7\r\n"),
        ("t.csv", "file_name,label\ra.jpg,cat\rb/c.jpg,\rd.jpg,7\r"),
        ("t.csv", "file_name;label\na.jpg;cat\nb/c.jpg;\nd.jpg;7\n"),
        ("t.csv", "file_name\tlabel\na.jpg\tcat\nb/c.jpg\t\nd.jpg\t7\n"),
        ("t.csv", " file_name , label \na.jpg, cat \nb/c.jpg,  \nd.jpg,7\n"),
        ("t.csv", "file_name,label\n\na.jpg,cat\n\n\nb/c.jpg,\nd.jpg,7\n\n"),
        ("t.tsv", "file_name\tlabel\na.jpg\tcat\nb/c.jpg\t\nd.jpg\t7\n"),
        ("t.tab", "file_name\tlabel\na.jpg\tcat\nb/c.jpg\t-1\nd.jpg\t7\n"),
        (
            "t.jsonl",
            '{"file_name": "a.jpg", "label": "cat"}\n{"file_name": "b/c.jpg", "label": null}\n'
            '{"file_name": "d.jpg", "label": 7}\n',
        ),
        (
            "t.NDJSON",
            '\ufeff{"label": "cat", "file_name": "a.jpg"}\r\n\r\n  {"file_name": "b/c.jpg"}\r\n'
            '{"file_name": "d.jpg", "label": 7.0}',
        ),
    ],
)
def test_every_kind_of_text(tmp_path: Path, name: str, content: str) -> None:
    table = tables.read(put(tmp_path, content, name))
    assert list(zip(table.file_name, table.label, strict=True)) == PLAIN
    assert table.truth is None
    assert table.path == tmp_path / name


@pytest.mark.parametrize(
    "labels", [["cat", None, "7"], pa.array(["cat", "-1", "7"]).dictionary_encode()], ids=["text", "dictionary"]
)
def test_parquet(tmp_path: Path, labels: Any) -> None:
    table = tables.read(put_parquet(tmp_path, label=labels, file_name=["a.jpg", "b/c.jpg", "d.jpg"]))
    assert list(zip(table.file_name, table.label, strict=True)) == PLAIN
    assert table.truth is None


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float32(), pa.float64()])
def test_parquet_with_numbers_and_nulls(tmp_path: Path, kind: pa.DataType) -> None:
    labels = pa.array([3, None, -1, 10], type=kind)
    path = put_parquet(tmp_path, file_name=list("abcd"), label=labels, truth=pa.array([3, 5, None, 10], type=kind))
    table = tables.read(path)
    assert table.label == ["3", None, None, "10"]
    assert table.truth == ["3", "5", None, "10"]


def test_parquet_from_pandas_with_an_index(tmp_path: Path) -> None:
    frame = pd.DataFrame({"file_name": ["a", "b"], "label": ["cat", None]}, index=[5, 6])
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    assert rows(tmp_path / "t.parquet") == [("a", "cat"), ("b", None)]


def test_parquet_without_rows(tmp_path: Path) -> None:
    assert rows(put_parquet(tmp_path, file_name=pa.array([], pa.string()), label=pa.array([], pa.string()))) == []


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_header_only(tmp_path: Path, name: str) -> None:
    separator = "," if name == "t.csv" else "\t"
    assert rows(put(tmp_path, f"file_name{separator}label\n", name)) == []


def test_truth(tmp_path: Path) -> None:
    table = tables.read(put(tmp_path, "file_name,label,truth\na,cat,cat\nb,,dog\nc,,\nd,,-1\n"))
    assert table.label == ["cat", None, None, None]
    assert table.truth == ["cat", "dog", None, None]


def test_truth_in_some_lines_of_json(tmp_path: Path) -> None:
    content = '{"file_name": "a", "label": "cat"}\n{"file_name": "b", "truth": "dog"}\n'
    table = tables.read(put(tmp_path, content, "t.jsonl"))
    assert (table.label, table.truth) == (["cat", None], [None, "dog"])


# Odd but right

HOSTILE = [
    "two words",
    "#1",
    "é",
    "חתול",
    "\u202etxt",
    "<script>alert(1)</script>",
    '=HYPERLINK("http://x","y")',
    "../../x",
    "two\nlines",
    "two\r\nlines",
    "old\rmac",
    "a,b;c\td",
    'quote"s',
    "it's",
    "a\u2028b\u0085c",
    "nul\0",
    "x" * 300,
    "nan",
    "NaN",
    "None",
    "null",
    "N/A",
    "<NA>",
    "--",
    "-1x",
    "1.0",
    "true",
    "0",
    "😀",
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_come_through(tmp_path: Path, name: str) -> None:
    cell = '"' + name.replace('"', '""') + '"'
    expected = [(name, name)]
    assert rows(put(tmp_path, f"file_name,label\n{cell},{cell}\n")) == expected
    assert rows(put(tmp_path, f"file_name\tlabel\n{cell}\t{cell}\n", "t.tsv")) == expected
    for ascii_only in (True, False):
        line = json.dumps({"file_name": name, "label": name}, ensure_ascii=ascii_only)
        assert rows(put(tmp_path, line, "t.jsonl")) == expected
    assert rows(put_parquet(tmp_path, file_name=[name], label=[name])) == expected


def test_json_can_name_files_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg") if sys.platform == "linux" else "caf\udce9.jpg"
    assert rows(put(tmp_path, json.dumps({"file_name": name, "label": "x"}), "t.jsonl")) == [(name, "x")]


def test_file_names_keep_their_spaces(tmp_path: Path) -> None:
    assert rows(put(tmp_path, "file_name,label\n a.jpg , cat \n")) == [(" a.jpg ", "cat")]


def test_quotes_within_a_cell_are_text(tmp_path: Path) -> None:
    assert rows(put(tmp_path, 'file_name,label\n5" disk.jpg,7" x\n')) == [('5" disk.jpg', '7" x')]


def test_other_spellings_in_the_cells_do_not_change_the_delimiter(tmp_path: Path) -> None:
    assert rows(put(tmp_path, "file_name,label\na;b;c.jpg,x;y;z\n")) == [("a;b;c.jpg", "x;y;z")]
    assert rows(put(tmp_path, "file_name,label\ra;b;c.jpg,x;y;z\r")) == [("a;b;c.jpg", "x;y;z")]
    assert rows(put(tmp_path, "file_name;label\na,b,c.jpg;x,y,z\n")) == [("a,b,c.jpg", "x,y,z")]


def test_an_extra_column_does_not_change_the_delimiter(tmp_path: Path) -> None:
    path = put(tmp_path, "file_name,label,size; weight; colour; note\na.jpg,cat,1\n")
    assert rows(path, extra_columns="ignore") == [("a.jpg", "cat")]


def test_big_tables_with_bigger_cells_than_csv_likes_are_errors_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"damaged in line 2: field larger than field limit") as error:
        tables.read(put(tmp_path, "file_name,label\na.jpg," + "x" * 200_000 + "\n"))
    assert len(str(error.value)) < 1000


def test_json_values(tmp_path: Path) -> None:
    values = ["null", "-1", "-1.0", "NaN", '""', '" "', '"-1"', '" -1 "', "0", "7", "7.0", "7.5", '"nan"', '" cat "']
    content = "\n".join(f'{{"file_name": "{i}", "label": {value}}}' for i, value in enumerate(values))
    found = [label for _, label in rows(put(tmp_path, content, "t.jsonl"))]
    assert found == [None] * 8 + ["0", "7", "7", "7.5", "nan", "cat"]


# Labels as names of classes


@pytest.mark.parametrize(
    "label",
    [
        None,
        "",
        " ",
        "\t\n",
        "\u00a0",
        "-1",
        " -1 ",
        "-1.0",  # how pandas writes −1 in a column of numbers with gaps
        -1,
        -1.0,
        np.int8(-1),
        np.int64(-1),
        np.float16(-1),
        np.float32(-1),
        np.float64(-1),
        float("nan"),
        np.float32("nan"),
        np.float64("nan"),
        np.datetime64("NaT"),
        Decimal("nan"),
        pd.NA,
        pd.NaT,
        np.ma.masked,
        np.str_(""),
        np.str_("-1"),
    ],
    ids=repr,
)
def test_unlabelled(label: object) -> None:
    assert tables.as_name(label) is None


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("cat", "cat"),
        (" cat ", "cat"),
        ("\tcat\n", "cat"),
        ("wild cat", "wild cat"),
        ("Cat", "Cat"),
        ("nan", "nan"),
        ("NaN", "NaN"),
        ("<NA>", "<NA>"),
        ("None", "None"),
        (np.str_("nan"), "nan"),
        (0, "0"),
        ("0", "0"),
        ("00", "00"),
        (7, "7"),
        (-2, "-2"),
        (np.int64(7), "7"),
        (np.uint8(7), "7"),
        (7.0, "7"),
        (np.float32(7), "7"),
        (np.float64(7), "7"),
        (-0.0, "0"),
        (7.5, "7.5"),
        (np.float32(7.5), "7.5"),
        (1e15, "1000000000000000"),
        (float("inf"), "inf"),
        (2**70, str(2**70)),
        pytest.param(10**400, "1" + "0" * 400, id="beyond floats"),
        (NFC, NFC),
        (NFD, NFC),  # two classes that look the same would help nobody; folders give the composed form too
    ],
)
def test_name_of_a_label(label: object, name: str) -> None:
    assert tables.as_name(label) == name
    assert type(tables.as_name(label)) is str  # not NumPy's, which shows itself as np.str_('cat')


@pytest.mark.parametrize(
    "label", [b"cat", np.bytes_(b"cat"), ["cat"], ("cat",), {"a": 1}, {"cat"}, np.array([1]), object], ids=repr
)
def test_what_is_no_label(label: object) -> None:
    """Their text would become the name of a class: "b'cat'", "['cat']"."""
    with pytest.raises(InputError, match="label"):
        tables.as_name(label)


@given(st.text())
def test_names_of_labels_stay(text: str) -> None:
    name = tables.as_name(text)
    if name is not None:
        assert tables.as_name(name) == name == tables.as_name(f"  {text}\n")
        assert name == normalize("NFC", text.strip())


@given(st.integers(-(10**20), 10**20))
def test_whole_numbers_are_one_class_however_they_are_typed(number: int) -> None:
    name = None if number == -1 else str(number)
    assert tables.as_name(number) == tables.as_name(str(number)) == name
    if abs(number) < 2**53:
        assert tables.as_name(float(number)) == name


# Faults


def refused(path: Path, pattern: str, **options: Any) -> str:
    with pytest.raises(InputError, match=pattern) as error:
        tables.read(path, **options)
    message = str(error.value)
    assert repr(str(path)) in message
    return message


def test_a_missing_table(tmp_path: Path) -> None:
    refused(tmp_path / "t.csv", "The table .* does not exist")


@pytest.mark.parametrize("name", ["nul\0.csv", pytest.param("x" * 300 + ".csv", id="long"), "a.txt/t.csv"])
def test_a_table_that_cannot_be(tmp_path: Path, name: str) -> None:
    put(tmp_path, "", "a.txt")
    refused(tmp_path / name, "The table")


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").mkdir()  # as Spark writes them
    refused(tmp_path / "t.parquet", "The table .* is not a file")


@pytest.mark.parametrize(("name", "shown"), [("t.xlsx", "'.xlsx'"), ("t.csv.gz", "'.gz'"), ("t", "no extension")])
def test_an_unknown_kind(tmp_path: Path, name: str, shown: str) -> None:
    message = refused(put(tmp_path, "file_name,label\n", name), r"must be one of CSV \(\.csv\), .*Parquet")
    assert shown in message


@linux_only
def test_a_table_that_fails_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").symlink_to("/proc/self/mem")  # a file whose first byte cannot be read
    refused(tmp_path / "t.csv", "cannot be read: Input/output error")


@not_root
def test_an_unreadable_table(tmp_path: Path) -> None:
    path = put(tmp_path, "file_name,label\n")
    path.chmod(0)
    refused(path, "cannot be read: Permission denied")


@pytest.mark.parametrize(
    ("name", "content"),
    [("t.csv", ""), ("t.csv", "\n\n"), ("t.csv", "\ufeff"), ("t.tsv", ""), ("t.jsonl", ""), ("t.jsonl", "\n \n")],
)
def test_an_empty_table(tmp_path: Path, name: str, content: str) -> None:
    refused(put(tmp_path, content, name), "not there: 'file_name', 'label'. Its columns are: none")


@pytest.mark.parametrize(
    ("name", "content", "missing", "found"),
    [
        ("t.csv", "file_name,class\na,b\n", "'label'", "'file_name', 'class'"),
        ("t.csv", "filename,label\na,b\n", "'file_name'", "'filename', 'label'"),
        ("t.csv", "File_Name,Label\na,b\n", "'file_name', 'label'", "'File_Name', 'Label'"),
        ("t.csv", "a.jpg,cat\nb.jpg,dog\n", "'file_name', 'label'", "'a.jpg', 'cat'"),  # no header
        ("t.tsv", "file_name,label\na,b\n", "'file_name', 'label'", "'file_name,label'"),
        ("t.csv", "a,b,c,d,e,f,g,h,i,j\n", "'file_name', 'label'", "'g', 'h' and 2 more"),
        ("t.jsonl", '{"file_name": "a"}\n', "'label'", "'file_name'"),
    ],
)
def test_a_missing_column(tmp_path: Path, name: str, content: str, missing: str, found: str) -> None:
    message = refused(put(tmp_path, content, name), f"must have the columns file_name and label; not there: {missing}")
    assert f"{found}." in message


def test_a_missing_column_of_parquet(tmp_path: Path) -> None:
    refused(put_parquet(tmp_path, path=["a"], label=["b"]), "not there: 'file_name'. Its columns are: 'path', 'label'")


EXTRA = [
    ("t.csv", "file_name,label,note,size,when,who\na,cat,1,2,3,4\n"),
    ("t.jsonl", '{"file_name": "a", "label": "cat", "note": [1], "size": {}, "when": true, "who": 4}'),
]


@pytest.mark.parametrize(("name", "content"), EXTRA)
def test_unknown_columns(tmp_path: Path, name: str, content: str) -> None:
    path = put(tmp_path, content, name)
    refused(path, "has unknown columns, 4: 'note', 'size', 'when' and 1 more.*extra_columns='ignore'")
    assert rows(path, extra_columns="ignore") == [("a", "cat")]


def test_unknown_columns_of_parquet(tmp_path: Path) -> None:
    path = put_parquet(tmp_path, file_name=["a"], label=["cat"], note=[[1, 2]])
    refused(path, "has unknown columns, 1: 'note'")
    assert rows(path, extra_columns="ignore") == [("a", "cat")]


@pytest.mark.parametrize("value", ["ignored", "", "warn", None, True])
def test_extra_columns_must_be_a_choice(tmp_path: Path, value: object) -> None:
    path = put(tmp_path, "file_name,label,note\na,cat,1\n")
    with pytest.raises(InputError, match="extra_columns must be"):
        rows(path, extra_columns=value)


@pytest.mark.parametrize("header", ["file_name,label,label", "file_name,file_name,label", "file_name, label,label "])
def test_a_column_twice(tmp_path: Path, header: str) -> None:
    refused(put(tmp_path, f"{header}\na,b,c\n"), "names the column '(label|file_name)' twice")


def test_a_column_of_parquet_twice(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["file_name", "label", "label"])
    parquet.write_table(twice, tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "names the column 'label' twice")


def test_a_key_of_json_twice(tmp_path: Path) -> None:
    """JSON readers take the last one; here that would choose one of two labels without a word."""
    content = '{"file_name": "a", "label": "x"}\n{"file_name": "b", "label": "cat", "label": "dog"}\n'
    refused(put(tmp_path, content, "t.jsonl"), "'label'.*line 2|line 2.*'label'")


@pytest.mark.parametrize(
    ("content", "cells", "line"),
    [
        ("file_name,label\na,b\nc\n", 1, 3),
        ("file_name,label\na,b,c\n", 3, 2),
        ("file_name,label\n\n\na,b,c\n", 3, 4),  # lines as an editor counts them
        ('file_name,label\n"a\nb",c\nd\n', 1, 4),
        ("file_name,label\na,b\n   \n", 1, 3),
        ("file_name,label\na,b;\nc;d\n", 1, 3),
    ],
)
def test_ragged_rows(tmp_path: Path, content: str, cells: int, line: int) -> None:
    refused(put(tmp_path, content), rf"must have 2 cells in every row, got {cells} in line {line}\.")


@pytest.mark.parametrize(
    ("content", "line"), [('file_name,label\n"a"b,c\n', 2), ('file_name,label\na,b\n"c,d\ne,f\n', 4)]
)
def test_broken_quotes(tmp_path: Path, content: str, line: int) -> None:
    refused(put(tmp_path, content), f"is damaged in line {line}: ")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line", [1, 2, 3])
def test_text_that_is_not_utf8(tmp_path: Path, name: str, bom: bytes, line: int) -> None:
    lines = [b"file_name,label", b"a,b", b"c,d"]
    lines[line - 1] = b"\xe9" + lines[line - 1]
    refused(put(tmp_path, bom + b"\n".join(lines), name), rf"must be UTF-8 text; line {line} is not")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_utf16(tmp_path: Path, encoding: str) -> None:
    """What Excel calls Unicode text."""
    path = put(tmp_path, "file_name,label\né.jpg,cat\n".encode(encoding))
    with pytest.raises(InputError, match="must be UTF-8 text"):
        tables.read(path)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_row_without_file_name(tmp_path: Path, name: str) -> None:
    cells = ["a", "", "b"]
    content = (
        "file_name,label\n" + "".join(f"{cell},x\n" for cell in cells)
        if name == "t.csv"
        else "".join(json.dumps({"file_name": cell, "label": "x"}) + "\n" for cell in cells)
    )
    refused(put(tmp_path, content, name), r"needs a file_name in every row, got '' in row 2\.")


@pytest.mark.parametrize(("value", "shown"), [("null", "None"), ("5", "5"), ("1.5", "1.5")])
def test_a_file_name_must_be_text(tmp_path: Path, value: str, shown: str) -> None:
    content = f'{{"file_name": "a", "label": "x"}}\n{{"file_name": {value}, "label": "x"}}'
    refused(put(tmp_path, content, "t.jsonl"), rf"needs a file_name in every row, got {shown} in row 2\.")


def test_a_file_name_of_parquet_must_be_text(tmp_path: Path) -> None:
    refused(put_parquet(tmp_path, file_name=["a", None], label=["x", "y"]), "got None in row 2")
    refused(put_parquet(tmp_path, file_name=[1, 2], label=["x", "y"]), "got 1 in row 1")


@pytest.mark.parametrize(
    "line",
    ["{", "file_name,label", "{'file_name': 'a'}", '{"file_name": "a",}', pytest.param("[" * 100_000, id="deep")],
)
def test_what_is_no_json(tmp_path: Path, line: str) -> None:
    content = '{"file_name": "a", "label": "x"}\n\n' + line
    assert len(refused(put(tmp_path, content, "t.jsonl"), "has no JSON in line 3")) < 1000


@pytest.mark.parametrize("line", ["[1, 2]", "5", '"a.jpg"', "null", "true"])
def test_a_line_that_is_no_object(tmp_path: Path, line: str) -> None:
    content = '{"file_name": "a", "label": "x"}\n' + line
    refused(put(tmp_path, content, "t.jsonl"), "must have one JSON object a line, got .* in line 2")


@pytest.mark.parametrize("column", tables.COLUMNS)
@pytest.mark.parametrize("value", [{"a": 1}, {}, ["cat"], [], True, False], ids=repr)
def test_json_that_is_no_name(tmp_path: Path, column: str, value: object) -> None:
    row = {"file_name": "b", "label": "x"} | {column: value}
    content = '{"file_name": "a", "label": "x"}\n' + json.dumps(row)
    refused(put(tmp_path, content, "t.jsonl"), f"must have text or a number as {column}, got .* in line 2")


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([["cat"], ["dog"]]),
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([b"cat", b"dog"]),
        pa.array([True, False]),
    ],
    ids=["list", "struct", "bytes", "bool"],
)
def test_parquet_that_is_no_name(tmp_path: Path, labels: Any) -> None:
    """The rule of JSON lines holds here too."""
    refused(put_parquet(tmp_path, file_name=["a", "b"], label=labels), "label")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"file_name,label\na,b\n", b"PAR1" + bytes(100) + b"PAR1"])
def test_damaged_parquet(tmp_path: Path, content: bytes) -> None:
    refused(put(tmp_path, content, "t.parquet"), "cannot be read as Parquet")


def test_parquet_damaged_within(tmp_path: Path) -> None:
    path = put_parquet(tmp_path, file_name=[f"{i}.jpg" for i in range(1000)], label=["x"] * 1000)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)  # the first pages; header and footer are whole
    path.write_bytes(content)
    refused(path, "cannot be read as Parquet")


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put_parquet(tmp_path, file_name=["a"], label=["x"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(path, r"needs pyarrow: pip install 'sortal\[parquet\]', or save it as CSV")


def test_text_needs_no_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert rows(put(tmp_path, "file_name,label\na,x\n")) == [("a", "x")]


def test_errors_stay_readable(tmp_path: Path) -> None:
    deep = json.dumps({"file_name": "a", "label": list(range(100_000))})
    assert len(refused(put(tmp_path, deep, "t.jsonl"), "must have text or a number as label")) < 10_000


# Writing


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.csv"
    tables.write(path, {"file_name": [name, "b"], "label": ["x", name]})
    assert rows(path) == [(name, "x"), ("b", name)]
    with path.open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["file_name", "label"], [name, "x"], ["b", name]]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_are_written_and_read(tmp_path: Path, names: list[str]) -> None:
    path = tmp_path / "t.csv"
    tables.write(path, {"file_name": names, "label": ["x"] * len(names)})
    assert rows(path) == [(name, "x") for name in names]


def test_file_names_that_are_not_utf8_are_written_as_they_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    tables.write(path, {"file_name": ["caf\udce9.jpg"], "label": ["x"]})
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        assert list(csv.reader(file)) == [["file_name", "label"], ["caf\udce9.jpg", "x"]]
    assert b"caf\xe9.jpg" in path.read_bytes()


def test_columns_of_unequal_length_are_our_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        tables.write(tmp_path / "t.csv", {"file_name": ["a", "b"], "label": ["x"]})


def test_rows_that_spreadsheets_leave_empty_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("file_name,label\na.jpg,cat\n,\n\n,\n")
    assert list(tables.read(path).file_name) == ["a.jpg"]


def test_a_label_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(InputError, match=r"A label must be text that can be written as UTF-8, got '\\ud800'\."):
        tables.as_name("\ud800")
    assert tables.as_name("\udcff") == "\udcff"  # a byte that is no UTF-8, as file systems have them
