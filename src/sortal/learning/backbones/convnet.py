"""A small convolutional network for tiny images, trained from scratch."""

import functools
import platform
from typing import Any, cast

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sortal.learning.backbones.backbone import ModuleBackbone, Spec

ON_ARM = platform.machine().lower() in ("aarch64", "arm64")
# F(4, 3) of Winograd (Lavin and Gray, CVPR 2016): four outputs of three weights by six products. Of the six inputs, the
# first and the last are the margin, so columns for four are left.
OF_INPUTS = ((0, -5, 0, 1), (-4, -4, 1, 1), (4, -4, -1, 1), (-2, -1, 2, 1), (2, -1, -2, 1), (4, 0, -5, 0))
OF_WEIGHTS = ((6, 0, 0), (-4, -4, -4), (-4, 4, -4), (1, 2, 4), (1, -2, 4), (0, 0, 24))  # in 24ths
OF_PRODUCTS = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


class ConvNet(ModuleBackbone):
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

    def tail(self, inputs: Tensor) -> Tensor:
        return self.pool(super().tail(inputs)).flatten(1)


def _convolution(before: int, after: int, *, stride: int) -> nn.Module:
    return nn.Sequential(Convolution(before, after, stride=stride), nn.GroupNorm(8, after), nn.GELU())


class Convolution(nn.Conv2d):
    """A convolution of 3 × 3 pixels; on ARM processors as a matrix product of patches.

    Torch's own takes 1.6 times as long there on tiny maps, and 3.4 times if channels are innermost, as they are in
    stored images. Elsewhere, that order slows down the layers that follow. Maps of 4 × 4 pixels, the last ones of
    the default size, take a quarter of the multiplications.
    """

    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__(before, after, 3, stride=stride, padding=1, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if input.device.type != "cpu":
            return super().forward(input)
        if not ON_ARM or torch.is_autocast_enabled("cpu") or torch.onnx.is_in_onnx_export():
            return super().forward(input.contiguous())
        exact = input.dtype in (torch.float32, torch.float64)
        if exact and self.stride == (1, 1) and input.shape[2:] == (4, 4):
            return _small_map(input, self.weight)
        return cast(Tensor, _PatchProduct.apply(input, self.weight, self.stride[0]))  # type: ignore[no-untyped-call]


def _small_map(images: Tensor, weight: Tensor) -> Tensor:
    """Convolve maps of 4 × 4 pixels with 3 × 3 weights and a margin of 1, by 36 products of (n, channels) matrices."""
    inputs, weights, products = _transforms(images.dtype)
    each = (inputs @ images.permute(2, 3, 0, 1).flatten(0, 1).flatten(1)).unflatten(1, images.shape[:2])
    by = (weights @ weight.permute(2, 3, 1, 0).flatten(0, 1).flatten(1)).unflatten(1, (images.shape[1], -1))
    outputs = products @ torch.bmm(each, by).flatten(1)  # (16, n · channels)
    maps = outputs.unflatten(1, (len(images), -1)).unflatten(0, (4, 4)).permute(2, 3, 0, 1)
    return maps.contiguous(memory_format=torch.channels_last)  # which the layers that follow are quicker with


@functools.cache
def _transforms(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the transforms of maps (36, 16), weights (36, 9) and products (16, 36)."""
    rows = [torch.tensor(each, dtype=torch.float64) for each in (OF_INPUTS, OF_WEIGHTS, OF_PRODUCTS)]
    inputs, weights, products = (torch.kron(each, each) for each in rows)
    return inputs.to(dtype), (weights / 24**2).to(dtype), products.to(dtype)


class _PatchProduct(torch.autograd.Function):
    """A convolution of 3 × 3 pixels with a margin of 1 as a product of patches (rows, 9 · channels) and weights."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: int) -> Tensor:
        padded = nnf.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))  # channels innermost
        patches = padded.unfold(1, 3, stride).unfold(2, 3, stride)  # (n, height, width, channels, 3, 3)
        rows = patches.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(0, 2)
        matrix = weight.permute(2, 3, 1, 0).flatten(0, 2)
        ctx.save_for_backward(rows, matrix)
        ctx.padded, ctx.stride, ctx.map = padded.shape, stride, patches.shape[:3]
        return (rows @ matrix).unflatten(0, ctx.map).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        rows, matrix = ctx.saved_tensors
        _, height, width = ctx.map
        by_row = gradient.permute(0, 2, 3, 1).flatten(0, 2)
        of_weight = (rows.T @ by_row).unflatten(0, (3, 3, -1)).permute(3, 2, 0, 1)
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None
        patches = (by_row @ matrix.T).unflatten(1, (3, 3, -1)).unflatten(0, ctx.map)
        whole, step = gradient.new_zeros(ctx.padded), ctx.stride
        for top in range(3):
            for left in range(3):
                down, across = slice(top, top + step * height, step), slice(left, left + step * width, step)
                whole[:, down, across] += patches[:, :, :, top, left]
        return whole[:, 1:-1, 1:-1].permute(0, 3, 1, 2), of_weight, None
