"""Heads: the projection's layers by the paper, their start from a seed alone, and what their outputs can tell."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from scipy import stats
from torch import Tensor, nn

from sortal.head import Classifier, ProjectionHead, outputs_of
from sortal.losses import contrastive


def small(prototypes: int | None = 50, seed: int = 0) -> ProjectionHead:
    return ProjectionHead(12, hidden=16, bottleneck=8, prototypes=prototypes, seed=seed)


def features(n: int = 10, width: int = 12) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(1))


def prototypes_of(head: ProjectionHead) -> nn.Parameter:
    assert head.prototypes is not None
    return head.prototypes


def has_unit_rows(output: Tensor) -> bool:
    return bool(((output.norm(dim=1) - 1).abs() < 1e-5).all())


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


# Layers


def test_the_paper_s_head_has_the_paper_s_layers() -> None:
    head = ProjectionHead(768, prototypes=65_536)
    assert [type(layer) for layer in head.mlp] == [nn.Linear, nn.GELU, nn.Linear, nn.GELU, nn.Linear]
    assert {name: tuple(value.shape) for name, value in head.named_parameters()} == {
        "mlp.0.weight": (2048, 768),
        "mlp.0.bias": (2048,),
        "mlp.2.weight": (2048, 2048),
        "mlp.2.bias": (2048,),
        "mlp.4.weight": (256, 2048),
        "mlp.4.bias": (256,),
        "prototypes": (65_536, 256),
    }
    output = head(features(2, 768))
    assert output.shape == (2, 65_536)
    assert has_unit_rows(output)


def test_it_is_the_reference_s_head() -> None:
    """DINO's head in its own words: an MLP, L2, a weight-normalised layer without bias whose norm is 1; then L2."""
    head = small()
    last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 50, bias=False))
    last.parametrizations.weight.original0.data.fill_(1)
    last.parametrizations.weight.original1.data.copy_(prototypes_of(head))
    x = features()
    w = dict(head.named_parameters())
    for i in (0, 2):
        x = nnf.gelu(x @ w[f"mlp.{i}.weight"].T + w[f"mlp.{i}.bias"])
    x = x @ w["mlp.4.weight"].T + w["mlp.4.bias"]
    expected = nnf.normalize(last(nnf.normalize(x, dim=1)), dim=1)
    torch.testing.assert_close(head(features()), expected)


