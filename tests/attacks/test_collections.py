"""Collections of almost nothing: each is sorted correctly, or refused with a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support import tiny_folder
from support.world import ON_CPU, Trial

from sortal.reviews.loading import load_run

pytestmark = pytest.mark.thorough


def looks(files: Mapping[str, int], side: int = tiny_folder.SIDE) -> dict[str, NDArray[np.uint8]]:
    """Return an image for each file name: those of one number are the same."""
    return {file: tiny_folder.picture("ash", number, side=side) for file, number in files.items()}


def numbered(folder: str, count: int, start: int = 0) -> dict[str, int]:
    return {f"{folder}/{at}.png": at for at in range(start, start + count)}


CONSTANT = dict.fromkeys([*numbered("ash", 4), *numbered("unlabelled", 8)], 0)
CONTRADICTING = dict.fromkeys([*numbered("ash", 4), *numbered("beech", 4), *numbered("unlabelled", 4)], 0)
ONE_CLASS = {**numbered("ash", 6), **numbered("unlabelled", 6, 6)}
TWO_CLASSES = {**numbered("ash", 4), **numbered("beech", 4, 4), **numbered("unlabelled", 4, 8)}


@dataclass(frozen=True)
class Collection:
    """A collection of almost nothing, and how to sort it."""

    name: str
    images: dict[str, NDArray[np.uint8]]
    options: tuple[str, ...] = ()
    refused: bool | None = None  # None where both are sound


COLLECTIONS = (
    Collection("all images are the same, k is 1", looks(CONSTANT), ("--k", "1")),
    Collection("all images are the same, k is 3", looks(CONSTANT), ("--k", "3")),
    Collection("all images are the same", looks(CONSTANT)),
    Collection("all images are the same, with two labels", looks(CONTRADICTING), ("--k", "2")),
    Collection("one labelled image", looks({"ash/0.png": 0}), ("--k", "1")),
    Collection("one unlabelled image", looks({"unlabelled/0.png": 0}), ("--k", "1"), refused=False),
    Collection("two images", looks({"ash/0.png": 0, "unlabelled/1.png": 1}), ("--k", "2")),
    Collection("two images of one class", looks({"ash/0.png": 0, "unlabelled/1.png": 1}), ("--k", "1")),
    Collection("one image, k is to be found", looks({"unlabelled/0.png": 0}), refused=False),
    Collection("two images, k is to be found", looks({"ash/0.png": 0, "unlabelled/1.png": 1}), refused=False),
    Collection("two labelled images", looks({"ash/0.png": 0, "beech/1.png": 1}), ("--k", "2")),
    Collection("one class", looks(ONE_CLASS), ("--k", "2"), refused=False),
    Collection("one class, k is to be found", looks(ONE_CLASS), refused=False),
    Collection("no class, k is to be found", looks(numbered("unlabelled", 5)), refused=False),
    Collection("coarser", looks(TWO_CLASSES), ("--granularity", "coarser"), refused=False),
    Collection("finer than one image", looks({"unlabelled/0.png": 0}), ("--granularity", "finer"), refused=False),
    Collection("as many categories as images", looks(TWO_CLASSES), ("--k", str(len(TWO_CLASSES)))),
    Collection("as many categories as can be", looks(TWO_CLASSES), ("--k", "6"), refused=False),
    Collection("more categories than images", looks(TWO_CLASSES), ("--k", str(len(TWO_CLASSES) + 1)), refused=True),
    Collection("only the known classes", looks(TWO_CLASSES), ("--k", "2"), refused=False),
    Collection("fewer categories than known classes", looks(TWO_CLASSES), ("--k", "1"), refused=True),
    Collection("images of a pixel", looks(TWO_CLASSES, side=1), ("--k", "3")),
    Collection("images of a pixel, k is to be found", looks(TWO_CLASSES, side=1)),
    Collection("k is to be found among few", looks(TWO_CLASSES)),
)
TINY = ("--backbone", "convnet", "--epochs", "1", "--n-init", "2", "--k-max", "12", *ON_CPU, "--yes")


@pytest.mark.attack(most=2 * len(COLLECTIONS))
def test_hardly_a_collection(trial: Trial) -> None:
    """Sort a collection of almost nothing: the run holds no NaN and no infinity, or a sentence refuses it."""
    given: Collection = trial.case(COLLECTIONS)
    images, run = trial.folder / "images", trial.folder / "run"
    for file, pixels in given.images.items():
        tiny_folder.save(images / file, pixels)
    more = () if trial.number < len(COLLECTIONS) else ("--held-out", str(trial.random.choice([0, 0.2, 0.5, 0.9])))
    with_report = trial.number % 3 == 1
    done = trial.world.sortal("discover", images, "--out", run, *TINY, *given.options, *more, quickly=not with_report)
    done.check(*{None: (0, 2), True: (2,), False: (0,)}[given.refused])
    if done.code == 2:
        assert done.err.splitlines()[-1].startswith("sortal: error: "), done
        return
    check_written(run)
    found = load_run(run)
    assert len(found.assignments.files) == len(given.images)
    table = trial.folder / "table.csv"
    trial.world.sortal("export", run, "--format", "csv", "--out", table).check(0)
    check_table(table)


def check_written(run: Path) -> None:
    """Require that the tables and the JSON of a run hold no NaN and no infinity."""
    for path in run.glob("*.csv"):
        check_table(path)
    for path in run.glob("*.json"):
        tiny_folder.strict_json(path)
    for path in run.glob("*.jsonl"):
        assert not {"NaN", "Infinity", "-Infinity"} & {*path.read_text().replace(",", " ").replace("}", " ").split()}
    for path in run.glob("*.npy"):
        assert np.isfinite(np.load(path)).all(), path.name


def check_table(path: Path) -> None:
    cells = [(name, cell) for row in tiny_folder.rows_of(path) for name, cell in row.items()]
    odd = [each for each in cells if each[1].lower().lstrip("-+") in ("nan", "inf", "infinity")]
    assert not odd, (path.name, odd[:3])
