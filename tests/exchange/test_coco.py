"""COCO: read by its own tools, with the sizes of upright images."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from support.exports import HOSTILE, PLAIN, a_run, content
from support.sample_run import as_sorted

from sortal import __version__
from sortal.exchange.export import export
from sortal.images.exported import utf8
from sortal.runs.facts import ImageSource
from sortal.runs.run import Run


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
