"""Stages: their parts computed by hand, methods that train a classifier, and jobs with recipes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from conftest import SortedRun
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.special import softmax
from support import tiny_folder as tiny
from support.runtimes import CPU
from support.thorough import thorough_but
from support.tiny_folder import EACH, LABELLED, OLD, SETTINGS, never, scores_of, sort, spy, tables

from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.config import AUTO, BUILT_IN, Discovery, Reading, Recipe
from sortal.discovery import results, stages
from sortal.discovery.defaults import recipe_for
from sortal.discovery.earlier import EarlierRun
from sortal.discovery.grouping import label_doubt, shared_kmeans
from sortal.discovery.grouping.choose_k import WIDEST_RANGE, bounds_of_k, estimator, narrowed
from sortal.discovery.grouping.label_doubt import Doubts
from sortal.discovery.job import Job, Origin, prepare
from sortal.discovery.pipeline import carry_out, discover, stages_of
from sortal.discovery.stages import token_budget
from sortal.images.image_set import ImageSet, image_set
from sortal.learning import token_cache
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.health import Probe, Validation
from sortal.learning.step import TrainingStep
from sortal.learning.token_cache import Budget
from sortal.reviews.loading import save_run
from sortal.runs.run import INITIAL, LOG, Run
from sortal.runs.storage import HEAD
from sortal.system.distributed import alone

CLASSIFYING = ("rankstats", "simgcd", "uno")

N = 6 * EACH
HELD = 3 * (LABELLED // 2)
Ints = NDArray[np.int64]
Classified = tuple[Run, list[str], NDArray[np.bool_], Ints]
pytestmark = pytest.mark.usefixtures("quickly")


K_FIRST = ("pixels", "k", "learn", "features", "clusters")
K_LAST = ("pixels", "learn", "features", "k", "clusters")


def test_k_is_estimated_first_if_training_depends_on_it() -> None:
    """Or if it is estimated on raw features, unless nothing is trained."""

    some = a_job(tiny.as_array(), Path("run"))

    def job(settings: Discovery, recipe: Recipe) -> Job:
        return replace(some, settings=settings, recipe=recipe)

    every = [Discovery(method=method, k=k) for method in sorted(BUILT_IN) for k in (AUTO, 6)]
    for asked in every:
        recipe, of = recipe_for(asked, 100, on_gpu=False), BUILT_IN[asked.method]
        order = K_FIRST if asked.k == AUTO and of.needs_k else K_LAST
        assert job(asked, recipe).order == order
        assert stages_of(job(asked, recipe)) == (order[0], "check", *order[1:], "report")
        assert estimator(recipe, 2) == ("brent" if of.needs_k or of.learner is None else "separation")
        assert estimator(recipe, 1) == "separation", "the paper's rule compares with labels of several classes"
    raw = replace(recipe_for(Discovery(), 100, on_gpu=False), estimate_on="raw")
    untrained = recipe_for(Discovery(epochs=0), 100, on_gpu=False)
    assert (job(Discovery(), raw).order, estimator(raw, 2)) == (K_FIRST, "brent")
    assert (job(Discovery(), untrained).order, estimator(untrained, 2)) == (K_LAST, "brent")
    assert job(Discovery(), replace(untrained, estimate_on="raw")).order == K_LAST


def test_the_largest_k_follows_the_labels_unless_it_is_given() -> None:
    """Four times the labelled classes, where these are many, but never more than one for each unlabelled image."""

    def some(n: int) -> ImageSet:
        names = [str(at) for at in range(n)]
        return image_set(names, paths=names, labels=[*names[:300], *[None] * (n - 300)])

    many, few = some(2000), some(700)
    assert bounds_of_k(Discovery(), many) == (300, 1200)
    assert bounds_of_k(Discovery(), few) == (300, 700)
    assert bounds_of_k(Discovery(k_max=500), many) == (300, 500)


@pytest.mark.parametrize(
    ("k", "likely", "reported"),
    [
        (10, (7, 14), (7, 14)),  # twice as many are reported as they are
        (8, (5, 20), (6, 12)),  # half of the logarithms: 8 · √(5 / 8), and of 8 · √(20 / 8) twice the first at most
        (4, (1, 16), (3, 6)),  # a quarter: 4 · √√(1 / 4) and 4 · √√4
        (5, (5, 20), (5, 10)),
        (9, (1, 9), (5, 9)),  # k stays within
        (1, (1, 3), (1, 2)),
    ],
)
def test_a_wide_range_of_k_is_narrowed_around_k(k: int, likely: tuple[int, int], reported: tuple[int, int]) -> None:
    assert narrowed(k, *likely) == reported


@given(st.lists(st.integers(1, 2000), min_size=3, max_size=3).map(sorted))
def test_a_reported_range_holds_k_and_is_part_of_what_is_likely(ends: list[int]) -> None:
    least, k, most = ends
    low, high = narrowed(k, least, most)
    assert least <= low <= k <= high <= most
    assert high <= WIDEST_RANGE * low


def test_without_a_gpu_tokens_are_cached_in_a_file_if_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may take half of the free space."""
    asked, usage = Discovery(k=6, backbone="test_vit", weights="random"), Mock()
    job = prepare(tiny.as_array(), None, tmp_path / "run", asked, Reading(), runtime=CPU, force=False)
    monkeypatch.setattr(shutil, "disk_usage", usage)
    usage.return_value.free = 2**30
    budget = token_budget(job)
    assert budget == Budget(disk=2**29, file_first=True)
    for needed, where in ((2**29, "file"), (2**29 + 1, "memory")):
        assert token_cache.plan_tokens(needed, budget, job.device, tmp_path).where == where
    (tmp_path / "shared").mkdir()
    token_budget(replace(job, shared=tmp_path / "shared/cache"))
    usage.assert_called_with(tmp_path / "shared")  # the nearest existing folder


