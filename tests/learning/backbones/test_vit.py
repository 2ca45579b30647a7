"""Vision transformers: computing the class token alone gives the features and gradients of timm's whole network."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, cast

import pytest
import timm
import torch
import torch.nn.functional as nnf
from support.thorough import thorough_but
from timm.layers.norm import RmsNorm
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.learning.backbones import vit
from sortal.learning.backbones.backbone import Spec
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.backbones.vit import VisionTransformer, _is_supported


@dataclass(frozen=True)
class Kind:
    """A small network of timm, and whether its last block can be computed for the class token alone."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    known: bool = True
    prefix: int = 1  # tokens that are not patches


KINDS = {
    "DINO": Kind("vit_small_patch16_224"),
    "DINOv2 with registers": Kind("vit_base_patch14_reg4_dinov2", prefix=5),  # layer scale
    "DINOv3": Kind("vit_small_patch16_dinov3", prefix=5),  # rotations, registers, no position embedding
    "DINOv3 with biases": Kind("vit_small_patch16_dinov3_qkvb", prefix=5),
    "CLIP": Kind("vit_base_patch16_clip_224.openai"),  # a norm before the blocks
    "DeiT distilled": Kind("deit_tiny_distilled_patch16_224", prefix=2),
    "EVA-02": Kind("eva02_tiny_patch14_224", {"use_fc_norm": False}),  # rotations in pairs
    "EVA-02 base": Kind("eva02_base_patch14_224", {"use_fc_norm": False}),  # separate projections
    "norms of queries and keys": Kind("vit_small_patch16_224", {"qk_norm": True}),
    "norm of the attention": Kind("vit_small_patch16_224", {"scale_attn_norm": True}),
    "no biases": Kind("vit_small_patch16_224", {"qkv_bias": False, "proj_bias": False}),
    "norms without weights": Kind("vit_small_patch16_224", {"norm_layer": lambda d, **_: nn.LayerNorm(d, 1e-6, False)}),
    "norms without biases": Kind("vit_small_patch16_224", {"norm_layer": lambda d, **_: nn.LayerNorm(d, bias=False)}),
    "eight heads": Kind("vit_small_patch16_224", {"num_heads": 8}),
    "parallel parts": Kind("vit_small_patch16_18x2_224", known=False),
    "norms after": Kind("vit_base_patch16_rpn_224", {"class_token": True}, known=False),
    "RMS norms": Kind("vit_small_patch16_224", {"norm_layer": RmsNorm}, known=False),
    "gates": Kind("vit_small_patch16_dinov3", known=False, prefix=5),
    "rotations of every block": Kind("vit_small_patch16_rope_mixed_224", known=False),
    "differential attention": Kind("vit_small_patch16_224", {"attn_layer": "diff", "num_heads": 2}, known=False),
}
kinds = pytest.mark.parametrize("kind", list(KINDS))
known_kinds = pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.known])


def shake(net: nn.Module, seed: int = 0, by: float = 0.1) -> None:
    """Perturb the weights, as new networks have biases of 0, norms of 1 and almost no layer scale."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * by)


def tiny(kind: str, grid: int = 3) -> VisionTransformer:
    return copy.deepcopy(prototype(kind, grid))


@cache
def prototype(kind: str, grid: int) -> VisionTransformer:
    """Make four blocks of width 48 with three heads, for images of `grid` × `grid` patches."""
    name = KINDS[kind].name
    if "attn_layer" in KINDS[kind].changes and "attn_layer" not in signature(timm.models.VisionTransformer).parameters:
        pytest.skip("this timm has no differential attention")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        patch = 14 if "patch14" in name else 16
        size = {"img_size": grid * patch, "depth": 4, "embed_dim": 48, "num_heads": 3, "mlp_ratio": 2}
        net = timm.create_model(name, num_classes=0, global_pool="token", **(size | KINDS[kind].changes))
    if kind == "gates":
        if not hasattr(net.blocks[-1].attn, "gate"):  # type: ignore[index, union-attr]
            pytest.skip("this timm has no gates")
        net.blocks[-1].attn.gate = nn.Linear(48, 48)  # type: ignore[index, union-attr]
    shake(net)
    spec = Spec(name=name, image_size=grid * patch, shorter_side=grid * patch, width=48)
    backbone = VisionTransformer(net, spec)
    backbone.train_last(1)
    return backbone


def images_for(backbone: VisionTransformer, n: int = 5) -> Tensor:
    size = backbone.spec.image_size
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(7)).to(backbone.dtype)


def whole(backbone: VisionTransformer, images: Tensor) -> Tensor:
    """Let timm compute every row, and take the first."""
    net: Any = backbone.net
    features: Tensor = net.forward_features(images)[:, 0]
    return features


def off(found: Tensor, expected: Tensor) -> float:
    """Return the largest error relative to the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


