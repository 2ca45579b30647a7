"""Folders that are open while something is done in them, so that nobody can exchange them or what is below meanwhile.

Names are looked up in the folder that was opened, and links are not followed. Windows cannot open folders: there, names
are looked up by path.
"""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # from file systems without them


class OpenFolder(NamedTuple):
    """A folder; the functions of `os` take `at(name)` together with `dir_fd=descriptor`."""

    path: Path
    descriptor: int | None  # None on Windows

    def at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)

    def names(self) -> list[str]:
        return os.listdir(self.path if self.descriptor is None else self.descriptor)

    def state(self, name: str) -> os.stat_result | None:
        """Return what has this name, which may be a link; None if nothing has."""
        try:
            return os.stat(self.at(name), dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def kind(self, name: str) -> int:
        """Return the type of what has this name, as in st_mode; 0 if nothing has."""
        found = self.state(name)
        return 0 if found is None else stat.S_IFMT(found.st_mode)

    def rename(self, name: str, to: str) -> None:
        """Rename whatever it is, in one step; nothing may have the new name."""
        os.rename(self.at(name), self.at(to), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def move(self, name: str, to: str) -> None:
        """Rename a file or folder of this process; raise FileExistsError if something has the new name.

        Only a folder takes the place of an empty one.
        """
        if self.kind(name) == stat.S_IFDIR:
            self._move_folder(name, to)
        else:
            self._move_file(name, to)

    def _move_folder(self, name: str, to: str) -> None:
        if sys.platform == "win32":  # which does not replace empty folders
            with suppress(FileNotFoundError):
                os.rmdir(self.at(to))
        try:
            self.rename(name, to)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR, errno.EEXIST):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path / to)) from error
            raise

    def _move_file(self, name: str, to: str) -> None:
        if sys.platform == "win32":  # where renaming never replaces
            os.rename(self.at(name), self.at(to))
            return
        both = {"src_dir_fd": self.descriptor, "dst_dir_fd": self.descriptor}
        try:
            os.link(name, to, **both, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.descriptor))
            os.replace(name, to, **both)
            return
        os.unlink(name, dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Delete a file or a folder of this name, if there is one; of a link, only the link."""
        if self.kind(name) == stat.S_IFDIR:
            shutil.rmtree(self.at(name), dir_fd=self.descriptor)
        elif self.kind(name):
            os.unlink(self.at(name), dir_fd=self.descriptor)


@contextmanager
def open_folder(path: Path) -> Iterator[OpenFolder]:
    """Open a folder that a person has named: links on the way to it are followed."""
    with _opened(path, str(path), None, 0) as found:
        yield found


@contextmanager
def open_within(outer: OpenFolder, name: str) -> Iterator[OpenFolder]:
    """Open a folder in another one; raise OSError for anything else of this name, such as a link to a folder."""
    with _opened(outer.path / name, outer.at(name), outer.descriptor, getattr(os, "O_NOFOLLOW", 0)) as found:
        yield found


@contextmanager
def _opened(path: Path, name: str, within: int | None, flags: int) -> Iterator[OpenFolder]:
    if sys.platform == "win32":
        if flags and not stat.S_ISDIR(os.lstat(name).st_mode):
            raise NotADirectoryError(name)
        yield OpenFolder(path, None)
        return
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags, dir_fd=within)
    try:
        yield OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)
