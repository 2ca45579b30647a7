"""Ctrl-C and SIGTERM: acknowledged at once, and deferred until work in progress has been saved."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 1.0  # seconds in which the second signal may end the work in an orderly way


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


@contextmanager
def handling(name: str, handler: Callable[[int, FrameType | None], object], *, always: bool = False) -> Iterator[None]:
    """Let a handler answer a signal where nothing else does, or `always`.

    Does nothing where the system does not have the signal, and in threads other than the main thread.
    """
    number, main = getattr(signal, name, None), threading.current_thread() is threading.main_thread()
    if number is None or not main or not (always or signal.getsignal(number) is signal.SIG_DFL):
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def answer_signals(first: Callable[[], None], second: Callable[[], None]) -> Iterator[None]:
    """Call `first` at the first signal, and `second` if the body is still running a moment after another one.

    Both are called at once, by another thread: Python's own handlers wait until the main thread returns from code that
    is not Python. Does nothing in threads other than the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    ended = threading.Event()

    def listen() -> None:
        count = 0
        while numbers := reader.recv(64):  # until the other end is closed
            for _ in range(sum(number in SIGNALS for number in numbers)):
                count += 1
                if count == 1:
                    first()
                elif not ended.wait(GRACE):
                    second()

    listener = threading.Thread(target=listen, daemon=True, name="signals")
    listener.start()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        writer.close()
        listener.join()
        reader.close()
