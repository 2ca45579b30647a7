"""Folders that Sortal has exported: their subfolders are categories that a run proposed, not labels."""

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from unicodedata import normalize

from sortal.config import FoldersMean
from sortal.errors import InputError, Remedy
from sortal.images import label_tables
from sortal.system.regular_files import read_json

MARKER = ".sortal-export.json"  # says that a folder is an export, and in which format; hidden from other tools
INDEX = "index.csv"  # of the format `folders`: what each file is
UNSURE = "unsure"  # its folder of images that the run is not sure of
BY_CATEGORY = "folders"  # the format whose folders are categories
NO_LABELS = Remedy("read it without labels", folders="ignore")


def format_of(folder: Path) -> str | None:
    """Return the format of an exported folder; None for any other folder."""
    try:
        found = read_json(folder / MARKER)
    except (OSError, ValueError):
        return None
    name = found.get("format") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def check_meaning(folder: Path, folders: FoldersMean) -> None:
    """Refuse to take the folders of an export for classes, and those of any other folder for an export."""
    format_, place = format_of(folder), repr(str(folder))
    if folders == "ignore" or (folders, format_) in (("classes", None), ("reviewed", BY_CATEGORY)):
        return
    if format_ is None:
        raise InputError(
            f"Only a folder that Sortal exported says which images were reviewed; {place} is not one.",
            Remedy("take each folder as a class", folders="classes"),
        )
    if format_ != BY_CATEGORY:
        raise InputError(
            f"{place} is an export of Sortal in the format {format_}, whose folders are not classes.", NO_LABELS
        )
    raise InputError(
        f"{place} is an export of Sortal: its folders are categories that a run proposed, not labels.",
        Remedy("label the images that were labelled, reviewed or moved by hand", folders="reviewed"),
        NO_LABELS,
        Remedy(f"delete {MARKER} in it if you have checked every image"),
    )


def labels_of(folder: Path, files: Sequence[str]) -> list[str | None]:
    """Return the label of each file of a folder in the format `folders`, None for those that only the run has sorted.

    Files where the export put them have the label in its index, which is empty unless a person gave or confirmed it.
    Files that have been moved to another folder, or added to one, are of its class.
    """
    if not (folder / INDEX).is_file():
        raise InputError(
            f"{str(folder / INDEX)!r} must be there to say which images were labelled or reviewed, but it is not.",
            Remedy("export the run again"),
            NO_LABELS,
        )
    table = label_tables.read(folder / INDEX)
    label_of = dict(zip(table.file_name, table.label, strict=True))
    _, rows = label_tables.read_exported(folder / INDEX)
    name_of = {_folder(str(row["file_name"])): str(row["category"]) for row in rows}
    renamed = _renamed(files, [*label_of])
    found: list[str | None] = []
    for file in files:
        own = _folder(file)
        before = file if own not in renamed else f"{renamed[own]}{file[len(own) :]}"
        if before in label_of:
            label = label_of[before]
            found.append(label if own not in renamed or label is None else posixpath.basename(own))
        else:
            name = normalize("NFC", posixpath.basename(own))
            found.append(None if not own or own.partition("/")[0] == UNSURE else name_of.get(own, name))
    return found


def _renamed(files: Sequence[str], exported: Sequence[str]) -> Mapping[str, str]:
    """Return the folders that have been renamed since the export, with their names then.

    Such a folder is new, and most of its files were in one that is gone.
    """
    there, then = {*map(_folder, files)}, {*map(_folder, exported)}
    gone: dict[str, list[str]] = {}
    for file in exported:
        if (own := _folder(file)) not in there:
            gone.setdefault(posixpath.basename(file), []).append(own)
    sources: dict[str, Counter[str]] = {}
    sizes = Counter(map(_folder, files))
    for file in files:
        if (own := _folder(file)) and own not in then:
            sources.setdefault(own, Counter()).update(gone.get(posixpath.basename(file), ()))
    found = {}
    for own, counts in sources.items():
        for source, count in counts.most_common(1):
            if 2 * count > sizes[own] and own.partition("/")[0] != UNSURE:
                found[own] = source
    return found


def _folder(file: str) -> str:
    return posixpath.dirname(file)
