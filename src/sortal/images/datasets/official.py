"""Published data sets: finding their files, reading their lists, reporting missing ones; and their old classes."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, listing
from sortal.images.folders import is_image
from sortal.system.json_records import read_record
from sortal.system.text import plural

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz", ".gz")


@dataclass(frozen=True, kw_only=True)
class SplitImages:
    """The images of a published split, in data-set order."""

    files: Sequence[str]  # relative to the root with "/"; generated names for archives of pixels
    classes: Sequence[str]  # the class of each
    pixels: NDArray[np.uint8] | None = None  # (n, height, width, 3), if the images are rows of an archive


@dataclass(frozen=True, kw_only=True)
class PublishedDataset:
    """A data set with its official training and test splits."""

    classes: Sequence[str]  # in the order of the data set, by which splits number them
    train: SplitImages
    test: SplitImages


@dataclass(frozen=True, kw_only=True)
class ClassSplit:
    """The old classes of a benchmark, numbered from 0 in the data set's own order."""

    n_classes: int
    old: tuple[int, ...]
    ilsvrc: tuple[int, ...] = ()  # ImageNet-100: the number of each class among the 1,000 sorted WordNet ids
    wnids: tuple[str, ...] = ()  # ImageNet-100: the WordNet id of each class


def read_class_split(name: str) -> ClassSplit:
    """Read the old classes of a benchmark from the folder splits."""
    path = files("sortal.images.datasets") / "splits" / f"{name}.json"
    return read_record(ClassSplit, json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class Tree:
    """An extracted data set: its files are in `base`, which is the user's folder `root` or a folder in it."""

    title: str
    page: str
    root: Path
    base: Path

    def first(self, *names: str) -> Path:
        """Return the first of several files or folders that exists, in `base` or else in `root`."""
        tried = dict.fromkeys(folder / name for name in names for folder in (self.base, self.root))
        for path in tried:
            if path.exists():
                return path
        raise self.missing([self.name(path) for path in tried], one_of=True)

    def lines(self, path: Path) -> list[str]:
        """Return the non-blank lines of a text file, stripped."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self._file(path)} cannot be read as UTF-8 text: {error}. Extract it again.") from None
        return [line.strip() for line in text.splitlines() if line.strip()]

    def pairs(self, path: Path) -> dict[str, str]:
        """Parse lines "id value" to a dictionary in their order; values may contain spaces."""
        found: dict[str, str] = {}
        for line in self.lines(path):
            key, _, value = line.partition(" ")
            if not value or key in found:
                what = "repeats an id" if value else "has no value"
                raise InputError(f"{self._file(path)} must have an id and a value per line; the line {line!r} {what}.")
            found[key] = value.strip()
        return found

    def matlab(self, path: Path, variable: str, fields: Sequence[str] = ()) -> list[list[Any]]:
        """Return the fields of an array of structs in a .mat file as columns; without fields, the array as one."""
        from scipy.io import loadmat

        try:
            array = np.atleast_1d(loadmat(path, squeeze_me=True, variable_names=[variable])[variable])
            columns = [array[field] for field in fields] if fields else [array]
            return [[np.asarray(cell).item() for cell in column.tolist()] for column in columns]
        except Exception as error:  # SciPy may raise anything on a damaged file
            wanted = f"{variable} with the fields {', '.join(fields)}" if fields else variable
            raise InputError(
                f"{self._file(path)} must be a MATLAB file that contains {wanted}; reading it failed "
                f"({type(error).__name__}: {error}). Extract or download it again."
            ) from None

    def numbered(self, classes: Sequence[str], number: object, path: Path) -> str:
        """Return the class of a number, counted from 1 as publishers do."""
        try:
            at = int(str(number))
        except ValueError:
            at = 0
        if not 1 <= at <= len(classes):
            raise InputError(f"{self._file(path)} must number classes from 1 to {len(classes)}, got {number!r}.")
        return classes[at - 1]

    def listed(self, folder: str, names: Sequence[str], classes: Sequence[str]) -> SplitImages:
        """Return the images of a list, all of which must exist."""
        within = self.name(self.base / folder)
        files = [f"{within}/{name}" for name in names]
        there = {parent: set(_entries(self.root / parent)) for parent in {os.path.dirname(file) for file in files}}
        if absent := [file for file in files if os.path.basename(file) not in there[os.path.dirname(file)]]:
            are = plural(len(absent), f"of {len(files):,} is", f"of {len(files):,} are")
            raise InputError(
                f"{self.title}: every listed image must be in {str(self.root)!r}; {are} not: {listing(absent)}. "
                f"Extract the images again; they come from {self.page}."
            )
        return SplitImages(files=files, classes=list(classes))

    def class_folders(self, folder: str, classes: Sequence[str] | None = None) -> SplitImages:
        """Return the images of class folders: sorted by class, in the order given or by code point, then by name.

        This is the order of torchvision's ImageFolder. Folders of other classes than those given are ignored.
        """
        at = self.base / folder
        if classes is None:
            classes = [name for name in _entries(at) if (at / name).is_dir()]
        elif absent := [f"{self.name(at)}/{name}" for name in classes if not (at / name).is_dir()]:
            raise self.missing(absent)
        rows = [(name, file) for name in classes for file in _entries(at / name) if is_image(file)]
        within = self.name(at)
        return SplitImages(files=[f"{within}/{name}/{file}" for name, file in rows], classes=[name for name, _ in rows])

    def missing(self, names: Sequence[str], *, one_of: bool = False) -> InputError:
        """Return an error that tells what is missing, what was found, and where to get the data set."""
        what = f"one of {listing(names, show=8)}" if one_of else listing(names, show=8)
        entries = _entries(self.root)
        packed = [name for name in entries if name.lower().endswith(ARCHIVES)]
        return InputError(
            f"{self.title} must be in {str(self.root)!r} as its publisher packs it; not found: {what}. "
            f"The folder contains {listing(entries, show=6) or 'nothing'}. "
            f"{f'Extract {listing(packed)} there first. ' if packed else ''}The data set comes from {self.page}."
        )

    def name(self, path: Path) -> str:
        """Return a path relative to the root."""
        return path.relative_to(self.root).as_posix()

    def _file(self, path: Path) -> str:
        return f"{self.title}: the file {str(path)!r}"


def find_dataset(root: Path, title: str, page: str, tops: Sequence[str], needs: Sequence[str]) -> Tree:
    """Find the data set in `root` or in the top folder of its archive (`tops`), by the files it needs."""
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(
            f"root must be the folder that contains {title}, got {str(root)!r}, which {what}. It comes from {page}."
        )
    bases = [root, *(root / top for top in tops)]
    lacking = {base: [need for need in needs if not (base / need).exists()] for base in bases}
    base = min(lacking, key=lambda each: len(lacking[each]))
    tree = Tree(title=title, page=page, root=root, base=base)
    if lacking[base]:
        within = base if len(lacking[base]) < len(needs) else bases[1]  # nothing found: as in the archive
        raise tree.missing([tree.name(within / need) for need in lacking[base]])
    return tree


def _entries(folder: Path) -> list[str]:
    """List a folder, sorted, without hidden files; a missing folder is empty."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be read: {error.strerror}.") from error