def test_a_setback_of_training_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probe, "failure", Mock(side_effect=["collapsed", None, None, None]))
    notes: list[str] = []
    found = sort(tiny.as_array(), tmp_path / "run", runtime=replace(CPU, note=notes.append))
    (setback,) = [note for note in notes if "going back to its start with a learning rate of 0.015." in note]
    assert [*found.facts.notes].count(setback) == 1
    assert found.facts.training is not None
    assert found.facts.training.setbacks == (setback,)


# Methods that train a classifier


@pytest.fixture(scope="module", params=thorough_but(["rankstats"], CLASSIFYING))
def classified(
    request: pytest.FixtureRequest, sorted_run: SortedRun, tmp_path_factory: pytest.TempPathFactory, quickly: None
) -> Classified:
    """Run each method with k estimated; return the run, its progress, the held-out images and its clusters."""
    out, steps = tmp_path_factory.mktemp(request.param) / "run", []
    asked: dict[str, Any] = {"method": request.param, "k": "auto", "epochs": 3}
    with patch.object(results, "gather", wraps=results.gather) as gather:
        found = sort(
            sorted_run.images, out, runtime=replace(CPU, progress=lambda what, *_: steps.append(what)), **asked
        )
    *_, held, _, _, clusters, _ = gather.call_args.args
    return found, steps, held, clusters.of


@pytest.fixture(scope="module")
def raw(sorted_run: SortedRun, tmp_path_factory: pytest.TempPathFactory, quickly: None) -> Run:
    """Run k-means on the raw features."""
    return sort(sorted_run.images, tmp_path_factory.mktemp("raw") / "run", method="kmeans", k="auto")


def with_initial(folder: Path) -> Backbone:
    """Load the saved model with its trained weights reset to their initial values."""
    backbone = load_backbone(str(folder / "model.json"))
    before = load_file(folder / INITIAL)
    assert before.keys() == {name for name, value in backbone.named_parameters() if value.requires_grad}
    _, unexpected = backbone.load_state_dict(before, strict=False)
    assert not unexpected
    return backbone


def test_k_is_estimated_on_raw_features_before_learning(classified: Classified, raw: Run) -> None:
    found, steps, *_ = classified
    assert found.k == raw.k
    assert raw.k.estimated
    assert raw.k.method == "brent"
    assert len(found.categories) == raw.k.k
    assert tuple(found.facts.timings) == (K_FIRST[0], "check", *K_FIRST[1:], "report")
    steps = [what for what in steps if what.startswith("[")]
    assert steps == sorted(steps, key=lambda what: what.partition("]")[0])
    first = {what.partition("] ")[2].partition(":")[0]: number for number, what in reversed([*enumerate(steps)])}
    assert first["Estimating the number of classes"] < first["Training"] < first["Clustering"]
    # The initial weights give the raw features.
    assert load_backbone(str(found.folder / "model.json")).fingerprint() == found.facts.hashes.model
    backbone = with_initial(found.folder)
    assert backbone.fingerprint() == raw.facts.hashes.model != found.facts.hashes.model
    x = extract(backbone, found.images(), normalise=True, runtime=CPU, precision="float32")
    np.testing.assert_array_equal(x, raw.features)
    assert np.abs(x - np.asarray(found.features)).max() > 1e-3


