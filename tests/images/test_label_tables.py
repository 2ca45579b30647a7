"""Tables of labels: every format gives the same columns, and every fault is located."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pyarrow as pa
import pytest
from pyarrow import parquet

from sortal.errors import InputError
from sortal.images import label_tables, parquet_tables
from sortal.images.exported import EXPORTED

Rows = list[tuple[str, str | None]]

NFC, NFD = normalize("NFC", "café"), normalize("NFD", "café")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def put(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def rows(path: Path, **options: Any) -> Rows:
    table = label_tables.read(path, **options)
    return list(zip(table.file_name, table.label, strict=True))


def put_parquet(folder: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


PLAIN: Rows = [("a.jpg", "cat"), ("b/c.jpg", None), ("d.jpg", "7")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.CSV", "file_name,label\na.jpg,cat\nb/c.jpg,\nd.jpg,7"),  # no newline at the end
        ("t.csv", '\ufeff"label","file_name"\n"cat","a.jpg"\n"","b/c.jpg"\n"7","d.jpg"\n'),
        ("t.csv", "file_name,label\r\na.jpg,cat\r\nb/c.jpg,\r\nd.jpg,7\r\n"),
        ("t.csv", "file_name,label\ra.jpg,cat\rb/c.jpg,\rd.jpg,7\r"),
        ("t.csv", "file_name;label\na.jpg;cat\nb/c.jpg;\nd.jpg;7\n"),
        ("t.csv", "file_name\tlabel\na.jpg\tcat\nb/c.jpg\t\nd.jpg\t7\n"),
        ("t.csv", " file_name , label \na.jpg, cat \nb/c.jpg,  \nd.jpg,7\n"),
        ("t.csv", "file_name,label\n\na.jpg,cat\n,\n\nb/c.jpg,\nd.jpg,7\n,\n"),  # empty rows, as from spreadsheets
        ("t.tsv", "file_name\tlabel\na.jpg\tcat\nb/c.jpg\t\nd.jpg\t7\n"),
        ("t.tab", "file_name\tlabel\na.jpg\tcat\nb/c.jpg\t-1\nd.jpg\t7\n"),
        (
            "t.NDJSON",
            '\ufeff{"label": "cat", "file_name": "a.jpg"}\r\n\r\n  {"file_name": "b/c.jpg", "label": null}\r\n'
            '{"file_name": "d.jpg", "label": 7.0}',
        ),
    ],
)
def test_every_text_format_is_read(tmp_path: Path, name: str, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # text formats do not need it
    table = label_tables.read(put(tmp_path, content, name))
    assert list(zip(table.file_name, table.label, strict=True)) == PLAIN
    assert table.truth is None
    assert table.path == tmp_path / name


def test_parquet_is_read(tmp_path: Path) -> None:
    lists: list[Any] = [["cat", None, "7"], pa.array(["cat", "-1", "7"]).dictionary_encode()]
    for labels in lists:
        table = label_tables.read(put_parquet(tmp_path, label=labels, file_name=["a.jpg", "b/c.jpg", "d.jpg"]))
        assert list(zip(table.file_name, table.label, strict=True)) == PLAIN
        assert table.truth is None
    for kind in (pa.int8(), pa.float32()):
        label, truth = pa.array([3, None, -1, 10], type=kind), pa.array([3, 5, None, 10], type=kind)
        table = label_tables.read(put_parquet(tmp_path, file_name=list("abcd"), label=label, truth=truth))
        assert table.label == ["3", None, None, "10"]
        assert table.truth == ["3", "5", None, "10"]
    assert rows(put_parquet(tmp_path, file_name=pa.array([], pa.string()), label=pa.array([], pa.string()))) == []


def test_the_truth_is_optional(tmp_path: Path) -> None:
    table = label_tables.read(put(tmp_path, "file_name,label,truth\na,cat,cat\nb,,dog\nc,,\nd,,-1\n"))
    assert table.label == ["cat", None, None, None]
    assert table.truth == ["cat", "dog", None, None]
    in_some_lines = '{"file_name": "a", "label": "cat"}\n{"file_name": "b", "truth": "dog"}\n'
    table = label_tables.read(put(tmp_path, in_some_lines, "t.jsonl"))
    assert (table.label, table.truth) == (["cat", None], [None, "dog"])
    assert rows(put(tmp_path, "file_name,label\n")) == []


HOSTILE = ["#1", "חתול", "😀", "\u202etxt", '=HYPERLINK("http://x","y")', "../../x", "a,b;c\td", 'quote"s', "x" * 300]
HOSTILE += ["two\nlines", "two\r\nlines", "old\rmac", "a\u2028b\u0085c", "nul\0"]
HOSTILE += ["nan", "NaN", "None", "<NA>", "--", "1.0", "true", "0"]


def test_hostile_names_are_read_unchanged(tmp_path: Path) -> None:
    expected: Rows = [(name, name) for name in HOSTILE]
    cells = ['"' + name.replace('"', '""') + '"' for name in HOSTILE]
    assert rows(put(tmp_path, "\n".join(["file_name,label", *(f"{cell},{cell}" for cell in cells)]))) == expected
    tabs = "\n".join(["file_name\tlabel", *(f"{cell}\t{cell}" for cell in cells)])
    assert rows(put(tmp_path, tabs, "t.tsv")) == expected
    for ascii_only in (True, False):
        lines = [json.dumps({"file_name": name, "label": name}, ensure_ascii=ascii_only) for name in HOSTILE]
        assert rows(put(tmp_path, "\n".join(lines), "t.jsonl")) == expected
    assert rows(put_parquet(tmp_path, file_name=HOSTILE, label=HOSTILE)) == expected
    no_utf8 = "caf\udce9.jpg"
    assert rows(put(tmp_path, json.dumps({"file_name": no_utf8, "label": "x"}), "t.jsonl")) == [(no_utf8, "x")]


def test_spaces_quotes_and_other_delimiters_in_cells_are_read(tmp_path: Path) -> None:
    for content, expected in (
        ("file_name,label\n a.jpg , cat \n", (" a.jpg ", "cat")),
        ('file_name,label\n5" disk.jpg,7" x\n', ('5" disk.jpg', '7" x')),
        ("file_name,label\na;b;c.jpg,x;y;z\n", ("a;b;c.jpg", "x;y;z")),  # only the header decides the delimiter
        ("file_name,label\ra;b;c.jpg,x;y;z\r", ("a;b;c.jpg", "x;y;z")),
        ("file_name;label\na,b,c.jpg;x,y,z\n", ("a,b,c.jpg", "x,y,z")),
        ("file_name,label,size; weight; colour; note\na.jpg,cat,1\n", ("a.jpg", "cat")),
    ):
        assert rows(put(tmp_path, content), extra_columns="ignore") == [expected]


def refused(path: Path, pattern: str, **options: Any) -> str:
    with pytest.raises(InputError, match=pattern) as error:
        label_tables.read(path, **options)
    message = str(error.value)
    assert repr(str(path)) in message
    return message


@linux_only
def test_unreadable_files_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "t.csv", "The table .* does not exist")
    refused(tmp_path / ("x" * 300 + ".csv"), "The table .* does not exist")
    refused(tmp_path / "nul\0.csv", "The table .* does not exist")
    (tmp_path / "t.parquet").mkdir()  # as written by Spark
    refused(tmp_path / "t.parquet", "The table .* is not a file")
    (tmp_path / "t.csv").symlink_to("/proc/self/mem")  # unreadable from the first byte
    refused(tmp_path / "t.csv", "cannot be read: Input/output error")
    for name, shown in (("t.xlsx", "'.xlsx'"), ("t.csv.gz", "'.gz'"), ("t", "'no extension'")):
        content = put(tmp_path, "file_name,label\n", name)
        refused(content, rf"must be one of CSV \(\.csv\), .*Parquet.* got {shown}\.")


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    for name, content, missing, found in (
        ("t.csv", "file_name,class\na,b\n", "'label'", "'file_name', 'class'"),
        ("t.csv", "File_Name,label\na,b\n", "'file_name'", "'File_Name', 'label'"),
        ("t.tsv", "file_name,label\na,b\n", "'file_name', 'label'", "'file_name,label'"),
        ("t.csv", "a,b,c,d,e,f,g,h,i,j\n", "'file_name', 'label'", "'g', 'h' and 2 more"),
        ("t.jsonl", '{"file_name": "a"}\n', "'label'", "'file_name'"),
        ("t.csv", "\ufeff\n\n", "'file_name', 'label'", "none"),
        ("t.jsonl", "\n \n", "'file_name', 'label'", "none"),
    ):
        message = refused(
            put(tmp_path, content, name), f"must have the columns file_name and label; missing: {missing}"
        )
        assert f"{found}." in message


@pytest.mark.thorough
def test_invalid_columns_of_parquet_are_refused(tmp_path: Path) -> None:
    refused(put_parquet(tmp_path, path=["a"], label=["b"]), "missing: 'file_name'. Its columns are: 'path', 'label'")
    twice = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["file_name", "label", "label"])
    parquet.write_table(twice, tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "has the column 'label' twice")
    extra = put_parquet(tmp_path, file_name=["a"], label=["cat"], note=[[1, 2]])
    assert rows(extra) == rows(extra, extra_columns="ignore") == [("a", "cat")]
    assert label_tables.read(extra).columns.names == ()  # what is nested is left out
    refused(put_parquet(tmp_path, file_name=["a", None], label=["x", "y"]), "got None in row 2")
    refused(put_parquet(tmp_path, file_name=[1, 2], label=["x", "y"]), "got 1 in row 1")
    for labels in (pa.array([["cat"]]), pa.array([b"cat"]), pa.array([True])):
        refused(put_parquet(tmp_path, file_name=["a"], label=labels), "has an invalid label. A label must be text")
    refused(put_parquet(tmp_path, file_name=["a"], label=["x"], truth=[b"x"]), "has an invalid truth")


def test_unknown_columns_are_kept_ignored_or_refused(tmp_path: Path) -> None:
    line = '{"file_name": "a", "label": "cat", "note": [1], "size": {}, "when": true, "who": 4}'
    table = "file_name,label,note,size,when,who\na,cat,1,2,3,4\n"
    for path in (put(tmp_path, table), put(tmp_path, line, "t.jsonl")):
        refused(path, "got 4 more: 'note', 'size', 'when' and 1 more.*extra_columns='keep'", extra_columns="error")
        assert rows(path, extra_columns="ignore") == rows(path) == [("a", "cat")]
        assert label_tables.read(path, extra_columns="ignore").columns.names == ()
        kept = label_tables.read(path).columns
        assert kept.names == ("note", "size", "when", "who")
    assert [column.cells for column in kept.each] == [("[1]",), ("{}",), ("true",), ("4",)]


def test_columns_that_are_called_like_those_of_an_export_are_kept(tmp_path: Path) -> None:
    csv = label_tables.read(put(tmp_path, "file_name,label,status,status\na,cat,wild,old\n")).columns
    assert [(each.name, *each.cells) for each in csv.each] == [("own_status", "wild"), ("status (2)", "old")]
    assert label_tables.read(put(tmp_path, "file_name,label,features,own\na,b,c,d\n")).columns.names == (
        "own_features",
        "own_own",
    )
    line = '{"file_name": "a", "label": "cat", "reviewed": true, "content": ["x"]}'
    lines = label_tables.read(put(tmp_path, line, "t.jsonl")).columns
    assert [(each.name, *each.cells) for each in lines.each] == [("own_reviewed", "true"), ("own_content", '["x"]')]
    whole = dict.fromkeys(EXPORTED, "a") | {"reviewed": True}
    refused(put(tmp_path, json.dumps(whole), "t.jsonl"), "must have text or a number as reviewed, got True in line 1")

    when = pa.array([datetime(2024, 5, 1, 10)], pa.timestamp("ms"))
    held = {"file_name": ["a"], "label": ["cat"], "reviewed": [True], "content": when, "note": ["x" * 200_000]}
    parquet.write_table(pa.table(held), tmp_path / "t.parquet")
    found = label_tables.read(tmp_path / "t.parquet").columns
    assert [each.name for each in found.each] == ["own_reviewed", "own_content", "note"]
    assert [each.cells[0] for each in found.each][:2] == ["true", "2024-05-01 10:00:00.000"]
    assert len(found.each[2].cells[0]) == parquet_tables.LONGEST_CELL
    parquet.write_table(pa.table({"file_name": ["a"], "label": ["x" * 200_000]}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "has a cell with more than")


def test_a_repeated_column_is_refused(tmp_path: Path) -> None:
    """JSON parsers take the last of two equal keys, which would silently choose one of two labels."""
    for header, name in (("file_name, label,label ", "label"), ("file_name,file_name,label", "file_name")):
        refused(put(tmp_path, f"{header}\na,b,c\n"), f"has the column '{name}' twice")
    content = '{"file_name": "a", "label": "x"}\n{"file_name": "b", "label": "cat", "label": "dog"}\n'
    refused(put(tmp_path, content, "t.jsonl"), "has the key 'label' twice in line 2")


def test_damaged_rows_are_located(tmp_path: Path) -> None:
    for content, message in (
        ("file_name,label\na,b\nc\n", r"must have 2 cells in every row, got 1 in line 3\."),
        ("file_name,label\n\n\na,b,c\n", r"got 3 in line 4\."),  # lines as an editor counts them
        ('file_name,label\n"a\nb",c\nd\n', r"got 1 in line 4\."),
        ("file_name,label\na,b\n   \n", r"got 1 in line 3\."),
        ('file_name,label\n"a"b,c\n', "is damaged in line 2: "),
        ('file_name,label\na,b\n"c,d\ne,f\n', "is damaged in line 4: "),
        (f"file_name,label\na,{'x' * 200_000}\n", "got a label of 200,000\\."),
        ("file_name,label\na,x\n,x\n", r"must have a file_name in each row, got '' in row 2\."),
    ):
        assert len(refused(put(tmp_path, content), message)) < 1000


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_text_that_is_not_utf8_is_refused(tmp_path: Path, name: str) -> None:
    for content, line in ((b"\xe9\n\n", 1), (b"\xef\xbb\xbf\xe9", 1), (b"a,b\nc,d\n\xe9\n", 3)):
        refused(put(tmp_path, content, name), rf"must be UTF-8 text; line {line} is not")


def test_damaged_lines_of_json_are_located(tmp_path: Path) -> None:
    for line, message in (
        ("{", "has invalid JSON in line 3: "),
        ("[" * 100_000, "has invalid JSON in line 3: "),
        ("[1, 2]", r"must have one JSON object per line, got '\[1, 2\]' in line 3"),
        ('{"file_name": ["a"], "label": "x"}', "must have text or a number as file_name, got .* in line 3"),
        ('{"file_name": "a", "label": {}}', "must have text or a number as label, got {} in line 3"),
        ('{"file_name": "a", "label": "x", "truth": false}', "must have text or a number as truth, got .* in line 3"),
        (json.dumps({"label": [*range(10**5)]}), "must have text or a number as label"),
        ('{"file_name": "", "label": "x"}', r"must have a file_name in each row, got '' in row 2\."),
        ('{"file_name": null, "label": "x"}', r"must have a file_name in each row, got None in row 2\."),
        ('{"file_name": 1.5, "label": "x"}', r"must have a file_name in each row, got 1\.5 in row 2\."),
    ):
        content = '{"file_name": "a", "label": "x"}\n\n' + line
        assert len(refused(put(tmp_path, content, "t.jsonl"), message)) < 1000


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = put_parquet(tmp_path, file_name=[f"{i}.jpg" for i in range(1000)], label=["x"] * 1000)
    whole = path.read_bytes()
    within = whole[:4] + bytes(396) + whole[400:]  # zeros in place of the first pages; header and footer are intact
    for content in (b"", b"file_name,label\na,b\n", b"PAR1" + bytes(100) + b"PAR1", within):
        refused(put(tmp_path, content, "t.parquet"), "cannot be read as Parquet")


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put_parquet(tmp_path, file_name=["a"], label=["x"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(path, r"needs pyarrow: pip install 'sortal\[parquet\]', or save it as CSV")


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("filename,label", "'filename' to file_name"),
        ("Image Path,class", "'Image Path' to file_name and 'class' to label"),
        ("file_name,Category", "'Category' to label"),
        ("path,image,label", "'path' or 'image' to file_name"),
    ],
)
def test_columns_with_other_names_are_recognised(tmp_path: Path, header: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        label_tables.read(put(tmp_path, f"{header}\n"))
    assert str(caught.value).endswith(f" Did you mean to rename {hint}?")
    with pytest.raises(InputError) as caught:
        label_tables.read(put(tmp_path, "file_name,who\n"))
    assert "Did you mean" not in str(caught.value)
