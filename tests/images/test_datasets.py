import hashlib
import json
import pickle
import shutil
import unittest.mock
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import layouts
from support.layouts import plant

from sortal.errors import InputError, SortalError
from sortal.images import label_tables
from sortal.images.datasets import DATASET_NAMES, digits, load
from sortal.images.datasets.official import read_class_split
from sortal.images.image_set import ImageSet, image_set

CUB, JETS, FISH = "CUB_200_2011/images", "fgvc-aircraft-2013b/data/images", "n01443537"
# Classes, old classes, and images of a class in the miniatures' training and test splits.
SIZES = {
    "cifar10": (10, 5, 10, 1),
    "cifar100": (100, 80, 2, 1),
    "imagenet100": (100, 50, 2, 1),
    "cub": (200, 100, 2, 1),
    "stanford_cars": (196, 98, 2, 1),
    "fgvc_aircraft": (100, 50, 2, 1),
    "herbarium19": (683, 341, 2, 1),
}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the miniature data sets, which tests must not change."""
    made = {name: tmp_path_factory.mktemp(name) for name in layouts.BUILDERS}
    for name, root in made.items():
        layouts.BUILDERS[name](root)
    return made


def names_of(images: ImageSet, numbers: Sequence[int]) -> list[str]:
    return [(images.classes + images.new_classes)[i] for i in numbers]


def refused(pattern: str, name: str, root: Path, **options: Any) -> str:
    with pytest.raises(InputError, match=pattern) as error:
        load(name, root, **options)
    return str(error.value)


def a_folder(root: Path, *classes: str, images: int = 5) -> Path:
    return plant(root, *(f"{name}/{number}.png" for name in classes for number in range(images)))


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


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cub", "fgvc_aircraft"])
def test_root_may_be_the_folder_inside_the_archive(name: str, roots: dict[str, Path]) -> None:
    (top,) = roots[name].iterdir()
    around, inside = (load(name, root, fraction=1.0) for root in (roots[name], top))
    assert [file.removeprefix(f"{top.name}/") for file in around.files] == list(inside.files)
    assert around.truth.tolist() == inside.truth.tolist()


def test_cifar10_rows_have_their_pixels_in_order(roots: dict[str, Path]) -> None:
    images = load("cifar10", roots["cifar10"], fraction=1.0)
    assert images.classes == ("name0", "name1", "name2", "name3", "name4")
    assert images.files[99:101] == ("data_batch_5/00019.png", "test_batch/00000.png")
    assert images.truth[:12].tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9, 8]
    assert images.pixels is not None
    assert images.pixels.shape == (105, 32, 32, 3)
    assert images.pixels.dtype == np.uint8
    assert images.pixels[[0, 99, 100], 0, 0].tolist() == [[0, 9, 7], [99, 0, 7], [200, 0, 7]]
    assert np.unique(images.pixels[:, 0, 1], axis=0).tolist() == [[255, 0, 0]]
    assert images.pixels[:, 1:].max() == images.pixels[:, :, 2:].max() == 0


def test_labels_are_drawn_as_in_the_paper(roots: dict[str, Path]) -> None:
    """The old images, classes 4 to 0, are rows 5–9, 15–19, … of the 100 training rows."""
    old = [row for row in range(100) if row % 10 >= 5]
    by_default = load("cifar10", roots["cifar10"])
    other = load("cifar10", roots["cifar10"], seed=1, fraction=0.75)
    for images, seed, size in ((by_default, 0, 25), (other, 1, 37)):
        drawn = np.random.RandomState(seed).choice(50, size=size, replace=False)
        assert np.flatnonzero(images.labelled).tolist() == sorted(old[i] for i in drawn)
        assert images.validation.sum() == 5


@pytest.mark.parametrize(
    ("name", "old", "new", "row", "file", "of"),
    [
        ("cifar100", "fine00,fine01", "fine80", 100, "train/00100.png", "fine00"),
        ("cifar100", "fine00,fine01", "fine80", 200, "test/00000.png", "fine00"),
        ("cub", "001.Bird_1,006.Bird_6", "002.Bird_2", 200, f"{CUB}/001.Bird_1/round1.jpg", "001.Bird_1"),
        ("cub", "001.Bird_1,006.Bird_6", "002.Bird_2", 401, f"{CUB}/006.Bird_6/round2.jpg", "006.Bird_6"),
        ("stanford_cars", "Car 1 2012,Car 2 2012", "Car 4 2012", 196, "cars_train/00196.jpg", "Car 1 2012"),
        ("stanford_cars", "Car 1 2012,Car 2 2012", "Car 4 2012", 392, "cars_test/00196.jpg", "Car 1 2012"),
        # Variants are sorted, unlike in their list; classes of Herbarium-19 are sorted as text.
        ("fgvc_aircraft", "Jet/00 mark 0,Jet/01", "Jet/06 mark 6", 1, f"{JETS}/1000001.jpg", "Jet/98 mark 98"),
        ("herbarium19", "0,1,100,103", "10,101,102", 4, "small-train/10/00000.jpg", "10"),
        ("herbarium19", "0,1,100,103", "10,101,102", 1366, "small-validation/0/00000.jpg", "0"),
        # Classes 1 and 14 of ILSVRC; class 0 is not among the hundred.
        ("imagenet100", f"{FISH},n01537544", "", 2, "train/n01537544/n01537544_0.JPEG", "n01537544"),
        ("imagenet100", f"{FISH},n01537544", "", 200, f"val/{FISH}/ILSVRC2012_val_01443537.JPEG", FISH),
    ],
)
def test_classes_and_images_have_the_order_of_the_data_set(
    name: str, old: str, new: str, row: int, file: str, of: str, roots: dict[str, Path]
) -> None:
    images = load(name, roots[name], fraction=1.0)
    assert ",".join(images.classes).startswith(old)
    assert ",".join(images.new_classes).startswith(new)
    assert (images.files[row], names_of(images, images.truth.tolist())[row]) == (file, of)


def test_the_labelled_test_list_of_stanford_cars_may_lie_next_to_the_devkit(tmp_path: Path) -> None:
    layouts.stanford_cars(tmp_path)
    name = "cars_test_annos_withlabels.mat"
    (tmp_path / "devkit" / name).rename(tmp_path / name)
    assert len(load("stanford_cars", tmp_path, part="test")) == 196
    (tmp_path / name).unlink()
    refused(rf"one of 'devkit/{name}', '{name}'\. The folder contains 'cars_test'", "stanford_cars", tmp_path)


def flat_imagenet100(root: Path, base: Path) -> list[str]:
    """Write the miniature into `base` with its validation images in one folder, not in the order of their classes."""
    layouts.imagenet100(root / "source")
    wnids = sorted((path.name for path in (root / "source/val").iterdir()), reverse=True)
    (base / "val").mkdir(parents=True)
    for number, wnid in enumerate(wnids, start=1):
        next((root / "source/val" / wnid).iterdir()).rename(base / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")
    (root / "source/train").rename(base / "train")
    return wnids


def test_imagenet100_is_read_in_the_layout_of_kaggle(tmp_path: Path) -> None:
    wnids = flat_imagenet100(tmp_path, tmp_path / "ILSVRC/Data/CLS-LOC")
    rows = [f"ILSVRC2012_val_{i:08d},{wnid} 85 1 499 272 {wnid} 1 2 3 4 " for i, wnid in enumerate(wnids, start=1)]
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows[50:], *rows[:50]]))
    images = load("imagenet100", tmp_path, part="test")
    # Tench is the last of the 101 images, goldfish the last but one, and so on.
    assert images.files[:2] == tuple(f"ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_{i:08d}.JPEG" for i in (100, 99))
    assert images.truth.tolist() == list(range(100))
    for content in ("", "ImageId,PredictionString\nILSVRC2012_val_00000001,\n", "Id,PredictionString\na,b\n"):
        (tmp_path / "LOC_val_solution.csv").write_text(content)
        refused(r"solution\.csv' must have the columns ImageId and PredictionString", "imagenet100", tmp_path)
    (tmp_path / "LOC_val_solution.csv").unlink()
    refused(r"one of 'ILSVRC/Data/CLS-LOC/LOC_val_sol.*\.csv', 'LOC_val_solution\.csv'", "imagenet100", tmp_path)


def test_imagenet100_is_read_with_the_devkit(tmp_path: Path) -> None:
    from scipy.io import savemat

    wnids = flat_imagenet100(tmp_path, tmp_path)
    data = tmp_path / "ILSVRC2012_devkit_t12/data"
    data.mkdir(parents=True)
    synsets = np.zeros((101, 1), dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)])
    # Class 1 is the second WordNet id, …, class 100 the last, and class 101 the first.
    for i, wnid in enumerate(sorted(wnids)):
        synsets[i, 0] = (i if i else 101, wnid, 0)
    savemat(data / "meta.mat", {"synsets": synsets})
    truth = [*range(100, 0, -1), 101]
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{number}\n" for number in truth))
    images = load("imagenet100", tmp_path, part="test")
    assert images.files[:2] == ("val/ILSVRC2012_val_00000100.JPEG", "val/ILSVRC2012_val_00000099.JPEG")
    assert images.truth.tolist() == list(range(100))
    (data / "ILSVRC2012_validation_ground_truth.txt").write_text("102\n")
    refused(r"must number classes from 1 to 101, got '102'", "imagenet100", tmp_path)


def test_the_test_split_of_herbarium19_may_lack_a_class_but_training_may_not(tmp_path: Path) -> None:
    """The first test image is then of class "1", which keeps its number."""
    layouts.herbarium19(tmp_path)
    (tmp_path / "small-validation/0/00000.jpg").unlink()
    images = load("herbarium19", tmp_path, part="test")
    assert len(images) == 682
    assert images.truth[0] == 1
    assert images.new_classes == load("herbarium19", tmp_path, fraction=1.0).classes + images.new_classes[341:]
    for path in (tmp_path / "small-train/5").iterdir():
        path.unlink()
    refused("class of small-validation must have images in small-train; these have none: '5'", "herbarium19", tmp_path)
    (tmp_path / "small-validation/5/00000.jpg").unlink()
    refused("herbarium19 must have 683 classes, got 682", "herbarium19", tmp_path)


def test_errors_about_missing_files_list_the_folder_and_the_download_page(tmp_path: Path) -> None:
    plant(tmp_path, "data.tgz", "notes.txt")
    for name, looked_for, site in (
        ("cifar10", "cifar-10-batches-py/data_batch_1", "www.cs.toronto.edu"),
        ("cifar100", "cifar-100-python/train", "www.cs.toronto.edu"),
        ("imagenet100", "ILSVRC/Data/CLS-LOC/train", "image-net.org"),
        ("cub", "CUB_200_2011/images.txt", "www.vision.caltech.edu"),
        ("stanford_cars", "stanford_cars/cars_train", "ai.stanford.edu"),
        ("fgvc_aircraft", "fgvc-aircraft-2013b/data/variants.txt", "www.robots.ox.ac.uk"),
        ("herbarium19", "herbarium-2019-fgvc6/small-train", "github.com/visipedia"),
    ):
        message = refused(rf"not found: '{looked_for}'.* comes from https://{site}/.*\.$", name, tmp_path)
        assert "The folder contains 'data.tgz', 'notes.txt'. Extract 'data.tgz' there first." in message


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


def test_damaged_lists_and_missing_images_of_cub_are_reported(tmp_path: Path) -> None:
    layouts.cub(tmp_path)
    top, labels = tmp_path / "CUB_200_2011", "image_class_labels.txt"
    for file, old, new, message in (
        (labels, "600 200\n", "", "must name the same image ids, got 599 and 600"),
        (labels, "2 2\n", "2 0\n", "from 1 to 200, got '0'"),
        (labels, "2 2\n", "2 201\n", "from 1 to 200, got '201'"),
        (labels, "2 2\n", "2 two\n", "from 1 to 200, got 'two'"),
        ("train_test_split.txt", "2 1\n", "2 train\n", "must say 1 .* got 'train'"),
        ("images.txt", "2 002", "1 002", "an id and a value per line; .* repeats an id"),
        ("images.txt", "2 002", "2-002", "the line '2-002.* has no value"),
        ("classes.txt", "200 200.Bird_200\n", "", "must number classes from 1 to 199"),
    ):
        path = top / file
        whole = path.read_text()
        path.write_text(whole.replace(old, new, 1))
        refused(message, "cub", tmp_path)
        path.write_text(whole)
    for path in (*(top / "images/007.Bird_7").iterdir(), top / "images/009.Bird_9/round0.jpg"):
        path.unlink()
    refused(r"3 of 400 are not: 'CUB_200_2011/images/007\.Bird_7/round0\.jpg', 'CUB_200_2", "cub", tmp_path)
    (top / "classes.txt").unlink()
    refused(r"found: 'CUB_200_2011/classes\.txt'\. The folder contains 'CUB_200_2011'\. T", "cub", tmp_path)


def test_damaged_files_of_other_data_sets_are_reported(tmp_path: Path) -> None:
    layouts.fgvc_aircraft(tmp_path)
    path = tmp_path / "fgvc-aircraft-2013b/data/images_variant_test.txt"
    path.write_text(path.read_text().replace("Jet/00", "Jat/00"))
    refused(r"must only name variants of data/variants\.txt, got 'Jat/00 mark 0'", "fgvc_aircraft", tmp_path)
    path.with_name("variants.txt").write_bytes(b"\xff\xfe\x00")
    refused(r"variants\.txt' cannot be read as UTF-8 text", "fgvc_aircraft", tmp_path)
    layouts.imagenet100(tmp_path / "imagenet")
    shutil.rmtree(tmp_path / "imagenet/train" / FISH)
    refused(rf"not found: 'train/{FISH}'\. The folder contains 'train', 'val'", "imagenet100", tmp_path / "imagenet")
    (tmp_path / "imagenet/train" / FISH).mkdir()
    message = f"must have training images of every class; these have none: '{FISH}'"
    refused(message, "imagenet100", tmp_path / "imagenet")
    layouts.stanford_cars(tmp_path / "cars")
    path = tmp_path / "cars/devkit/cars_train_annos.mat"
    whole = path.read_bytes()
    for content in (path.with_name("cars_meta.mat").read_bytes(), whole[: len(whole) // 2], b""):
        path.write_bytes(content)
        message = r"cars_train_annos\.mat' must be a MATLAB file that contains annotations with the fields fname, class"
        refused(message, "stanford_cars", tmp_path / "cars")


def test_loading_a_pickle_executes_nothing(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    mark = tmp_path / "ran"
    malicious = f"cbuiltins\nexec\n(S\"__import__('os').mkdir({str(mark)!r})\"\ntR.".encode()
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(malicious)
    refused(r"data_batch_3' would run builtins\.exec, which no CIFAR file does", "cifar10", tmp_path)
    assert not mark.exists()
    pickle.loads(malicious)  # to verify that it is malicious
    assert mark.exists()


def batch(labels: Any, *shape: int, dtype: type = np.uint8) -> bytes:
    return layouts.pickle2({"labels": labels, "data": np.zeros(shape, dtype)})


def test_damaged_pickles_are_reported(tmp_path: Path) -> None:
    layouts.cifar10(tmp_path)
    top = tmp_path / "cifar-10-batches-py"
    for content, message in (
        (b"", "cannot be read as a pickle"),
        (layouts.pickle2([1, 2]), "must contain a dictionary, got list"),
        (layouts.pickle2({"labels": [0]}), r"uint8 data of shape \(n, 3072\), got none"),
        (batch([0], 1, 3072, dtype=np.float64), r"uint8 data of shape \(n, 3072\), got none"),
        (batch([0], 1, 1024), r"got \(1, 1024\)"),
        (batch([0], 3072), r"got \(3072,\)"),
        (batch("0", 1, 3072), "must contain labels, one for each of 1 image"),
        (batch([0], 2, 3072), "one for each of 2 images"),
        (batch([10], 1, 3072), "from 0 to 9"),
        (batch([-1], 1, 3072), "from 0 to 9"),
    ):
        (top / "data_batch_3").write_bytes(content)
        refused(f"data_batch_3' .*{message}", "cifar10", tmp_path)
    (top / "batches.meta").write_bytes(layouts.pickle2({"label_names": "plane"}))
    refused(r"batches\.meta' must contain a list of names, label_names", "cifar10", tmp_path)


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_of_python_3_are_read_too(tmp_path: Path, protocol: int) -> None:
    layouts.cifar100(tmp_path)
    data = layouts.cifar_rows([0] * 100, 0)
    for array in (data, np.asfortranarray(data)):
        content = pickle.dumps({"fine_labels": list(range(100)), "data": array}, protocol=protocol)
        (tmp_path / "cifar-100-python/test").write_bytes(content)
        images = load("cifar100", tmp_path, part="test")
        assert images.pixels is not None
        assert images.pixels[:, 0, 0].tolist() == [[i, 0, 7] for i in range(100)]


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
    counts: list[int] = json.loads((Path(__file__).parents[1] / "counts.json").read_text())["stanford_cars"]
    truth = [str(number) for number, count in enumerate(counts) for _ in range(count)]
    files = [str(i) for i in range(len(truth))]
    old = [str(number) for number in read_class_split("stanford_cars").old]
    images = image_set(files, paths=files, labels=truth).hide_labels(old=old)
    assert (len(images), images.labelled.sum(), images.unlabelled.sum()) == (8144, 2000, 6144)


# A user's own folder


def test_a_folder_of_classes_is_a_benchmark(tmp_path: Path) -> None:
    """Of five classes two are old; of the eleven images in each, the fifth and the tenth are test images.

    Of the 18 training images of old classes, 9 are labelled. Class names that are numbers are sorted by value.
    """
    names = ("1", "002", "9", "10", "30")
    root = a_folder(tmp_path, *names, images=11)
    images, held = load("folder", root, seed=1), load("folder", root, part="test")
    assert (images.classes, images.new_classes) == (names[:2], names[2:])
    assert np.flatnonzero(images.labelled).tolist() == sorted(np.random.RandomState(1).choice(18, 9, replace=False))
    assert np.flatnonzero(images.validation).tolist() == [45, 46, 47, 48]
    # Sorted by name, the images are 0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9.
    to_learn = [f"{name}/{n}.png" for name in names for n in (0, 1, 10, 2, 4, 5, 6, 7, 9)]
    test = [f"{name}/{n}.png" for name in names for n in (3, 8)]
    assert images.files == (*to_learn, *test[:4])
    assert images.paths == tuple(str(root / file) for file in images.files)
    assert names_of(images, images.truth.tolist()) == [file.partition("/")[0] for file in images.files]
    assert images.labels[images.validation].tolist() == [0, 0, 1, 1]
    assert held.files == tuple(test)
    assert held.unlabelled.all()
    assert held.new_classes == names
    assert held.truth.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_folder_with_train_and_test_is_split_by_them(tmp_path: Path) -> None:
    """Not every class needs test images."""
    a_folder(tmp_path / "train", "2", "10", "1", images=6)
    a_folder(tmp_path / "test", "1", "10", images=2)
    images, held = load("folder", tmp_path, fraction=1.0), load("folder", tmp_path, part="test")
    to_learn = [f"train/{name}/{number}.png" for name in ("1", "2", "10") for number in range(6)]
    test = ("test/1/0.png", "test/1/1.png", "test/10/0.png", "test/10/1.png")
    assert images.files == (*to_learn, *test[:2])
    assert (images.classes, images.new_classes) == (("1",), ("2", "10"))
    assert images.validation.sum() == 2
    assert held.files == test
    assert held.truth.tolist() == [0, 0, 2, 2]


def test_train_or_test_alone_is_an_ordinary_class_and_a_single_class_is_refused(tmp_path: Path) -> None:
    for only in ("train", "test"):
        images = load("folder", a_folder(tmp_path / f"only {only}", "bus", only))
        assert images.classes + images.new_classes == ("bus", only)
    root = tmp_path / "one"
    (root / "bare").mkdir(parents=True)
    for count, files in enumerate(([], ["only/1.png", "1.png", "other/1.txt"])):
        refused(rf"at least two classes, one folder per class, got {count}\.", "folder", plant(root, *files))


def test_a_test_class_without_training_images_is_refused(tmp_path: Path) -> None:
    a_folder(tmp_path / "train", "a", "b")
    (tmp_path / "train/empty").mkdir()
    a_folder(tmp_path / "test", "a", "b", "c", "empty", images=1)
    message = refused(r"must have images in train; these have none: 'c', 'empty'. Add", "folder", tmp_path)
    assert repr(str(tmp_path / "test")) in message


def test_files_that_are_not_images_of_a_class_are_ignored(tmp_path: Path) -> None:
    """A class of four images has no test images."""
    a_folder(tmp_path, "a", "b")
    plant(tmp_path, "loose.png", "a/notes.txt", "a/.hidden.png", ".cache/x.png", "a/deeper/1.png", "b/x.JPG")
    a_folder(tmp_path, "d", images=4)
    (tmp_path / "c").mkdir()
    images = load("folder", tmp_path, fraction=1.0)
    assert images.classes + images.new_classes == ("a", "b", "d")
    to_learn = [f"{name}/{n}.png" for name in "abd" for n in range(4)]
    assert images.files == (*to_learn[:8], "b/x.JPG", *to_learn[8:], "a/4.png")
    assert load("folder", tmp_path, part="test").files == ("a/4.png", "b/4.png")


def test_digits_are_written_as_images_and_a_table(tmp_path: Path) -> None:
    """Digits 0–4 have 901 of the 1,797 images, and half of these, rounded down, are labelled."""
    from sklearn.datasets import load_digits

    out = tmp_path / "a/b/digits"
    images = digits.write(out)
    assert images.files == tuple(f"{i:04d}.png" for i in range(1797))
    assert (images.classes, images.new_classes) == (tuple("01234"), tuple("56789"))
    assert (images.labelled.sum(), images.unlabelled.sum(), images.validation.sum()) == (450, 1347, 0)
    assert sorted(path.name for path in out.iterdir()) == [*images.files, "labels.csv"]
    assert [path.name for path in out.parent.iterdir()] == ["digits"]
    table = label_tables.read(out / "labels.csv")
    assert table.truth == [str(digit) for digit in images.truth]
    assert table.label == [name or None for name in digits.labels(0.5, 0)]
    grey, digit = load_digits(return_X_y=True)
    scaled = {tuple((row * 255 / 16 + 0.5).astype(int).tolist()): n for row, n in zip(grey, digit, strict=True)}
    assert len(scaled) == 1797
    for path, number in zip(images.paths, images.truth, strict=True):
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("L", (8, 8))
            assert scaled[tuple(np.asarray(image).ravel().tolist())] == number
    # scikit-learn's first thirty are 0, 1, … 9 in turn; the numbers of files must not reveal the digit.
    assert images.truth[:30].tolist() != digit[:30].tolist()


def test_the_labels_of_digits_depend_on_fraction_and_seed(tmp_path: Path) -> None:
    names = digits.labels(0.1, 7)
    images = digits.write(tmp_path, labelled=0.1, seed=7)  # an empty folder may be used
    assert [(*images.classes, "")[number] for number in images.labels] == names
    assert sum(name != "" for name in names) == 90
    assert sum(name != "" for name in digits.labels(1.0, 3)) == 901
    assert digits.labels(0.1, 7) == names != digits.labels(0.1, 2)


def test_digits_are_written_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "file", "full/1.png", "full/2.png")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    full = unittest.mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(Image.Image, "save", full)
    for folder, labelled, message in (
        ("full", 0.5, r"must be new or empty, got .*full', which contains '1\.png', '2\.png'"),
        ("file", 0.5, r"must be new or empty, got .*file', which is a file\."),
        ("new", 0.0, r"labelled must be above 0 and at most 1, got 0\.0\."),
        ("new", 1.01, r"labelled must be above 0 and at most 1, got 1\.01\."),
        ("file/new", 0.5, r"cannot be written: File exists: '.*/file'\."),
        ("here", 0.5, r"must not be the current one, got '.*here'"),
        ("new", 0.5, r"Cannot write '.*new': no space left on device\. Free some space"),
    ):
        with pytest.raises(SortalError, match=message):
            digits.write(tmp_path / folder, labelled=labelled)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["1.png", "2.png", "file", "full", "here"]
