"""Commands in processes of their own: progress, answers, errors, stopping."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import hostile_folder
from support.reviews import wait_for

from sortal.errors import InputError
from sortal.web.start import children as children_module
from sortal.web.start.children import Child, Children

REPORTS = """
import json, signal, sys, time
def tell(**record): print(json.dumps(record), file=sys.stderr, flush=True)
def end(*_):
    print("sortal: stopping… (press Ctrl-C again to stop at once)", file=sys.stderr)
    print("sortal: interrupted; run the same command to resume", file=sys.stderr)
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
"""


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    """Children that run Python code, given as their only word, in place of a command of Sortal."""
    popen = subprocess.Popen

    def run_code(words: list[str], **options: Any) -> subprocess.Popen[str]:
        assert words[:4] == [sys.executable, "-P", "-m", "sortal"]
        return popen([sys.executable, "-c", REPORTS + words[4]], **options)

    monkeypatch.setattr(subprocess, "Popen", run_code)
    found = Children()
    yield found
    found.close()


def ended(child: Child) -> Child:
    wait_for(lambda: not child.is_running)
    return child


def test_a_command_tells_how_far_it_is_and_what_it_found(children: Children) -> None:
    code = """
tell(task="Checking images", done=3, total=4, left=1.5)
print("sortal: A note.", file=sys.stderr, flush=True)
sys.stdin.readline()
print(json.dumps({"images": 4}))
"""
    child = children.start("check", {"at": "photos"}, [code])
    wait_for(lambda: child.notes)
    told = child.to_json()
    assert told["progress"] == {"task": "Checking images", "done": 3, "total": 4, "left": 1.5}
    assert (told["state"], told["notes"], told["asked"]) == ("running", ["A note."], {"at": "photos"})
    assert child._process.stdin is not None
    child._process.stdin.write("\n")
    child._process.stdin.flush()
    assert ended(child).state == "done"
    assert child.answer() == {"images": 4}
    assert json.dumps(child.to_json())


@pytest.mark.parametrize(
    ("code", "state", "error"),
    [
        ("print('sortal: error: No images.', file=sys.stderr); sys.exit(2)", "failed", "No images."),
        ("sys.exit(3)", "done", ""),
        ("print('{}'); sys.exit(1)", "done", ""),  # a check that found something
        ("sys.exit(1)", "failed", "The command ended with exit code 1."),
        ("raise RuntimeError('a bug')", "failed", "RuntimeError: a bug"),
        ("sys.exit(130)", "stopped", ""),
        (
            "import os; tell(task='Learning'); os.kill(os.getpid(), signal.SIGKILL)",
            "failed",
            "The command was ended from outside; perhaps there was not enough memory.",
        ),
    ],
)
def test_the_end_of_a_command_in_words(children: Children, code: str, state: str, error: str) -> None:
    child = ended(children.start("check", {}, [code]))
    assert (child.state, child.error) == (state, error)


def test_stopping_ends_a_command_which_can_be_started_again(children: Children) -> None:
    code = "tell(task='Learning', done=0, total=1, left=None)\ntime.sleep(60)"
    child = children.start("sort", {"at": "a"}, [code])
    wait_for(lambda: child.progress["task"] == "Learning")
    with pytest.raises(InputError, match="A folder is being sorted"):
        children.start("sort", {"at": "b"}, [code])
    child.stop()
    assert (ended(child).state, child.error, [*child.notes]) == ("stopped", "", [])
    again = children.start(child.kind, child.asked, child.words)
    assert again.is_running
    assert children.get(again.number) is again
    children.close()
    assert again.state == "stopped"
    for number in (99, True, "1", None):
        with pytest.raises(InputError, match="no such command"):
            children.get(number)


def test_of_checks_only_the_last_goes_on_and_none_while_sorting(children: Children) -> None:
    wait = "tell(task='Waiting', done=0, total=0, left=None)\ntime.sleep(60)"
    first, other = children.start("check", {"at": "a"}, [wait]), children.start("review", {"at": "a"}, [wait])
    wait_for(lambda: first.progress["task"] == other.progress["task"] == "Waiting")
    second = children.start("check", {"at": "b"}, [wait])
    assert ended(first).state == "stopped"
    assert [each.to_json()["replaced"] for each in (first, other, second)] == [True, False, False]
    assert children.start("review", {"at": "a"}, [wait]) is other
    wait_for(lambda: second.progress["task"] == "Waiting")
    children.start("sort", {"at": "b"}, [wait])
    assert ended(second).state == "stopped"
    assert other.is_running


def test_a_review_gives_a_link_as_often_as_it_is_asked_for(children: Children) -> None:
    code = """
