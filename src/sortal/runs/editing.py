"""Categories edited by hand: renamed, merged, split. Each function returns a consistent run, which is not saved yet.

Ids stay what they are; a merged category disappears with its id, and one that is split off gets an id never used
before. Labels and true classes follow the names of known categories, so that a labelled image stays in its class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.runs.building import Features, build_run, hash_images
from sortal.runs.categories import free_names, rows_of
from sortal.runs.confidence import UNCALIBRATED, place, spread
from sortal.runs.evaluation import evaluate
from sortal.runs.facts import RunFacts
from sortal.runs.run import KNOWN, Assignments, Category, Run

Floats = NDArray[np.float64]


def rename(run: Run, category: int, name: str) -> Run:
    """Return the run with a category, given by its id, under another name.

    >>> rename(sortal.load_run("photos-run"), 7, "fern").save()  # doctest: +SKIP
    """
    row = _row(run, category)
    _check_name(run, category, name)
    old = run.categories[row]
    renamed = _replaced(run.categories, row, replace(old, name=name))
    a = _relabelled(run.assignments, {old.name: name} if old.kind == KNOWN else {})
    facts = _facts(run, a, f"renamed {old.name!r} to {name!r}")
    return replace(run, facts=facts, assignments=a, categories=renamed, metrics=evaluate(a, renamed))


def merge(run: Run, categories: Sequence[int]) -> Run:
    """Return the run with categories, given by their ids, merged into the first of them, which keeps id and name.

    The merged centre is the mean of their centres, weighted by the images that made them. So is the head's row: its
    score is then the mean of their scores, on the scale that confidence was calibrated on.
    """
    rows = [_row(run, each) for each in categories]
    if len(set(rows)) < 2 or len(set(rows)) < len(rows):
        raise InputError(f"merge needs two or more different categories, got {list(categories)}.")
    first, *others = (run.categories[row] for row in rows)
    if first.kind != KNOWN and any(each.kind == KNOWN for each in others):
        raise InputError(f"A known category must come first, so that it keeps its name, got {first.name!r}.")
    weights = np.array([run.categories[row].weight for row in rows], dtype=np.float64)
    share = weights / weights.sum() if weights.any() else np.full(len(rows), 1 / len(rows))
    merged = _replaced(run.categories, rows[0], replace(first, weight=int(weights.sum())))
    keep = np.setdiff1d(np.arange(len(run.categories)), rows[1:])
    a = _relabelled(run.assignments, {each.name: first.name for each in others if each.kind == KNOWN})
    a = replace(a, category=np.where(np.isin(a.category, categories), first.id, a.category))
    return _edited(
        run,
        f"merged {', '.join(repr(each.name) for each in others)} into {first.name!r}",
        a,
        tuple(merged[row] for row in keep),
        _with_row(run.centres, rows[0], share @ run.centres[rows])[keep],
        None if run.head is None else _with_row(run.head, rows[0], share @ run.head[rows])[keep],
        touched={first.id},
    )


def split(run: Run, category: int, rows: NDArray[np.bool_], *, name: str | None = None) -> Run:
    """Return the run with some images of a category, by a mask (n,), in a new category of their own.

    Both centres become means of their images. Where a head tells categories, both rows are its old one, tilted towards
    their centres so that the nearer wins: no retraining, and what the head says of other categories stays.
    """
    row, a = _row(run, category), run.assignments
    own = a.category == category
    labelled = np.array([label is not None for label in a.labels], dtype=bool)
    if (rows & ~own).any() or not rows.any() or not (own & ~rows).any():
        raise InputError(
            f"rows must be some of the {int(own.sum()):,} images of the category {run.categories[row].name!r}, and not "
            f"all, got {int((rows & own).sum()):,} of them and {int((rows & ~own).sum()):,} others."
        )
    if (rows & labelled).any():
        raise InputError(f"rows must be unlabelled, got {int((rows & labelled).sum()):,} labelled images.")
    if name is not None:
        _check_name(run, run.facts.next_id, name)
    old = run.categories[row]
    new = Category(
        id=run.facts.next_id,
        name=free_names([each.name for each in run.categories], 1)[0] if name is None else name,
        kind="new",
        weight=int(rows.sum()),
    )
    left = own & ~rows
    categories = (*_replaced(run.categories, row, replace(old, weight=int(left.sum()))), new)
    means = [np.asarray(run.features[mask], dtype=np.float64).mean(axis=0) for mask in (left, rows)]
    run = replace(run, facts=replace(run.facts, next_id=new.id + 1))
    return _edited(
        run,
        f"split {new.name!r} off {old.name!r}",
        replace(a, category=np.where(rows, new.id, a.category)),
        categories,
        _appended(run.centres, row, means),
        None if run.head is None else _appended(run.head, row, _tilted(run, row, means)),
        touched={old.id, new.id},
    )


def reorder(run: Run, categories: Sequence[int]) -> Run:
    """Return the run with its categories in another order of their ids; nothing else changes."""
    rows = [_row(run, each) for each in categories]
    if sorted(rows) != [*range(len(run.categories))]:
        raise InputError(f"categories must be the ids of all {len(run.categories)} categories, got {list(categories)}.")
    c = run.confidence
    return replace(
        run,
        categories=tuple(run.categories[row] for row in rows),
        confidence=replace(c, usual=c.usual[rows], deviation=c.deviation[rows]),
        centres=run.centres[rows],
        head=None if run.head is None else run.head[rows],
    )


def _edited(
    run: Run,
    edit: str,
    assignments: Assignments,
    categories: tuple[Category, ...],
    centres: Features,
    head: Features | None,
    touched: set[int],
) -> Run:
    """Build the run again; the usual distances of touched categories become those of their images."""
    own, c = rows_of(categories, assignments.category), run.confidence
    usual, deviation = spread(place(run.features, centres, 1.0, row=own).distance, own, len(categories))
    for row, each in enumerate(categories):
        if each.id not in touched:
            before = _row(run, each.id)
            usual[row], deviation[row] = c.usual[before], c.deviation[before]
    return build_run(
        folder=run.folder,
        facts=_facts(run, assignments, edit),
        assignments=assignments,
        categories=categories,
        k=run.k,
        confidence=replace(c, usual=usual, deviation=deviation),
        features=run.features,
        centres=centres,
        head=head,
        quarantine=run.quarantine,
    )


def _facts(run: Run, assignments: Assignments, edit: str) -> RunFacts:
    hashes = replace(run.facts.hashes, images=hash_images(assignments))
    return replace(run.facts, hashes=hashes, edits=(*run.facts.edits, edit))


def _row(run: Run, category: int) -> int:
    for row, each in enumerate(run.categories):
        if each.id == category:
            return row
    raise InputError(f"There is no category with the id {category} in this run.")


def _check_name(run: Run, category: int, name: str) -> None:
    """Refuse an empty name and one that another category or, for a known category, another class has."""
    others = {each.name for each in run.categories if each.id != category}
    known = any(each.id == category and each.kind == KNOWN for each in run.categories)
    own = next((each.name for each in run.categories if each.id == category), None)
    classes = {*run.assignments.labels, *run.assignments.truth} - {own} if known else set()
    if not name or name in others | classes:
        raise InputError(f"A name must not be empty or that of another category, got {name!r}. Merge them instead.")


def _relabelled(a: Assignments, names: Mapping[str, str]) -> Assignments:
    labels, truth = (tuple(c if c is None else names.get(c, c) for c in column) for column in (a.labels, a.truth))
    return replace(a, labels=labels, truth=truth)


def _replaced(categories: Sequence[Category], row: int, category: Category) -> tuple[Category, ...]:
    return (*categories[:row], category, *categories[row + 1 :])


def _with_row(table: Features, row: int, values: Floats) -> Features:
    changed = table.copy()
    changed[row] = values
    return changed


def _appended(table: Features, row: int, pair: Sequence[Floats]) -> Features:
    """Replace a row by the first of a pair, and append the second."""
    return np.concatenate([_with_row(table, row, pair[0]), pair[1][None].astype(np.float32)])


def _tilted(run: Run, row: int, means: Sequence[Floats]) -> list[Floats]:
    """Return the head's row plus the squared distance to the old centre less that to each new one, as scores.

    |x − old|² − |x − new|² is linear in x. Squared distances become scores by the ratio of their temperatures.
    """
    assert run.head is not None
    old, head = run.centres[row].astype(np.float64), run.head[row].astype(np.float64)
    squared = float(np.mean(run.assignments.distance**2))
    scale = run.confidence.temperature / max(UNCALIBRATED * squared, 1e-6)
    return [head + scale * np.append(2 * (new - old), old @ old - new @ new) for new in means]
