"""Stanford Cars: 196 models of cars, listed in MATLAB files."""

from pathlib import Path

from sortal.datasets.official import Official, Rows, find

LABELLED_TEST = "cars_test_annos_withlabels.mat"  # published apart from the devkit, whose own list has no labels


def read(root: Path) -> Official:
    tree = find(
        root,
        title="Stanford Cars",
        page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        tops=["stanford_cars"],
        needs=["cars_train", "cars_test", "devkit/cars_meta.mat", "devkit/cars_train_annos.mat"],
    )
    (classes,) = tree.matlab(tree.base / "devkit/cars_meta.mat", "class_names")

    def rows(folder: str, path: Path) -> Rows:
        names, numbers = tree.matlab(path, "annotations", ["fname", "class"])
        return tree.listed(folder, names, [tree.numbered(classes, number, path) for number in numbers])

    return Official(
        classes=classes,
        train=rows("cars_train", tree.base / "devkit/cars_train_annos.mat"),
        test=rows("cars_test", tree.first(f"devkit/{LABELLED_TEST}", LABELLED_TEST)),
    )
