"""Worker processes that read images: a file that crashes its decoder ends one process, and is reported by name.

A worker is a fresh Python that imports only what its function needs, so callers need no `if __name__ == "__main__"`.
It gets its function, its items and replies as pickles. Questions and results come back as lines of JSON: what a hostile
image may have made of a worker must not reach this process.
"""

import errno
import json
import os
import pickle
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
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sortal.errors import NO_SPACE, NO_TEMPORARY, InputError, SortalError, UnreadableError, no_space
from sortal.system import resources

PathOrPixels: TypeAlias = "str | NDArray[np.uint8]"  # a path, or pixels (height, width, 3)
JsonObject: TypeAlias = dict[str, Any]
Conversation: TypeAlias = Generator[JsonObject, JsonObject, JsonObject]  # yields questions, returns the result
WorkFunction: TypeAlias = Callable[[PathOrPixels, JsonObject], JsonObject | Conversation]  # (source, options) -> result
Answer: TypeAlias = Callable[[int, JsonObject], JsonObject]  # (row, question) -> reply

IMAGE_PATIENCE = 300.0  # seconds for one image, after which its worker is killed
MOST_WORKERS = 1024  # workers
ITEMS_AHEAD = 4  # items queued at a worker, so that it never waits for the next one


class WorkItem(NamedTuple):
    """One image to process."""

    row: int
    source: PathOrPixels


def worker_count(workers: int | None) -> int:
    """Return how many workers to start; None means one for each core this process may use."""
    if workers is None:
        return resources.cores()
    if workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}.")
    if workers > MOST_WORKERS:
        raise InputError(f"workers must be at most {MOST_WORKERS:,}, as each is a process, got {workers:,}.")
    return workers


def run_workers(
    function: WorkFunction,
    items: Iterable[WorkItem],
    *,
    options: Mapping[str, Any] | None = None,
    workers: int | None = None,
    answer: Answer = lambda *_: {},
) -> Generator[tuple[int, JsonObject]]:
    """Yield (row, result) as results arrive; the result of an unreadable image is its "reason" and "detail".

    If the function is a generator, what it yields are questions: several threads of this process pass them to `answer`,
    and the generator is sent the replies.
    """
    waiting = iter(items)
    lock = threading.Lock()
    results: queue.SimpleQueue[tuple[int, JsonObject] | BaseException | None] = queue.SimpleQueue()
    stop = threading.Event()
    running: set[_Worker] = set()

    def take() -> WorkItem | None:
        with lock:
            return None if stop.is_set() else next(waiting, None)

    def serve() -> None:
        try:
            _serve(lambda: _Worker(function, options or {}, running), take, answer, results.put, stop)
        except BaseException as error:
            results.put(error)
        results.put(None)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(worker_count(workers))]
    for thread in threads:
        thread.start()
    try:
        left, checked = len(threads), monotonic()
        while left:
            if monotonic() - checked > 1:
                checked = monotonic()
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
            while thread.is_alive():  # it may be about to start another worker
                for worker in list(running):
                    worker.process.kill()
                thread.join(0.1)


def _serve(
    start: "Callable[[], _Worker]",
    take: Callable[[], WorkItem | None],
    answer: Answer,
    put: Callable[[tuple[int, JsonObject]], None],
    stop: threading.Event,
) -> None:
    """Feed one worker until no items are left, and replace it when it dies."""
    worker: _Worker | None = None
    queued: deque[WorkItem] = deque()
    try:
        while True:
            while len(queued) < ITEMS_AHEAD and (item := take()) is not None:
                worker = worker or start()
                queued.append(item)
                worker.write({"source": item.source})
            if worker is None or not queued:
                return
            if (result := worker.receive(queued[0])) is not None:
                if "question" in result:
                    worker.write({"reply": answer(queued[0].row, result["question"])})
                else:
                    put((queued.popleft().row, result))
                continue
            if stop.is_set():
                return
            put((queued.popleft().row, worker.cause_of_death()))
            worker = None
            if queued:
                worker = start()
                for item in queued:
                    worker.write({"source": item.source})
    except BaseException:
        if worker is not None:
            worker.process.kill()  # its results are no longer needed
        raise
    finally:
        if worker is not None:
            worker.close()


