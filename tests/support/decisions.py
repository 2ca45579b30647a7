"""A run to decide about, decisions, and what must hold of the reviewed run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sortal.images.review_states import words_of
from sortal.reviews import journal
from sortal.reviews.actions import (
    Action,
    Grow,
    Refit,
)
from sortal.reviews.history import Decision, Review
from sortal.runs import storage
from sortal.runs.building import build_run
from sortal.runs.evaluation import evaluate
from sortal.runs.run import DECISIONS, NOWHERE, Run
from support.sample_run import sample_run


def a_run(*, head: bool = False, images: int = 72) -> Run:
    """Build a run as discovery does, with known categories 0 to 3 and new ones 4 and 5."""
    run = sample_run(images=images)
    scores = np.concatenate([5 * run.centres, np.zeros((6, 1))], axis=1).astype(np.float32) if head else None
    return build_run(
        folder=run.folder,
        facts=run.facts,
        assignments=run.assignments,
        categories=run.categories,
        k=run.k,
        confidence=replace(run.confidence, stability=np.linspace(0.5, 1, 6), exponent=np.linspace(2, 1, 6)),
        features=run.features,
        centres=run.centres,
        head=scores,
        quarantine=(),
    )


RUN = a_run()


def some(run: Run, category: int, count: int) -> tuple[str, ...]:
    """Return the contents of the first unlabelled images of a category."""
    rows = np.flatnonzero((run.assignments.category_id == category) & (run.assignments.status != "labelled"))
    return contents(run, rows[:count])


def contents(run: Run, rows: NDArray[np.int64]) -> tuple[str, ...]:
    return tuple(run.assignments.contents[row] for row in rows.tolist())


def index_of(content: str) -> int:
    return RUN.assignments.contents.index(content)


def grow(category: int, **images: tuple[str, ...]) -> Grow:
    return Grow(category=category, **{"seen": (), "unseen": (), "wrong": (), **images})


def refit(images: tuple[str, ...], to: Sequence[int], *names: str, stability: float = 1.0) -> Refit:
    """Return a refit that found the categories of the images, all of them equally stable."""
    found = tuple(sorted({*to}))
    return Refit(images=images, to=tuple(to), names=names, categories=found, stability=(stability,) * len(found))


def mask(run: Run, images: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([content in images for content in run.assignments.contents], dtype=bool)


def states(review: Review, images: Sequence[str]) -> list[str]:
    """Return what people have said of images, in words."""
    return words_of(review.reviewed[[index_of(each) for each in images]])


def places(review: Review, images: Sequence[str]) -> list[int]:
    return [int(review.category[index_of(each)]) for each in images]


def apply(run: Run, taken: Sequence[Action]) -> Run:
    """Return the run as it is after these actions."""
    review = Review(run)
    for action in taken:
        review.take(action)
    return review.run()


def assert_consistent(run: Run) -> None:
    """Check that every figure of a category follows from the images with its id."""
    a = run.assignments
    assert sum(each.size for each in run.categories) + a.binned.sum() == len(a)
    assert (a.binned == (a.category_id == NOWHERE)).all()
    assert {*a.status[a.binned]} <= {"other"}
    kinds = {each.id: each.kind for each in run.categories}
    for row, each in enumerate(run.categories):
        own = a.category_id == each.id
        assert each.size == own.sum()
        assert (each.labelled, each.unsure) == ((a.status[own] == "labelled").sum(), (a.status[own] == "unsure").sum())
        assert {*a.status[own]} <= {"labelled", "unsure", each.kind}
        np.testing.assert_allclose(
            a.distance[own], np.linalg.norm(run.features[own] - run.centres[row], axis=1), atol=1e-5
        )
        assert {*each.typical} <= {file for file, is_own in zip(a.files, own, strict=True) if is_own}
        assert each.nearest_known_id is None or (
            kinds[each.nearest_known_id] == "known" and each.nearest_known_id != each.id
        )
    assert {*a.next_category_id.tolist()} <= {*kinds}
    assert (a.confidence[a.seen] == 1).all()
    assert (a.confidence <= 1).all()
    assert "unsure" not in a.status[a.settled]
    assert run.metrics == evaluate(a, run.categories)


def files_of(run: Run) -> dict[str, bytes]:
    """Return everything that would be saved of a run."""
    return {**storage._contents(run), "facts": repr(run.facts).encode(), "rejected": repr(run.rejected).encode()}


def note(run: Run, *actions: Action, by: str = "ada") -> list[Decision]:
    lines = [journal.decide(action, by) for action in actions]
    journal.append(run.folder / DECISIONS, run.facts, lines)
    return lines
