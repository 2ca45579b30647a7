"""Vision transformers: the class token's row by itself is that of timm's whole network, and so are its gradients."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as nnf
from timm.layers.norm import RmsNorm
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.network import Spec
from sortal.vit import VisionTransformer, _is_known


@dataclass(frozen=True)
class Kind:
    """A network of timm made small, and whether its last block is one that is computed for the class token alone."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    known: bool = True
    prefix: int = 1  # tokens that are no patches


KINDS = {
    "DINO": Kind("vit_small_patch16_224"),
    "DINO at patch 8": Kind("vit_small_patch8_224"),
    "DINOv2": Kind("vit_base_patch14_dinov2"),  # layer scale
    "DINOv2 with registers": Kind("vit_base_patch14_reg4_dinov2", prefix=5),
    "DINOv2 giant": Kind("vit_giant_patch14_dinov2"),  # SwiGLU
    "DINOv3": Kind("vit_small_patch16_dinov3", prefix=5),  # rotations, registers, no position embedding
    "DINOv3 with biases": Kind("vit_small_patch16_dinov3_qkvb", prefix=5),
    "MAE": Kind("vit_base_patch16_224.mae"),
    "CLIP": Kind("vit_base_patch16_clip_224.openai"),  # a norm before the blocks
    "CLIP with quick GELU": Kind("vit_base_patch16_clip_quickgelu_224.openai"),
    "DeiT distilled": Kind("deit_tiny_distilled_patch16_224", prefix=2),
    "EVA-02": Kind("eva02_tiny_patch14_224", {"use_fc_norm": False}),  # rotations in pairs
    "EVA-02 base": Kind("eva02_base_patch14_224", {"use_fc_norm": False}),  # separate projections
    "norms of queries and keys": Kind("vit_small_patch16_224", {"qk_norm": True}),
    "norm of the attention": Kind("vit_small_patch16_224", {"scale_attn_norm": True}),
    "no biases": Kind("vit_small_patch16_224", {"qkv_bias": False, "proj_bias": False}),
    "norms without weights": Kind("vit_small_patch16_224", {"norm_layer": lambda d, **_: nn.LayerNorm(d, 1e-6, False)}),
    "norms without biases": Kind("vit_small_patch16_224", {"norm_layer": lambda d, **_: nn.LayerNorm(d, bias=False)}),
    "eight heads": Kind("vit_small_patch16_224", {"num_heads": 8}),
    "no final norm": Kind("vit_small_patch16_224", {"final_norm": False}),
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
    """Weights at which every part counts: new networks have biases of 0, norms of 1 and almost no layer scale."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * by)


def tiny(kind: str, grid: int = 3) -> VisionTransformer:
    return copy.deepcopy(prototype(kind, grid))


@cache
def prototype(kind: str, grid: int) -> VisionTransformer:
    """Four blocks of width 48 with three heads, for images of `grid` × `grid` patches."""
    name = KINDS[kind].name
    with torch.random.fork_rng(devices=[]):
        patch = 14 if "patch14" in name else 8 if "patch8" in name else 16
        size = {"img_size": grid * patch, "depth": 4, "embed_dim": 48, "num_heads": 3, "mlp_ratio": 2}
        net = timm.create_model(name, num_classes=0, global_pool="token", **(size | KINDS[kind].changes))
    if kind == "gates":
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
    """The oracle: timm computes every row, and the first is taken."""
    net: Any = backbone.net
    features: Tensor = net.forward_features(images)[:, 0]
    return features


def off(found: Tensor, expected: Tensor) -> float:
    """The largest error relative to the largest number."""
    return float((found - expected).abs().max() / expected.abs().max())


# Features


@kinds
def test_the_kinds_are_what_they_are_meant_to_be(kind: str) -> None:
    backbone = tiny(kind)
    assert _is_known(backbone.blocks[-1]) == KINDS[kind].known
    tokens = backbone.trunk(images_for(backbone))
    assert tokens.shape == (5, KINDS[kind].prefix + 9, 48)


@kinds
@pytest.mark.parametrize("trained", [0, 1, 2, 4])
def test_features_are_those_of_the_whole_network(kind: str, trained: int) -> None:
    backbone = tiny(kind)
    backbone.train_last(trained)
    images = images_for(backbone)
    with torch.no_grad():
        features, expected = backbone(images), whole(backbone, images)
    assert features.shape == (5, 48)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@known_kinds
def test_features_are_exact_in_double_precision_but_for_the_softmax(kind: str) -> None:
    backbone = tiny(kind).double()
    images = images_for(backbone)
    with torch.no_grad():
        assert off(backbone(images), whole(backbone, images)) < 1e-6


@known_kinds
@pytest.mark.parametrize("trained", [1, 2])
def test_features_in_bfloat16_are_as_good_as_those_of_the_whole_network(kind: str, trained: int) -> None:
    backbone = tiny(kind)
    backbone.train_last(trained)
    images = images_for(backbone, n=16)
    with torch.no_grad():
        expected = whole(backbone, images)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            features, theirs = backbone(images), whole(backbone, images)
    error = (features.float() - expected).norm() / expected.norm()
    assert error < 1.5 * (theirs.float() - expected).norm() / expected.norm() + 1e-3
    assert error < 0.03


@known_kinds
def test_weights_in_bfloat16_will_do(kind: str) -> None:
    backbone = tiny(kind)
    images = images_for(backbone, n=16)
    with torch.no_grad():
        expected = whole(backbone, images)
        features = backbone.to(torch.bfloat16)(images.to(torch.bfloat16))
    assert features.dtype == torch.bfloat16
    assert (features.float() - expected).norm() / expected.norm() < 0.05


@pytest.mark.parametrize("kind", ["DINO", "DINOv3", "EVA-02", "rotations of every block"])
def test_a_copy_in_bfloat16_keeps_the_angles_of_its_rotations(kind: str) -> None:
    """An angle of 3 rounded to bfloat16 is up to half a degree off, that of a far patch more."""
    backbone = tiny(kind, grid=8)
    images = images_for(backbone, n=16)
    with torch.no_grad():
        expected = backbone(images)
        lower = backbone.in_bf16()
        features = lower(images.to(torch.bfloat16))
        assert torch.equal(backbone(images), expected)  # the first is as it was
    assert (backbone.dtype, lower.dtype, features.dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)
    assert all(parameter.dtype == torch.bfloat16 for parameter in lower.parameters())
    assert (lower.spec, lower.trained) == (backbone.spec, backbone.trained)
    angles = {name: value for name, value in backbone.named_buffers() if "rope" in name}
    assert bool(angles) == (kind != "DINO")
    assert all(torch.equal(lower.get_buffer(name), value) for name, value in angles.items())
    assert (features.float() - expected).norm() / expected.norm() < 0.02


@known_kinds
def test_cached_tokens_in_bfloat16_are_taken_in_the_type_of_the_weights(kind: str) -> None:
    backbone = tiny(kind)
    with torch.no_grad():
        tokens = backbone.trunk(images_for(backbone)).to(torch.bfloat16)
        assert torch.equal(backbone.tail(tokens), backbone.tail(tokens.float()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lower = backbone.tail(tokens).float()
        assert off(lower, backbone.tail(tokens)) < 0.05


def test_a_vit_small_of_dino_at_its_own_size() -> None:
    with torch.random.fork_rng(devices=[]):
        net = timm.create_model("vit_small_patch16_224.dino", num_classes=0)
    shake(net, by=0.02)
    spec = Spec(name="vit_small_patch16_224.dino", image_size=224, shorter_side=256, width=384)
    backbone = VisionTransformer(net, spec)
    backbone.train_last(1)
    images = images_for(backbone, n=2)
    with torch.no_grad():
        assert backbone.trunk(images).shape == (2, 197, 384)
        assert off(backbone(images), whole(backbone, images)) < 1e-5


def test_an_image_has_its_features_whatever_else_is_in_the_batch() -> None:
    backbone = tiny("DINOv2")
    images = images_for(backbone)
    with torch.no_grad():
        alone = torch.cat([backbone(image[None]) for image in images])
        assert off(backbone(images), alone) < 1e-5
        assert off(backbone(images.flip(0)), alone.flip(0)) < 1e-5


@pytest.mark.parametrize("kind", ["DINO", "parallel parts"])
def test_no_images_have_no_features(kind: str) -> None:
    backbone = tiny(kind)
    assert backbone(images_for(backbone, n=0)).shape == (0, 48)


def test_a_large_query_does_not_overflow() -> None:
    """All attention on one token: the softmax is taken of numbers in the thousands."""
    backbone = tiny("DINO")
    attn: Any = backbone.blocks[-1].attn
    with torch.no_grad():
        attn.qkv.weight.mul_(100)
        images = images_for(backbone)
        assert float(backbone.attention(images).max()) > 0.999
        assert off(backbone(images), whole(backbone, images)) < 1e-4


def test_blocks_of_an_older_timm_have_no_gates() -> None:
    backbone = tiny("DINO")
    images = images_for(backbone)
    expected = whole(backbone, images)
    del backbone.blocks[-1].attn.gate  # type: ignore[union-attr]
    backbone.train_last(1)
    assert off(backbone(images).detach(), expected.detach()) < 1e-5


# Gradients


def gradients(backbone: VisionTransformer, features: Callable[[Tensor], Tensor], images: Tensor) -> dict[str, Tensor]:
    """Of a number that depends on all features, by every trained parameter."""
    backbone.zero_grad(set_to_none=True)
    out = features(images)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype)
    (out * direction).sum().backward()
    found = {name: p.grad.clone() for name, p in backbone.net.named_parameters() if p.grad is not None}
    backbone.zero_grad(set_to_none=True)
    return found


def trained_parameters(backbone: VisionTransformer) -> set[str]:
    return {name for name, parameter in backbone.net.named_parameters() if parameter.requires_grad}


@kinds
@pytest.mark.parametrize("trained", [1, 2, 4])
def test_gradients_are_those_of_the_whole_network(kind: str, trained: int) -> None:
    """In double precision; `trained` = 1 says what the last block gives, 2 and 4 what passes through it."""
    backbone = tiny(kind).double() if KINDS[kind].known else tiny(kind)  # timm cannot do all of the others in double
    backbone.train_last(trained)
    images = images_for(backbone)
    found = gradients(backbone, backbone, images)
    expected = gradients(backbone, lambda x: whole(backbone, x), images)
    assert found.keys() == expected.keys() == trained_parameters(backbone)
    for name in expected:
        error = float((found[name] - expected[name]).abs().max())
        assert error < 5e-6 * max(1.0, float(expected[name].abs().max())), name


@known_kinds
def test_gradients_in_single_precision(kind: str) -> None:
    backbone = tiny(kind)
    images = images_for(backbone)
    found = gradients(backbone, backbone, images)
    expected = gradients(backbone, lambda x: whole(backbone, x), images)
    scale = max(float(value.abs().max()) for value in expected.values())
    assert found.keys() == expected.keys() == trained_parameters(backbone)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5 * scale, msg=name)


@known_kinds
def test_gradients_in_bfloat16_point_where_they_should(kind: str) -> None:
    backbone = tiny(kind)
    images = images_for(backbone, n=32)
    expected = gradients(backbone, backbone, images)

    def lower(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return backbone(x)  # type: ignore[no-any-return]

    found = gradients(backbone, lower, images)
    assert found.keys() == expected.keys()
    both = [torch.cat([values[name].flatten() for name in sorted(expected)]) for values in (found, expected)]
    assert float(torch.cosine_similarity(both[0].float(), both[1], dim=0)) > 0.999


def test_each_part_of_the_block_gets_its_gradient() -> None:
    """The norm before the attention and the biases, which are folded into other products, among them."""
    backbone = tiny("DINOv2").double()
    found = gradients(backbone, backbone, images_for(backbone))
    last = "blocks.3."
    assert {name.removeprefix(last) for name in found} == {
        *(f"{part}.{kind}" for part in ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
          for kind in ("weight", "bias")),
        "ls1.gamma",
        "ls2.gamma",
    }  # fmt: skip
    query, key, value = found[f"{last}attn.qkv.bias"].chunk(3)
    assert not key.any()  # it adds the same to the score of every token
    assert query.abs().min() > 0
    assert value.abs().min() > 0
    for name in ("norm1.weight", "norm1.bias", "ls1.gamma", "ls2.gamma"):
        assert found[last + name].abs().min() > 0
    assert all(part.abs().max() > 0 for part in found[f"{last}attn.qkv.weight"].chunk(3))


@pytest.mark.parametrize("kind", ["DINOv2", "DINOv3 with biases", "norms of queries and keys"])
def test_gradients_are_slopes(kind: str) -> None:
    """Central differences along a random direction of each parameter, autograd having no part in it."""
    backbone = tiny(kind, grid=2).double()
    images = images_for(backbone, n=2)
    found = gradients(backbone, backbone, images)
    generator = torch.Generator().manual_seed(5)
    step = 1e-3
    parameters = dict(backbone.net.named_parameters())

    @torch.no_grad()
    def value() -> float:
        out: Tensor = backbone(images)
        return float((out * torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).double()).sum())

    for name, gradient in found.items():
        direction = torch.randn(gradient.shape, generator=generator).double()
        direction /= direction.norm()
        parameter = parameters[name].data
        parameter += step * direction
        above = value()
        parameter -= 2 * step * direction
        below = value()
        parameter += step * direction
        assert (above - below) / (2 * step) == pytest.approx(float((gradient * direction).sum()), rel=1e-2, abs=2e-3)


def test_what_is_frozen_gets_no_gradient() -> None:
    backbone = tiny("DINOv2 with registers")
    backbone.train_last(2)
    assert {name.split(".")[1] for name in gradients(backbone, backbone, images_for(backbone))} == {"2", "3"}
    frozen = {name for name, parameter in backbone.net.named_parameters() if not parameter.requires_grad}
    assert {"cls_token", "reg_token", "pos_embed", "patch_embed.proj.weight", "norm.weight", "norm.bias"} < frozen
    tokens = backbone.trunk(images_for(backbone))
    assert not tokens.requires_grad


def test_all_blocks_trained_leave_the_embeddings_frozen() -> None:
    backbone = tiny("CLIP")
    backbone.train_last(4)
    assert {name.split(".")[0] for name in trained_parameters(backbone)} == {"blocks"}
    assert not backbone.has_trunk
    tokens = backbone.trunk(images_for(backbone))  # yet tokens go in, not images
    assert tokens.shape == (5, 10, 48)


def test_a_step_down_the_gradient_changes_the_last_block_alone() -> None:
    backbone = tiny("DINO")
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    backbone.train()
    optimiser = torch.optim.SGD(backbone.parameters(), lr=0.1, weight_decay=0.1)
    backbone(images_for(backbone)).square().sum().backward()
    optimiser.step()
    changed = {name for name, value in backbone.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"net.{name}" for name in trained_parameters(backbone)}


# Attention


def test_attention_is_the_softmax_of_queries_and_keys() -> None:
    """Computed by hand from what leaves the last block's projection: two images, three heads, 3 × 3 patches."""
    backbone = tiny("DINOv2 with registers")
    images = images_for(backbone, n=2)
    seen: list[Tensor] = []
    attn: Any = backbone.blocks[-1].attn
    hook = attn.qkv.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    with torch.no_grad():
        whole(backbone, images)
        hook.remove()
        maps = backbone.attention(images)
    (projected,) = seen  # (2, 14 tokens, 3 × 48)
    assert maps.shape == (2, 3, 3, 3)
    for image in range(2):
        for head in range(3):
            channels = slice(16 * head, 16 * head + 16)
            query = projected[image, 0, :48][channels]
            keys = projected[image, :, 48:96][:, channels]
            scores = torch.stack([(query * key).sum() / 4 for key in keys])  # √16
            weights = scores.exp() / scores.exp().sum()
            torch.testing.assert_close(maps[image, head], weights[5:].reshape(3, 3), rtol=1e-4, atol=1e-6)
            assert float(maps[image, head].sum()) == pytest.approx(1 - float(weights[:5].sum()), abs=1e-5)


@known_kinds
@pytest.mark.parametrize("trained", [1, 3])
def test_attention_is_that_of_the_whole_network(kind: str, trained: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny(kind)
    backbone.train_last(trained)
    images = images_for(backbone)
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
    rows = torch.softmax((query[:, :, :1] @ key.mT)[:, :, 0] * query.shape[-1] ** -0.5, dim=-1)
    torch.testing.assert_close(maps.flatten(2), rows[:, :, KINDS[kind].prefix :], rtol=1e-4, atol=1e-6)
    assert maps.shape == (5, query.shape[1], 3, 3)
    sums = maps.sum(dim=(2, 3))
    assert float(sums.max()) < 1
    assert float(maps.min()) > 0
    assert float(maps.flatten(2).std(dim=2).max()) > 1e-3  # it does look somewhere


def test_maps_lie_as_the_image_does() -> None:
    """A network whose class token seeks one colour finds the patch that has it, in its row and column."""
    backbone = tiny("DINO")
    net: Any = backbone.net
    with torch.no_grad():
        for block in net.blocks[:-1]:
            block.attn.proj.weight.zero_()
            block.mlp.fc2.weight.zero_()
        net.pos_embed.zero_()
        attn = net.blocks[-1].attn
        images = torch.zeros(1, 3, 48, 48)
        images[:, :, 16:32, 32:48] = 3.0  # row 1, column 2
        tokens = net.blocks[-1].norm1(backbone.trunk(images))[0]
        patch = tokens[1 + 1 * 3 + 2] - tokens[1]
        attn.qkv.bias.zero_()
        attn.qkv.weight[48:96] = torch.eye(48)
        attn.qkv.bias[:48] = 20 * patch  # the query is the patch
        attn.qkv.weight[:48] = 0
        maps = backbone.attention(images)
    assert maps[0].flatten(1).argmax(dim=1).tolist() == [5, 5, 5]


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.known])
def test_attention_of_blocks_of_another_kind_cannot_be_shown(kind: str) -> None:
    backbone = tiny(kind)
    name = KINDS[kind].name
    with pytest.raises(InputError, match=f"^{name} has blocks of another kind, whose attention cannot be shown"):
        backbone.attention(images_for(backbone))


def test_no_images_have_no_attention() -> None:
    backbone = tiny("DINO")
    assert backbone.attention(images_for(backbone, n=0)).shape == (0, 3, 3, 3)


# What it is made of


def test_a_network_without_a_class_token_will_not_do() -> None:
    net = timm.create_model("test_vit2", num_classes=0, img_size=32)
    with pytest.raises(
        InputError, match=r"^test_vit2 has no class token, which features are read from\. Choose another"
    ):
        VisionTransformer(net, Spec(name="test_vit2", image_size=32, shorter_side=32, width=64))


def test_blocks_are_those_of_the_network_in_order() -> None:
    backbone = tiny("DINO")
    net: Any = backbone.net
    assert [id(block) for block in backbone.blocks] == [id(block) for block in net.blocks]
    assert backbone.grid == (3, 3)
