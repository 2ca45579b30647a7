"""Backbone: what is trained, what images become, what a fingerprint tells apart, what is saved."""

import hashlib
import json
from dataclasses import FrozenInstanceError, replace
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
from sortal.network import FORMAT, Backbone, Spec, digest
from sortal.segments import write_atomically


class Chain(Backbone):
    """An embedding, four linear blocks with dropout and batch norm between them, and a final scale."""

    def __init__(self, spec: Spec | None = None, depth: int = 4) -> None:
        parts = {f"block{i}": nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)) for i in range(depth)}
        net = nn.ModuleDict({"embedding": nn.Linear(3, 3), **parts, "norm": nn.LayerNorm(3)})
        generator = torch.Generator().manual_seed(0)
        for parameter in net.parameters():
            nn.init.normal_(parameter, generator=generator)
        super().__init__(net, spec or Spec(name="chain", image_size=4, shorter_side=5, width=3))

    @property
    def blocks(self) -> list[nn.Module]:
        net: Any = self.net
        return [net[name] for name in net if name.startswith("block")]

    def trunk(self, images: Tensor) -> Tensor:
        net: Any = self.net
        values: Tensor = net["embedding"](images.mean(dim=(2, 3)))
        for block in self.blocks[: self.split]:
            values = block(values)
        return values

    def tail(self, inputs: Tensor) -> Tensor:
        net: Any = self.net
        for block in self.blocks[self.split :]:
            inputs = block(inputs)
        features: Tensor = net["norm"](inputs)
        return features


