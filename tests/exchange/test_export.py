"""Exports: each format read back, by its own tool if installed; hostile names; nothing overwritten."""

import csv
import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet
from support.sample_run import as_sorted, sample_run

from sortal import __version__
from sortal.errors import InputError
from sortal.exchange import image_formats
from sortal.exchange.export import EXPORT_FORMATS, ExportResult, export
from sortal.exchange.format import How, LeftOut, Request, is_there
from sortal.exchange.image_formats import LONGEST_FILE_NAME, RESERVED, UniqueNames, safe
from sortal.images.decoding import MAX_BYTES
from sortal.images.exported import utf8
from sortal.images.image_set import image_set
from sortal.images.originals import digest_of
from sortal.images.store.packing import pack
from sortal.reviews.loading import load_run, save_run
from sortal.runs.facts import ImageSource
from sortal.runs.run import Run
from sortal.system.progress import Runtime

FOLDERS = ("folders", "imagefolder", "fiftyone", "labelstudio")
FILES = ("csv", "parquet", "coco")
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
TROUBLE = (
    '../../x|<script>alert(1)</script>|=HYPERLINK("x")|CON|a/b|\u202egnp.exe|two\nlines\r\tand \x01|Cat|cat|unsure'
)
HOSTILE_NAMES = (*TROUBLE.split("|"), NO_UTF8, "index.csv", "NA", "..", "n" * 300, ' name="x" & ]]> --> <!-- {')
FILE_NAMES = (
    "one/same.png|two/same.png|two/SAME.PNG|two/same.jpg|=cmd [x] #1 100%.png|new\nline.png|nul.png|metadata.csv"
)
HOSTILE: list[Image_] = [
    *((f"{i}.png", name, ("known", "new", "labelled", "unsure")[i % 4]) for i, name in enumerate(HOSTILE_NAMES)),
    *((name, "cat", "unsure" if name.endswith(".jpg") else "known") for name in FILE_NAMES.split("|")),
    *((name, "cat", "new") for name in (f"{'l' * 240}.png", f"{NO_UTF8}.png", "train/test/val.png")),
]
HOW = get_args(How)


@pytest.fixture
def hostile(tmp_path: Path) -> Run:
    return a_run(tmp_path, HOSTILE)


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


def written(out: Path) -> bytes | set[str]:
    return files_below(out) if out.is_dir() else content(out)


