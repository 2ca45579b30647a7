"""Benchmarks whose images are files, in the layouts of their publishers, and folders of classes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support import layouts
from support.benchmarks import a_folder, names_of, refused
from support.layouts import plant

from sortal.images.datasets import load

CUB, JETS, FISH = "CUB_200_2011/images", "fgvc-aircraft-2013b/data/images", "n01443537"


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
