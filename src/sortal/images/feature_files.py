"""Files of feature vectors: Parquet, CSV, TSV, .npz, .npy and safetensors, with names and labels where they have any.

The features are a column of lists, or a numbered column per dimension. Parquet is read in a process of its own.
"""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from sortal.errors import InputError, listing
from sortal.images import exported, label_tables, parquet_tables
from sortal.images.columns import NO_COLUMNS, Columns
from sortal.images.store.vector_rows import VectorMatrix
from sortal.system import csv_tables
from sortal.system.gathering import gathered
from sortal.system.regular_files import open_regular, read_regular
from sortal.system.text import plural
from sortal.system.workers import Conversation, JsonObject, PathOrPixels

FEATURE_COLUMNS = ("features", "feature", "embedding", "embeddings", "vector", "vectors")
# Columns that say something else of a row, and what else they are called.
ROW_COLUMNS = {
    "file_name": ("file_name", "id", "files", "file", "path", "ids"),
    "label": ("label", "labels"),
    "truth": ("truth",),
}
FEATURE_EXTENSIONS = (".parquet", ".csv", ".tsv", ".npz", ".npy", ".safetensors")
# Of numbered columns, without case, spaces, dashes and underscores: what is taken where there are others.
FEATURE_PREFIXES = ("", "d", "dim", "e", "emb", "f", "feat", "v", "x", *FEATURE_COLUMNS)
FEWEST_DIMENSIONS = 2  # numbered columns that are taken for features
EXPORTED_EMBEDDINGS = ("id", "category", "status", "confidence")  # columns by which an export is recognised
BROKEN = "it is damaged, claims more than it has, or holds Python objects"
LONGEST_VECTOR = 2**16  # numbers
MOST_ROWS_AT_ONCE = 512
# Bytes that any file may expand to; a larger one so many times its own, as features that are mostly 0 shrink well.
LITTLE_FEATURES, FEATURES_RATIO = 2**28, 256


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """The rows of a file: features (n, d), and what else it says of each, None where it does not."""

    features: VectorMatrix
    file_name: Sequence[object] | None = None
    label: Sequence[object] | None = None
    truth: Sequence[object] | None = None
    columns: Columns = NO_COLUMNS  # all others
    hint: str = ""  # which of these may be meant as names and labels


def read_feature_file(path: Path) -> FeatureRows:
    """Read a file of feature vectors; its extension gives the format."""
    readers = {".parquet": _parquet, ".npz": _npz, ".npy": _npy, ".safetensors": _safetensors}
    kind = path.suffix.lower()
    try:
        if not os.path.isfile(path):
            raise InputError("is not a file." if os.path.exists(path) else "does not exist.")
        if kind not in FEATURE_EXTENSIONS:
            raise InputError(f"must be one of {', '.join(FEATURE_EXTENSIONS)}, got {kind or 'no extension'!r}.")
        return readers.get(kind, _delimited)(path)
    except InputError as error:
        raise InputError(f"The features {str(path)!r} {error.message.removeprefix('The features ')}") from error
    except OSError as error:
        raise InputError(f"The features {str(path)!r} cannot be read: {error.strerror or error}.") from error


# Errors below lack their subject.


def as_matrix(x: Any, what: str = "") -> VectorMatrix:
    """Return an array of numbers as float32 (n, d)."""
    if hasattr(x, "detach"):  # a tensor, which may be on a GPU, or of a type that NumPy lacks
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() else x
    try:
        found = np.asarray(x)
    except ValueError:  # rows of unequal lengths
        raise InputError(f"{what}must be rows of equal length.") from None
    if found.dtype.kind not in "fiu" or found.ndim != 2 or 0 in found.shape:
        got = f"{found.dtype} of shape {found.shape}"
        raise InputError(f"{what}must be numbers of shape (rows, dimensions), got {got}.")
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, which is an error later
        return np.ascontiguousarray(found, dtype=np.float32)


def _npy(path: Path) -> FeatureRows:
    with open_regular(path) as file:
        try:
            found = np.load(file, allow_pickle=False)
        except Exception as error:  # NumPy raises many kinds for a damaged file
            raise InputError(f"must be an array of numbers, saved by numpy.save; {BROKEN}.") from error
    return FeatureRows(as_matrix(found))


def _npz(path: Path) -> FeatureRows:
    with open_regular(path) as file:
        try:
            with ZipFile(file) as packed:
                claimed = sum(each.file_size for each in packed.infolist())
            size = os.fstat(file.fileno()).st_size
            parquet_tables.check_claim(0, claimed, size, LITTLE_FEATURES, FEATURES_RATIO)
            file.seek(0)
            held = np.load(file, allow_pickle=False)
            arrays = {name: held[name] for name in held.files}
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"must be arrays of numbers and text, saved by numpy.savez; {BROKEN}.") from error
    return _of_arrays(arrays)


