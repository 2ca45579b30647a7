"""Networks in two halves: the halves together are the whole, and what cannot be cut is refused."""

from typing import Any

import pytest
import timm
import torch
from support.tiny_encoders import FAMILIES, SIZE
from torch import Tensor, nn

from sortal.learning.backbones.splitting import CannotSplitError, split_before, stages_of


def images(n: int = 3) -> Tensor:
    return torch.randn(n, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


class Plain(nn.Module):
    """Three layers, and, in some ways, something that makes a cut difficult."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(SIZE, SIZE) for _ in range(3)])
        self.way = way

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        first = self.layers[0](x.mean(dim=(1, 2)))
        second = self.layers[1](first) * scale
        if self.way == "skips":
            second = second + first
        if self.way == "branches" and bool(second.sum() > 0):
            second = second + 1
        found: Tensor = self.layers[2](second)
        if self.way == "keeps":
            found = found + torch.ones(SIZE)
        if self.way == "image":
            found = found + x.amax(dim=(1, 2))
        return self.layers[2](found) if self.way == "repeats" else found


@pytest.mark.parametrize("name", ["layers.0", "layers.1", "layers.2"])
def test_halves_of_a_plain_network_make_the_whole_and_share_its_weights(name: str) -> None:
    net = Plain()
    first, rest = split_before(net, name)
    for step in range(2):
        found = rest(net, first(net, images(2 + step)))
        assert torch.equal(found, net(images(2 + step)))
        net.get_parameter("layers.2.weight").data += 1
    assert [*net.state_dict()] == [*Plain().state_dict()]


@pytest.mark.parametrize("name", ["layers.1", "layers.2"])
def test_what_enters_the_second_half_may_be_used_twice(name: str) -> None:
    net = Plain("skips")
    first, rest = split_before(net, name)
    assert torch.equal(rest(net, first(net, images())), net(images()))


@pytest.mark.parametrize(
    ("way", "name"),
    [("image", "layers.2"), ("branches", "layers.2"), ("keeps", "layers.2"), ("repeats", "layers.2"), ("", "layers.3")],
)
def test_what_cannot_be_cut_is_refused(way: str, name: str) -> None:
    with pytest.raises(CannotSplitError):
        split_before(Plain(way), name)


LAST = {"beit": "blocks.2", "siglip": "blocks.2", "vit": "blocks.2", "swin": "layers.1", "convnext": "stages.3"}
LAST |= {"efficientnet": "blocks.4", "mobilenet": "blocks.5", "regnet": "s4", "resnet": "layer4"}


@pytest.mark.parametrize("family", FAMILIES)
def test_networks_of_timm_are_cut_before_any_stage(family: str) -> None:
    architecture, arguments = FAMILIES[family]
    made: Any = timm.create_model(architecture, num_classes=0, **arguments)
    net, stages = made.double().eval(), stages_of(made)
    assert stages[-1] == LAST[family]
    with torch.no_grad():
        whole = net(images().double())
        for name in (stages[-1], stages[len(stages) // 2]):
            first, rest = split_before(net, name)
            assert torch.equal(rest(net, first(net, images().double())), whole)
            assert torch.equal(rest(net, first(net, images(1).double())), net(images(1).double()))


def test_without_stated_stages_they_are_the_parts_of_the_largest_sequence() -> None:
    class Unstated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
            self.large = nn.Sequential(nn.Linear(9, 9), nn.GELU(), nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9)))

    assert stages_of(Unstated()) == ["large.0", "large.2"]
    assert stages_of(nn.Linear(2, 2)) == []
