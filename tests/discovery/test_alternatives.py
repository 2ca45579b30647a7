"""Quicker ways: which apply, which are worth naming, and their prices."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runtimes import CPU

from sortal.cli import options
from sortal.config import FASTER, Discovery, Reading
from sortal.discovery import alternatives
from sortal.discovery.alternatives import quicker
from sortal.discovery.defaults import recipe_for
from sortal.discovery.job import Job, prepare
from sortal.errors import InputError
from sortal.images.image_set import image_set

VIT = "vit_small_patch14_dinov2"


def job_of(n: int, place: Path, **settings: Any) -> Job:
    pixels = np.zeros((2, 8, 8, 3), dtype=np.uint8)
    few = image_set(["a", "b"], pixels=pixels, labels=[None] * 2)
    job = prepare(few, None, place, Discovery(**settings), Reading(), runtime=CPU, force=False)
    many = image_set([str(i) for i in range(n)], pixels=np.zeros((n, 1, 1, 3), dtype=np.uint8), labels=[None] * n)
    return replace(job, images=many, recipe=recipe_for(job.settings, n, on_gpu=False))


@pytest.mark.parametrize(
    ("n", "settings", "small", "named"),
    [
        (9000, {"backbone": VIT}, 112, ["--learn-on 2000", "--image-size 112", "--method kmeans"]),
        (45_000, {"backbone": VIT}, 112, ["--learn-on 4000", "--image-size 112", "--method kmeans"]),
        (9000, {"backbone": VIT, "learn_on": 3000, "image_size": 112}, None, ["--method kmeans"]),
        (3000, {"backbone": "resnet50", "method": "kmeans"}, None, []),
        (3000, {"backbone": "convnet", "epochs": 8}, None, ["--epochs 2", "--method kmeans"]),
        (3000, {"backbone": "convnet", "epochs": 1}, None, ["--method kmeans"]),
        (3000, {"backbone": VIT, "set": ("losses.temperature=0.3",)}, 112, ["--image-size 112"]),
        (3000, {"backbone": VIT, "set": ("training.clip=1.0",)}, None, ["--method kmeans"]),
    ],
)
def test_quicker_ways_are_those_that_apply(
    n: int, settings: dict[str, Any], small: int | None, named: list[str], tmp_path: Path
) -> None:
    job = job_of(n, tmp_path / "run", weights="random" if "convnet" not in settings.values() else None, **settings)
    ways = quicker(job, 7200.0, small, lambda _: 3600.0)
    assert [options.spell(way.settings) for way in ways] == named
    assert all(", which takes about 60 min and sorts " in way.action for way in ways)
    assert quicker(job, 4000.0, small, lambda _: 3600.0) == [], "hardly quicker"


def test_each_way_is_priced_with_the_recipe_that_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternatives, "FEWEST_SUGGESTED", 1000)
    job, asked = job_of(9000, tmp_path / "run", backbone=VIT, weights="random"), list[Job]()

    def price(job: Job) -> float:
        asked.append(job)
        return 1.0

    quicker(job, 7200.0, 112, price)
    sample, small, untrained = asked
    assert (sample.settings.learn_on, sample.recipe.training.epochs) == (1000, 80)
    assert job.recipe.training.epochs == 40, "fewer for more images"
    assert (small.image_size, small.recipe) == (112, job.recipe)
    assert (untrained.settings.method, untrained.recipe.learns) == ("kmeans", False)


def test_a_smaller_network_is_named_where_its_weights_can_be_had(tmp_path: Path) -> None:
    job = job_of(9000, tmp_path / "run", backbone=VIT, weights="random")
    job = replace(job, settings=replace(job.settings, weights=None))

    def priced(job: Job) -> float:
        if job.settings.backbone == FASTER and not there:
            raise InputError("The weights cannot be downloaded.")
        return 3600.0

    there = True
    (way,) = (way for way in quicker(job, 7200.0, None, priced) if "backbone" in way.settings)
    assert way.settings == {"backbone": FASTER}
    assert way.action.startswith("use a smaller network, which takes an estimated 60 min and sorts worse, ")
    there = False
    assert [*map(len, (quicker(job, 7200.0, None, priced), quicker(job, 7200.0, 112, priced)))] == [2, 3]
    fast = replace(job, settings=replace(job.settings, backbone=FASTER))
    assert all("backbone" not in way.settings for way in quicker(fast, 7200.0, None, lambda _: 1.0))


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({"backbone": VIT}, ["learn_on", "image_size", "method"]),
        ({"backbone": VIT, "method": "gcd"}, []),
        ({"backbone": "vit_base_patch14_dinov2"}, []),
        ({"backbone": "convnet", "epochs": 8}, []),
    ],
)
def test_a_way_costs_what_was_measured_with_such_a_network_and_method(
    settings: dict[str, Any], measured: list[str], tmp_path: Path
) -> None:
    job = job_of(9000, tmp_path / "run", weights=None if "epochs" in settings else "random", **settings)
    ways = quicker(job, 7200.0, 112, lambda _: 3600.0)
    assert [next(iter(way.settings)) for way in ways if "not measured" not in way.action] == measured
    assert len(ways) >= 3
