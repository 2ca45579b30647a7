"""The best of several restarts; the fits themselves are tested through the estimator."""

from math import log
from typing import Any

import numpy as np
import pytest
import torch

from sortal.clustering import fitting
from sortal.clustering.fitting import best_restart, fit, fit_each
from sortal.clustering.lloyd import RestartResult
from sortal.system.distributed import Peers


def test_restarts_that_differ_in_the_last_digits_are_equal_wherever_these_are() -> None:
    """A seed must not give other numbers of clusters where rounding crosses a border between two digits."""
    nothing = torch.empty(0)
    for spread in np.linspace(-3, 3, 61):  # in units of what counts as equal
        ended = [
            RestartResult(restart, nothing, nothing, nothing, spread + off, 1)
            for restart, off in ((2, -1e-6), (0, 5.0), (1, 1e-6))
        ]
        assert best_restart(ended, 1.0).restart == 1
        assert best_restart(ended[:2], 1.0).restart == 2


@pytest.mark.parametrize("room", [1, 2, 9])
def test_fits_of_several_ks_are_those_of_each_with_as_many_candidates(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several run at once on a GPU."""
    monkeypatch.setattr(fitting, "ks_at_once", lambda *_: room)
    random = np.random.default_rng(2)
    centres = random.normal(size=(9, 6))
    truth = random.integers(9, size=400)
    x = torch.from_numpy(centres[truth] + 0.4 * random.normal(size=(400, 6))).float()
    labels = np.where((truth < 3) & (np.arange(400) % 2 == 0), truth, -1)
    same: dict[str, Any] = {"classes": 3, "n_init": 4, "seed": 5, "processes": Peers()}
    ks = [12, 3, 9, 12]
    for k, found in zip(ks, fit_each(x, labels, ks, **same), strict=True):
        expected = fit(x, labels, k, candidates=2 + int(log(12)), **same)
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_allclose(found.centres, expected.centres, rtol=0, atol=1e-6)  # of about 1, in float32
        assert (len(found.centres), found.empty) == (k, 0)
