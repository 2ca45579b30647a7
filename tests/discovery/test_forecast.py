"""Forecasts: counts, and times and sizes derived from measurements; nothing is written."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import SortedRun
from PIL import Image
from support.costs import measurements
from support.runtimes import CPU

from sortal.cli import options
from sortal.config import FASTER, LARGER, SMALLER, Discovery, Reading
from sortal.discovery import defaults
from sortal.discovery import forecast as forecasting
from sortal.discovery.costs import Work
from sortal.discovery.forecast import STARTING, RunForecast, forecast, forecast_prediction, quicker_ways
from sortal.discovery.job import Job, prepare
from sortal.discovery.pipeline import stages_of
from sortal.discovery.rates import Measurements
from sortal.errors import InputError, Remedy
from sortal.images.columns import Columns
from sortal.images.image_set import ImageSet, image_set
from sortal.learning import token_cache
from sortal.learning.backbones.backbone import Backbone
from sortal.learning.backbones.registry import load_without_weights
from sortal.learning.methods import Method
from sortal.system.text import duration

SMALL = Discovery(backbone="convnet", method="gcd", epochs=3)
TRANSFORMER = Discovery(backbone="test_vit", weights="random", epochs=2, k=4)
ORDER = ("pixels", "check", "learn", "features", "k", "clusters", "report")


@pytest.fixture(autouse=True)
def quick_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure rates for a moment: these tests ask what follows from them."""
    monkeypatch.setattr("sortal.discovery.rates.TIMED", 0.01)


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
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements())


# Whole dry runs


def test_labels_of_a_group_are_held_out_together(tmp_path: Path, unmeasured: None) -> None:
    n = 400
    pixels, labels = np.zeros((n, 20, 20, 3), dtype=np.uint8), [str(row // 160) for row in range(n - 80)]
    alone = image_set(list(map(str, range(n))), pixels=pixels, labels=[*labels, *[None] * 80])
    groups = Columns.infer(["group"], [[f"g{row // 40}" for row in range(n)]])
    found = [
        forecast(job_of(images, tmp_path / "run", SMALL)).held_out for images in (alone, replace(alone, columns=groups))
    ]
    assert found[0] > 0
    assert found[0] % 40 != 0
    assert found[1] % 40 == 0


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
    assert [(done, total) for _, done, total in reports] == [(0, 3), (1, 3), (2, 3), (3, 3)]
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
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements())
    windows = replace(TRANSFORMER, set=("training.windows=true",))
    whole, windowed = (forecast(job_of(images, tmp_path / "run", each)) for each in (TRANSFORMER, windows))
    for found, tokens in ((measured, 1 + 196), (whole, 1 + 196), (windowed, 1 + 196 // 4)):
        assert (found.k, found.views) == (4, 4)
        # Images, views, bytes of a number, patches and class, width; in a file, which survives a kill
        assert found.tokens == token_cache.TokenPlan(8 * 4 * 2 * tokens * 64, "file")
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
    """k-means trains nothing, with a given k none is estimated, and a classifier clusters nothing."""
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
    assert [*found.seconds] == [STARTING, *ORDER]
    assert found.seconds[STARTING] >= 100


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
    monkeypatch.setattr(forecasting, "remedies", lambda *_: (Remedy("learn on a sample", learn_on=50_000),))
    monkeypatch.setattr(forecasting, "free_disk", lambda _: 1)
    for spelling, text in ((None, "learn_on=50000"), (options.spell, "--learn-on 50000")):
        (note,) = (each for each in forecast(job, spelling).notes if each.startswith("Not enough disk space: "))
        assert note.endswith(f"Choose a folder on another disk, or learn on a sample ({text}).")


def test_a_plan_of_more_than_ten_minutes_names_quicker_ways_with_their_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 images in all, of which nothing takes longer than 600 s but what is said here: 600 s for a step of training."""
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements(step=600.0))
    found = forecast(job, options.spell)
    took = found.seconds["learn"]
    assert took >= 3 * 600
    assert found.quicker.startswith("This takes about 30 min; other settings are quicker. Train for fewer epochs, ")
    assert "(--epochs 1), or do not train at all, which takes about " in found.quicker
    assert found.quicker.endswith("(--method kmeans).")
    assert "epochs=1" in forecast(job).quicker
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements(step=100.0))
    assert not forecast(job).quicker


def test_a_smaller_network_has_a_price_by_its_own_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of training takes 6,000 s, and 10 s with the smaller network, of which nothing is downloaded."""
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", TRANSFORMER)
    job = replace(job, settings=replace(job.settings, weights=None))
    monkeypatch.setattr(forecasting, "check_downloadable", lambda _: None)
    monkeypatch.setattr(forecasting, "cached_weights", lambda _: None)
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements(step=6000.0))
    measured, steps = list[str](), {job.settings.backbone: 6000.0, FASTER: 10.0}

    def other(backbone: Backbone, before: Measurements) -> Measurements:
        measured.append(backbone.spec.name)
        return before

    def step(_: Job, method: Method) -> float:
        return steps[method.backbone.spec.name]

    monkeypatch.setattr(forecasting, "measure_network", other)
    monkeypatch.setattr(forecasting, "measure_step", step)
    said = forecast(job, options.spell).quicker
    assert measured == [FASTER]
    assert re.search(
        rf"use a smaller network, which takes an estimated \d+ s and .* \(--backbone {FASTER}\)", said, re.I
    )
    steps[FASTER] = 6000.0  # as networks of convolutions take long to train on a CPU, though their views are quick
    assert "smaller network" not in forecast(job, options.spell).quicker


def test_a_forecast_that_fails_keeps_no_run_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements(step=600.0))
    assert "--method kmeans" in quicker_ways(job, options.spell)
    monkeypatch.setattr(forecasting, "measure", Mock(side_effect=OSError(28, "No space left on device")))
    assert not quicker_ways(job, options.spell)


@pytest.mark.parametrize(
    ("name", "size", "small"),
    [
        ("vit_tiny_patch16_224", 224, 112),
        ("vit_tiny_patch16_224", 112, None),
        ("test_vit", 160, 112),
        pytest.param("vit_small_patch32_224", 224, 128, marks=pytest.mark.thorough),
        pytest.param("vit_small_patch8_224", 96, None, marks=pytest.mark.thorough),
        pytest.param("resnet18", 224, None, marks=pytest.mark.thorough),
    ],
)
def test_a_smaller_size_is_one_that_the_network_can_be_made_for(
    name: str, size: int, small: int | None, tmp_path: Path
) -> None:
    rows = image_set([*"ab"], pixels=np.zeros((2, 20, 20, 3), dtype=np.uint8), labels=[None] * 2)
    job = job_of(rows, tmp_path / "run", replace(SMALL, backbone=name, weights="random"))
    backbone = load_without_weights(name, size)
    assert forecasting._small_size(job, backbone) == small
    assert small is None or load_without_weights(name, small).spec.image_size == small
    backbone.save(tmp_path / "model")
    own = replace(job, settings=replace(job.settings, backbone=str(tmp_path / "model.json")))
    assert forecasting._small_size(own, backbone) is None, "a saved network has its own size"


def test_a_busy_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", SMALL)
    monkeypatch.setattr(forecasting, "cores", lambda: 2)
    for others, said in ((0.39, 0), (None, 0), (1.0, 1)):
        monkeypatch.setattr(forecasting, "measure", lambda *_, others=others, **__: measurements(others=others))
        busy = [note for note in forecast(job).notes if note.startswith("Other programs use 1.0 of 2 cores, ")]
        assert len(busy) == said
    alone = duration(sum(forecast(job).seconds.values()) / 2)
    assert busy[0].endswith(f"alone on the machine, it may be {alone}."), "half of what was measured"


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
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements(working=0))
    real = shutil.disk_usage

    def planned(out: Path, disk: int, memory: int) -> RunForecast:
        usage = SimpleNamespace(free=disk)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage if Path(path) == tmp_path else real(path))
        monkeypatch.setattr(forecasting, "free_memory", lambda: memory)
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


