"""Neighbours within cells, compared with those among all rows."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal.discovery.grouping import neighbours


def unit(x: NDArray[np.float64]) -> Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(x.astype(np.float32)), dim=1)


def found(rows: Tensor, count: int) -> Tensor:
    near = torch.full((len(rows), count), -1)
    for part, those in neighbours.nearest(rows, count):
        assert (near[part] == -1).all(), "every row once"
        near[part] = those
    assert (near >= 0).all()
    return near


def test_rows_in_separate_clusters_have_the_same_neighbours_in_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    own = draw.integers(0, 30, 1500)
    rows = unit(draw.normal(size=(30, 16))[own] + 0.1 * draw.normal(size=(1500, 16)))
    exact = found(rows, 5)
    alike = (rows @ rows.T).fill_diagonal_(-1)
    assert torch.equal(exact.sort().values, alike.topk(5).indices.sort().values)
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 100)
    within = found(rows, 5)
    assert (within != torch.arange(1500)[:, None]).all(), "no row is its own neighbour"
    shared = [len({*one} & {*other}) for one, other in zip(exact.tolist(), within.tolist(), strict=True)]
    assert np.mean(shared) / 5 > 0.9


def test_many_equal_rows_are_compared_with_a_part_of_their_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 100)
    monkeypatch.setattr(neighbours, "MOST_COMPARED", 64)
    rows = torch.eye(3).repeat_interleave(torch.tensor([800, 60, 60]), dim=0)
    near = found(rows, 3)
    assert ((rows[:, None] * rows[near]).sum(2) == 1).all(), "small groups are not lost beside a large one"
    assert len(near[:800].unique()) <= 64
