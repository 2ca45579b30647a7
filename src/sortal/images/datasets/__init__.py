"""The paper's benchmarks as image sets, read from the files that their publishers distribute."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from sortal.errors import InputError, listing
from sortal.images.datasets import cifar, image_trees
from sortal.images.datasets.official import PublishedDataset, read_class_split
from sortal.images.image_set import ImageSet, image_set
from sortal.system.text import plural

DATASET_READERS: dict[str, Callable[[Path], PublishedDataset]] = {
    "cifar10": cifar.read10,
    "cifar100": cifar.read100,
    "imagenet100": image_trees.read_imagenet,
    "cub": image_trees.read_cub,
    "stanford_cars": image_trees.read_cars,
    "fgvc_aircraft": image_trees.read_aircraft,
    "herbarium19": image_trees.read_herbarium,
}
DATASET_NAMES = tuple(DATASET_READERS)
SplitPart = Literal["train", "test"]
FOLDER = "folder"  # the name of a benchmark made from a user's folder


def label(name: str, root: str | os.PathLike[str]) -> str:
    """Return the data set's `name`; the user's folder `root` has its own, but never that of a benchmark."""
    if name != FOLDER:
        return name
    own = Path(root).resolve().name
    if not own:
        raise InputError(f"root must be a folder with a name, got {os.fspath(root)!r}.")
    return f"{own}-{FOLDER}" if own in DATASET_NAMES else own


def load(
    name: str, root: str | os.PathLike[str], *, part: SplitPart = "train", fraction: float = 0.5, seed: int = 0
) -> ImageSet:
    """Load the benchmark `name` from `root`: the folder its archive was extracted to, or the top folder of that.

    `part` "train" is the benchmark: the training images in data-set order, of which a `fraction` of those of old
    classes keep a label (`ImageSet.hide_labels`), followed by the test images of old classes for validation. `part`
    "test" is the whole test split without labels, whatever `fraction` and `seed`. In both, truth numbers the old
    classes first, then the new ones, each in the order of the data set.

    "folder" is a labelled collection of the user's own: class folders in `root`, the first half of which are old, or
    class folders in train and test. Without these, every fifth image of a class belongs to the test split.
    """
    if name not in (*DATASET_READERS, FOLDER):
        raise InputError(f"The data set must be one of {', '.join((*DATASET_NAMES, FOLDER))}, got {name!r}.")
    if part not in ("train", "test"):
        raise InputError(f"part must be 'train' or 'test', got {part!r}.")
    folder = Path(root)
    if name == FOLDER:
        published = image_trees.read_folder(folder)
        old = list(published.classes[: len(published.classes) // 2])
    else:
        published, choice = DATASET_READERS[name](folder), read_class_split(name)
        _check(name, published, choice.n_classes)
        old = [published.classes[i] for i in choice.old]
    images = _labelled(published, folder, [*old, *(each for each in published.classes if each not in set(old))])
    if part == "train":
        return images.hide_labels(old=old, fraction=fraction, seed=seed)
    test = images.select(images.validation)
    none, classes = np.full(len(test), -1), images.classes
    return replace(test, labels=none, classes=(), new_classes=classes, validation=np.zeros(len(test), dtype=bool))


def _check(name: str, published: PublishedDataset, n_classes: int) -> None:
    """Check the number of classes: old classes are chosen by number, so an extra one would change the benchmark."""
    found = set(published.classes)
    if len(found) != n_classes:
        problem = f"{plural(n_classes, 'class', 'classes')}, got {len(found):,}: {listing(published.classes)}"
    elif bare := sorted(found - set(published.train.classes)):
        problem = f"training images of every class; these have none: {listing(bare)}"
    else:
        return
    raise InputError(f"{name} must have {problem}. Extract the data set again.")


def _labelled(published: PublishedDataset, folder: Path, order: Sequence[str]) -> ImageSet:
    """Return all training images, then all test images for validation, all of them labelled."""
    files = [*published.train.files, *published.test.files]
    archives = [rows.pixels for rows in (published.train, published.test) if rows.pixels is not None]
    return image_set(
        files,
        paths=() if archives else [os.path.join(folder, file) for file in files],
        pixels=np.concatenate(archives) if archives else None,
        labels=[*published.train.classes, *published.test.classes],
        validation=np.arange(len(files)) >= len(published.train.files),
        order=order,
    )
