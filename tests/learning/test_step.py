"""Training steps: gradients of the whole batch in any number of chunks, torch's updates, and after_step."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support.thorough import thorough_but
from support.tiny_methods import NAMES, convnet, double_precision, small
from support.tiny_run import weights
from torch import Tensor, nn

from sortal.config import Swaps
from sortal.errors import InputError, SortalError
from sortal.learning.backbones.backbone import Backbone, Spec
from sortal.learning.batches import Batch
from sortal.learning.methods import Method
from sortal.learning.optimiser import Optimiser
from sortal.learning.step import TrainingStep
from sortal.system.device import Compute
from sortal.system.distributed import Processes, launch

CPU = Compute(torch.device("cpu"))


class Lines(Backbone):
    """Its features are a nonlinearity of a linear map, in double precision."""

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


class Coupled(Method):
    """The loss of every row depends on all other rows; at most `room` rows fit at once."""

    def __init__(self, *, room: int | None = None, seed: int = 0) -> None:
        super().__init__(Lines(seed))
        self.room = room
        self.sizes: list[tuple[int, bool]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append((len(inputs), torch.is_grad_enabled()))
        if self.room is not None and len(inputs) > self.room:
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


class Recording(Coupled):
    """Records the calls of losses and after_step, with their weights and batches."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[tuple[str, Tensor, Batch, bool]] = []
        self.autocast = False

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        self._record("losses", batch)
        self.autocast = torch.is_autocast_enabled("cpu")
        return super().losses(batch)

    def after_step(self, batch: Batch) -> None:
        self._record("after_step", batch)

    def _record(self, what: str, batch: Batch) -> None:
        self.seen.append((what, weights(self)["backbone.net.weight"], batch, torch.is_grad_enabled()))


@pytest.fixture(scope="module")
def processes() -> Processes:
    return launch("cpu")


Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
HALFWAY = torch.tensor(0.5)


def a_batch(n: int, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(n) % (n // 2), torch.arange(n) % 3 - 1, HALFWAY


def sgd(method: nn.Module, **options: Any) -> Optimiser:
    return Optimiser({name: value for name, value in method.named_parameters() if value.requires_grad}, **options)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_optimiser_matches_torch_bit_for_bit(momentum: float) -> None:
    """With changing learning rates, and a weight that sometimes has no gradient."""
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    ours = sgd(one, lr=0.1, momentum=momentum, weight_decay=0.01)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)
    for number in range(6):
        theirs.param_groups[0]["lr"] = 0.1 / (number + 1)
        ours.set_lr(0.1 / (number + 1))
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        for layer, optimiser in ((one, ours), (other, theirs)):
            layer.bias.requires_grad_(number % 3 != 1)
            layer(inputs).square().sum().backward()
            optimiser.step()
            optimiser.zero_grad()
        assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert ours.buffers.keys() == ({"weight", "bias"} if momentum else set())


@pytest.mark.parametrize("exempt", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_a_gradient_weights_shrink_by_decay_and_biases_only_if_they_are_to(
    momentum: float, exempt: bool
) -> None:
    """Of a linear layer and a norm: one matrix, two biases and the scale of the norm, all 1."""
    method = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)).double()
    for value in method.parameters():
        nn.init.ones_(value)
        value.grad = torch.zeros_like(value)
    optimiser = sgd(method, lr=0.5, momentum=momentum, weight_decay=0.1, decay_biases=not exempt)
    optimiser.step()
    shrunk = {name: float(value.detach().max()) for name, value in method.named_parameters()}
    kept = pytest.approx(1.0 if exempt else 0.95)
    assert shrunk == {"0.weight": pytest.approx(0.95), "0.bias": kept, "1.weight": kept, "1.bias": kept}
    assert optimiser.buffers.keys() == (shrunk.keys() if momentum else set())


def taken(processes: Processes, method: Method, chunks: int, batch: Inputs, **options: Any) -> dict[str, Tensor]:
    """Return the losses and norm of a step, and its gradients from the update with a learning rate of 1."""
    before = weights(method)
    terms = TrainingStep(processes, method, CPU, sgd(method, lr=1.0, **options), chunks)(*batch)
    return {"terms": terms, **{name: before[name] - value for name, value in method.state_dict().items()}}


def by_autograd(method: Method, batch: Inputs, clip: float | None = None) -> dict[str, Tensor]:
    inputs, *others = batch
    losses = method.losses(Batch(method(inputs), *others))
    terms = torch.stack(list(losses.values()))
    terms.sum().backward()
    norm = nn.utils.clip_grad_norm_(method.parameters(), float("inf") if clip is None else clip)
    gradients = {name: value.grad for name, value in method.named_parameters() if value.grad is not None}
    return {"terms": torch.cat([terms.detach(), norm[None]]), **gradients}


