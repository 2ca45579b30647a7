"""What a dry run says: counts by hand, times and sizes as functions of what was measured, and nothing written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_trial import a_trial

from sortal import advice, near, tokens
from sortal import plan as plan_module
from sortal.backbone import load_backbone
from sortal.config import Auto, Discovery, MethodName
from sortal.errors import InputError
from sortal.images import ImageSet, image_set
from sortal.job import READING, Job, prepare
from sortal.methods import make
from sortal.pipeline import stages_of
from sortal.plan import Plan, disk, memory, plan

SMALL = Discovery(backbone="convnet", method="gcd", epochs=3)
TRANSFORMER = Discovery(backbone="test_vit", weights="random", epochs=2, k=4)


def folder_of(place: Path, *, each: int = 10, side: int = 24) -> Path:
    """Two classes and as many images again without a label."""
    generator = np.random.default_rng(0)
    for name in ("a", "b", "unlabelled", "unlabelled/more"):
        (place / name).mkdir(parents=True)
        for i in range(each):
            pixels = generator.integers(0, 256, (side, side + 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{i}.png")
    return place


def job_of(images: Path | ImageSet, out: Path, settings: Discovery) -> Job:
    return prepare(images, None, out, settings, dict(READING), device="cpu", workers=1, force=False)


def files_below(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path, list[tuple[str, int, int]]]:
    """The small network's plan, the folder all is in, and what was told meanwhile."""
    place = tmp_path_factory.mktemp("small")
    folder_of(place / "images")
    told: list[tuple[str, int, int]] = []
    job = job_of(place / "images", place / "run", SMALL)
    return plan(job, on_progress=lambda *what: told.append(what)), place, told


# All of it


def test_counts_are_those_of_the_job(small: tuple[Plan, Path, Any]) -> None:
    found, _, _ = small
    assert (found.images, found.labelled, found.unlabelled, found.classes) == (40, 20, 20, 2)
    assert found.held_out == 0  # a fifth of them would be 4, too few to calibrate on
    assert (found.k, found.method, found.epochs, found.device) == ("auto", "gcd", 3, "cpu")
    assert (found.backbone, found.weights) == ("convnet", "random weights")
    assert found.unreadable_sample == ()


def test_every_stage_has_its_time(small: tuple[Plan, Path, Any]) -> None:
    found, _, _ = small
    assert found.seconds.keys() == {"check", "pixels", "learn", "features", "k", "clusters", "report"}
    assert all(seconds > 0 for seconds in found.seconds.values())


def test_nothing_is_written(small: tuple[Plan, Path, Any]) -> None:
    _, place, _ = small
    assert [path.name for path in place.iterdir()] == ["images"]
    assert len(files_below(place)) == 40


def test_the_small_network_keeps_no_tokens(small: tuple[Plan, Path, Any]) -> None:
    found, _, _ = small
    assert found.views is None
    assert found.tokens is None


def test_it_says_what_it_is_at(small: tuple[Plan, Path, list[tuple[str, int, int]]]) -> None:
    _, _, told = small
    assert [done for _, done, _ in told] == [0, 1, 2, 3, 4]
    assert {total for _, _, total in told} == {4}


def test_a_plan_survives_json(small: tuple[Plan, Path, Any]) -> None:
    found, _, _ = small
    for one in (
        found,
        replace(found, tokens=tokens.Plan(12, "memory"), notes=("a", "b"), unreadable_sample=("é\udcff",)),
    ):
        assert json.loads(json.dumps(one.to_json())) == one.to_json()
    assert one.to_json()["tokens"] == {"bytes": 12, "where": "memory"}
    assert one.to_json()["notes"] == ["a", "b"]
    assert one.to_json().keys() == vars(found).keys()


