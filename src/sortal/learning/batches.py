"""Batches: the images of each step of an epoch, the input of a method's losses, and the images that both number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor

from sortal.errors import InputError
from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.frozen import FrozenEncoder, KeptTokens

LEAST_SHARE = 0.1  # of labelled images in a batch, whatever the repeats
DRAW_SALT = 0x5A4D  # separates these draws from other uses of the same seed


@dataclass(frozen=True)
class Batch:
    """Input of a method's losses: one row per view, over all processes; all first views, then all second ones, …"""

    outputs: Tensor  # (views, ...), of the method's forward
    images: Tensor  # (views,), number of the image
    labels: Tensor  # (views,), class number; −1 is unlabelled
    progress: Tensor  # (), fraction of all epochs that is done; a tensor, which CUDA graphs can read


@dataclass(frozen=True)
class Draws:
    """The images of an epoch, (steps, batch_size) each."""

    rows: NDArray[np.int64]
    times: NDArray[np.int64]  # how often the row was drawn earlier in this epoch

    def since(self, step: int) -> "Draws":
        """Return the draws of this step and all later ones."""
        return Draws(self.rows[step:], self.times[step:])


def labelled_share(labelled: int, n: int, repeats: float | None) -> float:
    """Return the expected share of labelled images in a batch: half, or less if that repeats each too often.

    A labelled image is drawn at most `repeats` times as often as another, unless fewer than `LEAST_SHARE` would be
    labelled.
    """
    if repeats is None or not 0 < labelled < n:
        return 0.5
    often = repeats * labelled
    return min(0.5, max(often / (often + n - labelled), LEAST_SHARE))


def draw(
    rows: NDArray[np.int64],
    labelled: NDArray[np.bool_],
    shares: NDArray[np.float64] | None = None,
    *,
    batch_size: int,
    balanced: bool,
    seed: int,
    epoch: int,
    repeats: float | None = None,
) -> Draws:
    """Draw len(rows) // batch_size batches, and at least one, with replacement.

    Each row is drawn in proportion to its share, all equally often without `shares`. If balanced, unlabelled images
    weigh |D_L| / |D_U| times as much, counted in shares, so that half of a batch is expected to be labelled, or the
    `labelled_share` where that is less.
    """
    steps = max(len(rows) // batch_size, 1)
    weights = np.ones(len(rows)) if shares is None else shares.copy()
    if balanced and labelled.any() and not labelled.all():
        share = labelled_share(int(labelled.sum()), len(rows), repeats)
        weights[~labelled] *= weights[labelled].sum() / weights[~labelled].sum() * ((1 - share) / share)
    generator = np.random.default_rng([DRAW_SALT, epoch, seed])  # the seed is last, as it may exceed 32 bits
    drawn = rows[generator.choice(len(rows), size=steps * batch_size, p=weights / weights.sum())]
    return Draws(drawn.reshape(steps, -1), _count_earlier(drawn).reshape(steps, -1))


def drawn(rows: NDArray[np.int64], positions: NDArray[np.int64], *, steps: int, batch_size: int) -> Draws:
    """Return the draws of a method's own: positions (steps, batch_size) among the rows."""
    found = np.asarray(positions)
    fits = found.shape == (steps, batch_size) and found.dtype.kind in "iu"
    if not fits or found.min() < 0 or found.max() >= len(rows):
        raise InputError(
            f"A method's sample must be whole numbers from 0 to {len(rows) - 1:,} of shape ({steps}, {batch_size}), "
            f"got {found.dtype} of shape {found.shape}."
        )
    chosen = rows[found]
    return Draws(chosen, _count_earlier(chosen.ravel()).reshape(chosen.shape))


def _count_earlier(drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the earlier occurrences of each entry."""
    order = np.argsort(drawn, kind="stable")
    ordered = drawn[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    times = np.empty(len(drawn), dtype=np.int64)
    times[order] = np.arange(len(drawn)) - np.repeat(starts, np.diff(np.r_[starts, len(drawn)]))
    return times


@dataclass(frozen=True, eq=False)
class Numbering:
    """Numbers from 0 to m − 1 for the images of some rows; equal values share one."""

    numbers: NDArray[np.int64]  # (n,) of all rows; −1 for others
    rows: NDArray[np.int64]  # (m,), one of each number
    labels: NDArray[np.int64]  # (m,), that of any image with the number; −1 without one

    @classmethod
    def of(cls, values: NDArray[np.int64], rows: NDArray[np.int64], labels: NDArray[np.int64]) -> Self:
        """Number the values (n,) of some rows; labels are (n,)."""
        numbers = np.full(len(values), -1)
        _, first, numbers[rows] = np.unique(values[rows], return_index=True, return_inverse=True)
        found = np.full(len(first), -1)
        np.maximum.at(found, numbers[rows], labels[rows])
        return cls(numbers, rows[first], found)


def shared_groups(images: ImageSet, numbering: Numbering, device: torch.device) -> Tensor | None:
    """Return the given group (m,) of each number; None if each image is its own."""
    groups = images.groups
    return torch.from_numpy(groups[numbering.rows]).to(device) if len(np.unique(groups)) < len(groups) else None


@dataclass(frozen=True, eq=False)
class ImageTable:
    """The images that `Batch.images` numbers from 0 to m − 1; copies of one image share a number."""

    labels: Tensor  # (m,), class number; −1 is unlabelled
    rows: NDArray[np.int64]  # (m,), of the store
    store: PixelStore
    trunk: FrozenEncoder
    kept: KeptTokens  # of the trunk, between epochs

    def features(self, forward: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Compute the features of all images from centre crops, (m, d) float32 of unit length, on the device.

        With `forward`, such as a method, it is what that makes of the trunk's tokens.
        """
        tokens = self.kept.of(self.rows, lambda: self.trunk.centre_crops(self.store, self.rows))
        return nnf.normalize(torch.cat([*self.trunk.finished(tokens, forward)]).float(), dim=1)
