"""One training step: forward pass, losses of the whole batch, gradients, update; distributed, and fitted to memory."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sortal.config import Training
from sortal.errors import InputError, SortalError, listing
from sortal.learning.batches import Batch
from sortal.learning.methods.method import Method
from sortal.learning.optimiser import Optimiser
from sortal.system.device import Compute, is_out_of_memory
from sortal.system.distributed import Processes
from sortal.system.text import plural

logger = logging.getLogger(__name__)

WARM = 3  # eager steps before one is recorded as a CUDA graph
GRADIENT_NORM = "gradient_norm"  # its name beside those of the losses


def schedule(config: Training, epoch: int, done: float = 0.0) -> float:
    """Return the learning rate of an epoch: a linear warm-up, then a cosine or one step from lr to final_lr · lr.

    A warm-up by step rises within the epoch; `done` is the fraction of the epoch that will be done after the next step.
    """
    end, epochs = config.lr * config.final_lr, max(config.epochs, 1)
    before = config.warmup * epochs
    if epoch < before:
        at = min(epoch + done, before) if config.warmup_by == "step" else epoch
        return end + (config.lr - end) * at / before
    if config.schedule == "step":
        return config.lr if epoch / epochs < config.drop_at else end  # not drop_at · epochs: 0.55 · 100 exceeds 55
    return end + (config.lr - end) * (1 + math.cos(math.pi * (epoch - before) / (epochs - before))) / 2


@dataclass(eq=False)
class TrainingStep:
    """Updates a method's weights with one batch; `names` lists its losses in order, and the norm of the gradient.

    Of several processes, each computes the outputs of its own views, which may be many or none. All compute the losses
    on the outputs of the whole batch; then each backpropagates the gradient of its own, in chunks. So the gradients do
    not depend on the number of processes or chunks.
    """

    processes: Processes
    method: Method
    compute: Compute
    optimiser: Optimiser
    chunks: int

    def __post_init__(self) -> None:
        self.names: list[str] = []
        self._forward = self.compute.maybe_compile(self.method)
        self.processes.broadcast_tensors([*self.method.parameters(), *self.method.buffers()])
        self._graph: Callable[..., Tensor] | None = None
        self._steps = 0

    def __call__(
        self, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Update the weights with a `Batch`, first views first; return the values of `names`.

        With several processes, `inputs` are those of this process, at these `places` of the batch.
        """
        self._steps += 1
        alone, graphable = self.processes.size == 1, self.method.graphable and self.optimiser.graphable
        if self._steps == WARM + 1 and self.compute.device.type == "cuda" and alone and graphable:
            self._graph = _record(self._fitting, inputs, images, labels, progress)
            if self._graph is None:
                self.optimiser.zero_grad()  # recorded, but never computed
        if self._graph is not None:
            return self._graph(inputs, images, labels, progress)
        return self._fitting(inputs, images, labels, progress, places)

    def _fitting(
        self, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Do one step, doubling the chunks until it fits in memory."""
        if self.processes.size > 1 and self._steps == 1:
            self._rehearse(inputs, len(images))
        while True:
            try:
                terms, batch = self._gradients(inputs, images, labels, progress, places)
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                alone = self.processes.size == 1  # other processes would wait, and cannot retry
                self._double_chunks(error, possible=alone and self.chunks < len(inputs))
        norm = self.optimiser.step()
        self.optimiser.zero_grad()
        with torch.no_grad():
            self.method.after_step(batch)
        return torch.cat([terms, norm[None]])

    def _rehearse(self, inputs: Tensor, views: int) -> None:
        """Double the number of chunks until they fit in all processes, before processes wait for each other.

        A process computes a random share of the views of a batch, hardly ever more than four standard deviations above
        the mean.
        """
        mean = views / self.processes.size
        most = min(math.ceil(mean + 4 * math.sqrt(mean)), views)
        like = inputs.new_zeros(most, *inputs.shape[1:])
        while True:
            short, problem = torch.zeros(1, device=self.compute.device), None
            try:
                with self.compute.autocast():
                    outputs = self._forward(like.chunk(self.chunks)[0])
                outputs.backward(torch.zeros_like(outputs))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                short, problem = short + 1, error
            self.optimiser.zero_grad()
            if not self.processes.sum(short).item():
                return
            self._double_chunks(problem, possible=self.chunks < most)  # raises in all processes, or in none

    def _double_chunks(self, problem: RuntimeError | None, *, possible: bool) -> None:
        if not possible:
            raise SortalError(
                f"Out of memory with batches split into {plural(self.chunks, 'chunk')}. Use more chunks, a smaller "
                "batch_size or a smaller backbone."
            ) from problem
        self.optimiser.zero_grad()
        self.chunks *= 2
        logger.warning("Out of memory: batches are now split into %d chunks, with the same result.", self.chunks)

    def _gradients(
        self, inputs: Tensor, images: Tensor, labels: Tensor, progress: Tensor, places: Tensor | None
    ) -> tuple[Tensor, Batch]:
        """Accumulate the gradients of the whole batch; return the losses and the batch."""
        parts = inputs.chunk(self.chunks)
        with torch.set_grad_enabled(len(parts) == 1), self.compute.autocast():
            outputs = torch.cat([self._forward(part) for part in parts])
        whole = self._whole(outputs.detach(), len(images), places).requires_grad_()
        batch = Batch(whole, images, labels, progress)
        losses = self.method.losses(batch)
        terms = torch.stack(list(losses.values()))
        if self.names != [*losses, GRADIENT_NORM]:  # the first ones, or others
            self._check_weights(terms)
            self.names = [*losses, GRADIENT_NORM]
        (gradient,) = torch.autograd.grad(terms.sum(), whole)
        own = gradient if places is None else gradient[places.to(gradient.device)]
        if len(parts) == 1:
            outputs.backward(own)
        else:
            for part, piece in zip(parts, own.split([len(part) for part in parts]), strict=True):
                with self.compute.autocast():
                    again = self._forward(part)
                again.backward(piece)
        self.processes.sum_in_place(value.grad for value in self.method.parameters() if value.grad is not None)
        return terms.detach(), batch

    def _check_weights(self, terms: Tensor) -> None:
        """Refuse losses that depend on weights other than through `forward`: these would never be trained."""
        names = {id(value): name for name, value in self.method.named_parameters()}
        waiting, seen, found = [terms.grad_fn], set(), set[str]()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                found.add(names.get(id(getattr(node, "variable", None)), ""))
                waiting += [before for before, _ in node.next_functions]
        if untrained := sorted(found - {""}):
            raise InputError(
                f"Weights must be used in forward, which alone is trained, but the losses of "
                f"{type(self.method).__name__} use {listing(untrained)}. Return what they compute from forward."
            )

    def _whole(self, outputs: Tensor, views: int, places: Tensor | None) -> Tensor:
        """Gather the outputs of the whole batch, (views, ...), from all processes."""
        if places is None:
            return outputs
        dtype = torch.promote_types(outputs.dtype, torch.float32)  # in which every backend can add
        whole = torch.zeros((views, *outputs.shape[1:]), dtype=dtype, device=outputs.device)
        whole[places.to(outputs.device)] = outputs.to(dtype)
        return self.processes.sum(whole).to(outputs.dtype)  # of values and zeros: exact


def _record(step: Callable[..., Tensor], *values: Tensor) -> Callable[..., Tensor] | None:
    """Record a step, without executing it, as a CUDA graph, which launches all kernels at once; None if that fails."""
    inputs = [value.clone() for value in values]
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads still read images
            result = step(*inputs)
    except RuntimeError as error:
        logger.warning("Steps run without a CUDA graph, which is slower: %s", str(error).splitlines()[0])
        torch.cuda.synchronize()
        return None

    def replay(*values: Tensor) -> Tensor:
        for mine, value in zip(inputs, values, strict=True):
            mine.copy_(value)
        graph.replay()
        return result.clone()

    return replay
