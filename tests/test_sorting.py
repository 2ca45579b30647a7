"""Sorting: its parts by hand, methods that train a classifier from a folder to categories, and jobs with recipes."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tiny_folder as tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file
from tiny_folder import EACH, LABELLED, OLD, SETTINGS, sort

from sortal import cli, metrics, outcome, run, sorting, tokens
from sortal.advice import recipe_for
from sortal.backbone import load_backbone
from sortal.config import AUTO, CLASSIFIERS, Auto, Discovery, MethodName, Training
from sortal.features import extract
from sortal.images import ImageSet, image_set
from sortal.job import READING, Job, prepare
from sortal.kmeans import SemiSupervisedKMeans
from sortal.methods import Method, make
from sortal.network import Backbone
from sortal.packing import pack
from sortal.pipeline import carry_out, stages_of
from sortal.report import make as draw_report
from sortal.run import HEAD, INITIAL, LOG, UNSURE, Run
from sortal.selection import Validation
from sortal.sorting import estimator, held_out, named, order_of, token_plan
from sortal.step import Step
from sortal.tokens import Budget
from sortal.train import train

N = 6 * EACH
HELD = 3 * (LABELLED // 2)
untimed = settings(deadline=None)
Ints = NDArray[np.int64]


@pytest.fixture(scope="module", autouse=True)
def _quickly() -> Iterator[None]:
    with tiny.quickly():
        yield


# The order of the stages

K_FIRST = ("pixels", "k", "learn", "features", "clusters")
K_LAST = ("pixels", "learn", "features", "k", "clusters")


@pytest.mark.parametrize(
    ("method", "k", "order"),
    [
        ("gcd", AUTO, K_LAST),
        ("gcd", 6, K_LAST),
        ("kmeans", AUTO, K_LAST),  # nothing is learned before or after
        *((method, k, K_FIRST if k == AUTO else K_LAST) for method in CLASSIFIERS for k in (AUTO, 6)),
    ],
)
def test_k_comes_first_where_it_must_be_known_to_learn(method: MethodName, k: int | Auto, order: tuple[str]) -> None:
    asked = Discovery(method=method, k=k)
    recipe = recipe_for(asked, 100, on_gpu=False)
    assert order_of(asked, recipe) == order
    assert stages_of(asked, recipe) == ("check", *order, "report")


def test_k_comes_first_where_raw_features_are_to_tell_it() -> None:
    asked = Discovery()
    recipe = replace(recipe_for(asked, 100, on_gpu=False), estimate_on="raw")
    assert order_of(asked, recipe) == K_FIRST
    assert order_of(asked, replace(recipe, training=Training(epochs=0))) == K_LAST


@pytest.mark.parametrize("method", ["gcd", "kmeans", *CLASSIFIERS])
def test_k_of_features_as_they_came_is_found_by_the_papers_rule(method: MethodName) -> None:
    recipe = recipe_for(Discovery(method=method), 100, on_gpu=False)
    assert estimator(recipe) == ("plateau" if method == "gcd" else "brent")


def test_features_that_learned_nothing_are_as_they_came() -> None:
    assert estimator(recipe_for(Discovery(epochs=0), 100, on_gpu=False)) == "brent"
    raw = replace(recipe_for(Discovery(), 100, on_gpu=False), estimate_on="raw")
    assert estimator(raw) == "brent"


# What is held out, and where tokens go


def test_a_thousand_classes_leave_a_thousand_images_to_calibrate_on() -> None:
    names = [f"class {number % 1200}" for number in range(12_000)]
    images = image_set([f"{i}.png" for i in range(12_001)], paths=["x"] * 12_001, labels=[*names, None])
    order = np.arange(len(images))
    held = held_out(images, order, Discovery(k=1300))
    assert held.sum() == sorting.HELD_OUT
    assert images.labelled[held].all()
    assert len(np.unique(images.labels[~held & images.labelled])) == 1200  # each class keeps some
    assert held_out(images, order, Discovery(k=1300, held_out=0.0)).sum() == 0


def test_tokens_are_kept_in_a_file_without_a_gpu_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = load_backbone("test_vit", weights="random")
    job = prepare(
        tiny.as_array(),
        None,
        tmp_path / "run",
        Discovery(k=6, backbone="test_vit", weights="random"),
        dict(READING),
        device="cpu",
        workers=1,
        force=False,
    )
    needed = 120 * 4 * 2 * math.prod(tokens.token_shape(backbone))

    def where(free: int) -> tuple[Budget, str | None]:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        budget, planned = token_plan(job, backbone, Training(views=4), 120)
        assert planned is not None
        assert planned.bytes == needed
        return budget, planned.where

    assert where(100 * 2**30) == (Budget(memory=0, disk=50 * 2**30), "file")
    budget, place = where(needed)  # of which half may be taken
    assert (budget.memory, place) == (None, "memory")
    asked: list[Path] = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=needed)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    (tmp_path / "shared").mkdir()
    token_plan(replace(job, shared=tmp_path / "shared/cache"), backbone, Training(views=4), 120)
    assert asked == [tmp_path / "shared"]  # where they will be
    assert token_plan(job, backbone, Training(views=None), 120) == (Budget(), None)
    assert token_plan(job, load_backbone("convnet"), Training(), 120) == (Budget(), None)


# Names for the clusters of plain k-means


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("clusters", "labels", "k", "order"),
    [
        # Class 0 is cluster 2 and class 1 cluster 0; the others follow in their order.
        ([2, 2, 0, 1, 3], [0, 0, 1, -1, -1], 4, [2, 0, 1, 3]),
        # Both classes are in cluster 1, which goes to the one with more images; the other gets the first that is left.
        ([1, 1, 1, 0, 2], [0, 1, 1, -1, -1], 3, [0, 1, 2]),
        # Of three classes in one cluster two get what is left, also clusters without any image.
        ([3, 3, 3, 3], [0, 1, 1, 2], 5, [0, 3, 1, 2, 4]),
        # Class numbers have gaps where no labelled image of a class could be read.
        ([2, 0, 1], [4, 9, -1], 3, [2, 0, 1]),
        # Nobody is labelled: clusters stay as they are.
        ([1, 0, 2], [-1, -1, -1], 3, [0, 1, 2]),
        # As many classes as clusters.
        ([0, 1], [1, 0], 2, [1, 0]),
        # One match for all: what is best for class 0 alone, cluster 0, would leave class 1 without its only one.
        ([0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], 2, [1, 0]),
    ],
)
def test_clusters_are_named_by_hand(clusters: list[int], labels: list[int], k: int, order: list[int]) -> None:
    assert named(ints(*clusters), ints(*labels), k).tolist() == order


@given(st.integers(1, 5), st.data())
@untimed
def test_no_other_names_agree_with_more_labelled_images(k: int, data: st.DataObject) -> None:
    rows = st.tuples(st.integers(0, k - 1), st.integers(-1, min(k, 3) - 1))
    drawn = np.array(data.draw(st.lists(rows, max_size=12)), dtype=np.int64).reshape(-1, 2)
    clusters, labels = drawn.T
    known = np.unique(labels[labels >= 0]).tolist()

    def right(order: Sequence[int]) -> int:
        return sum(label >= 0 and order[known.index(label)] == c for c, label in zip(clusters, labels, strict=True))

    order = named(clusters, labels, k).tolist()
    assert sorted(order) == list(range(k))
    assert order[len(known) :] == sorted(order[len(known) :])
    assert right(order) == max(map(right, itertools.permutations(range(k))))


@given(st.integers(2, 6), st.data())
@untimed
def test_naming_does_not_change_how_good_clusters_are(k: int, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, 3), st.booleans()), min_size=1))
    clusters, truth, has_label = (np.array(column) for column in zip(*rows, strict=True))
    labels = np.where(has_label & (truth < 2), truth, -1)
    renamed = np.argsort(named(clusters, labels, k))[clusters]
    hidden = labels < 0
    assert metrics.accuracy(truth[hidden], renamed[hidden], old=(0, 1)) == metrics.accuracy(
        truth[hidden], clusters[hidden], old=(0, 1)
    )


# Categories by a head


def by_head(x: Any, labels: Sequence[str | None], head: Any, *, gone: Sequence[int] = ()) -> tuple[Ints, Any]:
    """Of images with these labels, less some rows, whose classes keep their numbers."""
    files = [f"{row}.png" for row in range(len(labels))]
    images = image_set(files, paths=files, labels=labels).select(~np.isin(np.arange(len(labels)), gone))
    return sorting._by_head(np.array(x, dtype=np.float32), images, np.array(head, dtype=np.float32))


def test_categories_of_a_head_by_hand() -> None:
    """Scores x, y + 0.1, −x and −y − 9: what no image goes to points where its weights do, its bias apart."""
    head = [[1, 0, 0], [0, 1, 0.1], [-1, 0, 0], [0, -5, -9]]
    x = [[0.8, 0.6], [0.6, 0.8], [-0.6, 0.8], [-1, 0], [0, -1], [-0.8, -0.6]]
    clusters, centres = by_head(x, [None, "a", "a", None, "b", None], head)
    # Row 1 and 2 are labelled a, which is the first, and row 4 b; the last one scores 0.8 as the third.
    assert clusters.tolist() == [0, 0, 0, 2, 1, 2]
    wanted = [[0.8 / 3, 2.2 / 3], [0, -1], [-0.9, -0.3], [0, -1]]
    np.testing.assert_allclose(centres, np.array(wanted), atol=1e-6)
    assert centres.dtype == np.float32
    assert clusters.dtype == np.int64


def test_where_classes_have_gaps_labelled_images_are_in_their_class() -> None:
    """The second of three classes has no image left: "c" is the second output."""
    head = [[1, 0, 0], [0, 1, 0], [-1, 0, 0]]
    x = [[1, 0], [1, 0], [0.6, 0.8], [-1, 0]]
    clusters, centres = by_head(x, ["a", "c", None, None, "b"], head, gone=[4])
    assert clusters.tolist() == [0, 1, 1, 2]
    np.testing.assert_allclose(centres, np.array([[1, 0], [0.8, 0.4], [-1, 0]]), atol=1e-6)


def test_a_head_of_nothing_has_a_centre_that_is_a_number() -> None:
    clusters, centres = by_head([[1, 0]], [None], [[0, 0, 3], [0, 0, 1]])
    assert clusters.tolist() == [0]
    np.testing.assert_array_equal(centres, [[1, 0], [0, 0]])


@given(st.data())
@untimed
def test_a_head_sorts_as_the_obvious_loop_does(data: st.DataObject) -> None:
    number = st.integers(-8, 8).map(lambda value: value / 4)
    n, k = data.draw(st.integers(1, 7)), data.draw(st.integers(2, 4))
    x = data.draw(st.lists(st.lists(number, min_size=2, max_size=2), min_size=n, max_size=n))
    head = data.draw(st.lists(st.lists(number, min_size=3, max_size=3), min_size=k, max_size=k))
    labels = data.draw(st.lists(st.sampled_from(["a", "b", None]), min_size=n, max_size=n))
    known = sorted({label for label in labels if label is not None})
    wanted = []
    for row, label in zip(x, labels, strict=True):
        scores = [row[0] * a + row[1] * b + bias for a, b, bias in head]
        wanted.append(scores.index(max(scores)) if label is None else known.index(label))
    clusters, centres = by_head(x, labels, head)
    assert clusters.tolist() == wanted
    for j in set(wanted):
        members = [row for row, at in zip(x, wanted, strict=True) if at == j]
        np.testing.assert_allclose(centres[j], np.mean(members, axis=0), atol=1e-6)


# Methods that train a classifier


@dataclass(frozen=True)
class Sorted:
    """Images, the run that sorted them, what it told meanwhile, and what it made categories of."""

    images: Path
    truth: dict[str, str]
    run: Run
    said: tuple[str, ...]
    held: NDArray[np.bool_]
    clusters: Ints

    @property
    def out(self) -> Path:
        return self.run.folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, _quickly: None) -> tuple[Path, dict[str, str]]:
    images = tmp_path_factory.mktemp("sorting") / "images"
    return images, tiny.write(images)


def sorted_by(method: str, images: Path, truth: dict[str, str], out: Path, **changes: Any) -> Sorted:
    said: list[str] = []
    with patch.object(outcome, "gather", wraps=outcome.gather) as gather:
        found = sort(images, out, method=method, on_progress=lambda what, done, total: said.append(what), **changes)
    _, _, held, _, clusters, *_ = gather.call_args.args
    return Sorted(images, truth, found, tuple(said), held, clusters)


@pytest.fixture(scope="module", params=CLASSIFIERS)
def classified(
    request: pytest.FixtureRequest, folder: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Sorted:
    """Sorted once by each method, k estimated; nothing may be changed here."""
    return sorted_by(request.param, *folder, tmp_path_factory.mktemp(request.param) / "run", k="auto", epochs=3)


@pytest.fixture(scope="module")
def raw(folder: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What k-means makes of the features as they came."""
    return sort(folder[0], tmp_path_factory.mktemp("raw") / "run", method="kmeans", k="auto")


