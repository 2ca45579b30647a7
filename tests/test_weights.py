"""Weights from files: who wrote them, what stands beside them, what is wrong with them; nothing in them is run."""

import argparse
import io
import os
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from sortal.weights import fill, read, sha256

State = dict[str, Tensor]
TINY = {"depth": 2, "embed_dim": 8, "num_heads": 2, "mlp_ratio": 2}


def vit(name: str = "vit_small_patch16_224", size: int = 48, **changes: Any) -> nn.Module:
    """A ViT of two blocks of width 8; every call gives other weights."""
    return timm.create_model(name, num_classes=0, global_pool="token", img_size=size, **(TINY | changes))


def load(net: nn.Module, path: Path, name: str = "vit") -> None:
    fill(net, read(path), name=name, origin=repr(str(path)))


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
def the_list_of_harmless_classes_stays_as_it_was() -> Iterator[None]:
    before = torch.serialization.get_safe_globals()
    yield
    assert set(map(id, torch.serialization.get_safe_globals())) == set(map(id, before))


# Kinds of files


def test_safetensors_are_taken_as_they_are(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "any.name")  # known by its content
    assert read(tmp_path / "any.name").keys() == state.keys()
    net = vit()
    assert not same(net, state)
    load(net, tmp_path / "any.name")
    assert same(net, state)


@pytest.mark.parametrize("zipped", [True, False])
def test_checkpoints_of_torch_are_taken_as_they_are(zipped: bool, tmp_path: Path, state: State) -> None:
    path = saved(tmp_path / "model.pth", state, _use_new_zipfile_serialization=zipped)
    net = vit()
    load(net, path)
    assert same(net, state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("kind", ["vit_small_patch16_224", "test_resnet"])
def test_weights_of_other_precision_become_float32(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    make = vit if kind.startswith("vit") else lambda name: timm.create_model(name, num_classes=0)
    low = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in make(kind).state_dict().items()
    }
    save_file(low, tmp_path / "low.safetensors")
    net = make(kind)
    load(net, tmp_path / "low.safetensors")
    own = net.state_dict()
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    assert all(torch.equal(own[key], low[key].float()) for key in own if own[key].is_floating_point())


def test_a_file_is_known_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256(tmp_path / "x") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# What stands around weights in the files of others


def around(state: State, prefix: str, **beside: Tensor) -> State:
    return {f"{prefix}{key}": value for key, value in state.items()} | beside


def head() -> State:
    """DINO's projection head."""
    shapes = {"mlp.0.weight": (4, 8), "mlp.0.bias": (4,), "last_layer.weight_g": (9, 1), "last_layer.weight_v": (9, 4)}
    return {f"head.{key}": torch.randn(shape) for key, shape in shapes.items()}


def full_dino(state: State, learning_rate: Any = 0.1) -> dict[str, Any]:
    """What main_dino.py writes: networks, optimiser, arguments and loss. Its learning rates are numbers of NumPy."""
    other = {key: value + 1 for key, value in state.items()}
    return {
        "student": around(other | head(), "module.") | around(other, "module.backbone."),
        "teacher": around(state, "backbone.") | head(),
        "optimizer": {
            "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(8)}},
            "param_groups": [{"lr": learning_rate, "weight_decay": learning_rate, "params": [0]}],
        },
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", local_crops_scale=(0.05, 0.4), use_fp16=True, output_dir="/x"),
        "dino_loss": {"center": torch.zeros(1, 9)},
        "fp16_scaler": {"scale": 65536.0},
    }


def test_of_a_full_dino_checkpoint_the_teacher_is_taken(tmp_path: Path, state: State) -> None:
    net = vit()
    load(net, saved(tmp_path / "checkpoint.pth", full_dino(state)))
    assert same(net, state)


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True)])
def test_numbers_of_numpy_in_a_checkpoint_do_no_harm(number: Any, tmp_path: Path, state: State) -> None:
    net = vit()
    load(net, saved(tmp_path / "checkpoint.pth", full_dino(state, number)))
    assert same(net, state)


