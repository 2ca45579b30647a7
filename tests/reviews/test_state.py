"""The state of a review: the reviewed run is consistent, and copies are one image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.decisions import (
    RUN,
    apply,
    assert_consistent,
    contents,
    grow,
    index_of,
)

from sortal.reviews.actions import (
    Move,
    Reject,
    Rename,
)


def test_a_renamed_known_class_keeps_its_images_and_figures() -> None:
    renamed = apply(RUN, [Rename(category=1, name="fern"), Rename(category=4, name="moss")])
    assert_consistent(renamed)
    assert renamed.metrics is not None
    assert RUN.metrics is not None
    assert renamed.metrics.accuracy == RUN.metrics.accuracy
    assert renamed.metrics.known_accuracy == RUN.metrics.known_accuracy
    assert renamed.assignments.labels.count("fern") == RUN.assignments.labels.count("class 1")
    assert "moss" not in renamed.assignments.truth, "the name of a new category is not the truth"
    np.testing.assert_array_equal(renamed.assignments.confidence, RUN.assignments.confidence)
    assert [each.former for each in renamed.categories] == [(), ("class 1",), (), (), (), ()]


def test_what_was_accepted_unseen_is_as_sure_as_it_was_and_never_unsure() -> None:
    unseen = contents(RUN, np.flatnonzero(RUN.assignments.status == "unsure"))
    own = {content: int(RUN.assignments.category_id[index_of(content)]) for content in unseen}
    found = apply(RUN, [grow(each, unseen=tuple(c for c in unseen if own[c] == each)) for each in {*own.values()}])
    assert len(unseen) > 5
    np.testing.assert_array_equal(found.assignments.confidence, RUN.assignments.confidence)
    assert "unsure" not in found.assignments.status
    assert_consistent(found)


def test_copies_of_an_image_are_decided_together() -> None:
    a = RUN.assignments
    twins = replace(RUN, assignments=replace(a, contents=(*a.contents[:-1], a.contents[4])))
    found = apply(twins, [Move(images=(a.contents[4],), category=1)])
    assert found.assignments.category_id[[4, -1]].tolist() == [1, 1]
    own = int(a.category_id[4])
    apart = apply(twins, [Reject(images=(a.contents[4],), category=own)])  # the copy is in another category
    assert int(apart.assignments.category_id[4]) != own
    assert apart.assignments.category_id[-1] == a.category_id[-1]