# Features and gradients


def gradients(backbone: VisionTransformer, features: Callable[[Tensor], Tensor], images: Tensor) -> dict[str, Tensor]:
    """Differentiate a number that depends on all features by every trained parameter."""
    backbone.zero_grad(set_to_none=True)
    out = features(images)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype)
    (out * direction).sum().backward()
    found = {name: p.grad.clone() for name, p in backbone.net.named_parameters() if p.grad is not None}
    backbone.zero_grad(set_to_none=True)
    return found


@kinds
@pytest.mark.parametrize("trained", thorough_but([0, 2], [0, 1, 2, 4]))
def test_features_and_gradients_match_the_whole_network(kind: str, trained: int) -> None:
    """In double precision except for the softmax; `trained` decides the split into trunk and tail."""
    known = KINDS[kind].known
    backbone = tiny(kind).double() if known else tiny(kind)  # timm cannot do all of the others in double
    assert _is_supported(backbone.blocks[-1]) == known
    backbone.train_last(trained)
    images = images_for(backbone)
    tokens = backbone.trunk(images)
    assert tokens.shape == (5, KINDS[kind].prefix + 9, 48)
    assert not tokens.requires_grad
    with torch.no_grad():
        assert backbone(images).shape == (5, 48)
        assert off(backbone(images), whole(backbone, images)) < 5e-6
    if trained:
        found, expected = (gradients(backbone, way, images) for way in (backbone, lambda x: whole(backbone, x)))
        blocks = {name for name, _ in backbone.net.named_parameters() if name.startswith("blocks.")}
        assert found.keys() == expected.keys() == {name for name in blocks if int(name.split(".")[1]) >= 4 - trained}
        for name in expected:
            error = float((found[name] - expected[name]).abs().max())
            assert error < 2e-5 * max(1.0, float(expected[name].abs().max())), name


