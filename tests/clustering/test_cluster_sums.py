"""ClusterSums: sums and counts by hand and against an oracle, moving rows, and refilling empty centres."""

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sortal.clustering.cluster_sums import ClusterSums, LabelledSums
from sortal.clustering.points import Points

untimed = settings(deadline=None)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape: int, high: int = 9, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def no_labels(points: Points) -> LabelledSums:
    """Return the sums of no labelled rows."""
    return LabelledSums.of(points.x, torch.full((len(points.x),), -1), 0, points)


def test_labelled_rows_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [9.0, 9.0], [3.0, 2.0], [5.0, 5.0]])
    fixed = LabelledSums.of(x, torch.tensor([0, -1, 0, 1]), 2, Points(x))
    assert fixed.sums.dtype == fixed.counts.dtype == torch.float64
    assert fixed.sums.tolist() == [[4, 2], [5, 5]]
    assert fixed.counts.tolist() == [2, 1]
    assert fixed.means.tolist() == [[2, 1], [5, 5]]
    nothing = no_labels(Points(x))
    assert nothing.sums.shape == nothing.means.shape == (0, 2)
    assert nothing.counts.shape == (0,)


@untimed
@given(n=st.integers(1, 30), d=st.integers(1, 4), c=st.integers(0, 3), g=st.integers(1, 4), budget=st.integers(1, 99))
def test_sums_and_counts_match_an_oracle(n: int, d: int, c: int, g: int, budget: int) -> None:
    k = c + 3
    x, labels, assigned = whole(n, d).float(), whole(n, high=c + 1, seed=1) - 1, whole(g, n, high=k, seed=2)
    free = (labels < 0).nonzero()[:, 0]
    points = Points(x, free, budget=budget)
    fixed = LabelledSums.of(x, labels, c, points)
    members = ClusterSums.of(points, fixed, assigned[:, free], k)
    assert members.sums.dtype == members.counts.dtype == torch.float64
    for r in range(g):
        belongs = torch.where(labels < 0, assigned[r], labels)
        for j in range(k):
            assert torch.equal(members.sums[r, j], x[belongs == j].double().sum(0))
            assert members.counts[r, j] == (belongs == j).sum()
    some = members[torch.tensor([g - 1, 0])]
    assert torch.equal(some.sums, members.sums[[g - 1, 0]])
    assert torch.equal(some.counts, members.counts[[g - 1, 0]])
    assert torch.equal(fixed.counts, torch.bincount(labels[labels >= 0], minlength=c)[:c].double())  # unchanged


def test_sums_are_in_double_precision() -> None:
    points = Points(torch.tensor([[2.0**24], [1.0], [1.0], [9.0]]))
    members = ClusterSums.of(points, no_labels(points), torch.tensor([[0, 0, 0, 1]]), 2)
    assert members.sums.tolist() == [[[2**24 + 2], [9]]]


@untimed
@given(
    n=st.integers(1, 25), g=st.integers(1, 3), budget=st.integers(1, 60), free=st.booleans(), seed=st.integers(0, 99)
)
def test_moving_equals_recounting_and_moving_back_restores(n: int, g: int, budget: int, free: bool, seed: int) -> None:
    k, x = 4, whole(n, 3, seed=seed).float()
    points = Points(x, torch.arange(0, n, 2) if free else None, budget=budget)
    fixed = LabelledSums.of(x, torch.arange(n) % 2 if free else torch.full((n,), -1), 2, points)
    before, after = whole(2, g, points.count, high=k, seed=seed + 1)
    old, members = (ClusterSums.of(points, fixed, before, k) for _ in range(2))
    pairs = (before != after).nonzero()
    touched = members.move(points, pairs, before, after)
    new = ClusterSums.of(points, fixed, after, k)
    assert torch.equal(members.sums, new.sums)
    assert torch.equal(members.counts, new.counts)
    expected = torch.zeros(g, k, dtype=torch.bool)
    for r, row in pairs.tolist():
        expected[r, before[r, row]] = expected[r, after[r, row]] = True
    assert torch.equal(touched, expected)
    assert torch.equal(members.move(points, pairs, after, before), expected)
    assert torch.equal(members.sums, old.sums)
    assert torch.equal(members.counts, old.counts)


def test_many_moves_accumulate_no_error() -> None:
    points = Points(normal(300, 8) + 100)
    assigned = whole(50, 1, 300, high=5)
    members = ClusterSums.of(points, no_labels(points), assigned[0], 5)
    for before, after in pairwise(assigned):
        members.move(points, (before != after).nonzero(), before, after)
    again = ClusterSums.of(points, no_labels(points), assigned[-1], 5)
    assert torch.equal(members.counts, again.counts)
    torch.testing.assert_close(members.sums, again.sums, rtol=1e-13, atol=0)


