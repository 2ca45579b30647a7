"""Stanford Cars: 196 models of cars, listed in MATLAB files."""

from pathlib import Path

from sortal.images.datasets.official import PublishedDataset, SplitImages, find_dataset

LABELLED_TEST = "cars_test_annos_withlabels.mat"  # published separately: the list in the devkit has no labels


def read(root: Path) -> PublishedDataset:
    tree = find_dataset(
        root,
        title="Stanford Cars",
        page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        tops=["stanford_cars"],
        needs=["cars_train", "cars_test", "devkit/cars_meta.mat", "devkit/cars_train_annos.mat"],
    )
    (classes,) = tree.matlab(tree.base / "devkit/cars_meta.mat", "class_names")

    def rows(folder: str, path: Path) -> SplitImages:
        names, numbers = tree.matlab(path, "annotations", ["fname", "class"])
        return tree.listed(folder, names, [tree.numbered(classes, number, path) for number in numbers])

    return PublishedDataset(
        classes=classes,
        train=rows("cars_train", tree.base / "devkit/cars_train_annos.mat"),
        test=rows("cars_test", tree.first(f"devkit/{LABELLED_TEST}", LABELLED_TEST)),
    )
