"""Search: images by what is written about them, and by their likeness to one of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.reviews import filtering
from sortal.reviews.history import Review
from sortal.runs.confidence import Features, Ints

LONGEST_SEARCH = 200  # characters
MOST_WORDS_SOUGHT = 10  # of a search
COMPARED_AT_ONCE = 2**14  # images that are compared at once


def find(review: Review, text: str) -> tuple[Ints, dict[str, Any]]:
    """Return the rows about which every word of a text is written, and the categories that have them all in their name.

    A word may be in the name of the file, of the category, or in any column; `site:north` and `weight:>5` are about one
    column, by the rules of filters. Where the words are written side by side comes first.
    """
    a, typed = review.base.assignments, text.casefold().split()
    words = dict.fromkeys(typed)
    if len(words) > MOST_WORDS_SOUGHT:
        raise InputError(f"Search for at most {MOST_WORDS_SOUGHT} words.")
    names = {number: each.name.casefold() for number, each in review.categories.items()}
    columns = {column.name.casefold(): column for column in a.columns.each}
    cells = (column.cells for column in a.columns.each)
    texts = ["\n".join(each).casefold() for each in zip(a.files, *cells, strict=True)]

    def written(words: str) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.fromiter((words in each for each in texts), dtype=bool, count=len(texts))
        found |= np.isin(review.category, [number for number, name in names.items() if words in name])
        return found

    mask = np.full(len(a), bool(words))
    plain = []
    for word in words:
        name, colon, fits = word.partition(":")
        if colon and name in columns:
            mask &= filtering.matching(columns[name], fits)
        else:
            plain.append(word)
            mask &= written(word)
    named = [number for number, name in names.items() if plain and all(word in name for word in plain)]
    whole = written(" ".join(typed))
    return np.concatenate([np.flatnonzero(mask & whole), np.flatnonzero(mask & ~whole)]), {"named": named}


def alike(x: Features, row: int) -> Ints:
    """Return all other rows of the features (n, d), the most similar to one of them first."""
    blocks = np.split(x, range(COMPARED_AT_ONCE, len(x), COMPARED_AT_ONCE))
    squared = np.concatenate([((each - x[row]) ** 2).sum(axis=1) for each in blocks])
    nearest: Ints = np.argsort(squared, kind="stable")
    return nearest[nearest != row]
