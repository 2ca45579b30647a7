"""Teachers: networks with averaged weights."""

import torch
from support.tiny_methods import convnet, inputs_of, small
from torch import nn

from sortal.learning.averages import MovingAverage, Tail


def test_an_average_follows_and_computes_with_its_own_weights() -> None:
    student = nn.Linear(2, 1, bias=False)
    nn.init.ones_(student.weight)
    teacher = MovingAverage(student)
    student.weight.data.fill_(3.0)
    teacher.follow(0.75)
    x = torch.tensor([[1.0, 1.0]], requires_grad=True)
    assert (student(x).item(), teacher(x).item()) == (6.0, 3.0), "1 + a quarter of 2, twice"
    assert not teacher(x).requires_grad
    assert student.weight.tolist() == [[3.0, 3.0]]
    assert list(teacher.state_dict()) == ["weight"]
    assert not [*teacher.parameters()]


def test_an_average_of_a_backbones_tail_holds_its_trained_blocks_alone() -> None:
    backbone = convnet(trained=1)
    tail = Tail(backbone)
    teacher, inputs = MovingAverage(tail), inputs_of(small("gcd", backbone), 3)
    assert torch.equal(teacher(inputs), backbone.tail(inputs))
    trained = [value for value in backbone.parameters() if value.requires_grad]
    assert sum(value.numel() for value in teacher.buffers()) == sum(value.numel() for value in trained)
    before = teacher(inputs)
    with torch.no_grad():
        for value in trained:
            value.mul_(2)
    assert torch.equal(teacher(inputs), before)
    assert not torch.equal(backbone.tail(inputs), before)
    teacher.follow(0.0)
    assert torch.equal(teacher(inputs), backbone.tail(inputs))
