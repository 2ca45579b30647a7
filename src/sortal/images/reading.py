"""Reading images and their labels from a folder, from a folder and a table, or from a list."""

import ntpath
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import normalize

from numpy.typing import NDArray

from sortal.config import UNLABELLED, Reading, from_keywords
from sortal.errors import InputError, Remedy, listing
from sortal.images import exported, label_tables
from sortal.images.folders import EXTENSIONS, apart, are_folders, common_folder, find, unread_pictures
from sortal.images.image_set import ImageSet, image_set
from sortal.system.files import same_file
from sortal.system.text import plural

Column: TypeAlias = Sequence[Any] | NDArray[Any]
Names: TypeAlias = list[str | None]
# Names of classes, in any case, that more likely say that an image has none.
PLACEHOLDERS = frozenset({"unknown", "unlabelled", "unlabeled", "unsorted", "undefined", "tbd", "todo", "no label"})
PLACEHOLDERS |= {"none", "null", "nil", "nan", "na", "n.a.", "n/a", "-", "--", "?", "??", "???"}


def read_images(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    labels: str | os.PathLike[str] | Column | None = None,
    truth: Column | None = None,
    need_labels: bool = True,
    **reading: Any,
) -> ImageSet:
    """Read images and their labels from `source`: folders, folders and a table, or a list of files.

    A folder alone: each subfolder is a class; images in the subfolder `unlabelled` and in the folder itself have no
    label, and with `folders="ignore"` no image has one; in a folder that Sortal exported, `folders="reviewed"` labels
    what a person has decided. A folder and a table (`labels` is its path): the table lists the images by relative path
    with their labels; `unlisted` decides about images it does not list, `extra_columns` about columns other than
    file_name, label and truth. Several folders, as a list, are read like one; names are then relative to the folder
    that all of them are in. A list of files: `labels` and `truth` are lists of the same length. Everywhere,
    `placeholders` decides about labels such as "unknown".

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
    if need_labels and not images.classes:
        tables = [name for name in images.ignored if "/" not in name and name.lower().endswith(label_tables.EXTENSIONS)]
        advice = "Put the images of a class into a folder named after it, or pass a table of labels."
        if tables:
            advice = f"Pass a table of labels; the folder contains {listing(tables)}."
        raise InputError(f"At least one image must be labelled; none of {len(images):,} is. {advice}")
    return images


def _from_folders(folders: Sequence[Path], labels: object, how: Reading) -> ImageSet:
    """Read one folder, or several, whose images then have names relative to the folder that all of them are in."""
    base = Path(common_folder(folders)) if len(folders) > 1 else folders[0]
    prefixes = ["" if len(folders) == 1 else f"{_within(each, base)}/" for each in folders]
    found = [find(each) for each in folders]
    names, others = (
        [prefix + name for prefix, each in zip(prefixes, found, strict=True) for name in each[part]] for part in (0, 1)
    )
    if labels is None:
        own = _labels_of(folders, [each for each, _ in found], how)
        if how.folders == "reviewed":
            others = [name for name in others if name not in {prefix + exported.INDEX for prefix in prefixes}]
        paths = [os.path.join(base, name) for name in names]
        images = image_set(names, paths=paths, labels=_settle(own, how.placeholders), ignored=others)
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


def _within(folder: Path, base: Path) -> str:
    return os.path.relpath(os.path.abspath(folder), base).replace(os.sep, "/")


def _labels_of(folders: Sequence[Path], found: Sequence[Sequence[str]], how: Reading) -> Names:
    """Return the labels that the folders give the files found in each of them."""
    for folder in folders:
        exported.check_meaning(folder, how.folders)
    if how.folders == "reviewed":
        return [label for pair in zip(folders, found, strict=True) for label in exported.labels_of(*pair)]
    files = [name for names in found for name in names]
    return _folder_names(folders, files, how.unlabelled, are_classes=how.folders == "classes")


def _folder_names(folders: Sequence[Path], files: Sequence[str], unlabelled: str, *, are_classes: bool) -> Names:
    """Return the folder that each file is in; None for unlabelled images."""
    within = [normalize("NFC", name.partition("/")[0]) if "/" in name and are_classes else None for name in files]
    there = {name for name in within if name is not None}
    if unlabelled == UNLABELLED:
        nameless = {name for name in there if name.casefold() in (UNLABELLED, "unlabeled")}
    else:
        nameless = {normalize("NFC", unlabelled.rstrip("/"))}
        inside = (each for folder in folders for each in folder.iterdir())
        if not any(normalize("NFC", each.name) in nameless and os.path.isdir(each) for each in inside):
            raise InputError(
                f"The folder of unlabelled images, {unlabelled!r}, must be in {listing(list(map(str, folders)))}; "
                f"found: {listing(sorted(there)) or 'no folders'}."
            )
    return [None if name in nameless or name == "-1" else name for name in within]


def _settle(labels: Sequence[str | None], placeholders: str) -> Names:
    """Return labels without those that only stand for one, as far as these are not classes; ask if nobody has said."""
    if placeholders == "classes":
        return [*labels]
    doubtful = {name for name in labels if name is not None and name.casefold() in PLACEHOLDERS}
    if doubtful and placeholders == "error":
        count = sum(name in doubtful for name in labels)
        raise InputError(
            f"The label{'s' * (len(doubtful) > 1)} {listing(sorted(doubtful))} would be taken for "
            f"{'classes' if len(doubtful) > 1 else 'a class'} with {plural(count, 'image')}.",
            Remedy("treat these images as unlabelled", placeholders="unlabelled"),
            Remedy("say that this is what you mean", placeholders="classes"),
        )
    return [None if name in doubtful else name for name in labels]


def _from_table(
    folder: Path,
    prefixes: Sequence[str],
    images: Sequence[str],
    others: Sequence[str],
    table: label_tables.LabelTable,
    how: Reading,
) -> ImageSet:
    table, wanted = _rows_within(table, folder, [*images, *others], prefixes)
    name, at = repr(str(table.path)), _locate(wanted, folder, [*images, *others], prefixes)
    if missing := [file for file in wanted if file not in at]:
        raise InputError(
            f"Every row of {name} must name a file in {str(folder)!r} by its relative path; "
            f"{_of(missing, wanted, 'does', 'do')} not: {listing(missing)}. {_guess(missing[0], [*images, *others])}"
        )
    files = [at[file] for file in wanted]
    _check_once(f"The table {name}", files, table.label)
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
        labels=_settle([*table.label, *none], how.placeholders),
        truth=None if table.truth is None else _settle([*table.truth, *none], how.placeholders),
        ignored=[file for file in others if file not in listed and not same_file(folder / file, table.path)],
    )


def _rows_within(
    table: label_tables.LabelTable, folder: Path, there: Collection[str], prefixes: Sequence[str]
) -> tuple[label_tables.LabelTable, list[str]]:
    """Return the rows of a table that are about these folders, and what to look for in them.

    A run may have images of several folders. A table that Sortal exported then says in which one an image is, by its
    absolute path or by the end of the folder's. If none is here, the folder was moved or copied, and the names count
    as in any other table.
    """
    place_of = next(filter(any, (_by_path(table, folder, there, prefixes), _by_folder(table, folder, prefixes))), None)
    if place_of is None:
        return table, [*table.file_name]
    here = [place is not None for place in place_of]

    def kept(column: Sequence[Any]) -> list[Any]:
        return [each for each, stays in zip(column, here, strict=True) if stays]

    names, places = kept(table.file_name), kept(place_of)
    wanted = [place or name for name, place in zip(names, places, strict=True)]
    if len({*names}) < len(names):  # in several folders
        names = wanted
    truth = None if table.truth is None else kept(table.truth)
    return replace(table, file_name=names, label=kept(table.label), truth=truth), wanted


def _by_path(
    table: label_tables.LabelTable, folder: Path, there: Collection[str], prefixes: Sequence[str]
) -> list[str | None]:
    """Return the file that the absolute path of each row means; None if it is not in the folders, "" if it is gone."""
    within = _locate([place for place in table.places or () if place], folder, there, prefixes)
    homes = [os.path.realpath(folder / prefix) for prefix in prefixes]

    def place_of(path: str) -> str | None:
        with suppress(ValueError):  # from a path that no file can have
            is_here = not path or any(map(Path(os.path.realpath(path)).is_relative_to, homes))
            return within.get(path, "" if is_here else None)
        return None

    return [*map(place_of, table.places or ())]


def _by_folder(table: label_tables.LabelTable, folder: Path, prefixes: Sequence[str]) -> list[str | None]:
    """Return the name in these folders of the image of each row; None if its folder is not one of them."""
    homes = {_slashed(os.path.abspath(folder / prefix)): prefix for prefix in prefixes}
    homes.setdefault(_slashed(os.path.abspath(folder)), "")

    def place_of(file: str, end: str) -> str | None:
        fits = [prefix for home, prefix in homes.items() if f"/{home}".endswith(f"/{_slashed(end)}")]
        return f"{fits[0]}{file}" if fits else None

    return [place_of(*each) if each[1] else "" for each in zip(table.file_name, table.folders or (), strict=False)]


def _locate(
    wanted: Iterable[str], folder: Path, there: Collection[str], prefixes: Sequence[str] = ("",)
) -> dict[str, str]:
    """Return the file that each name means: an exact match, or the only file with an equivalent path.

    Equivalent are composed and decomposed accents, "./" and "..", backslashes, paths without one of the prefixes, and
    absolute paths into the folder, or into where it was on another computer, if all that are not here lie below one
    folder there.
    """
    exact = set(there)
    alike: dict[str, list[str]] = {}
    for name in there:
        alike.setdefault(normalize("NFC", name), []).append(name)

    @cache
    def above(parent: str) -> str | None:
        """Return the path from the folder to an absolute path within it, whatever links and dots both contain."""
        rest = ""
        while not same_file(parent, folder):
            parent, name = posixpath.split(parent)
            if not name:
                return None
            rest = f"{name}/{rest}"
        return rest

    def matching(path: str) -> list[str]:
        for paths in ([path], [prefix + path for prefix in prefixes]):
            if files := [each for each in paths if each in exact]:
                return files
            if files := [file for each in paths for file in alike.get(normalize("NFC", each), [])]:
                return files
        return []

    def candidates(name: str) -> list[str]:
        if name in exact:
            return [name]
        path = _slashed(name)
        if _is_absolute(path) and (before := above(posixpath.dirname(path))) is not None:
            path = before + posixpath.basename(path)
        return matching(path)

    found = {name: candidates(name) for name in wanted}
    elsewhere = [name for name, files in found.items() if not files and _is_absolute(_slashed(name))]
    if elsewhere and not any(os.path.exists(name) for name in elsewhere):
        found |= _below_another(elsewhere, matching)
    return {name: files[0] for name, files in found.items() if len(files) == 1}


def _below_another(names: Sequence[str], matching: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """Return the files that absolute paths of another computer mean: what follows the one folder they all lie below."""
    paths = [_slashed(name) for name in names]
    parts = posixpath.dirname(paths[0]).split("/")
    for count in range(1, len(parts) + 1):  # the longest relative path first
        prefix = "/".join(parts[:count]) + "/"
        if all(path.startswith(prefix) for path in paths):
            found = [matching(path[len(prefix) :]) for path in paths]
            if all(found):
                return dict(zip(names, found, strict=True))
    return {}


def _slashed(name: str) -> str:
    return posixpath.normpath(name.replace("\\", "/"))


def _is_absolute(path: str) -> bool:
    """Tell whether a path is absolute here or on Windows."""
    return posixpath.isabs(path) or bool(ntpath.splitdrive(path)[0])


def _guess(name: str, there: Sequence[str]) -> str:
    """Suggest files for a name that does not exist."""

    def stem(path: str) -> str:
        return posixpath.splitext(posixpath.basename(path))[0].casefold()

    alike = [other for other in there if stem(other) == stem(name.replace("\\", "/"))]
    return f"Did you mean {listing(alike)}?" if alike else "Correct the table or the folder."


def _of(some: Sequence[object], whole: Sequence[object], one: str, many: str) -> str:
    """Return 1 of 3 is, or 2 of 3 are."""
    return plural(len(some), *(f"of {len(whole):,} {word}" for word in (one, many)))


def _check_once(what: str, files: Sequence[str], labels: Sequence[str | None]) -> None:
    """Check that every file is listed once; report contradicting rows before repeated ones."""
    if len(set(files)) == len(files):
        return
    labels_of: dict[str, list[str | None]] = {}
    for file, label in zip(files, labels, strict=True):
        labels_of.setdefault(file, []).append(label)
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
    labels: str | os.PathLike[str] | Column | None,
    truth: Column | None,
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
    names = [None] * len(files) if labels is None else _column("labels", labels, len(files))
    truths = None if truth is None else _column("truth", truth, len(files))
    if missing := [file for file in files if not os.path.lexists(file) or os.path.isdir(file)]:
        raise InputError(
            f"Every path in the list must be a file; {_of(missing, files, 'is', 'are')} not: {listing(missing)}."
        )
    _check_once("The list of images", [os.path.abspath(file) for file in files], names)
    settled = None if truths is None else _settle(truths, how.placeholders)
    return image_set(files, paths=files, labels=_settle(names, how.placeholders), truth=settled)


def _column(name: str, values: Column, n: int) -> list[str | None]:
    if isinstance(values, Mapping | Set) or getattr(values, "ndim", 1) != 1:
        raise InputError(f"{name} must be a list with one entry per image, in order, got {type(values).__name__}.")
    if len(values) != n:
        raise InputError(f"{name} must be as long as the list of images, {n:,}, got {len(values):,}.")
    try:
        return [label_tables.as_name(value) for value in values]
    except InputError as error:
        raise InputError(f"{name} must be class names. {error}") from None
