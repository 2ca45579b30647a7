"""The log: complete lines, truncated to the last checkpoint, and curves in TensorBoard."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sortal.learning.log import Log
from sortal.runs.run import LOG


def lines(folder: Path) -> list[dict[str, Any]]:
    content = (folder / LOG).read_text(encoding="utf-8")
    assert content == "" or content.endswith("\n")
    return [json.loads(line) for line in content.splitlines()]


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the curves that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_records_are_readable_lines_as_soon_as_they_are_written(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"event": "start", "backbone": {"name": "convnet"}, "weights": "Äpfel\nund Birnen", "views": None},
        {"event": "epoch", "epoch": 0, "loss": 0.1 + 0.2},
    ]
    log = Log(tmp_path)
    for at, record in enumerate(records):
        log.write(**record)
        assert lines(tmp_path) == records[: at + 1]
        assert (tmp_path / LOG).stat().st_size == log.size > 0
    log.close()


def test_a_resumed_log_is_truncated_even_within_a_line_and_a_new_one_is_empty(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for epoch in range(4):
        if epoch == 2:
            size = log.size
        log.write("epoch", epoch=epoch, loss=1.0 * epoch)
    log.close()
    with (tmp_path / LOG).open("ab") as file:
        file.write(b'{"event": "epo')  # as if killed while writing
    again = Log(tmp_path, size=size, epoch=2)
    assert [line["epoch"] for line in lines(tmp_path)] == [0, 1]
    again.write("epoch", epoch=2, loss=20.0)
    assert again.size == (tmp_path / LOG).stat().st_size
    again.close()
    assert [(line["epoch"], line["loss"]) for line in lines(tmp_path)] == [(0, 0.0), (1, 1.0), (2, 20.0)]
    Log(tmp_path).close()
    assert (tmp_path / LOG).read_bytes() == b""


@pytest.mark.parametrize("left", ["", '{"event": "start"}\n'])
def test_a_log_shorter_than_expected_is_continued(tmp_path: Path, left: str) -> None:
    """The log or part of it was deleted while the run was stopped."""
    (tmp_path / LOG).write_text(left)
    log = Log(tmp_path, size=500, epoch=3)
    log.write("epoch", epoch=3)
    assert (tmp_path / LOG).read_text() == left + '{"event": "epoch", "epoch": 3}\n'
    assert log.size == (tmp_path / LOG).stat().st_size
    log.close()


def test_sync_flushes_everything_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    asked: list[tuple[bool, int]] = []
    inode = (tmp_path / LOG).stat().st_ino
    monkeypatch.setattr(os, "fsync", lambda fd: asked.append((os.fstat(fd).st_ino == inode, os.fstat(fd).st_size)))
    log.write("start")
    assert asked == []
    log.sync()
    assert asked == [(True, log.size)]
    log.close()


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = Log(None)
    log.write("epoch", epoch=0, loss=1.0)
    log.sync()
    log.close()
    assert list(tmp_path.iterdir()) == []
    assert log.size == 0


def test_numbers_of_epochs_are_curves_in_tensorboard_and_rewritten_epochs_replace_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path)
    log.write("start", lr=0.5, epoch=0, note="only epochs are points of a curve")
    for epoch in range(4):
        log.write("epoch", epoch=epoch, loss=0.25 * epoch, lr=0.5, note="not a number")
    log.close()
    rates = [(epoch, 0.5) for epoch in range(4)]
    assert curves(tmp_path) == {"loss": [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)], "lr": rates}
    # Event files are read in the order of their names, which contain the time in seconds.
    later = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: later)
    again = Log(tmp_path, size=0, epoch=2)
    again.write("epoch", epoch=2, loss=2.0)
    again.close()
    assert curves(tmp_path) == {"loss": [(0, 0.0), (1, 0.25), (2, 2.0)], "lr": rates[:2]}


def test_without_tensorboard_only_lines_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    log = Log(tmp_path)
    log.write("epoch", epoch=0, loss=1.0)
    log.sync()
    log.close()
    assert lines(tmp_path) == [{"event": "epoch", "epoch": 0, "loss": 1.0}]
    assert [path.name for path in tmp_path.iterdir()] == [LOG]
