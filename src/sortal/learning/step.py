"""One step of training: outputs of the whole batch, losses, gradients, update; over processes, and within memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext

import torch
from lightning_fabric import Fabric
from torch import Tensor

from sortal.batches import Batch
from sortal.compute import Compute, out_of_memory
from sortal.errors import SortalError
from sortal.methods.method import Method

logger = logging.getLogger(__name__)

WARM = 3  # steps before they are recorded as a CUDA graph


class Step:
    """Updates a method by a batch; `names` are those of its losses, in order.

    Losses are taken on the gathered outputs of all processes, and only their gradients go back through each process's
    own part. So any number of processes, and of chunks that a part is cut into, gives the gradients of one process with
    the whole batch.
    """

    def __init__(
        self, fabric: Fabric, method: Method, compute: Compute, optimizer: torch.optim.Optimizer, chunks: int
    ) -> None:
        self.fabric = fabric
        self.method = method
        self.compute = compute
        self.chunks = chunks
        self.names: list[str] = []
        self.model, self.optimizer = fabric.setup(method, optimizer)
        self._forward: Callable[[Tensor], Tensor] = self.model
        if fabric.world_size == 1:  # elsewhere the wrapper sums up gradients
            self._forward = compute.faster(method)
        self._graph: _Graph | None = None
        self._steps = 0

    def __call__(self, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor) -> Tensor:
        """Do one step and give its losses, (terms,).

        `images` and `labels` belong to this process's `inputs`: first views, then second ones of the same images.
        `progress` is the share of all epochs that is done.
        """
        if self._graph is not None:
            return self._graph(inputs, images, labels, progress)
        self._steps += 1
        if self._steps == WARM + 1 and self.compute.device.type == "cuda" and self.fabric.world_size == 1:
            self._graph = _record(self._fitting, inputs, images, labels, progress)
            if self._graph is not None:
                return self._graph(inputs, images, labels, progress)
            self.optimizer.zero_grad()  # gradients that were recorded, but never computed
        return self._fitting(inputs, images, labels, progress)

    def _fitting(self, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor) -> Tensor:
        """A step in as many chunks as fit."""
        if self.fabric.world_size > 1 and self._steps == 1:
            self._rehearse(inputs)
        while True:
            try:
                terms, batch = self._gradients(inputs, images, labels, progress)
                break
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if self.chunks >= len(inputs) or self.fabric.world_size > 1:  # others are waiting, and cannot go back
                    raise self._too_large() from error
            self._halve()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.method.settle(batch)
        return terms

    def _rehearse(self, inputs: Tensor) -> None:
        """Find the chunks that fit all processes, before they wait for each other."""
        while True:
            short, problem = torch.zeros(1, device=self.compute.device), None
            try:
                with self.fabric.no_backward_sync(self.model), self.compute.autocast():
                    outputs = self._forward(inputs.chunk(self.chunks)[0])
                    self.fabric.backward(outputs, torch.zeros_like(outputs))
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                short, problem = short + 1, error
            self.optimizer.zero_grad()
            if not self.fabric.all_reduce(short, reduce_op="sum").item():  # type: ignore[union-attr]
                return
            if self.chunks >= len(inputs):  # in all of them, so that none waits for ever
                raise self._too_large() from problem
            self._halve()

    def _halve(self) -> None:
        self.optimizer.zero_grad()
        self.chunks *= 2
        logger.warning("Memory ran out; batches now go through in %d chunks, with the same result.", self.chunks)

    def _too_large(self) -> SortalError:
        return SortalError(
            f"Memory ran out with batches in {self.chunks} chunks. Use more chunks, a smaller batch_size or a smaller "
            "backbone."
        )

    def _gradients(self, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor) -> tuple[Tensor, Batch]:
        parts = inputs.chunk(self.chunks)
        with torch.set_grad_enabled(len(parts) == 1), self.compute.autocast():
            outputs = torch.cat([self._forward(part) for part in parts])
        whole = self._gather(outputs.detach()).requires_grad_()
        batch = Batch(whole, self._gather(images), self._gather(labels), progress)
        losses = self.method.losses(batch)
        self.names = list(losses)
        terms = torch.stack(list(losses.values()))
        (gradient,) = torch.autograd.grad(terms.sum(), whole)
        # Each process has the loss of the whole batch; the wrapper takes the mean over processes of what goes back.
        own = self._own(gradient) * self.fabric.world_size
        if len(parts) == 1:
            self.fabric.backward(outputs, own)
        else:
            pieces = own.split([len(part) for part in parts])
            for i, (part, piece) in enumerate(zip(parts, pieces, strict=True)):
                more = i + 1 < len(parts) and self.fabric.world_size > 1
                with self.fabric.no_backward_sync(self.model) if more else nullcontext(), self.compute.autocast():
                    again = self._forward(part)
                    self.fabric.backward(again, piece)
        return terms.detach(), batch

    def _gather(self, values: Tensor) -> Tensor:
        """Rows of all processes: the first views of each, then the second ones."""
        if self.fabric.world_size == 1:
            return values
        gathered: Tensor = self.fabric.all_gather(values)  # type: ignore[assignment]  # (processes, views, ...)
        by_view: Tensor = gathered.unflatten(1, (2, -1)).transpose(0, 1)  # (2, processes, images, ...)
        return by_view.flatten(0, 2)

    def _own(self, rows: Tensor) -> Tensor:
        """This process's part of gathered rows."""
        by_view: Tensor = rows.unflatten(0, (2, self.fabric.world_size, -1))[:, self.fabric.global_rank]
        return by_view.flatten(0, 1)


class _Graph:
    """A step recorded as a CUDA graph: the same kernels, launched all at once."""

    def __init__(self, graph: torch.cuda.CUDAGraph, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        self.graph = graph
        self.inputs = inputs
        self.result = result

    def __call__(self, *values: Tensor) -> Tensor:
        for mine, value in zip(self.inputs, values, strict=True):
            mine.copy_(value)
        self.graph.replay()
        return self.result.clone()


def _record(step: Callable[..., Tensor], *values: Tensor) -> _Graph | None:
    """Record a step without doing it; None where something in it cannot be recorded."""
    inputs = tuple(value.clone() for value in values)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads go on reading images
            result = step(*inputs)
    except RuntimeError as error:
        logger.warning("Steps are not recorded as a CUDA graph, so slower: %s", str(error).splitlines()[0])
        torch.cuda.synchronize()
        return None
    return _Graph(graph, inputs, result)
