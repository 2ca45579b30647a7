"""Finer and coarser categories: the numbers that a wish allows, and what it changes in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SortedRun
from support import tiny_folder as tiny
from support.runtimes import CPU

from sortal import Run, discover
from sortal.config import Discovery, Granularity
from sortal.discovery import defaults
from sortal.discovery.grouping.choose_k import bounds_of_wish, granular_k
from sortal.discovery.grouping.clusters import rows_of
from sortal.discovery.job import Job
from sortal.errors import InputError
from sortal.images.image_set import image_set
from sortal.learning.step import TrainingStep
from sortal.runs.facts import KChoice
from sortal.system.distributed import alone


@pytest.mark.parametrize(
    ("wish", "k", "least", "most", "bounds"),
    [
        ("finer", 10, 2, 1000, (13, 25)),
        ("finer", 4, 2, 1000, (5, 10)),
        ("finer", 1, 2, 1000, (2, 2)),
        ("finer", 10, 2, 20, (13, 20)),
        ("finer", 10, 2, 11, (11, 11)),  # 12.5 are not allowed, but more than 10 are
        ("finer", 10, 2, 10, None),
        ("coarser", 10, 2, 1000, (4, 8)),
        ("coarser", 10, 6, 1000, (6, 8)),
        ("coarser", 10, 9, 1000, (9, 9)),
        ("coarser", 10, 10, 1000, None),
        ("coarser", 3, 2, 1000, (2, 2)),
        ("coarser", 2, 2, 1000, None),
        ("coarser", 1, 2, 1000, None),
    ],
)
def test_a_wish_allows_clearly_more_or_fewer_categories(
    wish: Granularity, k: int, least: int, most: int, bounds: tuple[int, int] | None
) -> None:
    assert bounds_of_wish(wish, k, least, most) == bounds


def chosen(
    folder: Path, wish: Granularity, *, gap: float, known: tuple[int, ...] = (), k_max: int = 15
) -> tuple[KChoice, list[str]]:
    """Choose k for six classes in three pairs, whose halves are `gap` apart; return it with the notes."""
    truth, notes = np.repeat(np.arange(6), 20), list[str]()
    x = np.eye(16)[truth // 2] + gap * np.eye(16)[6 + truth]
    x += np.random.default_rng(0).normal(0, 0.01, x.shape)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    names = [f"c{label}" if label in known and at % 2 else None for at, label in enumerate(truth)]
    pixels = np.zeros((len(x), 8, 8, 3), np.uint8)
    images = image_set([f"{at}.png" for at in range(len(x))], pixels=pixels, labels=names)
    settings = Discovery(method="gcd", backbone="convnet", k_max=k_max, granularity=wish)
    recipe, processes = defaults.recipe_for(settings, len(x), on_gpu=False), alone("cpu")
    job = Job(images=images, settings=settings, recipe=recipe, place=folder, runtime=CPU, processes=processes)
    return granular_k(job, rows_of(job, x), images, CPU, notes.append), notes


def test_finer_splits_pairs_and_coarser_joins_them(tmp_path: Path) -> None:
    """Where two or three numbers would do, each pair that is split, or joined, separates the images a little worse."""
    usual, _ = chosen(tmp_path, "usual", gap=0.2)
    finer, notes = chosen(tmp_path, "finer", gap=0.2)
    assert (usual.k, usual.usual, usual.wish) == (3, None, None)
    assert (finer.k, finer.usual, finer.wish, notes) == (4, 3, "finer", [])
    assert (finer.interval, finer.known) == (usual.interval, usual.known)
    assert {at.k for at in finer.curve} >= {finer.k, *(at.k for at in usual.curve)}
    coarser, notes = chosen(tmp_path, "coarser", gap=1.0)
    assert (coarser.k, coarser.usual, coarser.wish, notes) == (4, 6, "coarser", [])


@pytest.mark.parametrize(
    ("wish", "known", "k", "limit"),
    [
        ("coarser", (0, 1, 2, 3, 4, 5), 6, "the known classes, 6, are the fewest possible"),
        ("coarser", (), 2, "two are the fewest possible"),
        ("finer", (), 6, "no more are possible"),
    ],
)
def test_a_wish_that_cannot_be_granted_is_noted(
    wish: Granularity, known: tuple[int, ...], k: int, limit: str, tmp_path: Path
) -> None:
    found, notes = chosen(tmp_path, wish, gap=1.0, known=known, k_max=k)
    assert (found.k, found.usual) == (k, None)
    assert notes == [f"Categories cannot be {wish} than usual, so their number is {k} as without the wish: {limit}."]


@pytest.mark.usefixtures("quickly")
def test_a_wish_trains_nothing_again_and_a_given_k_ends_it(
    copied_run: SortedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, out = copied_run.images, copied_run.out
    monkeypatch.setattr(TrainingStep, "__call__", tiny.never)

    usual = tiny.sort(images, out, k="auto")

    def sort(**settings: Any) -> Run:
        return discover(images, out=out, runtime=CPU, **settings)

    finer = sort(granularity="finer")
    assert finer.k.usual == usual.k.k
    assert 1.25 * usual.k.k <= finer.k.k == len(finer.categories) <= 2.5 * usual.k.k
    assert finer.facts.hashes == usual.facts.hashes
    assert sort().k == finer.k, "the wish stays until another one is given"
    given = sort(k=4)
    assert (given.k.k, given.k.usual, given.facts.settings.granularity) == (4, None, "usual")
    with pytest.raises(InputError, match="granularity must be 'usual' where k is given, got 'finer' with k = 4"):
        sort(granularity="finer")