def _safetensors(path: Path) -> FeatureRows:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as held:
            return _of_arrays({name: held.get_tensor(name) for name in held.keys()})  # noqa: SIM118
    except (SafetensorError, AttributeError, TypeError, KeyError) as error:  # of types that NumPy lacks, too
        raise InputError(f"must be safetensors of a type that NumPy has: {error}. Save them as float32.") from error


def _of_arrays(arrays: Mapping[str, NDArray[Any]]) -> FeatureRows:
    matrices = [name for name, value in arrays.items() if value.ndim == 2 and value.dtype.kind in "fiu"]
    named = [name for name in matrices if name.lower() in FEATURE_COLUMNS] or matrices
    if len(named) != 1:
        raise InputError(
            f"must have one array of shape (rows, dimensions), or one that is called features; it has "
            f"{listing(sorted(arrays)) or 'none'}."
        )
    n = len(arrays[named[0]])
    for name in meant(arrays).values():
        if arrays[name].shape != (n,):
            shape = arrays[name].shape
            raise InputError(f"must have a {name} for each of {plural(n, 'row')}, got an array of shape {shape}.")
    listed = {name: _cells(name, values) for name, values in arrays.items() if values.shape == (n,)}
    return _rows(as_matrix(arrays[named[0]]), listed)


def _cells(name: str, values: NDArray[Any]) -> list[object]:
    try:
        cells: list[object] = (np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values).tolist()
    except UnicodeDecodeError:
        raise InputError(f"must have UTF-8 text as {name}.") from None
    return cells


def meant(header: Collection[str]) -> dict[str, str]:
    """Return the columns that name or label rows, by what Sortal calls them, whatever their case."""
    plain = {label_tables.plain_name(each): each for each in reversed([*header])}
    called = {
        name: next((plain[each] for each in map(label_tables.plain_name, names) if each in plain), None)
        for name, names in ROW_COLUMNS.items()
    }
    return {name: own for name, own in called.items() if own is not None}


def _rows(features: VectorMatrix, columns: Mapping[str, Sequence[object]]) -> FeatureRows:
    """Return rows of features and of the columns beside them; those that Sortal has exported are not kept."""
    known = meant(columns)
    left_out = {*known.values(), *(exported.RESERVED_COLUMNS if {*EXPORTED_EMBEDDINGS} <= {*columns} else ())}
    others = [name for name in columns if name not in left_out]
    kept = Columns.infer(others, (columns[name] for name in others), exported.RESERVED_COLUMNS)
    hint = label_tables.rename_hint([*columns], [name for name in ("file_name", "label") if name not in known])
    return FeatureRows(features, **{name: columns[own] for name, own in known.items()}, columns=kept, hint=hint)


def numbered_columns(names: Sequence[str]) -> list[str]:
    """Return the columns, one per dimension, in the order of their numbers: f0, f1, ... or 0, 1, ..."""
    split = ((re.fullmatch(r"(.*?)(\d{1,6})", name.strip()), name) for name in names)
    groups = gathered((each[1], (int(each[2]), name)) for each, name in split if each)
    found = {prefix: sorted(group) for prefix, group in groups.items() if _is_counted(group)}
    usual = [prefix for prefix in found if label_tables.plain_name(prefix) in FEATURE_PREFIXES]
    chosen = usual if len(usual) == 1 else [*found]
    if len(chosen) > 1:
        first = listing([found[prefix][0][1] for prefix in chosen])
        raise InputError(f"has several groups of numbered columns, from {first}. Call those of the features f0, f1 ...")
    if not chosen:
        raise InputError(
            f"must have a column of lists called features, or a numbered column per dimension, such as f0, f1, ...; "
            f"its columns are: {listing(names, show=8) or 'none'}."
        )
    return [name for _, name in found[chosen[0]]]


def _is_counted(group: Sequence[tuple[int, str]]) -> bool:
    """Tell whether columns are numbered without a gap."""
    numbers = sorted(number for number, _ in group)
    return len(group) >= FEWEST_DIMENSIONS and numbers == [*range(numbers[0], numbers[0] + len(numbers))]


