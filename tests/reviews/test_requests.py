"""Requests of pages: rows become contents, and what is wrong with them is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.decisions import RUN, contents

from sortal.reviews.actions import AcceptCategory, Action, Bin, Create, Grow
from sortal.reviews.history import Review
from sortal.reviews.questions import Guide
from sortal.reviews.requests import action_of


def read(**request: Any) -> Action:
    review, guide = Review(RUN), Guide(RUN)
    return action_of(request, review, guide, lambda each: guide.ranking(review, RUN.assignments.confidence, each))


def test_rows_become_contents_and_new_categories_get_an_id_and_a_name() -> None:
    first, second, third = contents(RUN, np.arange(3))
    assert read(do="bin", rows=[0, 1, 0]) == Bin(images=(first, second)), "an image is named once"
    assert read(do="create", rows=[2], name="") == Create(images=(third,), category=6, name=Review(RUN).free_name())
    page = read(do="page", category=4, rows=[0, 1, 2], wrong=[1])
    assert page == Grow(category=4, seen=(first, third), unseen=(), wrong=(second,))
    own = np.flatnonzero(RUN.assignments.category_id == 5).tolist()
    everything = read(do="accept category", category=5, shown=own[:2])
    assert everything == AcceptCategory(category=5, unseen=tuple(contents(RUN, np.array(own[2:]))))
    assert read(do="accept category", category=5) == AcceptCategory(category=5), "as earlier pages asked"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"do": "bin", "rows": [72]}, "rows must be numbers from 0 to 71"),
        ({"do": "bin", "rows": [True]}, "rows must be numbers"),
        ({"do": "grow", "category": 9, "answers": "y"}, "there is no category '9'"),
        ({"do": "grow", "category": 4, "answers": "q"}, "answers must be letters"),
        ({"do": "grow", "category": 4, "answers": "y", "shown": [0]}, "no longer those that were shown"),
        ({"do": "audit", "rows": [0], "wrong": []}, "rows must be the sample that was drawn"),
        ({"do": "accept category", "category": 4, "shown": [72]}, "rows must be numbers"),
        ({"do": "accept category", "category": "4", "shown": []}, "category must be int"),
        ({"do": "dance"}, "do must be one of"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**request_)
