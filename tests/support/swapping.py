"""Replace files at the moment they are read, in a process under attack and in its workers. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PLAN = "SORTAL_SWAPS"  # the environment variable that tells a process what to replace, and when
LINKS = {
    "loop": "{name}",
    "dangling": "no-such-file",
    "device": "/dev/zero",
    "full": "/dev/full",
    "null": "/dev/null",
    "stdin": "/dev/stdin",
    "out": "{outside}",
}  # kinds that are symbolic links, and where to
IN_PLACE = ("cut", "empty", "longer", "huge")  # kinds that change the file itself, under whoever has it open
SPECIAL = ("pipe", "socket", "folder", *LINKS)
KINDS = ("gone", "other", "forbidden", *IN_PLACE, *SPECIAL)
MOMENTS = ("stat", "open", "fstat")  # once its state is known; before it is opened; once what is open is known
HUGE = 2**30 + 1  # bytes, of which the file system stores none: one more than an image may have


def swap(path: str, kind: str, outside: str) -> None:
    """Replace or change a file; `outside` is another file, which must stay as it is."""
    if kind in IN_PLACE:
        size = os.path.getsize(path)
        if kind == "longer":
            with open(path, "ab") as file:
                file.write(b"\0" * size)
        else:
            os.truncate(path, {"cut": size // 2, "empty": 0, "huge": HUGE}[kind])
    elif kind == "forbidden":
        os.chmod(path, 0)
    else:
        remove(path)
        make(path, kind, outside)


def remove(path: str) -> None:
    """Remove whatever is at a path."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def make(path: str, kind: str, outside: str) -> None:
    """Make something at a path where nothing is."""
    if kind in LINKS:
        os.symlink(LINKS[kind].format(name=os.path.basename(path), outside=outside), path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "other":
        shutil.copyfile(outside, path)
    elif kind == "socket":  # whose own name must be short
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as end:
            end.bind(f"{folder}/s")
            shutil.move(f"{folder}/s", path) if _same_device(folder, path) else os.mkfifo(path)


def _same_device(one: str, other: str) -> bool:
    return os.stat(one).st_dev == os.stat(os.path.dirname(other)).st_dev


def swap_later(files: Mapping[str, str], moment: str, outside: str, place: str) -> None:
    """In a command: replace each of `files`, path to kind, at a moment of its being read here or in a worker.

    `place` is a folder for what makes workers do so, and for marks of what has been replaced.
    """
    os.environ[PLAN] = json.dumps([files, moment, outside, place])
    # Workers import this module of Python's when they start.
    Path(place, "sitecustomize.py").write_text("from support.swapping import install\n\ninstall()\n")
    sys.path.insert(0, place)
    install()


def install() -> None:
    """Watch this process, as the plan says."""
    files, moment, outside, place = json.loads(os.environ[PLAN])
    there = {(found.st_dev, found.st_ino): path for path in files for found in [os.stat(path)]}

    def swap_once(path: object) -> None:
        if isinstance(path, os.PathLike | str) and (name := os.path.abspath(os.fspath(path))) in files:
            mark = os.path.join(place, f"swapped {[*files].index(name)}")
            with contextlib.suppress(FileExistsError):  # by another process
                os.mkdir(mark)
                swap(name, files[name], outside)

    def listen(event: str, values: tuple[Any, ...]) -> None:
        if event in ("open", "os.link", "os.symlink", "shutil.copyfile", "os.scandir"):
            swap_once(values[0])

    if moment == "open":
        sys.addaudithook(listen)
    elif moment == "stat":
        os.stat = _followed(os.stat, lambda values, _: swap_once(values[0]))
    else:
        os.fstat = _followed(os.fstat, lambda _, found: swap_once(there.get((found.st_dev, found.st_ino))))


def _followed(call: Callable[..., Any], then: Callable[[tuple[Any, ...], Any], None]) -> Any:
    def followed(*values: Any, **named: Any) -> Any:
        found = call(*values, **named)
        then(values, found)
        return found

    return followed
