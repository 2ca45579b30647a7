"""Methods by name: what a recipe makes."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from support import tiny_methods
from support.tiny_methods import convnet, small, state
from torch import Tensor, nn

from sortal.config import Recipe, Training, methods, register
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.batches import Batch
from sortal.learning.methods import Contrastive, Method, RankStats, SimGcd, Uno, learner_of, make


@pytest.mark.parametrize(
    ("name", "kind"), [("gcd", Contrastive), ("rankstats", RankStats), ("simgcd", SimGcd), ("uno", Uno)]
)
def test_a_recipe_makes_its_method(name: str, kind: type[Method]) -> None:
    method, again, other = small(name, seed=0), small(name, seed=0), small(name, seed=1)
    assert type(method) is learner_of(name) is kind
    assert method.config == tiny_methods.IN_SMALL[name]
    assert method.settings() == {"name": kind.__name__, **asdict(tiny_methods.IN_SMALL[name])}
    assert json.loads(json.dumps(method.settings())) == method.settings()
    starts = [{key: value for key, value in state(each).items() if "backbone" not in key} for each in (method, again)]
    assert all(torch.equal(value, starts[1][key]) for key, value in starts[0].items())
    drawn = [key for key, value in starts[0].items() if value.is_floating_point() and value.any()]
    assert drawn
    for key in drawn:
        assert not torch.equal(starts[0][key], state(other)[key]), key
    if name != "gcd":
        assert method.get_buffer("known").tolist() == [0, 1]


@dataclass(frozen=True)
class NoSettings:
    pass


class Drawn(Method):
    """Its layer starts as torch starts layers: at random."""

    def __init__(self, backbone: Backbone, *_: object) -> None:
        super().__init__(backbone)
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        raise NotImplementedError

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError


def test_layers_of_ones_own_start_by_the_seed_and_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "METHODS", methods.METHODS.copy())
    monkeypatch.setattr(methods, "REFERENCES", methods.REFERENCES.copy())
    register("drawn", Drawn, losses=NoSettings)
    before = torch.get_rng_state()

    def layer(seed: int) -> Tensor:
        of: Any = {"losses": NoSettings(), "clustering": "semi-supervised", "estimate_on": "learned"}
        recipe = Recipe(method="drawn", training=Training(seed=seed), **of)
        return make(recipe, convnet(), k=0, known=[]).get_parameter("layer.weight")

    one = layer(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(one, layer(0))
    assert not torch.equal(one, layer(1))


def test_kmeans_is_not_a_training_method() -> None:
    recipe = Recipe(method="kmeans", training=Training(), losses=None, clustering="semi-supervised", estimate_on="raw")
    with pytest.raises(ValueError, match="kmeans is not trained"):
        make(recipe, convnet(), k=3, known=[])
