"""Tables of labels: CSV, TSV, JSON lines and Parquet, one row per image, columns `file_name`, `label` and `truth`."""

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args
from unicodedata import normalize

from sortal.errors import InputError, listing, quoted

COLUMNS = ("file_name", "label", "truth")
DELIMITERS = {".csv": ",;\t", ".tsv": "\t", ".tab": "\t"}  # the choice, by extension; the header decides
EXTENSIONS = (*DELIMITERS, ".jsonl", ".ndjson", ".parquet")
MISSING = ("nan", "NaN", "<NA>", "NaT", "--")  # "empty" in data frames and masked arrays, where it is no text
ExtraColumns = Literal["error", "ignore"]
KINDS = "CSV (.csv), TSV (.tsv), JSON lines (.jsonl) and Parquet (.parquet)"


@dataclass(frozen=True)
class Table:
    """Columns of equal length as they were written; `None` where a cell is empty or says −1."""

    path: Path
    file_name: Sequence[str]
    label: Sequence[str | None]
    truth: Sequence[str | None] | None


def read(path: Path, *, extra_columns: ExtraColumns = "error") -> Table:
    """The labels in a file, whose kind its extension tells."""
    if extra_columns not in get_args(ExtraColumns):
        raise InputError(f"extra_columns must be 'error' or 'ignore', got {extra_columns!r}.")
    if not os.path.isfile(path):
        what = "is not a file" if os.path.exists(path) else "does not exist"
        raise InputError(f"The table {str(path)!r} {what}.")
    kind = path.suffix.lower()
    if kind in DELIMITERS:
        header, rows = _delimited(path, DELIMITERS[kind])
    elif kind in (".jsonl", ".ndjson"):
        header, rows = _json_lines(path)
    elif kind == ".parquet":
        header, rows = _parquet(path)
    else:
        raise InputError(
            f"The table {str(path)!r} must be one of {KINDS}, got {kind or 'no extension'!r}. Save it as CSV in UTF-8."
        )
    _check_columns(path, header, extra_columns)
    names: list[str] = []
    for number, row in enumerate(rows, start=1):
        name = row.get("file_name")
        if not isinstance(name, str) or not name:
            raise InputError(f"The table {str(path)!r} needs a file_name in every row, got {name!r} in row {number:,}.")
        names.append(name)
    return Table(
        path=path,
        file_name=names,
        label=_names(path, rows, "label"),
        truth=_names(path, rows, "truth") if "truth" in header else None,
    )


def _names(path: Path, rows: Sequence[Mapping[str, object]], column: str) -> list[str | None]:
    try:
        return [as_name(row.get(column)) for row in rows]
    except InputError as error:
        raise InputError(f"The table {str(path)!r} has a {column} that is none. {error}") from None


def write(path: Path, table: Mapping[str, Sequence[str]]) -> None:
    """Write columns as CSV. Names are data: they are quoted where they must be, and nothing else is done to them."""
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)  # the minimum would leave "\r" bare
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def as_name(label: object) -> str | None:
    """A label as the name of a class, composed and without spaces around it; `None` where it is empty or −1."""
    if not isinstance(label, str):
        if label is None or str(label) in MISSING:
            return None
        if isinstance(label, bool) or not isinstance(label, Real | Decimal):
            raise InputError(f"A label must be text or a number, got {type(label).__name__} {quoted(label, 100)}.")
        if not isinstance(label, Integral | Decimal) and float(label).is_integer():
            label = int(float(label))  # a column of whole numbers with gaps becomes one of floats in a data frame
    name = normalize("NFC", str(label).strip())
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(f"A label must be text that can be written as UTF-8, got {quoted(name, 100)}.") from None
    return None if name in ("", "-1", "-1.0") else name