def test_numbers_of_numpy_before_version_2_do_no_harm(tmp_path: Path, state: State) -> None:
    """DINO's own files are of 2021; NumPy's module had another name then."""
    path = saved(tmp_path / "old.pth", full_dino(state, np.float64(0.1)), _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    assert b"cnumpy._core.multiarray\nscalar" in content
    path.write_bytes(content.replace(b"cnumpy._core.multiarray\nscalar", b"cnumpy.core.multiarray\nscalar"))
    net = vit()
    load(net, path)
    assert same(net, state)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "backbone.", "module.backbone.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."]
)
@pytest.mark.parametrize("place", [None, "teacher", "student", "model", "state_dict", "model_ema", "module"])
def test_weights_are_found_where_programs_put_them(
    place: str | None, prefix: str, tmp_path: Path, state: State
) -> None:
    content: dict[str, Any] = around(state, prefix)
    if place is not None:
        content = {place: content, "epoch": 3, "optimizer": {"state": {}, "param_groups": []}}
    net = vit()
    load(net, saved(tmp_path / "x.pth", content))
    assert same(net, state)


def test_averaged_weights_are_better_than_those_just_trained(tmp_path: Path, state: State) -> None:
    other = {key: value + 1 for key, value in state.items()}
    for better, worse in (("teacher", "student"), ("model_ema", "model"), ("teacher", "model"), ("model", "student")):
        net = vit()
        load(net, saved(tmp_path / "x.pth", {worse: other, better: state}))
        assert same(net, state), (better, worse)


def test_places_may_be_nested(tmp_path: Path, state: State) -> None:
    net = vit()
    load(net, saved(tmp_path / "x.pth", {"state_dict": {"model": around(state, "module.")}}))
    assert same(net, state)


def test_a_classifier_is_no_part_of_a_backbone(tmp_path: Path, state: State) -> None:
    beside = {"head.weight": torch.zeros(10, 8), "head.bias": torch.zeros(10), "head_dist.weight": torch.zeros(10, 8)}
    net = vit()
    load(net, saved(tmp_path / "x.pth", state | beside))
    assert same(net, state)


def raw_dinov2(state: State, *, registers: bool, chunked: bool) -> State:
    """timm's weights as DINOv2 has them: the class token has a position, blocks may be in groups of two."""
    raw = {key: value.clone() for key, value in state.items()}
    raw["mask_token"] = torch.randn(1, 8)
    if registers:
        raw["register_tokens"] = raw.pop("reg_token")
        place = torch.randn(1, 1, 8)
        raw["cls_token"] = raw["cls_token"] - place
        raw["pos_embed"] = torch.cat([place, raw["pos_embed"]], dim=1)
    if chunked:
        raw = {re.sub(r"^blocks\.(\d)\.", lambda m: f"blocks.{int(m[1]) // 2}.{m[1]}.", key): raw[key] for key in raw}
    return raw


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_raw_weights_of_dinov2(registers: bool, chunked: bool, trained: bool, tmp_path: Path) -> None:
    name = "vit_small_patch14_reg4_dinov2" if registers else "vit_small_patch14_dinov2"
    made = vit(name, 42, depth=4).state_dict()
    raw: dict[str, Any] = raw_dinov2(made, registers=registers, chunked=chunked)
    if chunked:
        assert "blocks.1.3.norm1.weight" in raw
    if trained:  # a checkpoint of a training run of it
        beside = {"dino_head.mlp.0.weight": torch.zeros(2, 8), "ibot_head.last_layer.weight_g": torch.zeros(2, 1)}
        raw = {"teacher": around(raw, "backbone.", **beside)}
    net = vit(name, 42, depth=4)
    load(net, saved(tmp_path / "x.pth", raw))
    own = net.state_dict()
    for key, value in made.items():
        torch.testing.assert_close(own[key], value, rtol=0, atol=1e-6 if key == "cls_token" else 0, msg=key)


