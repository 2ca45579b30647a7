"""app: which folder it shows, and when sortal alone opens it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import Terminal, invoke, refused
from support.own_processes import usual_signals
from support.reviews import answers, wait_for
from support.thorough import thorough_but

from sortal.cli import start


@pytest.mark.parametrize(
    "number", thorough_but([signal.SIGHUP], [signal.SIGINT, signal.SIGHUP])
)  # Ctrl-C, or the terminal is closed
def test_the_page_is_served_until_ctrl_c(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "sortal", "app", str(tmp_path), "--no-browser"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, preexec_fn=usual_signals) as process:
        assert process.stdout is not None
        link = process.stdout.readline()
        assert link.startswith("Start page: http://127.0.0.1:")
        assert "#token=" in link
        assert process.stdout.readline() == "Ctrl-C ends the start page.\n"
        wait_for(lambda: answers(int(link.split(":")[3].partition("/")[0])))
        process.send_signal(number)
        try:
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, errors) == (0, "", "")


def test_a_folder_to_choose_from_must_exist(tmp_path: Path) -> None:
    assert "The folder to choose from must exist" in refused("app", tmp_path / "missing")


def test_sortal_alone_opens_the_page_only_where_somebody_can_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(start, "has_screen", lambda: True)
    assert not start.is_for_page(), "the streams of a test are no terminal"
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, Terminal())
    assert start.is_for_page()
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
    assert not start.is_for_page()
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setattr(start, "has_screen", lambda: False)
    assert not start.is_for_page()


def test_sortal_alone_is_the_command_app_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "is_for_page", lambda: True)
    monkeypatch.setattr(Path, "home", lambda: Path("/missing home"))
    assert "must exist, got '/missing home'" in refused()
    assert invoke("--help").out.startswith("Usage: sortal")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="there is always a screen")
def test_a_screen_is_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not start.has_screen()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert start.has_screen()
