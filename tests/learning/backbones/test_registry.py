"""Backbones by name: architectures, sources of weights, and saved backbones."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor

from sortal.cli.options import spell
from sortal.errors import InputError
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.backbones.convnet import ConvNet
from sortal.learning.backbones.network import Network
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.backbones.vit import VisionTransformer

pytestmark = pytest.mark.usefixtures("no_network")
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set HF_HUB_OFFLINE=1 and an empty cache of the hub."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the vision transformers of timm two blocks of width 48."""
    create = timm.create_model
    size: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3}

    def create_small(name: str, **options: Any) -> Any:
        return create(name, **options, **(size if name.startswith(("vit", "deit", "eva")) else {}))

    monkeypatch.setattr(timm, "create_model", create_small)


def random(name: str = "test_vit", size: int | None = 32, **options: Any) -> Backbone:
    return load_backbone(name, weights="random", image_size=size, **options)


def features(backbone: Backbone) -> Tensor:
    size = backbone.spec.image_size
    pixels = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found: Tensor = backbone(backbone.normalise(pixels))
    return found


# Names and specs


UNKNOWN = r"The backbone must be 'convnet' or a timm model, got '{}'\."


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("vit_smal_patch16_224.dino", None, UNKNOWN + r" Did you mean .*'vit_small_patch16_224\.dino'.*\?"),
        ("vit_small_patch16_224.dinoo", None, UNKNOWN + r" Did you mean .*'vit_small_patch16_224\.dino'.*\?"),
        ("dino", None, UNKNOWN + r" Did you mean '\S*dino\S*', '\S*dino\S*', '\S*dino\S*'\?"),  # a part of some names
        (".dino", None, UNKNOWN),
        ("vit_small_patch14_dinov2", 32, r"image_size must be a multiple of 14 for {}, got 32\."),
        ("vit_tiny_r_s16_p8_224", 48, r"{} does not support an image_size of 48: \w.*\."),
        ("convnet", 7, r"image_size must be at least 8 for '{}', got 7\."),
        ("test_vit", 0, r"image_size must be a whole number of at least 1, got 0\."),
    ],
)
def test_unsupported_backbones_are_refused(name: str, size: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message.format(name)}$"):
        random(name, size)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "size", "made", "shorter", "grid"),
    [
        ("vit_small_patch14_dinov2", None, 224, 256, (16, 16)),  # the paper's size, not the 518 it was made for
        ("vit_tiny_patch16_384", 64, 64, 73, (4, 4)),
        ("deit_tiny_patch16_224", 32, 32, 37, (2, 2)),  # from another module of timm
        ("vit_tiny_r_s16_p8_224", 64, 64, 73, (2, 2)),  # a convolutional stem
        ("test_resnet", 40, 40, 46, None),
    ],
)
def test_a_backbone_is_made_for_the_requested_size(
    name: str, size: int | None, made: int, shorter: int, grid: tuple[int, int] | None
) -> None:
    """Whatever size its name contains."""
    backbone = random(name, size)
    width: Any = backbone.net.num_features
    assert backbone.spec == replace(backbone.spec, name=name, image_size=made, shorter_side=shorter, width=width)
    assert isinstance(backbone, Network if grid is None else VisionTransformer)
    assert getattr(backbone, "grid", None) == grid
    assert features(backbone).shape == (3, width)
    assert (backbone.trained, backbone.source, backbone.dtype) == (1, "random weights", torch.float32)


@pytest.mark.usefixtures("small")
def test_features_come_after_the_final_norm_whatever_timm_pools(tmp_path: Path) -> None:
    """The weights of this one are for the average of its patches, and have no norm for its class token."""
    name, file = "eva02_tiny_patch14_224", tmp_path / "w.safetensors"
    save_file(timm.create_model(name, img_size=28).state_dict(), file)
    found = features(load_backbone(name, weights=file, image_size=28)).double()
    # A layer norm leaves mean 0 and variance v / (v + 1e-6), far within these bounds for inputs of any size.
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(3).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.std(dim=1, correction=0), torch.ones(3).double(), rtol=1e-3, atol=0)


