"""The log of a training run: JSON lines, plus TensorBoard events if TensorBoard is installed."""

import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import sortal
from sortal.config import Training
from sortal.images.image_set import ImageSet
from sortal.learning.methods.method import Method
from sortal.runs.run import LOG
from sortal.system.distributed import Processes


class Log:
    """Appends records to `folder`/log.jsonl after cutting it to `size` bytes; without a folder, writes nothing."""

    def __init__(self, folder: Path | None, *, size: int = 0, epoch: int = 0) -> None:
        self.size = size
        self._file, self._board = None, None
        if folder is not None:
            self._file = (folder / LOG).open("ab")
            self.size = min(size, self._file.tell())  # the file may have been cut or deleted since
            self._file.truncate(self.size)
            with suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch)

    def write(self, event: str, **values: Any) -> None:
        """Append a record; the numbers of an epoch go to TensorBoard too."""
        if self._file is None:
            return
        line = (json.dumps({"event": event, **values}) + "\n").encode()
        self._file.write(line)
        self._file.flush()
        self.size += len(line)
        if self._board is not None and event == "epoch":
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, values["epoch"])

    def sync(self) -> None:
        """Flush all records to disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def describe_run(method: Method, images: ImageSet, config: Training, processes: Processes) -> dict[str, Any]:
    """Return the settings, data and versions that the first record of a log states."""
    backbone = method.backbone
    return {
        "method": type(method).__name__,
        "backbone": asdict(backbone.spec),
        "weights": backbone.source,
        "trained_blocks": backbone.trained,
        "settings": asdict(config),
        "images": len(images),
        "labelled": int(images.labelled.sum()),
        "unlabelled": int(images.unlabelled.sum()),
        "validation": int(images.validation.sum()),
        "device": str(processes.device),
        "processes": processes.size,
        "versions": {"sortal": sortal.__version__, "torch": torch.__version__},
    }
