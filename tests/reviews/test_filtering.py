"""Filters, orders and colours by columns, on a table of six rows."""

from dataclasses import replace

import numpy as np
import pytest
from support.sample_run import sample_run

from sortal.images.columns import Columns, ImageColumn
from sortal.reviews import filtering

WEIGHT = ImageColumn.infer("weight", ["10", "9", "", "1000", "-2", "9"])
TIME = ImageColumn.infer("taken", ["2024-05-01", "2024-05-03", "?", "2023-01-01", "", "2024-05-02"])
CLOCK = ImageColumn.infer("at", ["2024-12-31T23:59:59", "2025-01-01T10:00", "2025-01-02", "1999-01-01", "", ""])
SITE = ImageColumn.infer("site", ["North", "south", "", "North", "n/a", "Süd"])
EVERY = np.arange(6)


@pytest.mark.parametrize(
    ("column", "text", "rows"),
    [
        (WEIGHT, "", [0, 1, 2, 3, 4, 5]),
        (WEIGHT, ">9", [0, 3]),
        (WEIGHT, ">=9", [0, 1, 3, 5]),
        (WEIGHT, "<0", [4]),
        (WEIGHT, " 9..10 ", [0, 1, 5]),
        (WEIGHT, "..9", [1, 4, 5]),
        (WEIGHT, "=9", [1, 5]),
        (WEIGHT, ">lots", []),
        (WEIGHT, "10", [0, 3]),  # contains it
        (TIME, "2024-05-02..", [1, 5]),
        (TIME, "<=2024-05-01", [0, 3]),
        (TIME, "=", [2, 4]),
        (TIME, ">2023", [0, 1, 5]),
        (TIME, "<2024", [3]),
        (TIME, "2023..2023", [3]),
        (TIME, ">86400", []),  # not a time
        (CLOCK, "<=2025-01-01", [0, 1, 3]),
        (CLOCK, ">2025-01-01", [2]),
        (CLOCK, "=2025-01-01", [1]),
        (CLOCK, ">2024", [1, 2]),
        (CLOCK, "<=2025-01-01T10:00", [0, 1, 3]),
        (WEIGHT, ">=1,000", [3]),
        (WEIGHT, ">2024-05-01", []),  # not a number
        (SITE, "NORTH", [0, 3]),
        (SITE, "=", [2, 4]),
        (SITE, "= süd", [5]),
        (SITE, "1..2", []),
    ],
)
def test_filters(column: ImageColumn, text: str, rows: list[int]) -> None:
    assert np.flatnonzero(filtering.matching(column, text)).tolist() == rows


def test_rows_without_a_cell_come_last_in_either_order() -> None:
    assert filtering.in_order(WEIGHT, EVERY).tolist() == [4, 1, 5, 0, 3, 2]
    assert filtering.in_order(WEIGHT, EVERY, down=True).tolist() == [3, 0, 5, 1, 4, 2]
    assert filtering.in_order(SITE, EVERY[::-1]).tolist()[:4] == [3, 0, 1, 5]
    assert filtering.in_order(TIME, EVERY[1:4]).tolist() == [3, 1, 2]


def test_colours_are_shares_of_ranks_or_numbers_of_values() -> None:
    found = filtering.coloured(WEIGHT, EVERY)
    assert found["values"] == [0.667, 0.333, -1, 1.0, 0.0, 0.333]
    assert found["scale"]
    assert [text for _, text in found["key"]] == ["-2", "9", "10", "1000"]
    sites = filtering.coloured(SITE, EVERY)
    assert sites["values"] == [0, 1, -1, 0, -1, 2]
    assert sites["key"] == [(0, "North"), (1, "south"), (2, "Süd")]


def test_pages_get_what_columns_say() -> None:
    columns = Columns((WEIGHT, SITE))
    assert filtering.described(columns) == [
        {"name": "weight", "kind": "number", "choices": []},
        {"name": "site", "kind": "text", "choices": []},
    ]
    a = sample_run(images=6).assignments
    a = replace(a, columns=columns, group=np.array([0, 1, 2, 0, 3, 4]))
    told = filtering.told(a, np.array([2, 3]))
    assert told == {"cells": [[], [("weight", "1000"), ("site", "North")]], "stack": [[2], [0, 3]]}


def test_an_image_is_in_the_folder_of_its_file() -> None:
    run = sample_run(
        categories=2, images=3, truth=False, file=lambda row: ("cam01/a/1.png", "cam02/1.png", "1.png")[row]
    )
    assert filtering.folders_around(run.assignments, np.array([2, 0, 1])) == ["", "cam01/a", "cam02"]
