"""Work in several processes, each with one of the GPUs."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TypeVar, cast

from sortal.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
SAFE_PATH = "PYTHONSAFEPATH"  # makes Python behave as with -P
SAVING_TIME = 60.0  # seconds for an interrupted process to save its checkpoint


def in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], n: int, gpus: Sequence[str]
) -> Iterator[tuple[Item, Result | None]]:
    """Call `work` with each item in a process of its own, n at a time; yield results as they come, None if one died.

    If the caller stops early, running processes are interrupted.
    """
    context, waiting = get_context("spawn"), list(reversed(items))
    free = [gpus[at % len(gpus)] if gpus else None for at in range(n)]
    running: dict[Connection, tuple[SpawnProcess, Item, str | None]] = {}  # by the connection that receives the result
    try:
        while waiting or running:
            while waiting and free:
                item, gpu = waiting.pop(), free.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(sender, work, item, gpu, n))
                with start_safely():
                    process.start()
                sender.close()
                running[receiver] = process, item, gpu
            for ready in wait([*running]):
                receiver = cast(Connection, ready)
                process, item, gpu = running.pop(receiver)
                result = None
                with suppress(EOFError):  # it died
                    result = receiver.recv()
                process.join()
                free.append(gpu)
                yield item, result
    finally:
        for process, _, _ in running.values():
            process.terminate()  # once, so that it saves its checkpoint
        for process, _, _ in running.values():
            process.join(SAVING_TIME)
            process.kill()


def _run(sender: Connection, work: Callable[[Item], Result], item: Item, gpu: str | None, n: int) -> None:
    _begin(gpu, n)
    try:
        sender.send(work(item))
    except KeyboardInterrupt:
        os._exit(130)  # without a traceback


def _begin(gpu: str | None, n: int) -> None:
    """Set up a process: its GPU, before torch looks for any, its share of the memory, and its end with the parent."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    os.environ["LOCAL_WORLD_SIZE"] = str(n)  # divides the memory for cached tokens
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # so that Ctrl-C in a terminal reaches the parent only, which forwards it once
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # free the GPU and the lock


@contextmanager
def start_safely() -> Iterator[None]:
    """Let processes that are started meanwhile import nothing from the current folder, which may be a stranger's."""
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise InputError("Processes need a Python that was not started with -E alone; add -P, or take one process.")
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
