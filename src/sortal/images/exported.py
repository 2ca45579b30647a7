"""What Sortal exports: its columns, the folders of a sorted copy, and what of either is a label when it is read back.

What a person has labelled, decided or edited is a label; what the run has guessed is not.
"""

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unicodedata import normalize

from sortal.config import FoldersMean
from sortal.errors import InputError, Remedy, listing
from sortal.images.class_names import as_name
from sortal.images.columns import GROUP_COLUMN
from sortal.images.review_states import SEEN_WORDS, SETTLED_WORDS, ReviewState
from sortal.system.regular_files import read_json
from sortal.system.text import plural

# Columns

LARGEST_WHOLE = 2**53  # up to which JSON readers keep whole numbers


class ExportedRow(NamedTuple):
    """An image and its category; the fields are the columns of a table, in their order."""

    file_name: str  # as the user wrote it, or relative to the folder of the images
    image_folder: str  # the end of its path, which tells the folders of a run apart
    path: str  # absolute; empty if the image was given as pixels
    category: str  # empty in the bin
    category_id: int  # −1 in the bin
    status: str
    confidence: float | None
    reviewed: str
    label: str  # that the user gave; of an image that was moved, where to; empty if there is none or it is refuted
    truth: str  # empty if it is not known
    sorted_as: str  # the category, or NO_CATEGORY, by which an edited one is recognised when the table is read
    content: str
    group: str = ""  # that the user gave, or of near-duplicates; empty without one
    calibrated: str = ""  # "no" if confidence only ranks images
    own: Mapping[str, str | Decimal | None] = MappingProxyType({})  # cells of the user's columns, by name

    @property
    def source(self) -> str:
        """The name in the run, where `file_name` is the name of a copy."""
        return self.file_name

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of columns, then of the user's own, as JSON has them, text in UTF-8."""
        cells = [*((name, getattr(self, name)) for name in names), *self.own.items()]
        return {utf8(name): as_json(cell) for name, cell in cells}


# Columns of other exports, to which those that say where an image is are added: `image_folder` and `path`.
STATE_COLUMNS = ("status", "confidence", "reviewed", "sorted_as", "content")
INDEX_COLUMNS = ("source", "label", "category", "category_id", *STATE_COLUMNS)
FIFTYONE_ATTRIBUTES = ("status", "reviewed", "category_id", "source", "sorted_as", "content")
LABEL_STUDIO_DATA = ("file_name", *STATE_COLUMNS)
# Columns by which a table is recognised, and one of predictions, which has no labels.
EXPORTED = ("file_name", "category", "category_id", "status", "reviewed", "label")
PREDICTED = ("file_name", "category", "category_id", "status")
READ = (*EXPORTED, "truth", "sorted_as", "image_folder", "source", "content")  # columns that reading needs
# Names of columns in any table of Sortal, and of what other tools take for something else, which no other column has.
RESERVED_COLUMNS = frozenset(
    {*ExportedRow._fields, *INDEX_COLUMNS, "image", "split", "id", "annotator", "folder", "apart", "doubt", "suggested"}
    | {"suggested_id", "distance", "next_category", "next_category_id", "next_distance", "features"}
) - {GROUP_COLUMN}


def utf8(text: str) -> str:
    """Escape the bytes of a file or class name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def as_json(cell: Any) -> Any:
    """Return a cell as JSON has it: numbers, and text in UTF-8."""
    if isinstance(cell, Decimal):
        return int(cell) if cell == cell.to_integral_value() and abs(cell) < LARGEST_WHOLE else float(cell)
    return utf8(cell) if isinstance(cell, str) else cell


def is_exported(header: Sequence[str]) -> bool:
    """Tell whether columns are those of an exported table."""
    return {*EXPORTED} <= {*header}


# Reading back


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What the columns of an export say about an image when they are read back."""

    file_name: str  # of the image or its copy; empty if unknown
    source: str  # the name in the run, if that is another
    content: str
    status: str
    reviewed: str
    category: str | None
    label: str | None
    sorted_as: str | None  # the category when it was exported

    @property
    def file(self) -> str:
        """The name of the image in the run."""
        return self.source or self.file_name

    @property
    def was_seen(self) -> bool:
        """Whether a person had decided on the category, or that there is none, after seeing the image."""
        return self.reviewed in (*SEEN_WORDS, ReviewState.BINNED.word)

    @property
    def is_edited(self) -> bool:
        """Whether the category was replaced after the export."""
        return None not in (self.category, self.sorted_as) and self.category != self.sorted_as

    @property
    def given(self) -> str | None:
        """The class that a person has given: an edited category, else a label, else a category decided in a review."""
        if self.is_edited or (self.label is None and self.reviewed in SETTLED_WORDS):
            return self.category
        return self.label


def statement(row: Mapping[str, object]) -> Statement:
    """Return what the columns of a row say, as far as it has them."""

    def text(name: str) -> str:
        return str(row.get(name) or "")

    return Statement(
        file_name=text("file_name"),
        source=text("source"),
        content=text("content"),
        status=text("status"),
        reviewed=text("reviewed").strip().casefold(),
        category=class_in(row, "category"),
        label=class_in(row, "label"),
        sorted_as=class_in(row, "sorted_as"),
    )


def class_in(row: Mapping[str, object], column: str) -> str | None:
    """Return the class in a column of a row; errors lack their subject, the table."""
    try:
        return as_name(row.get(column))
    except InputError as error:
        raise InputError(f"has an invalid {column}. {error}") from None


def statements(rows: Sequence[Mapping[str, object]]) -> list[Statement]:
    """Return what each row of a table says; errors lack their subject, the table."""
    found = [statement(row) for row in rows]
    edited = [each for each in found if each.is_edited]
    if torn := [each.file_name for each in edited if each.label not in (None, each.category, each.sorted_as)]:
        raise InputError(
            f"must not change label and category to different classes, unlike in {plural(len(torn), 'row')}: "
            f"{listing(torn)}. Correct one of them."
        )
    return found


# Folders

EXPORT_MARKER = ".sortal-export.json"  # says that a folder is an export, and in which format; hidden from other tools
INDEX_TABLE = "index.csv"  # of the format `folders`: what each file is
ASIDE_FOLDERS = ("unsure", "other")  # its folders of images that may not belong to their category, by status
NO_CATEGORY = "no category"  # its folder of images in the bin, and their label where one is needed
BY_CATEGORY = "folders"  # the format whose folders are categories
NO_LABELS = Remedy("read it without labels", folders="ignore")


def format_of(folder: Path) -> str | None:
    """Return the format of an exported folder; None for any other folder."""
    try:
        found = read_json(folder / EXPORT_MARKER)
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
        Remedy(f"delete {EXPORT_MARKER} in it if you have checked every image"),
    )


def labels_of(files: Sequence[str], index: Sequence[Statement]) -> list[str | None]:
    """Return the label of each file of a folder in the format `folders`; None for those that only the run has sorted.

    Files where the export put them have the label in its index, which is empty unless a person gave or confirmed it.
    Files that have been moved to another folder, or added to one, are of its class.
    """
    given = {each.file_name: each.given for each in index}
    category_of = {posixpath.dirname(each.file_name): each.category for each in index}

    def label(file: str) -> str | None:
        folder = posixpath.dirname(file)
        if file in given:
            return given[file]
        top = folder.partition("/")[0]
        if not folder or (
            top in (*ASIDE_FOLDERS, NO_CATEGORY) and top not in category_of
        ):  # of earlier versions, other/ is a category
            return None
        return category_of.get(folder, normalize("NFC", posixpath.basename(folder)))

    return [label(file) for file in files]
