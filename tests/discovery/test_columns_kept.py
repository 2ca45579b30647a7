"""A table with twelve odd columns, and a group, through discovery, a review, every export, and back."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_folder as tiny
from support.exports import UNDEMANDING
from support.reviews import session_of
from support.runtimes import CPU

from sortal.exchange.export import EXPORT_FORMATS, export
from sortal.images.columns import Columns
from sortal.images.exported import RESERVED_COLUMNS
from sortal.images.reading import read_images
from sortal.reviews.loading import load_run
from sortal.runs.run import Run, columns_of

HEADER = (
    "Fundort – наход 地点",  # Unicode
    "taken",
    "empty",
    "mixed",
    "long",
    "weight, g",
    "note",
    "note",
    "status",  # which Sortal has as well
    '=HYPERLINK("http://x","y")',
    "id code",
    "  spaced\tname ",
)
NAMES = (*HEADER[:7], "note (2)", "own_status", *HEADER[9:11], "spaced name")
KINDS = [
    "category",
    "time",
    "category",
    "category",
    "text",
    "number",
    "category",
    "category",
    "category",
    "category",
    "text",
    "number",
]


def cells(number: int) -> list[str]:
    """What the table says of an image."""
    return [
        ["Grüße", "Ελλάδα", "地点"][number % 3],
        f"{1 + number % 28:02}.03.2024 0{number % 10}:15",
        "",
        ["3", "drei", "true", "2024-01-01"][number % 4],
        f"{number} " + "x" * 5000,
        f"{1000 + number:,}.50",
        ["a, b", 'quote"s'][number % 2],
        ["-1+2", "two\nlines"][number % 2],
        ["ok", "n/a"][number % 2],
        ["+1", "@x"][number % 2],
        f"{number:07}",
        str(-number),
    ]


def kept(number: int) -> list[str]:
    """The same, as Sortal keeps it: numbers and times in one notation."""
    found = cells(number)
    found[1] = f"2024-03-{1 + number % 28:02}T0{number % 10}:15:00"
    found[5] = f"{1000 + number}.50"
    return found


def folder_with_table(folder: Path) -> tuple[Path, dict[str, int]]:
    """Write images and their table; return its path, and the number of each file."""
    truth = tiny.write(folder / "photos")
    numbers = {file: number for number, file in enumerate(truth)}
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "label", *HEADER, "group"])
        for name, number in numbers.items():
            # Two unlabelled images of a class are of one specimen.
            specimen = f"{truth[name]} {number // 12}" if tiny.label_of(name) is None else ""
            writer.writerow([name, tiny.label_of(name) or "", *cells(number), specimen])
    return folder / "labels.csv", numbers


@pytest.fixture(scope="module")
def sorted_table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, int]]:
    folder = tmp_path_factory.mktemp("columns")
    table, numbers = folder_with_table(folder)
    with tiny.quickly():
        run = tiny.sort(folder / "photos", folder / "run", labels=table)
    return run, numbers


def as_lists(columns: Columns) -> dict[str, list[str]]:
    return {each.name: [*each.cells] for each in columns.each}


def test_a_run_keeps_the_columns(sorted_table: tuple[Run, dict[str, int]]) -> None:
    run, numbers = sorted_table
    for found in (run, load_run(run.folder)):
        columns = found.assignments.columns
        assert columns.names == (*NAMES, "group")
        assert [each.kind for each in columns.each[:-1]] == KINDS
        expected = [kept(numbers[file]) for file in found.assignments.files]
        assert [list(row) for row in zip(*(each.cells for each in columns.each[:-1]), strict=True)] == expected
    frame = run.to_pandas()
    assert frame["weight, g"].tolist() == [1000.5 + numbers[file] for file in frame.file_name]
    assert frame["taken"].dtype.kind == "M"
    assert {name for name, _ in columns_of(run.assignments, run.names)} <= RESERVED_COLUMNS | {"group"}


def test_a_group_is_sorted_together(sorted_table: tuple[Run, dict[str, int]]) -> None:
    a = sorted_table[0].assignments
    of, given = a.columns.groups(len(a)), a.columns.get("group")
    assert given is not None
    assert len(np.unique(of)) < len(a)
    for group in np.unique(of):
        assert len({*a.group[of == group]}) == len({*a.category_id[of == group]}) == 1
    assert any("groups of images given" in note for note in sorted_table[0].facts.notes)


@pytest.mark.parametrize("format_", [name for name in UNDEMANDING if name != "ecotaxa"])
def test_exports_have_the_columns(sorted_table: tuple[Run, dict[str, int]], tmp_path: Path, format_: str) -> None:
    run, numbers = sorted_table
    out = export(run, format_, tmp_path / f"out{EXPORT_FORMATS[format_].extension}", runtime=CPU).out
    if format_ in ("csv", "parquet"):
        again = read_images(run.facts.folders[0], labels=out)
        assert again.files == run.assignments.files
        expected = as_lists(run.assignments.columns)
        if format_ == "parquet":  # numbers are binary there
            for name in ("weight, g", "spaced name"):
                expected[name] = [str(float(cell)) for cell in expected[name]]
        found = as_lists(again.columns)
        assert {**found, "group": expected["group"]} == expected
        given = [cell for cell, wanted in zip(found["group"], expected["group"], strict=True) if wanted]
        assert given == [wanted for wanted in expected["group"] if wanted]
        if format_ == "csv":
            written = [cell for row in csv.reader(io.StringIO(out.read_text(encoding="utf-8"))) for cell in row]
            assert not [cell for cell in written if cell.startswith(("=", "+", "@")) or cell == "-1+2"]
        return
    told = {"coco": _coco, "labelstudio": _label_studio, "fiftyone": _fiftyone, "folders": _index}
    told |= {"imagefolder": _metadata, "embeddings": _embeddings}
    rows = told[format_](out)
    assert len(rows) == len(numbers)
    weights = {str(float(row["weight, g"])) for row in rows}
    assert weights == {str(1000.5 + number) for number in numbers.values()}
    assert {row["Fundort – наход 地点"] for row in rows} == {"Grüße", "Ελλάδα", "地点"}
    assert sum(bool(row["group"]) for row in rows) >= sum(map(bool, as_lists(run.assignments.columns)["group"]))


def _coco(out: Path) -> list[dict[str, Any]]:
    return [each["attributes"] for each in json.loads(out.read_bytes())["annotations"]]


def _label_studio(out: Path) -> list[dict[str, Any]]:
    return [each["data"] for each in json.loads((out / "tasks.json").read_bytes())]


def _fiftyone(out: Path) -> list[dict[str, Any]]:
    return [each["attributes"] for each in json.loads((out / "labels.json").read_bytes())["labels"].values()]


def _metadata(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "train" / "metadata.jsonl").read_text().splitlines()]


def _embeddings(out: Path) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(out).to_pylist()
    return rows


def _index(out: Path) -> list[dict[str, Any]]:
    return [*csv.DictReader(io.StringIO((out / "index.csv").read_text(encoding="utf-8")))]


def test_a_review_shows_filters_and_orders_by_columns(sorted_table: tuple[Run, dict[str, int]]) -> None:
    run, numbers = sorted_table
    session = session_of(load_run(run.folder, raw=True))
    shown = session.overview()["columns"]
    assert [each["name"] for each in shown][:2] == [*NAMES[:2]]
    weight = run.assignments.columns.each[5]
    category = run.categories[0].id
    every = session.category(category, "up", weight, "")
    assert every is not None
    of = [numbers[run.assignments.files[row]] for row in every["rows"]]
    assert of == sorted(of)
    assert every["cell"] == [f"{1000 + number}.50" for number in of]
    some = session.category(category, "down", weight, f"{1000 + of[1]}..{1001 + of[-2]}")
    assert some is not None
    assert [numbers[run.assignments.files[row]] for row in some["rows"]] == of[-2:0:-1]
    told = session.images(np.array(every["rows"][:1]))
    assert dict(told["cells"][0])["weight, g"] == f"{1000 + of[0]}.50"
