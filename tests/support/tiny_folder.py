"""A small planted image set: classes that differ in colour and pattern, as files or as arrays."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sortal.discovery.pipeline import discover
from sortal.images.image_set import ImageSet, image_set
from sortal.runs.run import Run
from support.runtimes import CPU

if TYPE_CHECKING:
    import pytest

SIDE = 24
OLD, NEW = ("ash", "beech", "cedar"), ("elm", "fir", "holly")
CLASSES = OLD + NEW
EACH, LABELLED = 20, 14  # images of a class; those of an old one that have a label
TABLE = "labels.csv"
# Two colours, and how many stripes across and down
LOOKS = {
    "ash": ((220, 40, 40), (120, 10, 10), 4, 0),
    "beech": ((40, 200, 60), (10, 90, 20), 0, 4),
    "cedar": ((50, 70, 220), (10, 20, 110), 3, 3),
    "elm": ((230, 220, 60), (130, 120, 10), 0, 2),
    "fir": ((60, 210, 220), (10, 110, 120), 2, 0),
    "holly": ((220, 60, 210), (110, 10, 100), 6, 6),
    "oak": ((250, 250, 250), (230, 230, 230), 3, 2),  # of no folder: what was never seen
}


def picture(name: str, number: int, *, side: int = SIDE) -> NDArray[np.uint8]:
    """One image of a class, (side, side, 3); the same every time."""
    light, dark, across, down = LOOKS[name]
    generator = np.random.default_rng([sorted(LOOKS).index(name), number])
    y, x = np.mgrid[0:side, 0:side] / side
    shift = generator.uniform(0, 1)
    wave = (np.sin(2 * np.pi * (across * x + down * y + shift)) + 1) / 2
    colours = wave[..., None] * np.array(light) + (1 - wave[..., None]) * np.array(dark)
    noisy = colours + generator.normal(0, 12, (side, side, 3)) + generator.normal(0, 6, 3)
    clipped: NDArray[np.uint8] = np.clip(noisy, 0, 255).astype(np.uint8)
    return clipped


def noise(number: int, *, side: int = SIDE) -> NDArray[np.uint8]:
    """An image of nothing, each in a tint of its own."""
    generator = np.random.default_rng([99, number])
    flat = generator.integers(0, 256, (side, side, 3)) * generator.uniform(0.2, 1, 3)
    return flat.astype(np.uint8)


def save(path: Path, pixels: NDArray[np.uint8]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def planted(each: int = EACH, labelled: int = LABELLED, *, old: Iterable[str] = OLD) -> dict[str, str]:
    """File names in a folder, and the true class of each: labelled ones in the folder of their class."""
    known = set(old)
    files = {}
    for number in range(each):
        for at, name in enumerate(CLASSES):
            has_label = name in known and number < labelled
            file = f"{name}/{number}.png" if has_label else f"unlabelled/{at * each + number:03}.png"
            files[file] = f"{name} {number}"
    return files


def write(folder: Path, files: Mapping[str, str] | None = None) -> dict[str, str]:
    """Write images (by default those of `planted`); the true class of each file."""
    files = planted() if files is None else files
    for file, what in files.items():
        name, _, number = what.partition(" ")
        save(folder / file, picture(name, int(number)))
    return {file: what.partition(" ")[0] for file, what in files.items()}


def label_of(file: str) -> str | None:
    folder = file.partition("/")[0]
    return None if folder == "unlabelled" else folder


def write_table(
    path: Path, files: Sequence[str], labels: Sequence[str | None], truth: Sequence[str | None] | None = None
) -> Path:
    """A table of labels, row by row."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "label", *(["truth"] if truth is not None else [])])
        columns = [files, labels, *([truth] if truth is not None else [])]
        writer.writerows([cell or "" for cell in row] for row in zip(*columns, strict=True))
    return path


def write_labels(path: Path, truth: Mapping[str, str], told: Sequence[str | None] | None = None) -> Path:
    """A table of the labels that the folders of `planted` give, and, where it is told, of the truth."""
    return write_table(path, [*truth], [label_of(file) for file in truth], told)


