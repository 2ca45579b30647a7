"""Folders that a person can choose from: those below one folder, without hidden ones and without links."""

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sortal.errors import InputError, quoted
from sortal.images.exported import EXPORT_MARKER
from sortal.images.folders import is_image
from sortal.images.label_tables import TABLE_EXTENSIONS
from sortal.runs.storage import RUN
from sortal.system.files import is_locked
from sortal.system.open_folder import OpenFolder, open_folder

MOST_ENTRIES, MOST_FOLDERS, MOST_FILES = 200_000, 2000, 100  # that are looked at in a folder, and that are listed
FileKind = Literal["tables", "weights"]
CHOSEN_EXTENSIONS: dict[FileKind, Collection[str]] = {"tables": TABLE_EXTENSIONS, "weights": (".safetensors",)}
LONGEST_NAME = 255  # characters of a file or folder
DIGITS_IN_NAMES = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Home:
    """A folder whose folders can be chosen. They are named by their path in it, with "/"; "" is the folder itself."""

    top: Path

    def path(self, at: str) -> Path:
        """Return the path of a folder, which must exist."""
        with self._opened(at) as folder:
            return folder.path

    def is_run(self, at: str) -> bool:
        """Tell whether a folder, which must exist, is a run."""
        with self._opened(at) as folder:
            return bool(folder.state(RUN))

    def new(self, beside: str, name: str) -> Path:
        """Return the path of a file or folder beside another one, which may exist or not."""
        if not beside:
            raise InputError("Choose a folder, not all that there are.")
        return self.inside(beside.rpartition("/")[0], name)

    def inside(self, at: str, name: str) -> Path:
        """Return the path of a file or folder in a folder, which may exist or not, but may not be a link."""
        check_name(name)
        with self._opened(at) as opened:
            if opened.kind(name) == stat.S_IFLNK:
                raise InputError(f"{quoted(name)} is a link to elsewhere. Choose another name.")
            return opened.path / name

    def file(self, at: str, what: FileKind) -> Path:
        """Return the path of a table, or of weights, which must be a regular file."""
        folder, _, name = at.rpartition("/")
        check_name(name)
        with self._opened(folder) as opened:
            if opened.kind(name) != stat.S_IFREG or _kind(name) != what:
                raise InputError(f"{quoted(at)} is no file of {what}.")
            return opened.path / name

    def listing(self, at: str) -> dict[str, Any]:
        """List the folders and tables in a folder, and count its images."""
        with self._opened(at) as opened:
            found = _listed(opened)
            found |= {"at": at, "name": opened.path.name, "is_run": bool(opened.state(RUN))}
        for kind in CHOSEN_EXTENSIONS:
            found[kind] = [f"{at}/{name}".lstrip("/") for name in found[kind]]
        return found

    @contextmanager
    def _opened(self, at: str) -> Iterator[OpenFolder]:
        """Open a folder by going down to it name by name, so that nothing can be exchanged on the way."""
        names = at.split("/") if at else []
        for name in names:
            check_name(name)
        with open_folder(self.top) as top:
            here = top
            try:
                for name in names:
                    if here.kind(name) != stat.S_IFDIR:
                        raise InputError(f"{quoted(at)} is no folder, or a link to one.")
                    outer, here = here, here.inner(name)
                    if outer is not top:
                        outer.close()
                yield here
            except OSError as error:
                raise InputError(f"The folder {quoted(at)} cannot be read: {error.strerror}.") from error
            finally:
                if here is not top:
                    here.close()


def check_name(name: str) -> None:
    """Refuse what is not the name of a file or folder, or that of a hidden one."""
    try:
        fits = 0 < len(os.fsencode(name)) <= LONGEST_NAME
    except UnicodeEncodeError:
        fits = False
    if not fits or name.startswith(".") or {"/", "\\", "\0"} & {*name} or not name.isprintable():
        raise InputError(f"{quoted(name)} cannot be the name of a folder here. Choose another.")


def _listed(folder: OpenFolder) -> dict[str, Any]:
    folders, files, images, seen = list[str](), {kind: list[str]() for kind in CHOSEN_EXTENSIONS}, 0, 0
    with os.scandir(folder.path if folder.descriptor is None else folder.descriptor) as entries:
        for seen, entry in enumerate(entries, start=1):
            if seen > MOST_ENTRIES:
                break
            if entry.name.startswith(".") or not entry.name.isprintable():
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif is_image(entry.name):
                images += 1
            elif (kind := _kind(entry.name)) and entry.is_file(follow_symlinks=False):
                files[kind].append(entry.name)
    folders.sort(key=_in_order)
    return {
        "folders": [
            {
                "name": name,
                "is_run": _holds(folder, name, RUN),
                "is_export": _holds(folder, name, EXPORT_MARKER),
                "is_busy": is_locked(folder, name),
            }
            for name in folders[:MOST_FOLDERS]
        ],
        **{kind: sorted(names, key=_in_order)[:MOST_FILES] for kind, names in files.items()},
        "images": images,
        "more": seen > MOST_ENTRIES or len(folders) > MOST_FOLDERS,
    }


def _holds(folder: OpenFolder, name: str, file: str) -> bool:
    try:
        return folder.state(os.path.join(name, file)) is not None
    except OSError:  # no access
        return False


def _kind(name: str) -> FileKind | None:
    """Return what a file is by its name, if it can be chosen."""
    extension = os.path.splitext(name)[1].lower()
    return next((kind for kind, extensions in CHOSEN_EXTENSIONS.items() if extension in extensions), None)


def _in_order(name: str) -> tuple[list[str | int], str]:
    """Sort names as people do: without regard to case, and numbers by their value."""
    parts = [int(part) if part.isdecimal() else part for part in DIGITS_IN_NAMES.split(name.casefold())]
    return parts, name
