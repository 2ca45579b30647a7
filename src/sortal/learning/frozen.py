"""The frozen trunk at work: crops of stored images go to the device and come out as what the tail needs."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from sortal import workers
from sortal.compute import Compute, out_of_memory
from sortal.errors import SortalError
from sortal.network import Backbone
from sortal.store import PixelStore
from sortal.views import Crops

logger = logging.getLogger(__name__)

READERS = min(8, workers.count(None))  # threads that prepare batches
ON_CPU = 64  # views at once where there is no GPU: of more than its caches hold, each takes longer
AHEAD = READERS + 2  # batches that are prepared before they are asked for

In = TypeVar("In")
Out = TypeVar("Out")


class Frozen:
    """Crops in, rows out, without gradients: a backbone's trunk, or all of it, in batches that fit the device.

    Where memory runs out, batches are halved, and that is said.
    """

    def __init__(self, backbone: Backbone, compute: Compute, *, whole: bool = False) -> None:
        self.backbone = backbone
        self.compute = compute
        trunk = backbone.in_bf16() if compute.bf16 else backbone  # so that no batch casts weights
        self.largest: int | None = None  # rows that fit, once more did not

        def run(pixels: Tensor, flipped: Tensor) -> Tensor:
            tokens = trunk.trunk(trunk.normalise(pixels, flipped))
            return backbone.tail(tokens) if whole else tokens

        self._run = compute.faster(run)

    @torch.no_grad()
    def __call__(self, pixels: Tensor, flipped: Tensor) -> Tensor:
        """Rows for crops that are on the device, (n, size, size, 3) and (n,)."""
        while True:
            size = min(self.largest or len(pixels), len(pixels))
            try:
                with self.compute.autocast():
                    parts = [
                        self._run(pixels[i : i + size], flipped[i : i + size]) for i in range(0, len(pixels), size)
                    ]
                return parts[0] if len(parts) == 1 else torch.cat(parts)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if size == 1:
                    raise SortalError(
                        "Memory is too small for one image. Use a smaller backbone or image_size."
                    ) from error
            self.largest = size // 2
            logger.warning("Memory ran out with %d images at once; going on with %d.", size, self.largest)

    def stream(self, store: PixelStore, crops: Iterable[Crops]) -> Iterator[Tensor]:
        """The rows of each batch of crops, which are cut ahead by other threads."""
        usual = 0  # rows of a batch; a compiled function is not given fewer, which would be compiled anew
        for pixels, flipped in load(store, crops, size=self.backbone.spec.image_size, device=self.compute.device):
            n, usual = len(pixels), max(usual, len(pixels))
            more = usual - n if self.compute.compiled else 0
            yield self(_padded(pixels, more), _padded(flipped, more))[:n]


def _padded(rows: Tensor, more: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(more, *rows.shape[1:])]) if more else rows


def load(
    store: PixelStore, crops: Iterable[Crops], *, size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of crops on the device: pixels, (n, size, size, 3) uint8, and which are to be mirrored, (n,)."""
    pinned = device.type == "cuda"

    def cut(batch: Crops) -> tuple[Tensor, Tensor]:
        pixels = torch.empty((len(batch.rows), size, size, 3), dtype=torch.uint8, pin_memory=pinned)
        store.crops(batch.rows, batch.tops, batch.lefts, size, out=pixels.numpy())
        flipped = torch.from_numpy(np.ascontiguousarray(batch.flipped))
        return pixels, flipped.pin_memory() if pinned else flipped

    for pixels, flipped in ahead(cut, crops):
        yield pixels.to(device, non_blocking=True), flipped.to(device, non_blocking=True)


def ahead(work: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
    """`work` of each item in order, done by other threads a few items before it is asked for."""
    rest = iter(items)
    with ThreadPoolExecutor(READERS, thread_name_prefix="ahead") as pool:
        waiting: deque[Future[Out]] = deque(pool.submit(work, item) for item in islice(rest, AHEAD))
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(work, item) for item in islice(rest, 1))
                yield result
        finally:
            for future in waiting:
                future.cancel()
