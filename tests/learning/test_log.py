"""The log: whole lines, no more of them than a checkpoint vouches for, and curves beside them."""

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
    """What TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_records_are_lines_that_can_be_read_as_soon_as_they_are_written(tmp_path: Path) -> None:
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


def test_only_so_much_is_kept_and_the_rest_is_written_anew(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for epoch in range(4):
        if epoch == 2:
            size = log.size
        log.write("epoch", epoch=epoch, loss=1.0 * epoch)
    log.close()
    again = Log(tmp_path, size=size, epoch=2)
    assert [line["epoch"] for line in lines(tmp_path)] == [0, 1]
    again.write("epoch", epoch=2, loss=20.0)
    assert again.size == (tmp_path / LOG).stat().st_size
    again.close()
    assert [(line["epoch"], line["loss"]) for line in lines(tmp_path)] == [(0, 0.0), (1, 1.0), (2, 20.0)]


def test_a_torn_line_is_cut_off_and_a_new_journal_starts_with_nothing(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write("start")
    log.close()
    with (tmp_path / LOG).open("ab") as file:
        file.write(b'{"event": "epo')  # a kill in the midst of it
    Log(tmp_path, size=log.size).close()
    assert lines(tmp_path) == [{"event": "start"}]
    Log(tmp_path).close()
    assert (tmp_path / LOG).read_bytes() == b""


@pytest.mark.parametrize("left", ["", '{"event": "start"}\n'])
def test_lines_that_are_gone_are_not_made_up(tmp_path: Path, left: str) -> None:
    """Someone deleted the log, or a part of it, while the run was stopped."""
    (tmp_path / LOG).write_text(left)
    log = Log(tmp_path, size=500, epoch=3)
    log.write("epoch", epoch=3)
    log.close()
    assert (tmp_path / LOG).read_text() == left + '{"event": "epoch", "epoch": 3}\n'
    assert log.size == (tmp_path / LOG).stat().st_size


def test_sync_asks_the_disk_after_all_was_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path)
    asked: list[tuple[bool, int]] = []
    inode = (tmp_path / LOG).stat().st_ino
    monkeypatch.setattr(os, "fsync", lambda fd: asked.append((os.fstat(fd).st_ino == inode, os.fstat(fd).st_size)))
    log.write("start")
    assert asked == []
    log.sync()
    assert asked == [(True, log.size)]
    log.close()


def test_without_a_folder_it_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = Log(None)
    log.write("epoch", epoch=0, loss=1.0)
    log.sync()
    log.close()
    assert list(tmp_path.iterdir()) == []
    assert log.size == 0


def test_numbers_of_epochs_are_curves_in_tensorboard_and_replaced_when_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path)
    log.write("start", lr=0.5, epoch=0, note="only epochs are points of a curve")
    for epoch in range(4):
        log.write("epoch", epoch=epoch, loss=0.25 * epoch, lr=0.5, note="not a number")
    log.close()
    rates = [(epoch, 0.5) for epoch in range(4)]
    assert curves(tmp_path) == {"loss": [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)], "lr": rates}
    # Event files are read in the order of their names, which hold the second they were begun in.
    later = time.time() + 10
    monkeypatch.setattr(time, "time", lambda: later)
    again = Log(tmp_path, size=0, epoch=2)
    again.write("epoch", epoch=2, loss=2.0)
    again.close()
    assert curves(tmp_path) == {"loss": [(0, 0.0), (1, 0.25), (2, 2.0)], "lr": rates[:2]}


def test_lines_are_all_there_is_where_tensorboard_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    log = Log(tmp_path)
    log.write("epoch", epoch=0, loss=1.0)
    log.sync()
    log.close()
    assert lines(tmp_path) == [{"event": "epoch", "epoch": 0, "loss": 1.0}]
    assert [path.name for path in tmp_path.iterdir()] == [LOG]
