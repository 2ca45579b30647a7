"""Formats that hold links to or copies of the images. The originals are never moved or changed."""

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from unicodedata import category, normalize

from sortal.errors import NO_SPACE, InputError, Remedy
from sortal.exchange.format import LeftOut, Request, is_there, visit, write_json
from sortal.images.exported import (
    ASIDE_FOLDERS,
    FIFTYONE_ATTRIBUTES,
    INDEX_COLUMNS,
    INDEX_TABLE,
    NO_CATEGORY,
    ExportedRow,
    utf8,
)
from sortal.images.originals import ChangedError, digest_of
from sortal.system.csv_tables import record_columns, table
from sortal.system.files import write_atomically
from sortal.system.regular_files import NotAFileError, open_regular

# Unless a folder is named like a split, the reader of an ImageFolder guesses splits from names such as test_1.png.
SPLIT = "train"
# Not CSV, in which that reader takes a class named NA for a missing value and 007 for a number. It infers types from
# the first rows, so no text is null.
METADATA = "metadata.jsonl"
METADATA_NAMES = (METADATA, "metadata.csv", "metadata.parquet")  # names it takes for tables, which no image may have
LONGEST_FILE_NAME = 100  # bytes of the name of a file or folder
ROOM_FOR_NUMBER = 14  # bytes of them, reserved for what makes a name unique
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EIO)  # deleted or replaced, or a failing disk
SUFFIX = 16  # bytes of an extension; anything longer after the last dot is not one
# Forbidden on Windows, and marks that reverse the direction of the following text and so disguise a name.
UNSAFE = frozenset('<>:"/\\|?*\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069')
# Device names of Windows, with any extension.
RESERVED = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9\u00b9\u00b2\u00b3])\s*(\.|$)", re.IGNORECASE)


def by_category(request: Request) -> LeftOut:
    """Write CATEGORY/FILE for sure images, unsure/CATEGORY/FILE and other/CATEGORY/FILE for the rest, and an index.

    Those in the bin have a folder of their own.
    """
    top = UniqueNames(*ASIDE_FOLDERS, NO_CATEGORY, INDEX_TABLE)
    folders = {category: top.folder(name) for category, name in request.run.names.items()}
    files: dict[str, UniqueNames] = {}

    def path(row: ExportedRow) -> str:
        if row.category_id in folders:
            folder = f"{row.status}/" * (row.status in ASIDE_FOLDERS) + folders[row.category_id]
        else:
            folder = NO_CATEGORY
        return f"{folder}/{files.setdefault(folder, UniqueNames()).file(row.file_name)}"

    placed, left = place_images(request, path)
    rows = [row for row, _ in placed]
    own = [(name, [row.own[name] for row in rows]) for name in (request.rows[0].own if request.rows else ())]
    columns = [*record_columns(rows, (*INDEX_COLUMNS, *request.places)), *own]
    write_atomically(request.out / INDEX_TABLE, table([("file_name", [path for _, path in placed]), *columns]))
    return left


