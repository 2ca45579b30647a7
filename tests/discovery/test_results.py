"""The results of a run computed by hand: six images in the plane, two known categories and a new one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from support.runtimes import CPU
from support.stores import small_store

from sortal.config import Contrast, Discovery, Recipe, Training
from sortal.discovery import results
from sortal.discovery.grouping.label_doubt import Doubts
from sortal.discovery.grouping.outliers import OTHER_ABOVE
from sortal.discovery.job import Job, Origin
from sortal.discovery.results import Clusters
from sortal.images.decoding import Quarantined
from sortal.images.image_set import ImageSet, image_set
from sortal.images.moments import Moments
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.train import TrainingResult
from sortal.metrics import Accuracy
from sortal.runs.building import assess, hash_images, unassigned
from sortal.runs.categories import outline
from sortal.runs.confidence import UNCALIBRATED, Confidence, calibrate
from sortal.runs.facts import ImageSource, KChoice
from sortal.runs.run import Assignments, Run
from sortal.system.device import Compute
from sortal.system.distributed import alone

# Known categories to the right and up, the new one to the left. Row 1 is labelled "right" but looks like the new one.
FILES = ("0.png", "1.png", "2.png", "3.png", "4.png", "5.png")
LABELS = ("right", "right", "up", None, None, None)
X = np.array([[1, 0], [-1, 0], [0, 1], [0.8, 0.6], [-0.8, 0.6], [-0.8, -0.6]], dtype=np.float32)
CENTRES = np.array([[0.9, 0.3], [0, 1], [-0.8, 0]], dtype=np.float32)
CLUSTERS = np.array([0, 2, 1, 0, 2, 2])
AGREEMENT = np.array([np.nan, 1, np.nan, 1, 1, 1])
OVERLAP = np.ones(3)
HELD, NOBODY = np.array([False, True, False, False, False, False]), np.zeros(6, dtype=bool)
HEAD = np.array([[2, 1, 0], [0, 1, 0.5], [-2, 0, 1.25]], dtype=np.float32)  # scores 2x + y, y + 0.5, 1.25 − 2x
EACH = Moments.single(6)
K = KChoice(k=3, estimated=False, known=2)
RECIPE = Recipe(
    method="gcd",
    training=Training(precision="float32"),
    losses=Contrast(),
    clustering="semi-supervised",
    estimate_on="learned",
)


def some_images(truth: tuple[str | None, ...] | None = None) -> ImageSet:
    return image_set(FILES, paths=[f"/photos/{file}" for file in FILES], labels=LABELS, truth=truth)


def a_job(images: ImageSet, **settings: Any) -> Job:
    return Job(
        images=images,
        origin=Origin(folder="/photos", command="sortal discover /photos"),
        settings=Discovery(**settings),
        recipe=RECIPE,
        place=Path("run"),
        runtime=CPU,
        processes=alone("cpu"),
    )


@cache
def a_backbone() -> Backbone:
    return load_backbone("convnet")


def gathered(
    images: ImageSet | None = None,
    head: NDArray[np.float32] | None = None,
    *,
    trained: TrainingResult | None = None,
    held: NDArray[np.bool_] = NOBODY,
    x: NDArray[np.float32] = X,
    apart: Sequence[float] = (0.0,) * 6,
    moments: Moments = EACH,
    of: NDArray[np.int64] = CLUSTERS,
    **settings: Any,
) -> Run:
    images = images or some_images()
    bad = (Quarantined("bad.png", "empty", "0 bytes"),)
    clusters = Clusters(
        of=of,
        centres=CENTRES,
        k=K,
        head=head,
        agreement=AGREEMENT[: len(moments)],
        overlap=OVERLAP,
        apart=np.array(apart)[: len(moments)],
        moments=moments,
        groups=np.arange(len(moments)),
    )
    job, contents = a_job(images, **settings), small_store(6, 8).digests
    return results.gather(
        job, a_backbone(), trained, images, images.known, contents, held, Doubts.none(len(images)), x, clusters, bad
    )[0]


def test_labelled_images_are_in_their_class_and_others_in_their_cluster() -> None:
    found = gathered()
    a = found.assignments
    assert a.category_id.tolist() == [0, 0, 1, 0, 2, 2]
    assert tuple(found.names.values()) == ("right", "up", "new 1")
    assert [(c.kind, c.size, c.labelled) for c in found.categories] == [("known", 3, 2), ("known", 1, 1), ("new", 2, 0)]
    assert a.labels == LABELS
    assert [bad.file for bad in found.quarantine] == ["bad.png"]
    assert found.metrics is None
    assert found.head is None
    assert [c.weight for c in found.categories] == [
        2,
        1,
        3,
    ]  # sizes of clusters, and row 1 is clustered with the new category
    own = [np.hypot(0.1, 0.3), np.hypot(1.9, 0.3), 0, np.hypot(0.1, 0.3), 0.6, 0.6]
    np.testing.assert_allclose(a.distance, own, atol=1e-6)
    assert a.next_category_id.tolist() == [1, 2, 0, 1, 1, 1]
    others = np.sqrt([2, 0.04, 0.81 + 0.49, 0.64 + 0.16, 0.64 + 0.16, 0.64 + 2.56])
    np.testing.assert_allclose(a.next_distance, others, atol=1e-6)
    # With no image held out, the temperature is a fraction of the mean squared distance to the centres.
    assert (found.confidence.calibrated, found.confidence.held_out) == (False, 0)
    t = UNCALIBRATED * (0.1 + 0.04 + 0 + 0.1 + 0.36 + 0.36) / 6
    assert found.confidence.temperature == pytest.approx(t, abs=1e-6)
    squared = np.array([[0.01 + 0.09, 0.64 + 0.16, 2.56 + 0.36], [2.89 + 0.81, 0.64 + 2.56, 0.36]])
    likely = np.exp(-squared / t)
    np.testing.assert_allclose(a.confidence[[3, 5]], likely[[0, 1], [0, 2]] / likely.sum(axis=1), atol=1e-6)
    assert a.confidence[:3].tolist() == [1, 1, 1]  # labelled


def test_confidence_is_calibrated_on_held_out_images_and_repeated_clustering() -> None:
    with patch.object(results, "calibrate", wraps=calibrate) as called:
        gathered(held=HELD)
    given = called.call_args.kwargs
    assert given["held_out"].tolist() == HELD.tolist()
    assert given["truth"].tolist() == [0, 0, 1, 0, 2, 2]
    np.testing.assert_array_equal(given["agreement"], AGREEMENT)
    assert given["overlap"] is OVERLAP


def test_images_of_a_moment_share_what_is_computed_for_it_and_calibrate_once() -> None:
    """The fourth image is of the moment of the first, which is labelled, and the last of that of the fifth."""
    moments, x = Moments(np.array([0, 1, 2, 0, 3, 3])), X[[0, 1, 2, 4]]
    held = np.array([True, False, False, False, False, False])
    with patch.object(results, "calibrate", wraps=calibrate) as called:
        found = gathered(held=held, x=x, moments=moments, of=CLUSTERS[[0, 1, 2, 4]])
    assert called.call_args.args[0] is x
    assert called.call_args.kwargs["held_out"].tolist() == [True, False, False, False]
    assert called.call_args.kwargs["truth"].tolist() == [0, 0, 1, 2]
    a = found.assignments
    np.testing.assert_array_equal(found.features, x[[0, 1, 2, 0, 3, 3]])
    assert a.group.tolist() == [0, 1, 2, 0, 3, 3]
    assert a.category_id.tolist() == [0, 0, 1, 0, 2, 2]
    assert a.confidence[:4].tolist() == [1, 1, 1, 1]
    assert a.confidence[4] == a.confidence[5] < 1
    assert a.distance[4] == a.distance[5]
    assert [c.weight for c in found.categories] == [1, 1, 2], "moments"


@pytest.mark.parametrize(("unsure_below", "of_the_fifth"), [(0.0, "new"), (0.99, "unsure")])
def test_statuses_follow_confidence(unsure_below: float, of_the_fifth: str) -> None:
    found = gathered(unsure_below=unsure_below)
    assert found.assignments.status.tolist() == ["labelled"] * 3 + ["known", of_the_fifth, "new"]
    assert found.confidence.unsure_below == unsure_below
    assert [category.unsure for category in found.categories] == [0, 0, int(of_the_fifth == "unsure")]


def test_images_that_fit_nowhere_are_other_and_keep_the_nearest_category() -> None:
    far, usual = 2 * OTHER_ABOVE, gathered()
    found = gathered(apart=(far, 0, 0, OTHER_ABOVE, far, 0))
    assert found.assignments.status.tolist() == ["labelled"] * 3 + ["known", "other", "new"]
    assert found.confidence.other_above == OTHER_ABOVE
    assert [category.other for category in found.categories] == [0, 0, 1]
    np.testing.assert_array_equal(found.assignments.category_id, usual.assignments.category_id)
    before = usual.assignments.confidence
    np.testing.assert_array_equal(found.assignments.confidence, [*before[:4], 0.5 * before[4], before[5]])


def test_the_truth_is_used_only_for_metrics() -> None:
    known = some_images(("right", "right", "up", "up", "left", "left"))
    found, blind = gathered(known), gathered()
    assert found.metrics is not None
    assert found.metrics.images == 3
    assert found.metrics.accuracy == Accuracy(all=1, old=1, new=1)  # "up" is matched with the category "right"
    assert found.metrics.known_accuracy == 0  # although the names differ
    assert found.metrics.k_true == 3
    assert found.metrics.confusion == (("up", 0, 1),)
    for column in ("category_id", "status", "confidence"):
        np.testing.assert_array_equal(getattr(found.assignments, column), getattr(blind.assignments, column))
    assert found.assignments.truth == ("right", "right", "up", "up", "left", "left")
    assert blind.assignments.truth == ("right", "right", "up", None, None, None)


def test_the_scores_of_a_head_decide_confidence_and_the_next_category() -> None:
    """Without calibration, their temperature is 1; distances are still those to the centres."""
    found, plain = gathered(head=HEAD), gathered()
    a = found.assignments
    assert a.category_id.tolist() == plain.assignments.category_id.tolist()
    assert found.confidence.temperature == 1.0
    likely = np.exp([[2.2, 1.1, -0.35], [-1.0, 1.1, 2.85], [-2.2, -0.1, 2.85]])  # scores of the last three images
    np.testing.assert_allclose(a.confidence[3:], likely[[0, 1, 2], [0, 2, 2]] / likely.sum(axis=1), rtol=1e-6)
    assert a.confidence[:3].tolist() == [1, 1, 1]
    assert a.next_category_id.tolist() == [1, 2, 2, 1, 1, 1]
    np.testing.assert_array_equal(a.distance, plain.assignments.distance)
    np.testing.assert_array_equal(found.head, HEAD)


def confidence(**changes: Any) -> Confidence:
    same: dict[str, Any] = {"temperature": 0.1, "held_out": 0, "unsure_below": 0.5}
    return Confidence(**{**same, "usual": np.full(3, 0.3), "deviation": np.full(3, 0.1), **changes})


CATEGORIES = outline(["right", "up"], [1, 1, 1])


def new_images(x: Any, head: NDArray[np.float32] | None = None, **changes: Any) -> Assignments:
    x = np.array(x, dtype=np.float32).reshape(-1, 2)
    files = [f"{row}.png" for row in range(len(x))]
    images = image_set(files, paths=files, labels=[None] * len(x))
    contents = np.array([b"c%d" % row for row in range(len(x))], dtype=np.bytes_)
    blank = replace(unassigned(images, contents), folders=np.full(len(x), 4))
    return assess(blank, x, CATEGORIES, CENTRES, confidence(**changes), head, reassign=True)


def test_a_new_image_gets_the_nearest_category() -> None:
    a = new_images([[0.9, 0.3], [0.1, 0.9], [-0.7, 0], [-9, 0]])
    assert a.category_id.tolist() == [0, 1, 2, 2]
    assert a.status.tolist() == ["known", "known", "new", "unsure"]  # the last one is far from all
    assert a.folders.tolist() == [4] * 4
    assert a.contents == ("c0", "c1", "c2", "c3")
    assert a.labels == a.truth == (None,) * 4
    assert a.confidence[3] < 1e-6
    # Up to 2.5 deviations beyond the usual distance nothing changes; then confidence falls like a normal density.
    a = new_images([[-0.8 - 0.3 - 0.1 * beyond, 0] for beyond in (0, 2.5, 3.5)], temperature=1e-3)
    np.testing.assert_allclose(a.confidence, [1, 1, np.exp((2.5**2 - 3.5**2) / 2)], rtol=1e-4)
    empty = new_images([])
    assert empty.category_id.shape == empty.status.shape == (0,)


def test_only_what_came_later_than_the_run_may_belong_to_none_of_its_categories() -> None:
    usual: dict[str, Any] = {"usual_apart": np.full(3, -1.0), "deviation_apart": np.full(3, 1.0), "temperature": 1e-3}
    chance = 1 / (1 + np.exp(1.15 - 2.1))  # one deviation more than usual
    for later_from, expected in ((4, chance), (5, 1.0)):
        a = new_images([[1.0, 0.0]], **usual, later_from=later_from)
        np.testing.assert_allclose(a.confidence, expected, rtol=1e-6)


def test_images_keep_their_categories_if_centres_move() -> None:
    a, moved = new_images(X), CENTRES[::-1].copy()
    after = assess(a, X, CATEGORIES, moved, confidence(), None)
    np.testing.assert_array_equal(after.category_id, a.category_id)
    np.testing.assert_allclose(after.distance, np.linalg.norm(X - moved[a.category_id], axis=1), atol=1e-6)
    assert (after.next_category_id != after.category_id).all()
    again = assess(a, X, CATEGORIES, moved, confidence(), None, reassign=True)
    np.testing.assert_array_equal(again.category_id, 2 - a.category_id)


def test_a_head_decides_the_category_of_a_new_image_wherever_the_centres_are() -> None:
    moved = CENTRES[::-1].copy()
    x = np.array([[0.1, 0.9], [-0.7, 0.0], [0.2, 0.2]], dtype=np.float32)
    a = new_images(x, head=HEAD)
    assert a.category_id.tolist() == [1, 2, 2]
    assert new_images(x).category_id.tolist() == [1, 2, 0]  # by the nearest centre
    for reassign in (False, True):
        after = assess(a, x, CATEGORIES, moved, confidence(), HEAD, reassign=reassign)
        np.testing.assert_array_equal(after.category_id, a.category_id)
        np.testing.assert_array_equal(after.next_category_id, a.next_category_id)


def test_facts_describe_the_run_and_hashes_ignore_the_order_of_images() -> None:
    trained = TrainingResult(
        epochs=2,
        selected=1,
        validation=None,
        losses={"a": 1.0},
        views=None,
        seconds=3.0,
        images_per_second=4.0,
        devices=("cpu",),
    )
    found = gathered(trained=trained, k=3)
    facts, rows = found.facts, found.assignments
    assert (facts.settings, facts.recipe) == (Discovery(k=3), RECIPE)
    assert facts.images == (ImageSource(folder="/photos", images=6, paths={}),)
    assert facts.training is not None
    assert asdict(facts.training) == asdict(trained)
    assert (facts.precision, facts.weights) == ("float32", a_backbone().source)
    assert (facts.updates, facts.next_id, found.decisions) == ((), 3, 0)
    assert facts.hashes.model == a_backbone().fingerprint()
    assert gathered().facts.training is None
    order = [5, 3, 1, 0, 2, 4]
    mixed = replace(rows, contents=tuple(rows.contents[i] for i in order), labels=tuple(rows.labels[i] for i in order))
    assert hash_images(mixed) == hash_images(rows) == facts.hashes.images
    assert hash_images(replace(rows, labels=(*LABELS[:3], "up", None, None))) != facts.hashes.images
    assert gathered(x=X[:, ::-1].copy()).facts.hashes.features != facts.hashes.features


@pytest.mark.parametrize(("chosen", "fits"), [(True, True), (True, False), (False, True)])
def test_facts_say_whether_frozen_layers_used_8_bit_integers(
    chosen: bool, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "choose_compute", lambda device, **_: Compute(device, int8=chosen))
    monkeypatch.setattr(type(a_backbone()), "fits_int8", fits)
    assert gathered().facts.int8 == (chosen and fits)


def test_only_paths_outside_the_folder_are_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [os.path.join("photos", "a.png"), "/other/b.png", "photos/../photos/c d.png"]
    images = image_set(["a.png", "b.png", "c d.png"], paths=paths, labels=[None] * 3)
    assert results.source_of(images, str(tmp_path / "photos")).paths == {"b.png": "/other/b.png"}
    assert results.source_of(images, None).paths == {}
