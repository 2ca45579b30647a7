"""The outcome of a run, worked out by hand: six images in the plane, two known categories and a new one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stores import small_store

from sortal import outcome
from sortal.backbone import load_backbone
from sortal.confidence import UNCALIBRATED, Confidence
from sortal.config import Contrast, Discovery, Ranks, Recipe, Training
from sortal.images import ImageSet, image_set
from sortal.job import Job
from sortal.pixels import Quarantined
from sortal.run import Run
from sortal.store import PixelStore
from sortal.train import Trained

# Known categories to the right and up, the new one to the left. Row 1 is labelled "right" but looks like the new one.
FILES = ("0.png", "1.png", "2.png", "3.png", "4.png", "5.png")
LABELS = ("right", "right", "up", None, None, None)
X = np.array([[1, 0], [-1, 0], [0, 1], [0.8, 0.6], [-0.8, 0.6], [-0.8, -0.6]], dtype=np.float32)
CENTRES = np.array([[0.9, 0.3], [0, 1], [-0.8, 0]], dtype=np.float32)
CLUSTERS = np.array([0, 2, 1, 0, 2, 2])
HELD = np.array([False, True, False, False, False, False])
RECIPE = Recipe(
    method="gcd",
    training=Training(precision="float32"),
    losses=Contrast(),
    clustering="semi-supervised",
    estimate_on="learned",
)
K: dict[str, Any] = {"k": 3, "estimated": False, "known": 2, "interval": None, "method": None, "curve": []}


def some_images(truth: tuple[str | None, ...] | None = None) -> ImageSet:
    return image_set(FILES, paths=[f"/photos/{file}" for file in FILES], labels=LABELS, truth=truth)


def a_job(images: ImageSet, place: Path, **settings: Any) -> Job:
    return Job(
        images=images,
        source="/photos",
        settings=Discovery(**settings),
        place=place,
        device="cpu",
        workers=1,
        command="sortal discover /photos",
    )


def gathered(
    place: Path,
    images: ImageSet | None = None,
    store: PixelStore | None = None,
    head: NDArray[np.float32] | None = None,
    **settings: Any,
) -> Run:
    images = images or some_images()
    bad = (Quarantined("bad.png", "empty", "0 bytes"),)
    store = store or small_store(6, 8)
    job = a_job(images, place, **settings)
    return outcome.gather(job, images, HELD, X, CLUSTERS, CENTRES, K, store, bad, head)


def test_a_labelled_image_is_in_its_class_and_any_other_where_it_was_clustered(tmp_path: Path) -> None:
    found = gathered(tmp_path)
    assert found.assignments.category.tolist() == [0, 0, 1, 0, 2, 2]
    assert found.names == ("right", "up", "new 1")
    assert [(c.kind, c.size, c.labelled) for c in found.categories] == [("known", 3, 2), ("known", 1, 1), ("new", 2, 0)]
    assert found.assignments.labels == LABELS
    assert [bad.file for bad in found.quarantine] == ["bad.png"]
    assert found.metrics is None


def test_distances_are_to_the_own_centre_and_to_the_nearest_other(tmp_path: Path) -> None:
    a = gathered(tmp_path).assignments
    own = [np.hypot(0.1, 0.3), np.hypot(1.9, 0.3), 0, np.hypot(0.1, 0.3), 0.6, 0.6]
    np.testing.assert_allclose(a.distance, own, atol=1e-6)
    assert a.next_category.tolist() == [1, 2, 0, 1, 1, 1]
    others = np.sqrt([2, 0.04, 0.81 + 0.49, 0.64 + 0.16, 0.64 + 0.16, 0.64 + 2.56])
    np.testing.assert_allclose(a.next_distance, others, atol=1e-6)


def test_confidence_is_a_softmax_of_squared_distances(tmp_path: Path) -> None:
    """With one image held out the temperature is a share of the mean squared distance to the centres."""
    found = gathered(tmp_path)
    assert not found.confidence["calibrated"]
    assert found.confidence["held_out"] == 0
    t = UNCALIBRATED * (0.1 + 0.04 + 0 + 0.1 + 0.36 + 0.36) / 6
    assert found.confidence["temperature"] == pytest.approx(t, abs=1e-6)
    squared = np.array([[0.01 + 0.09, 0.64 + 0.16, 2.56 + 0.36], [2.89 + 0.81, 0.64 + 2.56, 0.36]])
    likely = np.exp(-squared / t)
    wanted = likely[[0, 1], [0, 2]] / likely.sum(axis=1)
    np.testing.assert_allclose(found.assignments.confidence[[3, 5]], wanted, atol=1e-6)
    assert found.assignments.confidence[:3].tolist() == [1, 1, 1]  # labelled


@pytest.mark.parametrize(
    ("unsure_below", "statuses"),
    [
        (0.0, ["labelled"] * 3 + ["known", "new", "new"]),
        (0.9999, ["labelled"] * 3 + ["known", "unsure", "new"]),
    ],
)
def test_statuses_follow_confidence(tmp_path: Path, unsure_below: float, statuses: list[str]) -> None:
    found = gathered(tmp_path, unsure_below=unsure_below)
    assert found.assignments.status.tolist() == statuses
    assert found.confidence["unsure_below"] == unsure_below
    assert [category.unsure for category in found.categories] == [
        int(((found.assignments.category == j) & (found.assignments.status == "unsure")).sum()) for j in range(3)
    ]


def test_the_truth_is_for_metrics_alone(tmp_path: Path) -> None:
    told = some_images(("right", "right", "up", "up", "left", "left"))
    found, blind = gathered(tmp_path, told), gathered(tmp_path)
    assert found.metrics is not None
    assert found.metrics["images"] == 3
    assert found.metrics["accuracy"] == {"all": 1, "old": 1, "new": 1}  # "up" is matched with the category right
    assert found.metrics["known_accuracy"] == 0  # though it is not called so
    assert found.metrics["k_true"] == 3
    assert found.metrics["confusion"] == [["up", 0, 1]]
    for column in ("category", "status", "confidence"):
        np.testing.assert_array_equal(getattr(found.assignments, column), getattr(blind.assignments, column))
    assert found.assignments.truth == ("right", "right", "up", "up", "left", "left")
    assert blind.assignments.truth == ("right", "right", "up", None, None, None)


def test_a_class_without_a_labelled_image_is_not_known(tmp_path: Path) -> None:
    """As where none of them could be read: classes keep their numbers, categories have none for it."""
    everything = image_set(["x.png", *FILES], paths=["x.png", *FILES], labels=["middle", *LABELS])
    left = everything.select(np.arange(7) > 0)
    assert left.classes == ("middle", "right", "up")
    found = gathered(tmp_path, left)
    assert found.names == ("right", "up", "new 1")
    assert found.assignments.category.tolist() == [0, 0, 1, 0, 2, 2]
    assert found.assignments.labels == LABELS
    backbone = load_backbone("convnet")
    about = outcome.about(a_job(left, tmp_path), backbone, None, left, found.assignments, X, RECIPE)
    assert about["classes"] == ["right", "up"]


# By a head

HEAD = np.array([[2, 1, 0], [0, 1, 0.5], [-2, 0, 1.25]], dtype=np.float32)  # scores 2x + y, y + 0.5, 1.25 − 2x


def test_the_scores_of_a_head_are_confidence_and_tell_what_is_next(tmp_path: Path) -> None:
    """Not calibrated, they mean what they were trained to; distances are to the centres still."""
    found, plain = gathered(tmp_path, head=HEAD), gathered(tmp_path)
    a = found.assignments
    assert a.category.tolist() == plain.assignments.category.tolist() == [0, 0, 1, 0, 2, 2]
    assert found.confidence["temperature"] == 1.0
    scores = np.array([[2.2, 1.1, -0.35], [-1.0, 1.1, 2.85], [-2.2, -0.1, 2.85]])  # of the last three images
    likely = np.exp(scores)
    wanted = likely[[0, 1, 2], [0, 2, 2]] / likely.sum(axis=1)
    np.testing.assert_allclose(a.confidence[3:], wanted, rtol=1e-6)
    assert a.confidence[:3].tolist() == [1, 1, 1]
    assert a.next_category.tolist() == [1, 2, 2, 1, 1, 1]
    assert plain.assignments.next_category.tolist() == [1, 2, 0, 1, 1, 1]  # by distance
    np.testing.assert_array_equal(a.distance, plain.assignments.distance)
    np.testing.assert_array_equal(found.head, HEAD)
    assert plain.head is None
    assert found.about["centre_sizes"] == [2, 1, 3]  # of the clusters, one of which is not its image's class


def test_a_new_image_is_what_a_head_says_and_keeps_it_when_centres_move() -> None:
    head = HEAD.astype(np.float64)
    x = np.array([[0.1, 0.9], [-0.7, 0.0], [0.2, 0.2]], dtype=np.float32)
    a, plain = new_ones(x, head=head), new_ones(x)
    scores = x.astype(np.float64) @ head[:, :-1].T + head[:, -1]
    assert a.category.tolist() == scores.argmax(axis=1).tolist() == [1, 2, 2]
    assert plain.category.tolist() == [1, 2, 0]  # by the nearest centre
    after = outcome.placed(a, x, CENTRES[::-1].copy(), 2, confidence(head=head))
    np.testing.assert_array_equal(after.category, a.category)
    np.testing.assert_array_equal(after.next_category, a.next_category)
    anew = outcome.placed(a, x, CENTRES[::-1].copy(), 2, confidence(head=head), anew=True)
    np.testing.assert_array_equal(anew.category, a.category)  # whatever centres are


def test_what_is_said_of_a_recipe_is_json_for_every_kind_of_losses(tmp_path: Path) -> None:
    images, backbone = some_images(), load_backbone("convnet")
    rows = gathered(tmp_path, images).assignments
    ranks = Recipe(method="rankstats", training=Training(), losses=Ranks(), clustering="head", estimate_on="raw")
    said = outcome.about(a_job(images, tmp_path), backbone, None, images, rows, X, ranks)
    assert json.loads(json.dumps(said, allow_nan=False))["recipe"] == {
        "method": "rankstats",
        "training": vars(Training()),
        "losses": vars(Ranks()),
        "clustering": "head",
        "estimate_on": "raw",
        "select": False,
    }


# Images never seen before


def confidence(**changes: Any) -> Confidence:
    same: dict[str, Any] = {"temperature": 0.1, "held_out": 0, "unsure_below": 0.5}
    return Confidence(**{**same, "usual": np.full(3, 0.3), "deviation": np.full(3, 0.1), **changes})


def new_ones(x: NDArray[np.float32], **changes: Any) -> Any:
    files = [f"{row}.png" for row in range(len(x))]
    images = image_set(files, paths=files, labels=[None] * len(x))
    contents = np.array([b"c%d" % row for row in range(len(x))])
    return outcome.assign(images, contents, x, CENTRES, 2, confidence(**changes), folder=4)


def test_an_image_without_a_category_gets_the_nearest() -> None:
    a = new_ones(np.array([[0.9, 0.3], [0.1, 0.9], [-0.7, 0], [-9, 0]], dtype=np.float32))
    assert a.category.tolist() == [0, 1, 2, 2]
    assert a.status.tolist() == ["known", "known", "new", "unsure"]  # the last one is far from all
    assert a.folders.tolist() == [4] * 4
    assert a.contents == ("c0", "c1", "c2", "c3")
    assert a.labels == a.truth == (None,) * 4
    assert a.confidence[3] < 1e-6


def test_what_is_far_is_unsure_as_far_as_the_usual_distance_goes() -> None:
    """2.5 standard deviations are nothing odd; then it falls as a normal density does."""
    x = np.array([[-0.8 - 0.3 - 0.1 * beyond, 0] for beyond in (0, 2.5, 3.5)], dtype=np.float32)
    a = new_ones(x, temperature=1e-3)
    np.testing.assert_allclose(a.confidence, [1, 1, np.exp((2.5**2 - 3.5**2) / 2)], rtol=1e-4)


def test_images_keep_their_categories_when_centres_move() -> None:
    a = new_ones(X)
    moved = CENTRES[::-1].copy()
    after = outcome.placed(a, X, moved, 2, confidence())
    np.testing.assert_array_equal(after.category, a.category)
    np.testing.assert_allclose(after.distance, np.linalg.norm(X - moved[a.category], axis=1), atol=1e-6)
    assert (after.next_category != after.category).all()
    anew = outcome.placed(a, X, moved, 2, confidence(), anew=True)
    np.testing.assert_array_equal(anew.category, 2 - a.category)


def test_no_image_is_no_trouble() -> None:
    a = new_ones(np.zeros((0, 2), dtype=np.float32))
    assert len(a) == 0
    assert a.category.shape == a.status.shape == (0,)


# What run.json says


def test_what_is_said_of_a_run_is_json_and_does_not_depend_on_the_order(tmp_path: Path) -> None:
    images, backbone = some_images(), load_backbone("convnet")
    rows = gathered(tmp_path, images).assignments
    trained = Trained(
        epochs=2, selected=1, validation=None, losses={"a": 1.0}, views=None, seconds=3.0, images_per_second=4.0
    )
    said = outcome.about(a_job(images, tmp_path, k=3), backbone, trained, images, rows, X, RECIPE)
    assert json.loads(json.dumps(said, allow_nan=False))["settings"]["k"] == 3
    assert said["images"] == [{"folder": "/photos", "images": 6, "paths": {}}]
    assert said["training"]["losses"] == {"a": 1.0}
    assert said["precision"] == "float32"
    assert said["recipe"]["training"]["epochs"] == 200
    assert said["recipe"]["losses"]["supervised_weight"] == 0.35
    assert said["weights"] == backbone.source
    assert said["updates"] == []
    order = np.array([5, 3, 1, 0, 2, 4])
    shuffled = image_set(
        [FILES[i] for i in order], paths=[f"/photos/{FILES[i]}" for i in order], labels=[LABELS[i] for i in order]
    )
    mixed = replace(rows, contents=tuple(rows.contents[i] for i in order), labels=tuple(rows.labels[i] for i in order))
    again = outcome.about(a_job(shuffled, tmp_path), backbone, None, shuffled, mixed, X, RECIPE)
    assert again["hashes"]["images"] == said["hashes"]["images"]
    assert again["training"] is None
    relabelled_names = (*LABELS[:3], "up", None, None)
    relabelled = image_set(FILES, paths=FILES, labels=relabelled_names)
    others = replace(rows, labels=relabelled_names)
    other = outcome.about(a_job(relabelled, tmp_path), backbone, None, relabelled, others, X, RECIPE)
    assert other["hashes"]["images"] != said["hashes"]["images"]


def test_only_files_that_open_elsewhere_are_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [os.path.join("photos", "a.png"), "/other/b.png", "photos/../photos/c d.png"]
    images = image_set(["a.png", "b.png", "c d.png"], paths=paths, labels=[None] * 3)
    assert outcome.elsewhere(images, str(tmp_path / "photos")) == {"b.png": "/other/b.png"}
    assert outcome.elsewhere(images, None) == {}
