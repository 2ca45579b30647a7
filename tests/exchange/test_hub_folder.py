"""A folder for the hub: a card in the form that the hub reads, and a network that others can load."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
from conftest import SortedRun
from huggingface_hub import ModelCard
from packaging.version import Version
from support.sample_run import sample_run

from sortal.config import MethodSource
from sortal.discovery.exporting import export
from sortal.errors import InputError
from sortal.exchange.hub_folder import _cell, handed_over, preprocessing, timm_config
from sortal.learning.backbones.registry import load_backbone
from sortal.runs.facts import Spec
from sortal.runs.run import MODEL
from sortal.runs.storage import peek


@pytest.fixture(scope="module")
def hub(sorted_run: SortedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(sorted_run.run, "hub", tmp_path_factory.mktemp("hub") / "out").out


def test_the_card_is_one_that_the_hub_can_read(hub: Path, sorted_run: SortedRun) -> None:
    card = ModelCard.load(hub / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("sortal", "image-classification")
    assert "| known | 3: ash, beech, cedar |" in card.text
    assert "Limits" in card.text
    assert card.data.eval_results is None, "nobody knows the truth"
    ready: dict[str, Any] = json.loads((hub / "preprocessor_config.json").read_text())
    assert ready["crop_size"] == {"height": 16, "width": 16}


def test_the_card_has_what_was_measured(sorted_run: SortedRun, tmp_path: Path) -> None:
    metrics = sample_run().metrics
    assert metrics is not None
    out = export(replace(sorted_run.run, metrics=metrics), "hub", tmp_path / "out").out
    results = ModelCard.load(out / "README.md").data.eval_results
    assert results is not None
    scores = metrics.accuracy
    measured = {"all classes": scores.all, "known classes": scores.old, "new classes": scores.new}
    measured["known classes by name"] = metrics.known_accuracy
    assert {each.metric_name: each.metric_value for each in results} == {
        f"Accuracy, {name}": round(value, 4) for name, value in measured.items() if value is not None
    }


def test_no_file_names_an_image_or_a_place(hub: Path, sorted_run: SortedRun) -> None:
    names = [
        *map(str, (sorted_run.images, sorted_run.out, sorted_run.images.parent)),
        *sorted_run.run.assignments.files,
    ]
    for path in hub.iterdir():
        found = path.read_bytes()
        assert not [name for name in names if name.encode() in found], path.name


def test_the_place_of_a_methods_code_is_not_passed_on(copied_run: SortedRun, tmp_path: Path) -> None:
    source = MethodSource(code="/home/ada/secret/lego.py:Lego")
    export(replace(copied_run.run, facts=replace(copied_run.run.facts, method_source=source)), "hub", tmp_path / "hub")
    exported = peek(tmp_path / "hub")
    assert exported is not None
    assert exported.method_source == MethodSource(code="lego.py:Lego")


@pytest.mark.skipif(Version(timm.__version__) < Version("1.0.26"), reason="timm reads no such folder before")
def test_timm_can_load_a_network_of_its_own(tmp_path: Path) -> None:
    backbone = load_backbone("test_vit", weights="random", image_size=48)
    backbone.save(tmp_path / MODEL)
    (tmp_path / "config.json").write_text(json.dumps(timm_config(backbone.spec)))
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert {name: each.tolist() for name, each in again.state_dict().items()} == {
        name: each.tolist() for name, each in backbone.net.state_dict().items()
    }


def test_a_backbone_that_is_code_or_missing_is_refused(tmp_path: Path) -> None:
    run = sample_run()
    run = replace(run, facts=replace(run.facts, backbone=replace(run.facts.backbone, name="net.py:Mine")))
    with pytest.raises(InputError, match="is code of your own"):
        export(run, "hub", tmp_path / "out")
    with pytest.raises(InputError, match=r"has no model\.json, so there is no model to export"):
        export(sample_run(), "hub", tmp_path / "out")


def test_only_the_network_that_the_run_describes_is_copied(copied_run: SortedRun, tmp_path: Path) -> None:
    """A stranger's run may have a link to a private file in the place of its weights, or another description."""
    weights, described = (copied_run.out / f"{MODEL}{ending}" for ending in (".safetensors", ".json"))
    content, about = weights.read_bytes(), json.loads(described.read_text())
    secret = tmp_path / "secret"
    secret.write_bytes(content)
    weights.unlink()
    weights.symlink_to(secret)
    with pytest.raises(InputError, match="is a link to"):
        export(copied_run.out, "hub", tmp_path / "linked")
    weights.unlink()
    weights.write_bytes(content + b" ")
    with pytest.raises(InputError, match="does not match the digest"):
        export(copied_run.out, "hub", tmp_path / "other")
    weights.write_bytes(content)
    described.write_text(json.dumps({key: value for key, value in about.items() if key != "name"}))
    with pytest.raises(InputError, match=r"model\.json has no 'name'"):
        export(copied_run.out, "hub", tmp_path / "nameless")
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("run", "secret")] == []


def test_places_in_settings_are_shortened() -> None:
    facts, place = sample_run().facts, "/home/me/net.pth"
    settings = replace(facts.settings, set=("training.epochs=3", f"weights={place}"), weights=place)
    facts = replace(facts, settings=settings, weights=f"of {place}", notes=("2 images appear twice: ann.png",))
    shared = handed_over(replace(sample_run(), facts=replace(facts, command="sortal discover ../ann/photos")))
    assert (shared.facts.notes, shared.facts.command) == ((), ""), "both name files"
    assert shared.facts.settings.set == ("training.epochs=3", "weights=net.pth")
    assert (shared.facts.settings.weights, shared.facts.weights) == ("net.pth", "of net.pth")


def test_names_are_text_in_markdown() -> None:
    assert _cell("a|b <script>\n*x* [y](z)") == r"a\|b &lt;script> \*x\* \[y\](z)"
    spec = Spec(name="convnet", image_size=16, shorter_side=20, width=4, interpolation="bilinear")
    assert preprocessing(spec)["resample"] == 2
    assert timm_config(spec)["library"] == "sortal"
    assert re.fullmatch(r"\d+\.\d+.*", timm_config(spec)["version"])
