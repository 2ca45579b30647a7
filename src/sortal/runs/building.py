"""Build a run from images in categories: the one place where everything that follows from them is computed."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.images.image_set import ImageSet
from sortal.runs.categories import describe, find_candidates, ids_of, known_mask, rows_of
from sortal.runs.confidence import Confidence, Features, Floats, Ints, place
from sortal.runs.evaluation import evaluate
from sortal.runs.run import KNOWN, LABELLED, NEW, NOWHERE, OTHER, UNSURE, Assignments, Category, Run


def build_run(
    *,
    assignments: Assignments,
    categories: Sequence[Category],
    confidence: Confidence,
    features: Features,
    centres: Features,
    head: Features | None,
    **others: Any,
) -> Run:
    """Build a run of images whose categories are decided; row j of `centres` and `head` belongs to `categories[j]`.

    `others` are the fields of a run that do not follow from these.
    """
    a = assess(assignments, features, categories, centres, confidence, head)
    described = describe(categories, a, centres)
    return Run(
        assignments=a,
        categories=described,
        confidence=confidence,
        metrics=evaluate(a, described),
        features=features,
        centres=centres,
        candidates=find_candidates(a, described, features, centres, confidence),
        head=head,
        **others,
    )


def contents_of(digests: NDArray[np.bytes_]) -> tuple[str, ...]:
    """Return digests (n,) of images as text."""
    return tuple(each.decode() for each in digests.tolist())


def unassigned(images: ImageSet, contents: NDArray[np.bytes_]) -> Assignments:
    """Return the assignments of images that are in no category yet; `contents` (n,) are their digests."""
    n, names = len(images), (*images.classes, *images.new_classes, None)
    return Assignments(
        files=images.files,
        folders=np.zeros(n, dtype=np.int64),
        contents=contents_of(contents),
        labels=tuple(names[i] for i in images.labels.tolist()),
        truth=tuple(names[i] for i in images.truth.tolist()),
        category_id=np.full(n, -1),
        status=np.full(n, UNSURE),
        confidence=np.zeros(n),
        distance=np.zeros(n),
        next_category_id=np.full(n, -1),
        next_distance=np.zeros(n),
        apart=np.zeros(n),
        reviewed=np.zeros(n, dtype=np.int64),
        group=np.arange(n),
        doubt=np.zeros(n),
        suggested_id=np.full(n, -1),
        columns=images.columns,
    )


def assess(
    assignments: Assignments,
    x: Features,
    categories: Sequence[Category],
    centres: Features,
    confidence: Confidence,
    head: Features | None,
    *,
    reassign: bool = False,
) -> Assignments:
    """Compute status, confidence and distances of images; `reassign` first moves each to its most likely category.

    An image that a person has labelled, or seen and decided on, has a confidence of 1. Others of the same moment in its
    category are as sure as its label is. One that was decided on, seen or not, is never unsure or other, and its label
    is not doubted any more. One that is other has less than the confidence below which images are unsure. One in the
    bin is surely other; its distances are those to the nearest category. One that came later than the run may belong to
    none of its categories, which lowers its confidence.
    """
    own = None if reassign else rows_of(categories, assignments.category_id)
    nowhere = np.zeros(len(x), dtype=bool) if own is None else own < 0
    if own is not None and nowhere.any():
        own[nowhere] = place(x[nowhere], centres, confidence.temperature, head=head).row
    placement = place(x, centres, confidence.temperature, row=own, head=head)
    known, labelled = known_mask(categories), np.array([label is not None for label in assignments.labels], dtype=bool)
    own_id, suggested = ids_of(categories, placement.row), assignments.suggested_id
    doubted = labelled & ~assignments.settled & ~nowhere & (suggested != own_id)
    doubted &= np.isin(suggested, [each.id for each in categories])  # it may have been merged
    doubt = np.where(doubted, assignments.doubt, 0.0)
    told = (labelled | assignments.seen) & ~nowhere
    trust = _of_moments(np.where(told, 1 - doubt, 0.0), assignments.group * len(categories) + placement.row)
    sure, apart = confidence.of(placement), confidence.fits_nowhere(assignments.apart) & (trust == 0)
    strange = confidence.strangeness(placement.row, placement.distance, assignments.apart)
    sure = np.where(assignments.folders < confidence.later_from, sure, sure * confidence.belonging(strange))
    sure = np.where(trust > 0, trust, np.where(apart, confidence.unsure_below * sure, sure))
    sure = np.where(told | nowhere, 1.0, sure)
    kind = np.where(known[placement.row], KNOWN, NEW)
    guess = np.where(apart, OTHER, np.where(sure >= confidence.unsure_below, kind, UNSURE))
    status = np.where(labelled, LABELLED, np.where(assignments.settled, kind, guess))
    return replace(
        assignments,
        category_id=np.where(nowhere, NOWHERE, own_id),
        status=np.where(nowhere, OTHER, status),
        confidence=sure,
        distance=placement.distance,
        next_category_id=np.where(nowhere, own_id, ids_of(categories, placement.next_row)),
        next_distance=np.where(nowhere, placement.distance, placement.next_distance),
        doubt=doubt,
        suggested_id=np.where(doubted, suggested, -1),
    )


def _of_moments(values: Floats, moment: Ints) -> Floats:
    """Return for each image (n,) the highest of the values (n,) of its moment."""
    _, rows = np.unique(moment, return_inverse=True)
    highest = np.zeros(len(values))
    np.maximum.at(highest, rows, values)
    return highest[rows]


def hash_images(assignments: Assignments) -> str:
    """Return a digest of the images and their labels that does not depend on their order."""
    rows = sorted(zip(assignments.contents, (label or "" for label in assignments.labels), strict=True))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
