"""Figures sent to trackers, which are made up here."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from sortal.discovery.tracking import tracker
from sortal.errors import InputError


def test_figures_go_to_the_tracker_with_a_step_for_each_epoch_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    wandb = SimpleNamespace(init=lambda **of: sent.append(of), log=lambda figures, step: sent.append((step, figures)))
    mlflow = SimpleNamespace(
        start_run=lambda **of: sent.append(of), log_metrics=lambda figures, step: sent.append((step, figures))
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for name in ("wandb", "mlflow"):
        send = tracker(name, "photos-run")
        for epoch in (0, 1, 0):
            send(epoch, None, {"loss": 0.5})
    steps = [(0, {"loss": 0.5}), (1, {"loss": 0.5}), (2, {"loss": 0.5})]
    assert sent == [{"project": "sortal", "name": "photos-run"}, *steps, {"run_name": "photos-run"}, *steps]


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"^wandb is not installed\. Install it with pip install wandb\.$"):
        tracker("wandb", "x")
