"""Run functions in child processes that start at once and may be killed at any moment.

A server process imports the heavy libraries and all modules of Sortal once, and forks a child for each call. It
computes nothing itself: torch's threads do not survive a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

LIBRARIES = ("scipy.cluster.hierarchy", "sklearn.cluster", "timm", "torch.utils.tensorboard")
LIMIT = 300  # seconds after which a child that hangs is ended
KILLED = -signal.SIGKILL


@dataclass
class Ended:
    """How a child ended, and what it said before."""

    code: int = 0  # its exit code; below 0: the signal that killed it
    peak: int = 0  # bytes of memory that it, or a process that it started, had at most
    said: list[list[Any]] = field(default_factory=list)  # the words of each `say`

    def each(self, kind: str) -> list[Any]:
        """What followed the word `kind`: one value for each `say(kind, value)`, else a list."""
        return [words[1] if len(words) == 2 else words[1:] for words in self.said if words[0] == kind]


class ForkServer:
    """The server, seen from a test."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"  # what all children wrote to standard error
        tests = str(Path(__file__).parents[1])  # whose folders hold the functions to call
        paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from support import fork_server; fork_server._serve()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
            )
        assert self._words() == ["ready"]

    def run(
        self,
        function: Callable[..., int | None],
        *values: Any,
        kill: Callable[[list[Any]], bool] | None = None,
        codes: Collection[int] = (0, KILLED),
    ) -> Ended:
        """Call a module's function with JSON values in a child; what it returns is the exit code.

        The child is killed as soon as `kill` is true of something it said. It must end with one of `codes`.
        """
        self._send([function.__module__, function.__qualname__, *values])
        (pid,) = self._words()
        ended = Ended()
        while (words := self._words()) != ["ended"]:
            ended.said.append(words)
            if kill is not None and kill(words):
                os.kill(pid, signal.SIGKILL)
                kill = None
        self._send(["reap"])
        ended.code, ended.peak = self._words()
        assert ended.code in codes, self.errors.read_text()
        return ended

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def _send(self, words: list[Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def _words(self) -> list[Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        words: list[Any] = json.loads(line)
        return words


@cache
def shared() -> ForkServer:
    """Return the one server of this pytest process, which ends with it."""
    folder = tempfile.TemporaryDirectory()
    server = ForkServer(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(server.close)
    return server


# In a child


def say(*words: Any) -> None:
    """Tell the test something; the words must be JSON."""
    os.write(_OUT, (json.dumps(words) + "\n").encode())  # one write, so that a kill cannot cut a line short


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_operations(
    names: Sequence[str],
    fatal: int | None = None,
    counts: Callable[[tuple[Any, ...], dict[str, Any]], bool] | None = None,
) -> Callable[[], int]:
    """Count the calls of functions of `os`, and die before the one of number `fatal`; return what tells the count.

    `counts(values, named)` says whether a call with these arguments is counted at all.
    """
    count = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            nonlocal count
            if counts is None or counts(values, named):
                count += 1
                if count == fatal:
                    die()
            return operation(*values, **named)

        return call

    for name in names:
        setattr(os, name, counted(getattr(os, name)))
    return lambda: count


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Tell by Linux's /proc whether a process runs, of whatever parent."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


# The server itself

_OUT = 1


def _serve() -> None:
    global _OUT
    import sortal

    ours = [module.name for module in pkgutil.walk_packages(sortal.__path__, "sortal.")]
    for name in (*LIBRARIES, *ours):
        if not name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra that is not installed
                importlib.import_module(name)
    os.fsync = lambda fd: None  # children are killed, which loses nothing that was written
    _OUT = os.dup(1)
    os.dup2(2, 1)  # what children print is not for the test
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        module, name, *values = json.loads(line)
        function = getattr(importlib.import_module(module), name)
        pid = os.fork()
        if pid == 0:
            signal.alarm(LIMIT)
            say(os.getpid())
            code = 1
            with contextlib.suppress(Exception):
                try:
                    code = function(*values) or 0
                except BaseException:
                    traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)
        # No other process gets this number before it is waited for, so the test can kill it safely until then.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        say("ended")
        sys.stdin.readline()
        _, status, usage = os.wait4(pid, 0)
        say(os.waitstatus_to_exitcode(status), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    os._exit(0)  # unloading the libraries in order takes seconds
