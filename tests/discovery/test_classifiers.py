"""Methods that followed SimGCD, on a whole run: sorted, loaded, predicted with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny_folder as tiny
from support.runtimes import CPU

from sortal import load_run, predict
from sortal.discovery.pipeline import discover
from sortal.errors import InputError

BACKBONES: dict[str, dict[str, Any]] = {
    "legogcd": {"backbone": "convnet"},
    "rlcd": {"backbone": "test_vit", "weights": "random", "views": 2},
    "debgcd": {"backbone": "convnet", "set": ("losses.hidden=16",)},
}
A_LOSS = {"legogcd": "retention", "rlcd": "exchange", "debgcd": "detection"}

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.mark.parametrize("method", BACKBONES)
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


def test_rlcd_needs_a_vision_transformer(tmp_path: Path) -> None:
    tiny.write(tmp_path / "images", tiny.planted(4, 2))
    with pytest.raises(InputError, match="Further tokens need a vision transformer, which convnet is not"):
        discover(tmp_path / "images", out=tmp_path / "run", runtime=CPU, method="rlcd", backbone="convnet", k=6)
