"""Folders of empty files, and miniature data sets in the layouts of their publishers.

A data set has every class of its split, a few images each, most of them empty files. Each builder fills `root` as
extracting the archives there would, and names classes and images so that a test can tell from a file's name what it
must find. TRAIN and TEST are the images of a class in each split; CIFAR-10 has TRAIN in each of its five batches.
"""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.images.datasets.official import read_class_split

TRAIN, TEST = 2, 1


def plant(root: Path, *names: str) -> Path:
    """Create empty files in the given order."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def plant_photos(folder: Path) -> Path:
    """Create files of two classes, of none, and one beside them."""
    return plant(folder, "cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "unlabelled/1.jpg", "unlabelled/2.jpg", "loose.jpg")


def pickle2(value: Any) -> bytes:
    """A pickle as Python 2 wrote it by protocol 2, with NumPy's names of that time: byte strings, no Unicode."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(key) + _opcodes(each) for key, each in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, int):
        return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)
    if isinstance(value, str | bytes):
        raw = value.encode("latin1") if isinstance(value, str) else value
        return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw
    assert isinstance(value, np.ndarray)
    empty = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + _opcodes(0) + b"\x85" + _opcodes("b") + b"\x87R"
    )
    kind = b"cnumpy\ndtype\n" + _opcodes(value.dtype.str[1:]) + _opcodes(0) + _opcodes(1) + b"\x87R"
    order = b"(" + _opcodes(3) + _opcodes(value.dtype.str[0]) + b"NNN" + 2 * _opcodes(-1) + _opcodes(0) + b"tb"
    shape = b"(" + b"".join(map(_opcodes, value.shape)) + b"t"
    return empty + b"(" + _opcodes(1) + shape + kind + order + b"\x89" + _opcodes(value.tobytes()) + b"tb"


def pickle0(key: str, names: list[str]) -> bytes:
    """A list under a key, as Python 2 wrote it by protocol 0."""
    return "".join([f"(dS'{key}'\n(l", *(f"S'{name}'\na" for name in names), "s."]).encode("ascii")


def cifar_rows(labels: list[int], first: int) -> NDArray[np.uint8]:
    """Images by channel, as (n, 3072): pixel (0, 0) is (number of the image from `first`, label, 7), (0, 1) red."""
    planes = np.zeros((len(labels), 3, 1024), dtype=np.uint8)
    planes[:, 0, 0] = np.arange(first, first + len(labels))
    planes[:, 1, 0] = labels
    planes[:, 2, 0] = 7
    planes[:, 0, 1] = 255
    return planes.reshape(len(labels), 3072)


