"""Benchmark runs from end to end: recomputed figures, and no repetitions."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from support import hostile_folder
from support import tiny_folder as tiny
from support.fork_server import ForkServer, is_running, say, wait_until
from support.runtimes import CPU

from sortal import metrics
from sortal.cli import app
from sortal.clustering.estimate_k import estimate_k
from sortal.clustering.kmeans import SemiSupervisedKMeans
from sortal.config import BUILT_IN, Contrast, Recipe
from sortal.errors import InputError
from sortal.images import datasets
from sortal.images.image_set import ImageSet
from sortal.learning import checkpoint
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.methods import Contrastive
from sortal.research.benchmark import records, sweep
from sortal.research.benchmark.presets import Preset
from sortal.research.benchmark.records import KRecord, Record
from sortal.research.benchmark.select import choose
from sortal.research.benchmark.sweep import SweepResult
from sortal.research.benchmark.task import Data, Task, read
from sortal.research.benchmark.task import run as run_task
from sortal.reviews.loading import load_run
from sortal.runs.facts import SplitScores
from sortal.runs.run import Run
from sortal.system.distributed import alone
from sortal.system.files import lock_folder
from sortal.system.progress import Runtime

pytestmark = pytest.mark.usefixtures("quickly")

NAMES = ("gcd", "kmeans", "rankstats", "simgcd", "sortal", "uno")
ROWS = (*NAMES, "plain")
OLD = ("0", "1", "2", "3", "4")
EACH = 20  # images of a digit, 4 of them for the test
SEED = 3  # not the default of anything


def write_digits(root: Path, each: int = EACH) -> Path:
    """Write a folder for each handwritten digit, hard enough for accuracies between 0 and 1."""
    from sklearn.datasets import load_digits

    grey, digits = load_digits(return_X_y=True)
    images = np.rint(grey.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    for digit in range(10):
        for number, image in enumerate(images[digits == digit][:each]):
            tiny.save(root / str(digit) / f"{number:02}.png", image)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data") / "digits")


def presets(root: Path, *methods: str, n_init: int = 5, **options: Any) -> list[Preset]:
    """Choose methods on the folder with the small network, trained just long enough to change it."""
    found = choose("folder", root, **{"methods": methods, "backbone": "convnet", "epochs": 2, **options})
    return [replace(preset, n_init=n_init, recipe=narrow(preset.recipe)) for preset in found]


def narrow(recipe: Recipe) -> Recipe:
    """Make the projection head small: most of the time would be spent there."""
    losses: Any = recipe.losses
    return replace(recipe, losses=replace(losses, hidden=64)) if hasattr(losses, "hidden") else recipe


def without_results(notes: Iterable[str]) -> list[str]:
    """Drop the notes with the figures of a run and of setbacks."""
    return [note for note in notes if ": All " not in note and "going back" not in note]


@dataclass
class Reports:
    """Collect notes and progress."""

    notes: list[str] = field(default_factory=list)
    progress: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def runtime(self) -> Runtime:
        return replace(CPU, note=self.notes.append, progress=lambda *what: self.progress.append(what))


def swept(presets: Sequence[Preset], root: Path, out: Path, seeds: Sequence[int] = (0,), **options: Any) -> SweepResult:
    return sweep.sweep(presets, root, out=out, seeds=seeds, **{"runtime": CPU, **options})


@dataclass(frozen=True)
class Done:
    """A sweep of all methods, and of GCD with plain k-means. Copy its folder before writing to it."""

    root: Path
    out: Path
    found: SweepResult
    reports: Reports

    def at(self, method: str) -> Path:
        return self.out / "digits" / method / "k-true" / f"seed-{SEED}"

    def record(self, method: str) -> Record:
        return records.load(self.at(method))


def all_presets(root: Path) -> list[Preset]:
    found = presets(root, *NAMES)
    gcd = found[NAMES.index("gcd")]
    return [*found, replace(gcd, name="digits/plain", recipe=replace(gcd.recipe, clustering="kmeans"))]


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory, quickly: None) -> Done:
    out, reports = tmp_path_factory.mktemp("done") / "benchmark", Reports()
    found = swept(all_presets(root), root, out, [SEED], command="sortal benchmark …", runtime=reports.runtime)
    return Done(root, out, found, reports)


def figures(record: Record) -> dict[str, Any]:
    """Return everything in a record that a repetition must reproduce."""
    varying = ("timings", "finished", "command", "machine", "versions", "key", "seconds", "images_per_second")
    content = {name: value for name, value in asdict(record).items() if name not in varying}
    training = record.training or {}
    return {**content, "training": {name: value for name, value in training.items() if name not in varying}}


def test_runs_are_recorded_and_reported_in_order(done: Done) -> None:
    found, reports = done.found, done.reports
    assert (found.failed, found.reused) == ((), 0)
    assert [(record.name, record.seed) for record in found.records] == [(f"digits/{row}", SEED) for row in ROWS]
    assert found.folders == tuple(done.at(row) for row in ROWS)
    assert tuple(records.load(folder) for folder in found.folders) == found.records
    of_one = [what for what, _, _ in reports.progress if what.startswith("Run 1 of 7, digits/gcd, k true, seed 3: ")]
    assert list(dict.fromkeys(what.partition(": ")[2][:5] for what in of_one)) == [f"[{at}/7]" for at in range(1, 8)]
    learning = "digits/gcd, k true, seed 3: [3/7] Training"
    assert [(at, of) for what, at, of in reports.progress if what.endswith(learning)] == [(0, 0), (1, 2), (2, 2)]


def check_scores(
    scores: SplitScores | None, truth: Sequence[str], categories: Sequence[int], names: Mapping[int, str]
) -> None:
    """Compare every figure with one computed in another way."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    of_old = [(t, names[c]) for t, c in zip(truth, categories, strict=True) if t in OLD]
    matched = metrics.match(truth, categories, old=OLD)
    right = [(t, matched.get(c) == t) for t, c in zip(truth, categories, strict=True)]
    by_class = [np.mean([good for t, good in right if t == name]) for name in sorted({*truth})]
    assert scores is not None
    assert scores.accuracy.all not in (0, 1, None), "a trivial figure proves nothing"
    assert asdict(scores) == {
        "images": len(truth),
        "accuracy": asdict(metrics.accuracy(truth, categories, old=OLD)),
        "legacy": asdict(metrics.legacy_accuracy(truth, categories, old=OLD)),
        "nmi": pytest.approx(normalized_mutual_info_score(truth, categories)),
        "ari": pytest.approx(adjusted_rand_score(truth, categories)),
        "known_accuracy": pytest.approx(sum(t == name for t, name in of_old) / len(of_old)),
        "class_mean": pytest.approx(np.mean(by_class)),
    }


