"""The best of several restarts; the fits themselves are tested through the estimator."""

import numpy as np
import torch

from sortal.clustering.fitting import best_restart
from sortal.clustering.lloyd import RestartResult


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
