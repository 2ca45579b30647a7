"""Files of strangers that other people are asked to read: tables that unpack to gigabytes, and made-up journals."""

from __future__ import annotations

import re

import pytest
from support.made_up_journals import put, random_journal
from support.parquet_bombs import BOMBS
from support.world import Trial

from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS

PEAK = 3 * 2**29  # bytes


@pytest.mark.thorough
@pytest.mark.attack(most=len(BOMBS))
def test_parquet_bombs(trial: Trial) -> None:
    """Parquet tables that stand for gigabytes are refused in little memory."""
    bomb, problem = trial.case(BOMBS)
    bomb(path := trial.folder / "labels.parquet")
    done = trial.world.sortal("check", trial.world.images, "--labels", path, "--workers", "1").check(2)
    assert re.search(problem, done.err), done
    assert done.peak < PEAK, done.peak


@pytest.mark.attack
def test_made_up_journals(trial: Trial) -> None:
    """Made-up journals are followed, or refused by their line, as the run's own or joined; the run stays readable."""
    run, other = trial.world.copy_run(trial.folder / "run"), trial.folder / "other.jsonl"
    found = load_run(run, raw=True)
    if own := trial.number % 3 == 2:
        put(run / DECISIONS, found, random_journal(found, trial.random))
    put(other, found, [*random_journal(found, trial.random), {"do": "keep", "categories": [found.categories[0].id]}])
    done = trial.world.sortal("decisions", "merge", run, other).check(0, 2)
    if done.code:
        assert re.search(r"Line \d+ of '.*\.jsonl' is damaged: ", done.err), done
    if done.code == 0 or not own:
        load_run(run)
        trial.world.sortal("decisions", run).check(0)
