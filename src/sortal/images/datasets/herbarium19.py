"""Herbarium-19, the small version: 683 species of herbarium sheets, a folder each; its validation split is the test."""

from pathlib import Path

from sortal.errors import InputError, listing
from sortal.images.datasets.official import PublishedDataset, find_dataset


def read(root: Path) -> PublishedDataset:
    tree = find_dataset(
        root,
        title="Herbarium-19",
        page="https://github.com/visipedia/herbarium_comp",
        tops=["herbarium-2019-fgvc6"],
        needs=["small-train", "small-validation"],
    )
    train, test = tree.class_folders("small-train"), tree.class_folders("small-validation")
    classes = sorted(set(train.classes))
    if unknown := sorted(set(test.classes) - set(classes)):
        raise InputError(
            f"Herbarium-19: every class of small-validation must have images in small-train; these have none: "
            f"{listing(unknown)}. Extract small-train again."
        )
    return PublishedDataset(classes=classes, train=train, test=test)
