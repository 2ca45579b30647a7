"""Convolutional backbones: the small one against its formula, ResNets against timm's own forward pass."""

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.learning.backbones import convnet as module
from sortal.learning.backbones.backbone import Spec
from sortal.learning.backbones.convnet import ConvNet, Convolution, ResNet


def convnet(size: int = 16) -> ConvNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = ConvNet(Spec(name="convnet", image_size=size, shorter_side=size, width=512))
        for parameter in backbone.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return backbone


def resnet(name: str = "test_resnet", **changes: Any) -> ResNet:
    """Make a ResNet whose batch norms have non-trivial statistics."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = timm.create_model(name, num_classes=0, **changes)
        for parameter in net.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        for buffer in net.buffers():
            if buffer.is_floating_point():
                buffer += torch.rand_like(buffer)
    width: Any = net.num_features
    backbone = ResNet(net, Spec(name=name, image_size=32, shorter_side=32, width=width))
    backbone.train_last(1)
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
    for backbone, images in ((convnet(), random_images(2, 16)), (resnet(), random_images(2, 32))):
        inputs = backbone.train_last(1).trunk(images).to(torch.bfloat16)
        assert torch.equal(backbone.tail(inputs), backbone.tail(inputs.float()))


# ResNets


@pytest.mark.parametrize(
    ("name", "changes", "blocks"),
    [
        ("test_resnet", {}, 4),  # a deep stem, blocks of both kinds
        ("resnet50", {"channels": (8, 16, 16, 32)}, 16),
    ],
)
def test_features_of_a_resnet_match_timm(name: str, changes: dict[str, Any], blocks: int) -> None:
    backbone, images = resnet(name, **changes).double(), random_images(3, 64).double()
    assert len(backbone.blocks) == blocks
    with torch.no_grad():
        expected = backbone.net(images)
        assert expected.shape == (3, backbone.spec.width)
        for trained in (0, 1, 2, blocks):
            torch.testing.assert_close(backbone.train_last(trained)(images), expected)


def test_batch_norms_train_their_weights_but_keep_their_statistics() -> None:
    backbone, images = resnet(), random_images(4, 32)
    buffers = {name: value.clone() for name, value in backbone.named_buffers()}
    norm: Any = backbone.blocks[-1].bn1
    weight = norm.weight.detach().clone()
    backbone.train()
    optimiser = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1)
    backbone(images).square().sum().backward()
    optimiser.step()
    assert all(torch.equal(value, buffers[name]) for name, value in backbone.named_buffers())
    assert not torch.equal(norm.weight, weight)


def test_the_stem_is_never_trained() -> None:
    backbone = resnet()
    backbone.train_last(4)
    frozen = {name.split(".")[0] for name, value in backbone.net.named_parameters() if not value.requires_grad}
    assert frozen == {"conv1", "bn1"}
    assert backbone.trunk(random_images(1, 32)).shape[1] == 32  # the output of the stem
