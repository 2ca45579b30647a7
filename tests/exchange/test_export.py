"""Every format: each image is exported or reported as missing, whatever it is called."""

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet
from support.exports import HOSTILE, PLAIN, UNDEMANDING, a_run, content, not_calibrated, of_pixels, rows_in_zip

from sortal.errors import InputError
from sortal.exchange.export import ExportResult, export
from sortal.exchange.importing import import_annotations
from sortal.images.reading import read_images
from sortal.reviews import journal
from sortal.reviews.actions import Bin
from sortal.reviews.history import Review
from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import DECISIONS, Run
from sortal.system.progress import Runtime


@pytest.mark.parametrize("name", UNDEMANDING)
def test_every_image_is_exported_or_reported_as_missing(name: str, hostile: Run, tmp_path: Path) -> None:
    before = {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()}
    reports: list[tuple[str, int, int]] = []
    done = export(hostile, name, tmp_path / "out", runtime=Runtime(progress=lambda *each: reports.append(each)))
    n = len(HOSTILE)
    assert done == ExportResult(format=name, out=tmp_path / "out", images=n, missing=())
    assert reports[-1] == ("Exporting", n, n)
    assert {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()} == before
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]  # no temporary files

    run = a_run(tmp_path, PLAIN)
    (tmp_path / "photos/b.png").unlink()
    (tmp_path / "photos/d.png").write_bytes(b"")
    done = export(run, name, tmp_path / "less")
    table = name in ("csv", "parquet", "embeddings")  # needs no image files
    left = (done.images, done.missing, done.changed)
    assert left == ((5, (), ()) if table else (3, ("b.png",), ("d.png",)))
    files = [tmp_path / "less", *(tmp_path / "less").rglob("*")]
    found = [content(path) for path in files if path.is_file()]
    if name in ("parquet", "embeddings"):
        found = [str(parquet.read_table(tmp_path / "less").to_pylist()).encode()]
    assert any(b"b.png" in each for each in found) == table
    with pytest.raises(InputError, match=r"how must be one of hardlink, symlink, copy, got 'move'\."):
        export(run, name, tmp_path / "none", how="move")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"format must be one of csv, .*ecotaxa, got 'xlsx'\."):
        export(run, "xlsx", tmp_path / "none")
    if not table:
        with pytest.raises(InputError, match="given as an array"):
            export(of_pixels(run), name, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_every_format_says_that_an_image_is_in_the_bin(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    review = Review(run)
    review.take(Bin(images=run.assignments.contents[1:2]))
    binned = review.run()
    file = binned.assignments.files[1]
    out = {name: export(binned, name, tmp_path / name).out for name in UNDEMANDING}
    assert len(UNDEMANDING) == 9, "each is checked below"

    def state(row: Mapping[str, object]) -> list[object]:
        return [row[name] or "" for name in ("category", "category_id", "status", "reviewed", "label", "sorted_as")]

    said = ["", -1, "other", "binned", "", "no category"]
    table = csv.DictReader(out["csv"].read_text().splitlines())
    assert [str(each) for each in said] in [state(row) for row in table]
    assert said in [state(row) for row in parquet.read_table(out["parquet"]).to_pylist()]
    found = [row for row in parquet.read_table(out["embeddings"]).to_pylist() if row["category"] is None]
    assert [(row["id"], row["status"]) for row in found] == [(file, "other")]
    assert [path.name for path in (out["folders"] / "no category").iterdir()] == [file]
    lines = (out["imagefolder"] / "train" / "metadata.jsonl").read_text().splitlines()
    assert said in [state(json.loads(line)) for line in lines]
    coco = json.loads(out["coco"].read_text())
    bare = {each["id"] for each in coco["images"]} - {each["image_id"] for each in coco["annotations"]}
    assert [(each["file_name"], each["reviewed"]) for each in coco["images"] if each["id"] in bare] == [
        (file, "binned")
    ]
    fiftyone = json.loads((out["fiftyone"] / "labels.json").read_text())
    assert fiftyone["labels"][Path(file).stem]["label"] == "no category"
    assert "no category" not in fiftyone["classes"]
    tasks = json.loads((out["labelstudio"] / "tasks.json").read_text())
    skipped = [each for each in tasks if each.get("annotations") == [{"result": [], "was_cancelled": True}]]
    assert [(each["data"]["file_name"], each["data"]["reviewed"]) for each in skipped] == [(file, "binned")]
    assert "predictions" not in skipped[0]
    (row,) = [each for each in rows_in_zip(out["ecotaxa"]) if each["object_sortal_reviewed"] == "binned"]
    said_there = [row[f"object_{name}"] for name in ("annotation_category", "annotation_status", "sortal_category")]
    assert (row["img_file_name"], said_there) == (file, ["", "", "no category"])


def test_every_format_says_that_confidence_is_not_calibrated(tmp_path: Path) -> None:
    good = a_run(tmp_path, PLAIN)
    marked = {"csv", "parquet", "embeddings", "folders", "imagefolder", "coco", "fiftyone", "labelstudio"}
    for calibrated, run in ((True, good), (False, not_calibrated(good))):
        for name in UNDEMANDING:
            notes: list[str] = []
            out = export(run, name, tmp_path / f"{calibrated}.{name}", runtime=Runtime(note=notes.append)).out
            files = [each for each in (out, *out.rglob("*")) if each.is_file() and each.suffix != ".png"]
            said = b"calibrated" in b"".join(map(content, files))
            assert said == (not calibrated and name in marked), name
            assert [bool(note) for note in notes] == [True] * (not calibrated), name
        rows = rows_in_zip(tmp_path / f"{calibrated}.ecotaxa")
        assert all(bool(row["object_sortal_confidence"]) == calibrated for row in rows)
    (row, *_) = csv.DictReader((tmp_path / "False.csv").read_text().splitlines())
    assert row["calibrated"] == "no"
    assert read_images(tmp_path / "photos", labels=tmp_path / "False.csv").columns.each == (), "no column of theirs"


def test_a_table_gives_no_label_to_the_bin_and_a_category_that_is_filled_in_takes_an_image_out(tmp_path: Path) -> None:
    run = replace(a_run(tmp_path, PLAIN), folder=tmp_path / "run")
    save_run(run)
    contents = run.assignments.contents[1:2]
    journal.append(run.folder / DECISIONS, run.facts, [journal.decide(Bin(images=contents))])
    made = export(run.folder, "csv", tmp_path / "table.csv").out
    assert read_images(tmp_path / "photos", labels=made).labels[1] == -1
    assert not import_annotations(run.folder, made).decisions
    header, *rows = csv.reader(made.read_text().splitlines())
    rows[1][header.index("category")] = "fern"
    with made.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    assert import_annotations(run.folder, made).words == ("Put 1 image into the new category 'fern'",)
    assert not load_run(run.folder).assignments.binned.any()
