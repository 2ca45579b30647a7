"""Results to print, and what was printed."""

from dataclasses import replace
from pathlib import Path

import pytest

from sortal.cli import discover, predict
from sortal.discovery.demo import DemoResult
from sortal.discovery.prediction import Prediction
from sortal.images.decoding import Quarantined
from sortal.metrics import Accuracy
from sortal.runs.run import Run
from support.sample_run import by_hand, sample_run

BAD = tuple(Quarantined(f"{number}.jpg", "empty", "0 bytes") for number in range(12))
FIGURES = {"plain": (0.75, 0.5, 0.875), "semi_supervised": (0.9, None, 1.0), "discovered": (0.95, 0.9, 0.975)}
ACCURACY = {name: Accuracy(all=all_, old=old, new=new) for name, (all_, old, new) in FIGURES.items()}
RESULT = DemoResult(run=replace(sample_run(), metrics=None), **ACCURACY, k_true=10, seconds=61.6)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.split("\n")]


def shown(found: Run, capsys: pytest.CaptureFixture[str]) -> list[str]:
    discover.print_run(found)
    return lines_of(capsys)


def a_prediction(found: Run) -> Prediction:
    return Prediction(run=found, assignments=by_hand().assignments, quarantine=(), added=0)


def predicted(found: Prediction, capsys: pytest.CaptureFixture[str], csv: Path | None = None) -> list[str]:
    predict.print_prediction(found, [Path("new photos")], csv)
    return capsys.readouterr().out.splitlines()
