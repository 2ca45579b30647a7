"""Checkpoints: everything a run needs to go on, in one file that is whole or not there."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sortal.network import digest
from sortal.segments import write_atomically

logger = logging.getLogger(__name__)

NAME, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
DAMAGED = "checkpoint.damaged.safetensors"


@dataclass
class Progress:
    """How far a run is."""

    epoch: int = 0  # the one that is being trained
    step: int = 0  # of this epoch, done
    sums: dict[str, float] = field(default_factory=dict)  # of the losses of this epoch's steps
    best: float | None = None  # accuracy on the validation images
    best_epoch: int | None = None
    chunks: int = 1
    last: dict[str, float] = field(default_factory=dict)  # mean losses of the last whole epoch
    log_size: int = 0  # bytes of the log that belong to this state
    seconds: float = 0.0  # of training, so far
    views: int | None = None  # cached views of an image; None for new ones in every epoch


@dataclass
class Checkpoint:
    """What a run was started with, which must stay the same, its progress and its tensors by name."""

    key: dict[str, str]
    progress: Progress
    tensors: dict[str, Tensor]


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint; the one before stays, until the next."""
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    state = json.dumps({"key": checkpoint.key, **asdict(checkpoint.progress)})
    content = to_bytes(tensors, metadata={"sortal": state, "digest": digest(tensors, state)})
    path = folder / NAME
    if path.exists():
        os.replace(path, folder / PREVIOUS)
    write_atomically(path, content)


def load(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none."""
    for name in (NAME, PREVIOUS):
        path = folder / name
        if path.is_file():
            try:
                return parse(path.read_bytes())
            except (ValueError, KeyError, TypeError, OSError) as error:
                logger.warning("The checkpoint %s is damaged and left aside: %s", path, error)
                os.replace(path, folder / DAMAGED)  # else the next save would put it in the place of the good one
                if name == PREVIOUS or not (folder / PREVIOUS).is_file():
                    logger.warning("No checkpoint is whole: the run starts afresh.")
    return None


def parse(content: bytes) -> Checkpoint:
    """A checkpoint from the bytes of its file, verified."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        tensors = from_bytes(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    text = header["__metadata__"]["sortal"]
    if header["__metadata__"]["digest"] != digest(tensors, text):
        raise ValueError("it does not hold what was written")
    state: dict[str, Any] = json.loads(text)
    return Checkpoint(state.pop("key"), Progress(**state), tensors)
