"""What people decided holds in the next run: with another k or seed, with files renamed or added."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SortedRun
from numpy.typing import NDArray
from support import tiny_folder as tiny
from support.runtimes import CPU
from support.sample_run import sample_run
from support.thorough import thorough_but
from support.tiny_folder import sort

from sortal.discovery import label_splits, stages
from sortal.discovery.pipeline import discover
from sortal.discovery.prediction import predict
from sortal.errors import InputError
from sortal.images.image_set import image_set
from sortal.images.review_states import ReviewState
from sortal.reviews import journal
from sortal.reviews.actions import (
    Accept,
    AcceptCategory,
    Action,
    Audit,
    Create,
    Grow,
    Keep,
    Merge,
    Move,
    Reject,
    Rename,
    Split,
)
from sortal.reviews.carrying import EarlierReview
from sortal.reviews.loading import load_run
from sortal.runs.run import DECISIONS, Run

pytestmark = pytest.mark.usefixtures("quickly")


def note(run: Run, *actions: Action) -> Run:
    journal.append(run.folder / DECISIONS, run.facts, [journal.decide(each) for each in actions])
    return load_run(run.folder)


def contents(run: Run, rows: NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(run.assignments.contents[row] for row in np.flatnonzero(rows).tolist())


@pytest.fixture
def copied(sorted_run: SortedRun, tmp_path: Path) -> Run:
    """A finished run of a folder of images of its own."""
    shutil.copytree(sorted_run.images, tmp_path / "images")
    return sort(tmp_path / "images", tmp_path / "run", method="kmeans")


def reviewed(run: Run) -> tuple[Run, dict[str, str], tuple[str, int]]:
    """Review a run: the reviewed one, the category of each decided content, and an image rejected from a category."""
    a = run.assignments
    first, second, third = (each.id for each in run.categories if each.kind == "new")
    free = a.status != "labelled"
    some = contents(run, free & (a.category_id == first))
    other = contents(run, free & (a.category_id == second))
    wrong = contents(run, free & (a.category_id == third))
    known = contents(run, free & (a.category_id == 0))
    found = note(
        run,
        Rename(category=first, name="willow"),
        Accept(images=some[:6]),
        Move(images=other[:2], category=first),
        Create(images=known[:3], category=run.facts.next_id, name="rowan"),
        Rename(category=third, name="yew"),
        Reject(images=wrong[:1], category=third),
        Rename(category=1, name="copper beech"),
    )
    b = found.assignments
    decided = {b.contents[row]: found.names[int(b.category_id[row])] for row in np.flatnonzero(b.settled).tolist()}
    assert len(decided) == 11
    return found, decided, (wrong[0], third)


def assert_kept(run: Run, decided: dict[str, str], rejected: tuple[str, int]) -> None:
    a = run.assignments
    found = {content: run.names[int(each)] for content, each in zip(a.contents, a.category_id, strict=True)}
    assert {content: found[content] for content in decided} == decided
    states = dict(zip(a.contents, a.reviewed.tolist(), strict=True))
    assert {states[content] for content in decided} == {ReviewState.CONFIRMED, ReviewState.MOVED}
    content, category = rejected
    assert int(a.category_id[a.contents.index(content)]) != category
    assert states[content] == ReviewState.REJECTED
    assert rejected in run.rejected
    kinds = {each.name: each.kind for each in run.categories}
    assert kinds["willow"] == kinds["rowan"] == kinds["copper beech"] == "known"
    assert "beech" not in kinds, "labels in folders follow the new name"
    assert not (run.folder / DECISIONS).exists()


@pytest.mark.parametrize("changes", thorough_but([{"seed": 5}], [{"seed": 5}, {"method": "gcd", "k": "auto"}]), ids=str)
def test_decisions_hold_in_another_run(copied: Run, changes: dict[str, Any], tmp_path: Path) -> None:
    before, decided, rejected = reviewed(copied)
    after = sort(tmp_path / "images", tmp_path / "run", **{"method": "kmeans", "k": 7, **changes})
    assert_kept(after, decided, rejected)
    assert_kept(load_run(tmp_path / "run"), decided, rejected)
    ids = {each.name: each.id for each in before.categories}
    for each in after.categories:
        if each.name in ids:
            assert each.id == ids[each.name], "a category keeps its id"
        else:
            assert each.id >= before.facts.next_id, "and an id is never reused"
    assert after.facts.next_id > max(each.id for each in after.categories)
    assert any("Labelled by a review: 11 images" in text for text in after.facts.notes)
    again = sort(tmp_path / "images", tmp_path / "run", **{"method": "kmeans", "k": 8, **changes})
    assert_kept(again, decided, rejected)


def test_decisions_hold_for_renamed_and_among_added_files(copied: Run, tmp_path: Path) -> None:
    _, decided, rejected = reviewed(copied)
    folder = tmp_path / "images" / "unlabelled"
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(folder / f"moved-{number:03}.png")
    for number in range(8):
        tiny.save(folder / f"more-{number}.png", tiny.picture("elm", 100 + number))
    after = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=7)
    assert len(after.assignments) == len(copied.assignments) + 8
    assert_kept(after, decided, rejected)
    found = predict(tmp_path / "run", folder, runtime=CPU)
    named = {found.run.names[int(each)] for each in found.assignments.category_id}
    assert {"willow"} <= named


def test_reviewed_labels_never_calibrate_confidence(copied: Run, tmp_path: Path, monkeypatch: Any) -> None:
    found = note(copied, *(AcceptCategory(category=each.id) for each in copied.categories if each.kind == "known"))
    drawn: list[NDArray[np.bool_]] = []
    held_out = label_splits.held_out

    def noted(*given: Any) -> NDArray[np.bool_]:
        drawn.append(held_out(*given))
        return drawn[-1]

    monkeypatch.setattr(stages, "held_out", noted)
    after = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=7)
    states = after.assignments.reviewed
    assert (states == ReviewState.CONFIRMED).sum() == sum(
        each.size for each in found.categories if each.kind == "known"
    )
    assert not drawn[-1][states != ReviewState.OPEN].any()


def test_a_named_category_without_a_decided_image_is_recognised_or_reported(copied: Run, tmp_path: Path) -> None:
    first, second, _ = (each.id for each in copied.categories if each.kind == "new")
    note(copied, Rename(category=first, name="willow"), Rename(category=second, name="yew"))
    same = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=6)
    assert {(each.id, each.name, each.kind) for each in same.categories} >= {
        (first, "willow", "known"),
        (second, "yew", "known"),
    }
    few = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=3)
    assert any("willow" in text and "No category resembles" in text for text in few.facts.notes)


def test_merged_classes_stay_merged_and_everything_decided_leaves_nothing_to_sort(copied: Run, tmp_path: Path) -> None:
    found = note(copied, Merge(categories=(0, 1)))
    after = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=5)
    assert [each.name for each in after.categories if each.kind == "known"] == ["ash", "cedar"]
    assert after.assignments.labels.count("ash") == 2 * tiny.LABELLED
    note(after, *(AcceptCategory(category=each.id) for each in after.categories))
    with pytest.raises(InputError, match="nothing left to sort"):
        sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=5)
    assert load_run(found.folder).decisions == 5, "nothing is lost"
    assert (load_run(found.folder).assignments.reviewed == ReviewState.CONFIRMED).all()


def test_a_renamed_class_stays_renamed_however_often_it_is_sorted(copied: Run, tmp_path: Path) -> None:
    note(copied, Rename(category=1, name="copper beech"))
    for k in (6, 7, 6):
        again = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=k)
        assert again.names[1] == "copper beech"
        assert "beech" not in again.names.values()


def test_a_settled_image_stays_although_it_was_once_rejected_there(copied: Run, tmp_path: Path) -> None:
    third = copied.categories[-1].id
    (image,) = contents(copied, copied.assignments.category_id == third)[:1]
    note(
        copied,
        Rename(category=third, name="yew"),
        Reject(images=(image,), category=third),
        Move(images=(image,), category=0),
        Merge(categories=(0, third)),
    )
    again = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=6)
    assert again.names[int(again.assignments.category_id[again.assignments.contents.index(image)])] == "ash"


def test_decisions_about_a_damaged_run_are_kept_unless_forced(copied: Run, tmp_path: Path) -> None:
    note(copied, Rename(category=4, name="willow"))
    (copied.folder / "confidence.json").unlink()
    with pytest.raises(InputError, match="is damaged"):
        sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    assert (copied.folder / DECISIONS).exists()
    again = sort(tmp_path / "images", tmp_path / "run", method="kmeans", force=True)
    assert "willow" not in again.names.values()
    assert (copied.folder / "decisions-1.jsonl").exists()


def test_a_run_that_nobody_reviewed_starts_anew(copied: Run, tmp_path: Path) -> None:
    after = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=7)
    assert sorted(after.names) == [*range(7)]
    assert replace(after, decisions=0).decisions == 0


def test_features_that_were_given_stay_with_images_that_a_review_labelled() -> None:
    run = sample_run(categories=3, images=9)
    a = replace(run.assignments, reviewed=np.full(9, ReviewState.CONFIRMED))
    images = image_set(a.files, paths=a.files, labels=[None] * 9, features=np.eye(9, dtype=np.float32))
    found, given = EarlierReview(replace(run, assignments=a), a.contents).labelled(images)
    assert given.all()
    assert found.features is not None
    assert np.array_equal(found.features, np.eye(9))


def names_of(run: Run) -> dict[str, str]:
    """Return the name of the category of each image, by its content."""
    return {
        each: run.names[int(at)] for each, at in zip(run.assignments.contents, run.assignments.category_id, strict=True)
    }


def test_merged_and_split_categories_stay_though_nobody_decided_on_an_image(copied: Run, tmp_path: Path) -> None:
    """A merge of two categories, and a random third of another one, which no clustering would find."""
    first, second, third = (each.id for each in copied.categories if each.kind == "new")
    part = contents(copied, copied.assignments.category_id == third)[::3]
    split = Split(images=part, category=copied.facts.next_id, name="junk")
    before = note(copied, Merge(categories=(first, second)), Rename(category=first, name="tiger lily"), split)
    assert not before.assignments.settled.any()
    wanted = {content: name for content, name in names_of(before).items() if name in ("tiger lily", "junk")}
    after = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k="auto")
    assert sum(names_of(after)[content] == name for content, name in wanted.items()) > 0.9 * len(wanted)
    assert {each.name for each in after.categories if each.made} >= {"tiger lily", "junk"}
    again = sort(tmp_path / "images", tmp_path / "run", method="kmeans", seed=3)
    assert sum(names_of(again)[content] == name for content, name in wanted.items()) > 0.8 * len(wanted)


def test_k_of_the_earlier_run_follows_the_review(copied: Run, tmp_path: Path) -> None:
    first, second, _ = (each.id for each in copied.categories if each.kind == "new")
    note(copied, Merge(categories=(first, second)))
    k = copied.k.k
    settings = {name: value for name, value in tiny.SETTINGS.items() if name != "k"}
    after = discover(tmp_path / "images", out=tmp_path / "run", **settings, method="kmeans")
    assert after.k.k == len(after.categories) == k - 1
    more = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k=k + 1)
    assert not any("The review has left" in text for text in more.facts.notes), "a k that is given now counts"
    assert more.k.k == len(more.categories) <= k + 1
    gone = f"{k + 1 - more.k.k} of the {k + 1} clusters"
    assert any(gone in text for text in more.facts.notes) == (more.k.k < k + 1)


def test_a_run_that_contradicts_the_review_says_where(copied: Run) -> None:
    first, second, _ = (each.id for each in copied.categories if each.kind == "new")
    before = note(copied, Rename(category=first, name="willow"))
    own = contents(before, before.assignments.category_id == first)
    review = EarlierReview(before, before.assignments.contents)
    assert review.contradicted(before) == []
    after = note(copied, Move(images=own[:2], category=second))
    assert review.contradicted(after) == [f"2 of {len(own)} of 'willow' (2 in {before.names[second]!r})"]


@pytest.mark.parametrize(("sure", "stays"), [(0.41, True), (0.39, False)])
def test_an_image_leaves_a_category_of_a_review_only_where_it_is_twice_as_sure(sure: float, stays: bool) -> None:
    x = np.array([[0, 1], [0, 1], [1, 0]], dtype=np.float32)
    run = sample_run(categories=2, known=0, images=3, features=x, category=np.array([0, 0, 1]))
    a = replace(run.assignments, confidence=np.full(3, sure))
    before = replace(run, assignments=a, categories=(replace(run.categories[0], made=True), run.categories[1]))
    found, free = np.array([1, 1, 1]), np.array([True, False, True])
    # Of squared distances 0 and 2, the first has a probability of 0.8 at this temperature.
    flat = replace(run.confidence, temperature=2 / np.log(4), usual=np.zeros(2), deviation=np.ones(2), stability=None)
    now = EarlierReview(before, a.contents).weighed(found, free, run.categories, x, x[[2, 0]], flat, None)
    assert now.tolist() == [0 if stays else 1, 1, 1], "a labelled image is where its label says"


def test_the_sample_of_an_audit_calibrates_confidence(copied: Run, tmp_path: Path) -> None:
    """Also the image that was found wrong, wherever it is now; nothing else that was accepted does."""
    own = contents(copied, (copied.assignments.category_id == 0) & (copied.assignments.status != "labelled"))
    other = copied.categories[-1].id
    them = contents(copied, copied.assignments.category_id == other)
    note(
        copied,
        Grow(category=0, seen=(), unseen=own, wrong=()),
        Grow(category=other, seen=(), unseen=them, wrong=()),
        Audit(right=(*own[:2], *them[:3]), wrong=them[3:4]),
    )
    plain = copied.confidence.held_out
    after = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    assert after.confidence.held_out == plain + 6


def test_categories_stay_apart_when_images_are_added_and_sorted_again(copied: Run, tmp_path: Path) -> None:
    first, second, third = (each.id for each in copied.categories if each.kind == "new")
    note(copied, Keep(categories=(first, second)), Keep(categories=(second, third)))

    def apart(run: Run) -> dict[int, tuple[int, ...]]:
        return {each.id: each.kept_apart for each in run.categories if each.kept_apart}

    (tmp_path / "more").mkdir()
    tiny.save(tmp_path / "more" / "a.png", tiny.picture("elm", 100))
    predict(tmp_path / "run", tmp_path / "more", update=True, runtime=CPU)
    expected = {first: (second,), second: (first, third), third: (second,)}
    assert apart(load_run(tmp_path / "run")) == expected
    after = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
    assert apart(after) == expected