def files_below(folder: Path) -> set[str]:
    """Return every file at any depth except the marker of an export."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return found - {".sortal-export.json"}


@pytest.mark.parametrize("name", EXPORT_FORMATS)
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
    table = name in ("csv", "parquet")  # needs no image files
    left = (done.images, done.missing, done.changed)
    assert left == ((5, (), ()) if table else (3, ("b.png",), ("d.png",)))
    files = [tmp_path / "less", *(tmp_path / "less").rglob("*")]
    found = [content(path) for path in files if path.is_file()]
    if name == "parquet":
        found = [str(parquet.read_table(tmp_path / "less").to_pylist()).encode()]
    assert any(b"b.png" in each for each in found) == table
    with pytest.raises(InputError, match=r"how must be one of hardlink, symlink, copy, got 'move'\."):
        export(run, name, tmp_path / "none", how="move")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"format must be one of csv, .*labelstudio, got 'xlsx'\."):
        export(run, "xlsx", tmp_path / "none")
    if not table:
        with pytest.raises(InputError, match="given as an array"):
            export(of_pixels(run), name, tmp_path / "none")
    assert not (tmp_path / "none").exists()


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


def test_folders_keep_unsure_images_apart(tmp_path: Path) -> None:
    export(a_run(tmp_path, UNSURE, names=("cat", "none", "new 1")), "folders", tmp_path / "out")
    sure = {"cat/a.png", "cat/b.png", "cat/a (2).png", "new 1/test_1.png", "new 1/d.png"}
    assert files_below(tmp_path / "out") == {*sure, "index.csv", "unsure/cat/e.png", "unsure/new 1/f.png"}
    assert not (tmp_path / "out/none").exists(), "a category without images has no folder"


def test_the_index_of_folders_maps_each_image_to_its_original(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "folders", tmp_path / "out", how="copy")
    rows = cells(tmp_path / "out/index.csv")
    assert files_below(tmp_path / "out") == {"index.csv", *(row["file_name"] for row in rows)}
    assert_rows(rows, hostile, file="source")
    for row, path in zip(rows, hostile.paths(), strict=True):
        assert content(tmp_path / "out" / row["file_name"]) == content(path)
        assert row["file_name"].startswith("unsure/") == (row["status"] == "unsure")
    sure = {row["category_id"]: row["file_name"].split("/")[0] for row in rows if row["status"] != "unsure"}
    assert len({folder.lower() for folder in sure.values()}) == len(
        sure
    )  # one folder per category, even if case is ignored


def test_images_are_linked_or_copied_as_requested(tmp_path: Path) -> None:
    """Even an image that is itself a relative link."""
    run = a_run(tmp_path, PLAIN[:1])
    (original,) = run.paths()
    os.rename(original, tmp_path / "real.png")
    os.symlink("../real.png", original)
    found = {how: tmp_path / how / "cat/a.png" for how in HOW}
    for how in HOW:
        export(run, "folders", tmp_path / how, how=how)
        assert content(found[how]) == content(original)
    assert [os.path.samefile(found[how], original) for how in HOW] == [True, True, False]
    assert [found[how].is_symlink() for how in HOW] == [False, True, False]
    assert os.readlink(found["symlink"]) == original


def test_names_are_safe_and_unique() -> None:
    made = "../../x→_.._x|..→_|→_|a/b\\c→a_b_c|.hidden→hidden|end. →end|CON→_CON|nul.txt→_nul.txt|console→console"
    made += "|Ünïcode 猫→Ünïcode 猫|two\nlines→two_lines|<script>→_script_|\u202egnp.exe→_gnp.exe|x\udce9→x_"
    for pair in made.split("|"):
        assert "→".join([pair.partition("→")[0], safe(pair.partition("→")[0])]) == pair
    names = UniqueNames("unsure")
    taken = [names.folder(text) for text in ("cat", "CAT", "cat (2)", "cat", "Unsure")]
    assert taken == ["cat", "CAT (2)", "cat (2) (2)", "cat (3)", "Unsure (2)"]
    assert [names.file(path) for path in ("x/b.png", "y/B.PNG", "b.jpg")] == ["b.png", "B (2).PNG", "b.jpg"]
    assert [names.file("image.png") for _ in range(20_000)][-1] == "image (20000).png", "without trying them all"


# Including surrogates, as in file names that are not UTF-8
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=()), max_size=130)
    | st.sampled_from([*HOSTILE_NAMES, "a", "A", "a (2)", "a.png", "A.PNG", "ß", "SS", "ﬁ", "é", "é", "a" * 100]),
    max_size=20,
)


@given(texts=TEXTS, how=st.sampled_from(["folder", "file", "stem"]))
@settings(deadline=None)
@example(texts=["x.aaaaaaaaaaaaaaaaaaaaaaaaa", "x.png"], how="stem")
def test_any_names_become_safe_and_distinct(texts: list[str], how: str) -> None:
    names = UniqueNames("unsure", by_stem=how == "stem")
    given_out = [(names.folder if how == "folder" else names.file)(text) for text in texts]
    keys = [os.path.splitext(name)[0] if how == "stem" else name for name in given_out]
    assert len({key.casefold() for key in [*keys, "unsure"]}) == len(keys) + 1
    for name in given_out:
        assert 0 < len(name.encode("utf-8")) <= LONGEST_FILE_NAME
        assert not set(name) & set('/\\:*?"<>|\0\n\r')
        assert not name.startswith((".", " "))
        assert not name.endswith((".", " "))
        assert not RESERVED.match(name)


def test_the_metadata_of_an_imagefolder_lists_each_image_and_hugging_face_datasets_reads_it(
    hostile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(hostile, "imagefolder", tmp_path / "out")
    rows = [json.loads(line) for line in (tmp_path / "out/train/metadata.jsonl").read_text("utf-8").splitlines()]
    assert files_below(tmp_path / "out/train") == {"metadata.jsonl", *(row["file_name"] for row in rows)}
    assert_rows(rows, hostile, file="source")
    for row, path in zip(rows, hostile.paths(), strict=True):
        assert content(tmp_path / "out/train" / row["file_name"]) == content(path)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    read = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "out"), cache_dir=str(tmp_path / "hf"))
    assert list(read) == ["train"]  # despite images named test and val
    for number, row in enumerate(read["train"]):
        assert row["category"] == utf8(HOSTILE[number][1])
        assert row["image"].convert("RGB").getpixel((0, 0)) == (number, 2 * number % 256, 7)


def test_coco_is_read_by_its_own_tools(hostile: Run, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    export(hostile, "coco", tmp_path / "coco.json")
    read = coco.COCO(str(tmp_path / "coco.json"))
    images = read.loadImgs(sorted(read.getImgIds()))
    assert [image["file_name"] for image in images] == [file for file, _, _ in HOSTILE]
    assert [(image["width"], image["height"]) for image in images] == [(4 + i % 5, 3) for i in range(len(HOSTILE))]
    assert [category["name"] for category in read.loadCats(read.getCatIds())] == [*map(utf8, hostile.names.values())]
    kinds = [category.kind for category in hostile.categories]
    assert [category["supercategory"] for category in read.loadCats(read.getCatIds())] == kinds
    assert min(read.anns) == 1, "the COCO evaluation ignores an annotation with id 0"
    for image, (_, name, status) in zip(images, HOSTILE, strict=True):
        (one,) = read.loadAnns(read.getAnnIds(imgIds=[image["id"]]))
        assert (hostile.names[one["category_id"]], one["status"]) == (name, status)
        assert (one["bbox"], one["iscrowd"]) == ([0, 0, image["width"], image["height"]], 0)
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
    run = as_sorted(run)
    done = export(run, "coco", tmp_path / "coco.json")
    assert (done.images, done.missing) == (3, ("3.png",))
    images = json.loads(content(tmp_path / "coco.json"))["images"]
    assert [(image["width"], image["height"]) for image in images] == [(5, 8)] * 3
    more = ImageSource(folder=str(tmp_path / "more"), images=0, paths={})
    run = replace(run, facts=replace(run.facts, images=(*run.facts.images, more)))
    export(run, "coco", tmp_path / "coco.json", force=True)
    images = json.loads(content(tmp_path / "coco.json"))["images"]
    assert [image["file_name"] for image in images] == [f"photos/{row}.png" for row in range(3)], "of several folders"
    export(run, "coco", tmp_path / "coco.json", force=True, absolute_paths=True)
    images = json.loads(content(tmp_path / "coco.json"))["images"]
    assert [image["file_name"] for image in images] == run.paths()[:3]


def test_coco_has_images_beyond_the_usual_limit_if_the_run_has(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN[:1])
    Image.new("1", (20_000, 10_000)).save(tmp_path / "photos/a.png")  # more than Pillow opens by default
    run = as_sorted(run)
    assert export(run, "coco", tmp_path / "less.json").missing == ("a.png",)
    large = replace(run, facts=replace(run.facts, settings=replace(run.facts.settings, max_pixels=200_000_000)))
    assert export(large, "coco", tmp_path / "coco.json").missing == ()
    assert json.loads(content(tmp_path / "coco.json"))["images"][0]["width"] == 20_000


def test_fiftyone_labels_are_keyed_by_file_name(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "fiftyone", tmp_path / "out")
    read = json.loads(content(tmp_path / "out/labels.json"))
    assert read["classes"] == [*map(utf8, hostile.names.values())]
    by_stem = {path.stem: path for path in (tmp_path / "out/data").iterdir()}
    assert set(by_stem) == set(read["labels"])
    assert len(by_stem) == len(os.listdir(tmp_path / "out/data")) == len(HOSTILE)
    rows = [{**each.pop("attributes"), "category": each.pop("label"), **each} for each in read["labels"].values()]
    assert_rows(rows, hostile, file="source")
    for stem, path in zip(read["labels"], hostile.paths(), strict=True):
        assert content(by_stem[stem]) == content(path)


def choices_of(folder: Path) -> list[str | None]:
    return [each.get("value") for each in ElementTree.fromstring(content(folder / "config.xml")).iter("Choice")]


def test_label_studio_tasks_point_to_the_images_and_offer_every_category_once(hostile: Run, tmp_path: Path) -> None:
    export(hostile, "labelstudio", tmp_path / "out", absolute_paths=True)
    readme = (tmp_path / "out/README.txt").read_text("utf-8")
    root = re.search("DOCUMENT_ROOT=(.*)", readme)
    assert root is not None
    assert Path(root[1]) == tmp_path  # the parent of the image folder, which must not be the root itself
    assert f"\n     {tmp_path / 'photos'}\n" in readme
    assert f"\n     sortal import {hostile.folder} FILE\n" in readme
    names = [utf8(name).replace("\x01", "\ufffd") for name in hostile.names.values()]  # not allowed in XML
    assert choices_of(tmp_path / "out") == names
    tasks, a = json.loads(content(tmp_path / "out/tasks.json")), hostile.assignments
    for task, path, category, status in zip(tasks, hostile.paths(), a.category_id.tolist(), a.status, strict=True):
        url = urlsplit(task["data"]["image"])
        (relative,) = parse_qs(url.query, strict_parsing=True, errors="surrogateescape")["d"]
        assert url.path == "/data/local-files/"
        assert os.path.join(root[1], relative) == path
        assert ("annotations" in task) == (status == "labelled")
        assert task["predictions"][0]["model_version"] == "sortal 9.9"
        assert task["predictions"][0]["result"][0]["value"]["choices"] == [names[category]]
    alike = a_run(tmp_path, [("a.png", "x\x01", "new"), ("b.png", "x\x02", "new")])
    export(alike, "labelstudio", tmp_path / "alike")
    assert choices_of(tmp_path / "alike") == ["x\ufffd", "x\ufffd (2)"]

    interfaces = pytest.importorskip("label_studio_sdk.label_interface")
    interface = interfaces.LabelInterface((tmp_path / "out/config.xml").read_text("utf-8"))
    interface.validate()
    for task in tasks:
        assert interface.validate_prediction(task["predictions"][0], return_errors=True) == []
        assert all(interface.validate_annotation(each) for each in task.get("annotations", []))


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    (tmp_path / "t").write_text("mine")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/mine").write_text("mine")
    for name in FILES:
        with pytest.raises(InputError, match=r"already exists.*force=True"):
            export(run, name, tmp_path / "t")
        with pytest.raises(InputError, match=r"is one file, got .* which is a folder"):
            export(run, name, tmp_path / "d", force=True)
    for name in FOLDERS:
        with pytest.raises(InputError, match=r"must be new or empty.*force=True"):
            export(run, name, tmp_path / "d")
        with pytest.raises(InputError, match="was not written by an export"):
            export(run, name, tmp_path / "d", force=True)
        with pytest.raises(InputError, match=r"is a folder, got .* which is a file"):
            export(run, name, tmp_path / "t", force=True)
    for name in ("csv", "folders"):
        with pytest.raises(InputError, match=r"Cannot write the export '.*': (Not a directory|File exists)"):
            export(run, name, tmp_path / "t/out")
    with pytest.raises(InputError, match=r"Cannot write .*: File name too long"):
        export(run, "folders", tmp_path / ("x" * 300))
    assert (tmp_path / "t").read_text() == (tmp_path / "d/mine").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["d", "photos", "t"]


@pytest.mark.parametrize("name", EXPORT_FORMATS)
def test_force_replaces_an_export_and_an_interrupted_export_leaves_the_old_one(name: str, tmp_path: Path) -> None:
    if name in FOLDERS:
        (tmp_path / "out").mkdir()  # an empty folder may be used
    export(a_run(tmp_path, UNSURE), name, tmp_path / "out")
    if name in FOLDERS:
        (tmp_path / "out/more.png").write_text("of the old one")
    run = a_run(tmp_path, PLAIN)
    export(run, name, tmp_path / "out", force=True)
    export(run, name, tmp_path / "new/below")  # missing folders are created
    before = written(tmp_path / "out")
    assert before == written(tmp_path / "new/below")

    def stop(_: str, done: int, __: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    if name in FOLDERS:
        with pytest.raises(KeyboardInterrupt):
            export(a_run(tmp_path, UNSURE), name, tmp_path / "out", force=True, runtime=Runtime(progress=stop))
        assert written(tmp_path / "out") == before
    assert sorted(os.listdir(tmp_path)) == ["new", "out", "photos"]


def test_copies_are_suggested_if_links_fail_and_a_failed_rename_leaves_the_old_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path, PLAIN)
    export(run, "folders", tmp_path / "out")
    rename = os.rename

    def refuse(source: str, target: str, **named: Any) -> None:
        if target == "out" and not source.endswith(".old"):
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(source, target, **named)

    unlinked = Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link"))
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(InputError, match=r"Cannot write .*: Permission denied"):
        export(run, "folders", tmp_path / "out", force=True)
    for how in HOW[:2]:
        monkeypatch.setattr(os, how.replace("hard", ""), unlinked)
        with pytest.raises(InputError, match=r"Invalid cross-device link.*a\.png.*how='copy'"):
            export(run, "folders", tmp_path / "other", how=how)
    assert "cat/a.png" in files_below(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]


def test_an_export_never_overlaps_the_images_or_the_run(tmp_path: Path) -> None:
    run = replace(a_run(tmp_path, PLAIN), folder=tmp_path / "out/run")
    run.folder.mkdir(parents=True)
    (run.folder / "assignments.csv").write_text("the run's")
    taken = [run.folder / "assignments.csv", *map(Path, run.paths())]
    before = [*map(content, taken)]
    for name in FILES:
        for path in taken[:2]:
            with pytest.raises(InputError, match=r"is one of the run's images|must be outside the run"):
                export(run, name, path, force=True)
    for at in ("photos", ".", "photos/c", "out"):
        (tmp_path / at / ".sortal-export.json").write_text("{}")
        for name in FOLDERS:
            with pytest.raises(InputError, match=r"outside the run and its images.*which is or (contains|lies in)"):
                export(run, name, tmp_path / at, force=True)
    (run.folder / "cache").mkdir()
    for at in ("new", "cache/new"):
        for name in (*FILES, *FOLDERS):
            with pytest.raises(InputError, match=r"must be outside the run"):
                export(run, name, run.folder / at)
    os.symlink(tmp_path / "photos", tmp_path / "link")
    for folder in ("photos", "link"):  # by either name
        source = ImageSource(folder=str(tmp_path / folder), images=len(run.assignments), paths={})
        run = replace(run, facts=replace(run.facts, images=(source,)))
        for name in LINKED:
            with pytest.raises(InputError, match="would read it as more images"):
                export(run, name, tmp_path / "photos/sorted")
    assert [*map(content, taken)] == before


def test_images_given_as_a_list_can_be_exported_next_to_them(tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    names = tuple(f"given/{i}.png" for i in range(len(PLAIN)))
    source = ImageSource(folder=str(tmp_path), images=len(names), paths=dict(zip(names, run.paths(), strict=True)))
    facts = replace(run.facts, images=(source,))
    listed = replace(run, facts=facts, assignments=replace(run.assignments, files=names))
    assert export(listed, "folders", tmp_path / "out").images == len(PLAIN)
    assert content(tmp_path / "out/cat/0.png") == content(tmp_path / "photos/a.png")
    export(listed, "coco", tmp_path / "coco.json")
    found = [image["file_name"] for image in json.loads(content(tmp_path / "coco.json"))["images"]]
    assert [str(tmp_path / name) for name in found] == listed.paths(), "names that open in the folder"
    with pytest.raises(InputError, match="outside the run and its images"):
        export(listed, "folders", tmp_path / "photos", force=True)
    everywhere = replace(run, facts=replace(facts, images=(replace(source, paths={"a.png": "/a.png"}),)))
    assert export(everywhere, "folders", tmp_path / "out", force=True).missing == run.assignments.files


# Files that have changed since they were sorted


def replaced(path: str, *, keep_time: bool = False) -> None:
    """Put another file of the same size in the place of one, with the same time of change if asked for."""
    old, then = content(path), os.stat(path)
    Path(f"{path}.new").write_bytes(old[:-1] + bytes([old[-1] ^ 1]))
    os.replace(f"{path}.new", path)
    if keep_time:
        os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))


def remember(run: Run) -> None:
    """Let the cache of a run know its files, as that of one does that was sorted."""
    a = run.assignments
    pack(image_set(a.files, paths=run.paths(), labels=a.labels), run.cache / "pixels", runtime=Runtime(workers=1))


@pytest.mark.parametrize(
    ("name", "how"), [*((name, "hardlink") for name in EXPORT_FORMATS), *(("folders", h) for h in HOW)]
)
def test_files_that_have_changed_are_left_out_and_named(name: str, how: How, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    remember(run)
    old = content(run.paths()[1])
    assert export(run, name, tmp_path / "before", how=how).changed == ()
    replaced(run.paths()[1])
    os.utime(run.paths()[2])  # another time, and the same content
    done = export(run, name, tmp_path / "out", how=how)
    assert (done.images, done.missing, done.changed) == (4, (), ("b.png",))
    out = [path for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")) if path.is_file()]
    assert not any(content(run.paths()[1]) in content(path) or b"b.png" in content(path) for path in out)
    Path(run.paths()[1]).write_bytes(old)  # back again
    assert export(run, name, tmp_path / "again", how=how).changed == ()


@pytest.mark.parametrize("name", [*LINKED, "coco", "labelstudio"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_file_that_pretends_not_to_have_changed_is_read(name: str, cached: bool, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    if cached:
        remember(run)
    replaced(run.paths()[3], keep_time=True)
    assert export(run, name, tmp_path / "out").changed == ("test_1.png",)


@pytest.mark.parametrize("how", HOW)
def test_a_file_larger_than_any_image_has_changed_and_is_not_read(how: How, tmp_path: Path) -> None:
    """A file with holes may claim terabytes."""
    run = a_run(tmp_path, PLAIN)
    os.truncate(run.paths()[1], MAX_BYTES + 1)
    with open(run.paths()[1], "rb") as file:
        assert digest_of(file) == ""
        assert file.tell() == 0
    done = export(run, "folders", tmp_path / "out", how=how)
    assert (done.images, done.changed) == (4, ("b.png",))


@pytest.mark.parametrize("how", HOW)
def test_copies_of_a_file_that_has_changed_stay(how: How, tmp_path: Path) -> None:
    run = a_run(tmp_path, PLAIN)
    Path(run.paths()[1]).write_bytes(content(run.paths()[0]))
    run = as_sorted(run)
    replaced(run.paths()[0])
    done = export(run, "folders", tmp_path / "out", how=how)
    assert (done.images, done.changed) == (4, ("a.png",))
    assert (tmp_path / "out/cat/b.png").exists()


@pytest.mark.parametrize("how", ["hardlink", "copy"])
def test_a_file_that_is_replaced_while_it_is_exported_is_left_out(
    how: How, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes after it was checked, and before it is linked or copied."""
    run = a_run(tmp_path, PLAIN)

    def replacing(request: Request, number: int) -> bool:
        found = is_there(request, number)
        if number == 1 and how == "copy":
            replaced(request.rows[number].path)
        return found

    def linking(source: str, target: Path) -> None:
        if source.endswith("b.png"):
            replaced(source)
        link(source, target)

    link = os.link
    monkeypatch.setattr(image_formats, "is_there", replacing)
    monkeypatch.setattr(os, "link", linking)
    done = export(run, "folders", tmp_path / "out", how=how)
    assert (done.images, done.changed) == (4, ("b.png",))
    assert files_below(tmp_path / "out") == {
        "cat/a.png", "cat/a (2).png", "new 1/test_1.png", "new 1/d.png", "index.csv"
    }  # fmt: skip


