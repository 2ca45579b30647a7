"""Any network that computes a row of features: its last stage is trained or, where that cannot be, a head on it."""

import logging
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.backbones.splitting import CannotSplitError, Half, split_before, stages_of
from sortal.learning.backbones.vectors import ResidualHead

logger = logging.getLogger(__name__)

RESIDUAL_HEAD = "residual_head"  # its name among the weights


class Network(Backbone):
    """A network of timm or open_clip with pooled features; its blocks are the stages that it can be cut at."""

    def __init__(self, net: nn.Module, spec: Spec) -> None:
        super().__init__(net, spec)
        self.stages = tuple(stages_of(net))
        self._found = dict[str, tuple[Half, Half]]()  # by the stage before which it is cut
        self.train_last(1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [self.net.get_submodule(name) for name in self.stages]

    def train_last(self, blocks: int) -> Self:
        super().train_last(blocks)
        try:
            self._halves()
        except CannotSplitError as error:
            raise InputError(f"{self.spec.name} cannot be cut before its last {blocks} stages: {error}.") from error
        return self

    @property
    def concurrent(self) -> bool:
        return True

    def trunk(self, images: Tensor) -> Tensor:
        return self._halves()[0](self.net, images)

    def tail(self, inputs: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(inputs.device.type):
            inputs = inputs.to(self.dtype)  # from the bfloat16 of cached tokens
        return self._halves()[1](self.net, inputs)

    @cached_property
    def _grid(self) -> tuple[int, int] | None:
        net, size = cast(Any, self.net), self.spec.image_size
        grid = getattr(getattr(net, "patch_embed", net), "grid_size", None)
        if not isinstance(grid, tuple) or len(grid) != 2:
            return None
        with torch.no_grad():
            inputs = self.trunk(torch.zeros(1, 3, size, size, device=self.device, dtype=self.dtype))
            patches = grid[0] * grid[1]
            if inputs.dim() != 3 or not patches <= inputs.shape[1] <= patches + grid[0]:
                return None
            try:
                self.tail(inputs[:, : inputs.shape[1] - patches // 2])
            except Exception:  # of a block that needs every patch where it was
                return None
        return grid

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        return self._grid

    def _halves(self) -> tuple[Half, Half]:
        name = self.stages[self.split]
        if name not in self._found:
            self._found[name] = split_before(self.net, name)
        return self._found[name]


class FrozenNetwork(Backbone):
    """A network that cannot be cut: a head on its features is trained instead."""

    def __init__(self, net: nn.Module, spec: Spec) -> None:
        super().__init__(net, spec)
        self.net.add_module(RESIDUAL_HEAD, ResidualHead(spec.width))
        self.train_last(1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [self.net.get_submodule(RESIDUAL_HEAD)]

    @property
    def has_trunk(self) -> bool:
        return True

    def trunk(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.net(images))

    def tail(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.net.get_submodule(RESIDUAL_HEAD)(inputs))


def network(net: nn.Module, spec: Spec) -> Backbone:
    """Make a backbone of a network, of which as much is trained as can be; the spec's width is found here."""
    first = next(net.parameters())
    size, drawn = spec.image_size, torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, size, size, generator=drawn, device="cpu").to(first.device, first.dtype)
    net.eval()
    with torch.no_grad():
        features = net(image)
        if not isinstance(features, Tensor) or features.dim() != 2:
            raise InputError(f"A backbone must compute a row of features for an image, which {spec.name} does not.")
        spec = replace(spec, width=features.shape[1])
        try:
            if stages_of(net):
                made = Network(net, spec)
                if image.is_meta:
                    return made
                found = made.tail(made.trunk(image))
                if torch.allclose(found, features, rtol=1e-3, atol=1e-3, equal_nan=True):
                    return made
        except Exception as error:  # what traces need not run
            logger.debug("%s cannot be split: %s", spec.name, error)
    return FrozenNetwork(net, spec)
