"""Pruned, batched Lloyd iterations: against a slow float64 loop, and with and without pruning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sortal.clustering.cluster_sums import LabelledSums
from sortal.clustering.lloyd import LloydState, RestartResult, lloyd, restarts
from sortal.clustering.points import Points
from sortal.clustering.seeding import Seeds, row_keys


@pytest.fixture(scope="module", params=["pruned", "whole"])
def pruning(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run with pruning, and scoring all rows against all centres, as is done when that is cheaper."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sortal.clustering.lloyd.CHEAP", {} if request.param == "pruned" else {"cpu": 1 << 62})
        yield


with_and_without_pruning = pytest.mark.usefixtures("pruning")


def blobs(n: int, d: int, k: int, seed: int, *, noise: float = 1.0) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(k, d))[rng.integers(k, size=n)] + noise * rng.normal(size=(n, d))).float()


def problem(x: Tensor, labels: list[int] | None = None, budget: int | None = None) -> tuple[Points, LabelledSums]:
    known = torch.tensor(labels) if labels is not None else torch.full((len(x),), -1)
    c = int(known.max()) + 1
    points = Points(x, (known < 0).nonzero()[:, 0] if c else None, budget=budget)
    return points, LabelledSums.of(x, known, c, points)


def slow(x: Tensor, labels: list[int], start: Tensor) -> tuple[Tensor, Tensor, int] | None:
    """Run Lloyd as in the paper, in float64 with all distances: clusters, centres, iterations.

    None if a cluster was ever empty, which the paper leaves open, or if float32 cannot tell the nearest centre.
    """
    x, centres, known = x.double(), start.double().clone(), torch.tensor(labels)
    assigned = torch.full((len(x),), -1)
    for n_iter in range(500):
        distance = (x[:, None] - centres[None]).square().sum(2)
        now = torch.where(known >= 0, known, distance.argmin(1))
        two = torch.nn.functional.pad(distance, (0, 1), value=torch.inf).sort(1).values[known < 0]
        if bool((two[:, 1] - two[:, 0] < 1e-5 * x.square().sum(1).max()).any()):
            return None
        if torch.equal(now, assigned):
            return assigned, centres, n_iter
        assigned = now
        for j in range(len(centres)):
            if not (assigned == j).any():
                return None
            centres[j] = x[assigned == j].mean(0)
    raise AssertionError("the slow loop did not end")


def run(points: Points, fixed: LabelledSums, start: Tensor, max_iter: int = 500) -> list[RestartResult]:
    """Run restarts from given centres (g, k, d), in the coordinates of the data."""
    relative = (start.to(points.wide) - points.mean).to(points.x.dtype)
    ended = lloyd(points, fixed, LloydState.at(points, relative), max_iter=max_iter, tol=0.0)
    return sorted(ended, key=lambda one: one.restart)


@with_and_without_pruning
def test_four_points_by_hand() -> None:
    x = torch.tensor([[0.0, 0.0], [0.0, 2.0], [10.0, 0.0], [10.0, 4.0]])
    points, fixed = problem(x)
    (one,) = run(points, fixed, torch.tensor([[[0.0, 0.0], [10.0, 0.0]]]))
    assert one.assigned.tolist() == [0, 0, 1, 1]
    assert (one.centres + points.mean).tolist() == [[0.0, 1.0], [10.0, 2.0]]
    assert one.spread + float((x - x.mean(0)).square().sum()) == pytest.approx(1 + 1 + 4 + 4)
    assert one.n_iter == 1


@with_and_without_pruning
@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(8, 120),
    d=st.integers(1, 9),
    k=st.integers(1, 8),
    old=st.integers(0, 3),
    seed=st.integers(0, 10**6),
    noise=st.sampled_from([0.2, 1.0]),
    budget=st.sampled_from([7, 64, 1 << 22]),
)
def test_results_match_the_slow_loop(n: int, d: int, k: int, old: int, seed: int, noise: float, budget: int) -> None:
    x = blobs(n, d, k, seed, noise=noise)
    rng = np.random.default_rng(seed)
    old = min(old, k)
    labels = np.where(rng.random(n) < 0.3, rng.integers(max(old, 1), size=n), -1) if old else np.full(n, -1)
    labels[:old] = np.arange(old)
    labels[-k:] = -1
    points, fixed = problem(x, labels.tolist(), budget)
    start = torch.stack([x[torch.from_numpy(rng.choice(n, k, replace=False))] for _ in range(3)])
    for one, begin in zip(run(points, fixed, start), start, strict=True):
        answer = slow(x, labels.tolist(), begin)
        if answer is None:
            continue
        expected, centres, n_iter = answer
        free = torch.from_numpy(labels < 0)
        assert one.assigned.tolist() == expected[free].tolist()
        torch.testing.assert_close((one.centres + points.mean).double(), centres, atol=1e-5, rtol=1e-5)
        assert one.n_iter == max(1, n_iter)
        # The gap is a bound: the next centre is at least that much farther, in squared distances.
        two = (x.double()[:, None] - centres[None]).square().sum(2).sort(1).values[free]
        if k > 1:
            assert bool((one.gap <= two[:, 1] - two[:, 0] + 1e-4 * (1 + two[:, 1])).all())
        inertia = (x.double() - centres[expected]).square().sum()
        scatter = (x.double() - x.double().mean(0)).square().sum()
        # A difference of two sums: the rounding error is relative to the larger one.
        assert one.spread + float(scatter) == pytest.approx(float(inertia), abs=1e-5 * float(scatter) + 1e-5)


def test_pruning_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever centres are scored or left to the bounds, the same rows move in the same iterations."""
    monkeypatch.setattr("sortal.clustering.lloyd.CHEAP", {})
    x = blobs(500, 12, 10, seed=3)
    labels = [i % 4 if i < 100 else -1 for i in range(500)]
    points, fixed = problem(x, labels)
    start = torch.stack([torch.cat([fixed.means.float(), x[200 + 9 * i : 216 + 9 * i]]) for i in range(4)])
    usual = run(points, fixed, start)
    assert max(one.n_iter for one in usual) > 5

    def every_other(shift: Tensor) -> Tensor:
        return (shift > 0) & (torch.arange(shift.shape[1]) % 2 == 0)

    for choice in (lambda shift: shift > -1, lambda shift: shift < 0, every_other):
        monkeypatch.setattr("sortal.clustering.lloyd._far", lambda points, state, shift, choice=choice: choice(shift))
        for one, other in zip(usual, run(points, fixed, start), strict=True):
            assert one.assigned.tolist() == other.assigned.tolist()
            assert one.n_iter == other.n_iter
            assert torch.equal(one.centres, other.centres)


