"""Label tables: CSV, TSV, JSON lines or Parquet with the columns `file_name`, `label` and `truth`, a row per image.

A table that Sortal exported is recognised by its columns. What a person has labelled, decided or edited in it is a
label; what the run has guessed is not.
"""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import normalize

from sortal.config import ExtraColumns
from sortal.errors import InputError, Remedy, listing, quoted
from sortal.images import parquet_tables
from sortal.images.review_states import SETTLED_WORDS
from sortal.system.regular_files import read_regular
from sortal.system.text import plural, unescape_cell

COLUMNS = ("file_name", "label", "truth")
# Columns by which a table that Sortal exported is recognised, and those it may have as well.
EXPORTED = ("file_name", "category", "category_id", "status", "reviewed", "label")
AS_EXPORTED = "sorted_as"  # the category when the table was written
PREDICTED = ("file_name", "category", "category_id", "status")  # columns of a table of predictions
FORMER = {"category": "category_id", "category_name": "category"}  # what earlier versions called these columns
READ = (*COLUMNS, *EXPORTED, AS_EXPORTED, "category_name", "path", "image_folder", "source", "content")
# What other tools call these columns, without case, spaces, dashes and underscores.
SYNONYMS = {
    "file_name": ("filename", "file", "image", "imagename", "imagefile", "imagepath", "path", "filepath", "photo"),
    "label": ("labels", "class", "classname", "classlabel", "category", "categoryname", "target", "tag", "species"),
}
DELIMITERS = {".csv": ",;\t", ".tsv": "\t", ".tab": "\t"}  # candidates by extension; the header decides
EXTENSIONS = (*DELIMITERS, ".jsonl", ".ndjson", ".parquet")
MISSING = ("nan", "NaN", "<NA>", "NaT", "--")  # empty cells of data frames and masked arrays, if not text
KINDS = "CSV (.csv), TSV (.tsv), JSON lines (.jsonl) and Parquet (.parquet)"

Rows: TypeAlias = list[Mapping[str, object]]


@dataclass(frozen=True)
class LabelTable:
    """The columns of a table, of equal length; `None` for a cell that is empty or −1."""

    path: Path
    file_name: Sequence[str]
    label: Sequence[str | None]
    truth: Sequence[str | None] | None
    # In a table that Sortal exported, where that is known:
    places: Sequence[str] | None = None  # absolute paths, or empty
    folders: Sequence[str] | None = None  # ends of the paths of folders that names are relative to, or empty


def read(path: Path, *, extra_columns: ExtraColumns = "error") -> LabelTable:
    """Read a label table; its extension gives the format."""
    with _naming(path):
        header, rows = _cells(path)
        _check_columns(header, extra_columns)
        files = _file_names(rows)
        exported = is_exported(header)
        label = decided_labels(rows) if exported else _names(rows, "label")
        truth = _names(rows, "truth") if "truth" in header else None
        if exported and truth:  # what a person has decided is true, as far as anyone knows
            truth = [own or known for own, known in zip(label, truth, strict=True)]
    places, folders = (
        [str(row.get(name) or "") for row in rows] if exported and name in header else None
        for name in ("path", "image_folder")
    )
    return LabelTable(path=path, file_name=files, label=label, truth=truth, places=places, folders=folders)


def read_exported(path: Path) -> tuple[list[str], Rows]:
    """Return the names of the columns and the rows of a table that Sortal exported."""
    with _naming(path):
        header, rows = _cells(path)
        if not is_exported(header):
            raise InputError(
                f"must be one that `sortal export` wrote, with the columns {', '.join(EXPORTED)}; "
                f"its columns are: {listing(header, show=8) or 'none'}."
            )
        _file_names(rows)
    return header, rows


def is_exported(header: Sequence[str]) -> bool:
    """Tell whether columns are those of a table that Sortal exported."""
    return {*EXPORTED} <= {*header}


