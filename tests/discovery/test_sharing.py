"""What people share does not say where their images are, who they are, or on which computer."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet
from support import tiny_folder
from support.exports import UNDEMANDING
from support.runtimes import CPU

from sortal.cli import app
from sortal.discovery.prediction import predict, redraw
from sortal.exchange.export import EXPORT_FORMATS, export
from sortal.exchange.importing import import_annotations
from sortal.images.image_set import ImageSet
from sortal.images.reading import read_images
from sortal.research.figures import draw
from sortal.reviews.loading import load_run
from sortal.runs.run import Run

HIDDEN, HOST, USER = "Zx-unmistakable-9f4", "zx-host-71c", "zx-user-38b"
# What of a run folder names the folder of the images: docs/security.md says so.
NAMING = {"run.json", "cache/pixels"}


@dataclass(frozen=True)
class Shared:
    """A run of images under a folder with an unmistakable name, to which those of a second folder were added."""

    images: Path
    more: Path
    run: Run


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("sharing")
    images, more = folder / HIDDEN / "photos", folder / HIDDEN / "more"
    tiny_folder.write(images)
    (images / "unlabelled" / "broken.png").write_text("no image")
    tiny_folder.write(more, {"unlabelled/ash.png": "ash 90", "b.png": "oak 91"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.node", lambda: HOST)
        patch.setattr("socket.gethostname", lambda: HOST)
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            patch.setenv(name, USER)
        out = folder / "results" / "run"
        tiny_folder.sort(images, out)
        predict(out, more, update=True, runtime=CPU, progress=False)
        yield Shared(images, more, load_run(out))


def texts(place: Path) -> Iterator[tuple[str, str]]:
    """Yield each file of a place, or the file itself, with everything in it that is text, and its name."""
    for path in [place] if place.is_file() else sorted(place.rglob("*")):
        name = path.relative_to(place.parent).as_posix()
        if not path.is_file():
            yield name, name
            continue
        content = path.read_bytes().decode("utf-8", "replace")
        if path.suffix == ".parquet":
            content += str(parquet.read_table(path).to_pylist()) + str(parquet.read_schema(path).metadata)
        elif path.suffix == ".png":
            with Image.open(path) as image:
                content += str(getattr(image, "text", ""))
        yield name, f"{path.name}\n{content}\n{unquote(content)}"


def telling(place: Path) -> set[str]:
    """Return the files that say where the images are, whose they are, or on which computer."""
    return {name for name, text in texts(place) if any(word in text for word in (HIDDEN, HOST, USER))}


@pytest.mark.parametrize("name", UNDEMANDING)
def test_no_export_says_where_the_images_are_unless_it_is_asked_to(name: str, shared: Shared, tmp_path: Path) -> None:
    extension = EXPORT_FORMATS[name].extension
    export(shared.run, name, tmp_path / f"default{extension}")
    assert telling(tmp_path / f"default{extension}") == set()
    export(shared.run, name, tmp_path / f"asked{extension}", absolute_paths=True)
    found = "".join(text for _, text in texts(tmp_path / f"asked{extension}"))
    assert str(shared.images) in found, "paths are there for who wants them"
    assert str(shared.more) in found


def test_neither_does_the_report_unless_it_is_asked_to(shared: Shared, capsys: pytest.CaptureFixture[str]) -> None:
    place = redraw(shared.run.folder, runtime=CPU)
    assert telling(place) == set()
    page = place.read_text(encoding="utf-8")
    assert "sortal discover photos --out run " in page
    assert "sortal review run" in page
    assert app.main(["report", str(shared.run.folder), "--absolute-paths", "--device", "cpu", "--workers", "1"]) == 0
    capsys.readouterr()
    page = place.read_text(encoding="utf-8")
    assert f"sortal discover {shared.images} --out {shared.run.folder} " in page
    assert f"./../../{HIDDEN}/photos/" in page, "the originals open from the page"


def test_neither_do_figures_and_tables_of_predictions(shared: Shared, tmp_path: Path) -> None:
    draw(shared.run, tmp_path / "figures", which=["k-curve", "legacy", "tsne"], runtime=CPU)
    assert telling(tmp_path / "figures") == set()
    found = predict(shared.run, shared.more, runtime=CPU, progress=False)
    (tmp_path / "table.csv").write_bytes(found.to_csv())
    assert telling(tmp_path / "table.csv") == set()


def test_a_run_names_the_folders_of_its_images_in_two_places_only(shared: Shared, tmp_path: Path) -> None:
    shutil.copytree(shared.run.folder, tmp_path / "run")
    redraw(tmp_path / "run", runtime=CPU)
    inside = {name.removeprefix("run/") for name in telling(tmp_path / "run")}
    found = {name if "/" not in name else "/".join(name.split("/")[:2]) for name in inside}
    assert found == NAMING, inside
    events = [*tmp_path.rglob("events.out.tfevents.*")]
    assert all(HOST not in path.name for path in events)
    said = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    assert all(f"`{each}`" in said for each in NAMING)


# Reading back


def labelled(images: ImageSet) -> dict[str, str]:
    """Return the labels of images by the end of their path."""
    pairs = zip(images.paths, images.labels.tolist(), strict=True)
    ends = [("/".join(Path(os.path.realpath(path)).parts[-3:]), label) for path, label in pairs]
    return {end: images.classes[label] for end, label in ends if label >= 0}


@pytest.mark.parametrize("absolute_paths", [False, True])
def test_tables_are_read_back_from_any_folder(
    shared: Shared, tmp_path: Path, absolute_paths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.csv"
    export(shared.run, "csv", table, absolute_paths=absolute_paths)
    columns = {"image_folder", *["path"] * absolute_paths}
    assert {*tiny_folder.rows_of(table)[0]} & {"image_folder", "path"} == columns
    rows = tiny_folder.rows_of(table)
    for row in rows:  # one image of either folder; their names are relative to it
        if row["file_name"] in ("b.png", "unlabelled/ash.png"):
            row["label"] = "oak"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    both = {f"{HIDDEN}/more/b.png": "oak", "more/unlabelled/ash.png": "oak"}
    own = labelled(read_images(shared.images))
    for here in (tmp_path, shared.images.parent, shared.images):
        monkeypatch.chdir(here)
        more, photos = (os.path.relpath(each) for each in (shared.more, shared.images))
        assert labelled(read_images(more, labels=table)) == both
        assert labelled(read_images(photos, labels=table, unlisted="unlabelled")) == own
        assert labelled(read_images([photos, more], labels=table, unlisted="unlabelled")) == own | both
    moved = shutil.copytree(shared.more, tmp_path / "somewhere else")
    with_more = tmp_path / "more.csv"
    with with_more.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(row for row in rows if row["image_folder"] == "more")
    assert {*labelled(read_images(moved, labels=with_more)).values()} == {"oak"}, "else the names count"


def test_annotations_are_imported_by_relative_names(shared: Shared, tmp_path: Path) -> None:
    """Also without digests, where two folders have an image of the same name."""
    run = Path(shutil.copytree(shared.run.folder, tmp_path / "run"))
    for name in ("csv", "labelstudio", "fiftyone"):
        export(shared.run, name, tmp_path / name)
    rows = tiny_folder.rows_of(tmp_path / "csv")
    (row,) = [each for each in rows if (each["image_folder"], each["file_name"]) == ("more", "b.png")]
    row["category"] = "oak"
    with (tmp_path / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [name for name in row if name != "content"], extrasaction="ignore")
        writer.writeheader()
        writer.writerow(row)
    assert import_annotations(run, tmp_path / "table.csv").decided == 1
    tasks = json.loads((tmp_path / "labelstudio" / "tasks.json").read_text())
    task = next(each for each in tasks if "more/unlabelled/ash.png" in each["data"]["image"])
    task["annotations"] = [{"result": task["predictions"][0]["result"]}]
    del task["data"]["content"], task["data"]["file_name"]
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    assert import_annotations(run, tmp_path / "tasks.json").images == 1
    assert import_annotations(run, tmp_path / "fiftyone").missing == ()


def test_label_studio_finds_the_images_below_its_document_root(shared: Shared, tmp_path: Path) -> None:
    export(shared.run, "labelstudio", tmp_path / "tasks")
    readme = (tmp_path / "tasks" / "README.txt").read_text("utf-8")
    assert "DOCUMENT_ROOT=(the absolute path of the folder that contains more, photos)\n" in readme
    assert "\n     more\n     photos\n" in readme
    for task, path in zip(json.loads((tmp_path / "tasks" / "tasks.json").read_text()), shared.run.paths(), strict=True):
        prefix, relative = task["data"]["image"].split("?d=")
        assert prefix == "/data/local-files/"
        assert os.path.samefile(shared.images.parent / unquote(relative), path)


# Names


def test_absolute_names_become_relative_to_the_folder_of_the_images(shared: Shared, tmp_path: Path) -> None:
    """Names in a table of labels, or in a list of files, may be absolute."""
    files = [str(shared.images / "unlabelled" / name) for name in sorted(os.listdir(shared.images / "unlabelled"))[:12]]
    (tmp_path / "here").mkdir()
    images = read_images(
        [file for file in files if "broken" not in file],
        labels=["a", "b"] * 2 + [None] * (len(files) - 4 - any("broken" in file for file in files)),
    )
    with tiny_folder.quickly():
        run = tiny_folder.sort(images, tmp_path / "run", k=3, epochs=0, method="kmeans")
    export(run, "csv", tmp_path / "t.csv")
    export(run, "coco", tmp_path / "t.json")
    assert telling(tmp_path / "t.csv") == telling(tmp_path / "t.json") == set()
    names = [row["file_name"] for row in tiny_folder.rows_of(tmp_path / "t.csv")]
    assert names == [os.path.basename(file) for file in images.files]
    read = read_images(shared.images / "unlabelled", labels=tmp_path / "t.csv", unlisted="ignore")
    assert np.array_equal(read.labels, images.labels)
