"""Backbones of a person's own: any module that turns images into features, or a `Backbone` with a trunk and a tail."""

import copy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from sortal.config import registered_backbone
from sortal.errors import InputError, quoted
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.methods.code import source_of

USUAL_SIZE = 224  # of images, for a module without an `image_size`


class ModuleBackbone(Backbone):
    """A module that computes features (n, d) of images (n, 3, size, size).

    The blocks of an `nn.Sequential` are its children; any other module is one block, which is trained as a whole.
    """

    @property
    def blocks(self) -> list[nn.Module]:
        return [*self.net] if isinstance(self.net, nn.Sequential) else [self.net]

    def trunk(self, images: Tensor) -> Tensor:
        for block in self.blocks[: self.split]:
            images = block(images)
        return images

    def tail(self, inputs: Tensor) -> Tensor:
        features = inputs.to(self.dtype)
        for block in self.blocks[self.split :]:
            features = block(features)
        return features


def load_foreign(name: str, image_size: int | None) -> Backbone:
    """Make the backbone that a person has named, with the weights that its code gives it."""
    found: Any = registered_backbone(name)
    made = copy.deepcopy(found) if isinstance(found, nn.Module) else found()
    if not isinstance(made, nn.Module):
        raise InputError(f"The backbone {name} must be a torch.nn.Module or make one, got {quoted(made, 100)}.")
    made.eval()
    backbone = made if isinstance(made, Backbone) else _wrapped(made, name, image_size)
    if image_size not in (None, backbone.spec.image_size):
        raise InputError(f"image_size must be {backbone.spec.image_size} for {name}, got {image_size}.")
    backbone.spec = replace(backbone.spec, name=name)
    backbone.code = source_of(*{type(module): None for module in backbone.modules()})
    return backbone


def _wrapped(net: nn.Module, name: str, image_size: int | None) -> Backbone:
    own = cast(Any, net)
    size: int = getattr(own, "image_size", USUAL_SIZE) if image_size is None else image_size
    colours: dict[str, Any] = {
        key: tuple(getattr(own, key)) for key in ("mean", "std") if isinstance(getattr(own, key, None), tuple)
    }
    with torch.no_grad():
        try:
            features = net(torch.zeros(1, 3, size, size))
        except Exception as error:
            raise InputError(
                f"The backbone {name} must compute features of images (n, 3, {size}, {size}), but it fails: {error}."
            ) from error
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != 1:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(f"The backbone {name} must return features of shape (n, d), got {shape} for one image.")
    shorter = int(getattr(own, "shorter_side", round(size * 256 / 224)))
    spec = Spec(name=name, image_size=size, shorter_side=shorter, width=features.shape[1], **colours)
    return ModuleBackbone(net, spec)
