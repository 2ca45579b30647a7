"""The benchmarks whose images are files: those of five publishers, and any labelled collection of the user's own."""

from collections import Counter
from pathlib import Path

from sortal.errors import InputError, listing
from sortal.images import exported
from sortal.images.class_names import in_order
from sortal.images.datasets.official import PublishedDataset, SplitImages, Tree, find_dataset, read_class_split
from sortal.system import csv_tables

BIRDS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
LABELLED_CARS = "cars_test_annos_withlabels.mat"  # published separately: the list in the devkit has no labels
CAR_COPIES = "the copies listed at https://github.com/pytorch/vision/issues/7545"
VARIANTS = "data/variants.txt"
KAGGLE = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12/data"
TEST_EVERY = 5  # of a user's folder without a test split, every fifth image of a class is in it


def read_cub(root: Path) -> PublishedDataset:
    """Read CUB-200-2011: 200 species of birds, listed in text files by image id."""
    page = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    tree = find_dataset(root, "CUB-200-2011", page, ["CUB_200_2011"], [*BIRDS, "images"])
    images, labels, splits, names = (tree.pairs(tree.base / name) for name in BIRDS)
    for name, column in zip(BIRDS[1:3], (labels, splits), strict=True):
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
        names = [tree.numbered(classes, labels[image], tree.base / BIRDS[1]) for image in chosen]
        return tree.listed("images", [images[image] for image in chosen], names)

    return PublishedDataset(classes=classes, train=rows("1"), test=rows("0"))


def read_cars(root: Path) -> PublishedDataset:
    """Read Stanford Cars: 196 models of cars, listed in MATLAB files."""
    page = f"{CAR_COPIES}, with {LABELLED_CARS}; its own page is offline"
    needs = ["cars_train", "cars_test", "devkit/cars_meta.mat", "devkit/cars_train_annos.mat"]
    tree = find_dataset(root, "Stanford Cars", page, ["stanford_cars"], needs)
    (classes,) = tree.matlab(tree.base / "devkit/cars_meta.mat", "class_names")

    def rows(folder: str, path: Path) -> SplitImages:
        names, numbers = tree.matlab(path, "annotations", ["fname", "class"])
        return tree.listed(folder, names, [tree.numbered(classes, number, path) for number in numbers])

    train = rows("cars_train", tree.base / "devkit/cars_train_annos.mat")
    test = rows("cars_test", tree.first(f"devkit/{LABELLED_CARS}", LABELLED_CARS))
    return PublishedDataset(classes=classes, train=train, test=test)


def read_aircraft(root: Path) -> PublishedDataset:
    """Read FGVC-Aircraft: 100 variants of aircraft, listed in text files."""
    page = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/"
    lists = ["data/images_variant_trainval.txt", "data/images_variant_test.txt"]
    tree = find_dataset(root, "FGVC-Aircraft", page, ["fgvc-aircraft-2013b"], [VARIANTS, *lists, "data/images"])
    classes = sorted(tree.lines(tree.base / VARIANTS))

    def rows(name: str) -> SplitImages:
        variants = tree.pairs(tree.base / name)
        if unknown := sorted(set(variants.values()) - set(classes)):
            raise InputError(f"FGVC-Aircraft: {name} must only name variants of {VARIANTS}, got {listing(unknown)}.")
        return tree.listed("data/images", [f"{image}.jpg" for image in variants], list(variants.values()))

    train, test = map(rows, lists)
    return PublishedDataset(classes=classes, train=train, test=test)


def read_herbarium(root: Path) -> PublishedDataset:
    """Read Herbarium-19, small version: a folder for each of 683 species; its validation split is the test."""
    needs = ["small-train", "small-validation"]
    page = "https://github.com/visipedia/herbarium_comp"
    tree = find_dataset(root, "Herbarium-19", page, ["herbarium-2019-fgvc6"], needs)
    train, test = map(tree.class_folders, needs)
    classes = sorted(set(train.classes))
    if unknown := sorted(set(test.classes) - set(classes)):
        raise InputError(
            f"Herbarium-19: every class of small-validation must have images in small-train; these have none: "
            f"{listing(unknown)}. Extract small-train again."
        )
    return PublishedDataset(classes=classes, train=train, test=test)


def read_imagenet(root: Path) -> PublishedDataset:
    """Read ImageNet-100: 100 of ILSVRC-2012's classes, named by their WordNet ids; its validation split is the test."""
    page, tops = "https://image-net.org/download.php", ["ILSVRC/Data/CLS-LOC", "Data/CLS-LOC"]
    tree = find_dataset(root, "ImageNet (ILSVRC 2012)", page, tops, ["train", "val"])
    classes = read_class_split("imagenet100").wnids
    sorted_into_classes = any((tree.base / "val" / name).is_dir() for name in classes)
    test = tree.class_folders("val", classes) if sorted_into_classes else _flat_imagenet(tree, set(classes))
    return PublishedDataset(classes=classes, train=tree.class_folders("train", classes), test=test)


def _flat_imagenet(tree: Tree, classes: set[str]) -> SplitImages:
    """Read validation images that are in a single folder, in the order they would have in class folders."""
    path = tree.first(KAGGLE, f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt")
    named = _kaggle(tree, path) if path.name == KAGGLE else _devkit(tree, path)
    chosen = sorted((wnid, image) for image, wnid in named.items() if wnid in classes)
    return tree.listed("val", [f"{image}.JPEG" for _, image in chosen], [wnid for wnid, _ in chosen])


def _kaggle(tree: Tree, path: Path) -> dict[str, str]:
    """Parse rows like "ILSVRC2012_val_00048981,n03995372 85 1 499 272": the second cell starts with the class."""
    try:
        header, rows = csv_tables.parse("\n".join(tree.lines(path)))
    except ValueError:
        header, rows = [], []
    if header != ["ImageId", "PredictionString"] or any(not prediction.strip() for _, prediction in rows):
        raise InputError(
            f"{tree.title}: {str(path)!r} must have the columns ImageId and PredictionString both filled in every row. "
            "Download it again."
        )
    return {image: prediction.split()[0] for image, prediction in rows}


def _devkit(tree: Tree, path: Path) -> dict[str, str]:
    """Parse the ground truth, whose line i is the class number of image i; meta.mat maps numbers to WordNet ids."""
    numbers, wnids = tree.matlab(tree.first(f"{DEVKIT}/meta.mat"), "synsets", ["ILSVRC2012_ID", "WNID"])
    classes = [wnid for _, wnid in sorted(zip(numbers, wnids, strict=True))]
    truth = [tree.numbered(classes, line, path) for line in tree.lines(path)]
    return {f"ILSVRC2012_val_{i:08d}": wnid for i, wnid in enumerate(truth, start=1)}


def read_folder(root: Path) -> PublishedDataset:
    """Read a user's own collection: one folder per class, or such folders in train and test.

    Classes are sorted by name, or by value if all are numbers; images of a class by name.
    """
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(f"root must be a folder with one folder per class, got {str(root)!r}, which {what}.")
    if exported.format_of(root):
        raise InputError(
            f"root must have one folder per class, got {str(root)!r}, an export of Sortal, whose folders are guesses. "
            f"Delete {exported.EXPORT_MARKER} in it if you have checked every image."
        )
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
        parts[counts[name] % TEST_EVERY == 0].append(row)
    return _pick(rows, parts[0]), _pick(rows, parts[1])


def _pick(rows: SplitImages, chosen: list[int]) -> SplitImages:
    files = [rows.files[i].removeprefix("./") for i in chosen]
    return SplitImages(files=files, classes=[rows.classes[i] for i in chosen])
