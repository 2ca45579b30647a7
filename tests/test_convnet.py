"""Convolutional backbones: the small one against its formula, ResNets against timm's own forward pass."""

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from sortal.convnet import ConvNet, ResNet
from sortal.errors import InputError
from sortal.network import Spec


def convnet(size: int = 16) -> ConvNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = ConvNet(Spec(name="convnet", image_size=size, shorter_side=size, width=512))
        for parameter in backbone.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return backbone


def resnet(name: str = "test_resnet", **changes: Any) -> ResNet:
    """A ResNet whose batch norms have seen something."""
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
    """Three convolutions with group norm and GELU, then the means of the four quarters of the last map."""
    state = backbone.net.state_dict()
    for block, stride in enumerate((2, 2, 1)):
        images = nnf.conv2d(images, state[f"{block}.0.weight"], stride=stride, padding=1)
        images = nnf.gelu(nnf.group_norm(images, 8, state[f"{block}.1.weight"], state[f"{block}.1.bias"]))
    half = images.shape[2] // 2
    quarters = [images[:, :, rows, columns].mean(dim=(2, 3)) for rows in halves(half) for columns in halves(half)]
    return torch.stack(quarters, dim=2).flatten(1)


def halves(half: int) -> tuple[slice, slice]:
    return slice(0, half), slice(half, 2 * half)


@pytest.mark.parametrize("size", [8, 16, 24, 32])
def test_features_are_means_over_quarters_of_the_last_map(size: int) -> None:
    backbone, images = convnet(size), random_images(4, size)
    features = backbone(images)
    assert features.shape == (4, ConvNet.WIDTH) == (4, 512)
    torch.testing.assert_close(features, by_formula(backbone, images))


@pytest.mark.parametrize("size", [8, 9, 13, 17, 28])
def test_images_of_odd_sizes_will_do(size: int) -> None:
    assert convnet(size)(random_images(2, size)).shape == (2, 512)


def test_all_of_the_small_network_is_trained_so_its_trunk_does_nothing() -> None:
    backbone, images = convnet(), random_images(3, 16)
    assert backbone.trained == len(backbone.blocks) == 3
    assert all(parameter.requires_grad for parameter in backbone.parameters())
    assert not backbone.has_trunk
    assert torch.equal(backbone.trunk(images), images)


@pytest.mark.parametrize("trained", [0, 1, 2, 3])
def test_the_small_network_can_be_frozen_in_part(trained: int) -> None:
    backbone, images = convnet(), random_images(3, 16)
    expected = backbone(images)
    backbone.train_last(trained)
    assert torch.equal(backbone(images), expected)
    assert backbone.trunk(images).shape[1] == {0: 64, 1: 64, 2: 32, 3: 3}[trained]
    trained_blocks = {name.split(".")[0] for name, value in backbone.net.named_parameters() if value.requires_grad}
    assert trained_blocks == {str(block) for block in range(3 - trained, 3)}


def test_an_image_has_its_features_whatever_else_is_in_the_batch() -> None:
    backbone, images = convnet(), random_images(5, 16)
    alone = torch.cat([backbone(image[None]) for image in images])
    torch.testing.assert_close(backbone(images), alone)
    torch.testing.assert_close(backbone(images.flip(0)), alone.flip(0))


def test_features_tell_where_things_are() -> None:
    """A mean over the whole map would hardly tell an image from itself upside down."""
    backbone = convnet()
    images = torch.zeros(1, 3, 16, 16)
    images[:, :, :6, :6] = 2.0
    features = torch.cat([backbone(images), backbone(images.flip(2, 3))]).unflatten(1, (128, 4)).detach()
    assert (features[0] - features[1]).norm() > 3 * (features[0].mean(dim=1) - features[1].mean(dim=1)).norm()


def test_tokens_in_bfloat16_are_taken_in_the_type_of_the_weights() -> None:
    for backbone, images in ((convnet(), random_images(2, 16)), (resnet(), random_images(2, 32))):
        inputs = backbone.train_last(1).trunk(images).to(torch.bfloat16)
        assert torch.equal(backbone.tail(inputs), backbone.tail(inputs.float()))


# ResNets


@pytest.mark.parametrize(
    ("name", "changes", "blocks"),
    [
        ("test_resnet", {}, 4),  # a deep stem, blocks of both kinds
        ("resnet50", {"channels": (8, 16, 16, 32)}, 16),
        ("resnet18", {"channels": (8, 16, 16, 32)}, 8),
        ("seresnet50", {"channels": (16, 16, 16, 32)}, 16),
        ("resnet26t", {"channels": (8, 16, 16, 32)}, 8),
    ],
)
def test_features_of_a_resnet_are_those_of_timm(name: str, changes: dict[str, Any], blocks: int) -> None:
    backbone, images = resnet(name, **changes), random_images(3, 64)
    assert len(backbone.blocks) == blocks
    with torch.no_grad():
        expected = backbone.net(images)
        assert expected.shape == (3, backbone.spec.width)
        for trained in (0, 1, 2, blocks):
            torch.testing.assert_close(backbone.train_last(trained)(images), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_resnet_are_those_of_timm() -> None:
    backbone, images = resnet().double(), random_images(3, 64).double()
    for trained in (1, 2):
        backbone.train_last(trained)
        found = []
        for network in (backbone, backbone.net):
            backbone.zero_grad(set_to_none=True)
            network(images).square().sum().backward()
            found.append({name: p.grad for name, p in backbone.net.named_parameters() if p.grad is not None})
        names = [f"layer{stage}" for stage in range(5 - trained, 5)]
        assert sorted({name.split(".")[0] for name in found[0]}) == names
        assert found[0].keys() == found[1].keys()
        for name, gradient in found[0].items():
            torch.testing.assert_close(gradient, found[1][name], msg=name)


def test_batch_norms_keep_their_statistics_and_train_their_weights() -> None:
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
    one, all_of_it = backbone(images[:1]), backbone(images)
    torch.testing.assert_close(one, all_of_it[:1], rtol=1e-4, atol=1e-5)  # the batch does not matter


def test_the_stem_is_never_trained() -> None:
    backbone = resnet()
    backbone.train_last(4)
    frozen = {name.split(".")[0] for name, value in backbone.net.named_parameters() if not value.requires_grad}
    assert frozen == {"conv1", "bn1"}
    assert backbone.trunk(random_images(1, 32)).shape[1] == 32  # the stem's map goes in
    assert not backbone.has_trunk


@pytest.mark.parametrize("backbone", [convnet(), resnet()])
def test_there_is_no_attention_to_show(backbone: ConvNet | ResNet) -> None:
    with pytest.raises(InputError, match=rf"^{backbone.spec.name} has no class token, so .* no attention .* Use a ViT"):
        backbone.attention(random_images(1, 32))


def test_no_part_is_left_in_training_mode() -> None:
    for backbone in (convnet(), resnet()):
        nn.Sequential(backbone).train()
        assert not any(module.training for module in backbone.modules())
