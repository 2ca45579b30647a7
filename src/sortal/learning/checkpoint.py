"""Checkpoints: the identity of a training run, its state, and the file that it resumes from."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sortal.config import Training
from sortal.images.image_set import ImageSet
from sortal.images.moments import Moments
from sortal.images.store.pixel_store import PixelStore
from sortal.learning.backbones.backbone import digest
from sortal.learning.backbones.weights import check_header
from sortal.learning.methods.code import code_of
from sortal.learning.methods.method import Method
from sortal.runs.facts import TrainingResult
from sortal.system.files import write_atomically
from sortal.system.regular_files import parse_json, read_regular

logger = logging.getLogger(__name__)

CHECKPOINT, PREVIOUS_CHECKPOINT = "checkpoint.safetensors", "checkpoint.previous.safetensors"
DAMAGED_CHECKPOINT = "checkpoint.damaged.safetensors"
NOT_IN_KEY = ("chunks", "compile", "precision")  # settings that change nothing but rounding
# Settings that runs of 1.0 may not have in their keys, with their defaults, which are left out: they train as before.
ADDED_SETTINGS = {"windows": False}
GOOD, BEST = "good.", "best."  # prefixes of copies in a checkpoint


def run_key(
    method: Method, images: ImageSet, store: PixelStore, config: Training, moments: Moments | None = None
) -> dict[str, str]:
    """Return everything that determines the result of a run, as text and digests: equal keys mean the same run."""
    every = {name: value for name, value in asdict(config).items() if name not in NOT_IN_KEY}
    settings = dict(item for item in every.items() if item not in ADDED_SETTINGS.items())
    trained = [name for name, value in method.named_parameters() if value.requires_grad]
    order = content_order(images, store)
    data = hashlib.sha256(store.made.encode())
    for column in (store.digests, images.labels, images.validation):
        data.update(np.ascontiguousarray(column[order]).data)
    if moments is not None and moments.any_burst:
        data.update(Moments.grouped(moments.of[order]).of.data)
    given = Moments.grouped(images.groups[order])
    if moments is not None and given.any_burst:
        data.update(given.of.data)
    return {
        "settings": json.dumps({"method": method.settings(), "trained": trained, **settings}, sort_keys=True),
        "weights": digest(method.state_dict(), json.dumps(method.backbone.spec.described())),
        "images": data.hexdigest(),
        "code": code_of(method),
    }


def changed_parts(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """List the parts of two keys that differ, with the old and new values of changed settings."""
    parts = [name for name, value in now.items() if before.get(name) != value]
    old, new = (
        {**ADDED_SETTINGS, **each, **each["method"]} for each in (json.loads(key["settings"]) for key in (before, now))
    )
    names = [name for name in new if old.get(name) != new[name] and name not in ("method", "trained")]
    changed = ", ".join(f"{name} was {old.get(name)!r}, is {new[name]!r}" for name in names)
    return [f"{part} ({changed})" if part == "settings" and changed else part for part in parts]


def content_order(images: ImageSet, store: PixelStore) -> NDArray[np.int64]:
    """Order rows by content, then label, then validation mark, so that the order of the files does not matter."""
    return np.lexsort((images.validation, images.labels, store.digests))


@dataclass
class TrainingProgress:
    """The position of a run in its training."""

    epoch: int = 0  # the current one
    step: int = 0  # steps done of this epoch
    sums: dict[str, float] = field(default_factory=dict)  # losses and norms, summed over this epoch's steps
    best: float | None = None  # accuracy on the validation images
    best_epoch: int | None = None
    chunks: int = 1
    last: dict[str, float] = field(default_factory=dict)  # mean losses of the last complete epoch
    log_size: int = 0  # bytes of the log up to this state
    seconds: float = 0.0  # of training
    views: int | None = None  # cached views per image; None if every epoch has new views
    devices: list[str] = field(default_factory=list)  # that held the weights, in order; several if it was resumed
    setbacks: list[str] = field(default_factory=list)  # epochs that failed and were repeated, in words

    def result(self, images_per_epoch: int) -> TrainingResult:
        """Summarise the training so far."""
        selected = self.epoch - 1 if self.best_epoch is None else self.best_epoch
        return TrainingResult(
            epochs=self.epoch,
            selected=selected if self.epoch else None,
            validation=self.best,
            losses=self.last,
            views=self.views,
            seconds=self.seconds,
            images_per_second=self.epoch * images_per_epoch / max(self.seconds, 1e-9),
            devices=tuple(self.devices),
            setbacks=tuple(self.setbacks),
        )


@dataclass
class Checkpoint:
    """The key of a run (see `run_key`), its progress, and its tensors by name."""

    key: dict[str, str]
    progress: TrainingProgress
    tensors: dict[str, Tensor]
    final: bool = False  # whether training is complete, so that only its result is loaded


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint, and keep the one before it until the next save, if there is to be one."""
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    state = json.dumps({"key": checkpoint.key, **asdict(checkpoint.progress)})
    content = to_bytes(tensors, metadata={"sortal": state, "digest": digest(tensors, state)})
    with suppress(FileNotFoundError):
        os.replace(folder / CHECKPOINT, folder / PREVIOUS_CHECKPOINT)
    write_atomically(folder / CHECKPOINT, content)
    if checkpoint.final:
        (folder / PREVIOUS_CHECKPOINT).unlink(missing_ok=True)


def load(folder: Path) -> Checkpoint | None:
    """Load the newest intact checkpoint, or return None."""
    found = [path for name in (CHECKPOINT, PREVIOUS_CHECKPOINT) if (path := folder / name).is_file()]
    for path in found:
        try:
            check_header(path)  # before it is read, as a sparse file would not fit into memory
            return parse(read_regular(path))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            logger.warning("Ignoring the damaged checkpoint %s: %s", path, error)
            os.replace(path, folder / DAMAGED_CHECKPOINT)  # or the next save would replace the intact one by it
    if found:
        logger.warning("No checkpoint is intact; training starts over.")
    return None


def parse(content: bytes) -> Checkpoint:
    """Parse and verify the bytes of a checkpoint file."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        tensors = from_bytes(content)
        header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    text = header["__metadata__"]["sortal"]
    if header["__metadata__"]["digest"] != digest(tensors, text):
        raise ValueError("its content does not match its digest")
    state: dict[str, Any] = parse_json(text)
    return Checkpoint(state.pop("key"), TrainingProgress(**state), tensors)


class TrainingState:
    """The state of a method's training; tensors change in place, as CUDA graphs hold them."""

    def __init__(self, method: Method, config: Training) -> None:
        self.method = method
        self.optimiser = method.optimiser(self.trainable(), config)
        self.progress, self.epochs = TrainingProgress(chunks=config.chunks), config.epochs
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
        """Return the state as a checkpoint of the run with this key; once it is complete, without its momentum."""
        final = self.progress.epoch >= self.epochs
        kept = {name: value for name, value in self.tensors().items() if not final or name.startswith("weight.")}
        tensors = kept | {f"{BEST}{name}": value for name, value in self.best.items()}
        if self.progress.step:  # otherwise they are the same
            tensors |= {f"{GOOD}{name}": value for name, value in self.good.items()}
        return Checkpoint(key, self.progress, tensors, final)

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
