"""Optimisers: SGD over named parameters, and any of torch's, with state that checkpoints can hold."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from sortal.config import Training
from sortal.errors import InputError


class Optimiser:
    """SGD with momentum and weight decay over named parameters, not by `torch.optim`, which loads torch's compiler.

    Unless `decay_biases`, biases and other one-dimensional weights, such as the scales of norms, do not decay. The
    learning rate of parameters whose names start with a key of `factors` is multiplied by its value.
    """

    graphable: ClassVar[bool] = True  # whether CUDA graphs may record its steps

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        decay_biases: bool = True,
        clip: float | None = None,
        factors: Mapping[str, float] | None = None,
    ) -> None:
        self.parameters = dict(parameters)
        biases = {name for name, value in parameters.items() if value.dim() <= 1 or name.rpartition(".")[2] == "bias"}
        self.spared = set[str]() if decay_biases else biases
        self.factors = {name: _factor(name, factors or {}) for name in self.parameters}
        self.buffers: dict[str, Tensor] = {}  # momentum by parameter name; empty before the first step
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.clip = clip
        device = next(iter(self.parameters.values())).device
        self.fused = device.type == "cuda"
        self.lr: float | Tensor = torch.tensor(lr, device=device) if self.fused else lr  # CUDA graphs read the tensor

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor], training: Training, **options: Any) -> Self:
        """Return the optimiser that the settings of training describe; `options` replace them, or are `factors`."""
        same = ("lr", "momentum", "weight_decay", "decay_biases", "clip")
        return cls(parameters, **({name: getattr(training, name) for name in same} | options))

    def set_lr(self, lr: float) -> None:
        if isinstance(self.lr, Tensor):
            self.lr.fill_(lr)
        else:
            self.lr = lr

    @torch.no_grad()
    def step(self) -> Tensor:
        """Update all parameters that have a gradient; return the norm of the whole gradient, (), before clipping."""
        gradients = {name: value.grad for name, value in self.parameters.items() if value.grad is not None}
        norm = clipped([*gradients.values()], self.clip)
        for spared, factor in product((False, True), dict.fromkeys(self.factors.values())):
            alike = [name for name in gradients if (name in self.spared, self.factors[name]) == (spared, factor)]
            if alike:
                self._update({name: gradients[name] for name in alike}, spared, factor)
        return norm

    def _update(self, gradients: Mapping[str, Tensor], spared: bool, factor: float) -> None:
        """Update the parameters with these gradients; without weight decay if they are `spared`."""
        buffers = [self.buffers.get(name) for name in gradients] if self.momentum else []
        sgd(
            [self.parameters[name] for name in gradients],
            list(gradients.values()),
            buffers,
            fused=self.fused or None,
            weight_decay=0.0 if spared else self.weight_decay,
            momentum=self.momentum,
            lr=self.lr if factor == 1 else self.lr * factor,  # type: ignore[arg-type]  # a tensor will do
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        by_name = zip(gradients, buffers, strict=bool(buffers))
        self.buffers.update({name: buffer for name, buffer in by_name if buffer is not None})

    def zero_grad(self) -> None:
        for value in self.parameters.values():
            value.grad = None


class TorchOptimiser(Optimiser):
    """Any optimiser of torch that keeps tensors only; the schedule multiplies the rates of its groups.

    TorchOptimiser(parameters, torch.optim.AdamW(parameters.values(), lr=training.lr), training)
    """

    graphable = False  # a graph would record the learning rate of one step

    def __init__(self, parameters: Mapping[str, Tensor], inner: Any, training: Training) -> None:
        self.parameters, self.inner, self.clip = dict(parameters), inner, training.clip
        self.rates = [group["lr"] / training.lr for group in inner.param_groups]

    def set_lr(self, lr: float) -> None:
        for group, rate in zip(self.inner.param_groups, self.rates, strict=True):
            group["lr"] = lr * rate

    @torch.no_grad()
    def step(self) -> Tensor:
        norm = clipped([value.grad for value in self.parameters.values() if value.grad is not None], self.clip)
        self.inner.step()
        return norm

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The state of each parameter, by its name and that of the state."""
        each = ((name, self.inner.state.get(value, {})) for name, value in self.parameters.items())
        found = {f"{name}/{key}": state for name, states in each for key, state in states.items() if state is not None}
        for name, state in found.items():
            if not isinstance(state, Tensor):
                raise InputError(f"An optimiser must keep tensors only, but {name} is {type(state).__name__}.")
        return found

    @buffers.setter
    def buffers(self, found: Mapping[str, Tensor]) -> None:
        for place, state in found.items():
            name, _, key = place.rpartition("/")
            self.inner.state[self.parameters[name]][key] = state.cpu() if key == "step" else state


def clipped(gradients: Sequence[Tensor], most: float | None) -> Tensor:
    """Scale gradients in place so that their norm is at most this, if given; return the norm, (), from before."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([*gradients])))
    if most is not None:  # on the device: a CUDA graph cannot branch on the norm
        torch._foreach_mul_([*gradients], (most / norm).clamp(max=1))
    return norm


def _factor(name: str, factors: Mapping[str, float]) -> float:
    """Return the factor of the longest key that a name starts with; 1 without any."""
    keys = [key for key in factors if name.startswith(key)]
    return factors[max(keys, key=len)] if keys else 1.0
