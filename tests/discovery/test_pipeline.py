"""The whole pipeline, from a folder to categories: results, reuse of the cache, and errors."""

from __future__ import annotations

import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import SortedRun
from support import tiny_folder as tiny
from support.rounding import rounding
from support.runtimes import CPU
from support.thorough import thorough_but
from support.tiny_folder import EACH, LABELLED, OLD, SETTINGS, never, sort, spy, tables
from support.tiny_methods import double_precision

from sortal import metrics
from sortal.cli import app
from sortal.config import MAX_PIXELS, Discovery, Reading
from sortal.discovery import defaults, results, stages
from sortal.discovery.grouping import choose_k, rounds, shared_kmeans
from sortal.discovery.pipeline import discover
from sortal.errors import InputError
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.frozen import FrozenEncoder
from sortal.learning.step import TrainingStep
from sortal.metrics import Accuracy
from sortal.reviews.loading import load_run
from sortal.runs.facts import ImageSource, Metrics
from sortal.runs.run import Run
from sortal.runs.storage import peek
from sortal.system import device, workers
from sortal.system.json_records import read_record

N = 6 * EACH
HELD = 3 * (LABELLED // 2)
pytestmark = pytest.mark.usefixtures("quickly")


def categories_of(found: Run) -> dict[str, str]:
    """Return the name of each file's category."""
    a = found.assignments
    return {file: found.names[j] for file, j in zip(a.files, a.category_id.tolist(), strict=True)}


def same_groups(found: Run, truth: Mapping[str, str]) -> bool:
    """Tell whether categories match classes, whatever their names."""
    pairs = {(name, truth[file]) for file, name in categories_of(found).items()}
    return len(pairs) == len({name for name, _ in pairs}) == len({name for _, name in pairs})


def sizes_of(found: Run) -> int:
    return sum(category.size for category in found.categories)


def test_planted_classes_are_found_and_tables_agree(sorted_run: SortedRun) -> None:
    found, truth = sorted_run.run, sorted_run.truth
    assert same_groups(found, truth)
    assert all(name == truth[file] for file, name in categories_of(found).items() if truth[file] in OLD)
    assert tuple(found.names.values()) == (*OLD, "new 1", "new 2", "new 3")
    rows, categories = (tiny.rows_of(sorted_run.out / f"{name}.csv") for name in ("assignments", "categories"))
    sizes = Counter(row["category_id"] for row in rows)
    assert sorted(row["file_name"] for row in rows) == sorted(truth)
    assert {row["id"]: int(row["size"]) for row in categories} == sizes
    assert [category.size for category in found.categories] == [sizes[str(j)] for j in range(6)]
    assert {(row["category_id"], row["category"]) for row in rows} == {(r["id"], r["name"]) for r in categories}
    for status in ("labelled", "unsure"):
        counted = Counter(row["category_id"] for row in rows if row["status"] == status)
        assert {row["id"]: int(row[status]) for row in categories} == {str(j): counted[str(j)] for j in range(6)}


def test_held_out_labels_are_hidden_from_training_k_and_clustering(
    copied_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(copied_run.out / "cache/clusters")
    monkeypatch.setattr("sortal.discovery.reviewing.advice.Advice.parts", lambda *_: [])  # which the report needs
    trained, estimated = spy(monkeypatch, rounds, "train"), spy(monkeypatch, choose_k, "estimate_k")
    gathered, fitted = spy(monkeypatch, results, "gather"), spy(monkeypatch, shared_kmeans, "fit")
    found = sort(copied_run.images, copied_run.out, k="auto")
    labelled = np.array([label is not None for label in found.assignments.labels])
    held = gathered[0][6]
    assert held.sum() == HELD == found.confidence.held_out
    assert not trained[0][1].validation.any()
    (_, counting, *_), *others = trained
    assert len(counting.known) == 2, "one class is hidden while the method learns to count"
    assert not counting.labelled[held].any()
    for labels in (*(images.labels for _, images, *_ in others), *(labels for _, labels in estimated), fitted[0][1]):
        np.testing.assert_array_equal(labels >= 0, labelled & ~held)
    assert {int((labels >= 0).sum()) for _, labels, *_ in fitted} == {int((labelled & ~held).sum())}  # also of halves
    counts = Counter(label for label, out in zip(found.assignments.labels, held, strict=True) if out)
    assert counts == dict.fromkeys(OLD, LABELLED // 2)
    found = sort(copied_run.images, copied_run.out, held_out=0)
    assert not found.confidence.calibrated
    assert any(note.startswith("Confidence rests on distances alone") for note in found.facts.notes)
    assert not gathered[1][6].any()
    assert (trained[-1][1].labels >= 0).sum() == 3 * LABELLED


@pytest.mark.parametrize("method", thorough_but(["gcd"], ["gcd", "uno"]))
def test_the_order_of_rows_does_not_matter(copied_run: SortedRun, tmp_path: Path, method: str) -> None:
    """But for rounding, which training amplifies, so it is in float64."""
    files, rows = [*copied_run.truth], []
    for order in (files, [files[i] for i in np.random.default_rng(0).permutation(N)]):
        table = tiny.write_labels(tmp_path / "labels.csv", dict.fromkeys(order, ""))
        shutil.rmtree(copied_run.out / "cache/learn")
        with double_precision():
            found = sort(copied_run.images, copied_run.out, labels=table, method=method, k="auto")
        assert found.assignments.files == tuple(order)
        assert found.k.k == len(found.categories)
        written = [{**row, "group": ""} for row in tiny.rows_of(copied_run.out / "assignments.csv")]  # in row order
        rows.append(sorted(written, key=lambda row: row["file_name"]))
    tiny.assert_same_rows(*rows)


def at_most(n: int) -> Callable[..., Iterator[Any]]:
    """Replace `run_workers` by a version that reads at most n images."""

    def reading(task: Any, jobs: Any, **options: Any) -> Iterator[Any]:
        wanted = [*jobs]
        assert len(wanted) <= n, "too many images are read"
        return workers.run_workers(task, wanted, **options)

    return reading


def test_results_that_do_not_depend_on_changed_settings_are_reused(
    copied_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No image is read, no step is trained, and no feature is computed."""
    monkeypatch.setattr("sortal.images.store.packing.run_workers", at_most(0))
    for owner in (TrainingStep, FrozenEncoder):
        monkeypatch.setattr(owner, "__call__", never)
    monkeypatch.setattr("sortal.learning.features.FeatureCache.add", never)
    before = tables(copied_run.out)
    with monkeypatch.context() as patch:
        patch.setattr(shared_kmeans, "fit", never)
        patch.setattr("sortal.discovery.reviewing.advice.Advice.parts", lambda *_: [])  # which the report needs
        sort(copied_run.images, copied_run.out)
        assert tables(copied_run.out) == before
        sort(copied_run.images, copied_run.out, unsure_below=0.99)
        assert tiny.strict_json(copied_run.out / "confidence.json")["unsure_below"] == 0.99
    for k in (3, 8, 81):  # from the known classes alone to a category for each unlabelled image
        found = sort(copied_run.images, copied_run.out, k=k)
        assert len(found.categories) == found.k.k == len(tiny.rows_of(copied_run.out / "categories.csv")) == k
        assert sizes_of(found) == N
        assert tuple(found.names.values())[:3] == OLD
        assert found.facts.hashes == copied_run.run.facts.hashes


def test_an_estimated_k_is_reused_and_damaged_caches_are_rebuilt(
    copied_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sort(copied_run.images, copied_run.out, k="auto")
    assert first.k.estimated
    assert first.k.interval is not None
    assert first.k.known == 3 <= first.k.interval[0] <= first.k.k <= first.k.interval[1] <= 12
    assert first.k.k in {at.k for at in first.k.curve}
    before = tables(copied_run.out)
    with monkeypatch.context() as patch:
        patch.setattr("sortal.clustering.estimate_k._Clusterings.scores", never)
        assert sort(copied_run.images, copied_run.out, k="auto").k == first.k
        assert tables(copied_run.out) == before
    for damage in (b"", b"{"):
        for what in ("check", "clusters", "k"):
            for path in (copied_run.out / "cache" / what).iterdir():
                path.write_bytes(damage)
        assert sort(copied_run.images, copied_run.out, k="auto").k == first.k
        assert tables(copied_run.out) == before


@pytest.mark.thorough
def test_other_training_settings_train_again_and_earlier_models_are_reused(
    copied_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, gathered = spy(monkeypatch, TrainingStep, "__call__"), spy(monkeypatch, results, "gather")
    images, out = copied_run.images, copied_run.out
    first, before, model = copied_run.run.facts, tables(out), (out / "model.safetensors").read_bytes()
    shorter = sort(images, out, epochs=1).facts.training
    assert shorter is not None
    assert shorter.epochs == 1
    assert not steps, "contrast with all labels is the only round of one"
    assert (out / "model.safetensors").read_bytes() != model
    usual = first.recipe.training.lr
    found = sort(images, out, lr=usual / 5).facts
    assert len(steps) == 3
    assert found.recipe.training.lr == usual / 5
    assert found.hashes.model != first.hashes.model
    assert sort(images, out, lr=usual).facts.hashes == first.hashes
    assert len(steps) == 3
    assert tables(out) == before
    assert (out / "model.safetensors").read_bytes() == model
    found = sort(images, out, seed=1).facts
    assert len(steps) == 6
    assert (gathered[-1][6] != gathered[0][6]).any()
    assert gathered[-1][6].sum() == HELD
    assert found.hashes.model != first.hashes.model
    assert found.hashes.images == first.hashes.images


@pytest.mark.thorough
def test_an_added_image_and_a_changed_label_repeat_only_the_stages_that_depend_on_them(
    tmp_path: Path, sorted_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, out = tmp_path / "images", tmp_path / "run"
    shutil.copytree(sorted_run.images, images)
    sort(images, out)
    tiny.save(images / "unlabelled/one more.png", tiny.picture("holly", 77))
    steps, computed = spy(monkeypatch, TrainingStep, "__call__"), spy(monkeypatch, FrozenEncoder, "__call__")
    with monkeypatch.context() as patch:
        patch.setattr("sortal.images.store.packing.run_workers", at_most(1))
        found = sort(images, out)
    assert len(steps) == 3
    assert len(found.assignments) == N + 1 == sizes_of(found)
    named = categories_of(found)
    holly = [file for file, name in sorted_run.truth.items() if name == "holly"]
    assert {named[file] for file in holly} == {named["unlabelled/one more.png"]}
    elms = [file for file, name in sorted_run.truth.items() if name == "elm"]
    (images / "elm").mkdir()
    for number, file in enumerate(elms[:10]):
        (images / file).rename(images / f"elm/{number}.png")
    computed.clear()
    found = sort(images, out)
    assert len(steps) == 6
    assert computed
    classes = [*OLD, "elm"]
    assert [(c.name, c.kind) for c in found.categories[:4]] == [(name, "known") for name in classes]
    assert found.counts()["labelled"] == 3 * LABELLED + 10
    assert {categories_of(found)[file] for file in elms[10:]} == {"elm"}


def test_the_caller_keeps_its_number_of_threads(copied_run: SortedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(device, "cores", lambda: 3)
    monkeypatch.setattr(device, "_quickest_now", lambda most: 1)
    try:
        torch.set_num_threads(3)
        found = sort(copied_run.images, copied_run.out)
        assert any("with 1 thread instead of 3" in note for note in found.facts.notes)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.thorough
def test_the_truth_affects_only_the_metrics(sorted_run: SortedRun, tmp_path: Path) -> None:
    """Given for some images, invented for all, or absent."""
    files, rows = [*sorted_run.truth], []
    half = [name if number % 2 else tiny.label_of(file) for number, (file, name) in enumerate(sorted_run.truth.items())]
    made_up = [tiny.label_of(file) or f"class {file}" for file in files]
    for out, truths in (("one", half), ("other", made_up), ("other", None)):
        table = tiny.write_labels(tmp_path / "labels.csv", sorted_run.truth, truths)
        found = sort(sorted_run.images, tmp_path / out, labels=table, k="auto")
        written = tiny.rows_of(tmp_path / out / "assignments.csv")
        rows.append([{**row, "truth": ""} for row in written])
        if truths is None:
            assert found.metrics is None
            assert not (tmp_path / out / "metrics.json").exists()
            continue
        known = [row for row in written if row["truth"] and row["status"] != "labelled"]
        truth, category = ([row[column] for row in known] for column in ("truth", "category_id"))
        saved = tiny.strict_json(tmp_path / out / "metrics.json")
        assert read_record(Metrics, saved) == found.metrics
        assert saved["accuracy"] == vars(metrics.accuracy(truth, category, old=OLD))
        assert (saved["nmi"], saved["ari"]) == (metrics.nmi(truth, category), metrics.ari(truth, category))
        assert saved["images"] == len(known) == sum(map(bool, truths)) - 3 * LABELLED
    assert rows[0] == rows[1] == rows[2]


def test_without_training_features_are_those_of_the_backbone(
    copied_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (copied_run.out / "log.jsonl").exists()
    monkeypatch.setattr(stages, "train", never)
    found = sort(copied_run.images, copied_run.out, method="kmeans")
    assert found.facts.training is None
    assert not (copied_run.out / "log.jsonl").exists()  # which the earlier run wrote
    backbone = load_backbone("convnet")
    x = extract(backbone, found.images(), normalise=True, runtime=CPU, precision="float32")
    np.testing.assert_array_equal(found.features, x)
    saved = load_backbone(str(copied_run.out / "model.json"))
    assert saved.fingerprint() == backbone.fingerprint() == found.facts.hashes.model
    np.testing.assert_allclose(
        np.linalg.norm(found.features.astype(np.float64), axis=1), 1, atol=rounding(512 + 3, np.float32)
    )
    untrained = sort(copied_run.images, copied_run.out, epochs=0).facts
    assert (untrained.training, untrained.hashes) == (None, found.facts.hashes)


def test_no_image_need_be_labelled(copied_run: SortedRun, tmp_path: Path) -> None:
    out = tmp_path / "unlabelled"
    estimated = sort(copied_run.images, out, folders="ignore", k="auto")
    assert (estimated.k.method, estimated.k.known) == ("separation", 0)
    assert len(estimated.categories) == estimated.k.k > 1
    found = sort(copied_run.images, out, folders="ignore")
    assert tuple(found.names.values()) == tuple(f"new {number}" for number in range(1, 7))
    assert sizes_of(found) == N
    assert found.counts()["labelled"] == found.counts()["known"] == 0
    assert not found.confidence.calibrated
    assert any("No image is labelled" in note for note in found.facts.notes)
    assert same_groups(found, copied_run.truth)
    # As few defined figures as possible: one category, and no known class
    table = tmp_path / "labels.csv"
    tiny.write_table(table, [*copied_run.truth], [None] * N, [*copied_run.truth.values()])
    alone = sort(copied_run.images, out, labels=table, k=1)
    assert alone.metrics is not None
    assert alone.metrics.accuracy.old is None
    for name in ("run", "k", "confidence", "model", "metrics"):
        tiny.strict_json(out / f"{name}.json")
    assert "NaN" not in (out / "log.jsonl").read_text()
    assert set(alone.assignments.next_category_id) == {-1}
    assert {row["next_distance"] for row in tiny.rows_of(out / "assignments.csv")} == {""}


def test_copies_similar_names_and_tiny_images_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = tiny.planted(each=8, labelled=6)
    copies = {"ash/copy.png": files["beech/0.png"], "unlabelled/copy.png": files["cedar/0.png"], "Ash/x.png": "ash 99"}
    tiny.write(tmp_path / "images", {**files, **copies})
    advise = Mock(wraps=defaults.notes)
    monkeypatch.setattr(defaults, "notes", advise)
    for name in ("copy.png", "copy.png", "twin.png"):  # the second time from the cache
        (tmp_path / "images/unlabelled/copy.png").rename(tmp_path / "images/unlabelled" / name)
        found = sort(tmp_path / "images", tmp_path / "run", method="kmeans")
        notes, a = found.facts.notes, found.assignments
        told = {file: (label, status) for file, label, status in zip(a.files, a.labels, a.status, strict=True)}
        for file in ("ash/copy.png", "beech/0.png"):
            assert told[file][0] is None
            assert told[file][1] != "labelled"
        assert told["beech/1.png"] == ("beech", "labelled")
        assert found.metrics is None, "nobody knows the class of these two"
        assert advise.call_args.kwargs["mostly_tiny"]
        assert [note for note in notes if "Confidence rests" not in note and " unsure." not in note] == [
            "1 image appears under two labels, which contradict each other and are ignored: 'ash/copy.png (also "
            "beech/0.png)'.",
            f"1 image appears both labelled and unlabelled: 'cedar/0.png (also unlabelled/{name})'.",
            "2 labels are not used: of images with two labels (2).",
            "Some class names differ only in case or spaces: 'Ash', 'ash'.",
            "2 exact duplicates found; run sortal check for a list.",
        ]


def test_labels_that_contradict_each_other_may_leave_one_class(tmp_path: Path) -> None:
    files = {"ash/0.png": "ash 0", "ash/1.png": "ash 1", "beech/0.png": "ash 0", "unlabelled/0.png": "elm 0"}
    tiny.write(tmp_path / "images", files)
    found = sort(tmp_path / "images", tmp_path / "run", method="kmeans", k="auto")
    assert (found.k.known, found.k.method, found.counts()["labelled"]) == (1, "separation", 1)


@pytest.mark.parametrize("labelled", thorough_but([1], [0, 1]))
def test_images_that_all_look_the_same_may_be_one_category(labelled: int, tmp_path: Path) -> None:
    names = [f"{'ash' if row < labelled else 'unlabelled'}/{row}.png" for row in range(4)]
    tiny.write(tmp_path / "images", dict.fromkeys(names, "ash 0"))
    for method in ("kmeans", "sortal"):
        found = sort(tmp_path / "images", tmp_path / method, method=method, k="auto", epochs=2)
        assert sizes_of(found) == 4


def test_pictures_that_are_not_read_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sortal.discovery import job

    told = "1 picture is ignored, in a format that is not read here (.heic): 'ash/IMG.HEIC'. To read them, pip install"
    monkeypatch.setattr("sortal.images.folders.reads_heif", lambda: False)
    tiny.write(tmp_path / "images", tiny.planted(each=2, labelled=1))
    (tmp_path / "images/ash/IMG.HEIC").touch()
    notes: list[str] = []
    runtime = replace(CPU, note=notes.append)
    settings = Discovery(backbone="convnet", k=6)
    job.prepare(tmp_path / "images", None, tmp_path / "run", settings, Reading(), runtime=runtime, force=False)
    assert [note.startswith(told) for note in notes] == [True]


def test_broken_files_are_listed_and_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file in twenty, labelled or not, is truncated, empty or text."""
    truth = tiny.write(tmp_path / "images")
    broken = [*truth][::20]
    assert {tiny.label_of(file) is None for file in broken} == {True, False}
    tiny.break_some(tmp_path / "images", broken)
    notes: list[str] = []
    odd: dict[str, Any] = {"views": "live", "seed": 3, "unsure_below": 0.25}
    found = sort(tmp_path / "images", tmp_path / "run", runtime=replace(CPU, note=notes.append), **odd)
    assert sorted(bad.file for bad in found.quarantine) == sorted(broken)
    rows = tiny.rows_of(tmp_path / "run/quarantine.csv")
    assert [row["file_name"] for row in rows] == [bad.file for bad in found.quarantine]
    assert all(row["reason"] and row["detail"] for row in rows)
    assert sorted(found.assignments.files) == sorted(set(truth) - set(broken))
    assert len(found.features) == sizes_of(found) == N - len(broken)
    assert "6 files could not be read and will be left out." in notes == [*found.facts.notes]
    assert found.facts.images[0].images == N - len(broken)
    assert load_run(tmp_path / "run").quarantine == found.quarantine
    assert same_groups(found, truth)
    # The recorded command reproduces the run.
    before = tables(tmp_path / "run")
    assert app.main([*shlex.split(found.facts.command)[1:], "--device", "cpu", "--workers", "1"]) == 3
    assert tables(tmp_path / "run") == before
    assert load_run(tmp_path / "run").facts.settings == found.facts.settings
    out = capsys.readouterr().out
    assert "114 images: 38 labelled" in out
    assert all(file in out for file in broken)


@pytest.mark.thorough
def test_a_class_without_readable_images_is_not_known(tmp_path: Path) -> None:
    truth = tiny.write(tmp_path / "images")
    tiny.break_some(tmp_path / "images", [file for file in truth if tiny.label_of(file) == "beech"])
    found = sort(tmp_path / "images", tmp_path / "run")
    assert tuple(found.names.values()) == ("ash", "cedar", "new 1", "new 2", "new 3", "new 4")
    assert found.k.known == 2
    labelled = found.assignments.category_id[found.assignments.status == "labelled"]
    assert {found.names[j] for j in labelled} == {"ash", "cedar"}
    tiny.break_some(tmp_path / "images", [file for file in truth if tiny.label_of(file) is None])
    with pytest.raises(InputError, match="Some images must be unlabelled, got 28 images"):
        sort(tmp_path / "images", tmp_path / "other")
    assert peek(tmp_path / "other") is None


def test_run_json_records_the_settings_and_circumstances(sorted_run: SortedRun) -> None:
    saved = tiny.strict_json(sorted_run.out / "run.json")
    wanted = {name: SETTINGS[name] for name in ("k", "backbone", "epochs", "n_init", "k_max", "held_out")}
    wanted |= {"method": "sortal", "weights": None, "lr": "auto", "views": "auto", "seed": 0, "unsure_below": 0.5}
    wanted |= {"learn_on": None, "max_pixels": MAX_PIXELS, "granularity": "usual", "trained": "auto", "set": []}
    wanted |= {"groups": "auto", "image_size": "auto"}
    assert saved["settings"] == wanted
    assert (saved["format"], saved["device"], saved["next_id"]) == ("sortal run 2", "cpu", 6)
    assert saved["images"] == [{"folder": str(sorted_run.images), "images": N, "paths": {}}]
    assert saved["backbone"].keys() >= {"name", "image_size", "shorter_side", "width", "mean", "std"}
    assert saved["training"]["epochs"] == 3, "two, and one to learn to count"
    assert set(map(type, saved["training"]["losses"].values())) == {float}
    assert saved["versions"].keys() >= {"sortal", "python", "torch", "numpy"}
    assert saved["hashes"].keys() == {"images", "features", "model"}
    assert all(int(text, 16) for text in saved["hashes"].values())
    assert tuple(saved["timings"]) == ("pixels", "check", "learn", "features", "k", "clusters", "report")
    assert all(seconds >= 0 for seconds in saved["timings"].values())
    assert saved["finished"].startswith("20")


def test_rows_of_an_array_are_sorted_like_files(sorted_run: SortedRun, tmp_path: Path) -> None:
    found = sort(tiny.as_array(), tmp_path / "run")
    assert found.facts.images == (ImageSource(folder=None, images=N, paths={}),)
    assert found.metrics is not None
    assert found.metrics.accuracy == Accuracy(all=1, old=1, new=1)
    assert same_groups(found, sorted_run.truth)
    assert found.names == sorted_run.run.names
    with pytest.raises(InputError, match="were given as an array"):
        load_run(tmp_path / "run").paths()


def test_a_run_that_failed_early_can_be_repeated_and_equals_one_elsewhere(
    sorted_run: SortedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed to load weights. A running run locks its folder, and reports each of its stages."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="nowhere"):
        discover(sorted_run.images, **SETTINGS, weights=tmp_path / "nowhere.safetensors")
    with pytest.raises(InputError, match=r"'device' is not a setting\. Pass runtime=Runtime\(device=\.\.\.\)"):
        discover(sorted_run.images, **SETTINGS, device="cpu")
    steps: list[str] = []

    def meanwhile(what: str, done: int, total: int) -> None:
        if what.startswith("[5/7]") and not any(each.startswith("[5/7]") for each in steps):
            with pytest.raises(InputError, match="Another process is using"):
                discover(sorted_run.images, **SETTINGS)
        steps.append(what)

    found = discover(sorted_run.images, **{**SETTINGS, "runtime": replace(CPU, progress=meanwhile)})
    assert list(dict.fromkeys(steps))[:2] == ["Starting PyTorch", "Loading the network"]
    numbers = [what.partition("]")[0] for what in steps if what.startswith("[")]
    assert numbers == sorted(numbers)
    assert sorted(set(numbers)) == [f"[{number}/7" for number in range(1, 8)]
    assert found.folder.absolute() == tmp_path / "images-run"
    assert found.report.read_bytes() == tiny.PAGE
    assert found.facts.hashes == sorted_run.run.facts.hashes
    assert tables(found.folder) == tables(sorted_run.out)


def test_a_folder_that_is_filled_before_it_is_locked_is_left_alone(
    sorted_run: SortedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = load_backbone

    def late(*values: Any, **named: Any) -> Any:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "report.html").write_text("mine")
        return load(*values, **named)

    monkeypatch.setattr("sortal.discovery.pipeline.load_backbone", late)
    with pytest.raises(InputError, match=r"must be a new or empty folder or an earlier run, .*contains 'report\.html'"):
        sort(sorted_run.images, tmp_path / "run")
    assert (tmp_path / "run" / "report.html").read_text() == "mine"
