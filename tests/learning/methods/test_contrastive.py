"""GCD: its losses by hand, its constants and its outputs."""

from dataclasses import fields, replace
from math import exp, log
from typing import Any

import pytest
import torch
from support.tiny_methods import batch_of, convnet, inputs_of, values

from sortal.config import Contrast
from sortal.learning.methods import Contrastive

SMALL = Contrast(hidden=16, bottleneck=8, prototypes=40)


def method_of(config: Contrast = SMALL) -> Contrastive:
    return Contrastive(convnet(), config)


def test_the_two_losses_by_hand() -> None:
    # Images at 0° and at 180°, both views in one place, and an unlabelled one whose views are at 90° and at 270°.
    # Unsupervised, τ = 1: views of the first two have e for the partner, 2 e^−1 for the opposite and 2 for the rest;
    # those of the third e^−1 for the partner and 4 for the rest. Supervised, τ = 1/2: e² for the partner, 2 e^−2.
    outputs = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    unsupervised = (4 * (log(exp(1) + 2 * exp(-1) + 2) - 1) + 2 * (log(exp(-1) + 4) + 1)) / 6
    supervised = log(exp(2) + 2 * exp(-2)) - 2
    config = Contrast(hidden=4, bottleneck=2, supervised_temperature=0.5)
    assert values(method_of(config).losses(batch_of(outputs, [0, 1, -1]))) == {
        "unsupervised": pytest.approx(0.65 * unsupervised, abs=1e-6),
        "supervised": pytest.approx(0.35 * supervised, abs=1e-6),
    }


CHANGES: dict[str, tuple[Any, str]] = {  # another value, and the results that depend on it
    "temperature": (0.5, "unsupervised"),
    "supervised_temperature": (0.5, "supervised"),
    "supervised_weight": (0.5, "unsupervised supervised"),
    "hidden": (24, "shapes unsupervised supervised"),
    "bottleneck": (12, "shapes unsupervised supervised"),
    "output": ("bottleneck", "shapes unsupervised supervised"),
    "prototypes": (30, "shapes unsupervised supervised"),
}


def what_it_does(config: Contrast) -> dict[str, Any]:
    method = method_of(config)
    with torch.no_grad():
        outputs = method(inputs_of(method, 12))
    losses = values(method.losses(batch_of(outputs, [-1, 0, 1, -1, 0, 1], 0.3)))
    shapes = {name: tuple(value.shape) for name, value in method.head.named_parameters()}
    return {"shapes": shapes, **losses}


@pytest.mark.parametrize("name", [each.name for each in fields(Contrast)])
def test_each_constant_changes_the_right_results(name: str) -> None:
    value, changed = CHANGES[name]
    base = replace(SMALL, output="prototypes")
    before, after = what_it_does(base), what_it_does(replace(base, **{name: value}))
    assert " ".join(part for part in before if before[part] != after[part]) == changed


@pytest.mark.parametrize(("output", "width"), [("bottleneck", 8), ("prototypes", 40)])
def test_outputs_are_those_of_the_head(output: Any, width: int) -> None:
    method = method_of(replace(SMALL, output=output))
    inputs = inputs_of(method, 12)
    outputs = method(inputs)
    assert outputs.shape == (12, width)
    assert torch.equal(outputs, method.head(method.backbone.tail(inputs)))
    assert Contrastive(convnet()).config == Contrast()
