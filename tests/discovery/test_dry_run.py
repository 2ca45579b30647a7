"""Dry runs: counts, and times and sizes derived from measurements; nothing is written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SortedRun
from PIL import Image
from support.runtimes import CPU

from sortal.cli import options
from sortal.clustering.estimate_k import USUALLY_TRIED
from sortal.config import BACKBONE, SMALLER, Discovery, MethodName, Reading, Training
from sortal.discovery import defaults, dry_run, rates
from sortal.discovery.dry_run import (
    RECORD,
    START,
    DryRun,
    disk,
    forecast,
    forecast_prediction,
    memory,
    model_sizes,
    seconds,
)
from sortal.discovery.job import Job, prepare
from sortal.discovery.pipeline import stages_of
from sortal.discovery.rates import Clock, Measurements, choose_rows
from sortal.errors import InputError, Remedy
from sortal.images import near_duplicates
from sortal.images.image_set import ImageSet, image_set
from sortal.learning import token_cache
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import LARGEST
from sortal.learning.methods import make

SMALL = Discovery(backbone="convnet", method="gcd", epochs=3)
TRANSFORMER = Discovery(backbone="test_vit", weights="random", epochs=2, k=4)
ORDER = ("pixels", "check", "learn", "features", "k", "clusters", "report")


def measurements(**changes: Any) -> Measurements:
    rates = {"check": 0.01, "pixels": 0.02, "view": 0.25, "step": 2.0, "k": 0.5, "clusters": 0.75, "place": 0.125}
    rates |= {"epoch": 0.5, "picture": 0.0625}
    sizes = {"stored": 300.0, "base": 10_000, "working": 2000}
    return Measurements(**{**rates, **sizes, "tiny": False, "unreadable": (), **changes})


def folder_of(place: Path, *, each: int = 10, side: int = 24) -> Path:
    """Write images of two classes, and as many unlabelled ones."""
    generator = np.random.default_rng(0)
    for name in ("a", "b", "unlabelled", "unlabelled/more"):
        (place / name).mkdir(parents=True)
        for i in range(each):
            pixels = generator.integers(0, 256, (side, side + 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{i}.png")
    return place


def job_of(images: Path | ImageSet, out: Path, settings: Discovery) -> Job:
    return prepare(images, None, out, settings, Reading(), runtime=CPU, force=False)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace measuring by fixed measurements."""
    monkeypatch.setattr(dry_run, "measure", lambda *_: measurements())


# Whole dry runs


