"""Reading images and their labels from a folder, from a folder and a table, or from a list."""

import os
import posixpath
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

from sortal import folders, tables
from sortal.errors import InputError, listing
from sortal.images import ImageSet, image_set

UNLABELLED = "unlabelled"


def read_images(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    labels: str | os.PathLike[str] | Sequence[Any] | None = None,
    truth: Sequence[Any] | None = None,
    unlabelled: str = UNLABELLED,
    unlisted: Literal["error", "unlabelled", "ignore"] = "error",
    extra_columns: Literal["error", "ignore"] = "error",
    need_labels: bool = True,
) -> ImageSet:
    """Images and their labels, from a folder, from a folder and a table, or from a list.

    A folder alone: each folder in it is a class; images in the folder `unlabelled`, and loose ones, have no label.
    A folder and a table (`labels` is its path): the table names each image of the folder, however nested, and its
    label, empty where there is none; `unlisted` says what becomes of images it does not name, `extra_columns` of
    columns other than file_name, label and truth. A list of paths: `labels` and `truth` are lists beside it.

    Rows are in the order of the table or list; without one they are sorted by path. `need_labels=False` allows a set
    without any labelled image.
    """
    if isinstance(source, str | os.PathLike):
        if truth is not None:
            raise InputError(
                "truth can be given only with a list of images; beside a folder it is a column of the table."
            )
        folder = Path(source)
        if labels is None:
            images = _from_folder(folder, unlabelled)
        elif isinstance(labels, str | os.PathLike):
            images = _from_table(folder, tables.read(Path(labels), extra_columns=extra_columns), unlisted)
        else:
            raise InputError(
                f"labels must be the path of a table when images are a folder, got {type(labels).__name__}."
            )
        if not images.files:
            raise InputError(
                f"The folder {str(folder)!r} must hold at least one image ({', '.join(sorted(folders.EXTENSIONS))}), "
                f"got none{' and ' + format(len(images.ignored), ',') + ' other files' if images.ignored else ''}."
            )
    else:
        images = _from_list(source, labels, truth)
    if need_labels and not images.classes:
        raise InputError(f"At least one class must be labelled; none of {len(images):,} images is. {_advice(images)}")
    return images


def _advice(images: ImageSet) -> str:
    at_hand = [name for name in images.ignored if "/" not in name and Path(name).suffix.lower() in tables.EXTENSIONS]
    if at_hand:
        return f"Pass a table of labels: {listing(at_hand)} lies beside the images."
    return "Put the images of a class into a folder named after it, or pass a table of labels."


def _from_folder(folder: Path, unlabelled: str) -> ImageSet:
    names, ignored = folders.find(folder)
    within = [normalize("NFC", name.partition("/")[0]) if "/" in name else None for name in names]
    if unlabelled == UNLABELLED:
        nameless = {UNLABELLED, "unlabeled"}
    else:
        nameless = {normalize("NFC", unlabelled)}
        if not (folder / unlabelled).is_dir():
            raise InputError(
                f"The folder of unlabelled images, {unlabelled!r}, must lie in {str(folder)!r}; "
                f"there are: {listing(sorted({name for name in within if name is not None})) or 'no folders'}."
            )
    return image_set(
        names,
        paths=[os.path.join(folder, name) for name in names],
        labels=[None if name in nameless else tables.as_name(name) for name in within],
        ignored=ignored,
    )


def _from_table(folder: Path, table: tables.Table, unlisted: str) -> ImageSet:
    images, others = folders.find(folder)
    found = _locate(table.file_name, folder, [*images, *others])
    if missing := [name for name, at in zip(table.file_name, found, strict=True) if at is None]:
        raise InputError(
            f"Every row of {str(table.path)!r} must name a file of {str(folder)!r}, by its path within that folder; "
            f"{len(missing):,} of {len(found):,} do not: {listing(missing)}. Correct the table or the folder."
        )
    at = [name for name in found if name is not None]
    _check_once(f"The table {str(table.path)!r}", at, table.label)
    files, labels = list(table.file_name), list(table.label)
    truth = None if table.truth is None else list(table.truth)
    listed = set(at)
    if rest := [name for name in images if name not in listed]:
        if unlisted == "error":
            raise InputError(
                f"Every image of {str(folder)!r} must have a row in {str(table.path)!r}; {len(rest):,} have none: "
                f"{listing(rest)}. Add rows with an empty label, or say that images without a row are "
                "unlabelled (unlisted='unlabelled') or left out (unlisted='ignore')."
            )
        if unlisted == "unlabelled":
            at, files = at + rest, files + rest
            labels += [None] * len(rest)
            truth = None if truth is None else truth + [None] * len(rest)
    return image_set(
        files,
        paths=[os.path.join(folder, name) for name in at],
        labels=labels,
        truth=truth,
        ignored=[name for name in others if name not in listed and not table.path.samefile(folder / name)],
    )


def _locate(wanted: Sequence[str], folder: Path, there: Collection[str]) -> list[str | None]:
    """Which file each name means: that very name, or else the only one that is the same path written otherwise.

    Otherwise: composed or decomposed accents, "./" and "..", backslashes, or an absolute path into the folder.
    """
    exact = set(there)
    alike: dict[str, list[str]] = {}
    for name in there:
        alike.setdefault(normalize("NFC", name), []).append(name)
    root = folder.absolute().as_posix() + "/"

    def one(name: str) -> str | None:
        if name in exact:
            return name
        path = posixpath.normpath(name.replace("\\", "/")).removeprefix(root)
        candidates = alike.get(normalize("NFC", path), [])
        return candidates[0] if len(candidates) == 1 else None

    return [one(name) for name in wanted]


def _check_once(what: str, files: Sequence[str], labels: Sequence[str | None]) -> None:
    """Every file once: two rows that disagree are worse than two that say the same, and come first."""
    repeated = {file for file, count in Counter(files).items() if count > 1}
    if not repeated:
        return
    said: dict[str, set[str | None]] = {}
    for file, label in zip(files, labels, strict=True):
        if file in repeated:
            said.setdefault(file, set()).add(label)
    if torn := [file for file, different in said.items() if len(different) > 1]:
        raise InputError(
            f"{what} must give an image one label; {len(torn):,} have several: {listing(torn)}. "
            f"The first is under {listing(sorted(str(label or '') for label in said[torn[0]]))}."
        )
    raise InputError(f"{what} must name an image once; {len(said):,} are named more often: {listing(list(said))}.")


def _from_list(
    source: Sequence[str | os.PathLike[str]],
    labels: str | os.PathLike[str] | Sequence[Any] | None,
    truth: Sequence[Any] | None,
) -> ImageSet:
    files = [os.fspath(path) for path in source]
    if not files:
        raise InputError("The list of images must hold at least one path, got none.")
    if isinstance(labels, str | os.PathLike):
        raise InputError("labels must be a list beside a list of images, got a path. Pass the folder with its table.")
    for name, column in (("labels", labels), ("truth", truth)):
        if column is not None and len(column) != len(files):
            raise InputError(f"{name} must be as long as the list of images, {len(files):,}, got {len(column):,}.")
    names = [None] * len(files) if labels is None else [tables.as_name(label) for label in labels]
    if missing := [file for file in files if not os.path.lexists(file) or os.path.isdir(file)]:
        raise InputError(
            f"Every path of the list must be a file; {len(missing):,} of {len(files):,} are not: {listing(missing)}."
        )
    _check_once("The list of images", [os.path.abspath(file) for file in files], names)
    return image_set(
        files, paths=files, labels=names, truth=None if truth is None else [tables.as_name(name) for name in truth]
    )