@pytest.mark.parametrize("biases", [False, True])
def test_raw_weights_of_dinov3(biases: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
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
    net = vit(name)
    load(net, saved(tmp_path / "x.pth", raw))
    assert same(net, made)
    assert capfd.readouterr() == ("", "")  # timm prints what it leaves out


def test_raw_weights_of_mae_with_its_decoder(tmp_path: Path, state: State) -> None:
    decoder = {
        "mask_token": torch.zeros(1, 1, 4),
        "decoder_pos_embed": torch.zeros(1, 10, 4),
        "decoder_embed.weight": torch.zeros(4, 8),
        "decoder_blocks.0.attn.qkv.weight": torch.zeros(12, 4),
        "decoder_norm.bias": torch.zeros(4),
        "decoder_pred.weight": torch.zeros(768, 4),
    }
    net = vit()
    load(net, saved(tmp_path / "mae.pth", {"model": state | decoder}))
    assert same(net, state)


def test_raw_weights_of_clip(tmp_path: Path) -> None:
    """OpenAI's names, the text tower beside them, in float16."""
    made = {key: value.half().float() for key, value in vit("vit_base_patch16_clip_224").state_dict().items()}
    raw = {
        "visual.class_embedding": made["cls_token"][0, 0],
        "visual.positional_embedding": made["pos_embed"][0],
        "visual.conv1.weight": made["patch_embed.proj.weight"],
        "visual.proj": torch.zeros(8, 4),
        "token_embedding.weight": torch.zeros(5, 4),
        "logit_scale": torch.tensor(1.0),
    }
    for key, value in made.items():
        if key.startswith("norm"):
            raw[key.replace("norm_pre", "visual.ln_pre").replace("norm.", "visual.ln_post.")] = value
        elif key.startswith("blocks"):
            key = key.replace("blocks", "visual.transformer.resblocks").replace("attn.qkv.", "attn.in_proj_")
            key = key.replace("attn.proj.", "attn.out_proj.").replace("norm", "ln_")
            raw[key.replace("mlp.fc1", "mlp.c_fc").replace("mlp.fc2", "mlp.c_proj")] = value
    net = vit("vit_base_patch16_clip_224")
    load(net, saved(tmp_path / "clip.pth", {key: value.half() for key, value in raw.items()}))
    assert same(net, made)


def test_raw_weights_of_a_resnet_with_its_classifier(tmp_path: Path) -> None:
    made = timm.create_model("test_resnet", num_classes=10).state_dict()
    old = {key: value for key, value in made.items() if not key.endswith("num_batches_tracked")}  # torch before 0.4.1
    for number, content in enumerate(({"state_dict": around(made, "module.")}, old)):
        net = timm.create_model("test_resnet", num_classes=0)
        load(net, saved(tmp_path / f"{number}.pth", content))
        own = net.state_dict()
        assert own.keys() == made.keys() - {"fc.weight", "fc.bias"}
        assert all(torch.equal(own[key], made[key]) for key in own)


# Position embeddings


@pytest.mark.parametrize(("before", "after"), [(96, 48), (48, 96), (48, 64), (112, 48)])
def test_position_embeddings_are_resampled_to_the_size_of_the_images(before: int, after: int, tmp_path: Path) -> None:
    """The grid bicubically, with antialiasing; the class token's own stays as it is."""
    made = vit(size=before).state_dict()
    positions = made["pos_embed"]
    old, new = before // 16, after // 16
    grid = positions[:, 1:].reshape(1, old, old, 8).permute(0, 3, 1, 2)
    expected = nnf.interpolate(grid, size=(new, new), mode="bicubic", antialias=True, align_corners=False)
    save_file(made, tmp_path / "x.safetensors")
    net = vit(size=after)
    load(net, tmp_path / "x.safetensors")
    own = net.state_dict()
    assert torch.equal(own["pos_embed"][:, :1], positions[:, :1])
    torch.testing.assert_close(own["pos_embed"][:, 1:], expected.permute(0, 2, 3, 1).reshape(1, -1, 8))
    assert all(torch.equal(own[key], made[key]) for key in own if key != "pos_embed")


def test_registers_have_no_place_in_the_grid(tmp_path: Path) -> None:
    """As DINOv2's own files are: made for 37 × 37 patches, the class token's position among them."""
    name = "vit_small_patch14_reg4_dinov2"
    made = vit(name, size=518).state_dict()
    net = vit(name, size=42)
    load(net, saved(tmp_path / "x.pth", raw_dinov2(made, registers=True, chunked=False)))
    grid = made["pos_embed"].reshape(1, 37, 37, 8).permute(0, 3, 1, 2)
    expected = nnf.interpolate(grid, size=(3, 3), mode="bicubic", antialias=True).permute(0, 2, 3, 1).reshape(1, 9, 8)
    torch.testing.assert_close(net.state_dict()["pos_embed"], expected)
    assert torch.equal(net.state_dict()["reg_token"], made["reg_token"])


def test_a_constant_grid_stays_constant(tmp_path: Path) -> None:
    made = vit(size=96).state_dict()
    made["pos_embed"][:, 1:] = torch.arange(8.0)
    save_file(made, tmp_path / "x.safetensors")
    net = vit(size=64)
    load(net, tmp_path / "x.safetensors")
    torch.testing.assert_close(net.state_dict()["pos_embed"][0, 1:], torch.arange(8.0).expand(16, 8))


# Weights that do not fit


def change(key: str, value: Tensor | None) -> Callable[[State], None]:
    def apply(state: State) -> None:
        state.pop(key)
        if value is not None:
            state[key] = value

    return apply


def without(prefix: str) -> Callable[[State], None]:
    def apply(state: State) -> None:
        for key in [key for key in state if key.startswith(prefix)]:
            state.pop(key)

    return apply


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (change("norm.weight", None), ["whole and nothing else; 1 missing: 'norm.weight'. Choose the architecture"]),
        (lambda s: s.update({"extra.weight": torch.zeros(1)}), ["1 unexpected: 'extra.weight'. Choose"]),
        (lambda s: s.update({"norm.x": s.pop("norm.bias")}), ["1 missing: 'norm.bias'; 1 unexpected: 'norm.x'."]),
        (without("blocks.1."), ["12 missing: 'blocks.1.attn.proj.bias', 'blocks.1.", " and 9 more. Choose"]),
        (change("norm.weight", torch.zeros(9)), ["'norm.weight' must be (8,), got (9,). Choose the architecture"]),
        (change("norm.weight", torch.zeros(8, 1)), ["'norm.weight' must be (8,), got (8, 1)."]),
        (change("cls_token", torch.zeros(1, 1, 9)), ["'cls_token' must be (1, 1, 8), got (1, 1, 9)."]),
        (change("pos_embed", torch.zeros(1, 17, 9)), ["'pos_embed' must be (1, 10, 8), got (1, 10, 9)."]),
        (change("pos_embed", torch.zeros(1, 12, 8)), ["'pos_embed' must be (1, 10, 8), got (1, 12, 8)."]),  # no square
        (change("pos_embed", torch.zeros(3)), ["'pos_embed' must be (1, 10, 8), got (3,)."]),
        (change("patch_embed.proj.weight", torch.zeros(8, 5)), ["'patch_embed.proj.weight' must be (8, 3, 16, 16)"]),
        (change("norm.weight", torch.full((8,), torch.nan)), ["must be finite numbers; 'norm.weight' is not."]),
        (change("norm.bias", torch.tensor([1.0] * 7 + [-torch.inf])), ["must be finite numbers; 'norm.bias' is not."]),
        (change("norm.bias", torch.full((8,), 1e300, dtype=torch.float64)), ["finite numbers; 'norm.bias' is not."]),
        (change("norm.weight", torch.ones(8, dtype=torch.int8)), ["'norm.weight' is torch.int8"]),  # quantised
        (change("norm.weight", torch.ones(8, dtype=torch.complex64)), ["'norm.weight' is torch.complex64"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(
    how: Callable[[State], object], words: list[str], tmp_path: Path, state: State
) -> None:
    how(state)
    path = tmp_path / "some.safetensors"
    save_file(state, path)
    net = vit()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(InputError) as caught:
        load(net, path, "vit_small_patch16_224")
    message = str(caught.value)
    assert message.startswith(f"The weights of {str(path)!r} must be ")
    assert "vit_small_patch16_224" in message or "'norm." in message
    for part in words:
        assert part in message
    assert same(net, before)  # nothing was loaded in part


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ("vit_small_patch16_224", "vit_small_patch14_dinov2", "missing: 'blocks.0.ls1.gamma'"),
        ("vit_small_patch14_dinov2", "vit_small_patch16_224", "unexpected: 'blocks.0.ls1.gamma'"),
        ("vit_small_patch16_224", "vit_small_patch16_dinov3", "missing: 'blocks.0.gamma_1'"),
        ("vit_small_patch16_dinov3", "vit_small_patch16_224", "missing: 'blocks.0.attn.qkv.bias'"),
        ("vit_small_patch14_reg4_dinov2", "vit_small_patch14_dinov2", "unexpected: 'reg_token'"),
        ("vit_base_patch16_clip_224", "vit_small_patch16_224", "1 missing: 'patch_embed.proj.bias'; 2 unexpected"),
    ],
)
def test_weights_of_another_architecture(theirs: str, ours: str, words: str, tmp_path: Path) -> None:
    size = {"vit_small_patch14_dinov2": 42, "vit_small_patch14_reg4_dinov2": 42}
    save_file(vit(theirs, size.get(theirs, 48)).state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=words):
        load(vit(ours, size.get(ours, 48)), tmp_path / "x.safetensors", ours)


@pytest.mark.parametrize(("theirs", "ours"), [(8, 16), (16, 8)])
def test_patches_of_another_size_are_not_resampled(theirs: int, ours: int, tmp_path: Path) -> None:
    """DINO's ViT-S/8 given as a ViT-S/16: all names are the same, and timm would bend the patches without a word."""
    save_file(vit(f"vit_small_patch{theirs}_224").state_dict(), tmp_path / "x.safetensors")
    expected = rf"'patch_embed.proj.weight' must be \(8, 3, {ours}, {ours}\), got \(8, 3, {theirs}, {theirs}\)"
    with pytest.raises(InputError, match=expected):
        load(vit(f"vit_small_patch{ours}_224"), tmp_path / "x.safetensors")


def test_weights_of_a_vit_for_a_resnet(tmp_path: Path, state: State) -> None:
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"missing: 'bn1\.bias', .*; \d+ unexpected: 'blocks\.0"):
        load(timm.create_model("test_resnet", num_classes=0), tmp_path / "x.safetensors", "test_resnet")


