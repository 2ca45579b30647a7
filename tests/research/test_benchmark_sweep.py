"""Benchmark runs from end to end: figures computed by hand, nothing done twice, nothing lost to kills."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest
import tiny_folder as tiny
import torch
from fork_server import KILLED, ForkServer, die, say
from numpy.typing import NDArray

from sortal import checkpoint, cli, datasets, metrics, run, sorting
from sortal.backbone import load_backbone
from sortal.benchmark import records, sweep
from sortal.benchmark.choice import choose
from sortal.benchmark.presets import Preset
from sortal.benchmark.records import Record
from sortal.benchmark.sweep import Swept
from sortal.benchmark.task import Data, Task, read
from sortal.benchmark.task import run as run_task
from sortal.config import CLASSIFIERS, Contrast, MethodName
from sortal.errors import InputError
from sortal.estimate import estimate_k
from sortal.features import extract
from sortal.images import ImageSet
from sortal.kmeans import SemiSupervisedKMeans
from sortal.lock import alone
from sortal.run import Run
from sortal.train import train

pytestmark = pytest.mark.usefixtures("quickly")

METHODS: tuple[MethodName, ...] = get_args(MethodName)
ROWS = (*METHODS, "plain")
OLD = ("0", "1", "2", "3", "4")
EACH = 20  # images of a digit, of which 4 are for the test
SEED = 3  # not the default of anything
HERE: dict[str, Any] = {"device": "cpu", "workers": 1}


def write_digits(root: Path, each: int = EACH) -> Path:
    """Write a folder for each handwritten digit, 8 × 8 in grey: hard enough for figures that are neither 0 nor 1."""
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


def presets(root: Path, *methods: MethodName, n_init: int = 5, **options: Any) -> list[Preset]:
    """Methods on the folder with the small network, trained just long enough to tell that it was."""
    found = choose("folder", root, **{"methods": methods, "backbone": "convnet", "epochs": 2, **options})
    return [replace(preset, n_init=n_init) for preset in found]


def without_results(notes: Iterable[str]) -> list[str]:
    """Notes, less those that tell the figures of a run."""
    return [note for note in notes if ": All " not in note]


@dataclass
class Told:
    """What was reported while something ran."""

    notes: list[str] = field(default_factory=list)
    progress: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def listeners(self) -> dict[str, Any]:
        return {"on_note": self.notes.append, "on_progress": lambda *told: self.progress.append(told)}


def swept(presets: Sequence[Preset], root: Path, out: Path, seeds: Sequence[int] = (0,), **options: Any) -> Swept:
    return sweep.sweep(presets, root, out=out, seeds=seeds, **{**HERE, **options})


@dataclass(frozen=True)
class Done:
    """A sweep of all methods, and of GCD with plain k-means. Tests that add to its folder work on a copy."""

    root: Path
    out: Path
    found: Swept
    told: Told

    def at(self, method: str) -> Path:
        return self.out / "digits" / method / "k-true" / f"seed-{SEED}"

    def record(self, method: str) -> Record:
        return records.load(self.at(method))


def all_presets(root: Path) -> list[Preset]:
    found = presets(root, *METHODS)
    gcd = found[METHODS.index("gcd")]
    return [*found, replace(gcd, name="digits/plain", recipe=replace(gcd.recipe, clustering="kmeans"))]


@pytest.fixture(scope="module")
def done(root: Path, tmp_path_factory: pytest.TempPathFactory, quickly: None) -> Done:
    out, told = tmp_path_factory.mktemp("done") / "benchmark", Told()
    found = swept(all_presets(root), root, out, [SEED], command="sortal benchmark …", **told.listeners)
    return Done(root, out, found, told)


def figures(record: Record) -> dict[str, Any]:
    """All of a record that must come out the same again."""
    beside = ("timings", "finished", "command", "machine", "versions", "key", "seconds", "images_per_second")
    content = {name: value for name, value in asdict(record).items() if name not in beside}
    training = record.training or {}
    return {**content, "training": {name: value for name, value in training.items() if name not in beside}}


# What is recorded


def test_runs_are_recorded_and_reported_in_order(done: Done) -> None:
    found, told = done.found, done.told
    assert (found.failed, found.again) == ((), 0)
    assert [(record.name, record.seed) for record in found.records] == [(f"digits/{row}", SEED) for row in ROWS]
    assert found.folders == tuple(done.at(row) for row in ROWS)
    assert tuple(records.load(folder) for folder in found.folders) == found.records
    of_one = [what for what, _, _ in told.progress if what.startswith("Run 1 of 6, digits/gcd, k true, seed 3: ")]
    assert list(dict.fromkeys(what.partition(": ")[2][:5] for what in of_one)) == [f"[{at}/6]" for at in range(1, 7)]
    learning = "digits/gcd, k true, seed 3: [2/6] Learning"
    assert [(at, of) for what, at, of in told.progress if what.endswith(learning)] == [(0, 0), (1, 2), (2, 2)]


def check_scores(scores: Any, truth: Sequence[str], categories: Sequence[int], names: Sequence[str]) -> None:
    """Compare every figure with another way to it."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    of_old = [(t, names[c]) for t, c in zip(truth, categories, strict=True) if t in OLD]
    assert 0 < scores["accuracy"]["all"] < 1, "a figure that can be wrong"
    assert scores == {
        "images": len(truth),
        "accuracy": asdict(metrics.accuracy(truth, categories, old=OLD)),
        "legacy": asdict(metrics.legacy_accuracy(truth, categories, old=OLD)),
        "nmi": pytest.approx(normalized_mutual_info_score(truth, categories)),
        "ari": pytest.approx(adjusted_rand_score(truth, categories)),
        "known_accuracy": pytest.approx(sum(t == name for t, name in of_old) / len(of_old)),
    }


