"""Folders of images: the files in them, and several folders as one."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unicodedata import normalize

from sortal.errors import InputError, listing
from sortal.system.text import plural

# Of the formats that decoding.py reads. Names only select candidates; the content decides.
EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".gif"})
HEIF_EXTENSIONS = frozenset({".heic", ".heif", ".hif"})  # photographs of phones, which need pillow-heif
# Other pictures, which are not read.
PICTURES = frozenset({".avif", ".jxl", ".jp2", ".jpx", ".psd", ".exr", ".hdr"})
PICTURES |= {".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw"}  # raw files of cameras
INSTALL = "pip install pillow-heif"


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
    for name in sorted(_walk(folder), key=lambda name: (normalize("NFC", name), name)):  # whatever the accents
        (images if is_image(name) else others).append(name)
    return images, others


def is_image(name: str) -> bool:
    """Return whether a file has the extension of an image that can be read here."""
    return _extension(name) in (EXTENSIONS | HEIF_EXTENSIONS if reads_heif() else EXTENSIONS)


@cache
def reads_heif() -> bool:
    """Tell whether pillow-heif is installed, which decodes HEIC and HEIF."""
    return find_spec("pillow_heif") is not None


def is_picture(name: str) -> bool:
    """Return whether a file has the extension of a picture, whether or not it can be read here."""
    return _extension(name) in EXTENSIONS | HEIF_EXTENSIONS | PICTURES


def unread_pictures(ignored: Sequence[str]) -> list[str]:
    """Name the pictures among the ignored files, and what to do about them."""
    notes = []
    for extensions, way in ((HEIF_EXTENSIONS, INSTALL), (PICTURES, "save them as JPEG")):
        files = [name for name in ignored if _extension(name) in extensions]
        if files:
            endings = ", ".join(sorted({_extension(name) for name in files}))
            what = f"{plural(len(files), 'picture is', 'pictures are')} ignored, in a format that is not read here"
            notes.append(f"{what} ({endings}): {listing(files)}. To read them, {way}.")
    return notes


def _extension(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _walk(top: Path) -> Iterator[str]:
    """Yield the files below a folder, however deep."""
    # Folders to read, each with its parents by device and inode, which links must not enter.
    waiting: list[tuple[Path, str, frozenset[tuple[int, int]]]] = [(top, "", frozenset())]
    while waiting:
        folder, prefix, inside = waiting.pop()
        try:
            at = os.stat(folder)
            entries = list(os.scandir(folder))
        except OSError as error:
            raise InputError(f"The folder {str(folder)!r} cannot be read: {error.strerror}.") from error
        here = (at.st_dev, at.st_ino)
        if here in inside:
            continue
        within = inside | {here}
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:  # a circular link, or one into a folder without access
                is_folder = False
            if is_folder:
                waiting.append((folder / entry.name, f"{prefix}{entry.name}/", within))
            else:
                yield prefix + entry.name


def are_folders(source: Sequence[str | os.PathLike[str]]) -> bool:
    """Tell whether a list is one of folders, not of images."""
    paths = [each for each in source if isinstance(each, str | os.PathLike)]
    return len(paths) == len(source) > 0 and all(map(os.path.isdir, paths))


def common_folder(folders: Sequence[str | os.PathLike[str]]) -> str:
    """Return the folder that names of images are relative to: the only one given, or the one that all are in."""
    if len(folders) == 1:
        return os.path.abspath(folders[0])
    return os.path.commonpath([os.path.dirname(os.path.abspath(each)) for each in folders])


def apart(source: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return several folders, none of which may be in another one."""
    folders = [Path(each) for each in source]
    real = [Path(os.path.realpath(each)) for each in folders]
    for at, inner in enumerate(real):
        for other, outer in enumerate(real):
            if at != other and inner.is_relative_to(outer):
                raise InputError(
                    f"Folders of images must not contain one another, got {str(folders[other])!r} and "
                    f"{str(folders[at])!r}. Leave out the second."
                )
    return folders