def test_numbers_too_large_for_float32_are_not_finite(tmp_path: Path) -> None:
    made = timm.create_model("test_resnet", num_classes=0).state_dict()
    save_file(made | {"bn1.weight": made["bn1.weight"].double() + 1e39}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match=r"must be finite numbers; 'bn1\.weight' is not"):
        load(timm.create_model("test_resnet", num_classes=0), tmp_path / "x.safetensors")


# Files that are none


def zip_of(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"ab",
        b"0.",
        b"some notes about weights",
        b"<!DOCTYPE html><html>Not found</html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 44128168\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        bytes(1000),
        b"PK\x03\x04" + bytes(100),
        zip_of("notes.txt", b"nothing"),
        zip_of("archive/data.pkl", b"nothing"),
        b'{"format": "sortal backbone 1"}',
    ],
)
def test_a_file_of_something_else(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"The file of weights {str(path)!r} must be safetensors, or a checkpoint that loads")
    for words in ("weights_only", "torch.load", "\x1b", "\n"):  # nobody is told to run what is in a file
        assert words not in message


def test_a_damaged_file_of_safetensors(tmp_path: Path, state: State) -> None:
    content, path = save(state), tmp_path / "x.safetensors"
    (length,) = struct.unpack("<Q", content[:8])
    huge = struct.pack("<Q", 2**60)
    for broken in (content[:-1], content[: 8 + length], content[:100], content[:9], content + b"x", huge + content[8:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=rf"^The file of weights '{path}' is damaged: .*\. Get it again\.$"):
            read(path)
    for broken in (content[:8], content[:3]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=rf"^The file of weights '{path}' must be safetensors"):
            read(path)


def test_a_truncated_checkpoint(tmp_path: Path, state: State) -> None:
    for zipped in (True, False):
        content = saved(tmp_path / "x.pth", state, _use_new_zipfile_serialization=zipped).read_bytes()
        for part in (0.01, 0.5, 0.9, 0.999):
            (tmp_path / "part.pth").write_bytes(content[: int(len(content) * part)])
            with pytest.raises(InputError, match=r"^The file of weights '.*part\.pth' "):
                read(tmp_path / "part.pth")


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.integers(0, 2),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=5),
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_bytes_changed_anywhere_are_an_error_or_other_weights(
    kind: int, changes: list[tuple[float, int]], kept: float, tmp_path: Path
) -> None:
    """Whatever is wrong with a file, it is told in our own words."""
    content = bytearray(FILES[kind])
    for place, byte in changes:
        content[int(place * len(content))] = byte
    path = tmp_path / "x"
    path.write_bytes(content[: int(kept * len(content))])
    try:
        state = read(path)
    except InputError as error:
        told = str(error)
    else:
        told = repr(str(path)) if state and all(isinstance(value, Tensor) for value in state.values()) else ""
    assert repr(str(path)) in told