def test_without_prototypes_it_gives_the_normalised_bottleneck() -> None:
    head = small(prototypes=None)
    assert "prototypes" not in dict(head.named_parameters())
    raw = head.mlp(features())
    output = head(features())
    assert output.shape == (10, 8)
    torch.testing.assert_close(output, raw / raw.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("prototypes", [None, 50])
def test_rows_have_length_1_and_are_their_own(prototypes: int | None) -> None:
    head = small(prototypes)
    output = head(features())
    assert has_unit_rows(output)
    for i in range(10):
        torch.testing.assert_close(head(features()[i : i + 1])[0], output[i])
    assert head(features(0)).shape == (0, output.shape[1])


@pytest.mark.parametrize("prototypes", [None, 50])
def test_with_autocast_rows_still_have_length_1_in_float32(prototypes: int | None) -> None:
    head = small(prototypes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = head(features())
    assert output.dtype == torch.float32
    assert has_unit_rows(output)
    assert (output * head(features())).sum(1).min() > 0.99  # bfloat16 has 8 bits


# The start


def test_weights_start_normal_with_a_deviation_of_2_percent_and_biases_at_0() -> None:
    head = ProjectionHead(384, hidden=512, bottleneck=256)
    for layer in head.mlp:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().numpy().ravel()
            assert stats.kstest(weight, stats.norm(scale=0.02).cdf).pvalue > 0.001
            assert weight.std() == pytest.approx(0.02, rel=0.01)
            assert not layer.bias.any()


def test_prototypes_start_as_torch_starts_a_linear_layer() -> None:
    start = prototypes_of(ProjectionHead(12, hidden=16, bottleneck=64, prototypes=2000)).detach().numpy().ravel()
    bound = 64**-0.5
    assert np.abs(start).max() <= bound
    assert stats.kstest(start, stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.001


def test_the_seed_decides_everything() -> None:
    torch.manual_seed(7)
    head = small(seed=3)
    torch.manual_seed(8)
    assert same(small(seed=3), head)
    other = small(seed=4)
    for name, value in head.named_parameters():
        if not name.endswith("bias"):
            assert (other.state_dict()[name] != value).float().mean() > 0.99, name


def test_no_two_layers_start_alike() -> None:
    head = ProjectionHead(16, hidden=16, bottleneck=16, prototypes=16)
    starts = [value.flatten() for name, value in head.named_parameters() if not name.endswith("bias")]
    correlations = torch.corrcoef(torch.stack(starts)) - torch.eye(4)
    assert correlations.abs().max() < 0.25  # 256 numbers each: 4 standard deviations


def test_making_a_head_leaves_torch_s_own_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    small()
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_may_be_large() -> None:
    assert not same(small(seed=2**63 - 1), small(seed=0))


def test_adding_prototypes_leaves_the_other_layers_as_they_start() -> None:
    assert same(small(prototypes=None).mlp, small(prototypes=50).mlp)


# What the output can tell


def test_the_length_of_prototypes_does_not_matter() -> None:
    head = small()
    scaled = copy.deepcopy(head)
    prototypes_of(scaled).data *= torch.linspace(0.01, 100, 50)[:, None]
    torch.testing.assert_close(scaled(features()), head(features()))
    prototypes_of(scaled).data[0] *= -1  # but their direction does
    assert not torch.allclose(scaled(features()), head(features()), atol=1e-3)


def test_the_gradient_does_not_change_the_length_of_prototypes() -> None:
    head = small()
    contrastive(head(features()), torch.arange(10) % 5, temperature=1.0).backward()
    gradient, value = prototypes_of(head).grad, prototypes_of(head).detach()
    assert gradient is not None
    assert gradient.abs().max() > 1e-5
    assert (gradient * value).sum(1).abs().max() < 1e-3 * gradient.abs().max()


def test_prototypes_enter_the_loss_only_through_their_gram_matrix() -> None:
    """Products of outputs are b_i G b_j / √(b_i G b_i · b_j G b_j), where G = WᵀW, and b the bottleneck."""
    head, ids = small(prototypes=300), torch.arange(10) % 5
    output = head(features())
    w = nnf.normalize(prototypes_of(head), dim=1).double()
    bottleneck = nnf.normalize(head.mlp(features()), dim=1).double()
    products = bottleneck @ (w.T @ w) @ bottleneck.T
    lengths = products.diagonal().sqrt()
    expected = products / torch.outer(lengths, lengths)
    torch.testing.assert_close((output @ output.T).double(), expected, rtol=0, atol=1e-6)

    # so 8 rows whose Gram matrix is the same give the same loss as the 300
    few = nnf.normalize(bottleneck @ torch.linalg.cholesky(w.T @ w), dim=1).float()
    assert few.shape == (10, 8)
    for temperature in (0.07, 1.0):
        of_few, of_all = (contrastive(x, ids, temperature=temperature) for x in (few, output))
        torch.testing.assert_close(of_few, of_all, rtol=0, atol=1e-5)


def test_many_random_prototypes_are_next_to_none() -> None:
    """WᵀW is close to a multiple of the identity at the start, and so the loss to that on the bottleneck."""
    many, none = (ProjectionHead(12, hidden=16, bottleneck=8, prototypes=n) for n in (20_000, None))
    similar = [x @ x.T for x in (many(features()), none(features()))]
    torch.testing.assert_close(similar[0], similar[1], rtol=0, atol=0.05)
    assert (similar[1] - torch.eye(10)).abs().max() > 0.3  # which is not so because all are the same


# Classifiers


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
def test_scores_are_linear_in_features_of_length_1(bias: bool, cosine: bool) -> None:
    head, x = Classifier(12, 5, bias=bias), 100 * features()
    weight = head.weight.double()
    if cosine:
        weight = weight / weight.norm(dim=1, keepdim=True)
    expected = (x.double() / x.double().norm(dim=1, keepdim=True)) @ weight.T
    if head.bias is not None:
        expected = expected + head.bias.double()
    assert (head.bias is not None) == bias
    torch.testing.assert_close(head(x, cosine=cosine).double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(head(x / 1000, cosine=cosine), head(x, cosine=cosine))  # whatever their length


def test_cosines_do_not_depend_on_the_length_of_weights() -> None:
    head = Classifier(12, 5, bias=False)
    cosines = head(features(), cosine=True)
    assert cosines.abs().max() <= 1 + 1e-6
    torch.testing.assert_close(cosines, nnf.cosine_similarity(features()[:, None], head.weight[None], dim=2))
    head.weight.data *= torch.linspace(0.1, 9, 5)[:, None]
    torch.testing.assert_close(head(features(), cosine=True), cosines)
    assert not torch.allclose(head(features()), cosines, atol=1e-2)


def test_scores_are_in_float32_also_where_precision_is_lower() -> None:
    head = Classifier(12, 5, bias=True)
    expected = head(features())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head(features()), expected)
        assert head(features().bfloat16()).dtype == torch.float32
        assert head(features(), cosine=True).dtype == torch.float32


@pytest.mark.parametrize("bias", [False, True])
def test_the_table_has_weights_and_biases_side_by_side(bias: bool) -> None:
    head = Classifier(12, 5, bias=bias)
    table = head.table()
    assert table.shape == (5, 13)
    assert not table.requires_grad
    assert torch.equal(table[:, :-1], head.weight)
    assert torch.equal(table[:, -1], torch.zeros(5) if head.bias is None else head.bias)


def test_classifiers_start_as_torch_starts_a_linear_layer() -> None:
    head = Classifier(64, 2000, bias=True)
    assert head.bias is not None
    for start in (head.weight, head.bias):
        drawn = start.detach().numpy().ravel()
        assert np.abs(drawn).max() <= 1 / 8
        assert stats.kstest(drawn, stats.uniform(-1 / 8, 1 / 4).cdf).pvalue > 0.001


def test_the_start_of_a_classifier_is_its_seed_s() -> None:
    before = torch.get_rng_state()
    one, again, other = (Classifier(12, 5, bias=True, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert same(one, again)
    assert not torch.isclose(one.weight, other.weight).any()
    assert not same(Classifier(12, 5, bias=True, seed=2**63 - 1), Classifier(12, 5, bias=True, seed=0))
    first = small(seed=3).mlp[0]  # the projection of the same seed draws other numbers
    assert isinstance(first, nn.Linear)
    both = torch.stack([first.weight.flatten()[:60], one.weight.flatten()])
    assert torch.corrcoef(both)[0, 1].abs() < 0.5


@pytest.mark.parametrize(
    ("known", "labels", "outputs"),
    [
        ([0, 1, 2], [2, 0, -1, 1], [2, 0, -1, 1]),
        ([0, 2, 5], [5, -1, 0, 2, 5], [2, -1, 0, 1, 2]),
        ([7], [7, -1, 7], [0, -1, 0]),
        ([], [-1, -1], [-1, -1]),
        ([0, 3], [], []),
        ([1, 2**40], [2**40, 1, -1], [1, 0, -1]),
    ],
)
def test_a_class_has_the_output_of_its_place_among_the_known(
    known: list[int], labels: list[int], outputs: list[int]
) -> None:
    numbers = [torch.tensor(each, dtype=torch.int64) for each in (labels, known)]
    assert outputs_of(*numbers).tolist() == outputs
