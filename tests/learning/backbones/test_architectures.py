"""Networks as timm and open_clip make them: their own sizes and colours, and what cannot be made is refused."""

import json
from typing import Any

import pytest
import timm
import torch
from support.tiny_encoders import ABOUT, SIZE, TOWER, TRANSFORMER

from sortal.errors import InputError
from sortal.learning.backbones.architectures import _later, _Undrawn, check_name, create, hub_file
from sortal.learning.backbones.network import Network
from sortal.learning.backbones.vit import VisionTransformer

pytestmark = pytest.mark.usefixtures("no_network")


def described(library: str = "timm", **parts: Any) -> str:
    return json.dumps({"library": library, **parts})


def tower(about: dict[str, Any] | None = None, **changes: Any) -> str:
    model = {"embed_dim": 20, "vision_cfg": {**TOWER, **changes}}
    return described("open_clip", model_cfg=model, preprocess_cfg=about or {})


def test_functions_of_the_compiler_are_called_as_they_are_when_they_are_needed() -> None:
    assert _later("math", "hypot", 3.0, 4.0) == 5.0
    total = _later("functools", "partial", lambda a, b, *, c: (a, b, c), 1, c=3)
    assert total(2) == (1, 2, 3)


def test_weights_that_are_not_drawn_stay_as_they_are() -> None:
    with _Undrawn():
        undrawn = torch.nn.init.kaiming_uniform_(torch.full((2, 2), 3.0))
        assert (undrawn + 1).tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert (torch.nn.init.kaiming_uniform_(undrawn) != 3).all()


def test_images_are_those_of_the_configuration_of_a_network() -> None:
    """Of its default weights: 160 pixels, 95 % of the shorter side, which leaves views too little room to differ."""
    cfg = timm.get_pretrained_cfg("test_convnext")
    assert cfg is not None
    spec = create("test_convnext", None, draw=True).spec
    assert (spec.image_size, spec.shorter_side) == (cfg.input_size[-1], round(cfg.input_size[-1] * 256 / 224))
    assert (spec.mean, spec.std, spec.interpolation) == (tuple(cfg.mean), tuple(cfg.std), "bicubic")
    assert create("test_convnext", 64, draw=True).spec.image_size == 64


@pytest.mark.parametrize(("crop", "shorter"), [(0.8, 40), (0.875, 37), (1.0, 37), (None, 37)])
def test_images_are_those_of_a_description(crop: float | None, shorter: int) -> None:
    about = {**ABOUT, "crop_pct": crop}
    text = described(architecture="test_convnext", model_args={}, pretrained_cfg=about)
    spec = create("hf-hub:some/net", None, text, draw=True).spec
    assert (spec.name, spec.image_size, spec.shorter_side) == ("hf-hub:some/net", SIZE, shorter)
    assert (spec.mean, spec.std, spec.interpolation) == ((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "bilinear")
    assert spec.architecture == text


@pytest.mark.parametrize(
    ("model", "changes", "kind"),
    [
        ("vit_tiny_patch16_224", {}, VisionTransformer),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}, Network),
        ("vit_base_patch16_siglip_224", {}, Network),
    ],
)
def test_a_class_token_is_used_if_there_is_one(model: str, changes: dict[str, Any], kind: type) -> None:
    arguments = {**TRANSFORMER, "patch_size": 8, **changes}
    text = described(architecture=model, model_args=arguments, pretrained_cfg=ABOUT)
    backbone = create("net", None, text, draw=True)
    assert type(backbone) is kind
    assert (backbone.spec.image_size, backbone.spec.width) == (SIZE, 24)


def test_what_a_description_says_about_weights_is_ignored() -> None:
    told = {"pretrained": True, "checkpoint_path": "/no/such/file", "num_classes": 7, "pretrained_cfg_overlay": {}}
    backbone = create("net", None, described(architecture="test_convnext", model_args=told), draw=True)
    assert backbone.spec.width == 64


def test_towers_of_open_clip_compute_embeddings() -> None:
    backbone = create("net", None, tower(), draw=True)
    assert (backbone.spec.image_size, backbone.spec.width) == (SIZE, 20)
    assert backbone.spec.mean == (0.48145466, 0.4578275, 0.40821073)
    other = tower(ABOUT, timm_model_name="test_convnext", timm_proj="linear")
    backbone = create("net", None, other, draw=True)
    assert isinstance(backbone, Network)
    assert (backbone.stages[-1], backbone.spec.std) == ("trunk.stages.3", (0.2, 0.25, 0.3))


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        (described(architecture="no_such_net"), None, "The backbone must be .*got 'no_such_net'"),
        (described(architecture="hf-hub:a/b"), None, "The backbone must be .*got 'hf-hub:a/b'"),
        (described(architecture="test_convnext", model_args={"nonsense": 1}), None, "net does not support an image"),
        (described(architecture="test_convnext", model_args=[1]), None, "The config of net must describe a model of t"),
        (described(architecture="test_convnext", pretrained_cfg={"mean": 3}), None, "The config of net must describe"),
        (described(), None, "The config of net must describe a model of timm: 'architecture'"),
        (described("open_clip"), None, "The config of net must describe a model of open_clip: 'model_cfg'"),
        (
            tower(timm_model_name="hf-hub:a/b"),
            None,
            "open_clip: its tower must be a model of timm, got 'hf-hub:a/b'",
        ),
        (tower(), 64, "image_size must be 32 for net, got 64"),
    ],
)
def test_descriptions_that_are_wrong_are_refused(text: str, size: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        create("net", size, text, draw=True)


def test_networks_of_a_fixed_size_are_made_for_another() -> None:
    arguments = {**TRANSFORMER, "patch_size": 8}
    text = described(architecture="beit_base_patch16_224", model_args=arguments, pretrained_cfg=ABOUT)
    with pytest.raises(InputError, match=r"^net does not support an image_size of 48: "):
        create("net", 48, text, draw=True)
    about = {**ABOUT, "fixed_input_size": True}
    text = described(architecture="beit_base_patch16_224", model_args=arguments, pretrained_cfg=about)
    assert create("net", 48, text, draw=True).spec.image_size == 48


def test_names_and_files_are_those_of_timm() -> None:
    check_name("convnext_tiny.fb_in22k")
    assert hub_file("convnext_tiny.fb_in22k") == ("timm/convnext_tiny.fb_in22k", "model.safetensors")
    with pytest.raises(InputError, match=r"Did you mean .*'convnext_tiny\.fb_in22k'"):
        check_name("convnext_tiny.fb_in2k")


def test_a_network_without_weights_in_memory_is_made() -> None:
    """As a saved one is, before its file is trusted with so many weights."""
    with torch.device("meta"):
        backbone = create("test_convnext", 64, draw=False)
    assert all(value.is_meta for value in backbone.net.parameters())
    assert backbone.spec.width == 64
