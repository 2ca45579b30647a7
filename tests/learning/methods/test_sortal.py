"""Sortal's classifier: where its categories start, and the shares that it draws them to."""

import numpy as np
import pytest
import torch

from sortal.config import Rounds
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.batches import Batch
from sortal.learning.losses import divergence
from sortal.learning.methods import Sortal


def test_a_classifier_starts_at_random_where_a_cluster_is_empty() -> None:
    centres = np.zeros((3, 512), np.float32)
    centres[0, 0], centres[2, 1] = 5, 0.1
    made = [
        Sortal(load_backbone("convnet", seed=0), [0], np.ones(3), Rounds(hidden=16), batch_views=8, centres=at, seed=1)
        for at in (centres, None)
    ]
    started, random = (method.categories.weight.detach() for method in made)
    assert torch.equal(started[1], random[1])
    assert torch.equal(started[0], torch.eye(512)[0])
    assert torch.equal(started[2], torch.eye(512)[1])


def one_hot_views(categories: torch.Tensor, k: int) -> Batch:
    """Make a batch of unlabelled views whose predictions are certain."""
    outputs = torch.cat([torch.zeros(len(categories), Rounds().bottleneck), torch.eye(k)[categories] * 100], 1)
    unlabelled = torch.full((len(categories),), -1)
    return Batch(outputs, torch.arange(len(categories)), unlabelled, torch.zeros(()))


def test_a_batch_with_fewer_views_than_categories_is_balanced_with_those_before() -> None:
    """Each of 64 categories has one of 64 views in turn, 8 in a batch: alone, a batch would look like 8 categories.

    In the running mean, the views of the batch t before the last have a weight of a (1 − a)^t, with a = 8 / 64, and
    those of later rounds add up to a factor of 1 / (1 − (1 − a)^8).
    """
    k, views, rounds = 64, 8, 40
    method = Sortal(load_backbone("convnet", seed=0), [], np.ones(k), Rounds(hidden=16), batch_views=views, seed=1)
    for step in range(rounds * k // views):
        last = one_hot_views(torch.arange(views) + step * views % k, k)
        method.after_step(last)
    a, ago = views / k, torch.arange(k // views - 1, -1, -1, dtype=torch.float64)
    wanted = (a * (1 - a) ** ago / (1 - (1 - a) ** (k // views)) / views).repeat_interleave(views)
    assert method.recent is not None
    torch.testing.assert_close(method.recent.double(), wanted, rtol=1e-5, atol=0)
    certain = last.outputs[:, -k:].softmax(1)
    mean = (1 - a) * wanted + a * certain.double().mean(0)
    together = float(method.imbalance(certain, last))
    assert together == pytest.approx(float((mean * (k * mean).log()).sum()), rel=1e-4)
    assert together < float(divergence(certain, last.labels < 0, method.shares)) / 10
