"""What lies in a folder of images: every file whose name says it is one, in one order on every machine."""

import os
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

from sortal.errors import InputError

# The extensions of the formats that pixels.py reads. Names only choose candidates; the content decides.
EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".gif"})


def find(folder: Path) -> tuple[list[str], list[str]]:
    """Images below a folder, and other files, as paths relative to it with "/" between the parts, each sorted.

    Hidden files and folders (those whose names start with a dot) are left out of both. Symbolic links are followed,
    but never into a folder that contains them; a link to nothing is listed, so that it can be reported as unreadable.
    """
    if not os.path.isdir(folder):  # unlike Path.is_dir, which fails on a name that is too long
        what = "is a file, not a folder" if os.path.exists(folder) else "does not exist"
        raise InputError(f"The image folder {str(folder)!r} {what}. Name a folder that holds images.")
    images: list[str] = []
    others: list[str] = []
    for name in _walk(folder, "", ()):
        (images if _extension(name) in EXTENSIONS else others).append(name)
    return sorted(images, key=_order), sorted(others, key=_order)


def _order(name: str) -> tuple[str, str]:
    """By code point, however accents are stored: the order outlives a copy through a system that decomposes them."""
    return normalize("NFC", name), name


def _extension(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or into a folder that is closed to us
        return False


def _walk(folder: Path, prefix: str, inside: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Files below `folder`; `inside` are the folders it lies in, by device and inode, where links must not lead."""
    try:
        at = os.stat(folder)
        entries = list(os.scandir(folder))
    except OSError as error:
        raise InputError(f"The folder {str(folder)!r} cannot be read: {error.strerror}.") from error
    here = (at.st_dev, at.st_ino)
    if here in inside:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", (*inside, here))
        else:
            yield prefix + entry.name
