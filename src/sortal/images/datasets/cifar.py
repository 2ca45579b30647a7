"""CIFAR-10 and CIFAR-100, Python version: pickles of 32 × 32 images.

An image is named after its file and its row there, counted from 0: data_batch_1/00042.png.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError
from sortal.images.datasets.official import PublishedDataset, SplitImages, find_dataset
from sortal.system.text import plural

CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
AGAIN = "Extract it again."


def read10(root: Path) -> PublishedDataset:
    train = [f"data_batch_{i}" for i in range(1, 6)]
    return _read(root, "CIFAR-10", "cifar-10-batches-py", train, ["test_batch"], "batches.meta", "label")


def read100(root: Path) -> PublishedDataset:
    return _read(root, "CIFAR-100", "cifar-100-python", ["train"], ["test"], "meta", "fine_label")


def _read(
    root: Path, title: str, top: str, train: Sequence[str], test: Sequence[str], meta: str, kind: str
) -> PublishedDataset:
    """Read the batches of both splits; `kind` is the kind of labels: label or fine_label."""
    tree = find_dataset(root, f"{title} (Python version)", CIFAR_PAGE, [top], [*train, *test, meta])
    classes = _unpickle(tree.base / meta).get(f"{kind}_names")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise InputError(f"The file {str(tree.base / meta)!r} must contain a list of names, {kind}_names. {AGAIN}")

    def rows(batches: Sequence[str]) -> SplitImages:
        parts = [_batch(tree.base / batch, f"{kind}s", len(classes)) for batch in batches]
        return SplitImages(
            files=[f"{batch}/{i:05d}.png" for batch, (_, y) in zip(batches, parts, strict=True) for i in range(len(y))],
            classes=[classes[number] for _, y in parts for number in y],
            pixels=np.concatenate([pixels for pixels, _ in parts]),
        )

    return PublishedDataset(classes=classes, train=rows(train), test=rows(test))


def _batch(path: Path, key: str, n_classes: int) -> tuple[NDArray[np.uint8], list[int]]:
    """Return the images, (n, 32, 32, 3), and their class numbers."""
    content = _unpickle(path)
    data, labels = content.get("data"), content.get(key)
    pixels = data.pixels if isinstance(data, _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 3072:
        got = "none" if pixels is None else pixels.shape
        raise InputError(f"The file {str(path)!r} must contain uint8 data of shape (n, 3072), got {got}. {AGAIN}")
    numbers = [y for y in labels if isinstance(y, int) and 0 <= y < n_classes] if isinstance(labels, list) else []
    if numbers != labels or len(numbers) != len(pixels):
        raise InputError(
            f"The file {str(path)!r} must contain {key}, one for each of {plural(len(pixels), 'image')} and "
            f"from 0 to {n_classes - 1}. {AGAIN}"
        )
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), numbers


def _unpickle(path: Path) -> dict[str, Any]:
    """Load a dictionary pickled by Python 2 or later. A pickle can run code, so only the stand-ins may be called."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
    except InputError as error:
        raise InputError(f"The file {str(path)!r} {error}") from None
    except Exception as error:  # a damaged pickle may raise anything
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"The file {str(path)!r} cannot be read as a pickle ({what}). {AGAIN}") from None
    if not isinstance(content, dict):
        raise InputError(f"The file {str(path)!r} must contain a dictionary, got {type(content).__name__}.")
    return content


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise InputError(
                f"would run {module}.{name}, which no CIFAR file does; reading was stopped. "
                f"Do not trust it; download it again from {CIFAR_PAGE}."
            )
        return STAND_INS[module, name]


class _Type:
    """A stand-in for numpy.dtype."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and fields, which uint8 does not have."""


class _Array:
    """A stand-in for numpy.ndarray."""

    def __init__(self, *_: object) -> None:
        self.pixels: NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, str | bytes]) -> None:
        _, shape, kind, by_column, raw = state
        if kind.code == "u1":
            content = raw.encode("latin1") if isinstance(raw, str) else raw
            self.pixels = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if by_column else "C")


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # how Python 3 pickles bytes for Python 2
}
