"""Fixtures of the tests of reviews."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.decisions import a_run

from sortal.reviews.loading import load_run, save_run
from sortal.runs.run import Run


@pytest.fixture
def saved(tmp_path: Path) -> Run:
    run = replace(a_run(), folder=tmp_path / "run")
    save_run(run)
    return load_run(run.folder)
