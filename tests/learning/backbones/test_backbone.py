"""Backbone: trained blocks, normalised images, fingerprints, and saving."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.learning.backbones.backbone import BACKBONE_FORMAT, Backbone, Spec, digest
from sortal.system.files import write_atomically


class Chain(Backbone):
    """An embedding, four linear blocks with dropout and batch norm between them, and a final scale."""

    def __init__(self, spec: Spec | None = None, depth: int = 4) -> None:
        blocks = [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)) for _ in range(depth)]
        net = nn.Sequential(nn.Linear(3, 3), *blocks, nn.LayerNorm(3))
        generator = torch.Generator().manual_seed(0)
        for parameter in net.parameters():
            nn.init.normal_(parameter, generator=generator)
        super().__init__(net, spec or Spec(name="chain", image_size=4, shorter_side=5, width=3))

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self.net.children())[1:-1]

    def trunk(self, images: Tensor) -> Tensor:
        net: Any = self.net
        inputs: Tensor = net[: 1 + self.split](images.mean(dim=(2, 3)))
        return inputs

    def tail(self, inputs: Tensor) -> Tensor:
        net: Any = self.net
        features: Tensor = net[1 + self.split :](inputs)
        return features


def random_images() -> Tensor:
    return torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def trained_parts(backbone: Backbone) -> set[int]:
    """Return the positions of the parts that are trained, each of them completely."""
    parts = [[value.requires_grad for value in part.parameters()] for part in backbone.net.children()]
    assert all(any(part) == all(part) for part in parts)
    return {place for place, part in enumerate(parts) if any(part)}


# Trained blocks


@pytest.mark.parametrize("blocks", range(5))
def test_only_the_last_blocks_are_trained(blocks: int) -> None:
    """Whatever was trained before. The tail contains the last block even if it is frozen."""
    backbone = Chain().train_last(4)
    assert backbone.train_last(blocks) is backbone
    assert backbone.trained == blocks
    assert trained_parts(backbone) == set(range(5 - blocks, 5))  # part 0 is the embedding
    assert backbone.split == [3, 3, 2, 1, 0][blocks]
    assert backbone.has_trunk == (blocks < 4)
    images = random_images()
    assert torch.equal(backbone(images), Chain()(images))
    assert torch.equal(backbone.tail(backbone.trunk(images)), backbone(images))
    assert not Chain(depth=1).train_last(0).has_trunk


@pytest.mark.parametrize("blocks", [-1, 5, 1.0])
def test_an_invalid_number_of_blocks_is_refused(blocks: Any) -> None:
    backbone = Chain().train_last(2)
    with pytest.raises(InputError) as caught:
        backbone.train_last(blocks)
    assert str(caught.value) == f"The blocks to train must be 0 to 4 (all of chain), got {blocks!r}."
    assert backbone.trained == 2  # unchanged
    assert trained_parts(backbone) == {3, 4}


def test_a_backbone_is_always_in_evaluation_mode() -> None:
    backbone = Chain().train_last(4)
    images = random_images()
    before, buffers = backbone(images), {name: value.clone() for name, value in backbone.named_buffers()}
    assert backbone.train() is backbone
    nn.Sequential(backbone).train()  # as part of another module
    assert not any(module.training for module in backbone.modules())
    assert torch.equal(backbone(images), before)  # no dropout
    assert all(torch.equal(value, buffers[name]) for name, value in backbone.named_buffers())


# Images


def by_hand(pixels: NDArray[np.uint8], spec: Spec, flipped: list[bool]) -> NDArray[np.float64]:
    """Normalise pixel by pixel in double precision."""
    n, height, width, _ = pixels.shape
    out = np.empty((n, 3, height, width))
    for i, y, x, c in np.ndindex(n, height, width, 3):
        source = width - 1 - x if flipped[i] else x
        out[i, c, y, x] = (float(pixels[i, y, source, c]) / 255 - spec.mean[c]) / spec.std[c]
    return out


@settings(deadline=None, max_examples=30)
@given(
    data=st.data(),
    n=st.integers(0, 4),
    height=st.integers(1, 4),
    width=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_normalised_images_match_those_computed_pixel_by_pixel(
    data: st.DataObject, n: int, height: int, width: int, dtype: torch.dtype
) -> None:
    backbone = Chain(Spec(name="x", image_size=1, shorter_side=1, width=1, mean=(0.5, 0.2, 0.0), std=(0.5, 0.1, 1.0)))
    backbone.to(dtype)
    shape = (n, height, width, 3)
    size = n * height * width * 3
    pixels = np.array(data.draw(st.lists(st.integers(0, 255), min_size=size, max_size=size)), np.uint8).reshape(shape)
    flipped = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    given_pixels = torch.from_numpy(pixels.copy())
    images = backbone.normalise(given_pixels, torch.tensor(flipped, dtype=torch.bool))
    assert images.dtype == backbone.dtype == dtype
    assert backbone.device == torch.device("cpu")
    # Values of up to 10, rounded a few times in float32 and once to the type of the weights.
    off = 10 * max(4 * 2.0**-23, torch.finfo(dtype).eps)
    np.testing.assert_allclose(images.double().numpy(), by_hand(pixels, backbone.spec, flipped), rtol=0, atol=off)
    assert np.array_equal(given_pixels.numpy(), pixels)  # unchanged
    assert torch.equal(
        backbone.normalise(given_pixels), backbone.normalise(given_pixels, torch.zeros(n, dtype=torch.bool))
    )


# Fingerprints


def test_a_digest_covers_names_types_shapes_and_bytes() -> None:
    """Order and memory layout do not matter."""
    tensors = {"b": torch.tensor([1, 2], dtype=torch.int16), "a": torch.tensor(1.5)}
    content = b"about" + b"a torch.float32 ()" + b"\x00\x00\xc0\x3f" + b"b torch.int16 (2,)" + b"\x01\x00\x02\x00"
    assert digest(tensors, "about") == hashlib.sha256(content).hexdigest()
    shapes: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0, 3)]
    for dtype in (torch.bool, torch.bfloat16, torch.float64):
        assert len({digest({"a": torch.zeros(shape, dtype=dtype)}) for shape in shapes}) == 4
    values = torch.arange(24.0).reshape(1, 4, 2, 3)
    other = {"b": torch.ones(4)[::2], "a": values.contiguous(memory_format=torch.channels_last).requires_grad_()}
    assert digest({"a": values, "b": torch.ones(2)}) == digest(other)


def test_the_fingerprint_depends_on_every_weight_and_on_the_spec_alone() -> None:
    backbone = Chain()
    spec, before = backbone.spec, backbone.fingerprint()
    changes: dict[str, Any] = {"name": "other", "image_size": 8, "shorter_side": 6, "width": 4}
    changes |= {"mean": (0.485, 0.456, 0.407), "std": (0.229, 0.224, 0.226)}
    prints = {before}
    for name, value in changes.items():
        backbone.spec = replace(spec, **{name: value})
        prints.add(backbone.fingerprint())
    assert len(prints) == 1 + len(changes)
    backbone.spec = spec
    backbone.source = "somewhere else"
    assert backbone.train_last(3).fingerprint() == before == Chain().fingerprint()
    for value in backbone.net.state_dict().values():
        value.view(-1)[-1:].add_(1)
        prints.add(backbone.fingerprint())
    assert len(prints) == 1 + len(changes) + len(backbone.net.state_dict())


# Saving


def test_weights_are_saved_under_their_own_names_with_a_json_of_the_rest(tmp_path: Path) -> None:
    backbone = Chain().train_last(2)
    backbone.source = "a file"
    weight: Any = backbone.net.get_parameter("0.weight")
    weight.data = weight.data.T.contiguous().T
    assert not weight.is_contiguous()
    backbone.save(tmp_path / "new" / "folder" / "best.v1")  # a dot is part of the name
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["best.v1.json", "best.v1.safetensors"]
    saved, own = load_file(folder / "best.v1.safetensors"), backbone.net.state_dict()
    assert saved.keys() == own.keys()
    assert all(torch.equal(saved[name], own[name]) and saved[name].dtype == own[name].dtype for name in own)
    assert json.loads((folder / "best.v1.json").read_text()) == {
        "format": BACKBONE_FORMAT,
        **json.loads(json.dumps(backbone.spec.described())),
        "trained": 2,
        "source": "a file",
        "sha256": hashlib.sha256((folder / "best.v1.safetensors").read_bytes()).hexdigest(),
    }
    backbone.save(folder / "best.json")  # the ending of either file may be given
    assert (folder / "best.safetensors").read_bytes() == (folder / "best.v1.safetensors").read_bytes()


@pytest.mark.parametrize("fails", [".safetensors", ".json"])
def test_a_failed_save_leaves_no_json_of_other_weights(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever overwriting a backbone fails, no .json is left that describes other weights."""
    backbone = Chain()
    backbone.save(tmp_path / "x")
    first = (tmp_path / "x.safetensors").read_bytes()

    def end(path: Path, content: bytes) -> None:
        if path.suffix == fails:
            raise OSError("No space left on device")
        write_atomically(path, content)

    monkeypatch.setattr("sortal.learning.backbones.backbone.write_atomically", end)
    with torch.no_grad():
        next(backbone.net.parameters()).add_(1)
    with pytest.raises(OSError, match="No space left"):
        backbone.save(tmp_path / "x")
    assert not (tmp_path / "x.json").exists()
    assert ((tmp_path / "x.safetensors").read_bytes() == first) == (fails == ".safetensors")
