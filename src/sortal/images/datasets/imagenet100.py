"""ImageNet-100: 100 classes of ILSVRC-2012, named by their WordNet ids; its validation split is the test."""

import csv
from pathlib import Path

from sortal.datasets import split
from sortal.datasets.official import Official, Rows, Tree, find
from sortal.errors import InputError

KAGGLE = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


def read(root: Path) -> Official:
    """Folders of classes beyond the 100 are left alone."""
    tree = find(
        root,
        title="ImageNet (ILSVRC 2012)",
        page="https://image-net.org/download.php",
        tops=["ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"],
        needs=["train", "val"],
    )
    classes = split.read("imagenet100").wnids
    sorted_into_classes = any((tree.base / "val" / name).is_dir() for name in classes)
    return Official(
        classes=classes,
        train=tree.class_folders("train", classes),
        test=tree.class_folders("val", classes) if sorted_into_classes else _flat(tree, classes),
    )


def _flat(tree: Tree, classes: tuple[str, ...]) -> Rows:
    """All validation images in one folder, in the order they would have in folders of their classes."""
    path = tree.first(KAGGLE, DEVKIT)
    named = _kaggle(tree, path) if path.name == KAGGLE else _devkit(tree, path)
    chosen = sorted((wnid, image) for image, wnid in named.items() if wnid in set(classes))
    return tree.listed("val", [f"{image}.JPEG" for _, image in chosen], [wnid for wnid, _ in chosen])


def _kaggle(tree: Tree, path: Path) -> dict[str, str]:
    """Rows such as "ILSVRC2012_val_00048981,n03995372 85 1 499 272": the first word of the second cell is the class."""
    header, *rows = [*csv.reader(tree.lines(path))] or [[]]
    if header != ["ImageId", "PredictionString"] or any(len(row) != 2 or not row[1].strip() for row in rows):
        raise InputError(
            f"{tree.title}: {str(path)!r} must have the columns ImageId and PredictionString and both in every row. "
            "Download it again."
        )
    return {image: prediction.split()[0] for image, prediction in rows}


def _devkit(tree: Tree, path: Path) -> dict[str, str]:
    """Line i of the ground truth is the number of image i's class; meta.mat says which number is which WordNet id."""
    meta = tree.first("ILSVRC2012_devkit_t12/data/meta.mat")
    numbers, wnids = tree.matlab(meta, "synsets", ["ILSVRC2012_ID", "WNID"])
    classes = [wnid for _, wnid in sorted(zip(numbers, wnids, strict=True))]
    truth = [tree.numbered(classes, line, path) for line in tree.lines(path)]
    return {f"ILSVRC2012_val_{i:08d}": wnid for i, wnid in enumerate(truth, start=1)}
