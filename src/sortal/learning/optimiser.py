"""SGD with momentum, and the learning rate of each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from sortal.config import Training


class Optimiser:
    """SGD with momentum and weight decay over named parameters.

    Calls torch's function: the first instance of a `torch.optim.Optimizer` imports torch's compiler, which takes
    seconds.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.parameters = dict(parameters)
        self.buffers: dict[str, Tensor] = {}  # momentum by parameter name; empty before the first step
        self.momentum = momentum
        self.weight_decay = weight_decay
        device = next(iter(self.parameters.values())).device
        self.fused = device.type == "cuda"
        self.lr: float | Tensor = torch.tensor(lr, device=device) if self.fused else lr  # CUDA graphs read the tensor

    def set_lr(self, lr: float) -> None:
        if isinstance(self.lr, Tensor):
            self.lr.fill_(lr)
        else:
            self.lr = lr

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        gradients = {name: value.grad for name, value in self.parameters.items() if value.grad is not None}
        buffers = [self.buffers.get(name) for name in gradients] if self.momentum else []
        sgd(
            [self.parameters[name] for name in gradients],
            list(gradients.values()),
            buffers,
            fused=self.fused or None,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,  # type: ignore[arg-type]  # a tensor will do
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self.buffers.update(
            {name: buffer for name, buffer in zip(gradients, buffers, strict=bool(buffers)) if buffer is not None}
        )

    def zero_grad(self) -> None:
        for value in self.parameters.values():
            value.grad = None


def schedule(config: Training, epoch: int) -> float:
    """Return the learning rate of an epoch: a linear warm-up, then a cosine or one step from lr to final_lr · lr."""
    end, epochs = config.lr * config.final_lr, max(config.epochs, 1)
    before = config.warmup * epochs
    if epoch < before:
        return end + (config.lr - end) * epoch / before
    if config.schedule == "step":
        return config.lr if epoch / epochs < config.drop_at else end  # not drop_at · epochs: 0.55 · 100 exceeds 55
    return end + (config.lr - end) * (1 + math.cos(math.pi * (epoch - before) / (epochs - before))) / 2
