"""Categories edited by hand: ids are stable, figures are updated, and order does not matter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sample_run import quick_map, sample_run
from stores import small_store
from tiny_folder import rows_of

from sortal import web
from sortal.errors import InputError
from sortal.runs.building import build_run
from sortal.runs.confidence import spread
from sortal.runs.editing import merge, rename, reorder, split
from sortal.runs.evaluation import evaluate
from sortal.runs.export import export
from sortal.runs.run import Run
from sortal.runs.storage import load_run


def a_run(*, head: bool = False, images: int = 72) -> Run:
    """Build a run as discovery does, with known categories 0 to 3 and new ones 4 and 5."""
    run = sample_run(images=images)
    scores = np.concatenate([5 * run.centres, np.zeros((6, 1))], axis=1).astype(np.float32) if head else None
    return build_run(
        folder=run.folder,
        facts=run.facts,
        assignments=run.assignments,
        categories=run.categories,
        k=run.k,
        confidence=replace(run.confidence, stability=np.linspace(0.5, 1, 6), exponent=np.linspace(2, 1, 6)),
        features=run.features,
        centres=run.centres,
        head=scores,
        quarantine=(),
    )


def some(run: Run, category: int, count: int) -> NDArray[np.bool_]:
    """Select the first unlabelled images of a category."""
    rows = np.flatnonzero((run.assignments.category == category) & (run.assignments.status != "labelled"))
    return np.isin(np.arange(len(run.assignments)), rows[:count])


def assert_consistent(run: Run) -> None:
    """Check that every figure of a category follows from the images with its id."""
    a = run.assignments
    assert sum(each.size for each in run.categories) == len(a)
    kinds = {each.id: each.kind for each in run.categories}
    for row, each in enumerate(run.categories):
        own = a.category == each.id
        assert each.size == own.sum()
        assert (each.labelled, each.unsure) == ((a.status[own] == "labelled").sum(), (a.status[own] == "unsure").sum())
        assert {*a.status[own]} <= {"labelled", "unsure", each.kind}
        assert {label for label in np.array(a.labels, dtype=object)[own] if label is not None} <= {each.name}
        np.testing.assert_allclose(
            a.distance[own], np.linalg.norm(run.features[own] - run.centres[row], axis=1), atol=1e-5
        )
        assert {*each.typical} <= {file for file, is_own in zip(a.files, own, strict=True) if is_own}
        assert each.nearest_known is None or (kinds[each.nearest_known] == "known" and each.nearest_known != each.id)
    assert {*a.next_category.tolist()} <= {*kinds}
    assert run.metrics == evaluate(a, run.categories)


def test_a_merge_weights_centres_and_keeps_the_first_id() -> None:
    run = a_run(head=True)
    weighed = replace(run, categories=tuple(replace(c, weight=9 if c.id == 5 else 3) for c in run.categories))
    merged = merge(weighed, [4, 5])
    assert_consistent(merged)
    assert [(c.id, c.name, c.kind) for c in merged.categories] == [(c.id, c.name, c.kind) for c in run.categories[:5]]
    assert (merged.categories[4].size, merged.categories[4].weight) == (24, 12)
    np.testing.assert_allclose(merged.centres[4], (run.centres[4] + 3 * run.centres[5]) / 4, atol=1e-6)
    np.testing.assert_array_equal(merged.centres[:4], run.centres[:4])
    assert merged.head is not None
    np.testing.assert_allclose(merged.head[4, :-1], 5 * merged.centres[4], atol=1e-5)
    own, k = np.minimum(run.assignments.category, 4), 5
    usual, deviation = spread(merged.assignments.distance, own, k)
    np.testing.assert_allclose(merged.confidence.usual, [*run.confidence.usual[:4], usual[4]])
    np.testing.assert_allclose(merged.confidence.deviation, [*run.confidence.deviation[:4], deviation[4]])
    assert merged.confidence.stability is not None
    assert merged.confidence.exponent is not None
    np.testing.assert_allclose(merged.confidence.stability, [0.5, 0.6, 0.7, 0.8, 1])
    np.testing.assert_allclose(merged.confidence.exponent, [2, 1.8, 1.6, 1.4, 1])
    assert merged.facts.edits == ("merged 'new 2' into 'new 1'",)
    assert len(run.categories) == 6, "the original run is unchanged"


def test_known_classes_merge_into_one_and_a_new_category_joins_a_known_one() -> None:
    run = a_run()
    merged = merge(run, [2, 0, 5])
    assert_consistent(merged)
    assert [c.id for c in merged.categories] == [1, 2, 3, 4]
    assert {"class 0"}.isdisjoint({*merged.assignments.labels, *merged.assignments.truth})
    assert merged.facts.hashes.images != run.facts.hashes.images
    for ids, message in (
        ([4, 1], "A known category must come first"),
        ([3], "two or more"),
        ([3, 3], "two or more"),
        ([3, 99], "no category with the id 99"),
    ):
        with pytest.raises(InputError, match=message):
            merge(run, ids)


@pytest.mark.parametrize("head", [False, True])
def test_a_split_gets_an_unused_id_and_centres_from_its_images(head: bool) -> None:
    run = a_run(head=head)
    merged = merge(run, [4, 5])
    rows = some(merged, 4, 9)
    apart = split(merged, 4, rows, name="fern")
    assert_consistent(apart)
    assert [c.id for c in apart.categories] == [0, 1, 2, 3, 4, 6], "5 is never reused"
    assert apart.facts.next_id == 7
    assert apart.names[6] == "fern"
    own = apart.assignments.category
    assert (own[rows] == 6).all()
    for row, category in ((4, 4), (5, 6)):
        np.testing.assert_allclose(apart.centres[row], run.features[own == category].mean(axis=0), atol=1e-6)
        assert apart.categories[row].weight == (own == category).sum()
    if apart.head is None or merged.head is None:
        return
    # The nearer of the two centres has the higher score; other scores are unchanged.
    scores = run.features @ apart.head[:, :-1].T + apart.head[:, -1]
    first, second = (np.linalg.norm(run.features - apart.centres[row], axis=1) for row in (4, 5))
    np.testing.assert_array_equal(scores[:, 4] > scores[:, 5], first < second)
    np.testing.assert_allclose(scores[:, :4], run.features @ merged.head[:4, :-1].T, atol=1e-4)


def test_invalid_edits_are_refused() -> None:
    run = a_run()
    labelled = run.assignments.status == "labelled"
    for rows, message in (
        (np.zeros(72, dtype=bool), "got 0 of them and 0 others"),
        (run.assignments.category == 4, "12 images of the category 'new 1', and not all, got 12 of them"),
        (some(run, 5, 2), "got 0 of them and 2 others"),
    ):
        with pytest.raises(InputError, match=message):
            split(run, 4, rows)
    with pytest.raises(InputError, match="rows must be unlabelled, got 4"):
        split(run, 1, labelled & (run.assignments.category == 1))
    for category, name in ((4, "new 2"), (4, ""), (0, "class 1")):
        with pytest.raises(InputError, match="must not be empty or that of another category"):
            rename(run, category, name)
    with pytest.raises(InputError, match="another category"):
        split(run, 4, some(run, 4, 2), name="class 0")
    with pytest.raises(InputError, match="the ids of all 6 categories"):
        reorder(run, [0, 1, 2])


def test_a_renamed_known_class_keeps_its_images_and_figures() -> None:
    run = a_run()
    renamed = rename(rename(run, 1, "fern"), 4, "moss")
    assert_consistent(renamed)
    assert renamed.metrics is not None
    assert run.metrics is not None
    assert renamed.metrics.accuracy == run.metrics.accuracy
    assert renamed.metrics.known_accuracy == run.metrics.known_accuracy
    assert renamed.assignments.labels.count("fern") == run.assignments.labels.count("class 1")
    assert "moss" not in renamed.assignments.truth, "the name of a new category is not the truth"
    np.testing.assert_array_equal(renamed.assignments.confidence, run.assignments.confidence)
    assert renamed.facts.edits == ("renamed 'class 1' to 'fern'", "renamed 'new 1' to 'moss'")


def test_an_edited_run_is_saved_loaded_reported_and_exported(tmp_path: Path) -> None:
    run = replace(a_run(head=True), folder=tmp_path / "run")
    order = [5, 0, 3, 1, 4, 2]
    mixed = reorder(run, order)
    assert_consistent(mixed)
    assert mixed.metrics == run.metrics
    edited = rename(split(merge(mixed, [3, 1]), 5, some(mixed, 5, 5)), 4, "moss")
    assert [c.id for c in edited.categories if c.kind == "known"] == [0, 3, 2]
    edited.save()
    found = load_run(edited.folder)
    assert found.names == {5: "new 2", 0: "class 0", 3: "class 3", 4: "moss", 2: "class 2", 6: "new 3"}
    assert found.categories == edited.categories
    assert found.metrics == edited.metrics
    np.testing.assert_array_equal(found.assignments.category, edited.assignments.category)
    np.testing.assert_array_equal(found.centres, edited.centres)

    with quick_map():
        page = web.make_report(found, small_store(72, 8)).decode()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [each["name"] for each in data["categories"]] == [*found.names.values()]
    assert sum(each["size"] for each in data["categories"]) == 72
    a = found.assignments
    names = {file: found.names[j] for file, j in zip(a.files, a.category.tolist(), strict=True)}
    shown = data["images"]
    for file, at in zip(shown["file"], shown["category"], strict=True):
        assert data["categories"][at]["name"] == names[file]
    for each, category in zip(data["categories"], found.categories, strict=True):
        nearest = None if category.nearest_known is None else found.names[category.nearest_known]
        assert (None if each["nearest"] is None else data["categories"][each["nearest"]]["name"]) == nearest
        assert {names[shown["file"][at]] for at in each["typical"]} == {category.name}

    export(found, "csv", tmp_path / "table.csv")
    rows = rows_of(tmp_path / "table.csv")
    assert {row["file_name"]: row["category_name"] for row in rows} == names
    assert {int(row["category"]): row["category_name"] for row in rows} == found.names
