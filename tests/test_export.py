"""Exports: each format read back, by the tool it is for where that is installed; hostile names; nothing overwritten."""

import csv
import errno
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from sample_run import sample_run

from sortal import __version__
from sortal.errors import InputError
from sortal.export import FORMATS, Exported, export
from sortal.export.job import How
from sortal.export.names import LONGEST, RESERVED, Names, plain, safe
from sortal.run import Run, load

FOLDERS = ("folders", "imagefolder", "fiftyone", "labelstudio")
FILES = ("csv", "parquet", "coco")
LINKED = ("folders", "imagefolder", "fiftyone")
NO_UTF8 = os.fsdecode(b"caf\xe9") if sys.platform == "linux" else "café"

Image_ = tuple[str, str, str]  # file, category, status


def a_run(folder: Path, images: Sequence[Image_], *, names: Sequence[str] = ()) -> Run:
    """A run over small images, no two of them alike, which are written to a folder."""
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
    return replace(
        run,
        folder=folder / "run",
        about={"images": [{"folder": str(photos), "images": n, "paths": {}}], "versions": {"sortal": "9.9"}},
        assignments=replace(run.assignments, labels=labels, truth=labels, status=status, confidence=confidence),
        categories=tuple(replace(each, kind="known" if each.name in labels else "new") for each in run.categories),
    )


def of_pixels(run: Run) -> Run:
    """The same, had the images been given as an array."""
    return replace(run, about={**run.about, "images": [{"folder": None, "images": len(run.assignments), "paths": {}}]})


PLAIN: list[Image_] = [
    ("a.png", "cat", "labelled"),
    ("b.png", "cat", "known"),
    ("c/a.png", "cat", "known"),
    ("test_1.png", "new 1", "new"),
    ("d.png", "new 1", "new"),
]
UNSURE: list[Image_] = [*PLAIN, ("e.png", "cat", "unsure"), ("f.png", "new 1", "unsure")]
HOSTILE_NAMES = (
    "../../x",
    "<script>alert(1)</script>",
    '=HYPERLINK("x")',
    "CON",
    "a/b",
    "n" * 300,
    "\u202egnp.exe",
    "two\nlines\r\tand \x01",
    NO_UTF8,
    "Cat",
    "cat",
    "unsure",
    "index.csv",
    "NA",
    "..",
    ' name="x" & ]]> --> <!-- {',
)
HOSTILE: list[Image_] = [
    *((f"{i}.png", name, ("known", "new", "labelled", "unsure")[i % 4]) for i, name in enumerate(HOSTILE_NAMES)),
    ("one/same.png", "cat", "known"),
    ("two/same.png", "cat", "known"),
    ("two/SAME.PNG", "cat", "known"),
    ("two/same.jpg", "cat", "unsure"),
    ("=cmd [x] #1 100%.png", "cat", "new"),
    ("new\nline.png", "cat", "new"),
    (f"{'l' * 240}.png", "cat", "new"),
    (f"{NO_UTF8}.png", "cat", "new"),
    ("nul.png", "cat", "new"),
    ("train/test/val.png", "cat", "new"),
    ("metadata.csv", "cat", "new"),
]


@pytest.fixture
def hostile(tmp_path: Path) -> Run:
    return a_run(tmp_path, HOSTILE)


def content(path: Path | str) -> bytes:
    return Path(path).read_bytes()


def cells(path: Path) -> list[dict[str, str]]:
    text = content(path).decode("utf-8", "surrogateescape")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def unmarked(cell: str) -> str:
    return cell.removeprefix("'")


def written(out: Path) -> bytes | set[str]:
    return files_below(out) if out.is_dir() else content(out)


