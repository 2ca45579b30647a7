"""k-means on rows that all processes have, of which each computes its share."""

import numpy as np
import torch
from numpy.typing import NDArray

from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.runs.confidence import Features
from sortal.system.distributed import Processes

Ints = NDArray[np.int64]


def fit(
    x: Features, labels: Ints | None, k: int, *, n_init: int, seed: int, device: str, processes: Processes
) -> SemiSupervisedKMeans:
    """Cluster the rows x (n, d); labelled ones (n,), if any, stay in the clusters of their classes.

    All results, `labels_` (n,) included, are the same in all processes.
    """
    own = slice(*processes.share_of(len(x)))
    model = SemiSupervisedKMeans(k, n_init=n_init, random_state=seed, device=device)
    model.fit(x[own], None if labels is None else labels[own], group=processes.group)
    model.labels_ = _joined(model.labels_, processes)
    return model


def predict(model: SemiSupervisedKMeans, x: Features, processes: Processes) -> Ints:
    """Return the nearest cluster of each row, (n,)."""
    own = x[slice(*processes.share_of(len(x)))]
    return _joined(model.predict(own) if len(own) else np.zeros(0, dtype=np.int64), processes)


def _joined(values: Ints, processes: Processes) -> Ints:
    joined: Ints = processes.concat(torch.from_numpy(values))[0].numpy()
    return joined
