"""Enter in the terminal, in processes with a terminal of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from sortal.system.progress import WATCHED_BY_PROGRAM
from sortal.system.terminal import on_enter

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals on Windows", allow_module_level=True)
import pty

PROGRAM = """
import sys, time
from sortal.system.terminal import on_enter
with on_enter(lambda: print("pressed", flush=True), lambda: print("alone", flush=True)) as listening:
    print("listening" if listening else "deaf", flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
print("ended", flush=True)
"""
# Starts the program in a process group that is not the one in the foreground, as a shell does with `&`.
BACKGROUND = f"""
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {PROGRAM!r}], process_group=0)
print("child", child.pid, flush=True)
child.wait()
"""


class Terminal:
    """A program that has a terminal."""

    def __init__(self, program: str, log: Path) -> None:
        self.log = log
        self.pid, self.keys = pty.fork()
        if not self.pid:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.execv(sys.executable, [sys.executable, "-c", program])

    def press(self, keys: bytes) -> None:
        os.write(self.keys, keys)

    def wait_for(self, text: str, times: int = 1) -> None:
        until = monotonic() + 60
        while self.log.read_text().count(text) < times:
            assert monotonic() < until, self.log.read_text()
            sleep(0.01)

    def end(self) -> int:
        until = monotonic() + 60
        while monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            sleep(0.01)
        raise AssertionError("It does not end.")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A file for what a program prints."""
    path = tmp_path / "log"
    path.touch()
    return path


def test_enter_is_noticed_and_ctrl_c_still_ends(log: Path) -> None:
    terminal = Terminal(PROGRAM, log)
    terminal.wait_for("listening")
    terminal.press(b"\n")
    terminal.wait_for("pressed")
    terminal.press(b"anything\n")
    terminal.wait_for("pressed", 2)
    terminal.press(b"\x04")  # Ctrl-D ends the listening, and nothing else
    terminal.press(b"\x03")
    terminal.wait_for("interrupted")
    assert terminal.end() == 0
    assert log.read_text().split() == ["listening", "pressed", "pressed", "interrupted", "ended"]


def test_a_program_in_the_background_is_not_stopped(log: Path) -> None:
    terminal = Terminal(BACKGROUND, log)
    terminal.wait_for("listening")
    child = int(log.read_text().split()[1])
    terminal.press(b"\n")
    for _ in range(3):
        sleep(0.3)  # it gets a few chances to read what it must not
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True, check=True)
        assert not state.stdout.startswith("T"), "it was stopped"
    assert "pressed" not in log.read_text()
    os.kill(child, signal.SIGINT)
    terminal.wait_for("interrupted")
    terminal.end()


@pytest.mark.parametrize("how", ["pipe", "nothing", "closed"])
def test_without_a_terminal_nothing_is_read(how: str) -> None:
    program = PROGRAM.replace("time.sleep(600)", "print(sys.stdin and sys.stdin.read(), flush=True)")
    words = [sys.executable, "-c", program]
    if how == "closed":
        words = ["sh", "-c", 'exec "$@" <&-', "sh", *words]
    stdin = subprocess.DEVNULL if how == "nothing" else subprocess.PIPE
    with subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, errors = process.communicate("a line\n" if how == "pipe" else None, timeout=60)
    assert process.returncode == 0, errors
    assert out.split("\n")[0] == "deaf"
    assert how != "pipe" or "a line" in out


def test_in_this_process_it_leaves_no_thread_behind() -> None:
    import threading

    before = threading.active_count()
    with on_enter(lambda: None, lambda: None):
        pass
    assert threading.active_count() == before


def test_a_pipe_will_do_if_a_program_watches() -> None:
    for watched, heard in ((False, "deaf"), (True, "listening")):
        environment = {**os.environ, **({WATCHED_BY_PROGRAM: "1"} if watched else {})}
        words = [sys.executable, "-c", PROGRAM]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == f"{heard}\n"
            if watched:
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "pressed\n"
                process.stdin.close()  # as when that program ends
                assert process.stdout.readline() == "alone\n"
            process.kill()
