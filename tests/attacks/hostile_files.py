"""Files of strangers that other people are asked to read: tables that unpack to gigabytes, and made-up journals."""

from __future__ import annotations

import re

from support.made_up_journals import put, random_journal

from attacks.attack import Attack, Trial, case
from sortal.review.loading import load_run
from sortal.runs.run import DECISIONS

PEAK = 3 * 2**29  # bytes


def bombs(trial: Trial) -> None:
    """Parquet tables that stand for gigabytes are refused in little memory."""
    from support.parquet_bombs import BOMBS

    bomb, problem = case(trial, BOMBS)
    bomb(path := trial.folder / "labels.parquet")
    done = trial.world.sortal("check", trial.world.images, "--labels", path, "--workers", "1").check(2)
    assert re.search(problem, done.err), done
    assert done.peak < PEAK, done.peak


def journals(trial: Trial) -> None:
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


ATTACKS = (
    Attack("hostile files", "Parquet bombs", bombs, quick=1, least=8),
    Attack("hostile files", "made-up journals", journals, quick=2, least=40),
)
