"""What is asked to compute on a device computes on it, whoever builds the job, and records say where it was."""

import importlib.util
import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SortedRun
from support import accelerator
from support import tiny_folder as tiny
from support.accelerator import Accelerator
from support.thorough import thorough_but

from sortal.config import Contrast, Training
from sortal.discovery.prediction import draw_report, predict
from sortal.discovery.reviewing.advice import Advice
from sortal.discovery.reviewing.open import open_session
from sortal.images.store.packing import Settings, pack
from sortal.learning.backbones.registry import load_backbone
from sortal.learning.features import extract
from sortal.learning.methods import Contrastive
from sortal.learning.train import train
from sortal.research.benchmark import sweep
from sortal.research.benchmark.presets import Preset
from sortal.research.benchmark.records import Record
from sortal.research.benchmark.select import choose
from sortal.research.benchmark.task import Task
from sortal.reviews.history import Review
from sortal.reviews.loading import load_run
from sortal.system.progress import Runtime

THERE = Runtime(device=accelerator.NAME, workers=1)


@pytest.fixture
def device() -> Iterator[Accelerator]:
    with accelerator.pretended() as found:
        yield found


def test_the_pretended_accelerator_follows_its_tensors(device: Accelerator) -> None:
    x = torch.arange(4.0).view(2, 2)
    there = x.to(accelerator.NAME)
    assert (x.device.type, there.device.type, (there @ there).T[0].device.type) == ("cpu", "mps", "mps")
    assert (there.cpu().device.type, torch.zeros(2, device=there.device).device.type) == ("cpu", "mps")
    layer = torch.nn.Linear(2, 2).to(there.device)
    layer(there).sum().backward()
    assert layer.weight.grad is not None
    assert {each.device.type for each in (layer.weight, layer.weight.grad)} == {"mps"}
    assert device.used
    x @ x
    assert not device.used


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("method", thorough_but(["simgcd"], ["sortal", "simgcd"]))
def test_discover(method: str, device: Accelerator, tmp_path: Path) -> None:
    tiny.write(tmp_path / "images", tiny.planted(8, 6))
    run = tiny.sort(tmp_path / "images", tmp_path / "run", method=method, k=6, runtime=THERE)
    assert device.used
    assert run.facts.device == "mps"
    if run.facts.training is not None:
        assert run.facts.training.devices == ("mps",)
        starts = [line for line in (run.folder / "log.jsonl").read_text().splitlines() if '"start"' in line]
        assert {json.loads(line)["device"] for line in starts} == {"mps"}


@pytest.mark.usefixtures("quickly")
def test_a_record_of_a_run_on_the_cpu_says_so(sorted_run: SortedRun) -> None:
    facts = sorted_run.run.facts
    assert facts.training is not None
    assert (facts.device, facts.training.devices) == ("cpu", ("cpu",))


def a_preset(tmp_path: Path) -> Preset:
    files = {f"{name}/{number}.png": f"{name} {number}" for name in tiny.CLASSES for number in range(10)}
    tiny.write(tmp_path / "images", files)
    (preset,) = choose("folder", tmp_path / "images", methods=["gcd"], backbone="convnet", epochs=1)
    losses = Contrast(hidden=16, bottleneck=8)
    return replace(preset, n_init=2, recipe=replace(preset.recipe, losses=losses))


def devices(record: Record) -> set[str]:
    assert record.training is not None
    return {record.device, *record.training["devices"]}


@pytest.mark.usefixtures("quickly")
def test_benchmark(device: Accelerator, tmp_path: Path) -> None:
    """A sweep in this process, and what each of several processes does."""
    preset = a_preset(tmp_path)
    found = sweep.sweep([preset], tmp_path / "images", out=tmp_path / "one", seeds=[0], runtime=THERE)
    assert not found.failed
    task = Task(preset=preset, seed=1, root=tmp_path / "images", out=tmp_path / "several", command="")
    ((_, other),) = sweep._run_group([(0, task)], THERE)
    assert isinstance(other, Record)
    assert device.used
    assert [devices(record) for record in (*found.records, other)] == [{"mps"}, {"mps"}]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.usefixtures("quickly")
def test_benchmark_on_the_gpu_that_is_there(tmp_path: Path) -> None:
    """In this process, whose memory of the GPU is known, and in two others."""
    preset = a_preset(tmp_path)
    torch.cuda.reset_peak_memory_stats()
    before, there = torch.cuda.max_memory_allocated(), Runtime(workers=1)
    found = sweep.sweep([preset], tmp_path / "images", out=tmp_path / "one", seeds=[0], runtime=there)
    assert torch.cuda.max_memory_allocated() - before > 10 * 2**20, "the network, its gradients and a batch of maps"
    others = sweep.sweep([preset], tmp_path / "images", out=tmp_path / "two", seeds=[1, 2], processes=2, runtime=there)
    assert not (*found.failed, *others.failed)
    name = torch.cuda.get_device_name()
    assert [devices(record) for record in (*found.records, *others.records)] == 3 * [{f"cuda:0 ({name})"}]


def test_predict(sorted_run: SortedRun, device: Accelerator, tmp_path: Path) -> None:
    for number in range(4):
        tiny.save(tmp_path / "more" / f"{number}.png", tiny.picture("ash", 100 + number))
    found = predict(sorted_run.out, tmp_path / "more", runtime=THERE)
    assert len(found.assignments) == 4
    assert device.used


def test_review_and_refit(copied_run: SortedRun, device: Accelerator) -> None:
    session = open_session(load_run(copied_run.out, raw=True), runtime=THERE)
    assert isinstance(session.advisor, Advice)
    session.advisor.refit(Review(load_run(copied_run.out, raw=True)))
    assert device.used
    rows = np.arange(20)
    assert session.advisor.parts(rows, rows[:0], 2)
    assert device.used


def test_report(copied_run: SortedRun, device: Accelerator) -> None:
    draw_report(load_run(copied_run.out), runtime=THERE)
    assert device.products["here"] > 0, "categories are divided there; the map is drawn on the CPU"


def test_features_and_training_alone(device: Accelerator, tmp_path: Path) -> None:
    images = tiny.as_array()
    backbone = load_backbone("convnet", seed=0)
    store = pack(images, tmp_path, settings=Settings(shorter_side=backbone.spec.shorter_side), runtime=THERE)
    found = train(Contrastive(backbone, Contrast(), seed=0), images, store, Training(epochs=1), runtime=THERE)
    assert found.devices == ("mps",)
    extract(backbone, store, runtime=THERE)
    assert device.used


def test_the_script_that_compares_methods(device: Accelerator, tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "benchmarks/wild.py"
    if not path.exists():
        pytest.skip("the benchmarks are not here")
    spec = importlib.util.spec_from_file_location("benchmarks_wild", path)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    chosen = {"epochs": 1, "k": "auto", "backbone": "convnet", "weights": None}
    options = Namespace(**{**dict.fromkeys(script.SETTINGS), **chosen}, device=accelerator.NAME, as_cpu=False)
    images = tiny.as_array()
    run = script.sort(images, options, "gcd", 0, tmp_path)
    assert device.used
    none = np.zeros(len(images), dtype=bool)
    record = script.record(run, script.Collection(images=images, junk=none, wrong=none))
    assert (record["device"], record["trained_on"]) == ("mps", ["mps"])