def test_a_forecast_for_the_small_network_writes_nothing_and_caches_no_tokens(tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    images = folder_of(tmp_path / "images")
    job = job_of(images, tmp_path / "run", SMALL)
    found = forecast(replace(job, runtime=replace(CPU, progress=lambda *what: reports.append(what))))
    assert (found.images, found.labelled, found.unlabelled, found.classes) == (40, 20, 20, 2)
    assert found.held_out == 0  # a fifth is 4, too few for calibration
    assert (found.k, found.method, found.epochs, found.device) == ("auto", "gcd", 3, "cpu")
    assert (found.backbone, found.weights, found.views, found.tokens) == ("convnet", "random weights", None, None)
    assert found.unreadable_sample == ()
    assert tuple(found.seconds) == ORDER
    assert all(each > 0 for each in found.seconds.values())
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 40
    assert [done for _, done, _ in reports] == [0, 1, 2, 3, 4]
    assert {total for _, _, total in reports} == {4}
    one = replace(
        found, tokens=token_cache.TokenPlan(12, "memory"), notes=("a", "b"), unreadable_sample=("é\udcff",)
    ).to_json()
    assert json.loads(json.dumps(one)) == one
    assert (one["tokens"], one["notes"]) == ({"bytes": 12, "where": "memory"}, ["a", "b"])
    assert one.keys() == vars(found).keys()
    rows = image_set([*"abcdef"], pixels=np.zeros((6, 20, 20, 3), dtype=np.uint8), labels=[None] * 6)
    found = forecast(job_of(rows, tmp_path / "run", replace(SMALL, k=5, epochs=1)))
    assert (found.images, found.labelled, found.classes, found.held_out) == (6, 0, 0, 0)
    assert any("No image is labelled" in note for note in found.notes)


def test_tokens_of_a_transformer_are_cached_if_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = folder_of(tmp_path / "images", each=2, side=230)
    measured: Any = forecast(job_of(images, tmp_path / "run", replace(TRANSFORMER, method="simgcd")))
    monkeypatch.setattr(dry_run, "measure", lambda *_: measurements())
    for found in (measured, forecast(job_of(images, tmp_path / "run", TRANSFORMER))):
        assert (found.k, found.views) == (4, 2)
        # Images, views, bytes of a number, patches and class, width; in a file, which survives a kill
        assert found.tokens == token_cache.TokenPlan(8 * 2 * 2 * 197 * 64, "file")
        assert found.seconds["learn"] > 0
    assert measured.seconds["k"] == 0
    live = forecast(job_of(images, tmp_path / "run", replace(TRANSFORMER, views="live")))
    monkeypatch.setattr(token_cache, "plan_tokens", lambda size, *_: token_cache.TokenPlan(size, None))
    unfit = forecast(job_of(images, tmp_path / "run", TRANSFORMER))
    for found in (live, unfit):
        assert (found.views, found.tokens) == (None, None)
        assert found.seconds["learn"] > 0
    assert [any("do not fit" in note for note in found.notes) for found in (live, unfit)] == [False, True]


def test_stages_that_a_method_does_not_need_take_no_time(tmp_path: Path) -> None:
    """k-means trains nothing, and a classifier clusters nothing."""
    images, settings = folder_of(tmp_path / "images"), replace(SMALL, method="kmeans", k=3)
    found = forecast(job_of(images, tmp_path / "run", settings))
    assert found.epochs == 0
    assert {stage for stage, each in found.seconds.items() if not each} == {"learn", "k"}
    settings = replace(SMALL, method="rankstats")
    found = forecast(job_of(images, tmp_path / "run", settings))
    assert (found.method, found.epochs, found.k) == ("rankstats", 3, "auto")
    assert tuple(found.seconds) == stages_of(job_of(images, tmp_path / "run", settings))
    assert {stage for stage, each in found.seconds.items() if not each} == {"clusters"}
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("unmeasured")
def test_the_time_before_the_first_stage_counts_where_it_is_known(tmp_path: Path) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    found = forecast(job, since=perf_counter() - 100)
    assert [*found.seconds] == [START, *ORDER]
    assert found.seconds[START] >= 100


@pytest.mark.usefixtures("unmeasured")
def test_the_recipe_of_a_job_is_used(tmp_path: Path) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    recipe = replace(defaults.recipe_for(replace(SMALL, epochs=9), 40, on_gpu=False), estimate_on="raw")
    found = forecast(replace(job, recipe=recipe))
    assert (found.epochs, [*found.seconds][2]) == (9, "k")


@pytest.mark.usefixtures("unmeasured")
def test_learning_on_a_sample_costs_what_the_sample_costs_and_a_pass_over_the_others(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images")
    whole, sampled = (forecast(job_of(images, tmp_path / "run", replace(SMALL, learn_on=n))) for n in (None, 10))
    assert (sampled.images, sampled.labelled, sampled.unlabelled) == (40, 20, 20)
    assert sampled.seconds["rest"] == 30 * 0.25
    assert [*sampled.seconds] == [*ORDER[:-1], "rest", "report"]
    assert sampled.seconds["pixels"] == whole.seconds["pixels"] / 4


@pytest.mark.usefixtures("unmeasured")
def test_a_full_disk_is_answered_with_a_sample_in_the_words_of_the_front_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    monkeypatch.setattr(dry_run, "remedies", lambda *_: (Remedy("learn on a sample", learn_on=50_000),))
    monkeypatch.setattr(dry_run, "free_disk", lambda _: 1)
    for spelling, text in ((None, "learn_on=50000"), (options.spell, "--learn-on 50000")):
        (note,) = (each for each in forecast(job, spelling).notes if each.startswith("Not enough disk space: "))
        assert note.endswith(f"Choose a folder on another disk, or learn on a sample ({text}).")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, ["--learn-on 2000", "--epochs 25", "--views 2", "--method kmeans"]),
        ({"images": 300_000, "views": None}, ["--learn-on 30000", "--epochs 25", "--views 2", "--method kmeans"]),
        ({"images": 3000, "views": 2, "epochs": 1}, ["--method kmeans"]),
        ({"images": 3000, "backbone": "convnet"}, ["--epochs 25", "--method kmeans"]),
        ({"images": 3000, "method": "kmeans"}, []),
    ],
)
def test_quicker_ways_are_those_that_apply(change: dict[str, Any], named: list[str], tmp_path: Path) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    plan = replace(
        forecast(job), **{"images": 9000, "epochs": 100, "views": 8, "method": "gcd", "backbone": "vit", **change}
    )
    assert [options.spell(way.settings) for way in dry_run.quicker(plan, None)] == named
    assert not [way for way in dry_run.quicker(plan, 2000) if "learn_on" in way.settings], "it already does"