def cifar10(root: Path) -> None:
    """Images of each of the five batches go through the classes from 9 down to 0, TRAIN times."""
    top = root / "cifar-10-batches-py"
    top.mkdir(parents=True)
    n = classes_of("cifar10")
    (top / "batches.meta").write_bytes(pickle0("label_names", [f"name{i}" for i in range(n)]))
    for number, name in enumerate(["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]):
        labels = list(range(n - 1, -1, -1)) * TRAIN
        data = cifar_rows(labels, number * 20)
        (top / name).write_bytes(pickle2({"batch_label": f"training {number}", "labels": labels, "data": data}))
    (top / "test_batch").write_bytes(pickle2({"labels": list(range(n)), "data": cifar_rows(list(range(n)), 200)}))


def cifar100(root: Path) -> None:
    top = root / "cifar-100-python"
    top.mkdir(parents=True)
    n = classes_of("cifar100")
    names = [f"fine{i:02d}" for i in range(n)]
    (top / "meta").write_bytes(pickle2({"coarse_label_names": ["coarse"], "fine_label_names": names}))
    for name, labels in (("train", list(range(n)) * TRAIN), ("test", list(range(n)) * TEST)):
        coarse = [0] * len(labels)
        content = {"fine_labels": labels, "coarse_labels": coarse, "data": cifar_rows([0] * len(labels), 0)}
        (top / name).write_bytes(pickle2(content))


def classes_of(name: str) -> int:
    return read_class_split(name).n_classes


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def cub(root: Path) -> None:
    """Image ids go through the classes once for each image of a class; the last round is the test split."""
    top = root / "CUB_200_2011"
    classes = [f"{i:03d}.Bird_{i}" for i in range(1, classes_of("cub") + 1)]
    images = [
        (f"{name}/round{i}.jpg", number, i) for i in range(TRAIN + TEST) for number, name in enumerate(classes, start=1)
    ]
    for name, _, _ in images:
        touch(top / "images" / name)
    lists = {
        "classes.txt": [f"{i} {name}" for i, name in enumerate(classes, start=1)],
        "images.txt": [f"{i} {name}" for i, (name, _, _) in enumerate(images, start=1)],
        "image_class_labels.txt": [f"{i} {number}" for i, (_, number, _) in enumerate(images, start=1)],
        "train_test_split.txt": [f"{i} {int(turn < TRAIN)}" for i, (_, _, turn) in enumerate(images, start=1)],
    }
    for name, lines in lists.items():
        (top / name).write_text("\n".join(lines) + "\n")


def stanford_cars(root: Path) -> None:
    """Lists count down from the last file and go through the classes from 1."""
    from scipy.io import savemat

    (root / "devkit").mkdir(parents=True)
    n = classes_of("stanford_cars")
    savemat(root / "devkit/cars_meta.mat", {"class_names": _cells([f"Car {i} 2012" for i in range(1, n + 1)])})
    for folder, name, times in (
        ("cars_train", "cars_train_annos", TRAIN),
        ("cars_test", "cars_test_annos_withlabels", TEST),
    ):
        files = [f"{i:05d}.jpg" for i in range(n * times, 0, -1)]
        for file in files:
            touch(root / folder / file)
        rows = np.zeros((1, len(files)), dtype=[("bbox_x1", object), ("class", object), ("fname", object)])
        rows["bbox_x1"], rows["class"] = 1.0, np.array([i % n + 1 for i in range(len(files))], dtype=object)
        rows["fname"] = np.array(files, dtype=object)
        savemat(root / "devkit" / f"{name}.mat", {"annotations": rows})


def _cells(names: list[str]) -> NDArray[Any]:
    cells = np.empty((1, len(names)), dtype=object)
    cells[0] = names
    return cells


def fgvc_aircraft(root: Path) -> None:
    """Variants are listed backwards, and names hold spaces and slashes; lists go through them backwards as well."""
    data = root / "fgvc-aircraft-2013b/data"
    variants = [f"Jet/{i:02d} mark {i}" for i in range(classes_of("fgvc_aircraft") - 1, -1, -1)]
    (data / "images").mkdir(parents=True)
    (data / "variants.txt").write_text("\n".join(variants) + "\n")
    for name, first, times in (("trainval", 1000000, TRAIN), ("test", 2000000, TEST)):
        lines = [f"{first + i} {variant}" for i, variant in enumerate(variants * times)]
        (data / f"images_variant_{name}.txt").write_text("\n".join(lines) + "\n")
        for line in lines:
            touch(data / "images" / f"{line.split()[0]}.jpg")


def herbarium19(root: Path) -> None:
    for name in map(str, range(classes_of("herbarium19"))):
        for folder, times in (("small-train", TRAIN), ("small-validation", TEST)):
            for i in range(times):
                touch(root / folder / name / f"{i:05d}.jpg")


def imagenet100(root: Path) -> None:
    """With the folder of one class beyond the 100."""
    for name in ("n01440764", *read_class_split("imagenet100").wnids):
        for i in range(TRAIN):
            touch(root / "train" / name / f"{name}_{i}.JPEG")
        touch(root / "val" / name / f"ILSVRC2012_val_{int(name[1:]):08d}.JPEG")


BUILDERS: dict[str, Callable[[Path], None]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet100": imagenet100,
    "cub": cub,
    "stanford_cars": stanford_cars,
    "fgvc_aircraft": fgvc_aircraft,
    "herbarium19": herbarium19,
}
