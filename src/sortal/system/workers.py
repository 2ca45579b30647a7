"""Processes that read images: a file that kills its decoder costs one process and is named; nothing else is lost.

A worker is a fresh Python that imports no more than its task needs, so callers need no `if __name__ == "__main__"`.
Jobs go to it and results come back as lines of JSON; pixels of archives follow their line as raw bytes.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from time import monotonic
from typing import IO, Any, TypeAlias

import numpy as np

from sortal.errors import InputError, SortalError
from sortal.images import Source
from sortal.pixels import UnreadableError

Values: TypeAlias = dict[str, Any]  # what JSON can hold
Progress: TypeAlias = Callable[[str, int, int], None]  # what is being done, how many are done, of how many
Task: TypeAlias = Callable[[Source, Values], Values]  # (what to read, options of the run and of the job) -> result

PATIENCE = 300.0  # seconds for one image, after which the process is killed
AHEAD = 4  # jobs a worker has in hand, so that it never waits for the next one


@dataclass(frozen=True)
class Job:
    """One image for a task: the row it is, what to read, and options for this one."""

    row: int
    source: Source
    options: Mapping[str, Any] = field(default_factory=dict)


def count(workers: int | None) -> int:
    """How many workers to start: as many as there are cores for this process, unless told."""
    if workers is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}.")
    return workers


def run(
    task: Task, jobs: Iterable[Job], *, options: Mapping[str, Any] | None = None, workers: int | None = None
) -> Generator[tuple[int, Values]]:
    """Yield (row, result) as they come. A result with "reason" and "detail" is an image that could not be read."""
    waiting = iter(jobs)
    lock = threading.Lock()
    results: queue.SimpleQueue[tuple[int, Values] | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    running: set[_Worker] = set()

    def take() -> Job | None:
        with lock:
            return None if stop.is_set() else next(waiting, None)

    def serve() -> None:
        try:
            _serve(lambda: _Worker(task, options or {}, running), take, results.put, stop)
        except BaseException as error:
            results.put(error)
        results.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count(workers))]
    for thread in threads:
        thread.start()
    try:
        left, looked = len(threads), monotonic()
        while left:
            if monotonic() - looked > 1:
                looked = monotonic()
                for worker in list(running):
                    worker.kill_if_overdue()
            try:
                got = results.get(timeout=1)
            except queue.Empty:
                continue
            if got is None:
                left -= 1
            elif isinstance(got, BaseException):
                raise got
            else:
                yield got
    finally:
        stop.set()
        for thread in threads:
            while thread.is_alive():  # and may just be starting another process
                for worker in list(running):
                    worker.process.kill()
                thread.join(0.1)


def _serve(
    start: "Callable[[], _Worker]",
    take: Callable[[], Job | None],
    put: Callable[[tuple[int, Values]], None],
    stop: threading.Event,
) -> None:
    """Feed one worker until there are no more jobs, and replace it by another when it dies."""
    worker: _Worker | None = None
    given: deque[Job] = deque()
    try:
        while True:
            while len(given) < AHEAD and (job := take()) is not None:
                if worker is None:
                    worker = start()
                given.append(job)
                worker.send(job)
            if worker is None or not given:
                return
            if (result := worker.receive(given[0])) is not None:
                put((given.popleft().row, result))
                continue
            if stop.is_set():
                return
            put((given.popleft().row, worker.obituary()))
            worker = None
            if given:
                worker = start()
                for job in given:
                    worker.send(job)
    except BaseException:
        if worker is not None:
            worker.process.kill()  # what it is at does not matter any more
        raise
    finally:
        if worker is not None:
            worker.close()


class _Worker:
    """One process, and the pipes to it."""

    def __init__(self, task: Task, options: Mapping[str, Any], running: "set[_Worker]") -> None:
        self.said = 0  # how many bytes of `errors` are about jobs that are done
        self.since: float | None = None  # when the job it is at was first waited for
        self.overdue = False
        try:
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close()); decoders in C complain here
            self.process = self._start()
        except OSError as error:
            raise SortalError(f"A process that reads images could not start: {error}") from None
        self.running = running
        running.add(self)
        self._write(json.dumps({"module": task.__module__, "name": task.__qualname__, "options": dict(options)}))
        if self.receive() is None:
            raise SortalError(f"A process that reads images could not start: {self.obituary()['detail']}")

    def _start(self) -> subprocess.Popen[bytes]:
        path = [entry for entry in sys.path if isinstance(entry, str) and entry]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            return subprocess.Popen(
                # -P: a folder of images may hold a file called json.py
                [sys.executable, "-P", "-c", "from sortal.workers import work; work()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **threads},
            )
        except OSError:
            self.errors.close()
            raise

    def send(self, job: Job) -> None:
        if isinstance(job.source, str):
            self._write(json.dumps({"path": job.source, "options": dict(job.options)}))
        else:
            pixels = np.ascontiguousarray(job.source)
            self._write(json.dumps({"shape": pixels.shape, "options": dict(job.options)}), pixels.data)

    def receive(self, job: Job | None = None) -> Values | None:
        """The result of a job, which is the next to come, or nothing if the process has died."""
        assert self.process.stdout is not None
        self.since = monotonic() if job else None  # starting may take its time
        line = self.process.stdout.readline()
        self.since = None
        if not line.endswith(b"\n"):
            return None
        said, _, text = line.partition(b" ")
        self.said = int(said)
        result: Values = json.loads(text)
        if "failure" in result:
            raise SortalError(result["failure"])
        if "bug" in result:
            what = job.source if job and isinstance(job.source, str) else f"row {job.row if job else '?'}"
            raise RuntimeError(f"A task of a process that reads images failed: {what!r}\n{result['bug']}")
        return result

    def kill_if_overdue(self) -> None:
        """End a process that has been at one image for too long; its receive() then returns nothing."""
        if (since := self.since) is not None and monotonic() - since > PATIENCE:
            self.overdue = True
            self.process.kill()

    def obituary(self) -> Values:
        """What became of a process that died, as the result of the job it died of."""
        code = self.process.wait()
        self.errors.seek(self.said)
        said = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.close()
        if self.overdue:
            return {"reason": "timed out", "detail": f"not decoded within {PATIENCE:.0f} seconds"}
        how = f"signal {_signal(-code)}" if code < 0 else f"exit code {code}"
        return {"reason": "crashed", "detail": f"the decoder died by {how}{': ' + said if said else ''}"}

    def close(self) -> None:
        """End the process."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()
        self.errors.close()
        self.running.discard(self)

    def _write(self, line: str, payload: "memoryview | bytes" = b"") -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # if it has died, the next receive() says so
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.write(payload)
            self.process.stdin.flush()


