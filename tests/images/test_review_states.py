"""What people have said of images: numbers in arrays, words in tables."""

import numpy as np
import pytest

from sortal.images.review_states import SEEN_WORDS, SETTLED_WORDS, STATE_WORDS, ReviewState, states_of, words_of


def test_states_are_numbered_and_named_as_in_every_file_so_far() -> None:
    assert STATE_WORDS == ("no", "confirmed", "moved", "rejected", "accepted unseen", "binned")
    assert [*map(int, ReviewState)] == [0, 1, 2, 3, 4, 5]
    assert SEEN_WORDS == ("confirmed", "moved")
    assert SETTLED_WORDS == ("confirmed", "moved", "accepted unseen")


def test_words_and_states_are_each_others_inverse() -> None:
    states = np.array([4, 0, 2, 2, 1, 3])
    assert words_of(states) == ["accepted unseen", "no", "moved", "moved", "confirmed", "rejected"]
    np.testing.assert_array_equal(states_of(words_of(states)), states)
    assert states_of([]).dtype == np.int64
    with pytest.raises(KeyError):
        states_of(["perhaps"])
