"""Reading images and their labels from a folder, from a folder and a table, or from a list."""

import os
import posixpath
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from unicodedata import normalize

from numpy.typing import NDArray

from sortal import tables
from sortal.errors import InputError, listing
from sortal.folders import EXTENSIONS, find
from sortal.images import ImageSet, image_set

UNLABELLED = "unlabelled"
Unlisted = Literal["error", "unlabelled", "ignore"]
Folders = Literal["classes", "ignore"]
Column: TypeAlias = Sequence[Any] | NDArray[Any]


def read_images(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    labels: str | os.PathLike[str] | Column | None = None,
    truth: Column | None = None,
    folders: Folders = "classes",
    unlabelled: str = UNLABELLED,
    unlisted: Unlisted = "error",
    extra_columns: tables.ExtraColumns = "error",
    need_labels: bool = True,
) -> ImageSet:
    """Images and their labels, from a folder, from a folder and a table, or from a list.

    A folder alone: each folder in it is a class; images in the folder `unlabelled`, and loose ones, have no label. With
    `folders="ignore"` none has.
    A folder and a table (`labels` is its path): the table names each image of the folder, however nested, and its
    label, empty where there is none; `unlisted` says what becomes of images it does not name, `extra_columns` of
    columns other than file_name, label and truth. A list of paths: `labels` and `truth` are lists beside it.

    Rows are in the order of the table or list; without one they are sorted by path. `need_labels=False` allows a set
    without any labelled image.
    """
    if unlisted not in get_args(Unlisted):
        raise InputError(f"unlisted must be 'error', 'unlabelled' or 'ignore', got {unlisted!r}.")
    if folders not in get_args(Folders):
        raise InputError(f"folders must be 'classes' or 'ignore', got {folders!r}.")
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source):
            raise InputError("The image folder must be named, got ''. The current folder is '.'.")
        if truth is not None:
            raise InputError(
                "truth can be given only with a list of images; beside a folder it is a column of the table."
            )
        folder = Path(source)
        if labels is None:
            images = _from_folder(folder, folders == "classes", unlabelled)
        elif isinstance(labels, str | os.PathLike):
            images = _from_table(folder, tables.read(Path(labels), extra_columns=extra_columns), unlisted)
        else:
            raise InputError(
                f"labels must be the path of a table when images are a folder, got {type(labels).__name__}."
            )
        if not images.files:
            raise InputError(
                f"The folder {str(folder)!r} must hold at least one image ({', '.join(sorted(EXTENSIONS))}), "
                f"got none{f', but {listing(images.ignored)}' if images.ignored else ''}."
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


def _from_folder(folder: Path, are_classes: bool, unlabelled: str) -> ImageSet:
    names, ignored = find(folder)
    within = [normalize("NFC", name.partition("/")[0]) if "/" in name and are_classes else None for name in names]
    if unlabelled == UNLABELLED:
        nameless = {name for name in within if name is not None and name.casefold() in (UNLABELLED, "unlabeled")}
    else:
        nameless = {normalize("NFC", unlabelled.rstrip("/"))}
        there = {normalize("NFC", name) for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))}
        if not nameless & there:
            raise InputError(
                f"The folder of unlabelled images, {unlabelled!r}, must lie in {str(folder)!r}; "
                f"there are: {listing(sorted({name for name in within if name is not None})) or 'no folders'}."
            )
    return image_set(
        names,
        paths=[os.path.join(folder, name) for name in names],
        labels=[None if name in nameless or name == "-1" else name for name in within],
        ignored=ignored,
    )


def _from_table(folder: Path, table: tables.Table, unlisted: str) -> ImageSet:
    images, others = find(folder)
    found = _locate(table.file_name, folder, [*images, *others])
    if missing := [name for name, at in zip(table.file_name, found, strict=True) if at is None]:
        raise InputError(
            f"Every row of {str(table.path)!r} must name a file of {str(folder)!r}, by its path within that folder; "
            f"{len(missing):,} of {len(found):,} do not: {listing(missing)}. {_guess(missing[0], [*images, *others])}"
        )
    at = [name for name in found if name is not None]
    _check_once(f"The table {str(table.path)!r}", at, table.label)
    files, labels = list(table.file_name), list(table.label)
    truth = None if table.truth is None else list(table.truth)
    if images and not at and unlisted == "ignore":
        raise InputError(f"The table {str(table.path)!r} must have at least one row, got none.")
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
        ignored=[name for name in others if name not in listed and not _same(folder / name, table.path)],
    )


def _locate(wanted: Sequence[str], folder: Path, there: Collection[str]) -> list[str | None]:
    """Which file each name means: that very name, or else the only one that is the same path written otherwise.

    Otherwise: composed or decomposed accents, "./" and "..", backslashes, or an absolute path into the folder.
    """
    exact = set(there)

    @cache
    def above(parent: str) -> str | None:
        """What leads from the folder to an absolute path within it, whatever links and dots either is written with."""
        rest = ""
        while not _same(parent, folder):
            parent, name = posixpath.split(parent)
            if not name:
                return None
            rest = f"{name}/{rest}"
        return rest

    alike: dict[str, list[str]] = {}
    for name in there:
        alike.setdefault(normalize("NFC", name), []).append(name)

    def one(name: str) -> str | None:
        if name in exact:
            return name
        path = posixpath.normpath(name.replace("\\", "/"))
        if posixpath.isabs(path) and (before := above(posixpath.dirname(path))) is not None:
            path = before + posixpath.basename(path)
        if path in exact:
            return path
        candidates = alike.get(normalize("NFC", path), [])
        return candidates[0] if len(candidates) == 1 else None

    return [one(name) for name in wanted]


def _guess(name: str, there: Sequence[str]) -> str:
    """What may have been meant by the name of a file that is not there."""
    stem = posixpath.splitext(posixpath.basename(name.replace("\\", "/")))[0].casefold()
    alike = [other for other in there if posixpath.splitext(posixpath.basename(other))[0].casefold() == stem]
    return f"There is {listing(alike)}." if alike else "Correct the table or the folder."


def _same(one: str | Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


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
    labels: str | os.PathLike[str] | Column | None,
    truth: Column | None,
) -> ImageSet:
    files = [_path(path, row) for row, path in enumerate(source, start=1)]
    if not files:
        raise InputError("The list of images must hold at least one path, got none.")
    if isinstance(labels, str | os.PathLike):
        raise InputError("labels must be a list beside a list of images, got a path. Pass the folder with its table.")
    names = [None] * len(files) if labels is None else _column("labels", labels, len(files))
    told = None if truth is None else _column("truth", truth, len(files))
    if missing := [file for file in files if not os.path.lexists(file) or os.path.isdir(file)]:
        raise InputError(
            f"Every path of the list must be a file; {len(missing):,} of {len(files):,} are not: {listing(missing)}."
        )
    _check_once("The list of images", [os.path.abspath(file) for file in files], names)
    return image_set(files, paths=files, labels=names, truth=told)


def _path(path: object, row: int) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"The list of images must hold paths, got {path!r} as number {row:,}.")
    return str(os.fspath(path))  # NumPy's text made text


def _column(name: str, values: Column, n: int) -> list[str | None]:
    if isinstance(values, Mapping | Set) or getattr(values, "ndim", 1) != 1:
        raise InputError(f"{name} must be a list, one for each image in their order, got {type(values).__name__}.")
    if len(values) != n:
        raise InputError(f"{name} must be as long as the list of images, {n:,}, got {len(values):,}.")
    try:
        return [tables.as_name(value) for value in values]
    except InputError as error:
        raise InputError(f"{name} must name classes. {error}") from None
