"""Feature vectors as a backbone: the identity until the head is trained."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as nnf

from sortal.errors import InputError
from sortal.learning.backbones.names import check_backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.backbones.vectors import GAIN, ResidualHead, VectorBackbone


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
    torch.testing.assert_close(head(rows()), unit + 0.5 * GAIN * hidden.sum(1, keepdim=True))


def test_vectors_are_directions_from_their_mean_until_the_head_is_trained() -> None:
    unit = nnf.normalize(rows(), dim=1)
    backbone = VectorBackbone(unit.mean(0), seed=3)
    torch.testing.assert_close(backbone(rows()), nnf.normalize(unit - unit.mean(0), dim=1))
    assert not backbone.has_trunk
    assert backbone.spec.width == 7


def test_the_head_is_all_that_is_trained_and_the_seed_decides_how_it_starts() -> None:
    backbone = VectorBackbone(torch.zeros(7), seed=3)
    assert [name for name, value in backbone.named_parameters() if value.requires_grad] == [
        f"net.1.{name}" for name in ("first.weight", "first.bias", "last.weight", "last.bias")
    ]
    same, other = (VectorBackbone(torch.zeros(7), seed=seed).fingerprint() for seed in (3, 4))
    assert backbone.fingerprint() == same != other


def test_a_saved_backbone_has_the_mean_and_the_head(tmp_path: Path) -> None:
    backbone = VectorBackbone(torch.arange(7) / 10, seed=3)
    backbone.get_parameter("net.1.last.weight").data.fill_(0.5)
    backbone.save(tmp_path / "model")
    assert torch.equal(load_backbone(str(tmp_path / "model.json"))(rows()), backbone(rows()))


@pytest.mark.parametrize("width", [-1, 0, 10**11])
def test_a_model_of_features_with_an_impossible_width_is_refused(width: int, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    VectorBackbone(torch.zeros(4)).save(path.with_suffix(""))
    path.write_text(json.dumps({**json.loads(path.read_text()), "width": width}))
    with pytest.raises(InputError, match=r"The width in .* must be from 1 to 65,536"):
        load_backbone(str(path))
    with pytest.raises(InputError, match="is of feature vectors, and cannot read images"):
        check_backbone(str(path), None)
