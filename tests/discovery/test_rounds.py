"""Sortal's own method: how rounds share the epochs, what is counted between them, and what a run keeps of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tiny_folder as tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from runtimes import CPU
from safetensors.torch import load_file

from sortal.config import Discovery, Rounds
from sortal.discovery import defaults
from sortal.discovery.clusters import smooth
from sortal.discovery.job import Job
from sortal.discovery.rounds import count, epochs_of_rounds, levelled
from sortal.images.image_set import ImageSet, image_set
from sortal.learning import token_cache
from sortal.learning.losses import divergence
from sortal.learning.train import Trainer
from sortal.runs.run import INITIAL, LOG, MODEL

SETTINGS: dict[str, Any] = {**tiny.SETTINGS, "method": "sortal", "epochs": 4, "k_max": 12}


@pytest.mark.parametrize(
    ("epochs", "rounds"), [(0, (0, 0, 0)), (1, (1, 0, 0)), (2, (1, 1, 0)), (4, (2, 1, 1)), (100, (40, 30, 30))]
)
def test_rounds_share_the_epochs(epochs: int, rounds: tuple[int, int, int]) -> None:
    assert epochs_of_rounds(Rounds(), epochs) == rounds
    assert sum(rounds) == epochs


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=9), st.floats(0, 1))
def test_sizes_are_levelled_without_changing_their_sum(sizes: list[int], strength: float) -> None:
    before = np.array(sizes, dtype=np.float64)
    after = levelled(before, strength)
    assert after.sum() == pytest.approx(before.sum())
    assert (np.diff(after[np.argsort(before)]) >= -1e-9 * before.sum()).all(), "larger ones stay larger"
    np.testing.assert_allclose(levelled(before, 0.0), before)
    np.testing.assert_allclose(levelled(before, 1.0), before.mean())
    assert len(levelled(np.zeros(0), 0.5)) == 0


def test_levelling_halfway_is_a_square_root() -> None:
    np.testing.assert_allclose(levelled(np.array([100.0, 400.0]), 0.5), 500 * np.array([1 / 3, 2 / 3]))


def job_on(images: ImageSet, tmp_path: Path, **settings: Any) -> Job:
    asked = Discovery(**{name: value for name, value in {**SETTINGS, **settings}.items() if name != "runtime"})
    recipe = defaults.recipe_for(asked, len(images), on_gpu=False)
    return Job(images=images, source=None, settings=asked, recipe=recipe, place=tmp_path, runtime=CPU, command="")


@pytest.mark.parametrize("labelled", [0, 1, 2, 3, 5])
def test_categories_and_their_unlabelled_images_are_counted(labelled: int, tmp_path: Path) -> None:
    """Five clear classes of 10 to 50 images; of the first ones half are labelled. Fewer than two need a k."""
    sizes = np.array([10, 20, 30, 40, 50])
    truth = np.repeat(np.arange(5), sizes)
    generator = np.random.default_rng(0)
    x = np.eye(16)[truth] + generator.normal(0, 0.02, (len(truth), 16))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    has_label = (truth < labelled) & (generator.permutation(len(truth)) % 2 == 0)
    names = [f"c{label}" if known else None for label, known in zip(truth, has_label, strict=True)]
    images = image_set(
        [f"{at}.png" for at in range(len(x))], pixels=np.zeros((len(x), 8, 8, 3), np.uint8), labels=names
    )
    found = count(job_on(images, tmp_path, k="auto" if labelled > 1 else 5), x, images, CPU)
    assert len(found.shares) == 5
    of_class = (found.centres @ np.eye(16)[:5].T).argmax(0)  # the cluster of each class
    assert of_class[:labelled].tolist() == list(range(labelled)), "known classes come first"
    total = levelled(sizes + 1.0, 0.5)
    wanted = np.maximum(total - np.bincount(truth[has_label], minlength=5), 0.1 * total)
    np.testing.assert_allclose(found.shares[of_class], wanted)


@pytest.mark.parametrize("neighbours", [1, 3, 50])
def test_smoothing_averages_with_the_nearest_neighbours(neighbours: int) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(20, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    slow = x.astype(np.float64)
    for _ in range(2):
        alike = slow @ slow.T - 9 * np.eye(20)
        means = np.stack([slow[np.argsort(-row)[: min(neighbours, 19)]].mean(0) for row in alike])
        slow = slow + means
        slow /= np.linalg.norm(slow, axis=1, keepdims=True)
    for block in (2**26, 60):  # all rows at once, and three at a time
        with patch("sortal.discovery.clusters.BLOCK", block):
            np.testing.assert_allclose(smooth(x, neighbours, torch.device("cpu")), slow, atol=1e-5)
    assert smooth(x, 0, torch.device("cpu")) is x
    assert smooth(x[:1], 8, torch.device("cpu")).shape == (1, 4)


def test_the_divergence_is_that_of_the_mean_over_unlabelled_views() -> None:
    rows = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]])
    among, shares = torch.tensor([False, True, True]), torch.tensor([0.25, 0.75])
    by_hand = 0.2 * np.log(0.2 / 0.25) + 0.8 * np.log(0.8 / 0.75)
    assert divergence(rows, among, shares).item() == pytest.approx(by_hand, abs=1e-6)
    assert divergence(rows, among, torch.tensor([0.2, 0.8])).item() == pytest.approx(0, abs=1e-6)
    assert divergence(rows, torch.zeros(3, dtype=torch.bool), shares).item() == 0


def test_a_run_keeps_all_rounds_and_learns_without_k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are computed once for all rounds; with another k nothing is trained again."""
    tiny.write(tmp_path / "images", tiny.planted(each=8, labelled=6))
    vit: dict[str, Any] = {**SETTINGS, "backbone": "test_vit", "weights": "random", "views": 2}
    made, notes = tiny.spy(monkeypatch, token_cache, "cache_tokens"), list[str]()
    with tiny.quickly():
        run = tiny.sort(tmp_path / "images", tmp_path / "run", **{**vit, "runtime": replace(CPU, note=notes.append)})
        assert len(made) == 1
        assert len([*(run.cache / "learn").iterdir()]) == 3, "the folder of the tokens is gone"
        assert run.facts.training is not None
        assert run.facts.training.epochs == 4
        log = (run.folder / LOG).read_text()
        assert (log.count('"event": "start"'), log.count('"event": "epoch"')) == (3, 4)
        assert sum("counted between rounds of training: " in text for text in notes) == 1
        before, after = load_file(run.folder / INITIAL), load_file(run.folder / f"{MODEL}.safetensors")
        assert any(not torch.equal(value, after[name.removeprefix("net.")]) for name, value in before.items())
        monkeypatch.setattr(Trainer, "_train", tiny.never)
        again = tiny.sort(tmp_path / "images", tmp_path / "run", **{**vit, "k": 5})
    assert again.facts.hashes.model == run.facts.hashes.model
    assert len(again.categories) == 5