def files_below(folder: Path) -> set[str]:
    """Every file, however deep, but for the mark of an export."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return found - {".sortal-export.json"}


# What holds for each format


@pytest.mark.parametrize("name", FORMATS)
def test_every_image_is_exported_or_reported_as_missing(name: str, hostile: Run, tmp_path: Path) -> None:
    before = {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()}
    told: list[tuple[str, int, int]] = []
    done = export(hostile, name, tmp_path / "out", on_progress=lambda *each: told.append(each))
    n = len(HOSTILE)
    assert done == Exported(format=name, out=tmp_path / "out", images=n, missing=())
    assert told[-1] == ("Exporting", n, n)
    assert {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()} == before
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]  # nothing left beside it

    run = a_run(tmp_path, PLAIN)
    (tmp_path / "photos/b.png").unlink()
    (tmp_path / "photos/d.png").write_bytes(b"")
    done = export(run, name, tmp_path / "less")
    table = name in ("csv", "parquet")  # which needs no files
    assert (done.images, done.missing) == ((5, ()) if table else (3, ("b.png", "d.png")))
    files = [tmp_path / "less", *(tmp_path / "less").rglob("*")]
    assert any(b"b.png" in content(path) for path in files if path.is_file()) == table
    if not table:
        with pytest.raises(InputError, match="given as an array"):
            export(of_pixels(run), name, tmp_path / "none")
        assert not (tmp_path / "none").exists()


def test_an_unknown_format_or_way_is_refused_with_those_there_are(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    with pytest.raises(InputError, match=r"format must be one of csv, .*labelstudio, got 'xlsx'\."):
        export(run, "xlsx", tmp_path / "out")
    with pytest.raises(InputError, match=r"how must be one of hardlink, symlink, copy, got 'move'\."):
        export(run, "folders", tmp_path / "out", how="move")  # type: ignore[arg-type]


# Tables


def test_csv_has_one_row_an_image_and_no_formula(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "csv", tmp_path / "t.csv")
    rows = cells(tmp_path / "t.csv")
    assert list(rows[0]) == ["file_name", "path", "category", "category_name", "status", "confidence", "label", "truth"]
    assert [unmarked(row["file_name"]) for row in rows] == [file for file, _, _ in HOSTILE]
    assert [unmarked(row["category_name"]) for row in rows] == [name for _, name, _ in HOSTILE]
    assert [row["status"] for row in rows] == [status for _, _, status in HOSTILE]
    assert [row["path"] for row in rows] == hostile.paths()
    assert [unmarked(row["label"]) for row in rows] == [name or "" for name in hostile.assignments.labels]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(hostile.assignments.confidence, abs=1e-6)
    found = [cell for row in rows for cell in row.values()]
    assert {'\'=HYPERLINK("x")', "'=cmd [x] #1 100%.png"} <= {*found}
    assert not [cell for cell in found if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    hostile.save({})
    export(load(hostile.folder), "csv", tmp_path / "again.csv")
    assert content(tmp_path / "again.csv") == content(tmp_path / "t.csv"), "of a run that was saved it is the same"


def test_parquet_has_the_same_columns_with_types(hostile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(hostile, "parquet", tmp_path / "t.parquet")
    table = parquet.read_table(tmp_path / "t.parquet")
    text = dict.fromkeys(["file_name", "path", "category_name", "status", "label", "truth"], pa.string())
    types = {field.name: field.type for field in table.schema}
    assert types == {**text, "category": pa.int64(), "confidence": pa.float64()}
    assert table["file_name"].to_pylist() == [plain(file) for file, _, _ in HOSTILE]
    assert table["category_name"].to_pylist() == [plain(name) for _, name, _ in HOSTILE]
    assert table["label"].to_pylist() == [name and plain(name) for name in hostile.assignments.labels]
    assert table["category"].to_pylist() == hostile.assignments.category.tolist()
    export(of_pixels(hostile), "csv", tmp_path / "t.csv")
    assert {row["path"] for row in cells(tmp_path / "t.csv")} == {""}
    export(of_pixels(hostile), "parquet", tmp_path / "pixels.parquet")
    assert set(parquet.read_table(tmp_path / "pixels.parquet")["path"].to_pylist()) == {None}
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=re.escape('pip install "sortal[parquet]"')):
        export(hostile, "parquet", tmp_path / "never.parquet")


# Folders


def test_folders_hold_what_is_sure_and_the_rest_is_apart(tmp_path: Path) -> None:
    export(a_run(tmp_path, UNSURE, names=("cat", "none", "new 1")), "folders", tmp_path / "out")
    sure = {"cat/a.png", "cat/b.png", "cat/a (2).png", "new 1/test_1.png", "new 1/d.png"}
    assert files_below(tmp_path / "out") == {*sure, "index.csv", "unsure/cat/e.png", "unsure/new 1/f.png"}
    assert not (tmp_path / "out/none").exists(), "a category without images has no folder"


def test_the_index_of_folders_leads_from_each_image_to_its_original(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "folders", tmp_path / "out", how="copy")
    rows = cells(tmp_path / "out/index.csv")
    assert files_below(tmp_path / "out") == {"index.csv", *(unmarked(row["exported"]) for row in rows)}
    assert [unmarked(row["file_name"]) for row in rows] == [file for file, _, _ in HOSTILE]
    for row, path, (_, name, status) in zip(rows, hostile.paths(), HOSTILE, strict=True):
        exported = unmarked(row["exported"])
        assert content(tmp_path / "out" / exported) == content(path)
        assert exported.startswith("unsure/") == (status == "unsure")
        assert (unmarked(row["category_name"]), row["status"]) == (name, status)
    sure = {row["category"]: unmarked(row["exported"]).split("/")[0] for row in rows if row["status"] != "unsure"}
    assert len({folder.lower() for folder in sure.values()}) == len(sure)  # one folder a category, whatever its case


@pytest.mark.parametrize("name", LINKED)
def test_images_are_linked_or_copied_as_asked(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN[:1])
    original = run.paths()[0]
    found: dict[str, Path] = {}
    for how in get_args(How):
        export(run, name, tmp_path / how, how=how)
        (found[how],) = (tmp_path / how).rglob("*.png")
        assert content(found[how]) == content(original)
    assert os.path.samefile(found["hardlink"], original)
    assert not found["hardlink"].is_symlink()
    assert os.readlink(found["symlink"]) == original
    assert not os.path.samefile(found["copy"], original)


def test_an_original_that_is_a_relative_link_still_leads_somewhere(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN[:1])
    os.rename(tmp_path / "photos/a.png", tmp_path / "real.png")
    os.symlink("../real.png", tmp_path / "photos/a.png")
    for how in get_args(How):
        export(run, "folders", tmp_path / how, how=how)
        assert content(tmp_path / how / "cat/a.png") == content(tmp_path / "real.png")


def test_where_links_are_impossible_copies_are_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    run = a_run(tmp_path, PLAIN)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "symlink", refuse)
    for how in get_args(How)[:2]:
        with pytest.raises(InputError, match=r"Invalid cross-device link.*a\.png.*--how copy"):
            export(run, "folders", tmp_path / "out", how=how)
    assert os.listdir(tmp_path) == ["photos"]


# Names


def test_names_are_safe() -> None:
    made = {
        "Ünïcode 猫": "Ünïcode 猫",
        "../../x": "_.._x",
        "..": "_",
        "": "_",
        "a/b\\c": "a_b_c",
        ".hidden": "hidden",
        "end. ": "end",
        "CON": "_CON",
        "nul.txt": "_nul.txt",
        "console": "console",
        "two\nlines": "two_lines",
        "<script>": "_script_",
        "\u202egnp.exe": "_gnp.exe",
        "x\udce9": "x_",
    }
    assert {text: safe(text) for text in made} == made


def test_a_name_is_given_once() -> None:
    names = Names("unsure")
    taken = [names.folder(text) for text in ("cat", "CAT", "cat (2)", "cat", "Unsure")]
    assert taken == ["cat", "CAT (2)", "cat (2) (2)", "cat (3)", "Unsure (2)"]
    assert [names.file(path) for path in ("x/b.png", "y/B.PNG", "b.jpg")] == ["b.png", "B (2).PNG", "b.jpg"]
    assert [names.file("image.png") for _ in range(20_000)][-1] == "image (20000).png", "in no time"


# Surrogates among them, as in names of files that are not UTF-8
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=()), max_size=130)
    | st.sampled_from([*HOSTILE_NAMES, "a", "A", "a (2)", "a.png", "A.PNG", "ß", "SS", "ﬁ", "é", "é", "a" * 100]),
    max_size=20,
)


@given(texts=TEXTS, how=st.sampled_from(["folder", "file", "stem"]))
@settings(deadline=None)
@example(texts=["x.aaaaaaaaaaaaaaaaaaaaaaaaa", "x.png"], how="stem")
def test_any_names_become_safe_and_different(texts: list[str], how: str) -> None:
    names = Names("unsure", by_stem=how == "stem")
    given_out = [(names.folder if how == "folder" else names.file)(text) for text in texts]
    keys = [os.path.splitext(name)[0] if how == "stem" else name for name in given_out]
    assert len({key.casefold() for key in [*keys, "unsure"]}) == len(keys) + 1
    for name in given_out:
        assert 0 < len(name.encode("utf-8")) <= LONGEST
        assert not set(name) & set('/\\:*?"<>|\0\n\r')
        assert not name.startswith((".", " "))
        assert not name.endswith((".", " "))
        assert not RESERVED.match(name)


# Hugging Face


def test_the_table_of_an_image_folder_names_each_image(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "imagefolder", tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/train/metadata.jsonl").read_text("utf-8").splitlines()]
    assert files_below(tmp_path / "out/train") == {"metadata.jsonl", *(row["file_name"] for row in rows)}
    a = hostile.assignments
    assert [row["source"] for row in rows] == [plain(file) for file, _, _ in HOSTILE]
    assert [row["category_name"] for row in rows] == [plain(name) for _, name, _ in HOSTILE]
    assert [row["label"] for row in rows] == [plain(name or "") for name in a.labels]
    assert [(row["status"], row["category"]) for row in rows] == [*zip(a.status, a.category, strict=True)]
    assert [row["confidence"] for row in rows] == pytest.approx(a.confidence, abs=1e-6)
    for row, path in zip(rows, hostile.paths(), strict=True):
        assert content(tmp_path / "out/train" / row["file_name"]) == content(path)


def test_hugging_face_datasets_reads_it(hostile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    export(hostile, "imagefolder", tmp_path / "out")
    read = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "hf"))
    assert list(read) == ["train"]  # also with images named test and val
    for number, row in enumerate(read["train"]):
        assert row["category_name"] == plain(HOSTILE[number][1])
        assert row["image"].convert("RGB").getpixel((0, 0)) == (number, 2 * number % 256, 7)


# COCO


def test_coco_is_read_by_its_own_tools(hostile: Run, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    export(hostile, "coco", tmp_path / "coco.json")
    read = coco.COCO(str(tmp_path / "coco.json"))
    images = read.loadImgs(sorted(read.getImgIds()))
    assert [image["file_name"] for image in images] == [file for file, _, _ in HOSTILE]
    assert [(image["width"], image["height"]) for image in images] == [(4 + i % 5, 3) for i in range(len(HOSTILE))]
    assert [category["name"] for category in read.loadCats(read.getCatIds())] == [*map(plain, hostile.names)]
    kinds = [category.kind for category in hostile.categories]
    assert [category["supercategory"] for category in read.loadCats(read.getCatIds())] == kinds
    assert min(read.anns) == 1, "the evaluation takes an annotation 0 for none"
    for image, (_, name, status) in zip(images, HOSTILE, strict=True):
        (one,) = read.loadAnns(read.getAnnIds(imgIds=[image["id"]]))
        assert (hostile.names[one["category_id"]], one["status"]) == (name, status)
        assert one["bbox"] == [0, 0, image["width"], image["height"]]
        assert one["area"] == image["width"] * image["height"]
    assert read.dataset["info"]["version"] == __version__


def test_coco_sizes_are_upright_and_come_from_the_header(tmp_path: Path) -> None:
    run = a_run(tmp_path, [(f"{i}.png", "cat", "known") for i in range(4)])
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (8, 5)).save(tmp_path / "photos/0.png", "JPEG", exif=turned)
    Image.new("RGB", (8, 5)).save(tmp_path / "photos/1.png", "TIFF", tiffinfo={0x0112: 6})
    Image.new("RGB", (8, 5)).save(tmp_path / "photos/2.png", "PNG", exif=turned)
    (tmp_path / "photos/3.png").write_bytes(b"no image")
    done = export(run, "coco", tmp_path / "coco.json")
    assert (done.images, done.missing) == (3, ("3.png",))
    images = json.loads(content(tmp_path / "coco.json"))["images"]
    assert [(image["width"], image["height"]) for image in images] == [(5, 8)] * 3
    run.about["images"].append({"folder": str(tmp_path / "more"), "images": 0, "paths": {}})
    export(run, "coco", tmp_path / "coco.json", force=True)
    images = json.loads(content(tmp_path / "coco.json"))["images"]
    assert [image["file_name"] for image in images] == run.paths()[:3], "with several folders, by where they are"


# FiftyOne


def test_fiftyone_finds_labels_by_the_names_of_files(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "fiftyone", tmp_path / "out")
    read = json.loads(content(tmp_path / "out/labels.json"))
    assert read["classes"] == [*map(plain, hostile.names)]
    by_stem = {path.stem: path for path in (tmp_path / "out/data").iterdir()}
    assert set(by_stem) == set(read["labels"])
    assert len(by_stem) == len(os.listdir(tmp_path / "out/data")) == len(HOSTILE)
    originals = dict(zip(map(plain, hostile.assignments.files), hostile.paths(), strict=True))
    for stem, label in read["labels"].items():
        assert content(by_stem[stem]) == content(originals[label["attributes"]["source"]])
        assert label["label"] == plain(hostile.names[label["attributes"]["category"]])
    assert sorted(label["attributes"]["status"] for label in read["labels"].values()) == sorted(
        status for _, _, status in HOSTILE
    )


# Label Studio


def test_label_studio_tasks_lead_to_the_images(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "labelstudio", tmp_path / "out")
    readme = (tmp_path / "out/README.txt").read_text("utf-8")
    root = re.search("DOCUMENT_ROOT=(.*)", readme)
    assert root is not None
    assert Path(root[1]) == tmp_path  # the folder around that of the images, as that may not be the root itself
    assert f"\n     {tmp_path / 'photos'}\n" in readme
    tasks = json.loads(content(tmp_path / "out/tasks.json"))
    for task, path, (_, _, status) in zip(tasks, hostile.paths(), HOSTILE, strict=True):
        url = urlsplit(task["data"]["image"])
        (relative,) = parse_qs(url.query, strict_parsing=True, errors="surrogateescape")["d"]
        assert url.path == "/data/local-files/"
        assert os.path.join(root[1], relative) == path
        assert ("annotations" in task) == (status == "labelled")
        assert task["predictions"][0]["model_version"] == "sortal 9.9"


def choices_of(folder: Path) -> list[str | None]:
    return [each.get("value") for each in ElementTree.fromstring(content(folder / "config.xml")).iter("Choice")]


def test_label_studio_offers_every_category_once(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "labelstudio", tmp_path / "out")
    expected = [plain(name).replace("\x01", "\ufffd") for name in hostile.names]  # which XML cannot hold
    assert choices_of(tmp_path / "out") == expected
    tasks = json.loads(content(tmp_path / "out/tasks.json"))
    for task, category in zip(tasks, hostile.assignments.category.tolist(), strict=True):
        assert task["predictions"][0]["result"][0]["value"]["choices"] == [expected[category]]
    alike = a_run(tmp_path, [("a.png", "x\x01", "new"), ("b.png", "x\x02", "new")])
    export(alike, "labelstudio", tmp_path / "alike")
    assert choices_of(tmp_path / "alike") == ["x\ufffd", "x\ufffd (2)"]


def test_label_studio_validates_it(hostile: Run, tmp_path: Path) -> None:
    interfaces = pytest.importorskip("label_studio_sdk.label_interface")
    export(hostile, "labelstudio", tmp_path / "out")
    interface = interfaces.LabelInterface((tmp_path / "out/config.xml").read_text("utf-8"))
    interface.validate()
    for task in json.loads(content(tmp_path / "out/tasks.json")):
        assert task["data"]["image"]
        assert interface.validate_prediction(task["predictions"][0], return_errors=True) == []
        assert all(interface.validate_annotation(each) for each in task.get("annotations", []))


# Where it goes


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "t").write_text("mine")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/mine").write_text("mine")
    for name in FILES:
        with pytest.raises(InputError, match=r"is there already.*--force"):
            export(run, name, tmp_path / "t")
        with pytest.raises(InputError, match=r"is one file, got .* which is a folder"):
            export(run, name, tmp_path / "d", force=True)
    for name in FOLDERS:
        with pytest.raises(InputError, match=r"must be new or empty.*--force"):
            export(run, name, tmp_path / "d")
        with pytest.raises(InputError, match="was not written by sortal export"):
            export(run, name, tmp_path / "d", force=True)
        with pytest.raises(InputError, match=r"is a folder, got .* which is a file"):
            export(run, name, tmp_path / "t", force=True)
    assert (tmp_path / "t").read_text() == (tmp_path / "d/mine").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["d", "photos", "t"]


@pytest.mark.parametrize("name", FORMATS)
def test_force_replaces_an_export_and_an_interrupted_one_leaves_the_old(name: str, tmp_path: Path) -> None:
    if name in FOLDERS:
        (tmp_path / "out").mkdir()  # an empty folder is filled
    export(a_run(tmp_path, UNSURE), name, tmp_path / "out")
    if name in FOLDERS:
        (tmp_path / "out/more.png").write_text("of the old one")
    run = a_run(tmp_path, PLAIN)
    export(run, name, tmp_path / "out", force=True)
    export(run, name, tmp_path / "new/below")  # a folder that is not there is made
    before = written(tmp_path / "out")
    assert before == written(tmp_path / "new/below")

    def stop(_: str, done: int, __: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    if name in FOLDERS:
        with pytest.raises(KeyboardInterrupt):
            export(a_run(tmp_path, UNSURE), name, tmp_path / "out", force=True, on_progress=stop)
        assert written(tmp_path / "out") == before
    assert sorted(os.listdir(tmp_path)) == ["new", "out", "photos"]


def test_an_export_that_cannot_take_the_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path, PLAIN)
    export(run, "folders", tmp_path / "out")
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if target.name == "out" and not source.name.endswith("-old"):
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(InputError, match="cannot be written: Permission denied"):
        export(run, "folders", tmp_path / "out", force=True)
    assert "cat/a.png" in files_below(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]


@pytest.mark.parametrize("name", FOLDERS)
def test_an_export_never_replaces_or_mingles_with_the_images_or_the_run(name: str, tmp_path: Path) -> None:
    run = replace(a_run(tmp_path, PLAIN), folder=tmp_path / "out/run")
    run.folder.mkdir(parents=True)
    for at in ("photos", ".", "photos/c", "out"):
        (tmp_path / at / ".sortal-export.json").write_text("{}")
        with pytest.raises(InputError, match=r"outside the run and its images.*which is or (holds|lies in) their"):
            export(run, name, tmp_path / at, force=True)
    assert [os.path.exists(path) for path in run.paths()] == [True] * len(PLAIN)
    os.symlink(tmp_path / "photos", tmp_path / "link")
    for folder in ("photos", "link") if name in LINKED else ():  # however the folder is named
        run.about["images"][0]["folder"] = str(tmp_path / folder)
        with pytest.raises(InputError, match="would take it for further images"):
            export(run, name, tmp_path / "photos/sorted")


def listed(run: Run, folder: Path) -> Run:
    """The same, had the images been given as a list of paths, in this folder."""
    names = [f"given/{i}.png" for i in range(len(run.assignments))]
    source = {"folder": str(folder), "images": len(names), "paths": dict(zip(names, run.paths(), strict=True))}
    return replace(
        run, about={**run.about, "images": [source]}, assignments=replace(run.assignments, files=tuple(names))
    )


def test_a_list_of_images_can_be_exported_beside_them(tmp_path: Path) -> None:
    run = listed(a_run(tmp_path, PLAIN), tmp_path)
    assert export(run, "folders", tmp_path / "out").images == len(PLAIN)
    assert content(tmp_path / "out/cat/0.png") == content(tmp_path / "photos/a.png")
    export(run, "coco", tmp_path / "coco.json")
    assert [image["file_name"] for image in json.loads(content(tmp_path / "coco.json"))["images"]] == run.paths()
    with pytest.raises(InputError, match="outside the run and its images"):
        export(run, "folders", tmp_path / "photos", force=True)


def test_images_from_everywhere_can_be_exported_anywhere(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    everywhere = {"folder": str(tmp_path), "images": len(PLAIN), "paths": {"a.png": "/a.png"}}
    run = replace(run, about={**run.about, "images": [everywhere]})
    assert export(run, "folders", tmp_path / "out").missing == tuple(file for file, _, _ in PLAIN)


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_run_and_its_images_are_not_replaced(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    run.folder.mkdir()
    (run.folder / "assignments.csv").write_text("the run's")
    for path in (run.folder / "assignments.csv", tmp_path / "photos/a.png"):
        before = content(path)
        with pytest.raises(InputError, match=r"belongs to the run's images|must lie outside the run"):
            export(run, name, path, force=True)
        assert content(path) == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "file").write_text("")
    for name in ("csv", "folders"):
        with pytest.raises(InputError, match=r"The export '.*' cannot be written: (Not a directory|File exists)"):
            export(run, name, tmp_path / "file/out")
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        export(run, "folders", tmp_path / ("x" * 300))
