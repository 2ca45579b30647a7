"""How a review starts and ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from conftest import SortedRun
from support.reviews import Client, answers, saved_run, serving, session_of, token_of, wait_for
from support.thorough import thorough_but

import sortal
from sortal.cli.app import main
from sortal.discovery.reviewing.open import open_review, serve
from sortal.errors import InputError
from sortal.reviews.session import Session
from sortal.runs.run import Run
from sortal.web.app.server import UVICORN_SETTINGS, Server


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return saved_run(tmp_path / "a run")


def test_only_one_review_of_a_run_at_a_time_and_only_of_a_run(tmp_path: Path, run: Run) -> None:
    with pytest.raises(InputError, match="A run must be a folder"):
        open_review(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with serving(session_of(run)) as client, pytest.raises(InputError, match=r"cannot be used: .* Choose another port"):
        Server(session_of(run), port=client.server.port)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a process at the end, which a failed test would wait for."""
    try:
        yield
    finally:
        process.kill()


def test_the_command_serves_until_ctrl_c(sorted_run: SortedRun, tmp_path: Path) -> None:
    folder = sorted_run.copy(tmp_path / "run").out
    words = [sys.executable, "-m", "sortal", "review", str(folder), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process, ended(process):
        assert process.stdout is not None
        link = process.stdout.readline()
        assert re.match(r"Review: http://127\.0\.0\.1:\d+/#token=[\w-]{32}\n$", link)
        port = int(link.rpartition(":")[2].partition("/")[0])
        try:
            with pytest.raises(InputError, match="Another process is using"):
                sortal.review(folder, browser=False)
            wait_for(lambda: answers(port))
        finally:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_variables_for_other_servers_change_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "many")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with serving(session_of(run)) as client:
        client.enter()
        assert client.ask("GET", "/api/version", X_Forwarded_Host="evil.example", X_Forwarded_For="::1").code == 200


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="the browser is a script")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_browser_that_stays_does_not_keep_the_review(sorted_run: SortedRun, tmp_path: Path, number: int) -> None:
    """Not every browser leaves the terminal at once, and a signal to the review is none to it."""
    script, ready = tmp_path / "browser", tmp_path / "ready"
    script.write_text(f"#!/bin/sh\necho $$ > {ready}.new\nmv {ready}.new {ready}\nexec sleep 600\n")
    script.chmod(0o700)
    folder = sorted_run.copy(tmp_path / "run").out
    environment = {**os.environ, "BROWSER": str(script), "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "sortal", "review", str(folder)]
    with (
        (tmp_path / "errors").open("wb+") as said,  # a pipe would stay open as long as the browser
        subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
        ) as process,
    ):
        try:
            wait_for(ready.exists)
            process.send_signal(number)
            process.wait(timeout=60)
        finally:
            process.kill()
            if ready.exists():
                os.kill(int(ready.read_text()), signal.SIGKILL)
    assert (process.returncode, (tmp_path / "errors").read_bytes()) == (0, b"")
    assert not [*tmp_path.glob("sortal-review-*")]


def test_several_people_get_a_link_each_and_no_browser_opens_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    opened: list[str] = []
    with Server(session_of(run, ("ada", "bob"))) as server:
        monkeypatch.setattr(server, "run", lambda *, browser: opened.append(browser))
        serve(server, browser=True, say=said.append)
    assert [line.partition(": ")[0] for line in said[0].splitlines()] == ["Review by ada", "Review by bob"]
    assert len({token_of(line.split()[-1]) for line in said[0].splitlines()}) == 2
    assert opened == [""]


@pytest.mark.parametrize("what", ["review", "start page"])
def test_the_browser_opens_the_link_that_is_printed(run: Run, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    opened: list[str] = []
    with Server(session_of(run)) as server:
        monkeypatch.setattr(server, "run", lambda *, browser: opened.append(browser))
        serve(server, browser=True, say=said.append, what=what)
    assert [f"{what.capitalize()}: {link}" for link in opened] == said[:1]
    assert opened[0].startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--people", "ada", "Ada"], "People must have different names, got ada, Ada."),
        (["--certificate-key", "key.pem"], "A key needs its certificate."),
        (["--certificate", "none.pem"], "The file 'none.pem' cannot be read: No such file or directory."),
    ],
    ids=lambda each: "",
)
def test_the_command_refuses_what_makes_no_sense(
    copied_run: SortedRun, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["review", str(copied_run.out), *options]) == 2
    assert message in capsys.readouterr().err


def test_the_end_during_a_long_answer_is_no_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun, over = threading.Event(), threading.Event()

    def queue(self: Session, by: str = "") -> dict[str, Any]:
        begun.set()
        over.wait(60)
        return {"items": []}

    monkeypatch.setattr(Session, "queue", queue)
    monkeypatch.setitem(UVICORN_SETTINGS, "timeout_graceful_shutdown", 0.1)  # seconds
    with serving(session_of(run)) as client:
        client.enter()
        asking = threading.Thread(target=lambda: _ask(client), daemon=True)
        asking.start()
        assert begun.wait(60)
        client.server.stop()
        threading.Timer(0.5, over.set).start()  # after the server has given up waiting
    asking.join(60)
    assert capfd.readouterr().err == ""


def _ask(client: Client) -> None:
    with suppress(OSError, HTTPException):
        client.ask("GET", "/api/queue")


@pytest.mark.skipif(os.name != "posix", reason="other systems end a process without its handlers")
@pytest.mark.parametrize("number", thorough_but([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]), ids=str)
def test_a_review_that_ends_while_it_imports_waits_for_that(sorted_run: SortedRun, tmp_path: Path, number: int) -> None:
    """A thread within a library in C++ at the end of Python aborts the process, so none may be left behind."""
    folder, begun, done = sorted_run.copy(tmp_path / "run").out, tmp_path / "begun", tmp_path / "done"
    code = f"""
import pathlib, sys, threading, time
from sortal.cli.app import main
from sortal.discovery.reviewing import open
def slowly(name):
    pathlib.Path({str(begun)!r}).touch()
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    pathlib.Path({str(done)!r}).touch()
open.import_module = slowly
sys.exit(main(["review", {str(folder)!r}, "--no-browser"]))
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process, ended(process):
        wait_for(begun.exists)
        assert process.stdout is not None
        process.stdout.readline()  # the link, after which signals end the review
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, done.exists()) == (0, True), errors
