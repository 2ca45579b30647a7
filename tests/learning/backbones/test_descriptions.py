"""Networks that files describe: in folders, in the hub's cache, and in open_clip."""

import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from support import tiny_encoders

from sortal.errors import InputError
from sortal.learning.backbones.backbone import digest
from sortal.learning.backbones.descriptions import cached_weights, check_tag, find_published, is_published, weights_of
from sortal.learning.backbones.names import check_backbone
from sortal.learning.backbones.registry import cached_weights as cached_by_name
from sortal.learning.backbones.registry import load_backbone

pytestmark = pytest.mark.usefixtures("no_network")
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set HF_HUB_OFFLINE=1 and an empty cache of the hub."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put_on(hub: Path, family: str, repository: str) -> None:
    home = hub / f"models--{repository.replace('/', '--')}"
    tiny_encoders.write(home / "snapshots" / REVISION, family)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(REVISION)


@pytest.mark.parametrize(("family", "library"), [("convnext", "timm"), ("open_clip", "open_clip")])
def test_a_folder_and_the_cache_of_the_hub_give_the_same_network(
    family: str, library: str, hub: Path, tmp_path: Path
) -> None:
    folder = tiny_encoders.write(tmp_path / "some" / "net", family)
    put_on(hub, family, "someone/net")
    known = [folder, f"{folder}/", "hf-hub:someone/net"] + ([f"open_clip:{folder}"] if library == "open_clip" else [])
    made = [load_backbone(name) for name in known]
    for name, backbone in zip(known, made, strict=True):
        check_backbone(name, None)
        assert is_published(name)
        assert backbone.spec.name == name
        assert json.loads(backbone.spec.architecture)["library"] == library
        assert digest(backbone.net.state_dict()) == digest(made[0].net.state_dict())
        assert cached_by_name(name) is not None


def test_a_saved_one_needs_neither_the_folder_nor_the_hub(hub: Path, tmp_path: Path) -> None:
    put_on(hub, "swin", "someone/net")
    made = load_backbone("hf-hub:someone/net")
    made.save(tmp_path / "model")
    hub.rename(tmp_path / "gone")
    backbone = load_backbone(str(tmp_path / "model.json"))
    assert backbone.spec == made.spec
    assert backbone.fingerprint() == made.fingerprint()
    with pytest.raises(InputError, match=r"^The description of hf-hub:someone/net is not on this machine and cannot"):
        load_backbone("hf-hub:someone/net")


def test_other_weights_can_be_given(tmp_path: Path) -> None:
    folder = tiny_encoders.write(tmp_path / "a" / "net", "convnext")
    other = tiny_encoders.write(tmp_path / "b" / "net", "convnext", seed=1)
    weights = Path(other) / "model.safetensors"
    assert load_backbone(folder, weights=weights).fingerprint() != load_backbone(folder).fingerprint()
    (Path(folder) / "model.safetensors").unlink()
    for look in (load_backbone, lambda name: check_backbone(name, None)):
        with pytest.raises(InputError, match=r"must hold the weights of its network, one of 'model\.safetensors', 'p"):
            look(folder)
    assert cached_weights(find_published(folder)) is None
    check_backbone(folder, weights)
    swin = tiny_encoders.write(tmp_path / "c" / "net", "swin")
    with pytest.raises(InputError, match=r"must match .*/a/net exactly: \d+ missing: .* Name the architecture"):
        load_backbone(folder, weights=Path(swin) / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf-hub:net", r"A backbone on the hub must be hf-hub:OWNER/NAME, got 'hf-hub:net'\."),
        ("hf-hub:a/b@c", r"A backbone on the hub must be hf-hub:OWNER/NAME, got "),
        (
            "hf-hub:a/b",
            r"The description of hf-hub:a/b is not on this machine .*: HF_HUB_OFFLINE is set\. Download all",
        ),
        ("open_clip:ViT-B-61", r"open_clip must have the model, but it has no 'ViT-B-61'\. Did you mean 'ViT-B-16'"),
        (
            "open_clip:RN50",
            r"The hub has no weights of open_clip:RN50\. Pass a file \(.*, or name weights that there are",
        ),
        ("open_clip:RN50/x", r"The weights of open_clip's RN50 must be one of 'openai', .*, got 'x'\."),
        ("open_clip:RN50/openai", r"The weights of open_clip:RN50/openai are not on this machine and cannot be downl"),
        ("./empty", r"The folder 'empty' must describe a network: 'config\.json', 'open_clip_config\.json' of a model"),
        ("./broken", r"'broken/config\.json' must be the config of a model: .* Download it again\."),
        ("./other", r"The folder 'other' must describe a network"),
    ],
)
def test_mistakes_are_named(name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, content in (("empty", None), ("broken", "{"), ("other", '{"model_type": "vit"}')):
        Path(folder).mkdir()
        if content is not None:
            Path(folder, "config.json").write_text(content)
    with pytest.raises(InputError, match=f"^{message}"):
        check_backbone(name, None)


def test_weights_of_open_clip_are_found_on_the_hub(hub: Path) -> None:
    found = find_published("open_clip:ViT-B-16/laion2b_s34b_b88k")
    assert found.place == "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"
    assert found.config["preprocess_cfg"]["mean"] == (0.48145466, 0.4578275, 0.40821073)
    home = hub / "models--laion--CLIP-ViT-B-16-laion2B-s34B-b88K"
    file = home / "snapshots" / REVISION / "open_clip_pytorch_model.bin"
    file.parent.mkdir(parents=True)
    file.touch()
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(REVISION)
    assert weights_of("open_clip:ViT-B-16/laion2b_s34b_b88k", found) == file


def test_a_name_of_open_clip_without_a_tag_has_what_all_its_weights_agree_on() -> None:
    pytest.importorskip("open_clip")
    stated = find_published("open_clip:ViT-B-16-SigLIP").config["preprocess_cfg"]
    assert (stated["mean"], stated["std"]) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    for name in ("open_clip:ViT-B-16-SigLIP", "open_clip:ViT-B-16/openai", "convnext_tiny"):
        check_tag(name)
    with pytest.raises(InputError, match=r"must include a tag, NAME/TAG, .* one of 'openai', "):
        check_tag("open_clip:ViT-B-16")


def test_a_model_of_another_library_is_said_to_be_one(hub: Path) -> None:
    put_on(hub, "convnext", "someone/bert")
    [config] = hub.rglob("config.json")
    config.write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match=r"must be a model of timm or open_clip, but its config\.json is of neither"):
        find_published("hf-hub:someone/bert")