@known_kinds
def test_single_and_half_precision_are_accurate(kind: str) -> None:
    """With bfloat16 weights, under autocast, and from cached tokens, errors are similar to those of timm."""
    backbone = tiny(kind)
    images = images_for(backbone, n=16)

    def lower(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return backbone(x)

    with torch.no_grad():
        expected = whole(backbone, images)
        assert backbone(images).dtype == torch.float32
        assert off(backbone(images), expected) < 1e-4  # some hundred roundings
        with torch.autocast("cpu", dtype=torch.bfloat16):
            theirs = whole(backbone, images).float()
        bound = 2 * float((theirs - expected).norm()) + 2**-8 * float(expected.norm())
        assert float((lower(images).float() - expected).norm()) < bound
        tokens = backbone.trunk(images).to(torch.bfloat16)
        assert torch.equal(backbone.tail(tokens), backbone.tail(tokens.float()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert float((backbone.tail(tokens).float() - expected).norm()) < 2 * bound
    both = [gradients(backbone, way, images) for way in (backbone, lower)]
    assert both[0].keys() == both[1].keys()
    flat = [torch.cat([found[name].flatten() for name in sorted(found)]).float() for found in both]
    assert float(torch.cosine_similarity(flat[0], flat[1], dim=0)) > 0.99
    with torch.no_grad():
        features = backbone.to(torch.bfloat16)(images.to(torch.bfloat16))
    assert features.dtype == torch.bfloat16
    assert float((features.float() - expected).norm()) < 4 * bound  # timm keeps more in float32 under autocast


@pytest.mark.skipif(
    getattr(torch.cpu, "_is_amx_tile_supported", bool)() and torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="PyTorch cannot attend in bfloat16 with less than this processor has",
)
@pytest.mark.parametrize("kind", ["DINO", "DINOv3", "EVA-02"])
def test_a_copy_in_bfloat16_keeps_the_angles_of_its_rotations(kind: str) -> None:
    """An angle of 3 rounded to bfloat16 is off by up to half a degree, those of far patches by more."""
    backbone = tiny(kind, grid=8)
    images = images_for(backbone)
    with torch.no_grad():
        expected = backbone(images)
        lower = backbone.in_bf16()
        assert lower(images.to(torch.bfloat16)).dtype == torch.bfloat16
        assert torch.equal(backbone(images), expected)  # the original is unchanged
    assert all(parameter.dtype == torch.bfloat16 for parameter in lower.parameters())
    assert (lower.spec, lower.trained) == (backbone.spec, backbone.trained)
    angles = {name: value for name, value in backbone.named_buffers() if "rope" in name}
    assert bool(angles) == (kind != "DINO")
    assert all(torch.equal(lower.get_buffer(name), value) for name, value in angles.items())


def test_no_images_give_no_features() -> None:
    backbone = tiny("DINO")
    assert backbone(images_for(backbone, n=0)).shape == (0, 48)
    assert backbone.attention(images_for(backbone, n=0)).shape == (0, 3, 3, 3)
    other = tiny("parallel parts")
    assert other(images_for(other, n=0)).shape == (0, 48)


def test_large_queries_do_not_overflow() -> None:
    """All attention is on one token, with scores in the thousands."""
    backbone = tiny("DINO").double()
    attn: Any = backbone.blocks[-1].attn
    with torch.no_grad():
        attn.qkv.weight.mul_(100)
        images = images_for(backbone)
        assert float(backbone.attention(images).max()) > 0.999
        assert off(backbone(images), whole(backbone, images)) < 1e-3  # scores of 10⁴ in float32


def key_gradient(block: nn.Module, tokens: Tensor, *, bf16: bool) -> float:
    """Return the norm of the gradient of a block's keys."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        row = nnf.normalize(vit._class_row(block, tokens, None).float(), dim=1)
    (gradient,) = torch.autograd.grad((row @ row.T).sum(), cast(Any, block).attn.qkv.weight)
    return float(gradient.chunk(3)[1].norm())


@pytest.mark.parametrize("kind", ["DINO", "norms of queries and keys"])  # scores without keys, and with them
@pytest.mark.parametrize(("factor", "n"), [(1e5, 16), (1e8, 256)])
def test_large_queries_saturate_attention_in_bfloat16_too(
    kind: str, factor: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saturated, it has no gradient, which keeps queries from growing; scores in bfloat16 tie, and it has."""
    block = tiny(kind).blocks[-1]
    attn: Any = cast(Any, block).attn
    tokens = torch.randn(n, 257, 48, generator=torch.Generator().manual_seed(0))
    usual = key_gradient(block, tokens, bf16=False)
    with torch.no_grad():
        queries = attn.qkv.weight.chunk(3)[0] if kind == "DINO" else attn.q_norm.weight
        queries.mul_(factor)
    assert key_gradient(block, tokens, bf16=False) < usual
    assert key_gradient(block, tokens, bf16=True) < usual
    if n == 256:  # enough for some scores to tie
        monkeypatch.setattr(vit, "_product", lambda left, right: left.bfloat16() @ right.bfloat16())
        assert key_gradient(block, tokens, bf16=True) > 100 * usual, "as with rounded scores"


def test_blocks_of_older_versions_of_timm_are_supported() -> None:
    backbone = tiny("DINO")
    vars(backbone.blocks[-1].attn).pop("gate", None)  # which those have not
    assert _is_supported(backbone.blocks[-1])


# Attention


@kinds
def test_attention_matches_the_whole_network(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny(kind)
    backbone.train_last(3)
    images = images_for(backbone)
    if not KINDS[kind].known:
        name = KINDS[kind].name
        with pytest.raises(InputError, match=f"^Attention maps do not support the blocks of {name}"):
            backbone.attention(images)
        assert backbone.largest_query(backbone.trunk(images)) is None
        return
    calls: list[tuple[Tensor, Tensor]] = []
    fused = nnf.scaled_dot_product_attention

    def spy(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        calls.append((query, key))
        return fused(query, key, value, **options)

    monkeypatch.setattr(nnf, "scaled_dot_product_attention", spy)
    with torch.no_grad():
        whole(backbone, images)
        query, key = calls[-1]
        maps = backbone.attention(images)
        assert backbone.largest_query(backbone.trunk(images)) == pytest.approx(
            float(query[:, :, 0].abs().max()), rel=1e-4
        )
    rows = torch.softmax((query[:, :, :1] @ key.mT)[:, :, 0] * query.shape[-1] ** -0.5, dim=-1)
    assert maps.shape == (5, query.shape[1], 3, 3)
    torch.testing.assert_close(maps.flatten(2), rows[:, :, KINDS[kind].prefix :], rtol=1e-4, atol=1e-6)
    assert float(maps.flatten(2).std(dim=2).max()) > 1e-3  # not uniform


def test_added_tokens_are_attended_to_trained_and_saved(tmp_path: Path) -> None:
    """The class token's row of the whole block, with the added tokens at its end, is what the tail computes."""
    backbone = load_backbone("test_vit", weights="random", image_size=32)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    inputs = backbone.trunk(images)
    before = backbone.tail(inputs)
    backbone.add_tokens(2, seed=5)
    added: torch.Tensor = backbone.net.added_tokens  # type: ignore[assignment]
    assert added.requires_grad
    with torch.no_grad():
        added.mul_(300)  # from a deviation of 0.01, which would hardly be seen
    rows = backbone.token_rows(inputs)
    assert rows.shape == (3, 3, backbone.spec.width)
    net: Any = backbone.net
    whole = net.blocks[-1](torch.cat([inputs, added.expand(3, -1, -1)], dim=1))
    torch.testing.assert_close(rows, torch.cat([whole[:, :1], whole[:, -2:]], dim=1))
    torch.testing.assert_close(backbone.tail(inputs), net.norm(rows[:, 0]), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(backbone.tail(inputs), before, atol=1e-3)
    assert backbone.attention(images).shape[2:] == (2, 2)
    backbone.save(tmp_path / "model")
    loaded = load_backbone(str(tmp_path / "model.json"))
    assert torch.equal(loaded.net.added_tokens, added)  # type: ignore[arg-type]
    assert torch.equal(loaded.tail(inputs), backbone.tail(inputs))
    assert not loaded.train_last(0).net.added_tokens.requires_grad
    with pytest.raises(InputError, match=r"^Further tokens need a vision transformer, which convnet is not"):
        load_backbone("convnet").add_tokens(1)


@known_kinds
def test_a_trunk_that_sees_all_patches_of_a_window_is_the_whole_trunk(kind: str) -> None:
    """And any other order of them is the same set; networks with rotary embeddings cannot leave patches out."""
    backbone = tiny(kind).double()
    images = images_for(backbone)
    order = torch.stack([torch.randperm(9, generator=torch.Generator().manual_seed(i)) for i in range(5)])
    if backbone.sees_windows:
        tokens, prefix = backbone.trunk(images), KINDS[kind].prefix
        found = backbone.windowed_trunk(images, order)
        assert off(found[:, :prefix], tokens[:, :prefix]) < 5e-6
        rows = torch.arange(5)[:, None]
        assert off(found[:, prefix:], tokens[rows, order + prefix]) < 5e-6
    else:
        assert backbone.patch_grid is None
