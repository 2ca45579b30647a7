"""Checkpoints: the identity of a training run, and the state that it resumes from, in one file."""

import hashlib
import json
import logging
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
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


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint, and keep the one before it until the next save."""
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    state = json.dumps({"key": checkpoint.key, **asdict(checkpoint.progress)})
    content = to_bytes(tensors, metadata={"sortal": state, "digest": digest(tensors, state)})
    with suppress(FileNotFoundError):
        os.replace(folder / CHECKPOINT, folder / PREVIOUS_CHECKPOINT)
    write_atomically(folder / CHECKPOINT, content)


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
