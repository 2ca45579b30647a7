"""RankStats+: its three losses against loops over images, views and pairs, and their gradients."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from support.tiny_methods import CASES, Row, batch_of, convnet, dot, inputs_of, mean, small, softmax, values
from torch import Tensor

from sortal.config import Ranks
from sortal.learning.methods import RankStats

D = 7  # width of the features in synthetic outputs


def oracle(
    rows: list[Row], labels: list[int], known: list[int], k: int, config: Ranks, progress: float
) -> dict[str, float]:
    """Follow METHOD §6, view by view and pair by pair; the last k numbers of a row are scores."""
    n = len(labels)
    features, logits = [row[:-k] for row in rows], [row[-k:] for row in rows]
    chances = [softmax(row) for row in logits]
    classified = []
    for view, label in enumerate([*labels, *labels]):
        if label >= 0:
            among_known = softmax(logits[view][: len(known)])
            classified.append(-log(among_known[known.index(label)]))
    largest = [set(sorted(range(len(row)), key=row.__getitem__)[-config.top :]) for row in features[:n]]
    pairs = []
    for i in range(n):
        for j in range(n):
            if labels[i] < 0 and labels[j] < 0:
                p = dot(chances[i], chances[n + j])
                pairs.append(-log((p if largest[i] == largest[j] else max(1 - p, 0)) + 1e-7))
    apart = [(chances[i][j] - chances[n + i][j]) ** 2 for i in range(n) for j in range(k)]
    weight = config.consistency * (exp(-5 * (1 - progress / config.ramp) ** 2) if progress < config.ramp else 1)
    return {"classification": mean(classified), "pairs": mean(pairs), "consistency": weight * mean(apart)}


def synthetic(n: int, k: int, seed: int = 0) -> Tensor:
    """Make outputs of 2n views; the first views of the first two images rank their features alike."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2 * n, D, generator=generator, dtype=torch.float64)
    if n > 1:
        features[1] = 2 * features[0] + 1
    return torch.cat([features, 2 * torch.randn(2 * n, k, generator=generator, dtype=torch.float64)], dim=1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("progress", [0.0, 0.5, 0.76])
def test_losses_match_a_loop_over_views_and_pairs(case: str, progress: float) -> None:
    labels, known, k = CASES[case]
    config = Ranks(top=2)
    method = RankStats(convnet(), k, known, config)
    outputs = synthetic(len(labels), k)
    got = values(method.losses(batch_of(outputs, labels, progress)))
    assert got == pytest.approx(oracle(outputs.tolist(), labels, known, k, config, progress), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("config", [Ranks(top=1), Ranks(top=D), Ranks(consistency=5, ramp=0.25), Ranks(consistency=0)])
def test_every_constant_has_its_documented_effect(config: Ranks) -> None:
    labels, known, k = CASES["mixed"]
    method, outputs = RankStats(convnet(), k, known, config), synthetic(6, k, seed=3)
    got = values(method.losses(batch_of(outputs, labels, 0.2)))
    assert got == pytest.approx(oracle(outputs.tolist(), labels, known, k, config, 0.2), rel=1e-5, abs=1e-6)


def test_the_weight_of_consistency_by_hand() -> None:
    """ω e^(−5 (1 − t/T)²): ω e^−5 at first, ω e^−1.25 half-way there, and ω from T = 150 of 200 epochs on."""
    method, outputs = small("rankstats", k=2, known=[]), torch.zeros(2, D + 2)
    outputs[0, -2:] = torch.tensor([0.0, log(3.0)])  # ¼ and ¾ against ½ and ½: a mean square of 1/16
    for progress, weight in ((0.0, exp(-5)), (0.375, exp(-1.25)), (0.75, 1.0), (0.9, 1.0), (1.0, 1.0)):
        got = values(method.losses(batch_of(outputs, [-1], progress)))["consistency"]
        assert got == pytest.approx(50 * weight / 16, rel=1e-5)


def test_gradients_reach_scores_and_never_ranks() -> None:
    labels, known, k = CASES["mixed"]
    outputs = synthetic(6, k).requires_grad_()
    unlabelled = torch.tensor([label < 0 for label in labels]).repeat(2)
    losses = RankStats(convnet(), k, known, Ranks(top=2)).losses(batch_of(outputs, labels, 0.5))
    for name, rows in (("classification", ~unlabelled), ("pairs", unlabelled), ("consistency", unlabelled | True)):
        (found,) = torch.autograd.grad(losses[name], outputs, retain_graph=True)
        assert not found[:, :D].any(), name
        assert torch.equal(found[:, D:].any(1), rows), name
        assert found[:, D + len(known) :].any() == (name != "classification")


def test_outputs_are_features_and_scores_concatenated() -> None:
    method = small("rankstats", k=5)
    inputs = inputs_of(method, 6)
    outputs, features = method(inputs), method.backbone.tail(inputs)
    assert outputs.shape == (6, 512 + 5)
    torch.testing.assert_close(outputs[:, :512], features)
    unit = features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(outputs[:, 512:], unit @ method.head.weight.T + method.head.bias)
