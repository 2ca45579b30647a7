"""CUB-200-2011: 200 species of birds, listed in text files by image id."""

from pathlib import Path

from sortal.errors import InputError, listing
from sortal.images.datasets.official import PublishedDataset, SplitImages, find_dataset

LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


def read(root: Path) -> PublishedDataset:
    tree = find_dataset(
        root,
        title="CUB-200-2011",
        page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        tops=["CUB_200_2011"],
        needs=[*LISTS, "images"],
    )
    images, labels, splits, names = (tree.pairs(tree.base / name) for name in LISTS)
    for name, column in (("image_class_labels.txt", labels), ("train_test_split.txt", splits)):
        if column.keys() != images.keys():
            raise InputError(
                f"CUB-200-2011: {name} and images.txt must name the same image ids, "
                f"got {len(column):,} and {len(images):,}. Extract the data set again."
            )
    if strange := sorted(set(splits.values()) - {"0", "1"}):
        raise InputError(f"CUB-200-2011: train_test_split.txt must say 1 (train) or 0 (test), got {listing(strange)}.")
    classes = list(names.values())
    ids = sorted(images, key=lambda image: (len(image), image))  # as numbers: 9 before 10

    def rows(of: str) -> SplitImages:
        chosen = [image for image in ids if splits[image] == of]
        return tree.listed(
            "images",
            [images[image] for image in chosen],
            [tree.numbered(classes, labels[image], tree.base / "image_class_labels.txt") for image in chosen],
        )

    return PublishedDataset(classes=classes, train=rows("1"), test=rows("0"))
