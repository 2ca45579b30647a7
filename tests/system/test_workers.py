"""Worker processes: every result arrives, crashes are reported, and no process is left running."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from support.fork_server import ForkServer, say
from support.worker_tasks import act, act_or_hang, answer_at_length, ask_and_answer, meet

from sortal.errors import InputError, SortalError
from sortal.images.decoding import digest
from sortal.system import workers
from sortal.system.workers import JsonObject, PathOrPixels, WorkFunction, WorkItem, run_workers, worker_count

NAMES = [
    "plain.jpg",
    "two\nlines.jpg",
    "not UTF-8 \udce9\udcff.jpg",
    '图像 " \\ {json: 1}.jpg',
    "null \0.jpg",
    "",
    "x" * 5000,
    "noisy",  # its output must not be taken for results
    f"signal {int(signal.SIGINT)}",  # Ctrl-C is for the parent
]
LIMIT = 300  # seconds per test


@pytest.fixture(autouse=True)
def _impatient() -> Iterator[None]:
    """Fail rather than wait for ever."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("timed out"))
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 5)  # repeatedly, as cleaning up may hang too
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def items(*sources: PathOrPixels) -> list[WorkItem]:
    return [WorkItem(row, source) for row, source in enumerate(sources)]


def all_of(task: WorkFunction, todo: list[WorkItem], n: int = 1) -> dict[int, JsonObject]:
    """Return the results by row; each must come once, and no process or thread may be left."""
    before = set(threading.enumerate())
    found = list(run_workers(task, todo, workers=n))
    assert len({row for row, _ in found}) == len(found)
    assert not any(is_alive(result["pid"]) for _, result in found if "pid" in result)
    assert set(threading.enumerate()) <= before
    return dict(found)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs and is not a zombie."""
    try:
        os.kill(pid, 0)
        if not Path("/proc/self/stat").exists():
            return True
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


# Results


@pytest.mark.parametrize("n", [1, 3])
def test_every_row_gets_its_result_whatever_its_name_or_pixels(n: int) -> None:
    generator = np.random.default_rng(0)
    shapes = [(1, 1, 3), (300, 400, 3), (7, 5, 3), (1000, 900, 3)]
    arrays: list[NDArray[np.uint8]] = [generator.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    arrays += [arrays[1][::2, ::-3], np.asfortranarray(arrays[2]), np.full((9, 10, 3), 10, np.uint8)]  # 10 ends lines
    sent: dict[int, PathOrPixels] = {7: NAMES[0], 3: arrays[0], 99: NAMES[1]}
    sent |= dict(enumerate([*arrays, *NAMES, "unreadable"], start=100))
    found = all_of(act, [WorkItem(row, source) for row, source in sent.items()], n)
    assert [*found] == [*sent] if n == 1 else {*found} == {*sent}  # one worker gives results in order
    pids = set()
    for row, source in sent.items():
        if not isinstance(source, str):
            assert found[row] == {"shape": list(source.shape), "digest": digest(source)}
        elif source == "unreadable":
            assert found[row] == {"reason": "truncated", "detail": "half of it is missing"}
        else:
            assert found[row]["path"] == source
            pids.add(found[row]["pid"])
    assert len(pids) <= n
    assert os.getpid() not in pids


def test_every_image_has_the_options() -> None:
    options = {"side": 4, "draft": True, "extra": [1, None, "ü"]}
    found = dict(run_workers(act, items("a", "b"), options=options, workers=1))
    assert found[0]["options"] == found[1]["options"] == options


def test_several_workers_share_the_work(tmp_path: Path) -> None:
    """Each task waits for a second process, and one alone takes no more than its queue holds."""
    found = all_of(meet, items(*[str(tmp_path)] * (2 * workers.ITEMS_AHEAD)), 2)
    assert len({result["pid"] for result in found.values()}) == 2


def test_long_results_do_not_block_pixels_on_their_way() -> None:
    """Both pipes would be full at once without reading while writing."""
    found = all_of(answer_at_length, items(*[np.zeros((400, 400, 3), np.uint8)] * 6))
    assert [len(result["text"]) for result in found.values()] == [1_000_000] * 6


def test_jobs_are_taken_on_demand_and_nothing_is_left_when_results_are_closed_early(tmp_path: Path) -> None:
    """The endless jobs are never listed. One worker is in the middle of a task."""
    pid = tmp_path / "pid"
    endless = (WorkItem(row, str(pid) if row == 9 else str(row)) for row in itertools.count())
    results = run_workers(act_or_hang, endless, workers=2)
    first = list(itertools.islice(results, 30))
    wait_for(pid.exists)
    results.close()
    assert {row for row, _ in first} <= set(range(30 + 2 * workers.ITEMS_AHEAD))
    assert all(result["path"] == str(row) for row, result in first)
    assert not any(map(is_alive, {result["pid"] for _, result in first} | {int(pid.read_text())}))


@pytest.mark.parametrize("n", [1, 3])
def test_questions_are_answered_even_after_a_reply_crashed_a_process(n: int) -> None:
    """Replies overtake queued images; a crashed task is not retried."""
    asked: list[tuple[int, JsonObject]] = []

    def answer(row: int, question: JsonObject) -> JsonObject:
        asked.append((row, question))
        return {"die": True} if row == 2 else {"row": row, "of": len(question)}

    todo = items("a", "b", "deadly", "d", *["x"] * 6)
    found = dict(run_workers(ask_and_answer, [*todo, WorkItem(10, "pixels")], workers=n, answer=answer))
    assert found.pop(2) == {"reason": "crashed", "detail": "the decoder exited with code 3"}
    assert found == {row: {"replies": [{"row": row, "of": 1}] * 2} for row in range(11) if row != 2}
    assert len(asked) == 2 * 10 + 1
    assert (0, {"about": "a"}) in asked

    def refuse(row: int, question: JsonObject) -> JsonObject:
        raise InputError("There is no room.")

    with pytest.raises(InputError, match="There is no room"):
        list(run_workers(ask_and_answer, items("a", "b"), workers=n, answer=refuse))


# Crashes and errors


@pytest.mark.parametrize("n", [1, 3])
def test_crashes_are_reported_and_nothing_else_is_lost(n: int) -> None:
    """The first, the last, two in a row; the messages of one are not those of another."""
    white = np.full((300, 300, 3), 255, np.uint8)
    sources_and_deaths: list[tuple[PathOrPixels, str | None]] = [
        ("exit", "exited with code 3: the last words"),
        ("a", None),
        ("noisy", None),
        (f"signal {int(signal.SIGSEGV)}", "was killed by signal SIGSEGV"),
        (f"signal {int(signal.SIGKILL)}", "was killed by signal SIGKILL"),  # as when memory runs out
        ("b", None),
        (0 * white, "exited with code 3"),
        (white, None),
        (white, None),
        ("signal 40", "was killed by signal 40"),  # one without a name
    ]
    found = all_of(act, items(*(source for source, _ in sources_and_deaths)), n)
    for row, (source, death) in enumerate(sources_and_deaths):
        if death:
            assert found[row] == {"reason": "crashed", "detail": f"the decoder {death}"}
        else:
            assert source == found[row]["path"] if isinstance(source, str) else digest(source) == found[row]["digest"]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("pointless", SortalError, r"^shorter_side must be at least 1, got 0\.$"),
        ("mistake", RuntimeError, r"(?s)failed on 'mistake'.*worker_tasks.py.*in act.*ZeroDivisionError"),
        ("nonsense", RuntimeError, "int64 is not JSON serializable"),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_an_error_stops_all_processes(tmp_path: Path, name: str, error: type[Exception], words: str, n: int) -> None:
    """Without waiting for images in progress, be they queued or in another process."""
    pid, before = tmp_path / "pid", set(threading.enumerate())
    todo = items("a", name, str(pid)) if n == 1 else items(str(pid), *[name] * workers.ITEMS_AHEAD)
    options = {} if n == 1 else {"after": str(pid)}
    with pytest.raises(error, match=words):
        list(run_workers(act_or_hang, todo, options=options, workers=n))
    assert n == 1 or not is_alive(int(pid.read_text()))
    assert set(threading.enumerate()) <= before


def test_an_image_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = tmp_path / "pid"

    def fast_once_stuck() -> float:
        return time.monotonic() * (1000 if stuck.exists() else 1)

    monkeypatch.setattr(workers, "monotonic", fast_once_stuck)
    found = all_of(act_or_hang, items("a", "b", str(stuck)))
    assert found[2] == {"reason": "timed out", "detail": "not decoded within 300 seconds"}
    assert [found[row]["path"] for row in (0, 1)] == ["a", "b"]


# Starting


@pytest.mark.parametrize(("module", "words"), [("no_such_module", "No module named"), ("json", "attribute 'task'")])
def test_a_task_that_cannot_be_imported_is_reported(module: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this process knows the module, or the function in it."""

    def task(source: PathOrPixels, options: JsonObject) -> JsonObject:
        return {}

    task.__module__, task.__qualname__ = module, "task"
    monkeypatch.setitem(sys.modules, module, sys.modules.get(module, ModuleType(module)))
    monkeypatch.setattr(sys.modules[module], "task", task, raising=False)
    with pytest.raises(SortalError, match=f"could not be started: .*{words}"):
        list(run_workers(task, items("a", "b"), workers=2))


