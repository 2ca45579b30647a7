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

from sortal import advice, near, tokens, trial
from sortal import plan as plan_module
from sortal.backbone import load_backbone
from sortal.config import Discovery, MethodName
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


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan with what a trial would have measured instead of a trial."""
    monkeypatch.setattr(trial, "try_out", lambda *_: a_trial())


# All of it


def test_a_plan_of_the_small_network(tmp_path: Path) -> None:
    """Nothing is written, and no tokens are kept."""
    told: list[tuple[str, int, int]] = []
    images = folder_of(tmp_path / "images")
    found = plan(job_of(images, tmp_path / "run", SMALL), on_progress=lambda *what: told.append(what))
    assert (found.images, found.labelled, found.unlabelled, found.classes) == (40, 20, 20, 2)
    assert found.held_out == 0  # a fifth of them would be 4, too few to calibrate on
    assert (found.k, found.method, found.epochs, found.device) == ("auto", "gcd", 3, "cpu")
    assert (found.backbone, found.weights, found.views, found.tokens) == ("convnet", "random weights", None, None)
    assert found.unreadable_sample == ()
    assert found.seconds.keys() == {"check", "pixels", "learn", "features", "k", "clusters", "report"}
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 40
    assert [done for _, done, _ in told] == [0, 1, 2, 3, 4]
    assert {total for _, _, total in told} == {4}
    one = replace(found, tokens=tokens.Plan(12, "memory"), notes=("a", "b"), unreadable_sample=("é\udcff",)).to_json()
    assert json.loads(json.dumps(one)) == one
    assert (one["tokens"], one["notes"]) == ({"bytes": 12, "where": "memory"}, ["a", "b"])
    assert one.keys() == vars(found).keys()
    rows = image_set([*"abcdef"], pixels=np.zeros((6, 20, 20, 3), dtype=np.uint8), labels=[None] * 6)
    found = plan(job_of(rows, tmp_path / "run", replace(SMALL, k=5, epochs=1)))
    assert (found.images, found.labelled, found.classes, found.held_out) == (6, 0, 0, 0)
    assert any("No image is labelled" in note for note in found.notes)


def test_tokens_of_a_transformer_are_kept_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = folder_of(tmp_path / "images", each=2, side=230)
    tried: Any = plan(job_of(images, tmp_path / "run", replace(TRANSFORMER, method="simgcd")))
    monkeypatch.setattr(trial, "try_out", lambda *_: a_trial())
    for found in (tried, plan(job_of(images, tmp_path / "run", TRANSFORMER))):
        assert (found.k, found.views) == (4, 8)
        # Images, views, bytes of a number, patches and class, width; in a file, which a kill leaves
        assert found.tokens == tokens.Plan(8 * 8 * 2 * 197 * 64, "file")
        assert found.seconds["learn"] > 0
    assert tried.seconds["k"] == 0
    live = plan(job_of(images, tmp_path / "run", replace(TRANSFORMER, views=None)))
    monkeypatch.setattr(tokens, "plan", lambda size, *_: tokens.Plan(size, None))
    unfit = plan(job_of(images, tmp_path / "run", TRANSFORMER))
    for found in (live, unfit):
        assert (found.views, found.tokens) == (None, None)
        assert found.seconds["learn"] > 0
    assert [any("do not fit" in note for note in found.notes) for found in (live, unfit)] == [False, True]


def test_k_means_and_a_classifier_are_planned_as_they_are_run(tmp_path: Path) -> None:
    """Where nothing is learned that takes no time; a head sorts in no time."""
    images, settings = folder_of(tmp_path / "images"), replace(SMALL, method="kmeans", k=3)
    found = plan(job_of(images, tmp_path / "run", settings))
    assert found.epochs == 0
    assert {stage for stage, seconds in found.seconds.items() if not seconds} == {"learn", "k"}
    settings = replace(SMALL, method="rankstats")
    found = plan(job_of(images, tmp_path / "run", settings))
    assert (found.method, found.epochs, found.k) == ("rankstats", 3, "auto")
    assert tuple(found.seconds) == stages_of(settings, advice.recipe_for(settings, 40, on_gpu=False))
    assert {stage for stage, seconds in found.seconds.items() if not seconds} == {"clusters"}
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("untried")
def test_the_recipe_of_a_job_is_planned(tmp_path: Path) -> None:
    """Where k comes first, features are computed twice."""
    job = job_of(folder_of(tmp_path / "images", each=2), tmp_path / "run", replace(SMALL, k=3))
    recipe = advice.recipe_for(replace(SMALL, epochs=9), 40, on_gpu=False)
    assert plan(replace(job, recipe=recipe)).epochs == 9
    estimated = replace(job, settings=SMALL, recipe=recipe)
    last = plan(estimated).seconds
    first = plan(replace(estimated, recipe=replace(recipe, estimate_on="raw"))).seconds
    assert [*last.items()] == [*a_trial().stages(8, recipe.training, None).items()]
    assert [*first] == ["check", "pixels", "k", "learn", "features", "clusters", "report"]
    assert first == {**last, "k": last["k"] + last["features"]}


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


def test_files_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "images", each=2)
    (images / "a" / "1.png").write_bytes(b"not an image")
    found = plan(job_of(images, tmp_path / "run", SMALL))
    assert found.images == 8
    assert found.unreadable_sample == ("a/1.png",)
    assert any("'a/1.png'" in note for note in found.notes)
    for path in images.rglob("*.png"):
        path.write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"an image that can be read, got 8 that cannot: .*sortal check"):
        plan(job_of(images, tmp_path / "run", SMALL))
    assert not (tmp_path / "run").exists()


def test_notes_say_what_is_short_and_what_is_there_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, place, settings = folder_of(tmp_path / "images", each=2), tmp_path / "run", replace(SMALL, k=3)
    monkeypatch.setattr(trial, "try_out", lambda *_: a_trial(working=0))
    real = shutil.disk_usage

    def planned(out: Path, disk: int, memory: int) -> Plan:
        usage = SimpleNamespace(free=disk)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage if Path(path) == tmp_path else real(path))
        monkeypatch.setattr(tokens, "free_memory", lambda: memory)
        return plan(job_of(images, out, settings))

    deep = tmp_path / "deep" / "run"
    found = planned(deep, 10**9, 1000)
    disk, memory = found.disk, found.memory - 10_000
    assert not planned(deep, disk, memory).notes
    (memory_note,) = planned(deep, disk, memory - 1).notes
    assert memory_note.startswith("Memory may not suffice")
    found = planned(deep, disk - 1, memory)
    assert found.free_disk == disk - 1
    assert found.notes[0].startswith("The disk does not suffice")
    (place / "cache" / "pixels").mkdir(parents=True)
    (note,) = planned(place, 10**9, memory).notes
    assert note.startswith("All of this is from scratch:")
    assert [path.name for path in place.rglob("*")] == ["cache", "pixels"]


@pytest.mark.usefixtures("untried")
def test_weights_of_the_hub_are_not_fetched_to_be_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    images = folder_of(tmp_path / "images", each=2)
    settings = Discovery(backbone="test_vit.r160_in1k", method="kmeans", k=4)
    found = plan(job_of(images, tmp_path / "run", settings))
    assert found.weights == "the Hugging Face hub"
    assert any("fetched first" in note for note in found.notes)
    assert not (tmp_path / "hub").exists()
    for name in ("nonsense", "test_vit.nonsense", "gone.json"):
        with pytest.raises(InputError, match="backbone"):
            plan(job_of(images, tmp_path / "run", replace(settings, backbone=name)))


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
