"""Names of backbones: what is checked without torch and timm agrees with timm, and is quick."""

import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import timm
from huggingface_hub import constants

from sortal.errors import InputError
from sortal.learning.backbones import names
from sortal.learning.backbones.names import check_backbone


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def test_every_model_of_timm_passes() -> None:
    known = [*timm.list_models(), *timm.list_pretrained(), *timm.models._registry._model_entrypoints]
    for name in known[::7]:
        check_backbone(name, "random")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit_smal_patch14_dinov2", " Did you mean 'vit_small_patch14_dinov2', "),
        ("patch15", ""),
        ("nonsense", ""),
        ("vit_base_patch16_224.nonsense", " Did you mean 'vit_base_patch16_224.dino', "),
        ("no/such/file", ""),
        ("[", ""),
    ],
)
def test_another_name_is_refused_with_names_like_it(name: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        check_backbone(name, None)
    assert str(caught.value).startswith(f"The backbone must be 'convnet' or a timm model, got {name!r}.{hint}")


def test_repositories_on_the_hub_are_those_of_timm() -> None:
    source, found = names._source_of_timm(), 0
    for name in timm.list_pretrained("*vit_*")[::5]:
        repository = names._repository(name, source)
        cfg = timm.get_pretrained_cfg(name)
        assert cfg is not None
        assert repository in (None, cfg.hf_hub_id)
        found += repository is not None
    assert found > 20
    assert names._repository("vit_base_patch16_224.dino", source) == "timm/vit_base_patch16_224.dino"


def test_the_hub_is_asked_only_for_weights_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, **_: asked.append(url))
    file, name = tmp_path / "weights.pth", "vit_base_patch16_224.dino"
    file.touch()
    check_backbone(name, file)
    check_backbone(name, "random")
    check_backbone("convnet", None)
    assert not asked
    check_backbone(name, None)
    assert [url.endswith("timm/vit_base_patch16_224.dino/resolve/main/model.safetensors") for url in asked] == [True]


REFUSALS = (
    ("'images', backbone='vit_smal'", "The backbone must be 'convnet' or a timm model, got 'vit_smal'."),
    ("'images', weights='gone.pth'", "The weights file 'gone.pth' does not exist. Check the path."),
    ("'images', weights='images'", "The weights file 'images' is a folder. Check the path."),
    ("'images', backbone='gone.json'", "The saved backbone 'gone.json' does not exist. Check the path."),
    ("'images', backbone='saved', weights='a.pth'", "The saved backbone 'saved.json' has its own weights"),
    ("'images'", "The weights of vit_small_patch14_dinov2.lvd142m are not on this machine and cannot be down"),
    ("'images', '--dry-run'", "The weights of vit_small_patch14_dinov2.lvd142m are not on this machine"),
    ("'gone'", "The image folder '"),
)


def test_mistakes_are_found_before_torch_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for place in ("a/1.png", "b/2.png", "unlabelled/3.png"):
        (tmp_path / "images" / place).parent.mkdir(parents=True)
        (tmp_path / "images" / place).touch()
    (tmp_path / "saved.json").touch()
    code = ["import sys", "from sortal.cli.app import main"]
    for words, _ in REFUSALS:
        arguments = words.replace("backbone=", "'--backbone', ").replace("weights=", "'--weights', ")
        code.append(f"print(main(['discover', {arguments}, '--out', 'run']), 'torch' in sys.modules)")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines() == ["2 False"] * len(REFUSALS)
    lines = done.stderr.splitlines()
    assert [line.startswith(f"sortal: error: {start}") for line, (_, start) in zip(lines, REFUSALS, strict=True)] == [
        True
    ] * len(REFUSALS), done.stderr
    assert not (tmp_path / "run").exists()