def test_the_convnet_needs_no_weights() -> None:
    backbone = load_backbone("convnet")
    assert isinstance(backbone, ConvNet)
    assert backbone.spec == Spec(name="convnet", image_size=16, shorter_side=20, width=512)
    assert features(backbone).shape == (3, 512)
    assert load_backbone("convnet", image_size=8).spec.shorter_side == 10


# Random weights


@pytest.mark.parametrize(("name", "usual", "most"), [("test_vit", 1, 6), ("test_resnet", 1, 4), ("convnet", 3, 3)])
def test_random_weights_depend_on_the_seed_alone(
    name: str, usual: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Global generators are not touched, nor those of GPUs, which torch.manual_seed would set."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    first = random(name, seed=3).fingerprint()
    torch.rand(7)
    before = torch.random.get_rng_state()
    assert random(name, seed=3, trained=0).fingerprint() == first
    assert torch.equal(torch.random.get_rng_state(), before)
    assert random(name, seed=4).fingerprint() != first
    assert random(name).fingerprint() == random(name, seed=0).fingerprint()
    assert not seeded
    assert [random(name, trained=trained).trained for trained in (None, 0, most)] == [usual, 0, most]
    with pytest.raises(InputError, match=rf"must be 0 to {most} \(all of {name}\), got {most + 1}\."):
        random(name, trained=most + 1)


# Weights from a file


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "convnet"])
def test_weights_are_loaded_from_a_file(name: str, tmp_path: Path) -> None:
    made, path = random(name, seed=1), tmp_path / "some.safetensors"
    save_file(made.net.state_dict(), path)
    backbone = load_backbone(name, weights=path, image_size=32)
    assert torch.equal(features(backbone), features(made))
    assert backbone.source == f"some.safetensors (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()})"
    by_text = load_backbone(name, weights=str(path), image_size=32, trained=2)
    assert (by_text.fingerprint(), by_text.trained) == (made.fingerprint(), 2)
    other = "convnet" if name == "test_vit" else "test_vit"
    with pytest.raises(InputError, match=rf"^The weights in '{path}' must match {other} exactly"):
        load_backbone(other, weights=path)


