"""Linear layers in 8-bit integers against the same layers in float64."""

import pytest
import torch
from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block
from torch import nn

from sortal.learning.backbones import int8
from sortal.learning.backbones.int8 import LEAST_OF_GELU, Int8Linear, SignedProduct, UnsignedProduct, quantise
from sortal.learning.backbones.registry import load_backbone
from sortal.system.device import multiplies_int8

pytestmark = pytest.mark.skipif(not multiplies_int8(), reason="the processor or PyTorch has no such products")


PRODUCTS = [SignedProduct, UnsignedProduct] if int8._multiplies_unsigned() else [SignedProduct]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("least", [None, -0.5])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_layer_is_exact_but_for_rounding_its_weights_and_inputs(
    product: type, least: float | None, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are off by half a step of 1 / 127 of their row's largest, inputs by half a step of 1 / 127 of theirs.

    And by 1 % of that for float32. With a least input, unsigned steps are 1 / 255 of what is above it.
    """
    monkeypatch.setattr(int8, "_multiplies_unsigned", lambda: product is UnsignedProduct)
    fine = product is UnsignedProduct and least is not None
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 40, bias=bias), torch.randn(3, 7, 96) * torch.tensor([1e-3, 1.0, 1e4])[:, None, None]
    x = x if least is None else x.clamp(min=least)
    before = torch.backends.quantized.engine
    with torch.no_grad():
        layer.weight[3] *= 1000  # a large row must not blur the others
        layer.weight[5] = x[1, 2] = 0
        found, exact = Int8Linear(layer, least)(x), layer.double()(x.double())
    weight, rows = layer.weight.detach().abs(), x.double()
    of_weights = rows.abs().sum(-1, keepdim=True) * weight.amax(1) / 127 / 2
    above = rows.amax(-1, keepdim=True) - (least or 0)
    step = above / 255 if fine else rows.abs().amax(-1, keepdim=True) / 127
    of_inputs = step / 2 * (weight * (1 + 1 / 127)).sum(1)
    assert (found - exact).abs().le(1.01 * (of_weights + of_inputs) + 1e-6 * exact.abs()).all()
    assert torch.backends.quantized.engine == before
    with torch.no_grad():
        alone, among = Int8Linear(layer.float(), least)(x[1:2, :3]), found[1:2, :3]
    # Whatever else is in a batch: the product is of integers, and four operations round after it.
    shift = fine * (1 + 1 / 127) * abs(least or 0) * weight.sum(1).float()
    largest = among.abs() + shift + (layer.bias.abs() if bias else 0)
    assert (alone - among).abs().le(4 * torch.finfo(torch.float32).eps * largest).all()


def test_only_layers_after_a_gelu_have_a_least_input() -> None:
    """In front of others stands nothing, or something else, such as a norm."""
    for kind, norm, expected in ((nn.GELU, None, True), (nn.SiLU, None, False), (nn.GELU, nn.LayerNorm, False)):
        block = Mlp(256, 256, act_layer=kind, norm_layer=norm)
        quantise(block)
        assert block.fc1.least is None
        assert (block.fc2.least is not None) == (expected and int8._multiplies_unsigned())
    lowest = min(nn.GELU(approximate=kind)(torch.linspace(-2, 0, 10_001)).min() for kind in ("none", "tanh"))
    assert lowest == pytest.approx(LEAST_OF_GELU, abs=1e-4)


def test_only_large_layers_are_replaced() -> None:
    block = nn.Sequential(nn.Linear(256, 300), nn.GELU(), nn.Linear(300, 255), nn.Sequential(nn.Linear(256, 256)))
    quantise(block)
    assert [type(layer) is Int8Linear for layer in (block[0], block[2], block[3][0])] == [True, False, True]  # type: ignore[index]


def test_layers_stay_that_see_one_feature_much_larger_than_the_others() -> None:
    block = Block(256, num_heads=4)
    with torch.no_grad():
        for norm, largest in ((block.norm1, 3.0), (block.norm2, -5.0)):
            norm.get_parameter("weight")[7] = largest
    quantise(block)
    kinds = [isinstance(layer, Int8Linear) for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)]
    assert kinds == [True, True, False, True]


def test_only_the_trunk_of_a_large_transformer_is_quantised() -> None:
    small = load_backbone("test_vit", weights="random")
    assert (small.fits_int8, small.in_int8() is small) == (False, True)
    large = load_backbone("vit_small_patch14_dinov2", weights="random", image_size=28)
    copied = large.in_int8()
    assert large.fits_int8
    assert not any(isinstance(module, Int8Linear) for module in large.modules())
    kinds = [any(isinstance(module, Int8Linear) for module in block.modules()) for block in copied.blocks]
    assert kinds == [True] * 11 + [False]
    images = torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        alike = torch.cosine_similarity(copied.trunk(images).flatten(1), large.trunk(images).flatten(1))
    assert (alike > 0.99).all()