@pytest.fixture
def copied(classified: Sorted, tmp_path: Path) -> Sorted:
    shutil.copytree(classified.out, tmp_path / "run")
    return replace(classified, run=run.load(tmp_path / "run"))


def scores_of(found: Run) -> NDArray[np.float64]:
    """(n, k), by hand."""
    assert found.head is not None
    head = found.head.astype(np.float64)
    return np.asarray(found.features, dtype=np.float64) @ head[:, :-1].T + head[:, -1]


def distances_of(found: Run) -> NDArray[np.float64]:
    x, centres = np.asarray(found.features, dtype=np.float64), found.centres.astype(np.float64)
    return np.asarray(np.linalg.norm(x[:, None] - centres[None], axis=2))


def test_k_is_estimated_on_raw_features_before_learning(classified: Sorted, raw: Run) -> None:
    assert classified.run.k == raw.k
    assert raw.k["estimated"]
    assert raw.k["method"] == "brent"
    assert len(classified.run.categories) == raw.k["k"]
    assert tuple(classified.run.about["timings"]) == ("check", *K_FIRST, "report")
    numbers = [what.partition("]")[0] for what in classified.said]
    assert numbers == sorted(numbers)
    at = {what: number for number, what in reversed([*enumerate(classified.said)])}
    first = {what.partition("] ")[2].partition(":")[0]: number for what, number in at.items()}
    assert first["Estimating the number of classes"] < first["Learning"] < first["Clustering"]


