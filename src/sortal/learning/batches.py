"""Batches: which images each step of an epoch sees, and what a method is given of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

SALT = 0x5A4D  # keeps these draws apart from other uses of the same seed


@dataclass(frozen=True)
class Batch:
    """What a method's losses are made of: one row for each view of the whole batch, over all processes.

    The first views of all images come first, then the second ones in the same order.
    """

    outputs: Tensor  # (views, ...), what the method's forward gave
    images: Tensor  # (views,), which image each is a view of
    labels: Tensor  # (views,), class numbers; −1 is unlabelled
    progress: Tensor  # (), the share of all epochs that is done; a tensor, so that a recorded step reads it anew


@dataclass(frozen=True)
class Draws:
    """The images of an epoch, (steps, batch_size) each."""

    rows: NDArray[np.int64]
    times: NDArray[np.int64]  # how often the row was drawn before in this epoch

    def __len__(self) -> int:
        return len(self.rows)


def draw(
    rows: NDArray[np.int64], labelled: NDArray[np.bool_], *, batch_size: int, balanced: bool, seed: int, epoch: int
) -> Draws:
    """Rows with replacement, len(rows) // batch_size batches of them and at least one.

    Balanced, a labelled image has weight 1 and an unlabelled one |D_L| / |D_U|: half of a batch is labelled in
    expectation.
    """
    steps = max(len(rows) // batch_size, 1)
    n_labelled = int(labelled.sum())
    weights = np.ones(len(rows))
    if balanced and 0 < n_labelled < len(rows):
        weights[~labelled] = n_labelled / (len(rows) - n_labelled)
    generator = np.random.default_rng([SALT, epoch, seed])  # a seed may be longer than a word, so it comes last
    drawn = rows[generator.choice(len(rows), size=steps * batch_size, p=weights / weights.sum())]
    return Draws(drawn.reshape(steps, -1), _times(drawn).reshape(steps, -1))


def _times(drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each entry was there before."""
    order = np.argsort(drawn, kind="stable")
    ordered = drawn[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    times = np.empty(len(drawn), dtype=np.int64)
    times[order] = np.arange(len(drawn)) - np.repeat(starts, np.diff(np.r_[starts, len(drawn)]))
    return times