class _Worker:
    """A worker process and the pipes to it, as seen by the parent."""

    def __init__(self, function: WorkFunction, options: Mapping[str, Any], running: "set[_Worker]") -> None:
        self.errors_read = 0  # bytes of `errors` that belong to items already done
        self.waiting_since: float | None = None
        self.overdue = False
        path = [entry for entry in sys.path if isinstance(entry, str) and entry]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        try:
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close()); decoders in C write to it
            self.process = subprocess.Popen(
                # -P: a folder of images may contain a file called json.py
                [sys.executable, "-P", "-c", "from sortal.system.workers import work; work()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **threads},
            )
        except OSError as error:
            if hasattr(self, "errors"):
                self.errors.close()
            if error.errno in NO_SPACE:
                raise no_space(error, repr(tempfile.gettempdir())) from error
            if not hasattr(self, "errors") and error.errno == errno.ENOENT:
                raise InputError(NO_TEMPORARY) from error
            raise SortalError(f"A worker process could not be started: {error}") from None
        self.running = running
        running.add(self)
        self.write((function, dict(options)))
        if self.receive() is None:
            raise SortalError(f"A worker process could not be started: {self.cause_of_death()['detail']}")

    def receive(self, item: WorkItem | None = None) -> JsonObject | None:
        """Return the next message, which is about `item`, or None if the process has died."""
        assert self.process.stdout is not None
        self.waiting_since = monotonic() if item else None  # starting may take longer
        line = self.process.stdout.readline()
        self.waiting_since = None
        if not line.endswith(b"\n"):
            return None
        errors_read, _, text = line.partition(b" ")
        self.errors_read = int(errors_read)
        result: JsonObject = json.loads(text)
        if "failure" in result:
            raise SortalError(result["failure"])
        if "bug" in result:
            name = item.source if item and isinstance(item.source, str) else f"row {item.row if item else '?'}"
            raise RuntimeError(f"A worker process failed on {name!r}:\n{result['bug']}")
        return result

    def kill_if_overdue(self) -> None:
        """Kill a process that has spent too long on one image; its receive() then returns None."""
        if (since := self.waiting_since) is not None and monotonic() - since > IMAGE_PATIENCE:
            self.overdue = True
            self.process.kill()

    def cause_of_death(self) -> JsonObject:
        """Describe how the process ended, as the result of the item it was working on."""
        code = self.process.wait()
        self.errors.seek(self.errors_read)
        last_line = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.close()
        if self.overdue:
            return {"reason": "timed out", "detail": f"not decoded within {IMAGE_PATIENCE:.0f} seconds"}
        names = {int(each): each.name for each in signal.Signals}
        how = f"was killed by signal {names.get(-code, -code)}" if code < 0 else f"exited with code {code}"
        return {"reason": "crashed", "detail": f"the decoder {how}{': ' + last_line if last_line else ''}"}

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()
        self.errors.close()
        self.running.discard(self)

    def write(self, message: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # if it has died, the next receive() returns None
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()


def work() -> None:
    """Process work items from stdin until it ends, and write results to stdout: the main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipes
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # decoders may print, and must not print among the results
    stdin = sys.stdin.buffer
    sources: queue.SimpleQueue[PathOrPixels | None] = queue.SimpleQueue()
    replies: queue.SimpleQueue[JsonObject | None] = queue.SimpleQueue()

    def receive() -> None:
        """Read while results are written, or a long result and incoming pixels would block each other."""
        try:
            while True:
                message = pickle.load(stdin)
                if "reply" in message:
                    replies.put(message["reply"])
                else:
                    sources.put(message["source"])
        except EOFError:  # the parent has no more
            pass
        finally:
            sources.put(None)
            replies.put(None)

    def send(result: str) -> None:
        out.write(f"{os.fstat(2).st_size} {result}\n".encode())  # after the bytes written to stderr so far
        out.flush()

    def ask(question: JsonObject) -> JsonObject:
        send(json.dumps({"question": question}))
        if (reply := replies.get()) is None:
            os._exit(0)  # the parent is gone
        return reply

    try:
        function, options = pickle.load(stdin)
        send(json.dumps({"ready": True}))
        threading.Thread(target=receive, daemon=True).start()
        while (source := sources.get()) is not None:
            send(_process(function, source, options, ask))
    except BrokenPipeError:
        os._exit(0)  # the parent is gone


def _process(
    function: WorkFunction, source: PathOrPixels, options: JsonObject, ask: Callable[[JsonObject], JsonObject]
) -> str:
    try:
        result = function(source, options)
        return json.dumps(finish(result, ask) if isinstance(result, Generator) else result)
    except UnreadableError as error:
        return json.dumps({"reason": error.reason, "detail": error.detail})
    except MemoryError:
        return json.dumps({"reason": "no memory", "detail": "not enough memory to read it"})
    except SortalError as error:
        return json.dumps({"failure": str(error)})
    except Exception:
        return json.dumps({"bug": traceback.format_exc()})


def finish(conversation: Conversation, ask: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """Answer every question of a work function, and return its result."""
    try:
        question = next(conversation)
        while True:
            question = conversation.send(ask(question))
    except StopIteration as end:
        return end.value
