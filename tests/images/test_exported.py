"""What Sortal exports, read back: people's labels and decisions are labels, and guesses are not."""

import csv
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.decisions import apply
from support.sample_run import as_sorted, sample_run

from sortal.errors import InputError
from sortal.exchange.export import export
from sortal.images import datasets
from sortal.images.columns import Columns
from sortal.images.exported import EXPORT_MARKER, labels_of, statements
from sortal.images.reading import read_images
from sortal.reviews.actions import Accept, Action, Grow, Move, Reject, Rename
from sortal.runs.facts import ImageSource
from sortal.runs.run import Run

FILES = tuple(f"{'-+'[row % 2]}{row:02d}.png" for row in range(16))  # which a spreadsheet would take for formulas
# Row i is in category i % 4, and rows 0, 1, 12, 13 were labelled; the others follow from the review.
LABELS = {0: "class 0", 1: "class 1", 12: "class 1", 13: None, 2: "elm", 3: "class 0", 5: "class 1"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    (folder / "photos").mkdir()
    for row, file in enumerate(FILES):
        Image.new("RGB", (3, 3), (row, 0, 0)).save(folder / "photos" / file)
    return folder


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    """A reviewed run: one category named, images confirmed, moved, accepted unseen, and a label rejected."""
    made = sample_run(categories=4, known=2, images=16, file=FILES.__getitem__)
    source = ImageSource(folder=str(home / "photos"), images=16, paths={})
    made = as_sorted(replace(made, folder=home / "run", facts=replace(made.facts, images=(source,))))
    at = made.assignments.contents
    decided: list[Action] = [
        Rename(category=2, name="elm"),
        Accept(images=(at[2],)),
        Move(images=(at[3],), category=0),
        Grow(category=1, seen=(), unseen=(at[5],), wrong=()),
        Move(images=(at[12],), category=1),
        Reject(images=(at[13],), category=1),
    ]
    return apply(made, decided)


def found_in(images: Any) -> dict[int, str | None]:
    """Return the label of each image by its number, without those that have none unless they had one before."""
    labels = [images.classes[label] if label >= 0 else None for label in images.labels.tolist()]
    rows = [int(os.path.basename(file)[1:3]) for file in images.files]
    return {row: name for row, name in zip(rows, labels, strict=True) if name is not None or row in LABELS}


def edit(source: Path, target: Path, changes: Mapping[int, Mapping[str, str]]) -> Path:
    """Write a table with some cells changed, as a spreadsheet of another country does."""
    with source.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    for row, cells in changes.items():
        rows[row] |= cells
    with target.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, [*rows[0], "my notes"], delimiter=";", restval="seen")
        writer.writeheader()
        writer.writerows(rows)
    return target


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_an_exported_table_is_a_table_of_labels(run: Run, home: Path, tmp_path: Path, format_: str) -> None:
    table = tmp_path / f"table.{format_}"
    export(run, format_, table)
    assert found_in(read_images(home / "photos", labels=table)) == LABELS
    shutil.copytree(home / "photos", tmp_path / "copy")
    copied = read_images(tmp_path / "copy", labels=table)
    assert found_in(copied) == LABELS
    assert all(path.startswith(str(tmp_path)) for path in copied.paths)


def test_edited_cells_of_an_exported_table_are_labels(run: Run, home: Path, tmp_path: Path) -> None:
    export(run, "csv", tmp_path / "table.csv")
    changes = {
        0: {"category": "class 1"},  # in spite of its label
        1: {"label": ""},
        6: {"category": "birch"},
        7: {"label": "birch"},
        10: {"label": "elm", "category": "elm"},
        14: {"reviewed": "Confirmed"},
        15: {"category": ""},
    }
    table = edit(tmp_path / "table.csv", tmp_path / "edited.csv", changes)
    edited = {0: "class 1", 1: None, 6: "birch", 7: "birch", 10: "elm", 14: "elm"}
    assert found_in(read_images(home / "photos", labels=table)) == {**LABELS, **edited}
    torn = edit(tmp_path / "table.csv", tmp_path / "torn.csv", {8: {"label": "a", "category": "b"}})
    with pytest.raises(InputError, match=r"different classes, unlike in 1 row: '-08\.png'"):
        read_images(home / "photos", labels=torn)