@pytest.mark.parametrize(("cached", "on_gpu"), [((), False), ((SMALLER,), True), ((LARGER,), False)])
def test_a_hub_out_of_reach_is_an_error_as_it_is_of_the_run(
    cached: tuple[str, ...], on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever backbone suits the machine: weights of the other one do not help."""
    from huggingface_hub import constants

    from sortal.learning.backbones import hub

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    there = {f"timm/{name}" for name in cached}
    monkeypatch.setattr(
        hub, "cached", lambda repository, file=hub.WEIGHTS_FILE: tmp_path if repository in there else None
    )
    images, name = folder_of(tmp_path / "images", each=2), LARGER if on_gpu else SMALLER
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
    assert [*update.seconds] == [STARTING, "pixels", "features", "report"]
    assert update.seconds[STARTING] >= 50
    assert all(each > 0 for each in (*plain.seconds.values(), *update.seconds.values()))
    assert (plain.images, plain.in_run, plain.device) == (12, len(sorted_run.run.assignments), "cpu")
    assert plain.unreadable_sample == update.unreadable_sample == ("a/1.png",)
    assert 0 < plain.disk < update.disk, "features and tables are added to the run"
    assert json.loads(json.dumps(update.to_json())) == update.to_json()
    assert reports == [0, 1, 2, 3] * 2
    assert contents(sorted_run.out) == before


# Costs


def test_the_work_of_training_follows_from_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 images in one step per epoch; after each, a forward pass over all of them is a third of 40 / 256 of a step."""
    images = folder_of(tmp_path / "images")
    made: list[Work] = []
    monkeypatch.setattr(forecasting, "measure", lambda *_, **__: measurements())

    def seconds_of(_: object, planned: Work, __: object, model: int) -> dict[str, float]:
        assert model > 0
        made.append(planned)
        return {}

    monkeypatch.setattr(forecasting, "seconds", seconds_of)
    for settings in (SMALL, replace(TRANSFORMER, method="gcd"), replace(TRANSFORMER, method="gcd", views="live")):
        forecast(job_of(images, tmp_path / "run", settings))
    small, cached, live = made
    assert small.steps == pytest.approx(3 * (1 + 40 / 256 / 3))
    assert (small.through_trunk, small.counts, small.epochs) == (0, 0, 3)
    assert cached.through_trunk == 40 * 4 + 40, "four views to learn from, and one to measure health on"
    assert live.through_trunk == 2 * 256 + 40, "new views in every step"
    own = replace(TRANSFORMER, method="sortal", epochs=50)
    planned = forecast(job_of(images, tmp_path / "run", own))
    assert (planned.epochs, planned.counting_epochs) == (50, 0)
    assert made[-1].counts > 0
    assert made[-1].kept, "tokens of a few images fit into memory"
    assert made[-1].steps == pytest.approx(50 * (1 + 40 / 256 / 3))
    (images / "unlabelled" / "more").rename(images / "c")
    planned = forecast(job_of(images, tmp_path / "run", own))
    assert (planned.epochs, planned.counting_epochs) == (50, 20)
    assert made[-1].pilot
    assert made[-1].epochs == 70
    assert made[-1].steps == pytest.approx(70 * (1 + 40 / 256 / 3)), "a class can be hidden, to learn to count"
