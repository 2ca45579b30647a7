"""Label Studio: tasks that show the images, and an interface with every category."""

import json
import os
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import pytest
from support.exports import a_run, content

from sortal.exchange.export import export
from sortal.images.exported import utf8
from sortal.runs.run import Run


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
