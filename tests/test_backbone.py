"""Backbones by name: what is made, where its weights come from, and that what was saved comes back."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor

from sortal.backbone import load_backbone
from sortal.convnet import ConvNet, ResNet
from sortal.errors import InputError
from sortal.network import FORMAT, Backbone, Spec
from sortal.vit import VisionTransformer

REAL = Path(__file__).parents[2] / "shared" / "weights" / "vit_small_patch14_dinov2.safetensors"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test does, nothing is asked of another machine."""
    asked: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise OSError("a test went out")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield
    assert not asked


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and HF_HUB_OFFLINE=1."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def random(name: str = "test_vit", size: int | None = 32, **options: Any) -> Backbone:
    return load_backbone(name, weights="random", image_size=size, **options)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """ViTs of timm have two blocks of width 48."""
    create = timm.create_model
    size: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3}

    def create_small(name: str, **options: Any) -> Any:
        return create(name, **options, **(size if name.startswith("vit") else {}))

    monkeypatch.setattr(timm, "create_model", create_small)


def features(backbone: Backbone) -> Tensor:
    size = backbone.spec.image_size
    pixels = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found: Tensor = backbone(backbone.normalise(pixels))
    return found


def cached(hub: Path, repository: str, source: Path) -> None:
    """A file as the hub's own client would have left it."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    (folder / "snapshots" / REVISION).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "blobs").mkdir()
    (folder / "refs" / "main").write_text(REVISION)
    shutil.copyfile(source, folder / "blobs" / "abc")
    (folder / "snapshots" / REVISION / "model.safetensors").symlink_to("../../blobs/abc")


# Names


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("vit_smal_patch16_224.dino", "'vit_small_patch16_224.dino'"),
        ("vit_small_patch16_224.dinoo", "'vit_small_patch16_224.dino'"),
        ("vit-base-patch16-224", "'vit_base_patch16_224'"),
        ("resnet5", "'resnet50'|'resnet51q'"),
        ("hf_hub:timm/vit_small_patch16_224.dino", "'vit_small_patch16_224.dino'"),
    ],
)
def test_a_name_nobody_knows_brings_those_like_it(name: str, near: str) -> None:
    expected = rf"^The backbone must be 'convnet' or a model of timm, got '{name}'\. Did you mean .*({near}).*\?$"
    with pytest.raises(InputError, match=expected):
        random(name)


@pytest.mark.parametrize("name", ["", "qqqqqqqqqqqqqqq", ".", ".dino"])
def test_a_name_like_no_other_brings_none(name: str) -> None:
    with pytest.raises(InputError) as caught:
        random(name)
    assert str(caught.value) == f"The backbone must be 'convnet' or a model of timm, got {name!r}."


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("test_efficientnet", "EfficientNet"),
        ("test_convnext", "ConvNeXt"),
        ("vit_relpos_small_patch16_224", "VisionTr"),
    ],
)
def test_networks_of_other_kinds_will_not_do(name: str, kind: str) -> None:
    expected = rf"^The backbone must be a vision transformer or a ResNet, got '{name}' \({kind}\w*\)\.$"
    with pytest.raises(InputError, match=expected):
        random(name, None)


@pytest.mark.parametrize("name", ["test_vit2", "test_vit3", "vit_base_patch16_siglip_224", "eva02_tiny_patch14_224"])
def test_a_vit_must_have_a_class_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 28 if "patch14" in name else 32
    if name.startswith("eva"):  # those of timm all have one
        create = timm.create_model
        monkeypatch.setattr(timm, "create_model", lambda *a, **k: create(*a, **k, class_token=False, depth=1))
    with pytest.raises(InputError, match=rf"^{name} has no class token, which features are read from\. Choose another"):
        random(name, size)


def test_names_choose_the_kind_of_backbone() -> None:
    assert isinstance(random("test_vit"), VisionTransformer)
    assert isinstance(random("vit_tiny_patch16_224"), VisionTransformer)
    assert isinstance(random("test_resnet"), ResNet)
    assert isinstance(random("convnet"), ConvNet)


# Specs


def test_the_spec_of_a_vit_with_weights_of_dino() -> None:
    backbone = random("vit_small_patch16_224.dino", None)
    assert backbone.spec == Spec(
        name="vit_small_patch16_224.dino",
        image_size=224,
        shorter_side=256,
        width=384,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
    assert len(backbone.blocks) == 12
    assert backbone.trained == 1
    assert backbone.source == "random weights"
    assert backbone.dtype == torch.float32


@pytest.mark.usefixtures("small")
def test_clip_has_its_own_mean_and_deviation() -> None:
    spec = random("vit_base_patch32_clip_224.openai", 64).spec
    assert spec.mean == (0.48145466, 0.4578275, 0.40821073)
    assert spec.std == (0.26862954, 0.26130258, 0.27577711)


@pytest.mark.parametrize(("size", "shorter"), [(32, 37), (112, 128), (224, 256), (448, 512)])
@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_images_of_another_size(name: str, size: int, shorter: int) -> None:
    backbone = random(name, size)
    assert (backbone.spec.image_size, backbone.spec.shorter_side) == (size, shorter)
    if size < 224:
        assert features(backbone).shape == (3, backbone.spec.width)


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_384", "deit_tiny_patch16_224", "deit3_small_patch16_384", "vit_tiny_r_s16_p8_224", "resnet18"],
)
def test_the_size_that_is_asked_for_is_the_one_that_is_made(name: str) -> None:
    """Whatever size stands in its name, and also for transformers that live in other modules of timm."""
    backbone = random(name, 64)
    assert features(backbone).shape == (3, backbone.spec.width)
    if isinstance(backbone, VisionTransformer):
        assert backbone.grid == ((2, 2) if "r_s16_p8" in name else (4, 4))


def test_features_come_after_the_final_norm_whatever_timm_would_pool() -> None:
    """By itself timm averages the patches of this one, and has no norm before that."""
    backbone = random("eva02_tiny_patch14_224", 28)
    found = features(backbone)
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.std(dim=1, correction=0), torch.ones(3), rtol=1e-3, atol=0)


def test_without_a_size_it_is_that_of_the_paper_not_that_of_the_name() -> None:
    assert random("deit_tiny_patch16_224", None).spec.image_size == 224
    backbone = random("vit_small_patch14_dinov2", None)  # made for 518
    assert isinstance(backbone, VisionTransformer)
    assert backbone.spec.image_size == 224
    assert backbone.grid == (16, 16)


@pytest.mark.parametrize(
    ("name", "size", "patch"),
    [
        ("test_vit", 40, 16),
        ("test_vit", 8, 16),
        ("vit_small_patch14_dinov2", 32, 14),
    ],
)
def test_images_must_be_whole_patches(name: str, size: int, patch: int) -> None:
    with pytest.raises(InputError) as caught:
        random(name, size)
    assert str(caught.value) == f"image_size must be a multiple of {patch} for {name}, got {size}."


def test_a_size_that_timm_refuses() -> None:
    """A convolutional stem, then patches of 8 × 8 places of its map."""
    with pytest.raises(InputError, match=r"^vit_tiny_r_s16_p8_224 cannot be made for images of 48 pixels: \w.*\.$"):
        random("vit_tiny_r_s16_p8_224", 48)


@pytest.mark.parametrize("size", [0, -16, 32.0, "32", True])
@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "convnet"])
def test_a_size_that_cannot_be(name: str, size: Any) -> None:
    with pytest.raises(InputError, match=rf"^image_size must be .*, got {size!r}\.$"):
        random(name, size)


def test_the_small_network() -> None:
    backbone = load_backbone("convnet")
    assert backbone.spec == Spec(name="convnet", image_size=16, shorter_side=20, width=512)
    assert backbone.trained == 3
    assert features(backbone).shape == (3, 512)
    assert load_backbone("convnet", image_size=8).spec.shorter_side == 10
    with pytest.raises(InputError, match=r"^image_size must be at least 8 for 'convnet', got 7\.$"):
        load_backbone("convnet", image_size=7)


@pytest.mark.parametrize(("name", "usual", "most"), [("test_vit", 1, 6), ("test_resnet", 1, 4), ("convnet", 3, 3)])
def test_how_many_blocks_are_trained(name: str, usual: int, most: int) -> None:
    assert random(name).trained == usual
    assert [random(name, trained=trained).trained for trained in range(most + 1)] == list(range(most + 1))
    with pytest.raises(InputError, match=rf"must be from 0 to {most} \(all of {name}\), got {most + 1}\."):
        random(name, trained=most + 1)


# Random weights


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "convnet", "vit_small_patch16_dinov3"])
def test_random_weights_depend_on_the_seed_alone(name: str) -> None:
    first = random(name, seed=3).fingerprint()
    torch.rand(7)
    assert random(name, seed=3).fingerprint() == first
    assert random(name, seed=4).fingerprint() != first
    assert random(name).fingerprint() == random(name, seed=0).fingerprint()


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "convnet"])
def test_other_random_numbers_stay_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of GPUs too, which torch.manual_seed sets as well, now or once they are started."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    before = torch.random.get_rng_state()
    random(name, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not seeded
    with pytest.raises(InputError):
        random(name, trained=99)
    assert torch.equal(torch.random.get_rng_state(), before)


# Weights from a file


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "convnet"])
def test_weights_from_a_file(name: str, tmp_path: Path) -> None:
    made = random(name, seed=1)
    save_file(made.net.state_dict(), tmp_path / "some.safetensors")
    backbone = load_backbone(name, weights=tmp_path / "some.safetensors", image_size=32)
    assert torch.equal(features(backbone), features(made))
    assert backbone.fingerprint() == made.fingerprint()
    digest = hashlib.sha256((tmp_path / "some.safetensors").read_bytes()).hexdigest()
    assert backbone.source == f"some.safetensors (sha256 {digest})"
    by_text = load_backbone(name, weights=str(tmp_path / "some.safetensors"), image_size=32, trained=2)
    assert by_text.fingerprint() == made.fingerprint()
    assert by_text.trained == 2


@pytest.mark.parametrize("name", ["test_vit", "convnet"])
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^The file of weights '.*gone\.pth' is not there\. Check the path\.$"):
        load_backbone(name, weights=tmp_path / "gone.pth")


def test_a_file_of_another_network_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    save_file(random("test_resnet").net.state_dict(), tmp_path / "x.safetensors")
    for name in ("test_vit", "convnet"):
        with pytest.raises(InputError, match=rf"^The weights of '.*x\.safetensors' must be those of {name}, whole and"):
            load_backbone(name, weights=tmp_path / "x.safetensors")


@pytest.mark.usefixtures("small")
def test_a_name_must_say_how_images_are_normalised_for_a_file(tmp_path: Path) -> None:
    """Some weights of a ViT-S/16 want ImageNet's mean, others a half; the architecture alone does not tell."""
    name, path = "vit_small_patch16_224", tmp_path / "x.safetensors"
    made = random(f"{name}.dino")
    save_file(made.net.state_dict(), path)
    expected = rf"^The name must say whose weights these are, .*, got '{name}'\. Use one of .*'{name}\.dino'"
    with pytest.raises(InputError, match=expected):
        load_backbone(name, weights=path, image_size=32)
    assert load_backbone(f"{name}.dino", weights=path, image_size=32).spec == made.spec
    assert load_backbone(f"{name}.augreg_in21k", weights=path, image_size=32).spec.mean == (0.5, 0.5, 0.5)
    made.save(tmp_path / "x")  # now a .json tells it
    assert load_backbone(name, weights=path, image_size=32).spec == replace(made.spec, name=name)
    made.net.state_dict()["norm.bias"].add_(1)
    save_file(made.net.state_dict(), path)  # but that is of other weights
    with pytest.raises(InputError, match=expected):
        load_backbone(name, weights=path, image_size=32)