def _check_columns(path: Path, header: Sequence[str], extra_columns: str) -> None:
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(f"The table {str(path)!r} names the column {listing(twice)} twice. Give each its own name.")
    missing = [name for name in ("file_name", "label") if name not in header]
    if missing:
        raise InputError(
            f"The table {str(path)!r} must have the columns file_name and label; not there: {listing(missing)}. "
            f"Its columns are: {listing(header, show=8) or 'none'}."
        )
    extra = [name for name in header if name not in COLUMNS]
    if extra and extra_columns == "error":
        raise InputError(
            f"The table {str(path)!r} has unknown columns, {len(extra):,}: {listing(extra)}. Known are "
            f"{', '.join(COLUMNS)}. Rename or remove the others, or have them ignored (extra_columns='ignore')."
        )


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # and no new line changed: cells may hold any
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(
            f"The table {str(path)!r} must be UTF-8 text; line {line:,} is not. Save it as UTF-8 (in Excel: CSV UTF-8)."
        ) from None
    except OSError as error:
        raise InputError(f"The table {str(path)!r} cannot be read: {error.strerror}.") from error


def _delimited(path: Path, delimiters: str) -> tuple[list[str], list[Mapping[str, object]]]:
    text = _text(path)
    delimiter = _delimiter(text, delimiters)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Mapping[str, object]] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        for cells in reader:
            if not any(cells):
                continue  # an empty line, or what spreadsheets leave of one
            if len(cells) != len(header):
                raise InputError(
                    f"The table {str(path)!r} must have {len(header)} cells in every row, "
                    f"got {len(cells)} in line {reader.line_num:,}."
                )
            rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise InputError(f"The table {str(path)!r} is damaged in line {reader.line_num:,}: {error}.") from None
    return header, rows


def _delimiter(text: str, delimiters: str) -> str:
    """That which parts the header into most known columns; spreadsheets of some countries write semicolons."""
    first = re.split(r"[\r\n]", text, maxsplit=1)[0]

    def fit(delimiter: str) -> tuple[int, int]:
        names = {name.strip(' "') for name in first.split(delimiter)}
        return len(names & set(COLUMNS)), first.count(delimiter)

    return max(delimiters, key=fit)


def _json_lines(path: Path) -> tuple[list[str], list[Mapping[str, object]]]:
    rows: list[Mapping[str, object]] = []
    header: dict[str, None] = {}
    for number, line in _lines(_text(path)):
        try:
            row = json.loads(line, object_pairs_hook=_once)
        except KeyError as twice:
            raise InputError(f"The table {str(path)!r} names {twice} twice in line {number:,}.") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"The table {str(path)!r} has no JSON in line {number:,}: {error}.") from None
        if not isinstance(row, dict):
            raise InputError(
                f"The table {str(path)!r} must have one JSON object a line, got {line[:40]!r} in line {number:,}."
            )
        for column in COLUMNS:
            if isinstance(row.get(column), dict | list | bool):
                raise InputError(
                    f"The table {str(path)!r} must have text or a number as {column}, "
                    f"got {quoted(row[column], 100)} in line {number:,}."
                )
        header |= dict.fromkeys(row)
        rows.append(row)
    return list(header), rows


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose keys may not repeat: readers would take the last value without a word."""
    row: dict[str, Any] = {}
    for key, value in pairs:
        if key in row:
            raise KeyError(key)
        row[key] = value
    return row


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, numbered from 1. Only "\\n" ends one: JSON strings may hold other separators."""
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def _parquet(path: Path) -> tuple[list[str], list[Mapping[str, object]]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(
            f"Reading the table {str(path)!r} needs pyarrow: pip install 'sortal[parquet]', or save it as CSV."
        ) from None
    try:
        file = parquet.ParquetFile(path)
        header = list(file.schema_arrow.names)
        return header, file.read(columns=[name for name in header if name in COLUMNS]).to_pylist()
    except (ArrowException, OSError) as error:
        raise InputError(f"The table {str(path)!r} cannot be read as Parquet: {str(error).rstrip('.')}.") from None
