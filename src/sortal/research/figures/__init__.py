"""Print figures of a run, drawn from its folder alone: functions that return matplotlib figures, and one that writes.

None of them touches pyplot or depends on the user's matplotlib settings.
"""

import os
import sys
from importlib import import_module

from sortal.errors import InputError

RC_FILE = "matplotlibrc"  # where matplotlib looks first: in the current folder, which may be a stranger's


def import_matplotlib() -> None:
    """Import matplotlib without reading a matplotlibrc in the current folder, which may be damaged or a pipe."""
    if "matplotlib" in sys.modules:
        return
    exists = os.path.exists
    os.path.exists = lambda path: path != RC_FILE and exists(path)
    try:
        import_module("matplotlib")
    except ValueError as error:
        raise InputError(
            f"The settings of matplotlib, in MATPLOTLIBRC or your home, cannot be read: {error}."
        ) from error
    finally:
        os.path.exists = exists


import_matplotlib()  # before any of these does

from sortal.research.figures.accuracy import (  # noqa: E402
    SharedCluster,
    k_curve,
    legacy_inflation,
    risk_coverage,
    shared_clusters,
)
from sortal.research.figures.attention_maps import attention, focus_score  # noqa: E402
from sortal.research.figures.drawing import FIGURE_FORMATS, FIGURES, FiguresResult, draw  # noqa: E402
from sortal.research.figures.scatter import tsne  # noqa: E402
from sortal.research.figures.style import LeftOutError  # noqa: E402

__all__ = ["FIGURES", "FIGURE_FORMATS", "FiguresResult", "LeftOutError", "SharedCluster", "attention", "draw"]
__all__ += ["focus_score", "k_curve", "legacy_inflation", "risk_coverage", "shared_clusters", "tsne"]
