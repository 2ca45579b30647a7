"""Benchmark runs from end to end: figures recomputed by hand, nothing done twice, nothing lost to kills."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import layouts
import numpy as np
import pytest
import tiny_folder as tiny
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from sortal import checkpoint, cli, datasets, metrics, run, sorting
from sortal.backbone import load_backbone
from sortal.benchmark import records, sweep
from sortal.benchmark.choice import choose
from sortal.benchmark.presets import Preset
from sortal.benchmark.records import Record
from sortal.benchmark.sweep import Swept
from sortal.benchmark.task import Data, Task, read
from sortal.benchmark.task import run as do
from sortal.config import CLASSIFIERS, Contrast, MethodName
from sortal.errors import InputError
from sortal.estimate import estimate_k
from sortal.features import extract
from sortal.images import ImageSet
from sortal.kmeans import SemiSupervisedKMeans
from sortal.lock import alone
from sortal.run import Run
from sortal.step import Step
from sortal.train import train

METHODS: tuple[MethodName, ...] = get_args(MethodName)
OLD, NEW = ("0", "1", "2", "3", "4"), ("5", "6", "7", "8", "9")
EACH = 20  # images of a digit, of which 4 are for the test
SEEDS = (0, 3)
STAGES = {"pixels", "learn", "features", "k", "clusters", "test"}
SPEEDS = ("seconds", "images_per_second")
HERE: dict[str, Any] = {"device": "cpu", "workers": 1}
Ints = NDArray[np.int64]


@pytest.fixture(autouse=True, scope="module")
def _quickly() -> Iterator[None]:
    with tiny.quickly():
        yield


def digits() -> list[NDArray[np.uint8]]:
    """Real handwritten digits, (10, n, 8, 8) in grey: hard enough for figures that are neither 0 nor 1."""
    from sklearn.datasets import load_digits

    grey, digit = load_digits(return_X_y=True)
    images = np.rint(grey.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return [images[digit == number] for number in range(10)]


def write_digits(root: Path, each: int = EACH, classes: int = 10) -> Path:
    """A folder for each digit, with its first images."""
    for name, images in enumerate(digits()[:classes]):
        for number, image in enumerate(images[:each]):
            tiny.save(root / str(name) / f"{number:02}.png", image)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data") / "digits")


def presets(root: Path, *methods: MethodName, n_init: int = 5, **options: Any) -> list[Preset]:
    """Methods on the folder with the small network, trained for as long as it takes to tell that it was."""
    found = choose("folder", root, **{"methods": methods, "backbone": "convnet", "epochs": 2, **options})
    return [replace(preset, n_init=n_init) for preset in found]


def beside_results(notes: Iterable[str]) -> list[str]:
    """What was noted, but for the figures of each run."""
    return [note for note in notes if ": All " not in note]


def short(record: Record) -> str:
    a = record.transductive["accuracy"]
    return f"All {100 * a['all']:.1f}, Old {100 * a['old']:.1f}, New {100 * a['new']:.1f}"


@dataclass
class Told:
    """What was said while something ran."""

    notes: list[str] = field(default_factory=list)
    progress: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def listeners(self) -> dict[str, Any]:
        return {"on_note": self.notes.append, "on_progress": lambda *told: self.progress.append(told)}


def swept(presets: Sequence[Preset], root: Path, out: Path, seeds: Sequence[int] = (0,), **options: Any) -> Swept:
    return sweep.sweep(presets, root, out=out, seeds=seeds, **{**HERE, **options})


@dataclass(frozen=True)
class Done:
    """A sweep of all methods, two seeds each."""

    root: Path
    out: Path
    found: Swept
    told: Told

    def at(self, method: str, seed: int = SEEDS[0]) -> Path:
        return self.out / "digits" / method / "k-true" / f"seed-{seed}"

    def record(self, method: str, seed: int = SEEDS[0]) -> Record:
        return records.load(self.at(method, seed))


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    out, told = tmp_path_factory.mktemp("done") / "benchmark", Told()
    found = swept(presets(root, *METHODS), root, out, SEEDS, command="sortal benchmark …", **told.listeners)
    return Done(root, out, found, told)


def figures(record: Record) -> dict[str, Any]:
    """All of a record that must come out the same again."""
    beside = ("timings", "finished", "command", "machine", "versions", "key")
    content = {name: value for name, value in asdict(record).items() if name not in beside}
    if record.training is not None:
        content["training"] = {name: value for name, value in record.training.items() if name not in SPEEDS}
    return content


# What is recorded


def test_every_method_and_seed_has_a_record_in_order(done: Done) -> None:
    assert done.found.failed == ()
    assert done.found.again == 0
    assert [(record.method, record.seed) for record in done.found.records] == [(m, s) for m in METHODS for s in SEEDS]
    assert done.found.folders == tuple(done.at(method, seed) for method in METHODS for seed in SEEDS)
    assert [records.load(folder) for folder in done.found.folders] == [*done.found.records]
    assert len(records.find([done.out])) == len(METHODS) * len(SEEDS)


@pytest.mark.parametrize("method", METHODS)
def test_a_record_says_what_was_run_and_what_came_of_it(method: str, done: Done) -> None:
    record, found = done.record(method), run.load(done.at(method))
    assert (record.name, record.version, record.dataset) == (f"digits/{method}", None, "digits")
    assert (record.method, record.backbone, record.weights) == (method, "convnet", "random weights")
    assert record.clustering == {"kmeans": "kmeans", "gcd": "semi-supervised"}.get(method, "head")
    assert record.k == {"asked": "true", "k": 10, "true": 10, "error": 0.0, "interval": None, "curve": []}
    assert record.command == "sortal benchmark …"
    assert record.timings.keys() == STAGES == found.about["timings"].keys()
    assert record.recipe["training"]["seed"] == SEEDS[0]
    assert (record.recipe["training"]["epochs"], record.recipe["n_init"]) == (2, 5)
    assert (record.training is None) == (method == "kmeans")
    # 16 of each digit are for learning; half of the 80 old ones are labelled.
    assert record.transductive["images"] == 10 * 16 - 40
    assert record.inductive is not None
    assert record.inductive["images"] == 10 * 4
    for scores in (record.transductive, record.inductive):
        assert scores.keys() == {"images", "accuracy", "legacy", "nmi", "ari", "known_accuracy"}
        assert scores["accuracy"].keys() == scores["legacy"].keys() == {"all", "old", "new"}
        assert 0 < scores["accuracy"]["all"] < 1, "figures that can tell whether they are right"
        assert scores["legacy"]["all"] >= scores["accuracy"]["all"]
        assert None not in (scores["nmi"], scores["ari"], scores["known_accuracy"])


def one_match(truth: Sequence[str], categories: Sequence[int], old: Sequence[str]) -> dict[str, float]:
    """Accuracy by one Hungarian, in the obvious way."""
    classes, clusters = sorted(set(truth)), sorted(set(categories))
    both = [*zip(truth, categories, strict=True)]
    counts = np.array([[both.count((name, cluster)) for name in classes] for cluster in clusters])
    is_old = np.isin(classes, old)
    rows, columns = linear_sum_assignment(counts * 10_000 + counts * is_old, maximize=True)
    right = {clusters[i]: classes[j] for i, j in zip(rows, columns, strict=True)}
    hits = {name: sum(right.get(c) == t == name for t, c in both) for name in classes}

    def share(names: Sequence[str]) -> float:
        return float(sum(hits[name] for name in names) / sum(t in names for t in truth))

    return {"all": share(classes), "old": share(old), "new": share([name for name in classes if name not in old])}


def check_scores(scores: dict[str, Any], truth: Sequence[str], categories: Sequence[int], names: Sequence[str]) -> None:
    """Every figure against another way to it."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    assert scores["accuracy"] == pytest.approx(one_match(truth, categories, OLD))
    assert scores["accuracy"] == asdict(metrics.accuracy(truth, categories, old=OLD))
    assert scores["legacy"] == asdict(metrics.legacy_accuracy(truth, categories, old=OLD))
    assert scores["nmi"] == pytest.approx(normalized_mutual_info_score(truth, categories))
    assert scores["ari"] == pytest.approx(adjusted_rand_score(truth, categories))
    of_old = [(t, names[c]) for t, c in zip(truth, categories, strict=True) if t in OLD]
    assert scores["known_accuracy"] == pytest.approx(sum(t == name for t, name in of_old) / len(of_old))
    assert scores["images"] == len(truth)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", METHODS)
