"""Backbones: networks that turn images into features, split into a frozen trunk and a trained tail."""

import copy
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.runs.facts import Spec as Spec
from sortal.system.files import write_atomically
from sortal.system.open_folder import make_folder

BACKBONE_FORMAT = "sortal backbone 1"


class Backbone(nn.Module, ABC):
    """A network split into features = tail(trunk(images)); the tail is the last `trained` blocks.

    Always in evaluation mode: no dropout, no drop path, fixed batch norm statistics.
    """

    def __init__(self, net: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.net = net
        self.spec = spec
        self.source = "random weights"  # origin of the weights, for display
        self.code = ""  # a digest of the code of a network that is not Sortal's
        self.trained = 0
        self.eval()

    @property
    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Return the blocks that `trained` counts, in order."""

    @abstractmethod
    def trunk(self, images: Tensor) -> Tensor:
        """Compute the tail's input from normalised images, (n, 3, image_size, image_size)."""

    def windowed_trunk(self, images: Tensor, patches: Tensor) -> Tensor:
        """Compute the same from some patches of the grid, whose numbers are (n, count); see `sees_windows`."""
        raise InputError(f"Windows need a vision transformer with position embeddings, which {self.spec.name} is not.")

    @abstractmethod
    def tail(self, inputs: Tensor) -> Tensor:
        """Compute features, (n, d), not normalised."""

    def add_tokens(self, count: int, *, seed: int = 0) -> None:
        """Add learned tokens to the input of the last block, which are trained and saved with the backbone."""
        raise InputError(f"Further tokens need a vision transformer, which {self.spec.name} is not. Use a ViT.")

    def token_rows(self, inputs: Tensor) -> Tensor:
        """Compute the class token and the added ones from the tail's input, (n, 1 + added, d), before the last norm."""
        raise InputError(f"Tokens need a vision transformer, which {self.spec.name} is not. Use a ViT.")

    def attention(self, images: Tensor) -> Tensor:
        """Return the attention maps of the class token, (n, heads, rows, columns)."""
        raise InputError(f"Attention maps need a class token, which {self.spec.name} does not have. Use a ViT.")

    def largest_query(self, inputs: Tensor) -> Tensor | None:
        """Compute the largest absolute query of the class token in the last block from the tail's input; or None."""
        return None

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """The rows and columns of patches that end the tail's input, of which it can do without some; or None."""
        return None

    @property
    def sees_windows(self) -> bool:
        """Whether the trunk can do without some patches, too: a cheap crop, whose patches keep their places."""
        return False

    def forward(self, images: Tensor) -> Tensor:
        return self.tail(self.trunk(images))

    @property
    def split(self) -> int:
        """The first block of the tail, which includes the last block even if it is not trained."""
        return len(self.blocks) - max(self.trained, 1)

    def train_last(self, blocks: int) -> Self:
        """Make the last blocks trainable, and freeze the other blocks, embeddings and the final norm."""
        if not isinstance(blocks, int) or not 0 <= blocks <= len(self.blocks):
            raise InputError(
                f"The blocks to train must be 0 to {len(self.blocks)} (all of {self.spec.name}), got {blocks!r}."
            )
        self.trained = blocks
        self.requires_grad_(False)
        for block in self.blocks[len(self.blocks) - blocks :]:
            block.requires_grad_(True)
        return self

    def train(self, mode: bool = True) -> Self:
        return super().train(False)

    def normalise(
        self, pixels: Tensor, flipped: Tensor | None = None, recolour: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Convert uint8 images, (n, height, width, 3), to the trunk's input; mirror those of the mask `flipped`.

        `recolour` changes images, (n, 3, height, width) from 0 to 1, before that.
        """
        images = pixels.permute(0, 3, 1, 2)
        if flipped is not None:
            images = torch.where(flipped[:, None, None, None], images.flip(3), images)
        if recolour is not None:
            images = recolour(images.float() / 255) * 255
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device)[:, None, None] * 255
            for values in (self.spec.mean, self.spec.std)
        )
        return ((images - mean) / std).to(self.dtype)

    @property
    def has_trunk(self) -> bool:
        """Whether any blocks precede the tail."""
        return self.split > 0

    @property
    def concurrent(self) -> bool:
        """Whether several threads may compute trunk and tail at a time: neither keeps anything of a call."""
        return False

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def in_bf16(self) -> Self:
        """Return a copy with weights in bfloat16."""
        return copy.deepcopy(self).to(torch.bfloat16)

    @property
    def fits_int8(self) -> bool:
        """Whether the trunk can compute in 8-bit integers, and is quicker so."""
        return False

    def in_int8(self) -> Self:
        """Return a copy whose trunk computes in 8-bit integers; itself if that does not fit it."""
        return self

    def fingerprint(self) -> str:
        """Return a digest of the weights and the spec, which determine the features."""
        return digest(dict(self.net.state_dict()), json.dumps(self.spec.described(), sort_keys=True) + self.code)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights to `path`.safetensors, under timm's names, and the spec to `path`.json."""
        from safetensors.torch import save

        base = Path(path)
        if base.suffix in (".json", ".safetensors"):
            base = base.with_suffix("")
        data = save({name: tensor.detach().cpu().contiguous() for name, tensor in self.net.state_dict().items()})
        about = {"format": BACKBONE_FORMAT, **self.spec.described(), "trained": self.trained, "source": self.source}
        about["sha256"] = hashlib.sha256(data).hexdigest()
        make_folder(base.parent)
        described = base.with_name(base.name + ".json")
        described.unlink(missing_ok=True)  # written last, as it holds the digest of the weights
        write_atomically(base.with_name(base.name + ".safetensors"), data)
        write_atomically(described, json.dumps(about, indent=2).encode())


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


def digest(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """Return the SHA-256 of named tensors and a text."""
    result = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        result.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        result.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()
