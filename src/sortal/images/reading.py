"""Reading images and their labels from a folder, from a folder and a table, or from a list."""

import os
import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import normalize

from numpy.typing import NDArray

from sortal.config import UNLABELLED_FOLDER, Reading, from_keywords
from sortal.errors import InputError, Remedy, listing
from sortal.images import exported, label_tables
from sortal.images.class_names import as_name
from sortal.images.columns import NO_COLUMNS, Columns
from sortal.images.exif import with_exif
from sortal.images.folders import EXTENSIONS, apart, are_folders, common_folder, find, unread_pictures
from sortal.images.image_set import ImageSet, image_set
from sortal.system.files import same_file
from sortal.system.gathering import gathered
from sortal.system.text import plural

PerImage: TypeAlias = Sequence[Any] | NDArray[Any]  # one entry for each image
ClassNames: TypeAlias = list[str | None]  # one for each image; None if it has none
# Names of classes, in any case, that more likely say that an image has none.
PLACEHOLDERS = frozenset({"unknown", "unlabelled", "unlabeled", "unsorted", "undefined", "tbd", "todo", "no label"})
PLACEHOLDERS |= {"none", "null", "nil", "nan", "na", "n.a.", "n/a", "-", "--", "?", "??", "???"}


def read_images(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    labels: str | os.PathLike[str] | PerImage | None = None,
    truth: PerImage | None = None,
    need_labels: bool = True,
    **reading: Any,
) -> ImageSet:
    """Read images and their labels from `source`: folders, folders and a table, or a list of files.

    A folder alone: each subfolder is a class; images in the subfolder `unlabelled` and in the folder itself have no
    label, and with `folders="ignore"` no image has one; in a folder that Sortal exported, `folders="reviewed"` labels
    what a person has decided. A folder and a table (`labels` is its path): the table lists the images by relative path
    with their labels; `unlisted` decides about images it does not list. Its other columns are in `ImageSet.columns`,
    unless `extra_columns` is "ignore"; images with the same text in the column `group` belong together. Several
    folders, as a list, are read like one; names are then relative to the folder that all of them are in. A list of
    files: `labels` and `truth` are lists of the same length. Everywhere, `placeholders` decides about labels such as
    "unknown", `exif` adds columns with time, camera and position, and `group_by_time` groups images by that time.

    Rows are in the order of the table or list, else sorted by path. `need_labels=False` allows a set without labels.
    `reading` is the settings of `sortal.config.Reading`.

    >>> images = sortal.read_images("photos", labels="labels.csv")  # doctest: +SKIP
    """
    (how,) = from_keywords(reading, Reading)
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source):
            raise InputError("The image folder must not be empty, got ''. Use '.' for the current folder.")
        if truth is not None:
            raise InputError("truth requires a list of images; for a folder it is a column of the table.")
        images = _from_folders([Path(source)], labels, how)
    elif are_folders(source := [*source]):
        if truth is not None:
            raise InputError("truth requires a list of images; for folders it is a column of the table.")
        images = _from_folders(apart(source), labels, how)
    else:
        images = _from_list(source, labels, truth, how)
    if how.exif or how.group_by_time is not None:
        more = with_exif(images, keep=how.exif, within=how.group_by_time)
        images = replace(images, columns=images.columns.beside(*more))
    if need_labels and not images.classes:
        tables = [
            name for name in images.ignored if "/" not in name and name.lower().endswith(label_tables.TABLE_EXTENSIONS)
        ]
        advice = "Put the images of a class into a folder named after it, or pass a table of labels."
        if tables:
            advice = f"Pass a table of labels; the folder contains {listing(tables)}."
        raise InputError(f"At least one image must be labelled; none of {len(images):,} is. {advice}")
    return images