def test_transductive_figures_are_those_of_the_run_folder(method: str, seed: int, done: Done) -> None:
    found = run.load(done.at(method, seed))
    a, images = found.assignments, datasets.load("folder", done.root)
    assert a.files == tuple(np.array(images.files)[~images.validation]), "validation images are not sorted"
    rows = [row for row, label in enumerate(a.labels) if label is None]
    truth = [a.files[row].partition("/")[0] for row in rows]  # the folder is the class
    assert truth == [a.truth[row] for row in rows]
    check_scores(done.record(method, seed).transductive, truth, a.category[rows].tolist(), found.names)


def raw(found: Run, images: ImageSet) -> NDArray[np.float32]:
    """Features of images by the model of a run, by nothing that was kept."""
    backbone = load_backbone(str(found.folder / "model"))
    return extract(backbone, images, normalise=True, device="cpu", precision="float32")


@pytest.mark.parametrize("method", METHODS)
def test_inductive_figures_are_those_of_the_saved_model(method: str, done: Done) -> None:
    """Each test image is in the category of the nearest centre, or of the largest output of the head."""
    found, test = run.load(done.at(method)), datasets.load("folder", done.root, part="test")
    x = raw(found, test).astype(np.float64)
    if method in CLASSIFIERS:
        assert found.head is not None
        categories = (x @ found.head[:, :-1].T + found.head[:, -1]).argmax(axis=1)
    else:
        assert found.head is None
        categories = ((x[:, None] - found.centres[None].astype(np.float64)) ** 2).sum(axis=2).argmin(axis=1)
    truth = [file.partition("/")[0] for file in test.files]
    scores = done.record(method).inductive
    assert scores is not None
    check_scores(scores, truth, categories.tolist(), found.names)


# How images are sorted


def partition(clusters: Ints) -> list[int]:
    """Clusters called by the first row that is in each."""
    first = {cluster: row for row, cluster in reversed([*enumerate(clusters.tolist())])}
    return [first[cluster] for cluster in clusters.tolist()]


def hidden(found: Run) -> NDArray[np.bool_]:
    return np.array([label is None for label in found.assignments.labels])


@pytest.mark.parametrize("seed", SEEDS)
def test_kmeans_is_plain_kmeans_of_raw_features(seed: int, done: Done) -> None:
    found, images = run.load(done.at("kmeans", seed)), datasets.load("folder", done.root)
    backbone = load_backbone("convnet", seed=seed)
    to_sort = images.select(~images.validation)
    x = extract(backbone, to_sort, normalise=True, device="cpu", precision="float32")
    np.testing.assert_array_equal(x, found.features)
    plain = SemiSupervisedKMeans(10, n_init=5, random_state=seed, device="cpu").fit(x)
    rows = hidden(found)  # a labelled image is in its class, wherever its cluster is
    assert partition(found.assignments.category[rows]) == partition(plain.labels_[rows])
    told = SemiSupervisedKMeans(10, n_init=5, random_state=seed, device="cpu").fit(x, to_sort.labels)
    assert partition(told.labels_[rows]) != partition(plain.labels_[rows]), "labels would have changed something"


@pytest.mark.parametrize("seed", SEEDS)
def test_gcd_is_semi_supervised_kmeans_of_learned_features(seed: int, done: Done) -> None:
    found, images = run.load(done.at("gcd", seed)), datasets.load("folder", done.root)
    to_sort = images.select(~images.validation)
    np.testing.assert_allclose(raw(found, to_sort), found.features, atol=1e-6)
    model = SemiSupervisedKMeans(10, n_init=5, random_state=seed, device="cpu").fit(found.features, to_sort.labels)
    np.testing.assert_array_equal(found.assignments.category, model.labels_)
    before = run.load(done.at("kmeans", seed)).features
    assert np.abs(before - found.features).max() > 0.01, "something was learned"


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_classifiers_sort_by_their_largest_output(method: str, done: Done) -> None:
    found = run.load(done.at(method))
    assert found.head is not None
    assert found.head.shape == (10, found.features.shape[1] + 1)
    told = (found.features.astype(np.float64) @ found.head[:, :-1].T + found.head[:, -1]).argmax(axis=1)
    rows = hidden(found)
    np.testing.assert_array_equal(found.assignments.category[rows], told[rows])


def log_of(folder: Path) -> list[dict[str, Any]]:
    file = folder / "log.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_best_epoch_on_validation_images_is_taken_for_gcd_alone(root: Path, tmp_path: Path) -> None:
    found = swept(presets(root, "gcd", *CLASSIFIERS, epochs=5), root, tmp_path)
    for record, folder in zip(found.records, found.folders, strict=True):
        assert record.training is not None
        measured = [line["validation_accuracy"] for line in log_of(folder) if "validation_accuracy" in line]
        if record.method == "gcd":
            best = max(measured)
            assert len(measured) == 5
            assert record.training["validation"] == best
            assert record.training["selected"] == max(at for at, each in enumerate(measured) if each == best)
        else:
            assert measured == []
            assert (record.training["validation"], record.training["selected"]) == (None, 4)


