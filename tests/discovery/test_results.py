"""The outcome of a run, worked out by hand: six images in the plane, two known categories and a new one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from stores import small_store

from sortal import outcome
from sortal.backbone import load_backbone
from sortal.confidence import UNCALIBRATED, Confidence, calibrate
from sortal.config import Contrast, Discovery, Recipe, Training
from sortal.images import ImageSet, image_set
from sortal.job import Job
from sortal.pixels import Quarantined
from sortal.run import Assignments, Run
from sortal.train import Trained

# Known categories to the right and up, the new one to the left. Row 1 is labelled "right" but looks like the new one.
FILES = ("0.png", "1.png", "2.png", "3.png", "4.png", "5.png")
LABELS = ("right", "right", "up", None, None, None)
X = np.array([[1, 0], [-1, 0], [0, 1], [0.8, 0.6], [-0.8, 0.6], [-0.8, -0.6]], dtype=np.float32)
CENTRES = np.array([[0.9, 0.3], [0, 1], [-0.8, 0]], dtype=np.float32)
CLUSTERS = np.array([0, 2, 1, 0, 2, 2])
HELD = np.array([False, True, False, False, False, False])
HEAD = np.array([[2, 1, 0], [0, 1, 0.5], [-2, 0, 1.25]], dtype=np.float32)  # scores 2x + y, y + 0.5, 1.25 − 2x
K: dict[str, Any] = {"k": 3, "estimated": False, "known": 2, "interval": None, "method": None, "curve": []}


def some_images(truth: tuple[str | None, ...] | None = None) -> ImageSet:
    return image_set(FILES, paths=[f"/photos/{file}" for file in FILES], labels=LABELS, truth=truth)


def a_job(images: ImageSet, **settings: Any) -> Job:
    return Job(
        images=images,
        source="/photos",
        settings=Discovery(**settings),
        place=Path("run"),
        device="cpu",
        workers=1,
        command="sortal discover /photos",
    )


def gathered(images: ImageSet | None = None, head: NDArray[np.float32] | None = None, **settings: Any) -> Run:
    images = images or some_images()
    bad = (Quarantined("bad.png", "empty", "0 bytes"),)
    job = a_job(images, **settings)
    return outcome.gather(job, images, HELD, X, CLUSTERS, CENTRES, K, small_store(6, 8), bad, head)


def test_images_in_categories_by_hand() -> None:
    """A labelled image is in its class and any other where it was clustered; distances are to the centres."""
    found = gathered()
    a = found.assignments
    assert a.category.tolist() == [0, 0, 1, 0, 2, 2]
    assert found.names == ("right", "up", "new 1")
    assert [(c.kind, c.size, c.labelled) for c in found.categories] == [("known", 3, 2), ("known", 1, 1), ("new", 2, 0)]
    assert a.labels == LABELS
    assert [bad.file for bad in found.quarantine] == ["bad.png"]
    assert found.metrics is None
    assert found.head is None
    assert found.about["centre_sizes"] == [2, 1, 3]  # of the clusters, one of which is not its image's class
    own = [np.hypot(0.1, 0.3), np.hypot(1.9, 0.3), 0, np.hypot(0.1, 0.3), 0.6, 0.6]
    np.testing.assert_allclose(a.distance, own, atol=1e-6)
    assert a.next_category.tolist() == [1, 2, 0, 1, 1, 1]
    others = np.sqrt([2, 0.04, 0.81 + 0.49, 0.64 + 0.16, 0.64 + 0.16, 0.64 + 2.56])
    np.testing.assert_allclose(a.next_distance, others, atol=1e-6)
    # With one image held out the temperature is a share of the mean squared distance to the centres.
    assert (found.confidence["calibrated"], found.confidence["held_out"]) == (False, 0)
    t = UNCALIBRATED * (0.1 + 0.04 + 0 + 0.1 + 0.36 + 0.36) / 6
    assert found.confidence["temperature"] == pytest.approx(t, abs=1e-6)
    squared = np.array([[0.01 + 0.09, 0.64 + 0.16, 2.56 + 0.36], [2.89 + 0.81, 0.64 + 2.56, 0.36]])
    likely = np.exp(-squared / t)
    np.testing.assert_allclose(a.confidence[[3, 5]], likely[[0, 1], [0, 2]] / likely.sum(axis=1), atol=1e-6)
    assert a.confidence[:3].tolist() == [1, 1, 1]  # labelled


def test_confidence_is_calibrated_on_held_out_images_beside_the_unlabelled_ones() -> None:
    with patch.object(outcome, "calibrate", wraps=calibrate) as called:
        gathered()
    given = called.call_args.kwargs
    assert given["held_out"].tolist() == HELD.tolist()
    assert given["truth"].tolist() == [0, 0, 1, 0, 2, 2]
    assert given["unlabelled"].tolist() == [False] * 3 + [True] * 3
    assert given["n_known"] == 2


@pytest.mark.parametrize(("unsure_below", "of_the_fifth"), [(0.0, "new"), (0.9999, "unsure")])
def test_statuses_follow_confidence(unsure_below: float, of_the_fifth: str) -> None:
    found = gathered(unsure_below=unsure_below)
    assert found.assignments.status.tolist() == ["labelled"] * 3 + ["known", of_the_fifth, "new"]
    assert found.confidence["unsure_below"] == unsure_below
    assert [category.unsure for category in found.categories] == [0, 0, int(of_the_fifth == "unsure")]


def test_the_truth_is_for_metrics_alone() -> None:
    told = some_images(("right", "right", "up", "up", "left", "left"))
    found, blind = gathered(told), gathered()
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


def test_a_class_without_a_labelled_image_is_not_known() -> None:
    """As where none of them could be read: classes keep their numbers."""
    everything = image_set(["x.png", *FILES], paths=["x.png", *FILES], labels=["middle", *LABELS])
    found = gathered(everything.select(np.arange(7) > 0))
    assert found.names == ("right", "up", "new 1")
    assert found.assignments.category.tolist() == [0, 0, 1, 0, 2, 2]


def test_the_scores_of_a_head_are_confidence_and_tell_what_is_next() -> None:
    """Not calibrated, they mean what they were trained to; distances are to the centres still."""
    found, plain = gathered(head=HEAD), gathered()
    a = found.assignments
    assert a.category.tolist() == plain.assignments.category.tolist()
    assert found.confidence["temperature"] == 1.0
    likely = np.exp(
        [[2.2, 1.1, -0.35], [-1.0, 1.1, 2.85], [-2.2, -0.1, 2.85]]
    )  # of the scores of the last three images
    np.testing.assert_allclose(a.confidence[3:], likely[[0, 1, 2], [0, 2, 2]] / likely.sum(axis=1), rtol=1e-6)
    assert a.confidence[:3].tolist() == [1, 1, 1]
    assert a.next_category.tolist() == [1, 2, 2, 1, 1, 1]
    np.testing.assert_array_equal(a.distance, plain.assignments.distance)
    np.testing.assert_array_equal(found.head, HEAD)


# Images never seen before


def confidence(**changes: Any) -> Confidence:
    same: dict[str, Any] = {"temperature": 0.1, "held_out": 0, "unsure_below": 0.5}
    return Confidence(**{**same, "usual": np.full(3, 0.3), "deviation": np.full(3, 0.1), **changes})


def new_ones(x: Any, **changes: Any) -> Assignments:
    x = np.array(x, dtype=np.float32).reshape(-1, 2)
    files = [f"{row}.png" for row in range(len(x))]
    images = image_set(files, paths=files, labels=[None] * len(x))
    contents = np.array([b"c%d" % row for row in range(len(x))], dtype=np.bytes_)
    return outcome.assign(images, contents, x, CENTRES, 2, confidence(**changes), folder=4)


def test_an_image_without_a_category_gets_the_nearest() -> None:
    a = new_ones([[0.9, 0.3], [0.1, 0.9], [-0.7, 0], [-9, 0]])
    assert a.category.tolist() == [0, 1, 2, 2]
    assert a.status.tolist() == ["known", "known", "new", "unsure"]  # the last one is far from all
    assert a.folders.tolist() == [4] * 4
    assert a.contents == ("c0", "c1", "c2", "c3")
    assert a.labels == a.truth == (None,) * 4
    assert a.confidence[3] < 1e-6
    # 2.5 standard deviations beyond the usual distance are nothing odd; then it falls as a normal density does.
    a = new_ones([[-0.8 - 0.3 - 0.1 * beyond, 0] for beyond in (0, 2.5, 3.5)], temperature=1e-3)
    np.testing.assert_allclose(a.confidence, [1, 1, np.exp((2.5**2 - 3.5**2) / 2)], rtol=1e-4)
    nothing = new_ones([])
    assert nothing.category.shape == nothing.status.shape == (0,)


def test_images_keep_their_categories_when_centres_move() -> None:
    a, moved = new_ones(X), CENTRES[::-1].copy()
    after = outcome.placed(a, X, moved, 2, confidence())
    np.testing.assert_array_equal(after.category, a.category)
    np.testing.assert_allclose(after.distance, np.linalg.norm(X - moved[a.category], axis=1), atol=1e-6)
    assert (after.next_category != after.category).all()
    anew = outcome.placed(a, X, moved, 2, confidence(), anew=True)
    np.testing.assert_array_equal(anew.category, 2 - a.category)


def test_a_new_image_is_what_a_head_says_wherever_the_centres_are() -> None:
    head, moved = HEAD.astype(np.float64), CENTRES[::-1].copy()
    x = np.array([[0.1, 0.9], [-0.7, 0.0], [0.2, 0.2]], dtype=np.float32)
    a = new_ones(x, head=head)
    assert a.category.tolist() == [1, 2, 2]
    assert new_ones(x).category.tolist() == [1, 2, 0]  # by the nearest centre
    for anew in (False, True):
        after = outcome.placed(a, x, moved, 2, confidence(head=head), anew=anew)
        np.testing.assert_array_equal(after.category, a.category)
        np.testing.assert_array_equal(after.next_category, a.next_category)


# What run.json says


def test_what_is_said_of_a_run_is_json_and_does_not_depend_on_the_order() -> None:
    images, backbone, rows = some_images(), load_backbone("convnet"), gathered().assignments
    trained = Trained(
        epochs=2, selected=1, validation=None, losses={"a": 1.0}, views=None, seconds=3.0, images_per_second=4.0
    )
    training = Training(precision="float32")
    recipe = Recipe(
        method="gcd", training=training, losses=Contrast(), clustering="semi-supervised", estimate_on="learned"
    )
    said = outcome.about(a_job(images, k=3), backbone, trained, images, rows, X, recipe)
    read = json.loads(json.dumps(said, allow_nan=False))
    assert read["settings"]["k"] == 3
    assert read["recipe"] == {**vars(recipe), "training": vars(training), "losses": vars(Contrast())}
    assert said["images"] == [{"folder": "/photos", "images": 6, "paths": {}}]
    assert said["training"]["losses"] == {"a": 1.0}
    assert said["precision"] == "float32"
    assert said["weights"] == backbone.source
    assert said["updates"] == []
    assert said["classes"] == ["right", "up"]
    order = [5, 3, 1, 0, 2, 4]
    mixed = replace(rows, contents=tuple(rows.contents[i] for i in order), labels=tuple(rows.labels[i] for i in order))
    again = outcome.about(a_job(images), backbone, None, images, mixed, X, recipe)
    assert again["hashes"]["images"] == said["hashes"]["images"]
    assert again["training"] is None
    relabelled = replace(rows, labels=(*LABELS[:3], "up", None, None))
    assert outcome.hashes(relabelled, X)["images"] != said["hashes"]["images"]
    assert outcome.hashes(rows, X + 1)["features"] != said["hashes"]["features"]


def test_only_files_that_open_elsewhere_are_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [os.path.join("photos", "a.png"), "/other/b.png", "photos/../photos/c d.png"]
    images = image_set(["a.png", "b.png", "c d.png"], paths=paths, labels=[None] * 3)
    assert outcome.elsewhere(images, str(tmp_path / "photos")) == {"b.png": "/other/b.png"}
    assert outcome.elsewhere(images, None) == {}
