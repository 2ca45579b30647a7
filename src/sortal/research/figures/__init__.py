"""Print figures of a run, drawn from its folder alone: functions that return matplotlib figures, and one that writes.

None of them touches pyplot or depends on the user's matplotlib settings.
"""

from sortal.research.figures.accuracy import SharedCluster, k_curve, legacy_inflation, risk_coverage, shared_clusters
from sortal.research.figures.attention_maps import attention, focus_score
from sortal.research.figures.drawing import FIGURES, FORMATS, FiguresResult, draw
from sortal.research.figures.scatter import tsne
from sortal.research.figures.style import LeftOutError

__all__ = ["FIGURES", "FORMATS", "FiguresResult", "LeftOutError", "SharedCluster", "attention", "draw", "focus_score"]
__all__ += ["k_curve", "legacy_inflation", "risk_coverage", "shared_clusters", "tsne"]