def imagefolder(request: Request) -> LeftOut:
    """Write an ImageFolder of Hugging Face datasets: the images, and a metadata table."""
    names = UniqueNames(*METADATA_NAMES)
    placed, left = place_images(request, lambda row: names.file(row.file_name), SPLIT)
    # The reader loads `file_name` into the column `image`.
    lines = [{"file_name": path, **row.values((*INDEX_COLUMNS, *request.places))} for row, path in placed]
    write_atomically(request.out / SPLIT / METADATA, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    return left


def fiftyone(request: Request) -> LeftOut:
    """Write a FiftyOneImageClassificationDataset: a folder of images, and labels by file name."""
    names = UniqueNames(by_stem=True)  # FiftyOne looks labels up by file name without extension
    placed, left = place_images(request, lambda row: names.file(row.file_name), "data")
    labels = {
        os.path.splitext(path)[0]: {
            "label": utf8(row.sorted_as),
            "confidence": row.confidence,
            "attributes": row.values((*FIFTYONE_ATTRIBUTES, *request.places)),
        }
        for row, path in placed
    }
    classes = [utf8(name) for name in request.run.names.values()]
    write_json(request.out / "labels.json", {"classes": classes, "labels": labels})
    return left


Placed: TypeAlias = list[tuple[ExportedRow, str]]  # rows whose images are in the export, and their paths there


def place_images(request: Request, name: Callable[[ExportedRow], str], folder: str = "") -> tuple[Placed, LeftOut]:
    """Put each image into a folder of the export, at the path that `name` gives; also return what was left out."""

    def put(number: int) -> str | None:
        if not is_there(request, number):
            return None
        path = name(request.rows[number])
        target = request.out / folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return path if _put(request, number, target) else None

    (request.out / folder).mkdir(exist_ok=True)
    return visit(request, put)


def _put(request: Request, number: int, target: Path) -> bool:
    """Link or copy a file; return False if it disappeared, and raise ChangedError if it has changed."""
    source, how = request.rows[number].path, request.how
    try:
        if how == "hardlink":
            return _link(request, number, target)
        if how == "symlink":
            os.symlink(source, target)
        else:
            _copy(request, number, target)
    except (NotAFileError, ChangedError) as error:
        target.unlink(missing_ok=True)
        if isinstance(error, ChangedError):
            raise
        return False
    except OSError as error:
        if error.errno in GONE or not os.path.isfile(source):
            target.unlink(missing_ok=True)
            return False
        if how == "copy" or error.errno in NO_SPACE:
            raise
        raise InputError(
            f"Cannot export the images as {how}s: {error.strerror or error}, for {source!r}.",
            Remedy("copy them instead", how="copy"),
        ) from error
    return True


def _link(request: Request, number: int, target: Path) -> bool:
    """Make a hard link to a file; it must lead to the very file that was checked."""
    with request.originals.open(number) as checked:
        os.link(os.path.realpath(request.rows[number].path), target)  # one to a relative link would be broken
        found, wanted = os.lstat(target), os.fstat(checked.fileno())
    if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
        raise ChangedError
    if not stat.S_ISREG(found.st_mode):  # it has just been replaced by something else
        target.unlink()
    return stat.S_ISREG(found.st_mode)


def _copy(request: Request, number: int, target: Path) -> None:
    """Copy a file as far as it reached when it was opened, for it may be growing; the copy must have its content."""
    row = request.rows[number]
    with open_regular(row.path) as file, target.open("xb") as copy:
        found = digest_of(file, copy=copy)
        if found != row.content and (request.originals.compared or not found):
            raise ChangedError


class UniqueNames:
    """Unique names, regardless of case, which not every file system distinguishes."""

    def __init__(self, *taken: str, by_stem: bool = False) -> None:
        self._by_stem = by_stem  # names must differ in more than the extension
        self._next = {self._key(name): 2 for name in taken}  # taken name: number to append next

    def folder(self, text: str) -> str:
        """Return a folder name for a text."""
        return self._claim(safe(text), "")

    def file(self, path: str) -> str:
        """Return a file name for the last part of a path, with its extension."""
        name, suffix = os.path.splitext(_clean(path.rsplit("/", 1)[-1]))
        if len(suffix.encode()) > SUFFIX:  # no dot stays, or part of the name would become the extension
            name, suffix = (name + suffix).replace(".", "_"), ""
        return self._claim(safe(name, LONGEST_FILE_NAME - len(suffix.encode())), suffix)

    def _claim(self, name: str, suffix: str) -> str:
        free, first = name + suffix, self._key(name + suffix)
        while (key := self._key(free)) in self._next:
            free = f"{name} ({self._next[first]}){suffix}"
            self._next[first] += 1
        self._next[key] = 2
        return free

    def _key(self, name: str) -> str:
        stem = os.path.splitext(name)[0] if self._by_stem else name
        return normalize("NFKC", normalize("NFKC", stem).casefold())


def safe(text: str, longest: int = LONGEST_FILE_NAME) -> str:
    """Return a name of at most `longest` bytes that every file system accepts, never a path and never hidden."""
    cut = _clean(text).encode()[: longest - ROOM_FOR_NUMBER].decode("utf-8", "ignore").rstrip(". ")
    return f"_{cut}" if not cut or RESERVED.match(cut) else cut


def _clean(text: str) -> str:
    allowed = ("_" if c in UNSAFE or category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in normalize("NFC", text))
    return "".join(allowed).strip().strip(". ")
