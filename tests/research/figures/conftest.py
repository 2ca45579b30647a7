"""A run to draw, and a map that is made at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.sample_run import sample_run

from sortal.research.figures import scatter
from sortal.runs.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return replace(sample_run(), folder=tmp_path)


@pytest.fixture
def by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the first two features as positions instead of t-SNE."""
    monkeypatch.setattr(scatter, "place", lambda x, seed, device: x[:, :2].astype(np.float64))