EXACT: Any = {"rtol": 1e-11, "atol": 1e-12}


@pytest.mark.parametrize(("n", "chunks"), [(2, 1), (6, 2), (14, 3), (12, 5), (6, 6), (6, 13)])
def test_any_number_of_chunks_gives_the_gradients_of_the_whole(processes: Processes, n: int, chunks: int) -> None:
    method = Coupled()
    got = taken(processes, method, chunks, a_batch(n))
    torch.testing.assert_close(got, by_autograd(Coupled(), a_batch(n)), **EXACT)
    assert float(got["backbone.net.weight"].abs().max()) > 0.01
    assert max(size for size, _ in method.sizes) == -(-n // chunks)  # never more rows at once


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_gradients_are_clipped_as_by_torch(processes: Processes, chunks: int, clip: float) -> None:
    """Torch adds 1e-6 to the norm."""
    got, wanted = taken(processes, Coupled(), chunks, a_batch(6), clip=clip), by_autograd(Coupled(), a_batch(6), clip)
    assert 1.0 < float(wanted["terms"][-1]) < 1e5
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0.0)


def test_a_gradient_that_is_not_finite_stays_so() -> None:
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.tensor([1.0, float("inf")])
    assert Optimiser({"weight": weight}, lr=1.0, clip=1.0).step() == float("inf")
    assert not weight.isfinite().all()


def test_losses_have_names_and_frozen_weights_stay(processes: Processes) -> None:
    method = Coupled()
    method.backbone.get_parameter("net.bias").requires_grad_(False)
    step = TrainingStep(processes, method, CPU, sgd(method, lr=1.0), 3)
    terms = step(*a_batch(6))
    assert step.names == ["spread", "images", "labels", "gradient_norm"]
    assert not terms.requires_grad
    changed = [name for name, value in weights(Coupled()).items() if not torch.equal(value, weights(method)[name])]
    assert changed == ["backbone.net.weight"]
    assert all(
        value.grad is None or not value.grad.any() for value in method.parameters()
    )  # none accumulate over steps


# Running out of memory


class Late(Coupled):
    """Its losses use weights that forward does not, from half of training on."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2).double()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        if batch.progress < 0.5:
            return super().losses(batch)
        with torch.no_grad():
            target = self.head(batch.outputs).argmax(1)
        return {"classes": nn.functional.cross_entropy(self.head(batch.outputs), target)}


def test_weights_that_only_losses_use_are_refused_as_they_would_not_be_trained(processes: Processes) -> None:
    method, (inputs, images, labels, _) = Late(), a_batch(6)
    step = TrainingStep(processes, method, CPU, sgd(method, lr=1.0), 1)
    step(inputs, images, labels, torch.tensor(0.4))
    with pytest.raises(InputError, match=r"but the losses of Late use 'head\.bias', 'head\.weight'\. Return what"):
        step(inputs, images, labels, torch.tensor(0.5))


@pytest.mark.parametrize(("n", "room"), [(2, 1), (10, 3), (12, 5), (6, 100)])
def test_running_out_of_memory_halves_chunks_for_good_with_the_same_result(
    processes: Processes, caplog: pytest.LogCaptureFixture, n: int, room: int
) -> None:
    method = Coupled(room=room)
    step = TrainingStep(processes, method, CPU, sgd(method, lr=1.0), 1)
    expected = by_autograd(Coupled(), a_batch(n))
    terms = step(*a_batch(n))
    update = {name: value - weights(method)[name] for name, value in weights(Coupled()).items()}
    torch.testing.assert_close({"terms": terms, **update}, expected, **EXACT)
    chunks, messages = 1, []
    while -(-n // chunks) > room:
        chunks *= 2
        messages.append(f"Out of memory: batches are now split into {chunks} chunks, with the same result.")
    method.sizes.clear()
    step(*a_batch(n, seed=1))
    assert max(size for size, _ in method.sizes) <= room  # nothing larger is tried again
    assert (step.chunks, caplog.messages) == (chunks, messages)
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}


def test_running_out_of_memory_halfway_leaves_no_gradients_behind(
    processes: Processes, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything fits without gradients; with them the second chunk does not, after the first was added."""

    class Later(Recording):
        def forward(self, inputs: Tensor) -> Tensor:
            if torch.is_grad_enabled() and [size for size, graded in self.sizes if graded] == [4]:
                self.sizes.append((0, True))
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().forward(inputs)

    method = Later()
    got = taken(processes, method, 2, a_batch(8))
    assert [size for size, graded in method.sizes if graded] == [4, 0, 2, 2, 2, 2]
    torch.testing.assert_close(got, by_autograd(Coupled(), a_batch(8)), **EXACT)
    assert len(caplog.messages) == 1
    assert [what for what, *_ in method.seen] == ["losses", "losses", "after_step"]  # after_step runs once


