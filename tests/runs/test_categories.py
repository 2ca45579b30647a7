"""Categories of points in the plane: sizes, cohesion and neighbours computed by hand, and names not yet taken."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.sample_run import sample_run

from sortal.runs.categories import (
    TYPICAL_FILES,
    cohesion,
    describe,
    free_names,
    ids_of,
    members,
    outline,
    rows_of,
    typicality,
)
from sortal.runs.run import Assignments, Category

Points = Sequence[tuple[float, float]]


def assigned(category: Sequence[int], distance: Sequence[float], status: Sequence[str] | None = None) -> Assignments:
    n = len(category)
    return replace(
        sample_run(images=n, file="{}.jpg".format).assignments,
        category_id=np.array(category, dtype=np.int64),
        status=np.array(status or ["known"] * n, dtype=np.str_),
        distance=np.array(distance, dtype=np.float64),
    )


def plane(points: Points) -> NDArray[np.float32]:
    return np.array(points, dtype=np.float32).reshape(-1, 2)


def named(names: Sequence[str], n_known: int, ids: Sequence[int] | None = None) -> tuple[Category, ...]:
    """Make categories, the first of them known; by default their ids are their rows."""
    return tuple(
        Category(id=row if ids is None else ids[row], name=name, kind="known" if row < n_known else "new")
        for row, name in enumerate(names)
    )


def test_three_categories_match_figures_computed_by_hand() -> None:
    centres = plane([(0.5, 0), (0, 3), (-1, 0)])
    a = assigned([0, 0, 1, 1, 2], [0.5, 0.3, 2.0, 2.0, 0.0], ["labelled", "unsure", "labelled", "labelled", "new"])
    first, second, third = describe(named(["cat", "dog", "new 1"], 2), a, centres)
    assert (first.id, first.name, first.kind, first.size, first.labelled, first.unsure) == (0, "cat", "known", 2, 1, 1)
    # Squared distances within: 0.17, 4 and 0 on average, 1.668 over all. Centres to theirs, (0, 1.2): 1.69, 3.24, 2.44.
    assert first.cohesion == pytest.approx(1 - 0.17 / (1.668 + 2.46), abs=1e-6)
    assert first.typical == ("0.jpg", "1.jpg")  # the nearer one is unsure
    assert (second.name, second.kind, second.size, second.labelled, second.unsure) == ("dog", "known", 2, 2, 0)
    assert second.cohesion == pytest.approx(1 - 4 / (1.668 + 2.46), abs=1e-6)
    assert third.cohesion == 1.0
    assert second.typical == ("2.jpg", "3.jpg")  # a tie keeps their order
    assert (third.name, third.kind, third.size, third.labelled, third.unsure) == ("new 1", "new", 1, 0, 0)
    # Squared distances: (0.5, 0) to (0, 3) 9.25; (-1, 0) to (0.5, 0) 2.25 and to (0, 3) 10
    assert [each.nearest_known_id for each in (first, second, third)] == [1, 0, 0]
    # Other ids and another order change nothing else.
    ids, order = [30, 4, 17], [2, 0, 1]
    other = replace(a, category_id=np.array(ids)[a.category_id])
    mixed = [named(["cat", "dog", "new 1"], 2, ids)[row] for row in order]
    again = {each.name: each for each in describe(mixed, other, centres[order])}
    for each in (first, second, third):
        nearest = None if each.nearest_known_id is None else ids[each.nearest_known_id]
        assert again[each.name] == replace(each, id=ids[each.id], nearest_known_id=nearest)


def test_a_category_may_have_no_images_or_all() -> None:
    (_, empty) = describe(named(["cat", "new 1"], 1), assigned([0], [0]), plane([(1, 0), (0, 0)]))
    assert (empty.size, empty.labelled, empty.unsure, empty.cohesion, empty.typical) == (0, 0, 0, None, ())
    assert empty.nearest_known_id == 0
    (only,) = describe(named(["new 1"], 0), assigned([0, 0], [1, 1]), plane([(0, 0)]))
    assert only.cohesion == 0.0


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 99))
def test_mean_cohesion_is_the_share_of_the_variance_that_lies_between_categories(n: int, k: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, row = generator.normal(size=(n, 3)), generator.integers(0, k, n)
    centres = np.stack([x[row == each].mean(axis=0) if (row == each).any() else np.zeros(3) for each in range(k)])
    centres = centres.astype(np.float32)
    tight = cohesion(row, np.linalg.norm(x - centres[row], axis=1), centres)
    assert (tight >= 0).all()
    assert (tight <= 1).all()
    within = np.array([((x[row == each] - centres[each]) ** 2).sum(axis=1).mean() for each in row.tolist()])
    spread = ((x - x.mean(axis=0)) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(
        tight[row], np.clip(1 - within / max(spread, 1e-12), 0, 1), atol=1e-5 / max(spread, 1e-2)
    )


def test_sure_images_are_typical_and_unsure_ones_come_last_by_doubt() -> None:
    a = assigned([0] * 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], ["unsure", "unsure", "new", "labelled", "unsure", "new"])
    a = replace(a, confidence=np.array([0.2, 0.4, 0.9, 1.0, 0.3, 0.8]))
    assert np.argsort(typicality(a)).tolist() == [2, 3, 5, 1, 4, 0]


@pytest.mark.parametrize(
    ("centres", "n_known", "nearest"),
    [
        ([(0, 0), (1, 0), (5, 0), (3.1, 0)], 3, [1, 0, 1, 2]),
        ([(0, 0), (1, 0), (0.9, 0)], 1, [None, 0, 0]),
        ([(0, 0), (1, 0)], 0, [None, None]),
        ([(3, 3), (3, 3), (3, 3)], 2, [1, 0, 0]),
    ],
)
def test_the_nearest_known_category_is_never_the_category_itself(
    centres: Points, n_known: int, nearest: list[int | None]
) -> None:
    categories = named([str(j) for j in range(len(centres))], n_known)
    found = describe(categories, assigned([0], [0]), plane(centres))
    assert [each.nearest_known_id for each in found] == nearest


def test_the_number_of_typical_files_is_limited() -> None:
    n = TYPICAL_FILES + 5
    distance = np.random.default_rng(0).permutation(n).astype(float)
    (only,) = describe(named(["a"], 0), assigned([0] * n, distance.tolist()), plane([(1, 0)]))
    order = sorted(range(n), key=lambda row: distance[row])
    assert only.typical == tuple(f"{row}.jpg" for row in order[:TYPICAL_FILES])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=30))
def test_members_are_the_rows_of_a_category_nearest_first(rows: list[tuple[int, float]]) -> None:
    a = assigned([category for category, _ in rows], [distance for _, distance in rows])
    categories = named("abcdef", 0, [3, 0, 5, 1, 4, 2])
    some = np.flatnonzero(np.arange(len(rows)) % 3 > 0)
    for among in (None, some):
        found = members(a.category_id, a.distance, categories, among)
        for category, picked in zip(categories, found, strict=True):
            own = [row for row, (j, _) in enumerate(rows) if j == category.id and (among is None or row in some)]
            assert picked.tolist() == sorted(own, key=lambda row: (rows[row][1], row))


def test_new_categories_are_numbered_past_names_that_are_taken() -> None:
    found = outline(["new 1", "new 3"], [5, 6, 7, 8])
    assert [(c.id, c.name, c.kind, c.weight) for c in found] == [
        (0, "new 1", "known", 5),
        (1, "new 3", "known", 6),
        (2, "new 2", "new", 7),
        (3, "new 4", "new", 8),
    ]
    assert free_names(["new 01", "new", "New 1"], 1) == ["new 1"]
    assert outline([], []) == ()


def test_ids_are_found_in_any_order_and_unknown_ids_are_refused() -> None:
    categories = named("abc", 0, [40, 7, 12])
    assert rows_of(categories, np.array([7, 40, -1, 12, 7])).tolist() == [1, 0, -1, 2, 1]
    assert ids_of(categories, np.array([1, 0, -1, 2])).tolist() == [7, 40, -1, 12]
    for unknown in (0, 8, 41):
        with pytest.raises(ValueError, match="a category that exists"):
            rows_of(categories, np.array([7, unknown]))