def features_of(found: Run, images: ImageSet) -> NDArray[np.float32]:
    """Compute features by the saved model of a run, without its cache."""
    backbone = load_backbone(str(found.folder / "model"))
    return extract(backbone, images, normalise=True, runtime=CPU, precision="float32")


@pytest.mark.parametrize("method", NAMES)
def test_a_record_holds_the_settings_and_the_figures(method: str, done: Done) -> None:
    record, found = done.record(method), load_run(done.at(method))
    assert (record.name, record.version, record.dataset) == (f"digits/{method}", None, "digits")
    assert (record.method, record.backbone, record.weights) == (method, "convnet", "random weights")
    clusterings = {"kmeans": "kmeans", "gcd": "semi-supervised", "sortal": "semi-supervised"}
    assert record.clustering == clusterings.get(method, "head")
    assert record.k == KRecord(asked="true", k=10, true=10, error=0.0)
    assert record.command == "sortal benchmark …"
    timed = {"pixels", "bounds", "learn", "features", "k", "clusters", "test"}
    assert record.timings.keys() == timed == found.facts.timings.keys()
    training = record.recipe["training"]
    assert (training["seed"], training["epochs"], record.recipe["n_init"]) == (SEED, 2, 5)
    assert found.facts.settings.held_out == 0, "a benchmark trains with all labels"
    if BUILT_IN[method].classifies:
        assert record.training is not None
        assert (record.training["validation"], record.training["selected"]) == (None, 1)
    assert (record.training is None) == (BUILT_IN[method].learner is None)

    a, images = found.assignments, datasets.load("folder", done.root)
    assert a.files == tuple(np.array(images.files)[~images.validation]), "validation images are not sorted"
    rows = np.flatnonzero(unlabelled(found))
    assert len(rows) == 10 * 16 - 40, "16 of each digit are for training, and half of the 80 old ones are labelled"
    truth = [a.files[row].partition("/")[0] for row in rows]  # the folder is the class
    assert truth == [a.truth[row] for row in rows]
    check_scores(record.transductive, truth, a.category_id[rows].tolist(), found.names)

    test, head = datasets.load("folder", done.root, part="test"), found.head
    x, centres = features_of(found, test).astype(np.float64), found.centres.astype(np.float64)
    logits = -((x[:, None] - centres) ** 2).sum(axis=2) if head is None else x @ head[:, :-1].T + head[:, -1]
    categories = logits.argmax(axis=1)
    assert len(test) == 10 * 4
    check_scores(record.inductive, [file.partition("/")[0] for file in test.files], categories.tolist(), found.names)


