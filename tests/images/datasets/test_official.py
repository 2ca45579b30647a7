"""Published data sets: where their files may be, what is missing, and the old classes of the papers."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from support.benchmarks import SIZES, refused
from support.layouts import plant

from sortal.images.datasets import load
from sortal.images.datasets.official import read_class_split
from sortal.images.image_set import image_set


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cub", "fgvc_aircraft"])
def test_root_may_be_the_folder_inside_the_archive(name: str, roots: dict[str, Path]) -> None:
    (top,) = roots[name].iterdir()
    around, inside = (load(name, root, fraction=1.0) for root in (roots[name], top))
    assert [file.removeprefix(f"{top.name}/") for file in around.files] == list(inside.files)
    assert around.truth.tolist() == inside.truth.tolist()


def test_errors_about_missing_files_list_the_folder_and_the_download_page(tmp_path: Path) -> None:
    plant(tmp_path, "data.tgz", "notes.txt")
    for name, looked_for, site in (
        ("cifar10", "cifar-10-batches-py/data_batch_1", "www.cs.toronto.edu"),
        ("cifar100", "cifar-100-python/train", "www.cs.toronto.edu"),
        ("imagenet100", "ILSVRC/Data/CLS-LOC/train", "image-net.org"),
        ("cub", "CUB_200_2011/images.txt", "www.vision.caltech.edu"),
        ("stanford_cars", "stanford_cars/cars_train", "github.com/pytorch"),
        ("fgvc_aircraft", "fgvc-aircraft-2013b/data/variants.txt", "www.robots.ox.ac.uk"),
        ("herbarium19", "herbarium-2019-fgvc6/small-train", "github.com/visipedia"),
    ):
        message = refused(rf"not found: '{looked_for}'.* comes from .*https://{site}/.*\.$", name, tmp_path)
        assert "The folder contains 'data.tgz', 'notes.txt'. Extract 'data.tgz' there first." in message
        assert ("cars_test_annos_withlabels.mat; its own page is offline." in message) == (name == "stanford_cars")


def test_the_splits_of_classes_are_those_of_the_papers() -> None:
    """Two are drawn by NumPy with legacy seed 0: half of Herbarium-19, and 100 of ILSVRC's 1,000 classes."""
    for name, (n_classes, old, _, _) in SIZES.items():
        choice = read_class_split(name)
        assert (choice.n_classes, len(choice.old)) == (n_classes, old)
        assert list(choice.old) == sorted(set(choice.old) & set(range(n_classes)))
    for name, classes in (("cifar10", 5), ("cifar100", 80), ("imagenet100", 50)):
        assert read_class_split(name).old == tuple(range(classes))
    for name, digest in (
        ("cub", "ec840016bf227694"),
        ("stanford_cars", "730c88ca07807f9d"),
        ("fgvc_aircraft", "5e1ba509abe5c77a"),
    ):
        assert hashlib.sha256(str([*read_class_split(name).old]).encode()).hexdigest().startswith(digest)
    herbarium = np.random.RandomState(0).choice(683, size=341, replace=False)
    assert read_class_split("herbarium19").old == tuple(sorted(herbarium.tolist()))
    imagenet, choice = np.random.RandomState(0).choice(1000, size=100, replace=False), read_class_split("imagenet100")
    assert choice.ilsvrc == tuple(sorted(imagenet.tolist()))
    assert list(choice.wnids) == sorted(set(choice.wnids))
    known = {1: "n01443537", 14: "n01537544", 367: "n02481823", 497: "n03028079", 996: "n13052670"}
    assert {number: choice.wnids[choice.ilsvrc.index(number)] for number in known} == known


def test_the_split_of_stanford_cars_has_the_published_sizes() -> None:
    """The class sizes in its devkit give the paper's 2.0k labelled and 6.1k unlabelled images."""
    counts: list[int] = json.loads((Path(__file__).parents[2] / "counts.json").read_text())["stanford_cars"]
    truth = [str(number) for number, count in enumerate(counts) for _ in range(count)]
    files = [str(i) for i in range(len(truth))]
    old = [str(number) for number in read_class_split("stanford_cars").old]
    images = image_set(files, paths=files, labels=truth).hide_labels(old=old)
    assert (len(images), images.labelled.sum(), images.unlabelled.sum()) == (8144, 2000, 6144)
