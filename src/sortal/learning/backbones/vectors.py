"""Frozen features with a small head that is trained: for feature vectors, and for networks that cannot be trained."""

from typing import cast

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from sortal.config import VECTORS
from sortal.learning.backbones.backbone import Backbone, Spec

HEAD_WIDTH = 512  # of the hidden layer
GAIN = 10.0  # of what it adds to a row, at the learning rate of whole networks
PICTURE = 128  # pixels: the shorter side of pictures that are only looked at


class ResidualHead(nn.Module):
    """Rows of unit length (n, d), each moved by a small network; until it is trained, not at all."""

    def __init__(self, width: int, *, hidden: int = HEAD_WIDTH, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # quicker than skip_init, which imports sympy
            self.first, self.last = nn.Linear(width, hidden), nn.Linear(hidden, width)
        nn.init.normal_(self.first.weight, generator=torch.Generator().manual_seed(seed))
        for zero in (self.first.bias, self.last.weight, self.last.bias):
            nn.init.zeros_(zero)

    def forward(self, rows: Tensor) -> Tensor:
        unit = nnf.normalize(rows.float(), dim=1)
        return unit + GAIN * self.last(nnf.gelu(self.first(unit)))


class Centring(nn.Module):
    """Directions of rows (n, d), seen from their mean (d,): most encoders give all images a large common part."""

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.float())

    def forward(self, rows: Tensor) -> Tensor:
        return nnf.normalize(rows.float(), dim=1) - self.mean


class VectorBackbone(Backbone):
    """Feature vectors (n, d) instead of images: there is no trunk, and a head on centred directions is the tail."""

    def __init__(self, mean: Tensor, *, seed: int = 0) -> None:
        spec = Spec(name=VECTORS, image_size=1, shorter_side=PICTURE, width=len(mean))
        super().__init__(nn.Sequential(Centring(mean), ResidualHead(len(mean), seed=seed)), spec)
        self.source = "none: features were given"
        self.train_last(1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [cast(nn.Sequential, self.net)[1]]

    def normalise(self, pixels: Tensor, *_: object) -> Tensor:
        return pixels

    def trunk(self, images: Tensor) -> Tensor:
        return images

    def tail(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)
