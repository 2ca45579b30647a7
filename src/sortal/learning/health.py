"""What is measured after each epoch: whether features have diverged or collapsed, and accuracy on validation images."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from sortal.images.image_set import ImageSet
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.batches import ImageTable
from sortal.learning.frozen import FrozenEncoder, KeptTokens
from sortal.learning.views import RowNumbers

PROBED_IMAGES = 128  # to measure on
PROBED_AT_ONCE = 64  # images at once, as training may leave little memory
PROBED_TOKENS = 2**26  # numbers in the tokens of more images, if there is a trunk: a GPU has too little to do with few
LEAST_SPREAD, LEAST_RANK = 0.2, 0.1  # fractions of the initial values, below which features have collapsed
SPREAD_OF_EQUALS = 1e-6  # spread of features that are equal but for rounding, and cannot collapse any further
Failure = Literal["diverged", "collapsed"]


@dataclass(frozen=True, kw_only=True)
class FeatureHealth:
    """Measurements of features; they are not finite if the features are not."""

    effective_rank: float
    spread: float
    largest_query: float | None  # None for a backbone without a class token

    def figures(self) -> dict[str, float]:
        """Return the measurements that are available, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Probe:
    """Measures the features of centre crops of a few rows; the trunk's tokens are `kept` between epochs if they fit.

    With `seen` (count,), only these of the tokens count, as all take longer and show no more.
    """

    def __init__(
        self,
        trunk: FrozenEncoder,
        store: PixelStore,
        rows: RowNumbers,
        kept: KeptTokens,
        seen: Tensor | None = None,
    ) -> None:
        self.trunk, self.store, self.rows, self.kept, self.seen = trunk, store, evenly_spaced(rows), kept, seen
        self.initial = self.measure()

    @torch.no_grad()
    def measure(self) -> FeatureHealth:
        """Measure the features of the backbone's current weights."""
        kept = self.kept.of(self.rows, lambda: self.trunk.centre_crops(self.store, self.rows))
        tokens = (batch if self.seen is None else batch[:, self.seen] for batch in kept)
        backbone, features, queries = self.trunk.backbone, list[Tensor](), list[Tensor]()
        with self.trunk.compute.autocast():
            for inputs in (piece for batch in tokens for piece in batch.split(self._at_once(batch))):
                features.append(backbone.tail(inputs))
                if (largest := backbone.largest_query(inputs)) is not None:
                    queries.append(largest)
        x = nnf.normalize(torch.cat(features).float(), dim=1)
        rank, spread = effective_rank_and_spread((x.cpu() if x.device.type == "mps" else x).double())
        query = float(torch.stack(queries).max()) if queries else None
        return FeatureHealth(effective_rank=rank, spread=spread, largest_query=query)

    def _at_once(self, tokens: Tensor) -> int:
        more = PROBED_TOKENS // max(tokens[0].numel(), 1) if self.trunk.backbone.has_trunk else 0
        return max(PROBED_AT_ONCE, more)

    def failure(self, figures: Iterable[float], now: FeatureHealth) -> Failure | None:
        """Tell how an epoch failed, if it did; `figures` are its losses and the norm of its gradient.

        A low rank alone is no collapse: the features of a few classes have one too, once they are far apart.
        """
        if not all(map(math.isfinite, (*figures, now.effective_rank, now.spread))):
            return "diverged"
        before = self.initial
        if before.spread <= SPREAD_OF_EQUALS:
            return None
        low = now.effective_rank < LEAST_RANK * before.effective_rank and now.spread < before.spread
        return "collapsed" if low or now.spread < LEAST_SPREAD * before.spread else None


def evenly_spaced(rows: RowNumbers) -> RowNumbers:
    """Return up to `PROBED_IMAGES` of the rows, evenly spaced."""
    n = min(len(rows), PROBED_IMAGES)
    return rows[np.arange(n) * len(rows) // n]


def effective_rank_and_spread(x: Tensor) -> tuple[float, float]:
    """Return (Σλ)²/Σλ² and Σλ for the eigenvalues λ of the covariance of rows, (n, d).

    For rows of length 1, the spread is 1 − |mean|². Without any spread, the rank is 0.
    """
    centred = x - x.mean(0)
    products = centred @ centred.T if len(x) < x.shape[1] else centred.T @ centred  # the same eigenvalues but for 0
    total, squares = products.trace(), products.square().sum()
    rank = torch.where(squares == 0, 0.0, total.square() / squares)
    rank, spread = torch.stack([rank, total / len(x)]).tolist()  # the host waits only once
    return rank, spread


class Validation:
    """Measures the accuracy on the validation images; the trunk's tokens are `kept` between epochs if they fit."""

    def __init__(self, trunk: FrozenEncoder, images: ImageSet, store: PixelStore, kept: KeptTokens) -> None:
        rows = np.flatnonzero((images.labels >= 0) & np.isin(images.labels, images.labels[images.labelled]))
        self.table = ImageTable(torch.from_numpy(images.labels[rows]), rows, store, trunk, kept)
        self.held_out = torch.from_numpy(images.validation[rows])

    def accuracy(self) -> float:
        """Return the fraction of validation images whose nearest class mean is that of their own class."""
        x = self.table.features().cpu()
        known, numbers = torch.unique(self.table.labels, return_inverse=True)
        training = ~self.held_out
        sums = torch.zeros(len(known), x.shape[1]).index_add_(0, numbers[training], x[training])
        means = sums / torch.bincount(numbers[training], minlength=len(known))[:, None]
        nearest = torch.cdist(x[self.held_out], means).argmin(1)
        return float((nearest == numbers[self.held_out]).float().mean())
