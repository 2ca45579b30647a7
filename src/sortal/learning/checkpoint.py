"""Checkpoints: the state that a run resumes from, in one file that is written atomically."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sortal.learning.backbones.backbone import digest
from sortal.system.files import write_atomically

logger = logging.getLogger(__name__)

NAME, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
DAMAGED = "checkpoint.damaged.safetensors"


@dataclass
class TrainingProgress:
    """The position of a run in its training."""

    epoch: int = 0  # the current one
    step: int = 0  # steps done of this epoch
    sums: dict[str, float] = field(default_factory=dict)  # losses, summed over this epoch's steps
    best: float | None = None  # accuracy on the validation images
    best_epoch: int | None = None
    chunks: int = 1
    last: dict[str, float] = field(default_factory=dict)  # mean losses of the last complete epoch
    log_size: int = 0  # bytes of the log up to this state
    seconds: float = 0.0  # of training
    views: int | None = None  # cached views per image; None if every epoch has new views


@dataclass
class Checkpoint:
    """The key of a run (see `fingerprint`), its progress, and its tensors by name."""

    key: dict[str, str]
    progress: TrainingProgress
    tensors: dict[str, Tensor]


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint; the previous one is deleted by the next save."""
    from safetensors.torch import save as to_bytes

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    state = json.dumps({"key": checkpoint.key, **asdict(checkpoint.progress)})
    content = to_bytes(tensors, metadata={"sortal": state, "digest": digest(tensors, state)})
    path = folder / NAME
    if path.exists():
        os.replace(path, folder / PREVIOUS)
    write_atomically(path, content)


def load(folder: Path) -> Checkpoint | None:
    """Load the newest intact checkpoint, or return None."""
    for name in (NAME, PREVIOUS):
        path = folder / name
        if path.is_file():
            try:
                return parse(path.read_bytes())
            except (ValueError, KeyError, TypeError, OSError) as error:
                logger.warning("Ignoring the damaged checkpoint %s: %s", path, error)
                os.replace(path, folder / DAMAGED)  # or the next save would replace the intact one by it
                if name == PREVIOUS or not (folder / PREVIOUS).is_file():
                    logger.warning("No checkpoint is intact; training starts over.")
    return None


def parse(content: bytes) -> Checkpoint:
    """Parse and verify the bytes of a checkpoint file."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        tensors = from_bytes(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    text = header["__metadata__"]["sortal"]
    if header["__metadata__"]["digest"] != digest(tensors, text):
        raise ValueError("its content does not match its digest")
    state: dict[str, Any] = json.loads(text)
    return Checkpoint(state.pop("key"), TrainingProgress(**state), tensors)
