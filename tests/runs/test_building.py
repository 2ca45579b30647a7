"""Runs built from categories: what people have settled is never unsure, and the digest does not depend on order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.decisions import a_run, assert_consistent

from sortal.images.review_states import ReviewState
from sortal.runs.building import assess, contents_of, hash_images

RUN = a_run()


def test_a_built_run_is_consistent() -> None:
    assert_consistent(RUN)
    assert_consistent(a_run(head=True))


def test_seen_images_are_certain_and_settled_ones_are_never_unsure() -> None:
    unsure = np.flatnonzero(RUN.assignments.status == "unsure")[:5]
    states = np.zeros(len(RUN.assignments), dtype=np.int64)
    states[unsure] = [*ReviewState][:5]  # not in the bin
    a = replace(RUN.assignments, reviewed=states)
    found = assess(a, RUN.features, RUN.categories, RUN.centres, RUN.confidence, RUN.head)
    kinds = {each.id: each.kind for each in RUN.categories}
    own = [kinds[each] for each in found.category_id[unsure].tolist()]
    assert found.status[unsure].tolist() == ["unsure", own[1], own[2], "unsure", own[4]]
    before = RUN.assignments.confidence[unsure]
    np.testing.assert_array_equal(found.confidence[unsure], [before[0], 1, 1, before[3], before[4]])


def test_images_of_the_moment_of_a_labelled_one_in_its_category_are_as_sure_as_its_label() -> None:
    a, confidence = RUN.assignments, replace(RUN.confidence, other_above=2.0)
    first, free = np.flatnonzero(a.status == "labelled")[0], a.status != "labelled"
    own = a.category_id == a.category_id[first]
    same, elsewhere = np.flatnonzero(free & own)[:2], np.flatnonzero(free & ~own)[0]
    rows, group, apart = [*same, elsewhere], a.group.copy(), np.zeros(len(a))
    group[rows], apart[rows] = group[first], 3
    a = replace(a, group=group, apart=apart)
    found = assess(a, RUN.features, RUN.categories, RUN.centres, confidence, RUN.head)
    assert found.confidence[same].tolist() == [1, 1]
    assert found.status[rows].tolist() == ["known", "known", "other"]
    suggested = np.full(len(a), -1)
    suggested[first] = a.category_id[elsewhere]
    doubted = replace(a, doubt=np.full(len(a), 0.75), suggested_id=suggested)
    found = assess(doubted, RUN.features, RUN.categories, RUN.centres, confidence, RUN.head)
    assert found.confidence[[first, *same]].tolist() == [1, 0.25, 0.25]
    assert found.status[same].tolist() == ["unsure", "unsure"]


def test_a_label_is_doubted_until_a_person_decides_or_its_category_is_the_suggested_one() -> None:
    rows = np.flatnonzero(RUN.assignments.status == "labelled")[:5]
    own, ids = RUN.assignments.category_id[rows], [each.id for each in RUN.categories]
    other = next(each for each in ids if each not in own.tolist())
    blank = np.zeros(len(RUN.assignments))
    doubt, suggested, states = blank + 0.5, np.full(len(blank), other), blank.astype(np.int64)
    states[rows[1:3]] = ReviewState.CONFIRMED, ReviewState.MOVED
    suggested[rows[3:]] = own[3], max(ids) + 1  # which was merged away
    a = replace(RUN.assignments, doubt=doubt, suggested_id=suggested, reviewed=states)
    found = assess(a, RUN.features, RUN.categories, RUN.centres, RUN.confidence, RUN.head)
    assert found.doubt[rows].tolist() == [0.5, 0, 0, 0, 0]
    assert found.suggested_id[rows].tolist() == [other, -1, -1, -1, -1]
    assert not found.doubt[found.status != "labelled"].any()


def test_settled_images_are_never_other_and_what_is_other_counts_as_doubtful() -> None:
    free = np.flatnonzero(RUN.assignments.status != "labelled")[:5]
    states, apart = np.zeros(len(RUN.assignments), dtype=np.int64), np.zeros(len(RUN.assignments))
    states[free], apart[free] = [*ReviewState][:5], 3  # not in the bin
    apart[RUN.assignments.status == "labelled"] = 3
    a = replace(RUN.assignments, reviewed=states, apart=apart)
    confidence = replace(RUN.confidence, other_above=2.0)
    found = assess(a, RUN.features, RUN.categories, RUN.centres, confidence, RUN.head)
    kinds = {each.id: each.kind for each in RUN.categories}
    own = [kinds[each] for each in found.category_id[free].tolist()]
    assert found.status[free].tolist() == ["other", own[1], own[2], "other", own[4]]
    assert (found.status == "other").sum() == 2
    less = 0.5 * RUN.assignments.confidence[free]
    np.testing.assert_array_equal(found.confidence[free], [less[0], 1, 1, less[3], less[4]])
    assert "other" not in assess(a, RUN.features, RUN.categories, RUN.centres, RUN.confidence, RUN.head).status


def test_the_digest_of_images_depends_on_their_contents_and_labels_only() -> None:
    a = RUN.assignments
    order = np.arange(len(a))[::-1]
    assert hash_images(a.take(order)) == hash_images(a)
    assert hash_images(replace(a, files=a.files[::-1])) == hash_images(a)
    assert hash_images(replace(a, labels=(*a.labels[:-1], "another"))) != hash_images(a)


def test_digests_become_text() -> None:
    assert contents_of(np.array([b"00ff", b"01"])) == ("00ff", "01")
