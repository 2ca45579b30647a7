"""All that training changes: weights, buffers, momentum and progress, with the copies that it may go back to."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sortal.config import Training
from sortal.learning.checkpoint import Checkpoint, TrainingProgress
from sortal.learning.methods.method import Method

GOOD, BEST = "good.", "best."  # prefixes of copies in a checkpoint


class TrainingState:
    """The state of a method's training; tensors change in place, as CUDA graphs hold them."""

    def __init__(self, method: Method, config: Training) -> None:
        self.method = method
        self.optimiser = method.optimiser(self.trainable(), config)
        self.progress = TrainingProgress(chunks=config.chunks)
        self.best: dict[str, Tensor] = {}  # weights and buffers of the best epoch
        self.good: dict[str, Tensor] = {}  # weights, buffers and momentum at the start of the epoch

    @property
    def device(self) -> torch.device:
        """Where the trained weights really are, whatever was asked for."""
        return next(iter(self.trainable().values())).device

    def trainable(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.method.named_parameters() if value.requires_grad}

    def weights(self) -> dict[str, Tensor]:
        """Return the trainable weights, and the method's own buffers and frozen weights, such as a teacher's."""
        named = (*self.method.named_parameters(), *self.method.named_buffers())
        return self.trainable() | {name: value for name, value in named if not name.startswith("backbone.")}

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, buffers and momentum, by the names they have in a checkpoint."""
        named = {"weight": self.weights(), "momentum": self.optimiser.buffers}
        return {f"{kind}.{name}": value for kind, values in named.items() for name, value in values.items()}

    def keep_best(self, accuracy: float) -> None:
        """Copy the weights of this epoch if none had a higher accuracy; of equals the later, trained for longer."""
        p = self.progress
        if p.best is None or accuracy >= p.best:
            p.best, p.best_epoch = accuracy, p.epoch
            self.best = copies(self.weights())

    def select_best(self) -> None:
        """Load the weights of the best epoch, if epochs were compared."""
        weights = self.weights()
        for name, value in self.best.items():
            weights[name].data.copy_(value)

    def keep_good(self) -> None:
        """Copy everything at the start of an epoch."""
        self.good = copies(self.tensors())

    def go_back(self) -> None:
        """Restore the start of the epoch."""
        for name, value in self.tensors().items():
            if name in self.good:
                value.data.copy_(self.good[name])
            else:  # momentum, before the first step
                value.zero_()

    def checkpoint(self, key: dict[str, str]) -> Checkpoint:
        """Return the state as a checkpoint of the run with this key."""
        tensors = self.tensors() | {f"{BEST}{name}": value for name, value in self.best.items()}
        if self.progress.step:  # otherwise they are the same
            tensors |= {f"{GOOD}{name}": value for name, value in self.good.items()}
        return Checkpoint(key, self.progress, tensors)

    def restore(self, found: Checkpoint) -> None:
        self.progress = found.progress
        held = {name: value.to(self.device) for name, value in found.tensors.items()}
        for name, value in self.weights().items():
            value.data.copy_(held[f"weight.{name}"])
        self.optimiser.buffers = _under("momentum.", held)
        self.best, self.good = _under(BEST, held), _under(GOOD, held)

    def is_result_of(self, found: Checkpoint) -> bool:
        """Tell whether the method already has the weights that a finished run selected."""
        kind = "weight." if found.progress.best is None else BEST
        return all(torch.equal(value.cpu(), found.tensors[kind + name]) for name, value in self.weights().items())


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy named tensors, so that training does not change them."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
