"""Heads: the layers of the paper's projection, initialisation from the seed alone, and classifier scores."""

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from scipy import stats
from torch import Tensor, nn

from sortal.learning.heads import Classifier, ProjectionHead, output_index


def small(prototypes: int | None = 50, seed: int = 0) -> ProjectionHead:
    return ProjectionHead(12, hidden=16, bottleneck=8, prototypes=prototypes, seed=seed)


def features(n: int = 10, width: int = 12) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(1))


def prototypes_of(head: ProjectionHead) -> nn.Parameter:
    assert head.prototypes is not None
    return head.prototypes


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def correlation(*values: Tensor) -> float:
    """Return the largest correlation between any two tensors."""
    found = torch.corrcoef(torch.stack([value.detach().flatten() for value in values]))
    return float((found - torch.eye(len(values))).abs().max())


# The projection


def test_the_paper_s_head_has_the_paper_s_layers() -> None:
    head = ProjectionHead(768, prototypes=1000)
    assert {name: tuple(value.shape) for name, value in head.named_parameters()} == {
        "mlp.0.weight": (2048, 768),
        "mlp.0.bias": (2048,),
        "mlp.2.weight": (2048, 2048),
        "mlp.2.bias": (2048,),
        "mlp.4.weight": (256, 2048),
        "mlp.4.bias": (256,),
        "prototypes": (1000, 256),
    }


@pytest.mark.parametrize("prototypes", [None, 50])
def test_the_head_matches_the_reference(prototypes: int | None) -> None:
    """DINO's head: an MLP, L2, a weight-normalised layer without bias of norm 1, and L2 again."""
    head = small(prototypes)
    x, w = features(), dict(head.named_parameters())
    with torch.no_grad():
        for i in (0, 2, 4):
            w[f"mlp.{i}.bias"].copy_(torch.linspace(-0.01, 0.01, len(w[f"mlp.{i}.bias"])))
    for i in (0, 2):
        x = nnf.gelu(x @ w[f"mlp.{i}.weight"].T + w[f"mlp.{i}.bias"])
    expected = nnf.normalize(x @ w["mlp.4.weight"].T + w["mlp.4.bias"], dim=1)
    if prototypes is not None:
        last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 50, bias=False))
        last.parametrizations.weight.original0.data.fill_(1)
        last.parametrizations.weight.original1.data.copy_(prototypes_of(head))
        expected = nnf.normalize(last(expected), dim=1)
    torch.testing.assert_close(head(features()), expected)
    assert head(features(0)).shape == (0, expected.shape[1])
    torch.testing.assert_close(head(features()[3:4])[0], expected[3])  # rows are independent
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = head(features())
    assert output.dtype == torch.float32
    torch.testing.assert_close(output.norm(dim=1), torch.ones(10))
    assert (output * expected).sum(1).min() > 0.99  # bfloat16 has 8 bits


def test_initial_weights_are_normal_biases_0_and_prototypes_uniform() -> None:
    head = ProjectionHead(384, hidden=512, bottleneck=64, prototypes=2000)
    for layer in head.mlp:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().numpy().ravel()
            assert stats.kstest(weight, stats.norm(scale=0.02).cdf).pvalue > 0.001
            assert not layer.bias.any()
    start = prototypes_of(head).detach().numpy().ravel()
    assert np.abs(start).max() <= 64**-0.5
    assert stats.kstest(start, stats.uniform(-(64**-0.5), 2 * 64**-0.5).cdf).pvalue > 0.001


def test_initial_weights_depend_on_the_seed_alone_and_differ_between_layers() -> None:
    before = torch.get_rng_state()
    head = small(seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    assert same(small(seed=3), head)
    assert same(small(prototypes=None, seed=3).mlp, head.mlp)  # prototypes are drawn after the other layers
    for seed in (4, 2**63 - 1):
        other = small(seed=seed).state_dict()
        for name, value in head.named_parameters():
            assert name.endswith("bias") or (other[name] != value).float().mean() > 0.99, name
    square = ProjectionHead(16, hidden=16, bottleneck=16, prototypes=16)
    starts = [value for name, value in square.named_parameters() if not name.endswith("bias")]
    assert correlation(*starts) < 0.25  # 256 numbers each: 4 standard deviations


# Classifiers


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
def test_scores_are_linear_in_normalised_features(bias: bool, cosine: bool) -> None:
    head, x = Classifier(12, 5, bias=bias), 100 * features()
    weight = head.weight.double()
    if cosine:
        weight = weight / weight.norm(dim=1, keepdim=True)
    expected = (x.double() / x.double().norm(dim=1, keepdim=True)) @ weight.T
    if head.bias is not None:
        expected = expected + head.bias.double()
    assert (head.bias is not None) == bias
    scores = head(x, cosine=cosine)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head(x, cosine=cosine), scores)  # cosines are always in float32
        assert head(x.bfloat16(), cosine=cosine).dtype == torch.float32


def test_classifiers_are_initialised_like_torchs_linear_layers() -> None:
    before = torch.get_rng_state()
    head, again, other, large = (Classifier(64, 2000, bias=True, seed=seed) for seed in (3, 3, 4, 2**63 - 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(head, again)
    assert correlation(head.weight, other.weight, large.weight) < 0.02  # 128,000 numbers: 7 standard deviations
    for start in (head.weight, head.bias):
        assert start is not None
        drawn = start.detach().numpy().ravel()
        assert np.abs(drawn).max() <= 1 / 8
        assert stats.kstest(drawn, stats.uniform(-1 / 8, 1 / 4).cdf).pvalue > 0.001
    first = ProjectionHead(64, hidden=2000, bottleneck=1, seed=3).mlp[0]  # the same seed, but other numbers
    assert isinstance(first, nn.Linear)
    assert correlation(first.weight, head.weight) < 0.02


@pytest.mark.parametrize(
    ("known", "labels", "outputs"),
    [
        ([0, 2, 5], [5, -1, 0, 2, 5], [2, -1, 0, 1, 2]),
        ([], [-1, -1], [-1, -1]),
        ([0, 3], [], []),
        ([1, 2**40], [2**40, 1, -1], [1, 0, -1]),
    ],
)
def test_the_output_of_a_class_is_its_index_among_the_known(
    known: list[int], labels: list[int], outputs: list[int]
) -> None:
    numbers = [torch.tensor(each, dtype=torch.int64) for each in (labels, known)]
    assert output_index(*numbers).tolist() == outputs
