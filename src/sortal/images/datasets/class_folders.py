"""Any labelled collection as a benchmark: one folder per class, or such folders in train and test."""

from collections import Counter
from pathlib import Path

from sortal.errors import InputError, listing
from sortal.images.datasets.official import PublishedDataset, SplitImages, Tree
from sortal.images.image_set import in_order

EVERY = 5  # without a test split, every fifth image of a class is in it


def read(root: Path) -> PublishedDataset:
    """Read class folders. Classes are sorted by name, or by value if all are numbers; images of a class by name."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(f"root must be a folder with one folder per class, got {str(root)!r}, which {what}.")
    tree = Tree(title="A folder of classes", page="you", root=root, base=root)
    if (root / "train").is_dir() and (root / "test").is_dir():
        train, test = tree.class_folders("train"), tree.class_folders("test")
    else:
        train, test = _split(tree.class_folders("."))
    classes = in_order(set(train.classes))
    if len(classes) < 2:
        raise InputError(
            f"{str(root)!r} must contain images of at least two classes, one folder per class, got {len(classes)}."
        )
    if unknown := sorted(set(test.classes) - set(classes)):
        raise InputError(
            f"Every class in {str(root / 'test')!r} must have images in train; these have none: {listing(unknown)}. "
            "Add some, or remove these folders."
        )
    number = {name: i for i, name in enumerate(classes)}

    def by_class(rows: SplitImages) -> SplitImages:
        return _pick(rows, sorted(range(len(rows.files)), key=lambda i: number[rows.classes[i]]))

    return PublishedDataset(classes=classes, train=by_class(train), test=by_class(test))


def _split(rows: SplitImages) -> tuple[SplitImages, SplitImages]:
    """Assign every fifth image of each class to the test split, the others to the training split."""
    counts: Counter[str] = Counter()
    parts: tuple[list[int], list[int]] = ([], [])
    for row, name in enumerate(rows.classes):
        counts[name] += 1
        parts[counts[name] % EVERY == 0].append(row)
    return _pick(rows, parts[0]), _pick(rows, parts[1])


def _pick(rows: SplitImages, chosen: list[int]) -> SplitImages:
    files = [rows.files[i].removeprefix("./") for i in chosen]
    return SplitImages(files=files, classes=[rows.classes[i] for i in chosen])
