"""Rows spread over processes: the few collective operations clustering needs, each a no-op for one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

PIECE = 2**28  # bytes that go from one process to the others at once


class Shards:
    """The processes of `group`, each holding some of the rows; without a group this process holds them all."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.size = dist.get_world_size(group) if group is not None else 1

    def sum(self, values: Tensor) -> Tensor:
        """`values` added up over the processes."""
        if self.size > 1:
            values = values.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(values, group=self.group)
        return values

    def objects(self, value: Any) -> list[Any]:
        """The `value` of every process, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def stack(self, values: Tensor) -> Tensor:
        """(processes, ...): equally shaped `values` of every process, in rank order."""
        if self.size == 1:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        return torch.stack(parts)

    def concat(self, values: Tensor) -> tuple[Tensor, int]:
        """1-D `values` of every process end to end, and where this process's part starts."""
        if self.size == 1:
            return values, 0
        lengths = [int(n) for n in self.stack(torch.tensor([len(values)], device=values.device)).flatten()]
        padded = values.new_zeros(max(lengths))
        padded[: len(values)] = values
        parts = self.stack(padded)
        joined = torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])
        return joined, sum(lengths[: self.rank])

    def part(self, n: int) -> tuple[int, int]:
        """The bounds of this process's share of n rows."""
        return n * self.rank // self.size, n * (self.rank + 1) // self.size

    def complete(self, rows: Tensor) -> None:
        """Fill in the rows that the other processes computed; each has done its `part`."""
        if self.group is None or not rows.numel():
            return
        way = torch.device("cuda") if dist.get_backend(self.group) == "nccl" else rows.device  # NCCL knows no other
        piece = max(PIECE // rows[0].nbytes, 1)
        for rank in range(self.size):
            start, end = len(rows) * rank // self.size, len(rows) * (rank + 1) // self.size
            for at in range(start, end, piece):  # as bytes, since not every backend knows every type
                some = slice(at, min(at + piece, end))
                share = rows[some].contiguous().view(torch.uint8).to(way)
                dist.broadcast(share, src=dist.get_global_rank(self.group, rank), group=self.group)
                rows[some] = share.view(rows.dtype)