def test_labelled_images_are_in_their_class_and_others_where_the_head_puts_them(classified: Classified) -> None:
    """Centres are means, or directions of the head; held-out labels are hidden from it."""
    found, _, held, clusters = classified
    a, scores, rows = found.assignments, scores_of(found), np.arange(N)
    sizes = np.bincount(a.category_id, minlength=len(found.categories))
    assert [category.size for category in found.categories] == sizes.tolist()
    assert tuple(found.names.values())[:3] == OLD
    assert [category.kind for category in found.categories] == ["known"] * 3 + ["new"] * (len(sizes) - 3)
    labelled, highest = a.status == "labelled", scores.argmax(axis=1)
    assert (labelled.sum(), held.sum()) == (3 * LABELLED, HELD)
    assert [found.names[j] for j in a.category_id[labelled]] == [label for label in a.labels if label]
    np.testing.assert_array_equal(a.category_id[~labelled], highest[~labelled])
    distances = np.linalg.norm(np.asarray(found.features, np.float64)[:, None] - found.centres[None], axis=2)
    np.testing.assert_allclose(a.distance, distances[rows, a.category_id], atol=1e-6)
    assert (found.confidence.calibrated, found.confidence.held_out) == (True, HELD)
    chance = softmax(scores / found.confidence.temperature, axis=1)[rows, a.category_id]
    assert (a.confidence[~labelled] <= chance[~labelled] + 1e-9).all()
    scores[rows, a.category_id] = -np.inf
    np.testing.assert_array_equal(a.next_category_id, scores.argmax(axis=1))
    np.testing.assert_allclose(a.next_distance, distances[rows, a.next_category_id], atol=1e-6)
    np.testing.assert_array_equal(clusters, np.where(labelled & ~held, a.category_id, highest))
    sizes = np.bincount(clusters, minlength=len(found.centres))
    assert [category.weight for category in found.categories] == sizes.tolist()
    assert found.head is not None
    directions = found.head[:, :-1] / np.linalg.norm(found.head[:, :-1], axis=1, keepdims=True)
    for j, centre in enumerate(found.centres):
        wanted = found.features[clusters == j].mean(axis=0) if sizes[j] else directions[j]
        np.testing.assert_allclose(centre, wanted, atol=1e-6)


