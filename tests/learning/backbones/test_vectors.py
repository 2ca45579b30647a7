"""Feature vectors as a backbone: the identity until the head is trained."""

import torch
import torch.nn.functional as nnf

from sortal.learning.backbones.vectors import ResidualHead, VectorBackbone


def rows(n: int = 5, width: int = 7) -> torch.Tensor:
    return 3 * torch.randn(n, width, generator=torch.Generator().manual_seed(0))


def test_an_untrained_head_gives_back_the_rows_at_unit_length() -> None:
    assert torch.equal(ResidualHead(7)(rows()), nnf.normalize(rows(), dim=1))


def test_a_head_adds_what_its_two_layers_make_of_a_row() -> None:
    head = ResidualHead(7, hidden=4, seed=1)
    head.last.weight.data.fill_(0.5)
    head.first.bias.data.fill_(0.25)
    unit = rows() / rows().norm(dim=1, keepdim=True)
    hidden = nnf.gelu(unit @ head.first.weight.T + 0.25)
    torch.testing.assert_close(head(rows()), unit + 0.5 * hidden.sum(1, keepdim=True))


def test_the_head_is_all_that_is_trained_and_the_seed_decides_how_it_starts() -> None:
    backbone = VectorBackbone(7, seed=3)
    assert not backbone.has_trunk
    assert backbone.spec.width == 7
    assert all(value.requires_grad for value in backbone.parameters())
    assert torch.equal(backbone(rows()), nnf.normalize(rows(), dim=1))
    assert backbone.fingerprint() == VectorBackbone(7, seed=3).fingerprint() != VectorBackbone(7, seed=4).fingerprint()