def features_of(found: Run, images: ImageSet) -> NDArray[np.float32]:
    """Features of images by the model that a run saved, without its cache."""
    backbone = load_backbone(str(found.folder / "model"))
    return extract(backbone, images, normalise=True, device="cpu", precision="float32")


@pytest.mark.parametrize("method", METHODS)
def test_a_record_says_what_was_run_and_what_came_of_it(method: str, done: Done) -> None:
    record, found = done.record(method), run.load(done.at(method))
    assert (record.name, record.version, record.dataset) == (f"digits/{method}", None, "digits")
    assert (record.method, record.backbone, record.weights) == (method, "convnet", "random weights")
    assert record.clustering == {"kmeans": "kmeans", "gcd": "semi-supervised"}.get(method, "head")
    assert record.k == {"asked": "true", "k": 10, "true": 10, "error": 0.0, "interval": None, "curve": []}
    assert record.command == "sortal benchmark …"
    stages = {"pixels", "learn", "features", "k", "clusters", "test"}
    assert record.timings.keys() == stages == found.about["timings"].keys()
    training = record.recipe["training"]
    assert (training["seed"], training["epochs"], record.recipe["n_init"]) == (SEED, 2, 5)
    assert found.about["settings"]["held_out"] == 0, "a benchmark learns from all labels"
    if method in CLASSIFIERS:
        assert record.training is not None
        assert (record.training["validation"], record.training["selected"]) == (None, 1)
    assert (record.training is None) == (method == "kmeans")

    a, images = found.assignments, datasets.load("folder", done.root)
    assert a.files == tuple(np.array(images.files)[~images.validation]), "validation images are not sorted"
    rows = np.flatnonzero(unlabelled(found))
    assert len(rows) == 10 * 16 - 40, "16 of each digit are for learning, and half of the 80 old ones are labelled"
    truth = [a.files[row].partition("/")[0] for row in rows]  # the folder is the class
    assert truth == [a.truth[row] for row in rows]
    check_scores(record.transductive, truth, a.category[rows].tolist(), found.names)

    test, head = datasets.load("folder", done.root, part="test"), found.head
    x, centres = features_of(found, test).astype(np.float64), found.centres.astype(np.float64)
    logits = -((x[:, None] - centres) ** 2).sum(axis=2) if head is None else x @ head[:, :-1].T + head[:, -1]
    categories = logits.argmax(axis=1)
    assert len(test) == 10 * 4
    check_scores(record.inductive, [file.partition("/")[0] for file in test.files], categories.tolist(), found.names)