def _delimited(path: Path) -> FeatureRows:
    try:
        text = read_regular(path).decode("utf-8-sig")
        first = text.split("\n", 1)[0]
        header, cells = csv_tables.parse(text, "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count))
    except UnicodeDecodeError:
        raise InputError("must be UTF-8 text.") from None
    except ValueError as error:
        raise InputError(f"{error}.") from None
    columns = dict(zip(header, zip(*cells, strict=True), strict=True)) if cells else dict.fromkeys(header, ())
    if len(columns) < len(header):
        raise InputError("has two columns of the same name. Rename one of them.")
    lists = [name for name in header if name.lower() in FEATURE_COLUMNS]
    rows: list[Sequence[str]]
    if lists:
        rows = [cell.strip("[]() ").replace(",", " ").split() for cell in columns[lists[0]]]
    else:
        rows = [*zip(*(columns[name] for name in numbered_columns(header)), strict=True)]
    features = {*(lists[:1] or numbered_columns(header))}
    others = {name: cells for name, cells in columns.items() if name not in features}
    return _rows(_numbers(rows), {name: [*map(csv_tables.unescape_cell, cells)] for name, cells in others.items()})


def _numbers(rows: Sequence[Sequence[str]]) -> VectorMatrix:
    """Return rows of text as numbers; the first that cannot be is named."""
    if not rows:
        raise InputError("must have at least one row, got none.")
    found = np.empty((len(rows), len(rows[0])), dtype=np.float32)
    for number, row in enumerate(rows, start=1):
        check_width(number, len(row), found.shape[1])
        try:
            found[number - 1] = np.array(row, dtype=np.float64)
        except ValueError:
            raise InputError(f"must have numbers as features, unlike in row {number:,}.") from None
    return found


def check_width(number: int, got: int, width: int) -> None:
    """Refuse a row whose vector has another length than that of the first."""
    if not 0 < got <= LONGEST_VECTOR:
        raise InputError(f"must have 1 to {LONGEST_VECTOR:,} features in each row, got {got:,} in row {number:,}.")
    if got != width:
        raise InputError(f"must have rows of equal length; the first has {width:,} features, row {number:,} {got:,}.")


def _parquet(path: Path) -> FeatureRows:
    cells: dict[str, list[object]] = {}

    def collect(_: int, batch: JsonObject) -> JsonObject:
        for name, column in batch["columns"].items():
            cells.setdefault(name, []).extend(column)
        return {}

    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        numbers = Path(folder) / "features.f32"
        options = {"out": str(numbers)}
        width = parquet_tables.read_apart(read_parquet, path, options, collect, "save it as .npz or CSV")
        found = np.fromfile(numbers, dtype=np.float32)
    if not found.size:
        raise InputError("must have at least one row, got none.")
    return _rows(found.reshape(-1, int(width)), cells)


def read_parquet(path: PathOrPixels, options: JsonObject) -> Conversation:
    """In a worker: write the features as float32 to a file, send the other columns in batches; return the width."""
    return parquet_tables.within_limits(_batches(str(path), options), options)


def _batches(path: str, options: JsonObject) -> Any:
    from pyarrow import parquet, types

    with open_regular(path) as opened, open(options["out"], "wb") as out:
        size = os.fstat(opened.fileno()).st_size
        file = parquet.ParquetFile(opened, pre_buffer=False)
        schema = file.schema_arrow
        kinds = {field.name: field.type for field in schema}
        if len(kinds) < len(schema.names):
            raise InputError("has two columns of the same name. Rename one of them.")
        lists = [name for name, kind in kinds.items() if _is_list(kind)]
        lists = [name for name in lists if name.lower() in FEATURE_COLUMNS] or lists
        if len(lists) > 1:
            raise InputError(f"has several columns of lists: {listing(lists)}. Call the features features.")
        numeric = [name for name, kind in kinds.items() if types.is_integer(kind) or types.is_floating(kind)]
        features = lists or numbered_columns(numeric)
        others = [name for name, kind in kinds.items() if name not in features and parquet_tables.is_value(kind)]
        rows = sent = width = 0
        for batch in file.iter_batches(MOST_ROWS_AT_ONCE, columns=[*features, *others], use_threads=False):
            x = _listed(batch.column(lists[0]), rows) if lists else _side_by_side(batch, features, rows)
            width = width or x.shape[1]
            check_width(rows + 1, x.shape[1], width)
            needed = {*meant(others).values()}
            cells = {name: parquet_tables.cells_of(batch.column(name), shorten=name not in needed) for name in others}
            rows += len(x)
            sent += x.nbytes + sum(
                len(cell) if isinstance(cell, str) else 8 for each in cells.values() for cell in each
            )
            parquet_tables.check_claim(rows, sent, size, LITTLE_FEATURES, FEATURES_RATIO)
            out.write(np.ascontiguousarray(x).data)
            yield {"columns": json.loads(json.dumps(cells, default=str))}
    return width


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _listed(column: Any, before: int) -> VectorMatrix:
    """Return the lists of a batch, after so many rows, as (rows, width)."""
    from pyarrow import types

    if column.null_count:
        raise InputError(
            f"must have features in each row, got none in row {before + column.is_null().index(True).as_py() + 1:,}."
        )
    lengths = np.asarray([len(each) for each in column])
    for at in np.flatnonzero(lengths != lengths[0])[:1]:
        check_width(before + int(at) + 1, int(lengths[at]), int(lengths[0]))
    values = column.flatten()
    if not (types.is_integer(values.type) or types.is_floating(values.type)):
        raise InputError(f"must have numbers as features, got {values.type} in row {before + 1:,}.")
    check_width(before + 1, int(lengths[0]), int(lengths[0]))
    return values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(lengths), -1)


def _side_by_side(batch: Any, names: Sequence[str], before: int) -> VectorMatrix:
    check_width(before + 1, len(names), len(names))
    columns = [batch.column(name).to_numpy(zero_copy_only=False).astype(np.float32) for name in names]
    return np.stack(columns, axis=1)
