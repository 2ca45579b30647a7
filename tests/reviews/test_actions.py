"""Actions: read back from JSON as they were, and refused by name."""

from __future__ import annotations

import json

import pytest

from sortal.reviews import actions
from sortal.reviews.actions import (
    Accept,
    Audit,
    Grow,
    Keep,
    Merge,
    Refit,
    Rename,
    Undo,
)


def test_actions_are_read_back_from_json() -> None:
    for action in (
        Rename(category=1, name="é"),
        Merge(categories=(1, 2)),
        Accept(images=("a",)),
        Grow(category=1, seen=("a",), unseen=(), wrong=("b", "c")),
        Audit(right=(), wrong=("a",)),
        Keep(categories=(1,)),
        Refit(images=("a", "b"), to=(1, 6), names=("é",), categories=(1, 6), stability=(0.123456, 1.0)),
        Undo(),
    ):
        assert actions.from_json(json.loads(json.dumps(actions.to_json(action)))) == action
    for value, message in (
        ({"do": "dance"}, "do must be one of rename, merge"),
        ({}, "do must be one of"),
        ({"do": "move", "images": ["a"]}, "move has no key 'category'"),
        ({"do": "rename", "category": "1", "name": "x"}, "rename.category must be int"),
        ({"do": "undo", "more": 1}, "unknown key 'more'"),
        ({"do": "grow", "category": 1, "seen": ["a"], "wrong": []}, "grow has no key 'unseen'"),
        ({"do": "keep", "categories": [1, "2"]}, "keep.categories.* must be int"),
    ):
        with pytest.raises(ValueError, match=message):
            actions.from_json(value)
