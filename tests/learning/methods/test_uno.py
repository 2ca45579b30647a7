"""UNO+: swapped targets against loops over views, heads and the queue, and the updates after a step."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from support import tiny_methods
from support.tiny_methods import (
    CASES,
    Row,
    batch_of,
    convnet,
    cross_entropy,
    mean,
    sinkhorn_knopp,
    small,
    softmax,
    values,
)
from torch import Tensor

from sortal.config import Swaps
from sortal.learning.methods import Uno

PLAIN = Swaps(queue=0)
RICH = Swaps(queue=11, heads=2, overclustering=3)


def targets_of(
    cosines: list[Row], labels: list[int], known: list[int], size: int, c: Swaps, recent: list[Row]
) -> list[Row]:
    """Compute the targets of each view in a head as in METHOD §6, view by view."""
    n, targets = len(labels), []
    unlabelled = [i for i in range(n) if labels[i] < 0]
    for view in range(2 * n):
        image = view % n
        if labels[image] >= 0:
            targets.append([float(j == known.index(labels[image])) for j in range(size)])
        else:
            others = range(n, 2 * n) if view < n else range(n)
            there = [cosines[others[i]] for i in unlabelled] + recent
            shares = sinkhorn_knopp(there, size, epsilon=c.epsilon, iterations=c.iterations)
            targets.append(shares[unlabelled.index(image)])
    return targets


def by_head(
    rows: list[Row], labels: list[int], known: list[int], sizes: list[int], c: Swaps, queue: list[Row]
) -> list[Row]:
    """Compute the loss of each view in each head; a row has the cosines of all heads."""
    costs, start = [], 0
    for size in sizes:
        cosines, recent = ([row[start : start + size] for row in of] for of in (rows, queue))
        targets = targets_of(cosines, labels, known, size, c, recent)
        chances = [softmax(row, c.temperature) for row in cosines]
        costs.append([cross_entropy(target, row) for target, row in zip(targets, chances, strict=True)])
        start += size
    return costs


def oracle(
    rows: list[Row], labels: list[int], known: list[int], sizes: list[int], c: Swaps, queue: list[Row]
) -> dict[str, float]:
    costs = by_head(rows, labels, known, sizes, c, queue)
    labelled = [label >= 0 for label in [*labels, *labels]]
    return {
        "unsupervised": mean([0 if has else cost for head in costs for cost, has in zip(head, labelled, strict=True)]),
        "supervised": mean([cost if has else 0 for head in costs for cost, has in zip(head, labelled, strict=True)]),
    }


def synthetic(n: int, width: int, seed: int = 0) -> Tensor:
    """Make cosines of 2n views."""
    return torch.rand(2 * n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 1.2 - 0.6


# Losses


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("config", [PLAIN, RICH], ids=["plain", "with heads and a queue"])
def test_losses_match_a_loop_step_by_step(case: str, config: Swaps) -> None:
    """Over several steps, in which the queue fills up and overflows; progress does not matter."""
    labels, known, k = CASES[case]
    method = Uno(convnet(), k, known, config)
    over = len(known) + 3 * (k - len(known))
    assert method.sizes == ([k] if config is PLAIN else [k, k, over, over])
    queue: list[Row] = []
    for number in range(4):
        mine = labels[number % 2 :] + labels[: number % 2]
        outputs = synthetic(len(mine), sum(method.sizes), seed=number).float()
        batch = batch_of(outputs, mine, number / 4)
        expected = oracle(outputs.tolist(), mine, known, method.sizes, config, queue)
        assert values(method.losses(batch)) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        method.after_step(batch)
        rows = [row for row, label in zip(outputs.tolist(), [*mine, *mine], strict=True) if label < 0]
        queue = (rows + queue)[: len(method.queue)]
        assert int(method.filled) == len(queue)
        assert method.queue[: len(queue)].tolist() == queue
        assert not method.queue[len(queue) :].any()


@pytest.mark.parametrize("change", [{"temperature": 0.3}, {"epsilon": 0.2}, {"iterations": 1}, {"iterations": 7}])
def test_every_constant_has_its_documented_effect(change: dict[str, Any]) -> None:
    labels, known, k = CASES["mixed"]
    config, outputs = replace(PLAIN, **change), synthetic(6, k)
    got = values(Uno(convnet(), k, known, config).losses(batch_of(outputs, labels)))
    assert got == pytest.approx(oracle(outputs.tolist(), labels, known, [k], config, []), rel=1e-5)
    plain = values(Uno(convnet(), k, known, PLAIN).losses(batch_of(outputs, labels)))
    assert got["unsupervised"] != pytest.approx(plain["unsupervised"], rel=1e-3)
    assert (got["supervised"] == pytest.approx(plain["supervised"])) == ("temperature" not in change)
    assert {each.name for each in fields(Swaps)} == {
        "temperature", "epsilon", "iterations", "queue", "heads", "overclustering",
    }  # fmt: skip


def test_gradients_treat_targets_as_constants() -> None:
    """They are (probabilities − targets) / τ / views: none pass through the targets or into the queue."""
    labels, known, k = CASES["mixed"]
    method = Uno(convnet(), k, known, replace(PLAIN, queue=4))
    method.after_step(batch_of(synthetic(6, k, seed=5).float(), labels))
    outputs = synthetic(6, k).requires_grad_()
    losses = method.losses(batch_of(outputs, labels))
    (found,) = torch.autograd.grad(torch.stack([*losses.values()]).sum(), outputs)
    targets = targets_of(outputs.tolist(), labels, known, k, method.config, method.queue.tolist())
    expected = ((outputs.detach() / 0.1).softmax(1) - torch.tensor(targets)) / 0.1 / 12
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert torch.autograd.gradcheck(lambda x: method.losses(batch_of(x, labels))["supervised"], outputs)


# The queue


@pytest.mark.parametrize(
    ("k", "batch_size", "length"), [(16, 128, 0), (17, 128, 68), (1, 8, 0), (1, 7, 4), (3, 25, 0), (4, 25, 16)]
)
def test_by_default_there_is_a_queue_if_half_a_batch_has_fewer_than_four_images_per_category(
    k: int, batch_size: int, length: int
) -> None:
    assert small("uno", k=k, known=[0], batch_size=batch_size).queue.shape == (length, k)


@pytest.mark.parametrize(("batch_size", "queue", "length"), [(86, "auto", 44), (88, "auto", 0), (88, 5, 5), (2, 0, 0)])
def test_the_largest_head_or_a_number_determines_the_length_of_the_queue(
    batch_size: int, queue: Any, length: int
) -> None:
    losses = Swaps(overclustering=5, queue=queue)  # heads of 3 and 11 categories
    assert small("uno", k=3, known=[0], batch_size=batch_size, losses=losses).queue.shape == (length, 14)


# Updates after a step


def test_prototypes_have_unit_length_initially_and_after_every_update() -> None:
    method = Uno(convnet(), 5, [0], RICH)
    generator = torch.Generator().manual_seed(0)
    for number in range(4):
        for head in method.heads:
            torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(len(head.weight)))
        directions = [head.weight.detach().clone() for head in method.heads]
        with torch.no_grad():
            for head, direction in zip(method.heads, directions, strict=True):
                direction += 0.3 * torch.randn(direction.shape, generator=generator)
                head.weight.copy_(direction)
            method.after_step(batch_of(synthetic(2, sum(method.sizes), seed=number).float(), [-1, 0]))
        for head, direction in zip(method.heads, directions, strict=True):
            torch.testing.assert_close(head.weight, nnf.normalize(direction, dim=1))


def test_outputs_are_the_cosines_of_all_heads() -> None:
    method = Uno(convnet(), 3, [0], RICH)
    inputs = tiny_methods.inputs_of(method, 6)
    outputs, features = method(inputs), method.backbone.tail(inputs)
    assert outputs.shape == (6, 3 + 3 + 7 + 7)
    weights = torch.cat([head.weight for head in method.heads])
    torch.testing.assert_close(outputs, nnf.cosine_similarity(features[:, None], weights[None], dim=2))


# The predicting head


def test_the_running_loss_of_each_head_by_hand() -> None:
    labels, known, k = CASES["mixed"]
    config = Swaps(queue=9, heads=3, overclustering=2)
    method, expected = Uno(convnet(), k, known, config), [0.0, 0.0, 0.0]
    queue: list[Row] = []
    assert method.mean_losses.shape == (3,)
    for number in range(3):
        outputs = synthetic(6, sum(method.sizes), seed=number).float()
        costs = by_head(outputs.tolist(), labels, known, method.sizes, config, queue)
        expected = [0.99 * before + 0.01 * mean(now) for before, now in zip(expected, costs, strict=False)]
        method.after_step(batch_of(outputs, labels))
        queue = method.queue[: int(method.filled)].tolist()
        assert method.mean_losses.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("best", [0, 2])
def test_the_head_with_the_lowest_loss_predicts(best: int) -> None:
    """Among the heads of k categories: over-clustering heads never predict, however confident they are."""
    method = Uno(convnet(), 3, [0, 1, 2], Swaps(queue=0, heads=3, overclustering=2))
    sure = torch.eye(3).repeat(2, 1)
    heads = [sure * (0.9 if head == best else 0.3 if head < 3 else 1.0) for head in range(6)]
    for _ in range(3):
        method.after_step(batch_of(torch.cat(heads, dim=1), [0, 1, 2]))
    table = method.classifier()
    assert table.shape == (3, 513)
    torch.testing.assert_close(table[:, :-1], method.heads[best].weight.detach() / 0.1)
    assert not table[:, -1].any()


def test_heads_are_initialised_differently() -> None:
    method = Uno(convnet(), 4, [0], Swaps(heads=3, overclustering=1))
    starts = torch.stack([head.weight.detach().flatten() for head in method.heads])
    assert (torch.corrcoef(starts) - torch.eye(6)).abs().max() < 0.15  # 2,048 numbers each
    again, other = (Uno(convnet(), 4, [0], Swaps(heads=3, overclustering=1), seed=seed) for seed in (0, 1))
    assert torch.equal(again.heads[2].weight, method.heads[2].weight)
    assert not torch.equal(other.heads[2].weight, method.heads[2].weight)