def random_images() -> Tensor:
    return torch.randn(6, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def trained_names(backbone: Backbone) -> set[str]:
    """The parts that have a trained parameter; a part is trained whole or not at all."""
    state = {name: value.requires_grad for name, value in backbone.net.named_parameters()}
    parts = {name.partition(".")[0] for name in state}
    for part in parts:
        assert len({value for name, value in state.items() if name.startswith(f"{part}.")}) == 1
    return {name.partition(".")[0] for name, value in state.items() if value}


# What is trained


@pytest.mark.parametrize("blocks", [0, 1, 3, 4])
def test_the_last_blocks_are_trained_and_nothing_else(blocks: int) -> None:
    backbone = Chain()
    assert backbone.train_last(blocks) is backbone
    assert backbone.trained == blocks
    assert trained_names(backbone) == {f"block{i}" for i in range(4 - blocks, 4)}


def test_the_last_call_decides() -> None:
    backbone = Chain().train_last(4).train_last(1)
    assert trained_names(backbone) == {"block3"}
    assert trained_names(backbone.train_last(2)) == {"block2", "block3"}


def test_the_tail_has_the_last_block_even_when_it_is_not_trained() -> None:
    backbone = Chain()
    assert [backbone.train_last(blocks).split for blocks in range(5)] == [3, 3, 2, 1, 0]
    assert [backbone.train_last(blocks).has_trunk for blocks in range(5)] == [True, True, True, True, False]
    assert not Chain(depth=1).train_last(0).has_trunk


@pytest.mark.parametrize("blocks", [-1, 5, 1.0, "1", None, True])
def test_a_number_of_blocks_that_cannot_be(blocks: Any) -> None:
    backbone = Chain().train_last(2)
    with pytest.raises(InputError) as caught:
        backbone.train_last(blocks)
    assert str(caught.value) == f"The blocks to train must be from 0 to 4 (all of chain), got {blocks!r}."
    assert backbone.trained == 2  # as it was
    assert trained_names(backbone) == {"block2", "block3"}


def test_it_is_always_in_evaluation_mode() -> None:
    backbone = Chain().train_last(4)
    images = random_images()
    before, buffers = backbone(images), {name: value.clone() for name, value in backbone.named_buffers()}
    assert backbone.train() is backbone
    nn.Sequential(backbone).train()  # as a part of something that is trained
    assert not any(module.training for module in backbone.modules())
    assert torch.equal(backbone(images), before)  # no dropout
    assert all(torch.equal(value, buffers[name]) for name, value in backbone.named_buffers())


def test_features_do_not_depend_on_where_trunk_and_tail_part() -> None:
    backbone, images = Chain(), random_images()
    every = [backbone.train_last(blocks)(images) for blocks in range(5)]
    assert all(torch.equal(features, every[0]) for features in every)
    assert torch.equal(backbone.train_last(2).tail(backbone.trunk(images)), every[0])


def test_only_a_vit_has_attention() -> None:
    with pytest.raises(InputError, match=r"^chain has no class token, so there is no attention to show\. Use a ViT\.$"):
        Chain().attention(torch.zeros(1, 3, 4, 4))


def test_a_backbone_without_trunk_or_tail_is_none() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Backbone(nn.Identity(), Spec(name="x", image_size=1, shorter_side=1, width=1))  # type: ignore[abstract]


# Images


def by_hand(pixels: NDArray[np.uint8], spec: Spec, flipped: list[bool]) -> NDArray[np.float64]:
    """Pixel by pixel, in double precision."""
    n, height, width, _ = pixels.shape
    out = np.empty((n, 3, height, width))
    for i in range(n):
        for y in range(height):
            for x in range(width):
                source = width - 1 - x if flipped[i] else x
                for c in range(3):
                    out[i, c, y, x] = (float(pixels[i, y, source, c]) / 255 - spec.mean[c]) / spec.std[c]
    return out


def test_pixels_are_scaled_by_mean_and_deviation() -> None:
    spec = Spec(name="x", image_size=1, shorter_side=1, width=1, mean=(0.5, 0.2, 0.0), std=(0.5, 0.1, 1.0))
    pixels = torch.tensor([[[[255, 51, 0]]], [[[0, 255, 255]]]], dtype=torch.uint8)
    images = Chain(spec).normalise(pixels)
    assert images.shape == (2, 3, 1, 1)
    assert images.dtype == torch.float32
    torch.testing.assert_close(images[:, :, 0, 0], torch.tensor([[1.0, 0.0, 0.0], [-1.0, 8.0, 1.0]]))


def test_without_mean_and_deviation_imagenets_are_taken() -> None:
    spec = Chain().spec
    assert (spec.mean, spec.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@settings(deadline=None, max_examples=30)
@given(data=st.data(), n=st.integers(0, 4), height=st.integers(1, 4), width=st.integers(1, 5))
def test_normalised_images_are_those_computed_pixel_by_pixel(
    data: st.DataObject, n: int, height: int, width: int
) -> None:
    backbone = Chain()
    shape = (n, height, width, 3)
    size = n * height * width * 3
    pixels = np.array(data.draw(st.lists(st.integers(0, 255), min_size=size, max_size=size)), np.uint8).reshape(shape)
    flipped = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    given_pixels = torch.from_numpy(pixels.copy())
    images = backbone.normalise(given_pixels, torch.tensor(flipped, dtype=torch.bool))
    np.testing.assert_allclose(images.numpy(), by_hand(pixels, backbone.spec, flipped), atol=2e-6)
    assert np.array_equal(given_pixels.numpy(), pixels)  # left as they were
    np.testing.assert_array_equal(
        backbone.normalise(given_pixels).numpy(), backbone.normalise(given_pixels, torch.zeros(n, dtype=torch.bool))
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_images_have_the_type_of_the_weights(dtype: torch.dtype) -> None:
    backbone = Chain().to(dtype)
    assert backbone.dtype == dtype
    assert backbone.device == torch.device("cpu")
    pixels = (torch.arange(96, dtype=torch.uint8) * 37).reshape(2, 4, 4, 3)
    images = backbone.normalise(pixels)
    assert images.dtype == dtype
    expected = torch.from_numpy(by_hand(pixels.numpy(), backbone.spec, [False] * 2)).to(dtype)
    torch.testing.assert_close(images, expected, rtol=1e-5 if dtype == torch.float64 else 2**-8, atol=1e-5)


# Fingerprints


def test_a_digest_is_that_of_names_types_shapes_and_bytes() -> None:
    tensors = {"b": torch.tensor([1, 2], dtype=torch.int16), "a": torch.tensor(1.5)}
    content = b"about" + b"a torch.float32 ()" + b"\x00\x00\xc0\x3f" + b"b torch.int16 (2,)" + b"\x01\x00\x02\x00"
    assert digest(tensors, "about") == hashlib.sha256(content).hexdigest()


def test_a_digest_does_not_depend_on_order_or_layout() -> None:
    values = torch.arange(24.0).reshape(1, 4, 2, 3)
    one = {"a": values, "b": torch.ones(2)}
    other = {"b": torch.ones(4)[::2], "a": values.contiguous(memory_format=torch.channels_last)}
    assert digest(one) == digest(other)
    assert digest({"a": values.mT.contiguous().mT, "b": torch.ones(2)}) == digest(one)
    assert digest({"a": values.requires_grad_(), "b": torch.ones(2)}) == digest(one)


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.zeros(2, 3), "c": torch.ones(2)},
        {"a": torch.zeros(3, 2), "b": torch.ones(2)},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(2)},  # the same bytes
        {"a": torch.zeros(2, 3), "b": torch.tensor([1.0, torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))])},
        {"a": torch.zeros(2, 3), "b": torch.ones(2), "c": torch.zeros(0)},
        {"a": torch.zeros(2, 3)},
        {"a": torch.ones(2), "b": torch.zeros(2, 3)},
    ],
)
def test_a_digest_tells_tensors_apart(other: dict[str, Tensor]) -> None:
    assert digest(other) != digest({"a": torch.zeros(2, 3), "b": torch.ones(2)})


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_any_type_and_shape_have_a_digest(dtype: torch.dtype) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0, 3)]
    assert len({digest({"a": torch.zeros(shape, dtype=dtype)}) for shape in shapes}) == 4


