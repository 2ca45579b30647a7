"""Label tables: CSV, TSV, JSON lines or Parquet with the columns `file_name`, `label` and `truth`, a row per image.

Other columns are kept as they are. A table that Sortal exported is recognised by its columns; `exported` knows what in
it is a label.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from sortal.config import ExtraColumns
from sortal.errors import InputError, Remedy, listing, quoted
from sortal.images import exported, parquet_tables
from sortal.images.columns import GROUP_COLUMN, NEAR_DUPLICATES, NO_COLUMNS, Columns, unique_names
from sortal.system import csv_tables
from sortal.system.regular_files import read_regular

LABEL_COLUMNS = ("file_name", "label", "truth")
# What other tools call these columns, without case, spaces, dashes and underscores.
SYNONYMS = {
    "file_name": ("filename", "file", "image", "imagename", "imagefile", "imagepath", "path", "filepath", "photo"),
    "label": ("labels", "class", "classname", "classlabel", "category", "categoryname", "target", "tag", "species"),
}
DELIMITERS = {".csv": ",;\t", ".tsv": "\t", ".tab": "\t"}  # candidates by extension; the header decides
FOUND_GROUP = re.compile(rf"{NEAR_DUPLICATES} \d+")  # of an export; they are found again
TABLE_EXTENSIONS = (*DELIMITERS, ".jsonl", ".ndjson", ".parquet")

TableRows: TypeAlias = list[Mapping[str, object]]  # cells by column


@dataclass(frozen=True)
class LabelRows:
    """The columns of a table, of equal length; `None` for a cell that is empty or −1."""

    path: Path
    file_name: Sequence[str]
    label: Sequence[str | None]
    truth: Sequence[str | None] | None
    image_folder: Sequence[str] = ()  # in an exported table: ends of the paths of folders that names are relative to
    columns: Columns = NO_COLUMNS  # all others


def read(path: Path, *, extra_columns: ExtraColumns = "keep", by_id: bool = False) -> LabelRows:
    """Read a label table; its extension gives the format. With `by_id`, `id` may stand for `file_name`."""
    with _naming(path):
        header, rows = _cells(path, others=extra_columns != "ignore" or by_id)
        if by_id and "file_name" not in header and "id" in header:
            header = ["file_name" if name == "id" else name for name in header]
            rows = [{**row, "file_name": "" if row.get("id") is None else str(row["id"])} for row in rows]
        _check_columns(header, extra_columns)
        files, folders = _file_names(rows), list[str]()
        columns = NO_COLUMNS if extra_columns == "ignore" else _other_columns(header, rows)
        truth = [exported.class_in(row, "truth") for row in rows] if "truth" in header else None
        if not exported.is_exported(header):
            labels = [exported.class_in(row, "label") for row in rows]
            return LabelRows(path, files, labels, truth, columns=columns)
        label = [each.given for each in exported.statements(rows)]
        if truth:  # what a person has decided is true, as far as anyone knows
            truth = [own or known for own, known in zip(label, truth, strict=True)]
        if "image_folder" in header:
            folders = [str(row.get("image_folder") or "") for row in rows]
    return LabelRows(path, files, label, truth, folders, columns)


def read_exported(path: Path) -> list[exported.Statement]:
    """Return what the rows of a table that Sortal exported say."""
    with _naming(path):
        header, rows = _cells(path)
        if not exported.is_exported(header):
            raise InputError(
                f"must be one that `sortal export` wrote, with the columns {', '.join(exported.EXPORTED)}; "
                f"its columns are: {listing(header, show=8) or 'none'}."
            )
        _file_names(rows)
        return exported.statements(rows)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the subject, the table, to errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"The table {str(path)!r} {error.message}", *error.remedies) from error.__cause__


# Errors below lack their subject.


def _cells(path: Path, *, others: bool = False) -> tuple[list[str], TableRows]:
    """Return the names of the columns, and the rows as dictionaries."""
    if not os.path.isfile(path):
        raise InputError("is not a file." if os.path.exists(path) else "does not exist.")
    kind = path.suffix.lower()
    if kind not in TABLE_EXTENSIONS:
        kinds = "CSV (.csv), TSV (.tsv), JSON lines (.jsonl) and Parquet (.parquet)"
        raise InputError(f"must be one of {kinds}, got {kind or 'no extension'!r}. Save it as CSV in UTF-8.")
    if kind == ".parquet":
        return parquet_tables.read(path, exported.READ, LABEL_COLUMNS[1:], others=others)
    content = _content(path)
    return _delimited(content, DELIMITERS[kind]) if kind in DELIMITERS else _json_lines(_text(content))


def _meaningful(header: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that have a meaning; of a table that Sortal did not export, others may hold anything."""
    return exported.READ if exported.is_exported(header) else LABEL_COLUMNS


def _file_names(rows: TableRows) -> list[str]:
    for number, row in enumerate(rows, start=1):
        if not isinstance(name := row.get("file_name"), str) or not name:
            raise InputError(f"must have a file_name in each row, got {name!r} in row {number:,}.")
    return [str(row["file_name"]) for row in rows]


