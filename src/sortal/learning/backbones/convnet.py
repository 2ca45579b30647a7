"""Convolutional backbones: a small network for tiny images, trained from scratch, and ResNets for comparison."""

from typing import Any, cast

from torch import Tensor, nn

from sortal.learning.backbones.backbone import Backbone, Spec


class ConvNet(Backbone):
    """Three convolutions for tiny images, all trained, so that the trunk is empty.

    The last map is averaged over quadrants: one global mean cannot tell a 6 from a 9, and no mean would encode where a
    digit is placed. Group norm keeps features independent of the rest of the batch.
    """

    WIDTH = 512

    def __init__(self, spec: Spec) -> None:
        blocks = [_convolution(3, 32, stride=2), _convolution(32, 64, stride=2), _convolution(64, 128, stride=1)]
        super().__init__(nn.Sequential(*blocks), spec)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.train_last(len(blocks))

    @property
    def blocks(self) -> list[nn.Module]:
        return list(cast(nn.Sequential, self.net))

    def trunk(self, images: Tensor) -> Tensor:
        return _through(self.blocks[: self.split], images)

    def tail(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.pool(_through(self.blocks[self.split :], inputs.to(self.dtype))).flatten(1)
        return features


class ResNet(Backbone):
    """A ResNet of timm; its blocks are the residual blocks, its features the global average of the last map."""

    @property
    def blocks(self) -> list[nn.Module]:
        net = cast(Any, self.net)
        return [block for stage in (net.layer1, net.layer2, net.layer3, net.layer4) for block in stage]

    def trunk(self, images: Tensor) -> Tensor:
        net = cast(Any, self.net)
        return _through(self.blocks[: self.split], net.maxpool(net.act1(net.bn1(net.conv1(images)))))

    def tail(self, inputs: Tensor) -> Tensor:
        return _through(self.blocks[self.split :], inputs.to(self.dtype)).mean(dim=(2, 3))


def _convolution(before: int, after: int, *, stride: int) -> nn.Module:
    convolution = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(8, after), nn.GELU())


def _through(blocks: list[nn.Module], values: Tensor) -> Tensor:
    for block in blocks:
        values = block(values)
    return values
