"""How work reports where there is a terminal, a notebook or neither."""

import io
import json
import sys
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sortal.system import progress
from sortal.system.progress import Runtime, ignore, shown


class Stream(io.StringIO):
    """Standard error that tells when a text was written."""

    def __init__(self, *, wanted: str = "", terminal: bool = False) -> None:
        super().__init__()
        self.wanted, self.terminal, self.seen = wanted, terminal, Event()

    def wait_for(self, wanted: str) -> None:
        self.wanted = wanted
        self.seen.clear()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.wanted in self.getvalue():
            self.seen.set()
        return count


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delitem(sys.modules, "IPython", raising=False)


def test_without_a_terminal_there_is_a_line_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.LINE_EVERY <= 30
    monkeypatch.setattr(progress, "LINE_EVERY", 0.01)
    stream = Stream(wanted="[2/7] Training: 3 of 40\n")
    monkeypatch.setattr(sys, "stderr", stream)
    with shown(Runtime(), "Starting") as runtime:
        runtime.note("A note.")
        runtime.progress("[2/7] Training", 3, 40)
        assert stream.seen.wait(60)
        stream.wait_for("sortal: [2/7] Training: 13 of 40, ")
        runtime.progress("[2/7] Training", 13, 40)
        assert stream.seen.wait(60)
        stream.wait_for("sortal: Loading, for ")
        runtime.progress("Loading", 0, 0)
        assert stream.seen.wait(60)
    assert stream.getvalue().startswith("sortal: A note.\n")


def test_a_program_that_watches_reads_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = Stream(terminal=True), 100.0
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    monkeypatch.setenv(progress.WATCHED_BY_PROGRAM, "1")
    with shown(Runtime(), "Reading") as runtime:
        runtime.progress("Training", 0, 40)
        runtime.progress("Training", 1, 40)  # too soon after the one before
        now += 10
        runtime.progress("Training", 10, 40)
        runtime.note("A note.")
    *records, note = stream.getvalue().splitlines()
    assert [json.loads(line) for line in records] == [
        {"task": "Reading", "done": 0, "total": 0, "left": None},
        {"task": "Training", "done": 0, "total": 40, "left": None},
        {"task": "Training", "done": 10, "total": 40, "left": 30.0},
    ]
    assert note == "sortal: A note."


def test_a_notebook_has_one_line_that_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress, "REDRAW_EVERY", 0.0)
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown(Runtime()) as runtime:
        runtime.progress("Training", 10, 40)
        runtime.progress("Training", 20, 40)
    first, second, blank = [line for line in stream.getvalue().split("\r") if line]
    assert first.rstrip() == f"{'█' * 5}{'░' * 15} Training: 10 of 40"
    assert second.startswith(f"{'█' * 10}{'░' * 10} Training: 20 of 40, ")
    assert (blank.strip(), "\n" in stream.getvalue()) == ("", False)


def test_what_the_caller_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    seen: list[Any] = []
    mine = Runtime(progress=lambda *state: seen.append(state), note=seen.append)
    with shown(mine) as runtime:
        assert runtime == mine
    with shown(Runtime(), wanted=False) as runtime:
        assert runtime == Runtime()
    assert stream.getvalue() == ""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with shown(Runtime()) as runtime:
        assert runtime.progress is ignore, "one of several processes shows it"
    monkeypatch.delenv("RANK")
    with shown(Runtime()) as runtime:
        runtime.progress("Training", 1, 2)
    assert "Training" in stream.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    with shown(Runtime()) as runtime:
        runtime.note("heard by nobody")


def test_the_library_reports_by_itself() -> None:
    """Calls of public functions show progress unless they are told not to."""
    from inspect import signature

    import sortal

    assert isinstance(sortal, ModuleType)
    for function in (sortal.discover, sortal.predict):
        assert signature(function).parameters["progress"].default is True
