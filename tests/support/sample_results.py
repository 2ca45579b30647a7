"""Results of `check` and of the demo, made up for tests of what is printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sortal.discovery.demo import DemoResult
from sortal.images.check import ClassCount, Health
from sortal.metrics import Accuracy
from support.sample_run import sample_run


def counts(*images: int) -> tuple[ClassCount, ...]:
    """Make a class for each number except the last, the count of unlabelled images."""
    *known, unlabelled = images
    made = (ClassCount(name=f"class {at}", images=n, unreadable=0) for at, n in enumerate(known))
    return *made, ClassCount(name=None, images=unlabelled, unreadable=0)


NOTHING: dict[str, Any] = dict.fromkeys(("alike_names", "unreadable", "duplicates", "near_duplicates"), ())
NOTHING |= dict.fromkeys(("tiny", "rotated", "deep"), ())
HEALTHY = Health(images=1103, labelled=1102, classes=counts(2, 1100, 1), ignored=("notes.txt",), **NOTHING)

FIGURES = {"plain": (0.75, 0.5, 0.875), "semi_supervised": (0.9, None, 1.0), "discovered": (0.95, 0.9, 0.975)}
ACCURACY = {name: Accuracy(all=all_, old=old, new=new) for name, (all_, old, new) in FIGURES.items()}
RESULT = DemoResult(run=replace(sample_run(), metrics=None), **ACCURACY, k_true=10, seconds=61.6)
