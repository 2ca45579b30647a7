"""Benchmarks in miniature: folders of classes, and what loading them says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sortal.errors import InputError
from sortal.images.datasets import load
from sortal.images.image_set import ImageSet
from support.layouts import plant

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


def names_of(images: ImageSet, numbers: Sequence[int]) -> list[str]:
    return [(images.classes + images.new_classes)[i] for i in numbers]


def refused(pattern: str, name: str, root: Path, **options: Any) -> str:
    with pytest.raises(InputError, match=pattern) as error:
        load(name, root, **options)
    return str(error.value)


def a_folder(root: Path, *classes: str, images: int = 5) -> Path:
    return plant(root, *(f"{name}/{number}.png" for name in classes for number in range(images)))
