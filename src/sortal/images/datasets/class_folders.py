"""Any labelled collection as a benchmark: a folder for each class, or such folders in train and test."""

from collections import Counter
from pathlib import Path

from sortal.datasets.official import Official, Rows, Tree
from sortal.errors import InputError, listing
from sortal.images import in_order

EVERY = 5  # where there is no test split, every so manyth image of a class is in it


def read(root: Path) -> Official:
    """Classes are in order of their names, or by value where all are numbers; images of a class in order of theirs."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(f"root must be a folder with a folder for each class, got {str(root)!r}, which {what}.")
    tree = Tree(title="A folder of classes", page="you", root=root, base=root)
    if (root / "train").is_dir() and (root / "test").is_dir():
        train, test = tree.class_folders("train"), tree.class_folders("test")
        classes = in_order(set(train.classes))
    else:
        rows = tree.class_folders(".")
        classes = in_order(set(rows.classes))
        train, test = _split(rows)
    if len(classes) < 2:
        raise InputError(
            f"There must be images of at least two classes, each in a folder of its own, in {str(root)!r}, got "
            f"{len(classes)}."
        )
    if unknown := sorted(set(test.classes) - set(classes)):
        raise InputError(
            f"Every class of test must have images in train, got {listing(unknown)} in {str(root / 'test')!r}. "
            "Add some, or move these elsewhere."
        )
    return Official(classes=classes, train=_ordered(train, classes), test=_ordered(test, classes))


def _split(rows: Rows) -> tuple[Rows, Rows]:
    """Every fifth image of each class for the test, the others for training."""
    seen: Counter[str] = Counter()
    parts: tuple[list[int], list[int]] = ([], [])
    for row, name in enumerate(rows.classes):
        seen[name] += 1
        parts[seen[name] % EVERY == 0].append(row)
    train, test = (Rows(files=[rows.files[i] for i in p], classes=[rows.classes[i] for i in p]) for p in parts)
    return train, test


def _ordered(rows: Rows, classes: list[str]) -> Rows:
    """By class in this order; images of one class stay in theirs."""
    number = {name: i for i, name in enumerate(classes)}
    order = sorted(range(len(rows.files)), key=lambda i: number[rows.classes[i]])
    return Rows(files=[rows.files[i].removeprefix("./") for i in order], classes=[rows.classes[i] for i in order])