def decided_labels(rows: Rows) -> list[str | None]:
    """Return the label of each row of an exported table: what a person said, and never what the run guessed.

    A category that was edited comes first, then the label, then the category of an image that was reviewed.
    """
    found: list[str | None] = []
    torn: list[str] = []
    columns = (_names(rows, name) for name in ("label", "category", AS_EXPORTED))
    for row, label, name, before in zip(rows, *columns, strict=True):
        decided = str(row.get("reviewed") or "").strip().casefold() in SETTLED_WORDS
        if name is not None and before is not None and name != before:
            if label not in (None, name, before):
                torn.append(str(row["file_name"]))
            found.append(name)
        elif label is None or (before is None and decided):
            found.append(name if decided else None)
        else:
            found.append(label)
    if torn:
        raise InputError(
            f"must not change label and category to different classes, unlike in {plural(len(torn), 'row')}: "
            f"{listing(torn)}. Correct one of them."
        )
    return found


def write(path: Path, table: Mapping[str, Sequence[str]]) -> None:
    """Write columns as CSV, every cell quoted and otherwise unchanged."""
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)  # QUOTE_MINIMAL leaves "\r" unquoted
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def as_name(label: object) -> str | None:
    """Return a label as a class name, stripped and in NFC; `None` if it is empty or −1."""
    if not isinstance(label, str):
        if label is None or str(label) in MISSING:
            return None
        if isinstance(label, bool) or not isinstance(label, Real | Decimal):
            raise InputError(f"A label must be text or a number, got {type(label).__name__} {quoted(label, 100)}.")
        if not isinstance(label, Integral | Decimal) and float(label).is_integer():
            label = int(float(label))  # data frames turn integers with gaps into floats
    name = normalize("NFC", str(label).strip())
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(f"A label must be text that can be written as UTF-8, got {quoted(name, 100)}.") from None
    return None if name in ("", "-1", "-1.0") else name


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the subject, the table, to errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"The table {str(path)!r} {error.message}", *error.remedies) from error.__cause__


# Errors below lack their subject.


def _cells(path: Path) -> tuple[list[str], Rows]:
    """Return the names of the columns, and the rows as dictionaries."""
    if not os.path.isfile(path):
        raise InputError("is not a file." if os.path.exists(path) else "does not exist.")
    kind = path.suffix.lower()
    if kind not in EXTENSIONS:
        raise InputError(f"must be one of {KINDS}, got {kind or 'no extension'!r}. Save it as CSV in UTF-8.")
    if kind == ".parquet":
        return _renamed(*parquet_tables.read(path, READ, COLUMNS[1:]))
    content = _content(path)
    if kind not in DELIMITERS:
        return _renamed(*_json_lines(_text(content)))
    raw = content.decode("utf-8-sig", "surrogateescape")  # Sortal exports file names whatever their bytes
    text = raw if _is_exported_text(raw) else _text(content)
    header, rows = _renamed(*_delimited(text, DELIMITERS[kind]))
    if is_exported(header):
        rows = [{name: unescape_cell(str(cell)) for name, cell in row.items()} for row in rows]
    return header, rows


def _renamed(header: list[str], rows: Rows) -> tuple[list[str], Rows]:
    """Return a table of an earlier version of Sortal with the names that its columns have now, any other as it is."""
    names = [FORMER.get(name, name) for name in header]
    if "category_id" in header or not {*PREDICTED} <= {*names}:
        return header, rows
    return names, [{FORMER.get(name, name): cell for name, cell in row.items()} for row in rows]


def _file_names(rows: Rows) -> list[str]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(name := row.get("file_name"), str) or not name:
            raise InputError(f"must have a file_name in each row, got {name!r} in row {number:,}.")
    return [str(row["file_name"]) for row in rows]


def _names(rows: Rows, column: str) -> list[str | None]:
    try:
        return [as_name(row.get(column)) for row in rows]
    except InputError as error:
        raise InputError(f"has an invalid {column}. {error}") from None


