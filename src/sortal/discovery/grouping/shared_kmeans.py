"""k-means on rows that all processes have, of which each computes its share."""

from dataclasses import replace

import numpy as np
import torch

from sortal.clustering import fitting
from sortal.clustering.fitting import KMeansFit
from sortal.clustering.inputs import draw_seed, read_inputs, read_rows
from sortal.runs.confidence import Features, Ints
from sortal.system.distributed import Processes


def fit(x: Features, labels: Ints | None, k: int, *, n_init: int, seed: int, processes: Processes) -> KMeansFit:
    """Cluster the rows x (n, d); labelled ones (n,), if any, stay in the clusters of their classes.

    All results, the labels (n,) included, are the same in all processes.
    """
    own = slice(*processes.share_of(len(x)))
    rows, numbers, classes = read_inputs(
        x[own], None if labels is None else labels[own], str(processes.device), processes
    )
    fitting.check_count(k, numbers, len(classes), processes)
    drawn = draw_seed(seed, processes)
    found = fitting.fit(rows, numbers, k, classes=len(classes), n_init=n_init, seed=drawn, processes=processes)
    return replace(found, labels=_joined(found.labels, processes))


def predict(centres: Features, x: Features, processes: Processes) -> Ints:
    """Return the nearest of the centres (k, d) of each row, (n,)."""
    own = x[slice(*processes.share_of(len(x)))]
    if not len(own):
        return _joined(np.zeros(0, dtype=np.int64), processes)
    rows = read_rows(own, processes.device)
    return _joined(fitting.nearest(rows, torch.from_numpy(centres).to(rows.device)).cpu().numpy(), processes)


def _joined(values: Ints, processes: Processes) -> Ints:
    joined: Ints = processes.concat(torch.from_numpy(values))[0].numpy()
    return joined