print("Review: http://127.0.0.1:1/#token=0", flush=True)
for number, _ in enumerate(sys.stdin, 1): print(f"Review: http://127.0.0.1:1/#token={number}", flush=True)
"""
    child = children.start("review", {}, [code])
    wait_for(lambda: child.has_link)
    assert [child.link()[-1] for _ in range(3)] == ["0", "1", "2"]
    with ThreadPoolExecutor(4) as people:
        links = [*people.map(lambda _: child.link(), range(4))]
    assert sorted(link[-1] for link in links) == ["3", "4", "5", "6"], "each is another one, and the last works"
    child.stop()
    assert not ended(child).has_link
    with pytest.raises(InputError, match="does not answer"):
        child.link()


def test_what_has_ended_is_forgotten_and_not_too_much_runs(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children_module, "MOST_KEPT", 2)
    monkeypatch.setattr(children_module, "MOST_RUNNING", 2)
    numbers = [ended(children.start("check", {}, ["pass"])).number for _ in range(5)]
    assert [child.number for child in children] == numbers[-3:]
    for at in "ab":
        children.start("review", {"at": at}, ["time.sleep(60)"])
    with pytest.raises(InputError, match="2 commands are running"):
        children.start("review", {"at": "c"}, [""])


def test_what_does_not_stop_is_ended_with_all_that_it_started(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that ignore signals share one time to end; Ctrl-C meanwhile ends them at once."""
    code = """
import os, subprocess
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell(task=str(helper.pid), done=0, total=0, left=None)
time.sleep(600)
"""
    monkeypatch.setattr(children_module, "LAST_PATIENCE", 0.2)
    for interrupted in (False, True):
        stubborn = [children.start("review", {"at": at}, [code]) for at in "ab"]
        wait_for(lambda: all(each.progress["task"].isdecimal() for each in stubborn))  # noqa: B023
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            if interrupted:
                patch.setattr(Child, "join", Mock(side_effect=KeyboardInterrupt))
            children.close()
        for child in stubborn:
            assert ended(child).state == "stopped"
            wait_for(lambda: not is_alive(int(child.progress["task"])))  # noqa: B023


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_stopping_what_has_just_ended_changes_nothing(children: Children) -> None:
    child = children.start("check", {}, ["print('{}')"])
    child._process.wait()
    with child._lock:  # in which its end is noted
        stop = threading.Thread(target=child.stop)
        stop.start()
        child.state = "done"
    stop.join()
    assert child.state == "done"


def test_a_long_answer_is_cut(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children_module, "MOST_OUTPUT", 3000)
    monkeypatch.setattr(children_module, "LONGEST_LINE", 100)
    child = ended(children.start("check", {}, ["print(json.dumps('x' * 2000))"]))
    assert child.answer() == "x" * 2000
    child = ended(children.start("check", {}, ["print('x' * 10**6)"]))
    assert 3000 <= len(child.output) <= 3100


def test_commands_import_nothing_from_the_chosen_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with a relative PYTHONPATH, which means the folder that the page was started in."""
    hostile = hostile_folder.write(tmp_path / "hostile")
    monkeypatch.setenv("PYTHONPATH", ".")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    children = Children()
    child = ended(children.start("check", {}, ["check", str(hostile), "--json"]))
    assert child.error
    assert not hostile_folder.taken(hostile)
