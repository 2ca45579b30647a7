"""Methods that followed SimGCD, on a whole run: sorted, interrupted, resumed, predicted with."""

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
from sortal.learning.step import TrainingStep
from sortal.runs.run import Run

BACKBONES: dict[str, dict[str, Any]] = {
    "legogcd": {"backbone": "convnet"},
    "rlcd": {"backbone": "test_vit", "weights": "random"},
    "debgcd": {"backbone": "convnet", "set": ("losses.hidden=16",)},
}

pytestmark = pytest.mark.usefixtures("quickly")


def sort(images: Path, out: Path, method: str, **changes: Any) -> Run:
    settings = {"method": method, "epochs": 1, "k": 6, "views": 2, **BACKBONES[method], **changes}
    return discover(images, out=out, runtime=CPU, **settings)


@pytest.mark.parametrize("method", BACKBONES)
def test_a_run_that_is_interrupted_resumes_and_predicts_new_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    tiny.write(tmp_path / "images")
    whole = sort(tmp_path / "images", tmp_path / "whole", method, epochs=2)
    taken, step = [0], TrainingStep.__call__

    def interrupted(self: TrainingStep, *given: Any) -> Any:
        taken[0] += 1
        if taken[0] == 2:
            raise KeyboardInterrupt
        return step(self, *given)

    monkeypatch.setattr(TrainingStep, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sort(tmp_path / "images", tmp_path / "killed", method, epochs=2)
    sort(tmp_path / "images", tmp_path / "killed", method, epochs=2)
    for name in ("model.safetensors", "head.npy", "assignments.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name
    assert whole.head is not None
    assert whole.head.shape[0] == 6
    assert whole.facts.training is not None
    assert {"legogcd": "retention", "rlcd": "exchange", "debgcd": "detection"}[method] in whole.facts.training.losses
    here = load_run(tmp_path / "whole").assignments
    new = predict(tmp_path / "whole", tmp_path / "images", runtime=CPU).assignments
    predicted = dict(zip(new.files, new.category_id, strict=True))
    unlabelled = [row for row, label in enumerate(here.labels) if label is None]
    same = [predicted[here.files[row]] == here.category_id[row] for row in unlabelled]
    assert np.mean(same) > 0.9, "but for ties, as the head works on saved features"


def test_rlcd_needs_a_vision_transformer(tmp_path: Path) -> None:
    tiny.write(tmp_path / "images")
    with pytest.raises(InputError, match="Further tokens need a vision transformer, which convnet is not"):
        sort(tmp_path / "images", tmp_path / "out", "rlcd", backbone="convnet", weights=None)
