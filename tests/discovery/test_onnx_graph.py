"""ONNX: onnxruntime computes what `predict` does, for every kind of network and head."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SortedRun
from numpy.typing import NDArray
from PIL import Image
from support import tiny_encoders
from support import tiny_folder as tiny
from support.runtimes import CPU
from support.sample_run import sample_run
from support.thorough import thorough_but

from sortal.discovery import onnx_graph
from sortal.discovery.exporting import export
from sortal.discovery.grouping import outliers
from sortal.discovery.prediction import predict
from sortal.errors import InputError, SortalError
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.backbones.vectors import VectorBackbone
from sortal.learning.backbones.vit import VisionTransformer
from sortal.runs.run import MODEL, Run
from sortal.system.distributed import Processes

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


def computed(path: Path, inputs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: inputs}), strict=True))


def prepared(path: Path, about: dict[str, Any]) -> NDArray[np.uint8]:
    """Prepare an image as docs/export.md says."""
    image, side, size = Image.open(path).convert("RGB"), about["shorter_side"], about["centre_crop"]
    width, height = image.size
    shape = (side, side * height // width) if width <= height else (side * width // height, side)
    pixels = np.asarray(image.resize(shape, Image.Resampling[about["interpolation"].upper()]))
    top, left = (round((length - size) / 2) for length in pixels.shape[:2])
    return pixels[top : top + size, left : left + size]


def test_a_graph_sorts_new_images_as_predict_does(sorted_run: SortedRun, tmp_path: Path) -> None:
    new = {f"{name} {number}.png": f"{name} {number}" for name in (*tiny.CLASSES, "oak") for number in (500, 501)}
    tiny.write(tmp_path / "more", new)
    out = export(sorted_run.run, "onnx", tmp_path / "model.onnx", runtime=CPU).out
    wanted = predict(sorted_run.run, tmp_path / "more", runtime=CPU).assignments
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["sortal"])
    images = np.stack([prepared(tmp_path / "more" / file, about["preprocessing"]) for file in wanted.files])
    found = computed(out, images)
    np.testing.assert_allclose(found["confidence"], wanted.confidence, atol=1e-3)
    assert found["category_id"].tolist() == wanted.category_id.tolist()
    assert [about["statuses"][each] for each in found["status"]] == wanted.status.tolist()
    assert {each["id"]: each["name"] for each in about["categories"]} == sorted_run.run.names
    assert len({*wanted.status.tolist()}) > 1


def a_model(folder: Path, backbone: Backbone, *, head: bool = False) -> Run:
    """Return a made-up run of a backbone, whose images have no files."""
    run, d = sample_run(d=backbone.spec.width, images=60), backbone.spec.width
    facts = replace(run.facts, backbone=backbone.spec)
    facts = replace(facts, images=tuple(replace(each, folder=None) for each in facts.images))
    generator = np.random.default_rng(0)
    weights = generator.normal(0, 3, (6, d + 1)).astype(np.float32) if head else None
    backbone.save(folder / MODEL)
    confidence = replace(
        run.confidence, exponent=np.linspace(1, 3, 6), stability=np.linspace(0.5, 1, 6), other_above=2.2
    )
    confidence = replace(confidence, usual_apart=np.zeros(6), deviation_apart=np.full(6, 3.0), temperature=2.0)
    confidence = replace(confidence, usual=np.full(6, 1.3))
    return replace(run, folder=folder, facts=facts, head=weights, confidence=confidence)


@pytest.mark.parametrize("head", thorough_but([True], [False, True]))
def test_a_vision_transformer_with_further_tokens_is_one_graph_for_any_batch(head: bool, tmp_path: Path) -> None:
    """That the graph computes what predict does is checked whenever one is written."""
    backbone = load_backbone(tiny_encoders.write(tmp_path / "vit", "vit"))
    assert isinstance(backbone, VisionTransformer)
    backbone.add_tokens(2)
    run = a_model(tmp_path / "run", backbone, head=head)
    out = export(run, "onnx", tmp_path / "model.onnx", runtime=CPU).out
    size = backbone.spec.image_size
    images = np.random.default_rng(0).integers(0, 256, (5, size, size, 3), dtype=np.uint8)
    together, first = computed(out, images), computed(out, images[:1])
    np.testing.assert_allclose(first["features"][0], together["features"][0], atol=1e-5)
    assert together["features"].shape == (5, backbone.spec.width)
    assert (together["confidence"] > 1e-3).any()


def test_vectors_are_sorted_without_pixels(tmp_path: Path) -> None:
    run = a_model(tmp_path / "run", VectorBackbone(torch.linspace(-0.1, 0.1, 8)))
    run = replace(run, facts=replace(run.facts, features=""))
    out = export(run, "onnx", tmp_path / "model.onnx", runtime=CPU).out
    assert computed(out, np.eye(3, 8, dtype=np.float32))["category_id"].shape == (3,)


def test_a_graph_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_model(tmp_path / "run", VectorBackbone(torch.zeros(8)))
    run = replace(run, facts=replace(run.facts, features=""))
    monkeypatch.setattr(onnx_graph, "BELONGS", -1.0)
    with pytest.raises(SortalError, match="does not compute what predict does"):
        export(run, "onnx", tmp_path / "model.onnx", runtime=CPU)
    monkeypatch.undo()
    known, new, unsure, other = onnx_graph.GRAPH_STATUSES
    monkeypatch.setattr(onnx_graph, "GRAPH_STATUSES", (other, unsure, new, known))
    with pytest.raises(SortalError, match="and 12 statuses"):
        export(run, "onnx", tmp_path / "model.onnx", runtime=CPU)
    monkeypatch.undo()
    monkeypatch.setattr(onnx_graph, "LARGEST_GRAPH", 100)
    with pytest.raises(InputError, match="Export the run as hub instead"):
        export(run, "onnx", tmp_path / "model.onnx", runtime=CPU)
    monkeypatch.undo()
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: 1 / 0)
    with pytest.raises(InputError, match="vectors cannot be written as ONNX: division by zero"):
        export(run, "onnx", tmp_path / "model.onnx", runtime=CPU)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"needs onnx: pip install \"sortal\[onnx\]\""):
        export(run, "onnx", tmp_path / "model.onnx", runtime=CPU)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("best", [1, 2])
def test_categories_are_tied_by_the_scores_that_decide(best: int, tmp_path: Path) -> None:
    """All distances are the same, and the first category or two have the best score, whatever the image is."""
    backbone = VectorBackbone(torch.zeros(8))
    run = a_model(tmp_path / "run", backbone, head=True)
    head, inputs = np.array(run.head), torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    head[:best] = np.eye(1, 9, 8) * 100
    run = replace(run, facts=replace(run.facts, features=""), head=head, centres=np.ones_like(run.centres) / 8**0.5)
    first, second, *others = run.categories
    right, swapped = (
        onnx_graph.SortingGraph(each, backbone).eval()
        for each in (run, replace(run, categories=(second, first, *others)))
    )
    content = onnx_graph._exported(swapped, inputs, "vectors")
    with nullcontext() if best == 2 else pytest.raises(SortalError, match="12 of 12 categories"):
        onnx_graph._check(content, right, inputs, run, CPU)


def test_the_images_of_a_run_are_compared_with_each_other_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_model(tmp_path / "run", VectorBackbone(torch.zeros(8)))
    calls, real = list[int](), outliers.collected

    def counted(known: torch.Tensor, processes: Processes | None = None) -> tuple[outliers.Collection, torch.Tensor]:
        calls.append(len(known))
        return real(known, processes)

    for module in (onnx_graph, outliers):
        monkeypatch.setattr(module, "collected", counted)
    export(replace(run, facts=replace(run.facts, features="")), "onnx", tmp_path / "model.onnx", runtime=CPU)
    assert calls == [60]


def test_streams_that_are_closed_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    kept = os.dup(1)
    os.close(1)
    try:
        with onnx_graph._silence():
            os.write(2, b"not seen")
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(1)
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_a_graph_does_not_say_where_its_network_was() -> None:
    run = sample_run()
    facts = replace(run.facts, backbone=replace(run.facts.backbone, name="/home/me/net.py:Mine"))
    assert onnx_graph.described(replace(run, facts=facts))["backbone"]["name"] == "net.py:Mine"
