"""Listing a folder of images: every file with an image extension, in the same order on every machine."""

import os
from collections.abc import Iterator
from pathlib import Path
from unicodedata import normalize

from sortal.errors import InputError

# Of the formats that decoding.py reads. Names only select candidates; the content decides.
EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".gif"})


def find(folder: Path) -> tuple[list[str], list[str]]:
    """Return the images below a folder and the other files, both sorted, as relative paths with "/".

    Hidden files and folders (names starting with a dot) are skipped. Symbolic links are followed, but never into a
    folder that contains them; broken links are listed, so that they can be reported as unreadable.
    """
    if not os.path.isdir(folder):  # Path.is_dir would fail on a name that is too long
        what = "is a file, not a folder" if os.path.exists(folder) else "does not exist"
        raise InputError(f"The image folder {str(folder)!r} {what}. Give a folder of images.")
    images: list[str] = []
    others: list[str] = []
    for name in sorted(_walk(folder, "", ()), key=lambda name: (normalize("NFC", name), name)):  # whatever the accents
        (images if is_image(name) else others).append(name)
    return images, others


def is_image(name: str) -> bool:
    """Return whether a file has the extension of an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def _walk(folder: Path, prefix: str, inside: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files below `folder`; `inside` lists its parents by device and inode, which links must not enter."""
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
        try:
            is_folder = entry.is_dir()
        except OSError:  # a circular link, or one into a folder without access
            is_folder = False
        if is_folder:
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/", (*inside, here))
        else:
            yield prefix + entry.name