def test_every_image_is_in_one_category_and_sizes_sum_up(classified: Sorted) -> None:
    found = classified.run
    assert sorted(found.assignments.files) == sorted(classified.truth)
    sizes = np.bincount(found.assignments.category, minlength=len(found.categories))
    assert [category.size for category in found.categories] == sizes.tolist()
    assert sizes.sum() == N
    assert found.names[:3] == OLD
    assert [category.kind for category in found.categories] == ["known"] * 3 + ["new"] * (len(sizes) - 3)
    rows = tiny.rows_of(classified.out / "assignments.csv")
    assert [int(row["category"]) for row in rows] == found.assignments.category.tolist()


def test_a_labelled_image_is_in_its_class_and_any_other_where_the_head_says(classified: Sorted) -> None:
    a, scores = classified.run.assignments, scores_of(classified.run)
    labelled = a.status == "labelled"
    assert labelled.sum() == 3 * LABELLED
    assert [classified.run.names[j] for j in a.category[labelled]] == [label for label in a.labels if label]
    np.testing.assert_array_equal(a.category[~labelled], scores.argmax(axis=1)[~labelled])
    rows = np.arange(N)
    distances = distances_of(classified.run)
    np.testing.assert_allclose(a.distance, distances[rows, a.category], atol=1e-6)
    scores[rows, a.category] = -np.inf
    np.testing.assert_array_equal(a.next_category, scores.argmax(axis=1))
    np.testing.assert_allclose(a.next_distance, distances[rows, a.next_category], atol=1e-6)