def test_a_single_row_that_does_not_fit_is_reported_and_nothing_is_updated(processes: Processes) -> None:
    method = Recording(room=0)
    before = weights(method)
    with pytest.raises(SortalError, match=r"with batches split into 8 chunks\. .* a smaller backbone") as caught:
        taken(processes, method, 1, a_batch(8))
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert min(size for size, _ in method.sizes) == 1  # single rows were tried
    torch.testing.assert_close(weights(method), before, rtol=0, atol=0)
    assert method.seen == []


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("memory")])
def test_other_errors_are_raised(
    processes: Processes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(Coupled, "forward", Mock(side_effect=error))
    with pytest.raises(type(error)) as caught:
        taken(processes, Coupled(), 1, a_batch(4))
    assert caught.value is error
    assert caplog.messages == []


def test_autocast_is_used_only_if_chosen_and_never_in_losses(processes: Processes) -> None:
    (inputs, *others), seen = a_batch(4), list[bool]()
    for bf16, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        method = Recording().float()
        method.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
        step = TrainingStep(processes, method, Compute(torch.device("cpu"), bf16), sgd(method, lr=0.1), 2)
        step(inputs.float(), *others)
        assert method.seen[0][2].outputs.dtype == dtype
        assert not method.autocast  # in the losses
        assert all(value.dtype == torch.float32 for value in method.parameters())
    assert seen == [False] * 4 + [True] * 4


# After a step


@pytest.mark.parametrize("chunks", [1, 3])
def test_after_step_runs_once_after_each_update_with_the_batch_of_the_losses(processes: Processes, chunks: int) -> None:
    method = Recording()
    step = TrainingStep(processes, method, CPU, sgd(method, lr=0.1), chunks)
    for number in range(2):
        inputs, images, labels, _ = a_batch(6, seed=number)
        before = method.backbone.tail(inputs).detach()
        step(inputs, images, labels, torch.tensor(number / 2))
        (asked, old, batch, _), (settled, new, again, grad) = method.seen[-2:]
        assert (asked, settled, len(method.seen)) == ("losses", "after_step", 2 * number + 2)
        assert again is batch
        assert not grad
        assert not torch.equal(old, new)
        assert torch.equal(new, weights(method)["backbone.net.weight"])
        torch.testing.assert_close(batch.outputs.detach(), before)  # from the weights before the update
        assert torch.equal(batch.images, images)
        assert torch.equal(batch.labels, labels)
        assert batch.progress == number / 2


# Every method


def real_batch(number: int) -> Inputs:
    images = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(number))
    labels = torch.tensor([0, -1, -1, 1, -1, -1]).roll(number)
    return images, torch.arange(6).repeat(2), labels.repeat(2), torch.tensor(number / 4)


def stepped(
    processes: Processes, name: str, *, chunks: int = 1, room: int | None = None
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Return the losses of four steps, and the weights and buffers before and after; only `room` rows fit at once."""
    method = small(name, convnet(trained=3), losses=Swaps(heads=2, queue=9) if name == "uno" else None)
    start = weights(method)

    def check(_: nn.Module, values: tuple[Tensor]) -> None:
        if room is not None and len(values[0]) > room and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory.")

    method.register_forward_pre_hook(check)
    step = TrainingStep(processes, method, CPU, sgd(method, lr=0.01, momentum=0.9), chunks)
    terms = torch.stack([step(*real_batch(number)) for number in range(4)])
    return terms, [start, weights(method)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("chunks", "room"), thorough_but([(5, None)], [(5, None), (1, 4)]))
def test_every_method_ends_with_the_same_weights_and_buffers_in_any_number_of_chunks(
    processes: Processes, caplog: pytest.LogCaptureFixture, name: str, chunks: int, room: int | None
) -> None:
    """Even if chunks were halved because memory ran out: nothing is queued twice."""
    with double_precision():
        terms, (start, whole) = stepped(processes, name)
        got, (_, cut) = stepped(processes, name, chunks=chunks, room=room)
    assert bool(caplog.messages) == (room is not None)
    torch.testing.assert_close(got, terms, rtol=1e-9, atol=1e-9)
    for key, value in whole.items():
        went = (value - start[key]).double().norm()
        assert (cut[key] - value).double().norm() <= 1e-9 * went, key
    if name == "uno":
        assert whole["filled"] == cut["filled"] == 9
        assert not torch.equal(whole["queue"], start["queue"])
