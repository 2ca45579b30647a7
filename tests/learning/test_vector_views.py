"""Views of feature vectors: functions of their states, around the vectors they are of."""

import numpy as np
import pytest

from sortal.images.store.vector_rows import Vectors, unit_rows
from sortal.learning import views as module
from sortal.learning.views import vector_views

N, WIDTH = 400, 32
VECTORS = Vectors(unit_rows(np.random.default_rng(0).standard_normal((N, WIDTH))))
ROWS, STATES = np.arange(N), np.random.default_rng(1).integers(0, 2**63, N).astype(np.uint64)


def only(monkeypatch: pytest.MonkeyPatch, **kept: float) -> None:
    """Make views that are changed in one way alone."""
    for name in ("MIXED", "NOISE", "DROPPED"):
        monkeypatch.setattr(module, name, kept.get(name, 0.0))


def test_without_states_rows_are_as_they_are() -> None:
    assert np.array_equal(vector_views(VECTORS, ROWS[:3], None), VECTORS.rows[:3])


def test_a_view_depends_on_its_state_alone() -> None:
    whole = vector_views(VECTORS, ROWS, STATES)
    order = np.random.default_rng(2).permutation(N)[:50]
    assert np.array_equal(vector_views(VECTORS, ROWS[order], STATES[order]), whole[order])
    assert not np.array_equal(vector_views(VECTORS, ROWS, STATES + np.uint64(1)), whole)


def test_mixing_moves_a_vector_part_of_the_way_to_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, MIXED=0.5)
    moved = vector_views(VECTORS, ROWS, STATES) - VECTORS.rows
    ways = VECTORS.rows[VECTORS.neighbours] - VECTORS.rows[:, None]  # (n, neighbours, d)
    shares = (ways * moved[:, None]).sum(2) / (ways**2).sum(2)
    left = np.linalg.norm(moved[:, None] - shares[..., None] * ways, axis=2)
    nearest = left.argmin(1)
    assert left.min(1).max() < 1e-5  # of float32 numbers below 1
    chosen = shares[ROWS, nearest]
    assert chosen.min() >= 0
    assert 0.45 < chosen.max() <= 0.5 + 1e-5


def test_noise_has_the_spread_of_each_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, NOISE=0.5)
    noise = (vector_views(VECTORS, ROWS, STATES) - VECTORS.rows) / VECTORS.deviations
    # 12,800 numbers, which stretches share: the standard error of their deviation is about 0.5 / sqrt(2 · 12,800).
    assert abs(noise.std() - 0.5) < 10 * 0.5 / np.sqrt(2 * noise.size)


def test_in_some_dimensions_views_are_like_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, DROPPED=0.25)
    views = vector_views(VECTORS, ROWS, STATES)
    lost = views != VECTORS.rows
    assert np.array_equal(views[lost], np.broadcast_to(VECTORS.means, views.shape)[lost])
    assert abs(lost.mean() - 0.25) < 10 * np.sqrt(0.25 * 0.75 / lost.size)
