import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sortal.images import near_duplicates


def some(seed: int, n: int, kinds: int) -> NDArray[np.uint8]:
    """Make thumbnails of a few kinds with varying noise, some with less contrast, some of a single colour."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(30, 220, (kinds, near_duplicates.LENGTH))
    noise = rng.normal(0, rng.choice([0.5, 3, 6, 8, 9, 40], size=(n, 1)), (n, near_duplicates.LENGTH))
    rows = kind[rng.integers(0, kinds, n)] * rng.choice([1, 0.8, 0.2], (n, 1)) + noise
    rows[rng.random(n) < 0.1] = 77
    thumbnails: NDArray[np.uint8] = np.clip(rows, 0, 255).astype(np.uint8)
    return thumbnails


def slow_leaders(thumbnails: NDArray[np.uint8]) -> list[int]:
    """Compare every pair by definition: correlation, and the residual of a least-squares fit in both directions."""
    x = thumbnails.astype(float)

    def residual(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
        fitted = np.polyval(np.polyfit(one, other, 1), one)
        return float(np.sqrt(((other - fitted) ** 2).mean()))

    found: list[int] = []
    for row in range(len(x)):
        leader = row
        for before in range(row):
            if found[before] == before and min(x[row].std(), x[before].std()) > 0:
                correlation = np.corrcoef(x[row], x[before])[0, 1]
                rest = max(residual(x[row], x[before]), residual(x[before], x[row]))
                if correlation > near_duplicates.LEAST_ALIKE and rest < near_duplicates.REST:
                    leader = before
                    break
        found.append(leader)
    return found


def test_leaders_match_a_comparison_of_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    thumbnails = some(seed=0, n=60, kinds=3)
    expected = slow_leaders(thumbnails)
    counts = np.bincount(expected)
    assert counts.max() > 3
    assert (counts == 1).sum() > 3
    for block, tile in ((1, 1), (7, 3), (1024, 2**14)):
        monkeypatch.setattr(near_duplicates, "BLOCK_ROWS", block)
        monkeypatch.setattr(near_duplicates, "TILE", tile)
        assert near_duplicates.leaders(thumbnails).tolist() == expected, (block, tile)


def test_groups_are_not_chained() -> None:
    """Each image is like the one before it, but only likeness to the leader counts."""
    one, two = np.random.default_rng(1).integers(0, 256, (2, near_duplicates.LENGTH))
    chain = np.stack([(one * (1 - t) + two * t).astype(np.uint8) for t in np.linspace(0, 1, 31)])
    found = near_duplicates.leaders(chain)
    assert all(near_duplicates.leaders(chain[i : i + 2])[1] == 0 for i in range(30))
    assert 3 < len(set(found.tolist())) < 31


@given(st.integers(0, 2**32 - 1))
def test_a_leader_leads_itself_and_comes_first(seed: int) -> None:
    found = near_duplicates.leaders(some(seed, n=20, kinds=3))
    assert (found[found] == found).all()
    assert (found <= np.arange(20)).all()


def test_progress_ends_at_the_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "BLOCK_ROWS", 4)
    steps: list[tuple[int, int]] = []
    near_duplicates.leaders(some(0, n=10, kinds=2), lambda *step: steps.append(step))
    assert steps == [(4, 10), (8, 10), (10, 10)]
    assert near_duplicates.leaders(np.zeros((0, near_duplicates.LENGTH), np.uint8)).tolist() == []


def test_many_images_are_compared_in_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    thumbnails = some(seed=2, n=300, kinds=40)
    exact = near_duplicates.leaders(thumbnails)
    monkeypatch.setattr(near_duplicates, "EXACT", 20)
    found = near_duplicates.leaders(thumbnails)
    assert (found[found] == found).all()
    assert (found <= np.arange(300)).all()
    followers = exact != np.arange(300)
    assert followers.sum() > 50
    assert (found[followers] == exact[followers]).mean() > 0.9
    assert (found[~followers] == np.flatnonzero(~followers)).all(), "what looks like no other has no leader"
