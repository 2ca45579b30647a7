"""A small sample: scikit-learn's handwritten digits as a folder of images with a label table."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sortal.errors import InputError, listing
from sortal.images.image_set import ImageSet, image_set
from sortal.images.reading import read_images
from sortal.system import csv_tables
from sortal.system.files import writing
from sortal.system.temporary import sweep, temporary_folder

TABLE = "labels.csv"
OLD_DIGITS = 5  # digits 0–4 are old


def write(out: str | os.PathLike[str], *, labelled: float = 0.5, seed: int = 0) -> ImageSet:
    """Write 1,797 images and their labels.csv to a new or empty folder, all or nothing, and read it back.

    A random fraction `labelled` of the images of digits 0–4 have a label; the table has the truth of all images. Their
    order is random and the same for every seed, so that file names do not reveal digits.
    """
    out = Path(out)
    if not 0 < labelled <= 1:
        raise InputError(f"labelled must be above 0 and at most 1, got {labelled}.")
    _check_free(out)
    pixels, table = _digits(labelled, seed)
    target = out.resolve()
    try:
        with writing(out):
            target.parent.mkdir(parents=True, exist_ok=True)
            sweep(target.parent)
            with temporary_folder(target.parent) as unfinished:
                for name, image in zip(table["file_name"], pixels, strict=True):
                    Image.fromarray(image).save(unfinished / name)
                (unfinished / TABLE).write_bytes(csv_tables.table([*table.items()]))
                if target.exists():
                    target.rmdir()
                unfinished.rename(target)
    except OSError as error:
        at = f": {error.filename!r}" if error.filename else ""
        raise InputError(f"The folder {str(out)!r} cannot be written: {error.strerror}{at}. Choose another.") from error
    return read_images(out, labels=out / TABLE)


def labels(labelled: float, seed: int) -> list[str]:
    """Return the label column of the table that `write` writes; "" if unlabelled."""
    return _digits(labelled, seed)[1]["label"]


def _check_free(out: Path) -> None:
    if not os.path.lexists(out):
        return
    entries = sorted(os.listdir(out)) if out.is_dir() else None
    if entries is None or entries:
        what = f"contains {listing(entries)}. Empty it, or choose" if entries else "is a file. Choose"
        raise InputError(f"The folder to write must be new or empty, got {str(out)!r}, which {what} another.")
    if Path.cwd().is_relative_to(out.resolve()):
        raise InputError(f"The folder to write must not be the current one, got {str(out)!r}. Choose a new one in it.")


def _digits(labelled: float, seed: int) -> tuple[NDArray[np.uint8], dict[str, list[str]]]:
    """Return the grey images, (n, 8, 8), and their table."""
    from sklearn.datasets import load_digits

    grey, digits = load_digits(return_X_y=True)
    shuffled = np.random.RandomState(0).permutation(len(digits))  # scikit-learn's order is nearly 0, 1, 2, …
    files = [f"{i:04d}.png" for i in range(len(digits))]
    truth = [str(digits[i]) for i in shuffled]
    drawn = image_set(files, paths=files, labels=truth).hide_labels(old=OLD_DIGITS, fraction=labelled, seed=seed)
    names = (*drawn.classes, "")
    pixels = np.rint(grey[shuffled].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return pixels, {"file_name": files, "label": [names[i] for i in drawn.labels], "truth": truth}
