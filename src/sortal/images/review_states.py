"""What a person has said of an image: a number in arrays, a word in tables and exports."""

from collections.abc import Iterable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class ReviewState(IntEnum):
    """What a person has said of an image."""

    word: str

    def __new__(cls, number: int, word: str) -> "ReviewState":
        state = int.__new__(cls, number)
        state._value_, state.word = number, word
        return state

    OPEN = 0, "no"  # nothing
    CONFIRMED = 1, "confirmed"  # that its category is right
    MOVED = 2, "moved"  # which category is right
    REJECTED = 3, "rejected"  # that its category is wrong, so that it was put into another one
    UNSEEN = 4, "accepted unseen"  # that its category is right, along with others, without having looked at it
    BINNED = 5, "binned"  # that it belongs to no category


SEEN = (ReviewState.CONFIRMED, ReviewState.MOVED)  # a person has looked at the image and decided on its category
SETTLED = (*SEEN, ReviewState.UNSEEN)  # a person has decided on its category
STATE_WORDS, SEEN_WORDS, SETTLED_WORDS = (tuple(state.word for state in part) for part in (ReviewState, SEEN, SETTLED))
_STATES = {state.word: int(state) for state in ReviewState}


def words_of(states: NDArray[np.int64]) -> list[str]:
    """Return the word of each state (n,)."""
    return [STATE_WORDS[state] for state in states.tolist()]


def states_of(words: Iterable[str]) -> NDArray[np.int64]:
    """Return the state (n,) of each word; raise KeyError for a word of no state."""
    return np.array([_STATES[word] for word in words], dtype=np.int64)