def test_the_test_split_decides_nothing_but_the_epoch_of_gcd(done: Done, tmp_path: Path) -> None:
    """With noise in the place of all its images, methods come to the same on the images that are sorted."""
    root = shutil.copytree(done.root, tmp_path / "digits")
    for number, file in enumerate(datasets.load("folder", root, part="test").files):
        tiny.save(root / file, tiny.noise(number, side=8))
    found = swept(presets(root, *METHODS), root, tmp_path / "out", SEEDS[:1])
    for record in found.records:
        before = figures(done.record(record.method))
        after = figures(record)
        assert after.pop("inductive") != before.pop("inductive")
        if record.method == "gcd":
            assert after["training"]["validation"] != before["training"]["validation"]
            assert after["training"]["losses"] == before["training"]["losses"], "of the last epoch, whichever is taken"
        else:
            assert after == before


# The number of classes


@pytest.fixture(scope="module")
def counted(done: Done) -> dict[str, Record]:
    """Methods that were told to find out k, in the folder of those that were told it."""
    found = swept(presets(done.root, "kmeans", "gcd", "uno", k="auto"), done.root, done.out, SEEDS[:1])
    assert found.again == 0, "another k is another run"
    assert [folder.parent.name for folder in found.folders] == ["k-auto"] * 3
    return {record.method: records.load(folder) for record, folder in zip(found.records, found.folders, strict=True)}


def test_k_is_estimated_on_raw_features_by_the_papers_rule(counted: dict[str, Record], done: Done) -> None:
    images = datasets.load("folder", done.root)
    to_sort, x = images.select(~images.validation), run.load(done.at("kmeans")).features
    wanted = estimate_k(x, to_sort.labels, k_max=125, method="brent", random_state=SEEDS[0], device="cpu")
    for record in counted.values():
        k = record.k
        assert (k["asked"], k["k"], k["true"]) == ("auto", wanted.k, 10)
        assert k["error"] == pytest.approx(abs(wanted.k - 10) / 10)
        assert k["interval"] == list(wanted.interval)
        assert [each["k"] for each in k["curve"]] == [each.k for each in wanted.curve]
    assert len({len(run.load(folder).categories) for folder in done.out.glob("digits/*/k-auto/seed-*")}) == 1


def test_a_number_of_classes_that_is_wrong_is_told_by_its_error(done: Done) -> None:
    found = swept(presets(done.root, "kmeans", "simgcd", k="7"), done.root, done.out, SEEDS[:1])
    for record, folder in zip(found.records, found.folders, strict=True):
        assert folder.parent.name == "k-7"
        assert record.k == {"asked": 7, "k": 7, "true": 10, "error": 0.3, "interval": None, "curve": []}
        assert len(run.load(folder).categories) == 7


def test_the_true_k_is_that_of_the_images_that_are_sorted(tmp_path: Path) -> None:
    """A folder without images is no class."""
    root = write_digits(tmp_path / "digits", each=10, classes=4)
    assert read("folder", root).k == 4
    for file in (root / "3").iterdir():
        file.unlink()
    assert read("folder", root).k == 3


def test_a_record_is_what_will_be_found_again(counted: dict[str, Record], done: Done) -> None:
    """Also one with an interval and a curve."""
    found = swept(presets(done.root, "kmeans", k="auto", n_init=6), done.root, done.out, SEEDS[:1])
    assert found.records == (records.load(found.folders[0]),)


# The ablation


def small_heads(found: Sequence[Preset]) -> list[Preset]:
    """The paper's recipe on less than 65,536 prototypes."""
    made = []
    for preset in found:
        assert isinstance(preset.recipe.losses, Contrast)
        losses = replace(preset.recipe.losses, prototypes=32, hidden=16)
        made.append(replace(preset, n_init=5, recipe=replace(preset.recipe, losses=losses)))
    return made


def test_rows_of_the_ablation_that_learn_the_same_learn_once(root: Path, tmp_path: Path) -> None:
    names = [f"table5/cifar100/{row}" for row in (4, 5, 6)]
    rows = small_heads(presets(root, names=names, epochs=1))
    told = Told()
    found = swept(rows, root, tmp_path, **told.listeners)
    assert [record.name for record in found.records] == ["digits/table5-4", "digits/table5-5", "digits/table5-6"]
    assert beside_results(told.notes) == ["Training was done before."]
    models = [(folder / "model.safetensors").read_bytes() for folder in found.folders]
    assert models[0] != models[1] == models[2]
    four, five, six = (run.load(folder) for folder in found.folders)
    np.testing.assert_array_equal(five.features, six.features)
    x, labels = five.features, datasets.load("folder", root).select(np.arange(180) < 160).labels
    plain = SemiSupervisedKMeans(10, n_init=5, random_state=0, device="cpu").fit(x)
    told_labels = SemiSupervisedKMeans(10, n_init=5, random_state=0, device="cpu").fit(x, labels)
    rows_of = hidden(five)
    assert partition(five.assignments.category[rows_of]) == partition(plain.labels_[rows_of])
    np.testing.assert_array_equal(six.assignments.category, told_labels.labels_)
    assert four.about["training"]["losses"].keys() == five.about["training"]["losses"].keys()


# Seeds, and what was done before


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_is_another_run(method: str, done: Done) -> None:
    one, other = (figures(done.record(method, seed)) for seed in SEEDS)
    assert one["transductive"] != other["transductive"]
    assert (
        run.load(done.at(method, SEEDS[0])).assignments.labels == run.load(done.at(method, SEEDS[1])).assignments.labels
    )


