"""Runs to export, some with hostile names, and their exports read back."""

import codecs
import csv
import io
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from sortal.exchange.export import EXPORT_FORMATS
from sortal.exchange.format import How
from sortal.images.exported import utf8
from sortal.runs.facts import ImageSource
from sortal.runs.run import Run
from support.sample_run import as_sorted, sample_run

FOLDERS = ("folders", "imagefolder", "fiftyone", "labelstudio")


FILES = ("csv", "parquet", "coco", "ecotaxa")


UNDEMANDING = tuple(name for name in EXPORT_FORMATS if name != "camtrap-dp")  # which any run can be written in


LINKED = ("folders", "imagefolder", "fiftyone")


NO_UTF8 = os.fsdecode(b"caf\xe9") if sys.platform == "linux" else "café"


Image_ = tuple[str, str, str]  # file, category, status


def a_run(folder: Path, images: Sequence[Image_], *, names: Sequence[str] = ()) -> Run:
    """Write small, distinct images to a folder, and make a run of them."""
    photos, n = folder / "photos", len(images)
    for number, (file, _, _) in enumerate(images):
        (photos / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4 + number % 5, 3), (number, 2 * number % 256, 7)).save(photos / file, "PNG")
    names = names or tuple(dict.fromkeys(category for _, category, _ in images))
    status = np.array([status for _, _, status in images])
    labels = tuple(name if each == "labelled" else None for _, name, each in images)
    run = sample_run(
        categories=len(names),
        images=n,
        truth=False,
        name=lambda number: names[number],
        file=lambda row: images[row][0],
        category=np.array([names.index(category) for _, category, _ in images]),
    )
    confidence = np.where(status == "labelled", 1.0, 0.25 + np.arange(n) / (2 * n))
    run = replace(
        run,
        folder=folder / "run",
        facts=replace(
            run.facts,
            images=(ImageSource(folder=str(photos), images=n, paths={}),),
            versions={"sortal": "9.9"},
        ),
        assignments=replace(run.assignments, labels=labels, truth=labels, status=status, confidence=confidence),
        categories=tuple(replace(each, kind="known" if each.name in labels else "new") for each in run.categories),
    )
    return as_sorted(run)


def not_calibrated(run: Run) -> Run:
    """Return the run as if too few labelled images had been held out."""
    return replace(run, confidence=replace(run.confidence, held_out=7))


def of_pixels(run: Run) -> Run:
    """Return the run as if its images had been given as an array."""
    source = ImageSource(folder=None, images=len(run.assignments), paths={})
    return replace(run, facts=replace(run.facts, images=(source,)))


PLAIN: list[Image_] = [
    ("a.png", "cat", "labelled"),
    ("b.png", "cat", "known"),
    ("c/a.png", "cat", "known"),
    ("test_1.png", "new 1", "new"),
    ("d.png", "new 1", "new"),
]


UNSURE: list[Image_] = [*PLAIN, ("e.png", "cat", "unsure"), ("f.png", "new 1", "unsure")]


TROUBLE = '../../x|<script>x</script>|=HYPERLINK("x")|CON|a/b|\u202egnp.exe|two\nlines\r\tand \x01|Cat|cat|unsure|Other'


HOSTILE_NAMES = (*TROUBLE.split("|"), NO_UTF8, "index.csv", "NA", "..", "n" * 300, ' name="x" & ]]> --> <!-- {')


FILE_NAMES = (
    "one/same.png|two/same.png|two/SAME.PNG|two/same.jpg|=cmd [x] #1 100%.png|new\nline.png|nul.png|metadata.csv"
)


IN_TURN = ("known", "new", "labelled", "unsure", "other")


HOSTILE: list[Image_] = [
    *((f"{i}.png", name, IN_TURN[i % 5]) for i, name in enumerate(HOSTILE_NAMES)),
    *((name, "cat", "unsure" if name.endswith(".jpg") else "known") for name in FILE_NAMES.split("|")),
    *((name, "cat", "new") for name in (f"{'l' * 240}.png", f"{NO_UTF8}.png", "train/test/val.png")),
]


HOW = get_args(How)


def content(path: Path | str) -> bytes:
    return Path(path).read_bytes()


def cells(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, without the escape of formulas."""
    rows = csv.DictReader(io.StringIO(content(path).decode("utf-8", "surrogateescape"), newline=""), strict=True)
    return [{name: cell.removeprefix("'") for name, cell in row.items()} for row in rows]


def assert_rows(rows: Sequence[Mapping[str, Any]], run: Run, *, file: str = "file_name") -> None:
    """Check that there is a row for each image, in order, with its file, category, confidence and label."""
    a = run.assignments
    assert [utf8(row[file]) for row in rows] == [*map(utf8, a.files)]
    assert [utf8(row["category"]) for row in rows] == [utf8(run.names[each]) for each in a.category_id]
    assert [(row["status"], int(row["category_id"])) for row in rows] == [*zip(a.status, a.category_id, strict=True)]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(a.confidence, abs=1e-6)
    if "label" in rows[0]:
        assert [utf8(row["label"] or "") for row in rows] == [utf8(label or "") for label in a.labels]


def rows_in_zip(path: Path) -> list[dict[str, str]]:
    """Return the rows of the table in an export for EcoTaxa, read as it does, after that of types."""
    with zipfile.ZipFile(path) as archive:
        table = archive.read("ecotaxa_sortal.tsv")
    assert table.startswith(codecs.BOM_UTF8), "without which EcoTaxa reads Latin 1"
    text = table.decode("utf-8-sig")
    csv.field_size_limit(max(len(text), csv.field_size_limit()))  # hostile columns are long
    types, *rows = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quotechar='"')
    for prefix in {name.partition("_")[0] for name in types} & {"object", "acq", "sample", "process"}:
        assert f"{prefix}_id" in types
    assert {*types.values()} == {"[t]", "[f]"}
    return rows


def written(out: Path) -> bytes | set[str]:
    return files_below(out) if out.is_dir() else content(out)


def files_below(folder: Path) -> set[str]:
    """Return every file at any depth except the marker of an export."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return found - {".sortal-export.json"}