def _check_columns(header: Sequence[str], extra_columns: str) -> None:
    if missing := [name for name in LABEL_COLUMNS[:2] if name not in header]:
        if {*exported.PREDICTED} <= {*header}:
            raise InputError(
                "holds categories that Sortal has predicted, not labels. Add a column label, filled where you are sure."
            )
        raise InputError(
            f"must have the columns file_name and label; missing: {listing(missing)}. "
            f"Its columns are: {listing(header, show=8) or 'none'}.{rename_hint(header, missing)}"
        )
    known = (*LABEL_COLUMNS, GROUP_COLUMN)
    extra = [] if exported.is_exported(header) else [name for name in header if name not in known]
    if extra and extra_columns == "error":
        raise InputError(
            f"must only have the columns {', '.join(known)}, got {len(extra):,} more: {listing(extra)}.",
            Remedy("rename or remove them"),
            Remedy("keep them", extra_columns="keep"),
        )


def _other_columns(header: Sequence[str], rows: TableRows) -> Columns:
    """Return the columns that Sortal gives no meaning; those of an earlier export that it computed are left out."""
    own = {*LABEL_COLUMNS} if not exported.is_exported(header) else {*exported.RESERVED_COLUMNS}
    cells = {name: [row.get(name) for row in rows] for name in header if name not in own}
    if exported.is_exported(header) and GROUP_COLUMN in cells:
        given = [None if FOUND_GROUP.fullmatch(str(cell)) else cell for cell in cells[GROUP_COLUMN]]
        cells = {**cells, GROUP_COLUMN: given} if any(given) else {k: v for k, v in cells.items() if k != GROUP_COLUMN}
    return Columns.infer([*cells], cells.values(), exported.RESERVED_COLUMNS)


def rename_hint(header: Sequence[str], missing: Sequence[str]) -> str:
    """Suggest which columns to rename to those that are missing."""
    hints = []
    for name in missing:
        others = [each for each in header if each not in LABEL_COLUMNS]
        alike = [each for each in others if plain_name(each) in (plain_name(name), *SYNONYMS[name])]
        if alike:
            hints.append(f"{listing(alike).replace(', ', ' or ')} to {name}")
    return f" Did you mean to rename {' and '.join(hints)}?" if hints else ""


def plain_name(column: str) -> str:
    """Return the name of a column without case, spaces, dashes and underscores."""
    return re.sub(r"[\s_-]", "", column.casefold())


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}.") from error


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")  # line breaks stay as they are: cells may contain any
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"must be UTF-8 text; line {line:,} is not. Save it as UTF-8 (in Excel: CSV UTF-8).") from None


def _delimited(content: bytes, delimiters: str) -> tuple[list[str], TableRows]:
    raw = content.decode("utf-8-sig", "surrogateescape")
    first = re.split(r"[\r\n]", raw, maxsplit=1)[0]

    def fit(delimiter: str) -> tuple[int, int]:
        """Count the known columns that a delimiter yields; spreadsheets of some countries write semicolons."""
        return len({name.strip(' "') for name in first.split(delimiter)} & {*exported.READ}), first.count(delimiter)

    # Sortal exports file names whatever their bytes; other tables must be UTF-8.
    text = raw if all(name in first for name in exported.EXPORTED) else _text(content)
    try:
        header, rows = csv_tables.parse(text, max(delimiters, key=fit))
    except ValueError as error:
        raise InputError(f"{error}.") from None
    names = [name.strip() for name in header]
    if exported.is_exported(names):
        names, *rows = ([csv_tables.unescape_cell(cell) for cell in row] for row in (names, *rows))
    if twice := sorted(name for name, count in Counter(names).items() if count > 1 and name in _meaningful(names)):
        raise InputError(f"has the column {listing(twice)} twice. Rename one of them.")
    # Delimiters at the end of every line make columns without a name and without a cell.
    filled = [at for at, name in enumerate(names) if name or any(row[at] for row in rows)]
    for at, name in enumerate(names):
        longest = max((len(row[at]) for row in rows), default=0) if name in _meaningful(names) else 0
        if longest > parquet_tables.LONGEST_CELL:
            most = parquet_tables.LONGEST_CELL
            raise InputError(f"must have cells of at most {most:,} characters, got a {name} of {longest:,}.")
    names = unique_names([names[at] for at in filled])
    return names, [{name: row[at] for name, at in zip(names, filled, strict=True)} for row in rows if any(row)]


def _json_lines(text: str) -> tuple[list[str], TableRows]:
    rows: TableRows = []
    header, lines = dict[str, None](), list[int]()
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
        header |= dict.fromkeys(row)
        rows.append(row)
        lines.append(number)
    for column in _meaningful([*header]):
        for number, row in zip(lines, rows, strict=True):
            if isinstance(cell := row.get(column), dict | list | bool):
                wrong = f"got {quoted(cell, 100)} in line {number:,}"
                raise InputError(f"must have text or a number as {column}, {wrong}.")
    return list(header), rows


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; raise KeyError for a repeated key, which json would silently override."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise KeyError(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return row