# How images are sorted


def unlabelled(found: Run) -> NDArray[np.bool_]:
    return np.array([label is None for label in found.assignments.labels])


def clustered(x: NDArray[np.float32], labels: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    return SemiSupervisedKMeans(10, n_init=5, random_state=SEED, device="cpu").fit(x, labels).labels_


def same(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    """Tell whether two clusterings are the same, whatever their clusters are called."""
    return len({*zip(one.tolist(), other.tolist(), strict=True)}) == len({*one.tolist()}) == len({*other.tolist()})


def test_kmeans_clusters_raw_features_and_gcd_those_of_the_best_epoch(done: Done) -> None:
    """Plain k-means of what GCD learned is another run, which learns nothing again."""
    raw, found, plain = (run.load(done.at(method)) for method in ("kmeans", "gcd", "plain"))
    images, rows = datasets.load("folder", done.root), unlabelled(found)  # a labelled image is in its class anyway
    to_sort = images.select(~images.validation)
    backbone = load_backbone("convnet", seed=SEED)
    x = extract(backbone, to_sort, normalise=True, device="cpu", precision="float32")
    np.testing.assert_array_equal(x, raw.features)
    assert same(raw.assignments.category[rows], clustered(x)[rows])
    assert not same(clustered(x, to_sort.labels)[rows], clustered(x)[rows]), "labels would have changed something"

    np.testing.assert_allclose(features_of(found, to_sort), found.features, atol=1e-6)
    np.testing.assert_array_equal(found.assignments.category, clustered(found.features, to_sort.labels))
    assert np.abs(x - found.features).max() > 0.01, "something was learned"
    log = [json.loads(line) for line in (found.folder / "log.jsonl").read_text().splitlines()]
    measured = [line["validation_accuracy"] for line in log if "validation_accuracy" in line]
    training = done.record("gcd").training
    assert training is not None
    assert (training["validation"], len(measured)) == (max(measured), 2)
    assert training["selected"] == max(at for at, each in enumerate(measured) if each == max(measured))
    np.testing.assert_array_equal(plain.features, found.features)
    assert same(plain.assignments.category[rows], clustered(found.features)[rows])
    assert without_results(done.told.notes) == ["Training was done before."]


def test_the_test_split_decides_nothing_but_the_epoch_of_gcd(done: Done, tmp_path: Path) -> None:
    """With noise in place of all its images, methods come to the same on the images that are sorted."""
    root = shutil.copytree(done.root, tmp_path / "digits")
    for number, file in enumerate(datasets.load("folder", root, part="test").files):
        tiny.save(root / file, tiny.noise(number, side=8))
    for record in swept(presets(root, "kmeans", "gcd", "uno"), root, tmp_path / "out", [SEED]).records:
        before, after = figures(done.record(record.method)), figures(record)
        assert after.pop("inductive") != before.pop("inductive")
        if record.method == "gcd":
            assert after["training"]["validation"] != before["training"]["validation"]
            assert after["training"]["losses"] == before["training"]["losses"], "of the last epoch, whichever is taken"
        else:
            assert after == before


# The number of classes


def test_k_is_estimated_on_raw_features_by_the_papers_rule(done: Done, tmp_path: Path) -> None:
    """Also where something was learned; what comes back is what was saved, the curve included."""
    out = shutil.copytree(done.out, tmp_path / "out")
    found = swept(presets(done.root, "gcd", "uno", k="auto"), done.root, out, [SEED])
    assert (found.again, [folder.parent.name for folder in found.folders]) == (0, ["k-auto"] * 2)
    images = datasets.load("folder", done.root)
    to_sort, x = images.select(~images.validation), run.load(done.at("kmeans")).features
    wanted = estimate_k(x, to_sort.labels, k_max=125, method="brent", random_state=SEED, device="cpu")
    for record, folder in zip(found.records, found.folders, strict=True):
        k = record.k
        assert (k["asked"], k["k"], k["true"]) == ("auto", wanted.k, 10)
        assert k["error"] == pytest.approx(abs(wanted.k - 10) / 10)
        assert k["interval"] == list(wanted.interval)
        assert [each["k"] for each in k["curve"]] == [each.k for each in wanted.curve]
        assert record == records.load(folder)
        assert len(run.load(folder).categories) == wanted.k


def test_few_images_and_a_wrong_number_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images leave none for a test or validation, so the last epoch is taken. A folder without images is no class.

    Nothing is written but below `out`.
    """
    root, out = write_digits(tmp_path / "digits", each=4), tmp_path / "out"
    for file in (root / "9").iterdir():
        file.unlink()
    before = stamps(root)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = swept(presets(root, "gcd", "simgcd", k="6"), root, out)
    assert found.folders == tuple(out / f"digits/{method}/k-6/seed-0" for method in ("gcd", "simgcd"))
    for record, folder in zip(found.records, found.folders, strict=True):
        k = {"asked": 6, "k": 6, "true": 9, "error": pytest.approx(1 / 3), "interval": None, "curve": []}
        assert (record.k, record.inductive) == (k, None)
        assert record.training is not None
        assert (record.training["selected"], record.training["validation"]) == (1, None)
        assert record.transductive["images"] == 36 - 8
        assert len(run.load(folder).categories) == 6
        assert "cache" not in os.listdir(folder), "what runs share is in one place"
    assert stamps(root) == before
    listed = [sorted(os.listdir(each)) for each in (tmp_path, out, out / "cache")]
    assert listed == [["digits", "out"], ["cache", "digits"], ["digits"]]


# What was done before


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Tell whether anything below a folder was touched."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (stat.st_mtime_ns, stat.st_ino) for path, stat in found.items()}


def test_what_is_recorded_is_not_done_again(done: Done, tmp_path: Path) -> None:
    """Unless its record is damaged."""
    before, told = stamps(done.out), Told()
    found = swept(all_presets(done.root), done.root, done.out, [SEED], **told.listeners)
    assert (found.again, found.records, found.folders) == (6, done.found.records, done.found.folders)
    assert told.notes == ["6 of 6 runs were done before."]
    assert told.progress == [("Reading data sets", 0, 0)], "they may have changed"
    assert stamps(done.out) == before

    out = shutil.copytree(done.out, tmp_path / "out")
    file = out / done.at("kmeans").relative_to(done.out) / records.NAME
    file.write_bytes(b"{")
    found = swept(presets(done.root, "kmeans"), done.root, out, [SEED])
    assert (found.again, found.records) == (0, (records.load(file),))
    assert figures(found.records[0]) == figures(done.record("kmeans"))


def test_what_is_missing_is_done_and_comes_in_its_place(done: Done, tmp_path: Path) -> None:
    """Runs that were done before count as done, and another seed is another run."""
    out, told = shutil.copytree(done.out, tmp_path / "out"), Told()
    found = swept(presets(done.root, "kmeans", "gcd"), done.root, out, [0, SEED], **told.listeners)
    kmeans, old_kmeans, gcd, old_gcd = found.records
    assert (found.again, old_kmeans, old_gcd) == (2, done.record("kmeans"), done.record("gcd"))
    assert [(new.method, new.seed) for new in (kmeans, gcd)] == [("kmeans", 0), ("gcd", 0)]
    notes, heads = ["2 of 4 runs were done before."], ["Reading data sets", "Loading convnet"]
    for number, new, old in ((3, kmeans, old_kmeans), (4, gcd, old_gcd)):
        assert new.transductive != old.transductive
        heads.append(f"Run {number} of 4, digits/{new.method}, k true, seed 0")
        shares = ", ".join(f"{of.title()} {100 * share:.1f}" for of, share in new.transductive["accuracy"].items())
        notes.append(f"digits/{new.method}, k true, seed 0: {shares}")
    assert told.notes == notes
    assert list(dict.fromkeys(what.partition(":")[0] for what, _, _ in told.progress)) == heads
    labels = [run.load(folder).assignments.labels for folder in found.folders]
    assert labels == [labels[0]] * 4, "what is labelled is a matter of the data set"


def task(preset: Preset, root: Path, **changes: Any) -> Task:
    return Task(**{"preset": preset, "seed": 0, "root": root, "out": Path("out"), "command": "", **HERE, **changes})


def test_all_that_decides_a_result_is_in_its_key(root: Path, tmp_path: Path) -> None:
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
    beside: list[Any] = [{"title": "x"}, {"version": 3}, {"needs": "x"}, {"name": "x/y"}]
    around: list[Any] = [{"out": tmp_path}, {"workers": 3}, {"device": "cuda"}, {"root": tmp_path}]
    assert {task(replace(one, **each), root).key(data) for each in beside} == {key}
    assert {task(one, **{"root": root, **each}).key(data) for each in around} == {key}

    (mine / "9" / "zz.txt").touch()  # no image
    copy = read("folder", mine)
    assert copy.stamp == data.stamp, "wherever they lie, and whenever they came there"
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


def test_a_run_and_its_record_stay_until_there_is_another(root: Path, tmp_path: Path) -> None:
    """What comes of new settings takes their place at the end, and not before."""
    first, told = swept(presets(root, "kmeans"), root, tmp_path), Told()
    (place,) = first.folders
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}
    with patch("sortal.benchmark.task._inductive", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        swept(presets(root, "kmeans", n_init=6), root, tmp_path, **told.listeners)
    assert told.notes == ["1 recorded runs are of other settings or images, and will be replaced."]
    assert {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} == before
    assert swept(presets(root, "kmeans"), root, tmp_path).records == first.records
    with patch("sortal.benchmark.records.save", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        swept(presets(root, "kmeans", n_init=6), root, tmp_path)
    assert not (place / records.NAME).exists(), "no record of the old run beside the new one"
    assert run.load(place).about["settings"]["n_init"] == 6


# What goes wrong


def test_a_run_that_fails_does_not_stop_the_others(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Be it for a loss that is no number, a bug, or another process; the traceback of a bug is logged."""
    bad, good = (*presets(root, "uno", lr=1e30, epochs=3), *presets(root, "kmeans"))

    def with_a_bug(task: Task, data: Data, **told: Any) -> Record:
        if task.title == "digits/kmeans, k true, seed 1":
            raise ZeroDivisionError("a bug")
        return run_task(task, data, **told)

    told = Told()
    with patch.object(sweep, "run", with_a_bug), alone(tmp_path / "digits/kmeans/k-true/seed-2"):
        found = swept([bad, good], root, tmp_path, (0, 1, 2, 3), **told.listeners)
    assert [(record.method, record.seed) for record in found.records] == [("kmeans", 0), ("kmeans", 3)]
    *loss, bug, locked = found.failed
    assert [name for name, _ in loss] == [f"digits/uno, k true, seed {seed}" for seed in range(4)]
    assert all(why.startswith("The loss must be a number, got {") for _, why in loss)
    assert all(why.endswith("Use a lower lr.") for _, why in loss)
    assert bug == ("digits/kmeans, k true, seed 1", "ZeroDivisionError: a bug")
    assert "digits/kmeans, k true, seed 1 failed" in caplog.text
    assert 'raise ZeroDivisionError("a bug")' in caplog.text
    assert locked[0] == "digits/kmeans, k true, seed 2"
    assert locked[1].startswith("Another process is at work in ")
    assert without_results(told.notes) == [f"{name} failed: {why}" for name, why in found.failed]
    assert not [*(tmp_path / "digits/uno").rglob(records.NAME)]
    again = swept([good], root, tmp_path, (0, 1, 2, 3))
    assert (again.again, len(again.records)) == (2, 4), "what failed is tried again"


K_RULE = "k must be from 5 (the labelled classes) to 125 (and every unlabelled image a class of its own), got"


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ({}, {"seeds": ()}, "seeds must be at least one, each once, got []."),
        ({}, {"seeds": (0, 1, 0)}, "seeds must be at least one, each once, got [0, 1, 0]."),
        ({}, {"seeds": (0, 2**31)}, "seed must be a whole number of at least 0 and at most 2147483647, got 2147483648"),
        ({}, {"processes": 0}, "processes must be at least 1, got 0."),
        ({}, {"device": "mps"}, "device must be on this machine, got 'mps'"),
        ({}, {"presets": []}, "There must be something to run: name a data set and a method, or a preset."),
        ({}, {"out": "file"}, "Runs go into a folder, got 'file', which is a file or lies in one. Name another."),
        ({}, {"out": "file/in"}, "Runs go into a folder, got 'file/in', which"),
        ({"weights": "nowhere.pth"}, {}, "The file of weights 'nowhere.pth' is not there. Check the path."),
        ({"methods": ["kmeans"], "k": "4"}, {}, f"{K_RULE} 4."),
        ({"k": "126"}, {}, f"{K_RULE} 126."),
        ({"views": 4}, {}, "views must be 'auto' or 'live' for convnet, of which nothing is kept, got 4."),
        (
            {"names": ["table5/cifar100/2", "table5/cifar100/1"], "backbone": None},
            {},
            "The preset digits/table5-1 needs weights that no hub has: dino_resnet50_pretrain.pth, from ",
        ),
    ],
)
def test_what_cannot_end_well_is_refused_before_anything_is_written(
    asked: Any, options: Any, message: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as error:
        swept(**{"presets": presets(root, **asked), "root": root, "out": Path("out"), **options})
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_that_cannot_be_read_are_left_out_of_both_splits(root: Path, tmp_path: Path) -> None:
    mine, told = shutil.copytree(root, tmp_path / "digits"), Told()
    train, test = (datasets.load("folder", mine, part=part) for part in ("train", "test"))
    tiny.break_some(mine, [np.array(train.files)[train.unlabelled][0], test.files[-1]])
    (record,) = swept(presets(mine, "kmeans"), mine, tmp_path / "out", **told.listeners).records
    assert record.inductive is not None
    assert (record.transductive["images"], record.inductive["images"]) == (119, 39)
    assert without_results(told.notes) == ["1 files cannot be read and are left out."]


# Other data sets and backbones


def test_images_may_be_rows_of_an_array_and_weights_a_file(tmp_path: Path) -> None:
    array = tiny.as_array()
    is_test = np.arange(len(array)) % 5 == 0
    data = Data(train=array.select(~is_test), test=array.select(is_test))
    load_backbone("convnet", seed=5).save(tmp_path / "weights")
    (tmp_path / "weights.json").unlink()  # which would make it a saved backbone
    weights = str(tmp_path / "weights.safetensors")
    (preset,) = choose("cifar10", tmp_path, methods=["gcd"], backbone="convnet", epochs=1, weights=weights)
    asked = task(replace(preset, n_init=5), tmp_path, out=tmp_path / "out")
    record, found = run_task(asked, data), run.load(asked.place)
    assert (record.name, record.dataset, record.k["true"]) == ("cifar10/gcd", "cifar10", 6)
    assert record.weights.startswith("weights.safetensors (sha256 ")
    assert record.inductive is not None
    assert (record.transductive["images"], record.inductive["images"]) == (data.train.unlabelled.sum(), 24)
    assert found.about["images"][0]["folder"] is None
    assert os.listdir(tmp_path / "out/cache") == ["cifar10"]
    assert data.test.pixels is not None
    other = replace(data, test=replace(data.test, pixels=255 - data.test.pixels))
    assert record.key == asked.key(data) != asked.key(other)


# Kills


def sweep_in_child(root: str, out: str, of: str = "", at: int = 0, saving: str = "") -> None:
    """Sweep, and die at the progress report of number `at` with `of` in it, or before or after a record is saved."""
    reports, save = 0, records.save

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal reports
        say("at", what)
        reports += of in what
        if of in what and reports == at:
            die()

    def saved(*values: Any) -> Path:
        path = Path() if saving == "before" else save(*values)
        if saving:
            die()
        return path

    listeners: Any = {"on_progress": on_progress, "on_note": lambda text: say("note", text)}
    kept_at_once = patch.object(sorting, "train", partial(train, checkpoint_every=0.0))
    with tiny.quickly(), kept_at_once, patch.object(records, "save", saved):
        swept(presets(Path(root), "gcd", "uno", epochs=3), Path(root), Path(out), **listeners)


def results(out: Path) -> dict[str, Any]:
    """The figures of all records, and the bytes of what runs found."""
    names = ("assignments.csv", "categories.csv", "features.npy", "centres.npy", "model.safetensors")
    places = [path.parent for path in sorted(out.glob("digits/**/benchmark.json"))]
    found: dict[str, Any] = {str(place.relative_to(out)): figures(records.load(place)) for place in places}
    files = [place / name for place in places for name in names]
    return found | {str(file.relative_to(out)): file.read_bytes() for file in files}


def test_a_sweep_that_is_killed_again_and_again_ends_as_one_that_is_not(
    fork_server: ForkServer, root: Path, tmp_path: Path
) -> None:
    """First in its first run, then in the second one. Training that was killed goes on where it was."""
    out, unbroken = tmp_path / "out", tmp_path / "unbroken"
    fork_server.run(sweep_in_child, str(root), str(unbroken), codes=[0])
    learning = "digits/gcd, k true, seed 0: [2/6] Learning"
    moments: list[tuple[list[Any], int]] = [  # how it dies, and how many records there are then
        ([learning, 4], 0),  # its beginning, and three steps
        *(([f"digits/gcd, k true, seed 0: {stage}", at], 0) for stage, at in (("[5/6]", 1), ("[6/6]", 2))),
        *((["", 0, "before"], 0), (["", 0, "after"], 1)),
        *(([f"digits/uno, k true, seed 0: {stage}", at], 1) for stage, at in (("[2/6] Learning", 2), ("[6/6]", 1))),
    ]
    killed = []
    for how, left in moments:
        killed.append(fork_server.run(sweep_in_child, str(root), str(out), *how, codes=[KILLED]))
        assert len([*out.rglob(records.NAME)]) == left
    assert killed[1].each("note")[0] in ("Going on in epoch 2.", "Training was done before.")
    assert sum(learning in what for what in killed[1].each("at")) <= 2
    last = fork_server.run(sweep_in_child, str(root), str(out), codes=[0])
    assert without_results(last.each("note")) == ["1 of 2 runs were done before.", "Training was done before."]
    assert results(out) == results(unbroken)
    assert len(results(out)) == 2 * 6
    assert not [*out.rglob("*.tmp")]


# Several processes


def test_two_processes_come_to_what_one_comes_to(done: Done, tmp_path: Path) -> None:
    """In the same order, though what learns the same goes to one of them; and a run that fails is named."""
    (wrong,) = presets(done.root, "gcd", lr=1e30, epochs=1)  # the loss of its only step is still a number
    asked, told = [replace(wrong, name="digits/wrong"), *all_presets(done.root)], Told()
    found = swept(asked, done.root, tmp_path, [SEED], processes=2, **told.listeners)
    assert [figures(record) for record in found.records] == [figures(record) for record in done.found.records]
    assert [records.load(folder) for folder in found.folders] == [*found.records]
    why = "Features must be numbers, got some that are none. Use a lower lr, or other weights."
    assert found.failed == ((f"digits/wrong, k true, seed {SEED}", why),)
    assert without_results(told.notes) == [f"digits/wrong, k true, seed {SEED} failed: {why}"]
    of_all = [told for told in told.progress if "runs in" in told[0]]
    assert of_all == [("7 runs in 2 processes", at, 7) for at in range(8)]


def test_what_learns_the_same_is_for_one_process(root: Path) -> None:
    """Two would wait for each other, or do it twice."""
    rows = presets(root, names=["table5/cifar100/5", "table5/cifar100/6", "table2/cifar100/gcd"])
    assert len({task(row, root).lesson for row in rows}) == 1
    gcd, uno = presets(root, "gcd", "uno")
    assert task(gcd, root).lesson == task(replace(gcd, k=7), root).lesson, "k is for what follows"
    assert task(uno, root).lesson != task(replace(uno, k=7), root).lesson, "a classifier has k outputs"
    others = [task(gcd, root, seed=1), task(uno, root), task(replace(gcd, weights="random"), root)]
    assert len({task(gcd, root).lesson, *(other.lesson for other in others)}) == 4


def test_processes_share_out_all_gpus_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [sweep._gpus(device) for device in ("auto", "cuda", "cuda:1", "cpu")] == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("visible", "gpus", "taken"),
    [(None, 2, ["0", "1", "0"]), ("4,7", 2, ["4", "7", "4"]), ("", 0, ["", "", ""])],
)
def test_each_process_takes_a_gpu(
    visible: str | None, gpus: int, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(sweep, "_end_with_parent", lambda: None)
    monkeypatch.setattr(os, "setpgrp", lambda: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    numbers, found = queue.Queue[int](), []
    for number in range(3):
        numbers.put(number)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        sweep._begin(numbers, 3, gpus)  # type: ignore[arg-type]
        found.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert found == taken
    assert os.environ["LOCAL_WORLD_SIZE"] == "3", "each has its share of the memory"
    assert handlers == {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_IGN}


def status(pid: int | str) -> list[str]:
    """The state of a process and its parent, as Linux tells; nothing of one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return ["Z", ""]


def children(parent: int) -> list[str]:
    """Processes that a process started to run benchmarks."""
    found = [each.name for each in Path("/proc").glob("[0-9]*") if status(each.name)[1] == str(parent)]
    return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 240
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def learn_in_two_processes(root: str, out: str, how: str) -> int:
    """In a child: start a sweep that would take hours, and end it as soon as both of its processes are learning."""

    def end() -> None:
        logs = "cache/digits/learn/*/log.jsonl"
        wait_until(lambda: sum(at.read_text().count("\n") > 1 for at in Path(out).glob(logs)) == 2)
        at_work = children(os.getpid())
        say("children", [int(pid) for pid in at_work])
        if how == "one killed":
            os.kill(int(at_work[0]), signal.SIGKILL)
        elif how == "Ctrl-C":
            os.killpg(0, signal.SIGINT)  # as a terminal does
        else:
            die()

    os.setsid()
    threading.Thread(target=end, daemon=True).start()
    options = "--method gcd --backbone convnet --epochs 100000 --seeds 0,1 --processes 2 --device cpu --workers 1"
    return cli.main(["benchmark", "folder", "--root", root, "--out", out, *options.split()])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
@pytest.mark.parametrize(("how", "code"), [("Ctrl-C", 130), ("killed", KILLED), ("one killed", 1)])
def test_processes_end_together(how: str, code: int, fork_server: ForkServer, root: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "out", len(fork_server.errors.read_text())
    (at_work,) = fork_server.run(learn_in_two_processes, str(root), str(out), how, codes=[code]).each("children")
    assert len(at_work) == 2
    wait_until(lambda: all(status(pid)[0] == "Z" for pid in at_work))
    said = fork_server.errors.read_text()[before:]
    assert "Traceback" not in said
    if code == 130:
        assert "sortal: interrupted; what was done is kept, and the same command goes on" in said.splitlines()
        assert len([*out.glob(f"cache/digits/learn/*/{checkpoint.NAME}")]) == 2
    if how == "one killed":
        assert said.count("failed: a process died, perhaps for lack of memory; run again, with fewer processes\n") == 2
