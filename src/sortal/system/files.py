"""Files that are replaced together: made in a folder of their own, and renamed once the word is there that all are."""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from sortal.errors import InputError
from sortal.segments import write_atomically

NEXT, COMMIT = ".sortal-next", "commit.json"  # the files on their way, and the word


def replace_all(folder: Path, files: Mapping[str, bytes | Path], gone: Collection[str]) -> None:
    """Write files, by name, into a folder and remove others: all of it or, to whoever calls `finish`, nothing."""
    start = folder / NEXT
    finish(folder)
    try:
        shutil.rmtree(start, ignore_errors=True)  # what a kill broke off before the word
        start.mkdir(parents=True)
        for name, content in files.items():
            if isinstance(content, Path):
                _link(content, start / name)
            else:
                write_atomically(start / name, content)
        word = json.dumps({"files": sorted(files), "gone": sorted(gone)})
        write_atomically(start / COMMIT, word.encode())
    except OSError as error:
        shutil.rmtree(start, ignore_errors=True)
        raise InputError(
            f"The folder {str(folder)!r} cannot be written: {error.strerror or error}. Choose another, or make room."
        ) from error
    finish(folder)


def finish(folder: Path) -> None:
    """Put files that are whole into their places. A folder may come from anywhere: no name in it leads out of it."""
    start = folder / NEXT
    if not is_pending(folder):
        return
    try:
        word = json.loads((start / COMMIT).read_text(encoding="utf-8"))
        files, gone = list(word["files"]), list(word["gone"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if not all(
        isinstance(name, str) and name == os.path.basename(name) not in ("", ".", "..") for name in files + gone
    ):
        raise InputError(f"{str(start)!r} was not written by Sortal: it names files elsewhere. Delete it.")
    for name in gone:
        (folder / name).unlink(missing_ok=True)
    for name in files:
        if (start / name).exists():
            os.replace(start / name, folder / name)
    shutil.rmtree(start)


def is_pending(folder: Path) -> bool:
    """Whether there are files that are whole, and not all in their places yet."""
    return (folder / NEXT / COMMIT).is_file()


def _link(source: Path, target: Path) -> None:
    """A file under a second name, where that is possible; it must be one that is never changed in its place."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
