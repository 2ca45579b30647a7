"""Two processes that run the same function, as one gloo group."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

Work = Callable[[int, Path], None]


def run_two(work: Work, folder: Path, *, seconds: float = 180) -> None:
    """Call work(rank, folder) in two processes and wait for both, but not for ever."""
    context = spawn(_one, (work, folder), nprocs=2, join=False)
    deadline = time.monotonic() + seconds
    while not context.join(timeout=5):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail("two processes did not end")


def _one(rank: int, work: Work, folder: Path) -> None:
    torch.set_num_threads(1)
    meet, patience = f"file://{folder}/meet", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2, timeout=patience)
    work(rank, folder)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads now and then abort a process that shuts down in good order