def unlabelled(found: Run) -> NDArray[np.bool_]:
    return np.array([label is None for label in found.assignments.labels])


def clustered(x: NDArray[np.float32], labels: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    return SemiSupervisedKMeans(10, n_init=5, random_state=SEED, device="cpu").fit(x, labels).labels_


def same(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Tell whether two clusterings are the same up to the numbers of their clusters."""
    return len({*zip(one.tolist(), other.tolist(), strict=True)}) == len({*one.tolist()}) == len({*other.tolist()})


def test_kmeans_clusters_raw_features_and_gcd_those_of_the_best_epoch(done: Done) -> None:
    """Plain k-means on the features of GCD is another run, which reuses the training."""
    raw, found, plain = (load_run(done.at(method)) for method in ("kmeans", "gcd", "plain"))
    images, rows = datasets.load("folder", done.root), unlabelled(found)  # a labelled image is in its class anyway
    to_sort = images.select(~images.validation)
    backbone = load_backbone("convnet", seed=SEED)
    x = extract(backbone, to_sort, normalise=True, runtime=CPU, precision="float32")
    np.testing.assert_array_equal(x, raw.features)
    assert same(raw.assignments.category_id[rows], clustered(x)[rows])
    assert not same(clustered(x, to_sort.labels)[rows], clustered(x)[rows]), "labels would have changed something"

    np.testing.assert_allclose(features_of(found, to_sort), found.features, atol=1e-6)
    np.testing.assert_array_equal(found.assignments.category_id, clustered(found.features, to_sort.labels))
    assert np.abs(x - found.features).max() > 0.01, "training changed the features"
    log = [json.loads(line) for line in (found.folder / "log.jsonl").read_text().splitlines()]
    measured = [line["validation_accuracy"] for line in log if "validation_accuracy" in line]
    training = done.record("gcd").training
    assert training is not None
    assert (training["validation"], len(measured)) == (max(measured), 2)
    assert training["selected"] == max(at for at, each in enumerate(measured) if each == max(measured))
    np.testing.assert_array_equal(plain.features, found.features)
    assert same(plain.assignments.category_id[rows], clustered(found.features)[rows])
    counted, reused = without_results(done.reports.notes)
    assert counted.startswith("Counted ")
    assert reused == "Training is already complete."


def test_every_run_has_the_floor_and_the_ceiling_of_its_seed(done: Done) -> None:
    """The floor is what k-means as a method finds, and both are computed once."""
    bounds = done.record("kmeans").bounds
    assert bounds is not None
    assert {repr(record.bounds) for record in done.found.records} == {repr(bounds)}
    kmeans = done.record("kmeans").transductive
    assert (bounds.floor.accuracy, bounds.floor.legacy) == (kmeans.accuracy, kmeans.legacy)
    assert (bounds.floor.images, bounds.floor.known_accuracy) == (kmeans.images, None), "clusters have no names"
    assert bounds.floor.accuracy.all is not None
    assert bounds.ceiling.accuracy.all is not None
    assert bounds.floor.accuracy.all < bounds.ceiling.accuracy.all < 1
    assert len([*(done.out / "cache/digits/bounds").iterdir()]) == 1


@pytest.mark.thorough
def test_the_test_split_affects_only_the_epoch_of_gcd(done: Done, tmp_path: Path) -> None:
    """With noise in place of test images, the figures on the unlabelled images are the same."""
    root = shutil.copytree(done.root, tmp_path / "digits")
    for number, file in enumerate(datasets.load("folder", root, part="test").files):
        tiny.save(root / file, tiny.noise(number, side=8))
    for record in swept(presets(root, "kmeans", "gcd", "uno"), root, tmp_path / "out", [SEED]).records:
        before, after = figures(done.record(record.method)), figures(record)
        assert after.pop("inductive") != before.pop("inductive")
        if record.method == "gcd":
            assert after["training"]["validation"] != before["training"]["validation"]
            assert after["training"]["losses"] == before["training"]["losses"]  # of the last epoch
        else:
            assert after == before


@pytest.mark.thorough
def test_k_is_estimated_on_raw_features_by_the_papers_rule(done: Done, tmp_path: Path) -> None:
    """Even for methods that train; the curve is recorded too."""
    out = shutil.copytree(done.out, tmp_path / "out")
    found = swept(presets(done.root, "gcd", "uno", k="auto"), done.root, out, [SEED])
    assert (found.reused, [folder.parent.name for folder in found.folders]) == (0, ["k-auto"] * 2)
    images = datasets.load("folder", done.root)
    to_sort, x = images.select(~images.validation), load_run(done.at("kmeans")).features
    wanted = estimate_k(x, to_sort.labels, k_max=125, method="brent", random_state=SEED, device="cpu")
    for record, folder in zip(found.records, found.folders, strict=True):
        k = record.k
        assert (k.asked, k.k, k.true, k.interval) == ("auto", wanted.k, 10, wanted.interval)
        assert k.error == pytest.approx(abs(wanted.k - 10) / 10)
        assert [each["k"] for each in k.curve] == [each.k for each in wanted.curve]
        assert record == records.load(folder)
        assert len(load_run(folder).categories) == wanted.k


def test_a_sweep_works_with_few_images_and_a_wrong_number_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last epoch is selected, an empty folder is not a class, and nothing is written outside `out`."""
    root, out = write_digits(tmp_path / "digits", each=4), tmp_path / "out"
    for file in (root / "9").iterdir():
        file.unlink()
    before = stamps(root)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = swept(presets(root, "gcd", "simgcd", k=6), root, out)
    assert found.folders == tuple(out / f"digits/{method}/k-6/seed-0" for method in ("gcd", "simgcd"))
    for record, folder in zip(found.records, found.folders, strict=True):
        assert (record.k, record.inductive) == (KRecord(asked=6, k=6, true=9, error=(9 - 6) / 9), None)
        assert record.training is not None
        assert (record.training["selected"], record.training["validation"]) == (1, None)
        assert record.transductive.images == 36 - 8
        assert len(load_run(folder).categories) == 6
        assert "cache" not in os.listdir(folder), "the cache is shared"
    assert stamps(root) == before
    listed = [sorted(os.listdir(each)) for each in (tmp_path, out, out / "cache")]
    assert listed == [["digits", "out"], ["cache", "digits"], ["digits"]]


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the time of change and inode of everything below a folder."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (stat.st_mtime_ns, stat.st_ino) for path, stat in found.items()}


def test_recorded_runs_are_not_repeated(done: Done, tmp_path: Path) -> None:
    """Except those with a damaged record."""
    before, reports = stamps(done.out), Reports()
    found = swept(all_presets(done.root), done.root, done.out, [SEED], runtime=reports.runtime)
    assert (found.reused, found.records, found.folders) == (7, done.found.records, done.found.folders)
    assert reports.notes == ["7 of 7 runs are already recorded."]
    assert reports.progress == [("Reading data sets", 0, 0)], "the images may have changed"
    assert stamps(done.out) == before

    out = shutil.copytree(done.out, tmp_path / "out")
    file = out / done.at("kmeans").relative_to(done.out) / records.RECORD_FILE
    file.write_bytes(b"{")
    found = swept(presets(done.root, "kmeans"), done.root, out, [SEED])
    assert (found.reused, found.records) == (0, (records.load(file),))
    assert figures(found.records[0]) == figures(done.record("kmeans"))


def test_missing_runs_are_done_and_reported_in_order(done: Done, tmp_path: Path) -> None:
    """Recorded runs count as done, and another seed is another run."""
    out, reports = shutil.copytree(done.out, tmp_path / "out"), Reports()
    found = swept(presets(done.root, "kmeans", "gcd"), done.root, out, [0, SEED], runtime=reports.runtime)
    kmeans, old_kmeans, gcd, old_gcd = found.records
    assert (found.reused, old_kmeans, old_gcd) == (2, done.record("kmeans"), done.record("gcd"))
    assert [(new.method, new.seed) for new in (kmeans, gcd)] == [("kmeans", 0), ("gcd", 0)]
    notes, heads = ["2 of 4 runs are already recorded."], ["Reading data sets", "Loading convnet"]
    for number, new, old in ((3, kmeans, old_kmeans), (4, gcd, old_gcd)):
        assert new.transductive != old.transductive
        heads.append(f"Run {number} of 4, digits/{new.method}, k true, seed 0")
        shares = ", ".join(f"{of.title()} {100 * share:.1f}" for of, share in asdict(new.transductive.accuracy).items())
        notes.append(f"digits/{new.method}, k true, seed 0: {shares}")
    assert reports.notes == notes
    assert list(dict.fromkeys(what.partition(":")[0] for what, _, _ in reports.progress)) == heads
    labels = [load_run(folder).assignments.labels for folder in found.folders]
    assert labels == [labels[0]] * 4, "the data set decides which images are labelled"


def task(preset: Preset, root: Path, **changes: Any) -> Task:
    return Task(**{"preset": preset, "seed": 0, "root": root, "out": Path("out"), "command": "", **changes})


def test_the_key_covers_everything_that_decides_the_result(root: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"some")
    (one,) = presets(root, "gcd", weights=str(weights))
    data, mine = read("folder", root), shutil.copytree(root, tmp_path / "copy")
    key, recipe, training = task(one, root).key(data), one.recipe, one.recipe.training
    assert isinstance(recipe.losses, Contrast)
    recipes = [
        replace(recipe, training=replace(training, epochs=3)),
        replace(recipe, losses=replace(recipe.losses, temperature=0.5)),
        replace(recipe, clustering="kmeans"),
        replace(recipe, select=False),
    ]
    changes: list[Any] = [{"k": 10}, {"k": "auto"}, {"n_init": 6}, {"weights": "random"}, {"dataset": "cub"}]
    changes += [{"backbone": "test_vit"}, *({"recipe": each} for each in recipes)]
    keys = [task(one, root, seed=1).key(data), *(task(replace(one, **each), root).key(data) for each in changes)]
    descriptive: list[Any] = [{"title": "x"}, {"version": 3}, {"needs": "x"}, {"name": "x/y"}]
    around: list[Any] = [{"out": tmp_path}, {"root": tmp_path}]
    assert {task(replace(one, **each), root).key(data) for each in descriptive} == {key}
    with patch.object(Contrastive, "version", 99):
        assert task(one, root).key(data) != key
    assert {task(one, **{"root": root, **each}).key(data) for each in around} == {key}

    (mine / "9" / "zz.txt").touch()  # not an image
    copy = read("folder", mine)
    assert copy.stamp == data.stamp, "their folder and times do not matter"
    first = mine / copy.train.files[0]
    first.write_bytes(first.read_bytes() + b"more")
    fewer = replace(data, train=data.train.select(np.arange(len(data.train)) < len(data.train) - 1))
    renamed = replace(data, test=replace(data.test, files=("x.png", *data.test.files[1:])))
    labels = np.array(data.train.labels)
    labels[np.flatnonzero(data.train.unlabelled)[0]] = 0
    labelled = replace(data, train=replace(data.train, labels=labels))
    keys += [task(one, root).key(each) for each in (read("folder", mine), fewer, renamed, labelled)]
    weights.write_bytes(b"others")
    keys.append(task(one, root).key(data))
    assert len({key, *keys}) == 1 + len(keys)


@pytest.mark.thorough
def test_a_run_is_replaced_only_when_its_successor_is_complete(root: Path, tmp_path: Path) -> None:
    first, reports = swept(presets(root, "kmeans"), root, tmp_path), Reports()
    (place,) = first.folders
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    with (
        patch("sortal.research.benchmark.task._inductive", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        swept(presets(root, "kmeans", n_init=6), root, tmp_path, runtime=reports.runtime)
    assert reports.notes == ["1 recorded run with other settings or images will be replaced."]
    assert {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} == before
    assert swept(presets(root, "kmeans"), root, tmp_path).records == first.records
    with (
        patch("sortal.research.benchmark.records.save", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        swept(presets(root, "kmeans", n_init=6), root, tmp_path)
    assert not (place / records.RECORD_FILE).exists(), "the old record does not describe the new run"
    assert load_run(place).facts.settings.n_init == 6


# Failures


DIVERGED = "Training diverged in epoch 0 even at a learning rate of 2.7e+28, after 3 setbacks. "
DIVERGED += "Use a lower lr, or other weights."


def test_a_run_that_fails_does_not_stop_the_others(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loss that is NaN, a bug or a locked folder; the traceback of a bug is logged."""
    bad, good = (*presets(root, "uno", lr=1e30, epochs=1), *presets(root, "kmeans"))

    def with_a_bug(task: Task, data: Data, **options: Any) -> Record:
        if task.title == "digits/kmeans, k true, seed 0":
            raise ZeroDivisionError("a bug")
        return run_task(task, data, **options)

    reports = Reports()
    with patch.object(sweep, "run", with_a_bug), lock_folder(tmp_path / "digits/kmeans/k-true/seed-1"):
        found = swept([bad, good], root, tmp_path, (0, 1, 2), runtime=reports.runtime)
    assert [(record.method, record.seed) for record in found.records] == [("kmeans", 2)]
    *loss, bug, locked = found.failed
    assert [name for name, _ in loss] == [f"digits/uno, k true, seed {seed}" for seed in range(3)]
    assert {why for _, why in loss} == {DIVERGED}
    assert bug == ("digits/kmeans, k true, seed 0", "ZeroDivisionError: a bug")
    assert "digits/kmeans, k true, seed 0 failed" in caplog.text
    assert 'raise ZeroDivisionError("a bug")' in caplog.text
    assert locked[0] == "digits/kmeans, k true, seed 1"
    assert locked[1].startswith("Another process is using ")
    assert without_results(reports.notes) == [f"{name} failed: {why}" for name, why in found.failed]
    assert not [*(tmp_path / "digits/uno").rglob(records.RECORD_FILE)]
    again = swept([good], root, tmp_path, (0, 1, 2))
    assert (again.reused, len(again.records)) == (1, 3), "failed runs are tried again"


K_RULE = "k must be from 5 (the labelled classes) to 125 (with a class for each unlabelled image), got"


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ({}, {"seeds": ()}, "seeds must be one or more different numbers, got []."),
        ({}, {"seeds": (0, 1, 0)}, "seeds must be one or more different numbers, got [0, 1, 0]."),
        ({}, {"seeds": (0, 2**31)}, "seed must be a whole number of at least 0 and at most 2147483647, got 2147483648"),
        ({}, {"processes": 0}, "processes must be at least 1, got 0."),
        ({}, {"runtime": Runtime(device="mps")}, "device must be on this machine, got 'mps'"),
        (
            {},
            {"presets": []},
            "A sweep needs at least one preset, got none. Name a data set and a method, or a preset.",
        ),
        ({}, {"out": "file"}, "Runs are written to a folder, got 'file', which is a file or lies below one."),
        ({}, {"out": "file/in"}, "Runs are written to a folder, got 'file/in', which"),
        ({"weights": "nowhere.pth"}, {}, "The weights file 'nowhere.pth' does not exist. Check the path."),
        ({"methods": ["kmeans"], "k": 4}, {}, f"{K_RULE} 4."),
        ({"k": 126}, {}, f"{K_RULE} 126."),
        ({"views": 4}, {}, "views must be 'auto' or 'live' for convnet, which caches no views, got 4."),
        (
            {"names": ["table5/cifar100/2", "table5/cifar100/1"], "backbone": None},
            {},
            "The preset digits/table5-1 needs weights that are not on the hub: dino_resnet50_pretrain.pth, from ",
        ),
    ],
)
def test_invalid_sweeps_are_refused_before_anything_is_written(
    asked: Any, options: Any, message: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as error:
        swept(**{"presets": presets(root, **asked), "root": root, "out": Path("out"), **options})
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.thorough
def test_unreadable_files_are_left_out_of_both_splits(root: Path, tmp_path: Path) -> None:
    mine, reports = shutil.copytree(root, tmp_path / "digits"), Reports()
    train, test = (datasets.load("folder", mine, part=part) for part in ("train", "test"))
    bad = [np.array(train.files)[train.unlabelled][0], test.files[-1]]
    tiny.break_some(mine, bad)
    found = swept(presets(mine, "kmeans"), mine, tmp_path / "out", seeds=(0, 1), runtime=reports.runtime)
    for record in found.records:
        assert record.inductive is not None
        assert (record.transductive.images, record.inductive.images) == (119, 39)
        assert [each.file for each in record.unreadable] == bad
    assert [(each.file, each.reason) for each in found.unreadable] == [(bad[0], "truncated"), (bad[1], "empty")]
    notes = ["1 file could not be read and will be left out."]
    assert without_results(reports.notes)[:2] == [*notes, notes[0].replace("file", "file of the test split")]
    again = swept(presets(mine, "kmeans"), mine, tmp_path / "out", seeds=(0, 1))
    assert (again.reused, again.unreadable) == (2, found.unreadable), "the records tell what was left out"


def test_images_may_be_rows_of_an_array_and_weights_a_file(tmp_path: Path) -> None:
    array = tiny.as_array()
    is_test = np.arange(len(array)) % 5 == 0
    data = Data(train=array.select(~is_test), test=array.select(is_test))
    load_backbone("convnet", seed=5).save(tmp_path / "weights")
    (tmp_path / "weights.json").unlink()  # otherwise it is a saved backbone
    weights = str(tmp_path / "weights.safetensors")
    (preset,) = choose("cifar10", tmp_path, methods=["gcd"], backbone="convnet", epochs=1, weights=weights)
    asked = task(replace(preset, n_init=5), tmp_path, out=tmp_path / "out")
    record, found = run_task(asked, data, processes=alone("cpu"), runtime=CPU), load_run(asked.place)
    assert (record.name, record.dataset, record.k.true) == ("cifar10/gcd", "cifar10", 6)
    assert record.weights.startswith("weights.safetensors (sha256 ")
    assert record.inductive is not None
    assert (record.transductive.images, record.inductive.images) == (data.train.unlabelled.sum(), 24)
    assert found.facts.images[0].folder is None
    assert os.listdir(tmp_path / "out/cache") == ["cifar10"]
    assert data.test.pixels is not None
    other = replace(data, test=replace(data.test, pixels=255 - data.test.pixels))
    assert record.key == asked.key(data) != asked.key(other)


# Several processes


@pytest.mark.thorough
def test_two_processes_give_the_results_of_one(done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order, although tasks that share their training go to one process; a failed run is named.

    The processes import nothing from the current folder, which is that of a stranger.
    """
    hostile = hostile_folder.write(tmp_path / "hostile")
    monkeypatch.chdir(hostile)
    (wrong,) = presets(done.root, "gcd", lr=1e30, epochs=1)
    rows = ("gcd", "plain")
    gcd, plain = (all_presets(done.root)[ROWS.index(row)] for row in rows)
    asked, reports = [gcd, replace(wrong, name="digits/wrong"), plain], Reports()
    found = swept(asked, done.root, tmp_path / "out", [SEED], processes=2, runtime=reports.runtime)
    assert hostile_folder.taken(hostile) == set()
    assert [figures(record) for record in found.records] == [figures(done.record(row)) for row in rows]
    assert [records.load(folder) for folder in found.folders] == [*found.records]
    assert found.failed == ((f"digits/wrong, k true, seed {SEED}", DIVERGED),)
    assert without_results(reports.notes) == [f"digits/wrong, k true, seed {SEED} failed: {DIVERGED}"]
    of_all = [each for each in reports.progress if "runs in" in each[0]]
    assert of_all == [("3 runs in 2 processes", at, 3) for at in range(4)]


def test_tasks_that_share_their_training_have_the_same_key(root: Path) -> None:
    rows = presets(root, names=["table5/cifar100/5", "table5/cifar100/6", "table2/cifar100/gcd"])
    assert len({task(row, root).training_key for row in rows}) == 1
    gcd, uno = presets(root, "gcd", "uno")
    assert task(gcd, root).training_key == task(replace(gcd, k=7), root).training_key, "k does not affect training"
    assert task(uno, root).training_key != task(replace(uno, k=7), root).training_key, "a classifier has k outputs"
    others = [task(gcd, root, seed=1), task(uno, root), task(replace(gcd, weights="random"), root)]
    assert len({task(gcd, root).training_key, *(other.training_key for other in others)}) == 4


def end_while_training(root: str, out: str) -> int:
    """In a child, start a sweep that would take hours, kill its first process, and interrupt it when the last trains.

    The interruption is sent as Ctrl-C in a terminal is.
    """
    os.setsid()
    logs = "cache/digits/learn/*/log.jsonl"

    def training(count: int) -> list[int]:
        wait_until(lambda: sum(at.read_text().count("\n") > 1 for at in Path(out).glob(logs)) == count)
        return [process.pid for process in multiprocessing.active_children() if process.pid is not None]

    def watch() -> None:
        first, _ = training(2)
        say("killed", first)
        os.kill(first, signal.SIGKILL)
        say("training", training(3))
        os.killpg(0, signal.SIGINT)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    options = "--method gcd --backbone convnet --epochs 100000 --seeds 0,1,2 --processes 2 --device cpu --workers 1"
    code = app.main(["benchmark", "folder", "--root", root, "--out", out, *options.split()])
    thread.join()
    return code


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_the_processes_of_a_sweep_end_together(fork_server: ForkServer, root: Path, tmp_path: Path) -> None:
    """One that is killed makes room for the next; Ctrl-C ends all, which save what they have learned."""
    before = len(fork_server.errors.read_text())
    ended = fork_server.run(end_while_training, str(root), str(tmp_path), codes=[130])
    (killed,), (training,) = ended.each("killed"), ended.each("training")
    assert len(training) == 2
    assert killed not in training
    wait_until(lambda: not any(is_running(pid) for pid in training))
    errors = fork_server.errors.read_text()[before:]
    assert "Traceback" not in errors
    assert errors.count("failed: its process died, perhaps out of memory; run again with fewer processes\n") == 1
    assert any(line.startswith("sortal: interrupted") for line in errors.splitlines())
    assert len([*tmp_path.glob(f"cache/digits/learn/*/{checkpoint.CHECKPOINT}")]) == 2, "saved at Ctrl-C"