def test_exports_never_replace_a_pipe_or_a_device(tmp_path: Path) -> None:
    run, pipe = replace(sample_run(), folder=tmp_path / "run"), tmp_path / "pipe"
    save_run(run)
    os.mkfifo(pipe)
    for name in ("csv", "folders"):
        with pytest.raises(InputError, match=r"pipe': it is a pipe\. Choose another place"):
            export(run, name, pipe, force=True)
    assert pipe.is_fifo()


def before_it_ends(name: str, do: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, when the next export has been written but is not at its place yet."""
    format_ = EXPORT_FORMATS[name]

    def write(request: Request) -> LeftOut:
        monkeypatch.setitem(EXPORT_FORMATS, name, format_)
        left = format_.write(request)
        do()
        return left

    monkeypatch.setitem(EXPORT_FORMATS, name, replace(format_, write=write))


@pytest.mark.parametrize("name", EXPORT_FORMATS)
@pytest.mark.parametrize("force", [False, True])
def test_what_appears_while_an_export_is_made_is_not_replaced(
    name: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with force, which is about what was there when the person said so."""
    run, out = a_run(tmp_path, PLAIN), tmp_path / "out"

    def appear() -> None:
        out.mkdir()
        (out / "thesis.txt").write_text("mine")

    before_it_ends(name, appear, monkeypatch)
    with pytest.raises(InputError, match=r"has been written there meanwhile, and stays\. Choose another place"):
        export(run, name, out, force=force)
    assert (out / "thesis.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]


@pytest.mark.parametrize("name", EXPORT_FORMATS)
@pytest.mark.parametrize("force", [False, True])
def test_of_two_exports_to_one_place_exactly_one_is_written(
    name: str, force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins and ends while the first is being made."""
    run, out = a_run(tmp_path, PLAIN), tmp_path / "out"
    if force:
        export(run, name, out)
    before_it_ends(name, lambda: export(run, name, out, force=force), monkeypatch)
    with pytest.raises(InputError, match=r"has been written there meanwhile, and stays\. Choose another place"):
        export(run, name, out, force=force)
    assert sorted(os.listdir(tmp_path)) == ["out", "photos"]
    export(run, name, tmp_path / "alone")
    assert written(out) == written(tmp_path / "alone")
