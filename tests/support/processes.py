"""Two processes that run the same function, as one gloo group."""

import importlib
import os
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from support.fork_server import LIMIT, shared

Work = Callable[[int, Path], None]


def run_two(work: Work, folder: Path) -> None:
    """Call a module's work(rank, folder) in two processes and wait for both, but not for ever."""
    shared().run(_both, work.__module__, work.__qualname__, str(folder), codes=[0])


def _both(module: str, name: str, folder: str) -> int:
    """In a child: fork the two. Where one fails, the other is not left to wait for it."""
    work: Work = getattr(importlib.import_module(module), name)
    ranks = {_fork(rank, work, Path(folder)) for rank in range(2)}
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


def _fork(rank: int, work: Work, folder: Path) -> int:
    if pid := os.fork():
        return pid
    signal.alarm(LIMIT)
    try:
        torch.set_num_threads(1)
        meet, patience = f"file://{folder}/meet", timedelta(seconds=LIMIT)
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=patience)
        work(rank, folder)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # gloo's threads now and then abort a process that shuts down in good order
