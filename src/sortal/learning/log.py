"""The log of a training run: JSON lines, plus TensorBoard events if TensorBoard is installed."""

import json
import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from sortal.runs.run import LOG
from sortal.system.files import writing
from sortal.system.json_records import finite
from sortal.system.open_folder import make_folder
from sortal.system.regular_files import regular

EVENTS_VERSION = "brain.Event:2"  # of TensorBoard's files


class Log:
    """Appends records to `folder`/log.jsonl after cutting it to `size` bytes; without a folder, writes nothing."""

    def __init__(self, folder: Path | None, *, size: int = 0, epoch: int = 0) -> None:
        self._file = None if folder is None else _File(folder / LOG, size)
        self._curves: _Curves | None = None
        if folder is not None:
            with suppress(ImportError):
                self._curves = _Curves(folder / "tensorboard", epoch)

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return 0 if self._file is None else self._file.size

    def write(self, event: str, **values: Any) -> None:
        """Append a record; the numbers of an epoch go to TensorBoard too."""
        if self._file is not None:
            self._file.write((json.dumps({"event": event, **finite(values)}) + "\n").encode())
        if self._curves is not None and event == "epoch":
            numbers = {name: value for name, value in values.items() if isinstance(value, float)}
            self._curves.add_points(numbers, values["epoch"])

    def sync(self) -> None:
        """Flush all records to disk."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        for each in (self._file, self._curves):
            if each is not None:
                each.close()


class _File:
    """A file to append to, without a buffer, so that a failed write is reported once and not again on closing."""

    def __init__(self, path: Path, size: int = 0) -> None:
        """Open a file and cut it to this size, unless it is smaller."""
        self.path = path
        with writing(path):
            make_folder(path.parent)
            self._raw = open(path, "ab", buffering=0, opener=regular)  # noqa: SIM115 (closed by close())
        self._raw.truncate(min(size, self.size))

    @property
    def size(self) -> int:
        return os.fstat(self._raw.fileno()).st_size

    def write(self, content: bytes) -> None:
        left = memoryview(content)
        with writing(self.path):
            while left:
                left = left[self._raw.write(left) :]

    def sync(self) -> None:
        with writing(self.path):
            os.fsync(self._raw.fileno())

    def close(self) -> None:
        self._raw.close()


class _Curves(_File):
    """TensorBoard events, written in this thread, as errors in the thread of TensorBoard's writer are lost."""

    def __init__(self, folder: Path, epoch: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]

        name = f"events.out.tfevents.{int(time.time()):010d}.sortal.{os.getpid()}"  # not the host, as TensorBoard does
        numbered = (folder / f"{name}.{number}" for number in count())
        super().__init__(next(path for path in numbered if not path.exists()))
        self._add(Event(file_version=EVENTS_VERSION), 0)
        # Points of earlier files from this epoch on are no longer shown.
        self._add(Event(session_log=SessionLog(status=SessionLog.START)), epoch)

    def add_points(self, values: dict[str, float], epoch: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(Event(summary=Summary(value=points)), epoch)

    def _add(self, event: Any, epoch: int) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        event.wall_time, event.step = time.time(), epoch
        RecordWriter(self).write(event.SerializeToString())