@pytest.mark.parametrize("offset", [0, 1000])
def test_spread_is_inertia_minus_the_scatter_about_the_mean(offset: float) -> None:
    x, labels, k = normal(60, 5) + offset, whole(60, high=3, seed=1) - 1, 6
    points = Points(x, (labels < 0).nonzero()[:, 0])
    fixed = LabelledSums.of(x, labels, 2, points)
    assigned, centres = whole(3, points.count, high=k, seed=2), normal(3, k, 5, seed=3)
    members = ClusterSums.of(points, fixed, assigned, k)
    for r in range(3):
        belongs = labels.clone()
        belongs[labels < 0] = assigned[r]
        places = (centres[r].double() + points.mean)[belongs]
        inertia = (x.double() - places).square().sum()
        scatter = (x.double() - x.double().mean(0)).square().sum()
        assert members.spread(points, r, centres[r]) == pytest.approx(float(inertia - scatter), rel=1e-9)


# Empty centres


def refill(
    x: Tensor, places: Tensor, assigned: list[int], labels: list[int] | None = None, c: int = 0
) -> tuple[list[int], list[int]]:
    """Refill the empty centres; return the assignment afterwards and the rows that moved."""
    known = torch.tensor(labels if labels is not None else [-1] * len(x))
    points = Points(x, (known < 0).nonzero()[:, 0])
    where = torch.tensor([assigned])
    members = ClusterSums.of(points, LabelledSums.of(x, known, c, points), where, len(places))
    moved = members.refill(points, 0, (places.double() - points.mean).to(x.dtype), where[0])
    return where[0].tolist(), moved.tolist()


def line(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_the_farthest_rows_move_to_the_empty_centres() -> None:
    assert refill(line(0, 1, 5, 10), line(1, 10, 99), [0, 0, 0, 1]) == ([0, 0, 2, 1], [2])
    # Distances 0, 2, 3, 6, 1: first 6, then 3 from the same cluster, which would leave it with two, then 2.
    x, places = line(0, 2, 3, 6, 21), line(99, 0, 98, 20, 97)
    assert refill(x, places, [1, 1, 1, 1, 3]) == ([1, 4, 2, 0, 3], [3, 2, 1])
    # More centres are empty than rows can move.
    assert refill(line(0, 1, 3), line(0, 9, 9, 9), [0, 0, 0]) == ([0, 2, 1], [2, 1])
    assert refill(line(0, 1), line(0, 1, 9), [], labels=[0, 1], c=2) == ([], [])


def test_the_last_member_stays() -> None:
    # 50 is the farthest, but alone in its cluster; 4 is the next.
    assert refill(line(0, 1, 4, 50), line(0, 99, 10), [0, 0, 0, 2]) == ([0, 0, 1, 2], [2])
    assert refill(line(0, 50), line(3, 60, 99), [0, 1]) == ([0, 1], [])
    # Both rows are in class 0; the unlabelled one may move because the labelled one stays.
    assert refill(line(0, 7), line(0, 99), [0], labels=[0, -1], c=1) == ([1], [0])


@pytest.mark.parametrize("offset", [0.0, 7.3, 1000.1])
def test_nothing_moves_when_every_row_lies_on_its_centre(offset: float) -> None:
    x = torch.tensor([[0.1, 0.7]] * 3 + [[0.3, 0.2]] * 2) + offset
    assert refill(x, torch.stack([x[0], x[3], x[3] + 1]), [0, 0, 0, 1, 1]) == ([0, 0, 0, 1, 1], [])


def test_only_the_given_restart_is_refilled() -> None:
    points, assigned = Points(line(0, 1, 5)), torch.tensor([[0, 0, 0], [1, 1, 1]])
    members = ClusterSums.of(points, no_labels(points), assigned, 2)
    centres = (line(0, 1) - points.mean).float()
    assert members.refill(points, 1, centres, assigned[1]).tolist() == [2]
    assert assigned.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert members.counts.tolist() == [[3, 0], [0, 3]]  # only `move` changes them


@untimed
@given(
    n=st.integers(1, 20),
    k=st.integers(1, 8),
    used=st.integers(1, 8),
    offset=st.sampled_from([0, 40]),
    seed=st.integers(0, 999),
)
def test_refilling_matches_an_oracle(n: int, k: int, used: int, offset: int, seed: int) -> None:
    x = normal(n, 2, seed=seed) + offset
    places = normal(k, 2, seed=seed + 1) + offset
    start: list[int] = whole(n, high=min(used, k), seed=seed + 2).tolist()
    want, left = list(start), [start.count(j) for j in range(k)]
    empty = [j for j in range(k) if not left[j]]
    distance = (x.double() - places.double()[start]).square().sum(1)
    ordered = distance.sort().values
    # Coordinates of about 40 are rounded to 4e-6, which changes squared distances below 100 by less than 2e-4.
    assume(bool(ordered[0] > 1e-3) and bool((ordered.diff() > 1e-3).all()))
    moves = []
    for row in distance.argsort(descending=True).tolist():
        if empty and left[start[row]] > 1:
            left[start[row]] -= 1
            want[row] = empty.pop(0)
            moves.append(row)
    assert refill(x, places, start) == (want, moves)