def _from_folders(folders: Sequence[Path], labels: object, how: Reading) -> ImageSet:
    """Read one folder, or several, whose images then have names relative to the folder that all of them are in."""
    base = Path(common_folder(folders)) if len(folders) > 1 else folders[0]
    inner = (os.path.relpath(os.path.abspath(each), base).replace(os.sep, "/") for each in folders)
    prefixes = [""] if len(folders) == 1 else [f"{name}/" for name in inner]
    found = [find(each) for each in folders]
    names, others = (
        [prefix + name for prefix, each in zip(prefixes, found, strict=True) for name in each[part]] for part in (0, 1)
    )
    if labels is None:
        own, columns = _labels_of(folders, [each for each, _ in found], how), NO_COLUMNS
        if how.folders == "reviewed":
            others = [name for name in others if name not in {prefix + exported.INDEX_TABLE for prefix in prefixes}]
            columns = _columns_of(folders, [each for each, _ in found], how)
        paths = [os.path.join(base, name) for name in names]
        images = image_set(names, paths=paths, labels=settled(own, how.placeholders), columns=columns, ignored=others)
    elif isinstance(labels, str | os.PathLike):
        table = label_tables.read(Path(labels), extra_columns=how.extra_columns)
        images = _from_table(base, prefixes, names, others, table, how)
    else:
        kind = type(labels).__name__
        raise InputError(f"labels must be the path of a table if the images are a folder, got {kind}.")
    if not images.files:
        raise InputError(
            f"The folder {listing(list(map(str, folders)))} must contain at least one image "
            f"({', '.join(sorted(EXTENSIONS))}), got none"
            f"{f', only {listing(images.ignored)}' if images.ignored else ''}."
            f"{''.join(f' {text}' for text in unread_pictures(images.ignored))}"
        )
    return images


def _labels_of(folders: Sequence[Path], found: Sequence[Sequence[str]], how: Reading) -> ClassNames:
    """Return the labels that the folders give the files found in each of them."""
    for folder in folders:
        exported.check_meaning(folder, how.folders)
    if how.folders == "reviewed":
        return [
            label
            for folder, files in zip(folders, found, strict=True)
            for label in exported.labels_of(files, _index_of(folder))
        ]
    files = [name for names in found for name in names]
    return _folder_names(folders, files, how.unlabelled, are_classes=how.folders == "classes")


def _index_of(folder: Path) -> list[exported.Statement]:
    """Read the index of a folder that Sortal exported."""
    path = folder / exported.INDEX_TABLE
    if not path.is_file():
        raise InputError(
            f"{str(path)!r} must be there to say which images were labelled or reviewed, but it is not.",
            Remedy("export the run again"),
            exported.NO_LABELS,
        )
    return label_tables.read_exported(path)


def _columns_of(folders: Sequence[Path], found: Sequence[Sequence[str]], how: Reading) -> Columns:
    """Return the user's columns in the indices of exported folders; files that were moved are known by their names."""
    columns, n = NO_COLUMNS, 0
    for folder, files in zip(folders, found, strict=True):
        index = label_tables.read(folder / exported.INDEX_TABLE, extra_columns=how.extra_columns)
        none = len(index.file_name)
        row_of = {name: row for row, name in enumerate(index.file_name)}
        names, there = list(map(posixpath.basename, index.file_name)), {*files}
        often = Counter(names)
        moved = {names[row]: row for file, row in row_of.items() if file not in there and often[names[row]] == 1}
        rows = [row_of.get(file, moved.get(posixpath.basename(file), none)) for file in files]
        own = index.columns.followed(none, NO_COLUMNS, 1).take(rows)
        columns, n = columns.followed(n, own, len(files)), n + len(files)
    return columns


def _folder_names(folders: Sequence[Path], files: Sequence[str], unlabelled: str, *, are_classes: bool) -> ClassNames:
    """Return the folder that each file is in; None for unlabelled images."""
    within = [normalize("NFC", name.partition("/")[0]) if "/" in name and are_classes else None for name in files]
    there = {name for name in within if name is not None}
    if unlabelled == UNLABELLED_FOLDER:
        nameless = {name for name in there if name.casefold() in (UNLABELLED_FOLDER, "unlabeled")}
    else:
        nameless = {normalize("NFC", unlabelled.rstrip("/"))}
        inside = (each for folder in folders for each in folder.iterdir())
        if not any(normalize("NFC", each.name) in nameless and os.path.isdir(each) for each in inside):
            raise InputError(
                f"The folder of unlabelled images, {unlabelled!r}, must be in {listing(list(map(str, folders)))}; "
                f"found: {listing(sorted(there)) or 'no folders'}."
            )
    return [None if name in nameless or name == "-1" else name for name in within]


