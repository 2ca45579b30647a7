"""The terminal that a command was started in: what to do when Enter is pressed there while the command works."""

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sortal.system.progress import WATCHED_BY_PROGRAM

KEYS_EVERY = 0.2  # seconds between two looks at the keyboard, where a program cannot wait for a key


@contextmanager
def on_enter(act: Callable[[], object], at_end: Callable[[], object]) -> Iterator[bool]:
    """Call `act`, in another thread, whenever Enter is pressed while the enclosed code runs; yield whether that works.

    It works if standard input is a terminal, or a pipe from a program that watches; `at_end` is called if that program
    has ended. In the background nothing is read, as that would stop the process.
    """
    if not _has_terminal():
        yield False
        return
    ended = threading.Event()
    waiting, ending = os.pipe()
    arguments = (act, at_end, ended, waiting)
    wait = _wait_for_keys if sys.platform == "win32" else _wait_for_lines
    listener = threading.Thread(target=wait, args=arguments, daemon=True, name="terminal")
    listener.start()
    try:
        yield True
    finally:
        ended.set()
        os.close(ending)  # which wakes the listener
        listener.join(timeout=5)
        os.close(waiting)


def _has_terminal() -> bool:
    try:
        if sys.stdin is None or WATCHED_BY_PROGRAM in os.environ:
            return sys.stdin is not None and stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode)
        return sys.stdin.isatty() and os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):  # it is closed, or none of the system's
        return False


def _wait_for_lines(act: Callable[[], None], at_end: Callable[[], None], ended: threading.Event, waiting: int) -> None:
    """Read lines from the terminal until `waiting` is at its end."""
    keys = sys.stdin.fileno()
    if hasattr(signal, "pthread_sigmask"):  # reading in the background is an error then, and does not stop the process
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
    while not ended.is_set():
        ready, _, _ = select.select([keys, waiting], [], [])
        if waiting in ready:
            return
        try:
            line = os.read(keys, 4096)
        except OSError:  # in the background, or the terminal is gone
            ended.wait(KEYS_EVERY)
            continue
        if not line:  # Ctrl-D, or nobody has the other end of the pipe
            if WATCHED_BY_PROGRAM in os.environ:
                at_end()
            return
        act()


def _wait_for_keys(act: Callable[[], None], at_end: Callable[[], None], ended: threading.Event, waiting: int) -> None:
    """Look for keys in the console window until `ended` is set."""
    if sys.platform == "win32":
        import msvcrt

        while not ended.wait(KEYS_EVERY):
            while msvcrt.kbhit():
                if msvcrt.getwch() == "\r":
                    act()
