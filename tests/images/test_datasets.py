"""The benchmarks of the paper as image sets: their splits, and which labels are hidden."""

from pathlib import Path

import numpy as np
import pytest
from support.benchmarks import SIZES, refused

from sortal.images.datasets import DATASET_NAMES, load


@pytest.mark.parametrize("name", DATASET_NAMES)
def test_train_and_test_contain_their_splits_and_number_classes_alike(name: str, roots: dict[str, Path]) -> None:
    n_classes, old, n_train, n_test = SIZES[name]
    train, test = load(name, roots[name], fraction=1.0), load(name, roots[name], part="test")
    assert len(train.classes) == old
    assert len(train.new_classes) == n_classes - old
    assert train.labelled.sum() == old * n_train
    assert train.unlabelled.sum() == (n_classes - old) * n_train
    held_out = range(n_classes * n_train, n_classes * n_train + old * n_test)
    assert np.flatnonzero(train.validation).tolist() == list(held_out)
    assert len(set(train.files)) == len(train)
    for images in (train, test):
        paths = () if images.pixels is not None else tuple(str(roots[name] / file) for file in images.files)
        assert images.paths == paths
    assert len(test) == n_classes * n_test
    assert test.unlabelled.all()
    assert test.classes == ()
    assert test.new_classes == train.classes + train.new_classes
    assert sorted(test.truth.tolist()) == list(range(n_classes))
    truth = dict(zip(train.files, train.truth, strict=True))
    both = {file: number for file, number in zip(test.files, test.truth, strict=True) if file in truth}
    assert both == {file: truth[file] for file in np.array(train.files)[train.validation]}


def test_labels_are_drawn_as_in_the_paper(roots: dict[str, Path]) -> None:
    """The old images, classes 4 to 0, are rows 5–9, 15–19, … of the 100 training rows."""
    old = [row for row in range(100) if row % 10 >= 5]
    by_default = load("cifar10", roots["cifar10"])
    other = load("cifar10", roots["cifar10"], seed=1, fraction=0.75)
    for images, seed, size in ((by_default, 0, 25), (other, 1, 37)):
        drawn = np.random.RandomState(seed).choice(50, size=size, replace=False)
        assert np.flatnonzero(images.labelled).tolist() == sorted(old[i] for i in drawn)
        assert images.validation.sum() == 5


def test_invalid_roots_names_and_parts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, rule in (
        ("cifar10", "the folder that contains CIFAR-10"),
        ("folder", "a folder with one folder per class"),
    ):
        for root, what in (("nowhere", "does not exist"), ("file", "is a file")):
            refused(rf"root must be {rule}.*, got '.*{root}', which {what}\.", name, tmp_path / root)
    names = "cifar10, cifar100, imagenet100, cub, stanford_cars, fgvc_aircraft, herbarium19, folder"
    refused(rf"The data set must be one of {names}, got 'mnist'\.", "mnist", tmp_path)
    refused(r"part must be 'train' or 'test', got 'val'\.", "cub", tmp_path, part="val")
