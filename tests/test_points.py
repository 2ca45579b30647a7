"""Points: scores against squared distances in double precision, ties by hand, pieces that cover every row once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sortal.points import Points, best_two, nearest, scores

untimed = settings(deadline=None)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(points: Points, centres: Tensor) -> Tensor:
    """Centres (k, d) as they are -> as scores want them."""
    return (centres.double() - points.mean).to(points.x.dtype)


def exact_scores(points: Points, centres: Tensor, x: Tensor) -> Tensor:
    """(k, n): ‖x − c‖² − ‖x − mean‖² in double precision, of the centres after rounding."""
    place, wide = centres.double() + points.mean, x.double()
    mine = (wide[None] - place[:, None]).square().sum(2)
    return mine - (wide - points.mean).square().sum(1)


def slack_of(points: Points, centres: Tensor) -> Tensor:
    """(n,): what rounding may do to a score."""
    return points.slack(torch.linalg.vector_norm(centres, dim=1)[None])[0]


CLOUDS = {
    "centred": normal(200, 16),
    "offset": normal(200, 16) + 1000,
    "double": normal(200, 16).double() + 1000,
    "short rows, far mean": torch.cat([normal(100, 16) + 100, 1e-3 * normal(100, 16)]),
    "short rows, near mean": torch.cat([normal(50, 16) + 100, -normal(50, 16) - 100, 1e-3 * normal(100, 16)]),
    "zero rows, far mean": torch.cat([normal(100, 16) + 100, torch.zeros(100, 16)]),
}
cloud = pytest.mark.parametrize("x", CLOUDS.values(), ids=CLOUDS)


def test_scores_by_hand() -> None:
    # The mean (1, 1) is 5, 1, 8 from the rows, squared, and the centre (3, 1) is 5, 1, 20.
    points = Points(torch.tensor([[2.0, 3.0], [2.0, 1.0], [-1.0, -1.0]]))
    assert points.mean.tolist() == [1, 1]
    assert points.norms.tolist() == [5, 1, 8]
    centre = torch.tensor([[2.0, 0.0]])  # (3, 1)
    assert points.bias(centre).tolist() == [8]  # 9 + 1 − 2: the score of the origin
    score = scores(points.bias(centre), centre, points.x)
    assert (score + points.norms).tolist() == [[5, 1, 20]]


@cloud
def test_norms_are_squared_distances_to_the_mean(x: Tensor) -> None:
    points = Points(x)
    torch.testing.assert_close(points.mean, x.double().mean(0), rtol=1e-12, atol=0)
    exact = (x.double() - points.mean).square().sum(1)
    torch.testing.assert_close(points.norms.double(), exact, rtol=1e-4 if x.dtype == torch.float32 else 1e-12, atol=0)


@cloud
def test_scores_are_off_by_less_than_the_slack(x: Tensor) -> None:
    points = Points(x)
    centres = relative(points, x[::4] + 0.1 * normal(50, 16, seed=1))
    off = (scores(points.bias(centres), centres, x).double() - exact_scores(points, centres, x)).abs()
    assert (off <= slack_of(points, centres)).all()


def test_a_common_offset_costs_few_digits() -> None:
    x = CLOUDS["offset"]
    points, places = Points(x), x[:50] + 0.1 * normal(50, 16, seed=1)
    centres = relative(points, places)
    got = scores(points.bias(centres), centres, x) + points.norms
    naive = torch.addmm(places.square().sum(1, keepdim=True), places, x.T, alpha=-2) + x.square().sum(1)
    truth = exact_scores(points, centres, x) + (x.double() - points.mean).square().sum(1)
    off, naively = (got - truth).abs().max(), (naive - truth).abs().max()
    assert off < 0.02  # of distances of about 32
    assert naively > 50 * off


def test_the_given_mean_is_what_centres_are_relative_to() -> None:
    x, mean = torch.tensor([[1.0], [3.0]]), torch.tensor([5.0])
    points = Points(x, mean=mean)
    assert points.mean.dtype == torch.float64
    assert points.norms.tolist() == [16, 4]
    centre = torch.tensor([[-3.0]])  # at 2
    assert points.bias(centre).tolist() == [9 - 30]
    assert (scores(points.bias(centre), centre, x) + points.norms).tolist() == [[1, 1]]


def test_bias_keeps_any_leading_shape() -> None:
    points, centres = Points(normal(9, 3) + 7), normal(4, 5, 3)
    assert points.bias(centres).shape == (4, 5)
    torch.testing.assert_close(points.bias(centres).flatten(), points.bias(centres.view(20, 3)), rtol=0, atol=0)


def test_variance_is_the_mean_over_features() -> None:
    assert Points(torch.tensor([[0.0, 1.0], [2.0, 1.0]])).variance() == 0.5  # variances 1 and 0
    x = CLOUDS["offset"]
    assert Points(x).variance() == pytest.approx(float(x.double().var(0, correction=0).mean()), rel=1e-5)


def test_no_rows_to_move_is_fine() -> None:
    points = Points(normal(5, 3), torch.empty(0, dtype=torch.int64))
    assert points.count == 0
    assert points.variance() == 0
    assert list(points.chunks(4)) == []
    torch.testing.assert_close(points.mean, normal(5, 3).double().mean(0))


@untimed
@given(n=st.integers(1, 40), d=st.integers(1, 5), width=st.integers(0, 9), budget=st.integers(1, 99), data=st.data())
def test_pieces_cover_every_row_once_within_the_budget(
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


def test_best_two_by_hand() -> None:
    table = torch.tensor([[3.0, 1.0, 2.0, 5.0], [1.0, 1.0, 2.0, 4.0], [2.0, 0.0, 2.0, 9.0]])  # three centres, four rows
    chosen, best, second = best_two(table.clone())
    assert chosen.tolist() == [1, 2, 0, 1]
    assert best.tolist() == [1, 0, 2, 4]
    assert second.tolist() == [2, 1, 2, 5]
    chosen, best, second = best_two(table.clone(), torch.tensor([0, 1, 2, 1]))
    assert chosen.tolist() == [1, 2, 2, 1]  # kept only where it is as good as the best
    assert best.tolist() == [1, 0, 2, 4]
    assert second.tolist() == [2, 1, 2, 5]


def test_best_two_of_one_centre_has_no_runner_up() -> None:
    chosen, best, second = best_two(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[0, 0]]))
    assert (chosen.tolist(), best.tolist(), second.tolist()) == ([[0, 0]], [[3, 1]], [[INF, INF]])


@untimed
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.data())
def test_best_two_of_many_restarts_is_that_of_each(g: int, c: int, r: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 3), min_size=g * c * r, max_size=g * c * r))
    table = torch.tensor(values, dtype=torch.float32).view(g, c, r)
    keep = torch.tensor(data.draw(st.lists(st.integers(0, c - 1), min_size=g * r, max_size=g * r))).view(g, r)
    chosen, best, second = best_two(table.clone(), keep)
    for i in range(g):
        for j in range(r):
            column = table[i, :, j].tolist()
            mine = int(chosen[i, j])
            assert mine == (keep[i, j] if column[keep[i, j]] == min(column) else column.index(min(column)))
            assert [best[i, j], second[i, j]] == [*sorted(column), INF][:2]


def near_ties(x: Tensor) -> tuple[Points, Tensor]:
    """Centres in pairs that are the same for every row but for the last digits of a float32 score."""
    points = Points(x)
    side = normal(20, 16, seed=2)
    rows = x[torch.arange(20) * 10].double()
    pairs = torch.cat([rows + side, rows - side + 1e-7 * normal(20, 16, seed=3)])
    return points, relative(points, pairs)


@pytest.mark.parametrize("name", ["centred", "offset", "short rows, far mean"])
def test_near_ties_are_decided_as_in_double_precision(name: str) -> None:
    x = CLOUDS[name]
    points, centres = near_ties(x)
    truth = exact_scores(points, centres, x)
    table = scores(points.bias(centres), centres, x)
    slack = slack_of(points, centres)
    chosen, best, second = (
        value[0] for value in nearest(table[None].clone(), None, slack[None], centres[None], x[None], points)
    )
    two = truth.topk(2, dim=0, largest=False).values
    clear = two[1] - two[0] > 1e-9  # what double precision can tell
    assert (table.argmin(0) != truth.argmin(0))[clear].any()  # single precision cannot
    assert torch.equal(chosen[clear], truth.argmin(0)[clear])
    assert ((best - two[0]).abs() <= slack).all()
    assert ((second - two[1]).abs() <= slack).all()


def test_near_ties_are_decided_alike_in_any_shape_and_order() -> None:
    x = CLOUDS["offset"]
    points, centres = near_ties(x)
    slack = slack_of(points, centres)

    def decide(rows: Tensor, order: Tensor) -> Tensor:
        some = centres[order]
        table = scores(points.bias(some), some, x[rows])
        chosen, _, _ = nearest(table[None], None, slack[None, rows], some[None], x[None, rows], points)
        return order[chosen[0]]

    everyone, order = torch.arange(200), torch.arange(40)
    whole = decide(everyone, order)
    assert torch.equal(decide(everyone, torch.randperm(40, generator=torch.Generator().manual_seed(4))), whole)
    backwards = everyone.flip(0)
    assert torch.equal(decide(backwards, order), whole[backwards])
    assert torch.equal(torch.cat([decide(everyone[i : i + 1], order) for i in range(200)]), whole)


def test_a_true_tie_goes_to_the_centre_to_keep_else_to_the_first() -> None:
    x = torch.tensor([[0.0, 3.0], [0.0, -5.0], [0.4, 0.0], [-0.4, 2.0]])
    points = Points(x, mean=torch.zeros(2))
    centres = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    table, slack = scores(points.bias(centres), centres, x)[None], torch.full((1, 4), 1e-3)
    for keep, want in ((None, [0, 0, 0, 1]), ([0, 1, 1, 0], [0, 1, 0, 1]), ([1, 0, 0, 1], [1, 0, 0, 1])):
        held = None if keep is None else torch.tensor([keep])
        assert nearest(table.clone(), held, slack, centres[None], x[None], points)[0].tolist() == [want]


def test_restarts_are_decided_apart() -> None:
    x = CLOUDS["offset"]
    points, one = near_ties(x)
    two = one.flip(0)
    centres, slack = torch.stack([one, two]), slack_of(points, one)
    tables = torch.stack([scores(points.bias(c), c, x) for c in centres])
    both = nearest(tables, None, slack.expand(2, -1), centres, x.expand(2, -1, -1), points)
    for r, c in enumerate(centres):
        alone = nearest(scores(points.bias(c), c, x)[None], None, slack[None], c[None], x[None], points)
        for got, want in zip(both, alone, strict=True):
            assert torch.equal(got[r], want[0])
