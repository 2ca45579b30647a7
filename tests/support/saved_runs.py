"""Runs of any content to save and load, hostile names included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sortal.images.columns import Columns
from sortal.images.decoding import Quarantined
from sortal.runs.facts import Confused, ImageSource, KChoice, TriedK
from sortal.runs.run import Candidate, CategoryKind, Run
from support.sample_run import HOSTILE as NAMES
from support.sample_run import sample_metrics, sample_run

TROUBLE = (
    """=HYPERLINK("x")|-1|\ttab|''=1|a,b;"c"|lone\rreturn|both\r\n| spaces |\x85\x0b\x0c\x1c|\ufeffmark|NA|nan|0012"""
)
HOSTILE = (*NAMES, *TROUBLE.split("|"))
REJECTED = frozenset({("00ff", 1)})
HALF = tuple(name if row % 2 else None for row, name in enumerate(HOSTILE))
FACTS: dict[str, Any] = {"images": (ImageSource(folder="/photos", images=0, paths={}),), "notes": ("Ä\udcff",)}
SCORES = sample_metrics(np.arange(9), np.arange(9), 4, np.zeros(9, dtype=bool), "abcdefghi")
CANDIDATE = Candidate(id=1, files=("a",), folders=(1,), nearest_id=0)


def a_run(
    folder: Path,
    files: Sequence[str],
    *,
    labels: Sequence[str | None] | None = None,
    truth: Sequence[str | None] | None = None,
    category: Sequence[int] | None = None,
    of_categories: Sequence[str] = ("one", "two"),
    folders: Sequence[int] | None = None,
    facts: dict[str, Any] | None = None,
    head: bool = False,
    seed: int = 0,
    **others: Any,
) -> Run:
    """Make a run with figures rounded to six decimals, as they are written."""
    n, k = len(files), len(of_categories)
    run_ = sample_run(
        categories=k,
        images=n,
        d=3,
        seed=seed,
        truth=False,
        name=lambda number: of_categories[number],
        file=lambda row: files[row],
        category=np.arange(n) % k if category is None else np.array(category, dtype=np.int64),
    )
    a, has = run_.assignments, np.array([label is not None for label in labels or [None] * n])
    a = replace(
        a,
        folders=a.folders if folders is None else np.array(folders, dtype=np.int64),
        labels=(None,) * n if labels is None else tuple(labels),
        truth=(None,) * n if truth is None else tuple(truth),
        status=np.where(has, "labelled", np.array(["known", "new", "unsure"])[np.arange(n) % 3]),
        confidence=a.confidence.round(6),
        distance=a.distance.round(6),
        next_category_id=a.next_category_id if k > 1 else np.full(n, -1),
        next_distance=a.next_distance.round(6) if k > 1 else np.full(n, np.nan),
    )
    kinds: list[CategoryKind] = ["known", "new"]
    made: dict[str, Any] = {
        "facts": replace(run_.facts, **{**FACTS, **(facts or {})}),
        "k": KChoice(k=k, estimated=False, known=0, curve=(TriedK(k=2, score=0.1 + 0.2, each=()),)),
        "confidence": replace(
            run_.confidence,
            temperature=1 / 3,
            usual=np.full(k, 0.1),
            deviation=np.full(k, 2e-9),
            stability=np.full(k, 0.1 + 0.2) if head else None,
            exponent=np.full(k, 1.1 + 0.2) if head else None,
            usual_apart=np.full(k, 0.1 + 0.2) if head else None,
            deviation_apart=np.full(k, 1 / 3) if head else None,
            later_from=2 if head else 1,
        ),
        "head": np.random.default_rng(seed).normal(size=(k, 4)).astype(np.float32) if head else None,
        "categories": tuple(
            replace(each, kind=kinds[each.id % 2], cohesion=each.cohesion and round(each.cohesion, 6))
            for each in run_.categories
        ),
    }
    return replace(run_, folder=folder, assignments=a, **made, **others)


def assert_same(one: Run, other: Run) -> None:
    for name, column in vars(one.assignments).items():
        again = getattr(other.assignments, name)
        if isinstance(column, tuple):
            assert again == column, name
        elif isinstance(column, Columns):
            assert [(c.name, c.kind, c.cells) for c in again.each] == [(c.name, c.kind, c.cells) for c in column.each]
        else:
            assert again.dtype.kind == column.dtype.kind, name
            np.testing.assert_array_equal(again, column, err_msg=name)
    for name in ("folder", "facts", "categories", "k", "metrics", "quarantine", "candidates", "rejected"):
        assert getattr(other, name) == getattr(one, name), name
    for name, value in vars(one.confidence).items():
        np.testing.assert_array_equal(getattr(other.confidence, name), value, err_msg=name)
    assert (other.head is None) == (one.head is None)
    for name in ("features", "centres", *(["head"] if one.head is not None else [])):
        np.testing.assert_array_equal(getattr(other, name), getattr(one, name))
        assert getattr(other, name).dtype == np.float32


def hostile_run(folder: Path) -> Run:
    classes = [f"{name} as a class" for name in HOSTILE]
    return a_run(
        folder,
        HOSTILE,
        labels=HALF,
        truth=[None if row % 3 == 0 else name for row, name in enumerate(HOSTILE)],
        category=range(len(HOSTILE)),
        of_categories=HOSTILE,
        metrics=replace(SCORES, nmi=0.1 + 0.2, confusion=tuple(Confused(name, 0, 1) for name in classes)),
        quarantine=tuple(Quarantined(name, "truncated", name) for name in HOSTILE),
        candidates=(
            Candidate(id=1, files=HOSTILE, folders=(1,) * len(HOSTILE), nearest_id=2),
            Candidate(id=2, files=HOSTILE[:1], folders=(2,), nearest_id=0),
        ),
        facts={"notes": HOSTILE},
        head=True,
        rejected=REJECTED,
    )
