"""Methods of others, on a whole run: sorted, loaded, predicted with; by a classifier, or by clusters of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import tiny_folder as tiny
from support.runtimes import CPU
from support.thorough import thorough_but

from sortal import load_run, predict
from sortal.discovery.pipeline import discover
from sortal.errors import InputError

BACKBONES: dict[str, dict[str, Any]] = {
    "legogcd": {"backbone": "convnet"},
    "rlcd": {"backbone": "test_vit", "weights": "random", "views": 2},
    "debgcd": {"backbone": "convnet", "set": ("losses.hidden=16",)},
}
OWN_CLUSTERS: dict[str, dict[str, Any]] = {
    "cms": {"set": ("losses.neighbours=3",)},
    "selex": {"k": 6, "set": ("losses.hidden=16", "losses.bottleneck=8")},
    "mgce": {"set": ("losses.neighbours=4", "losses.fewest=2")},
    "umap-hdbscan": {"set": ("losses.neighbours=5", "losses.components=2")},
}
A_LOSS = {"legogcd": "retention", "rlcd": "exchange", "debgcd": "detection"}


class Projection:
    """Project rows to their first components."""

    def __init__(self, *, n_components: int, **_: Any) -> None:
        self.width = n_components

    def fit_transform(self, x: NDArray[Any]) -> NDArray[Any]:
        return x[:, : self.width]


pytestmark = pytest.mark.usefixtures("quickly")


@pytest.mark.parametrize("method", thorough_but(["legogcd", "debgcd"], BACKBONES))
def test_a_run_sorts_and_predicts_alike(tmp_path: Path, method: str) -> None:
    """RLCD's backbone is saved with its token, to which the class token attends."""
    tiny.write(tmp_path / "images", tiny.planted(4, 2))
    discover(tmp_path / "images", out=tmp_path / "run", runtime=CPU, method=method, epochs=1, k=6, **BACKBONES[method])
    run = load_run(tmp_path / "run")
    assert run.head is not None
    assert run.head.shape[0] == 6
    assert run.facts.training is not None
    assert A_LOSS[method] in run.facts.training.losses
    here, new = run.assignments, predict(tmp_path / "run", tmp_path / "images", runtime=CPU).assignments
    predicted = dict(zip(new.files, new.category_id, strict=True))
    unlabelled = [row for row, label in enumerate(here.labels) if label is None]
    assert len(unlabelled) == 18
    same = [predicted[here.files[row]] == here.category_id[row] for row in unlabelled]
    assert np.mean(same) > 0.9, "but for ties, as the head works on saved features"


@pytest.mark.parametrize("method", thorough_but(["selex", "umap-hdbscan"], OWN_CLUSTERS))
def test_clusters_of_a_methods_own_keep_labels_and_predict_by_nearest_means(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UMAP takes half a minute to compile, so that another projection stands in for it."""
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Projection))
    tiny.write(tmp_path / "images", tiny.planted(6, 3))
    tiny.save(tmp_path / "new" / "1.png", tiny.picture("elm", 40))
    tiny.save(tmp_path / "new" / "2.png", tiny.noise(1))
    own = {"backbone": "convnet", "epochs": 1, **OWN_CLUSTERS[method]}
    discover(tmp_path / "images", out=tmp_path / "run", runtime=CPU, method=method, held_out=0, **own)
    run = load_run(tmp_path / "run")
    here, names = run.assignments, {each.id: each.name for each in run.categories}
    assert run.head is None
    assert (run.k.k, len(run.centres)) == (len(names), len(names))
    assert method != "selex" or run.k.k == 6
    labelled = [(label, names[j]) for label, j in zip(here.labels, here.category_id.tolist(), strict=True) if label]
    assert len(labelled) == 9
    assert all(label == name for label, name in labelled)
    assert {*here.category_id.tolist()} <= {*names}
    ids = np.array([each.id for each in run.categories])
    nearest = ids[np.linalg.norm(run.features[:, None] - run.centres, axis=2).argmin(axis=1)]
    again = predict(tmp_path / "run", tmp_path / "images", runtime=CPU).assignments
    predicted = dict(zip(again.files, again.category_id, strict=True))
    free = [row for row, label in enumerate(here.labels) if label is None]
    assert len(free) == 27
    same = [predicted[here.files[row]] == nearest[row] for row in free]
    assert np.mean(same) > 0.9, "but for ties within rounding"
    new = predict(tmp_path / "run", tmp_path / "new", runtime=CPU).assignments
    assert {*new.category_id.tolist()} <= {*names}


def test_rlcd_needs_a_vision_transformer(tmp_path: Path) -> None:
    tiny.write(tmp_path / "images", tiny.planted(4, 2))
    with pytest.raises(InputError, match="Further tokens need a vision transformer, which convnet is not"):
        discover(tmp_path / "images", out=tmp_path / "run", runtime=CPU, method="rlcd", backbone="convnet", k=6)
