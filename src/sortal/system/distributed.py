"""This process among those that torchrun started: its device, its rank, and collective operations."""

import atexit
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sortal.errors import ElsewhereError, SortalError
from sortal.system.device import choose_device
from sortal.system.progress import Runtime
from sortal.system.workers import worker_count

BROADCAST_BYTES = 2**28  # bytes per broadcast of rows
PEERS_TIMEOUT = timedelta(days=1)  # processes wait while the first packs images; torchrun ends all if one dies
T = TypeVar("T")


@contextmanager
def _answered() -> Iterator[None]:
    """Raise ElsewhereError where a collective operation fails because another process is gone."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        message = "Another process of this run ended, or cannot be reached any more. Its own message says why."
        raise ElsewhereError(message) from error


class Peers:
    """The processes of `group` and their collective operations; without a group, this process alone."""

    def __init__(self, group: "dist.ProcessGroup | None" = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.size = dist.get_world_size(group) if group is not None else 1
        self.is_first = self.rank == 0

    def barrier(self) -> None:
        """Wait until every process has arrived."""
        self.gather_objects(None)

    def by_first(self, work: Callable[[], T]) -> T:
        """Call `work` in the first process only, and return its result in all; if it fails there, fail in all."""
        if self.size == 1:
            return work()
        if not self.is_first:
            found, failed = self.broadcast((None, False))
            if failed:
                raise ElsewhereError("The first process of this run failed. Its own message says why.")
            return found  # type: ignore[return-value]  # what the first one returned
        try:
            result = work()
        except SortalError:
            self.broadcast((None, True))
            raise
        return self.broadcast((result, False))[0]

    def in_turn(self, work: Callable[[], T]) -> T:
        """Call `work` in the first process, then in all others; each returns its own result."""
        found = [work()] if self.is_first else []
        self.barrier()
        return found[0] if found else work()

    @_answered()
    def broadcast(self, value: T) -> T:
        """Return the first process's `value`, which must be picklable."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, group_src=0, group=self.group)
        return values[0]

    @_answered()
    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the first process."""
        if self.size > 1:
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, group_src=0, group=self.group)
                tensor.data.copy_(values)

    @_answered()
    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the processes."""
        if self.size > 1:
            values = values.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(values, group=self.group)
        return values

    @_answered()
    def sum_in_place(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with their sums over the processes, in one operation."""
        parts = list(tensors) if self.size > 1 else []
        if parts:
            total = torch.cat([part.flatten() for part in parts])
            dist.all_reduce(total, group=self.group)
            for part, values in zip(parts, total.split([part.numel() for part in parts]), strict=True):
                part.copy_(values.view_as(part))

    @_answered()
    def gather_objects(self, value: Any) -> list[Any]:
        """Return the `value` of every process, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    @_answered()
    def stack(self, values: Tensor) -> Tensor:
        """Return (processes, ...): the equally shaped `values` of every process, in rank order."""
        if self.size == 1:
            return values[None]
        values = values.contiguous()
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values, group=self.group)
        return torch.stack(parts)

    def concat(self, values: Tensor) -> tuple[Tensor, int]:
        """Concatenate the 1-D `values` of all processes; return them and the start of this process's part."""
        if self.size == 1:
            return values, 0
        parts = self.gather_objects(values.cpu())
        return torch.cat(parts).to(values.device), sum(map(len, parts[: self.rank]))

    def share_of(self, n: int, rank: int | None = None) -> tuple[int, int]:
        """Return the bounds of the share of n rows that a process, by default this one, computes."""
        rank = self.rank if rank is None else rank
        return n * rank // self.size, n * (rank + 1) // self.size

    @_answered()
    def exchange_rows(self, rows: Tensor) -> None:
        """Fill in the rows that other processes computed, each its `share_of` them."""
        if self.group is None or not rows.numel():
            return
        device = torch.device("cuda") if dist.get_backend(self.group) == "nccl" else rows.device
        piece = max(BROADCAST_BYTES // rows[0].nbytes, 1)
        for rank in range(self.size):
            start, end = self.share_of(len(rows), rank)
            for at in range(start, end, piece):
                some = slice(at, min(at + piece, end))
                values = rows[some].contiguous().view(torch.uint8).to(device)  # no backend supports every type
                dist.broadcast(values, group_src=rank, group=self.group)
                rows[some] = values.view(rows.dtype)


class Processes(Peers):
    """Processes that compute together, each on a `device` of its own."""

    def __init__(self, device: torch.device, group: "dist.ProcessGroup | None" = None) -> None:
        super().__init__(group)
        self.device = device

    def runtime(self, runtime: Runtime) -> Runtime:
        """Return the runtime of this process: its device and its share of the workers; only the first one reports."""
        device = str(self.device)
        if self.size == 1:
            return replace(runtime, device=device)
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))  # on this host
        workers = max(worker_count(runtime.workers) // here, 1)
        if self.is_first:
            return replace(runtime, device=device, workers=workers)
        return Runtime(device=device, workers=workers, note=lambda _: None)


def alone(device: str) -> Processes:
    """Return this process alone, on a device by name."""
    return Processes(choose_device(device, None))


def launch(device: str) -> Processes:
    """Join the processes that torchrun started, on one host or several; without torchrun, this process is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return alone(device)
    chosen = choose_device(device, None)
    if chosen.type == "cuda":
        chosen = choose_device(f"cuda:{os.environ['LOCAL_RANK']}", None)
        torch.cuda.set_device(chosen)
    if not dist.is_initialized():
        with _answered(), _stdout_as_stderr():
            dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=PEERS_TIMEOUT)
        atexit.register(_leave)
    return Processes(chosen, dist.group.WORLD)


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    """Send to standard error what libraries write to standard output, which is for results: gloo greets its peers."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
    except (OSError, AttributeError):  # one of them is closed
        yield
        return
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
