"""Categories edited by hand: renamed, merged, split. Each function returns a consistent run, which is not saved yet.

Ids stay what they are; a merged category disappears with its id, and one that is split off gets an id never used
before. Labels and true classes follow the names of known categories, so that a labelled image stays in its class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.runs.building import build_run, hash_images
from sortal.runs.categories import free_names, rows_of
from sortal.runs.confidence import UNCALIBRATED, Features, Floats, place, spread
from sortal.runs.evaluation import evaluate
from sortal.runs.facts import RunFacts
from sortal.runs.run import KNOWN, LABELLED, Assignments, Category, Run

ById = dict[int, Floats]  # of the centres or the head, by the id of the category


def rename(run: Run, category: int, name: str) -> Run:
    """Return the run with a category, given by its id, under another name.

    >>> rename(sortal.load_run("photos-run"), 7, "fern").save()  # doctest: +SKIP
    """
    old = run.categories[_row(run, category)]
    _check_name(run, name, old)
    renamed = tuple(replace(each, name=name) if each is old else each for each in run.categories)
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
    merged = replace(first, weight=int(weights.sum()))
    a = _relabelled(run.assignments, {each.name: first.name for each in others if each.kind == KNOWN})
    return _edited(
        run,
        f"merged {', '.join(repr(each.name) for each in others)} into {first.name!r}",
        replace(a, category=np.where(np.isin(a.category, categories), first.id, a.category)),
        tuple(merged if each is first else each for each in run.categories if each not in others),
        {first.id: share @ run.centres[rows]},
        {} if run.head is None else {first.id: share @ run.head[rows]},
    )


def split(run: Run, category: int, rows: NDArray[np.bool_], *, name: str | None = None) -> Run:
    """Return the run with some images of a category, by a mask (n,), in a new category of their own.

    Both centres become means of their images. Where a head tells categories, both rows are its old one, tilted towards
    their centres so that the nearer wins: no retraining, and what the head says of other categories stays.
    """
    row, a = _row(run, category), run.assignments
    old, own, labelled = run.categories[row], a.category == category, a.status == LABELLED
    left = own & ~rows
    if (rows & ~own).any() or not rows.any() or not left.any():
        raise InputError(
            f"rows must be some of the {int(own.sum()):,} images of the category {old.name!r}, and not "
            f"all, got {int((rows & own).sum()):,} of them and {int((rows & ~own).sum()):,} others."
        )
    if (rows & labelled).any():
        raise InputError(f"rows must be unlabelled, got {int((rows & labelled).sum()):,} labelled images.")
    name = free_names([*run.names.values()], 1)[0] if name is None else name
    _check_name(run, name)
    new = Category(id=run.facts.next_id, name=name, kind="new", weight=int(rows.sum()))
    kept = tuple(replace(each, weight=int(left.sum())) if each is old else each for each in run.categories)
    ids = (old.id, new.id)
    means = [np.asarray(run.features[mask], dtype=np.float64).mean(axis=0) for mask in (left, rows)]
    return _edited(
        replace(run, facts=replace(run.facts, next_id=new.id + 1)),
        f"split {new.name!r} off {old.name!r}",
        replace(a, category=np.where(rows, new.id, a.category)),
        (*kept, new),
        dict(zip(ids, means, strict=True)),
        {} if run.head is None else dict(zip(ids, _tilted(run, run.head[row], row, means), strict=True)),
    )


def reorder(run: Run, categories: Sequence[int]) -> Run:
    """Return the run with its categories in another order of their ids; nothing else changes."""
    rows = [_row(run, each) for each in categories]
    if sorted(rows) != [*range(len(run.categories))]:
        raise InputError(f"categories must be the ids of all {len(run.categories)} categories, got {list(categories)}.")
    c = run.confidence
    stability, exponent = (None if each is None else each[rows] for each in (c.stability, c.exponent))
    return replace(
        run,
        categories=tuple(run.categories[row] for row in rows),
        confidence=replace(c, usual=c.usual[rows], deviation=c.deviation[rows], stability=stability, exponent=exponent),
        centres=run.centres[rows],
        head=None if run.head is None else run.head[rows],
    )


def _edited(run: Run, edit: str, a: Assignments, categories: Sequence[Category], centres: ById, head: ById) -> Run:
    """Build the run again with other centres and rows of the head, and the usual distances that follow from these.

    A category made by hand does not depend on clustering, so it counts as stable.
    """

    def changed(table: Features, rows: ById) -> Features:
        by_id = {**dict(zip(run.names, table, strict=True)), **rows}
        return np.array([by_id[each.id] for each in categories], dtype=np.float32)

    def as_stable(values: Floats | None) -> Floats | None:
        if values is None:
            return None
        by_id = {**dict(zip(run.names, values.tolist(), strict=True)), **dict.fromkeys(centres, 1.0)}
        return np.array([by_id[each.id] for each in categories])

    moved, own, c = changed(run.centres, centres), rows_of(categories, a.category), run.confidence
    usual, deviation = spread(place(run.features, moved, 1.0, row=own).distance, own, len(categories))
    for row, each in enumerate(categories):
        if each.id not in centres:
            before = _row(run, each.id)
            usual[row], deviation[row] = c.usual[before], c.deviation[before]
    return build_run(
        folder=run.folder,
        facts=_facts(run, a, edit),
        assignments=a,
        categories=categories,
        k=run.k,
        confidence=replace(
            c,
            usual=usual,
            deviation=deviation,
            stability=as_stable(c.stability),
            exponent=as_stable(c.exponent),
        ),
        features=run.features,
        centres=moved,
        head=None if run.head is None else changed(run.head, head),
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


def _check_name(run: Run, name: str, own: Category | None = None) -> None:
    """Refuse an empty name and one that another category or, for a known category, another class has."""
    taken: set[str | None] = {each.name for each in run.categories if each is not own}
    if own is not None and own.kind == KNOWN:
        taken |= {*run.assignments.labels, *run.assignments.truth} - {own.name}
    if not name or name in taken:
        raise InputError(f"A name must not be empty or that of another category, got {name!r}. Merge them instead.")


def _relabelled(a: Assignments, names: Mapping[str, str]) -> Assignments:
    labels, truth = (tuple(c if c is None else names.get(c, c) for c in column) for column in (a.labels, a.truth))
    return replace(a, labels=labels, truth=truth)


def _tilted(run: Run, scores: Features, row: int, means: Sequence[Floats]) -> list[Floats]:
    """Return a row of the head plus the squared distance to the old centre less that to each new one, as scores.

    |x − old|² − |x − new|² is linear in x. Squared distances become scores by the ratio of their temperatures.
    """
    old, squared = run.centres[row].astype(np.float64), float(np.mean(run.assignments.distance**2))
    scale = run.confidence.temperature / max(UNCALIBRATED * squared, 1e-6)
    return [scores.astype(np.float64) + scale * np.append(2 * (new - old), old @ old - new @ new) for new in means]