def test_a_plan_of_hours_names_quicker_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    monkeypatch.setattr(dry_run, "seconds", lambda *_, **__: {"learn": 7200.0})
    (note,) = (each for each in forecast(job, options.spell).notes if each.startswith("This takes about 2.0 h; other"))
    assert note.endswith("or do not train at all (--method kmeans).")
    monkeypatch.setattr(dry_run, "seconds", lambda *_, **__: {"learn": 3599.0})
    assert not [each for each in forecast(job).notes if "quicker" in each]


def test_unreadable_files_are_skipped_and_listed(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", each=2)
    (images / "a" / "1.png").write_bytes(b"not an image")
    found = forecast(job_of(images, tmp_path / "run", SMALL))
    assert found.images == 8
    assert found.unreadable_sample == ("a/1.png",)
    assert not any("nreadable" in note for note in found.notes), "they have a place of their own"
    for path in images.rglob("*.png"):
        path.write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"At least one image must be readable, but none of 8 is: .*sortal check"):
        forecast(job_of(images, tmp_path / "run", SMALL))
    assert not (tmp_path / "run").exists()


def test_notes_warn_about_space_and_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, place, settings = folder_of(tmp_path / "images", each=2), tmp_path / "run", replace(SMALL, k=3)
    monkeypatch.setattr(dry_run, "measure", lambda *_: measurements(working=0))
    real = shutil.disk_usage

    def planned(out: Path, disk: int, memory: int) -> DryRun:
        usage = SimpleNamespace(free=disk)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage if Path(path) == tmp_path else real(path))
        monkeypatch.setattr(token_cache, "free_memory", lambda: memory)
        return forecast(job_of(images, out, settings))

    deep = tmp_path / "deep" / "run"
    found = planned(deep, 10**9, 1000)
    disk, memory = found.disk, found.memory - 10_000
    assert not planned(deep, disk, memory).notes
    (note,) = planned(deep, disk, memory - 1).notes
    assert note.startswith("There may not be enough memory: ")
    found = planned(deep, disk - 1, memory)
    assert found.free_disk == disk - 1
    assert found.notes[0].startswith("Not enough disk space: ")
    (place / "cache" / "pixels").mkdir(parents=True)
    (note,) = planned(place, 10**9, memory).notes
    assert note.startswith("These are the costs from scratch;")
    assert [path.name for path in place.rglob("*")] == ["cache", "pixels"]