def settled(labels: Sequence[str | None], placeholders: str) -> ClassNames:
    """Return labels, without placeholders such as "unknown" unless these are classes; raise if nobody has decided."""
    if placeholders == "classes":
        return [*labels]
    doubtful = {name for name in labels if name is not None and name.casefold() in PLACEHOLDERS}
    if doubtful and placeholders == "error":
        count = sum(name in doubtful for name in labels)
        raise InputError(
            f"The label{'s' * (len(doubtful) > 1)} {listing(sorted(doubtful))} would be taken for "
            f"{'classes' if len(doubtful) > 1 else 'a class'} with {plural(count, 'image')}.",
            Remedy("treat these images as unlabelled", placeholders="unlabelled"),
            Remedy("keep them as classes", placeholders="classes"),
        )
    return [None if name in doubtful else name for name in labels]


def _from_table(
    folder: Path,
    prefixes: Sequence[str],
    images: Sequence[str],
    others: Sequence[str],
    table: label_tables.LabelRows,
    how: Reading,
) -> ImageSet:
    table = _rows_about(table, folder, prefixes)
    name, at = repr(str(table.path)), _locate(table.file_name, folder, [*images, *others], prefixes)
    if missing := [file for file in table.file_name if file not in at]:
        raise InputError(
            f"Every row of {name} must name a file in {str(folder)!r} by its relative path; "
            f"{_of(missing, table.file_name, 'does', 'do')} not: {listing(missing)}. "
            f"{_guess(missing[0], [*images, *others])}"
        )
    files = [at[file] for file in table.file_name]
    check_once(f"The table {name}", files, table.label)
    if images and not files and how.unlisted == "ignore":
        raise InputError(f"The table {name} must have at least one row, got none.")
    listed = set(files)
    rest = [file for file in images if file not in listed]
    if rest and how.unlisted == "error":
        raise InputError(
            f"Every image of {str(folder)!r} must have a row in {name}; "
            f"{plural(len(rest), 'has none', 'have none')}: {listing(rest)}.",
            Remedy("add rows with an empty label"),
            Remedy("treat images without a row as unlabelled", unlisted="unlabelled"),
            Remedy("leave them out", unlisted="ignore"),
        )
    more = rest if how.unlisted == "unlabelled" else []
    none = [None] * len(more)
    return image_set(
        [*table.file_name, *more],
        paths=[os.path.join(folder, file) for file in (*files, *more)],
        labels=settled([*table.label, *none], how.placeholders),
        truth=None if table.truth is None else settled([*table.truth, *none], how.placeholders),
        columns=table.columns.followed(len(files), NO_COLUMNS, len(more)),
        ignored=[file for file in others if file not in listed and not same_file(folder / file, table.path)],
    )


def _rows_about(table: label_tables.LabelRows, folder: Path, prefixes: Sequence[str]) -> label_tables.LabelRows:
    """Return the rows of a table that are about these folders, with names relative to the one that all are in.

    A table that was exported from a run with images of several folders names the folder of each image by the end of its
    path. If none of these is among them, the table is taken as it is.
    """
    homes = {_slashed(os.path.abspath(folder / prefix)): prefix for prefix in prefixes}

    def prefix_of(end: str) -> str | None:
        fits = (prefix for home, prefix in homes.items() if f"/{home}".endswith(f"/{_slashed(end)}"))
        return next(fits, None) if end else ""

    found = [prefix_of(end) for end in table.image_folder]
    here = [prefix is not None for prefix in found]
    if not any(here):
        return table
    return replace(
        table,
        file_name=[prefix + file for prefix, file in zip(found, table.file_name, strict=True) if prefix is not None],
        label=[*compress(table.label, here)],
        truth=None if table.truth is None else [*compress(table.truth, here)],
        columns=table.columns.take(compress(range(len(here)), here)),
    )


