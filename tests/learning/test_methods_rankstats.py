"""RankStats+: its three losses against loops over images, views and pairs, and where their gradients go."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from tiny_methods import CASES, Row, batch_of, convnet, dot, inputs_of, mean, small, softmax, values
from torch import Tensor

from sortal.config import Ranks
from sortal.learning.methods import RankStats

D = 7  # numbers in a feature, where outputs are made up


def slowly(
    rows: list[Row], labels: list[int], known: list[int], k: int, config: Ranks, progress: float
) -> dict[str, float]:
    """METHOD §6, one view and one pair after the other; of a row the last k numbers are scores."""
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


def made_up(n: int, k: int, seed: int = 0) -> Tensor:
    """Outputs of 2n views; of every two images the features have the same order, so that some go together."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2 * n, D, generator=generator, dtype=torch.float64)
    if n > 1:
        features[1] = 2 * features[0] + 1
    return torch.cat([features, 2 * torch.randn(2 * n, k, generator=generator, dtype=torch.float64)], dim=1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("progress", [0.0, 0.5, 0.76])
def test_losses_are_those_of_a_loop_over_views_and_pairs(case: str, progress: float) -> None:
    labels, known, k = CASES[case]
    config = Ranks(top=2)
    method = RankStats(convnet(), k, known, config)
    outputs = made_up(len(labels), k)
    got = values(method.losses(batch_of(outputs, labels, progress)))
    assert got == pytest.approx(slowly(outputs.tolist(), labels, known, k, config, progress), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("config", [Ranks(top=1), Ranks(top=D), Ranks(consistency=5, ramp=0.25), Ranks(consistency=0)])
def test_every_constant_is_what_it_says(config: Ranks) -> None:
    labels, known, k = CASES["mixed"]
    method, outputs = RankStats(convnet(), k, known, config), made_up(6, k, seed=3)
    got = values(method.losses(batch_of(outputs, labels, 0.2)))
    assert got == pytest.approx(slowly(outputs.tolist(), labels, known, k, config, 0.2), rel=1e-5, abs=1e-6)


def test_the_weight_of_consistency_by_hand() -> None:
    """ω e^(−5 (1 − t/T)²): ω e^−5 at first, ω e^−1.25 half-way there, and ω from T = 150 of 200 epochs on."""
    method, outputs = small("rankstats", k=2, known=[]), torch.zeros(2, D + 2)
    outputs[0, -2:] = torch.tensor([0.0, log(3.0)])  # ¼ and ¾ beside ½ and ½: a mean square of 1/16
    for progress, weight in ((0.0, exp(-5)), (0.375, exp(-1.25)), (0.75, 1.0), (0.9, 1.0), (1.0, 1.0)):
        got = values(method.losses(batch_of(outputs, [-1], progress)))["consistency"]
        assert got == pytest.approx(50 * weight / 16, rel=1e-5)


def test_gradients_go_into_scores_and_never_into_ranks() -> None:
    labels, known, k = CASES["mixed"]
    outputs = made_up(6, k).requires_grad_()
    unlabelled = torch.tensor([label < 0 for label in labels]).repeat(2)
    losses = RankStats(convnet(), k, known, Ranks(top=2)).losses(batch_of(outputs, labels, 0.5))
    for name, rows in (("classification", ~unlabelled), ("pairs", unlabelled), ("consistency", unlabelled | True)):
        (found,) = torch.autograd.grad(losses[name], outputs, retain_graph=True)
        assert not found[:, :D].any(), name
        assert torch.equal(found[:, D:].any(1), rows), name
        assert found[:, D + len(known) :].any() == (name != "classification")


def test_ranks_are_those_of_the_first_view() -> None:
    """In the first views the two images have the same largest features, in the second ones they have not."""
    method = RankStats(convnet(), 2, [], Ranks(top=1))
    same, other = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    scores = [[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]]
    for features, alike in (([same, same, same, other], True), ([same, other, same, same], False)):
        rows = [f + s for f, s in zip(features, scores, strict=True)]
        chances = [softmax(row) for row in scores]
        costs = []
        for i in range(2):
            for j in range(2):
                p = dot(chances[i], chances[2 + j])
                costs.append(-log(p if alike or i == j else 1 - p))
        got = values(method.losses(batch_of(torch.tensor(rows), [-1, -1])))["pairs"]
        assert got == pytest.approx(mean(costs), abs=1e-5)


def test_outputs_are_features_and_scores_side_by_side() -> None:
    method = small("rankstats", k=5)
    inputs = inputs_of(method, 6)
    outputs, features = method(inputs), method.backbone.tail(inputs)
    assert outputs.shape == (6, 512 + 5)
    torch.testing.assert_close(outputs[:, :512], features)
    unit = features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(outputs[:, 512:], unit @ method.head.weight.T + method.head.bias)
