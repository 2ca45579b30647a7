"""Runs to export."""

from pathlib import Path

import pytest
from support.exports import HOSTILE, a_run

from sortal.runs.run import Run


@pytest.fixture
def hostile(tmp_path: Path) -> Run:
    return a_run(tmp_path, HOSTILE)