@pytest.mark.usefixtures("small")
def test_the_name_of_a_weights_file_must_determine_the_normalisation(tmp_path: Path) -> None:
    """Some weights of a ViT-S/16 expect ImageNet's mean, others 0.5; the architecture does not determine it."""
    name, path = "vit_small_patch16_224", tmp_path / "x.safetensors"
    made = random(f"{name}.dino")
    assert (made.spec.mean, made.spec.std) == (Spec.mean, Spec.std)
    save_file(made.net.state_dict(), path)
    expected = rf"^The name must include a tag, .*, got '{name}'\. Use one of .*'{name}\.dino'"
    with pytest.raises(InputError, match=expected):
        load_backbone(name, weights=path, image_size=32)
    assert load_backbone(f"{name}.dino", weights=path, image_size=32).spec == made.spec
    assert load_backbone(f"{name}.augreg_in21k", weights=path, image_size=32).spec.mean == (0.5, 0.5, 0.5)
    made.spec = replace(made.spec, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    made.save(tmp_path / "x")  # now a .json specifies it
    for given in (name, f"{name}.augreg_in21k"):
        spec = replace(made.spec, name=given, image_size=64, shorter_side=73)
        assert load_backbone(given, weights=path, image_size=64).spec == spec
    made.net.state_dict()["norm.bias"].add_(1)
    save_file(made.net.state_dict(), path)  # but it belongs to other weights
    with pytest.raises(InputError, match=expected):
        load_backbone(name, weights=path, image_size=32)
    assert load_backbone(f"{name}.dino", weights=path, image_size=32).spec.mean == Spec.mean
    alike = "vit_small_patch14_dinov2"  # all of its weights expect the same
    save_file(random(alike, 28).net.state_dict(), path)
    assert load_backbone(alike, weights=path, image_size=28).spec == random(alike, 28).spec


# Weights from the hub


@pytest.mark.usefixtures("small")
def test_offline_without_a_file_the_message_says_what_to_pass(hub: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_backbone("test_vit", image_size=32)
    message = str(caught.value)
    assert message == (
        "The weights of test_vit are not on this machine and cannot be downloaded: HF_HUB_OFFLINE is set. Download "
        "'model.safetensors' of 'timm/test_vit.r160_in1k' from the Hugging Face hub on another machine and pass it "
        "(weights='FILE')."
    )
    assert caught.value.text(spell).endswith(" and pass it (--weights FILE).")
    assert not hub.exists()
    name = "vit_small_patch16_18x2_224"
    expected = rf"^The hub has no weights of {name}\. Pass a file \(weights='FILE'\), or use untrained weights \("
    with pytest.raises(InputError, match=expected):
        load_backbone(name, image_size=32)


def test_offline_the_cache_of_the_hub_is_used(hub: Path) -> None:
    """The hub's file was made for 160 pixels and has a classifier."""
    whole = timm.create_model("test_vit", num_classes=10, img_size=160)
    parts = ("blobs/abc", "refs/main", f"snapshots/{REVISION}/model.safetensors")
    blob, ref, link = (hub / "models--timm--test_vit.r160_in1k" / part for part in parts)
    for path in (blob, ref, link):
        path.parent.mkdir(parents=True)
    save_file(whole.state_dict(), blob)
    ref.write_text(REVISION)
    link.symlink_to("../../blobs/abc")
    images = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        expected = whole.eval().double().forward_features(images)[:, 0]  # type: ignore[operator]
        for name in ("test_vit.r160_in1k", "test_vit"):  # the second defaults to these weights
            backbone = load_backbone(name, image_size=160)
            assert backbone.source.startswith("model.safetensors (sha256 ")
            found = backbone.double()(images)  # its softmax stays in float32
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert features(load_backbone("test_vit", image_size=64)).shape == (3, 64)
    blob.write_bytes(b"<html>")
    with pytest.raises(InputError, match=rf"^The weights file '{hub}/.*/model\.safetensors' must be safetensors"):
        load_backbone("test_vit")


# Saved and loaded


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "size", "trained"),
    [
        ("test_vit.r160_in1k", 64, 0),
        ("convnet", 12, 1),
        ("vit_small_patch14_reg4_dinov2", 28, 2),
        pytest.param("test_resnet", 40, 1, marks=pytest.mark.thorough),
        pytest.param("vit_small_patch16_dinov3", 32, 2, marks=pytest.mark.thorough),
    ],
)
def test_a_saved_backbone_is_restored(name: str, size: int, trained: int, tmp_path: Path) -> None:
    made = random(name, size, trained=trained, seed=5)
    made.spec = replace(made.spec, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), shorter_side=size + 1)
    with torch.no_grad():
        for parameter in made.parameters():  # as after training
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)), alpha=0.05)
    random(name, size).save(tmp_path / "run.1" / "best")  # to be overwritten
    made.save(tmp_path / "run.1" / "best")
    assert len(list((tmp_path / "run.1").iterdir())) == 2
    (tmp_path / "run.1").rename(tmp_path / "run.2")
    path = str(tmp_path / "run.2" / "best")
    for given in (path, f"{path}.json", f"{path}.safetensors"):
        backbone = load_backbone(given)
        assert type(backbone) is type(made)
        assert (backbone.spec, backbone.trained) == (made.spec, trained)
        assert backbone.fingerprint() == made.fingerprint()
    assert torch.equal(features(backbone), features(made))
    assert load_backbone(path, trained=2).trained == 2
    for options in ({"weights": "random"}, {"weights": f"{path}.safetensors"}, {"image_size": 64}):
        with pytest.raises(InputError, match=r"best\.json' has its own weights and image_size\. Omit both options\.$"):
            load_backbone(path, **options)


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        pytest.param(
            {"name": "vit_7b_patch16_dinov3"},
            r"x\.json' names vit_7b_patch16_dinov3 with an image_size of 32, which has 6,",
            marks=pytest.mark.thorough,  # billions of weights take seconds to be counted
        ),
        ({"image_size": 8192}, r"x\.json' names test_vit with an image_size of 8,192, which has 1"),
        ({"image_size": 10**4000}, "image_size must be at most 8,192, got 1000"),
        ({"name": "no_such_model"}, "must be 'convnet' or a timm model, got 'no_such_model'"),
    ],
)
def test_a_network_that_is_larger_than_its_file_is_refused_before_it_is_made(
    claim: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    random("test_vit", 32).save(tmp_path / "x")
    about = tmp_path / "x.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), **claim}))
    with pytest.raises(InputError, match=problem):
        load_backbone(str(about))


def test_changed_or_missing_weights_are_reported(tmp_path: Path) -> None:
    random().save(tmp_path / "x")
    path, about = tmp_path / "x.safetensors", tmp_path / "x.json"
    content = path.read_bytes()
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    expected = r"^The weights in '.*x\.safetensors' do not match the digest in '.*x\.json'\. Save the backbone again\.$"
    with pytest.raises(InputError, match=expected):
        load_backbone(str(about))
    path.unlink()
    with pytest.raises(InputError, match=r"^The weights file '.*x\.safetensors' does not exist\. Check the path\.$"):
        load_backbone(str(about))
    path.write_bytes(content)
    about.unlink()
    about.mkdir()
    with pytest.raises(InputError, match=r"^The saved backbone '.*x\.json' does not exist\. Check the path\.$"):
        load_backbone(str(about))
    # The weights can still be loaded by name.
    assert load_backbone("test_vit", weights=path, image_size=32).spec == random().spec


NO_BACKBONE = r"^'.*x\.json' is not the \.json of a saved backbone\. Check the path\.$"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((text, NO_BACKBONE) for text in (b"", b"[]", b"\xff")),
        ({"sha256": None}, NO_BACKBONE),
        ({"format": "something else"}, NO_BACKBONE),
        ({"name": "x.json"}, NO_BACKBONE),
        ({"name": "test_resnet"}, "must match test_resnet"),
        ({"image_size": "32"}, NO_BACKBONE),
        ({"trained": 7}, "must be 0 to 6"),
    ],
)
def test_an_unrelated_json_is_refused_as_a_backbone(change: bytes | dict[str, Any], words: str, tmp_path: Path) -> None:
    """As a saved backbone it is refused; next to a weights file it is ignored."""
    path, about = tmp_path / "x.safetensors", tmp_path / "x.json"
    random().save(about)
    if isinstance(change, dict):
        changed = json.loads(about.read_text()) | change
        change = json.dumps({key: value for key, value in changed.items() if value is not None}).encode()
    about.write_bytes(change)
    with pytest.raises(InputError, match=words):
        load_backbone(str(about))
    assert load_backbone("test_vit", weights=path, image_size=32).spec == random().spec


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_fingerprint_does_not_depend_on_the_device() -> None:
    made = random()
    before = made.fingerprint()
    assert made.to("cuda").fingerprint() == before


