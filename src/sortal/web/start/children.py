"""Commands in processes of their own: how far they are, what they said, and what they answered."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import IO, Any, Literal, TypeAlias

from sortal.errors import InputError
from sortal.system.progress import WATCHED_BY_PROGRAM
from sortal.system.text import plural

ChildState: TypeAlias = Literal["running", "stopping", "done", "stopped", "failed"]
INTERRUPTED_CODE = 130
DONE_CODES = (0, 1, 3)  # 1 from a check that found the same image under two labels
MOST_OUTPUT = 64 * 2**20  # characters of an answer that are kept
LONGEST_LINE = 2**20  # characters that are read at once
MOST_NOTES, MOST_KEPT, MOST_RUNNING = 30, 40, 8
LINK_PATIENCE = 20.0  # seconds until a review prints another link
LAST_PATIENCE = 20.0  # seconds that commands may take to end
AHEAD = ("check", "forecast")  # what a person looks at before sorting
ERROR_PREFIX, NOTE_PREFIX, LINK_PREFIX = "sortal: error: ", "sortal: ", "Review: "
ANSWERS_TO_SIGNALS = ("stopping…", "interrupted")  # notes that a person who pressed a button does not need


class Child:
    """A command that runs in a process of its own; a person can close the page meanwhile, and open it again."""

    def __init__(self, number: int, kind: str, asked: Mapping[str, Any], words: Sequence[str]) -> None:
        self.number, self.kind, self.asked, self.words = number, kind, asked, tuple(words)
        self.state: ChildState = "running"
        self.progress: dict[str, Any] = {"task": "Starting", "done": 0, "total": 0, "left": None}
        self.notes: deque[str] = deque(maxlen=MOST_NOTES)
        self.error = self._last_line = self.output = ""
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._links: SimpleQueue[str] = SimpleQueue()
        self.has_link = False
        self.replaced = False  # whether another command has stopped it, and not a person
        self._since, self._seconds = monotonic(), 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sortal", *words],
            env={**os.environ, WATCHED_BY_PROGRAM: "1", "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",
            start_new_session=True,  # or Ctrl-C in the terminal would reach it, too
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        readers = [
            threading.Thread(target=read, args=(stream,), daemon=True)
            for read, stream in ((self._read_output, self._process.stdout), (self._read_messages, self._process.stderr))
        ]
        for reader in readers:
            reader.start()
        self._end = threading.Thread(target=self._wait, args=(readers,), daemon=True)
        self._end.start()

    @property
    def is_running(self) -> bool:
        return self.state in ("running", "stopping")

    def stop(self) -> None:
        """Ask the command to stop, as Ctrl-C does; the second time, at once."""
        with self._lock:
            if self.is_running:
                self.state = "stopping"
                self._process.terminate()

    def join(self, patience: float) -> None:
        """Wait until the command has ended, but not for longer than some seconds."""
        self._end.join(patience)

    def kill(self) -> None:
        """End the command at once, with the processes that it has started, unless it has ended."""
        with self._lock, suppress(ProcessLookupError):
            if not self.is_running:
                return
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)

    def link(self) -> str:
        """Return a link into the review that the command serves, which works once."""
        with self._asking, suppress(Empty, OSError, ValueError):
            link = ""
            while not self._links.empty():  # of those that nobody has got, only the last works
                link = self._links.get()
            if link:
                return link
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            return self._links.get(timeout=LINK_PATIENCE)
        raise InputError("The review does not answer. End it, and open it again.")

    def answer(self) -> Any:
        """Return what the command printed: JSON as its value, anything else as text."""
        try:
            return json.loads(self.output)
        except ValueError:
            return self.output

    def to_json(self) -> dict[str, Any]:
        """Describe how far the command is."""
        return {
            "number": self.number,
            "kind": self.kind,
            "asked": self.asked,
            "state": self.state,
            "progress": self.progress,
            "notes": [*self.notes],
            "error": self.error,
            "seconds": round(monotonic() - self._since if self.is_running else self._seconds, 1),
            "has_link": self.has_link,
            "replaced": self.replaced,
        }

    def _read_output(self, stream: IO[str]) -> None:
        parts, length = list[str](), 0
        for line in _lines(stream):
            if self.kind == "review" and line.startswith(LINK_PREFIX):
                self._links.put(line.removeprefix(LINK_PREFIX).strip())
                self.has_link = True
            elif length <= MOST_OUTPUT:
                parts.append(line)
                length += len(line)
        self.output = "".join(parts)

    def _read_messages(self, stream: IO[str]) -> None:
        for line in map(str.rstrip, _lines(stream)):
            if line.startswith("{"):
                with suppress(ValueError):
                    self.progress = json.loads(line)
                continue
            if line.startswith(ERROR_PREFIX):
                self.error = line.removeprefix(ERROR_PREFIX)
            elif line.startswith(NOTE_PREFIX):
                note = line.removeprefix(NOTE_PREFIX)
                if not note.startswith(ANSWERS_TO_SIGNALS):
                    self.notes.append(note)
            self._last_line = line or self._last_line

    def _wait(self, readers: Sequence[threading.Thread]) -> None:
        code = self._process.wait()
        for reader in readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        self._seconds, self.has_link = monotonic() - self._since, False
        with self._lock:
            if not self.error and code in DONE_CODES and (self.output or code != 1):
                self.state = "done"
            elif code == INTERRUPTED_CODE or (self.state == "stopping" and not self.error):
                self.state = "stopped"
            else:
                self.error = self.error or self._last_line or _ending(code)
                self.state = "failed"


def _lines(stream: IO[str]) -> Iterator[str]:
    """Read lines, and those that are too long in parts."""
    return iter(lambda: stream.readline(LONGEST_LINE), "")


def _ending(code: int) -> str:
    if code < 0:  # by a signal
        return "The command was ended from outside; perhaps there was not enough memory."
    return f"The command ended with exit code {code}."


class Children:
    """The commands that were started, those that have ended among them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = 0
        self._all: list[Child] = []

    def __iter__(self) -> Iterator[Child]:
        return iter([*self._all])

    def start(self, kind: str, asked: Mapping[str, Any], words: Sequence[str]) -> Child:
        """Start a command; of checks and forecasts, only the last goes on, and a second run has to wait."""
        with self._lock:
            running = [each for each in self._all if each.is_running]
            for each in running:
                if each.kind == kind == "sort":
                    raise InputError("A folder is being sorted. Wait until it is done, or stop it.")
                if each.kind in AHEAD and kind in (each.kind, "sort"):
                    each.replaced = True
                    each.stop()
                elif (each.kind, each.asked) == (kind, asked):
                    return each
            if len(running) >= MOST_RUNNING:
                raise InputError(
                    f"{plural(len(running), 'command is', 'commands are')} running. Stop one of them first."
                )
            ended = [each for each in self._all if not each.is_running]
            for each in ended[: max(len(self._all) - MOST_KEPT, 0)]:
                self._all.remove(each)
            self._started += 1
            child = Child(self._started, kind, asked, words)
            self._all.append(child)
            return child

    def get(self, number: object) -> Child:
        """Return a command by its number."""
        for child in self:
            if child.number == number and not isinstance(number, bool):
                return child
        raise InputError("There is no such command any more.")

    def close(self) -> None:
        """Stop all commands, and wait until they have ended; end what is left then, or at another Ctrl-C."""
        running, until = [child for child in self if child.is_running], monotonic() + LAST_PATIENCE
        try:
            for child in running:
                child.stop()
            for child in running:
                child.join(max(until - monotonic(), 0))
        finally:
            for child in running:
                child.kill()