@pytest.mark.parametrize("restart", [True, False])
def test_the_second_round_starts_anew_or_continues(
    restart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, train = list[float](), Trainer.train

    def noted(trainer: Trainer) -> Any:
        starts.append(float(next(trainer.method.backbone.parameters()).detach().double().sum()))
        return train(trainer)

    monkeypatch.setattr(Trainer, "train", noted)
    monkeypatch.setitem(defaults.TINY_LOSSES, "sortal", Rounds(hidden=16, bottleneck=8, restart=restart))
    with tiny.quickly():
        tiny.sort(tiny.as_array(), tmp_path / "run", **SETTINGS)
    first, second, third = starts
    assert (first == second) == restart
    assert third not in (first, second)


@pytest.mark.parametrize(("old", "k"), [((), 4), (tiny.OLD[:1], 4), (tiny.CLASSES, "auto")])
def test_no_one_and_all_classes_may_be_known(old: tuple[str, ...], k: int | str, tmp_path: Path) -> None:
    tiny.write(tmp_path / "images", tiny.planted(old=old))
    with tiny.quickly():
        run = tiny.sort(tmp_path / "images", tmp_path / "run", **{**SETTINGS, "k": k})
    assert [category.name for category in run.categories if category.kind == "known"] == sorted(old)
    assert len(run.categories) == run.k.k >= len(old)
    assert run.facts.training is not None
    assert run.facts.training.epochs == 4