def _signal(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def work() -> None:
    """The life of a worker: do jobs from stdin until there are no more, and write results to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipes
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a decoder prints must not end up among the results
    stdin = sys.stdin.buffer
    jobs: queue.SimpleQueue[tuple[Values, Source] | None] = queue.SimpleQueue()

    def take() -> None:
        """Read while results are written: else a long result and pixels on their way would block each other."""
        try:
            for line in stdin:
                job = json.loads(line)
                source: Source = job.get("path", "")
                if "shape" in job:
                    pixels = np.frombuffer(stdin.read(int(np.prod(job["shape"]))), dtype=np.uint8)
                    source = pixels.reshape(job["shape"])
                jobs.put((job, source))
        finally:
            jobs.put(None)

    try:
        setup = json.loads(stdin.readline())
        task: Task = getattr(import_module(setup["module"]), setup["name"])
        _answer(out, json.dumps({"ready": True}))
        threading.Thread(target=take, daemon=True).start()
        while (got := jobs.get()) is not None:
            job, source = got
            _answer(out, _do(task, source, {**setup["options"], **job["options"]}))
    except BrokenPipeError:
        os._exit(0)  # the parent has gone


def _do(task: Task, source: Source, options: Values) -> str:
    try:
        return json.dumps(task(source, options))
    except UnreadableError as error:
        return json.dumps({"reason": error.reason, "detail": error.detail})
    except MemoryError:
        return json.dumps({"reason": "no memory", "detail": "not enough memory to read it"})
    except SortalError as error:
        return json.dumps({"failure": str(error)})
    except Exception:
        return json.dumps({"bug": traceback.format_exc()})


def _answer(out: IO[bytes], result: str) -> None:
    """A line: how much was written to stderr by now, and the result."""
    out.write(f"{os.fstat(2).st_size} {result}\n".encode())
    out.flush()
