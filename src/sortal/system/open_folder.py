"""Folders that are open while something is done in them, so that nobody can exchange them meanwhile.

Names are looked up in the folder that was opened. Links are followed where a person may have made them, but never among
the files of a run: whoever made its folder could lead Sortal to files elsewhere, and reading a pipe need not end.
Windows cannot open folders: there, names are looked up by path.
"""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from sortal.errors import InputError, quoted

Identity: TypeAlias = tuple[int, int]  # device and inode of a folder

CACHE, NEXT, FIGURES_FOLDER = OURS = ("cache", ".sortal-next", "figures")  # folders in that of a run
OWN: dict[str, Identity | None] = {}  # folders of runs by absolute path: which one it is, while it is locked
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # from file systems without them
KINDS_OF_FILES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class ReplacedError(InputError):
    """A folder in use has been moved, or another one was put in its place."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(
            f"The folder {str(folder)!r} must stay in its place while it is in use, but it has been moved away, or "
            "another one was put there. Nothing has been written to that one. Put it back, and try again."
        )


class OpenFolder(NamedTuple):
    """A folder; the functions of `os` take `at(name)` together with `dir_fd=descriptor`."""

    path: Path
    descriptor: int | None  # None on Windows
    own: bool = False  # whether its files are those of a run

    def at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)

    def names(self) -> list[str]:
        return os.listdir(self.path if self.descriptor is None else self.descriptor)

    def identity(self) -> Identity:
        return identity_of(self.path if self.descriptor is None else self.descriptor)

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

    def check(self, name: str) -> None:
        """Raise InputError unless a file of a run is a regular file, if there is one."""
        if self.own and self.kind(name) not in (0, stat.S_IFREG):
            raise self.foreign(name)

    def foreign(self, name: str) -> InputError:
        """Return the error about what is neither a file nor a folder of Sortal's own."""
        kind, what = self.kind(name), "a file in the place of a folder"
        if kind == stat.S_IFLNK:
            what = f"a link to {quoted(os.readlink(self.at(name), dir_fd=self.descriptor))}"
        elif kind != stat.S_IFREG:
            what = kind_of(kind)
        return InputError(
            f"{str(self.path / name)!r} is {what}, but Sortal keeps only regular files and folders of its own there. "
            "Delete it, or put a copy of what it should be in its place."
        )

    def open(self, name: str, flags: int) -> int:
        """Open a file of a run, which must be a regular file and no link, and return its descriptor."""
        self.check(name)
        opened = os.open(self.at(name), flags | NO_FOLLOW | AT_ONCE, 0o666, dir_fd=self.descriptor)
        if not stat.S_ISREG(os.fstat(opened).st_mode):  # it has just been exchanged
            os.close(opened)
            raise self.foreign(name)
        return opened

    def inner(self, name: str) -> "OpenFolder":
        """Open a folder in this one; raise InputError for anything else of this name, such as a link to a folder."""
        try:
            return OpenFolder(self.path / name, _descriptor(self.at(name), self.descriptor, NO_FOLLOW), self.own)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise self.foreign(name) from None
            raise

    def sync(self) -> None:
        """Wait until the names of new files in this folder are on disk, where the file system can tell."""
        if self.descriptor is not None:
            with suppress(OSError):
                os.fsync(self.descriptor)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def rename(self, name: str, to: str) -> None:
        """Rename whatever it is, in one step; nothing may have the new name."""
        os.rename(self.at(name), self.at(to), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def replace(self, name: str, to: str) -> None:
        """Rename a file, in the place of another one if there is one."""
        os.replace(self.at(name), self.at(to), src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

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
            self.rename(name, to)
            return
        try:
            os.link(name, to, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.descriptor))
            self.replace(name, to)
            return
        os.unlink(name, dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Delete a file or a folder of this name, if there is one; of a link, only the link."""
        if self.kind(name) == stat.S_IFDIR:
            try:
                shutil.rmtree(self.at(name), dir_fd=self.descriptor)
            except RecursionError:  # from folders that nobody makes so deep but to do harm
                raise InputError(f"{str(self.path / name)!r} has too many folders within folders. Delete it.") from None
        elif self.kind(name):
            os.unlink(self.at(name), dir_fd=self.descriptor)


def kind_of(mode: int) -> str:
    """Name what is not a regular file."""
    return KINDS_OF_FILES.get(stat.S_IFMT(mode), "something else")


def identity_of(folder: str | Path | int) -> Identity:
    """Return what distinguishes a folder, given by path or descriptor, from every other one."""
    found = os.stat(folder)
    return found.st_dev, found.st_ino


# Folders of runs


def own_folder(folder: Path) -> Path:
    """Return the folder of a run, among whose files, and in whose cache, no links are followed from now on."""
    OWN.setdefault(str(folder.absolute()), None)
    return folder


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Remember which folder the path of a run leads to, for `check_held` while the enclosed code runs."""
    place = str(folder.absolute())
    OWN[place] = identity_of(folder)
    try:
        yield
    finally:
        OWN[place] = None


def check_held(path: Path) -> None:
    """Raise ReplacedError if a path is or lies in a folder that is held, but no longer leads there."""
    place = path.absolute()
    for folder, identity in [*OWN.items()]:
        if identity is not None and place.is_relative_to(folder):
            check_folder(folder, identity)


def check_folder(folder: str | Path, identity: Identity) -> None:
    """Raise ReplacedError unless a path leads to the folder that it led to before."""
    try:
        same = identity_of(folder) == identity
    except OSError:
        same = False
    if not same:
        raise ReplacedError(folder)


def open_held(path: Path, flags: int, folder: Identity | None = None) -> int:
    """Open a file, not a link, and return its descriptor; with `folder`, its folder must be that one."""
    with open_folder(path.parent) as here:
        if folder not in (None, here.identity()):
            raise ReplacedError(path.parent)
        return here.open(path.name, flags)


def run_around(folder: str | Path) -> tuple[str, tuple[str, ...]] | None:
    """Return the folder of the run that a folder belongs to, and the names on the way down; None if to no run."""
    place = str(Path(folder).absolute())
    outer = [run for run in tuple(OWN) if place == run or place.startswith(os.path.join(run, ""))]
    for run in sorted(outer, key=len):
        names = Path(place).relative_to(run).parts
        if not names or names[0] in OURS:
            return run, names
    return None


@contextmanager
def open_folder(path: Path, *, create: bool = False) -> Iterator[OpenFolder]:
    """Open a folder, or create it; raise InputError for a link on the way down from the folder of a run."""
    around = run_around(path)
    run, names = around or (str(path), ())
    check_held(path)
    if create:
        Path(run).mkdir(parents=True, exist_ok=True)
    here = OpenFolder(Path(run), _descriptor(run), around is not None)
    try:
        if OWN.get(run) not in (None, here.identity()):
            raise ReplacedError(run)
        for name in names:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(here.at(name), dir_fd=here.descriptor)
            outer, here = here, here.inner(name)
            outer.close()
        yield here._replace(path=path)
    finally:
        here.close()


def make_folder(path: Path) -> None:
    """Create a folder and those around it, if need be; raise InputError for a link among those of a run."""
    with open_folder(path, create=True):
        pass


def _descriptor(name: str, within: int | None = None, flags: int = 0) -> int | None:
    if sys.platform != "win32":
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags, dir_fd=within)
    if not stat.S_ISDIR((os.lstat if flags else os.stat)(name).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
    return None
