"""Tables: one row per image, typed in Parquet, and no formula."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.exports import PLAIN, UNDEMANDING, a_run, assert_rows, cells, content, of_pixels

from sortal.errors import InputError
from sortal.exchange.export import EXPORT_FORMATS, export
from sortal.images.columns import Columns
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import Run


def test_tables_have_one_row_per_image_and_no_formula(
    hostile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(hostile, "csv", tmp_path / "t.csv")
    rows = cells(tmp_path / "t.csv")
    columns = ["file_name", "category", "category_id", "status", "confidence", "reviewed", "label", "truth"]
    columns += ["sorted_as", "content"]
    assert list(rows[0]) == columns
    assert [row["sorted_as"] for row in rows] == [row["category"] for row in rows]
    assert [row["content"] for row in rows] == [*hostile.assignments.contents]
    assert_rows(rows, hostile)
    export(hostile, "csv", tmp_path / "paths.csv", absolute_paths=True)
    with_paths = cells(tmp_path / "paths.csv")
    assert [row.pop("path") for row in with_paths] == hostile.paths()
    assert with_paths == rows
    assert [row["truth"] for row in rows] == [row["label"] for row in rows]
    assert {b'"\'=HYPERLINK(""x"")"', b'"\'=cmd [x] #1 100%.png"'} <= {*re.split(rb",|\n", content(tmp_path / "t.csv"))}
    save_run(hostile)
    export(load_run(hostile.folder), "csv", tmp_path / "again.csv")
    assert content(tmp_path / "again.csv") == content(tmp_path / "t.csv"), "a saved run gives the same table"

    export(hostile, "parquet", tmp_path / "t.parquet")
    table = parquet.read_table(tmp_path / "t.parquet")
    types = {**dict.fromkeys(columns, pa.string()), "category_id": pa.int64(), "confidence": pa.float64()}
    assert {field.name: field.type for field in table.schema} == types
    assert_rows(table.to_pylist(), hostile)
    assert None in table["label"].to_pylist()
    for name in ("csv", "parquet"):
        export(of_pixels(hostile), name, tmp_path / name, absolute_paths=True)
    assert {row["path"] for row in cells(tmp_path / "csv")} == {""}
    assert set(parquet.read_table(tmp_path / "parquet")["path"].to_pylist()) == {None}
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=re.escape('pip install "sortal[parquet]"')):
        export(hostile, "parquet", tmp_path / "never.parquet")


def test_groups_may_be_called_by_numbers(tmp_path: Path) -> None:
    run, groups = a_run(tmp_path, PLAIN), ["1", "1", "2", "", "2"]
    columns = Columns.infer(["group", "depth"], [groups, ["3", "4", "", "5", "6"]])
    run = replace(run, assignments=replace(run.assignments, columns=columns))
    for name in UNDEMANDING:
        export(run, name, tmp_path / f"{name}{EXPORT_FORMATS[name].extension}")
    assert [row["group"] for row in cells(tmp_path / "csv.csv")] == groups
    for name in ("parquet", "embeddings"):
        table = parquet.read_table(tmp_path / f"{name}.parquet")
        assert table["group"].to_pylist() == [group or None for group in groups]
        assert table["depth"].to_pylist() == [3.0, 4.0, None, 5.0, 6.0]
    assert run.to_pandas()["group"].tolist() == groups