def test_the_same_seed_in_a_fresh_folder_comes_to_the_same(done: Done, tmp_path: Path) -> None:
    found = swept(presets(done.root, *METHODS), done.root, tmp_path, SEEDS[:1])
    assert [figures(record) for record in found.records] == [figures(done.record(method)) for method in METHODS]


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """What tells whether anything below a folder was touched."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (stat.st_mtime_ns, stat.st_ino) for path, stat in found.items()}


def test_what_is_recorded_is_not_done_again(done: Done) -> None:
    before, told = stamps(done.out), Told()
    found = swept(presets(done.root, *METHODS), done.root, done.out, SEEDS, **told.listeners)
    assert found.again == 10
    assert found.records == done.found.records
    assert found.folders == done.found.folders
    assert told.notes == ["10 of 10 runs were done before."]
    assert told.progress == [("Reading data sets", 0, 0)], "for it may have changed"
    assert stamps(done.out) == before


def test_what_is_missing_is_done_and_comes_in_its_place(done: Done, tmp_path: Path) -> None:
    """The number of a run counts those that were done before as done."""
    told = Told()
    swept(presets(done.root, "gcd"), done.root, tmp_path, (1,))
    found = swept(presets(done.root, "kmeans", "gcd"), done.root, tmp_path, (0, 1), **told.listeners)
    assert beside_results(told.notes) == ["1 of 4 runs were done before."]
    done_now = [record for record in found.records if (record.method, record.seed) != ("gcd", 1)]
    assert told.notes[1:] == [f"{record.name}, k true, seed {record.seed}: {short(record)}" for record in done_now]
    assert [(record.method, record.seed) for record in found.records] == [
        ("kmeans", 0),
        ("kmeans", 1),
        ("gcd", 0),
        ("gcd", 1),
    ]
    heads = list(dict.fromkeys(what.partition(":")[0] for what, _, _ in told.progress))
    assert heads == [
        "Reading data sets",
        "Loading convnet",
        "Run 2 of 4, digits/kmeans, k true, seed 0",
        "Run 3 of 4, digits/kmeans, k true, seed 1",
        "Run 4 of 4, digits/gcd, k true, seed 0",
    ]


def test_progress_tells_the_run_and_its_stages(done: Done) -> None:
    progress = done.told.progress
    heads = list(dict.fromkeys(what.partition(":")[0] for what, _, _ in progress))
    runs = [f"digits/{method}, k true, seed {seed}" for method in METHODS for seed in SEEDS]
    assert heads == [
        "Reading data sets",
        "Loading convnet",
        *(f"Run {at} of 10, {name}" for at, name in enumerate(runs, start=1)),
    ]
    of_one = [what.partition(": ")[2] for what, _, _ in progress if "gcd, k true, seed 3" in what]
    assert list(dict.fromkeys(what[:5] for what in of_one)) == [f"[{number}/6]" for number in range(1, 7)]
    learning = "digits/gcd, k true, seed 3: [2/6] Learning"
    assert [(at, of) for what, at, of in progress if what.endswith(learning)] == [(0, 0), (1, 2), (2, 2)]


def task(preset: Preset, root: Path, **changes: Any) -> Task:
    return Task(**{"preset": preset, "seed": 0, "root": root, "out": Path("out"), "command": "", **HERE, **changes})


def test_all_that_decides_a_result_is_in_its_key(root: Path, tmp_path: Path) -> None:
    (one,) = presets(root, "gcd")
    data = read("folder", root)
    same = task(one, root).key(data)
    recipe, training = one.recipe, one.recipe.training
    assert isinstance(recipe.losses, Contrast)
    changes: list[dict[str, Any]] = [
        {"k": 10},
        {"k": "auto"},
        {"n_init": 6},
        {"backbone": "test_vit"},
        {"weights": "random"},
        {"dataset": "cub"},
        {"recipe": replace(recipe, training=replace(training, epochs=3))},
        {"recipe": replace(recipe, training=replace(training, lr=0.2))},
        {"recipe": replace(recipe, training=replace(training, views=None))},
        {"recipe": replace(recipe, losses=replace(recipe.losses, temperature=0.5))},
        {"recipe": replace(recipe, clustering="kmeans")},
        {"recipe": replace(recipe, select=False)},
    ]
    keys = [task(one, root, seed=1).key(data), *(task(replace(one, **each), root).key(data) for each in changes)]
    assert len({same, *keys}) == 1 + len(keys)
    beside: list[dict[str, Any]] = [{"title": "x"}, {"version": 3}, {"needs": "x"}, {"name": "x/y"}]
    keys = [task(replace(one, **each), root).key(data) for each in beside]
    around: list[dict[str, Any]] = [{"out": tmp_path}, {"workers": 3}, {"device": "cuda"}, {"root": tmp_path}]
    keys += [task(one, **{"root": root, **each}).key(data) for each in around]
    assert {*keys} == {same}


def without(data: Data, row: int) -> Data:
    return replace(data, train=data.train.select(np.arange(len(data.train)) != row))


def test_a_benchmark_of_other_images_has_another_key(root: Path, tmp_path: Path) -> None:
    (one,) = presets(root, "gcd")
    data = read("folder", root)
    copy = read("folder", shutil.copytree(root, tmp_path / "copy"))
    assert copy.stamp == data.stamp, "wherever they lie, and whenever they came there"
    first = tmp_path / "copy" / copy.train.files[0]
    first.write_bytes(first.read_bytes() + b"more")
    longer = read("folder", tmp_path / "copy")
    renamed = replace(data, test=replace(data.test, files=("x.png", *data.test.files[1:])))
    labels = np.array(data.train.labels)
    labels[np.flatnonzero(data.train.unlabelled)[0]] = 0
    told = replace(data, train=replace(data.train, labels=labels))
    others = [without(data, 0), without(data, len(data.train) - 1), longer, renamed, told]
    assert len({task(one, root).key(each) for each in (data, *others)}) == 6


def test_other_epochs_are_another_run(root: Path, tmp_path: Path) -> None:
    first = swept(presets(root, "gcd", epochs=1), root, tmp_path)
    again = swept(presets(root, "gcd", epochs=3), root, tmp_path)
    assert (again.again, again.folders) == (0, first.folders), "in the same place"
    assert again.records[0].training is not None
    assert again.records[0].training["epochs"] == 3
    assert records.load(again.folders[0]) == again.records[0] != first.records[0]


def test_another_file_of_weights_is_another_run(root: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"

    def write(seed: int) -> None:
        load_backbone("convnet", seed=seed).save(tmp_path / "weights")
        (tmp_path / "weights.json").unlink()  # which would make it a saved backbone

    write(5)
    asked = presets(root, "kmeans", weights=str(weights))
    first = swept(asked, root, tmp_path / "out")
    assert first.records[0].weights.startswith("weights.safetensors (sha256 ")
    assert swept(asked, root, tmp_path / "out").again == 1
    write(6)
    second = swept(asked, root, tmp_path / "out")
    assert second.again == 0
    assert second.records[0].weights != first.records[0].weights
    assert second.records[0].transductive != first.records[0].transductive


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": "sortal benchmark 1"}', b'{"format": "sortal benchmark 99"}', b"\xff"]
)
def test_a_record_that_is_damaged_is_made_again(content: bytes, done: Done, tmp_path: Path) -> None:
    """Of a run whose stages are all kept, so that it takes no time."""
    out = tmp_path / "out"
    shutil.copytree(done.out, out)
    file = out / "digits/kmeans/k-true/seed-0/benchmark.json"
    file.write_bytes(content)
    found = swept(presets(done.root, "kmeans"), done.root, out)
    assert found.again == 0
    assert records.load(file) == found.records[0]
    assert figures(found.records[0]) == figures(done.record("kmeans"))


def test_a_folder_that_changed_is_another_benchmark(root: Path, tmp_path: Path) -> None:
    mine, out = shutil.copytree(root, tmp_path / "digits"), tmp_path / "out"
    (first,) = swept(presets(mine, "kmeans"), mine, out).records
    (mine / "9" / "zz.txt").touch()  # no image
    assert swept(presets(mine, "kmeans"), mine, out).again == 1
    (mine / "9" / "00.png").unlink()
    second = swept(presets(mine, "kmeans"), mine, out)
    assert second.again == 0
    assert first.inductive is not None
    assert second.records[0].inductive is not None
    assert second.records[0].inductive["images"] == first.inductive["images"] - 1, "of 19 images 3 are for the test"


def test_a_run_and_its_record_stay_until_there_is_another(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes of new settings takes their place at the end, and not before."""
    first = swept(presets(root, "kmeans"), root, tmp_path)
    (place,) = first.folders
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}

    def broken(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("sortal.benchmark.task._inductive", broken)
        with pytest.raises(KeyboardInterrupt):
            swept(presets(root, "kmeans", n_init=6), root, tmp_path)
    assert {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} == before
    assert swept(presets(root, "kmeans"), root, tmp_path).records == first.records
    with monkeypatch.context() as patch:
        patch.setattr("sortal.benchmark.records.save", broken)
        with pytest.raises(KeyboardInterrupt):
            swept(presets(root, "kmeans", n_init=6), root, tmp_path)
    assert not (place / records.NAME).exists(), "no record of the old run beside the new one"
    assert run.load(place).about["settings"]["n_init"] == 6


# What goes wrong


def test_a_run_that_fails_does_not_stop_the_others(root: Path, tmp_path: Path) -> None:
    """A learning rate at which the loss is no number any more."""
    good, bad = presets(root, "gcd", "kmeans"), presets(root, "uno", lr=1e30, epochs=3)
    told = Told()
    found = swept([good[0], *bad, good[1]], root, tmp_path, (0, 1), **told.listeners)
    assert [(record.method, record.seed) for record in found.records] == [
        ("gcd", 0),
        ("gcd", 1),
        ("kmeans", 0),
        ("kmeans", 1),
    ]
    assert [name for name, _ in found.failed] == [f"digits/uno, k true, seed {seed}" for seed in (0, 1)]
    assert all(why.startswith("The loss must be a number, got {") for _, why in found.failed)
    assert all(why.endswith("Use a lower lr.") for _, why in found.failed)
    assert [note for note in told.notes if "failed" in note] == [f"{name} failed: {why}" for name, why in found.failed]
    assert not [*(tmp_path / "digits/uno").rglob(records.NAME)]
    again = swept([good[0], *bad, good[1]], root, tmp_path, (0, 1))
    assert (again.again, len(again.failed)) == (4, 2), "what failed is tried again"


@pytest.mark.parametrize("method", [method for method in METHODS if method != "kmeans"])
def test_weights_that_blew_up_in_the_last_step_are_no_result(method: MethodName, root: Path, tmp_path: Path) -> None:
    """The loss of that step was still a number."""
    found = swept(presets(root, method, lr=1e30, epochs=1), root, tmp_path)
    why = "Features must be numbers, got some that are none. Use a lower lr, or other weights."
    assert found.failed == ((f"digits/{method}, k true, seed 0", why),)


def test_a_run_that_another_process_is_at_fails_alone(root: Path, tmp_path: Path) -> None:
    with alone(tmp_path / "digits/kmeans/k-true/seed-1"):
        found = swept(presets(root, "kmeans"), root, tmp_path, (0, 1, 2))
    assert [record.seed for record in found.records] == [0, 2]
    ((name, why),) = found.failed
    assert name == "digits/kmeans, k true, seed 1"
    assert why.startswith("Another process is at work in ")


def test_a_bug_in_one_run_does_not_stop_the_others(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it was is told, and where it was is in the log."""

    def once(task: Task, data: Data, **told: Any) -> Record:
        if task.seed == 1:
            raise ZeroDivisionError("a bug")
        return do(task, data, **told)

    monkeypatch.setattr(sweep, "run", once)
    found = swept(presets(root, "kmeans"), root, tmp_path, (0, 1, 2))
    assert [record.seed for record in found.records] == [0, 2]
    assert found.failed == (("digits/kmeans, k true, seed 1", "ZeroDivisionError: a bug"),)
    assert "digits/kmeans, k true, seed 1 failed" in caplog.text
    assert 'raise ZeroDivisionError("a bug")' in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": ()}, "seeds must be at least one, each once, got []."),
        ({"seeds": (0, 1, 0)}, "seeds must be at least one, each once, got [0, 1, 0]."),
        ({"processes": 0}, "processes must be at least 1, got 0."),
        ({"device": "gpu"}, "device must be"),
        ({"device": "mps"}, "device must be on this machine, got 'mps'"),
        ({"root": Path("nowhere")}, "root must be a folder with a folder for each class, got 'nowhere'"),
        ({"weights": "nowhere.pth"}, "The file of weights 'nowhere.pth' is not there. Check the path."),
        ({"presets": []}, "There must be something to run: name a data set and a method, or a preset."),
    ],
)
def test_what_cannot_end_well_is_refused_before_anything_is_written(
    options: dict[str, Any], message: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = options.pop("presets", presets(root, "gcd", weights=options.pop("weights", None)))
    with pytest.raises(InputError) as error:
        swept(asked, options.pop("root", root), tmp_path / "out", options.pop("seeds", (0,)), **options)
    assert message in str(error.value)
    assert [*tmp_path.iterdir()] == []


K_RULE = "k must be from 5 (the labelled classes) to 125 (and every unlabelled image a class of its own), got"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"method": method, "k": "3"}, f"{K_RULE} 3.") for method in METHODS),
        ({"k": "126"}, f"{K_RULE} 126."),
        ({"views": 4}, "views must be 'auto' or 'live' for convnet, of which nothing is kept, got 4."),
        ({"seeds": (0, -1)}, "seed must be a whole number of at least 0 and at most"),
        ({"seeds": (2**32,)}, "seed must be a whole number of at least 0 and at most"),
        ({"seeds": (2**31,)}, "seed must be a whole number of at least 0 and at most 2147483647, got 2147483648."),
        ({"out": "file"}, "Runs go into a folder, got 'file', which is a file or lies in one. Name another."),
        ({"out": "file/in"}, "Runs go into a folder, got 'file/in', which is a file or lies in one. Name another."),
    ],
)
def test_what_would_fail_in_every_run_is_refused_before_the_first(
    options: dict[str, Any], message: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    out, seeds = Path(options.pop("out", "out")), options.pop("seeds", (0,))
    with pytest.raises(InputError) as error:
        swept(presets(root, options.pop("method", "gcd"), **options), root, out, seeds)
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_k_cannot_be_estimated_with_one_old_class(tmp_path: Path) -> None:
    root = write_digits(tmp_path / "digits", each=10, classes=3)
    with pytest.raises(InputError, match=r"To estimate k, images of at least two classes must be labelled, got 1\."):
        swept(presets(root, "gcd", k="auto"), root, tmp_path / "out")


def test_a_preset_that_needs_weights_says_which_and_how(root: Path, tmp_path: Path) -> None:
    rows = presets(root, names=["table5/cifar100/2", "table5/cifar100/1"], backbone=None)
    with pytest.raises(InputError) as error:
        swept(rows, root, tmp_path)
    assert str(error.value) == (
        "The preset digits/table5-1 needs weights that no hub has: dino_resnet50_pretrain.pth, from "
        "github.com/facebookresearch/dino. Pass --weights."
    )
    assert [*tmp_path.iterdir()] == []


def test_files_that_cannot_be_read_are_left_out_of_both_splits(root: Path, tmp_path: Path) -> None:
    mine, told = shutil.copytree(root, tmp_path / "digits"), Told()
    train, test = (datasets.load("folder", mine, part=part) for part in ("train", "test"))
    broken = [np.array(train.files)[train.unlabelled][0], test.files[-1]]
    tiny.break_some(mine, broken)
    (record,) = swept(presets(mine, "kmeans"), mine, tmp_path / "out", **told.listeners).records
    assert record.inductive is not None
    assert (record.transductive["images"], record.inductive["images"]) == (119, 39)
    assert beside_results(told.notes) == ["1 files cannot be read and are left out."]


def test_few_images_of_each_class_leave_no_test(tmp_path: Path) -> None:
    """And no validation images: the last epoch is taken."""
    root = write_digits(tmp_path / "digits", each=4)
    (record,) = swept(presets(root, "gcd"), root, tmp_path / "out").records
    assert record.inductive is None
    assert record.training is not None
    assert (record.training["selected"], record.training["validation"]) == (1, None)
    assert record.transductive["images"] == 40 - 10


def test_nothing_is_written_but_below_out(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    before = stamps(root)
    swept(presets(root, "gcd", "uno"), root, tmp_path / "out")
    assert stamps(root) == before
    assert [*(tmp_path / "here").iterdir()] == []
    assert {path.name for path in tmp_path.iterdir()} == {"here", "out"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"cache", "digits"}
    assert [path.name for path in (tmp_path / "out" / "cache").iterdir()] == ["digits"]
    for folder in (tmp_path / "out/digits").glob("*/*/*"):
        assert "cache" not in os.listdir(folder), "what runs share is in one place"


# Other data sets and backbones


def tiny_cifar(root: Path) -> Path:
    """CIFAR-10 as it is packed, with digits in the place of what it shows: 15 of each to learn from, 5 for the test."""
    layouts.cifar10(root)
    top, images = root / "cifar-10-batches-py", digits()

    def rows(first: int, last: int) -> tuple[list[int], NDArray[np.uint8]]:
        labels = [number for _ in range(first, last) for number in range(10)]
        chosen = [images[number][at] for at in range(first, last) for number in range(10)]
        large = np.kron(np.stack(chosen), np.ones((4, 4), np.uint8))  # (n, 32, 32)
        return labels, np.repeat(large[:, None], 3, axis=1).reshape(len(labels), 3072)

    batches = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    for at, name in enumerate(batches):
        labels, data = rows(3 * at, 3 * at + (5 if name == "test_batch" else 3))
        (top / name).write_bytes(layouts.pickle2({"labels": labels, "data": data}))
    return root


def test_a_benchmark_whose_images_are_rows_of_an_array(tmp_path: Path) -> None:
    root = tiny_cifar(tmp_path / "data")
    asked = [
        replace(preset, n_init=5)
        for preset in choose("cifar10", root, methods=["gcd", "rankstats"], backbone="convnet", epochs=1)
    ]
    found = swept(asked, root, tmp_path / "out")
    assert [record.name for record in found.records] == ["cifar10/gcd", "cifar10/rankstats"]
    for record, folder in zip(found.records, found.folders, strict=True):
        assert (record.dataset, record.k["true"]) == ("cifar10", 10)
        # Of 75 images of old classes 37 are labelled.
        assert record.transductive["images"] == 150 - 37
        assert record.inductive is not None
        assert record.inductive["images"] == 50
        known = run.load(folder)
        assert known.about["images"][0]["folder"] is None
        assert known.assignments.files[0] == "data_batch_1/00000.png"
        truth = [int(file[-9:-4]) % 10 for file in known.assignments.files]
        assert [known.assignments.truth[row] for row in range(150)] == [f"name{number}" for number in truth]
        rows = hidden(known)
        old = [f"name{number}" for number in range(5)]
        wanted = metrics.accuracy(np.array(known.assignments.truth)[rows], known.assignments.category[rows], old=old)
        assert record.transductive["accuracy"] == asdict(wanted)
    assert {path.name for path in (tmp_path / "out/cache").iterdir()} == {"cifar10"}
    again = swept(asked, root.rename(tmp_path / "elsewhere"), tmp_path / "out")
    assert (again.again, again.records) == (2, found.records), "wherever the data lie"


def test_a_transformer_with_views_that_are_kept(tmp_path: Path) -> None:
    """Untrained, on four classes; the test images of the two old ones tell which epoch is the best."""
    root = write_digits(tmp_path / "digits", each=10, classes=4)
    options: Any = {"backbone": "test_vit", "weights": "random", "views": 2, "epochs": 2}
    told = Told()
    found = swept(presets(root, "gcd", "uno", **options), root, tmp_path / "out", **told.listeners)
    assert found.failed == ()
    assert sum("2 views of " in note for note in told.notes) == 2
    assert any("Computing tokens" in what for what, _, _ in told.progress)
    for record, folder in zip(found.records, found.folders, strict=True):
        assert record.training is not None
        assert (record.training["views"], record.training["epochs"]) == (2, 2)
        assert (record.weights, record.k["true"]) == ("random weights", 4)
        assert record.transductive["images"] == 4 * 8 - 8
        assert record.inductive is not None
        assert record.inductive["images"] == 8
        assert load_backbone(str(folder / "model")).spec.name == "test_vit"
        assert (record.training["validation"] is not None) == (record.method == "gcd")
        assert not [*folder.rglob("*tokens*")], "they go where runs share things, if anywhere"


# Kills


@dataclass(frozen=True)
class Asked:
    """What is done in another process, and when it kills itself there."""

    root: str
    out: str
    words: tuple[str, ...] = ()  # of the command line, in place of a sweep
    at: int = 0  # the number of the sign of progress at which it dies, of those with
    of: str = ""  # this in them
    saving: str = ""  # dies "before" or "after" a record is written
    step: int = 0  # the step of training at which it is interrupted


@dataclass
class Ended:
    code: int = 0  # below 0: the signal that killed it
    said: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupted_at(wanted: int) -> None:
    steps, step = [0], Step.__call__

    def counted(self: Step, *values: Any) -> Any:
        steps[0] += 1
        if steps[0] == wanted:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *values)

    setattr(Step, "__call__", counted)  # noqa: B010


def _child(asked: Asked, say: Callable[..., None]) -> int:
    signs, save = [0], records.save

    def on_progress(what: str, done: int, total: int) -> None:
        say("at", what)
        signs[0] += asked.of in what
        if asked.at and signs[0] == asked.at and asked.of in what:
            _die()

    def saved(*values: Any) -> Path:
        if asked.saving == "before":
            _die()
        path = save(*values)
        if asked.saving == "after":
            _die()
        return path

    with tiny.quickly():
        setattr(sorting, "train", partial(train, checkpoint_every=0.0))  # noqa: B010
        if asked.step:
            _interrupted_at(asked.step)
        if asked.words:
            return cli.main(asked.words)
        if asked.saving:
            setattr(records, "save", saved)  # noqa: B010
        root = Path(asked.root)
        listeners: Any = {"on_progress": on_progress, "on_note": lambda text: say("note", text)}
        swept(killed_presets(root), root, Path(asked.out), **listeners)
    return 0


def killed_presets(root: Path) -> list[Preset]:
    return presets(root, "gcd", "uno", epochs=3)


def _serve() -> None:
    """Fork a process for each task that is asked for on standard input; all has been imported already.

    Nothing is computed here: torch's threads do not survive a fork.
    """
    import lightning_fabric  # noqa: F401
    import sklearn.cluster  # noqa: F401

    def say(*words: object) -> None:
        os.write(out, (json.dumps(words) + "\n").encode())

    out = os.dup(1)
    os.dup2(2, 1)
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            signal.alarm(120)  # nobody waits for ever
            code = 1
            with contextlib.suppress(Exception):
                try:
                    asked = json.loads(line)
                    code = _child(Asked(**{**asked, "words": tuple(asked["words"])}), say)
                except BaseException:
                    traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        say("code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Server:
    """A process that forks others which run benchmarks."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._words() == ["ready"]

    def run(self, asked: Asked) -> Ended:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(asked)) + "\n")
        self.process.stdin.flush()
        said: dict[str, list[str]] = {"at": [], "note": []}
        while (words := self._words())[0] != "code":
            said[words[0]].append(words[1])
        assert words[1] in (0, 130, -signal.SIGKILL), self.errors.read_text()
        return Ended(words[1], tuple(said["at"]), tuple(said["note"]))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def _words(self) -> list[Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        words: list[Any] = json.loads(line)
        return words


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


def results(out: Path) -> dict[str, Any]:
    """The figures of all records, and the bytes of what runs found."""
    found: dict[str, Any] = {}
    for path in sorted(out.glob("digits/**/benchmark.json")):
        place = path.parent
        found[str(place.relative_to(out))] = figures(records.load(place))
        for name in ("assignments.csv", "categories.csv", "features.npy", "centres.npy", "model.safetensors"):
            found[str((place / name).relative_to(out))] = (place / name).read_bytes()
    return found


@dataclass(frozen=True)
class Unbroken:
    out: Path
    said: tuple[str, ...]
    results: dict[str, Any]


@pytest.fixture(scope="module")
def unbroken(server: Server, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    out = tmp_path_factory.mktemp("unbroken") / "out"
    ended = server.run(Asked(str(root), str(out)))
    assert ended.code == 0
    return Unbroken(out, ended.said, results(out))


def test_a_sweep_killed_in_every_stage_ends_as_one_that_was_not(
    server: Server, unbroken: Unbroken, root: Path, tmp_path: Path
) -> None:
    """Of the first run in the first half of the kills, of the second one after them."""
    out = tmp_path / "out"
    moments = [
        ("Run 1 of 2", 1),
        ("Run 1 of 2, digits/gcd, k true, seed 0: [2/6] Learning", 3),
        ("[3/6]", 2),
        ("[5/6]", 1),
        ("[6/6]", 2),
        ("Run 2 of 2", 3),
        ("Run 2 of 2, digits/uno, k true, seed 0: [2/6] Learning", 2),
        ("Run 2 of 2, digits/uno, k true, seed 0: [6/6]", 1),
    ]
    for of, at in moments:
        assert sum(of in what for what in unbroken.said) >= at, of
        ended = server.run(Asked(str(root), str(out), of=of, at=at))
        assert ended.code == -signal.SIGKILL, of
        assert of in ended.said[-1]
    assert len([*out.rglob(records.NAME)]) == 1, "the first was done"
    last = server.run(Asked(str(root), str(out)))
    assert last.code == 0
    assert beside_results(last.notes) == ["1 of 2 runs were done before.", "Training was done before."]
    assert results(out) == unbroken.results
    assert not [*out.rglob("*.tmp")]


def test_training_that_was_killed_goes_on_where_it_was(server: Server, root: Path, tmp_path: Path) -> None:
    learning = "digits/gcd, k true, seed 0: [2/6] Learning"
    ended = server.run(Asked(str(root), str(tmp_path), of=learning, at=4))  # its beginning, and three steps
    assert ended.code == -signal.SIGKILL
    again = server.run(Asked(str(root), str(tmp_path), of="Run 2", at=1))
    assert again.notes[0] in ("Going on in epoch 2.", "Training was done before.")
    assert sum(learning in what for what in again.said) <= 2


@pytest.mark.parametrize(("saving", "left", "notes"), [("before", 0, 0), ("after", 1, 1)])
def test_a_sweep_killed_while_it_saves_a_record(
    saving: str, left: int, notes: int, server: Server, unbroken: Unbroken, root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(unbroken.out / "cache", out / "cache")
    assert server.run(Asked(str(root), str(out), saving=saving)).code == -signal.SIGKILL
    assert len([*out.rglob(records.NAME)]) == left
    last = server.run(Asked(str(root), str(out)))
    assert last.code == 0
    assert sum("were done before" in note for note in last.notes) == notes
    assert results(out) == unbroken.results


def test_an_interrupted_command_exits_130_and_goes_on(
    server: Server, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes in the second of three steps, after which there is a checkpoint."""
    out = tmp_path / "out"
    options = "--method gcd --backbone convnet --epochs 3 --seeds 0 --device cpu --workers 1"
    words = ("benchmark", "folder", "--root", str(root), "--out", str(out), *options.split())
    before = len(server.errors.read_text())
    assert server.run(Asked(str(root), str(out), words=words, step=2)).code == 130
    said = server.errors.read_text()[before:]
    assert "sortal: interrupted" in said.splitlines()[-1]
    assert "Traceback" not in said
    (learned,) = (out / "cache/digits/learn").iterdir()
    assert (learned / checkpoint.NAME).exists()
    assert not [*out.rglob(records.NAME)]
    assert cli.main(words) == 0
    assert "sortal: Going on in epoch 2.\n" in capsys.readouterr().err
    (record,) = records.find([out])
    (whole,) = swept(presets(root, "gcd", epochs=3, n_init=100), root, tmp_path / "whole").records
    assert figures(record) == figures(whole)


# Several processes


def test_two_processes_come_to_what_one_comes_to(done: Done, tmp_path: Path) -> None:
    """In the same order, though what learns the same goes to one of them; and a run that fails is named."""
    rows = small_heads(presets(done.root, names=["table5/cifar100/5", "table5/cifar100/6"], epochs=1))
    (wrong,) = presets(done.root, "gcd", lr=1e30, epochs=1)
    asked = [*presets(done.root, *METHODS), replace(wrong, name="digits/wrong"), *rows]
    told = Told()
    found = swept(asked, done.root, tmp_path, SEEDS, processes=2, **told.listeners)
    alone_ = swept(rows, done.root, tmp_path / "alone", SEEDS)
    wanted = [*done.found.records, *alone_.records]
    assert [figures(record) for record in found.records] == [figures(record) for record in wanted]
    assert [records.load(folder) for folder in found.folders] == [*found.records]
    assert [name for name, _ in found.failed] == [f"digits/wrong, k true, seed {seed}" for seed in SEEDS]
    assert sorted(beside_results(told.notes)) == sorted(f"{name} failed: {why}" for name, why in found.failed)
    doing = [told for told in told.progress if "runs in" in told[0]]
    assert {what for what, _, _ in doing} == {"16 runs in 2 processes"}
    assert [at for _, at, _ in doing] == [*range(17)]
    again = swept(asked[:5], done.root, tmp_path, SEEDS, processes=2)
    assert again.again == 10


def test_what_learns_the_same_is_for_one_process(root: Path) -> None:
    """Two would wait for each other, or do it twice."""
    rows = presets(root, names=["table5/cifar100/5", "table5/cifar100/6", "table2/cifar100/gcd"])
    lessons = [task(row, root).lesson for row in rows]
    assert lessons[0] == lessons[1] == lessons[2]
    gcd, uno = presets(root, "gcd", "uno")
    assert task(gcd, root).lesson == task(replace(gcd, k=7), root).lesson, "k is for what follows"
    assert task(uno, root).lesson != task(replace(uno, k=7), root).lesson, "a classifier has k outputs"
    others = [task(gcd, root, seed=1), task(uno, root), task(replace(gcd, weights="random"), root)]
    assert len({task(gcd, root).lesson, *(other.lesson for other in others)}) == 4


@pytest.mark.parametrize(
    ("device", "gpus"), [("auto", 2), ("cuda", 2), ("cuda:1", 1), ("cpu", 0)]
)  # one that was named is the only one
def test_gpus_that_processes_share_out(device: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert sweep._gpus(device) == gpus


@pytest.mark.parametrize(
    ("visible", "gpus", "taken"),
    [
        (None, 2, ["0", "1", "0"]),
        ("4,7", 2, ["4", "7", "4"]),
        ("3", 1, ["3", "3", "3"]),
        (None, 0, [None] * 3),
        ("", 0, [""] * 3),  # there are some, but not for this
    ],
)
def test_each_process_takes_a_gpu(
    visible: str | None, gpus: int, taken: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = SimpleNamespace(join=threading.Event().wait)  # as long as the tests do
    monkeypatch.setattr(sweep, "parent_process", lambda: lives)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(os, "setpgrp", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    numbers: Any = queue.Queue()
    found = []
    try:
        for number in range(3):
            numbers.put(number)
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            if visible is not None:
                monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            sweep._begin(numbers, 3, gpus)
            found.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
            assert os.environ["LOCAL_WORLD_SIZE"] == "3", "each has its share of the memory"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert found == taken


def children(parent: int) -> list[int]:
    """Processes that a process started to run benchmarks, as Linux tells."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            of = int(stat.read_text().rpartition(")")[2].split()[1])
            if of == parent and b"spawn_main" in (stat.parent / "cmdline").read_bytes():
                found.append(int(stat.parent.name))
    return found


def is_there(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
@pytest.mark.parametrize("how", ["Ctrl-C", "killed", "one killed"])
def test_processes_end_together(how: str, root: Path, tmp_path: Path) -> None:
    """While both are learning, which would take them hours."""
    out = tmp_path / "out"
    options = "--method gcd --backbone convnet --epochs 100000 --seeds 0,1 --processes 2 --device cpu --workers 1"
    words = ["benchmark", "folder", "--root", str(root), "--out", str(out), *options.split()]
    command = [sys.executable, "-m", "sortal", *words]
    with (tmp_path / "errors").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
    try:
        until(lambda: sum(len(log_of(at)) > 1 for at in out.glob("cache/digits/learn/*")) == 2 or process.poll())
        at_work = children(process.pid)
        assert len(at_work) == 2
        if how == "one killed":
            os.kill(at_work[0], signal.SIGKILL)
        elif how == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            process.kill()
        code = process.wait(timeout=60)
        until(lambda: not any(map(is_there, at_work)), 30)
    finally:
        process.kill()
        process.wait()
    said = (tmp_path / "errors").read_text()
    assert code == {"Ctrl-C": 130, "killed": -signal.SIGKILL, "one killed": 1}[how]
    assert "Traceback" not in said
    if code == 130:
        assert said.splitlines()[-1] == "sortal: interrupted; what was done is kept, and the same command goes on"
        assert len([*out.glob(f"cache/digits/learn/*/{checkpoint.NAME}")]) == 2
    if how == "one killed":
        assert said.count("failed: a process died, perhaps for lack of memory; run again, with fewer processes\n") == 2


if __name__ == "__main__":
    _serve()
