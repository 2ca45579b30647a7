"""The file operations of a child process, counted, and what befalls it at one of them: SIGKILL, or a full disk."""

from __future__ import annotations

import builtins
import errno
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.fork_server import die

# Audit events of Python, and which of their arguments are paths.
EVENTS = {"os.rename": 2, "os.link": 2, "os.symlink": 2, "os.mkdir": 1, "os.rmdir": 1, "os.remove": 1, "os.truncate": 1}
NEEDS_SPACE = {"open", "os.mkdir", "os.link", "os.symlink", "write"}
KILL, FULL = "kill", "full"
# And which are the descriptors of the folders that these paths are in.
FOLDERS = {"os.rename": (2, 3), "os.link": (2, 3), "os.mkdir": (2,), "os.rmdir": (1,), "os.remove": (1,)}


def watch(audit: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Call a function at every audit event, with whole paths in the place of names in a folder that is open."""
    real_open = os.open

    def whole(path: Any, folder: int | None) -> Any:
        known = isinstance(folder, int) and folder >= 0 and isinstance(path, str) and not os.path.isabs(path)
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path) if known else path

    def listen(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(values[0], int):
            return
        paths = [whole(values[at], values[folder]) for at, folder in enumerate(FOLDERS.get(event, ()))]
        audit(event, (*paths, *values[len(paths) :]))

    def open_in(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            audit("open", (whole(path, dir_fd), None, flags))
        return real_open(path, flags, mode, dir_fd=dir_fd)

    os.open = open_in
    sys.addaudithook(listen)


def path_of(file: Any) -> Any:
    """Return the path of a file that is given by its descriptor."""
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file


def disturb(folder: str, noted: str, what: str, number: int, full_later: bool = True) -> None:
    """In a child: note each operation that changes something below a folder, and act at the one of this number.

    `KILL` dies before it, or with half of the content written; `FULL` raises that there is no space left, from then on
    or only this time. Number 0 is none.
    """
    note = os.open(noted, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    count, busy, lock = 0, False, threading.RLock()

    def is_below(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return os.path.abspath(os.fsdecode(path)).startswith(f"{folder}{os.sep}")

    def take(event: str, path: object, half: Any = None) -> None:
        nonlocal count, busy
        with lock:
            if busy:
                return
            busy = True
            try:
                count += 1
                os.write(note, f"{count} {event} {os.fsdecode(path)}\n".encode(errors="replace"))  # type: ignore[arg-type]
                now = count == number or (count > number > 0 and what == FULL and full_later)
                if now and what == KILL:
                    if half is not None:
                        half()
                    die()
            finally:
                busy = False
            if now and event in NEEDS_SPACE:
                if half is not None:
                    half()
                named = (os.fsdecode(path),) if event != "write" else ()  # type: ignore[arg-type]
                raise OSError(errno.ENOSPC, "No space left on device", *named)

    def audit(event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            flags = values[2] or 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and is_below(values[0]):
                # Without O_CREAT an existing file is opened, which needs no space.
                take("open" if flags & os.O_CREAT and not os.path.exists(values[0]) else "reopen", values[0])
        elif event in EVENTS and any(map(is_below, values[: EVENTS[event]])):
            take(event, values[0])

    class File(io.FileIO):
        def write(self, content: Any) -> int:
            if is_below(path := path_of(self.name)):
                view = memoryview(content).cast("B")
                super_write = super().write
                take("write", path, lambda: super_write(view[: len(view) // 2]))
            return super().write(content) or 0

    real = io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, *values: Any, **named: Any) -> Any:
        simple = not any(values) and named.keys() <= {"opener"}
        if set(mode) & set("wax+") and "b" in mode and is_below(path_of(file)) and simple:
            raw = File(file, mode.replace("b", ""), **named)
            if buffering == 0:
                return raw
            return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return real(file, mode, buffering, *values, **named)

    builtins.open = io.open = opened
    watch(audit)


def die_after(seconds: float) -> None:
    """In a child: die at a moment."""

    def wait() -> None:
        time.sleep(seconds)
        die()

    threading.Thread(target=wait, daemon=True).start()


def count_in(noted: Path) -> int:
    """Return the number of operations that were noted."""
    return noted.read_bytes().count(b"\n") if noted.exists() else 0
