"""Backbones of any family: features are those of the network itself, and only the last stage or a head is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny_encoders
from torch import Tensor, nn

from sortal.errors import InputError
from sortal.learning.backbones.backbone import Spec
from sortal.learning.backbones.network import RESIDUAL_HEAD, FrozenNetwork, Network, network
from sortal.learning.backbones.registry import load_backbone

POOLED = [family for family in tiny_encoders.FAMILIES if family != "vit"]  # has a class token, and a class of its own
SPEC = Spec(name="some", image_size=tiny_encoders.SIZE, shorter_side=40, width=0)
TOKENS = {"siglip": (4, 4), "open_clip": (4, 4)}  # whose last block can do without some patches


def images(n: int = 3) -> Tensor:
    size = tiny_encoders.SIZE
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", [*POOLED, "open_clip"])
def test_features_are_those_of_the_network_and_the_last_stage_is_trained(family: str, tmp_path: Path) -> None:
    backbone = load_backbone(tiny_encoders.write(tmp_path / family, family))
    assert isinstance(backbone, Network)
    whole = backbone.net(images())
    assert whole.shape == (3, backbone.spec.width)
    found = backbone(images())
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    changed = {name for name, value in backbone.net.named_parameters() if value.grad is not None}
    last = backbone.stages[-1]
    assert changed
    assert all(name.startswith(f"{last}.") for name in changed)
    tokens = backbone.trunk(images()).to(torch.bfloat16)
    assert torch.equal(backbone.tail(tokens), backbone.tail(tokens.float()))
    assert backbone.patch_grid == TOKENS.get(family)


@pytest.mark.parametrize("family", TOKENS)
def test_a_network_of_tokens_sees_some_patches_of_a_view(family: str, tmp_path: Path) -> None:
    """What it computes of some is what it would if the others were not there."""
    backbone = load_backbone(tiny_encoders.write(tmp_path / family, family))
    tokens = backbone.trunk(images())
    prefix = tokens.shape[1] - 16
    seen = [*range(prefix), *(prefix + patch for patch in (1, 4, 5, 11))]
    found = backbone.tail(tokens[:, seen])
    order = [*range(prefix), *(prefix + patch for patch in (11, 5, 1, 4))]  # positions are in the tokens
    torch.testing.assert_close(backbone.tail(tokens[:, order]), found, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, backbone.tail(tokens), rtol=1e-2)


def test_several_stages_can_be_trained_and_all_of_a_network(tmp_path: Path) -> None:
    backbone = load_backbone(tiny_encoders.write(tmp_path / "x", "convnext"), trained=4)
    assert isinstance(backbone, Network)
    frozen = {name.partition(".")[0] for name, value in backbone.net.named_parameters() if not value.requires_grad}
    assert frozen == {"stem", "head"}
    whole = backbone.net(images())
    for trained in range(5):
        torch.testing.assert_close(backbone.train_last(trained)(images()), whole, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"must be 0 to 4 \(all of "):
        backbone.train_last(5)


def test_batch_norms_keep_their_statistics(tmp_path: Path) -> None:
    backbone = load_backbone(tiny_encoders.write(tmp_path / "x", "resnet"))
    buffers = {name: value.clone() for name, value in backbone.named_buffers()}
    backbone.train()
    optimiser = torch.optim.SGD([value for value in backbone.parameters() if value.requires_grad], lr=0.1)
    backbone(images()).square().sum().backward()
    optimiser.step()
    assert all(torch.equal(value, buffers[name]) for name, value in backbone.named_buffers())


class Branching(nn.Module):
    """A network that no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x.mean(dim=(2, 3)))
        return found + 1 if bool(found.sum() > 0) else found


class Skipping(nn.Module):
    """A network whose last layers see the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers[1](self.layers[0](x.mean(dim=(2, 3))))
        return found + x.amax(dim=(2, 3))


@pytest.mark.parametrize("kind", [Branching, Skipping])
def test_a_head_is_trained_on_a_network_that_cannot_be_cut(kind: Any, tmp_path: Path) -> None:
    backbone = network(kind(), SPEC)
    assert isinstance(backbone, FrozenNetwork)
    assert backbone.has_trunk
    whole = nn.functional.normalize(backbone.net(images()), dim=1)
    torch.testing.assert_close(backbone(images()), whole)  # until it is trained
    trained = {name for name, value in backbone.net.named_parameters() if value.requires_grad}
    assert trained == {name for name, _ in backbone.net.named_parameters() if name.startswith(RESIDUAL_HEAD)}
    backbone(images()).square().sum().backward()
    assert backbone.net.get_parameter(f"{RESIDUAL_HEAD}.last.weight").grad is not None


def test_a_network_without_a_row_of_features_is_refused() -> None:
    with pytest.raises(InputError, match=r"^A backbone must compute a row of features .*, which some does not\.$"):
        network(nn.Conv2d(3, 4, 3), SPEC)
