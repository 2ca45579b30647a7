"""The small convolutional network against its formula."""

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.learning.backbones import convnet as module
from sortal.learning.backbones.backbone import Spec
from sortal.learning.backbones.convnet import ConvNet, Convolution


def convnet(size: int = 16) -> ConvNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = ConvNet(Spec(name="convnet", image_size=size, shorter_side=size, width=512))
        for parameter in backbone.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return backbone


def random_images(n: int, size: int) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))


# The small network


def by_formula(backbone: ConvNet, images: Tensor) -> Tensor:
    """Apply three convolutions with group norm and GELU; average the four quarters of the last map."""
    state = backbone.net.state_dict()
    for block, stride in enumerate((2, 2, 1)):
        images = nnf.conv2d(images, state[f"{block}.0.weight"], stride=stride, padding=1)
        images = nnf.gelu(nnf.group_norm(images, 8, state[f"{block}.1.weight"], state[f"{block}.1.bias"]))
    half = images.shape[2] // 2
    quarters = [images[:, :, rows, columns].mean(dim=(2, 3)) for rows in halves(half) for columns in halves(half)]
    return torch.stack(quarters, dim=2).flatten(1)


def halves(half: int) -> tuple[slice, slice]:
    return slice(0, half), slice(half, 2 * half)


@pytest.mark.parametrize("size", [8, 24, 32])
@pytest.mark.parametrize("trained", [0, 1, 2, 3])
def test_features_are_means_over_quarters_of_the_last_map_whichever_blocks_are_trained(size: int, trained: int) -> None:
    backbone, images = convnet(size).double(), random_images(4, size).double()
    assert backbone.trained == len(backbone.blocks) == 3  # all of it by default
    backbone.train_last(trained)
    features = backbone(images)
    assert features.shape == (4, ConvNet.WIDTH) == (4, 512)
    torch.testing.assert_close(features, by_formula(backbone, images))
    assert backbone.trunk(images).shape[1] == {0: 64, 1: 64, 2: 32, 3: 3}[trained]
    trained_blocks = {name.split(".")[0] for name, value in backbone.net.named_parameters() if value.requires_grad}
    assert trained_blocks == {str(block) for block in range(3 - trained, 3)}
    if trained == 3:
        assert torch.equal(backbone.trunk(images), images)


@pytest.mark.parametrize("arm", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 8), (7, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_and_their_gradients_are_the_same_on_every_processor(
    monkeypatch: pytest.MonkeyPatch, arm: bool, shape: tuple[int, int], stride: int
) -> None:
    monkeypatch.setattr(module, "ON_ARM", arm)
    generator = torch.Generator().manual_seed(2)
    layer = Convolution(3, 4, stride=stride).double()
    images = torch.randn(2, *shape, 3, generator=generator, dtype=torch.float64).permute(0, 3, 1, 2).requires_grad_()
    found, expected = layer(images), nnf.conv2d(images, layer.weight, stride=stride, padding=1)
    torch.testing.assert_close(found, expected)
    towards = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    inputs = [images, layer.weight]
    for mine, theirs in zip(*(torch.autograd.grad(out, inputs, towards) for out in (found, expected)), strict=True):
        torch.testing.assert_close(mine, theirs)
    (alone,) = torch.autograd.grad(layer(images.detach()), layer.weight, towards)
    torch.testing.assert_close(alone, theirs)


@pytest.mark.parametrize("arm", [False, True])
def test_convolutions_follow_the_precision_of_their_weights_and_of_autocast(
    monkeypatch: pytest.MonkeyPatch, arm: bool
) -> None:
    monkeypatch.setattr(module, "ON_ARM", arm)
    layer, images = Convolution(3, 4, stride=2), random_images(2, 8)
    exact = layer(images)
    assert exact.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = layer(images)
        rounded.float().sum().backward()
    half = layer.to(torch.bfloat16)(images.to(torch.bfloat16))
    for each in (rounded, half):
        assert each.dtype == torch.bfloat16
        torch.testing.assert_close(each.float(), exact, atol=0.05, rtol=0.05)


def test_bfloat16_tokens_are_cast_to_the_type_of_the_weights() -> None:
    backbone = convnet().train_last(1)
    inputs = backbone.trunk(random_images(2, 16)).to(torch.bfloat16)
    assert torch.equal(backbone.tail(inputs), backbone.tail(inputs.float()))
