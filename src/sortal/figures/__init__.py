"""Figures of a run for print, from its folder alone: functions that return figures of matplotlib, and one that writes.

None of them touches pyplot; each looks the same whatever matplotlib's settings are.
"""

from sortal.figures.curves import k_curve, risk_coverage
from sortal.figures.drawing import FIGURES, FORMATS, Drawn, draw
from sortal.figures.heads import attention, focus
from sortal.figures.inflation import Twice, legacy, used_twice
from sortal.figures.paper import LeftOutError
from sortal.figures.scatter import tsne

__all__ = [
    "FIGURES",
    "FORMATS",
    "Drawn",
    "LeftOutError",
    "Twice",
    "attention",
    "draw",
    "focus",
    "k_curve",
    "legacy",
    "risk_coverage",
    "tsne",
    "used_twice",
]
