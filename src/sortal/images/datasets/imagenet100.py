"""ImageNet-100: 100 classes of ILSVRC-2012, named by their WordNet ids; its validation split is the test."""

import csv
from pathlib import Path

from sortal.errors import InputError
from sortal.images.datasets import split
from sortal.images.datasets.official import PublishedDataset, SplitImages, Tree, find_dataset

KAGGLE = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


def read(root: Path) -> PublishedDataset:
    """Read the 100 classes; folders of other classes are ignored."""
    tree = find_dataset(
        root,
        title="ImageNet (ILSVRC 2012)",
        page="https://image-net.org/download.php",
        tops=["ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"],
        needs=["train", "val"],
    )
    classes = split.read("imagenet100").wnids
    sorted_into_classes = any((tree.base / "val" / name).is_dir() for name in classes)
    return PublishedDataset(
        classes=classes,
        train=tree.class_folders("train", classes),
        test=tree.class_folders("val", classes) if sorted_into_classes else _flat(tree, classes),
    )


def _flat(tree: Tree, classes: tuple[str, ...]) -> SplitImages:
    """Read validation images that are in a single folder, in the order they would have in class folders."""
    path = tree.first(KAGGLE, DEVKIT)
    named = _kaggle(tree, path) if path.name == KAGGLE else _devkit(tree, path)
    chosen = sorted((wnid, image) for image, wnid in named.items() if wnid in set(classes))
    return tree.listed("val", [f"{image}.JPEG" for _, image in chosen], [wnid for wnid, _ in chosen])


def _kaggle(tree: Tree, path: Path) -> dict[str, str]:
    """Parse rows like "ILSVRC2012_val_00048981,n03995372 85 1 499 272": the second cell starts with the class."""
    header, *rows = [*csv.reader(tree.lines(path))] or [[]]
    if header != ["ImageId", "PredictionString"] or any(len(row) != 2 or not row[1].strip() for row in rows):
        raise InputError(
            f"{tree.title}: {str(path)!r} must have the columns ImageId and PredictionString both filled in every row. "
            "Download it again."
        )
    return {image: prediction.split()[0] for image, prediction in rows}


def _devkit(tree: Tree, path: Path) -> dict[str, str]:
    """Parse the ground truth, whose line i is the class number of image i; meta.mat maps numbers to WordNet ids."""
    meta = tree.first("ILSVRC2012_devkit_t12/data/meta.mat")
    numbers, wnids = tree.matlab(meta, "synsets", ["ILSVRC2012_ID", "WNID"])
    classes = [wnid for _, wnid in sorted(zip(numbers, wnids, strict=True))]
    truth = [tree.numbered(classes, line, path) for line in tree.lines(path)]
    return {f"ILSVRC2012_val_{i:08d}": wnid for i, wnid in enumerate(truth, start=1)}
