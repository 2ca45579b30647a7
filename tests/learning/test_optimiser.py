"""Optimisers: rates of groups, and any optimiser of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sortal.config import Training
from sortal.errors import InputError
from sortal.learning.optimiser import Optimiser, TorchOptimiser

TRAINING = Training(lr=0.5, momentum=0.5, weight_decay=0.1, clip=2.0)


def parameters() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.tensor([[1.0], [2.0]])) for name in ("backbone.a", "backbone.b.c", "head")}


def step(optimiser: Optimiser, values: dict[str, nn.Parameter], gradient: float) -> float:
    for value in values.values():
        value.grad = torch.full_like(value, gradient)
    norm = float(optimiser.step())
    optimiser.zero_grad()
    return norm


def test_factors_multiply_the_rate_and_the_longest_name_counts() -> None:
    values = parameters()
    optimiser = Optimiser.of(values, TRAINING, weight_decay=0.0, clip=None, factors={"backbone.": 0.5, "backbone.b": 0})
    for _ in range(2):
        step(optimiser, values, 1.0)
    # Momentum: 1, then 1.5; so 2.5 in all.
    assert {name: float(1 - value.detach()[0]) for name, value in values.items()} == {
        "backbone.a": 0.5 * 0.5 * 2.5,
        "backbone.b.c": 0.0,
        "head": 0.5 * 2.5,
    }


def test_one_of_torch_does_the_same_as_ours_and_continues_from_its_state() -> None:
    ours, theirs, resumed = parameters(), parameters(), parameters()
    mine = Optimiser.of(ours, TRAINING)

    def of_torch(values: dict[str, nn.Parameter]) -> TorchOptimiser:
        inner = torch.optim.SGD(values.values(), lr=TRAINING.lr, momentum=0.5, weight_decay=0.1)
        return TorchOptimiser(values, inner, TRAINING)

    other = of_torch(theirs)
    assert other.buffers == {}
    for at, gradient in enumerate((1.0, -2.0, 3.0)):
        for each in (mine, other):
            each.set_lr(0.1 * (at + 1))
        assert step(mine, ours, gradient) == step(other, theirs, gradient)
        if at == 1:
            for name, value in resumed.items():
                value.data.copy_(theirs[name])
            state = {name: value.clone() for name, value in other.buffers.items()}
    again = of_torch(resumed)
    again.buffers = state
    again.set_lr(0.1 * 3)
    step(again, resumed, 3.0)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-6, atol=0)  # the order of a few operations
        assert torch.equal(theirs[name], resumed[name])
    assert {*other.buffers} == {f"{name}/momentum_buffer" for name in ours}


def test_groups_of_torch_keep_the_ratio_of_their_rates() -> None:
    values = parameters()
    groups: list[dict[str, Any]] = [{"params": [values["head"]], "lr": 0.25}, {"params": [values["backbone.a"]]}]
    optimiser = TorchOptimiser(values, torch.optim.AdamW(groups, lr=0.5), TRAINING)
    optimiser.set_lr(0.1)
    assert [group["lr"] for group in optimiser.inner.param_groups] == [0.05, 0.1]
    assert not optimiser.graphable


def test_state_that_a_checkpoint_cannot_hold_is_refused() -> None:
    values = parameters()

    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for value in values.values():
                self.state[value]["count"] = 1

    optimiser = TorchOptimiser(values, Counting(values.values(), lr=0.1), TRAINING)
    step(optimiser, values, 1.0)
    with pytest.raises(InputError, match=r"^An optimiser must keep tensors only, but backbone.a/count is int\.$"):
        _ = optimiser.buffers


def test_gradients_are_clipped_together() -> None:
    values = parameters()
    inner = torch.optim.SGD(values.values(), lr=1.0)
    norm = step(TorchOptimiser(values, inner, Training(lr=1.0, clip=6**0.5 / 2)), values, 1.0)
    assert norm == pytest.approx(6**0.5)
    moved: Tensor = 1 - values["head"][0]
    torch.testing.assert_close(moved, torch.tensor([0.5]))