def _locate(wanted: Iterable[str], folder: Path, there: Collection[str], prefixes: Sequence[str]) -> dict[str, str]:
    """Return the file that each name means: an exact match, or the only file with an equivalent path.

    Equivalent are composed and decomposed accents, "./" and "..", backslashes, paths without one of the prefixes, and
    absolute paths into the folder.
    """
    exact = set(there)
    alike = gathered((normalize("NFC", name), name) for name in there)

    @cache
    def within(parent: str) -> str | None:
        """Return the path from the folder to one in it, as it is written or with links resolved."""
        with suppress(ValueError):  # from a path that no file can have
            for resolve in (os.path.abspath, os.path.realpath):
                inner, outer = Path(resolve(parent)), resolve(folder)
                if inner.is_relative_to(outer):
                    return inner.relative_to(outer).as_posix()
        return None

    def candidates(name: str) -> list[str]:
        if name in exact:
            return [name]
        path = _slashed(name)
        if os.path.isabs(path) and (parent := within(posixpath.dirname(path))) is not None:
            path = _slashed(f"{parent}/{posixpath.basename(path)}")
        for paths in ([path], [prefix + path for prefix in prefixes]):
            if files := [each for each in paths if each in exact]:
                return files
            if files := [file for each in paths for file in alike.get(normalize("NFC", each), [])]:
                return files
        return []

    found = {name: candidates(name) for name in wanted}
    return {name: files[0] for name, files in found.items() if len(files) == 1}


def _slashed(name: str) -> str:
    return posixpath.normpath(name.replace("\\", "/"))


def _guess(name: str, there: Sequence[str]) -> str:
    """Suggest files for a name that does not exist."""

    def stem(path: str) -> str:
        return posixpath.splitext(posixpath.basename(path))[0].casefold()

    alike = [other for other in there if stem(other) == stem(name.replace("\\", "/"))]
    return f"Did you mean {listing(alike)}?" if alike else "Correct the table or the folder."


def _of(some: Sequence[object], whole: Sequence[object], one: str, many: str) -> str:
    """Return 1 of 3 is, or 2 of 3 are."""
    return plural(len(some), *(f"of {len(whole):,} {word}" for word in (one, many)))


def check_once(what: str, files: Sequence[str], labels: Sequence[str | None]) -> None:
    """Check that every file is listed once; report contradicting rows before repeated ones."""
    if len(set(files)) == len(files):
        return
    labels_of = gathered(zip(files, labels, strict=True))
    if torn := [file for file, found in labels_of.items() if len(set(found)) > 1]:
        raise InputError(
            f"{what} must give an image one label; {plural(len(torn), 'has several', 'have several')}: {listing(torn)}."
            f" The labels of the first are {listing(sorted({label or '' for label in labels_of[torn[0]]}))}."
        )
    twice = [file for file, found in labels_of.items() if len(found) > 1]
    raise InputError(
        f"{what} must list an image once; {plural(len(twice), 'is', 'are')} listed more than once: {listing(twice)}."
    )


def _from_list(
    source: Sequence[str | os.PathLike[str]],
    labels: str | os.PathLike[str] | PerImage | None,
    truth: PerImage | None,
    how: Reading,
) -> ImageSet:
    files: list[str] = []
    for row, path in enumerate(source, start=1):
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"The list of images must contain paths, got {path!r} as number {row:,}.")
        files.append(str(os.fspath(path)))  # turns NumPy's str_ into str
    if not files:
        raise InputError("The list of images must contain at least one path, got none.")
    if isinstance(labels, str | os.PathLike):
        raise InputError("labels must be a list if the images are a list, got a path. Pass a folder with its table.")
    names = [None] * len(files) if labels is None else label_column("labels", labels, len(files))
    truths = None if truth is None else label_column("truth", truth, len(files))
    if missing := [file for file in files if not os.path.lexists(file) or os.path.isdir(file)]:
        raise InputError(
            f"Every path in the list must be a file; {_of(missing, files, 'is', 'are')} not: {listing(missing)}."
        )
    check_once("The list of images", [os.path.abspath(file) for file in files], names)
    known = None if truths is None else settled(truths, how.placeholders)
    return image_set(files, paths=files, labels=settled(names, how.placeholders), truth=known)


def label_column(name: str, values: PerImage, n: int) -> list[str | None]:
    if isinstance(values, Mapping | Set) or getattr(values, "ndim", 1) != 1:
        raise InputError(f"{name} must be a list with one entry per image, in order, got {type(values).__name__}.")
    if len(values) != n:
        raise InputError(f"{name} must be as long as the list of images, {n:,}, got {len(values):,}.")
    try:
        return [as_name(value) for value in values]
    except InputError as error:
        raise InputError(f"{name} must be class names. {error}") from None
