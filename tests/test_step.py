"""A step: the gradients of the whole batch, however it is cut; the update that torch makes of them; what settles."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from tiny_methods import NAMES, convnet, small
from tiny_run import a_convnet, weights
from torch import Tensor, nn

from sortal.batches import Batch
from sortal.compute import Compute
from sortal.config import Swaps
from sortal.errors import SortalError
from sortal.methods import Method
from sortal.network import Backbone, Spec
from sortal.processes import launch
from sortal.step import Step

CPU = Compute(torch.device("cpu"))


class Lines(Backbone):
    """Features are a linear map of the inputs, in double precision."""

    def __init__(self, seed: int) -> None:
        net = nn.Linear(5, 4).double()
        super().__init__(net, Spec(name="lines", image_size=1, shorter_side=1, width=4))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for value in net.parameters():
                value.copy_(torch.randn(value.shape, generator=generator))
        self.train_last(1)

    @property
    def blocks(self) -> list[nn.Module]:
        return [self.net]

    def trunk(self, images: Tensor) -> Tensor:
        return images

    def tail(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.net(inputs))


class Apart(Method):
    """Every row's cost depends on all other rows; at most `room` rows fit at once, and `graded` with gradients."""

    def __init__(self, *, room: int | None = None, graded: int | None = None, seed: int = 0) -> None:
        super().__init__(Lines(seed))
        self.room = room
        self.graded = graded
        self.sizes: list[tuple[int, bool]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append((len(inputs), torch.is_grad_enabled()))
        room = self.graded if torch.is_grad_enabled() and self.graded is not None else self.room
        if room is not None and len(inputs) > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.backbone.tail(inputs)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        scores = batch.outputs @ batch.outputs.T
        same_image = batch.images[:, None] == batch.images
        labelled = batch.labels >= 0
        return {
            "spread": scores.logsumexp(1).mean(),
            "images": -scores[same_image].mean(),
            "labels": (batch.outputs[labelled] - batch.labels[labelled, None]).square().sum(),
        }


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return launch("cpu")


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
HALF_WAY = torch.tensor(0.5)


def a_batch(n: int, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(n) % (n // 2), torch.arange(n) % 3 - 1, HALF_WAY


def sgd(method: nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([value for value in method.parameters() if value.requires_grad], **options)


def taken(fabric: Fabric, method: Method, chunks: int, batch: Inputs) -> dict[str, Tensor]:
    """The gradients of a step, seen in its update with a learning rate of 1, and its losses."""
    before = weights(method)
    terms = Step(fabric, method, CPU, sgd(method, lr=1.0), chunks)(*batch)
    return {"terms": terms, **{name: before[name] - value for name, value in method.state_dict().items()}}


def by_autograd(method: Method, batch: Inputs) -> dict[str, Tensor]:
    inputs, *beside = batch
    losses = method.losses(Batch(method(inputs), *beside))
    terms = torch.stack(list(losses.values()))
    names, values = zip(*method.named_parameters(), strict=True)
    gradients = torch.autograd.grad(terms.sum(), values)
    return {"terms": terms.detach(), **dict(zip(names, gradients, strict=True))}


@pytest.mark.parametrize("n", [2, 6, 14, 12])
@pytest.mark.parametrize("chunks", [1, 2, 3, 5, "n", "more"])
def test_any_number_of_chunks_gives_the_gradients_of_the_whole(fabric: Fabric, n: int, chunks: int | str) -> None:
    number = {"n": n, "more": 2 * n + 1}.get(str(chunks), chunks)
    method = Apart()
    got = taken(fabric, method, int(number), a_batch(n))
    torch.testing.assert_close(got, by_autograd(Apart(), a_batch(n)), rtol=1e-11, atol=1e-12)
    assert float(got["backbone.net.weight"].abs().max()) > 0.01
    if int(number) > 1:
        largest = -(-n // int(number))
        assert {size for size, _ in method.sizes} <= set(range(1, largest + 1))  # never more rows at once


def test_the_networks_of_a_real_method_are_cut_alike(fabric: Fabric) -> None:
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(12, 3, 8, 8, generator=generator), torch.arange(12) % 6, torch.arange(12) % 3 - 1, HALF_WAY
    whole = taken(fabric, a_convnet(), 1, batch)
    assert whole["terms"].shape == (2,)
    for chunks in (2, 3, 12):
        for name, got in taken(fabric, a_convnet(), chunks, batch).items():
            assert float((got - whole[name]).norm()) <= 1e-4 * float(whole[name].norm()), name


@pytest.mark.parametrize("chunks", [1, 3])
def test_steps_are_those_of_plain_pytorch(fabric: Fabric, chunks: int) -> None:
    """Autograd through the whole loss, and torch's own SGD with momentum and weight decay."""
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    method, other = Apart(), Apart()
    step, optimizer = Step(fabric, method, CPU, sgd(method, **options), chunks), sgd(other, **options)
    for number in range(6):
        inputs, *beside = a_batch(8, seed=number)
        terms = step(inputs, *beside)
        losses = other.losses(Batch(other(inputs), *beside))
        sum(losses.values(), torch.zeros(())).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(terms, torch.stack(list(losses.values())).detach(), rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(weights(method), weights(other), rtol=1e-11, atol=1e-12)


def test_one_update_by_hand(fabric: Fabric) -> None:
    """Momentum 0.5 and decay 0.1 on one weight, by SGD's definition: v = 0.5 v + g + 0.1 w; w = w − lr v."""

    class Square(Apart):
        def losses(self, batch: Batch) -> dict[str, Tensor]:
            return {"square": batch.outputs.square().sum()}

    method = Square()
    optimizer = sgd(method, lr=0.25, momentum=0.5, weight_decay=0.1)
    step = Step(fabric, method, CPU, optimizer, 1)
    w = {name: value.detach().clone() for name, value in method.named_parameters()}
    v = {name: torch.zeros_like(value) for name, value in w.items()}
    for number in range(3):
        inputs, *beside = a_batch(4, seed=number)
        out = torch.tanh(inputs @ w["backbone.net.weight"].T + w["backbone.net.bias"])
        slope = 2 * out * (1 - out.square())
        g = {"backbone.net.weight": slope.T @ inputs, "backbone.net.bias": slope.sum(0)}
        for name in w:
            v[name] = 0.5 * v[name] + g[name] + 0.1 * w[name]
            w[name] = w[name] - 0.25 * v[name]
        assert float(step(inputs, *beside)) == pytest.approx(float(out.square().sum()), rel=1e-12)
        torch.testing.assert_close(weights(method), w, rtol=1e-11, atol=1e-12)


def test_losses_come_under_their_names_in_their_order(fabric: Fabric) -> None:
    method = Apart()
    step = Step(fabric, method, CPU, sgd(method, lr=0.1), 2)
    terms = step(*a_batch(6))
    assert step.names == ["spread", "images", "labels"]
    assert terms.shape == (3,)
    assert not terms.requires_grad


def test_gradients_do_not_add_up_over_steps(fabric: Fabric) -> None:
    method = Apart()
    step = Step(fabric, method, CPU, sgd(method, lr=0.0), 2)
    step(*a_batch(6))
    assert all(value.grad is None or not value.grad.any() for value in method.parameters())


def test_frozen_weights_stay(fabric: Fabric) -> None:
    method = Apart()
    net = method.backbone.net
    assert isinstance(net, nn.Linear)
    net.bias.requires_grad_(False)
    before = weights(method)
    Step(fabric, method, CPU, sgd(method, lr=1.0), 3)(*a_batch(6))
    assert torch.equal(net.bias, before["backbone.net.bias"])
    assert not torch.equal(net.weight, before["backbone.net.weight"])


# Memory that runs out


@pytest.mark.parametrize("n", [2, 6, 8, 10, 12])
@pytest.mark.parametrize("room", [1, 2, 3, 5, 100])
def test_where_memory_runs_out_chunks_are_halved_to_the_same_result(
    fabric: Fabric, caplog: pytest.LogCaptureFixture, n: int, room: int
) -> None:
    method = Apart(room=room)
    got = taken(fabric, method, 1, a_batch(n))
    torch.testing.assert_close(got, by_autograd(Apart(), a_batch(n)), rtol=1e-11, atol=1e-12)
    chunks, said = 1, []
    while -(-n // chunks) > room:
        chunks *= 2
        said.append(f"Memory ran out; batches now go through in {chunks} chunks, with the same result.")
    assert caplog.messages == said
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}


def test_memory_that_runs_out_half_way_through_leaves_no_gradients_behind(
    fabric: Fabric, caplog: pytest.LogCaptureFixture
) -> None:
    """Without gradients all fits; with them it is the second chunk that does not, after the first was added."""

    class Later(Apart):
        def forward(self, inputs: Tensor) -> Tensor:
            graded = [size for size, graded in self.sizes if graded]
            if torch.is_grad_enabled() and graded == [4]:
                self.sizes.append((0, True))
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().forward(inputs)

    method = Later()
    got = taken(fabric, method, 2, a_batch(8))
    assert [size for size, graded in method.sizes if graded] == [4, 0, 2, 2, 2, 2]
    torch.testing.assert_close(got, by_autograd(Apart(), a_batch(8)), rtol=1e-11, atol=1e-12)
    assert len(caplog.messages) == 1


def test_gradients_that_do_not_fit_are_reason_enough(fabric: Fabric) -> None:
    method = Apart(graded=2)
    step = Step(fabric, method, CPU, sgd(method, lr=1.0), 1)
    step(*a_batch(8))
    assert step.chunks == 4


def test_chunks_stay_for_the_steps_that_follow(fabric: Fabric, caplog: pytest.LogCaptureFixture) -> None:
    method = Apart(room=3)
    step = Step(fabric, method, CPU, sgd(method, lr=0.1), 1)
    step(*a_batch(8))
    said, calls = len(caplog.messages), len(method.sizes)
    step(*a_batch(8, seed=1))
    assert step.chunks == 4
    assert len(caplog.messages) == said == 2
    assert method.sizes[calls:] == [(2, False)] * 4 + [(2, True)] * 4


def test_memory_of_the_machine_that_runs_out_is_noticed_too(fabric: Fabric) -> None:
    """Not a CUDA error, but what the CPU's allocator really says."""

    class Greedy(Apart):
        def forward(self, inputs: Tensor) -> Tensor:
            if len(inputs) > 2:
                torch.empty(2**60, dtype=torch.uint8)
            return super().forward(inputs)

    method = Greedy()
    got = taken(fabric, method, 1, a_batch(6))
    torch.testing.assert_close(got, by_autograd(Apart(), a_batch(6)), rtol=1e-11, atol=1e-12)
    assert {size for size, _ in method.sizes} == {2}


@pytest.mark.parametrize("n", [2, 6, 10])
def test_where_one_row_does_not_fit_that_is_said(fabric: Fabric, n: int) -> None:
    method = Apart(room=0)
    before = weights(method)
    with pytest.raises(SortalError, match=r"Memory ran out .* a smaller batch_size or a smaller backbone") as caught:
        taken(fabric, method, 1, a_batch(n))
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert min(size for size, _ in method.sizes) == 1  # one row at once was tried
    torch.testing.assert_close(weights(method), before, rtol=0, atol=0)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("memory")])
def test_other_errors_pass_through(fabric: Fabric, caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    class Wrong(Apart):
        def forward(self, inputs: Tensor) -> Tensor:
            raise error

    with pytest.raises(type(error)) as caught:
        taken(fabric, Wrong(), 1, a_batch(4))
    assert caught.value is error
    assert caplog.messages == []


def test_precision_is_lower_only_where_it_was_chosen(fabric: Fabric) -> None:
    seen: list[Any] = []

    class Watched(Apart):
        def losses(self, batch: Batch) -> dict[str, Tensor]:
            seen.append((batch.outputs.dtype, torch.is_autocast_enabled("cpu")))
            return super().losses(batch)

        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(inputs)

    for bf16 in (False, True):
        method = Watched()
        method.float()
        inputs, *beside = a_batch(4)
        step = Step(fabric, method, Compute(torch.device("cpu"), bf16), sgd(method, lr=0.1), 2)
        step(inputs.float(), *beside)
        assert all(value.dtype == torch.float32 for value in method.parameters())
    float_step, half_step = seen[:5], seen[5:]
    assert float_step == [False, False, (torch.float32, False), False, False]
    assert half_step == [True, True, (torch.bfloat16, False), True, True]


# What settles after a step


class Told(Apart):
    """Writes down when it is asked for losses and when it is to settle, with what weights and batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[str, Tensor, Batch, bool]] = []

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        self._write("losses", batch)
        return super().losses(batch)

    def settle(self, batch: Batch) -> None:
        self._write("settle", batch)

    def _write(self, what: str, batch: Batch) -> None:
        net = self.backbone.net
        assert isinstance(net, nn.Linear)
        self.seen.append((what, net.weight.detach().clone(), batch, torch.is_grad_enabled()))


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_method_settles_once_after_each_update_with_the_batch_of_its_losses(fabric: Fabric, chunks: int) -> None:
    method = Told()
    step = Step(fabric, method, CPU, sgd(method, lr=0.1), chunks)
    for number in range(2):
        inputs, images, labels, _ = a_batch(6, seed=number)
        before = method.backbone.tail(inputs).detach()
        step(inputs, images, labels, torch.tensor(number / 2))
        (asked, old, batch, _), (settled, new, again, grad) = method.seen[-2:]
        assert (asked, settled, len(method.seen)) == ("losses", "settle", 2 * number + 2)
        assert again is batch
        assert not grad
        assert not torch.equal(old, new)
        assert torch.equal(new, weights(method)["backbone.net.weight"])
        torch.testing.assert_close(batch.outputs.detach(), before)  # of the weights before the update
        assert torch.equal(batch.images, images)
        assert torch.equal(batch.labels, labels)
        assert batch.progress == number / 2


def test_where_memory_runs_out_losses_are_asked_for_again_and_nothing_settles_twice(fabric: Fabric) -> None:
    """Memory that is too small for gradients is noticed after the losses were computed."""
    method = Told(graded=2)
    Step(fabric, method, CPU, sgd(method, lr=0.1), 2)(*a_batch(8))
    assert [what for what, *_ in method.seen] == ["losses", "losses", "settle"]


def test_a_step_that_fails_settles_nothing(fabric: Fabric) -> None:
    method = Told(room=0)
    with pytest.raises(SortalError):
        Step(fabric, method, CPU, sgd(method, lr=0.1), 1)(*a_batch(4))
    assert method.seen == []


# Every method


def real_batch(number: int) -> Inputs:
    images = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(number))
    labels = torch.tensor([0, -1, -1, 1, -1, -1]).roll(number)
    return images, torch.arange(6).repeat(2), labels.repeat(2), torch.tensor(number / 4)


def stepped(fabric: Fabric, name: str, *, chunks: int = 1, room: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of four steps, and the weights and buffers after them; no more than `room` rows fit at once."""
    method = small(name, convnet(trained=3), losses=Swaps(heads=2, queue=9) if name == "uno" else None)

    def check(_: nn.Module, values: tuple[Tensor]) -> None:
        if room is not None and len(values[0]) > room and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory.")

    method.register_forward_pre_hook(check)
    step = Step(fabric, method, CPU, sgd(method, lr=0.01, momentum=0.9), chunks)
    terms = torch.stack([step(*real_batch(number)) for number in range(4)])
    return terms, weights(method)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("chunks", "room"), [(2, None), (4, None), (5, None), (12, None), (1, 6), (1, 1)])
def test_every_method_has_the_same_weights_and_buffers_in_any_number_of_chunks(
    fabric: Fabric, caplog: pytest.LogCaptureFixture, name: str, chunks: int, room: int | None
) -> None:
    """Also where they were halved because memory ran out: then nothing is put into a queue twice."""
    terms, whole = stepped(fabric, name)
    got, cut = stepped(fabric, name, chunks=chunks, room=room)
    assert bool(caplog.messages) == (room is not None)
    torch.testing.assert_close(got, terms, rtol=1e-4, atol=1e-5)
    start = weights(small(name, convnet(trained=3), losses=Swaps(heads=2, queue=9) if name == "uno" else None))
    for key, value in whole.items():
        went = (value - start[key]).double().norm()
        assert (cut[key] - value).double().norm() <= 1e-3 * went, key
    if name == "uno":
        assert whole["filled"] == cut["filled"] == 9
        assert not torch.equal(whole["queue"], start["queue"])


def test_the_queue_has_the_views_of_each_step_once(fabric: Fabric) -> None:
    """Those of four steps, of which the first two ran out of memory: 8 unlabelled views each, the newest first."""
    method = small("uno", losses=Swaps(queue=100))
    failures = [True, False, True, False]

    def check(*_: Any) -> None:
        if torch.is_grad_enabled() and failures and failures.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    method.register_forward_pre_hook(check)
    step = Step(fabric, method, CPU, sgd(method, lr=0.0), 1)
    expected: list[Tensor] = []
    for number in range(4):
        inputs, images, labels, progress = real_batch(number)
        with torch.no_grad():
            outputs = method.backbone(inputs)
            outputs = torch.cat([head(outputs) for head in method.heads], dim=1)
        step(method.backbone.trunk(inputs), images, labels, progress)
        expected = [outputs[labels < 0], *expected]
        assert int(method.filled) == 8 * (number + 1)
        torch.testing.assert_close(method.queue[: 8 * (number + 1)], torch.cat(expected), rtol=1e-4, atol=1e-5)
    assert step.chunks == 4