def test_tokens_of_a_transformer_are_kept_or_not(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", each=3, side=230)
    kept = plan(job_of(images, tmp_path / "run", TRANSFORMER))
    assert kept.views == 8
    assert kept.tokens is not None
    assert kept.tokens.where == "file"  # which a kill leaves
    assert kept.tokens.bytes == 12 * 8 * 2 * 197 * 64  # images, views, bytes of a number, patches and class, width
    assert kept.k == 4
    assert kept.seconds["k"] == 0
    assert kept.seconds["learn"] > 0
    live = plan(job_of(images, tmp_path / "run", replace(TRANSFORMER, views=None)))
    assert live.views is None
    assert live.tokens is None
    assert live.seconds["learn"] > 0


def test_views_that_do_not_fit_are_computed_anew_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tokens.plan
    monkeypatch.setattr(
        tokens, "plan", lambda size, *rest: tokens.Plan(size, None) if size > 2 * 10**6 else real(size, *rest)
    )
    found = plan(job_of(folder_of(tmp_path / "images", each=10, side=230), tmp_path / "run", TRANSFORMER))
    assert found.views is None
    assert found.tokens is None
    assert any("do not fit" in note for note in found.notes)


def test_without_learning_there_is_nothing_to_learn(tmp_path: Path) -> None:
    settings = replace(SMALL, method="kmeans", k=3)
    found = plan(job_of(folder_of(tmp_path / "images"), tmp_path / "run", settings))
    assert found.epochs == 0
    assert found.seconds["learn"] == 0
    assert found.seconds["features"] > 0
    assert found.seconds["k"] == 0


@pytest.mark.parametrize(("method", "k"), [("rankstats", "auto"), ("simgcd", "auto"), ("uno", 3)])
def test_a_classifier_is_planned_as_it_is_run(tmp_path: Path, method: MethodName, k: int | Auto) -> None:
    """It learns, and its head sorts in no time."""
    settings = replace(SMALL, method=method, k=k)
    found = plan(job_of(folder_of(tmp_path / "images"), tmp_path / "run", settings))
    assert (found.method, found.epochs, found.k) == (method, 3, k)
    stages = stages_of(settings, advice.recipe_for(settings, 40, on_gpu=False))
    assert tuple(found.seconds) == stages
    assert found.seconds["learn"] > 0
    assert found.seconds["features"] > 0
    assert found.seconds["clusters"] == 0
    assert (found.seconds["k"] > 0) == (k == "auto")
    assert not (tmp_path / "run").exists()


def test_where_k_comes_first_features_are_computed_twice() -> None:
    each = {"check": 1.0, "pixels": 2.0, "learn": 3.0, "features": 4.0, "k": 5.0, "clusters": 6.0, "report": 7.0}
    last = ("check", "pixels", "learn", "features", "k", "clusters", "report")
    first = ("check", "pixels", "k", "learn", "features", "clusters", "report")
    assert [*plan_module._seconds(last, each).items()] == [(stage, each[stage]) for stage in last]
    assert [*plan_module._seconds(first, each).values()] == [1, 2, 9, 3, 4, 6, 7]


def test_the_recipe_of_a_job_is_planned(tmp_path: Path) -> None:
    job = job_of(folder_of(tmp_path / "images"), tmp_path / "run", replace(SMALL, k=3))
    recipe = advice.recipe_for(replace(SMALL, epochs=9), 40, on_gpu=False)
    assert plan(replace(job, recipe=recipe)).epochs == 9


def test_a_classifier_of_a_transformer_keeps_tokens_too(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", each=3, side=230)
    found = plan(job_of(images, tmp_path / "run", replace(TRANSFORMER, method="simgcd")))
    assert found.views == 8
    assert found.tokens is not None
    assert found.tokens.bytes == 12 * 8 * 2 * 197 * 64
    assert found.seconds["learn"] > 0


def test_what_a_method_trains_counts_beside_the_model() -> None:
    """RankStats trains the small network and 3 outputs by 512 features and a bias, UNO the same without biases."""
    backbone = load_backbone("convnet")
    model = sum(4 * value.numel() for value in backbone.net.state_dict().values())
    assert plan_module._bytes(backbone, None) == (model, 0)
    by_method: dict[MethodName, int] = {"rankstats": 513, "uno": 512}
    for name, outputs in by_method.items():
        recipe = advice.recipe_for(replace(SMALL, method=name), 40, on_gpu=False)
        method = make(recipe, backbone, k=3, known=[0, 1])
        assert plan_module._bytes(backbone, method) == (model, model + 4 * 3 * outputs)


def test_rows_of_an_array_without_labels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 20, 3), dtype=np.uint8)
    images = image_set([str(i) for i in range(30)], pixels=pixels, labels=[None] * 30)
    found = plan(job_of(images, tmp_path / "run", replace(SMALL, k=5, epochs=1)))
    assert (found.images, found.labelled, found.classes, found.held_out) == (30, 0, 0, 0)
    assert any("No image is labelled" in note for note in found.notes)


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images")
    (images / "a" / "3.png").write_bytes(b"not an image")
    found = plan(job_of(images, tmp_path / "run", SMALL))
    assert found.images == 40
    assert found.unreadable_sample == ("a/3.png",)
    assert any("'a/3.png'" in note for note in found.notes)