@pytest.mark.usefixtures("small")
def test_a_name_whose_weights_all_want_the_same_need_not_say(tmp_path: Path) -> None:
    for name in ("vit_small_patch14_dinov2", "resnet18"):
        save_file(random(name, 28).net.state_dict(), tmp_path / "x.safetensors")
        spec = load_backbone(name, weights=tmp_path / "x.safetensors", image_size=28).spec
        assert (spec.mean, spec.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.usefixtures("small")
def test_a_backbone_made_under_a_bare_name_comes_back(tmp_path: Path) -> None:
    made = random("vit_small_patch16_224")
    made.save(tmp_path / "x")
    assert load_backbone(str(tmp_path / "x.json")).fingerprint() == made.fingerprint()


def test_a_file_loads_without_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    save_file(random("test_vit.r160_in1k").net.state_dict(), tmp_path / "x.safetensors")
    load_backbone("test_vit.r160_in1k", weights=tmp_path / "x.safetensors", image_size=32)
    load_backbone("test_vit.r160_in1k", weights="random")
    load_backbone("convnet")


# Weights from the hub


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("vit_small_patch16_224.dino", "timm/vit_small_patch16_224.dino"),
        ("test_vit", "timm/test_vit.r160_in1k"),
        ("test_resnet", "timm/test_resnet.r160_in1k"),
    ],
)
def test_offline_and_without_a_file_the_message_says_which_to_get(name: str, repository: str, hub: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_backbone(name, image_size=32)
    message = str(caught.value)
    assert message.startswith(f"The weights of {name} are not on this machine and cannot be fetched: ")
    assert message.endswith(
        f" Get the file 'model.safetensors' of {repository!r} on the Hugging Face hub and pass it: "
        "weights='model.safetensors'."
    )
    assert "\n" not in message
    assert not hub.exists()


def test_offline_the_cache_of_the_hub_will_do(hub: Path, tmp_path: Path) -> None:
    """As the hub has it: made for 160 pixels, with a classifier."""
    whole = timm.create_model("test_vit", num_classes=10, img_size=160)
    save_file(whole.state_dict(), tmp_path / "x.safetensors")
    cached(hub, "timm/test_vit.r160_in1k", tmp_path / "x.safetensors")
    for name in ("test_vit.r160_in1k", "test_vit"):  # the second has these weights too
        backbone = load_backbone(name, image_size=160)
        images = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = whole.eval().forward_features(images)[:, 0]  # type: ignore[operator]
            torch.testing.assert_close(backbone(images), expected, rtol=1e-4, atol=1e-5)
        assert backbone.source.startswith("model.safetensors (sha256 ")
    assert features(load_backbone("test_vit", image_size=64)).shape == (3, 64)


def test_a_damaged_file_in_the_cache_is_named(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"<html>")
    cached(hub, "timm/test_vit.r160_in1k", tmp_path / "x")
    with pytest.raises(InputError, match=rf"^The file of weights '{hub}/.*/model\.safetensors' must be safetensors"):
        load_backbone("test_vit")


@pytest.mark.usefixtures("hub", "small")
def test_a_model_the_hub_does_not_have() -> None:
    name = "vit_small_patch16_18x2_224"
    expected = rf"^There are no weights of {name} on the hub\. Pass a file, weights=FILE, or weights='random'\.$"
    with pytest.raises(InputError, match=expected):
        load_backbone(name, image_size=32)


@pytest.mark.parametrize(
    "error", [ConnectionError("reset"), TimeoutError("slow"), RuntimeError("xet"), Exception("httpx.ReadTimeout")]
)
def test_whatever_a_network_does_is_told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The errors of httpx and of Xet are no OSErrors."""

    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(InputError, match=rf"cannot be fetched: {error} Get the file 'model\.safetensors' of 'timm/"):
        load_backbone("test_vit")


def test_the_environment_forbids_fetching(tmp_path: Path) -> None:
    """In a process of its own: the variables are read when the client of the hub is imported."""
    save_file(timm.create_model("test_vit", num_classes=10, img_size=160).state_dict(), tmp_path / "x.safetensors")
    cached(tmp_path / "full", "timm/test_vit.r160_in1k", tmp_path / "x.safetensors")
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): print('went out'); sys.exit(3)\n"
        "socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse\n"
        "from sortal.backbone import load_backbone\n"
        "from sortal.errors import InputError\n"
        "try:\n    print(load_backbone('test_vit', image_size=32).source.split()[0])\n"
        "    load_backbone('test_resnet', image_size=32)\n"
        "except InputError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "full")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "model.safetensors"
    assert lines[1].startswith("The weights of test_resnet are not on this machine and cannot be fetched: ")
    assert lines[1].endswith("pass it: weights='model.safetensors'.")
    assert len(lines) == 2


# Saved and loaded


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "size", "trained"),
    [
        ("test_vit", 32, 2),
        ("test_vit.r160_in1k", 64, 0),
        ("test_resnet", 40, 1),
        ("convnet", 12, 3),
        ("convnet", 16, 1),
        ("vit_small_patch16_dinov3", 32, 1),
        ("vit_small_patch14_reg4_dinov2", 28, 2),
        ("vit_base_patch32_clip_224.openai", 32, 1),
    ],
)
def test_what_was_saved_comes_back(name: str, size: int, trained: int, tmp_path: Path) -> None:
    made = random(name, size, trained=trained, seed=5)
    with torch.no_grad():
        for parameter in made.parameters():  # as after training
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)), alpha=0.05)
    made.save(tmp_path / "run.1" / "best")
    backbone = load_backbone(str(tmp_path / "run.1" / "best.json"))
    assert type(backbone) is type(made)
    assert backbone.spec == made.spec
    assert backbone.trained == trained
    assert torch.equal(features(backbone), features(made))
    assert backbone.fingerprint() == made.fingerprint()
    wanted = {key: value.requires_grad for key, value in made.named_parameters()}
    assert {key: value.requires_grad for key, value in backbone.named_parameters()} == wanted
    assert load_backbone(str(tmp_path / "run.1" / "best.json"), trained=2).trained == 2


def test_all_of_the_spec_comes_back(tmp_path: Path) -> None:
    made = random()
    made.spec = replace(made.spec, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), shorter_side=50)
    made.save(tmp_path / "x")
    assert load_backbone(str(tmp_path / "x.json")).spec == made.spec


def test_saving_again_replaces_what_was_there(tmp_path: Path) -> None:
    random(seed=1).save(tmp_path / "x")
    other = random(seed=2)
    other.save(tmp_path / "x")
    assert load_backbone(str(tmp_path / "x.json")).fingerprint() == other.fingerprint()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.safetensors"]


def test_a_saved_backbone_moves_as_two_files(tmp_path: Path) -> None:
    made = random()
    made.save(tmp_path / "x")
    (tmp_path / "other").mkdir()
    for ending in (".json", ".safetensors"):
        (tmp_path / f"x{ending}").rename(tmp_path / "other" / f"y{ending}")
    assert load_backbone(str(tmp_path / "other" / "y.json")).fingerprint() == made.fingerprint()


def test_saved_weights_of_another_backbone_are_refused(tmp_path: Path) -> None:
    random(seed=1).save(tmp_path / "x")
    random(seed=2).save(tmp_path / "y")
    shutil.copyfile(tmp_path / "y.safetensors", tmp_path / "x.safetensors")
    expected = r"^The weights in '.*x\.safetensors' are not those '.*x\.json' was written for\. Save them again\.$"
    with pytest.raises(InputError, match=expected):
        load_backbone(str(tmp_path / "x.json"))


def test_a_bit_that_fell_over_is_noticed(tmp_path: Path) -> None:
    random().save(tmp_path / "x")
    content = bytearray((tmp_path / "x.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"are not those .* was written for"):
        load_backbone(str(tmp_path / "x.json"))


def test_half_of_a_saved_backbone(tmp_path: Path) -> None:
    random().save(tmp_path / "x")
    (tmp_path / "x.safetensors").rename(tmp_path / "hidden")
    with pytest.raises(InputError, match=r"^The file of weights '.*x\.safetensors' is not there\. Check the path\.$"):
        load_backbone(str(tmp_path / "x.json"))
    (tmp_path / "hidden").rename(tmp_path / "x.safetensors")
    (tmp_path / "x.json").unlink()
    with pytest.raises(InputError, match=r"^The saved backbone '.*x\.json' is not there\. Check the path\.$"):
        load_backbone(str(tmp_path / "x.json"))
    # The weights can still be had by name.
    assert load_backbone("test_vit", weights=tmp_path / "x.safetensors", image_size=32).spec == random().spec


def test_a_folder_that_is_called_json(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(InputError, match=r"The saved backbone .* is not there"):
        load_backbone(str(tmp_path / "x.json"))


WHOLE = {"format": FORMAT, "name": "test_vit", "image_size": 32, "shorter_side": 37, "width": 64, "trained": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"format": "something else", "name": "test_vit"}',
        json.dumps({"format": FORMAT}),
        json.dumps(WHOLE),  # no mean, no digest
        json.dumps(WHOLE)[:40],
        "\udcff",
    ],
)
def test_a_json_of_something_else(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
    save_file(random().net.state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(InputError) as caught:
        load_backbone(str(tmp_path / "x.json"))
    assert str(caught.value) == f"{str(tmp_path / 'x.json')!r} must be the .json of a saved backbone, which it is not."


def test_a_json_that_names_itself_is_no_way_down(tmp_path: Path) -> None:
    random().save(tmp_path / "x")
    about = json.loads((tmp_path / "x.json").read_text())
    (tmp_path / "x.json").write_text(json.dumps(about | {"name": str(tmp_path / "x.json")}))
    with pytest.raises(InputError, match=r"must be the \.json of a saved backbone"):
        load_backbone(str(tmp_path / "x.json"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "test_resnet"}, "must be those of test_resnet"),
        ({"name": "nobody_knows"}, "a model of timm, got 'nobody_knows'"),
        ({"image_size": 33}, "must be a multiple of 16"),
        ({"image_size": "32"}, "image_size must be"),
        ({"trained": 7}, "must be from 0 to 6"),
        ({"trained": "1"}, "must be from 0 to 6"),
    ],
)
def test_a_json_that_was_edited(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    random().save(tmp_path / "x")
    about = json.loads((tmp_path / "x.json").read_text())
    (tmp_path / "x.json").write_text(json.dumps(about | change))
    with pytest.raises(InputError, match=words):
        load_backbone(str(tmp_path / "x.json"))


def test_a_saved_backbone_has_its_own_weights_and_size(tmp_path: Path) -> None:
    random().save(tmp_path / "x")
    name = str(tmp_path / "x.json")
    for options in ({"weights": "random"}, {"weights": tmp_path / "x.safetensors"}, {"image_size": 64}):
        with pytest.raises(InputError, match=r"x\.json' has its own weights and image_size; give neither beside it\.$"):
            load_backbone(name, **options)


@pytest.mark.usefixtures("small")
def test_saved_weights_by_name_keep_their_mean_and_deviation(tmp_path: Path) -> None:
    """Whatever name of their architecture is given."""
    made = random("vit_tiny_patch16_224.augreg_in21k")
    made.spec = replace(made.spec, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    made.save(tmp_path / "x")
    for name in ("vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_224"):
        backbone = load_backbone(name, weights=tmp_path / "x.safetensors", image_size=64)
        assert (backbone.spec.mean, backbone.spec.std) == (made.spec.mean, made.spec.std)
        assert (backbone.spec.name, backbone.spec.image_size) == (name, 64)


def test_a_json_beside_weights_it_was_not_written_for_is_left_alone(tmp_path: Path) -> None:
    made = random(seed=1)
    made.spec = replace(made.spec, mean=(0.1, 0.2, 0.3))
    made.save(tmp_path / "x")
    save_file(random(seed=2).net.state_dict(), tmp_path / "x.safetensors")
    backbone = load_backbone("test_vit", weights=tmp_path / "x.safetensors", image_size=32)
    assert backbone.spec.mean == (0.5, 0.5, 0.5)
    for text in ("{}", "no json", json.dumps({"format": FORMAT, "name": "test_vit"})):
        (tmp_path / "x.json").write_text(text)
        assert load_backbone("test_vit", weights=tmp_path / "x.safetensors", image_size=32).spec == backbone.spec


def test_fingerprints_tell_networks_apart(tmp_path: Path) -> None:
    made = random()
    assert random(trained=3).fingerprint() == made.fingerprint()  # what is trained does not matter
    assert random(size=48).fingerprint() != made.fingerprint()
    assert random("test_vit.r160_in1k").fingerprint() != made.fingerprint()  # another name, maybe another mean
    made.save(tmp_path / "saved")
    backwards = dict(reversed(load_file(tmp_path / "saved.safetensors").items()))
    torch.save(backwards, tmp_path / "x.pth")  # another order, another kind of file
    assert load_backbone("test_vit", weights=tmp_path / "x.pth", image_size=32).fingerprint() == made.fingerprint()
    backwards["norm.bias"][0] += 1e-6
    torch.save(backwards, tmp_path / "x.pth")
    assert load_backbone("test_vit", weights=tmp_path / "x.pth", image_size=32).fingerprint() != made.fingerprint()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_fingerprint_does_not_depend_on_the_device() -> None:
    made = random()
    before = made.fingerprint()
    assert made.to("cuda").fingerprint() == before


# A real network


@pytest.mark.skipif(not REAL.is_file(), reason="the weights of a real ViT are not here")
def test_a_real_vit(tmp_path: Path) -> None:
    """float16, made for 37 × 37 patches."""
    raw = load_file(REAL)
    assert raw["pos_embed"].shape == (1, 1 + 37 * 37, 384)
    backbone = load_backbone("vit_small_patch14_dinov2", weights=REAL)
    assert isinstance(backbone, VisionTransformer)
    assert backbone.source.startswith("vit_small_patch14_dinov2.safetensors (sha256 ")
    assert len(backbone.source.split()[-1]) == 65
    assert backbone.spec.image_size == 224
    assert backbone.grid == (16, 16)
    own = backbone.net.state_dict()
    assert own["pos_embed"].shape == (1, 257, 384)
    assert torch.equal(own["pos_embed"][:, 0], raw["pos_embed"][:, 0].float())
    kept = [key for key in own if key != "pos_embed"]
    assert all(torch.equal(own[key], raw[key].float()) for key in kept)
    found = features(backbone)
    assert found.shape == (3, 384)
    assert found.isfinite().all()
    net: Any = backbone.net
    pixels = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = backbone.normalise(pixels)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), net.forward_features(images)[:, 0], rtol=1e-3, atol=1e-3)
        maps = backbone.attention(images)
    assert maps.shape == (1, 6, 16, 16)
    assert float(maps.sum(dim=(2, 3)).max()) < 1
    backbone.save(tmp_path / "x")
    assert torch.equal(features(load_backbone(str(tmp_path / "x.json"))), found)
