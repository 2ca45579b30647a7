"""Search: words in names, files and columns; likeness by features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.reviews import saved_run

from sortal.errors import InputError
from sortal.images.columns import Columns
from sortal.reviews.history import Review
from sortal.reviews.searching import alike, find


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> Review:
    """Twelve images in three categories, of which the first is a class, with two columns."""
    run = saved_run(Path(tmp_path_factory.mktemp("run")) / "run", images=12, categories=3, known=1)
    files = tuple(f"Trip {number % 2}/IMG_{number:02}.jpg" for number in range(12))
    columns = Columns.infer(["site", "weight"], [["North", "south", ""] * 4, [str(each) for each in range(12)]])
    return Review(replace(run, assignments=replace(run.assignments, files=files, columns=columns)))


def found(review: Review, text: str) -> list[int]:
    rows, _ = find(review, text)
    return [*map(int, rows)]


def test_every_word_must_be_written_somewhere(review: Review) -> None:
    category = review.category
    assert found(review, "img_03") == [3]
    assert found(review, "north") == [0, 3, 6, 9], "in a column, in any case"
    assert found(review, "NORTH trip 1") == [3, 9]
    assert found(review, "class 0") == np.flatnonzero(category == 0).tolist(), "the name of its category"
    assert found(review, "nothing") == found(review, " ") == []
    assert find(review, "new")[1] == {"named": [1, 2]}
    assert find(review, "new 2")[1] == {"named": [2]}


def test_a_word_may_be_about_one_column(review: Review) -> None:
    assert found(review, "weight:>8") == [9, 10, 11]
    assert found(review, "site:north weight:3..6") == [3, 6]
    assert found(review, "site:img") == []
    assert found(review, "nosuch:3") == [], "no column of this name, and nobody has written it"


def test_words_side_by_side_come_first(review: Review) -> None:
    """The fourth image has both words, the second has them in this order."""
    a = review.base.assignments
    files = ("x", "red oak", "y", "oak, red", *a.files[4:])
    other = Review(replace(review.base, assignments=replace(a, files=files)))
    assert found(other, "red oak") == [1, 3]
    assert found(other, "oak red") == [1, 3], "nowhere side by side"


def test_images_are_ordered_by_likeness() -> None:
    x = np.array([[0, 0], [3, 0], [1, 0], [0, 2], [1, 0]], dtype=np.float32)
    assert alike(x, 0).tolist() == [2, 4, 3, 1]
    assert alike(x, 2).tolist() == [4, 0, 1, 3]


def test_a_search_has_few_words_however_often_each_is_written(review: Review) -> None:
    assert found(review, "north " * 30) == [0, 3, 6, 9]
    with pytest.raises(InputError, match="at most 10 words"):
        find(review, " ".join(map(str, range(11))))