def test_rows_about_images_of_other_folders_are_left_out(run: Run, home: Path, tmp_path: Path) -> None:
    photos, more = tmp_path / "photos", tmp_path / "more"
    sources = tuple(ImageSource(folder=str(place), images=8, paths={}) for place in (photos, more))
    for place in (photos, more):
        shutil.copytree(home / "photos", place)
    a = replace(run.assignments, folders=np.arange(16) // 8, files=tuple(FILES[row % 8] for row in range(16)))
    both = replace(run, assignments=a, facts=replace(run.facts, images=sources))
    export(both, "csv", tmp_path / "table.csv")
    first = read_images(photos, labels=tmp_path / "table.csv", unlisted="ignore")
    assert first.files == FILES[:8]
    by_hand = edit(tmp_path / "table.csv", tmp_path / "by hand.csv", {7: {"image_folder": "", "label": "oak"}})
    assert found_in(read_images(photos, labels=by_hand, unlisted="ignore"))[7] == "oak"
    assert found_in(first) == {row: label for row, label in LABELS.items() if row < 8}
    second = read_images(more, labels=tmp_path / "table.csv", unlisted="ignore")
    assert [label for label in second.labels.tolist() if label >= 0] == [0], "only row 12, which was moved"
    third = tmp_path / "third"
    third.mkdir()
    shutil.copy(home / "photos" / FILES[0], third)
    several = read_images([more, photos], labels=tmp_path / "table.csv", unlisted="ignore")
    assert len({*several.files}) == len({*several.paths}) == 16
    assert found_in(several.select(np.arange(16) < 8)) == found_in(first)
    assert several.paths[8:] == second.paths
    others = read_images([third, more], labels=tmp_path / "table.csv", unlisted="ignore")
    assert others.paths == second.paths, "not those of the folder that all of them are in"


def test_predictions_are_no_labels(tmp_path: Path, home: Path) -> None:
    (tmp_path / "t.csv").write_text("file_name,category,category_id,status,confidence\na.png,oak,0,known,0.9\n")
    with pytest.raises(InputError, match=r"that Sortal has predicted, not labels\. Add a column label"):
        read_images(home / "photos", labels=tmp_path / "t.csv")


def test_exported_folders_are_not_taken_for_classes(run: Run, home: Path, tmp_path: Path) -> None:
    export(run, "folders", tmp_path / "sorted", how="copy")
    with pytest.raises(InputError, match=r"categories that a run proposed, not labels.*folders='reviewed'.*'ignore'"):
        read_images(tmp_path / "sorted")
    with pytest.raises(InputError, match="whose folders are guesses"):
        datasets.load("folder", tmp_path / "sorted")
    reviewed = read_images(tmp_path / "sorted", folders="reviewed")
    assert (found_in(reviewed), reviewed.ignored) == (LABELS, ())
    assert found_in(read_images(tmp_path / "sorted", labels=tmp_path / "sorted/index.csv")) == LABELS
    assert not read_images(tmp_path / "sorted", folders="ignore", need_labels=False).classes
    shutil.copytree(tmp_path / "sorted", tmp_path / "again")
    several = read_images([tmp_path / "sorted", tmp_path / "again"], folders="reviewed")
    half = np.arange(len(several)) < len(reviewed)
    assert [found_in(several.select(part)) for part in (half, ~half)] == [LABELS, LABELS]
    assert several.ignored == ()
    with pytest.raises(InputError, match="again' is an export of Sortal"):
        read_images([tmp_path / "again", home / "photos"])
    (tmp_path / "sorted/index.csv").rename(tmp_path / "index.csv")
    with pytest.raises(InputError, match=r"index\.csv' must be there"):
        read_images(tmp_path / "sorted", folders="reviewed")
    (tmp_path / "sorted" / EXPORT_MARKER).unlink()
    assert {"class 0", "elm", "new 2"} <= {*read_images(tmp_path / "sorted").classes}
    with pytest.raises(InputError, match="Only a folder that Sortal exported says which images were reviewed"):
        read_images(tmp_path / "sorted", folders="reviewed")


def test_folders_of_images_aside_are_no_classes_unless_an_earlier_version_made_one() -> None:
    rows = [{"file_name": f"{folder}/a.png", "category": "oak"} for folder in ("oak", "other/oak", "unsure/oak")]
    files = ["oak/b.png", "other/oak/b.png", "unsure/oak/b.png", "other/b.png"]
    assert labels_of(files, statements(rows)) == ["oak", None, None, None]
    rows.append({"file_name": "other/a.png", "category": "other"})
    assert labels_of(files[-1:], statements(rows)) == ["other"]


def test_files_moved_by_hand_are_labelled_and_so_are_those_of_a_renamed_folder(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "sorted"
    export(run, "folders", place, how="copy")
    guess = next(each for each in sorted((place / "class 1").iterdir()) if int(each.name[1:3]) in (9, 13))
    (place / "class 0").mkdir(exist_ok=True)
    guess.rename(place / "class 0" / guess.name)
    (place / "maple").mkdir()
    other = next(each for each in sorted(place.rglob("*07.png")))
    other.rename(place / "maple" / other.name)
    (place / "elm").rename(place / "Ulmus")
    found = found_in(read_images(place, folders="reviewed"))
    renamed = {int(each.name[1:3]): "Ulmus" for each in (place / "Ulmus").iterdir()}
    assert 2 in renamed
    assert found == {**LABELS, **renamed, int(guess.name[1:3]): "class 0", 7: "maple"}


def test_columns_come_back_with_exported_folders(run: Run, tmp_path: Path) -> None:
    sites = [f"site {row}" for row in range(16)]
    own = Columns.infer(["site", "depth"], [sites, [*range(16)]])
    export(replace(run, assignments=replace(run.assignments, columns=own)), "folders", tmp_path / "sorted", how="copy")
    moved = next((tmp_path / "sorted").rglob("*07.png"))
    (tmp_path / "sorted/maple").mkdir()
    moved.rename(tmp_path / "sorted/maple" / moved.name)
    shutil.copy(tmp_path / "sorted/maple" / moved.name, tmp_path / "sorted/maple/-99.png")
    found = read_images(tmp_path / "sorted", folders="reviewed")
    rows = [int(os.path.basename(file)[1:3]) for file in found.files]
    assert found.columns.names == ("site", "depth")
    site, depth = found.columns.each
    assert [*site.cells] == ["" if row == 99 else sites[row] for row in rows]
    assert (depth.kind, [*depth.cells]) == ("number", ["" if row == 99 else str(row) for row in rows])
    assert not read_images(tmp_path / "sorted", folders="reviewed", extra_columns="ignore").columns.names


@pytest.mark.parametrize("format_", ["imagefolder", "fiftyone"])
def test_folders_of_other_formats_are_no_classes(run: Run, tmp_path: Path, format_: str) -> None:
    export(run, format_, tmp_path / "out", how="copy")
    with pytest.raises(InputError, match=rf"in the format {format_}, whose folders are not classes.*folders='ignore'"):
        read_images(tmp_path / "out")
    if format_ == "imagefolder":
        table = tmp_path / "out/train/metadata.jsonl"
        assert json.loads(table.read_text().splitlines()[2])["label"] == ""
        assert found_in(read_images(tmp_path / "out/train", labels=table)) == LABELS
