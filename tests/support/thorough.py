"""Tests that `make thorough` runs: they repeat at length what a quick test shows (CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Mark the values of a parameter as thorough, except for the quick ones; tuples are values of several."""
    values, quick = [*values], [*quick]
    assert all(value in values for value in quick), "each of the quick values must be one of all"
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [() if value in quick else (pytest.mark.thorough,) for value in values]
    return [pytest.param(*row, marks=mark) for row, mark in zip(rows, marks, strict=True)]
