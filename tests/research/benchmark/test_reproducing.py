"""Presets from end to end, on a small copy of the files that the publisher of their data set distributes.

The copies have the folders and the annotation files of the originals, with six classes, three of them old, and tiny
images. The network is a small one, and trains for an epoch. tests/images/datasets reads all classes.

Presets that differ in nothing but numbers are alike, so one of them is run; with EVERY_PRESET=1 in the environment, all
are, which takes minutes.
"""

import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support import layouts
from support.command_line import invoke
from support.runtimes import CPU
from support.thorough import thorough_but

from sortal.config import Contrast
from sortal.images import datasets
from sortal.images.datasets import image_trees
from sortal.images.datasets.official import ClassSplit, read_class_split
from sortal.images.folders import is_image
from sortal.research.benchmark.comparison import tables
from sortal.research.benchmark.presets import PRESETS, Preset
from sortal.research.benchmark.records import find
from sortal.research.benchmark.select import choose
from sortal.research.benchmark.sweep import sweep
from sortal.research.benchmark.task import Task, read, settings_of

pytestmark = pytest.mark.usefixtures("quickly", "few_classes")

QUICK = ("table2/cifar10/kmeans", "table3/cub/gcd")
EVERY = os.environ.get("EVERY_PRESET") == "1"
CLASSES, OLD, EACH = 6, (0, 2, 5), 8  # EACH: training images of a class
WHOLE = read_class_split


def differing() -> list[str]:
    """Choose presets that differ in more than numbers, each on the data set that was tried least before."""
    alike = defaultdict(list)
    for name, preset in PRESETS.items():
        recipe, weight = preset.recipe, getattr(preset.recipe.losses, "supervised_weight", None)
        row = name.rpartition("/")[2] if recipe.method == "selex" else ""  # in flat or in hyperbolic space
        alike[recipe.method, row, recipe.clustering, preset.k, weight if weight in (0, 1) else None].append(name)
    chosen: list[str] = []
    for names in alike.values():
        tried = Counter(PRESETS[name].dataset for name in chosen)
        chosen.append(min(names, key=lambda name: tried[PRESETS[name].dataset]))
    return chosen


def few(name: str) -> ClassSplit:
    return ClassSplit(n_classes=CLASSES, old=OLD, wnids=WHOLE(name).wnids[:CLASSES])


def noise(labels: list[int], first: int) -> NDArray[np.uint8]:
    return np.random.default_rng(first).integers(256, size=(len(labels), 3072), dtype=np.uint8)


@pytest.fixture(scope="module")
def few_classes() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (datasets, image_trees, layouts):
            patch.setattr(module, "read_class_split", few)
        patch.setattr(layouts, "TRAIN", EACH)
        patch.setattr(layouts, "cifar_rows", noise)
        yield


@pytest.fixture(scope="module")
def roots(few_classes: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in layouts.BUILDERS}
    for name, root in made.items():
        layouts.BUILDERS[name](root)
        for number, path in enumerate(path for path in sorted(root.rglob("*")) if is_image(path.name)):
            pixels = np.random.default_rng(number).integers(256, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path, "JPEG")
    return made


def reduced(name: str, root: Path) -> Preset:
    """A preset with another network, fewer epochs and restarts, and a small head: otherwise as in the paper."""
    backbone = "test_vit" if PRESETS[name].recipe.method == "rlcd" else "convnet"  # which has further tokens
    (preset,) = choose(None, root, names=[name], backbone=backbone, weights="random", epochs=1)
    losses: Any = preset.recipe.losses
    if hasattr(losses, "hidden"):
        losses = replace(losses, hidden=64)
    if isinstance(losses, Contrast) and losses.output == "prototypes":
        losses = replace(losses, prototypes=64)
    return replace(preset, n_init=2, recipe=replace(preset.recipe, losses=losses))


def test_every_preset_is_valid_for_the_published_files(roots: dict[str, Path], tmp_path: Path) -> None:
    data = {name: read(name, root) for name, root in roots.items()}
    for name, preset in PRESETS.items():
        root = roots[preset.dataset]
        task = Task(preset=reduced(name, root), seed=0, root=root, out=tmp_path, command="")
        found = settings_of(task, data[preset.dataset])
        assert (found.method, found.k) == (preset.recipe.method, CLASSES if preset.k == "true" else preset.k)


def test_every_data_set_is_tried() -> None:
    assert {PRESETS[name].dataset for name in differing()} == {preset.dataset for preset in PRESETS.values()}


@pytest.mark.parametrize("name", thorough_but(QUICK, PRESETS if EVERY else differing()))
def test_a_preset_runs_from_published_files_to_its_table(name: str, roots: dict[str, Path]) -> None:
    whole = PRESETS[name]
    root = roots[whole.dataset]
    out = root / "benchmark"
    found = sweep([reduced(name, root)], root, out=out, seeds=[0], runtime=CPU)
    assert found.failed == ()
    (record,) = found.records
    assert (record.name, record.dataset, record.k.true) == (name, whole.dataset, CLASSES)
    assert (record.k.asked, record.k.k) == ((whole.k, CLASSES) if whole.k == "true" else (whole.k, record.k.k))
    images = CLASSES * EACH * (5 if whole.dataset == "cifar10" else 1)  # whose training images are in five batches
    assert record.transductive.images == images - images // 4, "half of those of old classes are labelled"
    assert record.inductive is not None
    assert record.inductive.images == CLASSES
    assert (record.training is None) == (whole.recipe.method == "kmeans")
    (table,) = tables(found.records)
    assert any(row[0] == name for row in table.rows), "modified, so under its whole name"


def test_the_command_makes_a_table_of_published_files(roots: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    network = ("--backbone", "convnet", "--epochs", "1", "--seeds", "0", "--device", "cpu", "--workers", "1")
    where = ("--root", roots["stanford_cars"], "--out", out)
    done = invoke("benchmark", "--preset", "table3/stanford_cars/uno", *where, *network)
    assert done.code == 0, done.err
    assert [record.name for record in find([out])] == ["table3/stanford_cars/uno"]
    assert "| table3/stanford_cars/uno | " in invoke("benchmark", "table", out).out
