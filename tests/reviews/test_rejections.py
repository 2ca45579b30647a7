"""Rejections: an image goes to the nearest category that it may be in, on points worked out by hand."""

from __future__ import annotations

import numpy as np

from sortal.reviews.rejections import keep_away, nearest_allowed

X = np.array([[0.1, 0], [0.9, 0], [3, 0]], dtype=np.float32)
CENTRES, IDS = np.array([[0, 0], [1, 0], [4, 0]], dtype=np.float32), [7, 2, 5]
CONTENTS = ("a", "b", "c")


def test_the_nearest_category_that_is_not_barred_is_found() -> None:
    assert nearest_allowed(X, CONTENTS, CENTRES, IDS, frozenset()).tolist() == [7, 2, 5]
    rejected = frozenset({("a", 7), ("b", 2), ("b", 7), *(("c", each) for each in IDS)})
    assert nearest_allowed(X, CONTENTS, CENTRES, IDS, rejected).tolist() == [2, 5, -1]


def test_only_open_images_leave_a_category_that_they_were_rejected_from() -> None:
    category, otherwise = np.array([7, 2, 5]), np.array([0, 0, 9])
    rejected = frozenset({("a", 7), ("b", 2), *(("c", each) for each in IDS)})
    open_ = np.array([True, False, True])
    found = keep_away(category, X, CONTENTS, CENTRES, IDS, rejected, open_=open_, otherwise=otherwise)
    assert found.tolist() == [2, 2, 9], "a goes to the next one, b is settled, c may be in none"
    assert category.tolist() == [7, 2, 5]
    far = frozenset({("a", 5)})
    assert keep_away(category, X, CONTENTS, CENTRES, IDS, far, open_=open_, otherwise=otherwise).tolist() == [7, 2, 5]
