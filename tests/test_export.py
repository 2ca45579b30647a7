"""Exports: each format read back, by the tool it is for where that is installed; hostile names; nothing overwritten."""

import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from sortal import __version__
from sortal.errors import InputError
from sortal.export import FORMATS, Exported, export
from sortal.export.names import LONGEST, RESERVED, Names, plain, safe
from sortal.run import Assignments, Category, Run, load

FOLDERS = ("folders", "imagefolder", "fiftyone", "labelstudio")
FILES = ("csv", "parquet", "coco")
LINKED = ("folders", "imagefolder", "fiftyone")
NO_UTF8 = os.fsdecode(b"caf\xe9") if sys.platform == "linux" else "café"

Image_ = tuple[str, str, str]  # file, category, status


def a_run(folder: Path, images: Sequence[Image_], *, names: Sequence[str] = ()) -> Run:
    """A run over small images, no two of them alike, which are written to a folder."""
    photos = folder / "photos"
    for number, (file, _, _) in enumerate(images):
        (photos / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4 + number % 5, 3), (number, 2 * number % 256, 7)).save(photos / file, "PNG")
    names = names or tuple(dict.fromkeys(category for _, category, _ in images))
    status = np.array([status for _, _, status in images])
    of = np.array([names.index(category) for _, category, _ in images])
    n, k = len(images), len(names)
    labels = tuple(name if each == "labelled" else None for _, name, each in images)
    known = {name for name in labels if name is not None}
    return Run(
        folder=folder / "run",
        about={"images": [{"folder": str(photos), "images": n, "paths": {}}], "versions": {"sortal": "9.9"}},
        assignments=Assignments(
            files=tuple(file for file, _, _ in images),
            folders=np.zeros(n, dtype=np.int64),
            contents=tuple(f"{i:032x}" for i in range(n)),
            labels=labels,
            truth=labels,
            category=of,
            status=status,
            confidence=np.where(status == "labelled", 1.0, 0.25 + np.arange(n) / (2 * n)),
            distance=np.zeros(n),
            next_category=np.zeros(n, dtype=np.int64),
            next_distance=np.ones(n),
        ),
        categories=tuple(
            Category(
                id=i,
                name=name,
                kind="known" if name in known else "new",
                size=int((of == i).sum()),
                labelled=int(((of == i) & (status == "labelled")).sum()),
                unsure=int(((of == i) & (status == "unsure")).sum()),
                cohesion=None,
                nearest_known=None,
                typical=(),
            )
            for i, name in enumerate(names)
        ),
        k={},
        confidence={},
        metrics=None,
        features=np.zeros((n, 2), dtype=np.float32),
        centres=np.zeros((k, 2), dtype=np.float32),
        quarantine=(),
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
    "שלום",
    "two\nlines\r\tand \x01",
    NO_UTF8,
    "Cat",
    "cat",
    "unsure",
    "index.csv",
    "NA",
    "007",
    "..",
    ' name="x" & ]]> --> <!-- {',
    "$image",
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


def files_below(folder: Path) -> set[str]:
    """Every file, however deep, but for the mark of an export."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return found - {".sortal-export.json"}


# What holds for each format


@pytest.mark.parametrize("name", FORMATS)
def test_every_image_is_exported_or_named_as_missing(name: str, hostile: Run, tmp_path: Path) -> None:
    before = {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()}
    done = export(hostile, name, tmp_path / "out")
    assert done == Exported(format=name, out=tmp_path / "out", images=len(HOSTILE), missing=())
    assert {path: (content(path), os.stat(path).st_mtime_ns) for path in hostile.paths()} == before
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]  # nothing left beside it


@pytest.mark.parametrize("name", ["folders", "imagefolder", "coco", "fiftyone", "labelstudio"])
def test_a_file_that_went_away_is_left_out_and_the_rest_is_done(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "photos/b.png").unlink()
    (tmp_path / "photos/d.png").write_bytes(b"")
    done = export(run, name, tmp_path / "out")
    assert (done.images, done.missing) == (3, ("b.png", "d.png"))
    files = [tmp_path / "out"] if name in FILES else [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(b"b.png" in content(path) for path in files)


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_table_needs_no_files(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "photos/b.png").unlink()
    assert export(run, name, tmp_path / "out") == Exported(
        format=name, out=tmp_path / "out", images=len(PLAIN), missing=()
    )


@pytest.mark.parametrize("name", FORMATS)
def test_progress_ends_with_all_images(name: str, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    export(a_run(tmp_path, PLAIN), name, tmp_path / "out", on_progress=lambda *each: told.append(each))
    assert told[-1] == ("Exporting", len(PLAIN), len(PLAIN))


@pytest.mark.parametrize("name", ["folders", "imagefolder", "coco", "fiftyone", "labelstudio"])
def test_images_given_as_pixels_cannot_be_linked(name: str, tmp_path: Path) -> None:
    run = of_pixels(a_run(tmp_path, PLAIN))
    with pytest.raises(InputError, match="given as an array"):
        export(run, name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_was_saved_is_exported_the_same(hostile: Run, tmp_path: Path) -> None:
    hostile.save({})
    read = load(hostile.folder)
    for name in FILES:
        export(hostile, name, tmp_path / "one", force=True)
        export(read, name, tmp_path / "other", force=True)
        assert content(tmp_path / "one") == content(tmp_path / "other")


def test_an_unknown_format_or_way_is_refused_with_those_there_are(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    with pytest.raises(InputError, match=r"format must be one of csv, .*labelstudio, got 'xlsx'\."):
        export(run, "xlsx", tmp_path / "out")
    with pytest.raises(InputError, match=r"how must be one of hardlink, symlink, copy, got 'move'\."):
        export(run, "folders", tmp_path / "out", how="move")  # type: ignore[arg-type]


def test_torch_is_never_imported() -> None:
    code = "import sys, sortal.export; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Tables


def test_csv_has_one_row_an_image(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "csv", tmp_path / "t.csv")
    rows = cells(tmp_path / "t.csv")
    assert list(rows[0]) == ["file_name", "path", "category", "category_name", "status", "confidence", "label", "truth"]
    assert [unmarked(row["file_name"]) for row in rows] == [file for file, _, _ in HOSTILE]
    assert [unmarked(row["category_name"]) for row in rows] == [name for _, name, _ in HOSTILE]
    assert [row["status"] for row in rows] == [status for _, _, status in HOSTILE]
    assert [row["path"] for row in rows] == hostile.paths()
    assert [unmarked(row["label"]) for row in rows] == [name or "" for name in hostile.assignments.labels]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(hostile.assignments.confidence, abs=1e-6)


def test_csv_holds_no_formula(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "csv", tmp_path / "t.csv")
    found = [cell for row in cells(tmp_path / "t.csv") for cell in row.values()]
    assert '\'=HYPERLINK("x")' in found
    assert "'=cmd [x] #1 100%.png" in found
    assert not [cell for cell in found if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_tables_of_images_given_as_pixels_have_no_path(tmp_path: Path) -> None:
    run = of_pixels(a_run(tmp_path, PLAIN))
    export(run, "csv", tmp_path / "t.csv")
    assert [row["path"] for row in cells(tmp_path / "t.csv")] == [""] * len(PLAIN)
    export(run, "parquet", tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet")["path"].to_pylist() == [None] * len(PLAIN)


def test_parquet_has_the_same_columns_with_types(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "parquet", tmp_path / "t.parquet")
    table = parquet.read_table(tmp_path / "t.parquet")
    text = dict.fromkeys(["file_name", "path", "category_name", "status", "label", "truth"], pa.string())
    assert {field.name: field.type for field in table.schema} == {
        **text,
        "category": pa.int64(),
        "confidence": pa.float64(),
    }
    assert table["file_name"].to_pylist() == [plain(file) for file, _, _ in HOSTILE]
    assert table["category_name"].to_pylist() == [plain(name) for _, name, _ in HOSTILE]
    assert table["label"].to_pylist() == [name and plain(name) for name in hostile.assignments.labels]
    assert table["category"].to_pylist() == hostile.assignments.category.tolist()


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=re.escape('pip install "sortal[parquet]"')):
        export(a_run(tmp_path, PLAIN), "parquet", tmp_path / "t.parquet")


# Folders


def test_folders_hold_what_is_sure_and_the_rest_is_apart(tmp_path: Path) -> None:
    export(a_run(tmp_path, UNSURE), "folders", tmp_path / "out")
    assert files_below(tmp_path / "out") == {
        "index.csv",
        "cat/a.png",
        "cat/b.png",
        "cat/a (2).png",
        "new 1/test_1.png",
        "new 1/d.png",
        "unsure/cat/e.png",
        "unsure/new 1/f.png",
    }


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


def test_torchvision_reads_folders(tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    export(a_run(tmp_path, PLAIN), "folders", tmp_path / "out")
    read = datasets.ImageFolder(tmp_path / "out")
    assert read.classes == ["cat", "new 1"]
    assert read.targets == [0, 0, 0, 1, 1]
    assert read[0][0].size == (4 + PLAIN.index(("c/a.png", "cat", "known")), 3)  # "a (2).png" comes first


def test_a_category_without_images_has_no_folder(tmp_path: Path) -> None:
    export(a_run(tmp_path, PLAIN, names=("cat", "none", "new 1")), "folders", tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == [".sortal-export.json", "cat", "index.csv", "new 1"]


@pytest.mark.parametrize("name", LINKED)
def test_images_are_linked_or_copied_as_asked(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN[:1])
    original = run.paths()[0]
    found: dict[str, Path] = {}
    for how in ("hardlink", "symlink", "copy"):
        export(run, name, tmp_path / how, how=how)
        (found[how],) = (tmp_path / how).rglob("*.png")
        assert content(found[how]) == content(original)
    assert os.path.samefile(found["hardlink"], original)
    assert not found["hardlink"].is_symlink()
    assert os.readlink(found["symlink"]) == original
    assert not os.path.samefile(found["copy"], original)


@pytest.mark.parametrize("how", ["hardlink", "symlink", "copy"])
def test_an_original_that_is_a_relative_link_still_leads_somewhere(how: Any, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN[:1])
    os.rename(tmp_path / "photos/a.png", tmp_path / "real.png")
    os.symlink("../real.png", tmp_path / "photos/a.png")
    export(run, "folders", tmp_path / "out", how=how)
    assert content(tmp_path / "out/cat/a.png") == content(tmp_path / "real.png")


@pytest.mark.parametrize(("how", "call"), [("hardlink", "link"), ("symlink", "symlink")])
def test_where_links_are_impossible_copies_are_advised(
    how: Any, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(InputError, match=r"Invalid cross-device link.*a\.png.*--how copy"):
        export(a_run(tmp_path, PLAIN), "folders", tmp_path / "out", how=how)
    assert os.listdir(tmp_path) == ["photos"]


# Names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cat", "cat"),
        ("Ünïcode 猫", "Ünïcode 猫"),
        ("שלום", "שלום"),
        ("../../x", "_.._x"),
        ("..", "_"),
        ("", "_"),
        ("a/b\\c", "a_b_c"),
        (".hidden", "hidden"),
        ("end. ", "end"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("com1", "_com1"),
        ("console", "console"),
        ("two\nlines", "two_lines"),
        ("<script>", "_script_"),
        ("\u202egnp.exe", "_gnp.exe"),
        ("x\udce9", "x_"),
    ],
)
def test_names_are_safe(text: str, name: str) -> None:
    assert safe(text) == name


def test_a_name_is_given_once() -> None:
    names = Names("unsure")
    assert [names.folder(text) for text in ("cat", "CAT", "cat (2)", "cat", "Unsure")] == [
        "cat",
        "CAT (2)",
        "cat (2) (2)",
        "cat (3)",
        "Unsure (2)",
    ]
    assert [names.file(path) for path in ("x/b.png", "y/B.PNG", "b.jpg")] == ["b.png", "B (2).PNG", "b.jpg"]


def test_many_of_the_same_name_are_numbered_on() -> None:
    names = Names()
    assert [names.file("image.png") for _ in range(20_000)][-1] == "image (20000).png"


# Surrogates among them, as in names of files that are not UTF-8
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=()), max_size=130)
    | st.sampled_from([*HOSTILE_NAMES, "a", "A", "a (2)", "a.png", "A.PNG", "ß", "SS", "ﬁ", "é", "é", "a" * 100]),
    max_size=20,
)


@given(texts=TEXTS, how=st.sampled_from(["folder", "file", "stem"]))
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


@pytest.fixture
def load_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return lambda folder: datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=str(tmp_path / "hf"))


def test_the_table_of_an_image_folder_names_each_image(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "imagefolder", tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/train/metadata.jsonl").read_text("utf-8").splitlines()]
    assert files_below(tmp_path / "out/train") == {"metadata.jsonl", *(row["file_name"] for row in rows)}
    assert [row["source"] for row in rows] == [plain(file) for file, _, _ in HOSTILE]
    for row, path in zip(rows, hostile.paths(), strict=True):
        assert content(tmp_path / "out/train" / row["file_name"]) == content(path)


def test_hugging_face_datasets_reads_it(hostile: Run, tmp_path: Path, load_dataset: Callable[..., Any]) -> None:
    export(hostile, "imagefolder", tmp_path / "out")
    read = load_dataset(tmp_path / "out")
    assert list(read) == ["train"]  # also with images named test and val
    rows = list(read["train"])
    assert [row["category_name"] for row in rows] == [plain(name) for _, name, _ in HOSTILE]
    assert [row["label"] for row in rows] == [plain(name or "") for name in hostile.assignments.labels]
    assert [row["status"] for row in rows] == [status for _, _, status in HOSTILE]
    assert [row["category"] for row in rows] == hostile.assignments.category.tolist()
    assert [row["confidence"] for row in rows] == pytest.approx(hostile.assignments.confidence, abs=1e-6)
    for number, row in enumerate(rows):
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
    for image, (_, name, status) in zip(images, HOSTILE, strict=True):
        (one,) = read.loadAnns(read.getAnnIds(imgIds=[image["id"]]))
        assert (hostile.names[one["category_id"]], one["status"]) == (name, status)
        assert one["bbox"] == [0, 0, image["width"], image["height"]]
        assert one["area"] == image["width"] * image["height"]
    assert read.dataset["info"]["version"] == __version__


def test_coco_evaluates_against_itself(tmp_path: Path) -> None:
    """Numbers from 0 would lose an image here: the evaluation takes an annotation 0 for none."""
    coco, evaluation = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    export(a_run(tmp_path, UNSURE), "coco", tmp_path / "coco.json")
    truth = coco.COCO(str(tmp_path / "coco.json"))
    found = truth.loadRes([{**each, "segmentation": None} for each in truth.dataset["annotations"]])
    result = evaluation.COCOeval(truth, found, "bbox")
    result.evaluate()
    result.accumulate()
    result.summarize()
    assert result.stats[0] == pytest.approx(1)


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


def test_coco_over_several_folders_names_images_by_where_they_are(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    run.about["images"].append({"folder": str(tmp_path / "more"), "images": 0, "paths": {}})
    export(run, "coco", tmp_path / "coco.json")
    assert [image["file_name"] for image in json.loads(content(tmp_path / "coco.json"))["images"]] == run.paths()


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


def test_fiftyone_reads_it(hostile: Run, tmp_path: Path) -> None:
    importers = pytest.importorskip("fiftyone.utils.data.importers")
    export(hostile, "fiftyone", tmp_path / "out")
    with importers.FiftyOneImageClassificationDatasetImporter(dataset_dir=str(tmp_path / "out")) as reader:
        assert reader.get_dataset_info() == {"classes": [*map(plain, hostile.names)]}
        rows = {label["source"]: (path, label) for path, _, label in reader}
    assert set(rows) == {plain(file) for file, _, _ in HOSTILE}
    for (file, name, status), path in zip(HOSTILE, hostile.paths(), strict=True):
        found, label = rows[plain(file)]
        assert content(found) == content(path)
        assert (label.label, label["status"]) == (plain(name), status)


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


def test_label_studio_offers_every_category_once(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "labelstudio", tmp_path / "out")
    choices = [
        each.get("value") for each in ElementTree.fromstring(content(tmp_path / "out/config.xml")).iter("Choice")
    ]
    assert len(set(choices)) == len(hostile.names)
    expected = [plain(name).replace("\x01", "\ufffd") for name in hostile.names]  # which XML cannot hold
    assert choices == expected
    for task, category in zip(
        json.loads(content(tmp_path / "out/tasks.json")), hostile.assignments.category.tolist(), strict=True
    ):
        assert task["predictions"][0]["result"][0]["value"]["choices"] == [expected[category]]


def test_label_studio_tells_names_apart_that_xml_does_not(tmp_path: Path) -> None:
    export(a_run(tmp_path, [("a.png", "x\x01", "new"), ("b.png", "x\x02", "new")]), "labelstudio", tmp_path / "out")
    choices = [
        each.get("value") for each in ElementTree.fromstring(content(tmp_path / "out/config.xml")).iter("Choice")
    ]
    assert choices == ["x\ufffd", "x\ufffd (2)"]


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


@pytest.mark.parametrize("name", FILES)
def test_force_replaces_a_file(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "old").write_text("old")
    export(run, name, tmp_path / "old", force=True)
    export(run, name, tmp_path / "new/below")  # a folder that is not there is made
    assert content(tmp_path / "old") == content(tmp_path / "new/below")


@pytest.mark.parametrize("name", FOLDERS)
def test_an_empty_folder_is_filled_and_force_replaces_an_export(name: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(a_run(tmp_path, UNSURE), name, tmp_path / "out")
    (tmp_path / "out/more.png").write_text("of the old one")
    export(a_run(tmp_path, PLAIN), name, tmp_path / "out", force=True)
    export(a_run(tmp_path, PLAIN), name, tmp_path / "fresh")
    assert files_below(tmp_path / "out") == files_below(tmp_path / "fresh")
    assert sorted(os.listdir(tmp_path)) == ["fresh", "out", "photos"]


@pytest.mark.parametrize("name", FOLDERS)
def test_an_export_that_fails_leaves_the_old_one(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    export(run, name, tmp_path / "out")
    before = files_below(tmp_path / "out")

    def stop(_: str, done: int, __: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(a_run(tmp_path, UNSURE), name, tmp_path / "out", force=True, on_progress=stop)
    assert files_below(tmp_path / "out") == before
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]


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
@pytest.mark.parametrize("at", ["photos", ".", "photos/c"])
def test_an_export_never_replaces_images(name: str, at: str, tmp_path: Path) -> None:
    run = replace(a_run(tmp_path, PLAIN), folder=Path("elsewhere"))
    (tmp_path / "photos/.sortal-export.json").write_text("{}")
    (tmp_path / "photos/c/.sortal-export.json").write_text("{}")
    (tmp_path / ".sortal-export.json").write_text("{}")
    with pytest.raises(InputError, match="outside the run and its images"):
        export(run, name, tmp_path / at, force=True)
    assert [os.path.exists(path) for path in run.paths()] == [True] * len(PLAIN)


@pytest.mark.parametrize("name", LINKED)
def test_exported_images_are_not_put_among_the_images(name: str, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    with pytest.raises(InputError, match="would take it for further images"):
        export(run, name, tmp_path / "photos/sorted")
    run.about["images"][0]["folder"] = str(tmp_path / "link")  # however the folder is named
    os.symlink(tmp_path / "photos", tmp_path / "link")
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


def test_an_export_never_replaces_the_run(tmp_path: Path) -> None:
    run = replace(a_run(tmp_path / "elsewhere", PLAIN), folder=tmp_path / "out/run")
    run.folder.mkdir(parents=True)
    (tmp_path / "out/.sortal-export.json").write_text("{}")
    with pytest.raises(InputError, match=r"outside the run and its images.*which is or holds their folder .*run"):
        export(run, "folders", tmp_path / "out", force=True)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "file").write_text("")
    for name in ("csv", "folders"):
        with pytest.raises(InputError, match=r"The export '.*' cannot be written: (Not a directory|File exists)"):
            export(run, name, tmp_path / "file/out")
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        export(run, "folders", tmp_path / ("x" * 300))