@pytest.mark.parametrize("classified", ["rankstats"], indirect=True)
def test_another_k_trains_again_and_another_method_leaves_no_files_behind(
    classified: Classified, sorted_run: SortedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike gcd, whose features do not depend on k. A k that is given reuses the training of the same estimated k."""
    first, out = classified[0], tmp_path / "run"
    shutil.copytree(first.folder, out)
    steps = spy(monkeypatch, TrainingStep, "__call__")
    before, head, k = tables(out), (out / HEAD).read_bytes(), first.k.k
    found = sort(sorted_run.images, out, method="rankstats", k=k + 2, epochs=3)
    assert len(steps) == 3
    assert found.head is not None
    assert len(found.head) == len(found.categories) == k + 2
    assert found.facts.hashes.model != first.facts.hashes.model
    again = sort(sorted_run.images, out, method="rankstats", k=k, epochs=3)
    assert len(steps) == 3
    assert not again.k.estimated
    assert tables(out) == before
    assert (out / HEAD).read_bytes() == head
    written = {HEAD, INITIAL, LOG}
    assert written <= {path.name for path in out.iterdir()}
    for method, left in (("gcd", {INITIAL, LOG}), ("kmeans", set())):
        assert sort(sorted_run.images, out, method=method, epochs=1).head is None
        assert written & {path.name for path in out.iterdir()} == left


def test_only_the_trained_block_of_a_transformer_is_saved_before_training(tmp_path: Path) -> None:
    backbone = load_backbone("test_vit", weights="random", image_size=32)
    fingerprint = backbone.fingerprint()
    stages._save_initial(stages._initial(backbone), tmp_path / "learn")
    with torch.no_grad():
        for value in backbone.parameters():
            if value.requires_grad:
                value.add_(1)
    stages._save_initial(stages._initial(backbone), tmp_path / "learn")  # a resumed run must not overwrite it
    backbone.save(tmp_path / "learn/model")
    before = load_file(tmp_path / "learn" / INITIAL)
    assert 0 < sum(value.numel() for value in before.values()) < sum(v.numel() for v in backbone.parameters()) / 5
    assert backbone.fingerprint() != fingerprint
    assert with_initial(tmp_path / "learn").fingerprint() == fingerprint


@pytest.mark.parametrize("method", thorough_but(["simgcd"], CLASSIFYING))
def test_without_any_label_the_head_alone_sorts(sorted_run: SortedRun, tmp_path: Path, method: str) -> None:
    found = sort(sorted_run.images, tmp_path / "looks", method=method, folders="ignore", k=4)
    assert tuple(found.names.values()) == tuple(f"new {number}" for number in range(1, 5))
    assert sum(category.size for category in found.categories) == N
    assert not found.confidence.calibrated
    assert found.confidence.temperature == 1.0  # what it was trained with
    np.testing.assert_array_equal(found.assignments.category_id, scores_of(found).argmax(axis=1))


# Jobs with recipes, as benchmarks give them


def a_job(images: ImageSet, place: Path, method: str = "gcd", *, k: int = 6, **of: Any) -> Job:
    """Make a job with a recipe that differs from the default one."""
    asked = {name: value for name, value in SETTINGS.items() if name not in ("runtime", "k")}
    settings = Discovery(**asked, method=method, k=k)
    recipe = replace(recipe_for(settings, len(images), on_gpu=False), **of)
    how: dict[str, Any] = {"runtime": CPU, "processes": alone("cpu"), "recipe": recipe}
    return Job(images=images, settings=settings, place=place, **how)


def with_validation() -> ImageSet:
    """Return the planted images, interspersed with validation images of the known classes."""
    planted = tiny.as_array()
    assert planted.pixels is not None
    names = (*planted.classes, *planted.new_classes, None)
    labels, truth = ([names[i] for i in numbers] for numbers in (planted.labels, planted.truth))
    rows = [*zip(planted.files, planted.pixels, labels, truth, strict=True)]
    for number in range(12):
        name = OLD[number % 3]
        rows.insert(10 * number, (f"validation/{number}.png", tiny.picture(name, 100 + number), name, name))
    files, pixels, labels, truth = (list(column) for column in zip(*rows, strict=True))
    is_held = np.array([file.startswith("validation/") for file in files])
    return image_set(files, pixels=np.stack(pixels), labels=labels, truth=truth, validation=is_held)


def accuracies(place: Path) -> list[float]:
    lines = [json.loads(line) for line in (place / LOG).read_text().splitlines()]
    return [line["validation_accuracy"] for line in lines if "validation_accuracy" in line]


def test_images_for_validation_are_not_sorted(tmp_path: Path) -> None:
    """Without selection of an epoch, a run equals one without them byte for byte."""
    others = tiny.as_array()
    found = carry_out(a_job(with_validation(), tmp_path / "run", "simgcd"))
    plain = carry_out(a_job(others, tmp_path / "plain", "simgcd"))
    assert (found.assignments.files, len(found.features)) == (others.files, N)
    assert tables(tmp_path / "run") == tables(tmp_path / "plain")
    assert (found.metrics, found.facts.hashes) == (plain.metrics, plain.facts.hashes)
    assert found.facts.training is not None
    assert found.facts.training.validation is None
    assert not accuracies(tmp_path / "run")


@pytest.mark.parametrize("method", thorough_but(["gcd"], ["gcd", "uno"]))
def test_validation_images_select_the_epoch_and_are_not_sorted(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fake accuracies, the best of which is in the second of four epochs."""
    then: list[tuple[str, Any]] = []

    def accuracy(_: Validation) -> float:
        learning = trained_with[0][0]
        then.append((learning.backbone.fingerprint(), learning.classifier()))
        return (0.5, 0.75, 0.25, 0.7)[len(then) - 1]

    monkeypatch.setattr(Validation, "accuracy", accuracy)
    trained_with, fitted = spy(monkeypatch, stages, "train"), spy(monkeypatch, shared_kmeans, "fit")
    training = replace(recipe_for(Discovery(backbone="convnet", method=method), 100, on_gpu=False).training, epochs=4)
    images = with_validation()
    found = carry_out(a_job(images, tmp_path / "run", method, select=True, training=training))
    ((_, learned, *_),) = trained_with
    assert learned.files == images.files
    np.testing.assert_array_equal(learned.validation, images.validation)
    hidden = images.labelled & (learned.labels < 0)
    assert hidden.sum() == found.confidence.held_out == HELD
    np.testing.assert_array_equal(learned.labels[~hidden], images.labels[~hidden])
    assert found.assignments.files == tiny.as_array().files
    assert sum(category.size for category in found.categories) == len(found.features) == N
    assert [len(x) for x, *_ in fitted][:1] == ([N] if method == "gcd" else [])  # then halves of them
    trained = found.facts.training
    assert trained is not None
    assert (trained.epochs, trained.selected, trained.validation) == (4, 1, 0.75)
    assert accuracies(tmp_path / "run") == [0.5, 0.75, 0.25, 0.7]
    fingerprint, head = then[1]
    assert len({each for each, _ in then}) == 4
    assert found.facts.hashes.model == fingerprint
    assert (found.head is None) == (head is None) == (method == "gcd")
    if head is not None:
        np.testing.assert_array_equal(found.head, head.numpy())
        assert not torch.equal(then[3][1], head)
    assert found.facts.recipe.select is True
    assert found.facts.recipe.training.epochs == 4
    assert found.facts.images[0].images == N


@pytest.mark.parametrize("method", thorough_but(["simgcd"], CLASSIFYING))
def test_unreadable_files_do_not_break_a_job_with_validation(tmp_path: Path, method: str) -> None:
    """One class loses all its labelled images but not its validation image, which leaves a gap in the numbers."""
    truth = tiny.write(tmp_path, {**tiny.planted(), **{f"{name}/validation.png": f"{name} 100" for name in OLD}})
    broken = [file for file in truth if tiny.label_of(file) == "beech" and "validation" not in file]
    tiny.break_some(tmp_path, broken)
    is_held = np.array(["validation" in file for file in truth])
    paths, labels = [str(tmp_path / file) for file in truth], [tiny.label_of(file) for file in truth]
    images = image_set([*truth], paths=paths, labels=labels, validation=is_held)
    found = carry_out(
        replace(a_job(images, tmp_path / "run", method, select=True), origin=Origin(folder=str(tmp_path)))
    )
    assert len(found.quarantine) == LABELLED
    assert len(found.assignments) == N - LABELLED
    assert tuple(found.names.values())[:3] == ("ash", "cedar", "new 1")
    a, labelled = found.assignments, found.assignments.status == "labelled"
    assert [found.names[j] for j in a.category_id[labelled]] == [label for label in a.labels if label]
    np.testing.assert_array_equal(a.category_id[~labelled], scores_of(found).argmax(axis=1)[~labelled])
    assert any("These known classes have no labelled image left: 'beech'" in note for note in found.facts.notes)
    assert found.facts.training is not None
    assert found.facts.training.validation is not None


def test_jobs_share_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, shared = a_job(tiny.as_array(), tmp_path / "one", "simgcd"), tmp_path / "shared"
    carry_out(replace(job, shared=shared))
    assert not (tmp_path / "one/cache").exists()
    assert {path.name for path in shared.iterdir()} >= {"pixels", "learn", "check"}
    monkeypatch.setattr(TrainingStep, "__call__", never)
    monkeypatch.setattr("sortal.learning.features.FeatureCache.add", never)
    carry_out(replace(job, shared=shared, place=tmp_path / "other"))
    for name in ("assignments.csv", "categories.csv", INITIAL, "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_untrained_models_of_simultaneous_jobs_are_distinguished_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the processes of a benchmark, other jobs need the model before the first is saved."""
    one = replace(a_job(tiny.as_array(), tmp_path / "one", "kmeans"), shared=tmp_path / "shared")
    other = replace(one, place=tmp_path / "other", settings=replace(one.settings, seed=1))
    found = []
    for job in (one, other, replace(one, place=tmp_path / "again")):
        progress = stages.Stages(job.order, CPU)
        backbone = load_backbone("convnet", seed=job.settings.seed)
        pixels = stages.store_pixels(job, backbone, progress)
        found.append(stages.sort(job, backbone, progress, pixels))
        if len(found) == 2:
            monkeypatch.setattr(Backbone, "save", never)
    for each in found:
        assert each is not None  # in the only process
        save_run(each.run, each.files)
    for place, seed in (("one", 0), ("other", 1)):
        saved = load_backbone(str(tmp_path / place / "model.json"))
        assert saved.fingerprint() == load_backbone("convnet", seed=seed).fingerprint()
    assert (tmp_path / "one/model.json").samefile(tmp_path / "again/model.json")


def test_plain_k_means_ignores_labels_but_its_clusters_are_named_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters and centres equal those without labels; known classes come first."""
    images = tiny.as_array()
    job = replace(a_job(images, tmp_path / "run", "kmeans", k=8, clustering="kmeans"), shared=tmp_path / "shared")
    found = carry_out(job)
    x = np.asarray(found.features)
    plain = SemiSupervisedKMeans(8, n_init=SETTINGS["n_init"], random_state=0, device="cpu").fit(x)
    a, free = found.assignments, found.assignments.status != "labelled"
    pairs = {*zip(a.category_id[free].tolist(), plain.labels_[free].tolist(), strict=True)}
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})
    for category, cluster in pairs:
        np.testing.assert_array_equal(found.centres[category], plain.cluster_centers_[cluster])
    assert sorted(map(tuple, found.centres.tolist())) == sorted(map(tuple, plain.cluster_centers_.tolist()))
    assert tuple(found.names.values())[:3] == OLD
    # A class names a cluster that has most of its labelled images, or as many as another.
    cluster_of = {tuple(centre): number for number, centre in enumerate(plain.cluster_centers_.tolist())}
    for j, name in enumerate(OLD):
        members = [int(plain.labels_[row]) for row, label in enumerate(a.labels) if label == name]
        assert members.count(cluster_of[tuple(found.centres[j].tolist())]) == max(map(members.count, members))
    semi = carry_out(replace(a_job(images, tmp_path / "semi", "kmeans", k=8), shared=job.shared))
    assert not np.array_equal(semi.centres, found.centres)  # only the recipe differs
    before = tables(tmp_path / "run")
    monkeypatch.setattr(SemiSupervisedKMeans, "fit", never)
    carry_out(replace(job, earlier=EarlierRun(facts=found.facts)))
    assert tables(tmp_path / "run") == before


@pytest.mark.parametrize("method", ["sortal", "gcd"])
def test_very_doubtful_labels_are_not_learned_from_but_stay_in_the_result(
    sorted_run: SortedRun, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Sortal's own method leaves them out."""

    def planted(x: NDArray[np.float32], labels: Ints, groups: Ints) -> Doubts:
        found = Doubts.none(len(labels))
        rows = np.flatnonzero(labels == 0)[:2]
        found.doubt[rows], found.suggested[rows] = 0.95, 1
        return found

    monkeypatch.setattr(stages, "doubts", planted)
    monkeypatch.setattr(label_doubt, "MOST_UNTRUSTED", 1.0)
    with patch.object(stages, "_learn", wraps=stages._learn) as learn:
        run = sort(sorted_run.images, tmp_path / "run", method=method, epochs=1, held_out=0.0)
    a, learned = run.assignments, learn.call_args.args[2]
    rows = a.labels_to_check
    assert len(rows) == 2
    assert (a.status[rows] == "labelled").all()
    assert a.category_id[rows].tolist() == [0, 0]
    assert a.suggested_id[rows].tolist() == [1, 1]
    left_out = {file for file, label in zip(a.files, learned.to_learn.labels.tolist(), strict=True) if label < 0}
    assert ({a.files[row] for row in rows} <= left_out) == (method == "sortal")
    assert learned.to_learn.labels.tolist() == learned.counted.labels.tolist()


def test_every_stage_reports_how_much_there_is_to_do(tmp_path: Path) -> None:
    totals: dict[str, list[int]] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what.startswith("["):
            assert done <= total or not total
            totals.setdefault(what.partition("/")[0], []).append(total)

    runtime = replace(CPU, progress=progress)
    discover(tiny.as_array(), out=tmp_path / "run", backbone="convnet", method="kmeans", k_max=8, runtime=runtime)
    counted = {stage for stage, total in totals.items() if any(total)}
    # Nothing is trained, so labels are checked on the features that are used, and these tests draw no report.
    assert counted >= {"[1", "[2", "[3", "[5", "[6"}
