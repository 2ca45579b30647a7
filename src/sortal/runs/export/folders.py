"""Formats that hold links to or copies of the images. The originals are never moved or changed."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sortal.errors import InputError, Remedy
from sortal.runs.export.file_names import Names
from sortal.runs.export.format import How, Request, Row, has_content, utf8, visit, write_json
from sortal.runs.run import UNSURE
from sortal.runs.tables import record_columns, table
from sortal.system.files import write_atomically

INDEX = "index.csv"
# Unless a folder is named like a split, the reader of an ImageFolder guesses splits from names such as test_1.png.
SPLIT = "train"
# Not CSV, in which that reader takes a class named NA for a missing value and 007 for a number. It infers types from
# the first rows, so no text is null.
METADATA = "metadata.jsonl"
TABLES = (METADATA, "metadata.csv", "metadata.parquet")  # names it takes for tables, which no image may have


def by_category(request: Request) -> Sequence[str]:
    """Write CATEGORY/FILE for sure images, unsure/CATEGORY/FILE for the others, and an index."""
    top = Names(UNSURE, INDEX)
    folders = {category: top.folder(name) for category, name in request.run.names.items()}
    files: dict[str, Names] = {}

    def path(row: Row) -> str:
        folder = f"{UNSURE}/{folders[row.category]}" if row.status == UNSURE else folders[row.category]
        return f"{folder}/{files.setdefault(folder, Names()).file(row.file_name)}"

    placed, missing = _place(request, path)
    fields = ("file_name", "category", "category_name", "status", "confidence")
    columns = record_columns([row for row, _ in placed], fields)
    write_atomically(request.out / INDEX, table([("exported", [path for _, path in placed]), *columns]))
    return missing


def imagefolder(request: Request) -> Sequence[str]:
    """Write an ImageFolder of Hugging Face datasets: the images, and a metadata table."""
    names = Names(*TABLES)
    placed, missing = _place(request, lambda row: names.file(row.file_name), SPLIT)
    lines = [
        {
            "file_name": path,  # the reader loads it into the column `image`
            "source": utf8(row.file_name),
            "label": utf8(row.label or ""),
            "category": row.category,
            "category_name": utf8(row.category_name),
            "status": row.status,
            "confidence": row.confidence,
        }
        for row, path in placed
    ]
    write_atomically(request.out / SPLIT / METADATA, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
    return missing


def fiftyone(request: Request) -> Sequence[str]:
    """Write a FiftyOneImageClassificationDataset: a folder of images, and labels by file name."""
    names = Names(by_stem=True)  # FiftyOne looks labels up by file name without extension
    placed, missing = _place(request, lambda row: names.file(row.file_name), "data")
    labels = {
        os.path.splitext(path)[0]: {
            "label": utf8(row.category_name),
            "confidence": row.confidence,
            "attributes": {"status": row.status, "category": row.category, "source": utf8(row.file_name)},
        }
        for row, path in placed
    }
    classes = [utf8(name) for name in request.run.names.values()]
    write_json(request.out / "labels.json", {"classes": classes, "labels": labels})
    return missing


def _place(request: Request, name: Callable[[Row], str], folder: str = "") -> tuple[list[tuple[Row, str]], list[str]]:
    """Put each image into a folder of the export, at the path that `name` gives; also return the missing files."""

    def put(row: Row) -> str | None:
        if not has_content(row.path):
            return None
        path = name(row)
        target = request.out / folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return path if _put(row.path, target, request.how) else None

    (request.out / folder).mkdir(exist_ok=True)
    return visit(request, put)


def _put(source: str, target: Path, how: How) -> bool:
    """Link or copy a file; return False if it disappeared."""
    try:
        if how == "hardlink":
            os.link(os.path.realpath(source), target)  # a hard link to a relative link would be broken
        elif how == "symlink":
            os.symlink(source, target)
        else:
            shutil.copyfile(source, target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EIO):  # deleted since, or on a failing disk
            target.unlink(missing_ok=True)
            return False
        if how == "copy":
            raise
        raise InputError(
            f"Cannot export the images as {how}s: {error.strerror or error}, for {source!r}.",
            Remedy("copy them instead", how="copy"),
        ) from error
    return True
