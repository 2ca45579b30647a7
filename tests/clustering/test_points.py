"""Points: scores against squared distances in double precision, ties by hand, chunks that cover every row once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounding import rounding
from torch import Tensor

from sortal.clustering.points import Points, best_two, nearest, scores

untimed = settings(deadline=None)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(points: Points, centres: Tensor) -> Tensor:
    """Convert centres (k, d) to the coordinates that `scores` expects."""
    return (centres.double() - points.mean).to(points.x.dtype)


def exact_scores(points: Points, centres: Tensor, x: Tensor) -> Tensor:
    """Compute ‖x − c‖² − ‖x − mean‖², (k, n), of rounded centres in double precision."""
    place, wide = centres.double() + points.mean, x.double()
    mine = (wide[None] - place[:, None]).square().sum(2)
    return mine - (wide - points.mean).square().sum(1)


def slack_of(points: Points, centres: Tensor) -> Tensor:
    """Bound the rounding error of a score, (n,)."""
    return points.slack(torch.linalg.vector_norm(centres, dim=1)[None])[0]


CLOUDS = {
    "offset": normal(200, 16) + 1000,
    "double": normal(200, 16).double() + 1000,
    "short rows, far mean": torch.cat([normal(100, 16) + 100, 1e-3 * normal(100, 16)]),
    "short rows, near mean": torch.cat([normal(50, 16) + 100, -normal(50, 16) - 100, 1e-3 * normal(100, 16)]),
}
cloud = pytest.mark.parametrize("x", CLOUDS.values(), ids=CLOUDS)


def test_scores_by_hand() -> None:
    # The mean (1, 1) is 5, 1, 8 from the rows, squared, and the centre (3, 1) is 5, 1, 20.
    points = Points(torch.tensor([[2.0, 3.0], [2.0, 1.0], [-1.0, -1.0]]))
    assert points.mean.tolist() == [1, 1]
    assert points.norms.tolist() == [5, 1, 8]
    assert points.variance() == pytest.approx(14 / 3 / 2)
    centre = torch.tensor([[2.0, 0.0]])  # (3, 1)
    assert points.bias(centre).tolist() == [8]  # 9 + 1 − 2: the score of the origin
    assert points.bias(centre.expand(4, 5, 2)).tolist() == [[8] * 5] * 4
    score = scores(points.bias(centre), centre, points.x)
    assert (score + points.norms).tolist() == [[5, 1, 20]]


@cloud
def test_rounding_errors_of_scores_are_within_the_slack(x: Tensor) -> None:
    points = Points(x)
    wide = x.double()
    assert ((points.mean - wide.mean(0)).abs() <= 2 * rounding(len(x) + 1) * wide.abs().mean(0)).all()
    centres = relative(points, x[::4] + 0.1 * normal(50, 16, seed=1))
    slack = slack_of(points, centres)
    exact = (wide - points.mean).square().sum(1)
    assert ((points.norms - exact).abs() <= slack).all()
    off = (scores(points.bias(centres), centres, x).double() - exact_scores(points, centres, x)).abs()
    assert (off <= slack).all()
    if x is CLOUDS["offset"]:  # ‖x‖² − 2 x·c + ‖c‖² would be off by the eps of 16 · 1000²
        assert slack.max() < 2**-23 * 16 * 1000**2


def test_points_may_have_no_free_rows() -> None:
    points = Points(normal(5, 3), torch.empty(0, dtype=torch.int64))
    assert points.count == 0
    assert points.variance() == 0
    assert list(points.chunks(4)) == []
    torch.testing.assert_close(points.mean, normal(5, 3).double().mean(0))


@untimed
@given(n=st.integers(1, 40), d=st.integers(1, 5), width=st.integers(0, 9), budget=st.integers(1, 99), data=st.data())
def test_chunks_and_pieces_cover_every_row_once_within_the_budget(
    n: int, d: int, width: int, budget: int, data: st.DataObject
) -> None:
    x = torch.arange(n * d, dtype=torch.float32).view(n, d)
    free = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), unique=True)), dtype=torch.int64)
    for select, want in ((None, x), (free, x[free])):
        points = Points(x, select, budget=budget)
        parts = list(points.chunks(width))
        assert [i for part, _ in parts for i in range(part.start, part.stop)] == list(range(len(want)))
        assert torch.equal(torch.cat([rows for _, rows in parts]) if parts else x[:0], want)
        assert all(len(rows) * width <= budget or len(rows) == 1 for _, rows in parts)
        index = torch.arange(len(want) * 2).view(-1, 2)
        pieces = list(points.pieces(index, width))
        assert torch.equal(torch.cat(pieces) if pieces else index, index)
        assert all(len(piece) * width <= budget or len(piece) == 1 for piece in pieces)


@pytest.mark.parametrize("budget", [None, 7], ids=["copied", "in place"])
def test_free_rows_are_the_selected_rows(budget: int | None) -> None:
    x, free = normal(30, 4) + 2, torch.tensor([3, 7, 8, 20, 29])
    points, alone = Points(x, free, budget=budget), Points(x[free], mean=x.double().mean(0))
    assert (points.free is None) == (budget is None)
    assert points.count == 5
    torch.testing.assert_close(points.mean, x.double().mean(0))  # of all rows, labelled ones included
    for name in ("norms", "lengths", "rounding"):
        torch.testing.assert_close(getattr(points, name), getattr(alone, name), rtol=1e-6, atol=0)
    assert points.variance() == pytest.approx(alone.variance())
    index = torch.tensor([[4, 0, 0], [1, 2, 3]])
    assert torch.equal(points.take(index), x[free][index])
    assert points.take(index[:, :0]).shape == (2, 0, 4)


INF = float("inf")


@untimed
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.data())
def test_best_two_are_those_of_each_restart(g: int, c: int, r: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 3), min_size=g * c * r, max_size=g * c * r))
    table = torch.tensor(values, dtype=torch.float32).view(g, c, r)
    keep = torch.tensor(data.draw(st.lists(st.integers(0, c - 1), min_size=g * r, max_size=g * r))).view(g, r)
    used = table.clone()
    for held in (keep, None):
        chosen, best, second = best_two(used, held)
        for i in range(g):
            for j in range(r):
                column = table[i, :, j].tolist()
                stays = held is not None and column[int(held[i, j])] == min(column)
                assert int(chosen[i, j]) == (int(keep[i, j]) if stays else column.index(min(column)))
                assert [best[i, j], second[i, j]] == [*sorted(column), INF][:2]
        assert torch.equal(used, table)  # unchanged


@pytest.mark.parametrize("name", ["offset", "short rows, far mean"])
def test_near_ties_are_decided_as_in_double_precision(name: str) -> None:
    """Pairs of centres whose scores differ in the last digits of a float32, in two restarts, one of them reversed."""
    x, side = CLOUDS[name], normal(20, 16, seed=2)
    points, rows = Points(x), x[torch.arange(20) * 10].double()
    one = relative(points, torch.cat([rows + side, rows - side + 1e-7 * normal(20, 16, seed=3)]))
    both, slack = torch.stack([one, one.flip(0)]), slack_of(points, one)
    tables = torch.stack([scores(points.bias(c), c, x) for c in both])
    found = nearest(tables.clone(), None, slack.expand(2, -1), both, x.expand(2, -1, -1), points)
    for centres, table, chosen, best, second in zip(both, tables, *found, strict=True):
        truth = exact_scores(points, centres, x)
        two = truth.topk(2, dim=0, largest=False).values
        clear = two[1] - two[0] > 1e-9  # in double precision
        assert (table.argmin(0) != truth.argmin(0))[clear].any()  # single precision is not enough
        assert torch.equal(chosen[clear], truth.argmin(0)[clear])
        assert ((best - two[0]).abs() <= slack).all()
        assert ((second - two[1]).abs() <= slack).all()


def test_an_exact_tie_goes_to_the_centre_to_keep_or_else_to_the_first() -> None:
    x = torch.tensor([[0.0, 3.0], [0.0, -5.0], [0.4, 0.0], [-0.4, 2.0]])
    points = Points(x, mean=torch.zeros(2))
    centres = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    table, slack = scores(points.bias(centres), centres, x)[None], torch.full((1, 4), 1e-3)
    for keep, want in ((None, [0, 0, 0, 1]), ([0, 1, 1, 0], [0, 1, 0, 1]), ([1, 0, 0, 1], [1, 0, 0, 1])):
        held = None if keep is None else torch.tensor([keep])
        assert nearest(table.clone(), held, slack, centres[None], x[None], points)[0].tolist() == [want]