def _check_columns(header: Sequence[str], extra_columns: str) -> None:
    if twice := sorted(name for name, count in Counter(header).items() if count > 1):
        raise InputError(f"has the column {listing(twice)} twice. Rename one of them.")
    if missing := [name for name in COLUMNS[:2] if name not in header]:
        if {*PREDICTED} <= {*header}:
            raise InputError(
                "holds categories that Sortal has predicted, not labels. Add a column label, filled where you are sure."
            )
        raise InputError(
            f"must have the columns file_name and label; missing: {listing(missing)}. "
            f"Its columns are: {listing(header, show=8) or 'none'}.{_meant(header, missing)}"
        )
    extra = [] if is_exported(header) else [name for name in header if name not in COLUMNS]
    if extra and extra_columns == "error":
        raise InputError(
            f"must only have the columns {', '.join(COLUMNS)}, got {len(extra):,} more: {listing(extra)}.",
            Remedy("rename or remove them"),
            Remedy("ignore them", extra_columns="ignore"),
        )


def _meant(header: Sequence[str], missing: Sequence[str]) -> str:
    """Suggest which columns to rename to those that are missing."""
    hints = []
    for name in missing:
        plain = {each: re.sub(r"[\s_-]", "", each.casefold()) for each in header if each not in COLUMNS}
        alike = [each for each, text in plain.items() if text in (name.replace("_", ""), *SYNONYMS[name])]
        if alike:
            hints.append(f"{listing(alike).replace(', ', ' or ')} to {name}")
    return f" Did you mean to rename {' and '.join(hints)}?" if hints else ""


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.") from error


def _is_exported_text(text: str) -> bool:
    """Tell whether the first line of a table names all columns of one that Sortal exported."""
    first = re.split(r"[\r\n]", text, maxsplit=1)[0]
    return all(name in first for name in EXPORTED)


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # line breaks stay as they are: cells may contain any
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"must be UTF-8 text; line {line:,} is not. Save it as UTF-8 (in Excel: CSV UTF-8).") from None


def _delimited(text: str, delimiters: str) -> tuple[list[str], Rows]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text, delimiters), strict=True)
    rows: Rows = []
    try:
        header = [name.strip() for name in next(reader, [])]
        for cells in reader:
            if not any(cells):
                continue  # an empty line, or the delimiters of one
            if len(cells) != len(header):
                wrong = f"got {len(cells)} in line {reader.line_num:,}"
                raise InputError(f"must have {plural(len(header), 'cell')} in every row, {wrong}.")
            rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise InputError(f"is damaged in line {reader.line_num:,}: {error}.") from None
    return header, rows


def _delimiter(text: str, delimiters: str) -> str:
    """Return the delimiter that yields most known columns; spreadsheets of some countries write semicolons."""
    first = re.split(r"[\r\n]", text, maxsplit=1)[0]

    def fit(delimiter: str) -> tuple[int, int]:
        names = {name.strip(' "') for name in first.split(delimiter)}
        return len(names & set(READ)), first.count(delimiter)

    return max(delimiters, key=fit)


def _json_lines(text: str) -> tuple[list[str], Rows]:
    rows: Rows = []
    header: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), start=1):  # JSON strings may contain other line separators
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_without_repeats)
        except KeyError as twice:
            raise InputError(f"has the key {twice} twice in line {number:,}.") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"has invalid JSON in line {number:,}: {error}.") from None
        if not isinstance(row, dict):
            raise InputError(f"must have one JSON object per line, got {line[:40]!r} in line {number:,}.")
        for column in READ:
            if isinstance(row.get(column), dict | list | bool):
                wrong = f"got {quoted(row[column], 100)} in line {number:,}"
                raise InputError(f"must have text or a number as {column}, {wrong}.")
        header |= dict.fromkeys(row)
        rows.append(row)
    return list(header), rows


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raise KeyError for a repeated key, which json would silently override."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise KeyError(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return row
