"""Backbones: networks that turn images into features, split into a frozen trunk and a trained tail."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.segments import write_atomically

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
FORMAT = "sortal backbone 1"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What a backbone must be given, and what it gives; kept beside saved weights."""

    name: str
    image_size: int  # height and width of its input
    shorter_side: int  # what images are resized to before they are cropped
    width: int  # d, numbers in a feature
    mean: tuple[float, float, float] = MEAN
    std: tuple[float, float, float] = STD


class Backbone(nn.Module, ABC):
    """A network as features = tail(trunk(images)): the tail is the last `trained` blocks, the trunk all before them.

    It is always in evaluation mode: no dropout, no drop path, and batch norms keep their statistics.
    """

    def __init__(self, net: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.net = net
        self.spec = spec
        self.source = "random weights"  # where the weights came from, for people
        self.trained = 0
        self.eval()

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """What `trained` counts, in order."""

    @abstractmethod
    def trunk(self, images: Tensor) -> Tensor:
        """What enters the tail, of normalised images, (n, 3, image_size, image_size)."""

    @abstractmethod
    def tail(self, inputs: Tensor) -> Tensor:
        """The features, (n, d), not normalised."""

    def attention(self, images: Tensor) -> Tensor:
        """Where the class token looks, (n, heads, rows, columns)."""
        raise InputError(f"{self.spec.name} has no class token, so there is no attention to show. Use a ViT.")

    def forward(self, images: Tensor) -> Tensor:
        return self.tail(self.trunk(images))

    @property
    def split(self) -> int:
        """The first block of the tail, which always has the last one, trained or not."""
        return len(self.blocks) - max(self.trained, 1)

    def train_last(self, blocks: int) -> Backbone:
        """Let the last blocks be trained and freeze all the rest: other blocks, embeddings, the final norm."""
        if not isinstance(blocks, int) or isinstance(blocks, bool) or not 0 <= blocks <= len(self.blocks):
            raise InputError(
                f"The blocks to train must be from 0 to {len(self.blocks)} (all of {self.spec.name}), got {blocks!r}."
            )
        self.trained = blocks
        self.requires_grad_(False)
        for block in self.blocks[len(self.blocks) - blocks :]:
            block.requires_grad_(True)
        return self

    def train(self, mode: bool = True) -> Backbone:
        super().train(False)
        return self

    def normalise(self, pixels: Tensor, flipped: Tensor | None = None) -> Tensor:
        """uint8 images, (n, height, width, 3), as the trunk wants them; those of the mask `flipped` mirrored."""
        images = pixels.permute(0, 3, 1, 2)
        if flipped is not None:
            images = torch.where(flipped[:, None, None, None], images.flip(3), images)
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device)[:, None, None] * 255
            for values in (self.spec.mean, self.spec.std)
        )
        return ((images - mean) / std).to(self.dtype)

    @property
    def has_trunk(self) -> bool:
        """Whether there is anything before the tail."""
        return self.split > 0

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def in_bf16(self) -> Backbone:
        """A copy whose weights are in bfloat16, to be run as it is."""
        return copy.deepcopy(self).to(torch.bfloat16)

    def fingerprint(self) -> str:
        """A hash of what decides the features: the weights and the spec."""
        return digest(dict(self.net.state_dict()), json.dumps(asdict(self.spec), sort_keys=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights as `path`.safetensors, under timm's names, and what belongs to them as `path`.json."""
        from safetensors.torch import save

        base = Path(path)
        if base.suffix in (".json", ".safetensors"):
            base = base.with_suffix("")
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.net.state_dict().items()}
        data = save(state)
        about = {"format": FORMAT, **asdict(self.spec), "trained": self.trained, "source": self.source}
        base.parent.mkdir(parents=True, exist_ok=True)
        base.with_name(base.name + ".json").unlink(missing_ok=True)  # it vouches for the weights, so it comes last
        write_atomically(base.with_name(base.name + ".safetensors"), data)
        text = json.dumps({**about, "sha256": hashlib.sha256(data).hexdigest()}, indent=2)
        write_atomically(base.with_name(base.name + ".json"), text.encode())


def digest(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """SHA-256 of tensors under their names."""
    result = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        result.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()
