"""Sets of feature vectors: named, labelled and checked rows, as an ImageSet whose pictures are only looked at."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sortal.config import Reading
from sortal.errors import InputError, Remedy, listing
from sortal.images import label_tables
from sortal.images.class_names import as_name
from sortal.images.columns import NO_COLUMNS
from sortal.images.feature_files import FeatureRows, as_matrix, read_feature_file
from sortal.images.image_set import ImageSet, image_set
from sortal.images.reading import PerImage, check_once, label_column, settled
from sortal.images.store.vector_rows import VectorMatrix, digests_of, row_lengths
from sortal.system.text import plural

UNIT_TOLERANCE = 1e-2  # by which the length of a vector may differ from 1 and still count as normalised


def read_features(
    path: Path,
    *,
    folder: Path | None = None,
    labels: Path | None = None,
    reading: Reading = Reading(),
    learned: bool = False,
) -> ImageSet:
    """Read a file of feature vectors. Names of rows are files in `folder`, by default that of the file, if these exist.

    `labels` is a table: of the names in the file, or where it has none, of its rows in their order. If the labels are
    to be `learned`, columns that may be meant as names or labels but are called something else are refused.
    """
    rows = read_feature_file(path)
    what = f"The features {str(path)!r}"
    if learned and labels is None and rows.hint and reading.extra_columns == "keep":
        missing = "names" if rows.label is not None else "labels" if rows.file_name is not None else "names or labels"
        raise InputError(
            f"{what} have no {missing}.{rows.hint}",
            Remedy("leave out columns that are neither", extra_columns="ignore"),
        )
    if labels is not None:
        rows = _with_table(rows, what, labels, reading)
    return vector_set(rows, what, folder or path.parent, reading)


def features_in_memory(
    features: object,
    *,
    files: PerImage | None = None,
    labels: PerImage | None = None,
    reading: Reading = Reading(),
) -> ImageSet:
    """Return an array of feature vectors (n, d) as a set; names of rows are files, if there are such."""
    x = as_matrix(features, "The features ")
    names = None
    if files is not None:
        names = [os.fspath(each) if isinstance(each, str | os.PathLike) else str(each) for each in files]
        if len(names) != len(x):
            raise InputError(f"files must be as many as the rows of features, {len(x):,}, got {len(names):,}.")
    given = None if labels is None else label_column("labels", labels, len(x))
    return vector_set(FeatureRows(x, names, given), "The features", None, reading)


def vector_set(rows: FeatureRows, what: str, folder: Path | None, reading: Reading) -> ImageSet:
    """Check rows of features, which errors call `what`, and return them as a set; pictures may be in a folder alone."""
    n = len(rows.features)
    files = _names(rows, what)
    if rows.columns.each and reading.extra_columns == "error":
        raise InputError(
            f"{what} must only have names, labels and features, got other columns: {listing(rows.columns.names)}.",
            Remedy("keep them", extra_columns="keep"),
            Remedy("ignore them", extra_columns="ignore"),
        )
    _check_numbers(rows.features, files, what)
    label, truth = (_classes(column, what, reading) for column in (rows.label, rows.truth))
    return image_set(
        files,
        paths=[os.path.abspath(file) for file in files] if folder is None else _pictures(files, folder),
        labels=label or [None] * n,
        truth=truth,
        features=rows.features,
        columns=NO_COLUMNS if reading.extra_columns == "ignore" else rows.columns,
    )


def _pictures(files: Sequence[str], folder: Path) -> list[str]:
    """Return the path of each row's picture; "" if its name, which anyone may have written, leads out of the folder."""
    homes = tuple(os.path.join(resolve(folder), "") for resolve in (os.path.abspath, os.path.realpath))

    def path(file: str) -> str:
        found = os.path.join(folder, file)
        climbs = ".." in file.replace("\\", "/").split("/")  # wherever a link before it leads
        return found if os.path.abspath(found).startswith(homes) and not climbs else ""

    return [*map(path, files)]


def _names(rows: FeatureRows, what: str) -> list[str]:
    n = len(rows.features)
    if rows.file_name is None:
        digits = len(str(n))
        return [f"row {number:0{digits}}" for number in range(1, n + 1)]
    files = ["" if each is None else str(each) for each in rows.file_name]
    for number, file in enumerate(files, start=1):
        if not file:
            raise InputError(f"{what} must have a name in each row, got none in row {number:,}.")
    check_once(what, files, [None] * n)
    return files


def _classes(column: Sequence[object] | None, what: str, reading: Reading) -> list[str | None] | None:
    if column is None:
        return None
    try:
        return settled([as_name(each) for each in column], reading.placeholders)
    except InputError as error:
        raise InputError(f"{what}: {error.message}", *error.remedies) from None


