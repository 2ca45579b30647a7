"""Moving averages of weights: teachers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sortal.learning.backbones.backbone import Backbone


class Tail(nn.Module):
    """A backbone's tail as a module."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, inputs: Tensor) -> Tensor:
        return self.backbone.tail(inputs)


class MovingAverage(nn.Module):
    """A network like another, whose weights are moving averages of the trained weights of that one.

    `student` is not part of it; the averages are buffers, which checkpoints hold.

        self.student = nn.Sequential(Tail(backbone), head)
        self.teacher = MovingAverage(self.student)  # and in after_step: self.teacher.follow(0.999)
    """

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self._student = (student,)  # not a submodule
        self._names = [name for name, value in student.named_parameters() if value.requires_grad]
        for name, value in self._weights().items():
            self.register_buffer(_plain(name), value.detach().clone())

    def _weights(self) -> dict[str, Tensor]:
        weights = dict(self._student[0].named_parameters())
        return {name: weights[name] for name in self._names}

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Tensor:
        """Compute what the student would with these weights, without gradients."""
        averages = {name: self.get_buffer(_plain(name)) for name in self._names}
        return functional_call(self._student[0], averages, inputs)

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Draw the averages towards the student's weights."""
        for name, value in self._weights().items():
            self.get_buffer(_plain(name)).lerp_(value, 1 - momentum)


def _plain(name: str) -> str:
    return name.replace(".", "_")  # names of buffers have no dots
