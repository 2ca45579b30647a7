"""What was measured, and how much a run computes, with values of a test's own."""

from typing import Any

from sortal.discovery.costs import Work
from sortal.discovery.rates import Measurements


def measurements(**changes: Any) -> Measurements:
    rates = {"decode": 0.02, "view": 0.25, "crop": 0.25, "step": 2.0}
    sizes = {"stored": 300.0, "base": 10_000, "working": 2000}
    return Measurements(**{**rates, **sizes, "tiny": False, "unreadable": (), "threads": 2, **changes})


def work(**changes: Any) -> Work:
    usual = {"learned": 100, "rest": 0, "k": 2, "width": 3, "epochs": 0, "steps": 0.0, "through_trunk": 0, "counts": 0}
    flags = {"estimates_k": True, "clusters": True, "kept": False, "pilot": False, "on_gpu": True}
    return Work(**{**usual, **flags, **changes})