def test_most_rows_are_not_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far fewer scores are computed than rows × centres × iterations."""
    monkeypatch.setattr("sortal.clustering.lloyd.CHEAP", {})
    x = blobs(2000, 16, 40, seed=4, noise=0.7)
    points, fixed = problem(x)
    state = LloydState.at(points, (x[None, :40] - points.mean.float()).contiguous())
    with FlopCounterMode(display=False) as products:
        (one,) = lloyd(points, fixed, state, max_iter=500, tol=0.0)
    assert one.n_iter > 10
    assert 0 < products.get_total_flops() / (2 * 16) < 0.6 * one.n_iter * 2000 * 40


@with_and_without_pruning
def test_an_empty_centre_takes_the_farthest_row_and_never_becomes_nan() -> None:
    points, fixed = problem(torch.tensor([[0.0], [1.0], [2.0], [100.0]]))
    (one,) = run(points, fixed, torch.tensor([[[1.0], [-1000.0]]]))
    assert one.assigned.tolist() == [0, 0, 0, 1]
    assert (one.centres + points.mean).flatten().tolist() == pytest.approx([1.0, 100.0])
    x = blobs(60, 3, 4, seed=5)
    far = torch.full((9, 3), 1e4) + torch.arange(27.0).view(9, 3)
    (one,) = run(*problem(x), torch.cat([x[:1], far])[None])
    assert one.centres.isfinite().all()
    assert len(set(one.assigned.tolist())) == 10


@with_and_without_pruning
def test_max_iter_and_tol_stop_early_and_labels_agree_with_centres() -> None:
    x = blobs(500, 8, 10, seed=6)
    points, fixed = problem(x)
    start = LloydState.at(points, (x[None, :10] - points.mean.float()).contiguous())
    (short,) = lloyd(points, fixed, start, max_iter=3, tol=0.0)
    (loose,) = lloyd(points, fixed, LloydState.at(points, start.centres), max_iter=500, tol=1e3)
    assert (short.n_iter, loose.n_iter) == (3, 1)
    for one in (short, loose):
        distance = torch.cdist(x.double() - points.mean, one.centres.double())
        assert one.assigned.tolist() == distance.argmin(1).tolist()
        inertia = distance.min(1).values.square().sum()
        assert one.spread + float(points.norms.sum()) == pytest.approx(float(inertia), rel=1e-4)


@with_and_without_pruning
def test_a_restart_ends_when_few_rows_change() -> None:
    """The same iterations as without a limit, up to the first in which at most so many rows change."""
    x = blobs(500, 8, 10, seed=6)
    points, fixed = problem(x)
    first = LloydState.at(points, (x[None, :10] - points.mean.float()).contiguous())
    after = [first.assigned[0]]
    while len(after) < 3 or not torch.equal(after[-1], after[-2]):
        (one,) = lloyd(points, fixed, LloydState.at(points, first.centres), max_iter=len(after), tol=0.0)
        after.append(one.assigned)
    changed = [int((a != b).sum()) for a, b in pairwise(after)]
    for few in (0, 3, 20):
        (ended,) = lloyd(points, fixed, LloydState.at(points, first.centres), max_iter=500, tol=0.0, few=few)
        assert ended.n_iter == next(i for i, count in enumerate(changed, 1) if count <= few)
        assert torch.equal(ended.assigned, after[ended.n_iter])


def test_restarts_do_not_depend_on_how_many_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    x = blobs(400, 6, 8, seed=7)
    labels = [i % 3 if i < 60 else -1 for i in range(400)]
    points, fixed = problem(x, labels)

    def outcome() -> dict[int, tuple[list[int], int]]:
        ended = restarts(points, fixed, 8, 7, seed=11, candidates=3, max_iter=200, tol=0.0)
        return {one.restart: (one.assigned.tolist(), one.n_iter) for one in ended}

    together = outcome()
    assert sorted(together) == list(range(7))
    for size in (1, 3):
        monkeypatch.setattr("sortal.clustering.lloyd.restarts_at_once", lambda points, k, size=size: size)
        assert outcome() == together


def test_seeded_state_is_the_state_at_the_seeds() -> None:
    x = blobs(300, 5, 6, seed=8)
    points, fixed = problem(x, [i % 2 if i < 20 else -1 for i in range(300)])
    first = (fixed.means - points.mean).float()
    seeds = Seeds(points, row_keys(points), [1, 2, 3], first).grow(9)
    seeded, placed = LloydState.seeded(seeds), LloydState.at(points, seeds.centres)
    assert torch.equal(seeded.assigned, placed.assigned)
    torch.testing.assert_close(seeded.upper, placed.upper)
    torch.testing.assert_close(seeded.lower, placed.lower)


@with_and_without_pruning
def test_restarts_with_different_numbers_of_centres_run_at_once_as_they_do_alone() -> None:
    x, labels = blobs(300, 5, 6, seed=3), [0, 1, 2] * 10 + [-1] * 270
    points, fixed = problem(x, labels)
    first = (fixed.means - points.mean).to(x.dtype)

    def started(k: int) -> LloydState:
        return LloydState.seeded(Seeds(points, row_keys(points), [7, 8], first, 3).grow(k))

    alone = {k: by_number(lloyd(points, fixed, started(k), max_iter=99, tol=0.0)) for k in (3, 5, 11)}
    joined = LloydState.joined([started(k) for k in alone], points)
    together = by_number(lloyd(points, fixed, joined, max_iter=99, tol=0.0))
    assert sorted(together) == list(range(6))
    for at, k in enumerate(alone):
        for restart in (0, 1):
            one, expected = together[2 * at + restart], alone[k][restart]
            assert torch.equal(one.assigned, expected.assigned)
            torch.testing.assert_close(one.centres[:k], expected.centres)
            assert not one.centres[k:].any()
            assert one.n_iter == expected.n_iter
            assert one.spread == pytest.approx(expected.spread, rel=1e-9)


@with_and_without_pruning
def test_empty_centres_are_filled_beside_restarts_with_more() -> None:
    points, fixed = problem(blobs(40, 2, 4, seed=1))
    far = torch.tensor([[[0.0, 0.0], [900.0, 900.0]]])
    wide = torch.cat([far, points.x[None, :3]], 1)
    joined = LloydState.joined([LloydState.at(points, far), LloydState.at(points, wide)], points)
    small, large = (one for _, one in sorted(by_number(lloyd(points, fixed, joined, max_iter=99, tol=0.0)).items()))
    assert small.assigned.unique().tolist() == [0, 1]
    assert large.assigned.unique().tolist() == [0, 1, 2, 3, 4]


def by_number(ended: Iterator[RestartResult]) -> dict[int, RestartResult]:
    return {one.restart: one for one in ended}