def _check_numbers(x: VectorMatrix, files: Sequence[str], what: str) -> None:
    """Refuse vectors that have no direction, and name their rows."""
    wrong = (
        (~np.isfinite(x).all(axis=1), "must be finite", "NaN or infinity"),
        (~x.any(axis=1), "must not be 0 in every dimension", "0 alone"),
    )
    for mask, rule, got in wrong:
        if len(bad := np.flatnonzero(mask)):
            named = listing([f"{row + 1:,} ({files[row]})" for row in bad.tolist()])
            raise InputError(
                f"{what} {rule}, got {got} in {plural(len(bad), 'row')}: {named}. Correct or leave out "
                f"{'this row' if len(bad) == 1 else 'these rows'}."
            )


def check_features_differ(images: ImageSet) -> None:
    """Refuse vectors that are all equal, among which there is nothing to find."""
    x = images.features
    if x is not None and len(x) > 1 and (x == x[0]).all():
        raise InputError(f"The features must differ, but all of {plural(len(x), 'row')} are equal.")


def _with_table(rows: FeatureRows, what: str, labels: Path, reading: Reading) -> FeatureRows:
    """Return the rows with labels from a table."""
    table = label_tables.read(labels, extra_columns=reading.extra_columns, by_id=True)
    n = len(rows.features)
    if rows.file_name is None:
        if len(table.file_name) != n:
            raise InputError(
                f"The table {str(labels)!r} must have a row for each of {plural(n, 'vector')}, in their order, "
                f"got {len(table.file_name):,}."
            )
        columns = rows.columns.beside(*table.columns.each)
        return FeatureRows(rows.features, table.file_name, table.label, table.truth, columns)
    files = [str(each) for each in rows.file_name]
    check_once(f"The table {str(labels)!r}", table.file_name, table.label)
    known = {*files}
    if lost := [name for name in table.file_name if name not in known]:
        raise InputError(
            f"Every row of {str(labels)!r} must name a row of the features; these do not: {listing(lost)}."
        )
    at = {name: row for row, name in enumerate(table.file_name)}
    if (rest := [name for name in files if name not in at]) and reading.unlisted == "error":
        raise InputError(
            f"{what} must have their labels in {str(labels)!r}; {plural(len(rest), 'row has', 'rows have')} none: "
            f"{listing(rest)}.",
            Remedy("treat rows without one as unlabelled", unlisted="unlabelled"),
            Remedy("leave them out", unlisted="ignore"),
        )
    kept = [row for row, name in enumerate(files) if name in at or reading.unlisted != "ignore"]
    names = [files[row] for row in kept]

    def column(values: Sequence[str | None]) -> list[str | None]:
        return [values[at[name]] if name in at else None for name in names]

    truth = None if table.truth is None else column(table.truth)
    more = table.columns.followed(len(at), NO_COLUMNS, 1).take(at.get(name, len(at)) for name in names)
    columns = rows.columns.take(kept).beside(*more.each)
    return FeatureRows(rows.features[kept], names, column(table.label), truth, columns)


def feature_notes(images: ImageSet) -> list[str]:
    """Say what is unusual about the vectors of a set."""
    x = images.features
    assert x is not None
    notes = []
    lengths = row_lengths(x)
    if (np.abs(lengths - 1) > UNIT_TOLERANCE).any():
        shortest, longest = int(lengths.argmin()), int(lengths.argmax())
        notes.append(
            f"Features are compared by their direction alone; their lengths are from {lengths[shortest]:.3g} (row "
            f"{shortest + 1:,}, {images.files[shortest]}) to {lengths[longest]:.3g} (row {longest + 1:,}, "
            f"{images.files[longest]})."
        )
    constant = np.flatnonzero((x == x[0]).all(axis=0))
    if len(constant):
        which = listing([str(each) for each in constant.tolist()])
        notes.append(f"{plural(len(constant), 'dimension is', 'dimensions are')} the same in every row: {which}.")
    copies = _copies(images.files, digests_of(x))
    return [*notes, copies] if copies else notes


def _copies(files: Sequence[str], digests: NDArray[np.bytes_]) -> str:
    _, first, counts = np.unique(digests, return_index=True, return_counts=True)
    several = first[counts > 1]
    if not len(several):
        return ""
    named = listing([f"{files[row]} (row {row + 1:,})" for row in np.sort(several).tolist()])
    copies = plural(int(counts.sum() - len(counts)), "row has", "rows have")
    return f"{copies} the same features as another, and will be in one category with it; the first of each are {named}."
