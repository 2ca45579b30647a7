"""Ctrl-C and SIGTERM, held back until what is being done can be kept."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred(when: bool = True) -> Iterator[Callable[[], bool]]:
    """Inside, the first signal is only noted, and what is given tells whether there was one; a second interrupts.

    Whoever was told saves, and then raises KeyboardInterrupt or just leaves: leaving does it. Inert unless `when`, on
    threads other than the main one, which no signal reaches, and for signals that would not raise KeyboardInterrupt.
    """
    noted = leaving = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted and not leaving:
            raise KeyboardInterrupt
        noted = True

    here = when and threading.current_thread() is threading.main_thread()
    held = [number for number in SIGNALS if here and signal.getsignal(number) is signal.default_int_handler]
    try:
        for number in held:
            signal.signal(number, note)
        yield lambda: noted
    finally:
        leaving = True  # so that no signal comes between one handler's return and the next one's
        for number in held:
            signal.signal(number, signal.default_int_handler)
    if noted:
        raise KeyboardInterrupt
