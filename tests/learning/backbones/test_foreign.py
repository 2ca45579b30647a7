"""Backbones of a person's own: any module, a Backbone, and what is wrong with others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support import tiny_folder as tiny
from support.command_line import invoke, refused
from support.runtimes import CPU
from support.tiny_methods import Colours
from torch import Tensor, nn

from sortal import discover, load_run, predict
from sortal.config import load_named_backbone
from sortal.config.plugins import BACKBONES
from sortal.errors import InputError
from sortal.learning.backbones.registry import load_backbone
from sortal.runs.facts import Spec

PAGE = Path(__file__).parents[3] / "docs" / "learning.md"


class Whole(nn.Module):
    """Not in blocks."""

    image_size, shorter_side = 8, 10
    mean = (0.0, 0.0, 0.0)

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 5)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.map(images.mean((2, 3)))
        return found


@pytest.fixture(autouse=True)
def unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    backbones = dict(BACKBONES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield
    BACKBONES.clear()
    BACKBONES.update(backbones)
    sys.modules.pop("net", None)


def test_a_module_is_one_block_and_keeps_its_weights() -> None:
    net = Whole()
    name = load_named_backbone(net)
    backbone = load_backbone(name)
    assert name == f"{__name__}:Whole"
    assert backbone.spec == Spec(name=name, image_size=8, shorter_side=10, width=5, mean=(0.0, 0.0, 0.0))
    assert (backbone.trained, backbone.has_trunk) == (1, False)
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(backbone(images), net(images))
    assert backbone.net is not net, "training must not change what was given"
    with pytest.raises(InputError, match=r"^The blocks to train must be 0 to 1"):
        load_backbone(name, trained=2)


def test_a_class_makes_weights_by_the_seed_and_a_backbone_has_a_trunk_of_its_own() -> None:
    name = load_named_backbone(Whole)
    first, again, other = (load_backbone(name, seed=seed).fingerprint() for seed in (0, 0, 1))
    assert first == again != other
    colours = load_backbone(load_named_backbone(Colours))
    assert isinstance(colours, Colours)
    assert (colours.trained, colours.has_trunk) == (1, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: 3, "must be a torch.nn.Module or make one, got 3"),
        (lambda: nn.Conv2d(3, 4, 3), r"must return features of shape \(n, d\), got \(1, 4, 222, 222\) for one image"),
        (lambda: nn.Linear(7, 2), r"must compute features of images \(n, 3, 224, 224\), but it fails: "),
    ],
)
def test_what_is_no_backbone_is_refused(given: Any, said: str) -> None:
    given.__qualname__ = "given"
    with pytest.raises(InputError, match=said):
        load_backbone(load_named_backbone(given))
    with pytest.raises(InputError, match=r"^The backbone 'net.py:Net' is not loaded, .* \(backbone='net.py:Net'\)"):
        load_backbone("net.py:Net")


@pytest.mark.thorough
def test_a_module_sorts_with_the_defaults_without_a_gpu(tmp_path: Path, quickly: None) -> None:
    """It is trained as a whole, so that there are no frozen blocks to cache views of."""
    tiny.write(tmp_path / "images")
    notes: list[str] = []
    options: dict[str, Any] = {"backbone": Whole(), "method": "gcd", "k": 6, "n_init": 2}
    options |= {"set": {"training.batch_size": 120}, "runtime": replace(CPU, note=notes.append)}
    with patch.multiple("sortal.discovery.defaults", EPOCHS_ON_CPU=(1, 1), EPOCHS_OF_FEW=1):
        run = discover("images", out="run", **options)
    assert run.facts.training is not None
    assert (run.facts.training.views, run.facts.training.epochs) == (None, 1)
    assert any("1 epoch on new views in every epoch. The backbone is trained as a whole" in text for text in notes)
    with pytest.raises(InputError, match=r"views must be 'auto' or 'live' .* for a backbone without frozen blocks"):
        discover("images", out="other", views=2, **options)


def test_the_one_of_the_page_sorts_and_predicts_where_it_is_named(tmp_path: Path, quickly: None) -> None:
    page = PAGE.read_text(encoding="utf-8").split("## Your own backbone")[1].split("## ")[0]
    (tmp_path / "net.py").write_text(page.split("```python\n")[1].split("```")[0])
    tiny.write(tmp_path / "images")
    words = ("--backbone", "net.py:MyNet", "--method", "gcd", "--epochs", "1", "--k", "6", "--views", "2")
    done = invoke("discover", "images", *words, "--device", "cpu", "--out", "run")
    assert done.code == 0, done.err
    run = load_run("run")
    assert (run.facts.backbone.name, run.facts.backbone.width, run.facts.backbone.mean) == (
        "net.py:MyNet",
        64,
        (0.5,) * 3,
    )
    assert run.facts.training is not None
    assert run.facts.training.views == 2, "the first block is frozen"
    tiny.save(tmp_path / "new" / "one.png", tiny.picture("ash", 99))
    found = predict("run", "new", backbone="net.py:MyNet", runtime=CPU)
    assert len(found.assignments) == 1
    BACKBONES.clear()
    assert "The backbone 'net.py:MyNet' is not loaded" in refused("predict", "run", "new")
    assert invoke("predict", "run", "new", "--backbone", "net.py:MyNet", "--device", "cpu").code == 0
