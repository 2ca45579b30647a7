"""Deferral of Ctrl-C and SIGTERM until work in progress can be saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def defer_signals(when: bool = True) -> Iterator[Callable[[], bool]]:
    """Hold back the first signal, and yield a function that tells whether one came; a second one interrupts.

    The body polls that function, saves, and then leaves, which raises KeyboardInterrupt. Does nothing unless `when`, in
    threads other than the main thread, and for signals whose handler does not raise KeyboardInterrupt.
    """
    received = leaving = False

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received and not leaving:
            raise KeyboardInterrupt
        received = True

    active = when and threading.current_thread() is threading.main_thread()
    deferred = [number for number in SIGNALS if active and signal.getsignal(number) is signal.default_int_handler]
    try:
        for number in deferred:
            signal.signal(number, receive)
        yield lambda: received
    finally:
        leaving = True  # so that no signal interrupts the restoring of handlers
        for number in deferred:
            signal.signal(number, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt
