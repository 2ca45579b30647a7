"""Overlaps of two groupings, counted by hand."""

import numpy as np

from sortal.runs.categories import jaccard, match_by_overlap


def test_overlaps_are_shares_of_the_images_in_either() -> None:
    one, other = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 1])
    shares = jaccard(one, other, (2, 3))
    # Of 0 and 0: two of three images; of 0 and 1: one of five; of 1 and 1: two of three. Nothing is in 2.
    np.testing.assert_array_equal(shares, [[2 / 3, 1 / 5, 0], [0, 2 / 3, 0]])


def test_the_largest_overlaps_are_matched_first_and_each_side_once() -> None:
    shares = np.array([[0.9, 0.8, 0.0], [0.7, 0.1, 0.0], [0.6, 0.2, 0.3]])
    assert match_by_overlap(shares, shares > 0.15) == {0: 0, 2: 2}, "nothing is left for row 1 that is allowed"
    assert match_by_overlap(shares, shares > 0) == {0: 0, 1: 1, 2: 2}
    assert match_by_overlap(shares, np.zeros((3, 3), dtype=bool)) == {}
