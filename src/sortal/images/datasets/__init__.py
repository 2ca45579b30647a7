"""The paper's benchmarks as image sets, from the files that the publishers of the data sets distribute."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from sortal.datasets import cifar, class_folders, cub, fgvc_aircraft, herbarium19, imagenet100, split, stanford_cars
from sortal.datasets.official import Official
from sortal.errors import InputError, listing
from sortal.images import ImageSet, image_set

READERS: dict[str, Callable[[Path], Official]] = {
    "cifar10": cifar.read10,
    "cifar100": cifar.read100,
    "imagenet100": imagenet100.read,
    "cub": cub.read,
    "stanford_cars": stanford_cars.read,
    "fgvc_aircraft": fgvc_aircraft.read,
    "herbarium19": herbarium19.read,
}
NAMES = tuple(READERS)
FOLDER = "folder"  # the name of a benchmark made of a user's own folder


def label(name: str, root: str | os.PathLike[str]) -> str:
    """What a data set is called; a user's own folder what the folder is, but never like a benchmark."""
    if name != FOLDER:
        return name
    own = Path(root).resolve().name
    if not own:
        raise InputError(f"root must be a folder that has a name, got {os.fspath(root)!r}.")
    return f"{own}-{FOLDER}" if own in NAMES else own


def load(
    name: str,
    root: str | os.PathLike[str],
    *,
    part: Literal["train", "test"] = "train",
    fraction: float = 0.5,
    seed: int = 0,
) -> ImageSet:
    """A benchmark by name, from a folder with the data set as its publisher packs it, or the folder around that one.

    Part "train" is the benchmark: the training images in data-set order, of which a fraction of those of old classes
    keep a label (`ImageSet.hide_labels`), and after them, for validation, the test images of old classes. Part "test"
    is the whole test split without labels, for which neither `fraction` nor `seed` matters. In both, truth numbers the
    old classes first, then the new, each in the data set's own order.

    "folder" is a labelled collection of the user's: folders of classes in `root`, of which the first half are old, or
    such folders in train and in test. Without these, every fifth image of a class is for the test.
    """
    if name not in (*READERS, FOLDER):
        raise InputError(f"The data set must be one of {', '.join((*NAMES, FOLDER))}, got {name!r}.")
    if part not in ("train", "test"):
        raise InputError(f"part must be 'train' or 'test', got {part!r}.")
    folder = Path(root)
    if name == FOLDER:
        official = class_folders.read(folder)
        old = list(official.classes[: len(official.classes) // 2])
    else:
        official, choice = READERS[name](folder), split.read(name)
        _check(name, official, choice.n_classes)
        old = [official.classes[i] for i in choice.old]
    order = [*old, *(each for each in official.classes if each not in set(old))]
    if part == "test":
        return _test(official, folder, order)
    return _train(official, folder, order).hide_labels(old=old, fraction=fraction, seed=seed)


def _check(name: str, official: Official, n_classes: int) -> None:
    """Class numbers choose the old classes, so one class too few or too many would make another benchmark."""
    if len(set(official.classes)) != n_classes:
        raise InputError(
            f"{name} must have {n_classes} classes, got {len(set(official.classes)):,}: {listing(official.classes)}. "
            "Extract the data set again."
        )
    if bare := sorted(set(official.classes) - set(official.train.classes)):
        raise InputError(
            f"{name} must have training images of every class; {len(bare):,} have none: {listing(bare)}. "
            "Extract the data set again."
        )


def _train(official: Official, folder: Path, order: Sequence[str]) -> ImageSet:
    """All training images, then all test images for validation, every one labelled."""
    files = [*official.train.files, *official.test.files]
    archives = [rows.pixels for rows in (official.train, official.test) if rows.pixels is not None]
    return image_set(
        files,
        paths=() if archives else _paths(folder, files),
        pixels=np.concatenate(archives) if archives else None,
        labels=[*official.train.classes, *official.test.classes],
        validation=np.arange(len(files)) >= len(official.train.files),
        order=order,
    )


def _test(official: Official, folder: Path, order: Sequence[str]) -> ImageSet:
    """Built by hand, since `image_set` leaves out classes without an image and would number the others anew."""
    test = official.test
    number = {name: i for i, name in enumerate(order)}
    return ImageSet(
        files=tuple(test.files),
        paths=() if test.pixels is not None else tuple(_paths(folder, test.files)),
        pixels=test.pixels,
        labels=np.full(len(test.files), -1),
        classes=(),
        truth=np.array([number[name] for name in test.classes], dtype=np.int64),
        new_classes=tuple(order),
        validation=np.zeros(len(test.files), dtype=bool),
    )


def _paths(folder: Path, files: Sequence[str]) -> list[str]:
    return [os.path.join(folder, file) for file in files]
