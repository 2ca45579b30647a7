"""k-means on rows that all processes have, of which each computes its share."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sortal.clustering import fitting
from sortal.clustering.fitting import KMeansFit
from sortal.clustering.inputs import draw_seed, read_inputs, read_rows
from sortal.runs.confidence import Features, Ints
from sortal.system.distributed import Processes


def fit(x: Features, labels: Ints | None, k: int, *, n_init: int, seed: int, processes: Processes) -> KMeansFit:
    """Cluster the rows x (n, d); labelled ones (n,), if any, stay in the clusters of their classes.

    All results, the labels (n,) included, are the same in all processes.
    """
    rows, numbers, classes = _read(x, labels, processes)
    fitting.check_count(k, numbers, classes, processes)
    drawn = draw_seed(seed, processes)
    found = fitting.fit(rows, numbers, k, classes=classes, n_init=n_init, seed=drawn, processes=processes)
    return replace(found, labels=_joined(found.labels, processes))


def fit_each(
    x: Features, labels: Ints | None, ks: Sequence[int], *, n_init: int, seed: int, processes: Processes
) -> list[KMeansFit]:
    """Cluster the rows into each of ks, from the same starting centres, which takes less time than `fit` for each."""
    rows, numbers, classes = _read(x, labels, processes)
    for k in ks:
        fitting.check_count(k, numbers, classes, processes)
    drawn = draw_seed(seed, processes)
    each = fitting.fit_each(rows, numbers, ks, classes=classes, n_init=n_init, seed=drawn, processes=processes)
    return [replace(found, labels=_joined(found.labels, processes)) for found in each]


def _read(x: Features, labels: Ints | None, processes: Processes) -> tuple[Tensor, Ints, int]:
    """Return this process's share of the rows, the clusters of labelled ones, and the number of those."""
    own = slice(*processes.share_of(len(x)))
    rows, numbers, classes = read_inputs(
        x[own], None if labels is None else labels[own], str(processes.device), processes
    )
    return rows, numbers, len(classes)


def predict(centres: Features, x: Features, processes: Processes) -> Ints:
    """Return the nearest of the centres (k, d) of each row, (n,)."""
    own = x[slice(*processes.share_of(len(x)))]
    if not len(own):
        return _joined(np.zeros(0, dtype=np.int64), processes)
    rows = read_rows(own, processes.device)
    return _joined(fitting.nearest(rows, torch.from_numpy(centres).to(rows.device)).cpu().numpy(), processes)


def _joined(values: Ints, processes: Processes) -> Ints:
    return processes.concat(torch.from_numpy(values))[0].numpy()
