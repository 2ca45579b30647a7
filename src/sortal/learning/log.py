"""A run's log: one JSON object a line, and TensorBoard's events where that is installed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sortal.run import LOG


class Journal:
    """Appends records to `folder`/log.jsonl, of which only the first `size` bytes are kept; silent without a folder."""

    def __init__(self, folder: Path | None, *, size: int = 0, epoch: int = 0) -> None:
        self.size = size
        self._file, self._board = None, None
        if folder is not None:
            self._file = (folder / LOG).open("ab")
            self.size = min(size, self._file.tell())  # it may have been cut or deleted since
            self._file.truncate(self.size)
            self._board = _tensorboard(folder / "tensorboard", epoch)

    def write(self, event: str, **values: Any) -> None:
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
        """Make sure that all so far is on disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path, epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=epoch)