@pytest.mark.parametrize("name", list(Chain().net.state_dict()))
def test_the_fingerprint_changes_with_every_weight(name: str) -> None:
    backbone = Chain()
    before = backbone.fingerprint()
    assert Chain().fingerprint() == before
    backbone.net.state_dict()[name].view(-1)[-1:].add_(1)
    assert backbone.fingerprint() != before


def test_the_fingerprint_changes_with_the_spec_and_not_with_what_is_trained() -> None:
    backbone = Chain()
    spec, before = backbone.spec, backbone.fingerprint()
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"image_size": 8},
        {"shorter_side": 6},
        {"width": 4},
        {"mean": (0.485, 0.456, 0.407)},
        {"std": (0.229, 0.224, 0.226)},
    ]
    prints = {before}
    for change in changes:
        backbone.spec = replace(spec, **change)
        prints.add(backbone.fingerprint())
    assert len(prints) == 1 + len(changes)
    backbone.spec = spec
    backbone.source = "somewhere else"
    assert backbone.train_last(3).fingerprint() == before


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Chain().spec.width = 4  # type: ignore[misc]


# Saving


def test_weights_are_saved_under_their_own_names_and_the_rest_beside_them(tmp_path: Path) -> None:
    backbone = Chain().train_last(2)
    backbone.source = "a file"
    backbone.save(tmp_path / "new" / "folder" / "best.v1")  # a dot is part of the name
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["best.v1.json", "best.v1.safetensors"]
    saved, own = load_file(folder / "best.v1.safetensors"), backbone.net.state_dict()
    assert saved.keys() == own.keys()
    assert all(torch.equal(saved[name], own[name]) and saved[name].dtype == own[name].dtype for name in own)
    assert json.loads((folder / "best.v1.json").read_text()) == {
        "format": FORMAT,
        "name": "chain",
        "image_size": 4,
        "shorter_side": 5,
        "width": 3,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "trained": 2,
        "source": "a file",
        "sha256": hashlib.sha256((folder / "best.v1.safetensors").read_bytes()).hexdigest(),
    }


def test_weights_of_any_layout_are_saved(tmp_path: Path) -> None:
    backbone = Chain()
    weight: Any = backbone.net.get_parameter("embedding.weight")
    weight.data = weight.data.T.contiguous().T
    assert not weight.is_contiguous()
    backbone.save(tmp_path / "x")
    assert torch.equal(load_file(tmp_path / "x.safetensors")["embedding.weight"], weight)


@pytest.mark.parametrize("fails", [".safetensors", ".json"])
def test_half_saved_weights_are_never_vouched_for(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the moment at which saving over an older backbone ends, no .json speaks of weights that are not its."""
    backbone = Chain()
    backbone.save(tmp_path / "x")
    first = (tmp_path / "x.safetensors").read_bytes()

    def end(path: Path, content: bytes) -> None:
        if path.suffix == fails:
            raise OSError("No space left on device")
        write_atomically(path, content)

    monkeypatch.setattr("sortal.network.write_atomically", end)
    with torch.no_grad():
        next(backbone.net.parameters()).add_(1)
    with pytest.raises(OSError, match="No space left"):
        backbone.save(tmp_path / "x")
    assert not (tmp_path / "x.json").exists()
    assert ((tmp_path / "x.safetensors").read_bytes() == first) == (fails == ".safetensors")
