"""What is watched after each epoch is the truth, and nothing that learns, selects or counts can see it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from support import tiny_folder as tiny
from support.runtimes import CPU

from sortal.discovery import stages
from sortal.discovery.grouping import rounds
from sortal.discovery.watching import WATCHED, watching
from sortal.errors import SortalError
from sortal.images.image_set import ImageSet

DECIDED = ("model.safetensors", "features.npy", "centres.npy", "k.json", "confidence.json")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_truth_is_written_apart_and_leads_nothing(tmp_path: Path, quickly: None) -> None:
    """With the truth turned upside down, everything but what is said about it stays the same."""
    images = tiny.as_array()
    turned = replace(images, truth=np.where(images.labels >= 0, images.labels, 5 - images.truth))
    how: dict[str, Any] = {"method": "gcd", "k": 6, "epochs": 1, "watch_truth": True}
    first = tiny.sort(images, tmp_path / "first", **how)
    second = tiny.sort(turned, tmp_path / "second", **how)
    unwatched = tiny.sort(images, tmp_path / "unwatched", **{**how, "watch_truth": False})
    for name in DECIDED:
        content = (tmp_path / "first" / name).read_bytes()
        assert content == (tmp_path / "second" / name).read_bytes() == (tmp_path / "unwatched" / name).read_bytes()
    assert first.metrics != second.metrics
    assert first.facts.training is not None
    seen, others = (lines(tmp_path / name / WATCHED) for name in ("first", "second"))
    assert len(seen) == len(others) == first.facts.training.epochs
    assert seen != others
    assert [*seen[-1]] == ["round", "epoch", "k", "known", "images", "all", "old", "new"]
    assert first.metrics is not None
    scored = first.metrics.images + first.confidence.held_out
    assert (seen[-1]["k"], seen[-1]["images"]) == (6, scored), "held-out labels are hidden from training"
    assert not (tmp_path / "unwatched" / WATCHED).exists()
    assert unwatched.k == first.k


def test_learning_and_counting_get_images_without_their_truth(
    tmp_path: Path, quickly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[ImageSet] = []
    for name in ("train", "granular_k", "cluster"):
        calls = getattr(stages, name)

        def noted(*values: Any, calls: Any = calls, **named: Any) -> Any:
            given.extend(value for value in values if isinstance(value, ImageSet))
            return calls(*values, **named)

        monkeypatch.setattr(stages, name, noted)
    run = tiny.sort(tiny.as_array(), tmp_path / "run", method="gcd", k="auto", watch_truth=True)
    assert run.metrics is not None, "the truth is known"
    assert len(given) == 3
    assert all((images.truth == -1).all() for images in given)

    def learn(job: object, backbone: object, images: ImageSet, *_: Any, **__: Any) -> NoReturn:
        given.append(images)
        raise SortalError("That is enough.")

    monkeypatch.setattr(rounds, "learn", learn)
    with pytest.raises(SortalError, match="That is enough"):
        tiny.sort(tiny.as_array(), tmp_path / "ours", watch_truth=True)
    assert (given[-1].truth == -1).all(), "of Sortal's own method, which counts between its rounds"


def test_accuracy_is_that_of_clusters_and_the_next_hook_is_called(tmp_path: Path) -> None:
    class Table:
        rows = np.array([2, 0, 1, 3])
        labels = torch.tensor([0, -1, -1, -1])

        def features(self) -> Any:
            return torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])

    called: list[int] = []
    truth = np.array([0, 1, 0, 0])  # by row: of the images 0, 0, 1, 0
    watch = watching(truth, tmp_path / "a" / "b.jsonl", seed=0, then=lambda epoch, *_: called.append(epoch))
    watch(3, Table(), {})
    watch(0, Table(), {"round": 2})
    row = {"round": 1, "epoch": 3, "k": 2, "known": 1, "images": 3, "all": 2 / 3, "old": 0.5, "new": 1.0}
    assert lines(tmp_path / "a" / "b.jsonl") == [row, row | {"round": 2, "epoch": 0}]
    assert called == [3, 0]


def test_the_rounds_of_sortals_own_method_are_told_apart(tmp_path: Path, quickly: None) -> None:
    """The first learns to count, without the labels of some classes, so what is old in it is not old in the others."""
    tiny.sort(tiny.as_array(), tmp_path / "run", method="sortal", k="auto", epochs=3, watch_truth=True)
    seen = lines(tmp_path / "run" / WATCHED)
    assert [(row["round"], row["epoch"]) for row in seen] == sorted({(row["round"], row["epoch"]) for row in seen})
    assert {row["round"] for row in seen} >= {1, 2, 3}
    assert {row["round"] for row in seen if row["known"] < 3} == {1}
    assert all(row["k"] == 6 for row in seen)


def test_a_function_of_ones_own_is_called_after_each_epoch(tmp_path: Path, quickly: None) -> None:
    seen: list[tuple[int, tuple[int, ...], set[str]]] = []

    def on_epoch(epoch: int, images: Any, figures: Any) -> None:
        seen.append((epoch, tuple(images.features().shape), {*figures}))

    tiny.sort(tiny.as_array(), tmp_path / "run", method="gcd", runtime=replace(CPU, on_epoch=on_epoch))
    n = len(tiny.planted())
    assert [(epoch, shape) for epoch, shape, _ in seen] == [(0, (n, 512)), (1, (n, 512))]
    assert seen[0][2] >= {"lr", "loss", "unsupervised", "supervised", "gradient_norm", "spread"}