REAL = Path(__file__).parents[4] / "shared/weights/vit_small_patch14_dinov2.safetensors"


@pytest.mark.thorough
@pytest.mark.skipif(not REAL.is_file(), reason="needs the weights of a real ViT in shared/weights")
def test_a_real_vit_is_loaded_and_resampled_to_another_grid(tmp_path: Path) -> None:
    """The file is float16, with position embeddings of 37 × 37 patches."""
    raw = load_file(REAL)
    backbone = load_backbone("vit_small_patch14_dinov2", weights=REAL)
    assert isinstance(backbone, VisionTransformer)
    assert (backbone.spec.image_size, backbone.grid) == (224, (16, 16))
    own = backbone.net.state_dict()
    assert (raw["pos_embed"].shape, own["pos_embed"].shape) == ((1, 1 + 37 * 37, 384), (1, 1 + 16 * 16, 384))
    assert torch.equal(own["pos_embed"][:, 0], raw["pos_embed"][:, 0].float())
    assert all(torch.equal(value, raw[key].float()) for key, value in own.items() if key != "pos_embed")
    pixels = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = backbone.normalise(pixels)
    net: Any = backbone.net
    with torch.no_grad():
        found = backbone(images)
        torch.testing.assert_close(found, net.forward_features(images)[:, 0], rtol=1e-3, atol=1e-3)
        backbone.save(tmp_path / "x")
        assert torch.equal(load_backbone(str(tmp_path / "x.json"))(images), found)