def _files() -> list[bytes]:
    content = {"teacher": {"backbone.a": torch.ones(2, 3)}, "args": argparse.Namespace(a=1), "lr": np.float64(1)}
    files = []
    for zipped in (True, False):
        buffer = io.BytesIO()
        torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
        files.append(buffer.getvalue())
    return [*files, save({"a": torch.ones(2, 3)})]


FILES = _files()


@pytest.mark.parametrize("content", [{}, [], 3, torch.zeros(3), {"epoch": 3}, {"teacher": {}}, {"model": {"a": 1}}])
def test_a_checkpoint_without_weights(content: Any, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pth", content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value) == f"The file {str(path)!r} holds no weights: no tensors under names were found in it."


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^The file of weights '.*/none\.pth' is not there\. Check the path\.$"):
        read(tmp_path / "none.pth")
    with pytest.raises(InputError, match=r"^The file of weights '.*' is a folder\. Check the path\.$"):
        read(tmp_path)
    (tmp_path / "loose").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="is not there"):
        read(str(tmp_path / "loose"))


# Nothing is run


class Trap:
    """Unpickled by a careless reader, it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_is_not_run(zipped: bool, tmp_path: Path, state: State) -> None:
    target = tmp_path / "sprung"
    path = saved(tmp_path / "x.pth", {"model": state, "extra": Trap(target)}, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"without running code; it is neither: it asks for posix\.mkdir\.$"):
        read(path)
    assert not target.exists()
    torch.load(path, weights_only=False)  # the trap works
    assert target.exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_code_in_a_plain_pickle_is_not_run(protocol: int, tmp_path: Path) -> None:
    target, path = tmp_path / "sprung", tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"a": Trap(target)}, protocol=protocol))
    with pytest.raises(InputError, match="must be safetensors, or a checkpoint that loads without running code"):
        read(path)
    assert not target.exists()


def test_arguments_do_not_let_other_classes_in(tmp_path: Path, state: State) -> None:
    content = {"teacher": state, "args": argparse.Namespace(output=Path("/x"))}
    with pytest.raises(InputError, match=r"it asks for pathlib\.(_local\.)?PosixPath\.$"):
        read(saved(tmp_path / "x.pth", content))


def test_a_whole_module_is_not_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it asks for torch\.nn\.modules\.linear\.Linear\.$"):
        read(saved(tmp_path / "x.pth", nn.Linear(2, 2)))


def test_a_torchscript_program_is_not_weights(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is on its way out
        torch.jit.script(nn.Linear(2, 2)).save(str(path))
    with pytest.raises(
        InputError, match=r"'.*x\.pt' must be safetensors, .* it is neither: it is a TorchScript program"
    ):
        read(path)
