"""The file operations of a child process, counted, and what befalls it at one of them: SIGKILL, or a full disk."""

from __future__ import annotations

import builtins
import errno
import io
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.fork_server import die

# Audit events of Python, and which of their arguments are paths.
EVENTS = {"os.rename": 2, "os.link": 2, "os.symlink": 2, "os.mkdir": 1, "os.rmdir": 1, "os.remove": 1, "os.truncate": 1}
NEEDS_SPACE = {"open", "os.mkdir", "os.link", "os.symlink", "write"}
KILL, FULL = "kill", "full"


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
            if is_below(self.name):
                view = memoryview(content).cast("B")
                super_write = super().write
                take("write", self.name, lambda: super_write(view[: len(view) // 2]))
            return super().write(content) or 0

    real = io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, *values: Any, **named: Any) -> Any:
        if set(mode) & set("wax+") and is_below(file) and "b" in mode and not any(values) and not named:
            raw = File(file, mode.replace("b", ""))
            if buffering == 0:
                return raw
            return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return real(file, mode, buffering, *values, **named)

    builtins.open = io.open = opened
    sys.addaudithook(audit)


def die_after(seconds: float) -> None:
    """In a child: die at a moment."""

    def wait() -> None:
        time.sleep(seconds)
        die()

    threading.Thread(target=wait, daemon=True).start()


def count_in(noted: Path) -> int:
    """Return the number of operations that were noted."""
    return noted.read_bytes().count(b"\n") if noted.exists() else 0