def test_confidence_is_calibrated_on_held_out_images_by_scores(classified: Sorted) -> None:
    said, a = classified.run.confidence, classified.run.assignments
    assert (said["calibrated"], said["held_out"]) == (True, HELD)
    scores = scores_of(classified.run) / said["temperature"]
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    chance = (likely / likely.sum(axis=1, keepdims=True))[np.arange(N), a.category]
    free = a.status != "labelled"
    assert (a.confidence[~free] == 1).all()
    assert (a.confidence[free] <= chance[free] + 1e-9).all()
    # In new categories, and no farther from their centre than others are, it is the probability itself.
    usual, deviation = np.array(said["usual_distance"]), np.array(said["deviation"])
    near = a.distance <= usual[a.category] + 2.4 * deviation[a.category]
    plain = free & near & ((a.category >= 3) | (said["strangers"] == 0))
    np.testing.assert_allclose(a.confidence[plain], chance[plain], atol=1e-6)
    sure = a.confidence >= 0.5
    kinds = np.where(a.category < 3, "known", "new")
    np.testing.assert_array_equal(a.status[free], np.where(sure, kinds, UNSURE)[free])


def test_centres_are_means_or_where_the_head_points(classified: Sorted) -> None:
    """Those of held-out images are where the head says, as their labels are not known to it."""
    found, clusters, held = classified.run, classified.clusters, classified.held
    assert found.head is not None
    assert held.sum() == HELD
    told, labelled = scores_of(found).argmax(axis=1), found.assignments.status == "labelled"
    np.testing.assert_array_equal(clusters, np.where(labelled & ~held, found.assignments.category, told))
    sizes = np.bincount(clusters, minlength=len(found.centres))
    assert found.about["centre_sizes"] == sizes.tolist()
    directions = found.head[:, :-1] / np.linalg.norm(found.head[:, :-1], axis=1, keepdims=True)
    for j, centre in enumerate(found.centres):
        wanted = found.features[clusters == j].mean(axis=0) if sizes[j] else directions[j]
        np.testing.assert_allclose(centre, wanted, atol=1e-6)


def test_what_is_loaded_is_what_was_found(classified: Sorted) -> None:
    again = run.load(classified.out)
    assert again.head is not None
    assert classified.run.head is not None
    np.testing.assert_array_equal(again.head, classified.run.head)
    assert again.head.shape == (len(again.categories), again.features.shape[1] + 1)
    assert again.head.dtype == np.float32
    assert again.about == json.loads(json.dumps(classified.run.about))
    assert again.about["recipe"]["clustering"] == "head"
    assert again.about["recipe"]["method"] == again.about["settings"]["method"]


def test_the_report_shows_every_category(classified: Sorted) -> None:
    found = classified.run
    page = draw_report(found, pack(found.images(), found.cache / "pixels"), seed=0, folder=None).decode()
    assert page.startswith("<!doctype html>")
    for name in found.names:
        assert name in page