@pytest.mark.usefixtures("unmeasured")
def test_weights_are_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    asked: list[str] = []
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, **_: asked.append(url))
    images = folder_of(tmp_path / "images", each=2)
    settings = Discovery(backbone="test_vit.r160_in1k", method="kmeans", k=4)
    found = forecast(job_of(images, tmp_path / "run", settings))
    assert {url.rpartition("/")[2] for url in asked} == {"model.safetensors"}, "whether it could be downloaded"
    assert found.weights == "the Hugging Face hub"
    assert any("downloads them first" in note for note in found.notes)
    assert not (tmp_path / "hub").exists()
    for name in ("nonsense", "test_vit.nonsense", "gone.json"):
        with pytest.raises(InputError, match="backbone"):
            forecast(job_of(images, tmp_path / "run", replace(settings, backbone=name)))


@pytest.mark.parametrize(("cached", "on_gpu"), [((), False), ((SMALLER,), True), ((BACKBONE,), False)])
def test_a_hub_out_of_reach_is_an_error_as_it_is_of_the_run(
    cached: tuple[str, ...], on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever backbone suits the machine: weights of the other one do not help."""
    from huggingface_hub import constants

    from sortal.learning.backbones import hub

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    there = {f"timm/{name}" for name in cached}
    monkeypatch.setattr(hub, "cached", lambda repository, file=hub.FILE: tmp_path if repository in there else None)
    images, name = folder_of(tmp_path / "images", each=2), BACKBONE if on_gpu else SMALLER
    with pytest.raises(InputError, match=rf"The weights of {name} are not .* cannot be downloaded: HF_HUB_OFFLINE"):
        forecast(replace(job_of(images, tmp_path / "run", Discovery(k=4)), settings=Discovery(k=4, backbone=name)))
    assert not (tmp_path / "run").exists()


# Predictions


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_prediction_is_planned_without_changing_the_run(sorted_run: SortedRun, tmp_path: Path) -> None:
    images, before, reports = folder_of(tmp_path / "images", each=3), contents(sorted_run.out), list[int]()
    (images / "a" / "1.png").write_bytes(b"not an image")
    runtime = replace(CPU, progress=lambda _, done, __: reports.append(done))
    plain, update = (
        forecast_prediction(sorted_run.out, images, update=update, since=since, runtime=runtime)
        for update, since in ((False, None), (True, perf_counter() - 50))
    )
    assert [*plain.seconds] == ["pixels", "features"]
    assert [*update.seconds] == [START, "pixels", "features", "report"]
    assert update.seconds[START] >= 50
    assert all(each > 0 for each in (*plain.seconds.values(), *update.seconds.values()))
    assert (plain.images, plain.in_run, plain.device) == (12, len(sorted_run.run.assignments), "cpu")
    assert plain.unreadable_sample == update.unreadable_sample == ("a/1.png",)
    assert 0 < plain.disk < update.disk, "features and tables are added to the run"
    assert json.loads(json.dumps(update.to_json())) == update.to_json()
    assert reports == [0, 1, 3, 0, 1, 2, 3]
    assert contents(sorted_run.out) == before


# Costs


def test_the_sizes_of_models_count_their_weights() -> None:
    """RankStats trains the small network and 3 outputs by 512 features and a bias, UNO the same without biases."""
    backbone = load_backbone("convnet")
    model = sum(4 * value.numel() for value in backbone.net.state_dict().values())
    assert model_sizes(backbone, None) == (model, 0)
    by_method: dict[MethodName, int] = {"rankstats": 513, "uno": 512}
    for name, outputs in by_method.items():
        recipe = defaults.recipe_for(replace(SMALL, method=name), 40, on_gpu=False)
        assert model_sizes(backbone, make(recipe, backbone, k=3, known=[0, 1])) == (model, model + 4 * 3 * outputs)


def test_disk_space_is_the_sum_of_its_parts() -> None:
    # 10 images of 3 features in 2 clusters: pixels with fingerprint and index, features twice and digests once,
    # clusters, centres twice, the model, two checkpoints with weights and momentum, a report as large as the pixels,
    # and text files.
    pixels, features, clusters = 10 * (300 + 768 + 400), 10 * (2 * 12 + 32), 10 * 8 + 2 * 24
    needed = pixels + features + clusters + 70 + 20 + pixels + 5120
    assert disk(10, 3, 2, measurements(), model=70, trained=5) == needed
    assert disk(10, 3, 2, measurements(), model=70, trained=5, tokens=token_cache.TokenPlan(50, "file")) == needed + 50
    assert disk(10, 3, 2, measurements(), model=70, trained=5, tokens=token_cache.TokenPlan(50, "memory")) == needed


def test_memory_is_that_of_the_largest_stage() -> None:
    n = 10**6
    large = measurements(base=7, working=10**9)
    names = 10 * RECORD
    assert memory(10, 3, large, None) == 7 + names + 10**9
    assert memory(10, 3, large, token_cache.TokenPlan(50, "memory")) == 7 + names + 10**9 + 50
    assert memory(10, 3, large, token_cache.TokenPlan(50, "device")) == 7 + names + 10**9
    small = measurements(base=7, working=0)
    assert memory(10, 3, small, None) == 7 + names + 10 * 768 * 9
    assert memory(100, 10**5, small, None) == 7 + 10 * names + 3 * 4 * 100 * 10**5, "features three times"
    checking = 768 * (n + 8 * min(n, near_duplicates.EXACT))
    assert memory(n, 1000, small, None) == 7 + n * RECORD + max(checking, 2 * LARGEST), "large ones are in files"


def test_times_are_counts_multiplied_by_rates() -> None:
    training = Training(epochs=10, batch_size=50)

    def times(n: int = 100, order: tuple[str, ...] = ORDER, **changes: Any) -> dict[str, float]:
        values: dict[str, Any] = {"training": training, "views": None, "has_trunk": True, **changes}
        return seconds(order, measurements(), n, **values)

    steps = 10 * 2
    assert times(views=8) == {
        "check": 1.0,
        "pixels": 2.0,
        "learn": 100 * (8 + 1) * 0.25 + steps * 2 + 10 * 0.5,
        "features": 25.0,
        "k": 50.0,
        "clusters": 2 * 75.0,
        "report": 100 * (0.125 + 0.0625),
    }
    live = (steps * 2 * 50 + 100) * 0.25 + steps * 2 + 5
    assert times()["learn"] == live, "new views go through the network in every step"
    assert times(n=1000, views=8)["learn"] == (8000 + 256) * 0.25 + 200 * 2 + 5, "the health of some is measured"
    assert times(has_trunk=False)["learn"] == steps * 2 + 5
    assert times(n=5, has_trunk=False)["learn"] == 10 * 2 + 5, "an epoch has at least one step"
    assert times(training=replace(training, epochs=0))["learn"] == 0
    counted = times(has_trunk=False, counts=2)
    assert counted["learn"] == steps * 2 + 5 + 25 + 2 * (25 + 2 * (50 + 75))
    assert (counted["k"], counted["clusters"]) == (2 * 50, 4 * 75)
    kept = times(has_trunk=False, counts=2, kept=True)
    assert kept == {**counted, "learn": counted["learn"] - 2 * 25, "features": 0}, "only the first pass is a whole one"
    assert times(n=9000)["report"] == 5000 * 0.125 + 8000 * 0.0625, "a map shows a sample, and so do galleries"
    assert times(n=9000, points=7000)["report"] == 7000 * 0.125 + 8000 * 0.0625, "a GPU places more points"
    first = times(order=("check", "pixels", "k", "learn", "features", "clusters", "report"))
    assert first == {**times(), "k": 50.0 + 25.0}, "k is estimated on features of its own"


# Measurements


def test_a_clock_measures_the_second_half_of_the_last_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks, reading and then storing, take 2 s each after warming up."""
    times = iter([5.0, 6.0, 8.0, 20.0, 30.0, 32.0, 34.0])
    monkeypatch.setattr(rates, "perf_counter", lambda: next(times))
    clock = Clock()
    for what, done in (("read", 1), ("read", 2), ("read", 4), ("store", 1), ("store", 2), ("store", 3), ("store", 4)):
        clock(what, done, 4)
    assert clock.seconds_per_item == 2.0
    times = iter([1.0])
    clock("one", 1, 1)
    assert clock.seconds_per_item == 0.0


def test_a_clock_tells_the_steps_of_an_epoch_from_what_comes_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of three steps of 2 s, and 5 s more between two; the first steps are slower."""
    moments = iter([0.0, 9.0, 18.0, 30.0, 39.0, 41.0, 48.0, 50.0, 52.0, 59.0, 61.0, 63.0])
    monkeypatch.setattr(rates, "perf_counter", lambda: next(moments))
    clock = Clock()
    for done in range(1, 13):
        clock("Training", done, 12)
    assert clock.steps_and_rest(3) == (2.0, 5.0)
    assert clock.steps_and_rest(1) == (clock.seconds_per_item, 0.0), "with one step each, they cannot be told apart"


def test_batches_double_until_the_next_would_exceed_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of 0.15 s per item, and 0.5 s more every second time, which is the fault of other programs."""
    now, tried = 0.0, list[int]()

    def work(items: int) -> None:
        nonlocal now
        now += 0.15 * items + 0.5 * (len(tried) % 2)
        tried.append(items)

    monkeypatch.setattr(rates, "perf_counter", lambda: now)
    monkeypatch.setattr(rates, "BUDGET", 5.0)
    monkeypatch.setattr(rates, "QUICK", 0.9)
    timings = rates._seconds_each(work, 100)
    assert tried == [1, 2, 2, 4, 8]
    assert [timing.items for timing in timings] == [2, 4, 8]
    assert [timing.each for timing in timings] == pytest.approx([0.15, 0.275, 0.15])
    tried.clear()
    assert [timing.items for timing in rates._seconds_each(work, 3)] == [2, 3], "no more than there are"
    monkeypatch.setattr(rates, "BUDGET", 0.0)
    assert [timing.items for timing in rates._seconds_each(work, 100)] == [2], "at least one after a warm-up"


def test_an_estimate_of_k_is_abandoned_once_its_pace_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def estimate(*_: Any, callback: Any, **__: Any) -> None:
        nonlocal now
        for _k in range(20):
            now += 0.5
            callback(None)

    monkeypatch.setattr(rates, "estimate_k", estimate)
    monkeypatch.setattr(rates, "perf_counter", lambda: now)
    some: Any = None
    monkeypatch.setattr(rates, "BUDGET", 1.9)
    assert rates._seconds_to_estimate(some, some, 9, "brent", "cpu") == 0.5 * USUALLY_TRIED
    monkeypatch.setattr(rates, "BUDGET", 100.0)
    assert rates._seconds_to_estimate(some, some, 9, "brent", "cpu") == 0.5 * 20, "the whole if it is quick"


def test_the_memory_of_a_pass_is_what_it_saves_for_the_gradient() -> None:
    """A linear layer saves its input, a sigmoid its output; the weights are there anyway."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Sigmoid())
    x = torch.ones(2, 3)
    assert rates._saved_bytes(net, lambda: net(x)) == 4 * 2 * (3 + 5)


def test_fewer_images_are_read_where_files_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / f"{i}.png") for i in range(100)]
    for path in paths[:99]:  # the last is missing
        Path(path).write_bytes(bytes(1000))
    images = image_set([f"{i}" for i in range(100)], paths=paths, labels=[None] * 100)
    for room, count in ((10**6, 100), (50_000, 50), (10, rates.FEWEST)):
        monkeypatch.setattr(rates, "BYTES", room)
        assert len(rates.choose_sample(images)) == count


def test_measurements_sample_the_whole_set() -> None:
    labels = [None] * 500 + ["a"] * 5 + [None] * 495
    images = image_set([str(i) for i in range(1000)], paths=["x"] * 1000, labels=labels)
    few = choose_rows(images, 64)
    rows = [int(file) for file in few.files]
    assert (len(rows), rows[-1], bool(few.labelled.any())) == (64, 999, True)
    assert np.diff(rows).max() < 20
    assert len(choose_rows(images, 5000)) == 1000
