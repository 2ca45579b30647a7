"""FGVC-Aircraft: 100 variants of aircraft, listed in text files."""

from pathlib import Path

from sortal.errors import InputError, listing
from sortal.images.datasets.official import PublishedDataset, SplitImages, find_dataset

VARIANTS = "data/variants.txt"
TRAIN, TEST = "data/images_variant_trainval.txt", "data/images_variant_test.txt"


def read(root: Path) -> PublishedDataset:
    tree = find_dataset(
        root,
        title="FGVC-Aircraft",
        page="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        tops=["fgvc-aircraft-2013b"],
        needs=[VARIANTS, TRAIN, TEST, "data/images"],
    )
    classes = sorted(tree.lines(tree.base / VARIANTS))

    def rows(name: str) -> SplitImages:
        variants = tree.pairs(tree.base / name)
        if unknown := sorted(set(variants.values()) - set(classes)):
            raise InputError(f"FGVC-Aircraft: {name} must only name variants of {VARIANTS}, got {listing(unknown)}.")
        return tree.listed("data/images", [f"{image}.jpg" for image in variants], list(variants.values()))

    return PublishedDataset(classes=classes, train=rows(TRAIN), test=rows(TEST))