def steps_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    step = Step.__call__

    def counted(self: Step, *values: Any) -> Any:
        steps.append(1)
        return step(self, *values)

    monkeypatch.setattr(Step, "__call__", counted)
    return steps


def tables(place: Path) -> tuple[bytes, bytes]:
    return (place / "assignments.csv").read_bytes(), (place / "categories.csv").read_bytes()


def test_another_k_learns_anew_and_the_same_one_does_not(copied: Sorted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike gcd, whose features do not depend on k; also where k is given now and was estimated before."""
    steps, before = steps_of(monkeypatch), tables(copied.out)
    head = (copied.out / HEAD).read_bytes()
    method, k = copied.run.about["settings"]["method"], copied.run.k["k"]
    found = sort(copied.images, copied.out, method=method, k=k + 2, epochs=3)
    assert len(steps) == 3
    assert found.head is not None
    assert len(found.head) == len(found.categories) == k + 2
    assert found.about["hashes"]["model"] != copied.run.about["hashes"]["model"]
    again = sort(copied.images, copied.out, method=method, k=k, epochs=3)
    assert len(steps) == 3
    assert not again.k["estimated"]
    assert tables(copied.out) == before
    assert (copied.out / HEAD).read_bytes() == head


def test_files_of_a_method_go_with_the_next_run_that_has_none(copied: Sorted) -> None:
    assert {HEAD, INITIAL, LOG} <= {path.name for path in copied.out.iterdir()}
    sort(copied.images, copied.out, method="gcd", epochs=1)
    assert not (copied.out / HEAD).exists()
    assert (copied.out / INITIAL).exists()
    assert run.load(copied.out).head is None
    sort(copied.images, copied.out, method="kmeans")
    assert not (copied.out / INITIAL).exists()
    assert not (copied.out / LOG).exists()


def with_initial(folder: Path) -> Backbone:
    """The saved model, with what was trained as it was before."""
    backbone = load_backbone(str(folder / "model.json"))
    before = load_file(folder / INITIAL)
    assert before.keys() == {name for name, value in backbone.named_parameters() if value.requires_grad}
    _, unexpected = backbone.load_state_dict(before, strict=False)
    assert not unexpected
    return backbone


def test_what_was_before_training_gives_the_raw_features(classified: Sorted, raw: Run) -> None:
    assert load_backbone(str(classified.out / "model.json")).fingerprint() == classified.run.about["hashes"]["model"]
    backbone = with_initial(classified.out)
    assert backbone.fingerprint() == raw.about["hashes"]["model"] != classified.run.about["hashes"]["model"]
    x = extract(backbone, classified.run.images(), normalise=True, device="cpu", precision="float32")
    np.testing.assert_array_equal(x, raw.features)
    assert np.abs(x - np.asarray(classified.run.features)).max() > 1e-3


def test_of_a_transformer_only_its_last_block_is_kept_from_before(tmp_path: Path) -> None:
    backbone = load_backbone("test_vit", weights="random", image_size=32)
    fingerprint = backbone.fingerprint()
    sorting._keep_initial(backbone, tmp_path / "learn")
    with torch.no_grad():
        for value in backbone.parameters():
            if value.requires_grad:
                value.add_(1)
    sorting._keep_initial(backbone, tmp_path / "learn")  # by a run that goes on: it does not know any more
    backbone.save(tmp_path / "learn/model")
    before = load_file(tmp_path / "learn" / INITIAL)
    assert 0 < sum(value.numel() for value in before.values()) < sum(v.numel() for v in backbone.parameters()) / 5
    assert backbone.fingerprint() != fingerprint
    assert with_initial(tmp_path / "learn").fingerprint() == fingerprint


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_without_any_label_categories_go_by_looks(
    folder: tuple[Path, dict[str, str]], tmp_path: Path, method: str
) -> None:
    found = sort(folder[0], tmp_path / "run", method=method, folders="ignore", k=4)
    assert found.names == tuple(f"new {number}" for number in range(1, 5))
    assert sum(category.size for category in found.categories) == N
    assert not found.confidence["calibrated"]
    assert found.confidence["temperature"] == 1.0  # what it was trained with
    np.testing.assert_array_equal(found.assignments.category, scores_of(found).argmax(axis=1))


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_a_class_of_which_nothing_can_be_read_is_no_output(tmp_path: Path, method: str) -> None:
    """Numbers of classes have a gap then. And k is as small as it may be: all is known."""
    truth = tiny.write(tmp_path / "images")
    tiny.break_some(tmp_path / "images", [file for file in truth if tiny.label_of(file) == "beech"])
    found = sort(tmp_path / "images", tmp_path / "run", method=method, k=3)
    assert found.names == ("ash", "cedar", "new 1")
    a = found.assignments
    labelled = a.status == "labelled"
    assert [found.names[j] for j in a.category[labelled]] == [label for label in a.labels if label]
    np.testing.assert_array_equal(a.category[~labelled], scores_of(found).argmax(axis=1)[~labelled])


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_the_order_of_rows_is_nothing(folder: tuple[Path, dict[str, str]], tmp_path: Path, method: str) -> None:
    files = [*folder[1]]
    rows = []
    for name, order in (("one", files), ("other", [files[i] for i in np.random.default_rng(0).permutation(N)])):
        table = tiny.write_table(tmp_path / f"{name}.csv", order, [tiny.label_of(file) for file in order])
        sort(folder[0], tmp_path / name, labels=table, method=method, k="auto")
        rows.append(sorted(tiny.rows_of(tmp_path / name / "assignments.csv"), key=lambda row: row["file_name"]))
    assert rows[0] == rows[1]


def test_the_command_line_takes_the_methods(
    folder: tuple[Path, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--method uno --backbone convnet --k 6 --n-init 1 --device cpu --workers 1 --held-out 0.5"
    arguments = ["discover", str(folder[0]), "--out", str(tmp_path / "run"), *words.split()]
    assert cli.main([*arguments, "--epochs", "0"]) == 2
    assert "epochs must be at least 1 for uno" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert cli.main([*arguments, "--epochs", "1"]) == 0
    assert "120 images" in capsys.readouterr().out
    found = run.load(tmp_path / "run")
    assert found.head is not None
    assert "--method uno" in found.about["command"]


# Jobs with recipes, as benchmarks give them


def a_job(
    images: ImageSet,
    place: Path,
    method: MethodName = "gcd",
    *,
    shared: Path | None = None,
    k: int | Auto = 6,
    **of: Any,
) -> Job:
    """A job of a recipe that differs from what would be chosen."""
    asked = {name: value for name, value in SETTINGS.items() if name not in ("device", "workers", "k")}
    settings = Discovery(**asked, method=method, k=k)
    recipe = replace(recipe_for(settings, len(images), on_gpu=False), **of)
    return Job(
        images=images,
        source=None,
        settings=settings,
        place=place,
        device="cpu",
        workers=1,
        command="",
        recipe=recipe,
        shared=shared,
    )


def with_validation() -> ImageSet:
    """The planted images, and among them others of the known classes for validation."""
    planted = tiny.as_array()
    assert planted.pixels is not None
    names = (*planted.classes, *planted.new_classes, None)
    truth, labels = [names[i] for i in planted.truth], [names[i] for i in planted.labels]
    files, pixels = [*planted.files], [*planted.pixels]
    for number in range(12):
        name, at = OLD[number % 3], 10 * number
        files.insert(at, f"validation/{number}.png")
        pixels.insert(at, tiny.picture(name, 100 + number))
        truth.insert(at, name)
        labels.insert(at, name)
    is_held = np.array([file.startswith("validation/") for file in files])
    return image_set(files, pixels=np.stack(pixels), labels=labels, truth=truth, validation=is_held)


def journal(place: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (place / LOG).read_text().splitlines()]
    return [line for line in lines if "validation_accuracy" in line]


@pytest.mark.parametrize("method", ["gcd", "simgcd"])
def test_images_for_validation_are_not_sorted(tmp_path: Path, method: MethodName) -> None:
    """Without selection a run is the one of the other images alone, byte for byte."""
    images = with_validation()
    others = tiny.as_array()
    found = carry_out(a_job(images, tmp_path / "run", method))
    plain = carry_out(a_job(others, tmp_path / "plain", method))
    assert found.assignments.files == others.files
    assert len(found.features) == len(others) == len(images) - 12
    assert tables(tmp_path / "run") == tables(tmp_path / "plain")
    assert found.metrics == plain.metrics
    assert found.about["hashes"] == plain.about["hashes"]
    assert found.about["training"]["validation"] is None
    assert not journal(tmp_path / "run")


@pytest.mark.parametrize("method", ["gcd", "uno"])
def test_validation_images_select_the_epoch_and_are_not_sorted(
    tmp_path: Path, method: MethodName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an accuracy that is made up, best after the second of four epochs: what is taken is as it was then."""
    made: list[Method] = []
    then: list[tuple[str, Any]] = []
    fitted: list[int] = []
    fit = SemiSupervisedKMeans.fit

    def making(*values: Any, **named: Any) -> Method:
        made.append(make(*values, **named))
        return made[-1]

    def accuracy(_: Validation) -> float:
        (learning,) = made
        then.append((learning.backbone.fingerprint(), learning.classifier()))
        return (0.5, 0.75, 0.25, 0.7)[len(then) - 1]

    def counted(self: SemiSupervisedKMeans, x: Any, y: Any = None) -> SemiSupervisedKMeans:
        fitted.append(len(x))
        return fit(self, x, y)

    monkeypatch.setattr(sorting, "make", making)
    monkeypatch.setattr(Validation, "accuracy", accuracy)
    monkeypatch.setattr(SemiSupervisedKMeans, "fit", counted)
    training = replace(recipe_for(Discovery(backbone="convnet", method=method), 100, on_gpu=False).training, epochs=4)
    found = carry_out(a_job(with_validation(), tmp_path / "run", method, select=True, training=training))
    assert found.assignments.files == tiny.as_array().files
    assert sum(category.size for category in found.categories) == len(found.features) == N
    assert fitted == ([N] if method == "gcd" else [])
    trained = found.about["training"]
    assert (trained["selected"], trained["validation"]) == (1, 0.75)
    assert [line["validation_accuracy"] for line in journal(tmp_path / "run")] == [0.5, 0.75, 0.25, 0.7]
    fingerprint, head = then[1]
    assert len({each for each, _ in then}) == 4
    assert found.about["hashes"]["model"] == fingerprint
    assert (found.head is None) == (head is None) == (method == "gcd")
    if head is not None:
        np.testing.assert_array_equal(found.head, head.numpy())
        assert not torch.equal(then[3][1], head)
    assert found.about["recipe"]["select"] is True
    assert found.about["images"][0]["images"] == N


@pytest.mark.parametrize("select", [False, True])
def test_a_file_that_cannot_be_read_does_not_spoil_a_job_with_validation(tmp_path: Path, select: bool) -> None:
    """Of one class all labelled images are gone, though one for validation is left: that it is no class is said."""
    truth = tiny.write(tmp_path / "images")
    files = [*truth, *(f"{name}/validation.png" for name in OLD)]
    for name in OLD:
        tiny.save(tmp_path / f"images/{name}/validation.png", tiny.picture(name, 100))
    tiny.break_some(tmp_path / "images", [file for file in truth if tiny.label_of(file) == "beech"])
    paths = [str(tmp_path / "images" / file) for file in files]
    is_held = np.array([file.endswith("validation.png") for file in files])
    images = image_set(files, paths=paths, labels=[tiny.label_of(file) for file in files], validation=is_held)
    job = replace(a_job(images, tmp_path / "run", "uno", select=select), source=str(tmp_path / "images"))
    found = carry_out(job)
    assert len(found.quarantine) == LABELLED
    assert len(found.assignments) == N - LABELLED
    assert found.names[:3] == ("ash", "cedar", "new 1")
    assert any("No labelled image is left of the known classes 'beech'" in note for note in found.about["notes"])
    assert (found.about["training"]["validation"] is None) != select


def test_how_good_an_epoch_is_on_validation_images_is_measured(tmp_path: Path) -> None:
    found = carry_out(a_job(with_validation(), tmp_path / "run", "rankstats", select=True))
    accuracies = [line["validation_accuracy"] for line in journal(tmp_path / "run")]
    assert len(accuracies) == SETTINGS["epochs"]
    assert found.about["training"]["validation"] == max(accuracies) > 0.9  # these classes are easy


def test_what_is_held_out_is_hidden_from_selection_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = with_validation()
    given: list[ImageSet] = []

    def noted(method: Any, learned: ImageSet, *values: Any, **named: Any) -> Any:
        given.append(learned)
        return train(method, learned, *values, **named)

    monkeypatch.setattr(sorting, "train", noted)
    found = carry_out(a_job(images, tmp_path / "run", "rankstats", select=True))
    (learned,) = given
    assert learned.files == images.files
    np.testing.assert_array_equal(learned.validation, images.validation)
    np.testing.assert_array_equal(learned.labels[images.validation], images.labels[images.validation])
    hidden = images.labelled & (learned.labels < 0)
    assert hidden.sum() == found.confidence["held_out"] == HELD
    shown = ~hidden & ~images.validation
    np.testing.assert_array_equal(learned.labels[shown], images.labels[shown])


@pytest.mark.parametrize("method", ["gcd", "simgcd"])
def test_jobs_share_what_they_keep(tmp_path: Path, method: MethodName, monkeypatch: pytest.MonkeyPatch) -> None:
    images, shared = tiny.as_array(), tmp_path / "shared"
    carry_out(a_job(images, tmp_path / "one", method, shared=shared))
    assert not (tmp_path / "one/cache").exists()
    assert {path.name for path in shared.iterdir()} >= {"pixels", "learn", "check"}
    steps = steps_of(monkeypatch)
    monkeypatch.setattr("sortal.features._Cache.add", _never)
    carry_out(a_job(images, tmp_path / "other", method, shared=shared))
    assert not steps
    assert tables(tmp_path / "one") == tables(tmp_path / "other")
    for name in (INITIAL, "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    monkeypatch.undo()
    carry_out(a_job(images, tmp_path / "third", method))
    assert tables(tmp_path / "third") == tables(tmp_path / "one")
    assert (tmp_path / "third/cache").is_dir()


def _never(*_: object, **__: object) -> Any:
    raise AssertionError("this was done before")


def sorted_not_saved(job: Job) -> sorting.Sorted:
    assert job.recipe is not None
    stages = sorting.Stages(order_of(job.settings, job.recipe), lambda *_: None, lambda _: None)
    return sorting.sort(job, job.recipe, load_backbone("convnet", seed=job.settings.seed), stages)


def test_untrained_models_of_two_jobs_do_not_get_mixed_up(tmp_path: Path) -> None:
    """Of two at once, as in the processes of a benchmark: the second sorts before the first is saved."""
    one = a_job(tiny.as_array(), tmp_path / "one", "kmeans", shared=tmp_path / "shared")
    other = replace(one, place=tmp_path / "other", settings=replace(one.settings, seed=1))
    for each in [sorted_not_saved(job) for job in (one, other)]:
        each.run.save(each.files)
    for place, seed in (("one", 0), ("other", 1)):
        saved = load_backbone(str(tmp_path / place / "model.json"))
        assert saved.fingerprint() == load_backbone("convnet", seed=seed).fingerprint()


def test_an_untrained_model_that_is_there_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving it removes it for a while, in which another process may want it."""
    one = a_job(tiny.as_array(), tmp_path / "one", "kmeans", shared=tmp_path / "shared")
    first = sorted_not_saved(one)
    monkeypatch.setattr(Backbone, "save", _never)
    other = sorted_not_saved(replace(one, place=tmp_path / "other"))
    for each in (first, other):
        each.run.save(each.files)
    assert (tmp_path / "one/model.json").samefile(tmp_path / "other/model.json")


def test_plain_k_means_knows_no_labels_and_is_named_after_them(tmp_path: Path) -> None:
    """Its clusters are those without any label, its centres too; the names make known classes come first."""
    images, shared = tiny.as_array(), tmp_path / "shared"
    found = carry_out(a_job(images, tmp_path / "run", "kmeans", k=8, shared=shared, clustering="kmeans"))
    x = np.asarray(found.features)
    plain = SemiSupervisedKMeans(8, n_init=SETTINGS["n_init"], random_state=0, device="cpu").fit(x)
    a, free = found.assignments, found.assignments.status != "labelled"
    pairs = {*zip(a.category[free].tolist(), plain.labels_[free].tolist(), strict=True)}
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})
    for category, cluster in pairs:
        np.testing.assert_array_equal(found.centres[category], plain.cluster_centers_[cluster])
    assert sorted(map(tuple, found.centres.tolist())) == sorted(map(tuple, plain.cluster_centers_.tolist()))
    assert found.names[:3] == OLD
    assert found.metrics is not None
    names = np.array([(*images.classes, *images.new_classes)[i] for i in images.truth])
    assert found.metrics["accuracy"] == vars(metrics.accuracy(names[free], plain.labels_[free], old=OLD))
    # What is named after a class is where its labelled images are.
    for j, name in enumerate(OLD):
        members = [int(plain.labels_[row]) for row, label in enumerate(a.labels) if label == name]
        most = max(set(members), key=members.count)
        np.testing.assert_array_equal(found.centres[j], plain.cluster_centers_[most])
    semi = carry_out(a_job(images, tmp_path / "semi", "kmeans", k=8, shared=shared))
    assert not np.array_equal(semi.centres, found.centres)  # another recipe, though all else is the same


def test_plain_k_means_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_job(tiny.as_array(), tmp_path / "run", "kmeans", clustering="kmeans")
    carry_out(job)
    before = tables(tmp_path / "run")
    monkeypatch.setattr(SemiSupervisedKMeans, "fit", _never)
    carry_out(job)
    assert tables(tmp_path / "run") == before


def test_a_recipe_may_estimate_k_on_raw_features_and_learn_after_that(tmp_path: Path, raw: Run) -> None:
    images = tiny.as_array()
    found = carry_out(a_job(images, tmp_path / "run", "gcd", k="auto", estimate_on="raw"))
    assert tuple(found.about["timings"]) == ("check", *K_FIRST, "report")
    assert found.k["method"] == "brent"
    assert found.k["k"] == raw.k["k"]
    assert found.head is None
    assert found.about["training"]["epochs"] == SETTINGS["epochs"]


def test_a_recipe_decides_and_not_what_would_be_chosen(tmp_path: Path) -> None:
    """Other epochs than the settings have, as a benchmark's preset."""
    training = recipe_for(Discovery(backbone="convnet"), 100, on_gpu=False).training
    found = carry_out(a_job(tiny.as_array(), tmp_path / "run", training=replace(training, epochs=1)))
    assert found.about["training"]["epochs"] == 1
    assert found.about["recipe"]["training"]["epochs"] == 1