def as_array() -> ImageSet:
    """The planted images as rows of an array, with their truth."""
    files = planted()
    truth = [what.partition(" ")[0] for what in files.values()]
    numbers = [int(what.partition(" ")[2]) for what in files.values()]
    pixels = np.stack([picture(name, number) for name, number in zip(truth, numbers, strict=True)])
    return image_set([*files], pixels=pixels, labels=[label_of(file) for file in files], truth=truth)


def break_some(folder: Path, files: Sequence[str]) -> None:
    """Make files unreadable: cut off, empty, or text under the name of an image, in turn."""
    for at, file in enumerate(files):
        path = folder / file
        path.write_bytes((path.read_bytes()[:60], b"", b"this is no image\n")[at % 3])


# Runs

SETTINGS: dict[str, Any] = {
    "k": 6,
    "backbone": "convnet",
    "epochs": 2,
    "n_init": 3,
    "k_max": 12,
    "held_out": 0.5,
    "runtime": CPU,
}
PAGE = b"<!doctype html>"


def sort(images: Any, out: Path, **changes: Any) -> Run:
    """A run that takes a second."""
    return discover(images, out=out, **{**SETTINGS, **changes})


def scores_of(found: Run) -> NDArray[np.float64]:
    """Compute the scores of the head (n, k)."""
    assert found.head is not None
    head = found.head.astype(np.float64)
    return np.asarray(found.features, dtype=np.float64) @ head[:, :-1].T + head[:, -1]


@contextmanager
def quickly() -> Iterator[None]:
    """Without the report, which takes longer than all the rest; of one moment are copies only, as among many images."""
    with (
        patch("sortal.web.report.report.make_report", lambda *_, **__: PAGE),
        patch("sortal.discovery.grouping.bursts.MOST_GREY", 1),
    ):
        yield


def spy(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """Note the positional arguments of each call of a function or method."""
    calls: list[tuple[Any, ...]] = []
    call = getattr(owner, name)

    def noted(*values: Any, **named: Any) -> Any:
        calls.append(values)
        return call(*values, **named)

    monkeypatch.setattr(owner, name, noted)
    return calls


def never(*_: object, **__: object) -> NoReturn:
    """Stand in for what must not be done again."""
    raise AssertionError("this was done before")


def tables(run: Path) -> tuple[bytes, bytes]:
    """The tables of images and of categories."""
    return (run / "assignments.csv").read_bytes(), (run / "categories.csv").read_bytes()


FIGURES = ("confidence", "distance", "next_distance", "cohesion")  # columns that are rounded to six digits


def assert_same_rows(rows: Sequence[dict[str, str]], others: Sequence[dict[str, str]]) -> None:
    """Require the same rows of tables, but for the last digit of figures: sums were added up in another order."""
    for one, other in zip(rows, others, strict=True):
        mine, theirs = ([float(row[column] or "nan") for column in FIGURES if column in row] for row in (one, other))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1.5e-6, err_msg=str(one))
        assert {**other, **{column: one[column] for column in FIGURES if column in one}} == one


def assert_same_tables(run: Path, other: Path) -> None:
    """Require the same tables of runs that add up sums in another order, but for the last digit of figures."""
    for name in ("assignments.csv", "categories.csv"):
        assert_same_rows(rows_of(run / name), rows_of(other / name))


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table, as anybody reads them."""
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def parse_strictly(text: str) -> Any:
    """Return what JSON says, which must be JSON to everybody: NaN and Infinity are not."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"JSON holds {word}")

    return json.loads(text, parse_constant=refuse)


def strict_json(path: Path) -> Any:
    """What a JSON file says, which must be JSON to everybody."""
    return parse_strictly(path.read_text(encoding="utf-8"))


def contents(folder: Path, *, but: Iterable[str] = ("cache", ".lock")) -> dict[str, bytes]:
    """Every file of a folder, but for some."""
    left_out = set(but)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in left_out
    }
