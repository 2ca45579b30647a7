"""Clusters by a method's own function: arranged like all others, with the k that it found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support import tiny_folder as tiny
from support.command_line import refused

from sortal.config import METHODS, REFERENCES, register
from sortal.discovery.grouping.clusters import arranged, checked
from sortal.errors import InputError, SortalError
from sortal.runs.confidence import Features


@dataclass(frozen=True)
class Cut:
    most: int = 7


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    tables: list[dict[str, Any]] = [METHODS, REFERENCES]
    before = [dict(table) for table in tables]
    yield
    for table, names in zip(tables, before, strict=True):
        table.clear()
        table.update(names)


def test_known_classes_come_first_and_labelled_images_stay_in_theirs() -> None:
    x = np.eye(6, dtype=np.float32)[[0, 0, 1, 1, 2, 2, 2, 3]]
    labels = np.array([-1, 9, -1, 4, -1, -1, 4, -1])
    clusters, centres = arranged(np.array([70, 70, 5, 5, 30, 30, 30, -1]), labels, x)
    # Of the clusters, 5 has class 4 and 70 has class 9; the image in none is at the same distance from all.
    assert clusters[:7].tolist() == [1, 1, 0, 0, 2, 2, 0]
    assert centres.shape == (3, 6)
    np.testing.assert_allclose(centres[2], x[4] if clusters[7] != 2 else (2 * x[4] + x[7]) / 3, rtol=1e-6)


def test_classes_without_a_cluster_have_one_and_clusters_without_images_have_none() -> None:
    x = np.eye(3, dtype=np.float32)[[0, 0, 1]]
    clusters, centres = arranged(np.array([0, 0, 0]), np.array([0, 1, -1]), x)
    assert sorted(set(clusters.tolist())) == [0, 1]
    assert clusters[:2].tolist() == [0, 1]
    clusters, centres = arranged(np.array([0, 1, 2]), np.array([0, 0, -1]), x)
    assert clusters.tolist() == [0, 0, 1], "the cluster of the second image was of nothing else"
    assert len(centres) == 2


@pytest.mark.parametrize("found", [[0, 1], [[0, 1, 2]], [0.0, 1.0, 2.0], [-1, -1, -1], None])
def test_anything_but_a_number_for_each_image_is_refused(found: Any) -> None:
    with pytest.raises(SortalError, match=r"^The clustering of mine must return a whole number for each of 3 images"):
        checked(found, 3, "mine")
    assert checked([0, -1, 2], 3, "mine").tolist() == [0, -1, 2]


def test_a_method_that_trains_nothing_finds_its_own_k_or_takes_one(tmp_path: Path, quickly: None) -> None:
    asked: list[int | None] = []

    def by_colour(x: Features, labels: NDArray[np.int64], k: int | None, losses: Cut, seed: int) -> NDArray[np.int64]:
        asked.append(k)
        assert (seed, (labels >= 0).sum() > 0) == (3, True)
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-5)
        return np.arange(len(x)) % (losses.most if k is None else k)

    record = register("cut", None, losses=Cut, clustering="own", cluster=by_colour, finds_k=True, title="Cut")
    tiny.write(tmp_path / "images")
    settings: dict[str, Any] = {"method": record, "backbone": "convnet", "seed": 3, "epochs": "auto"}
    run = tiny.sort(tmp_path / "images", tmp_path / "run", **settings, k="auto")
    assert (run.k.k, run.k.estimated, run.k.method, run.facts.settings.k) == (7, True, "own", "own")
    assert run.facts.training is None
    assert len(run.categories) == 7
    again = tiny.sort(tmp_path / "images", tmp_path / "run", **settings, k=5, set=["losses.most=9"])
    assert (again.k.k, again.k.estimated) == (5, False)
    assert asked == [None, 5]
    nine = tiny.sort(tmp_path / "images", tmp_path / "run", **settings, k="own", set=["losses.most=9"])
    assert nine.k.k == 9


def test_k_cannot_be_left_to_a_method_that_does_not_find_it(tmp_path: Path) -> None:
    tiny.write(tmp_path / "images")
    with pytest.raises(InputError, match=r"^k must be a number or 'auto' for gcd, which does not find it itself, got"):
        tiny.sort(tmp_path / "images", tmp_path / "run", method="gcd", k="own")
    said = refused("benchmark", "folder", "--root", tmp_path, "--method", "gcd", "--k", "own")
    assert "k must be true, auto or a number for gcd, which does not find it itself, got own." in said
    assert "sortal.research.benchmark.select" in sys.modules