def test_nothing_that_can_be_read_is_refused(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", each=2)
    for path in images.rglob("*.png"):
        path.write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"an image that can be read, got 8 that cannot: .*sortal check"):
        plan(job_of(images, tmp_path / "run", SMALL))
    assert not (tmp_path / "run").exists()


def test_an_earlier_run_is_left_alone_and_not_counted_in(tmp_path: Path) -> None:
    place = tmp_path / "run"
    (place / "cache" / "pixels").mkdir(parents=True)
    (place / "cache" / "pixels" / "something").write_bytes(b"kept")
    found = plan(job_of(folder_of(tmp_path / "images"), place, replace(SMALL, method="kmeans", k=3)))
    assert any("from scratch" in note for note in found.notes)
    assert files_below(place) == {"cache/pixels/something": b"kept"}


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=10) if Path(path) == tmp_path else real(path)
    )
    job = job_of(folder_of(tmp_path / "images"), tmp_path / "deep" / "run", replace(SMALL, method="kmeans", k=3))
    found = plan(job)
    assert found.free_disk == 10
    assert any("disk does not suffice" in note for note in found.notes)


def test_too_little_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "free_memory", lambda: 0)
    found = plan(job_of(folder_of(tmp_path / "images"), tmp_path / "run", replace(SMALL, method="kmeans", k=3)))
    assert any("Memory may not suffice" in note for note in found.notes)


def test_weights_of_the_hub_are_not_fetched_to_be_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = Discovery(backbone="test_vit.r160_in1k", method="kmeans", k=4)
    found = plan(job_of(folder_of(tmp_path / "images", each=2, side=230), tmp_path / "run", settings))
    assert found.weights == "the Hugging Face hub"
    assert any("fetched first" in note for note in found.notes)
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("name", ["nonsense", "test_vit.nonsense", "gone.json"])
def test_a_backbone_that_is_none_is_refused_as_by_a_run(tmp_path: Path, name: str) -> None:
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", Discovery(backbone=name, k=4))
    with pytest.raises(InputError, match="backbone"):
        plan(job)


# Sizes


def test_disk_by_hand() -> None:
    # 10 images of 3 features in 2 clusters: pixels with their plan and mark, features twice and once their content,
    # clusters, centres twice, the model, two checkpoints with weights and momentum, the report, tables.
    pixels, features, clusters = 10 * (300 + 48 + 1), 10 * (2 * 12 + 32), 10 * 8 + 2 * 24
    needed = pixels + features + clusters + 70 + 20 + 1000 + 5120
    assert disk(10, 3, 2, a_trial(), model=70, trained=5) == needed
    assert disk(10, 3, 2, a_trial(), model=70, trained=5, kept=tokens.Plan(50, "file")) == needed + 50
    assert disk(10, 3, 2, a_trial(), model=70, trained=5, kept=tokens.Plan(50, "memory")) == needed


def test_memory_by_hand() -> None:
    n = near.MOST + 1  # of which no near-duplicates are looked for
    assert memory(10, 3, a_trial(base=7, working=10**9), None) == 7 + 10**9
    assert memory(10, 3, a_trial(base=7, working=10**9), tokens.Plan(50, "memory")) == 7 + 10**9 + 50
    assert memory(10, 3, a_trial(base=7, working=10**9), tokens.Plan(50, "device")) == 7 + 10**9
    assert memory(10, 3, a_trial(base=7, working=0), None) == 7 + 10 * 768 * 9
    assert memory(n, 1000, a_trial(base=7, working=0), None) == 7 + 12 * n * 1000
    assert memory(n, 3, a_trial(base=7, working=0), None) == 7 + 24 * n + 500 * n