def test_a_worker_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, started = subprocess.Popen, itertools.count()

    def first_only(*args: Any, **options: Any) -> Any:
        if next(started):
            raise OSError(11, "no more processes")
        return real(*args, **options)

    refuse = Mock(side_effect=FileNotFoundError(2, "No usable temporary directory"))
    for where, name, value, words in (
        (sys, "executable", str(tmp_path / "python"), "could not be started: .*No such file"),
        (subprocess, "Popen", first_only, "could not be started: .*no more processes"),  # for a replacement
        (workers.tempfile, "TemporaryFile", refuse, "Set TMPDIR to one that can be written to"),  # type: ignore[attr-defined]
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            with pytest.raises(SortalError, match=words):
                list(run_workers(act, items("a", "exit", "b"), workers=1))


def test_modules_in_the_current_folder_are_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of images may hold a json.py, and be where the command is started."""
    for name in ("json.py", "numpy.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert all_of(act, items("a"))[0]["path"] == "a"


def test_the_number_of_workers_is_as_given_or_that_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (worker_count(1), worker_count(17)) == (1, 17)
    monkeypatch.setattr("sortal.system.resources.CGROUPS", tmp_path)  # as outside of containers
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: {0, 2, 5}, raising=False)
    assert worker_count(None) == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    for cores, expected in ((5, 5), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert worker_count(None) == expected
    with pytest.raises(InputError, match=r"^workers must be at least 1, got 0\.$"):
        list(run_workers(act, items("a"), workers=0))


# Ending


def work_until_signalled(number: int) -> None:
    pids: set[int] = set()
    for _, result in run_workers(act, (WorkItem(row, str(row)) for row in itertools.count()), workers=2):
        pids.add(result["pid"])
        if len(pids) == 2:
            say("pids", *pids)
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, -15), (signal.SIGINT, 1)])
def test_no_process_outlives_its_parent(fork_server: ForkServer, number: int, code: int) -> None:
    (pids,) = fork_server.run(work_until_signalled, int(number), codes=[code]).each("pids")
    wait_for(lambda: not any(map(is_alive, pids)))


def test_an_error_of_the_jobs_also_ends_a_process_that_is_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, started = subprocess.Popen, threading.Event()

    def slow(*args: Any, **options: Any) -> Any:
        started.set()
        time.sleep(0.5)
        return real(*args, **options)

    def todo() -> Iterator[WorkItem]:
        yield WorkItem(0, str(tmp_path / "pid"))
        started.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", slow)
    with pytest.raises(KeyboardInterrupt):
        next(run_workers(act_or_hang, todo(), workers=2))
