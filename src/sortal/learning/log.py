"""The log of a training run: JSON lines, plus TensorBoard events if TensorBoard is installed."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from sortal.runs.run import LOG


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
        line = (json.dumps({"event": event, **_finite(values)}) + "\n").encode()
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


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
